//! What `bench` is told on the command line, as loads.

use super::rates::Rates;
use crate::cluster::{BULK_TIMEOUT, ClusterArguments};
use crate::duration::seconds;
use crate::files::read_text;
use crate::hedging::HedgeArguments;
use crate::reading::remark_on_labels;
use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use hedgerow_bench::{
    Arrivals, Hedging, IN_FLIGHT_MAX_DEFAULT, Load, Reading, Spacing, TABLE_COMMENT, Values, Workload,
};
use hedgerow_client::{Client, Labels, ReadLevel, ReplicaRead};
use hedgerow_report::Folder;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The table that is bench's own whoever made it.
const OWN_TABLE: &str = "bench";

/// How much, how fast, how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchOptions {
    /// The table; created if it does not exist.
    #[arg(long, default_value = OWN_TABLE)]
    table: String,
    /// Partitions of a table that is created [default: the workload's].
    #[arg(long)]
    partitions: Option<u32>,
    /// Rows before the load begins [default: the workload's].
    #[arg(long)]
    rows: Option<u64>,
    /// Bytes of each value [default: the workload's].
    #[arg(long, value_name = "BYTES")]
    value_size: Option<u32>,
    /// Requests per second of an open loop, one run for each: 1000 or 1000,2000,5000 or 1000..10000/5 (five rates)
    /// [default: a closed loop].
    #[arg(long, value_name = "RATES", conflicts_with_all = ["clients", "pipeline", "operations"])]
    rate: Option<Rates>,
    /// How far apart the requests of an open loop are due.
    #[arg(long, value_enum, default_value_t = ArrivalKind::Poisson, requires = "rate")]
    arrivals: ArrivalKind,
    /// Most requests that an open loop keeps in flight; what is due while so many are counts from when it was due.
    #[arg(long, value_name = "COUNT", default_value_t = IN_FLIGHT_MAX_DEFAULT, requires = "rate")]
    in_flight: u32,
    /// Do not sleep for less than so many microseconds before a request of an open loop is due: sends on time where waking up
    /// takes long, at the price of up to a core.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, requires = "rate")]
    spin: u64,
    /// Clients of a closed loop at work at the same time.
    #[arg(long, default_value_t = 64)]
    clients: u32,
    /// Requests that each client of a closed loop keeps in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pipeline: u32,
    /// Connections to each node, shared out among the requests [default: one per client; with --rate 16].
    #[arg(long)]
    connections: Option<u32>,
    /// How fresh reads must be: linearizable, session, bounded=DURATION or eventual [default: as the table says].
    #[arg(long, value_name = "LEVEL")]
    read: Option<ReadLevel>,
    /// Which replicas are asked: leader, follower, leader-and-follower, prefer-leader, closest-replicas, closest-adaptive
    /// or learner.
    #[arg(long, value_name = "MODE", default_value_t)]
    replica_read: ReplicaRead,
    /// Where the clients stand, for the modes that prefer what is near, for example zone=a,region=eu.
    #[arg(long, default_value_t, hide_default_value = true)]
    labels: Labels,
    #[command(flatten)]
    hedging: HedgeArguments,
    /// Processes that generate the load together.
    #[arg(long, default_value_t = 1)]
    processes: u32,
    /// How long to measure, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// Stop a closed loop after so many operations [default: when the time is over].
    #[arg(long)]
    operations: Option<u64>,
    /// How long to run before measuring, in seconds; 0 = not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    warm_up: f64,
    /// The table may be one that bench did not make: it writes rows of its own into it, beside those that are there.
    #[arg(long)]
    into_existing: bool,
    /// Neither create the table nor write the rows that the workload reads.
    #[arg(long)]
    pub(super) no_prepare: bool,
    /// Seed of what is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A server process on this machine, whose CPU time is measured; may be given several times.
    #[arg(long, value_name = "NAME=PID", value_parser = server)]
    server: Vec<(String, u32)>,
    /// Where the folder with the results is made.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
    /// Keep no results, only print them.
    #[arg(long, conflicts_with = "results")]
    no_results: bool,
}

