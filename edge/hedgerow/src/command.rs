//! Commands that talk to a cluster, or need none, one file each.

mod carrying;
pub(crate) mod certificate;
pub(crate) mod counters;
mod dump;
pub(crate) mod fault;
mod load;
pub(crate) mod plan;
mod proxy;
mod record;
pub(crate) mod report;
mod rights;
mod status;
mod table;
mod user;
mod verify;
pub(crate) mod wal;

use crate::bench::{self, BenchArguments};
use crate::cluster::ClusterArguments;
use crate::exit::Exit;
use crate::runtime;
use anyhow::Result;
use clap::Subcommand;
use counters::{CountersArguments, SlowArguments};
use dump::DumpArguments;
use fault::FaultCommand;
use load::LoadArguments;
use proxy::ProxyArguments;
use record::{DelArguments, GetArguments, IncrArguments, MultiGetArguments, ScanArguments, SetArguments, TtlArguments};
use rights::{GrantArguments, RevokeArguments, RightsArguments};
use status::StatusArguments;
use table::TableCommand;
use user::UserCommand;
use verify::VerifyArguments;

/// Commands that talk to a cluster.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Create, drop, recall, list, describe tables; set their options.
    Table {
        #[command(subcommand)]
        command: TableCommand,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Print a record's value.
    Get(GetArguments),
    /// Set a record.
    #[command(visible_alias = "put")]
    Set(SetArguments),
    /// Delete a record.
    #[command(visible_alias = "delete")]
    Del(DelArguments),
    /// Add to a record that holds a decimal number, and print the sum.
    Incr(IncrArguments),
    /// Print how long a record has to live.
    Ttl(TtlArguments),
    /// Print the rows of a hash key, of a range of an ordered table, or of a whole table.
    Scan(ScanArguments),
    /// Print several records.
    #[command(visible_alias = "mget")]
    MultiGet(MultiGetArguments),
    /// Load a file of rows into a table.
    Load(LoadArguments),
    /// Write all rows of a table to a file, in a form that load reads.
    Dump(DumpArguments),
    /// Show nodes, tables, partitions, their leaders and how far replicas lag.
    Status(StatusArguments),
    /// Show what each node has counted: reads by level, refusals, questions, queues; since its start and per minute.
    Counters(CountersArguments),
    /// Show which nodes are slow, by the word of each.
    Slow(SlowArguments),
    /// Compare the replicas of a table by checksum.
    Verify(VerifyArguments),
    /// Give rights to a user or a role.
    Grant(GrantArguments),
    /// Take rights from a user or a role.
    Revoke(RevokeArguments),
    /// Give users passwords, change and remove them.
    User {
        #[command(subcommand)]
        command: UserCommand,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Show who has been given what rights, or who you are.
    Rights(RightsArguments),
    /// Make faults: carry a plan out against a running cluster, or show what a plan does.
    Fault {
        #[command(subcommand)]
        command: FaultCommand,
    },
    /// Forward connections to any server, with delay, bandwidth and faults.
    Proxy(ProxyArguments),
    /// Measure throughput and latency.
    Bench(Box<BenchArguments>),
}

/// Runs a command on a runtime of its own.
pub(crate) fn run(command: ClientCommand) -> Result<Exit> {
    runtime::block_on(async move {
        match command {
            ClientCommand::Table { command, cluster } => table::run(command, &cluster).await,
            ClientCommand::Get(arguments) => record::get(arguments).await,
            ClientCommand::Set(arguments) => record::set(arguments).await,
            ClientCommand::Del(arguments) => record::del(arguments).await,
            ClientCommand::Incr(arguments) => record::incr(arguments).await,
            ClientCommand::Ttl(arguments) => record::ttl(arguments).await,
            ClientCommand::Scan(arguments) => record::scan(arguments).await,
            ClientCommand::MultiGet(arguments) => record::multi_get(arguments).await,
            ClientCommand::Load(arguments) => load::run(arguments).await,
            ClientCommand::Dump(arguments) => dump::run(arguments).await,
            ClientCommand::Status(arguments) => status::run(arguments).await,
            ClientCommand::Counters(arguments) => counters::counters(arguments).await,
            ClientCommand::Slow(arguments) => counters::slow(arguments).await,
            ClientCommand::Verify(arguments) => verify::run(arguments).await,
            ClientCommand::Grant(arguments) => rights::grant(arguments).await,
            ClientCommand::Revoke(arguments) => rights::revoke(arguments).await,
            ClientCommand::User { command, cluster } => user::run(command, &cluster).await,
            ClientCommand::Rights(arguments) => rights::rights(arguments).await,
            ClientCommand::Fault { command } => fault::run(command).await,
            ClientCommand::Proxy(arguments) => proxy::run(arguments).await,
            ClientCommand::Bench(arguments) => bench::run(*arguments).await,
        }
    })
}
