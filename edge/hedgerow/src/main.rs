//! The one binary: `hedgerow dev` and `hedgerow serve` run nodes, `hedgerow wal` reads their logs, everything else talks to them.

mod access;
mod any_table;
mod bench;
mod cli;
mod cluster;
mod command;
mod demo;
#[cfg(test)]
mod documents;
mod duration;
mod elsewhere;
mod encoding;
mod exit;
mod experiment;
mod exporter;
mod files;
mod hedging;
mod latency;
mod log;
mod memory;
mod number;
mod output;
mod password;
#[cfg(feature = "profiling")]
mod profiling;
mod reading;
mod rows;
mod runtime;
mod serve;
mod shell;
mod sidecar;

use cli::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    memory::set_up();
    let arguments = Arguments::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    #[cfg(feature = "profiling")]
    if let Err(error) = profiling::listen() {
        output::complain(&error.into());
    }
    let exit = match cli::run(arguments.command) {
        Ok(exit) => exit,
        Err((error, exit)) => {
            output::complain(&error);
            exit
        }
    };
    log::flush();
    exit.into()
}