/// How far apart requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArrivalKind {
    /// Equally.
    Constant,
    /// As many clients that know nothing of each other would send.
    Poisson,
}

fn server(text: &str) -> Result<(String, u32), String> {
    let form = || format!("{text:?} is not of the form NAME=PID, for example node1=4711");
    let (name, id) = text.split_once('=').ok_or_else(form)?;
    Ok((name.to_owned(), id.parse().map_err(|_| form())?))
}

impl BenchOptions {
    /// One load for each rate, or a closed loop, each with the name of its variant.
    pub(super) fn loads(&self, workload: Workload, cluster: &ClusterArguments) -> Result<Vec<(String, Load)>> {
        let Ok(warm_up) = Duration::try_from_secs_f64(self.warm_up) else { bail!("--warm-up must not be negative") };
        let hedging = Hedging::of(&self.hedging.options(false))?;
        let (tls, user) = cluster.files()?;
        let load = |(variant, arrivals): (String, Arrivals)| {
            let load = Load {
                reading: Reading {
                    level: self.read,
                    mode: self.replica_read,
                    labels: self.labels.clone(),
                    is_uncounted: false,
                },
                hedging: hedging.clone(),
                duration: self.seconds,
                warm_up,
                connections: self.connections,
                processes: self.processes,
                seed: self.seed,
                operations: self.operations,
                timeout: cluster.timeout.unwrap_or(BULK_TIMEOUT),
                table: self.table.clone(),
                tls: tls.clone(),
                user: user.clone(),
                spin: Duration::from_micros(self.spin),
                server_processes: self.server.iter().cloned().collect(),
                ..Load::new(self.adapted(workload.clone()), arrivals)
            };
            load.check()?;
            Ok((variant, load))
        };
        self.arrivals().into_iter().map(load).collect()
    }

    /// What was asked for and can do nothing.
    pub(super) fn remarks(&self) -> Vec<String> {
        let of_labels = (!self.labels.is_empty()).then(|| remark_on_labels(self.replica_read)).flatten();
        self.hedging.remarks(self.read).into_iter().chain(of_labels).collect()
    }

    /// Fails if the rows would go into a table that somebody has for other things.
    pub(super) async fn check_table(&self, client: &Client) -> Result<()> {
        if self.into_existing || self.table == OWN_TABLE {
            return Ok(());
        }
        let tables = client.list_tables().await.context("looking for the table")?;
        let Some(table) = tables.iter().find(|table| table.name == self.table) else { return Ok(()) };
        ensure!(
            table.options.get("comment").is_some_and(|comment| comment == TABLE_COMMENT),
            "table {} was not made by bench, which would write rows of its own into it: name another table, or say --into-existing",
            self.table
        );
        Ok(())
    }

    fn arrivals(&self) -> Vec<(String, Arrivals)> {
        let Some(rates) = &self.rate else {
            let arrivals = Arrivals::Closed { clients: self.clients, in_flight: self.pipeline };
            return vec![(format!("clients={}", self.clients), arrivals)];
        };
        let spacing = match self.arrivals {
            ArrivalKind::Constant => Spacing::Constant,
            ArrivalKind::Poisson => Spacing::Poisson,
        };
        let open = |rate: &f64| Arrivals::Open { rate: *rate, spacing, in_flight_max: self.in_flight };
        rates.0.iter().map(|rate| (format!("rate={rate}"), open(rate))).collect()
    }

    fn adapted(&self, mut workload: Workload) -> Workload {
        workload.table.partitions = self.partitions.unwrap_or(workload.table.partitions);
        workload.table.rows = self.rows.unwrap_or(workload.table.rows);
        if let Some(size) = self.value_size {
            workload.values = Values::Fixed { size };
        }
        workload
    }

    /// The results folder, unless none is wanted.
    pub(super) fn folder(&self, workload: &str) -> Result<Option<Folder>> {
        if self.no_results {
            return Ok(None);
        }
        Folder::create(&self.results, &format!("bench-{workload}")).map(Some)
    }
}

