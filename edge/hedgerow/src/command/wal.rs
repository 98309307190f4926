//! `hedgerow wal`: reads the log of a node from its files, while the node runs or not. Nothing is ever changed.

mod entry;
mod inspect;
mod place;
mod stream;
mod verify;

use crate::exit::Exit;
use crate::output::Output;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use hedgerow_env::Disk;
use hedgerow_types::GroupId;
use hedgerow_wal::{Durability, Event, Inspection, OpenError, inspect_as, inspect_running};
use place::Place;
use std::path::PathBuf;
use stream::{DumpArguments, TailArguments};

/// What is done with a log.
#[derive(Debug, Subcommand)]
pub(crate) enum WalCommand {
    /// Show segments and groups: what is in the log, and which group holds the oldest segment.
    Inspect(InspectArguments),
    /// Read every record and check every checksum: sound, torn tail (normal after a power failure), or damaged, and what follows.
    Verify(VerifyArguments),
    /// Print the entries of the log, one a line, in the order of the log.
    Dump(DumpArguments),
    /// Print the last entries, and those that come, until Ctrl-C.
    Tail(TailArguments),
}

/// Which logs, and how to print.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogArguments {
    /// Data directories of nodes, or directories with a log in them.
    #[arg(value_name = "DIRECTORY", required_unless_present = "config")]
    directories: Vec<PathBuf>,
    /// All data directories of the node with this configuration, a file as `hedgerow serve` has it.
    #[arg(long, value_name = "FILE", conflicts_with = "directories")]
    config: Option<PathBuf>,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Arguments of `wal inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArguments {
    #[command(flatten)]
    logs: LogArguments,
    /// Only this group: its table, by name or number, and its partition; 0.0 is the metadata.
    #[arg(long, value_name = "TABLE.PARTITION")]
    group: Option<String>,
}

/// Arguments of `wal verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyArguments {
    #[command(flatten)]
    logs: LogArguments,
}

/// `hedgerow wal`.
pub(crate) fn run(command: WalCommand) -> Result<Exit> {
    match command {
        WalCommand::Inspect(arguments) => inspect::run(&arguments),
        WalCommand::Verify(arguments) => verify::run(&arguments),
        WalCommand::Dump(arguments) => stream::dump(&arguments),
        WalCommand::Tail(arguments) => stream::tail(&arguments),
    }
}

/// The code for an error that ended a command.
pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
    match error.chain().find_map(|cause| cause.downcast_ref::<OpenError>()) {
        Some(OpenError::Mixed { .. }) => Exit::Refused,
        Some(OpenError::Io { .. } | OpenError::Version { .. }) | None => Exit::Usage,
    }
}

/// A number as the files of segments have it. Logs and clients have such numbers too.
fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// `users.3 (1.3)`, or `1.3` where the table's name is not known.
fn full_name(place: &Place, group: GroupId) -> String {
    match place.groups.table_name(group) {
        Some(name) => format!("{name}.{} ({group})", group.partition),
        None => group.to_string(),
    }
}

/// Looks at a whole log. One that a node writes to may have to be looked at several times.
fn look(
    disk: &dyn Disk,
    place: &Place,
    durability: Durability,
    visit: &mut dyn FnMut(Event<'_>),
) -> Result<Inspection> {
    if !place.is_in_use {
        return Ok(inspect_as(disk, &place.log, durability, visit)?);
    }
    match inspect_running(disk, &place.log, durability, visit)? {
        Some(inspection) => Ok(inspection),
        None => bail!(
            "the log in {} changes faster than it can be read: try again when the node has less to do, or has stopped",
            place.log.display()
        ),
    }
}
