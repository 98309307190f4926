//! `throughput`: durable puts and linearizable gets as fast as closed loops of several widths ask for them, against the
//! targets of this version.

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::stage::Stage;
use crate::summary::{Spread, or_na};
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Load, Workload};
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "throughput";
/// Nodes of the cluster.
const NODE_COUNT: usize = 3;
/// How long starting the cluster and writing its rows should take, for the time left only.
const PREPARE_EXPECTED: Duration = Duration::from_secs(6);

/// One variant. Clients share the connections to each node evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    /// `put` or `get`: the name of the workload.
    operation: &'static str,
    clients: u32,
    /// What each client keeps in flight.
    in_flight: u32,
    connections: u32,
    target: Target,
}

/// What this version wants to reach: at least so many per second, at most such a p99 and such a cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Target {
    per_s: Option<f64>,
    p99_ms: Option<f64>,
    server_cpu_us: Option<f64>,
}

const NONE: Target = Target { per_s: None, p99_ms: None, server_cpu_us: None };
const PUT_64: Target = Target { per_s: Some(40_000.0), p99_ms: Some(6.0), server_cpu_us: Some(40.0) };
const PUT_256: Target = Target { per_s: Some(60_000.0), p99_ms: None, server_cpu_us: Some(40.0) };
const GET_64: Target = Target { per_s: Some(150_000.0), p99_ms: None, server_cpu_us: Some(5.0) };
const GET_PIPELINED: Target = Target { per_s: Some(400_000.0), p99_ms: None, server_cpu_us: Some(5.0) };

const CASES: [Case; 11] = [
    case("put", 1, 1, 1, NONE),
    case("put", 64, 1, 1, PUT_64),
    case("put", 64, 1, 64, PUT_64),
    case("put", 256, 1, 4, PUT_256),
    case("put", 256, 1, 256, PUT_256),
    case("get", 1, 1, 1, NONE),
    case("get", 64, 1, 1, GET_64),
    case("get", 64, 1, 64, GET_64),
    case("get", 64, 16, 4, GET_PIPELINED),
    case("get", 4, 16, 4, GET_PIPELINED),
    case("get", 64, 16, 64, GET_PIPELINED),
];

const fn case(operation: &'static str, clients: u32, in_flight: u32, connections: u32, target: Target) -> Case {
    Case { operation, clients, in_flight, connections, target }
}

impl Case {
    fn name(&self) -> String {
        let Self { operation, clients, in_flight, connections, .. } = self;
        let width = if *in_flight == 1 { clients.to_string() } else { format!("{clients}x{in_flight}") };
        format!("{operation} x{width} on {connections}")
    }
}

/// The experiment.
pub(super) struct Throughput {
    duration: Duration,
    warm_up: Duration,
    rows: u64,
    settings: Settings,
    stage: Option<Stage>,
}

impl Throughput {
    pub(super) fn new(options: &Options) -> Self {
        let (duration, warm_up, rows) = match options.size {
            Size::Quick => (Duration::from_millis(500), Duration::from_millis(100), 1_000),
            Size::Full => (Duration::from_secs(5), Duration::from_secs(1), 100_000),
        };
        let settings =
            Settings { base: options.data.clone(), ..Settings::of_binary(options.binary.clone(), NODE_COUNT) };
        Self { duration, warm_up, rows, settings, stage: None }
    }

    fn workload(&self, operation: &str) -> Workload {
        let mut workload = Workload::named(operation).expect("put and get come with the generator");
        workload.table.rows = self.rows;
        workload
    }

    fn load(&self, case: &Case) -> Load {
        let arrivals = Arrivals::Closed { clients: case.clients, in_flight: case.in_flight };
        Load {
            connections: Some(case.connections),
            duration: self.duration,
            warm_up: self.warm_up,
            ..Load::new(self.workload(case.operation), arrivals)
        }
    }
}

