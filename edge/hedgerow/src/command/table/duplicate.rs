//! `hedgerow table duplicate`: a table's changes are carried to a table of another cluster.

use crate::cluster::ClusterArguments;
use crate::exit::Refused;
use crate::number::with_unit;
use crate::output::{columns, print_result, say};
use anyhow::Result;
use clap::Subcommand;
use hedgerow_client::Client;
use hedgerow_env::os::random_u64;
use hedgerow_placement::duplication::{Duplication, OPTION_PREFIX, State, check_cluster_name, option_name};
use hedgerow_types::journal::Phase;
use hedgerow_wire::message::JournalReply;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a removal is waited for, and how often it is looked at.
const REMOVAL_MAX: Duration = Duration::from_secs(20);
const REMOVAL_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of a page that is asked for to see how far a partition is: its first change is enough.
const PAGE_SIZE: u32 = 1;
/// Partitions that are asked at the same time.
const ASKED_MAX: usize = 64;
/// Sizes that a limit may be written in.
const UNITS: [(&str, u64); 3] = [("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// A table's options by name.
type Options = BTreeMap<String, String>;

/// What to do with duplications.
#[derive(Debug, Subcommand)]
pub(crate) enum DuplicateCommand {
    /// Copy a table to a table of another cluster, and carry there whatever is written from now on. The table there must exist, with keys
    /// of the same kind.
    Add {
        /// The table here.
        name: String,
        /// The other cluster, as `[clusters.CLUSTER]` of the nodes' configuration calls it.
        #[arg(value_name = "CLUSTER")]
        to: String,
        /// The table's name there [default: the same].
        #[arg(long = "as", value_name = "TABLE")]
        table: Option<String>,
        /// What each partition keeps of its changes while they cannot be carried, from 1MiB to 1TiB. Beyond it the table must be copied anew;
        /// writes go on in any case.
        #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
        journal_limit: u64,
    },
    /// Show how far duplications have come.
    List {
        /// The table [default: all].
        name: Option<String>,
    },
    /// Carry nothing for a while. Changes are kept meanwhile, up to the limit.
    Pause {
        /// The table here.
        name: String,
        /// The other cluster.
        #[arg(value_name = "CLUSTER")]
        to: String,
    },
    /// Carry again what was paused.
    Start {
        /// The table here.
        name: String,
        /// The other cluster.
        #[arg(value_name = "CLUSTER")]
        to: String,
        /// Copy the whole table anew. Needed where `list` says `overrun`.
        #[arg(long)]
        copy: bool,
    },
    /// Carry nothing any more. The table there stays as it is.
    Remove {
        /// The table here.
        name: String,
        /// The other cluster.
        #[arg(value_name = "CLUSTER")]
        to: String,
    },
}

fn size(text: &str) -> Result<u64, String> {
    let is_allowed = |bytes: &u64| (1 << 20..=1 << 40).contains(bytes);
    with_unit(text, &UNITS)
        .filter(is_allowed)
        .ok_or_else(|| format!("{text:?} is not a size from 1MiB to 1TiB, such as 256MiB or 2GiB"))
}

/// Runs a command about duplications.
pub(super) async fn run(command: DuplicateCommand, client: &Client, cluster: &ClusterArguments) -> Result<()> {
    let (name, to, duplication, told) = match command {
        DuplicateCommand::List { name } => return list(client, name.as_deref(), cluster).await,
        DuplicateCommand::Add { name, to, table, journal_limit } => {
            check_cluster_name(&to)?;
            let known = option(&options_of(client, &name).await?, &to)?;
            if known.is_some() {
                let why =
                    format!("table {name} is duplicated to {to} already: see `hedgerow table duplicate list {name}`");
                return Err(Refused(why).into());
            }
            let duplication = Duplication {
                journal_bytes: journal_limit,
                ..Duplication::new(table.as_deref().unwrap_or(&name), random_u64() | 1)
            };
            let told = format!(
                "table {name} is to be duplicated to table {} of {to}: `hedgerow table duplicate list {name}` shows how far it is",
                duplication.table
            );
            (name, to, duplication, told)
        }
        DuplicateCommand::Pause { name, to } => {
            let mut duplication = lasting(client, &name, &to).await?;
            duplication.state = State::Paused;
            let told =
                format!("the duplication of table {name} to {to} is paused: its changes are kept, up to the limit");
            (name, to, duplication, told)
        }
        DuplicateCommand::Start { name, to, copy } => {
            let mut duplication = lasting(client, &name, &to).await?;
            let pages = pages(client, &name, duplication.id).await;
            let is_overrun = pages.iter().flatten().any(|page| phase_of(page, &duplication) == Phase::Overrun);
            if is_overrun && !copy {
                let why = format!(
                    "the duplication of table {name} to {to} has missed changes, since its limit was reached: `hedgerow table duplicate start \
                     {name} {to} --copy` copies the table anew"
                );
                return Err(Refused(why).into());
            }
            duplication.state = State::Running;
            duplication.round = duplication.round.saturating_add(u32::from(copy));
            let told = format!(
                "the duplication of table {name} to {to} goes on{}",
                if copy { ", with a new copy" } else { "" }
            );
            (name, to, duplication, told)
        }
        DuplicateCommand::Remove { name, to } => {
            let mut duplication = existing(client, &name, &to).await?;
            duplication.state = State::Removing;
            set(client, &name, &to, &duplication).await?;
            remove(client, &name, &to, duplication.id).await?;
            let told = format!("table {name} is not duplicated to {to} any more");
            return say_done(cluster, (&name, &to), &duplication, &told);
        }
    };
    set(client, &name, &to, &duplication).await?;
    say_done(cluster, (&name, &to), &duplication, &told)
}

fn say_done(cluster: &ClusterArguments, (name, to): (&str, &str), duplication: &Duplication, told: &str) -> Result<()> {
    say(told);
    print_result(
        cluster.output,
        String::new,
        || json!({ "table": name, "cluster": to, "table_there": duplication.table, "state": duplication.state.name() }),
    )
}

async fn set(client: &Client, name: &str, to: &str, duplication: &Duplication) -> Result<()> {
    Ok(client.set_option(name, &option_name(to), &duplication.to_string()).await?)
}

/// What the options of the table say.
async fn options_of(client: &Client, name: &str) -> Result<Options> {
    Ok(client.describe_table(name).await?.options)
}

/// What they say of the duplication to this cluster.
fn option(options: &Options, to: &str) -> Result<Option<Duplication>> {
    Ok(options.get(&option_name(to)).map(|value| value.parse()).transpose()?)
}

async fn existing(client: &Client, name: &str, to: &str) -> Result<Duplication> {
    let found = option(&options_of(client, name).await?, to)?;
    found.ok_or_else(|| Refused(format!("table {name} is not duplicated to {to}")).into())
}

/// One that may be changed.
async fn lasting(client: &Client, name: &str, to: &str) -> Result<Duplication> {
    let found = existing(client, name, to).await?;
    if found.state == State::Removing {
        return Err(Refused(format!("the duplication of table {name} to {to} is being removed")).into());
    }
    Ok(found)
}

/// Waits until a node has seen to it. Where none does, as none has a section for any cluster, this process does it.
async fn remove(client: &Client, name: &str, to: &str, id: u64) -> Result<()> {
    for _ in 0..REMOVAL_MAX.as_millis() / REMOVAL_INTERVAL.as_millis() {
        if option(&options_of(client, name).await?, to)?.is_none_or(|found| found.id != id) {
            return Ok(());
        }
        crate::runtime::sleep(REMOVAL_INTERVAL).await;
    }
    client.open_journals(name).await?.end_everywhere(id).await?;
    Ok(client.set_option(name, &option_name(to), "").await?)
}

/// How far the table's partitions are; `None` for one that does not say it.
async fn pages(client: &Client, name: &str, id: u64) -> Vec<Option<JournalReply>> {
    let Ok(journals) = client.open_journals(name).await else { return vec![None] };
    let partitions: Vec<u32> = (0..journals.partition_count()).collect();
    let mut pages = Vec::new();
    for some in partitions.chunks(ASKED_MAX) {
        let asked = some.iter().map(|partition| {
            let (journals, partition) = (journals.clone(), *partition);
            crate::runtime::spawn(async move { journals.read(partition, id, PAGE_SIZE).await.ok() })
        });
        let asked: Vec<_> = asked.collect();
        for page in asked {
            pages.push(page.await.ok().flatten());
        }
    }
    pages
}

/// Where a partition is in the round that the duplication is in.
fn phase_of(page: &JournalReply, duplication: &Duplication) -> Phase {
    if i64::from(page.round) < i64::from(duplication.round) {
        return Phase::Absent;
    }
    page.known_phase().unwrap_or_default()
}

/// How far a duplication is.
struct Progress {
    table: String,
    cluster: String,
    table_there: String,
    state: String,
    /// Of the partition that is behind most; `None` = not known.
    lag_seconds: Option<u64>,
    entries: u64,
    bytes: u64,
}

impl Progress {
    fn of(table: &str, cluster: &str, duplication: &Duplication, pages: &[Option<JournalReply>]) -> Self {
        let known: Vec<&JournalReply> = pages.iter().flatten().collect();
        let count = |phase| known.iter().filter(|page| phase_of(page, duplication) == phase).count();
        let lag = |page: &JournalReply| match (phase_of(page, duplication), page.entries_left, page.oldest_seconds) {
            (Phase::Following, 0, _) => Some(0),
            (Phase::Following, _, 1..) => Some(page.now_seconds.saturating_sub(page.oldest_seconds)),
            _ => None,
        };
        let lags: Option<Vec<u64>> = known.iter().map(|page| lag(page)).collect();
        Self {
            table: table.to_owned(),
            cluster: cluster.to_owned(),
            table_there: duplication.table.clone(),
            state: state(duplication.state, pages.len(), known.len(), count),
            lag_seconds: lags.filter(|_| known.len() == pages.len()).and_then(|lags| lags.into_iter().max()),
            entries: known.iter().map(|page| page.entries_left).sum(),
            bytes: known.iter().map(|page| page.bytes_left).sum(),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.table.clone(),
            self.cluster.clone(),
            self.table_there.clone(),
            self.state.clone(),
            self.lag_seconds.map_or_else(|| "-".to_owned(), |seconds| seconds.to_string()),
            self.entries.to_string(),
            self.bytes.to_string(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "table": self.table,
            "cluster": self.cluster,
            "table_there": self.table_there,
            "state": self.state,
            "lag_seconds": self.lag_seconds,
            "entries_left": self.entries,
            "bytes_left": self.bytes,
        })
    }
}

/// One word for all partitions, of which the worst counts.
fn state(wanted: State, partitions: usize, known: usize, count: impl Fn(Phase) -> usize) -> String {
    let some = |what: &str, some: usize| format!("{what} {some} of {partitions}");
    if count(Phase::Overrun) > 0 {
        return some("overrun", count(Phase::Overrun));
    }
    match wanted {
        State::Paused | State::Removing => return wanted.name().to_owned(),
        State::Running => {}
    }
    if known < partitions {
        return some("not known of", partitions - known);
    }
    for (phase, what) in [(Phase::Absent, "starting"), (Phase::Copying, "copying")] {
        if count(phase) > 0 {
            return some(what, count(phase));
        }
    }
    "following".to_owned()
}

async fn list(client: &Client, name: Option<&str>, cluster: &ClusterArguments) -> Result<()> {
    let tables = match name {
        Some(name) => vec![(name.to_owned(), options_of(client, name).await?)],
        None => client.list_tables().await?.into_iter().map(|table| (table.name, table.options)).collect(),
    };
    let mut found = Vec::new();
    for (table, options) in tables {
        let clusters = options.keys().filter_map(|option| option.strip_prefix(OPTION_PREFIX));
        for to in clusters {
            let Some(duplication) = option(&options, to)? else { continue };
            let pages = pages(client, &table, duplication.id).await;
            found.push(Progress::of(&table, to, &duplication, &pages));
        }
    }
    let text = || {
        let rows: Vec<_> = found.iter().map(Progress::row).collect();
        columns(&["table", "cluster", "table there", "state", "lag (s)", "entries left", "bytes left"], &rows)
    };
    print_result(cluster.output, text, || Value::Array(found.iter().map(Progress::json).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(phase: Phase, entries_left: u64, (oldest_seconds, now_seconds): (u64, u64)) -> Option<JournalReply> {
        let bytes_left = 10 * entries_left;
        Some(JournalReply {
            phase: phase as i32,
            round: 1,
            entries_left,
            bytes_left,
            oldest_seconds,
            now_seconds,
            ..JournalReply::default()
        })
    }

    #[test]
    fn the_partition_that_is_worst_counts() {
        let of = |state, pages: &[Option<JournalReply>]| {
            let duplication = Duplication { state, ..Duplication::new("there", 1) };
            let progress = Progress::of("t", "west", &duplication, pages);
            (progress.state, progress.lag_seconds, progress.entries, progress.bytes)
        };
        let (quiet, late) = (page(Phase::Following, 0, (0, 100)), page(Phase::Following, 3, (95, 100)));
        let pages = [quiet.clone(), late.clone()];
        assert_eq!(of(State::Running, &pages), ("following".to_owned(), Some(5), 3, 30));
        assert_eq!(of(State::Paused, &pages).0, "paused");
        let copying = page(Phase::Copying, 4, (0, 100));
        let pages = [quiet.clone(), copying.clone(), late.clone()];
        assert_eq!(of(State::Running, &pages), ("copying 1 of 3".to_owned(), None, 7, 70));
        let starting = page(Phase::Absent, 0, (0, 100));
        assert_eq!(of(State::Running, &[starting, copying]).0, "starting 1 of 2");
        assert_eq!(of(State::Running, &[quiet.clone(), None]), ("not known of 1 of 2".to_owned(), None, 0, 0));
        let overrun = page(Phase::Overrun, 9, (0, 100));
        assert_eq!(of(State::Paused, &[quiet, overrun]).0, "overrun 1 of 2");
    }

    #[test]
    fn a_limit_has_a_unit_and_a_range() {
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("2 GiB"), Ok(2 << 30));
        for wrong in ["256", "0MiB", "2TiB", "1.5GiB", "MiB", "99999999999999999999TiB", "1mib"] {
            assert!(size(wrong).unwrap_err().contains("from 1MiB to 1TiB"), "{wrong}");
        }
    }
}
