//! Records a scenario, builds what crashes can leave of it and has each state checked.
#![allow(clippy::disallowed_methods, reason = "it makes files of its own, starts a process and measures its own pace")]

use crate::disk::{Choice, Disk, Image};
use crate::scenario::{Scenario, Told};
use crate::trace::{self, Event};
use anyhow::{Context, Result, bail, ensure};
use hedgerow_types::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{IsTerminal, Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Events that are shown before a crash whose remains fail.
const SHOWN_EVENTS: usize = 12;
/// How often the progress is shown on a terminal, and elsewhere.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
const PROGRESS_LINE_EVERY: Duration = Duration::from_secs(10);

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// States of each scenario that are looked at; with fewer possible ones, all of them are.
    pub(crate) samples: usize,
    pub(crate) rounds: u64,
    /// A trace from before, instead of a new one.
    pub(crate) trace: Option<PathBuf>,
    /// Only this one state.
    pub(crate) state: Option<State>,
    /// Where failing states and their traces are left.
    pub(crate) keep: PathBuf,
}

/// A moment in a trace and a way to crash there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    /// How many events have happened.
    moment: usize,
    /// Which of [`Disk::choices`].
    choice: usize,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.moment, self.choice)
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse =
            |(moment, choice): (&str, &str)| Some(Self { moment: moment.parse().ok()?, choice: choice.parse().ok()? });
        text.split_once('.').and_then(parse).ok_or_else(|| "a state is two numbers, such as 512.7".to_owned())
    }
}

/// Runs `scenario` by `plan`; whether everything held. What did not is told on standard error.
pub(crate) fn run(scenario: Scenario, plan: &Plan) -> Result<bool> {
    let started = Instant::now();
    let trace = match &plan.trace {
        Some(path) => fs::read(path).with_context(|| format!("cannot read {}", path.display()))?,
        None => record(scenario, plan)?,
    };
    let events = trace::decode(&trace);
    let counts = choice_counts(&events);
    let possible: usize = counts.values().sum();
    let chosen = choose(&counts, plan);
    eprintln!(
        "{}: {} operations, {possible} ways to crash, {} of them chosen",
        scenario.name(),
        events.iter().filter(|event| !matches!(event, Event::Marker { .. })).count(),
        chosen.len()
    );
    let place = scratch()?;
    let mut checker = Checker {
        scenario,
        plan,
        events: &events,
        place: place.path(),
        seen: BTreeSet::new(),
        failures: Vec::new(),
        shown: started,
    };
    checker.check_all(&chosen)?;
    let Checker { seen, failures, .. } = checker;
    println!(
        "{}: {} different states, {} failed, {:.1} s",
        scenario.name(),
        seen.len(),
        failures.len(),
        started.elapsed().as_secs_f64()
    );
    if let Some(failure) = failures.first() {
        fs::create_dir_all(&plan.keep)?;
        let path = plan.keep.join(format!("{}.trace", scenario.name()));
        fs::write(&path, &trace)?;
        eprintln!(
            "the trace is kept; the first failure again: hedgerow-crash --scenario {} --rounds {} --seed {} --trace {} --state {}",
            scenario.name(),
            plan.rounds,
            plan.seed,
            path.display(),
            failure
        );
    }
    Ok(failures.is_empty())
}

/// In memory where the system has such a place: what is built there is looked at once.
fn scratch() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?)
}

/// Has a process of its own drive `scenario`; its trace.
fn record(scenario: Scenario, plan: &Plan) -> Result<Vec<u8>> {
    let place = tempfile::tempdir()?;
    let (root, path) = (place.path().join("root"), place.path().join("trace"));
    fs::create_dir(&root)?;
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("--scenario").arg(scenario.name()).arg("--rounds").arg(plan.rounds.to_string());
    let status = child.arg("--record").arg(&path).arg(&root).status()?;
    ensure!(status.success(), "the recorded process failed: {status}");
    let trace = fs::read(&path)?;
    let mut disk = Disk::default();
    trace::decode(&trace).iter().for_each(|event| disk.apply(event));
    disk.image().compare(&root).context("the recorder has missed something")?;
    Ok(trace)
}

