//! The tables: ours beside the published figures, the targets, every variant, and what all that was measured under.

use super::cases::{ADAPTIVE_PERCENT, CLIENTS, Row, Stalls, Variant};
use super::published::{self, Figures, Latencies, Published};
use super::stalls::{MET_SHARE, rare_stall};
use super::{BackupRequest, Case};
use crate::hedged;
use crate::read_counts::{LOGS_NOWHERE, LOGS_TOUCHED, SERVED_BY_QUORUM};
use crate::summary::{Spread, number, or_na, times};
use hedgerow_bench::LAG_SHARE_MAX;
use hedgerow_report::{Hedging, Latency, Run, Table};
use std::path::Path;

/// The targets: extra requests at most, percent; throughput of the closed loop at least; p99.9 at most; what p99.9 is lower by
/// under frequent stalls.
const EXTRA_PERCENT_MAX: f64 = 0.2;
const THROUGHPUT_MIN: f64 = 0.98;
const P999_MAX: f64 = 1.0;
/// What two measurements of the same differ by anyway.
const P999_NOISE: f64 = 0.05;
const OFTEN_FACTOR_MIN: f64 = 5.0;

pub(super) fn all(experiment: &BackupRequest, runs: &[Run]) -> Vec<Table> {
    let figures = Shown { experiment, runs, folder: &experiment.folder };
    let tables = [figures.targets(), figures.beside(), figures.variants(), figures.often()];
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

struct Shown<'a> {
    experiment: &'a BackupRequest,
    runs: &'a [Run],
    folder: &'a Path,
}

/// All repetitions of a variant in one loop.
struct Side<'a> {
    runs: Vec<&'a Run>,
    read: Latency,
    write: Option<Latency>,
}

impl Side<'_> {
    /// Below this a latency of the open loop is distorted by its generator's lag, in microseconds; 0 in a closed loop.
    fn told_from_us(&self) -> f64 {
        hedged::lag_p99_max_us(&self.runs) / LAG_SHARE_MAX
    }
}

