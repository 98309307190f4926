//! Group commit: everything that waits when a round begins is in it, and none waits for more to come.

use crate::log::{Append, Failed, Log};
use hedgerow_types::{GroupId, Index};
use std::collections::{BTreeMap, VecDeque};

/// A round takes no further submission once it has this many bytes of entries.
const ROUND_SIZE_MAX: usize = 16 << 20;

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

/// A log and the submissions that wait for it. The caller bounds how much waits, by its own tickets.
///
/// [`Rounds::begin`], [`Rounds::finish`] and [`Rounds::tend`] go in turn.
#[derive(Debug)]
pub struct Rounds {
    log: Log,
    waiting: VecDeque<Submission>,
    /// Tickets of the round that is written and not yet synced.
    written: Vec<u64>,
    has_garbage: bool,
}

impl Rounds {
    /// Rounds of `log`.
    pub fn new(log: Log) -> Self {
        Self { log, waiting: VecDeque::new(), written: Vec::new(), has_garbage: false }
    }

    /// Adds a submission to those that wait.
    pub fn submit(&mut self, submission: Submission) {
        self.waiting.push_back(submission);
    }

    /// Whether a round would have anything in it.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes all that waits, in the order of submission. False: nothing waited. One system call, unless a segment
    /// becomes full or a group is removed in the middle.
    pub fn begin(&mut self) -> Result<bool, Failed> {
        if self.waiting.is_empty() {
            return Ok(false);
        }
        let mut appends = Vec::new();
        let mut truncations = BTreeMap::new();
        let mut size = 0;
        while size < ROUND_SIZE_MAX
            && let Some(submission) = self.waiting.pop_front()
        {
            if !submission.removals.is_empty() {
                self.log.write(&appends)?;
                appends.clear();
            }
            for group in &submission.removals {
                self.log.remove_group(*group);
                truncations.remove(group);
                self.has_garbage = true;
            }
            size += submission.appends.iter().flat_map(|append| &append.entries).map(|e| e.data.len()).sum::<usize>();
            appends.extend(submission.appends);
            truncations.extend(submission.truncations);
            self.written.push(submission.ticket);
        }
        self.log.write(&appends)?;
        for (group, through) in truncations {
            self.log.truncate_prefix(group, through);
            self.has_garbage = true;
        }
        Ok(true)
    }

    /// Makes what was written durable and returns the tickets that may now be acknowledged.
    pub fn finish(&mut self) -> Result<Vec<u64>, Failed> {
        self.log.sync()?;
        Ok(std::mem::take(&mut self.written))
    }

    /// Collects if something fell out of use, and makes the next segment ready: for when nobody waits for an answer.
    pub fn tend(&mut self) -> Result<(), Failed> {
        if std::mem::take(&mut self.has_garbage) {
            self.log.collect()?;
        }
        self.log.prepare();
        Ok(())
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.log
    }
}
