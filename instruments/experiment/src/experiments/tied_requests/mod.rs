//! `tied-requests` (X5): two copies that know of each other, where a competing job makes queues at one node after the other.
//!
//! Reads at any replica, an open loop. The job is a share of a core to which one node after the other is held for a second,
//! a little more than what it needs on average: requests then wait in its queue, as they wait for a disk that somebody else
//! uses. The published test read from disks; what is the same is that a request waits for its turn, and that its copy can be
//! taken back for as long as it waits.

mod tables;

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant as Turns};
use crate::hedged::{BOUNDED, Offered, Trials, adaptive, calibrate};
use crate::options::Options;
use crate::stage::Stage;
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Hedging, Load, Operation, Reading, Workload};
use hedgerow_client::{HedgeOptions, ReplicaRead, TieMode};
use hedgerow_faults::Plan;
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "tied-requests";
/// Nodes of the cluster, which have all rows.
const NODE_COUNT: usize = 3;
/// Clients, each with a connection to every node.
const CLIENTS: u32 = 3;
/// What is in flight in the closed loop that finds the rate.
const WIDTH: u32 = 48;
/// What the closed loop reached is offered in these parts: low ones, so that the machine has time left and queues are those of
/// the node that has the job.
const SHARES_TRIED: [f64; 4] = [0.14, 0.1, 0.07, 0.05];
/// The share of extra attempts of the hedged variant, percent.
const HEDGED_PERCENT: f64 = 1.0;
/// What a node that competes with the job may compute, by what it needs on average.
const JOB_LEAVES: f64 = 1.25;
/// The p99.9 without the job is to be lower.
const ORDINARY_P999_MAX: Duration = Duration::from_millis(3);
/// How long starting the cluster and writing its rows should take, for the time left only.
const PREPARE_EXPECTED: Duration = Duration::from_secs(32);

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    way: Way,
    /// Whether a job competes with the nodes.
    has_job: bool,
}

/// How a read is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Once.
    Plain,
    /// Once more after a delay, by the adaptive policy.
    Hedged,
    /// Twice where a queue is expected; the copies know of each other.
    TiedAuto,
    /// Always twice.
    TiedAlways,
}

impl Way {
    const ALL: [Self; 4] = [Self::Plain, Self::Hedged, Self::TiedAuto, Self::TiedAlways];

    fn hedging(self, offered: Offered) -> Result<Hedging> {
        // A copy that is taken back before it runs costs little: what is bounded here is work done twice, by the ties.
        let tied = |tie| HedgeOptions {
            tie,
            budget: Some(offered.budget(1.0, CLIENTS, NODE_COUNT)),
            ..HedgeOptions::default()
        };
        Hedging::of(&match self {
            Self::Plain => HedgeOptions::default(),
            Self::Hedged => adaptive(HEDGED_PERCENT, offered, CLIENTS, NODE_COUNT),
            Self::TiedAuto => tied(TieMode::Auto),
            Self::TiedAlways => tied(TieMode::Always),
        })
    }
}

/// The name of the variant.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Hedged => "hedged",
            Self::TiedAuto => "tied auto",
            Self::TiedAlways => "tied always",
        })
    }
}

impl Case {
    /// The name under which results compare the variants.
    fn workload(has_job: bool) -> &'static str {
        if has_job { "get-with-a-job" } else { "get-idle" }
    }
}

/// How much is measured.
struct Extent {
    rows: u64,
    warm_up: Duration,
    duration: Duration,
    probe: Duration,
}

const FULL: Extent = Extent {
    rows: 100_000,
    warm_up: Duration::from_secs(1),
    duration: Duration::from_secs(20),
    probe: Duration::from_secs(4),
};

const QUICK: Extent = Extent {
    rows: 2_000,
    warm_up: Duration::from_millis(100),
    duration: Duration::from_millis(400),
    probe: Duration::from_millis(200),
};

/// The experiment.
pub(super) struct TiedRequests {
    size: Size,
    extent: &'static Extent,
    seed: u64,
    settings: Settings,
    stage: Option<Stage>,
    folder: PathBuf,
    offered: Option<Offered>,
    /// The percentage of a core that a node has while the job competes with it.
    left_percent: u8,
}

impl TiedRequests {
    pub(super) fn new(options: &Options) -> Self {
        let settings = Settings {
            base: options.data.clone(),
            further_config: "[faults]\nallowed = true\n".to_owned(),
            ..Settings::of_binary(options.binary.clone(), NODE_COUNT)
        };
        Self {
            size: options.size,
            extent: match options.size {
                Size::Quick => &QUICK,
                Size::Full => &FULL,
            },
            seed: options.seed,
            settings,
            stage: None,
            folder: PathBuf::new(),
            offered: None,
            left_percent: 25,
        }
    }

    fn workload(&self, has_job: bool) -> Workload {
        let mut workload = Workload::named("read-only").expect("it comes with the generator");
        workload.name = Case::workload(has_job).to_owned();
        workload.description =
            "Rows of 1000 bytes, drawn evenly, read at any replica, at most a second old.".to_owned();
        workload.table.rows = self.extent.rows;
        workload
    }