impl<'a> Shown<'a> {
    fn own(&self, variant: Variant, workload: &str) -> Vec<&'a Run> {
        let name = variant.to_string();
        self.runs.iter().filter(|run| run.variant == name && run.workload == workload).collect()
    }

    fn side(&self, row: &Row, variant: Variant, workload: &str) -> Option<Side<'a>> {
        let runs = self.own(variant, workload);
        let read = hedged::latency(self.folder, &runs, row.read.name())?;
        let write = row.write.and_then(|write| hedged::latency(self.folder, &runs, write.name()));
        Some(Side { runs, read, write })
    }

    fn rows(&self, stalls: Stalls) -> impl Iterator<Item = &'static Row> + use<> {
        self.experiment.rows.iter().filter(move |row| row.stalls == stalls)
    }

    fn targets(&self) -> Table {
        let columns = [
            "row",
            "copies",
            "p99.9 / off",
            "p99.99 off /",
            "theirs",
            "extra requests %",
            "extra work of servers %",
            "closed loop / off",
            "theirs",
            "targets",
        ];
        let mut rows = Vec::new();
        for (row, theirs) in self.rows(Stalls::Rare).filter_map(|row| Some((row, row.published.as_ref()?))) {
            let judged = [Variant::Backup, Variant::BackupLinearizable];
            rows.extend(judged.iter().filter_map(|variant| self.target_row(row, *variant, theirs)));
        }
        let notes = vec![format!(
            "Reads in the open loop, all repetitions together. Targets: p99.9 not worse (within {:.0} %, what repetitions of the \
             same differ by), p99.99 lower by at least the published factor, extra requests <= {EXTRA_PERCENT_MAX} % of the reads, \
             throughput of the closed loop >= x{THROUGHPUT_MIN} (median of the pairs that followed each other, of copies that may be \
             old).",
            P999_NOISE * 100.0
        )];
        table("Backup requests against the targets", &columns, rows, notes)
    }

    fn target_row(&self, row: &Row, variant: Variant, theirs: &Published) -> Option<Vec<String>> {
        let off = self.side(row, Variant::Off, &row.open_name())?;
        let backup = self.side(row, variant, &row.open_name())?;
        let p999 = ratio(backup.read.p999, off.read.p999);
        let factor = ratio(off.read.p9999, backup.read.p9999);
        let extra = extra_percent(row, &backup.runs);
        let throughput = self.closed_ratio(row).filter(|_| variant == Variant::Backup);
        let copies = if variant == Variant::Backup { "<= 1 s old" } else { "linearizable" };
        let verdicts = [
            p999.map(|ratio| verdict("p99.9", ratio <= P999_MAX + P999_NOISE)),
            Some(factor.map_or_else(|| "p99.99 n/a".to_owned(), |it| verdict("p99.99", it >= theirs.factor))),
            extra.map(|extra| verdict("extra", extra <= EXTRA_PERCENT_MAX)),
            throughput.map(|ratio| verdict("throughput", ratio.median >= THROUGHPUT_MIN)),
        ];
        Some(vec![
            label(row),
            copies.to_owned(),
            times(p999),
            times(factor),
            format!("x{:.1}", theirs.factor),
            or_na(extra.map(precise)),
            or_na(work_percent(&backup.runs)),
            or_na(throughput),
            times(Some(theirs.on.per_s / theirs.off.per_s)),
            verdicts.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ])
    }

    /// Throughput with extra attempts against that without, of the closed loops that followed each other.
    fn closed_ratio(&self, row: &Row) -> Option<Spread> {
        let of = |variant| self.own(variant, &row.closed_name());
        let off = of(Variant::Off);
        let pair = |backup: &&Run| {
            let same = off.iter().find(|run| run.repetition == backup.repetition)?;
            Some(backup.achieved_per_s / same.achieved_per_s)
        };
        Spread::of(of(Variant::Backup).iter().filter_map(pair))
    }

    fn beside(&self) -> Table {
        let columns = [
            "row",
            "whose",
            "backup",
            "loop",
            "per second",
            "r avg",
            "r p95",
            "r p99",
            "r p99.9",
            "r p99.99",
            "w avg",
            "w p95",
            "w p99",
            "w p99.9",
            "w p99.99",
        ];
        let mut rows = Vec::new();
        for row in self.rows(Stalls::Rare) {
            let Some(theirs) = &row.published else { continue };
            let mut ours = Vec::new();
            for (loop_kind, workload) in [("closed", row.closed_name()), ("open", row.open_name())] {
                for variant in [Variant::Off, Variant::Backup, Variant::BackupLinearizable] {
                    ours.extend(self.side(row, variant, &workload).map(|side| our_row(row, variant, loop_kind, &side)));
                }
            }
            if !ours.is_empty() {
                rows.push(their_row(row, "off", &theirs.off));
                rows.push(their_row(row, &format!("{} ms", theirs.delay_ms), &theirs.on));
                rows.extend(ours);
            }
        }
        let mut notes = vec!["Latencies in us; ours of all repetitions together, n/a with too few samples.".to_owned()];
        notes.push(format!(
            "n/a also where the generator's send lag (p99) is more than {:.0} % of the figure.",
            LAG_SHARE_MAX * 100.0
        ));
        notes.push(published::SOURCE.to_owned());
        notes.push(
            "A closed loop sends nothing more while it waits, which hides most of a stall; its delay is its own p99.9. Our closed \
             loops run without stalls."
                .to_owned(),
        );
        table("Ours beside the published figures", &columns, rows, notes)
    }

    fn variants(&self) -> Table {
        let columns = [
            "row",
            "variant",
            "offered per second",
            "delay ms",
            "reads",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "p99.99 us",
            "p99.9 / off",
            "p99.99 off /",
            "extra requests %",
            "extra work %",
            "won",
            "suppressed",
            "cancelled in time",
            "answered weaker %",
            "served by logs",
            "logs with newer %",
        ];
        let mut rows = Vec::new();
        for row in self.rows(Stalls::Rare) {
            rows.extend(row.variants.iter().filter_map(|(variant, _)| self.variant_row(row, *variant)));
        }
        table("Every variant", &columns, rows, self.variant_notes())
    }

    fn variant_row(&self, row: &Row, variant: Variant) -> Option<Vec<String>> {
        let side = self.side(row, variant, &row.open_name())?;
        let off = self.side(row, Variant::Off, &row.open_name());
        let off = off.as_ref().map(|off| &off.read);
        let read = &side.read;
        let sum = |pick: fn(&Hedging) -> u64| sum(&side.runs, pick).map(|count| number(count as f64));
        let is_delayed = matches!(variant, Variant::Backup | Variant::BackupLinearizable | Variant::Fallback);
        let delay = || Spread::of_runs(&side.runs, |run| run.extra.get("delay_p999_off_ms").copied());
        Some(vec![
            label(row),
            variant.to_string(),
            or_na(Spread::of_runs(&side.runs, |run| run.offered_per_s)),
            or_na(if is_delayed { delay() } else { None }),
            number(reads(row, &side.runs)),
            number(read.p50),
            number(read.p99),
            or_na(read.p999.map(number)),
            or_na(read.p9999.map(number)),
            times(ratio(read.p999, off.and_then(|off| off.p999))),
            times(ratio(off.and_then(|off| off.p9999), read.p9999)),
            or_na(extra_percent(row, &side.runs).map(precise)),
            or_na(work_percent(&side.runs)),
            or_na(sum(|it| it.kinds.values().map(|kind| kind.won).sum())),
            or_na(sum(|it| it.kinds.values().map(|kind| kind.suppressed).sum())),
            or_na(sum(|it| it.dropped)),
            or_na(weaker_percent(&side.runs)),
            number(counted(&side.runs, SERVED_BY_QUORUM)),
            or_na(touched_percent(&side.runs)),
        ])
    }

    fn variant_notes(&self) -> Vec<String> {
        let budget = "Budget of every variant: 2 %, with tokens for all reads of one node in 200 ms.";
        let mut notes = vec![format!(
            "off: linearizable at the leader. backup: one more attempt after the delay, data at most 1 s old, as a client of Pegasus \
             gets. backup-linearizable: the same, linearizable. fallback: that, and after twice the delay one more that may be 1 s old; \
             the reply says which. adaptive: as backup, at 2 % extra attempts, delay found by the policy. selection: no extra attempt, any replica, at most 1 s old. oracle: as off, \
             without stalls, in runs of {:.1} s.",
            self.experiment.extent.short.as_secs_f64()
        )];
        notes.push(budget.to_owned());
        notes.push(
            "served by logs: linearizable reads that a follower answered because the logs of a majority held nothing newer. logs with \
             newer: of what other voters' logs said of such reads, how often that there is something."
                .to_owned(),
        );
        notes.push(self.lag_note(Stalls::Rare));
        for row in self.rows(Stalls::Rare) {
            let Some(offered) = self.experiment.offered(row) else { continue };
            let (variant, length) = row.variants[0];
            let duration = self.experiment.duration(&Case { row, variant, length }, offered);
            notes.push(format!(
                "Row {}: {} requests per second, {:.2} of what the closed loop bears; {} clients. In each run of {:.1} s one node stands \
                 still once, for {:.0} ms in the middle: {:.2} % of the reads meet it.",
                row.name,
                number(offered.per_s),
                offered.share,
                CLIENTS,
                duration.as_secs_f64(),
                rare_stall(duration).as_secs_f64() * 1e3,
                MET_SHARE * 100.0
            ));
        }
        notes
    }

    /// How far p50 and p99 of the open loops can be trusted.
    fn lag_note(&self, stalls: Stalls) -> String {
        let sides = self.rows(stalls).flat_map(|row| row.variants.iter().map(move |(variant, _)| (row, *variant)));
        let lags = sides.map(|(row, variant)| hedged::lag_p99_max_us(&self.own(variant, &row.open_name())));
        let most = lags.fold(0.0, f64::max);
        format!("p50 and p99 include the generator's send lag, the p99 of which is up to {} us.", number(most))
    }

    fn often(&self) -> Table {
        let columns = [
            "variant",
            "offered per second",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
            "p99.9 off /",
            "p99.9 selection /",
            "extra requests %",
            "extra work %",
            "suppressed",
            "target",
        ];
        let mut rows = Vec::new();
        for row in self.rows(Stalls::Often) {
            let base = |variant| self.side(row, variant, &row.open_name()).and_then(|side| side.read.p999);
            let (off, selection) = (base(Variant::Off), base(Variant::Selection));
            for (variant, _) in row.variants {
                let Some(side) = self.side(row, *variant, &row.open_name()) else { continue };
                let factor = ratio(off, side.read.p999);
                let extra = extra_percent(row, &side.runs);
                let is_judged =
                    matches!(variant, Variant::Adaptive | Variant::AdaptiveLinearizable | Variant::AdaptiveAny);
                let target = if is_judged { often_verdict(factor, extra) } else { "none".to_owned() };
                rows.push(vec![
                    variant.to_string(),
                    or_na(Spread::of_runs(&side.runs, |run| run.offered_per_s)),
                    number(side.read.p50),
                    number(side.read.p99),
                    or_na(side.read.p999.map(number)),
                    number(side.read.max),
                    times(factor),
                    times(ratio(selection, side.read.p999)),
                    or_na(extra.map(precise)),
                    or_na(work_percent(&side.runs)),
                    or_na(sum(&side.runs, |it| it.kinds.values().map(|kind| kind.suppressed).sum())),
                    target,
                ]);
            }
        }
        let notes = vec![
            "Thirty gets to one set, open loop; every node stands still for 20 to 200 ms every 2 to 8 s. Reads, all repetitions \
             together."
                .to_owned(),
            "adaptive: the first attempt goes to the leader, as with off, and copies are at most 1 s old; adaptive-linearizable: they are \
             linearizable. adaptive-any: the first attempt goes to any replica, as with selection, \
             which is what it would be without extra attempts."
                .to_owned(),
            self.lag_note(Stalls::Often),
        ];
        table("The adaptive policy where nodes stall often", &columns, rows, notes)
    }
}

