//! The engine in virtual time: every sample is known beforehand.

use crate::arrivals::{Arrivals, Spacing};
use crate::engine::Times;
use crate::operation::Operation;
use crate::record::Record;
use crate::reply::{Failure, Found, Reply};
use crate::virtual_time::{MILLISECOND, PausingServer, SECOND, drive};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

fn times(seconds: u64) -> Times {
    Times { start: 0, begin: 0, end: seconds * SECOND, patience: 5 * SECOND }
}

fn open(rate: f64, in_flight_max: u32) -> Arrivals {
    Arrivals::Open { rate, spacing: Spacing::Constant, in_flight_max }
}

fn gets(record: &Record) -> &hdrhistogram::Histogram<u64> {
    &record.operations[&Operation::Get].latency
}

/// The self-test: a server that stops for 100 ms every 10 s.
#[tokio::test(start_paused = true)]
async fn an_open_loop_shows_a_pause_as_long_as_it_is() {
    let origin = Instant::now();
    let server = PausingServer::new(origin);
    let (_, _, record) = drive(open(1000.0, 10_000), None, times(210), origin, move |_, it| server.serve(it)).await;
    let latency = gets(&record);
    assert_eq!(latency.len(), 210_000);
    // Twenty pauses, each of which a hundred requests fall into: those due after 0, 1, ... 99 ms of it.
    let delayed = latency.len() - latency.count_between(0, MILLISECOND / 2);
    assert_eq!(delayed, 20 * 100);
    let share = delayed as f64 / latency.len() as f64;
    assert!((share - 0.0095).abs() < 0.0001, "{share}");
    for milliseconds in (5..=100).step_by(5) {
        let below = latency.count_between(MILLISECOND / 2, milliseconds * MILLISECOND);
        assert_eq!(below, 20 * milliseconds, "delayed by up to {milliseconds} ms");
    }
    // One request in a hundred waits, evenly from 0 to 100 ms: half of those that wait lie above 50 ms.
    let p995 = latency.value_at_quantile(0.9952) / MILLISECOND;
    assert!((45..=55).contains(&p995), "{p995} ms");
    assert_eq!(record.lag.max(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_hides_the_same_pause() {
    let origin = Instant::now();
    let server = PausingServer::new(origin);
    // As the open loop above: a thousand requests per second while the server runs.
    let serve = move |_, request| async move {
        sleep(Duration::from_millis(1)).await;
        server.serve(request).await
    };
    let (_, _, record) = drive(Arrivals::clients(1), None, times(209), origin, serve).await;
    let latency = gets(&record);
    let delayed = latency.len() - latency.count_between(0, 3 * MILLISECOND);
    assert_eq!(delayed, 20, "one request per pause, of {}", latency.len());
    assert!(latency.value_at_quantile(0.9995) < 3 * MILLISECOND, "p99.95 knows nothing of the pauses");
}

#[tokio::test(start_paused = true)]
async fn requests_held_back_by_the_limit_count_from_when_they_were_due() {
    let origin = Instant::now();
    let server = PausingServer::new(origin);
    let (_, _, record) = drive(open(1000.0, 10), None, times(20), origin, move |_, it| server.serve(it)).await;
    let latency = gets(&record);
    // The same hundred late ones, although only ten of them could be sent before the pause was over.
    assert_eq!(latency.len(), 20_000);
    assert_eq!(latency.len() - latency.count_between(0, MILLISECOND / 2), 100);
    assert_eq!(record.held_back, 90);
    assert_eq!((record.lag.max() + MILLISECOND / 2) / MILLISECOND, 90);
}

#[tokio::test(start_paused = true)]
async fn what_was_never_sent_or_answered_is_a_timeout() {
    let origin = Instant::now();
    let (_, _, record) = drive(open(100.0, 10), None, times(2), origin, |_, _| std::future::pending::<Reply>()).await;
    let counted = &record.operations[&Operation::Get];
    assert_eq!((counted.latency.len(), counted.timeouts, record.unsent), (200, 200, 190));
    // The first was due at 0 and given up at 7 s: two seconds of load and five of patience.
    assert_eq!(counted.latency.max() / (100 * MILLISECOND), 70);
    assert_eq!(record.second(1).errors, 100);
}

#[tokio::test(start_paused = true)]
async fn the_warm_up_does_not_count_and_seconds_are_those_of_the_due_times() {
    let origin = Instant::now();
    let times = Times { start: 0, begin: 5 * SECOND, end: 10 * SECOND, patience: SECOND };
    let server = PausingServer { origin, period: Duration::from_secs(7), pause: Duration::from_millis(500) };
    let (end, _, record) = drive(open(1000.0, 10_000), None, times, origin, move |_, it| server.serve(it)).await;
    assert_eq!(end, 10 * SECOND);
    assert_eq!(gets(&record).len(), 5_000);
    let counts: Vec<_> = (0..5).map(|second| record.second(second).count).collect();
    assert_eq!(counts, [1000; 5]);
    let slow: Vec<_> = (0..5).map(|second| record.second(second).max_us > 1000.0).collect();
    assert_eq!(slow, [false, false, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_keeps_its_clients_busy_and_rests_after_failures() {
    let origin = Instant::now();
    let busy = Arc::new(AtomicUsize::new(0));
    let serve = {
        let busy = busy.clone();
        move |client: usize, _| {
            let busy = busy.clone();
            async move {
                busy.fetch_max(client + 1, Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
                if client == 0 { Err(Failure::Error("storage")) } else { Ok(Found::All) }
            }
        }
    };
    let (_, _, record) = drive(Arrivals::Closed { clients: 3, in_flight: 2 }, None, times(1), origin, serve).await;
    assert_eq!(busy.load(Ordering::Relaxed), 3);
    // Two clients with two in flight, a hundred each; the failing one needs twice as long for each.
    let counted = &record.operations[&Operation::Get];
    assert_eq!((counted.latency.len(), counted.errors), (400 + 100, 100));
    assert_eq!(counted.latency.max() / MILLISECOND, 10);
}

#[tokio::test(start_paused = true)]
async fn a_number_of_operations_ends_a_closed_loop() {
    let origin = Instant::now();
    let serve = |_, _| async {
        sleep(Duration::from_millis(10)).await;
        Ok(Found::All)
    };
    let (end, _, record) = drive(Arrivals::clients(4), Some(40), times(100), origin, serve).await;
    assert_eq!(gets(&record).len(), 40);
    assert_eq!(end, 100 * MILLISECOND);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_run_with_what_was_measured() {
    let origin = Instant::now();
    let serve = |_, _| async { Ok(Found::All) };
    let watched = crate::engine::Watched::new();
    watched.stop();
    let workload = crate::workload::Workload::named("get").unwrap();
    let mix = crate::mix::Mix::new(&workload, 1, crate::mix::Part { index: 0, count: 1 });
    let source = crate::engine::Source::new(open(1000.0, 10), None, 0.0, 1);
    let pace = crate::virtual_time::VirtualPace::new(origin);
    sleep(Duration::from_secs(1)).await;
    let engine = crate::engine::Engine::new(serve, pace, times(1000), mix, source, watched.clone());
    let end = tokio::spawn(engine).await.unwrap();
    assert_eq!(end, SECOND);
    assert_eq!(gets(&watched.record()).len(), 1000);
}
