//! The command line.

use crate::bench::BenchArguments;
use crate::cluster::ClusterArguments;
use crate::command::dump::DumpArguments;
use crate::command::fault::{FaultCommand, HogCommand};
use crate::command::load::LoadArguments;
use crate::command::plan::PlanArguments;
use crate::command::proxy::ProxyArguments;
use crate::command::record::{
    DelArguments, GetArguments, IncrArguments, MultiGetArguments, ScanArguments, SetArguments, TtlArguments,
};
use crate::command::report::ReportArguments;
use crate::command::status::StatusArguments;
use crate::command::table::TableCommand;
use crate::command::verify::VerifyArguments;
use crate::demo::DemoArguments;
use crate::exit;
use crate::experiment::ExperimentArguments;
use crate::serve::{DevArguments, ServeArguments};
use clap::{Parser, Subcommand};

/// Hedgerow: a replicated key-value store that speaks Apache Pegasus' client protocol.
#[derive(Debug, Parser)]
#[command(version, about, after_help = exit::HELP, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster in this process, to try things out.
    Dev(DevArguments),
    /// Run one node of a cluster.
    Serve(ServeArguments),
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
    #[command(flatten)]
    Client(ClientCommand),
}

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
    Set(SetArguments),
    /// Delete a record.
    Del(DelArguments),
    /// Add to a record that holds a decimal number, and print the sum.
    Incr(IncrArguments),
    /// Print how long a record has to live.
    Ttl(TtlArguments),
    /// Print the rows of a hash key, of a range of an ordered table, or of a whole table.
    Scan(ScanArguments),
    /// Print several records.
    MultiGet(MultiGetArguments),
    /// Load a file of rows into a table.
    Load(LoadArguments),
    /// Write all rows of a table to a file, in a form that load reads.
    Dump(DumpArguments),
    /// Show nodes, tables, partitions, their leaders and how far replicas lag.
    Status(StatusArguments),
    /// Compare the replicas of a table by checksum.
    Verify(VerifyArguments),
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_takes_a_cluster_and_an_output() {
        for command in ["get t h s", "table list", "load t f.tsv", "bench put", "status", "scan t"] {
            let words = format!("hedgerow {command} --cluster a:1,b:2 --output json");
            Arguments::try_parse_from(words.split(' ')).unwrap();
        }
    }
}
