//! Committed entries that the host cannot apply for the moment, or leaves for its next turn: they are held back and handed
//! out again after a pause, or when it takes them up.
//!
//! ```text
//!   applied        handed            given          last
//!      |--- again ---|--- not yet ---|--- not committed, as far as known ---|
//! ```
//!
//! Invariants: entries are handed out without a gap, in order, and none below `applied`; while something is held back,
//! nothing that the core gives out passes by it; a change of membership is made once, however often its entry is handed out,
//! and whoever stores that entry gets the membership of its own position. The entries themselves stay in the window, which
//! keeps what is not applied.
//!
//! Why this is safe: an entry that is not applied is answered to nobody and no read counts it, since both go by `applied`,
//! which stays. What is committed stays committed: nothing here touches the log, and what is held back is read from it again.
//! A restart in between finds storage at an earlier position of the same log, as after any crash. A membership that counts
//! before its entry is stored is that of a committed entry, as in every replica whose storage is not flushed; and as long as
//! that entry is not applied the core neither campaigns nor takes another change. A checkpoint that is installed meanwhile
//! takes the place of all that is held back below it.

use crate::membership::Membership;
use core::time::Duration;
use hedgerow_types::{Index, Instant};
use std::collections::VecDeque;

/// Pause before what could not be applied is handed out again; doubled with each failure in a row.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Who has which committed entries.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Storage began here, or is being replaced by a checkpoint that does: nothing up to this entry is handed out again.
    begin: Index,
    /// The last entry that the host has.
    handed: Index,
    /// The last entry that the core has given out.
    given: Index,
    /// Not before this time is anything handed out.
    until: Option<Instant>,
    /// The host has left the rest for its next turn, which has not come.
    is_put_off: bool,
    /// The last pause; zero unless the host could not apply something and has not applied anything since.
    pause: Duration,
    /// The memberships after entries that were handed out and are not applied.
    memberships: VecDeque<(Index, Membership)>,
}

impl Hold {
    /// Everything up to `applied` is applied.
    pub(crate) fn new(applied: Index) -> Self {
        Self {
            begin: applied,
            handed: applied,
            given: applied,
            until: None,
            is_put_off: false,
            pause: Duration::ZERO,
            memberships: VecDeque::new(),
        }
    }

    /// Whether the host could not apply what it got, and has applied nothing since.
    pub(crate) fn is_held(&self) -> bool {
        !self.pause.is_zero()
    }

    /// The core gives out everything up to `last`. Returns whether the host gets it now.
    pub(crate) fn give(&mut self, last: Index) -> bool {
        let passes = self.handed == self.given && self.until.is_none();
        self.given = last;
        if passes {
            self.handed = last;
        }
        passes
    }

