//! `hot-partition` (X7 with a fixed number of read-only replicas): one partition takes all reads, and more and more replicas
//! serve them.
//!
//! Five nodes, each of which computes for a fixed share of a core only: so what a node can serve is the same whoever else
//! is busy, and the load generator has the rest of the machine. Three small tables of the same form, each with its rows in
//! one partition, differ in their number of read-only replicas, so that variants can take turns without moving any.
//!
//! A closed loop with several numbers of clients per serving replica finds the throughput at equal p99: the highest whose p99
//! is not above that of the leader alone when it is saturated. An open loop at one rate for all shows the latency of a
//! load that the leader alone can just carry.

mod tables;

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::stage::Stage;
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Load, Reading, Workload};
use hedgerow_client::{ReadLevel, ReplicaRead, TableSpec};
use hedgerow_faults::Plan;
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "hot-partition";
/// Nodes of the cluster: three voters and two read-only replicas.
const NODE_COUNT: usize = 5;
/// Voters of each partition.
const VOTERS: u32 = 3;
/// The most read-only replicas.
const LEARNERS_MAX: u32 = 2;
/// Rows of the table: they share one hash key, and so a partition.
const ROWS: u64 = 1_000;
/// Connections to each node that all clients share.
const CONNECTIONS: u32 = 8;
/// Percent of a core that each node's thread may use.
const SHARE_PERCENT: u8 = 12;
/// Clients per serving replica when it is saturated.
const CLIENTS_PER_REPLICA: u32 = 512;
/// The bound of bounded reads.
const BOUND: Duration = Duration::from_secs(1);
/// The open loop's rate, as a part of what the leader alone serves at most.
const FIXED_SHARE: f64 = 0.6;
/// What the generator does not sleep for in the open loop: the nodes leave it a core.
const SPIN: Duration = Duration::from_millis(1);
/// The workload of the open loop.
const FIXED_RATE: &str = "get-fixed-rate";
/// How long starting five nodes and making three tables should take, for the time left only.
const PREPARE_EXPECTED: Duration = Duration::from_secs(14);

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// Linearizable reads at the leader.
    LeaderOnly,
    /// Reads at all voters and so many read-only replicas.
    All { learners: u32, level: ReadLevel },
}

impl Case {
    const BOUNDED: ReadLevel = ReadLevel::Bounded(BOUND);

    fn all() -> Vec<Self> {
        let of = |learners| [ReadLevel::Linearizable, Self::BOUNDED].map(|level| Self::All { learners, level });
        std::iter::once(Self::LeaderOnly).chain((0..=LEARNERS_MAX).flat_map(of)).collect()
    }

    fn learners(self) -> u32 {
        match self {
            Self::LeaderOnly => 0,
            Self::All { learners, .. } => learners,
        }
    }

    /// Replicas that serve.
    fn replicas(self) -> u32 {
        match self {
            Self::LeaderOnly => 1,
            Self::All { learners, .. } => VOTERS + learners,
        }
    }

    fn reading(self) -> Reading {
        let (level, mode) = match self {
            Self::LeaderOnly => (ReadLevel::Linearizable, ReplicaRead::Leader),
            Self::All { level, .. } => (level, ReplicaRead::LeaderAndFollower),
        };
        Reading { level: Some(level), mode, ..Reading::default() }
    }
}

/// The name of the variant.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaderOnly => f.write_str("leader only"),
            Self::All { learners: 0, level } => write!(f, "{VOTERS} voters, {level}"),
            Self::All { learners, level } => write!(f, "{VOTERS} voters + {learners}, {level}"),
        }
    }
}

/// How much is measured.
struct Plan7 {
    /// Clients per serving replica; the last number is the one at which a replica is saturated.
    clients: &'static [u32],
    duration: Duration,
    warm_up: Duration,
}

const FULL: Plan7 = Plan7 {
    clients: &[CLIENTS_PER_REPLICA / 4, CLIENTS_PER_REPLICA / 2, CLIENTS_PER_REPLICA],
    duration: Duration::from_millis(2_500),
    warm_up: Duration::from_millis(500),
};

const QUICK: Plan7 = Plan7 {
    clients: &[CLIENTS_PER_REPLICA / 8],
    duration: Duration::from_millis(400),
    warm_up: Duration::from_millis(200),
};

/// The experiment.
pub(super) struct HotPartition {
    plan: &'static Plan7,
    settings: Settings,
    faults: Plan,
    stage: Option<Stage>,
    /// Reads per second of the open loop, once it is known what the leader alone can serve.
    fixed_rate: Option<f64>,
}

impl HotPartition {
    pub(super) fn new(options: &Options) -> Self {
        let plan = match options.size {
            Size::Quick => &QUICK,
            Size::Full => &FULL,
        };
        let settings = Settings {
            base: options.data.clone(),
            further_config: "[faults]\nallowed = true\n".to_owned(),
            ..Settings::of_binary(options.binary.clone(), NODE_COUNT)
        };
        let faults = Plan::parse(&format!(
            "# Small machines: what a node can do does not depend on the others, and the load has the rest of the machine.\n\
             name = \"shares\"\nseed = 1\n\n[[fault]]\nkind = \"share\"\npercent = {SHARE_PERCENT}\n"
        ));
        let faults = faults.expect("a test parses it");
        Self { plan, settings, faults, stage: None, fixed_rate: None }
    }

    fn workload(name: &str, description: &str) -> Workload {
        let mut workload = Workload::named("get").expect("it comes with the generator");
        workload.name = name.to_owned();
        workload.description = description.to_owned();
        workload.table.partitions = 2;
        workload.table.rows = ROWS;
        workload.table.rows_per_hash_key = ROWS;
        workload
    }

