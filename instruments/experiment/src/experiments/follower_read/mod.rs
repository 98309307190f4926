//! `follower-read` (X3): reads at the leader and at a follower, in its place and in another one.
//!
//! One ordered table whose rows are all in one partition with two replicas, so that one node leads all of it, one follows,
//! and each scenario has one node that serves. The clients stand beside the follower; a link of 28 ms lies between them and
//! the leader while a scenario wants it.
//!
//! ```text
//! 1 leader remote                    2 follower local                   3, 4 all in one place
//! clients, follower ~ link ~ leader  clients, follower ~ link ~ leader  clients, follower, leader
//!     read at the leader                 read at the follower               at the leader (3), at the follower (4)
//! ```

mod cases;
mod published;
mod tables;

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::stage::Stage;
use anyhow::{Context as _, Result};
use cases::{Case, FarRead, Scenario};
use hedgerow_bench::{Arrivals, Kind, Load, Reading, Shares, Spread, Workload};
use hedgerow_client::{TableKind, TableSpec};
use hedgerow_faults::Plan;
use hedgerow_report::{FaultMark, Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "follower-read";
/// Nodes of the cluster: the third has a part in the metadata only.
const NODE_COUNT: usize = 3;
const TABLE: &str = "rows";
/// A key behind those of all rows, which begin with a hexadecimal digit: a table has two partitions at least.
const SPLIT_KEY: &[u8] = b"g";
/// Half of a round trip between the two places, and the bandwidth: those of the published test.
const LINK_DELAY: &str = "14ms";
const LINK_BANDWIDTH: &str = "297mbit";
/// What each node may compute while scenarios are compared, percent of a core. The published test had a machine for each
/// server; without shares, a follower here would be paid for by what its leader and the clients compute on the same cores.
const SHARE_PERCENT: u8 = 25;
/// Connections to each node that all clients share.
const CONNECTIONS: u32 = 4;
/// How long a request may take: a scan over a narrow link waits for those before it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long steps should take, for the time left only.
const START_EXPECTED: Duration = Duration::from_secs(5);
const LOADED_PER_S: f64 = 25_000.0;
/// Among a run's further figures: what pictures draw runs over.
const BY_SCAN_ROWS: &str = "by_scan_rows";

/// How much is measured.
struct Size3 {
    rows: u64,
    scan_rows: &'static [u32],
    /// Clients of the scans, each with one request in flight.
    scan_clients: u32,
    /// Clients of the single-row reads with the leader in the same place, and far away.
    near_clients: &'static [u32],
    far_clients: &'static [u32],
    duration: Duration,
    warm_up: Duration,
    /// As much longer are scans of so many rows over the link.
    slow: (u32, u32),
}

const FULL: Size3 = Size3 {
    rows: 1_000_000,
    scan_rows: &[10, 100, 200, 500, 1000, 1500],
    scan_clients: 64,
    near_clients: &[1, 64],
    far_clients: &[1, 16, 64],
    duration: Duration::from_millis(2_500),
    warm_up: Duration::from_millis(500),
    slow: (500, 3),
};

const QUICK: Size3 = Size3 {
    rows: 2_000,
    scan_rows: &[10, 1500],
    scan_clients: 8,
    near_clients: &[1, 16],
    far_clients: &[1, 16],
    duration: Duration::from_millis(400),
    warm_up: Duration::from_millis(100),
    slow: (500, 2),
};

/// The experiment.
pub(super) struct FollowerRead {
    size: &'static Size3,
    rows: u64,
    settings: Settings,
    stage: Option<Stage>,
    /// Who leads and who follows, once that is known.
    replicas: Option<(u16, u16)>,
    /// The present faults.
    conditions: Conditions,
}

/// Which faults a variant runs under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Conditions {
    /// Whether the link lies between the places.
    is_far: bool,
    /// Whether nodes are held to a share of a core.
    is_shared: bool,
}

impl Conditions {
    fn of(case: &Case) -> Self {
        Self { is_far: case.is_far(), is_shared: matches!(case, Case::Scan(_)) }
    }

    /// The plan that makes them, and nothing else.
    fn plan(self, leader: u16, follower: u16) -> Result<Plan> {
        let mut text = PLAN_HEAD.to_owned();
        if self.is_shared {
            text.push_str(&format!("\n[[fault]]\nkind = \"share\"\npercent = {SHARE_PERCENT}\n"));
        }
        if self.is_far {
            text.push_str(&link(leader, follower));
        }
        Ok(Plan::parse(&text)?)
    }
}

impl FollowerRead {
    pub(super) fn new(options: &Options) -> Self {
        let size = match options.size {
            Size::Quick => &QUICK,
            Size::Full => &FULL,
        };
        let settings = Settings {
            base: options.data.clone(),
            further_config: "[faults]\nallowed = true\n".to_owned(),
            ..Settings::of_binary(options.binary.clone(), NODE_COUNT)
        };
        let rows = options.rows.unwrap_or(size.rows);
        Self { size, rows, settings, stage: None, replicas: None, conditions: Conditions::default() }
    }

