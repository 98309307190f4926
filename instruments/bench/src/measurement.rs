//! What a load measured, whether it means anything, and its form in results.

use crate::arrivals::Arrivals;
use crate::cpu;
use crate::generator::PartResult;
use crate::load::{JUDGED_DEFAULT, Load};
use crate::record::{Counted, Record};
use crate::work::ServerWork;
use anyhow::Result;
use hdrhistogram::Histogram;
use hedgerow_report::{Folder, Latency, LoopKind, Operation, Run, Second, merge_histograms};
use std::collections::BTreeMap;
use std::time::Duration;

/// The largest share of a reported latency that the p99 of the send lag may be.
pub const LAG_SHARE_MAX: f64 = 0.05;
/// The largest share of a core that a generator process may use.
const CPU_SHARE_MAX: f64 = 0.9;

/// What a load measured, all generator processes together.
#[derive(Clone, Debug)]
pub struct Measurement {
    arrivals: Arrivals,
    is_always_awake: bool,
    judged: f64,
    processes: u32,
    duration: Duration,
    record: Record,
    generator_cpu_s: f64,
    server_cpu_s: BTreeMap<String, f64>,
    work: Option<ServerWork>,
}

/// Which run of an outcome a measurement is.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// What is compared, for example `connections=64`.
    pub variant: String,
    /// From 1.
    pub repetition: u32,
    /// The workload's name.
    pub workload: String,
    /// Seconds from the beginning of the whole outcome to the beginning of the measurement.
    pub begin_s: f64,
}

impl Label {
    /// What tells the run's files from others'.
    fn file_name(&self) -> String {
        if self.workload.is_empty() {
            format!("{}-{}", self.variant, self.repetition)
        } else {
            format!("{}-{}-{}", self.workload, self.variant, self.repetition)
        }
    }
}

impl Measurement {
    /// Puts together what the generators of `load` measured.
    pub(crate) fn of(load: &Load, parts: Vec<PartResult>) -> Self {
        let mut measurement = Self {
            arrivals: load.arrivals,
            is_always_awake: !load.spin.is_zero(),
            judged: load.judged,
            processes: load.processes,
            duration: Duration::ZERO,
            record: Record::new(),
            generator_cpu_s: 0.0,
            server_cpu_s: BTreeMap::new(),
            work: None,
        };
        for part in parts {
            measurement.record.merge(&part.record);
            measurement.duration = measurement.duration.max(part.duration);
            measurement.generator_cpu_s += part.generator_cpu_s;
            measurement.server_cpu_s.extend(part.server_cpu_s);
        }
        measurement
    }

    pub(crate) fn set_server_cpu(&mut self, server_cpu_s: BTreeMap<String, f64>) {
        self.server_cpu_s = server_cpu_s;
    }

    /// Adds what the servers have done from before the beginning of the warm-up until after the last reply.
    pub fn set_server_work(&mut self, work: ServerWork) {
        self.work = Some(work);
    }

    /// How long was measured.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// All requests that ended, errors and timeouts included.
    pub fn count(&self) -> u64 {
        self.record.operations.values().map(|counted| counted.latency.len()).sum()
    }

    /// Requests that ended without success.
    pub fn failures(&self) -> u64 {
        self.record.operations.values().map(|counted| counted.errors + counted.timeouts).sum()
    }

    /// Errors by kind, timeouts not among them.
    pub fn errors(&self) -> &BTreeMap<String, u64> {
        &self.record.errors
    }

    /// Reads that found less than they asked for.
    pub fn missing(&self) -> u64 {
        self.record.missing
    }

    /// Requests that were answered with success, per second.
    pub fn achieved_per_s(&self) -> f64 {
        (self.count() - self.failures()) as f64 / self.duration.as_secs_f64().max(1e-9)
    }

    /// The latencies of one operation, in nanoseconds.
    pub fn latency(&self, operation: crate::operation::Operation) -> Option<&Histogram<u64>> {
        self.record.operations.get(&operation).map(|counted| &counted.latency)
    }

    /// The latencies of all operations together, in nanoseconds.
    pub fn latency_of_all(&self) -> Histogram<u64> {
        merge_histograms(self.record.operations.values().map(|counted| &counted.latency))
    }

    /// From when requests were due to when they were handed to their sockets, in nanoseconds; `None` in a closed loop.
    pub fn send_lag(&self) -> Option<&Histogram<u64>> {
        matches!(self.arrivals, Arrivals::Open { .. }).then_some(&self.record.lag)
    }

    /// CPU seconds of the generator's processes.
    pub fn generator_cpu_s(&self) -> f64 {
        self.generator_cpu_s
    }

