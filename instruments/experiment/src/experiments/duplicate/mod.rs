//! `duplicate`: what it costs a table's writes that it is duplicated to another cluster, how soon they are there, and how fast a table is
//! copied; and that nothing is lost or doubled while the other cluster is killed twice.
//!
//! Both clusters and the generator share the machine: a cluster that is told takes its processor from the one that tells.

mod pair;
mod tables;
mod told;

use crate::clock::now;
use crate::experiment::{Context, Description, Experiment, Group, Size, Variant};
use crate::options::Options;
use anyhow::{Context as _, Result};
use hedgerow_bench::{Arrivals, Load, Spacing, Workload};
use hedgerow_report::{Run, Table};
use hedgerow_testkit::Settings;
use pair::Pair;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What `hedgerow experiment` calls it.
pub(super) const NAME: &str = "duplicate";
/// Nodes of each cluster.
const NODE_COUNT: usize = 3;
/// Clients of the closed loops, which share one connection to each node.
const CLIENTS: u32 = 64;
/// Rates of the open loops, puts per second.
const RATES: [u32; 2] = [200, 1_000];
/// Requests in flight at most in an open loop.
const IN_FLIGHT_MAX: u32 = 4_096;

/// Names of further figures.
mod figure {
    /// How long after the last write the other cluster had everything.
    pub(super) const CAUGHT_UP: &str = "caught_up_s";
    /// CPU of the other cluster's nodes for each write.
    pub(super) const CPU_THERE: &str = "other_cluster_cpu_us";
    /// From before a write until it is read there, of writes beside the load.
    pub(super) const VISIBLE: [&str; 3] = ["visible_p50_ms", "visible_p99_ms", "visible_max_ms"];
    /// From when a table is to be duplicated until all of it is there.
    pub(super) const COPIED: &str = "copied_s";
    pub(super) const ROWS: &str = "rows";
    pub(super) const MIB: &str = "mib";
    /// Additions that were acknowledged beside a copy.
    pub(super) const ADDED: &str = "added";
}

/// What becomes of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The table is not duplicated.
    Alone,
    /// It is, but nothing is carried: what a write costs by itself.
    Kept,
    /// They are carried.
    Carried,
}

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// Puts as fast as clients can.
    Closed(Way),
    /// So many a second.
    Open(Way, u32),
    /// A table is copied, and nobody writes.
    Copy,
    /// A table is copied while clients write, and all nodes of the other cluster are killed twice.
    Killed,
}

impl Way {
    const ALL: [Self; 3] = [Self::Alone, Self::Kept, Self::Carried];

    /// The table that is written to.
    const fn table(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Kept => "kept",
            Self::Carried => "carried",
        }
    }
}

/// The name of the variant.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = |way| match way {
            Way::Alone => "not duplicated",
            Way::Kept => "paused",
            Way::Carried => "carried",
        };
        match self {
            Self::Closed(it) => write!(f, "put x{CLIENTS}, {}", way(*it)),
            Self::Open(it, rate) => write!(f, "{rate} puts/s, {}", way(*it)),
            Self::Copy => f.write_str("copy"),
            Self::Killed => f.write_str("copy under load, killed twice"),
        }
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
struct Pace {
    duration: Duration,
    warm_up: Duration,
    /// Rows of the tables that are written to, and of those that are copied.
    rows: u64,
    copied_rows: u64,
    /// Between the kills.
    pause: Duration,
    /// How long a copy should take, for the time left only.
    copy_expected: Duration,
}

/// The experiment.
pub(super) struct Duplicate {
    pace: Pace,
    settings: Settings,
    pair: Option<Pair>,
}

impl Duplicate {
    pub(super) fn new(options: &Options) -> Self {
        let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
        let pace = match options.size {
            Size::Quick => Pace {
                duration: millis(500),
                warm_up: millis(100),
                rows: 1_000,
                copied_rows: 2_000,
                pause: millis(500),
                copy_expected: seconds(7),
            },
            Size::Full => Pace {
                duration: seconds(5),
                warm_up: seconds(1),
                rows: 20_000,
                copied_rows: 1_000_000,
                pause: seconds(5),
                copy_expected: seconds(150),
            },
        };
        let pace = Pace { copied_rows: options.rows.unwrap_or(pace.copied_rows), ..pace };
        let settings =
            Settings { base: options.data.clone(), ..Settings::of_binary(options.binary.clone(), NODE_COUNT) };
        Self { pace, settings, pair: None }
    }

