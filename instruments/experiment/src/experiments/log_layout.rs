//! `log-layout`: where a node's logs should be. Two nodes stand side by side, one with a log in each of its data directories and one with a
//! single log for all, and are measured in turns with the mixes of reads and writes for which Pegasus has published what its layouts bring.

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::pair::{Figures, Pair};
use crate::summary::{Spread, or_na};
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Load, Shares, Values, Workload};
use hedgerow_report::{Run, Table};
use hedgerow_testkit::{Durability, Settings};
use std::collections::BTreeMap;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "log-layout";
/// How long starting both nodes and writing their rows should take, for the time left only.
const PREPARE_EXPECTED: Duration = Duration::from_secs(10);
/// The settings `log.layout` of the two nodes. The second one is what the first is measured against.
const LAYOUTS: [&str; 2] = ["disk", "node"];
const DATA_DIRECTORIES: usize = 2;
const VALUE_SIZE: u32 = 1_000;
/// How much of the throughput with one log is wanted where both data directories are on one disk.
const WANTED: f64 = 0.95;

/// One of Pegasus' workloads, and what an acknowledged write stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    durability: Durability,
    reads: u32,
    writes: u32,
    clients: u32,
}

/// Reads to writes, and clients.
const MIXES: [(u32, u32, u32); 7] =
    [(0, 1, 15), (1, 30, 15), (1, 3, 15), (1, 1, 30), (3, 1, 30), (30, 1, 50), (1, 0, 50)];
const DURABILITIES: [Durability; 2] = [Durability::Fsync, Durability::Os];

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        DURABILITIES.into_iter().flat_map(Self::of)
    }

    fn of(durability: Durability) -> impl Iterator<Item = Self> {
        MIXES.into_iter().map(move |(reads, writes, clients)| Self { durability, reads, writes, clients })
    }

    fn mix(self) -> String {
        format!("{}:{}", self.reads, self.writes)
    }

    fn name(self, layout: &str) -> String {
        format!("{} x{}, {}, {layout}", self.mix(), self.clients, self.durability.name())
    }
}

/// The experiment.
pub(super) struct LogLayout {
    duration: Duration,
    warm_up: Duration,
    rows: u64,
    settings: Settings,
    /// With one log in each data directory, and with one for both.
    pair: Option<(Durability, Pair)>,
}

impl LogLayout {
    pub(super) fn new(options: &Options) -> Self {
        let (duration, warm_up, rows) = match options.size {
            Size::Quick => (Duration::from_millis(300), Duration::from_millis(100), 1_000),
            Size::Full => (Duration::from_secs(4), Duration::from_millis(500), 100_000),
        };
        let settings = Settings {
            base: options.data.clone(),
            data_directories: DATA_DIRECTORIES,
            ..Settings::of_binary(options.binary.clone(), 1)
        };
        Self { duration, warm_up, rows, settings, pair: None }
    }

    fn settings(&self, durability: Durability, layout: &str) -> Settings {
        Settings { durability, further_config: format!("[log]\nlayout = {layout:?}\n"), ..self.settings.clone() }
    }

    fn workload(&self, case: Case) -> Workload {
        let mut workload = Workload::named("get").expect("get comes with the generator");
        workload.name = format!("{}-to-{}", case.reads, case.writes);
        workload.description = format!("Rows of {VALUE_SIZE} bytes, {} reads to writes.", case.mix());
        workload.table.rows = self.rows;
        workload.values = Values::Fixed { size: VALUE_SIZE };
        workload.operations = Shares { get: case.reads, set: case.writes, ..Shares::default() };
        workload
    }

    fn load(&self, case: Case) -> Load {
        Load {
            duration: self.duration,
            warm_up: self.warm_up,
            ..Load::new(self.workload(case), Arrivals::clients(case.clients))
        }
    }
}

