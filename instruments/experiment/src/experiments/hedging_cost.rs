//! `hedging-cost`: what it costs to be able to hedge where nothing is slow.
//!
//! One closed loop over one connection, where the client is the bottleneck more than anywhere else. Short runs without
//! hedging, with a delay that hardly ever passes, and with the adaptive policy take turns, there and back, so that each run
//! has a neighbour without hedging.

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::hedged::once_after;
use crate::options::Options;
use crate::pair::neighbour;
use crate::stage::Stage;
use crate::summary::{Spread, or_na};
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Hedging, Load, Workload};
use hedgerow_client::HedgeOptions;
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "hedging-cost";
/// Nodes of the cluster.
const NODE_COUNT: usize = 3;
/// Requests in flight, on one connection to each node.
const CLIENTS: u32 = 64;
/// A delay that hardly any read needs.
const DELAY: Duration = Duration::from_millis(10);
/// Most that being able to hedge may cost: throughput, and the client's CPU per request.
const THROUGHPUT_MIN: f64 = 0.98;
const CPU_US_MAX: f64 = 0.3;
/// How long starting the cluster and writing its rows should take, for the time left only.
const PREPARE_EXPECTED: Duration = Duration::from_secs(8);

const WORKLOAD: &str = "get";
const OFF: &str = "off";
const CONSTANT: &str = "constant 10 ms";
const ADAPTIVE: &str = "adaptive 2 %";
/// One round: there and back, so that what grows with time falls on all alike.
const ROUND: [&str; 6] = [OFF, CONSTANT, ADAPTIVE, ADAPTIVE, CONSTANT, OFF];

/// The experiment.
pub(super) struct HedgingCost {
    duration: Duration,
    warm_up: Duration,
    rows: u64,
    /// Rounds of one turn.
    rounds: u32,
    settings: Settings,
    stage: Option<Stage>,
}

impl HedgingCost {
    pub(super) fn new(options: &Options) -> Self {
        let (duration, warm_up, rows, rounds) = match options.size {
            Size::Quick => (Duration::from_millis(300), Duration::from_millis(50), 1_000, 1),
            Size::Full => (Duration::from_millis(1_500), Duration::from_millis(500), 100_000, 3),
        };
        let settings =
            Settings { base: options.data.clone(), ..Settings::of_binary(options.binary.clone(), NODE_COUNT) };
        Self { duration, warm_up, rows, rounds, settings, stage: None }
    }

    fn workload(&self) -> Workload {
        let mut workload = Workload::named(WORKLOAD).expect("it comes with the generator");
        workload.table.rows = self.rows;
        workload
    }

    fn load(&self, variant: &str) -> Result<Load> {
        let options = match variant {
            CONSTANT => HedgeOptions { reads: once_after(DELAY), ..HedgeOptions::default() },
            ADAPTIVE => HedgeOptions { reads: "adaptive=2%".parse()?, ..HedgeOptions::default() },
            _ => HedgeOptions::default(),
        };
        Ok(Load {
            hedging: Hedging::of(&options)?,
            connections: Some(1),
            duration: self.duration,
            warm_up: self.warm_up,
            ..Load::new(self.workload(), Arrivals::clients(CLIENTS))
        })
    }
}

impl Experiment for HedgingCost {
    type Case = ();

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what it costs to be able to hedge where nothing is slow",
            needs: "2 GiB of memory and 4 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<()>> {
        let variant = Variant {
            name: "rounds".to_owned(),
            prepare_expected: PREPARE_EXPECTED,
            measure_expected: (self.duration + self.warm_up) * ROUND.len() as u32 * self.rounds,
            case: (),
        };
        vec![Group { name: "all".to_owned(), variants: vec![variant] }]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        [(WORKLOAD.to_owned(), self.workload().text())].into()
    }

    async fn prepare(&mut self, context: &Context<'_>, (): &()) -> Result<()> {
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        stage.write_rows(&Load { seed: context.seed, ..self.load(OFF)? }, "the table").await?;
        stage.settle().await?;
        stage.rest().await?;
        self.stage = Some(stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, (): &()) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for round in 0..self.rounds {
            for (index, variant) in (0..).zip(ROUND) {
                let is_back = u32::from(index >= ROUND.len() / 2);
                let repetition = ((context.repetition - 1) * self.rounds + round) * 2 + is_back + 1;
                let load = self.load(variant)?;
                let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
                runs.push(stage.run(&Context { repetition, ..*context }, variant.to_owned(), load).await?);
            }
        }
        Ok(runs)
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        let columns = [
            "variant",
            "per second",
            "throughput / off",
            "client's CPU us",
            "more than off, us",
            "extra requests %",
            "targets",
        ];
        let notes = vec![format!(
            "{CLIENTS} gets in flight on one connection to each node, linearizable at the leader. Median (min-max); ratios and \
             differences are those of runs that followed each other. Targets: throughput >= x{THROUGHPUT_MIN}, CPU per request at \
             most {CPU_US_MAX} us more."
        )];
        let rows: Vec<_> = [OFF, CONSTANT, ADAPTIVE].into_iter().filter_map(|variant| row(variant, runs)).collect();
        let title = "What hedging costs where nothing is slow".to_owned();
        vec![Table { title, columns: columns.map(str::to_owned).to_vec(), rows, notes }]
    }
}

