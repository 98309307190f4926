//! `repair`: how long a node takes until it has everything again, after its disk was wiped and after it was away, while
//! clients write into the same partitions and while nobody does.
//!
//! The load begins before the node comes back and ends when its replicas are voters that have all of the log up to what was
//! committed when it came back; those of a wiped disk are new ones. Latencies are not shown: on a machine that carries the
//! whole cluster and the generator they say more of the machine.

use crate::clock::now;
use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::stage::Stage;
use crate::summary::{Spread, or_na, times};
use anyhow::{Context as _, Result, ensure};
use hedgerow_bench::{Arrivals, Label, Load, Spacing, Workload};
use hedgerow_client::Client;
use hedgerow_report::{FaultMark, Run, Table};
use hedgerow_testkit::Settings;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use tokio::sync::oneshot;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "repair";
const NODE_COUNT: usize = 3;
/// The node that loses its data or is away.
const VICTIM: usize = 3;
/// Two, so that each is large and both are on every node.
const PARTITIONS: u32 = 2;
/// Reads beside a repair without load: they show that the cluster serves, and cost nothing.
const GETS_PER_S: f64 = 100.0;
/// How long the load runs before anything happens.
const LEAD: Duration = Duration::from_secs(2);
/// A repair that takes longer does not end.
const WHOLE_MAX: Duration = Duration::from_secs(1_800);
/// Between two looks at the replicas.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Requests in flight at most: a cluster that stalls for a moment must not stop the load.
const IN_FLIGHT_MAX: u32 = 4_096;
/// A repair under load may take so many times as long as one without.
const RATIO_MAX: f64 = 2.5;

/// Names of further figures.
mod figure {
    pub(super) const WHOLE: &str = "whole_s";
    pub(super) const SENT: &str = "checkpoint_mib";
}

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// The disk is wiped, and nobody writes.
    Wiped,
    /// The disk is wiped while clients write.
    WipedUnderLoad,
    /// The node is killed and comes back later while clients write.
    AwayUnderLoad,
}

impl Case {
    const ALL: [Self; 3] = [Self::Wiped, Self::WipedUnderLoad, Self::AwayUnderLoad];

    fn is_wiped(self) -> bool {
        self != Self::AwayUnderLoad
    }
}

/// The name of the variant.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wiped => "wiped, no load",
            Self::WipedUnderLoad => "wiped under load",
            Self::AwayUnderLoad => "away under load",
        })
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
struct Pace {
    rows: u64,
    puts_per_s: f64,
    away: Duration,
    /// How long one turn should take, for the time left only.
    turn_expected: Duration,
    prepare_expected: Duration,
}

/// The experiment.
pub(super) struct Repair {
    pace: Pace,
    settings: Settings,
    stage: Option<Stage>,
}

impl Repair {
    pub(super) fn new(options: &Options) -> Self {
        let seconds = Duration::from_secs;
        let pace = match options.size {
            Size::Quick => Pace {
                rows: 20_000,
                puts_per_s: 500.0,
                away: seconds(3),
                turn_expected: seconds(10),
                prepare_expected: seconds(8),
            },
            Size::Full => Pace {
                rows: 5_000_000,
                puts_per_s: 10_000.0,
                away: seconds(30),
                turn_expected: seconds(180),
                prepare_expected: seconds(400),
            },
        };
        let pace = Pace { rows: options.rows.unwrap_or(pace.rows), ..pace };
        let settings =
            Settings { base: options.data.clone(), ..Settings::of_binary(options.binary.clone(), NODE_COUNT) };
        Self { pace, settings, stage: None }
    }

    fn workload(&self, case: Case) -> Workload {
        let name = if case == Case::Wiped { "get" } else { "put" };
        let mut workload = Workload::named(name).expect("put and get come with the generator");
        workload.table.rows = self.pace.rows;
        workload.table.partitions = PARTITIONS;
        workload
    }

