//! `scale`: what more partitions, more rows and more connections cost in throughput, latency, memory and start-up time.
//!
//! Every turn starts the nodes with their data in place, waits for the leaders to spread, and measures four loads: puts and
//! gets in a closed loop for throughput, and at a fixed rate, the same for all variants, for latency. Then the nodes are
//! killed, so that only one cluster runs at any time and each turn gives a start-up time.

mod growth;
mod peers;

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::stage::Stage;
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Load, Shares, Values, Workload};
use hedgerow_env::os::raise_file_limit;
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "scale";
/// Nodes of each cluster.
const NODE_COUNT: usize = 3;
/// Connections of the variants that differ in something else.
const CONNECTIONS: u32 = 64;
/// Rows that share a hash key where numbers of rows are compared: they are loaded in one request.
const ROWS_PER_HASH_KEY: u64 = 100;
/// How long steps should take, for the time left only: starting nodes and all that is neither loading nor measuring, and
/// rows that a cluster takes per second.
const START_EXPECTED: Duration = Duration::from_millis(2_500);
const LOADED_PER_S: f64 = 30_000.0;

/// What the generator does not sleep for at a fixed rate: waking up takes longer than a get.
const SPIN: Duration = Duration::from_millis(1);

/// Names of figures in [`Run::extra`].
mod figure {
    pub(super) const START: &str = "start_s";
    pub(super) const RESIDENT: &str = "resident_mib";
    pub(super) const RESIDENT_AT_START: &str = "resident_at_start_mib";
    pub(super) const DISK: &str = "disk_mib";
}

/// The data of a cluster; clusters with the same are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    partitions: u32,
    rows: u64,
    rows_per_hash_key: u64,
    value_size: u32,
}

/// What grows in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Partitions,
    Rows,
    Connections,
}

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    axis: Axis,
    shape: Shape,
    connections: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
}

const OPERATIONS: [Operation; 2] = [Operation::Put, Operation::Get];

/// Whether a load is for throughput or for latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loop {
    Closed,
    Open,
}

/// How big everything is.
struct Plan {
    partitions: &'static [u32],
    /// Rows, and the size of their values.
    rows: &'static [(u64, u32)],
    connections: &'static [u32],
    /// The shape of the variants that differ in something else.
    base: Shape,
    duration: Duration,
    warm_up: Duration,
    put_rate: f64,
    get_rate: f64,
}

const FULL: Plan = Plan {
    partitions: &[8, 64, 512],
    // A million rows with both sizes of values, so that the number of rows and their size can be told apart.
    rows: &[(100_000, 1000), (1_000_000, 1000), (1_000_000, 100), (10_000_000, 100)],
    connections: &[1, 64, 1024],
    base: Shape { partitions: 8, rows: 100_000, rows_per_hash_key: 1, value_size: 1000 },
    duration: Duration::from_secs(8),
    warm_up: Duration::from_secs(2),
    put_rate: 4_000.0,
    get_rate: 15_000.0,
};

const QUICK: Plan = Plan {
    partitions: &[8, 64],
    rows: &[(1_000, 1000), (10_000, 1000)],
    connections: &[1, 64],
    // The same as the fewest rows, so that there is one cluster less to make.
    base: Shape { partitions: 8, rows: 1_000, rows_per_hash_key: ROWS_PER_HASH_KEY, value_size: 1000 },
    duration: Duration::from_millis(500),
    warm_up: Duration::from_millis(100),
    put_rate: 500.0,
    get_rate: 2_000.0,
};

/// The experiment.
pub(super) struct Scale {
    plan: &'static Plan,
    size: Size,
    settings: Settings,
    stages: BTreeMap<Shape, Stage>,
}

impl Scale {
    pub(super) fn new(options: &Options) -> Self {
        let plan = match options.size {
            Size::Quick => &QUICK,
            Size::Full => &FULL,
        };
        let base: Option<PathBuf> = options.data.clone();
        let settings = Settings { base, ..Settings::of_binary(options.binary.clone(), NODE_COUNT) };
        Self { plan, size: options.size, settings, stages: BTreeMap::new() }
    }

    /// All variants of a group, from the smallest.
    fn cases(&self, axis: Axis) -> Vec<Case> {
        let base = Case { axis, shape: self.plan.base, connections: CONNECTIONS };
        match axis {
            Axis::Partitions => {
                let case = |partitions: &u32| Case { shape: Shape { partitions: *partitions, ..base.shape }, ..base };
                self.plan.partitions.iter().map(case).collect()
            }
            Axis::Rows => {
                let shape =
                    |rows, value_size| Shape { rows, value_size, rows_per_hash_key: ROWS_PER_HASH_KEY, ..base.shape };
                let case = |(rows, value_size): &(u64, u32)| Case { shape: shape(*rows, *value_size), ..base };
                self.plan.rows.iter().map(case).collect()
            }
            Axis::Connections => {
                self.plan.connections.iter().map(|count| Case { connections: *count, ..base }).collect()
            }
        }
    }

    fn load(&self, case: &Case, operation: Operation, kind: Loop) -> Load {
        let arrivals = match (kind, operation) {
            (Loop::Closed, _) => Arrivals::clients(case.connections),
            (Loop::Open, Operation::Put) => Arrivals::poisson(self.plan.put_rate),
            (Loop::Open, Operation::Get) => Arrivals::poisson(self.plan.get_rate),
        };
        let spin = match kind {
            Loop::Closed => Duration::ZERO,
            Loop::Open => SPIN,
        };
        Load {
            spin,
            connections: Some(case.connections),
            duration: self.plan.duration,
            warm_up: self.plan.warm_up,
            ..Load::new(workload(case, operation, kind), arrivals)
        }
    }
}