impl Experiment for LogLayout {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "one log in each data directory, or one for all",
            needs: "2 GiB of memory and 6 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let variant = |(index, case): (usize, Case)| Variant {
            name: case.name(LAYOUTS[0]),
            prepare_expected: if index == 0 { PREPARE_EXPECTED } else { Duration::ZERO },
            measure_expected: (self.duration + self.warm_up) * Pair::TURNS,
            case,
        };
        let group = |durability: Durability| Group {
            name: durability.name().to_owned(),
            variants: Case::of(durability).enumerate().map(variant).collect(),
        };
        DURABILITIES.map(group).into()
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        Case::of(DURABILITIES[0]).map(|case| (self.workload(case).name.clone(), self.workload(case).text())).collect()
    }

    async fn prepare(&mut self, context: &Context<'_>, case: &Case) -> Result<()> {
        let durability = case.durability;
        if self.pair.as_ref().is_none_or(|(of, _)| *of != durability) {
            self.pair = None;
            let settings = LAYOUTS.map(|layout| self.settings(durability, layout));
            self.pair = Some((durability, Pair::start(context, settings, self.load(*case)).await?));
        }
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let load = self.load(*case);
        let (_, pair) = self.pair.as_mut().context("the nodes are started before the first turn")?;
        pair.measure(context, LAYOUTS.map(|layout| case.name(layout)), &load).await
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        let columns = [
            "variant",
            "per second",
            "get p50 ms",
            "get p99 ms",
            "set p50 ms",
            "set p99 ms",
            "server's CPU us",
            "disk / node",
            "target",
        ];
        let rows: Vec<_> =
            Case::all().flat_map(|case| LAYOUTS.map(|layout| row(case, layout, runs))).flatten().collect();
        let notes = vec![format!(
            "Variant: reads to writes, clients, durability, layout. One node with {DATA_DIRECTORIES} data directories on the machine's one disk, rows of \
             {VALUE_SIZE} bytes; gets linearizable at the leader, sets as durable as the variant says. Median (min-max); ratios are those of \
             runs that followed each other. The generator runs on the same machine."
        )];
        let title = "One log in each data directory, or one for all".to_owned();
        vec![Table { title, columns: columns.map(str::to_owned).to_vec(), rows, notes }]
    }
}

fn row(case: Case, layout: &str, runs: &[Run]) -> Option<Vec<String>> {
    let name = case.name(layout);
    let figures = Figures::of(runs, &name, &case.name(LAYOUTS[1]))?;
    let own: Vec<&Run> = runs.iter().filter(|run| run.variant == name).collect();
    let latency = |operation: &str, figure: fn(&hedgerow_report::Latency) -> f64| {
        let of_run =
            |run: &Run| run.operations.iter().find(|it| it.name == operation).map(|it| figure(&it.latency_us) / 1e3);
        or_na(Spread::of_runs(&own, of_run))
    };
    Some(vec![
        name,
        figures.per_s.to_string(),
        latency("get", |it| it.p50),
        latency("get", |it| it.p99),
        latency("set", |it| it.p50),
        latency("set", |it| it.p99),
        or_na(figures.server_cpu_us),
        or_na(figures.ratio),
        figures.verdict(Some(WANTED)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_report::{Latency, Operation};

    fn run(case: Case, layout: &str, repetition: u32, per_s: f64) -> Run {
        let of = |name: &str, p99| Operation {
            name: name.to_owned(),
            latency_us: Latency { p99, ..Latency::default() },
            ..Operation::default()
        };
        let operations = vec![of("get", 2_000.0), of("set", 7_000.0)];
        Run { variant: case.name(layout), repetition, achieved_per_s: per_s, operations, ..Run::default() }
    }

    #[test]
    fn a_log_in_each_directory_is_measured_against_one_for_all() {
        let case = Case { durability: Durability::Fsync, reads: 1, writes: 3, clients: 15 };
        let runs = [run(case, "disk", 1, 900.0), run(case, "node", 1, 1_000.0)];
        let disk = row(case, "disk", &runs).unwrap();
        assert_eq!((disk[0].as_str(), disk[3].as_str(), disk[5].as_str()), ("1:3 x15, fsync, disk", "2.00", "7.00"));
        assert_eq!((disk[7].as_str(), disk[8].as_str()), ("0.900", ">= x0.95: MISSED"));
        assert_eq!(row(case, "node", &runs).unwrap()[8], "none");
        assert_eq!(row(Case { reads: 0, ..case }, "disk", &runs), None);
    }

    #[test]
    fn the_workloads_are_what_they_are_called() {
        let layouts = LogLayout::new(&Options::of_size(Size::Quick));
        for case in Case::all() {
            let workload = layouts.workload(case);
            let parsed = Workload::parse(&workload.text()).expect("a workload that the generator takes");
            assert_eq!((parsed.operations.get, parsed.operations.set), (case.reads, case.writes));
        }
        assert_eq!(layouts.workloads().len(), MIXES.len());
    }
}
