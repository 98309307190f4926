//! The tables: percentiles beside the published ones, and what was done twice.

use super::{CLIENTS, Case, HEDGED_PERCENT, TiedRequests, Way};
use crate::hedged;
use crate::summary::{Spread, number, or_na};
use hedgerow_report::{Hedging, Latency, Run, Table};

/// The targets under the job: p99 and p99.9 lower by so much, at so much work done twice, both in percent.
const LOWER_PERCENT_MIN: f64 = 50.0;
const TWICE_PERCENT_MAX: f64 = 1.0;

const SOURCE: &str = "Theirs: The Tail at Scale (Dean and Barroso, 2013): uncached reads of a file system with three replicas, a second copy after \
     1 ms, servers cancel each other; idle, and with a concurrent sort. Less than 1 % more disk work.";

/// A percentile, its two published values idle and two with the job, milliseconds: plain and tied.
type Theirs = (&'static str, [f64; 2], [f64; 2]);

const THEIRS: [Theirs; 4] = [
    ("p50", [19.0, 16.0], [24.0, 19.0]),
    ("p90", [38.0, 29.0], [56.0, 38.0]),
    ("p99", [67.0, 42.0], [108.0, 67.0]),
    ("p99.9", [98.0, 61.0], [159.0, 108.0]),
];

pub(super) fn all(experiment: &TiedRequests, runs: &[Run]) -> Vec<Table> {
    let shown = Shown { experiment, runs };
    [shown.beside(), shown.ways()].into_iter().filter(|table| !table.rows.is_empty()).collect()
}

struct Shown<'a> {
    experiment: &'a TiedRequests,
    runs: &'a [Run],
}

impl<'a> Shown<'a> {
    fn own(&self, way: Way, has_job: bool) -> Vec<&'a Run> {
        let (name, workload) = (way.to_string(), Case::workload(has_job));
        self.runs.iter().filter(|run| run.variant == name && run.workload == workload).collect()
    }

    fn latency(&self, way: Way, has_job: bool) -> Option<Latency> {
        hedged::latency(&self.experiment.folder, &self.own(way, has_job), "get")
    }

    fn beside(&self) -> Table {
        let mut rows = Vec::new();
        for (what, has_job) in [("idle", false), ("with a job", true)] {
            let sides = Way::ALL.map(|way| self.latency(way, has_job));
            if sides.iter().all(Option::is_none) {
                continue;
            }
            for (percentile, idle, job) in &THEIRS {
                let theirs = if has_job { job } else { idle };
                let of = |way: usize| sides[way].as_ref().and_then(|it| at(it, percentile));
                let plain = of(0);
                let mut row = vec![what.to_owned(), (*percentile).to_owned()];
                row.push(format!("{} -> {} ({})", theirs[0], theirs[1], change(Some(theirs[1]), Some(theirs[0]))));
                row.push(or_na(plain.map(|us| number(us / 1e3))));
                row.extend((1..Way::ALL.len()).map(|way| {
                    let ours = of(way);
                    format!("{} ({})", or_na(ours.map(|us| number(us / 1e3))), change(ours, plain))
                }));
                rows.push(row);
            }
        }
        let columns = ["", "", "theirs, plain -> tied", "plain", "hedged", "tied auto", "tied always"];
        table("Tied requests beside the published figures, ms", &columns, rows, vec![SOURCE.to_owned()])
    }

    fn ways(&self) -> Table {
        let columns = [
            "",
            "variant",
            "offered per second",
            "p99 ms",
            "p99.9 ms",
            "copies per request %",
            "work done twice %",
            "taken back in time, of copies %",
            "won by the copy, of copies %",
            "suppressed",
            "targets",
        ];
        let mut rows = Vec::new();
        for (what, has_job) in [("idle", false), ("with a job", true)] {
            let plain = self.latency(Way::Plain, has_job);
            rows.extend(Way::ALL.into_iter().filter_map(|way| self.way(what, way, has_job, plain.as_ref())));
        }
        if let Some(oracle) = self.latency(Way::Plain, false).filter(|_| self.latency(Way::Plain, true).is_some()) {
            let mut row = vec!["with a job".to_owned(), "oracle (no job)".to_owned()];
            row.push(or_na(Spread::of_runs(&self.own(Way::Plain, false), |run| run.offered_per_s)));
            row.extend([Some(oracle.p99), oracle.p999].map(|us| or_na(us.map(|us| number(us / 1e3)))));
            row.resize(columns.len(), "n/a".to_owned());
            rows.push(row);
        }
        table("What ties cost", &columns, rows, self.notes())
    }

    fn way(&self, what: &str, way: Way, has_job: bool, plain: Option<&Latency>) -> Option<Vec<String>> {
        let (runs, latency) = (self.own(way, has_job), self.latency(way, has_job)?);
        let twice = Spread::of_runs(&runs, |run| run.hedging.as_ref()?.extra_work_percent);
        let of = |part: fn(&Hedging) -> u64, whole: fn(&Hedging) -> u64| {
            Spread::of_runs(&runs, |run| {
                let hedging = run.hedging.as_ref()?;
                (whole(hedging) > 0).then(|| part(hedging) as f64 * 100.0 / whole(hedging) as f64)
            })
        };
        let won = |it: &Hedging| it.kinds.values().map(|kind| kind.won).sum();
        let suppressed = |it: &Hedging| it.kinds.values().map(|kind| kind.suppressed).sum::<u64>();
        let is_judged = has_job && way != Way::Plain;
        Some(vec![
            what.to_owned(),
            way.to_string(),
            or_na(Spread::of_runs(&runs, |run| run.offered_per_s)),
            number(latency.p99 / 1e3),
            or_na(latency.p999.map(|us| number(us / 1e3))),
            or_na(of(Hedging::extra, |it| it.first)),
            or_na(twice),
            or_na(of(|it| it.dropped, Hedging::extra)),
            or_na(of(won, Hedging::extra)),
            or_na(Spread::of_runs(&runs, |run| run.hedging.as_ref().map(|it| suppressed(it) as f64))),
            if is_judged { targets(&latency, plain, twice) } else { "none".to_owned() },
        ])
    }

    fn notes(&self) -> Vec<String> {
        let all: Vec<_> = self.runs.iter().collect();
        let lag = number(hedged::lag_p99_max_us(&all));
        let offered = self.experiment.offered;
        let rate = offered.map_or_else(String::new, |offered| {
            let (per_s, share) = (number(offered.per_s), offered.share);
            format!(" {per_s} requests per second, {share} of what the closed loop bears; {CLIENTS} clients.")
        });
        vec![
            format!(
                "Open loop, any replica, at most 1 s old.{rate} The job: one node after the other has {} % of a core for a second. \
                 Percentiles of all repetitions together.",
                self.experiment.left_percent
            ),
            format!(
                "Work done twice: reads that servers executed beyond those that were asked for, by their own counts. Hedged: adaptive at \
                 {HEDGED_PERCENT} %. Tied auto: where the queue is expected to take longer than the way to the other replica and back."
            ),
            format!(
                "Targets under the job: p99 and p99.9 {LOWER_PERCENT_MIN} % lower at <= {TWICE_PERCENT_MAX} % done twice."
            ),
            format!("Percentiles below p99.9 include the generator's send lag, the p99 of which is up to {lag} us."),
        ]
    }
}

