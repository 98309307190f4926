//! What an experiment is: what it compares, and how one variant is measured once.

use anyhow::Result;
use hedgerow_report::{Folder, Run, Table};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A smoke run of less than a minute: it shows that everything works, its figures mean little.
    Quick,
    /// What the figures in the documents come from.
    Full,
}

/// What a person wants to know before starting an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// What `hedgerow experiment` calls it.
    pub name: &'static str,
    /// The question that it answers, one line.
    pub question: &'static str,
    /// What it needs of the machine: memory, disk, what must be installed.
    pub needs: &'static str,
}

/// Variants that are compared with each other; they take turns.
#[derive(Clone, Debug)]
pub struct Group<C> {
    /// Its name, for progress and for `--only`.
    pub name: String,
    /// From the base of the comparison on.
    pub variants: Vec<Variant<C>>,
}

/// One thing that is compared with others.
#[derive(Clone, Debug)]
pub struct Variant<C> {
    /// Its name, for example `connections=64`.
    pub name: String,
    /// How long preparing it should take. Only the time left that is shown depends on it.
    pub prepare_expected: Duration,
    /// How long one turn should take.
    pub measure_expected: Duration,
    /// What the experiment knows it by.
    pub case: C,
}

/// Where an experiment's turn takes place.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Where results go.
    pub folder: &'a Folder,
    /// Of everything that is drawn. Each repetition has its own, the same for all variants.
    pub seed: u64,
    /// From 1; 0 while preparing.
    pub repetition: u32,
    /// When the experiment began.
    pub began: Instant,
    /// The runs of this turn that were void before and are measured again; empty when it is measured for the first time.
    pub again: &'a [Run],
}

impl Context<'_> {
    /// Whether this run has to be measured: all of them at first, then those that were void.
    #[must_use]
    pub fn is_wanted(&self, variant: &str, workload: &str) -> bool {
        self.again.is_empty() || self.again.iter().any(|run| run.variant == variant && run.workload == workload)
    }

    /// Seconds since the experiment began.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        (crate::clock::now() - self.began).as_secs_f64()
    }
}

/// An experiment. It owns its clusters; dropping it ends their processes and removes their data.
pub trait Experiment {
    /// What it knows a variant by.
    type Case;

    /// What a person wants to know.
    fn description(&self) -> Description;

    /// What is compared, in the order in which it is measured.
    fn groups(&self) -> Vec<Group<Self::Case>>;

    /// The text of the workload files, by the name that runs refer to.
    fn workloads(&self) -> BTreeMap<String, String>;

    /// The text of the fault plan, if there is one. Asked for in the end, because a plan may depend on who leads.
    fn fault_plan(&self) -> Option<String> {
        None
    }

    /// Makes everything ready that all turns of a variant need. Called once per variant, when its group begins.
    fn prepare(&mut self, context: &Context<'_>, case: &Self::Case) -> impl Future<Output = Result<()>>;

    /// Takes one turn: one or several runs, those that are wanted (see [`Context::is_wanted`]). May be dropped at any await
    /// when the experiment is interrupted.
    fn measure(&mut self, context: &Context<'_>, case: &Self::Case) -> impl Future<Output = Result<Vec<Run>>>;

    /// Tables of its own for `runs`, of which some may be missing after an interruption.
    fn tables(&self, runs: &[Run]) -> Vec<Table>;
}

impl<C> Group<C> {
    /// How long the group should take.
    #[must_use]
    pub fn expected(&self, repetitions: u32) -> Duration {
        self.variants.iter().map(|variant| variant.prepare_expected + variant.measure_expected * repetitions).sum()
    }
}
