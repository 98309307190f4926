//! Random histories with crashes at any moment, against a model that knows what may come back.
//!
//! The model keeps, for each group, every state that its log went through since the last sync. What a crash leaves must be
//! one of them: the synced one or a later one. Then the history goes on from there.

use crate::layout::{DIR, Layout, Logs, group, options, read_back};
use hedgerow_env::sim::SimDisk;
use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Append, Collected, Halt, Options, Recovered};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

const GROUPS: u32 = 5;

#[derive(Clone, Default, PartialEq)]
struct State {
    replica: u64,
    hard_state: HardState,
    start: LogPosition,
    entries: Vec<Entry>,
}

impl State {
    fn last(&self) -> LogPosition {
        self.entries.last().map_or(self.start, Entry::position)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HardState { term, vote, commit } = self.hard_state;
        write!(
            f,
            "replica {} term {term} vote {vote:?} commit {commit} {}.{}:",
            self.replica, self.start.term, self.start.index
        )?;
        self.entries.iter().try_for_each(|Entry { index, term, data, .. }| {
            write!(f, " {term}.{index}[{} x {}]", data.first().copied().unwrap_or(0), data.len())
        })
    }
}

/// What the log's groups may be after a crash: the first state of each list is synced, the last is the present one.
#[derive(Debug)]
struct Model {
    states: BTreeMap<GroupId, Vec<Option<State>>>,
    /// Done in memory; on record with the next write.
    truncations: BTreeMap<GroupId, LogPosition>,
    removals: BTreeSet<GroupId>,
}

impl Model {
    fn new() -> Self {
        let states = (0..GROUPS).map(|number| (group(number), vec![None])).collect();
        Self { states, truncations: BTreeMap::new(), removals: BTreeSet::new() }
    }

    fn present(&self, group: GroupId) -> Option<State> {
        self.states[&group].last().unwrap().clone()
    }

    fn push(&mut self, group: GroupId, state: Option<State>) {
        self.states.get_mut(&group).unwrap().push(state);
    }

    /// What the caller sees: with truncations and removals that are not on record.
    fn seen(&self, group: GroupId) -> Option<State> {
        let mut state = self.present(group).filter(|_| !self.removals.contains(&group))?;
        if let Some(through) = self.truncations.get(&group) {
            state.entries.retain(|entry| entry.index > through.index);
            state.start = *through;
        }
        Some(state)
    }

    fn record_pending(&mut self) {
        for group in std::mem::take(&mut self.removals) {
            self.push(group, None);
        }
        for group in self.truncations.keys().copied().collect::<Vec<_>>() {
            let state = self.seen(group);
            self.push(group, state);
        }
        self.truncations.clear();
    }

    fn write(&mut self, append: &Append) {
        let known = self.present(append.group).filter(|state| state.replica == append.replica.0);
        let mut state = match (known, append.reset) {
            (Some(state), None) => state,
            (known, reset) => State {
                replica: append.replica.0,
                hard_state: known.map_or(HardState::default(), |state| state.hard_state),
                start: reset.unwrap_or_default(),
                entries: Vec::new(),
            },
        };
        self.push(append.group, Some(state.clone()));
        for entry in &append.entries {
            state.entries.retain(|before| before.index < entry.index);
            state.entries.push(entry.clone());
            self.push(append.group, Some(state.clone()));
        }
        if let Some(hard_state) = append.hard_state {
            state.hard_state = hard_state;
            self.push(append.group, Some(state));
        }
    }

    fn sync(&mut self) {
        self.states.values_mut().for_each(|states| drop(states.drain(..states.len() - 1)));
    }

    /// Checks what was recovered, and goes on from it.
    fn recover(&mut self, logs: &dyn Logs, recovered: &[Recovered]) {
        self.truncations.clear();
        self.removals.clear();
        let mut found: BTreeMap<GroupId, State> = BTreeMap::new();
        for group in recovered {
            assert!(!group.is_damaged, "{group:?} is called damaged");
            let entries = read_back(logs, group);
            let Recovered { replica, hard_state, start, .. } = *group;
            found.insert(group.group, State { replica: replica.0, hard_state, start, entries });
        }
        for (group, states) in &mut self.states {
            let state = found.remove(group);
            assert!(states.contains(&state), "group {group}: recovered {state:?}\nmay be {states:#?}");
            *states = vec![state];
        }
        assert!(found.is_empty(), "never written: {found:?}");
    }
}

/// One life of the process and what it did, until something failed or it ended.
struct Run<'a> {
    logs: Box<dyn Logs>,
    model: &'a mut Model,
    random: &'a mut Random,
}

