//! Records a scenario, builds what crashes can leave of it and has each state checked.
#![allow(clippy::disallowed_methods, reason = "it makes files of its own, starts a process and measures its own pace")]

use crate::disk::{Choice, Disk, Image};
use crate::recorder;
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
    /// How many of them are gone on in by another recorded process.
    pub(crate) again: usize,
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
        None => {
            let place = tempfile::tempdir()?;
            let root = place.path().join("root");
            fs::create_dir(&root)?;
            record(scenario, plan, &root, &[])?
        }
    };
    let mut totals = Totals::default();
    let survivors = run_trace(scenario, plan, scenario.name(), &trace, &mut totals)?;
    let may_go_on = plan.state.is_none() && scenario.has_second_life();
    let plan = Plan { samples: plan.samples / survivors.len().max(1), again: 0, ..plan.clone() };
    for (number, (image, told)) in survivors.iter().enumerate().filter(|_| may_go_on) {
        let place = scratch()?;
        let root = place.path().join("root");
        image.build(&root)?;
        let trace = record(scenario, &plan, &root, &told.markers())?;
        run_trace(scenario, &plan, &format!("{} after crash {}", scenario.name(), number + 1), &trace, &mut totals)?;
    }
    println!(
        "{}: {} different states, {} failed, {:.1} s",
        scenario.name(),
        totals.states,
        totals.failures,
        started.elapsed().as_secs_f64()
    );
    Ok(totals.failures == 0)
}

/// What has been looked at.
#[derive(Debug, Default)]
struct Totals {
    states: usize,
    failures: usize,
}

/// Looks at crashes of a recorded process, which is called `name`. Returns some of the states that hold.
fn run_trace(
    scenario: Scenario,
    plan: &Plan,
    name: &str,
    trace: &[u8],
    totals: &mut Totals,
) -> Result<Vec<(Image, Told)>> {
    let events = trace::decode(trace);
    let counts = choice_counts(&events);
    let possible: usize = counts.values().sum();
    let chosen = choose(&counts, plan);
    let first = counts.keys().next().copied().unwrap_or(0);
    let operations = events.iter().skip(first).filter(|event| !matches!(event, Event::Marker { .. })).count();
    eprintln!("{name}: {operations} operations, {possible} ways to crash, {} of them chosen", chosen.len());
    let place = scratch()?;
    let mut checker = Checker {
        scenario,
        plan,
        name,
        events: &events,
        place: place.path(),
        seen: BTreeSet::new(),
        failures: Vec::new(),
        survivors: Vec::new(),
        survivor_count: 0,
        draw: Random::new(plan.seed),
        shown: Instant::now(),
    };
    checker.check_all(&chosen)?;
    let Checker { seen, failures, survivors, .. } = checker;
    if let Some(failure) = failures.first() {
        fs::create_dir_all(&plan.keep)?;
        let path = plan.keep.join(format!("{}.trace", name.replace(' ', "-")));
        fs::write(&path, trace)?;
        eprintln!(
            "the trace is kept; the first failure again: hedgerow-crash --scenario {} --rounds {} --seed {} --trace {} --state {}",
            scenario.name(),
            plan.rounds,
            plan.seed,
            path.display(),
            failure
        );
    }
    totals.states += seen.len();
    totals.failures += failures.len();
    Ok(survivors)
}

/// In memory where the system has such a place: what is built there is looked at once.
fn scratch() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?)
}

/// Has a process of its own drive `scenario` in `root`, or go on there if others were `told` something before; its trace.
fn record(scenario: Scenario, plan: &Plan, root: &Path, told: &[String]) -> Result<Vec<u8>> {
    let place = tempfile::tempdir()?;
    let path = place.path().join("trace");
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("--scenario").arg(scenario.name()).arg("--rounds").arg(plan.rounds.to_string());
    child.arg("--record").arg(&path).arg(root);
    for text in told {
        child.arg("--told").arg(text);
    }
    let status = child.status()?;
    ensure!(status.success(), "the recorded process failed: {status}");
    let trace = fs::read(&path)?;
    let mut disk = Disk::default();
    trace::decode(&trace).iter().for_each(|event| disk.apply(event));
    disk.image().compare(root).context("the recorder has missed something")?;
    Ok(trace)
}

/// How many ways to crash there are after so many events, from the moment on at which the recording began.
fn choice_counts(events: &[Event]) -> BTreeMap<usize, usize> {
    let mut disk = Disk::default();
    let mut counts = BTreeMap::new();
    let mut has_begun = false;
    for (index, event) in events.iter().enumerate() {
        disk.apply(event);
        has_begun |= *event == Event::Marker { text: recorder::BEGIN.into() };
        if has_begun {
            counts.insert(index + 1, disk.choices().len());
        }
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
    name: &'a str,
    events: &'a [Event],
    place: &'a Path,
    /// States that need not be looked at again: images, with what had been told.
    seen: BTreeSet<(u64, String)>,
    failures: Vec<State>,
    /// As many as are gone on in of the states that hold and in which something had been told, any of them as likely.
    survivors: Vec<(Image, Told)>,
    survivor_count: u64,
    draw: Random,
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
            // The first choice everywhere.
            let told = self.scenario.binding(&told, state.choice == 0);
            if self.seen.insert((image.hash(), told.fingerprint())) {
                match self.check(&image, &told) {
                    Err(error) => self.report(*state, &disk, *choice, &error),
                    Ok(()) if told.markers().is_empty() => {}
                    Ok(()) => self.keep_survivor(image, &told),
                }
            }
            self.show_progress(index + 1, chosen.len());
        }
        Ok(())
    }

    fn keep_survivor(&mut self, image: Image, told: &Told) {
        self.survivor_count += 1;
        if self.survivors.len() < self.plan.again {
            self.survivors.push((image, told.clone()));
        } else if let Some(place) = self.survivors.get_mut(self.draw.below(self.survivor_count) as usize) {
            *place = (image, told.clone());
        }
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
        eprintln!("\n{}, state {state}: {error:#}", self.name);
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
        let (name, failed) = (self.name, self.failures.len());
        let (start, end) = if is_terminal { ("\r", if done == count { "\n" } else { " " }) } else { ("", "\n") };
        eprint!("{start}{name}: {done} of {count} chosen, {} different, {failed} failed{end}", self.seen.len());
        // Progress that cannot be shown is no reason to stop.
        drop(stderr().flush());
    }
}
