//! The one binary: `hedgerow dev` and `hedgerow serve` run nodes, everything else talks to them.

mod any_table;
mod arguments;
mod bench;
mod command;
mod demo;
mod encoding;
mod exit;
mod experiment;
mod files;
mod hedging;
mod output;
#[cfg(feature = "profiling")]
mod profiling;
mod reading;
mod rows;
mod runtime;
mod serve;

use arguments::{Arguments, Command};
use clap::Parser as _;
use exit::Exit;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

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
    let result = match arguments.command {
        Command::Dev(dev) => {
            log("info");
            serve::dev(&dev).map_err(|error| (error, Exit::NodeFailed))
        }
        Command::Serve(serve) => {
            log("info");
            serve::serve(&serve).map_err(|error| (error, Exit::NodeFailed))
        }
        Command::Demo(demo) => {
            log("warn");
            demo::run(demo).map_err(|error| (error, Exit::Refused))
        }
        Command::Hog { command } => command::fault::hog(&command).map_err(|error| (error, Exit::Usage)),
        Command::Experiment(experiment) => {
            log("error");
            experiment::run(experiment).map_err(|error| (error, Exit::Usage))
        }
        Command::Plan(plan) => command::plan::run(&plan).map_err(|error| (error, Exit::Usage)),
        Command::Report(report) => command::report::run(report).map_err(|error| (error, Exit::Usage)),
        Command::Client(client) => {
            log("warn");
            command::run(client).map_err(|error| {
                let exit = Exit::of(&error);
                (error, exit)
            })
        }
    };
    match result {
        Ok(exit) => exit.into(),
        Err((error, exit)) => {
            output::complain(&error);
            exit.into()
        }
    }
}

/// Sends log lines to standard error: those of `level` and above, unless `HEDGEROW_LOG` says otherwise (for example
/// `debug`, or `warn,hedgerow_node=debug`).
fn log(level: &str) {
    let filter = EnvFilter::try_from_env("HEDGEROW_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let has_colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(has_colours).with_writer(std::io::stderr).init();
}