impl Run<'_> {
    fn step(&mut self) -> Result<(), Halt> {
        match self.random.below(20) {
            0..=8 => {
                let appends: Vec<Append> = (0..=self.random.below(3)).map(|_| self.append()).collect();
                // One of a group is enough: the second one would have to follow the first.
                let mut groups = BTreeSet::new();
                let appends: Vec<Append> = appends.into_iter().filter(|append| groups.insert(append.group)).collect();
                self.model.record_pending();
                appends.iter().for_each(|append| self.model.write(append));
                self.logs.write(&appends)
            }
            9..=12 => {
                self.logs.sync()?;
                self.model.sync();
                if self.random.chance(1, 3) {
                    self.logs.mark();
                }
                Ok(())
            }
            13..=15 => {
                self.truncate();
                Ok(())
            }
            16 => {
                if self.random.chance(1, 4) {
                    self.remove();
                }
                Ok(())
            }
            17 => {
                self.logs.prepare();
                Ok(())
            }
            _ => self.collect(),
        }
    }

    fn append(&mut self) -> Append {
        let group = group(self.random.below(GROUPS.into()) as u32);
        let seen = self.model.seen(group);
        let is_replaced = seen.is_none() || self.random.chance(1, 60);
        let replica = match &seen {
            Some(state) if !is_replaced => state.replica,
            Some(_) | None => self.random.below(1 << 40) + 1,
        };
        let base = seen.filter(|state| state.replica == replica).unwrap_or_default();
        let last = base.last();
        let term = last.term + self.random.below(3) / 2 + u64::from(last.term == 0);
        let reset = self.random.chance(1, 25).then(|| LogPosition { term, index: last.index + self.random.below(50) });
        let (start, last) = reset.map_or((base.start, last), |reset| (reset, reset));
        let back = if self.random.chance(1, 5) { self.random.below(last.index - start.index + 1) } else { 0 };
        let first = last.index - back + 1;
        let count = self.random.below(6);
        let entries = (first..first + count).map(|index| self.entry(index, term)).collect();
        let hard_state = self.random.chance(2, 3).then(|| HardState {
            term,
            vote: self.random.chance(1, 2).then_some(ReplicaId(term + 5)),
            commit: start.index,
        });
        Append { group, replica: ReplicaId(replica), reset, entries, hard_state }
    }

    fn entry(&mut self, index: u64, term: u64) -> Entry {
        let size = match self.random.below(200) {
            0 => 20_000,
            1..=10 => 3_000,
            _ => self.random.below(400),
        };
        let byte = self.random.next_u64() as u8;
        let kind = if self.random.chance(1, 20) { EntryKind::Membership } else { EntryKind::Normal };
        Entry { index, term, kind, data: vec![byte; size as usize].into() }
    }

    fn truncate(&mut self) {
        let group = group(self.random.below(GROUPS.into()) as u32);
        let Some(state) = self.model.seen(group) else { return };
        let Some(entry) = state.entries.get(self.random.below(state.entries.len() as u64) as usize) else { return };
        self.model.truncations.insert(group, entry.position());
        self.logs.truncate_prefix(group, entry.index);
    }

    fn remove(&mut self) {
        let group = group(self.random.below(GROUPS.into()) as u32);
        if self.model.seen(group).is_some() {
            self.model.truncations.remove(&group);
            self.model.removals.insert(group);
        }
        self.logs.remove_group(group);
    }

    fn collect(&mut self) -> Result<(), Halt> {
        let before: Vec<usize> = self.model.states.values().map(Vec::len).collect();
        let pending = (self.model.truncations.clone(), self.model.removals.clone());
        self.model.record_pending();
        if self.logs.collect()? == Collected::default() {
            // Nothing was written.
            self.model.states.values_mut().zip(before).for_each(|(states, len)| states.truncate(len));
            (self.model.truncations, self.model.removals) = pending;
        } else {
            self.model.sync();
        }
        Ok(())
    }

    /// The log in memory is what the model says.
    fn check(&self) {
        for number in 0..GROUPS {
            let seen = self.model.seen(group(number)).unwrap_or_default();
            let low = seen.start.index + 1;
            assert_eq!(self.logs.entries(group(number), low, u64::MAX, usize::MAX).unwrap(), seen.entries);
            assert_eq!(self.logs.entries(group(number), low - 1, u64::MAX, usize::MAX).unwrap(), []);
        }
    }
}

/// Runs a history of several lives and returns a line about each.
fn history(layout: &dyn Layout, seed: u64) -> String {
    let random = &mut Random::new(seed);
    let disk = SimDisk::new();
    let mut model = Model::new();
    let mut story = String::new();
    let options =
        Options { segments_max: 1 + random.below(6) as usize, recycle_max: random.below(4) as usize, ..options() };
    for _ in 0..6 {
        let may_stop = random.chance(1, 2);
        if may_stop && random.chance(1, 4) {
            disk.stop_after(random.below(8));
        }
        if let Ok((logs, recovered)) = layout.open(&disk, options) {
            model.recover(&*logs, &recovered);
            let mut run = Run { logs, model: &mut model, random };
            run.check();
            if may_stop {
                disk.stop_after(run.random.below(80));
            }
            let steps = run.random.below(250);
            let mut result = Ok(());
            for _ in 0..steps {
                if result.is_err() {
                    break;
                }
                if run.random.chance(1, 400) {
                    disk.fail_syncs(Path::new(DIR), true);
                }
                result = run.step();
            }
            if result.is_ok() {
                run.check();
            }
            let entries = run.model.states.values().map(|states| states.len()).sum::<usize>();
            writeln!(story, "{steps} {} {entries} {}", result.is_ok(), run.logs.segment_count()).unwrap();
        }
        disk.fail_syncs(Path::new(DIR), false);
        if random.chance(1, 4) {
            disk.kill_process()
        } else {
            disk.crash(random)
        };
    }
    story
}

pub(crate) fn crashes_keep_what_was_synced_and_invent_nothing(layout: &dyn Layout) {
    let seeds = std::env::var("WAL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let first = std::env::var("WAL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history(layout, seed)));
        assert!(outcome.is_ok(), "seed {seed} fails: WAL_SEED={seed} WAL_SEEDS=1 replays it");
    }
}

pub(crate) fn histories_are_deterministic(layout: &dyn Layout) {
    for seed in 0..10 {
        assert_eq!(history(layout, seed), history(layout, seed));
    }
}