    /// The closed loop that finds the rate.
    fn closed(&self) -> Load {
        Load {
            reading: Reading { level: Some(BOUNDED), mode: ReplicaRead::LeaderAndFollower, ..Reading::default() },
            connections: Some(CLIENTS),
            duration: self.extent.probe,
            warm_up: self.extent.warm_up / 4,
            table: "tied".to_owned(),
            ..Load::new(self.workload(false), Arrivals::clients(WIDTH))
        }
    }

    fn load(&self, case: Case, offered: Offered) -> Result<Load> {
        let load = Load {
            workload: self.workload(case.has_job),
            hedging: case.way.hedging(offered)?,
            duration: self.extent.duration,
            warm_up: self.extent.warm_up,
            ..self.closed()
        };
        Ok(offered.apply(load))
    }

    fn plan(&self, seed: u64) -> String {
        let percent = self.left_percent;
        format!(
            "# A competing job: one node after the other has {percent} % of a core for a second.\nname = \"job\"\nseed = {seed}\n\n\
             [[fault]]\nkind = \"share\"\nnodes = \"any\"\nevery = \"1s\"\nlasts = \"1s\"\npercent = {percent}\n"
        )
    }
}

/// What the job leaves a node that computes for `busy_s` of `duration`.
fn left_percent(busy_s: f64, duration: Duration) -> u8 {
    let share = busy_s / duration.as_secs_f64().max(1e-9) * JOB_LEAVES;
    (share * 100.0).round().clamp(1.0, 90.0) as u8
}

impl Experiment for TiedRequests {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what two copies that know of each other bring where requests wait in queues, and what is done twice",
            needs: "2 GiB of memory and 4 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let mut prepare = PREPARE_EXPECTED;
        let groups = [("idle", false), ("job", true)].map(|(name, has_job)| {
            let variant = |way: Way| Turns {
                name: way.to_string(),
                prepare_expected: std::mem::take(&mut prepare),
                measure_expected: self.extent.duration + self.extent.warm_up + self.extent.probe / 4,
                case: Case { way, has_job },
            };
            Group { name: name.to_owned(), variants: Way::ALL.into_iter().map(variant).collect() }
        });
        groups.into()
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        [false, true].map(|has_job| (Case::workload(has_job).to_owned(), self.workload(has_job).text())).into()
    }

    fn fault_plan(&self) -> Option<String> {
        // That of the first repetition; each further one's seed is one more.
        Some(self.plan(self.seed.wrapping_add(1)))
    }

    async fn prepare(&mut self, context: &Context<'_>, _: &Case) -> Result<()> {
        self.folder = context.folder.path().to_owned();
        if self.stage.is_some() {
            return Ok(());
        }
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        let load = Load { seed: context.seed, ..self.closed() };
        stage.write_rows(&load, "the table").await?;
        stage.settle().await?;
        stage.rest().await?;
        let trials = Trials {
            shares: &SHARES_TRIED,
            duration: self.extent.probe,
            ordinary_max: ORDINARY_P999_MAX,
            size: self.size,
        };
        let offered = calibrate(&mut stage, context, &load, Operation::Get, &trials).await?;
        let usual = stage.measure(context, offered.apply(load)).await?;
        let busiest = usual.server_cpu_s().values().copied().fold(0.0, f64::max);
        self.left_percent = left_percent(busiest, usual.duration());
        self.offered = Some(offered);
        self.stage = Some(stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let offered = self.offered.context("the rate is found before the first turn")?;
        let (load, plan) = (self.load(*case, offered)?, Plan::parse(&self.plan(context.seed))?);
        let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
        let name = case.way.to_string();
        let run = if case.has_job {
            stage.run_under(context, name, load, &plan).await?
        } else {
            stage.run(context, name, load).await?
        };
        Ok(vec![run])
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        tables::all(self, runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Offered = Offered { per_s: 30_000.0, share: 0.5 };

    #[test]
    fn every_load_can_be_run() {
        for size in [Size::Full, Size::Quick] {
            let experiment = TiedRequests::new(&Options::of_size(size));
            experiment.closed().check().unwrap();
            for variant in experiment.groups().into_iter().flat_map(|group| group.variants) {
                let load = experiment.load(variant.case, OFFERED).unwrap();
                load.check().unwrap();
                assert_eq!(load.hedging == Hedging::default(), variant.case.way == Way::Plain);
            }
        }
    }

    #[test]
    fn the_job_takes_from_one_node_at_a_time() {
        let experiment = TiedRequests::new(&Options::of_size(Size::Full));
        let plan = Plan::parse(&experiment.plan(3)).unwrap();
        let events = plan.schedule(3, Duration::from_secs(9));
        assert!(events.len() >= 8, "{events:?}");
        assert!(events.windows(2).all(|pair| pair[0].end() <= pair[1].at), "{events:?}");
        assert!(events.iter().any(|event| event.node() != events[0].node()));
    }

    #[test]
    fn the_job_leaves_a_little_more_than_a_node_needs() {
        assert_eq!(left_percent(0.8, Duration::from_secs(8)), 13);
        assert_eq!(left_percent(0.0, Duration::from_secs(8)), 1);
    }
}
