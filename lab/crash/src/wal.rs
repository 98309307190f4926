//! The log of a data directory. Every round of it follows from the round's number.

use crate::scenario::{Told, Word, tell};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use hedgerow_env::os::OsDisk;
use hedgerow_env::{Disk, OpenMode, read_file};
use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Instant, ReplicaId};
use hedgerow_wal::{Append, Begun, Durability, Log, Options, Recovered, Rounds, Submission};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GROUPS: u64 = 4;
/// The log is opened anew every so many rounds.
const OPEN_EVERY: u64 = 40;
/// Entries up to so many below the last are kept.
const KEPT: u64 = 12;

/// A group's log as its submissions made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    replica: u64,
    hard_state: HardState,
    start: LogPosition,
    /// Term and data by index, those before the start too: a crash may bring them back.
    entries: BTreeMap<u64, (u64, Bytes)>,
    last: u64,
}

type Groups = BTreeMap<u64, Group>;

/// What each group that a round concerns is after each record of it, `None` once it is removed. A crash in the round may
/// leave each group at any of them.
type Steps = BTreeMap<u64, Vec<Option<Group>>>;

fn data(group: u64, index: u64, term: u64) -> Bytes {
    let mut random = Random::new(group << 40 ^ index << 8 ^ term);
    let size = if random.chance(1, 12) { 3_000 + random.below(9_000) } else { random.below(700) };
    (0..size).map(|at| (index + at.wrapping_mul(term | 1) + group) as u8).collect()
}

/// What round `round` submits, after the groups were brought to `groups` by those before it, which it changes; and how.
fn submission(round: u64, groups: &mut Groups) -> (Submission, Steps) {
    let mut random = Random::new(round);
    let mut steps = Steps::new();
    let mut submission = Submission { ticket: round, ..Submission::default() };
    for id in 1..=GROUPS {
        if round.is_multiple_of(29) && id == 1 + round % GROUPS && groups.remove(&id).is_some() {
            submission.removals.push(GroupId::from_u64(id));
            steps.insert(id, vec![None]);
            continue;
        }
        if random.chance(1, 3) {
            continue;
        }
        let group = groups.entry(id).or_default();
        submission.appends.push(append(round, id, group, steps.entry(id).or_default(), &mut random));
    }
    for (id, group) in groups.iter_mut().filter(|_| round.is_multiple_of(6)) {
        let through = group.last.saturating_sub(KEPT);
        if through > group.start.index {
            group.start = LogPosition { term: group.entries.get(&through).map_or(0, |entry| entry.0), index: through };
            submission.truncations.push((GroupId::from_u64(*id), through));
            steps.entry(*id).or_default().push(Some(group.clone()));
        }
    }
    (submission, steps)
}

/// Changes `group` as round `round` does, noting each step.
fn append(round: u64, id: u64, group: &mut Group, steps: &mut Vec<Option<Group>>, random: &mut Random) -> Append {
    let mut reset = None;
    let is_new = group.replica == 0;
    if is_new {
        group.replica = round;
    } else if random.chance(1, 40) {
        let start = LogPosition { term: group.hard_state.term + 1, index: group.last + 20 };
        *group = Group { start, last: start.index, entries: BTreeMap::new(), ..group.clone() };
        reset = Some(start);
    }
    if is_new || reset.is_some() {
        steps.push(Some(group.clone()));
    }
    // A new leader replaces the end of the log.
    let is_replaced = reset.is_none() && random.chance(1, 6);
    let replaced = if is_replaced { random.below(group.last - group.start.index + 1) } else { 0 };
    let term = group.hard_state.term.max(group.start.term) + u64::from(replaced > 0 || group.hard_state.term == 0);
    let first = group.last - replaced + 1;
    let mut entries = Vec::new();
    for index in first..=first + random.below(4) {
        let data = data(id, index, term);
        group.entries.retain(|other, _| *other < index);
        group.entries.insert(index, (term, data.clone()));
        group.last = index;
        steps.push(Some(group.clone()));
        entries.push(Entry { index, term, kind: EntryKind::Normal, data });
    }
    let vote = random.chance(1, 2).then_some(ReplicaId(7));
    group.hard_state = HardState { term, vote, commit: group.start.index };
    steps.push(Some(group.clone()));
    let (group_id, replica) = (GroupId::from_u64(id), ReplicaId(group.replica));
    Append { group: group_id, replica, reset, entries, hard_state: Some(group.hard_state) }
}