/// How many ways to crash there are after so many events, where something has changed since the moment before.
fn choice_counts(events: &[Event]) -> BTreeMap<usize, usize> {
    let mut disk = Disk::default();
    let mut counts = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        disk.apply(event);
        counts.insert(index + 1, disk.choices().len());
    }
    counts
}

/// The states to look at: all if they are few enough, otherwise a seeded sample in which the death of the process at
/// every moment comes first, then moments and choices at random.
fn choose(counts: &BTreeMap<usize, usize>, plan: &Plan) -> Vec<State> {
    if let Some(state) = plan.state {
        return vec![state];
    }
    let all = || counts.iter().flat_map(|(moment, count)| (0..*count).map(|choice| State { moment: *moment, choice }));
    if counts.values().sum::<usize>() <= plan.samples {
        return all().collect();
    }
    let mut random = Random::new(plan.seed);
    let mut chosen = BTreeSet::new();
    let moments: Vec<(usize, usize)> = counts.iter().map(|(moment, count)| (*moment, *count)).collect();
    let kills = plan.samples / 3;
    while chosen.len() < plan.samples {
        let (moment, count) = moments[random.below(moments.len() as u64) as usize];
        let is_kill = chosen.len() < kills.min(moments.len() / 2);
        let choice = if is_kill { 0 } else { random.below(count as u64) as usize };
        chosen.insert(State { moment, choice });
    }
    chosen.into_iter().collect()
}

struct Checker<'a> {
    scenario: Scenario,
    plan: &'a Plan,
    events: &'a [Event],
    place: &'a Path,
    /// States that need not be looked at again: images, with what had been told.
    seen: BTreeSet<(u64, String)>,
    failures: Vec<State>,
    shown: Instant,
}

impl Checker<'_> {
    fn check_all(&mut self, chosen: &[State]) -> Result<()> {
        let mut disk = Disk::default();
        let mut told = Told::default();
        let mut happened = 0;
        for (index, state) in chosen.iter().enumerate() {
            ensure!(state.moment <= self.events.len(), "the trace has {} events", self.events.len());
            for event in &self.events[happened..state.moment] {
                disk.apply(event);
                if let Event::Marker { text } = event {
                    told.hear(text);
                }
            }
            happened = happened.max(state.moment);
            let choices = disk.choices();
            let Some(choice) = choices.get(state.choice) else { bail!("there are {} choices", choices.len()) };
            let mut random = Random::new(self.plan.seed ^ (state.moment as u64) << 20 ^ state.choice as u64);
            let mut image = disk.crash(*choice, &mut random);
            image.prune();
            if self.seen.insert((image.hash(), told.fingerprint()))
                && let Err(error) = self.check(&image, &told)
            {
                self.report(*state, &disk, *choice, &error);
            }
            self.show_progress(index + 1, chosen.len());
        }
        Ok(())
    }

    fn check(&self, image: &Image, told: &Told) -> Result<()> {
        let root = self.place.join("state");
        image.build(&root)?;
        let result = catch_unwind(AssertUnwindSafe(|| self.scenario.check(&root, self.plan.rounds, told)));
        fs::remove_dir_all(&root)?;
        match result {
            Ok(result) => result,
            Err(_) => bail!("a panic, see above"),
        }
    }

    fn report(&mut self, state: State, disk: &Disk, choice: Choice, error: &anyhow::Error) {
        eprintln!("\n{}, state {state}: {error:#}", self.scenario.name());
        eprintln!("  lost: {}", disk.describe(choice));
        for event in &self.events[state.moment.saturating_sub(SHOWN_EVENTS)..state.moment] {
            eprintln!("  {event}");
        }
        eprintln!("  <- the crash");
        self.failures.push(state);
    }

    fn show_progress(&mut self, done: usize, count: usize) {
        let is_terminal = stderr().is_terminal();
        let every = if is_terminal { PROGRESS_EVERY } else { PROGRESS_LINE_EVERY };
        if self.shown.elapsed() < every && done < count {
            return;
        }
        self.shown = Instant::now();
        let (name, failed) = (self.scenario.name(), self.failures.len());
        let (start, end) = if is_terminal { ("\r", if done == count { "\n" } else { " " }) } else { ("", "\n") };
        eprint!("{start}{name}: {done} of {count} chosen, {} different, {failed} failed{end}", self.seen.len());
        // Progress that cannot be shown is no reason to stop.
        drop(stderr().flush());
    }
}
