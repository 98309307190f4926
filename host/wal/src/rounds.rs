//! Group commit: everything that waits when a round begins is in it, and none waits for more to come.

use crate::log::{Append, Failed, Halt, Log, Stalled};
use hedgerow_types::{GroupId, Index, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A round takes no further submission once it has this many bytes of entries.
const ROUND_SIZE_MAX: usize = 16 << 20;

/// Segments that are given back after one round at most: writes to the log wait meanwhile, and those to others of its device have the
/// device to share.
const FREED_MAX: usize = 16;

/// How far the log is synced is noted this often.
pub(crate) const MARK_INTERVAL: Duration = Duration::from_secs(1);

/// What one caller wants done to the log: the removals, then the appends, then the truncations.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// Groups to forget.
    pub removals: Vec<GroupId>,
    /// Changes of groups' logs.
    pub appends: Vec<Append>,
    /// Groups whose entries up to and with an index are needed no more. They take effect at the end of the round; a
    /// crash may undo them.
    pub truncations: Vec<(GroupId, Index)>,
    /// What the caller is told when it is durable.
    pub ticket: u64,
}

/// What [`Rounds::begin`] did.
#[derive(Clone, Debug)]
pub enum Begun {
    /// Nothing waited.
    Nothing,
    /// A round is written: finish it.
    Written,
    /// A round is written in part and waits for a segment. The next call goes on with it; nothing of it is done before.
    Stalled(Stalled),
}

/// A log and the submissions that wait for it. The caller bounds how much waits, by its own tickets.
///
/// [`Rounds::begin`], [`Rounds::finish`] and [`Rounds::tend`] go in turn.
#[derive(Debug)]
pub struct Rounds {
    log: Log,
    waiting: VecDeque<Submission>,
    /// What the round that has begun has still to write.
    steps: VecDeque<Step>,
    /// Truncations of that round.
    truncations: BTreeMap<GroupId, Index>,
    /// Tickets of the round that has begun and is not synced.
    written: Vec<u64>,
    has_garbage: bool,
    marked_at: Option<Instant>,
}

/// A part of a round.
#[derive(Debug)]
enum Step {
    Remove(GroupId),
    Write(VecDeque<Append>),
}

impl Rounds {
    /// Rounds of `log`.
    pub fn new(log: Log) -> Self {
        Self {
            log,
            waiting: VecDeque::new(),
            steps: VecDeque::new(),
            truncations: BTreeMap::new(),
            written: Vec::new(),
            // Each start begins a segment of its own, also where nothing is ever truncated.
            has_garbage: true,
            marked_at: None,
        }
    }

    /// Adds a submission to those that wait.
    pub fn submit(&mut self, submission: Submission) {
        self.waiting.push_back(submission);
    }

    /// Whether a round would have anything in it.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.steps.is_empty()
    }

    /// Writes all that waits, in the order of submission, or goes on with a round that has stalled. One system call, unless
    /// a segment becomes full or a group is removed in the middle.
    pub fn begin(&mut self) -> Result<Begun, Failed> {
        if self.steps.is_empty() {
            if self.waiting.is_empty() {
                return Ok(Begun::Nothing);
            }
            self.gather();
        }
        while let Some(step) = self.steps.front_mut() {
            match step {
                Step::Remove(group) => {
                    self.log.remove_group(*group);
                    self.has_garbage = true;
                }
                Step::Write(appends) => match self.log.write_rest(appends) {
                    Ok(()) => {}
                    Err(Halt::Stalled(stalled)) => return Ok(Begun::Stalled(stalled)),
                    Err(Halt::Failed(failed)) => return Err(failed),
                },
            }
            self.steps.pop_front();
        }
        for (group, through) in std::mem::take(&mut self.truncations) {
            self.log.truncate_prefix(group, through);
            self.has_garbage = true;
        }
        Ok(Begun::Written)
    }

    /// Makes steps of what waits, as much as one round takes.
    fn gather(&mut self) {
        let mut appends = VecDeque::new();
        let mut size = 0;
        while size < ROUND_SIZE_MAX
            && let Some(submission) = self.waiting.pop_front()
        {
            if !submission.removals.is_empty() && !appends.is_empty() {
                self.steps.push_back(Step::Write(std::mem::take(&mut appends)));
            }
            for group in submission.removals {
                self.steps.push_back(Step::Remove(group));
                self.truncations.remove(&group);
            }
            size += submission.appends.iter().flat_map(|append| &append.entries).map(|e| e.data.len()).sum::<usize>();
            appends.extend(submission.appends);
            self.truncations.extend(submission.truncations);
            self.written.push(submission.ticket);
        }
        self.steps.push_back(Step::Write(appends));
    }

    /// Makes what was written durable and returns the tickets that may now be acknowledged.
    pub fn finish(&mut self) -> Result<Vec<u64>, Failed> {
        self.log.sync()?;
        Ok(std::mem::take(&mut self.written))
    }

    /// Collects if something fell out of use, and makes the next segment ready: for when nobody waits for an answer. Whether something is
    /// left to collect: a call gives back a few segments at most.
    pub fn tend(&mut self) -> Result<bool, Failed> {
        let has_more = self.has_garbage && self.collect()?;
        self.prepare();
        Ok(has_more)
    }

    /// Whether something may have fallen out of use since all that had was collected.
    pub(crate) fn has_garbage(&self) -> bool {
        self.has_garbage
    }

    /// The first half of [`Rounds::tend`]. What waits for a segment is tried again after a later round.
    pub(crate) fn collect(&mut self) -> Result<bool, Failed> {
        match self.log.collect_some(FREED_MAX) {
            Ok(collected) => {
                self.has_garbage = collected.has_more;
                Ok(collected.has_more)
            }
            Err(Halt::Stalled(_)) => Ok(false),
            Err(Halt::Failed(failed)) => Err(failed),
        }
    }

    /// The other half.
    pub(crate) fn prepare(&mut self) {
        self.log.prepare();
    }

    /// As [`Log::mark`], at most once a second.
    pub fn mark(&mut self, now: Instant) {
        if !self.log.is_marked() && self.marked_at.is_none_or(|at| now.since(at) >= MARK_INTERVAL) {
            self.marked_at = Some(now);
            self.log.mark();
        }
    }

    /// Nothing more will come: [`Log::mark`] at once.
    pub fn close(&mut self) {
        self.log.mark();
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.log
    }
}