impl Axis {
    const ALL: [Self; 3] = [Self::Partitions, Self::Rows, Self::Connections];

    fn name(self) -> &'static str {
        match self {
            Self::Partitions => "partitions",
            Self::Rows => "rows",
            Self::Connections => "connections",
        }
    }
}

impl Case {
    /// How many of what grows.
    fn count(&self) -> u64 {
        match self.axis {
            Axis::Partitions => self.shape.partitions.into(),
            Axis::Rows => self.shape.rows,
            Axis::Connections => self.connections.into(),
        }
    }

    /// The name of the runs of one loop.
    fn variant(&self, kind: Loop) -> String {
        match kind {
            Loop::Closed => self.to_string(),
            Loop::Open => format!("{self}, fixed rate"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.axis.name(), self.count())?;
        match self.axis {
            Axis::Rows => write!(f, " of {} bytes", self.shape.value_size),
            Axis::Partitions | Axis::Connections => Ok(()),
        }
    }
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
        }
    }
}

/// The name under which results compare the variants of an axis.
fn workload_name(axis: Axis, operation: Operation, kind: Loop) -> String {
    let how = match kind {
        Loop::Closed => "throughput",
        Loop::Open => "latency",
    };
    format!("{}-{}-{how}", axis.name(), operation.name())
}

fn workload(case: &Case, operation: Operation, kind: Loop) -> Workload {
    let (description, operations) = match operation {
        Operation::Put => ("Durable writes of rows that exist, drawn evenly.", Shares { set: 1, ..Shares::default() }),
        Operation::Get => ("Linearizable reads of rows drawn evenly.", Shares { get: 1, ..Shares::default() }),
    };
    let name = workload_name(case.axis, operation, kind);
    let mut workload = Workload::named(operation.name()).expect("put and get come with the generator");
    workload.name = name;
    workload.description = format!("{description} Variants differ in {}.", case.axis.name());
    workload.operations = operations;
    workload.table.partitions = case.shape.partitions;
    workload.table.rows = case.shape.rows;
    workload.table.rows_per_hash_key = case.shape.rows_per_hash_key;
    workload.values = Values::Fixed { size: case.shape.value_size };
    workload
}

impl Experiment for Scale {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what more partitions, rows and connections cost",
            needs: "4 GiB of memory and 40 GiB of disk (quick: 1 GiB of each); nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let measured = (self.plan.duration + self.plan.warm_up) * (2 * OPERATIONS.len() as u32);
        let group = |axis: Axis| {
            let variant = |case: Case| Variant {
                name: case.to_string(),
                prepare_expected: START_EXPECTED + Duration::from_secs_f64(case.shape.rows as f64 / LOADED_PER_S),
                measure_expected: measured + START_EXPECTED,
                case,
            };
            Group { name: axis.name().to_owned(), variants: self.cases(axis).into_iter().map(variant).collect() }
        };
        Axis::ALL.map(group).to_vec()
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for axis in Axis::ALL {
            let Some(base) = self.cases(axis).first().copied() else { continue };
            for (operation, kind) in OPERATIONS.into_iter().flat_map(|it| [(it, Loop::Closed), (it, Loop::Open)]) {
                texts.insert(workload_name(axis, operation, kind), workload(&base, operation, kind).text());
            }
        }
        texts
    }

    async fn prepare(&mut self, context: &Context<'_>, case: &Case) -> Result<()> {
        raise_file_limit().context("raising the limit of open files")?;
        if self.stages.contains_key(&case.shape) {
            return Ok(());
        }
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        let load = Load { seed: context.seed, ..self.load(case, Operation::Get, Loop::Closed) };
        stage.write_rows(&load, case).await?;
        stage.stop()?;
        self.stages.insert(case.shape, stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let loads: Vec<_> = [Loop::Closed, Loop::Open]
            .into_iter()
            .flat_map(|kind| OPERATIONS.map(|operation| (kind, self.load(case, operation, kind))))
            .collect();
        let stage = self.stages.get_mut(&case.shape).context("a variant is prepared before its first turn")?;
        let start = stage.start().await?;
        stage.settle().await?;
        let resident_at_start = stage.resident_mib()?;
        let mut runs = Vec::new();
        for (kind, load) in loads {
            let variant = case.variant(kind);
            if !context.is_wanted(&variant, &load.workload.name) {
                continue;
            }
            let mut run = stage.run(context, variant, load).await?;
            let extra = [
                (figure::START, start.as_secs_f64()),
                (figure::RESIDENT_AT_START, resident_at_start),
                (figure::RESIDENT, stage.resident_mib()?),
                (figure::DISK, stage.disk_mib()),
            ];
            run.extra.extend(extra.map(|(name, value)| (name.to_owned(), value)));
            runs.push(run);
        }
        stage.stop()?;
        Ok(runs)
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        let mut tables: Vec<_> =
            Axis::ALL.into_iter().filter_map(|axis| growth::table(&self.cases(axis), runs)).collect();
        if self.size == Size::Full {
            tables.extend(peers::table(runs));
        }
        tables
    }
}
