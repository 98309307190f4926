//! The generator's check of itself, with real sockets and real time: a target that stops for 100 ms every 10 s must show as
//! one request in a hundred delayed by 0 to 100 ms in an open loop; a closed loop must hide it.

use crate::arrivals::Arrivals;
use crate::fake_node::{FakeNode, Pauses};
use crate::load::Load;
use crate::measurement::Measurement;
use crate::overhead::Overhead;
use crate::run::run;
use crate::workload::Workload;
use anyhow::Result;
use hdrhistogram::Histogram;
use hedgerow_report::{Check, Table};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(100);
const PERIOD: Duration = Duration::from_secs(10);
/// Requests per second of the open loop.
const RATE: f64 = 1000.0;
const OPEN_FOR: Duration = Duration::from_secs(20);
const CLOSED_FOR: Duration = Duration::from_secs(10);
/// What takes longer was delayed by a pause.
const DELAYED: Duration = Duration::from_millis(5);

/// What the check found.
#[derive(Clone, Debug)]
pub struct SelfTest {
    checks: Vec<Check>,
    figures: Table,
}

impl SelfTest {
    /// What had to hold, and whether it did.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// Whether all of it did.
    pub fn has_passed(&self) -> bool {
        self.checks.iter().all(|check| check.has_passed)
    }

    /// For people.
    pub fn text(&self) -> String {
        let line = |check: &Check| {
            let verdict = if check.has_passed { "ok    " } else { "FAILED" };
            format!("{verdict}  {}: {}", check.name, check.detail)
        };
        let mut lines = vec![self.figures.text()];
        lines.extend(self.checks.iter().map(line));
        lines.push(if self.has_passed() {
            "the generator tells the truth about pauses".to_owned()
        } else {
            "the generator cannot be trusted here: is the machine busy with something else?".to_owned()
        });
        lines.join("\n")
    }
}

/// Runs the check, which takes half a minute. `say` gets lines for people.
pub async fn self_test(mut say: impl FnMut(&str)) -> Result<SelfTest> {
    say(&format!("open loop, {RATE} requests per second for {} s", OPEN_FOR.as_secs()));
    let open = measure(Arrivals::constant(RATE), OPEN_FOR).await?;
    say(&format!("closed loop, one client for {} s", CLOSED_FOR.as_secs()));
    let closed = measure(Arrivals::clients(1), CLOSED_FOR).await?;
    say("the generator's own cost, with a target in its own process");
    let overhead = Overhead::measure().await?;
    let mut test = judge(&open, &closed);
    test.figures.notes.push(format!(
        "A request costs the generator itself {:.0} ns of CPU in a closed loop, {:.0} ns in an open one.",
        overhead.closed_nanos, overhead.open_nanos
    ));
    Ok(test)
}

async fn measure(arrivals: Arrivals, duration: Duration) -> Result<Measurement> {
    // In the middle of each ten seconds, so that every measurement has as many pauses as it has tens of seconds.
    let target = FakeNode::start(Some(Pauses { first: PERIOD / 2, period: PERIOD, pause: PAUSE }))?;
    let load = Load { duration, connections: Some(1), ..Load::new(Workload::named("get")?, arrivals) };
    run(&[target.address()], &load, std::future::pending(), |_| {}).await
}

fn judge(open: &Measurement, closed: &Measurement) -> SelfTest {
    let (shown, hidden) = (open.latency_of_all(), closed.latency_of_all());
    let lag = open.send_lag().map_or(0, |lag| lag.value_at_quantile(0.99));
    let expected = open.duration().as_secs_f64() * RATE;
    let checks = vec![
        check("all requests were sent and answered", open.failures() == 0 && open.count() as f64 == expected, || {
            format!("{} of {expected}, {} failed", open.count(), open.failures())
        }),
        within("open loop: share delayed by a pause (percent)", delayed_percent(&shown), 0.8, 1.3),
        within("open loop: p99.5 (ms), half of the longest delay", milliseconds(&shown, 0.995), 35.0, 65.0),
        within("open loop: p99.75 (ms), three quarters of it", milliseconds(&shown, 0.9975), 60.0, 90.0),
        within("open loop: longest delay (ms)", shown.max() as f64 / 1e6, 90.0, 130.0),
        within("open loop: p99 of the send lag (ms)", lag as f64 / 1e6, 0.0, 5.0),
        within("closed loop: share delayed by a pause (percent)", delayed_percent(&hidden), 0.0, 0.1),
        within("closed loop: p99.5 (ms)", milliseconds(&hidden, 0.995), 0.0, 5.0),
    ];
    SelfTest { checks, figures: figures(&shown, &hidden) }
}

fn figures(shown: &Histogram<u64>, hidden: &Histogram<u64>) -> Table {
    let row = |name: &str, histogram: &Histogram<u64>| {
        let quantiles = [0.5, 0.99, 0.995, 0.9975, 1.0].map(|quantile| milliseconds(histogram, quantile));
        let mut cells =
            vec![name.to_owned(), histogram.len().to_string(), format!("{:.3}", delayed_percent(histogram))];
        cells.extend(quantiles.map(|value| format!("{value:.2}")));
        cells
    };
    let columns = ["loop", "requests", "delayed (%)", "p50 (ms)", "p99 (ms)", "p99.5 (ms)", "p99.75 (ms)", "max (ms)"];
    Table {
        title: "a target paused for 100 ms every 10 s".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: vec![row("open", shown), row("closed", hidden)],
        notes: Vec::new(),
    }
}

fn check(name: &str, has_passed: bool, detail: impl FnOnce() -> String) -> Check {
    Check { name: name.to_owned(), has_passed, detail: detail() }
}

fn within(name: &str, value: f64, min: f64, max: f64) -> Check {
    check(name, (min..=max).contains(&value), || format!("{value:.3}, allowed {min} to {max}"))
}

fn milliseconds(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e6
}

fn delayed_percent(histogram: &Histogram<u64>) -> f64 {
    let prompt = histogram.count_between(0, DELAYED.as_nanos() as u64);
    (histogram.len() - prompt) as f64 * 100.0 / histogram.len().max(1) as f64
}
