//! The tables: what a slow node costs against the targets, beside the published figures, and who was asked.

use super::inserting::Pace;
use super::{Case, LATE, WORKLOAD};
use crate::published::{Beside, Comparison};
use crate::summary::{Spread, or_na, times};
use hedgerow_report::{Run, Table};

/// The targets: the time of all inserts, and the p99 of reads after the first second, against the same without a slow node.
const INSERTS_MAX: f64 = 1.5;
const READS_MAX: f64 = 2.0;
/// Inserts that the published times are of.
const PUBLISHED_INSERTS: f64 = 10_000.0;

pub(super) fn all(cases: &[Case], pace: &Pace, runs: &[Run]) -> Vec<Table> {
    [costs(cases, pace, runs), published(cases, pace, runs), asked(cases, runs)].into_iter().flatten().collect()
}

fn is_whole(pace: &Pace) -> bool {
    pace.inserts as f64 >= PUBLISHED_INSERTS
}

fn own(runs: &[Run], case: Case) -> Vec<&Run> {
    let variant = case.to_string();
    runs.iter().filter(|run| run.variant == variant && run.workload == WORKLOAD).collect()
}

fn extra(runs: &[Run], case: Case, name: &str, factor: f64) -> Option<Spread> {
    Spread::of_runs(&own(runs, case), |run| run.extra.get(name).map(|value| value * factor))
}

fn seconds(runs: &[Run], case: Case) -> Option<Spread> {
    Spread::of_runs(&own(runs, case), |run| Some(run.duration_s))
}

fn reads_p99_ms(runs: &[Run], case: Case) -> Option<Spread> {
    extra(runs, case, "reads_after_1s_p99_us", 1e-3)
}

/// Against the same without a slow node, and what was wanted.
fn verdict(case: Case, pace: &Pace, ratio: Option<f64>, most: f64) -> String {
    match (case.slow, ratio) {
        (None, _) => "none".to_owned(),
        (Some(_), None) => "n/a".to_owned(),
        // A quick run mostly measures the handover.
        (Some(_), Some(_)) if !is_whole(pace) => format!("<= x{most} of a full run"),
        (Some(_), Some(ratio)) => format!("<= x{most}: {}", if ratio <= most { "met" } else { "MISSED" }),
    }
}

fn costs(cases: &[Case], pace: &Pace, runs: &[Run]) -> Option<Table> {
    let columns = [
        "variant",
        "seconds",
        "/ healthy",
        "target",
        "worst insert ms",
        "s in inserts over 200 ms",
        "reads p99 ms, after 1 s",
        "/ healthy",
        "target",
    ];
    let mut rows = Vec::new();
    for case in cases {
        let Some(took) = seconds(runs, *case) else { continue };
        let ratio = seconds(runs, case.healthy()).and_then(|healthy| took.ratio(healthy));
        let reads = reads_p99_ms(runs, *case);
        let reads_ratio = reads.and_then(|reads| reads.ratio(reads_p99_ms(runs, case.healthy())?));
        rows.push(vec![
            case.to_string(),
            took.to_string(),
            times(ratio),
            verdict(*case, pace, ratio, INSERTS_MAX),
            or_na(extra(runs, *case, "insert_max_us", 1e-3)),
            or_na(extra(runs, *case, "late_inserts_s", 1.0)),
            or_na(reads),
            times(reads_ratio),
            verdict(*case, pace, reads_ratio, READS_MAX),
        ]);
    }
    let notes = vec![
        format!(
            "{} inserts, each sent when the one before was answered; the slow node sends everything {} ms late from the \
             first insert on. Every insert was found applied exactly once, or the run would have failed.",
            pace.inserts,
            LATE.as_millis()
        ),
        format!("Reads: {} per second at the leaders, counted from when they are due.", pace.reads_per_s),
    ];
    (!rows.is_empty()).then(|| Table {
        title: "What a slow node costs".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
        notes,
    })
}

