//! What a recorder of the facade `metrics` is told, against nodes that pretend. It is the whole process's, so that this file has one test.
#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, after_10_ms, answer, get, ms, pass, spawn_get};
use fake::{Action, value};
use hedgerow_client::{ClientOptions, ErrorKind};
use hedgerow_types::Refusal;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// By name and labels: how often, and the sum of what was recorded.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeMap<String, (u64, f64)>>>);

struct Line {
    book: Book,
    key: String,
}

impl Line {
    fn add(&self, count: u64, value: f64) {
        let mut lines = self.book.0.lock().unwrap();
        let line = lines.entry(self.key.clone()).or_default();
        (line.0, line.1) = (line.0 + count, line.1 + value);
    }
}

impl CounterFn for Line {
    fn increment(&self, value: u64) {
        self.add(value, 0.0);
    }

    fn absolute(&self, _: u64) {
        unreachable!("counters only rise")
    }
}

impl HistogramFn for Line {
    fn record(&self, value: f64) {
        self.add(1, value);
    }
}

impl Book {
    fn line(&self, key: &Key) -> Arc<Line> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Line { book: self.clone(), key: format!("{} {}", key.name(), labels.join(" ")) })
    }

    /// What was recorded of the node since it was looked at last, without the names' common beginning, and without how long it took.
    fn take(&self, group: &Group, node: usize) -> String {
        let label = format!("node={}", group.nodes[node].address);
        let mut shown = Vec::new();
        self.0.lock().unwrap().retain(|key, (count, _)| {
            let is_of_node = key.contains(&label);
            if is_of_node {
                let key = key.replace(&label, "").replace("hedgerow_client_attempt", "");
                shown.push(format!("{}: {count}", key.split_whitespace().collect::<Vec<_>>().join(" ")));
            }
            !is_of_node
        });
        shown.join(", ")
    }

    /// Seconds in the histogram of the node.
    fn seconds(&self, group: &Group, node: usize) -> f64 {
        let key = format!("hedgerow_client_attempt_seconds node={}", group.nodes[node].address);
        self.0.lock().unwrap()[&key].1
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.line(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        unreachable!("there is no gauge")
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_counted_at_its_node_with_its_kind_and_its_end() {
    let book = Book::default();
    assert!(metrics::set_global_recorder(book.clone()).is_ok());
    let group = Group::start(2).await;
    // The map is asked of the first node.
    let options =
        ClientOptions { operation_timeout: ms(100), attempt_timeout: Some(ms(100)), ..ClientOptions::default() };
    let (client, table) = group.open_with(after_10_ms(), options).await;
    book.take(&group, LEADER);

    group.slow(LEADER, ms(8));
    let read = spawn_get(&table);
    pass(ms(8)).await;
    assert_eq!(answer(read).await, LEADER);
    assert!((0.008..0.009).contains(&book.seconds(&group, LEADER)), "{}", book.seconds(&group, LEADER));
    assert_eq!(book.take(&group, LEADER), "_seconds: 1, s_ended_total outcome=answered: 1, s_total kind=first: 1");

    // A hedge is faster.
    group.silence(LEADER);
    let read = spawn_get(&table);
    pass(ms(10)).await;
    assert_eq!(answer(read).await, 1);
    assert_eq!(book.take(&group, LEADER), "s_ended_total outcome=cancelled: 1, s_total kind=first: 1");
    assert_eq!(book.take(&group, 1), "_seconds: 1, s_ended_total outcome=answered: 1, s_total kind=hedge: 1");

    // Plain requests count as well: one that is refused, one that is dropped, and one without a reply in its time.
    let plain = client.open_table("t").await.unwrap();
    book.take(&group, LEADER);
    group.refuse(LEADER, Refusal::Invalid("so".into()));
    assert_eq!(plain.get("h", "s").await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(book.take(&group, LEADER), "s_ended_total outcome=refused: 1, s_total kind=first: 1");
    group.silence(LEADER);
    let read = spawn_get(&plain);
    pass(ms(1)).await;
    read.abort();
    assert!(read.await.unwrap_err().is_cancelled());
    assert_eq!(book.take(&group, LEADER), "s_ended_total outcome=cancelled: 1, s_total kind=first: 1");
    let late = plain.clone();
    let read = tokio::spawn(async move { late.get("h", "s").await });
    pass(ms(105)).await;
    assert_eq!(answer(read).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(book.take(&group, LEADER).contains("outcome=lost: 1"));
    group.answer(LEADER, |_| Action::Reply(value(b"0")));
    assert_eq!(get(&plain).await, LEADER);
}
