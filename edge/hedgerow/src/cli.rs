//! The command line: what can be asked of the program, and which file does it.

use crate::command::ClientCommand;
use crate::command::certificate::CertificateCommand;
use crate::command::fault::HogCommand;
use crate::command::plan::PlanArguments;
use crate::command::report::ReportArguments;
use crate::command::wal::WalCommand;
use crate::demo::DemoArguments;
use crate::exit::{self, Exit};
use crate::experiment::ExperimentArguments;
use crate::exporter::ExporterArguments;
use crate::serve::check::ConfigCommand;
use crate::serve::{DevArguments, ServeArguments};
use crate::shell::{CompletionsArguments, ManArguments};
use crate::sidecar::SidecarArguments;
use crate::{command, demo, elsewhere, experiment, exporter, log, serve, shell, sidecar};
use anyhow::Context as _;
use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::ffi::OsString;

/// The options of [`crate::cluster::ClusterArguments`].
const COMMON: [&str; 10] = [
    "cluster",
    "tls_ca",
    "tls_certificate",
    "tls_key",
    "tls_revoked",
    "tls_cluster",
    "user",
    "password_file",
    "output",
    "timeout",
];

/// Hedgerow: a replicated key-value store that speaks Apache Pegasus' client protocol.
#[derive(Debug, Parser)]
#[command(version, about, after_help = exit::HELP, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// What these words ask for, the first of them aside.
    pub(crate) fn read(words: impl IntoIterator<Item: Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let mut command = without_empty_variables(command_line());
        let found = command.try_get_matches_from_mut(&words);
        let found = found.map_err(|error| elsewhere::with_hint(error, &words, &command))?;
        Self::from_arg_matches(&found)
    }
}

/// What can be asked, with the options that all commands of a client have behind those of each.
pub(crate) fn command_line() -> clap::Command {
    common_last(takes_negative_numbers(Arguments::command()))
}

fn common_last(command: clap::Command) -> clap::Command {
    let is_common = |it: &clap::Arg| COMMON.contains(&it.get_id().as_str());
    let sorted = command.mut_args(|it| if is_common(&it) { it.help_heading("Connection and output") } else { it });
    sorted.mut_subcommands(common_last)
}

/// No option is called `-1`: such a word is a value everywhere, and where it is not a valid one that is said.
pub(crate) fn takes_negative_numbers(command: clap::Command) -> clap::Command {
    let taken =
        command.mut_args(|it| if it.get_action().takes_values() { it.allow_negative_numbers(true) } else { it });
    taken.mut_subcommands(takes_negative_numbers)
}

/// A variable of the environment that is empty counts as one that is not set: scripts take one away so. An empty word after an option stays an error.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |it: &clap::Arg| it.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    let left = command.mut_args(|it| if is_empty(&it) { it.env(Resettable::Reset) } else { it });
    left.mut_subcommands(without_empty_variables)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster in this process, to try things out.
    Dev(DevArguments),
    /// Run one node of a cluster.
    Serve(ServeArguments),
    /// Check the configuration of a node before it is started with it.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Let clients of Pegasus on this machine, which speak no TLS, reach a cluster that wants it.
    Sidecar(SidecarArguments),
    /// Show Prometheus what state a cluster is in and what its nodes count.
    Exporter(ExporterArguments),
    /// Make the certificates with which nodes and clients know each other.
    Certificate {
        #[command(subcommand)]
        command: CertificateCommand,
    },
    /// Show a cluster of three processes with real data: a node killed under load, one that stalls with hedging off and on, and
    /// every row checked at the end.
    Demo(DemoArguments),
    /// Compete for the disk or the CPU; started by fault plans.
    #[command(hide = true)]
    Hog {
        #[command(subcommand)]
        command: HogCommand,
    },
    /// Run a named experiment on clusters of its own, or list them.
    Experiment(ExperimentArguments),
    /// Recommend how to hedge, from measured latencies and a budget, and draw the trade-off. Needs no cluster.
    Plan(PlanArguments),
    /// Render results folders into one HTML page.
    Report(ReportArguments),
    /// Read the log of a node, which may run or not, and change nothing.
    Wal {
        #[command(subcommand)]
        command: WalCommand,
    },
    #[command(flatten)]
    Client(Box<ClientCommand>),
    /// Print what a shell needs to complete commands and options.
    Completions(CompletionsArguments),
    /// Write manual pages, one for each command.
    Man(ManArguments),
}

