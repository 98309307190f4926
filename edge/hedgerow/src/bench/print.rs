//! What `bench` shows people.

use super::options::ListedWorkload;
use crate::output::columns;
use hedgerow_report::{Hedging, HeldUp, Latency, Operation, Run, Second};

/// So many standard deviations below the rate, arrivals by chance are no explanation any more.
const WAITING_DEVIATIONS: f64 = 4.0;

/// What to do about a run whose figures mean nothing.
const WHEN_VOID: &str = "its figures mean nothing: take a lower --rate, fewer --connections, --spin 1000 for latencies below some ms, or more cores";

/// Headings of the table of runs.
const HEADER: [&str; 13] = [
    "variant",
    "operation",
    "count",
    "per second",
    "p50",
    "p90",
    "p95",
    "p99",
    "p99.9",
    "p99.99",
    "max",
    "errors",
    "timeouts",
];

/// The line that is said after each second; `rate` is what an open loop asks per second.
pub(super) fn second(second: &Second, rate: Option<f64>) -> String {
    let successes = second.count - second.errors;
    let p99 = if second.count == 0 { "n/a".to_owned() } else { format!("{} ms", milliseconds(second.p99_us)) };
    let waiting = rate.and_then(|rate| waiting(second.count, rate)).unwrap_or_default();
    format!("{:>4} s  {successes} ops/s, p99 {p99}, {} errors{waiting}", second.second + 1, second.errors)
}

/// What was due in the second and has not ended with it: its latencies are not in the line. How many requests fall due is drawn, so that only
/// what is far from the rate is told.
fn waiting(ended: u64, rate: f64) -> Option<String> {
    let missing = rate - ended as f64;
    (missing > WAITING_DEVIATIONS * rate.sqrt()).then(|| format!(", about {missing:.0} still waiting"))
}

/// All runs: latencies by operation, then what else there is to say about each.
pub(super) fn runs(runs: &[Run]) -> String {
    let rows: Vec<_> = runs.iter().flat_map(|run| run.operations.iter().map(|it| row(run, it))).collect();
    let mut lines = vec!["latencies in ms".to_owned(), columns(&HEADER, &rows)];
    lines.extend(runs.iter().map(remarks));
    lines.join("\n")
}

fn row(run: &Run, operation: &Operation) -> Vec<String> {
    let Latency { p50, p90, p95, p99, p999, p9999, max, .. } = operation.latency_us;
    let successes = operation.count - operation.errors - operation.timeouts;
    let per_second = successes as f64 / run.duration_s.max(1e-9);
    let mut cells = vec![run.variant.clone(), operation.name.clone(), operation.count.to_string()];
    cells.push(format!("{per_second:.0}"));
    let percentiles = [Some(p50), Some(p90), Some(p95), Some(p99), p999, p9999, Some(max)];
    cells.extend(percentiles.map(|micros| micros.map_or_else(|| "n/a".to_owned(), milliseconds)));
    cells.extend([operation.errors.to_string(), operation.timeouts.to_string()]);
    cells
}

fn milliseconds(micros: f64) -> String {
    let millis = micros / 1e3;
    let decimals = if millis < 1.0 {
        3
    } else if millis < 100.0 {
        2
    } else {
        0
    };
    format!("{millis:.decimals$}")
}

fn remarks(run: &Run) -> String {
    let count: u64 = run.operations.iter().map(|operation| operation.count).sum();
    let per_operation = |seconds: f64| seconds * 1e6 / count.max(1) as f64;
    let mut line = format!(
        "{}: {:.0} per second for {:.1} s, CPU per operation: generator {:.1} us",
        run.variant,
        run.achieved_per_s,
        run.duration_s,
        per_operation(run.generator_cpu_s)
    );
    if !run.server_cpu_s.is_empty() {
        line.push_str(&format!(", servers {:.1} us", per_operation(run.server_cpu_s.values().sum())));
    }
    if let (Some(lag), Some(offered)) = (&run.send_lag_us, run.offered_per_s) {
        line.push_str(&format!(
            "\n  offered {offered:.0} per second, send lag p50 {:.0} us, p99 {:.0} us",
            lag.p50, lag.p99
        ));
    }
    let extra = run.extra.iter().filter(|(name, _)| *name != "generator_processes_count");
    let extra: Vec<String> =
        extra.map(|(name, value)| format!("{} {value}", name.trim_end_matches("_count").replace('_', " "))).collect();
    if !extra.is_empty() {
        line.push_str(&format!("\n  {}", extra.join(", ")));
    }
    line.extend(run.hedging.iter().flat_map(extra_attempts).map(|told| format!("\n  {told}")));
    match &run.void {
        Some(reason) => format!("{line}\n{}: VOID: {reason}\n  {WHEN_VOID}", run.variant),
        None => line,
    }
}

