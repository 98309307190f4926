//! `workers`, `shards` and `io-threads`: what further threads bring to one node. Two nodes stand side by side, one with one of them and one with
//! two, and are measured in turns.

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::pair::{Figures, Pair};
use crate::summary::or_na;
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Load, Shares, Values, Workload};
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// What `hedgerow experiment` calls it, by what there are two of.
pub(super) const NAME: &str = "workers";
pub(super) const NAME_SHARDS: &str = "shards";
pub(super) const NAME_IO_THREADS: &str = "io-threads";
/// How long starting both nodes and writing their rows should take, for the time left only.
const PREPARE_EXPECTED: Duration = Duration::from_secs(10);
/// The threads of the two nodes.
const THREADS: [usize; 2] = [1, 2];
/// Clients of each variant, and how many connections they share if they do.
const CLIENTS: u32 = 64;
const SHARED: u32 = 4;
/// Rows of one hash key, and bytes of each.
const ROWS_PER_HASH_KEY: u64 = 200;
const VALUE_SIZE: u32 = 100;

/// What is asked for, and how much of the throughput with one thread is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    operation: &'static str,
    /// Rows of each request.
    rows: u32,
    connections: u32,
    has_tls: bool,
    wanted: f64,
}

const CASES: [Case; 6] = [
    Case::of("multi_get", 64, SHARED, 1.7),
    Case::of("scan", 100, SHARED, 1.7),
    Case::of("get", 1, SHARED, 0.97),
    Case::of("set", 1, SHARED, 0.97),
    Case::of("get", 1, CLIENTS, 0.97),
    Case::of("set", 1, CLIENTS, 0.97),
];
/// Those with TLS, which is the sockets' business too.
const TLS_CASES: [Case; 2] = [
    Case { has_tls: true, ..Case::of("get", 1, SHARED, 0.97) },
    Case { has_tls: true, ..Case::of("get", 1, CLIENTS, 0.97) },
];

impl Case {
    const fn of(operation: &'static str, rows: u32, connections: u32, wanted: f64) -> Self {
        Self { operation, rows, connections, has_tls: false, wanted }
    }

    fn name(&self, threads: usize) -> String {
        let Self { operation, rows, connections, .. } = self;
        let tls = if self.has_tls { " with TLS" } else { "" };
        let s = if threads == 1 { "" } else { "s" };
        format!("{operation} of {rows}, {connections} connections{tls}, {threads} thread{s}")
    }
}

/// What there are two of.
#[derive(Clone, Copy)]
enum Further {
    /// Threads that look for rows.
    Workers,
    /// Parts of the node with a thread each.
    Shards,
    /// Threads that have to do with clients' sockets.
    IoThreads,
}

/// The experiment.
pub(super) struct Workers {
    duration: Duration,
    warm_up: Duration,
    rows: u64,
    settings: Settings,
    further: Further,
    /// With one thread, and with two; and whether they have TLS.
    pair: Option<(Pair, bool)>,
}

impl Workers {
    /// What a second shard brings.
    pub(super) fn shards(options: &Options) -> Self {
        Self { further: Further::Shards, ..Self::new(options) }
    }

    /// What a thread for clients' sockets brings.
    pub(super) fn io_threads(options: &Options) -> Self {
        Self { further: Further::IoThreads, ..Self::new(options) }
    }

    /// What a second thread for reads brings.
    pub(super) fn new(options: &Options) -> Self {
        let (duration, warm_up, rows) = match options.size {
            Size::Quick => (Duration::from_millis(500), Duration::from_millis(100), 2_000),
            Size::Full => (Duration::from_secs(4), Duration::from_millis(500), 200_000),
        };
        let settings = Settings { base: options.data.clone(), ..Settings::of_binary(options.binary.clone(), 1) };
        Self { duration, warm_up, rows, settings, further: Further::Workers, pair: None }
    }

    fn cases(&self) -> Vec<Case> {
        let with_tls = TLS_CASES.into_iter().filter(|_| matches!(self.further, Further::IoThreads));
        CASES.into_iter().chain(with_tls).collect()
    }

    fn workload(&self, case: &Case) -> Workload {
        let mut workload = Workload::named("get").expect("get comes with the generator");
        workload.name = case.operation.to_owned();
        workload.description = format!("Rows of {VALUE_SIZE} bytes, {} in each request.", case.rows);
        (workload.table.rows, workload.table.rows_per_hash_key) = (self.rows, ROWS_PER_HASH_KEY);
        workload.values = Values::Fixed { size: VALUE_SIZE };
        let mut operations = Shares::default();
        match case.operation {
            "multi_get" => operations.multi_get = 1,
            "scan" => operations.scan = 1,
            "get" => operations.get = 1,
            _ => operations.set = 1,
        }
        workload.operations = operations;
        for spread in [&mut workload.batch_rows, &mut workload.scan_rows] {
            (spread.min, spread.max) = (case.rows, case.rows);
        }
        workload
    }

    fn load(&self, case: &Case) -> Load {
        Load {
            connections: Some(case.connections),
            duration: self.duration,
            warm_up: self.warm_up,
            ..Load::new(self.workload(case), Arrivals::clients(CLIENTS))
        }
    }
}

