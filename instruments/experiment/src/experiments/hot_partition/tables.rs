//! The tables: throughput at equal p99 against the targets, latency at an equal rate, and how well the shares were kept.

use super::{CLIENTS_PER_REPLICA, Case, FIXED_RATE, FIXED_SHARE, Plan7, SHARE_PERCENT, VOTERS, closed_name};
use crate::read_counts::MESSAGES_PER_READ;
use crate::summary::{Spread, or_na, times};
use hedgerow_report::{Run, Table};

/// The targets: reads on three voters against the leader alone, and each further replica against the leader alone.
const VOTERS_MIN: f64 = 2.7;
const LEARNER_MIN: f64 = 0.9;

pub(super) fn all(plan: &Plan7, runs: &[Run]) -> Vec<Table> {
    [equal_p99(plan, runs), fixed_rate(runs), every_step(plan, runs)].into_iter().flatten().collect()
}

/// A variant's runs with so many clients per serving replica.
fn own<'a>(runs: &'a [Run], case: Case, workload: &str) -> Vec<&'a Run> {
    let variant = case.to_string();
    runs.iter().filter(|run| run.variant == variant && run.workload == workload).collect()
}

fn p99_ms(run: &Run) -> Option<f64> {
    run.operations.first().map(|it| it.latency_us.p99 / 1e3)
}

fn p50_ms(run: &Run) -> Option<f64> {
    run.operations.first().map(|it| it.latency_us.p50 / 1e3)
}

/// The most that one node used, in percent of a core.
fn busiest_percent(run: &Run) -> Option<f64> {
    run.server_cpu_s.values().copied().reduce(f64::max).map(|cpu| cpu * 100.0 / run.duration_s.max(1e-9))
}

/// A number of clients per serving replica, and what came of it.
struct Step<'a> {
    clients: u32,
    runs: Vec<&'a Run>,
    per_s: Spread,
    p99_ms: Spread,
}

fn step(runs: &[Run], case: Case, clients: u32) -> Option<Step<'_>> {
    let runs = own(runs, case, &closed_name(clients));
    let per_s = Spread::of_runs(&runs, |run| Some(run.achieved_per_s))?;
    let p99_ms = Spread::of_runs(&runs, p99_ms)?;
    Some(Step { clients, runs, per_s, p99_ms })
}

/// The step with the highest throughput whose p99 is not above `limit_ms`.
fn best<'a>(plan: &Plan7, runs: &'a [Run], case: Case, limit_ms: f64) -> Option<Step<'a>> {
    let steps = plan.clients.iter().filter_map(|clients| step(runs, case, *clients));
    let within = steps.filter(|step| step.p99_ms.median <= limit_ms);
    within.max_by(|a, b| a.per_s.median.total_cmp(&b.per_s.median))
}

fn equal_p99(plan: &Plan7, runs: &[Run]) -> Option<Table> {
    let saturated = step(runs, Case::LeaderOnly, *plan.clients.last()?)?;
    let limit_ms = saturated.p99_ms.median;
    let leader = best(plan, runs, Case::LeaderOnly, limit_ms)?.per_s;
    let columns = [
        "variant",
        "clients per replica",
        "per second",
        "p99 ms",
        "x leader only",
        "target",
        "messages per read at a follower",
        "busiest node's CPU %",
    ];
    let mut rows = Vec::new();
    for case in Case::all() {
        let Some(step) = best(plan, runs, case, limit_ms) else {
            if plan.clients.iter().any(|clients| step(runs, case, *clients).is_some()) {
                let mut row = vec![case.to_string(), "none with that p99".to_owned()];
                row.extend((2..columns.len()).map(|_| "n/a".to_owned()));
                rows.push(row);
            }
            continue;
        };
        let ratio = step.per_s.ratio(leader);
        rows.push(vec![
            case.to_string(),
            step.clients.to_string(),
            step.per_s.to_string(),
            step.p99_ms.to_string(),
            times(ratio),
            target(plan, runs, case, limit_ms, leader, step.per_s),
            or_na(Spread::of_runs(&step.runs, |run| run.extra.get(MESSAGES_PER_READ).copied())),
            or_na(Spread::of_runs(&step.runs, busiest_percent)),
        ]);
    }
    let notes = vec![
        format!(
            "Equal p99: of the steps below, the one with the highest throughput whose p99 is not above {limit_ms:.1} ms, the p99 of \
             the leader alone with {} clients, when it is saturated. Medians (min-max) of the repetitions.",
            saturated.clients
        ),
        format!("Each node's thread is held to {SHARE_PERCENT} % of a core; CPU is that of its whole process."),
        "Published: TiKV's follower reads \"roughly double the read throughput\" (Follower Read of TiDB 3.1 Beta)."
            .to_owned(),
    ];
    let columns = columns.map(str::to_owned).to_vec();
    Some(Table { title: "Reads of one hot partition at equal p99".to_owned(), columns, rows, notes })
}

fn target(plan: &Plan7, runs: &[Run], case: Case, limit_ms: f64, leader: Spread, per_s: Spread) -> String {
    let verdict = |is_met: bool| if is_met { "met" } else { "MISSED" };
    match case {
        Case::LeaderOnly => "none".to_owned(),
        Case::All { learners: 0, .. } => {
            let is_met = per_s.median >= VOTERS_MIN * leader.median;
            format!(">= x{VOTERS_MIN} for {VOTERS} voters: {}", verdict(is_met))
        }
        Case::All { learners, level } => {
            let before = best(plan, runs, Case::All { learners: learners - 1, level }, limit_ms);
            let Some(before) = before else { return "none".to_owned() };
            let added = (per_s.median - before.per_s.median) / leader.median;
            format!(">= x{LEARNER_MIN} for one more: x{added:.2}, {}", verdict(added >= LEARNER_MIN))
        }
    }
}