    fn load(&self, case: Case) -> Load {
        let rate = if case == Case::Wiped { GETS_PER_S } else { self.pace.puts_per_s };
        let arrivals = Arrivals::Open { rate, spacing: Spacing::Poisson, in_flight_max: IN_FLIGHT_MAX };
        Load { duration: WHOLE_MAX, ..Load::new(self.workload(case), arrivals) }
    }
}

impl Experiment for Repair {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "how long until a node that was wiped, or away, has everything again while clients write",
            needs: "4 GiB of memory and 60 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let variant = |case: Case| Variant {
            name: case.to_string(),
            prepare_expected: if case == Case::Wiped { self.pace.prepare_expected } else { Duration::ZERO },
            measure_expected: self.pace.turn_expected + if case.is_wiped() { Duration::ZERO } else { self.pace.away },
            case,
        };
        vec![Group { name: "all".to_owned(), variants: Case::ALL.map(variant).into() }]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        [Case::Wiped, Case::WipedUnderLoad]
            .map(|case| self.workload(case))
            .map(|workload| (workload.name.clone(), workload.text()))
            .into()
    }

    async fn prepare(&mut self, context: &Context<'_>, _: &Case) -> Result<()> {
        if self.stage.is_some() {
            return Ok(());
        }
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        let load = Load { seed: context.seed, ..self.load(Case::WipedUnderLoad) };
        stage.write_rows(&load, "the table").await?;
        stage.settle().await?;
        self.stage = Some(stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let (load, away) = (Load { seed: context.seed, ..self.load(*case) }, self.pace.away);
        let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
        stage.rest().await?;
        let begin_s = context.elapsed_s() + load.warm_up.as_secs_f64();
        let addresses = stage.addresses();
        let (whole, is_whole) = oneshot::channel::<()>();
        let stop = async {
            // An error ends the load as well.
            let _ = is_whole.await;
        };
        let repairing = async {
            let repaired = repair(stage, *case, &load.table, away).await;
            drop(whole);
            repaired
        };
        let (measured, repaired) = tokio::join!(hedgerow_bench::run(&addresses, &load, stop, |_| ()), repairing);
        let repaired = repaired.with_context(|| format!("{case}; the nodes printed:\n{}", stage.output()))?;
        let measured = measured.with_context(|| format!("{case}; the nodes printed:\n{}", stage.output()))?;
        let name = load.workload.name;
        let label = Label { variant: case.to_string(), repetition: context.repetition, workload: name, begin_s };
        let mut run = measured.into_run(label, Some(context.folder))?;
        // Whoever is late with requests changes their latency, which is not what this is about.
        run.void = None;
        run.extra.insert(figure::WHOLE.to_owned(), repaired.took.as_secs_f64());
        run.extra.insert(figure::SENT.to_owned(), repaired.checkpoint_bytes as f64 / f64::from(1 << 20));
        let back_s = run.duration_s - repaired.took.as_secs_f64();
        run.faults = vec![FaultMark { label: "repair".to_owned(), begin_s: back_s.max(0.0), end_s: run.duration_s }];
        Ok(vec![run])
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        vec![table(&self.pace, runs)]
    }
}

/// What became of a node.
struct Repaired {
    /// From the start of its process until it has everything.
    took: Duration,
    /// What the looks saw of checkpoints on their way to it.
    checkpoint_bytes: u64,
}