impl Experiment for Workers {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: match self.further {
                Further::Workers => NAME,
                Further::Shards => NAME_SHARDS,
                Further::IoThreads => NAME_IO_THREADS,
            },
            question: match self.further {
                Further::Workers => "what a second thread that looks for rows brings to one node",
                Further::Shards => "what a second shard, with a thread of its own, brings to one node",
                Further::IoThreads => "what a second thread, for clients' sockets, brings to one node",
            },
            needs: "2 GiB of memory and 4 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let variant = |(index, case): (usize, Case)| Variant {
            name: case.name(2),
            prepare_expected: if index == 0 { PREPARE_EXPECTED } else { Duration::ZERO },
            measure_expected: (self.duration + self.warm_up) * Pair::TURNS,
            case,
        };
        let group = |name: &str, has_tls| {
            let cases = self.cases().into_iter().filter(|case| case.has_tls == has_tls);
            Group { name: name.to_owned(), variants: cases.enumerate().map(variant).collect() }
        };
        let groups = [group("plain", false), group("tls", true)];
        groups.into_iter().filter(|group| !group.variants.is_empty()).collect()
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        CASES.iter().map(|case| (case.operation.to_owned(), self.workload(case).text())).collect()
    }

    async fn prepare(&mut self, context: &Context<'_>, case: &Case) -> Result<()> {
        if self.pair.as_ref().is_none_or(|(_, has_tls)| *has_tls != case.has_tls) {
            // The two that ran before end first.
            self.pair = None;
            let all = Settings { has_tls: case.has_tls, ..self.settings.clone() };
            let settings = THREADS.map(|count| match self.further {
                Further::Workers => Settings { workers: Some(count), ..all.clone() },
                Further::Shards => Settings { shards: Some(count), ..all.clone() },
                Further::IoThreads => Settings { io_threads: Some(count), ..all.clone() },
            });
            self.pair = Some((Pair::start(context, settings, self.load(&CASES[0])).await?, case.has_tls));
        }
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let load = self.load(case);
        let (pair, _) = self.pair.as_mut().context("the nodes are started before the first turn")?;
        pair.measure(context, THREADS.map(|count| case.name(count)), &load).await
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        let columns = [
            "variant",
            "per second",
            "p50 ms",
            "p99 ms",
            "server's CPU us",
            "its busiest thread's",
            "generator's CPU us",
            "2 / 1",
            "target",
        ];
        let rows: Vec<_> =
            self.cases().iter().flat_map(|case| THREADS.map(|threads| row(case, threads, runs))).flatten().collect();
        let notes = vec![format!(
            "One node, {CLIENTS} clients, rows of {VALUE_SIZE} bytes; reads linearizable at the leader. Median \
             (min-max); ratios are those of runs that followed each other. The generator runs on the same machine: on two cores no ratio \
             can be above 2 / (1 + generator's CPU / server's CPU with one thread). A second divided by the busiest thread's CPU is what the \
             node serves at most, however many cores it has."
        )];
        let title = "What a second thread brings".to_owned();
        vec![Table { title, columns: columns.map(str::to_owned).to_vec(), rows, notes }]
    }
}

fn row(case: &Case, threads: usize, runs: &[Run]) -> Option<Vec<String>> {
    let figures = Figures::of(runs, &case.name(threads), &case.name(1))?;
    Some(vec![
        case.name(threads),
        figures.per_s.to_string(),
        or_na(figures.p50_ms),
        or_na(figures.p99_ms),
        or_na(figures.server_cpu_us),
        or_na(figures.busiest_thread_cpu_us),
        or_na(figures.generator_cpu_us),
        or_na(figures.ratio),
        figures.verdict(Some(case.wanted)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(case: &Case, workers: usize, repetition: u32, per_s: f64) -> Run {
        Run { variant: case.name(workers), repetition, achieved_per_s: per_s, ..Run::default() }
    }

    #[test]
    fn neighbours_are_compared() {
        let case = &CASES[0];
        let runs = [
            run(case, 1, 1, 1_000.0),
            run(case, 2, 1, 1_800.0),
            run(case, 2, 2, 800.0),
            run(case, 1, 2, 500.0),
            run(case, 1, 3, 1_000.0),
            run(case, 2, 3, 1_650.0),
        ];
        let with = row(case, 2, &runs).unwrap();
        assert_eq!(
            (with[0].as_str(), with[7].as_str()),
            ("multi_get of 64, 4 connections, 2 threads", "1.65 (1.60-1.80)")
        );
        assert_eq!(with[8], ">= x1.7: MISSED");
        assert_eq!(row(case, 1, &runs).unwrap()[8], "none");
        assert_eq!(row(&CASES[1], 2, &runs), None);
    }

    #[test]
    fn the_workloads_are_what_they_are_called() {
        let workers = Workers::new(&Options::of_size(Size::Quick));
        for case in &CASES {
            let text = workers.workload(case).text();
            assert!(text.contains(&format!("{} = 1", case.operation)), "{text}");
            Workload::parse(&text).expect("a workload that the generator takes");
        }
    }
}
