//! `hedgerow fault`: shows fault plans and carries them out against a running cluster.

use crate::cluster::ClusterArguments;
use crate::duration::seconds;
use crate::exit::Exit;
use crate::output::{Output, columns, print, print_result, say};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use hedgerow_env::fault::{Action, Command, Switches};
use hedgerow_faults::{Cluster, Competitor, Event, Pids, Plan, Target as _, units};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What to do with faults.
#[derive(Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Carry a plan out against a running cluster whose nodes were started with faults allowed. Ctrl-C ends it early; at the
    /// end everything is switched off.
    Run {
        /// A file, or the name of a plan that comes with the program.
        plan: String,
        #[command(flatten)]
        draws: Draws,
        /// The process of a node of this machine, so that it can be killed; can be repeated.
        #[arg(long = "pid", value_name = "NODE=PID", value_parser = of_node::<u32>)]
        pids: Vec<(u16, u32)>,
        /// Where a node of this machine keeps its data, so that its disk can be competed for; can be repeated.
        #[arg(long = "data", value_name = "NODE=DIRECTORY", value_parser = of_node::<PathBuf>)]
        data: Vec<(u16, PathBuf)>,
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Print what a plan does and when. Needs no cluster.
    Show {
        /// A file, or the name of a plan that comes with the program.
        plan: String,
        #[command(flatten)]
        draws: Draws,
        /// The number of nodes.
        #[arg(long, default_value_t = 3)]
        nodes: u16,
        /// How it is printed.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// List the plans that come with the program.
    List {
        /// How they are printed.
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Switch all faults of all nodes off, those that a plan left behind whose process died.
    Clear {
        #[command(flatten)]
        cluster: ClusterArguments,
    },
}

/// For how long, and with which draws.
#[derive(Args, Debug)]
pub(crate) struct Draws {
    /// How long the plan runs.
    #[arg(long, default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// Another seed than the plan's own.
    #[arg(long)]
    seed: Option<u64>,
}

/// The hidden command that competes for the disk or the CPU.
#[derive(Debug, Subcommand)]
pub(crate) enum HogCommand {
    /// Write and call fsync until standard input ends.
    Disk {
        #[arg(long)]
        directory: PathBuf,
        #[arg(long)]
        write_size: u64,
        #[arg(long)]
        pause_us: u64,
    },
    /// Compute until standard input ends.
    Cpu {
        #[arg(long)]
        threads: u16,
        #[arg(long)]
        percent: u8,
    },
}

fn of_node<T: std::str::FromStr>(text: &str) -> Result<(u16, T), String> {
    let parsed = text.split_once('=').and_then(|(node, value)| Some((node.parse().ok()?, value.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text:?} is not of the form NODE=VALUE"))
}

/// Reads a plan: a file if `name` is one, otherwise a plan that comes with the program.
pub(crate) fn read_plan(name: &str, seed: Option<u64>) -> Result<Plan> {
    let plan = match crate::files::read_if_exists(Path::new(name))? {
        Some(bytes) => Plan::parse(std::str::from_utf8(&bytes).context("a fault plan is UTF-8 text")?)
            .with_context(|| format!("reading the fault plan {name:?}"))?,
        None => Plan::named(name).with_context(|| format!("{name:?} is no file"))?,
    };
    Ok(match seed {
        Some(seed) => plan.with_seed(seed),
        None => plan,
    })
}

/// Runs a command about faults.
pub(crate) async fn run(command: FaultCommand) -> Result<Exit> {
    match command {
        FaultCommand::Run { plan, draws, pids, data, cluster } => {
            let plan = read_plan(&plan, draws.seed)?;
            let addresses = addresses(&cluster).await?;
            let mut target = Cluster::new(addresses).with_data(data.iter().cloned().collect());
            if !pids.is_empty() {
                target = target.with_processes(Arc::new(Pids::new(&pids.iter().copied().collect())?));
            }
            // Whoever names a process or a directory says by it that the nodes are here.
            if !pids.is_empty() || !data.is_empty() {
                target = target.with_hogs(std::env::current_exe().context("finding this program")?);
            }
            carry_out(&plan, target, draws.seconds, cluster.output).await
        }
        FaultCommand::Show { plan, draws, nodes, output } => {
            let plan = read_plan(&plan, draws.seed)?;
            plan.check_nodes(nodes)?;
            let longest = plan.duration_max(nodes);
            ensure!(draws.seconds <= longest, "this plan can run for {} at most", units::show(longest));
            show(&plan, &plan.schedule(nodes, draws.seconds), output)?;
            Ok(Exit::Done)
        }
        FaultCommand::List { output } => {
            let plans = Plan::names().map(Plan::named).collect::<Result<Vec<_>, _>>()?;
            let text = || {
                let rows: Vec<_> = plans.iter().map(|plan| vec![plan.name.clone(), plan.about.clone()]).collect();
                columns(&["plan", "what it does"], &rows)
            };
            let json = || plans.iter().map(|plan| json!({ "name": plan.name, "about": plan.about })).collect();
            print_result(output, text, json)?;
            Ok(Exit::Done)
        }
        FaultCommand::Clear { cluster } => {
            let target = Cluster::new(addresses(&cluster).await?);
            for node in 1..=target.nodes() {
                target.command(&Command { node, action: Action::Set(Switches::default()) }).await?;
                say(&format!("node {node}: all faults are off"));
            }
            Ok(Exit::Done)
        }
    }
}

/// Competes. Returns when standard input ends.
pub(crate) fn hog(command: &HogCommand) -> Result<Exit> {
    match command {
        HogCommand::Disk { directory, write_size, pause_us } => {
            let pause = Duration::from_micros(*pause_us);
            hedgerow_faults::hog::compete(&Competitor::Disk { write_size: *write_size, pause }, Some(directory))?;
        }
        HogCommand::Cpu { threads, percent } => {
            hedgerow_faults::hog::compete(&Competitor::Cpu { threads: *threads, percent: *percent }, None)?;
        }
    }
    Ok(Exit::Done)
}

/// The addresses of all nodes, in the order of their numbers.
async fn addresses(cluster: &ClusterArguments) -> Result<Vec<String>> {
    let status = cluster.connect().await?.status().await?;
    let addresses: BTreeMap<u16, String> = status.nodes.into_iter().map(|node| (node.node, node.address)).collect();
    let are_in_order = (1..).zip(addresses.keys()).all(|(number, node)| number == *node);
    ensure!(are_in_order, "a fault plan needs a cluster whose nodes are numbered 1, 2, 3 ...");
    Ok(addresses.into_values().collect())
}

async fn carry_out(plan: &Plan, target: Cluster, duration: Duration, output: Output) -> Result<Exit> {
    say(&format!("fault plan {}, seed {}, for {}", plan.name, plan.seed, units::show(duration)));
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    let report = hedgerow_faults::run(plan, &Arc::new(target), duration, &mut |line: &str| say(line), stop).await?;
    let has_failed = !report.failures.is_empty();
    let text = || format!("{} faults made, {} failed", report.marks.len(), report.failures.len());
    let json = || {
        json!({
            "plan": plan.name,
            "seed": plan.seed,
            "faults": report.marks,
            "failures": report.failures,
        })
    };
    print_result(output, text, json)?;
    Ok(if has_failed { Exit::Partial } else { Exit::Done })
}

fn show(plan: &Plan, events: &[Event], output: Output) -> Result<()> {
    let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
    match output {
        Output::Text => {
            let row =
                |event: &Event| vec![seconds(event.at), seconds(event.lasts), event.label(), event.switch.to_string()];
            print(&format!("fault plan {}, seed {}: {}", plan.name, plan.seed, plan.about))?;
            let rows: Vec<_> = events.iter().map(row).collect();
            print(&columns(&["begin s", "lasts s", "fault", "what happens"], &rows))
        }
        Output::Json => {
            let event = |event: &Event| {
                json!({
                    "begin_s": event.at.as_secs_f64(),
                    "lasts_s": event.lasts.as_secs_f64(),
                    "label": event.label(),
                    "what": event.switch.to_string(),
                })
            };
            let events: Vec<Value> = events.iter().map(event).collect();
            print(&json!({ "plan": plan.name, "seed": plan.seed, "events": events }).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_and_its_value_are_read() {
        assert_eq!(of_node::<u32>("2=4711"), Ok((2, 4_711)));
        assert!(of_node::<u32>("2:4711").unwrap_err().contains("NODE=VALUE"));
        assert!(of_node::<u32>("2=x").is_err());
    }

    #[test]
    fn a_plan_is_found_by_its_name_and_a_missing_one_says_which_there_are() {
        assert_eq!(read_plan("stall", Some(9)).unwrap().seed, 9);
        assert!(format!("{:#}", read_plan("nothing", None).unwrap_err()).contains("kill"));
    }
}
