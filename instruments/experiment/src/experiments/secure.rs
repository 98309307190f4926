//! `secure`: what TLS costs, and what rights cost beside it. Two clusters stand side by side, with and without one of them, and are measured
//! in turns.

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::pair::{Figures, Pair};
use crate::summary::or_na;
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Load, Workload};
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "secure";
/// Nodes of each cluster.
const NODE_COUNT: usize = 3;
/// How long starting both clusters and writing their rows should take, for the time left only.
const PREPARE_EXPECTED: Duration = Duration::from_secs(15);

/// What one of the clusters has and the other has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    /// TLS, beside a cluster without.
    Tls,
    /// Rights that users must have, beside a cluster with TLS alone.
    Rights,
}

impl Added {
    const ALL: [Self; 2] = [Self::Tls, Self::Rights];

    const fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Rights => "rights",
        }
    }

    /// What the cluster is called that has it, or has not.
    const fn cluster(self, is_there: bool) -> &'static str {
        match (self, is_there) {
            (Self::Tls, false) => "plain",
            (Self::Tls, true) => "TLS",
            (Self::Rights, false) => "TLS alone",
            (Self::Rights, true) => "TLS and rights",
        }
    }

    fn settings(self, is_there: bool, settings: &Settings) -> Settings {
        let has_rights = self == Self::Rights && is_there;
        Settings { has_tls: self == Self::Rights || is_there, has_rights, ..settings.clone() }
    }
}

/// Clients that share the connections to each node, and how much of the throughput of the other cluster is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    added: Added,
    /// `put` or `get`: the name of the workload.
    operation: &'static str,
    clients: u32,
    connections: u32,
    wanted: Option<f64>,
}

const CASES: [Case; 8] = [
    Case { added: Added::Tls, operation: "get", clients: 1, connections: 1, wanted: None },
    Case { added: Added::Tls, operation: "get", clients: 64, connections: 1, wanted: Some(0.8) },
    Case { added: Added::Tls, operation: "get", clients: 64, connections: 64, wanted: Some(0.7) },
    Case { added: Added::Tls, operation: "put", clients: 64, connections: 1, wanted: Some(0.9) },
    Case { added: Added::Tls, operation: "put", clients: 64, connections: 64, wanted: Some(0.9) },
    Case { added: Added::Rights, operation: "get", clients: 64, connections: 1, wanted: Some(0.99) },
    Case { added: Added::Rights, operation: "get", clients: 64, connections: 64, wanted: Some(0.99) },
    Case { added: Added::Rights, operation: "put", clients: 64, connections: 1, wanted: Some(0.99) },
];

impl Case {
    fn name(&self, is_there: bool) -> String {
        let Self { added, operation, clients, connections, .. } = self;
        format!("{operation} x{clients} on {connections}, {}", added.cluster(is_there))
    }

    fn of(added: Added) -> impl Iterator<Item = &'static Self> {
        CASES.iter().filter(move |case| case.added == added)
    }
}

/// The experiment.
pub(super) struct Secure {
    duration: Duration,
    warm_up: Duration,
    rows: u64,
    settings: Settings,
    /// Without it, and with it.
    pair: Option<(Added, Pair)>,
}

impl Secure {
    pub(super) fn new(options: &Options) -> Self {
        let (duration, warm_up, rows) = match options.size {
            Size::Quick => (Duration::from_millis(500), Duration::from_millis(100), 1_000),
            Size::Full => (Duration::from_secs(3), Duration::from_millis(500), 20_000),
        };
        let settings =
            Settings { base: options.data.clone(), ..Settings::of_binary(options.binary.clone(), NODE_COUNT) };
        Self { duration, warm_up, rows, settings, pair: None }
    }

    fn workload(&self, operation: &str) -> Workload {
        let mut workload = Workload::named(operation).expect("put and get come with the generator");
        workload.table.rows = self.rows;
        workload
    }

    fn load(&self, case: &Case) -> Load {
        Load {
            connections: Some(case.connections),
            duration: self.duration,
            warm_up: self.warm_up,
            ..Load::new(self.workload(case.operation), Arrivals::clients(case.clients))
        }
    }
}

