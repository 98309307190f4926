//! `backup-request` (X1) and `backup-request-batch` (X2): what a copy of a slow read brings and costs.
//!
//! Each row of the published tests is a group. A rate that two cores bear with time left, the same for all variants, is
//! offered as an open loop, while a node stands still once in each run, so seldom and so long that the p99.9 of reads is
//! ordinary service and their p99.99 is the stall. The run without extra attempts comes first in each
//! repetition, and the p99.9 of its reads is the delay of the others. Closed loops with and without extra attempts take
//! turns beside them, because the published test was one and lost throughput.
//!
//! The open loops are about p99.9 and above ([`crate::hedged::JUDGED`]): lower percentiles are left out or told with the lag.
//!
//! Each row is measured with copies at most a second old, as Pegasus' clients get them, and with linearizable ones.

mod cases;
mod published;
mod stalls;
mod tables;

use crate::experiment::{Context, Description, Experiment, Group, Size, Variant as Turns};
use crate::hedged::{Offered, p999_of};
use crate::options::Options;
use crate::stage::Stage;
use anyhow::{Context as _, Result};
use cases::{BATCH, CLIENTS, Length, NODE_COUNT, Row, SET, Variant};
use hedgerow_bench::{Arrivals, Load, Reading, Workload};
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// What `hedgerow experiment` calls the test with get and set.
pub(super) const NAME: &str = "backup-request";
/// The same of `multi_get` and `batch_set`.
pub(super) const NAME_BATCH: &str = "backup-request-batch";
/// Reads that p99.99 needs, and some more.
const READS_WANTED: f64 = 1_030_000.0;
/// The most that is offered, as a part of what the closed loop reached: the machine has to have time left.
const SHARE_MAX: f64 = 0.5;
/// The delay before anything has been measured.
const DELAY_UNKNOWN: Duration = Duration::from_millis(5);
/// How long starting the cluster and writing its rows should take, for the time left only.
const START_EXPECTED: Duration = Duration::from_secs(8);
/// Which variants of the closed loop follow each other; the first one is not hedged, and gives the delay.
const CLOSED: [Variant; 4] = [Variant::Off, Variant::Backup, Variant::Backup, Variant::Off];

/// How much is measured.
struct Extent {
    rows: u64,
    warm_up: Duration,
    /// Of an open run.
    duration_min: Duration,
    duration_max: Duration,
    /// Of an open run of a variant whose p99.99 is not wanted.
    short: Duration,
    closed: Duration,
    /// Of the closed loop that says how much the machine bears.
    probe: Duration,
}

const FULL: Extent = Extent {
    rows: 100_000,
    warm_up: Duration::from_secs(1),
    duration_min: Duration::from_secs(60),
    duration_max: Duration::from_secs(200),
    short: Duration::from_secs(20),
    closed: Duration::from_secs(1),
    probe: Duration::from_secs(2),
};

const QUICK: Extent = Extent {
    rows: 2_000,
    warm_up: Duration::from_millis(100),
    duration_min: Duration::from_millis(300),
    duration_max: Duration::from_millis(300),
    short: Duration::from_millis(300),
    closed: Duration::from_millis(150),
    probe: Duration::from_millis(200),
};

/// One variant of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    row: &'static Row,
    variant: Variant,
    length: Length,
}

/// The experiment, with either kind of rows.
pub(super) struct BackupRequest {
    name: &'static str,
    rows: &'static [Row],
    extent: &'static Extent,
    repetitions: u32,
    seed: u64,
    settings: Settings,
    stage: Option<Stage>,
    /// Where histograms lie, once there are any.
    folder: PathBuf,
    /// By what is asked and how wide the closed loop is.
    offered: BTreeMap<(&'static str, u32), Offered>,
    /// The p99.9 without extra attempts, by row.
    delays: BTreeMap<&'static str, Duration>,
}

impl BackupRequest {
    pub(super) fn set(options: &Options) -> Self {
        Self::new(NAME, &SET, options)
    }

    pub(super) fn batch(options: &Options) -> Self {
        Self::new(NAME_BATCH, &BATCH, options)
    }

