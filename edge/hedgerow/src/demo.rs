//! `hedgerow demo`: a cluster of three processes and real data; a node killed under load, then one that stalls, with hedging
//! off and on; and every row checked at the end.

mod data;
mod load;
mod stall;

use crate::exit::Exit;
use crate::{output, runtime};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use hedgerow_client::{Client, ClientOptions, TableSpec};
use hedgerow_testkit::{Cluster, Settings};
use load::{MixedLoad, Phase};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// The table of real records.
const PACKAGES: &str = "packages";
/// The table of generated rows.
const ROWS: &str = "rows";
/// The node that is killed; node 1 leads the metadata at first, so that both kinds of failure are seen.
const VICTIM: usize = 1;
/// Nodes of the cluster.
const NODE_COUNT: usize = 3;
/// Time that replicas get to catch up and to agree.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);

/// Arguments of `hedgerow demo`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DemoArguments {
    /// Generated rows to load.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Seconds of load in each phase: before the kill, without the node, and after its return.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Seconds of each half of the second act, in which a node stalls: hedging off, then on; 0 leaves the act out.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=3600))]
    stall_seconds: u64,
    /// Where the folder with the second act's picture is made.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
    /// A text file to load beside the generated rows, one record a line. By default the machine's Debian package
    /// database, or, where there is none, the list of services.
    #[arg(long)]
    file: Option<PathBuf>,
}

/// Runs the demonstration; fails if anything acknowledged is missing or replicas differ.
pub(crate) fn run(arguments: DemoArguments) -> Result<Exit> {
    runtime::block_on(async move {
        say("starting a cluster: three processes of this binary, one data directory each");
        let binary = std::env::current_exe().context("finding this binary")?;
        let mut settings = Settings::of_binary(binary, NODE_COUNT);
        // The demonstration talks; its nodes only when something is wrong, unless somebody wants to hear them.
        settings.log = std::env::var("HEDGEROW_LOG").ok().or(settings.log);
        // For the second act, whose node stalls.
        settings.further_config = "[faults]\nallowed = true\n".to_owned();
        let mut cluster = Cluster::start_with(settings)?;
        say(&format!("the cluster serves at {}", cluster.addresses().join(", ")));
        let result = tokio::select! {
            result = show(&mut cluster, &arguments) => result,
            _ = tokio::signal::ctrl_c() => {
                say("interrupted");
                return Ok(Exit::Partial);
            }
        };
        if result.is_err() {
            output::say(&cluster.output());
        }
        result
    })
}

async fn show(cluster: &mut Cluster, arguments: &DemoArguments) -> Result<Exit> {
    let addresses: Vec<String> = cluster.addresses().into_iter().map(str::to_owned).collect();
    let options = ClientOptions { operation_timeout: Duration::from_secs(5), ..ClientOptions::default() };
    let client = Client::connect_with(&addresses, options).await.context("connecting")?;
    for (name, partition_count) in [(PACKAGES, 4), (ROWS, 16)] {
        let spec = TableSpec { partition_count, ..TableSpec::default() };
        client.create_table(name, &spec).await.with_context(|| format!("creating table {name}"))?;
    }
    let records = data::records(arguments.file.as_deref())?;
    let real = load_records(&client, &records).await?;
    load::generated(&client, ROWS, arguments.rows).await?;
    let sampled = load::read_sample(&client, ROWS, arguments.rows).await?;

    let load = MixedLoad::start(&client, ROWS, arguments.rows).await?;
    let phase = Duration::from_secs(arguments.seconds);
    say(&format!("mixed load, {} clients, half reads and half writes", load::CLIENTS));
    runtime::sleep(phase).await;
    say(&format!("kill -9 of node {VICTIM}"));
    load.enter(Phase::During);
    cluster.kill(VICTIM)?;
    runtime::sleep(phase).await;
    say(&format!("starting node {VICTIM} again"));
    cluster.spawn(VICTIM)?;
    let readiness = cluster.readiness(&[VICTIM])?;
    runtime::blocking(move || readiness.wait()).await??;
    let caught_up = wait_until_caught_up(&client).await?;
    say(&format!("node {VICTIM} has caught up after {:.1} s", caught_up.as_secs_f64()));
    load.enter(Phase::After);
    runtime::sleep(phase).await;
    let outcome = load.stop().await?;
    output::print(&outcome.table())?;

    let second = second_act(&addresses, arguments).await?;

    let written = load::verify_counters(&client, ROWS, &outcome).await?;
    let added = match &second {
        Some(second) => second.verify(&client, ROWS).await?,
        None => 0,
    };
    let packages = verify(&client, PACKAGES).await?;
    let rows = verify(&client, ROWS).await?;
    cluster.stop()?;
    output::print("what was shown:")?;
    let mut lines = vec![
        format!("loaded {real} real records and {} generated rows", arguments.rows),
        format!("read back {sampled} of them by random key: all as written"),
        format!("{} writes and {} reads under load, {} failed", outcome.writes(), outcome.reads(), outcome.failed()),
        format!("every one of {written} acknowledged writes under load is there, none twice"),
    ];
    lines.extend(second.map(|second| {
        format!(
            "a stalling node with hedging off and on, {} requests failed; every one of {added} acknowledged writes is there, \
             none twice",
            second.failed()
        )
    }));
    lines.extend([format!(
        "replicas agree by checksum: {packages} rows of {PACKAGES}, {rows} rows of {ROWS}, on 3 of 3 nodes"
    )]);
    for line in lines {
        output::print(&format!("  - {line}"))?;
    }
    ensure!(packages == real, "{real} records were loaded into {PACKAGES} and {packages} are there");
    Ok(Exit::Done)
}