    fn load(case: Case, workload: Workload, arrivals: Arrivals, plan: &Plan7) -> Load {
        Load {
            reading: case.reading(),
            connections: Some(CONNECTIONS),
            duration: plan.duration,
            warm_up: plan.warm_up,
            table: table_name(case.learners()),
            ..Load::new(workload, arrivals)
        }
    }

    fn closed(&self, case: Case, clients: u32) -> Load {
        let description = format!("Rows of one partition, drawn evenly; {clients} clients for each serving replica.");
        let workload = Self::workload(&closed_name(clients), &description);
        Self::load(case, workload, Arrivals::clients(clients * case.replicas()), self.plan)
    }

    fn open(&self, case: Case, rate: f64) -> Load {
        let description = format!("Rows of one partition, at {FIXED_SHARE} of what its leader alone serves at most.");
        let load = Self::load(case, Self::workload(FIXED_RATE, &description), Arrivals::poisson(rate), self.plan);
        Load { spin: SPIN, ..load }
    }

    async fn make_tables(&self, stage: &Stage, seed: u64) -> Result<()> {
        for learners in 0..=LEARNERS_MAX {
            let spec = TableSpec {
                partition_count: 2,
                replica_count: Some(VOTERS),
                options: [("read_replicas".to_owned(), learners.to_string())].into(),
                ..TableSpec::default()
            };
            let name = table_name(learners);
            stage.client().await?.create_table(&name, &spec).await.with_context(|| format!("creating {name}"))?;
            let load = Load { table: name.clone(), seed, ..self.closed(Case::LeaderOnly, 1) };
            stage.write_rows(&load, &name).await?;
            stage.wait_for_learners(&name, learners as usize).await?;
        }
        stage.settle().await
    }
}

fn table_name(learners: u32) -> String {
    format!("hot-{learners}")
}

/// The name of the workload with so many clients per serving replica.
fn closed_name(clients: u32) -> String {
    format!("get-x{clients}-per-replica")
}

impl Experiment for HotPartition {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "how many more reads of one partition followers and read-only replicas serve",
            needs: "2 GiB of memory and 4 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let runs = self.plan.clients.len() as u32 + 1;
        let variant = |(index, case): (usize, Case)| Variant {
            name: case.to_string(),
            prepare_expected: if index == 0 { PREPARE_EXPECTED } else { Duration::ZERO },
            measure_expected: (self.plan.duration + self.plan.warm_up) * runs,
            case,
        };
        vec![Group { name: "all".to_owned(), variants: Case::all().into_iter().enumerate().map(variant).collect() }]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        let closed = self.plan.clients.iter().map(|clients| self.closed(Case::LeaderOnly, *clients));
        let open = self.open(Case::LeaderOnly, 1.0);
        closed.chain([open]).map(|load| (load.workload.name.clone(), load.workload.text())).collect()
    }

    fn fault_plan(&self) -> Option<String> {
        Some(self.faults.text().to_owned())
    }

    async fn prepare(&mut self, context: &Context<'_>, _: &Case) -> Result<()> {
        if self.stage.is_some() {
            return Ok(());
        }
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        self.make_tables(&stage, context.seed).await?;
        stage.rest().await?;
        stage.set_faults(&self.faults).await?;
        self.stage = Some(stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        let closed: Vec<_> = self.plan.clients.iter().map(|clients| self.closed(*case, *clients)).collect();
        for load in closed {
            runs.extend(self.run(context, *case, load).await?);
        }
        if *case == Case::LeaderOnly && self.fixed_rate.is_none() {
            self.fixed_rate = runs.iter().map(|run| run.achieved_per_s * FIXED_SHARE).reduce(f64::max);
        }
        if let Some(rate) = self.fixed_rate.filter(|rate| *rate > 0.0) {
            let load = self.open(*case, rate);
            runs.extend(self.run(context, *case, load).await?);
        }
        Ok(runs)
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        tables::all(self.plan, runs)
    }
}

impl HotPartition {
    /// One run, if it is wanted.
    async fn run(&mut self, context: &Context<'_>, case: Case, load: Load) -> Result<Option<Run>> {
        if !context.is_wanted(&case.to_string(), &load.workload.name) {
            return Ok(None);
        }
        let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
        let before = stage.read_counts().await?;
        let mut run = stage.run(context, case.to_string(), load).await?;
        before.tell(stage.read_counts().await?, &mut run);
        Ok(Some(run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(size: Size) -> HotPartition {
        HotPartition::new(&Options::of_size(size))
    }

    #[test]
    fn every_load_can_be_run_and_its_rows_are_in_one_partition() {
        for size in [Size::Full, Size::Quick] {
            let experiment = experiment(size);
            for case in Case::all() {
                experiment.open(case, 1_000.0).check().unwrap();
                for clients in experiment.plan.clients {
                    let load = experiment.closed(case, *clients);
                    load.check().unwrap();
                    assert_eq!(load.workload.table.rows, load.workload.table.rows_per_hash_key);
                }
            }
        }
    }

    #[test]
    fn names_say_who_serves() {
        let names: Vec<_> = Case::all().iter().map(Case::to_string).collect();
        assert_eq!(names[..3], ["leader only", "3 voters, linearizable", "3 voters, bounded=1s"]);
        assert_eq!(names[6], "3 voters + 2, bounded=1s");
        assert_eq!(Case::all()[6].replicas() as usize, NODE_COUNT);
    }

    #[test]
    fn the_full_experiment_is_planned_for_less_than_six_minutes() {
        let expected: Duration = experiment(Size::Full).groups().iter().map(|group| group.expected(3)).sum();
        assert!(expected < Duration::from_secs(340), "{expected:?}");
    }
}