    fn new(name: &'static str, rows: &'static [Row], options: &Options) -> Self {
        let settings = Settings {
            base: options.data.clone(),
            further_config: "[faults]\nallowed = true\n".to_owned(),
            ..Settings::of_binary(options.binary.clone(), NODE_COUNT)
        };
        Self {
            name,
            rows,
            extent: match options.size {
                Size::Quick => &QUICK,
                Size::Full => &FULL,
            },
            repetitions: options.repetitions(),
            seed: options.seed,
            settings,
            stage: None,
            folder: PathBuf::new(),
            offered: BTreeMap::new(),
            delays: BTreeMap::new(),
        }
    }

    fn workload(&self, row: &Row, name: String) -> Workload {
        let mut workload = Workload::named(row.workload).expect("it comes with the generator");
        workload.table.rows = self.extent.rows;
        workload.name = name;
        workload
    }

    /// A closed loop of the row's width, as `variant` reads.
    fn closed(&self, row: &Row, variant: Variant) -> Load {
        Load {
            reading: Reading { is_uncounted: true, ..variant.reading() },
            connections: Some(CLIENTS),
            duration: self.extent.closed,
            warm_up: self.extent.warm_up / 4,
            table: self.name.to_owned(),
            ..Load::new(self.workload(row, row.closed_name()), Arrivals::clients(row.threads * CLIENTS))
        }
    }

    /// The open loop of a turn.
    fn open(&self, case: &Case, offered: Offered) -> Result<Load> {
        let delay = self.delays.get(case.row.name).copied().unwrap_or(DELAY_UNKNOWN);
        let load = Load {
            reading: case.variant.reading(),
            hedging: case.variant.hedging(delay, offered)?,
            duration: self.duration(case, offered),
            warm_up: self.extent.warm_up,
            workload: self.workload(case.row, case.row.open_name()),
            ..self.closed(case.row, case.variant)
        };
        Ok(offered.apply(load))
    }

    /// So long that all repetitions together have the reads that p99.99 needs, where that is wanted.
    fn duration(&self, case: &Case, offered: Offered) -> Duration {
        match case.length {
            Length::Short => self.extent.short,
            Length::Full => {
                let reads_per_s = offered.per_s * self.read_share(case.row) * f64::from(self.repetitions);
                let wanted = Duration::from_secs_f64((READS_WANTED / reads_per_s.max(1.0)).min(1e6));
                wanted.clamp(self.extent.duration_min, self.extent.duration_max)
            }
        }
    }

    /// Reads, as a part of all requests.
    fn read_share(&self, row: &Row) -> f64 {
        let shares = self.workload(row, row.open_name()).operations;
        let (reads, writes) = (shares.get + shares.multi_get, shares.set + shares.batch_set);
        f64::from(reads) / f64::from(reads + writes).max(1.0)
    }

    fn offered(&self, row: &Row) -> Option<Offered> {
        self.offered.get(&(row.workload, row.threads)).copied()
    }

    /// The open run of a turn.
    async fn run_open(&mut self, context: &Context<'_>, case: &Case) -> Result<Run> {
        let offered = self.offered(case.row).context("the row is calibrated before its first turn")?;
        let load = self.open(case, offered)?;
        let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
        let name = case.variant.to_string();
        if !case.variant.meets_stalls() {
            return stage.run(context, name, load).await;
        }
        let plan = stalls::plan(case.row.stalls, load.duration, load.warm_up, context.seed)?;
        let before = stage.read_counts().await?;
        let mut run = stage.run_under(context, name, load, &plan).await?;
        before.tell(stage.read_counts().await?, &mut run);
        Ok(run)
    }

    /// Closed loops with and without extra attempts, in turns, so that each pair has the same machine.
    async fn run_closed(&mut self, context: &Context<'_>, row: &Row) -> Result<Vec<Run>> {
        let offered = self.offered(row).context("the row is calibrated before its first turn")?;
        let mut runs: Vec<Run> = Vec::new();
        let mut delay = DELAY_UNKNOWN;
        for (index, variant) in (0..).zip(CLOSED) {
            let closed = self.closed(row, variant);
            // The budget of the open loop would be too small for a rate that is so much higher.
            let at_most = Offered { per_s: offered.per_s / offered.share, ..offered };
            let load = Load { hedging: variant.hedging(delay, at_most)?, ..closed };
            let repetition = 2 * context.repetition - u32::from(index < 2);
            let context = Context { repetition, ..*context };
            let stage = self.stage.as_mut().context("the cluster is started before the first turn")?;
            let run = stage.run(&context, variant.to_string(), load).await?;
            if index == 0 {
                delay = p999_of(&self.folder, &run, row.read.name()).unwrap_or(delay);
            }
            runs.push(run);
        }
        Ok(runs)
    }
}

impl Experiment for BackupRequest {
    type Case = Case;