fn often_verdict(factor: Option<f64>, extra: Option<f64>) -> String {
    let lower = factor.map(|it| verdict(&format!("p99.9 >= x{OFTEN_FACTOR_MIN} lower:"), it >= OFTEN_FACTOR_MIN));
    let within = extra.map(|it| verdict(&format!("extra <= {ADAPTIVE_PERCENT} %:"), it <= ADAPTIVE_PERCENT));
    [lower, within].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn their_row(row: &Row, backup: &str, theirs: &Figures) -> Vec<String> {
    let cells = |it: &Latencies| {
        let all = [it.mean, it.p95, it.p99, it.p999, it.p9999];
        all.map(|value| if *it == Latencies::default() { String::new() } else { number(value) })
    };
    let head = [label(row), "theirs".to_owned(), backup.to_owned(), "closed".to_owned(), number(theirs.per_s)];
    head.into_iter().chain(cells(&theirs.read)).chain(cells(&theirs.write)).collect()
}

fn our_row(row: &Row, variant: Variant, loop_kind: &str, side: &Side<'_>) -> Vec<String> {
    let per_s = Spread::of_runs(&side.runs, |run| Some(run.achieved_per_s));
    let told_from_us = side.told_from_us();
    let cells = |it: Option<&Latency>| match it {
        Some(it) => [Some(it.mean), Some(it.p95), Some(it.p99), it.p999, it.p9999]
            .map(|value| or_na(value.filter(|us| *us >= told_from_us).map(number))),
        None => std::array::from_fn(|_| String::new()),
    };
    let backup = if variant == Variant::Off { "off" } else { "p99.9" };
    let head = [label(row), "ours".to_owned(), backup.to_owned(), loop_kind.to_owned(), or_na(per_s)];
    head.into_iter().chain(cells(Some(&side.read))).chain(cells(side.write.as_ref())).collect()
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>, notes: Vec<String>) -> Table {
    let columns = columns.iter().map(|it| (*it).to_owned()).collect();
    Table { title: title.to_owned(), columns, rows, notes }
}

/// How a row is called: reads to writes, and the threads of the closed loop.
fn label(row: &Row) -> String {
    format!("{}, {CLIENTS}x{}", row.workload, row.threads)
}

fn verdict(what: &str, is_met: bool) -> String {
    format!("{what} {}", if is_met { "met" } else { "MISSED" })
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a / b).filter(|ratio| ratio.is_finite())
}

