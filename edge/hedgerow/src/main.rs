//! The one binary: `hedgerow dev` and `hedgerow serve` run nodes, everything else talks to them.

mod any_table;
mod arguments;
mod bench;
mod cluster;
mod command;
mod demo;
#[cfg(test)]
mod documents;
mod duration;
mod encoding;
mod exit;
mod experiment;
mod files;
mod hedging;
mod log;
mod output;
#[cfg(feature = "profiling")]
mod profiling;
mod reading;
mod rows;
mod runtime;
mod serve;

use anyhow::Context as _;
use arguments::{Arguments, Command};
use clap::Parser as _;
use exit::Exit;
use std::process::ExitCode;

/// Requests allocate and free small buffers on several threads, which the system's allocator is slow at.
#[cfg(not(feature = "profiling"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(feature = "profiling")]
#[global_allocator]
static ALLOCATOR: profiling::CountingAllocator = profiling::CountingAllocator;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    #[cfg(feature = "profiling")]
    if let Err(error) = profiling::listen() {
        output::complain(&error.into());
    }
    let result = run(arguments.command);
    let exit = match result {
        Ok(exit) => exit,
        Err((error, exit)) => {
            output::complain(&error);
            exit
        }
    };
    log::flush();
    exit.into()
}

fn run(command: Command) -> Result<Exit, (anyhow::Error, Exit)> {
    match command {
        Command::Dev(dev) => nodes(|| serve::dev(&dev)),
        Command::Serve(serve) => nodes(|| serve::serve(&serve)),
        Command::Demo(demo) => {
            log::to_standard_error("warn");
            demo::run(demo).map_err(|error| (error, Exit::Refused))
        }
        Command::Hog { command } => command::fault::hog(&command).map_err(|error| (error, Exit::Usage)),
        Command::Experiment(experiment) => {
            log::to_standard_error("error");
            experiment::run(experiment).map_err(|error| (error, Exit::Usage))
        }
        Command::Plan(plan) => command::plan::run(&plan).map_err(|error| (error, Exit::Usage)),
        Command::Report(report) => command::report::run(report).map_err(|error| (error, Exit::Usage)),
        Command::Client(client) => {
            log::to_standard_error("warn");
            command::run(client).map_err(|error| {
                let exit = Exit::of(&error);
                (error, exit)
            })
        }
    }
}

/// Runs nodes in this process until `run` ends.
fn nodes(run: impl FnOnce() -> anyhow::Result<Exit>) -> Result<Exit, (anyhow::Error, Exit)> {
    let is_logging = log::through_sinks("info").context("starting the log's threads");
    is_logging.and_then(|()| run()).map_err(|error| (error, Exit::NodeFailed))
}
