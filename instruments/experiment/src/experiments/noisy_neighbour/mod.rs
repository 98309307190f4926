//! `noisy-neighbour`: what others' hot gets feel of one client that asks for as much as it can.
#![allow(clippy::disallowed_methods, reason = "the heavy client is a thread that is waited for")]

mod noise;

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::stage::Stage;
use crate::summary::{Spread, or_na};
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, IN_FLIGHT_MAX_DEFAULT, LAG_SHARE_MAX, Load, Spacing, Workload};
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use noise::{Amount, Noise};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "noisy-neighbour";
/// Nodes of the cluster.
const NODE_COUNT: usize = 3;
/// What the others ask for: gets per second, of so many rows.
const GETS_PER_S: f64 = 500.0;
const HOT_ROWS: u64 = 1_000;
/// What they may feel of it.
const P99_MAX_MS: f64 = 5.0;

/// Figures of a run beside those of its requests.
mod figure {
    pub(super) const DONE: &str = "heavy requests per second";
    pub(super) const MOVES: &str = "leaderships moved";
    pub(super) const MEMORY: &str = "peak MiB of a node";
}

/// One variant: what the heavy client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Alone,
    Batch,
    Count,
    Drop,
    Unread,
    Lookups,
}

impl Case {
    const ALL: [Self; 6] = [Self::Alone, Self::Batch, Self::Count, Self::Drop, Self::Unread, Self::Lookups];
}

/// The name of the variant.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "nobody",
            Self::Batch => "batch_get of 10,000 rows",
            Self::Count => "count of a wide hash key",
            Self::Drop => "tables of 64 partitions",
            Self::Unread => "512 MB of unread replies",
            Self::Lookups => "conditional writes",
        })
    }
}

/// The experiment.
pub(super) struct NoisyNeighbour {
    duration: Duration,
    amount: Amount,
    /// How long writing the rows should take, for the time left only.
    prepare_expected: Duration,
    settings: Settings,
    stage: Option<Stage>,
}

impl NoisyNeighbour {
    pub(super) fn new(options: &Options) -> Self {
        let (seconds, cold_rows, wide_rows, prepare) = match options.size {
            Size::Quick => (1, 20_000, 20_000, 5),
            Size::Full => (20, 1_000_000, 2_000_000, 120),
        };
        let amount = Amount { cold_rows: options.rows.unwrap_or(cold_rows), wide_rows };
        let settings =
            Settings { base: options.data.clone(), ..Settings::of_binary(options.binary.clone(), NODE_COUNT) };
        let duration = Duration::from_secs(seconds);
        Self { duration, amount, prepare_expected: Duration::from_secs(prepare), settings, stage: None }
    }

    fn workload() -> Workload {
        let mut workload = Workload::named("get").expect("get comes with the generator");
        workload.table.rows = HOT_ROWS;
        workload
    }

    fn load(&self) -> Load {
        let arrivals =
            Arrivals::Open { rate: GETS_PER_S, spacing: Spacing::Poisson, in_flight_max: IN_FLIGHT_MAX_DEFAULT };
        Load { duration: self.duration, ..Load::new(Self::workload(), arrivals) }
    }
}

impl Experiment for NoisyNeighbour {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what others' gets feel of one client that asks for as much as it can",
            needs: "8 GiB of memory and 16 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let variant = |case: Case| Variant {
            name: case.to_string(),
            prepare_expected: if case == Case::Alone { self.prepare_expected } else { Duration::ZERO },
            measure_expected: self.duration + Duration::from_secs(2),
            case,
        };
        vec![Group { name: "all".to_owned(), variants: Case::ALL.map(variant).into() }]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        [("get".to_owned(), Self::workload().text())].into()
    }

    async fn prepare(&mut self, context: &Context<'_>, _: &Case) -> Result<()> {
        if self.stage.is_some() {
            return Ok(());
        }
        let mut stage = Stage::prepare(self.settings.clone())?;
        stage.start().await?;
        stage.write_rows(&Load { seed: context.seed, ..self.load() }, "the table of the others").await?;
        noise::prepare(&stage.addresses(), self.amount)
            .await
            .with_context(|| format!("the heavy client's rows; the nodes printed:\n{}", stage.output()))?;
        stage.settle().await?;
        self.stage = Some(stage);
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let load = self.load();
        let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
        stage.rest().await?;
        let (table, seconds) = (load.table.clone(), (load.warm_up + load.duration).as_secs_f64());
        let before = stage.terms(&table).await?;
        stage.forget_peaks()?;
        let noise = Noise::start(*case, stage.addresses(), self.amount);
        let run = stage.run(context, case.to_string(), load).await;
        let done = tokio::task::spawn_blocking(|| noise.map(Noise::finish).transpose()).await??;
        let mut run = run?;
        // What is judged is whether gets are within the limit, however much faster they are.
        let lag_max_us = LAG_SHARE_MAX * P99_MAX_MS * 1e3;
        run.void.take_if(|_| run.send_lag_us.as_ref().is_some_and(|lag| lag.p99 <= lag_max_us));
        let after = stage.terms(&table).await?;
        let moves = after.iter().zip(&before).filter(|(after, before)| after != before).count();
        run.extra.insert(figure::MOVES.to_owned(), moves as f64);
        run.extra.insert(figure::MEMORY.to_owned(), stage.peak_mib()?);
        run.extra.extend(done.map(|done| (figure::DONE.to_owned(), done as f64 / seconds)));
        Ok(vec![run])
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        vec![table(self.amount, runs)]
    }
}

