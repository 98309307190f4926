//! Two clusters that differ in one setting stand side by side and are measured in turns.

use crate::experiment::Context;
use crate::stage::Stage;
use crate::summary::Spread;
use anyhow::Result;
use hedgerow_bench::{Load, cpu};
use hedgerow_report::{Latency, Run};
use hedgerow_testkit::Settings;

/// Whose turn it is in a round, so that neither is always the first.
const ROUND: [usize; 4] = [0, 1, 1, 0];

/// CPU microseconds of the node's busiest thread for each request, in a run's further figures: more requests than fill a second of it are not
/// served, however many cores there are.
const BUSIEST_THREAD: &str = "busiest_thread_cpu_us";

/// The clusters.
pub(crate) struct Pair([Stage; 2]);

impl Pair {
    /// Runs of each [`Pair::measure`].
    pub(crate) const TURNS: u32 = ROUND.len() as u32;

    /// Starts both, with the rows of `load`, and waits until they have come to rest.
    pub(crate) async fn start(context: &Context<'_>, settings: [Settings; 2], load: Load) -> Result<Self> {
        let load = Load { seed: context.seed, ..load };
        let [first, second] = settings;
        let mut stages = [Self::start_one(first, &load).await?, Self::start_one(second, &load).await?];
        for stage in &mut stages {
            stage.rest().await?;
        }
        Ok(Self(stages))
    }

    async fn start_one(settings: Settings, load: &Load) -> Result<Stage> {
        let mut stage = Stage::prepare(settings)?;
        stage.start().await?;
        stage.write_rows(load, "the table").await?;
        stage.settle().await?;
        Ok(stage)
    }

    /// Runs `load` on both in turns, there and back; each is called by one of the `names`.
    pub(crate) async fn measure(&mut self, context: &Context<'_>, names: [String; 2], load: &Load) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for (index, which) in (0..).zip(ROUND) {
            let repetition = (context.repetition - 1) * 2 + index / 2 + 1;
            let context = Context { repetition, ..*context };
            runs.push(Self::measure_one(&mut self.0[which], &context, names[which].clone(), load).await?);
        }
        Ok(runs)
    }

    /// With the part that the busiest thread of all nodes has in what they use, warm-up included.
    async fn measure_one(stage: &mut Stage, context: &Context<'_>, name: String, load: &Load) -> Result<Run> {
        let before = stage.cpu_of_threads()?;
        let mut run = stage.run(context, name, load.clone()).await?;
        let used = cpu::between(&before, &stage.cpu_of_threads()?);
        let busiest = used.values().copied().fold(0.0, f64::max) / used.values().sum::<f64>().max(f64::MIN_POSITIVE);
        if let Some(all) = run.server_cpu_us_per_request() {
            run.extra.insert(BUSIEST_THREAD.to_owned(), busiest * all);
        }
        Ok(run)
    }
}

/// The run of `base` that stood beside `run`.
pub(crate) fn neighbour<'a>(runs: &'a [Run], base: &str, run: &Run) -> Option<&'a Run> {
    runs.iter().find(|other| other.variant == base && other.repetition == run.repetition)
}

/// The figures of a variant.
pub(crate) struct Figures {
    pub(crate) per_s: Spread,
    pub(crate) p50_ms: Option<Spread>,
    pub(crate) p99_ms: Option<Spread>,
    pub(crate) server_cpu_us: Option<Spread>,
    pub(crate) busiest_thread_cpu_us: Option<Spread>,
    pub(crate) generator_cpu_us: Option<Spread>,
    /// Its throughput against that of the runs beside its own.
    pub(crate) ratio: Option<Spread>,
}

impl Figures {
    /// Those of `variant`, with ratios to `base`; `None` if it was not measured. The base itself has no ratio.
    pub(crate) fn of(runs: &[Run], variant: &str, base: &str) -> Option<Self> {
        let own: Vec<_> = runs.iter().filter(|run| run.variant == variant).collect();
        let latency = |figure: fn(&Latency) -> f64| {
            Spread::of_runs(&own, |run| run.operations.first().map(|it| figure(&it.latency_us) / 1e3))
        };
        let ratio = Spread::of_runs(&own, |run| Some(run.achieved_per_s / neighbour(runs, base, run)?.achieved_per_s));
        Some(Self {
            per_s: Spread::of_runs(&own, |run| Some(run.achieved_per_s))?,
            p50_ms: latency(|it| it.p50),
            p99_ms: latency(|it| it.p99),
            server_cpu_us: Spread::of_runs(&own, Run::server_cpu_us_per_request),
            busiest_thread_cpu_us: Spread::of_runs(&own, |run| run.extra.get(BUSIEST_THREAD).copied()),
            generator_cpu_us: Spread::of_runs(&own, Run::generator_cpu_us_per_request),
            ratio: ratio.filter(|_| variant != base),
        })
    }

    /// Whether as much of the base's throughput was reached as is `wanted`.
    pub(crate) fn verdict(&self, wanted: Option<f64>) -> String {
        let of = |(wanted, ratio): (f64, Spread)| {
            format!(">= x{wanted}: {}", if ratio.median >= wanted { "met" } else { "MISSED" })
        };
        wanted.zip(self.ratio).map_or_else(|| "none".to_owned(), of)
    }
}