/// What was sent beyond first attempts, and what became of it.
fn extra_attempts(hedging: &Hedging) -> Vec<String> {
    let executed = hedging.extra_work_percent.map_or_else(|| "n/a".to_owned(), |percent| format!("{percent:.3} %"));
    let mut lines = vec![format!("extra requests {:.3} %, extra work of servers {executed}", hedging.extra_percent())];
    let kinds = hedging.kinds.iter();
    lines.extend(kinds.map(|(name, kind)| format!("{name}: {}", kind.told(|count| count.to_string()))));
    let Hedging { cancelled, dropped, wasted_ms, .. } = hedging;
    lines
        .push(format!("{cancelled} cancelled, {dropped} dropped in time by servers, {wasted_ms:.0} ms waited in vain"));
    if let Some(HeldUp { count, total_ms, put_off }) = hedging.held_up {
        lines.push(format!("clients held up: {count}, for {total_ms:.0} ms, attempts put off: {put_off}"));
    }
    let list = |name: &str, parts: Vec<String>| (!parts.is_empty()).then(|| format!("{name}: {}", parts.join(", ")));
    let counts = |(name, count): (&String, &u64)| format!("{name} {count}");
    lines.extend(list("read at level", hedging.served_levels.iter().map(counts).collect()));
    let nodes = hedging.nodes.iter().map(|(node, of)| format!("{node} {} ({} extra)", of.attempts, of.extra));
    lines.extend(list("attempts", nodes.collect()));
    lines.extend(list("servers counted", hedging.servers.iter().map(counts).collect()));
    lines
}

/// The workloads that are built in.
pub(super) fn list(workloads: &[ListedWorkload]) -> String {
    let rows: Vec<_> = workloads.iter().map(|it| vec![it.name.clone(), it.description.clone()]).collect();
    columns(&["workload", "what it is"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_tells_its_successes() {
        let shown = second(&Second { second: 0, count: 110, errors: 10, p99_us: 2345.0, ..Second::default() }, None);
        assert_eq!(shown, "   1 s  100 ops/s, p99 2.35 ms, 10 errors");
        assert!(second(&Second::default(), None).contains("p99 n/a"));
    }

    #[test]
    fn a_second_with_requests_that_have_not_ended_says_so() {
        let shown = |count| second(&Second { count, ..Second::default() }, Some(2_500.0));
        assert!(shown(1_500).ends_with(", 0 errors, about 1000 still waiting"), "{}", shown(1_500));
        for by_chance in [2_310, 2_500, 2_600] {
            assert!(shown(by_chance).ends_with("0 errors"), "{}", shown(by_chance));
        }
    }

    #[test]
    fn extra_attempts_are_told_by_kind_and_node() {
        let mut hedging = Hedging { first: 1_000, dropped: 1, extra_work_percent: Some(0.05), ..Hedging::default() };
        let kind = hedgerow_report::ExtraAttempts { sent: 2, won: 1, suppressed: 3, sent_late: 2 };
        hedging.kinds.insert("hedge".to_owned(), kind);
        hedging.held_up = Some(HeldUp { count: 4, total_ms: 12.4, put_off: 1 });
        let node = hedgerow_report::NodeAttempts { attempts: 1_002, extra: 2, ..Default::default() };
        hedging.nodes.insert("127.0.0.1:1".to_owned(), node);
        assert_eq!(
            extra_attempts(&hedging),
            [
                "extra requests 0.200 %, extra work of servers 0.050 %",
                "hedge: 2 sent, 1 won, 3 suppressed, 2 of these sent late",
                "0 cancelled, 1 dropped in time by servers, 0 ms waited in vain",
                "clients held up: 4, for 12 ms, attempts put off: 1",
                "attempts: 127.0.0.1:1 1002 (2 extra)",
            ]
        );
    }

    #[test]
    fn a_void_run_says_why_and_missing_percentiles_are_not_made_up() {
        let operation = Operation { name: "get".to_owned(), count: 1000, ..Operation::default() };
        let run = Run {
            variant: "rate=100".to_owned(),
            duration_s: 10.0,
            achieved_per_s: 100.0,
            offered_per_s: Some(100.0),
            send_lag_us: Some(Latency { p99: 80.0, ..Latency::default() }),
            void: Some("sent late".to_owned()),
            generator_cpu_s: 0.01,
            operations: vec![operation],
            ..Run::default()
        };
        let text = runs(&[run]);
        assert!(text.contains("n/a") && text.contains("generator 10.0 us") && text.contains("p99 80 us"), "{text}");
        assert!(text.contains("rate=100: VOID: sent late\n") && text.ends_with(WHEN_VOID), "{text}");
    }
}