    fn workload(&self, what: &Asked) -> Workload {
        let mut workload = Workload::named("ycsb-c").expect("it comes with the generator");
        workload.name = what.workload();
        workload.table.kind = Kind::Ordered;
        workload.table.partitions = 2;
        workload.table.rows = self.rows;
        workload.keys = hedgerow_bench::Keys::Uniform {};
        match what {
            Asked::Scan(rows) => {
                workload.description = format!("Scans of {rows} rows, their first ones drawn evenly.");
                workload.operations = Shares { scan: 1, ..Shares::default() };
                workload.scan_rows = Spread { min: *rows, max: *rows };
            }
            Asked::Get { clients, .. } => {
                workload.description = format!("Reads of single rows, drawn evenly, by {clients} clients.");
                workload.operations = Shares { get: 1, ..Shares::default() };
            }
        }
        workload
    }

    fn load(&self, case: &Case, what: &Asked) -> Load {
        let clients = match what {
            Asked::Scan(_) => self.size.scan_clients,
            Asked::Get { clients, .. } => *clients,
        };
        let Size3 { duration, warm_up, slow, .. } = self.size;
        let factor = match what {
            Asked::Scan(rows) if *rows >= slow.0 && *case == Case::Scan(Scenario::LeaderRemote) => slow.1,
            Asked::Scan(_) | Asked::Get { .. } => 1,
        };
        Load {
            reading: Reading { level: Some(case.level()), mode: case.mode(), ..Reading::default() },
            connections: Some(clients.min(CONNECTIONS)),
            duration: *duration * factor,
            warm_up: *warm_up * factor,
            timeout: TIMEOUT,
            table: TABLE.to_owned(),
            ..Load::new(self.workload(what), Arrivals::clients(clients))
        }
    }

    /// What a variant's turn asks for, one thing after the other.
    fn asked(&self, case: &Case) -> Vec<Asked> {
        match case {
            Case::Scan(_) => self.size.scan_rows.iter().map(|rows| Asked::Scan(*rows)).collect(),
            Case::Near(_) => {
                self.size.near_clients.iter().map(|clients| Asked::Get { clients: *clients, place: "near" }).collect()
            }
            Case::Far(_) => {
                self.size.far_clients.iter().map(|clients| Asked::Get { clients: *clients, place: "far" }).collect()
            }
        }
    }

    fn cases(&self) -> [(&'static str, Vec<Case>); 3] {
        [
            ("scans", Scenario::ALL.map(Case::Scan).to_vec()),
            ("near", [Scenario::LeaderLocal, Scenario::FollowerBeside].map(Case::Near).to_vec()),
            ("far", FarRead::all().into_iter().map(Case::Far).collect()),
        ]
    }

    fn turn_expected(&self, case: &Case) -> Duration {
        let loads = self.asked(case).into_iter().map(|what| self.load(case, &what));
        loads.map(|load| load.duration + load.warm_up).sum()
    }
}

/// What one run asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Scan(u32),
    Get { clients: u32, place: &'static str },
}

impl Asked {
    /// The name under which results compare the variants.
    fn workload(self) -> String {
        match self {
            Self::Scan(rows) => format!("scan-{rows}"),
            Self::Get { clients, place } => format!("get-{place}-x{clients}"),
        }
    }
}

/// What every plan begins with.
const PLAN_HEAD: &str = "# Two places, 28 ms round trip and 297 Mbit/s for each node: the leader in one, the follower with the clients in \
     the other. On in the\n# scenarios that have the leader far away. Nodes are held to a share of a core in those that scan.\n\
     name = \"two-places\"\nseed = 1\n";

/// A link between the clients with the follower, and everybody else.
fn link(leader: u16, follower: u16) -> String {
    let others = (1..=NODE_COUNT as u16).filter(|node| *node != follower).map(|node| node.to_string());
    let others: Vec<String> = others.collect();
    format!(
        "\n# Node {leader} leads.\n[[place]]\nname = \"leader\"\nnodes = [{}]\n\n\
         [[place]]\nname = \"clients and follower\"\nnodes = [{follower}]\nclients = [\"*\"]\n\n\
         [[fault]]\nkind = \"link\"\nbetween = [\"leader\", \"clients and follower\"]\n\
         delay = \"{LINK_DELAY}\"\nbandwidth = \"{LINK_BANDWIDTH}\"\n",
        others.join(", ")
    )
}

impl Experiment for FollowerRead {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what reads at a follower cost and bring, with the leader beside it and 28 ms away",
            needs: "6 GiB of memory and 12 GiB of disk (quick: 1 GiB of each); nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let mut prepare = START_EXPECTED + Duration::from_secs_f64(self.rows as f64 / LOADED_PER_S);
        let groups = self.cases().map(|(name, cases)| {
            let variant = |case: Case| Variant {
                name: case.to_string(),
                prepare_expected: std::mem::take(&mut prepare),
                measure_expected: self.turn_expected(&case),
                case,
            };
            Group { name: name.to_owned(), variants: cases.into_iter().map(variant).collect() }
        });
        groups.to_vec()
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        let cases = self.cases().into_iter().flat_map(|(_, cases)| cases);
        let all = cases.flat_map(|case| self.asked(&case));
        all.map(|what| (what.workload(), self.workload(&what).text())).collect()
    }