/// The groups after each round, the state before the first one included, and the steps of each.
struct History {
    groups: Vec<Groups>,
    steps: Vec<Steps>,
}

impl History {
    fn new(rounds: u64) -> Self {
        let mut history = Self { groups: vec![Groups::new()], steps: vec![Steps::new()] };
        let mut groups = Groups::new();
        for round in 1..=rounds {
            history.steps.push(submission(round, &mut groups).1);
            history.groups.push(groups.clone());
        }
        history
    }

    /// What group `id` may be once round `durable` is durable and round `given` may be on its way.
    fn possible(&self, id: u64, durable: u64, given: u64) -> Vec<Option<&Group>> {
        let before = self.groups.get(durable as usize).and_then(|groups| groups.get(&id));
        let later = (durable + 1..=given).filter_map(|round| self.steps.get(round as usize)?.get(&id));
        std::iter::once(before).chain(later.flatten().map(Option::as_ref)).collect()
    }

    /// Everything that group `id` ever was.
    fn ever(&self, id: u64) -> Vec<Option<&Group>> {
        self.possible(id, 0, self.steps.len() as u64)
    }
}

fn dir(root: &Path) -> PathBuf {
    root.join("log")
}

fn open(root: &Path, durability: Durability) -> Result<(Log, Vec<Recovered>)> {
    let options = Options { segment_size: 20 << 10, durability, segments_max: 4, recycle_max: 2 };
    Ok(Log::open(Arc::new(OsDisk), &dir(root), options)?)
}

/// The time of a round: every third one is marked.
pub(crate) fn clock(round: u64) -> Instant {
    Instant(round * 400_000_000)
}

/// What is recorded.
pub(crate) fn drive(root: &Path, rounds: u64, durability: Durability) -> Result<()> {
    let mut log = Rounds::new(open(root, durability)?.0);
    let mut groups = Groups::new();
    for round in 1..=rounds {
        tell(Word::Given, round);
        run(&mut log, submission(round, &mut groups).0)?;
        tell(Word::Durable, round);
        log.tend()?;
        log.mark(clock(round));
        if round.is_multiple_of(OPEN_EVERY) {
            if round.is_multiple_of(2 * OPEN_EVERY) {
                log.close();
            }
            drop(log);
            log = Rounds::new(open(root, durability)?.0);
        }
    }
    Ok(())
}

fn run(log: &mut Rounds, submission: Submission) -> Result<()> {
    let ticket = submission.ticket;
    log.submit(submission);
    ensure!(matches!(log.begin()?, Begun::Written), "a round with something in it");
    ensure!(log.finish()? == [ticket], "the ticket comes back");
    Ok(())
}

/// What must hold after a crash, and in the life after it.
pub(crate) fn check(root: &Path, rounds: u64, durability: Durability, told: &Told) -> Result<()> {
    let history = History::new(rounds);
    let (durable, given) = (told.largest(Word::Durable), told.largest(Word::Given));
    let verify_all = |log: &Log, found: &[Recovered]| {
        (1..=GROUPS).try_for_each(|id| {
            let mut possible = history.possible(id, durable, given);
            if possible.contains(&None) {
                // A removal may be undone.
                possible.extend(history.ever(id));
            }
            verify(log, found, id, &possible)
        })
    };
    if remove_newest(root)? {
        let (log, found) = open(&without_newest(root), durability).context("opening without the newest segment")?;
        if !log.has_unknown_loss() {
            verify_all(&log, &found).context("the newest segment is gone and nobody misses it")?;
        }
    }
    let (log, found) = open(root, durability).context("opening")?;
    verify_all(&log, &found).context("after opening")?;
    drop(log);
    let (log, again) = open(root, durability).context("opening once more")?;
    ensure!(found == again, "a second opening finds something else: {again:?} instead of {found:?}");
    let expected = live_on(log, &found).context("going on")?;
    let (log, found) = open(root, durability).context("opening after going on")?;
    (1..=GROUPS).try_for_each(|id| verify(&log, &found, id, &[expected.get(&id)])).context("after going on")
}