fn fixed_rate(runs: &[Run]) -> Option<Table> {
    let columns = ["variant", "due per second", "p50 ms", "p99 ms", "p99 / leader only"];
    let leader = Spread::of_runs(&own(runs, Case::LeaderOnly, FIXED_RATE), p99_ms)?;
    let row = |case: Case| {
        let own = own(runs, case, FIXED_RATE);
        let p99 = Spread::of_runs(&own, p99_ms)?;
        let offered = or_na(Spread::of_runs(&own, |run| run.offered_per_s));
        let p50 = or_na(Spread::of_runs(&own, p50_ms));
        Some(vec![case.to_string(), offered, p50, p99.to_string(), times(p99.ratio(leader))])
    };
    let notes = vec![format!(
        "An open loop with Poisson arrivals, at {FIXED_SHARE} of what the leader alone served at most in its first turn."
    )];
    Some(Table {
        title: "Latency at the same rate for all".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: Case::all().into_iter().filter_map(row).collect(),
        notes,
    })
}

fn every_step(plan: &Plan7, runs: &[Run]) -> Option<Table> {
    let columns =
        ["variant", "clients per replica", "per second", "p50 ms", "p99 ms", "served by leader %", "oldest data ms"];
    let mut rows = Vec::new();
    for case in Case::all() {
        for clients in plan.clients {
            let Some(step) = step(runs, case, *clients) else { continue };
            let by_leader = |run: &Run| {
                let of = |role: &str| run.extra.get(&format!("served_by_{role}_count")).copied().unwrap_or(0.0);
                let all = of("leader") + of("follower") + of("learner") + of("unknown");
                (all > 0.0).then(|| of("leader") * 100.0 / all)
            };
            rows.push(vec![
                case.to_string(),
                clients.to_string(),
                step.per_s.to_string(),
                or_na(Spread::of_runs(&step.runs, p50_ms)),
                step.p99_ms.to_string(),
                or_na(Spread::of_runs(&step.runs, by_leader)),
                or_na(Spread::of_runs(&step.runs, |run| run.extra.get("staleness_max_ms").copied())),
            ]);
        }
    }
    let notes = vec![format!(
        "Closed loops, one request in flight per client; clients share connections. A replica counts as saturated with \
         {CLIENTS_PER_REPLICA} clients."
    )];
    let title = "Every number of clients".to_owned();
    (!rows.is_empty()).then(|| Table { title, columns: columns.map(str::to_owned).to_vec(), rows, notes })
}

#[cfg(test)]
mod tests {
    use super::super::{FULL, LEARNERS_MAX};
    use super::*;
    use hedgerow_client::ReadLevel;
    use hedgerow_report::{Latency, Operation};

    fn run(case: Case, clients: u32, per_s: f64, p99_ms: f64) -> Run {
        let latency_us = Latency { p99: p99_ms * 1e3, ..Latency::default() };
        Run {
            variant: case.to_string(),
            workload: closed_name(clients),
            duration_s: 2.5,
            achieved_per_s: per_s,
            operations: vec![Operation { count: 1000, latency_us, ..Operation::default() }],
            server_cpu_s: [("node 1".to_owned(), 0.3), ("node 2".to_owned(), 0.1)].into(),
            ..Run::default()
        }
    }

    fn lin(learners: u32) -> Case {
        Case::All { learners, level: ReadLevel::Linearizable }
    }

    #[test]
    fn the_highest_throughput_within_the_leaders_p99_counts() {
        let runs = [
            run(Case::LeaderOnly, 128, 9_000.0, 5.0),
            run(Case::LeaderOnly, CLIENTS_PER_REPLICA, 10_000.0, 10.0),
            run(lin(0), 128, 27_500.0, 6.0),
            run(lin(0), 256, 28_000.0, 9.0),
            run(lin(0), CLIENTS_PER_REPLICA, 29_000.0, 11.0),
            run(lin(1), CLIENTS_PER_REPLICA, 38_000.0, 9.0),
            run(lin(2), CLIENTS_PER_REPLICA, 46_000.0, 9.0),
        ];
        let rows = all(&FULL, &runs).remove(0).rows;
        assert_eq!(rows[0][..6], ["leader only", "512", "10,000", "10.0", "x1.00", "none"]);
        assert_eq!(rows[1][1..6], ["256", "28,000", "9.00", "x2.80", ">= x2.7 for 3 voters: met"]);
        assert_eq!(rows[2][5], ">= x0.9 for one more: x1.00, met");
        assert_eq!(rows[3][5], ">= x0.9 for one more: x0.80, MISSED");
        assert_eq!(rows[0][7], "12.0");
    }

    #[test]
    fn a_variant_that_is_always_slower_says_so() {
        let runs = [run(Case::LeaderOnly, CLIENTS_PER_REPLICA, 10_000.0, 10.0), run(lin(0), 256, 30_000.0, 12.0)];
        let rows = all(&FULL, &runs).remove(0).rows;
        assert_eq!(rows[1][1], "none with that p99");
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn without_the_leaders_own_runs_nothing_is_compared() {
        let tables = all(&FULL, &[run(lin(LEARNERS_MAX), CLIENTS_PER_REPLICA, 46_000.0, 9.0)]);
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].rows.len(), 1);
    }
}