/// The same load twice while a node stalls, unless it is left out.
async fn second_act(addresses: &[String], arguments: &DemoArguments) -> Result<Option<stall::Outcome>> {
    if arguments.stall_seconds == 0 {
        return Ok(None);
    }
    let setting = stall::Setting {
        addresses,
        table: ROWS,
        rows: arguments.rows,
        duration: Duration::from_secs(arguments.stall_seconds),
        results: &arguments.results,
    };
    let outcome = stall::play(&setting).await?;
    output::print(&outcome.table())?;
    Ok(Some(outcome))
}

pub(crate) fn say(text: &str) {
    output::say(&format!("demo: {text}"));
}

async fn load_records(client: &Client, records: &[data::Record]) -> Result<u64> {
    let table = client.open_table(PACKAGES).await?;
    for record in records {
        table.set(&record.hash_key, &record.sort_key, record.value.clone()).await.context("loading real records")?;
    }
    let distinct: std::collections::BTreeSet<_> = records.iter().map(|it| (&it.hash_key, &it.sort_key)).collect();
    say(&format!("loaded {} real records into {PACKAGES}", distinct.len()));
    Ok(distinct.len() as u64)
}

/// Waits until every replica of every table is up and within reach of its leader; how long that took.
async fn wait_until_caught_up(client: &Client) -> Result<Duration> {
    let start = runtime::now();
    loop {
        let status: Value = serde_json::from_str(&client.status_json().await?)?;
        let tables = status["tables"].as_array().cloned().unwrap_or_default();
        let partitions = tables.iter().flat_map(|table| table["partitions"].as_array().cloned().unwrap_or_default());
        let replicas: Vec<Value> =
            partitions.flat_map(|it| it["replicas"].as_array().cloned().unwrap_or_default()).collect();
        // Under load a replica is always a little behind; a second's worth of writes is not catching up.
        let is_well =
            |replica: &Value| replica["state"] == "ok" && replica["lag"].as_u64().is_some_and(|lag| lag < 5_000);
        if !replicas.is_empty() && replicas.iter().all(is_well) {
            return Ok(start.elapsed());
        }
        ensure!(start.elapsed() < CATCH_UP_MAX, "the replicas have not caught up within {CATCH_UP_MAX:?}: {status}");
        runtime::sleep(Duration::from_millis(200)).await;
    }
}

/// Compares the replicas of `table`; how many rows each holds together.
async fn verify(client: &Client, table: &str) -> Result<u64> {
    let start = runtime::now();
    let argument = serde_json::json!({ "table": table }).to_string();
    loop {
        let answer: Value = serde_json::from_str(&client.admin("checksum", &argument, CATCH_UP_MAX).await?)?;
        let partitions = answer["partitions"].as_array().cloned().unwrap_or_default();
        let mut rows = 0;
        let mut is_settled = !partitions.is_empty();
        for partition in &partitions {
            let replicas = partition["replicas"].as_array().cloned().unwrap_or_default();
            let first = replicas.first().cloned().unwrap_or_default();
            let agrees = |other: &Value| other["checksum"] == first["checksum"] && other["rows"] == first["rows"];
            let is_level = replicas.len() == 3 && replicas.iter().all(|other| other["index"] == first["index"]);
            ensure!(!is_level || replicas.iter().all(agrees), "replicas of {table} differ: {partition}");
            is_settled &= is_level;
            rows += first["rows"].as_u64().unwrap_or(0);
        }
        if is_settled {
            return Ok(rows);
        }
        ensure!(start.elapsed() < CATCH_UP_MAX, "the replicas of {table} do not come to rest: {answer}");
        runtime::sleep(Duration::from_millis(200)).await;
    }
}