fn table(amount: Amount, runs: &[Run]) -> Table {
    let row = |case: Case| {
        let name = case.to_string();
        let own: Vec<_> = runs.iter().filter(|run| run.variant == name).collect();
        let latency = |figure: fn(&hedgerow_report::Latency) -> f64| {
            Spread::of_runs(&own, |run| run.operations.first().map(|it| figure(&it.latency_us) / 1e3))
        };
        let extra = |figure: &str| Spread::of_runs(&own, |run| run.extra.get(figure).copied());
        let (p99, moves) = (latency(|it| it.p99)?, extra(figure::MOVES));
        let is_met = p99.median <= P99_MAX_MS && moves.is_some_and(|moves| moves.max == 0.0);
        let verdict = if is_met { "met" } else { "MISSED" };
        let cells = [
            or_na(latency(|it| it.p50)),
            or_na(Some(p99)),
            or_na(latency(|it| it.max)),
            or_na(moves),
            or_na(extra(figure::MEMORY)),
            or_na(extra(figure::DONE)),
            format!("p99 <= {P99_MAX_MS} ms, no leadership moved: {verdict}"),
        ];
        Some(std::iter::once(name).chain(cells).collect())
    };
    let columns = ["heavy client", "p50 ms", "p99 ms", "max ms", figure::MOVES, figure::MEMORY, figure::DONE, "target"];
    let notes = vec![format!(
        "{GETS_PER_S} linearizable gets per second of {HOT_ROWS} rows, at {NODE_COUNT} nodes, beside one client that does one \
         thing after the other: batch_get of 10,000 of {} rows of a kilobyte; counts the {} rows of one hash key; makes and drops \
         tables of 64 partitions; asks for 512 replies of a megabyte and reads none; sends 2,000 conditional writes at a time \
         that each return a row of a megabyte. Rows that no cache of a node has come from the page cache. Median (min-max) of \
         the repetitions.",
        amount.cold_rows, amount.wide_rows,
    )];
    Table {
        title: "Gets of others beside one heavy client".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: Case::ALL.into_iter().filter_map(row).collect(),
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_report::{Latency, Operation};

    fn run(case: Case, p99_ms: f64, moves: f64) -> Run {
        let latency_us = Latency { p99: p99_ms * 1e3, ..Latency::default() };
        Run {
            variant: case.to_string(),
            operations: vec![Operation { count: 10_000, latency_us, ..Operation::default() }],
            extra: [(figure::MOVES.to_owned(), moves)].into(),
            ..Run::default()
        }
    }

    #[test]
    fn a_slow_get_or_a_moved_leadership_misses_the_target() {
        let runs = [
            run(Case::Alone, 1.0, 0.0),
            run(Case::Batch, 5.1, 0.0),
            run(Case::Count, 2.0, 1.0),
            run(Case::Drop, 5.0, 0.0),
        ];
        let table = table(Amount { cold_rows: 1, wide_rows: 1 }, &runs);
        let verdicts: Vec<_> = table.rows.iter().map(|row| row[7].rsplit(": ").next().unwrap()).collect();
        assert_eq!(verdicts, ["met", "MISSED", "MISSED", "met"]);
    }
}
