//! `hedgerow bench`: measures a cluster with the load generator of `instruments/bench`, prints the figures and keeps a results
//! folder.

mod options;
mod print;
mod rates;

use crate::cluster::ClusterArguments;
use crate::exit::Exit;
use crate::output::{Output, counted, print_result, say};
use crate::runtime::now;
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use hedgerow_bench::{
    Arrivals, Hedging, Label, Load, ServerWork, Workload, prepare, run as run_load, self_test, worker,
};
use hedgerow_report::{Folder, Outcome, Run, Second};
use options::{BenchOptions, ListedWorkload};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// Arguments of `bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(Clone, Debug, Subcommand)]
enum BenchCommand {
    /// Replace rows, each as often.
    Put(BenchOptions),
    /// Read rows that exist, each as often.
    Get(BenchOptions),
    /// Both, at random.
    Mix {
        /// Share of reads, percent.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
        read_percent: u8,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// Run a workload: one of `bench list`, or a TOML file.
    Run {
        /// Its name, or the path of a file.
        workload: String,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// List the workloads that are built in.
    List,
    /// Check the generator itself: a target that is paused for 100 ms every 10 s must show as such. Takes half a minute.
    SelfTest,
    /// Generate a part of a load that another process is in charge of.
    #[command(hide = true)]
    Worker,
}

/// `hedgerow bench`.
pub(crate) async fn run(arguments: BenchArguments) -> Result<Exit> {
    let cluster = &arguments.cluster;
    match arguments.command {
        BenchCommand::Put(options) => measure(Workload::named("put")?, &options, cluster).await,
        BenchCommand::Get(options) => measure(Workload::named("get")?, &options, cluster).await,
        BenchCommand::Mix { read_percent, options } => {
            let mut workload = Workload::named("mix")?;
            workload.operations.get = read_percent.into();
            workload.operations.set = 100 - workload.operations.get;
            measure(workload, &options, cluster).await
        }
        BenchCommand::Run { workload, options } => measure(options::read_workload(&workload)?, &options, cluster).await,
        BenchCommand::List => list(cluster.output),
        BenchCommand::SelfTest => check_generator(cluster.output).await,
        BenchCommand::Worker => {
            // Ctrl-C reaches all processes of a terminal; when to stop is for the parent to say.
            let _interrupts = signal(SignalKind::interrupt())?;
            worker(tokio::io::stdin(), tokio::io::stdout()).await?;
            Ok(Exit::Done)
        }
    }
}

fn list(output: Output) -> Result<Exit> {
    let workloads: Vec<ListedWorkload> = Workload::all().map(ListedWorkload::of).collect();
    print_result(output, || print::list(&workloads), || serde_json::json!(workloads))?;
    Ok(Exit::Done)
}

async fn check_generator(output: Output) -> Result<Exit> {
    say("a target on loopback is paused for 100 ms every 10 s; first an open loop looks at it, then a closed one");
    let report = self_test(say).await?;
    print_result(output, || report.text(), || serde_json::json!(report.checks()))?;
    Ok(if report.has_passed() { Exit::Done } else { Exit::Void })
}

/// Runs the loads of `options` one after the other.
async fn measure(workload: Workload, options: &BenchOptions, cluster: &ClusterArguments) -> Result<Exit> {
    let loads = options.loads(workload, cluster)?;
    options.remarks().iter().for_each(|remark| say(remark));
    let first = &loads[0].1;
    if options.no_prepare {
        say("not preparing: the table and its rows must be there");
    } else {
        options.check_table(&cluster.connect().await?).await?;
        prepare(&cluster.nodes.cluster, first, say).await?;
    }
    let folder = options.folder(&first.workload.name)?;
    let mut outcome = Outcome::new(&first.workload.name, std::env::args().collect(), first.seed);
    outcome.workloads.insert(first.workload.name.clone(), first.workload.text());
    let mut interrupted = Interrupted::default();
    let began = now();
    for (variant, load) in &loads {
        if interrupted.is_set {
            break;
        }
        let run = measure_one(variant, load, cluster, folder.as_ref(), began, &mut interrupted).await?;
        outcome.runs.push(run);
    }
    print_result(cluster.output, || print::runs(&outcome.runs), || serde_json::json!(outcome))?;
    if let Some(folder) = &folder {
        folder.write(&outcome)?;
        say(&format!("results are in {}", folder.path().display()));
    }
    if let Some((refusal, count)) = refused(&outcome.runs) {
        say(&format!("{} refused: {}", counted(count, "request"), refusal.text));
    }
    Ok(exit(&outcome.runs, interrupted.is_set))
}

/// Whether Ctrl-C was pressed.
#[derive(Default)]
struct Interrupted {
    is_set: bool,
}

async fn measure_one(
    variant: &str,
    load: &Load,
    cluster: &ClusterArguments,
    folder: Option<&Folder>,
    began: Instant,
    interrupted: &mut Interrupted,
) -> Result<Run> {
    let stop = async {
        // Without the signal's handler the run cannot be stopped early, and goes on.
        match tokio::signal::ctrl_c().await {
            Ok(()) => interrupted.is_set = true,
            Err(_) => std::future::pending().await,
        }
    };
    let begin_s = (now() - began + load.warm_up).as_secs_f64();
    let is_hedged = load.hedging != Hedging::default();
    let before = if is_hedged { server_work(cluster).await.ok() } else { None };
    let rate = match load.arrivals {
        Arrivals::Open { rate, .. } => Some(rate),
        Arrivals::Closed { .. } => None,
    };
    let on_second = |second: &Second| say(&print::second(second, rate));
    let mut measurement = run_load(&cluster.nodes.cluster, load, stop, on_second).await?;
    if let Some(before) = before
        && let Ok(after) = server_work(cluster).await
    {
        measurement.set_server_work(after.since(&before));
    }
    let label = Label { variant: variant.to_owned(), repetition: 1, workload: load.workload.name.clone(), begin_s };
    let run = measurement.into_run(label, folder)?;
    if let Some(reason) = &run.void {
        say(&format!("VOID: {reason}"));
    }
    Ok(run)
}

/// What all nodes have done so far. A node that cannot be asked means that nothing can be said of the work of all.
async fn server_work(cluster: &ClusterArguments) -> Result<ServerWork> {
    let mut work = ServerWork::default();
    let access = cluster.access()?;
    for node in cluster.connect().await?.list_nodes().await? {
        let answer = access.call(&node.address.to_string(), "reads", "{}").await?;
        work = work.and(&ServerWork::parse(&answer).with_context(|| format!("what {} says of reads", node.address))?);
    }
    Ok(work)
}

/// What refuses requests for good: a measurement in which that happened is none of what was asked for.
struct Refusal {
    /// Its name among a run's further figures.
    figure: &'static str,
    text: &'static str,
    exit: Exit,
}

const REFUSALS: [Refusal; 3] = [
    Refusal { figure: "error_not_allowed_count", text: "the user may not do it", exit: Exit::Refused },
    Refusal { figure: "error_disk_full_count", text: "a disk is full", exit: Exit::Refused },
    Refusal { figure: "error_no_table_count", text: "the table is gone", exit: Exit::NotFound },
];

/// The first of the [`REFUSALS`] that any of `runs` met, and how many requests it hit.
fn refused(runs: &[Run]) -> Option<(&'static Refusal, u64)> {
    let count = |refusal: &Refusal| runs.iter().filter_map(|run| run.extra.get(refusal.figure)).sum::<f64>() as u64;
    REFUSALS.iter().map(|refusal| (refusal, count(refusal))).find(|(_, count)| *count > 0)
}

fn exit(runs: &[Run], was_interrupted: bool) -> Exit {
    let has_success = |run: &Run| run.achieved_per_s > 0.0;
    if was_interrupted {
        Exit::Partial
    } else if let Some((refusal, _)) = refused(runs) {
        refusal.exit
    } else if !runs.iter().any(has_success) {
        Exit::Unreachable
    } else if runs.iter().any(|run| run.void.is_some()) {
        Exit::Void
    } else {
        Exit::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_is_refused_midway_ends_with_the_code_of_the_refusal() {
        let run = |extra: &[(&str, f64)]| Run {
            achieved_per_s: 100.0,
            void: Some("the generator was the bottleneck".to_owned()),
            extra: extra.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..Run::default()
        };
        let exit = |extra: &[(&str, f64)]| exit(&[run(&[]), run(extra)], false);
        assert_eq!(exit(&[("error_not_allowed_count", 7.0)]), Exit::Refused);
        assert_eq!(exit(&[("error_disk_full_count", 1.0)]), Exit::Refused);
        assert_eq!(exit(&[("error_no_table_count", 1.0)]), Exit::NotFound);
        assert_eq!(exit(&[("error_unavailable_count", 1.0)]), Exit::Void);
        let (refusal, count) = refused(&[run(&[("error_not_allowed_count", 7.0)])]).unwrap();
        assert_eq!((refusal.exit, count), (Exit::Refused, 7));
    }
}