    /// CPU seconds of the servers by name.
    pub fn server_cpu_s(&self) -> &BTreeMap<String, f64> {
        &self.server_cpu_s
    }

    /// One entry per second of the measurement.
    pub fn seconds(&self) -> Vec<Second> {
        let count = (self.duration.as_secs_f64().ceil() as u32).max(self.record.seconds.len() as u32);
        (0..count).map(|second| self.record.second(second)).collect()
    }

    /// Why the figures mean nothing, if they do: nothing was measured, or the generator was the bottleneck.
    pub fn void(&self) -> Option<String> {
        if self.count() == 0 {
            return Some("no request ended".to_owned());
        }
        let mut reasons = Vec::new();
        reasons.extend(self.lag_complaint());
        let processes = f64::from(self.processes);
        // What is certain: of a run of a few milliseconds the kernel says nothing.
        let used = (self.generator_cpu_s - cpu::ERROR_S * processes).max(0.0);
        let share = used / self.duration.as_secs_f64().max(1e-9) / processes;
        // Whoever stays awake on purpose is known by the send lag alone.
        if share > CPU_SHARE_MAX && !self.is_always_awake {
            let (percent, most) = (share * 100.0, CPU_SHARE_MAX * 100.0);
            reasons.push(format!(
                "the generator used {percent:.0} % of a core in each of {} processes, more than {most:.0} %",
                self.processes
            ));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// The lag is held against the operation that it distorts most, at the quantile that the run is about.
    fn lag_complaint(&self) -> Option<String> {
        let lag = self.send_lag()?.value_at_quantile(0.99) as f64;
        let judged = |counted: &Counted| counted.latency.value_at_quantile(self.judged);
        let reported = self.record.operations.values().map(judged).min()? as f64;
        if lag <= reported * LAG_SHARE_MAX {
            return None;
        }
        let mut reason = format!(
            "requests were sent late: the p99 of the send lag, {:.0} us, is more than {:.0} % of the reported {}, {:.0} us",
            lag / 1e3,
            LAG_SHARE_MAX * 100.0,
            percentile(self.judged),
            reported / 1e3
        );
        if let (Arrivals::Open { in_flight_max, .. }, 1..) = (self.arrivals, self.record.held_back) {
            let held = self.record.held_back;
            reason.push_str(&format!(", and {held} were held back because {in_flight_max} were in flight"));
        }
        Some(reason)
    }

    /// The measurement as a run of `result.json`; the histograms go into `folder`.
    pub fn into_run(self, label: Label, folder: Option<&Folder>) -> Result<Run> {
        let name = label.file_name();
        let mut operations = Vec::new();
        for (operation, counted) in &self.record.operations {
            let histogram = match folder {
                Some(folder) => folder.keep_histogram(&name, operation.name(), &counted.latency, self.duration)?,
                None => String::new(),
            };
            operations.push(Operation {
                name: operation.name().to_owned(),
                count: counted.latency.len(),
                errors: counted.errors,
                timeouts: counted.timeouts,
                latency_us: Latency::of(&counted.latency),
                histogram,
            });
        }
        let (loop_kind, offered_per_s) = match self.arrivals {
            Arrivals::Open { rate, .. } => (LoopKind::Open, Some(rate)),
            Arrivals::Closed { .. } => (LoopKind::Closed, None),
        };
        Ok(Run {
            variant: label.variant,
            repetition: label.repetition,
            workload: label.workload,
            begin_s: label.begin_s,
            duration_s: self.duration.as_secs_f64(),
            loop_kind,
            offered_per_s,
            achieved_per_s: self.achieved_per_s(),
            void: self.void(),
            send_lag_us: self.send_lag().map(Latency::of),
            generator_cpu_s: self.generator_cpu_s,
            server_cpu_s: self.server_cpu_s.clone(),
            operations,
            timeline: self.seconds(),
            faults: Vec::new(),
            extra: self.extra(),
            hedging: self.hedging(),
        })
    }

    /// Figures without a field of their own, where they are not 0.
    fn extra(&self) -> BTreeMap<String, f64> {
        let record = &self.record;
        let figures = [
            ("missing_rows_count", record.missing),
            ("unsent_count", record.unsent),
            ("held_back_count", record.held_back),
            ("generator_processes_count", u64::from(self.processes)),
        ];
        let errors = record.errors.iter().map(|(kind, count)| (format!("error_{kind}_count"), *count));
        let all = figures.into_iter().map(|(name, count)| (name.to_owned(), count)).chain(errors);
        let all = all.filter(|(_, count)| *count > 0).map(|(name, count)| (name, count as f64));
        all.chain(self.judged_figure()).chain(self.read_figures()).collect()
    }

    /// What the send lag of an open loop was held against, unless it is the usual quantile.
    fn judged_figure(&self) -> Option<(String, f64)> {
        let is_told = self.send_lag().is_some() && self.judged != JUDGED_DEFAULT;
        is_told.then(|| ("judged_quantile".to_owned(), self.judged))
    }

    /// What extra attempts were sent, and what they cost; `None` where the load sends none.
    fn hedging(&self) -> Option<hedgerow_report::Hedging> {
        let record = &self.record;
        let levels = record.reads.by_level.iter().map(|(level, count)| ((*level).to_owned(), *count));
        let work = self.work.as_ref();
        record.hedging.as_ref().map(|counts| hedgerow_report::Hedging {
            served_levels: levels.collect(),
            extra_work_percent: work.and_then(|work| work.extra_percent(record.reads_sent)),
            servers: work.into_iter().flat_map(ServerWork::extra).collect(),
            ..counts.report()
        })
    }

    /// What replicas served, by node and by role, and what they said of it.
    fn read_figures(&self) -> impl Iterator<Item = (String, f64)> {
        let reads = &self.record.reads;
        let by_node = reads.by_node.iter().map(|(node, count)| (format!("served_by_{node}_count"), *count as f64));
        let by_role = reads.by_role.iter().map(|(role, count)| (format!("served_by_{role}_count"), *count as f64));
        let repeated = (reads.repeated > 0).then(|| ("read_attempts_repeated_count".to_owned(), reads.repeated as f64));
        let of = |name: &str, histogram: &Histogram<u64>, (unit, nanos): (&str, f64)| {
            let figure = |what: &str, value: u64| (format!("{name}_{what}_{unit}"), value as f64 / nanos);
            let [p50, p99] = [0.5, 0.99].map(|quantile| histogram.value_at_quantile(quantile));
            let all = [figure("p50", p50), figure("p99", p99), figure("max", histogram.max())];
            all.into_iter().filter(|_| !histogram.is_empty()).collect::<Vec<_>>()
        };
        let staleness = of("staleness", &reads.staleness, ("ms", 1e6));
        let at_server = of("at_server", &reads.at_server, ("us", 1e3));
        by_node.chain(by_role).chain(repeated).chain(staleness).chain(at_server)
    }
}

/// `p99.9` for 0.999.
fn percentile(quantile: f64) -> String {
    // A product such as 0.9999 * 100 may end in digits that nobody meant.
    format!("p{}", (quantile * 1e6).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;
    use crate::reply::{Failure, Found};
    use crate::workload::Workload;

    fn measurement(arrivals: Arrivals, generator_cpu_s: f64, fill: impl FnOnce(&mut Record)) -> Measurement {
        measurement_of(&Load::new(Workload::named("mix").unwrap(), arrivals), generator_cpu_s, fill)
    }

    fn measurement_of(load: &Load, generator_cpu_s: f64, fill: impl FnOnce(&mut Record)) -> Measurement {
        let mut record = Record::new();
        fill(&mut record);
        let duration = Duration::from_secs(10);
        Measurement::of(load, vec![PartResult { record, duration, generator_cpu_s, server_cpu_s: BTreeMap::new() }])
    }

    /// Gets of 1 ms and sets of 100 ms, all sent `lag_us` late.
    fn mixed(record: &mut Record, lag_us: u64) {
        for _ in 0..100 {
            record.note_end(Operation::Get, 0, 1_000_000, Ok(Found::All));
            record.note_end(Operation::Set, 9, 100_000_000, Ok(Found::All));
            record.note_lag(lag_us * 1000);
        }
    }

    #[test]
    fn a_lag_is_held_against_the_fastest_operation() {
        assert_eq!(measurement(Arrivals::poisson(10.0), 0.1, |record| mixed(record, 49)).void(), None);
        let void = measurement(Arrivals::poisson(10.0), 0.1, |record| mixed(record, 60)).void().unwrap();
        assert!(void.contains("60 us") && void.contains("the reported p99, 1000 us"), "{void}");
    }

    #[test]
    fn a_lag_is_held_against_the_quantile_that_the_run_is_about() {
        let load = Load { judged: 0.999, ..Load::new(Workload::named("mix").unwrap(), Arrivals::poisson(10.0)) };
        // One get in a hundred and one takes 10 ms: its p99 is 1 ms, its p99.9 is 10 ms.
        let of = |load: &Load, lag_us| {
            measurement_of(load, 0.1, |record| {
                mixed(record, lag_us);
                record.note_end(Operation::Get, 0, 10_000_000, Ok(Found::All));
            })
        };
        assert_eq!(of(&load, 490).void(), None);
        let void = of(&load, 600).void().unwrap();
        assert!(void.contains("600 us") && void.contains("the reported p99.9, 100"), "{void}");
        let usual = Load { judged: JUDGED_DEFAULT, ..load.clone() };
        assert!(of(&usual, 490).void().unwrap().contains("the reported p99, 1000 us"));
        let told = |load: &Load| of(load, 0).into_run(Label::default(), None).unwrap().extra.remove("judged_quantile");
        assert_eq!((told(&load), told(&usual)), (Some(0.999), None));
        assert_eq!(told(&Load { arrivals: Arrivals::clients(1), ..load }), None);
    }

    #[test]
    fn quantiles_are_named_as_people_do() {
        assert_eq!([0.5, 0.99, 0.999, 0.9999].map(percentile), ["p50", "p99", "p99.9", "p99.99"]);
    }

    #[test]
    fn requests_held_back_by_the_limit_are_named_as_the_reason() {
        let void = measurement(Arrivals::poisson(10.0), 0.1, |record| {
            mixed(record, 60);
            record.held_back = 7;
        });
        assert!(void.void().unwrap().ends_with("7 were held back because 16384 were in flight"));
    }

    #[test]
    fn a_generator_without_time_of_its_own_voids_either_loop() {
        for arrivals in [Arrivals::clients(1), Arrivals::poisson(10.0)] {
            assert_eq!(measurement(arrivals, 8.9, |record| mixed(record, 0)).void(), None);
            let void = measurement(arrivals, 9.5, |record| mixed(record, 0)).void().unwrap();
            assert!(void.contains("95 % of a core"), "{void}");
        }
    }

    #[test]
    fn a_run_too_short_for_the_kernels_clock_is_not_void() {
        let mut short = measurement(Arrivals::clients(1), 0.02, |record| mixed(record, 0));
        short.duration = Duration::from_millis(2);
        assert_eq!(short.void(), None);
        short.generator_cpu_s = 0.03;
        assert!(short.void().is_some());
    }

    #[test]
    fn nothing_measured_means_nothing() {
        assert!(measurement(Arrivals::clients(1), 0.0, |_| {}).void().is_some());
    }

    #[test]
    fn failures_are_counted_but_not_achieved() {
        let measurement = measurement(Arrivals::clients(1), 0.0, |record| {
            mixed(record, 0);
            record.note_end(Operation::Get, 3, 5, Err(Failure::Error("storage")));
            record.note_end(Operation::Get, 3, 5, Err(Failure::Timeout));
        });
        assert_eq!((measurement.count(), measurement.failures()), (202, 2));
        assert_eq!(measurement.achieved_per_s(), 20.0);
        assert_eq!(measurement.seconds().len(), 10);
        let run = measurement.into_run(Label::default(), None).unwrap();
        assert_eq!((run.operations[0].errors, run.operations[0].timeouts), (1, 1));
        assert_eq!(run.extra["error_storage_count"], 1.0);
    }

    #[test]
    fn what_is_hedged_is_told_with_what_servers_say() {
        let plain = measurement(Arrivals::clients(1), 0.0, |record| mixed(record, 0));
        assert_eq!(plain.into_run(Label::default(), None).unwrap().hedging, None);
        let mut hedged = measurement(Arrivals::clients(1), 0.0, |record| {
            mixed(record, 0);
            record.reads_sent = 1_000;
            record.reads.by_level.insert("bounded", 3);
            record.hedging = Some(crate::hedging::Counts { first: 200, ..Default::default() });
        });
        hedged.set_server_work(
            ServerWork::parse(r#"{"served": {"bounded": {"leader": 1010}}, "queue": {"extra": {"shed": 4}}}"#).unwrap(),
        );
        let hedging = hedged.into_run(Label::default(), None).unwrap().hedging.unwrap();
        assert_eq!((hedging.first, hedging.extra_work_percent), (200, Some(1.0)));
        assert_eq!((hedging.served_levels["bounded"], hedging.servers["extra_shed"]), (3, 4));
    }

    #[test]
    fn histograms_lie_in_the_folder_and_hold_every_sample() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create(base.path(), "bench").unwrap();
        let label = Label { variant: "rate=10".to_owned(), repetition: 2, ..Label::default() };
        let measurement = measurement(Arrivals::poisson(10.0), 0.0, |record| mixed(record, 1));
        let expected = measurement.latency(Operation::Set).unwrap().clone();
        let run = measurement.into_run(label, Some(&folder)).unwrap();
        let path = folder.path().join(&run.operations[1].histogram);
        assert_eq!(hedgerow_report::read_histogram(&path).unwrap(), expected);
    }
}