/// The workload of this name, or in the file of this path.
pub(super) fn read_workload(name: &str) -> Result<Workload> {
    let looks_like_a_path = Path::new(name).extension().is_some_and(|it| it == "toml") || name.contains('/');
    if !looks_like_a_path {
        return Workload::named(name);
    }
    let text = read_text(Path::new(name)).with_context(|| format!("reading {name}"))?;
    Workload::parse(&text).with_context(|| name.to_owned())
}

/// A line of `bench list`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ListedWorkload {
    pub(super) name: String,
    pub(super) description: String,
}

impl ListedWorkload {
    pub(super) fn of(workload: Workload) -> Self {
        Self { name: workload.name, description: workload.description }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use hedgerow_client::{BudgetOptions, Fallback, HedgeOptions, TieMode};

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        options: BenchOptions,
        #[command(flatten)]
        cluster: ClusterArguments,
    }

    fn loads(words: &str) -> Result<Vec<(String, Load)>> {
        let words = Words::try_parse_from(format!("get {words}").split_whitespace())?;
        words.options.loads(Workload::named("get")?, &words.cluster)
    }

    #[test]
    fn without_a_rate_the_loop_is_closed() {
        let loads = loads("--clients 8 --pipeline 16 --connections 2 --value-size 5 --rows 7 --seed 3").unwrap();
        let [(variant, load)] = &loads[..] else { panic!("one load") };
        assert_eq!(variant, "clients=8");
        assert_eq!(load.arrivals, Arrivals::Closed { clients: 8, in_flight: 16 });
        assert_eq!((load.connections, load.workload.table.rows, load.seed), (Some(2), 7, 3));
        assert_eq!(load.workload.values, Values::Fixed { size: 5 });
    }

    #[test]
    fn each_rate_is_an_open_loop_of_its_own() {
        let loads = loads("--rate 1000..3000/3 --arrivals constant --server n1=7").unwrap();
        let variants: Vec<_> = loads.iter().map(|(variant, _)| variant.as_str()).collect();
        assert_eq!(variants, ["rate=1000", "rate=2000", "rate=3000"]);
        assert!(matches!(loads[1].1.arrivals, Arrivals::Open { rate: 2000.0, spacing: Spacing::Constant, .. }));
        assert_eq!(loads[0].1.server_processes["n1"], 7);
    }

    #[test]
    fn reads_can_be_sent_to_any_replica_at_any_level() {
        let loads = loads("--read bounded=2s --replica-read closest-replicas --labels zone=a").unwrap();
        let expected = Reading {
            level: "bounded=2s".parse().ok(),
            mode: ReplicaRead::ClosestReplicas,
            labels: Labels::default().with("zone", "a"),
            is_uncounted: false,
        };
        assert_eq!(loads[0].1.reading, expected);
        let refused = |words: &str| format!("{:#}", super::tests::loads(words).unwrap_err());
        assert!(refused("--read strong").contains("bounded=2s"));
        assert!(refused("--replica-read nearest").contains("closest-replicas"));
        assert!(refused("--labels zone").contains("name=value"));
    }

    #[test]
    fn requests_are_hedged_as_is_said() {
        let words =
            "--hedge 10ms --hedge-writes none --tie=auto --hedge-budget 2%:50 --fallback 10ms:1s --busy-threshold 5ms";
        let expected = HedgeOptions {
            reads: "10ms".parse().unwrap(),
            tie: TieMode::Auto,
            budget: Some(BudgetOptions { ratio: 0.02, burst: Some(50.0) }),
            fallback: Some(Fallback { after: Duration::from_millis(10), bound: Duration::from_secs(1) }),
            busy_threshold: Some(Duration::from_millis(5)),
            ..HedgeOptions::default()
        };
        assert_eq!(loads(words).unwrap()[0].1.hedging, Hedging::of(&expected).unwrap());
        assert_eq!(loads("").unwrap()[0].1.hedging, Hedging::default());
    }

    #[test]
    fn what_belongs_to_the_other_loop_is_refused() {
        assert!(loads("--rate 1000 --clients 3").is_err());
        assert!(loads("--arrivals constant").is_err());
        assert!(loads("--clients 0").is_err());
        assert!(loads("--rate 10 --server n1").is_err());
    }
}
