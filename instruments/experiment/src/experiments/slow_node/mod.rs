//! `slow-node` (X4): inserts one after the other while one of three nodes sends every packet a quarter of a second late.
//!
//! Each turn has a cluster of its own, so that nothing is known of earlier faults. The fault is switched on when the first
//! insert is sent; what it takes to find the slow node and to move its leaders is part of what is measured. Every node is
//! slow in one variant, and every node leads some of the partitions.
//!
//! An insert adds its number to a row that does not exist: applied twice, it would leave twice the number. Reads of the same
//! table, at a fixed rate and counted from when they are due, go on beside.

mod inserting;
mod tables;

use crate::clock::now;
use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::stage::Stage;
use anyhow::{Context as _, Result, ensure};
use hedgerow_client::{HedgeOptions, Policy, TableSpec};
use hedgerow_faults::Plan;
use hedgerow_report::{FaultMark, Run, Table};
use hedgerow_testkit::Settings;
use inserting::{Counts, Pace};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "slow-node";
/// Nodes of the cluster.
const NODE_COUNT: u16 = 3;
/// Enough that every node leads some.
const PARTITIONS: u32 = 8;
/// How much later everything leaves that the slow node sends.
const LATE: Duration = Duration::from_millis(250);
/// Two further attempts, so long after one another.
const SPECULATION: Policy = Policy::Constant { delay: Duration::from_millis(10), max_executions: 3 };
/// How long a cluster runs before it is measured: nodes judge nobody right after their start.
const AGE_MIN: Duration = Duration::from_secs(4);
/// The one workload.
const WORKLOAD: &str = "insert";
/// How long starting a cluster and making its table should take, for the time left only.
const START_EXPECTED: Duration = Duration::from_secs(6);

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// The number of the slow node, if one is.
    slow: Option<u16>,
    is_speculating: bool,
}

impl Case {
    fn all() -> Vec<Self> {
        let of = |is_speculating| {
            let slow = std::iter::once(None).chain((1..=NODE_COUNT).map(Some));
            slow.map(move |slow| Self { slow, is_speculating })
        };
        [false, true].into_iter().flat_map(of).collect()
    }

    /// The same without a slow node.
    fn healthy(self) -> Self {
        Self { slow: None, ..self }
    }

    fn options(self) -> HedgeOptions {
        let policy = if self.is_speculating { SPECULATION } else { Policy::default() };
        HedgeOptions { writes: policy.clone(), reads: policy, ..HedgeOptions::default() }
    }

    fn faults(self) -> Option<Plan> {
        let node = self.slow?;
        Some(Plan::parse(&fault_plan(node)).expect("a test parses it"))
    }
}

/// The name of the variant.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slow {
            None => f.write_str("healthy")?,
            Some(node) => write!(f, "node {node} slow")?,
        }
        f.write_str(if self.is_speculating { ", 2 extra attempts" } else { "" })
    }
}

fn fault_plan(node: u16) -> String {
    format!(
        "# One slow machine: every packet that it sends leaves later.\nname = \"slow-{node}\"\nseed = 1\n\n[[fault]]\n\
         kind = \"slow\"\nnodes = [{node}]\ndelay = \"{}ms\"\n",
        LATE.as_millis()
    )
}

/// The experiment.
pub(super) struct SlowNode {
    size: Size,
    settings: Settings,
}

impl SlowNode {
    pub(super) fn new(options: &Options) -> Self {
        let settings = Settings {
            base: options.data.clone(),
            further_config: "[faults]\nallowed = true\n".to_owned(),
            ..Settings::of_binary(options.binary.clone(), usize::from(NODE_COUNT))
        };
        Self { size: options.size, settings }
    }

    fn pace(&self) -> Pace {
        match self.size {
            Size::Quick => Pace { inserts: 500, rows: 200, reads_per_s: 100.0 },
            Size::Full => Pace { inserts: 10_000, rows: 1_000, reads_per_s: 200.0 },
        }
    }

    /// In a quick run the first variants, which take a third of a minute.
    fn cases(&self) -> Vec<Case> {
        let is_quick = self.size == Size::Quick;
        Case::all().into_iter().filter(|case| !is_quick || case.slow.is_none_or(|node| node == 1)).collect()
    }
}

impl Experiment for SlowNode {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what one slow node costs inserts that are sent one after the other, whichever node it is",
            needs: "1 GiB of memory and 2 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let inserting = Duration::from_millis(self.pace().inserts / 2);
        let variant = |case: Case| Variant {
            name: case.to_string(),
            prepare_expected: Duration::ZERO,
            measure_expected: START_EXPECTED + inserting + Duration::from_secs(u64::from(case.slow.is_some())),
            case,
        };
        vec![Group { name: "all".to_owned(), variants: self.cases().into_iter().map(variant).collect() }]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        let Pace { inserts, rows, reads_per_s } = self.pace();
        let text = format!(
            "# Not a file for `hedgerow bench`: {inserts} inserts (incr of a row that does not exist), each sent when the one\n\
             # before was answered; beside them {reads_per_s} gets per second of {rows} other rows of the table.\n\
             # {PARTITIONS} partitions, three replicas, reads and writes at the leader.\n"
        );
        BTreeMap::from([(WORKLOAD.to_owned(), text)])
    }

    fn fault_plan(&self) -> Option<String> {
        Some((1..=NODE_COUNT).map(fault_plan).collect::<Vec<_>>().join("\n# Or, in another variant:\n"))
    }

    async fn prepare(&mut self, _: &Context<'_>, _: &Case) -> Result<()> {
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        let started = now();
        let spec = TableSpec { partition_count: PARTITIONS, replica_count: Some(3), ..TableSpec::default() };
        stage.client().await?.create_table(inserting::TABLE, &spec).await.context("creating the table")?;
        stage.settle().await?;
        let pace = self.pace();
        let begin_s = context.elapsed_s();
        let slow = case.slow.map(|node| stage.addresses()[usize::from(node) - 1].clone());
        let measured =
            inserting::measure(&stage, case.options(), case.faults(), slow, &pace, started + AGE_MIN).await?;
        let mut run = measured.run(context, case.to_string(), begin_s)?;
        if let Some(node) = case.slow {
            run.faults = vec![FaultMark { label: format!("slow node {node}"), begin_s: 0.0, end_s: run.duration_s }];
        }
        ensure!(measured.counts == Counts::exactly_once(&pace), "{case}: {:?}", measured.counts);
        stage.stop()?;
        Ok(vec![run])
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        tables::all(&self.cases(), &self.pace(), runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_slow_once_with_and_without_extra_attempts() {
        let names: Vec<_> = Case::all().iter().map(Case::to_string).collect();
        assert_eq!(names[..2], ["healthy", "node 1 slow"]);
        assert_eq!((names.len(), names[7].as_str()), (8, "node 3 slow, 2 extra attempts"));
        for case in Case::all() {
            assert_eq!(case.faults().is_some(), case.slow.is_some());
        }
        assert_eq!(SlowNode::new(&Options::of_size(Size::Quick)).cases().len(), 4);
    }
}