    fn description(&self) -> Description {
        let question = if self.name == NAME {
            "what a second copy of a slow get brings and costs, beside the published figures"
        } else {
            "the same for multi_get, beside batch_set"
        };
        Description { name: self.name, question, needs: "2 GiB of memory and 4 GiB of disk; nothing else running" }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let mut start = START_EXPECTED;
        let calibration = self.extent.probe + self.extent.warm_up / 4;
        let group = |row: &'static Row| {
            let mut prepare = std::mem::take(&mut start) + calibration;
            let variant = |(variant, length): &(Variant, Length)| {
                let case = Case { row, variant: *variant, length: *length };
                let closed = self.extent.closed + self.extent.warm_up / 4;
                let all_closed = if has_closed(&case) { closed * CLOSED.len() as u32 } else { Duration::ZERO };
                let open = match length {
                    Length::Full => row.expected.clamp(self.extent.duration_min, self.extent.duration_max),
                    Length::Short => self.extent.short,
                };
                Turns {
                    name: variant.to_string(),
                    prepare_expected: std::mem::take(&mut prepare),
                    measure_expected: open + self.extent.warm_up + all_closed,
                    case,
                }
            };
            Group { name: row.name.to_owned(), variants: row.variants.iter().map(variant).collect() }
        };
        self.rows.iter().map(group).collect()
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        let names = self.rows.iter().flat_map(|row| {
            let closed = (row.stalls == cases::Stalls::Rare).then(|| row.closed_name());
            std::iter::once(row.open_name()).chain(closed).map(move |name| (row, name))
        });
        names.map(|(row, name)| (name.clone(), self.workload(row, name).text())).collect()
    }

    fn fault_plan(&self) -> Option<String> {
        let head = "# A run has the fault of its row only. The seed is the first repetition's; each further one's is one more.\n";
        let mut text = format!("{head}{}", stalls::head(self.seed.wrapping_add(1)));
        for row in self.rows {
            let Some(offered) = self.offered(row) else { continue };
            let (variant, length) = row.variants[0];
            let duration = self.duration(&Case { row, variant, length }, offered);
            text.push_str(&format!("# Row {}, runs of {} ms.\n", row.name, duration.as_millis()));
            text.push_str(&stalls::fault(row.stalls, duration, self.extent.warm_up));
            text.push('\n');
        }
        Some(text)
    }

    async fn prepare(&mut self, context: &Context<'_>, case: &Case) -> Result<()> {
        self.folder = context.folder.path().to_owned();
        let load = self.closed(case.row, Variant::Off);
        if self.stage.is_none() {
            let mut stage = Stage::prepare(self.settings.clone())?;
            stage.start().await?;
            stage.write_rows(&Load { seed: context.seed, ..load.clone() }, "the table").await?;
            stage.settle().await?;
            stage.rest().await?;
            self.stage = Some(stage);
        }
        let key = (case.row.workload, case.row.threads);
        if !self.offered.contains_key(&key) {
            let stage = self.stage.as_mut().context("it was just started")?;
            let probe = Load { duration: self.extent.probe, ..load };
            let closed = stage.measure(context, probe).await?.achieved_per_s().max(1.0);
            let per_s = case.row.per_s.min(closed * SHARE_MAX);
            let offered = Offered { per_s, share: per_s / closed };
            self.offered.insert(key, offered);
        }
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        let name = case.variant.to_string();
        if context.is_wanted(&name, &case.row.open_name()) {
            let run = self.run_open(context, case).await?;
            if case.variant == Variant::Off
                && let Some(delay) = p999_of(&self.folder, &run, case.row.read.name())
            {
                self.delays.insert(case.row.name, delay);
            }
            runs.push(run);
        }
        let is_closed_wanted = [Variant::Off, Variant::Backup]
            .iter()
            .any(|variant| context.is_wanted(&variant.to_string(), &case.row.closed_name()));
        if has_closed(case) && is_closed_wanted {
            runs.extend(self.run_closed(context, case.row).await?);
        }
        runs.iter_mut().for_each(|run| self.tell(case.row, run));
        Ok(runs)
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        tables::all(self, runs)
    }
}