/// Runs a command. An error comes with the code that the process exits with.
pub(crate) fn run(command: Command) -> Result<Exit, (anyhow::Error, Exit)> {
    match command {
        Command::Dev(dev) => match serve::dev_peers(&dev).and_then(|peers| Ok((peers, serve::read_faults(&dev)?))) {
            Ok((peers, plan)) => nodes("warn", || serve::dev(&dev, &peers, plan)),
            Err(error) => Err((error, Exit::Usage)),
        },
        Command::Serve(serve) => match serve::read_startable(&serve.config) {
            Ok(read) => nodes("info", || serve::serve(read)),
            Err(error) => Err((error, Exit::Usage)),
        },
        Command::Sidecar(arguments) => to_sinks("info").and_then(|()| sidecar::run(&arguments)).map_err(with_code),
        Command::Exporter(arguments) => to_sinks("info").and_then(|()| exporter::run(arguments)).map_err(with_code),
        Command::Config { command } => serve::check::run(&command).map_err(|error| (error, Exit::Usage)),
        Command::Certificate { command } => command::certificate::run(&command).map_err(|error| (error, Exit::Usage)),
        Command::Completions(arguments) => shell::completions(&arguments).map_err(|error| (error, Exit::Usage)),
        Command::Man(arguments) => shell::man(&arguments).map_err(|error| (error, Exit::Usage)),
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
        Command::Wal { command } => {
            log::to_standard_error("warn");
            command::wal::run(command).map_err(|error| {
                let exit = command::wal::exit_of(&error);
                (error, exit)
            })
        }
        Command::Client(client) => {
            log::to_standard_error("warn");
            command::run(*client).map_err(with_code)
        }
    }
}

/// An error of who talks to a cluster, with its code.
fn with_code(error: anyhow::Error) -> (anyhow::Error, Exit) {
    let exit = Exit::of(&error);
    (error, exit)
}

/// Runs nodes in this process until `run` ends. They log from `level` on.
fn nodes(level: &str, run: impl FnOnce() -> anyhow::Result<Exit>) -> Result<Exit, (anyhow::Error, Exit)> {
    to_sinks(level).and_then(|()| run()).map_err(|error| {
        let exit = Exit::of_node(&error);
        (error, exit)
    })
}

/// Has this process log from `level` on, without waiting for whoever reads that.
fn to_sinks(level: &str) -> anyhow::Result<()> {
    log::through_sinks(level).context("starting the log's threads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        takes_negative_numbers(Arguments::command()).debug_assert();
    }

    #[test]
    fn a_negative_number_is_a_value() {
        for command in ["set t h s v --ttl -1", "scan t --limit -1", "table create t --partitions -1"] {
            let error = Arguments::read(format!("hedgerow {command}").split(' ')).unwrap_err().to_string();
            assert!(error.contains("invalid value '-1'") && error.contains("is not a whole number"), "{error}");
        }
        Arguments::read("hedgerow set t h s -5".split(' ')).unwrap();
    }

    #[test]
    fn the_exporter_takes_a_name_to_listen_at_and_no_form_of_results() {
        let read = |words: &str| Arguments::read(format!("hedgerow exporter {words}").split(' '));
        read("--listen localhost:0 --cluster a:1,b:2 --tls-ca ca.pem --user app --password-file f").unwrap();
        let error = read("--output json").unwrap_err();
        assert!(error.to_string().contains("unexpected argument '--output'") && error.exit_code() == 2, "{error}");
    }

    #[test]
    fn what_all_commands_have_comes_last_in_their_help() {
        fn walk(command: &clap::Command) {
            let heading = |it: &clap::Arg| it.get_help_heading().map(str::to_owned);
            let common: Vec<_> = command.get_arguments().filter(|it| COMMON.contains(&it.get_id().as_str())).collect();
            assert!(common.iter().all(|it| heading(it).is_some()), "{}", command.get_name());
            command.get_subcommands().for_each(walk);
        }
        walk(&command_line());
        let has =
            |id: &&&str| command_line().find_subcommand("get").unwrap().get_arguments().any(|it| it.get_id() == **id);
        assert_eq!(COMMON.iter().filter(has).count(), COMMON.len());
    }

    #[test]
    fn words_of_other_stores_are_understood() {
        for command in ["put t h s v", "delete t h s", "mget t h s", "table delete t"] {
            Arguments::read(format!("hedgerow {command}").split(' ')).unwrap();
        }
        for (command, hint) in [
            ("expire t h s 60", "VALUE --ttl SECONDS"),
            ("HGETALL t h", "hedgerow scan TABLE HASH_KEY"),
            ("table rename a b", "hedgerow table recall ID NEW_NAME"),
            ("set t h s v --nx", "check_and_set"),
            ("GET t h s", "hedgerow get"),
        ] {
            let error = Arguments::read(format!("hedgerow {command}").split(' ')).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(hint) && error.exit_code() == 2, "{text}");
        }
    }

    #[test]
    fn every_command_takes_a_cluster_and_an_output() {
        for command in ["get t h s", "table list", "load t f.tsv", "bench put", "status", "scan t"] {
            let words = format!("hedgerow {command} --cluster a:1,b:2 --output json");
            Arguments::read(words.split(' ')).unwrap();
        }
    }
}