/// Kills the node and has it come back.
async fn repair(stage: &mut Stage, case: Case, table: &str, away: Duration) -> Result<Repaired> {
    tokio::time::sleep(LEAD).await;
    stage.kill(VICTIM)?;
    if case.is_wiped() {
        stage.wipe(VICTIM)?;
    } else {
        tokio::time::sleep(away).await;
    }
    // Another node: the client must not wait for one that starts.
    let client = Client::connect(&stage.addresses()[..VICTIM - 1]).await.context("connecting to the others")?;
    let waited_since = now();
    let before = loop {
        let look = Look::at(&client, table).await?;
        // Where the node led, somebody else has to lead first.
        if !look.commits.is_empty() && look.commits.iter().all(|commit| *commit > 0) {
            break look;
        }
        ensure!(now() - waited_since < WHOLE_MAX, "the other nodes have no leader: {look:?}");
        tokio::time::sleep(LOOK_INTERVAL).await;
    };
    let began = now();
    stage.spawn(VICTIM)?;
    let mut checkpoints = BTreeMap::new();
    loop {
        let look = Look::at(&client, table).await?;
        for (replica, bytes) in &look.sent {
            let most: &mut u64 = checkpoints.entry(replica.clone()).or_default();
            *most = (*most).max(*bytes);
        }
        if look.is_whole(&before, case.is_wiped()) {
            return Ok(Repaired { took: now() - began, checkpoint_bytes: checkpoints.values().sum() });
        }
        ensure!(now() - began < WHOLE_MAX, "node {VICTIM} is not whole after {WHOLE_MAX:?}: {look:?}");
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// What a description of the table says of the node's replicas.
#[derive(Debug, Default)]
struct Look {
    /// By partition: what is committed.
    commits: Vec<u64>,
    /// By partition: the name of the node's replica, and how far it has the log, if it is a voter that is well.
    replicas: Vec<Option<(String, u64)>>,
    /// Bytes of checkpoints that were sent to it, by replica.
    sent: BTreeMap<String, u64>,
}

impl Look {
    async fn at(client: &Client, table: &str) -> Result<Self> {
        let text = client.describe_table_json(table).await?;
        Ok(Self::of(&serde_json::from_str(&text).context("the description is no JSON")?))
    }

    fn of(described: &Value) -> Self {
        let mut look = Self::default();
        for partition in described["partitions"].as_array().map_or(&[][..], Vec::as_slice) {
            look.commits.push(partition["commit"].as_u64().unwrap_or_default());
            let replicas = partition["replicas"].as_array().map_or(&[][..], Vec::as_slice);
            let mut voter = None;
            for replica in replicas.iter().filter(|replica| replica["node"] == VICTIM) {
                let name = replica["replica"].as_str().unwrap_or_default().to_owned();
                if let Some(bytes) = replica["transfer"]["bytes_done"].as_u64() {
                    look.sent.insert(name.clone(), bytes);
                }
                if replica["role"] == "voter" && replica["state"] == "ok" {
                    voter = replica["matched"].as_u64().map(|matched| (name, matched));
                }
            }
            look.replicas.push(voter);
        }
        look
    }

    /// Whether the node has everything that was committed `before` it came back; if it was wiped, in replicas that are new.
    fn is_whole(&self, before: &Self, is_wiped: bool) -> bool {
        let old: BTreeSet<&str> = before.replicas.iter().flatten().map(|(name, _)| name.as_str()).collect();
        let has_all = |(replica, commit): (&Option<(String, u64)>, &u64)| {
            replica.as_ref().is_some_and(|(name, matched)| {
                *commit > 0 && matched >= commit && !(is_wiped && old.contains(name.as_str()))
            })
        };
        self.replicas.len() == before.commits.len() && self.replicas.iter().zip(&before.commits).all(has_all)
    }
}

fn table(pace: &Pace, runs: &[Run]) -> Table {
    let of = |case: Case, figure: fn(&Run) -> Option<f64>| {
        let own: Vec<_> = runs.iter().filter(|run| run.variant == case.to_string()).collect();
        Spread::of_runs(&own, figure)
    };
    let whole = |run: &Run| run.extra.get(figure::WHOLE).copied();
    let sent = |run: &Run| run.extra.get(figure::SENT).copied();
    let row = |case: Case| {
        let took = of(case, whole)?;
        let ratio = of(Case::Wiped, whole).and_then(|base| took.ratio(base));
        let target = match case {
            Case::Wiped => "none".to_owned(),
            Case::WipedUnderLoad => {
                let verdict = ratio.map(|ratio| if ratio <= RATIO_MAX { "met" } else { "MISSED" });
                format!("{RATIO_MAX} times the time without load: {}", verdict.unwrap_or("unknown"))
            }
            Case::AwayUnderLoad => {
                let is_met = of(case, sent).is_some_and(|sent| sent.max == 0.0);
                format!("from the log, no checkpoint: {}", if is_met { "met" } else { "MISSED" })
            }
        };
        let per_s = of(case, |run| Some(run.achieved_per_s));
        let cells = [or_na(Some(took)), times(ratio), or_na(of(case, sent)), or_na(per_s), target];
        Some(std::iter::once(case.to_string()).chain(cells).collect())
    };
    let columns = ["variant", "whole after s", "times no load", "checkpoint MiB", "requests per second", "target"];
    let notes = vec![format!(
        "{} rows of 1000 bytes in {PARTITIONS} partitions on {NODE_COUNT} nodes. Whole: from the start of node {VICTIM}'s process \
         until its replicas vote and have what was committed when it started. Under load: {} puts per second into the same \
         partitions; without: {GETS_PER_S} gets per second. Away: killed, and started {} s later. Median (min-max) of the \
         repetitions.",
        pace.rows,
        pace.puts_per_s,
        pace.away.as_secs(),
    )];
    let title = "A node that comes back".to_owned();
    Table {
        title,
        columns: columns.map(str::to_owned).to_vec(),
        rows: Case::ALL.into_iter().filter_map(row).collect(),
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn described(replica: &Value) -> Look {
        let other = json!({ "node": 1, "replica": "r1@n1", "role": "voter", "state": "ok", "matched": 90 });
        Look::of(&json!({ "partitions": [{ "commit": 80, "replicas": [other, replica] }] }))
    }

    fn replica(name: &str, role: &str, state: &str, matched: u64) -> Value {
        json!({ "node": VICTIM, "replica": name, "role": role, "state": state, "matched": matched })
    }

    #[test]
    fn a_node_is_whole_when_it_votes_and_has_what_was_committed() {
        let before = described(&replica("r3@n3", "voter", "ok", 80));
        for (now, if_away, if_wiped) in [
            (replica("r3@n3", "voter", "ok", 80), true, false),
            (replica("r3@n3", "voter", "ok", 79), false, false),
            (replica("r3@n3", "voter", "down", 80), false, false),
            (replica("r4@n3", "joining", "ok", 80), false, false),
            (replica("r4@n3", "voter", "learning", 80), false, false),
            (replica("r4@n3", "voter", "ok", 81), true, true),
        ] {
            let look = described(&now);
            assert_eq!((look.is_whole(&before, false), look.is_whole(&before, true)), (if_away, if_wiped), "{now}");
        }
        assert!(!described(&json!({ "node": 2 })).is_whole(&before, false));
        assert!(!Look::default().is_whole(&before, false));
    }

    fn run(case: Case, whole_s: f64, sent: f64) -> Run {
        let extra = [(figure::WHOLE.to_owned(), whole_s), (figure::SENT.to_owned(), sent)].into();
        Run { variant: case.to_string(), achieved_per_s: 100.0, extra, ..Run::default() }
    }

    #[test]
    fn targets_are_judged_against_the_repair_without_load() {
        let pace = Repair::new(&Options::of_size(Size::Quick)).pace;
        let of = |under_load, sent| {
            let runs = [
                run(Case::Wiped, 10.0, 50.0),
                run(Case::WipedUnderLoad, under_load, 50.0),
                run(Case::AwayUnderLoad, 3.0, sent),
            ];
            table(&pace, &runs).rows.into_iter().map(|row| row[5].clone()).collect::<Vec<_>>()
        };
        let met = ["none", "2.5 times the time without load: met", "from the log, no checkpoint: met"];
        assert_eq!(of(25.0, 0.0), met);
        let missed = ["none", "2.5 times the time without load: MISSED", "from the log, no checkpoint: MISSED"];
        assert_eq!(of(26.0, 1.0), missed);
    }
}