fn targets(latency: &Latency, plain: Option<&Latency>, twice: Option<Spread>) -> String {
    let lower = |ours: Option<f64>, plain: Option<f64>| Some(100.0 - ours? * 100.0 / plain?);
    let verdict = |what: &str, is_met: bool| format!("{what} {}", if is_met { "met" } else { "MISSED" });
    let p99 = lower(Some(latency.p99), plain.map(|it| it.p99));
    let p999 = lower(latency.p999, plain.and_then(|it| it.p999));
    let all = [
        p99.map(|by| verdict("p99", by >= LOWER_PERCENT_MIN)),
        p999.map(|by| verdict("p99.9", by >= LOWER_PERCENT_MIN)),
        twice.map(|twice| verdict("twice", twice.median <= TWICE_PERCENT_MAX)),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn at(latency: &Latency, percentile: &str) -> Option<f64> {
    match percentile {
        "p50" => Some(latency.p50),
        "p90" => Some(latency.p90),
        "p99" => Some(latency.p99),
        _ => latency.p999,
    }
}

/// By how much `new` differs from `old`, as `-37 %`.
fn change(new: Option<f64>, old: Option<f64>) -> String {
    or_na(new.zip(old).map(|(new, old)| format!("{:+.0} %", (new / old - 1.0) * 100.0)))
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>, notes: Vec<String>) -> Table {
    let columns = columns.iter().map(|it| (*it).to_owned()).collect();
    Table { title: title.to_owned(), columns, rows, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(p99: f64, p999: f64) -> Latency {
        Latency { p99, p999: Some(p999), ..Latency::default() }
    }

    #[test]
    fn targets_are_judged_against_plain_reads() {
        let plain = latency(10_000.0, 20_000.0);
        let judge = |p99, p999, twice| targets(&latency(p99, p999), Some(&plain), Spread::of([twice]));
        assert_eq!(judge(5_000.0, 9_000.0, 0.9), "p99 met, p99.9 met, twice met");
        assert_eq!(judge(5_100.0, 11_000.0, 1.1), "p99 MISSED, p99.9 MISSED, twice MISSED");
    }

    #[test]
    fn published_changes_are_those_of_the_paper() {
        let changes = |job: bool| {
            THEIRS.map(|(_, idle, sort)| {
                let [plain, tied] = if job { sort } else { idle };
                change(Some(tied), Some(plain))
            })
        };
        assert_eq!(changes(false), ["-16 %", "-24 %", "-37 %", "-38 %"]);
        assert_eq!(changes(true), ["-21 %", "-32 %", "-38 %", "-32 %"]);
    }
}