impl Experiment for Secure {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what TLS costs, between clients and nodes and between nodes, and what rights cost",
            needs: "3 GiB of memory and 8 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let variant = |(index, case): (usize, &Case)| Variant {
            name: case.name(true),
            prepare_expected: if index == 0 { PREPARE_EXPECTED } else { Duration::ZERO },
            measure_expected: (self.duration + self.warm_up) * Pair::TURNS,
            case: *case,
        };
        let group = |added: Added| Group {
            name: added.name().to_owned(),
            variants: Case::of(added).enumerate().map(variant).collect(),
        };
        Added::ALL.map(group).into()
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        ["put", "get"].map(|operation| (operation.to_owned(), self.workload(operation).text())).into()
    }

    async fn prepare(&mut self, context: &Context<'_>, case: &Case) -> Result<()> {
        let added = case.added;
        if self.pair.as_ref().is_none_or(|(of, _)| *of != added) {
            // The one before goes first: four clusters at a time would need more memory.
            self.pair = None;
            let settings = [false, true].map(|is_there| added.settings(is_there, &self.settings));
            self.pair = Some((added, Pair::start(context, settings, self.load(case)).await?));
        }
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let load = self.load(case);
        let (_, pair) = self.pair.as_mut().context("the clusters are started before the first turn")?;
        pair.measure(context, [false, true].map(|is_there| case.name(is_there)), &load).await
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        let of_added = |(added, title, ratio, beside): (Added, &str, &str, &str)| {
            let columns = ["variant", "per second", "p50 ms", "p99 ms", "servers' CPU us", ratio, "target"];
            let rows: Vec<_> = Case::of(added)
                .flat_map(|case| [false, true].map(|is_there| row(case, is_there, runs)))
                .flatten()
                .collect();
            let notes = vec![format!(
                "Variant: clients on so many connections to each node, which they share; puts durable on a majority, gets linearizable at \
                 the leader. {beside} Median (min-max); ratios are those of runs that followed each other. CPU per operation, all nodes \
                 together."
            )];
            Table { title: title.to_owned(), columns: columns.map(str::to_owned).to_vec(), rows, notes }
        };
        let certificates = "TLS between clients and nodes and between nodes, with certificates on both sides.";
        let rights =
            "TLS on both sides; with rights, each request is of a user who has been given what it needs by name.";
        let tables = [
            (Added::Tls, "What TLS costs", "TLS / plain", certificates),
            (Added::Rights, "What rights cost", "with / without", rights),
        ];
        tables.map(of_added).into_iter().filter(|table| !table.rows.is_empty()).collect()
    }
}

fn row(case: &Case, is_there: bool, runs: &[Run]) -> Option<Vec<String>> {
    let figures = Figures::of(runs, &case.name(is_there), &case.name(false))?;
    Some(vec![
        case.name(is_there),
        figures.per_s.to_string(),
        or_na(figures.p50_ms),
        or_na(figures.p99_ms),
        or_na(figures.server_cpu_us),
        or_na(figures.ratio),
        figures.verdict(case.wanted),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(case: &Case, is_there: bool, repetition: u32, per_s: f64) -> Run {
        Run { variant: case.name(is_there), repetition, achieved_per_s: per_s, ..Run::default() }
    }

    #[test]
    fn neighbours_are_compared() {
        let case = &CASES[1];
        let runs = [
            run(case, false, 1, 1_000.0),
            run(case, true, 1, 900.0),
            run(case, true, 2, 300.0),
            run(case, false, 2, 500.0),
            run(case, false, 3, 1_000.0),
            run(case, true, 3, 790.0),
        ];
        let with = row(case, true, &runs).unwrap();
        assert_eq!((with[0].as_str(), with[5].as_str()), ("get x64 on 1, TLS", "0.790 (0.600-0.900)"));
        assert_eq!(with[6], ">= x0.8: MISSED");
        assert_eq!(row(case, false, &runs).unwrap()[6], "none");
        assert_eq!(row(&CASES[0], true, &runs), None);
    }
}
