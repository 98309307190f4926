//! Whole runs against a fake node over loopback: what is counted is known, how long it takes does not matter.

use crate::arrivals::Arrivals;
use crate::fake_node::FakeNode;
use crate::hedging::Hedging;
use crate::load::Load;
use crate::measurement::{Label, Measurement};
use crate::operation::Operation;
use crate::processes::worker;
use crate::run::run;
use crate::workload::Workload;
use hedgerow_report::LoopKind;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, duplex};

fn load(arrivals: Arrivals) -> Load {
    let workload = Workload::named("get").unwrap();
    let (duration, warm_up) = (Duration::from_millis(200), Duration::from_millis(20));
    Load { duration, warm_up, connections: Some(2), ..Load::new(workload, arrivals) }
}

async fn measure(load: &Load) -> Measurement {
    let node = FakeNode::start(None).unwrap();
    run(&[node.address()], load, std::future::pending(), |_| {}).await.unwrap()
}

#[tokio::test]
async fn an_open_loop_sends_exactly_what_is_due() {
    let measurement = measure(&load(Arrivals::constant(1000.0))).await;
    assert_eq!((measurement.count(), measurement.failures(), measurement.missing()), (200, 0, 0));
    assert_eq!(measurement.send_lag().unwrap().len(), 200);
    assert_eq!(measurement.achieved_per_s(), 1000.0);
    let label = Label { variant: "a/b".to_owned(), repetition: 1, workload: "get".to_owned(), begin_s: 0.5 };
    let run = measurement.into_run(label, None).unwrap();
    assert_eq!((run.loop_kind, run.offered_per_s, run.duration_s), (LoopKind::Open, Some(1000.0), 0.2));
    assert_eq!(run.operations[0].name, "get");
    assert_eq!(run.timeline.iter().map(|second| second.count).sum::<u64>(), 200);
}

#[tokio::test]
async fn a_closed_loop_ends_after_its_operations() {
    let load = Load {
        operations: Some(500),
        duration: Duration::from_secs(600),
        warm_up: Duration::ZERO,
        ..load(Arrivals::Closed { clients: 4, in_flight: 3 })
    };
    let measurement = measure(&load).await;
    assert_eq!((measurement.count(), measurement.failures()), (500, 0));
    assert_eq!(measurement.latency(Operation::Get).unwrap().len(), 500);
    assert!(measurement.send_lag().is_none());
    assert!(measurement.duration() < Duration::from_secs(600));
}

#[tokio::test]
async fn a_run_that_is_stopped_gives_what_it_has() {
    let node = FakeNode::start(None).unwrap();
    let load = Load { duration: Duration::from_secs(600), warm_up: Duration::ZERO, ..load(Arrivals::clients(2)) };
    let (sender, first_second) = tokio::sync::oneshot::channel::<()>();
    let mut sender = Some(sender);
    let stop = async { drop(first_second.await) };
    let measurement = run(&[node.address()], &load, stop, |_| drop(sender.take())).await.unwrap();
    assert!(measurement.count() > 0);
    assert!(measurement.duration() < Duration::from_secs(600));
}

#[tokio::test]
async fn a_hedged_load_tells_what_its_clients_counted() {
    let options = hedgerow_client::HedgeOptions::backup_request(Duration::from_micros(1));
    let hedging = Hedging::of(&options).unwrap();
    let load = Load { hedging, ..load(Arrivals::constant(1000.0)) };
    let measurement = measure(&load).await;
    assert_eq!((measurement.count(), measurement.failures()), (200, 0));
    let told = measurement.into_run(Label::default(), None).unwrap().hedging.unwrap();
    assert!((1..=300).contains(&told.first), "{told:?}");
    assert_eq!((told.extra(), told.extra_work_percent), (0, None), "there is no other replica, and nobody was asked");
    assert_eq!(told.nodes.values().map(|node| node.attempts).sum::<u64>(), told.first);
}

/// A worker in this process, and its two ends.
fn start_worker() -> (DuplexStream, Lines<BufReader<DuplexStream>>) {
    let (orders, input) = duplex(1 << 20);
    let (output, news) = duplex(1 << 20);
    tokio::spawn(async move { worker(input, output).await });
    (orders, BufReader::new(news).lines())
}

async fn tell(orders: &mut DuplexStream, order: &Value) {
    orders.write_all(format!("{order}\n").as_bytes()).await.unwrap();
}

async fn hear(news: &mut Lines<BufReader<DuplexStream>>) -> Value {
    serde_json::from_str(&news.next_line().await.unwrap().unwrap()).unwrap()
}

fn job(address: String, load: &Load) -> Value {
    json!({ "job": { "cluster": [address], "load": load, "index": 0, "count": 1 } })
}

#[tokio::test]
async fn a_worker_does_its_job_and_sends_what_it_counted() {
    let node = FakeNode::start(None).unwrap();
    let (mut orders, mut news) = start_worker();
    tell(&mut orders, &job(node.address(), &load(Arrivals::constant(1000.0)))).await;
    assert_eq!(hear(&mut news).await, "ready");
    tell(&mut orders, &json!({ "start": crate::pace::machine_now() })).await;
    let done = hear(&mut news).await;
    let parcel: crate::parcel::Parcel = serde_json::from_value(done["done"].clone()).unwrap();
    let result = parcel.open().unwrap();
    assert_eq!(result.record.operations[&Operation::Get].latency.len(), 200);
    assert_eq!(result.record.lag.len(), 200);
}

#[tokio::test]
async fn a_worker_that_loses_its_parent_ends() {
    let node = FakeNode::start(None).unwrap();
    let (mut orders, mut news) = start_worker();
    let load = Load { duration: Duration::from_secs(600), ..load(Arrivals::constant(1000.0)) };
    tell(&mut orders, &job(node.address(), &load)).await;
    assert_eq!(hear(&mut news).await, "ready");
    tell(&mut orders, &json!({ "start": crate::pace::machine_now() })).await;
    drop(orders);
    while news.next_line().await.unwrap().is_some() {}
}

#[tokio::test]
async fn a_worker_says_why_it_failed() {
    let (mut orders, mut news) = start_worker();
    tell(&mut orders, &json!({ "halt": 1 })).await;
    assert!(hear(&mut news).await["failed"].as_str().unwrap().contains("not understood"));
    let (mut orders, mut news) = start_worker();
    tell(&mut orders, &json!("stop")).await;
    assert!(hear(&mut news).await["failed"].as_str().unwrap().contains("no job"));
}