/// A share in percent, where a hundredth matters.
fn precise(percent: f64) -> String {
    format!("{percent:.3}")
}

/// A count of the runs that say something of extra attempts; `None` without any.
fn sum(runs: &[&Run], pick: fn(&Hedging) -> u64) -> Option<u64> {
    let told: Vec<_> = runs.iter().filter_map(|run| run.hedging.as_ref()).collect();
    (!told.is_empty()).then(|| told.iter().map(|it| pick(it)).sum())
}

/// Extra requests in percent of the reads, all repetitions together: writes are not hedged here.
fn extra_percent(row: &Row, runs: &[&Run]) -> Option<f64> {
    let (extra, reads) = (sum(runs, Hedging::extra)?, reads(row, runs));
    (reads > 0.0).then(|| extra as f64 * 100.0 / reads)
}

fn work_percent(runs: &[&Run]) -> Option<String> {
    Spread::of_runs(runs, |run| run.hedging.as_ref()?.extra_work_percent).map(|spread| precise(spread.median))
}

/// Reads that were answered at another level than linearizable.
fn weaker_percent(runs: &[&Run]) -> Option<String> {
    let all = sum(runs, |it| it.served_levels.values().sum())?;
    let strong = sum(runs, |it| it.served_levels.get("linearizable").copied().unwrap_or(0))?;
    (all > 0).then(|| precise((all - strong) as f64 * 100.0 / all as f64))
}

