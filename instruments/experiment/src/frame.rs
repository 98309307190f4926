//! The frame: carries out an experiment's turns, interleaved and repeated, and makes the outcome.

use crate::checks::{self, Ending};
use crate::clock::now;
use crate::experiment::{Context, Experiment, Group, Size, Variant};
use crate::options::Options;
use crate::progress::{Event, Progress};
use anyhow::{Result, ensure};
use hedgerow_report::{Folder, Outcome, Run};
use std::time::Duration;
use tokio::time::Instant;

/// Turns of a variant in one repetition at most: a void run gets one more chance, except in a quick run, whose figures
/// mean little anyway.
const fn turns_max(size: Size) -> u32 {
    match size {
        Size::Quick => 1,
        Size::Full => 2,
    }
}

/// What an experiment has brought.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its figures; also in the folder.
    pub outcome: Outcome,
    /// Where everything lies.
    pub folder: Folder,
    /// How it ended.
    pub ending: Ending,
}

/// Carries `experiment` out and leaves a folder with the results, also when it is cut short: by `interrupted` becoming
/// ready, or by an error. The results then say so, in the title and as a failed check.
///
/// Fails if the options do not fit the experiment, or the results cannot be written.
pub async fn conduct<E: Experiment>(
    mut experiment: E,
    options: &Options,
    interrupted: impl Future<Output = ()>,
    mut listener: impl FnMut(Event),
) -> Result<Finished> {
    let groups = choose(experiment.groups(), &options.only)?;
    ensure!(options.repetitions() > 0, "--repetitions: at least 1 is needed");
    let description = experiment.description();
    let folder = Folder::create(&options.results, description.name)?;
    let title = format!("{}: {}", description.name, description.question);
    let mut outcome = Outcome::new(&title, options.command.clone(), options.seed);
    outcome.workloads = experiment.workloads();
    let mut conductor = Conductor {
        options,
        folder: &folder,
        began: now(),
        progress: Progress::default(),
        done: 0,
        total: 0,
        listener: &mut listener,
    };
    conductor.announce(&groups);
    let mut runs = Vec::new();
    let result = tokio::select! {
        result = conductor.take_all(&mut experiment, &groups, &mut runs) => result.map(|()| Ending::Complete),
        () = interrupted => Ok(Ending::Interrupted),
    };
    let ending = result.unwrap_or_else(|error| Ending::Failed(format!("{error:#}")));
    let turns = conductor.done;
    let total = conductor.total;
    outcome.runs = runs;
    outcome.fault_plan = experiment.fault_plan();
    outcome.tables = experiment.tables(&outcome.runs);
    outcome.checks = vec![checks::is_complete(&ending, turns, total)];
    outcome.checks.extend(checks::of_runs(&outcome.runs));
    if ending != Ending::Complete {
        outcome.title += " (partial)";
    }
    // Ended before anything is drawn: what is left of the clusters must not outlive an interruption by long.
    drop(experiment);
    folder.write(&outcome)?;
    Ok(Finished { outcome, folder, ending })
}

/// The groups that are named, or all.
fn choose<C>(groups: Vec<Group<C>>, only: &[String]) -> Result<Vec<Group<C>>> {
    let names: Vec<String> = groups.iter().map(|group| group.name.clone()).collect();
    for name in only {
        ensure!(names.contains(name), "--only {name}: the experiment has the groups {}", names.join(", "));
    }
    let is_wanted = |group: &Group<C>| only.is_empty() || only.contains(&group.name);
    Ok(groups.into_iter().filter(is_wanted).collect())
}

struct Conductor<'a> {
    options: &'a Options,
    folder: &'a Folder,
    began: Instant,
    progress: Progress,
    /// Steps that have ended.
    done: usize,
    total: usize,
    listener: &'a mut dyn FnMut(Event),
}

impl<'a> Conductor<'a> {
    fn announce<C>(&mut self, groups: &[Group<C>]) {
        for variant in groups.iter().flat_map(|group| &group.variants) {
            self.progress.add(variant.prepare_expected);
            (0..self.options.repetitions()).for_each(|_| self.progress.add(variant.measure_expected));
            self.total += 1 + self.options.repetitions() as usize;
        }
    }

    async fn take_all<E: Experiment>(
        &mut self,
        experiment: &mut E,
        groups: &[Group<E::Case>],
        runs: &mut Vec<Run>,
    ) -> Result<()> {
        for group in groups {
            for variant in &group.variants {
                self.say(format!("{}: preparing {}", group.name, variant.name));
                let (context, began) = (self.context(0), now());
                experiment.prepare(&context, &variant.case).await?;
                self.finish(variant.prepare_expected, began);
            }
            for repetition in 1..=self.options.repetitions() {
                for variant in &group.variants {
                    let of = self.options.repetitions();
                    self.say(format!("{}: {}, repetition {repetition} of {of}", group.name, variant.name));
                    runs.extend(self.turn(experiment, variant, repetition).await?);
                }
            }
        }
        Ok(())
    }

    /// One turn; what was void gets another one.
    async fn turn<E: Experiment>(
        &mut self,
        experiment: &mut E,
        variant: &Variant<E::Case>,
        repetition: u32,
    ) -> Result<Vec<Run>> {
        let began = now();
        let (mut kept, mut again) = (Vec::new(), Vec::new());
        for turns_left in (0..turns_max(self.options.size)).rev() {
            let context = Context { again: &again, ..self.context(repetition) };
            let runs = experiment.measure(&context, &variant.case).await?;
            let (void, sound): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(|run| run.void.is_some());
            kept.extend(sound);
            void.iter().for_each(|run| self.say_void(run, turns_left > 0));
            again = void;
            if again.is_empty() {
                break;
            }
        }
        kept.extend(again);
        self.finish(variant.measure_expected, began);
        Ok(kept)
    }

    fn say_void(&mut self, run: &Run, is_repeated: bool) {
        let why = run.void.as_deref().unwrap_or_default();
        let then = if is_repeated { " and is repeated" } else { "" };
        (self.listener)(Event::Remark(format!("{}, {}, was VOID{then}: {why}", run.variant, run.workload)));
    }

    fn finish(&mut self, expected: Duration, began: Instant) {
        self.progress.finish(expected, now() - began);
        self.done += 1;
    }

    fn context(&self, repetition: u32) -> Context<'a> {
        // Repetitions differ in what they draw, variants of one repetition do not.
        let seed = self.options.seed.wrapping_add(u64::from(repetition));
        Context { folder: self.folder, seed, repetition, began: self.began, again: &[] }
    }

    fn say(&mut self, what: String) {
        let (done, total, left) = (self.done, self.total, self.progress.left());
        (self.listener)(Event::Step { what, done, total, left });
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