fn published(cases: &[Case], pace: &Pace, runs: &[Run]) -> Option<Table> {
    let worst = |is_speculating: bool| {
        let slow = cases.iter().filter(|case| case.slow.is_some() && case.is_speculating == is_speculating);
        slow.filter_map(|case| seconds(runs, *case)).max_by(|a, b| a.median.total_cmp(&b.median))
    };
    let healthy = seconds(runs, Case { slow: None, is_speculating: false });
    let gocql = "Cassandra, gocql";
    let here = "Cassandra 5, gocql 1.7, 2 cores";
    let row = |what: &str, from: &str, theirs: f64, ours: Option<Spread>| Beside {
        what: what.to_owned(),
        theirs_from: from.to_owned(),
        theirs,
        ours: ours.filter(|_| is_whole(pace)),
    };
    let rows = vec![
        row("healthy, s", here, 36.0, healthy),
        row("one slow node, no extra attempts, s", gocql, 1_701.0, worst(false)),
        row("one slow node, no extra attempts, s", here, 1_710.0, worst(false)),
        row("one slow node, 2 extra attempts 10 ms apart, s", gocql, 84.0, worst(true)),
        row("one slow node, 2 extra attempts 10 ms apart, s", here, 60.0, worst(true)),
    ];
    let sources = vec![
        "10,000 inserts one after the other into three nodes, one of which answers 250 ms late per packet. Ours: the slow \
         node that costs most."
            .to_owned(),
        "Cassandra, gocql: as published, 28 min 21 s and 1 min 24 s. Cassandra 5, gocql 1.7: measured on a machine with 2 \
         cores, quorum inserts, 3.0-4.2 ms each while healthy."
            .to_owned(),
    ];
    let title = "10,000 inserts beside the published times".to_owned();
    (!runs.is_empty()).then(|| Comparison { title, rows, sources }.table())
}

fn asked(cases: &[Case], runs: &[Run]) -> Option<Table> {
    let columns = [
        "variant",
        "extra attempts",
        "attempts at the slow node",
        "won by it",
        "won by it after 1 s",
        "sockets before",
        "sockets after",
    ];
    let names = [
        "attempts_extra_count",
        "slow_node_attempts_count",
        "slow_node_wins_count",
        "slow_node_wins_after_1s_count",
        "sockets_before_count",
        "sockets_after_count",
    ];
    let row = |case: &Case| {
        let cells = names.iter().map(|name| or_na(extra(runs, *case, name, 1.0)));
        std::iter::once(case.to_string()).chain(cells).collect::<Vec<_>>()
    };
    let rows: Vec<_> = cases.iter().filter(|case| !own(runs, **case).is_empty()).map(row).collect();
    let notes = vec![
        "Attempts of inserts. Published: the slow node won none, and sockets went from 147 to 153. Sockets are those of the \
         process that inserts and reads, before it connected and after the last insert; extra attempts need none of their \
         own."
            .to_owned(),
    ];
    let title = "Who was asked".to_owned();
    (!rows.is_empty()).then(|| Table { title, columns: columns.map(str::to_owned).to_vec(), rows, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { inserts: 10_000, rows: 10, reads_per_s: 200.0 };

    fn run(case: Case, duration_s: f64, reads_p99_us: f64) -> Run {
        let extra = [("reads_after_1s_p99_us".to_owned(), reads_p99_us), ("slow_node_wins_count".to_owned(), 2.0)];
        Run {
            variant: case.to_string(),
            workload: WORKLOAD.to_owned(),
            duration_s,
            extra: extra.into(),
            ..Run::default()
        }
    }

    #[test]
    fn each_variant_is_held_against_its_own_healthy_one() {
        let of = |slow, is_speculating| Case { slow, is_speculating };
        let runs = [
            run(of(None, false), 4.0, 1_000.0),
            run(of(Some(1), false), 5.0, 1_500.0),
            run(of(Some(3), false), 7.0, 2_500.0),
            run(of(None, true), 5.0, 1_000.0),
            run(of(Some(1), true), 7.0, 1_000.0),
        ];
        let tables = all(&Case::all(), &PACE, &runs);
        let rows = &tables[0].rows;
        assert_eq!(rows[0][..4], ["healthy", "4.00", "x1.00", "none"]);
        assert_eq!(rows[1][1..], ["5.00", "x1.25", "<= x1.5: met", "n/a", "n/a", "1.50", "x1.50", "<= x2: met"]);
        assert_eq!(rows[2][3..], ["<= x1.5: MISSED", "n/a", "n/a", "2.50", "x2.50", "<= x2: MISSED"]);
        assert_eq!(rows[4][2], "x1.40");
        assert_eq!(tables[1].rows[1][2..4], ["1,701", "7.00"], "the node that costs most");
        assert_eq!((tables[2].rows.len(), tables[2].rows[1][3].as_str()), (5, "2.00"));
    }

    #[test]
    fn a_quick_run_is_not_held_against_published_times() {
        let runs = [run(Case { slow: None, is_speculating: false }, 0.3, 1_000.0)];
        let tables = all(&Case::all(), &Pace { inserts: 500, ..PACE }, &runs);
        assert!(tables[1].rows.iter().all(|row| row[3] == "n/a"));
        assert_eq!(verdict(Case { slow: Some(1), is_speculating: true }, &PACE, Some(1.5), 1.5), "<= x1.5: met");
        assert!(all(&Case::all(), &PACE, &[]).is_empty());
    }
}