fn row(variant: &str, runs: &[Run]) -> Option<Vec<String>> {
    let own: Vec<_> = runs.iter().filter(|run| run.variant == variant).collect();
    let off = |run: &Run| neighbour(runs, OFF, run);
    let per_s = Spread::of_runs(&own, |run| Some(run.achieved_per_s))?;
    let ratio = Spread::of_runs(&own, |run| Some(run.achieved_per_s / off(run)?.achieved_per_s));
    let more = Spread::of_runs(&own, |run| {
        Some(run.generator_cpu_us_per_request()? - off(run)?.generator_cpu_us_per_request()?)
    });
    let extra = Spread::of_runs(&own, |run| run.hedging.as_ref().map(hedgerow_report::Hedging::extra_percent));
    let verdict = |what: &str, is_met: bool| format!("{what} {}", if is_met { "met" } else { "MISSED" });
    let targets = if variant == OFF {
        "none".to_owned()
    } else {
        let throughput = ratio.map(|it| verdict("throughput", it.median >= THROUGHPUT_MIN));
        let cpu = more.map(|it| verdict("CPU", it.median <= CPU_US_MAX));
        [throughput, cpu].into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let cpu = Spread::of_runs(&own, Run::generator_cpu_us_per_request);
    Some(vec![
        variant.to_owned(),
        per_s.to_string(),
        or_na(ratio.filter(|_| variant != OFF)),
        or_na(cpu),
        or_na(more.filter(|_| variant != OFF)),
        or_na(extra),
        targets,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use hedgerow_report::Operation;

    fn run(variant: &str, repetition: u32, per_s: f64, cpu_us: f64) -> Run {
        let operations = vec![Operation { count: 1_000_000, ..Operation::default() }];
        let variant = variant.to_owned();
        Run { variant, repetition, achieved_per_s: per_s, generator_cpu_s: cpu_us, operations, ..Run::default() }
    }

    #[test]
    fn neighbours_are_compared() {
        let runs = [
            run(OFF, 1, 1_000.0, 2.0),
            run(CONSTANT, 1, 990.0, 2.2),
            run(OFF, 2, 500.0, 4.0),
            run(CONSTANT, 2, 495.0, 4.2),
            run(ADAPTIVE, 2, 480.0, 4.4),
        ];
        let constant = row(CONSTANT, &runs).unwrap();
        assert_eq!((constant[2].as_str(), constant[4].as_str()), ("0.990", "0.200"));
        assert_eq!(constant[6], "throughput met, CPU met");
        assert_eq!(row(ADAPTIVE, &runs).unwrap()[6], "throughput MISSED, CPU MISSED");
        assert_eq!(row(OFF, &runs).unwrap()[2], "n/a");
        assert_eq!(row(ADAPTIVE, &runs[..2]), None);
    }

    #[test]
    fn every_load_can_be_run_and_each_hedged_run_has_a_neighbour() {
        let experiment = HedgingCost::new(&Options::of_size(Size::Full));
        for variant in ROUND {
            let load = experiment.load(variant).unwrap();
            load.check().unwrap();
            assert_eq!(load.hedging == Hedging::default(), variant == OFF);
        }
        assert_eq!((ROUND[0], ROUND[ROUND.len() - 1]), (OFF, OFF));
    }
}