fn counted(runs: &[&Run], name: &str) -> f64 {
    runs.iter().filter_map(|run| run.extra.get(name)).sum()
}

/// How often a voter's log held something newer for a read that asked; `None` if none asked.
fn touched_percent(runs: &[&Run]) -> Option<String> {
    let (touched, nowhere) = (counted(runs, LOGS_TOUCHED), counted(runs, LOGS_NOWHERE));
    let all = touched + nowhere;
    (all > 0.0).then(|| precise(touched * 100.0 / all))
}

fn reads(row: &Row, runs: &[&Run]) -> f64 {
    let operations = runs.iter().flat_map(|run| &run.operations);
    operations.filter(|it| it.name == row.read.name()).map(|it| it.count).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::super::cases::SET;
    use super::*;
    use crate::experiment::Size;
    use crate::options::Options;
    use hdrhistogram::Histogram;
    use hedgerow_report::{ExtraAttempts, Folder, Operation};
    use std::time::Duration;

    /// A run of `row` in which one read in 5,000 takes `slow_ms`.
    fn run(folder: &Folder, row: &Row, variant: Variant, workload: String, slow_ms: u64, extra: Option<u64>) -> Run {
        run_with(folder, row, variant, workload, (slow_ms, 240), extra)
    }

    /// A run of 1.2 million reads, of which `slow.1` take `slow.0` ms and all others 0.1 ms.
    fn run_with(
        folder: &Folder,
        row: &Row,
        variant: Variant,
        workload: String,
        slow: (u64, u64),
        extra: Option<u64>,
    ) -> Run {
        let mut latency = Histogram::<u64>::new(3).unwrap();
        latency.record_n(100_000, 1_200_000 - slow.1).unwrap();
        latency.record_n(slow.0 * 1_000_000, slow.1).unwrap();
        let name = format!("{workload}-{variant}");
        let histogram = folder.keep_histogram(&name, "get", &latency, Duration::from_secs(1)).unwrap();
        let hedging = extra.map(|sent| Hedging {
            first: 1_200_000,
            kinds: [("hedge".to_owned(), ExtraAttempts { sent, won: sent, ..Default::default() })].into(),
            served_levels: [("bounded".to_owned(), 12), ("linearizable".to_owned(), 1_188)].into(),
            ..Hedging::default()
        });
        let latency_us = Latency::of(&latency);
        Run {
            variant: variant.to_string(),
            repetition: 1,
            workload,
            achieved_per_s: if variant == Variant::Off { 1_000.0 } else { 985.0 },
            operations: vec![Operation {
                name: row.read.name().to_owned(),
                count: 1_200_000,
                latency_us,
                histogram,
                ..Operation::default()
            }],
            hedging,
            ..Run::default()
        }
    }

    #[test]
    fn each_target_is_judged_by_all_repetitions_together() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create(base.path(), "t").unwrap();
        let mut experiment = BackupRequest::set(&Options::of_size(Size::Full));
        experiment.folder = folder.path().to_owned();
        let row = &SET[0];
        let mut runs = vec![
            run(&folder, row, Variant::Off, row.open_name(), 100, None),
            run(&folder, row, Variant::Backup, row.open_name(), 10, Some(2_000)),
            run(&folder, row, Variant::Off, row.closed_name(), 1, None),
            run(&folder, row, Variant::Backup, row.closed_name(), 1, Some(0)),
            run(&folder, row, Variant::BackupLinearizable, row.open_name(), 50, Some(2_000)),
        ];
        let asked = [(SERVED_BY_QUORUM, 1_500.0), (LOGS_NOWHERE, 1_900.0), (LOGS_TOUCHED, 100.0)];
        runs[4].extra = asked.map(|(name, count)| (name.to_owned(), count)).into();
        let met = all(&experiment, &runs);
        assert_eq!(met[0].rows.len(), 2, "copies that may be old, and linearizable ones");
        assert_eq!(met[0].rows[0][1..5], ["<= 1 s old", "x1.00", "x10.00", "x6.4"]);
        assert_eq!(met[0].rows[0][7], "0.985");
        assert_eq!(met[0].rows[0][9], "p99.9 met, p99.99 met, extra met, throughput met");
        assert_eq!(met[0].rows[1][1..4], ["linearizable", "x1.00", "x2.00"]);
        assert_eq!(met[0].rows[1][7], "n/a", "there are no closed loops of it");
        assert_eq!(met[0].rows[1][9], "p99.9 met, p99.99 MISSED, extra met");
        assert_eq!(met[1].rows.len(), 7, "theirs twice, ours in both loops twice, linearizable copies in one");
        let strong = met[2].rows.iter().find(|row| row[1] == "backup-linearizable").unwrap();
        assert_eq!((strong[17].as_str(), strong[18].as_str()), ("1,500", "5.000"));
        let backup = met[2].rows.iter().find(|row| row[1] == "backup").unwrap();
        assert_eq!((backup[10].as_str(), backup[11].as_str(), backup[16].as_str()), ("x10.00", "0.167", "1.000"));
        runs[1] = run(&folder, row, Variant::Backup, row.open_name(), 20, Some(3_000));
        runs[3].achieved_per_s = 900.0;
        let missed = all(&experiment, &runs);
        assert_eq!(missed[0].rows[0][9], "p99.9 met, p99.99 MISSED, extra MISSED, throughput MISSED");
    }

    #[test]
    fn what_the_lag_distorts_is_left_out_or_told_with_it() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create(base.path(), "t").unwrap();
        let mut experiment = BackupRequest::set(&Options::of_size(Size::Full));
        experiment.folder = folder.path().to_owned();
        let row = &SET[0];
        let lagging = |p99, void: Option<&str>| Run {
            send_lag_us: Some(Latency { p99, ..Latency::default() }),
            void: void.map(str::to_owned),
            ..run(&folder, row, Variant::Off, row.open_name(), 100, None)
        };
        // The mean is 120 us, all percentiles up to the p99.9 are 100 us. The lag of a void run does not count.
        let shown = |p99| {
            let closed = run(&folder, row, Variant::Off, row.closed_name(), 100, None);
            let tables =
                all(&experiment, &[lagging(p99, None), lagging(1.0, None), lagging(900.0, Some("lag")), closed]);
            let ours = |kind: &str| tables[0].rows.iter().find(|row| row[1] == "ours" && row[3] == kind).unwrap();
            let told = tables[1].notes.iter().any(|note| note.ends_with(&format!("is up to {} us.", number(p99))));
            (ours("open")[5..10].join(" "), ours("closed")[5..10].join(" "), tables[1].rows[0][5].clone(), told)
        };
        let closed = "120 100 100 100 100,008".to_owned();
        assert_eq!(shown(4.9), (closed.clone(), closed.clone(), "100".to_owned(), true));
        assert_eq!(shown(5.5), ("120 n/a n/a n/a 100,008".to_owned(), closed, "100".to_owned(), true));
    }

    #[test]
    fn each_adaptive_variant_is_judged_in_its_own_row() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create(base.path(), "t").unwrap();
        let mut experiment = BackupRequest::set(&Options::of_size(Size::Full));
        experiment.folder = folder.path().to_owned();
        let row = &SET[3];
        let run = |variant, slow_ms, extra| run_with(&folder, row, variant, row.open_name(), (slow_ms, 12_000), extra);
        let runs = [
            run(Variant::Off, 100, None),
            run(Variant::Adaptive, 10, Some(1_000)),
            run(Variant::AdaptiveAny, 25, Some(90_000)),
            run(Variant::Selection, 50, None),
        ];
        let table = &all(&experiment, &runs)[0];
        let at = |name: &str| table.columns.iter().position(|column| column == name).unwrap();
        let picked = [at("variant"), at("p99.9 off /"), at("p99.9 selection /"), at("target")];
        let rows: Vec<_> = table.rows.iter().map(|row| picked.map(|column| row[column].as_str())).collect();
        let (lower, extra) = ("p99.9 >= x5 lower:", "extra <= 2 %:");
        assert_eq!(rows[0], ["off", "x1.00", "x0.50", "none"]);
        assert_eq!(rows[1], ["adaptive", "x10.00", "x5.00", &format!("{lower} met, {extra} met")]);
        assert_eq!(rows[2], ["adaptive-any", "x4.00", "x2.00", &format!("{lower} MISSED, {extra} MISSED")]);
        assert_eq!(rows[3], ["selection", "x2.00", "x1.00", "none"]);
    }

    #[test]
    fn frequent_stalls_have_their_own_target() {
        assert_eq!(often_verdict(Some(9.0), Some(1.9)), "p99.9 >= x5 lower: met, extra <= 2 %: met");
        assert_eq!(often_verdict(Some(4.9), Some(2.1)), "p99.9 >= x5 lower: MISSED, extra <= 2 %: MISSED");
    }

    #[test]
    fn what_was_not_measured_has_no_row() {
        let experiment = BackupRequest::set(&Options::of_size(Size::Quick));
        assert!(all(&experiment, &[]).is_empty());
    }
}
