//! A log in virtual time, treated as the thread of a real one treats it.

use hedgerow_types::Instant;
use hedgerow_wal::{Begun, Failed, Log, Round, Rounds, Submission, Told};

/// A log and what its thread would be at.
#[derive(Debug)]
pub(crate) struct CommittedLog {
    rounds: Rounds,
    told: Told,
    is_syncing: bool,
    /// Something is left to collect.
    has_more: bool,
    /// Its thread would have ended: nothing is done with it any more, and that was said.
    has_failed: bool,
}

impl CommittedLog {
    /// Nothing waits for it.
    pub(crate) fn new(log: Log) -> Self {
        let (rounds, told) = (Rounds::new(log), Told::default());
        Self { rounds, told, is_syncing: false, has_more: false, has_failed: false }
    }

    /// How far it is durable: the number of the batch after the last one.
    pub(crate) fn synced(&self) -> u64 {
        self.rounds.log().synced()
    }

    /// Puts a submission into the next round; nothing happens if the log has failed.
    pub(crate) fn submit(&mut self, submission: Submission) {
        if !self.has_failed {
            self.rounds.submit(submission);
        }
    }

    /// As [`Rounds::mark`], unless the log has failed.
    pub(crate) fn mark(&mut self, now: Instant) {
        if !self.has_failed {
            self.rounds.mark(now);
        }
    }

    /// Begins a round if something waits and none is under way. Returns whether it did, and what the node is to be told.
    pub(crate) fn begin(&mut self) -> (bool, Option<Round>) {
        if self.is_syncing || self.has_failed {
            return (false, None);
        }
        let begun = match self.rounds.begin() {
            Ok(begun) => begun,
            Err(reason) => return (false, Some(self.fail(reason))),
        };
        self.is_syncing = matches!(begun, Begun::Written);
        // As by the thread of a real one, it is tended although nothing is written.
        if matches!(begun, Begun::Nothing) && (self.has_more || self.rounds.log().left().is_some()) {
            return (false, self.tend());
        }
        (self.is_syncing, self.told.begun(&begun))
    }

    /// Ends the round that was begun last. Returns what the node is to be told.
    pub(crate) fn end(&mut self) -> Vec<Round> {
        self.is_syncing = false;
        match self.rounds.finish() {
            Ok(tickets) => {
                let synced = self.synced();
                std::iter::once(Round::Done { tickets, synced }).chain(self.tend()).collect()
            }
            Err(reason) => vec![self.fail(reason)],
        }
    }

    /// Makes the log ready for what comes. Returns what the node is to be told.
    fn tend(&mut self) -> Option<Round> {
        match self.rounds.tend() {
            Ok(has_more) => {
                self.has_more = has_more;
                self.told.tended(self.rounds.log())
            }
            Err(reason) => Some(self.fail(reason)),
        }
    }

    /// As a thread does, it says once that the log has failed, and ends.
    fn fail(&mut self, reason: Failed) -> Round {
        assert!(!std::mem::replace(&mut self.has_failed, true), "a log fails a second time: {reason}");
        Round::Failed { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_env::sim::SimDisk;
    use hedgerow_types::log::{Entry, EntryKind};
    use hedgerow_types::{GroupId, ReplicaId};
    use hedgerow_wal::{Append, Options};
    use std::path::Path;
    use std::sync::Arc;

    /// It appends the entry at index `ticket`.
    fn submission(ticket: u64) -> Submission {
        let entries = vec![Entry { index: ticket, term: 1, kind: EntryKind::Normal, data: vec![7; 100].into() }];
        let (group, replica) = (GroupId::new(1, 0), ReplicaId(1));
        let append = Append { group, replica, reset: None, entries, hard_state: None };
        Submission { appends: vec![append], ticket, ..Submission::default() }
    }

    #[test]
    fn a_log_fails_once_and_is_left_alone_then() {
        let disk = SimDisk::new();
        let options = Options::default();
        let (log, _) = Log::open(Arc::new(disk.clone()), Path::new("/log"), options).expect("an empty disk");
        let mut log = CommittedLog::new(log);
        log.submit(submission(1));
        assert!(matches!(log.begin(), (true, None)));
        assert!(matches!(log.end().first(), Some(Round::Done { tickets, .. }) if *tickets == [1]));
        log.submit(submission(2));
        assert!(log.begin().0);
        disk.fail_syncs(Path::new("/"), true);
        assert!(matches!(log.end()[..], [Round::Failed { .. }]));
        for ticket in 3..6 {
            log.submit(submission(ticket));
            assert!(matches!(log.begin(), (false, None)), "it is said once");
        }
    }
}