    fn fault_plan(&self) -> Option<String> {
        let (leader, follower) = self.replicas?;
        let all = Conditions { is_far: true, is_shared: true };
        all.plan(leader, follower).ok().map(|plan| plan.text().to_owned())
    }

    async fn prepare(&mut self, context: &Context<'_>, case: &Case) -> Result<()> {
        if self.stage.is_some() {
            return Ok(());
        }
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        let spec = TableSpec {
            kind: TableKind::Ordered,
            partition_count: 2,
            replica_count: Some(2),
            split_keys: vec![SPLIT_KEY.into()],
            ..TableSpec::default()
        };
        stage.client().await?.create_table(TABLE, &spec).await.context("creating the table")?;
        let what = Asked::Get { clients: 1, place: "near" };
        stage.write_rows(&Load { seed: context.seed, ..self.load(case, &what) }, "the table").await?;
        stage.settle().await?;
        stage.rest().await?;
        let (leader, followers) = stage.replicas_of(TABLE, 0).await?;
        let follower = *followers.first().context("the partition has no follower")?;
        self.replicas = Some((leader, follower));
        self.stage = Some(stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let loads: Vec<_> = self.asked(case).into_iter().map(|what| (what, self.load(case, &what))).collect();
        let (leader, follower) = self.replicas.context("the first variant is prepared before the first turn")?;
        let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
        let conditions = Conditions::of(case);
        if conditions != self.conditions {
            stage.set_faults(&conditions.plan(leader, follower)?).await?;
            self.conditions = conditions;
        }
        let mut runs = Vec::new();
        for (what, load) in loads {
            if !context.is_wanted(&case.to_string(), &load.workload.name) {
                continue;
            }
            let before = stage.read_counts().await?;
            let mut run = stage.run(context, case.to_string(), load).await?;
            before.tell(stage.read_counts().await?, &mut run);
            if let Asked::Scan(rows) = what {
                run.extra.insert(BY_SCAN_ROWS.to_owned(), f64::from(rows));
            }
            if case.is_far() {
                run.faults.push(FaultMark { label: "link".to_owned(), begin_s: 0.0, end_s: run.duration_s });
            }
            runs.push(run);
        }
        Ok(runs)
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        tables::all(self.size, runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_client::ReadLevel;
    use hedgerow_faults::switches;

    fn experiment(size: Size) -> FollowerRead {
        FollowerRead::new(&Options::of_size(size))
    }

    #[test]
    fn the_link_lies_between_the_clients_with_the_follower_and_the_leader() {
        let plan = Conditions { is_far: true, is_shared: true }.plan(3, 1).unwrap();
        let events = plan.schedule(3, Duration::from_secs(60));
        let of = |node| switches(&plan, node, events.iter());
        assert_eq!(of(3).links[0].nodes, [1]);
        assert_eq!(of(3).links[0].outgoing.delay_us, 14_000);
        assert_eq!(of(3).links[0].incoming.bytes_per_second, Some(37_125_000));
        assert_eq!(of(1).links[0].nodes, [2, 3]);
        assert!(of(1).client_link("127.0.0.1".parse().unwrap()).is_none());
        assert_eq!(of(2).cpu_percent, Some(SHARE_PERCENT));
        let none = Conditions::default().plan(3, 1).unwrap();
        assert!(none.schedule(3, Duration::from_secs(60)).is_empty());
    }

    #[test]
    fn every_load_can_be_run() {
        for size in [Size::Full, Size::Quick] {
            let experiment = experiment(size);
            for case in experiment.cases().into_iter().flat_map(|(_, cases)| cases) {
                for what in experiment.asked(&case) {
                    experiment.load(&case, &what).check().unwrap();
                }
            }
            assert_eq!(
                experiment.workloads().len(),
                experiment.size.scan_rows.len() + 2 + experiment.size.far_clients.len()
            );
        }
    }

    #[test]
    fn the_full_experiment_is_planned_for_less_than_twelve_minutes() {
        let groups = experiment(Size::Full).groups();
        let expected: Duration = groups.iter().map(|group| group.expected(3)).sum();
        assert!(expected < Duration::from_secs(680), "{expected:?}");
    }

    #[test]
    fn levels_that_need_no_leader_are_measured_beside_linearizable_ones() {
        let levels: Vec<_> = FarRead::all().into_iter().map(|read| Case::Far(read).level()).collect();
        assert!(levels.contains(&ReadLevel::Session) && levels.contains(&ReadLevel::Eventual));
    }
}
