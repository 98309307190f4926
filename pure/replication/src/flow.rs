//! Writes on their way to the disk, and the messages that may be sent only after them.
//!
//! ```text
//! core's ready 7: entries, acknowledgement      -> write, ticket 1, keeps the acknowledgement
//! core's ready 8: acknowledgement               -> nothing to write: waits with ticket 1
//! ticket 1 durable                              -> the core hears that 8 is persisted, both go out
//! ```

use crate::message::Message;
use crate::ready::Persist;
use hedgerow_types::log::{HardState, LogPosition};
use hedgerow_types::{Index, ReplicaId, Term};
use std::collections::VecDeque;

/// One write that is not yet durable, and what waits for it.
#[derive(Debug)]
struct InFlight {
    ticket: u64,
    /// The core's last ready that is done with it.
    number: u64,
    has_entries: bool,
    has_vote: bool,
    installed: Option<Index>,
    messages: Vec<(ReplicaId, Message)>,
}

/// What became durable at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// The core's last ready that is persisted.
    pub(crate) number: u64,
    /// The last index of a snapshot that is now both storage and log.
    pub(crate) installed: Option<Index>,
}

#[derive(Debug)]
pub(crate) struct Flow {
    ticket_last: u64,
    /// The last ticket that the host has seen.
    handed_out: u64,
    in_flight: VecDeque<InFlight>,
    /// How many of them carry a new term or vote.
    votes_in_flight: usize,
    /// A write that has not been handed out: it waits for the installation of a snapshot.
    held: Option<Persist>,
    installing: Option<LogPosition>,
    /// The hard state as last written.
    written: HardState,
    /// The core's ready that was written last.
    number_last: u64,
    /// Messages whose write is durable.
    released: Vec<(ReplicaId, Message)>,
}

/// What one of the core's readies wants written.
pub(crate) struct Write {
    pub(crate) number: u64,
    pub(crate) reset: Option<LogPosition>,
    pub(crate) entries: Vec<hedgerow_types::log::Entry>,
    pub(crate) hard_state: HardState,
}

impl Flow {
    /// `on_disk` is the hard state found there, `hard_state` the one that the core starts with, `reset` the position to reset
    /// the log to before anything else.
    pub(crate) fn new(on_disk: HardState, hard_state: HardState, reset: Option<LogPosition>) -> Self {
        let mut flow = Self {
            ticket_last: 0,
            handed_out: 0,
            in_flight: VecDeque::new(),
            votes_in_flight: 0,
            held: None,
            installing: None,
            written: on_disk,
            number_last: 0,
            released: Vec::new(),
        };
        if reset.is_some() {
            // With the reset goes the whole hard state, whatever the disk keeps of it.
            flow.written = HardState::default();
            flow.write(Write { number: 0, reset, entries: Vec::new(), hard_state });
        }
        flow
    }

    /// Takes a write, unless there is nothing in it that must be durable. A new commit index alone need not be.
    pub(crate) fn write(&mut self, write: Write) {
        let Write { number, reset, entries, hard_state } = write;
        self.number_last = number;
        let has_vote = (hard_state.term, hard_state.vote) != (self.written.term, self.written.vote);
        if reset.is_none() && entries.is_empty() && !has_vote {
            if let Some(last) = self.in_flight.back_mut() {
                last.number = number;
            }
            return;
        }
        self.push(Write { number, reset, entries, hard_state });
    }

    /// Has the disk know that everything up to `commit` is committed, though nothing else is to be written.
    pub(crate) fn write_commit(&mut self, commit: Index) {
        if commit > self.written.commit {
            let hard_state = HardState { commit, ..self.written };
            self.push(Write { number: self.number_last, reset: None, entries: Vec::new(), hard_state });
        }
    }

