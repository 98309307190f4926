//! `secure`: what TLS costs. Two clusters stand side by side, one with certificates and one without, and are measured in turns.

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

/// Clients that share the connections to each node, and how much of the throughput without TLS is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    /// `put` or `get`: the name of the workload.
    operation: &'static str,
    clients: u32,
    connections: u32,
    wanted: Option<f64>,
}

const CASES: [Case; 5] = [
    Case { operation: "get", clients: 1, connections: 1, wanted: None },
    Case { operation: "get", clients: 64, connections: 1, wanted: Some(0.8) },
    Case { operation: "get", clients: 64, connections: 64, wanted: Some(0.7) },
    Case { operation: "put", clients: 64, connections: 1, wanted: Some(0.9) },
    Case { operation: "put", clients: 64, connections: 64, wanted: Some(0.9) },
];

impl Case {
    fn name(&self, has_tls: bool) -> String {
        let Self { operation, clients, connections, .. } = self;
        format!("{operation} x{clients} on {connections}, {}", if has_tls { "TLS" } else { "plain" })
    }
}

/// The experiment.
pub(super) struct Secure {
    duration: Duration,
    warm_up: Duration,
    rows: u64,
    settings: Settings,
    /// Without TLS, and with it.
    pair: Option<Pair>,
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
            question: "what TLS costs, between clients and nodes and between nodes",
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
        vec![Group { name: "all".to_owned(), variants: CASES.iter().enumerate().map(variant).collect() }]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        ["put", "get"].map(|operation| (operation.to_owned(), self.workload(operation).text())).into()
    }

    async fn prepare(&mut self, context: &Context<'_>, _: &Case) -> Result<()> {
        if self.pair.is_none() {
            let settings = [false, true].map(|has_tls| Settings { has_tls, ..self.settings.clone() });
            self.pair = Some(Pair::start(context, settings, self.load(&CASES[0])).await?);
        }
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let load = self.load(case);
        let pair = self.pair.as_mut().context("the clusters are started before the first turn")?;
        pair.measure(context, [false, true].map(|has_tls| case.name(has_tls)), &load).await
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        let columns = ["variant", "per second", "p50 ms", "p99 ms", "servers' CPU us", "TLS / plain", "target"];
        let rows: Vec<_> =
            CASES.iter().flat_map(|case| [false, true].map(|has_tls| row(case, has_tls, runs))).flatten().collect();
        let notes = vec![
            "Variant: clients on so many connections to each node, which they share; puts durable on a majority, gets linearizable at \
             the leader. TLS between clients and nodes and between nodes, with certificates on both sides. Median (min-max); ratios \
             are those of runs that followed each other. CPU per operation, all nodes together."
                .to_owned(),
        ];
        let title = "What TLS costs".to_owned();
        vec![Table { title, columns: columns.map(str::to_owned).to_vec(), rows, notes }]
    }
}

fn row(case: &Case, has_tls: bool, runs: &[Run]) -> Option<Vec<String>> {
    let figures = Figures::of(runs, &case.name(has_tls), &case.name(false))?;
    Some(vec![
        case.name(has_tls),
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

    fn run(case: &Case, has_tls: bool, repetition: u32, per_s: f64) -> Run {
        Run { variant: case.name(has_tls), repetition, achieved_per_s: per_s, ..Run::default() }
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
