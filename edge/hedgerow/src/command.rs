//! Commands that talk to a cluster, or need none, one file each.

pub(crate) mod dump;
pub(crate) mod fault;
pub(crate) mod load;
pub(crate) mod plan;
pub(crate) mod proxy;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod verify;

use crate::arguments::ClientCommand;
use crate::exit::Exit;
use crate::{bench, runtime};
use anyhow::Result;

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
            ClientCommand::Verify(arguments) => verify::run(arguments).await,
            ClientCommand::Fault { command } => fault::run(command).await,
            ClientCommand::Proxy(arguments) => proxy::run(arguments).await,
            ClientCommand::Bench(arguments) => bench::run(*arguments).await,
        }
    })
}