impl BackupRequest {
    /// Adds what the run was made with.
    fn tell(&self, row: &Row, run: &mut Run) {
        if let (Some(delay), Some(_)) = (self.delays.get(row.name), &run.offered_per_s) {
            run.extra.insert("delay_p999_off_ms".to_owned(), delay.as_secs_f64() * 1e3);
        }
    }
}

/// Whether the closed loops of the row belong to this variant's turn.
fn has_closed(case: &Case) -> bool {
    case.variant == Variant::Backup && case.row.stalls == cases::Stalls::Rare
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_bench::Hedging;

    fn both(size: Size) -> [BackupRequest; 2] {
        let options = Options::of_size(size);
        [BackupRequest::set(&options), BackupRequest::batch(&options)]
    }

    const OFFERED: Offered = Offered { per_s: 8_000.0, share: 0.14 };

    #[test]
    fn every_load_can_be_run() {
        for experiment in [Size::Full, Size::Quick].into_iter().flat_map(both) {
            for case in experiment.groups().into_iter().flat_map(|group| group.variants).map(|variant| variant.case) {
                experiment.open(&case, OFFERED).unwrap().check().unwrap();
                experiment.closed(case.row, case.variant).check().unwrap();
                assert!(experiment.workloads().contains_key(&case.row.open_name()));
            }
        }
    }

    #[test]
    fn all_repetitions_together_read_a_million_times_where_p9999_is_wanted() {
        let [set, _] = both(Size::Full);
        let case = Case { row: &SET[0], variant: Variant::Off, length: Length::Full };
        let duration = set.duration(&case, OFFERED);
        assert!((171.0..172.0).contains(&duration.as_secs_f64()), "{duration:?}");
        assert!(duration.as_secs_f64() * 8_000.0 / 4.0 * 3.0 > 1_000_000.0);
        let slow = Offered { per_s: 1_000.0, ..OFFERED };
        assert_eq!(set.duration(&case, slow), FULL.duration_max);
        let fast = Offered { per_s: 150_000.0, ..OFFERED };
        assert_eq!(set.duration(&case, fast), FULL.duration_min);
        assert_eq!(set.duration(&Case { length: Length::Short, ..case }, OFFERED), FULL.short);
    }

    #[test]
    fn the_run_without_extra_attempts_comes_first() {
        for experiment in both(Size::Full) {
            for group in experiment.groups() {
                assert_eq!(group.variants[0].case.variant, Variant::Off, "{}", group.name);
            }
        }
    }

    #[test]
    fn both_experiments_take_less_than_an_hour_and_a_half() {
        let groups = both(Size::Full).into_iter().flat_map(|experiment| experiment.groups());
        let expected: Duration = groups.map(|group| group.expected(3)).sum();
        assert!(expected < Duration::from_secs(5_400), "{expected:?}");
    }

    #[test]
    fn whoever_meets_a_rare_stall_meets_one_of_the_same_length() {
        let rare = SET.iter().chain(&BATCH).filter(|row| row.stalls == cases::Stalls::Rare);
        for (variant, length) in rare.flat_map(|row| row.variants) {
            assert_eq!(variant.meets_stalls(), *length == Length::Full, "{variant}");
        }
    }

    #[test]
    fn the_told_plan_can_be_read() {
        let [mut set, _] = both(Size::Full);
        set.offered.insert((SET[0].workload, SET[0].threads), OFFERED);
        let plan = hedgerow_faults::Plan::parse(&set.fault_plan().unwrap()).unwrap();
        assert_eq!(plan.faults.len(), 1);
    }

    #[test]
    fn hedging_is_off_where_nothing_is_hedged() {
        for (variant, _) in SET[2].variants.iter().chain(SET[3].variants) {
            let is_off = variant.hedging(DELAY_UNKNOWN, OFFERED).unwrap() == Hedging::default();
            assert_eq!(is_off, matches!(variant, Variant::Off | Variant::Selection | Variant::Oracle), "{variant}");
        }
    }
}
