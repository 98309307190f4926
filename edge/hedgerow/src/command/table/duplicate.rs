//! `hedgerow table duplicate`: a table's changes are carried to a table of another cluster.

mod progress;

use crate::cluster::ClusterArguments;
use crate::command::carrying;
use crate::exit::{Exit, Refused};
use crate::number::with_unit;
use crate::output::{print_result, say};
use anyhow::Result;
use clap::Subcommand;
use hedgerow_client::Client;
use hedgerow_env::os::random_u64;
use hedgerow_placement::duplication::{Duplication, State, check_cluster_name, option_name};
use hedgerow_types::journal::Phase;
use progress::{pages, phase_of};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a removal is waited for, and how often it is looked at.
const REMOVAL_MAX: Duration = Duration::from_secs(20);
const REMOVAL_INTERVAL: Duration = Duration::from_millis(500);
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
    /// Show how far duplications have come, and why one does not go on. Ends with code 4 if one does not.
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
pub(super) async fn run(command: DuplicateCommand, client: &Client, cluster: &ClusterArguments) -> Result<Exit> {
    let (name, to, duplication, told) = match command {
        DuplicateCommand::List { name } => return progress::list(client, name.as_deref(), cluster).await,
        DuplicateCommand::Add { name, to, table, journal_limit } => {
            check_cluster_name(&to)?;
            let known = option(&options_of(client, &name).await?, &to)?;
            if known.is_some() {
                let why =
                    format!("table {name} is duplicated to {to} already: see `hedgerow table duplicate list {name}`");
                return Err(Refused(why).into());
            }
            check_naming(client, &to, cluster).await?;
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
            let how = match (copy, duplication.state) {
                (true, _) => "begins anew, with a copy of all rows",
                (false, State::Running) => "was running already, and does",
                (false, _) => "goes on",
            };
            let told = format!("the duplication of table {name} to {to} {how}");
            duplication.state = State::Running;
            duplication.round = duplication.round.saturating_add(u32::from(copy));
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

fn say_done(
    cluster: &ClusterArguments,
    (name, to): (&str, &str),
    duplication: &Duplication,
    told: &str,
) -> Result<Exit> {
    say(told);
    print_result(
        cluster.output,
        String::new,
        || json!({ "table": name, "cluster": to, "table_there": duplication.table, "state": duplication.state.name() }),
    )?;
    Ok(Exit::Done)
}

/// An error where no node has a section for the cluster; a word about nodes that have none.
async fn check_naming(client: &Client, to: &str, cluster: &ClusterArguments) -> Result<()> {
    let (naming, others) = carrying::ask(client, &cluster.access()?).await?.by_naming(to);
    if others.is_empty() {
        return Ok(());
    }
    if naming.is_empty() {
        let why = format!(
            "no node that answers has a section [clusters.{to}] in its configuration: all nodes need one, and a restart after it"
        );
        return Err(Refused(why).into());
    }
    let others: Vec<String> = others.iter().map(u16::to_string).collect();
    say(&format!(
        "without [clusters.{to}] in their configuration, these nodes will not carry what they lead: {}",
        others.join(", ")
    ));
    Ok(())
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
    say(&format!("waiting until all partitions of table {name} know that they carry nothing to {to} any more"));
    for _ in 0..REMOVAL_MAX.as_millis() / REMOVAL_INTERVAL.as_millis() {
        if option(&options_of(client, name).await?, to)?.is_none_or(|found| found.id != id) {
            return Ok(());
        }
        crate::runtime::sleep(REMOVAL_INTERVAL).await;
    }
    client.open_journals(name).await?.end_everywhere(id).await?;
    Ok(client.set_option(name, &option_name(to), "").await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_unit_and_a_range() {
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("2 GiB"), Ok(2 << 30));
        for wrong in ["256", "0MiB", "2TiB", "1.5GiB", "MiB", "99999999999999999999TiB", "1mib"] {
            assert!(size(wrong).unwrap_err().contains("from 1MiB to 1TiB"), "{wrong}");
        }
    }
}