fn without_newest(root: &Path) -> PathBuf {
    root.join("without-newest")
}

/// Makes a copy of the log that lacks the newest segment, as if somebody had removed it. False: it has no other one.
fn remove_newest(root: &Path) -> Result<bool> {
    let (from, to) = (dir(root), dir(&without_newest(root)));
    let Ok(mut names) = OsDisk.list(&from) else { return Ok(false) };
    let Some(newest) = names.iter().rposition(|name| name.ends_with(".seg")) else { return Ok(false) };
    names.remove(newest);
    if !names.iter().any(|name| name.ends_with(".seg")) {
        return Ok(false);
    }
    OsDisk.create_dir_all(&to)?;
    for name in names {
        let bytes = read_file(&OsDisk, &from.join(&name))?;
        OsDisk.open(&to.join(&name), OpenMode::Create)?.write_at(0, &bytes)?;
    }
    Ok(true)
}

/// Group `id` is one of the `possible` ones, undamaged.
fn verify(log: &Log, found: &[Recovered], id: u64, possible: &[Option<&Group>]) -> Result<()> {
    ensure!(!log.has_unknown_loss(), "a power failure is taken for damage of what was durable");
    let found = found.iter().find(|found| found.group == GroupId::from_u64(id));
    let mut complaints = Vec::new();
    for group in possible {
        match (found, group) {
            (None, None) => return Ok(()),
            (None, Some(_)) => complaints.push("it is not there".to_owned()),
            (Some(_), None) => complaints.push("it is there".to_owned()),
            (Some(found), Some(group)) => match matches(log, found, group) {
                Ok(()) => return Ok(()),
                Err(error) => complaints.push(error.to_string()),
            },
        }
    }
    bail!("group {id}: {found:?} is none of the possible ones: {}", complaints.join("; "))
}

fn matches(log: &Log, found: &Recovered, group: &Group) -> Result<()> {
    ensure!(!found.is_damaged, "damaged");
    ensure!(found.replica == ReplicaId(group.replica), "replica {:?}", found.replica);
    ensure!(found.hard_state == group.hard_state, "hard state {:?}, not {:?}", found.hard_state, group.hard_state);
    ensure!(found.last.index == group.last, "last {:?}, not {}", found.last, group.last);
    // A truncation may be undone.
    ensure!(found.start.index <= group.start.index, "start {:?}, not {:?}", found.start, group.start);
    let entries = log.reader().entries(found.group, group.start.index + 1, group.last + 1, usize::MAX)?;
    let expected = group.entries.range(group.start.index + 1..);
    let expected = expected.map(|(index, (term, data))| (*index, *term, data.clone()));
    ensure!(
        entries.into_iter().map(|entry| (entry.index, entry.term, entry.data)).eq(expected),
        "its entries are not those that were given"
    );
    Ok(())
}

/// Goes on with what was found, through several segments; what the groups must be after it.
fn live_on(log: Log, found: &[Recovered]) -> Result<Groups> {
    let reader = log.reader();
    let mut groups = Groups::new();
    for found in found {
        let entries = reader.entries(found.group, found.start.index + 1, found.last.index + 1, usize::MAX)?;
        let group = Group {
            replica: found.replica.0,
            hard_state: found.hard_state,
            start: found.start,
            entries: entries.into_iter().map(|entry| (entry.index, (entry.term, entry.data))).collect(),
            last: found.last.index,
        };
        groups.insert(found.group.to_u64(), group);
    }
    let mut log = Rounds::new(log);
    for round in 1_000..1_012 {
        run(&mut log, submission(round, &mut groups).0)?;
        log.tend()?;
        log.mark(clock(round));
    }
    Ok(groups)
}