    fn push(&mut self, write: Write) {
        let Write { number, reset, entries, hard_state } = write;
        let has_vote = (hard_state.term, hard_state.vote) != (self.written.term, self.written.vote);
        self.ticket_last += 1;
        self.votes_in_flight += usize::from(has_vote);
        self.in_flight.push_back(InFlight {
            ticket: self.ticket_last,
            number,
            has_entries: !entries.is_empty() || reset.is_some(),
            has_vote,
            installed: reset.map(|position| position.index),
            messages: Vec::new(),
        });
        // The commit index goes along whenever anything is written, so that a replica knows after a restart what it may apply. No
        // safety rests on it: a write may be torn between its entries and its hard state.
        let hard_state = (hard_state != self.written).then_some(hard_state);
        self.written = hard_state.unwrap_or(self.written);
        let persist = Persist { ticket: self.ticket_last, reset, entries, hard_state };
        self.held = Some(match self.held.take() {
            None => persist,
            Some(earlier) => merge(earlier, persist),
        });
    }

    /// The write to hand out, if there is one and nothing stands before it.
    pub(crate) fn take_persist(&mut self) -> Option<Persist> {
        if self.installing.is_some() {
            return None;
        }
        let persist = self.held.take()?;
        self.handed_out = persist.ticket;
        Some(persist)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn has_entries_in_flight(&self) -> bool {
        self.in_flight.iter().any(|item| item.has_entries)
    }

    pub(crate) fn has_vote_in_flight(&self) -> bool {
        self.votes_in_flight > 0
    }

    /// Whether the disk knows of `term` and of the vote in it.
    pub(crate) fn is_vote_durable(&self, term: Term, vote: ReplicaId) -> bool {
        (self.written.term, self.written.vote) == (term, Some(vote)) && !self.has_vote_in_flight()
    }

    /// Keeps a message until everything handed to [`Flow::write`] so far is durable.
    pub(crate) fn keep(&mut self, to: ReplicaId, message: Message) {
        match self.in_flight.back_mut() {
            Some(last) => last.messages.push((to, message)),
            None => self.released.push((to, message)),
        }
    }

    pub(crate) fn take_released(&mut self) -> Vec<(ReplicaId, Message)> {
        core::mem::take(&mut self.released)
    }

    /// `ticket` and all before it are durable. `None` if that is no news, or cannot be.
    pub(crate) fn take_persisted(&mut self, ticket: u64) -> Option<Done> {
        if ticket > self.handed_out {
            return None;
        }
        let mut done: Option<Done> = None;
        while self.in_flight.front().is_some_and(|item| item.ticket <= ticket) {
            let Some(item) = self.in_flight.pop_front() else { break };
            let installed = item.installed.or(done.and_then(|done| done.installed));
            done = Some(Done { number: item.number, installed });
            self.votes_in_flight -= usize::from(item.has_vote);
            self.released.extend(item.messages);
        }
        done
    }

    pub(crate) fn begin_install(&mut self, position: LogPosition) {
        self.installing = Some(position);
    }

    pub(crate) fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    /// Returns whether that was waited for.
    pub(crate) fn handle_installed(&mut self, position: LogPosition) -> bool {
        let is_expected = self.installing == Some(position);
        if is_expected {
            self.installing = None;
        }
        is_expected
    }
}

/// The two writes as one.
fn merge(earlier: Persist, later: Persist) -> Persist {
    let mut merged = Persist {
        ticket: later.ticket,
        reset: later.reset.or(earlier.reset),
        entries: if later.reset.is_some() { Vec::new() } else { earlier.entries },
        hard_state: later.hard_state.or(earlier.hard_state),
    };
    if let Some(first) = later.entries.first() {
        merged.entries.retain(|entry| entry.index < first.index);
        merged.entries.extend(later.entries);
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::log::{Entry, EntryKind};

    fn entries(term: u64, indices: core::ops::Range<u64>) -> Vec<Entry> {
        let entry = |index| Entry { index, term, kind: EntryKind::Normal, data: bytes::Bytes::new() };
        indices.map(entry).collect()
    }

    fn write(flow: &mut Flow, number: u64, entries: Vec<Entry>, term: u64) {
        let hard_state = HardState { term, vote: None, commit: number };
        flow.write(Write { number, reset: None, entries, hard_state });
    }

    fn new_flow() -> Flow {
        Flow::new(HardState::default(), HardState::default(), None)
    }

    fn message() -> Message {
        Message::new(raft::eraftpb::Message::default())
    }

    /// Pitfall M6: nothing else is to be written, and what was written stays as it is.
    #[test]
    fn m6_a_commit_index_is_written_alone_where_it_must_be_known() {
        let mut flow = Flow::new(HardState::default(), HardState::default(), None);
        let vote = Some(ReplicaId(3));
        flow.write(Write {
            number: 1,
            reset: None,
            entries: entries(1, 5..6),
            hard_state: HardState { term: 2, vote, commit: 4 },
        });
        assert!(flow.take_persist().is_some());
        flow.write_commit(5);
        let persist = flow.take_persist().expect("a write");
        assert_eq!((persist.hard_state, persist.entries.len()), (Some(HardState { term: 2, vote, commit: 5 }), 0));
        assert!(!flow.has_vote_in_flight() || flow.take_persisted(1).is_some());
        assert_eq!(flow.take_persisted(2).map(|done| done.number), Some(1), "it is no ready of its own");
        flow.write_commit(5);
        assert_eq!(flow.take_persist(), None, "it is known");
    }

    #[test]
    fn what_follows_a_write_waits_for_it() {
        let mut flow = new_flow();
        write(&mut flow, 1, entries(1, 2..4), 1);
        flow.keep(ReplicaId(2), message());
        write(&mut flow, 2, Vec::new(), 1);
        flow.keep(ReplicaId(3), message());
        let persist = flow.take_persist().unwrap();
        assert_eq!((persist.ticket, persist.entries.len()), (1, 2));
        assert!(flow.take_persist().is_none());
        assert!(flow.take_released().is_empty());
        assert_eq!(flow.take_persisted(1), Some(Done { number: 2, installed: None }));
        assert_eq!(flow.take_released().len(), 2);
        assert!(flow.is_idle());
    }

    #[test]
    fn a_commit_index_alone_is_not_written_but_goes_along() {
        let mut flow = new_flow();
        write(&mut flow, 1, Vec::new(), 0);
        assert!(flow.take_persist().is_none());
        write(&mut flow, 7, entries(0, 2..3), 0);
        assert_eq!(flow.take_persist().unwrap().hard_state.unwrap().commit, 7);
        write(&mut flow, 7, entries(0, 3..4), 0);
        assert_eq!(flow.take_persist().unwrap().hard_state, None);
    }

    #[test]
    fn nothing_is_written_before_a_snapshot_is_installed() {
        let mut flow = new_flow();
        let position = LogPosition { term: 1, index: 9 };
        flow.begin_install(position);
        let hard_state = HardState { term: 1, vote: None, commit: 9 };
        flow.write(Write { number: 1, reset: Some(position), entries: entries(1, 10..13), hard_state });
        write(&mut flow, 2, entries(2, 11..12), 2);
        assert!(flow.take_persist().is_none());
        assert_eq!(flow.take_persisted(2), None, "nobody can have written it");
        assert!(!flow.handle_installed(LogPosition { term: 1, index: 8 }));
        assert!(flow.handle_installed(position));
        let persist = flow.take_persist().unwrap();
        assert_eq!((persist.ticket, persist.reset), (2, Some(position)));
        let positions: Vec<_> = persist.entries.iter().map(|entry| (entry.term, entry.index)).collect();
        assert_eq!(positions, [(1, 10), (2, 11)]);
        assert_eq!(persist.hard_state, Some(HardState { term: 2, vote: None, commit: 2 }));
        assert_eq!(flow.take_persisted(2), Some(Done { number: 2, installed: Some(9) }));
    }

    #[test]
    fn tickets_that_cannot_be_are_ignored() {
        let mut flow = new_flow();
        write(&mut flow, 1, entries(1, 2..3), 1);
        assert_eq!(flow.take_persisted(1), None);
        let _ = flow.take_persist();
        assert_eq!(flow.take_persisted(2), None);
        assert!(flow.take_persisted(1).is_some());
        assert_eq!(flow.take_persisted(1), None);
    }
}