    /// Whether something that was held back is to be handed out.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.has_rest() && !self.is_put_off && self.until.is_none_or(|until| now >= until)
    }

    /// Whether the core has given out more than the host has.
    pub(crate) fn has_rest(&self) -> bool {
        self.handed < self.given
    }

    /// The entries to be handed out now: from the first to the last index.
    pub(crate) fn due(&self, now: Instant) -> Option<(Index, Index)> {
        self.is_due(now).then_some((self.handed + 1, self.given))
    }

    /// The host gets them up to `last`.
    pub(crate) fn hand_out(&mut self, last: Index) {
        (self.handed, self.until) = (last, None);
    }

    /// The host has what it got only up to `applied`, and cannot apply the rest now.
    pub(crate) fn hold(&mut self, applied: Index, now: Instant) {
        let applied = applied.max(self.begin);
        if applied >= self.handed {
            return;
        }
        self.handed = applied;
        self.pause = (self.pause * 2).clamp(PAUSE, PAUSE_MAX);
        self.until = Some(now + self.pause);
    }

    /// The host has applied what it got only up to `applied`, and leaves the rest until [`Hold::take_up`].
    pub(crate) fn put_off(&mut self, applied: Index) {
        self.handed = self.handed.min(applied.max(self.begin));
        self.is_put_off = self.has_rest();
    }

    /// The host goes on.
    pub(crate) fn take_up(&mut self) {
        self.is_put_off = false;
    }

    /// The host has applied everything up to `applied`.
    pub(crate) fn note_applied(&mut self, applied: Index) {
        self.pause = Duration::ZERO;
        self.memberships.retain(|(index, _)| *index > applied);
    }

    /// The membership after the entry at `index`, if it was handed out before.
    pub(crate) fn membership(&self, index: Index) -> Option<&Membership> {
        self.memberships.iter().find(|(of, _)| *of == index).map(|(_, membership)| membership)
    }

    pub(crate) fn note_membership(&mut self, index: Index, membership: Membership) {
        self.memberships.push_back((index, membership));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Change, MembershipChange};
    use crate::message::core_entry;
    use crate::{FIRST, Group, Message, ProposeError, Settings, Start};
    use bytes::Bytes;
    use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
    use hedgerow_types::{GroupId, ReplicaId};
    use raft::eraftpb::{self, MessageType};

    const MS: u64 = 1_000_000;

    /// The first of two changes is stored while both count already: with the membership of its own position.
    #[test]
    fn n4_a_change_of_membership_that_is_handed_out_again_changes_nothing_again() {
        let before = Membership::of_voters([ReplicaId(1), ReplicaId(9)]);
        let add = MembershipChange { add_learners: vec![ReplicaId(2)], ..MembershipChange::default() };
        let add = Change::new(&add, &before).unwrap().encode();
        let with_learner = Membership { learners: vec![ReplicaId(2)], ..before.clone() };
        let remove = MembershipChange { remove: vec![ReplicaId(2)], ..MembershipChange::default() };
        let remove = Change::new(&remove, &with_learner).unwrap().encode();
        let entry = |(index, data)| Entry { index, term: 1, kind: EntryKind::Membership, data };
        let start = Start {
            membership: before.clone(),
            hard_state: HardState { term: 1, vote: None, commit: 3 },
            log_start: FIRST,
            entries: [(2, add), (3, remove)].map(entry).to_vec(),
            applied: FIRST,
            is_restart: true,
            ..Start::joining(GroupId::META, ReplicaId(1), 0)
        };
        let mut group = Group::new(&Settings::default(), start, Instant(MS)).unwrap();
        let mut now = Instant(MS);
        for _ in 0..3 {
            let committed = group.poll_ready(now).unwrap().committed;
            assert_eq!(committed.len(), 2);
            let memberships: Vec<_> =
                committed.iter().map(|entry| group.handle_membership_applied(entry).unwrap()).collect();
            assert_eq!(memberships, [with_learner.clone(), before.clone()]);
            assert_eq!(group.handle_membership_applied(&committed[0]), Ok(with_learner.clone()));
            assert_eq!(group.membership(), &before, "both count, in their order");
            group.handle_not_applied(now);
            while group.poll_ready(now).is_some() {}
            now = now + PAUSE_MAX;
            group.handle_tick(now);
        }
        assert_eq!(group.poll_ready(now).unwrap().committed.len(), 2);
        group.handle_applied(2, now);
        group.handle_not_applied(now);
        group.handle_tick(now + PAUSE);
        let rest = group.poll_ready(now + PAUSE).unwrap().committed;
        assert_eq!(rest.iter().map(|entry| entry.index).collect::<Vec<_>>(), [3]);
    }

    /// Hands out what is committed, which the storage does not take.
    fn refuse(group: &mut Group, now: Instant) {
        while let Some(ready) = group.poll_ready(now) {
            if let Some(persist) = ready.persist {
                group.handle_persisted(persist.ticket, now);
            }
            if !ready.committed.is_empty() {
                group.handle_not_applied(now);
            }
        }
    }

    fn megabyte() -> Bytes {
        Bytes::from(vec![7; 1 << 20])
    }

    #[test]
    fn n4_a_leader_takes_no_more_than_it_may_hold_back() {
        let membership = Membership::of_voters([ReplicaId(1)]);
        let start = Start { may_campaign_now: true, ..Start::founding(GroupId::META, ReplicaId(1), membership, 0) };
        let mut group = Group::new(&Settings::default(), start, Instant(MS)).unwrap();
        refuse(&mut group, Instant(MS));
        let now = Instant(200 * MS);
        group.handle_tick(now);
        refuse(&mut group, now);
        let taken = (0..100).take_while(|_| {
            let is_taken = group.propose(megabyte(), now).is_ok();
            refuse(&mut group, now);
            is_taken
        });
        assert_eq!(taken.count(), 32);
        assert_eq!(group.propose(Bytes::new(), now), Err(ProposeError::Busy));
        group.handle_tick(now + PAUSE);
        while let Some(last) = group.poll_ready(now + PAUSE).and_then(|ready| ready.committed.last().cloned()) {
            group.handle_applied(last.index, now + PAUSE);
        }
        assert_eq!(group.applied(), group.last_index());
        assert!(group.propose(megabyte(), now + PAUSE).is_ok(), "it has room again");
    }

    #[test]
    fn n4_a_follower_takes_no_more_than_it_may_hold_back() {
        let membership = Membership::of_voters([ReplicaId(1), ReplicaId(9)]);
        let start = Start::founding(GroupId::META, ReplicaId(1), membership, 0);
        let mut group = Group::new(&Settings::default(), start, Instant(MS)).unwrap();
        let now = Instant(2 * MS);
        for index in 2..100 {
            let position = LogPosition { term: 2, index };
            let mut append = eraftpb::Message { from: 9, to: 1, term: 2, commit: index, ..Default::default() };
            append.set_msg_type(MessageType::MsgAppend);
            (append.index, append.log_term) = (index - 1, if index == 2 { 1 } else { 2 });
            append.entries = vec![core_entry(position, EntryKind::Normal, megabyte())].into();
            group.handle_message(ReplicaId(9), Message::new(append), now);
            refuse(&mut group, now);
        }
        assert_eq!((group.applied(), group.last_index()), (1, 33));
    }

    /// Pitfall M6: a change that is over is over after a restart, too, even if nothing is written any more.
    #[test]
    fn m6_that_a_change_of_membership_is_committed_is_written() {
        let membership = Membership::of_voters([ReplicaId(1), ReplicaId(9)]);
        let add = MembershipChange { add_learners: vec![ReplicaId(2)], ..MembershipChange::default() };
        let add = Change::new(&add, &membership).unwrap().encode();
        let start = Start::founding(GroupId::META, ReplicaId(1), membership, 0);
        let mut group = Group::new(&Settings::default(), start, Instant(MS)).unwrap();
        let now = Instant(2 * MS);
        let (mut written, mut committed) = (HardState::default(), Vec::new());
        for commit in [1, 2] {
            let mut append = eraftpb::Message { from: 9, to: 1, term: 2, commit, ..Default::default() };
            append.set_msg_type(MessageType::MsgAppend);
            (append.index, append.log_term) = if commit == 1 { (1, 1) } else { (2, 2) };
            if commit == 1 {
                let position = LogPosition { term: 2, index: 2 };
                append.entries = vec![core_entry(position, EntryKind::Membership, add.clone())].into();
            }
            group.handle_message(ReplicaId(9), Message::new(append), now);
            while let Some(ready) = group.poll_ready(now) {
                if let Some(persist) = ready.persist {
                    written = persist.hard_state.unwrap_or(written);
                    group.handle_persisted(persist.ticket, now);
                }
                for entry in ready.committed {
                    group.handle_membership_applied(&entry).unwrap();
                    group.handle_applied(entry.index, now);
                    committed.push(entry.index);
                }
            }
            assert_eq!((written.commit, committed.last().copied().unwrap_or(1)), (commit, commit));
        }
    }

    #[test]
    fn n4_the_pause_grows_to_a_second_and_begins_anew_once_something_is_applied() {
        let mut hold = Hold::new(4);
        assert!(hold.give(9));
        let mut now = Instant(0);
        for pause in [100, 200, 400, 800, 1_000, 1_000] {
            hold.hold(4, now);
            assert!(hold.is_held());
            now = Instant(now.0 + pause * MS);
            assert!(!hold.is_due(Instant(now.0 - 1)));
            assert_eq!(hold.due(now), Some((5, 9)));
            hold.hand_out(9);
        }
        hold.note_applied(6);
        assert!(!hold.is_held());
        hold.hold(6, now);
        assert_eq!(hold.due(Instant(now.0 + 100 * MS)), Some((7, 9)));
    }

    #[test]
    fn n4_nothing_passes_by_what_is_held_back() {
        let mut hold = Hold::new(1);
        assert!(hold.give(3));
        hold.hold(1, Instant(0));
        assert!(!hold.give(5), "2 and 3 come first");
        let later = Instant(100 * MS);
        assert_eq!(hold.due(later), Some((2, 5)));
        hold.hand_out(4);
        assert!(!hold.give(6), "5 comes first");
        assert_eq!(hold.due(later), Some((5, 6)));
        hold.hand_out(6);
        assert!(hold.give(7));
        assert_eq!(hold.due(later), None);
    }

    #[test]
    fn what_is_put_off_comes_next_and_once_it_is_taken_up() {
        let mut hold = Hold::new(1);
        assert!(hold.give(5));
        hold.note_applied(3);
        hold.put_off(3);
        let now = Instant(0);
        assert!(!hold.is_due(now) && !hold.is_held(), "nothing is amiss");
        assert!(!hold.give(6), "4 and 5 come first");
        hold.take_up();
        assert_eq!(hold.due(now), Some((4, 6)));
        hold.hand_out(6);
        hold.put_off(3);
        hold.put_off(3);
        hold.take_up();
        assert_eq!(hold.due(now), Some((4, 6)), "nothing of it was applied");
        hold.hand_out(6);
        hold.put_off(6);
        assert!(hold.give(7), "all of it was");
    }

    #[test]
    fn a_word_that_everything_is_applied_holds_nothing_back() {
        let mut hold = Hold::new(1);
        assert!(hold.give(3));
        hold.note_applied(3);
        hold.hold(3, Instant(0));
        assert!(!hold.is_held());
        assert!(hold.give(4));
    }
}