    fn workload(&self, rows: u64) -> Workload {
        let mut workload = Workload::named("put").expect("put comes with the generator");
        workload.table.rows = rows;
        workload
    }

    /// What writes the rows of a table that is copied in this turn.
    fn copied(&self, context: &Context<'_>, case: Case) -> Load {
        let kind = if case == Case::Killed { "killed" } else { "copied" };
        let table = format!("{kind}-{}", context.repetition);
        let workload = self.workload(self.pace.copied_rows);
        Load { seed: context.seed, table, ..Load::new(workload, Arrivals::clients(CLIENTS)) }
    }

    fn load(&self, case: Case) -> Option<Load> {
        let (way, arrivals) = match case {
            Case::Closed(way) => (way, Arrivals::clients(CLIENTS)),
            Case::Open(way, rate) => {
                let (rate, spacing, in_flight_max) = (rate.into(), Spacing::Poisson, IN_FLIGHT_MAX);
                (way, Arrivals::Open { rate, spacing, in_flight_max })
            }
            Case::Copy | Case::Killed => return None,
        };
        let Pace { duration, warm_up, rows, .. } = self.pace;
        let (table, connections) = (way.table().to_owned(), Some(1));
        Some(Load { table, connections, duration, warm_up, ..Load::new(self.workload(rows), arrivals) })
    }
}

impl Experiment for Duplicate {
    type Case = Case;

    fn description(&self) -> Description {
        Description {
            name: NAME,
            question: "what duplication to another cluster costs writes, how soon they are there, and how fast a table is copied",
            needs: "8 GiB of memory and 30 GiB of disk; nothing else running",
        }
    }

    fn groups(&self) -> Vec<Group<Case>> {
        let Pace { duration, warm_up, copy_expected, .. } = self.pace;
        let (second, none) = (Duration::from_secs(1), Duration::ZERO);
        let variant = |case: Case, prepare_expected, measure_expected| Variant {
            name: case.to_string(),
            prepare_expected,
            measure_expected,
            case,
        };
        let closed = Way::ALL.map(Case::Closed);
        let open = RATES.into_iter().flat_map(|rate| [Way::Alone, Way::Carried].map(|way| Case::Open(way, rate)));
        let measured = closed.into_iter().chain(open).enumerate();
        let writes = measured.map(|(index, case)| {
            variant(case, if index == 0 { 15 * second } else { none }, duration + warm_up + second)
        });
        let copies = [Case::Copy, Case::Killed].map(|case| variant(case, none, copy_expected));
        vec![
            Group { name: "writes".to_owned(), variants: writes.collect() },
            Group { name: "copies".to_owned(), variants: copies.into() },
        ]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        ["put".to_owned()].map(|name| (name, self.workload(self.pace.rows).text())).into()
    }

    async fn prepare(&mut self, context: &Context<'_>, _: &Case) -> Result<()> {
        if self.pair.is_none() {
            let pair = Pair::start(&self.settings).await?;
            for way in Way::ALL {
                let load = self.load(Case::Closed(way)).context("a closed loop has a load")?;
                pair.here.write_rows(&Load { seed: context.seed, ..load }, way.table()).await?;
            }
            pair.duplicate(Way::Kept.table()).await?;
            pair.duplicate(Way::Carried.table()).await?;
            pair.wait_until_told(Way::Kept.table()).await?;
            pair.here.command(&["table", "duplicate", "pause", Way::Kept.table(), pair::OTHER])?;
            self.pair = Some(pair);
        }
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &Case) -> Result<Vec<Run>> {
        let (load, copied, pause) = (self.load(*case), self.copied(context, *case), self.pace.pause);
        let pair = self.pair.as_mut().context("the clusters are started before the first turn")?;
        pair.here.rest().await?;
        let (begin_s, began) = (context.elapsed_s(), now());
        let run = match (case, load) {
            (Case::Closed(way) | Case::Open(way, _), Some(load)) => {
                told::measure_writes(pair, context, (case.to_string(), way.table(), *way == Way::Carried), load).await?
            }
            (_, _) => {
                let extra = told::measure_copy(pair, &copied, (*case == Case::Killed).then_some(pause)).await?;
                Run {
                    variant: case.to_string(),
                    repetition: context.repetition,
                    workload: "put".to_owned(),
                    begin_s,
                    duration_s: (now() - began).as_secs_f64(),
                    extra,
                    ..Run::default()
                }
            }
        };
        Ok(vec![run])
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        tables::all(runs)
    }
}