impl Experiment for Throughput {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "how many durable puts and linearizable gets, against the targets",
            needs: "2 GiB of memory and 8 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let variant = |(index, case): (usize, &Case)| Variant {
            name: case.name(),
            prepare_expected: if index == 0 { PREPARE_EXPECTED } else { Duration::ZERO },
            measure_expected: self.duration + self.warm_up,
            case: *case,
        };
        vec![Group { name: "all".to_owned(), variants: CASES.iter().enumerate().map(variant).collect() }]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        ["put", "get"].map(|operation| (operation.to_owned(), self.workload(operation).text())).into()
    }

    async fn prepare(&mut self, context: &Context<'_>, _: &Case) -> Result<()> {
        if self.stage.is_some() {
            return Ok(());
        }
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        let load = Load { seed: context.seed, ..self.load(&CASES[0]) };
        stage.write_rows(&load, "the table").await?;
        stage.settle().await?;
        self.stage = Some(stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let load = self.load(case);
        let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
        Ok(vec![stage.run(context, case.name(), load).await?])
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        let columns = ["variant", "per second", "p50 ms", "p99 ms", "servers' CPU us", "generator's CPU us", "targets"];
        let rows: Vec<_> = CASES.iter().filter_map(|case| row(case, runs)).collect();
        let notes = vec![
            "Variant: clients (and what each keeps in flight) on so many connections to each node, which they share. Median \
             (min-max) of the repetitions. CPU per operation, all nodes together."
                .to_owned(),
        ];
        let title = "Throughput against the targets".to_owned();
        vec![Table { title, columns: columns.map(str::to_owned).to_vec(), rows, notes }]
    }
}

fn row(case: &Case, runs: &[Run]) -> Option<Vec<String>> {
    let name = case.name();
    let own: Vec<_> = runs.iter().filter(|run| run.variant == name).collect();
    let figure = |figure: fn(&Run) -> Option<f64>| Spread::of_runs(&own, figure);
    let per_s = figure(|run| Some(run.achieved_per_s))?;
    let p99 = figure(|run| run.operations.first().map(|it| it.latency_us.p99 / 1e3));
    let cpu = figure(Run::server_cpu_us_per_request);
    let cells = [
        Some(per_s),
        figure(|run| run.operations.first().map(|it| it.latency_us.p50 / 1e3)),
        p99,
        cpu,
        figure(Run::generator_cpu_us_per_request),
    ];
    let Target { per_s: wanted, p99_ms, server_cpu_us } = case.target;
    let verdicts = [
        wanted.map(|wanted| verdict("per second >=", wanted, per_s.median >= wanted)),
        p99_ms.zip(p99).map(|(most, p99)| verdict("p99 <=", most, p99.median <= most)),
        server_cpu_us.zip(cpu).map(|(most, cpu)| verdict("CPU <=", most, cpu.median <= most)),
    ];
    let targets: Vec<_> = verdicts.into_iter().flatten().collect();
    let last = if targets.is_empty() { "none".to_owned() } else { targets.join(", ") };
    Some(std::iter::once(name).chain(cells.map(or_na)).chain([last]).collect())
}

fn verdict(what: &str, limit: f64, is_met: bool) -> String {
    format!("{what} {limit}: {}", if is_met { "met" } else { "MISSED" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_report::{Latency, Operation};

    fn run(case: &Case, per_s: f64, p99_ms: f64) -> Run {
        let latency_us = Latency { p50: 500.0, p99: p99_ms * 1e3, ..Latency::default() };
        Run {
            variant: case.name(),
            achieved_per_s: per_s,
            generator_cpu_s: 1.0,
            server_cpu_s: [("node 1".to_owned(), 2.0)].into(),
            operations: vec![Operation { count: 100_000, latency_us, ..Operation::default() }],
            ..Run::default()
        }
    }

    #[test]
    fn each_target_is_judged_by_the_median() {
        let case = &CASES[1];
        let runs = [run(case, 39_000.0, 5.0), run(case, 41_000.0, 7.0), run(case, 45_000.0, 8.0)];
        let row = row(case, &runs).unwrap();
        assert_eq!(row[..4], ["put x64 on 1", "41,000 (39,000-45,000)", "0.500", "7.00 (5.00-8.00)"]);
        assert_eq!(row[4..6], ["20.0", "10.0"]);
        assert_eq!(row[6], "per second >= 40000: met, p99 <= 6: MISSED, CPU <= 40: met");
    }

    #[test]
    fn names_say_what_differs() {
        let mut names: Vec<_> = CASES.iter().map(Case::name).collect();
        assert_eq!(names[8], "get x64x16 on 4");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }

    #[test]
    fn what_was_not_measured_has_no_row() {
        assert_eq!(row(&CASES[0], &[]), None);
    }
}
