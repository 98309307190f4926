//! Who heard whom when: what the leader's lease, the confirmation of reads and the refusal to vote are computed from.
//!
//! ```text
//! leader's clock     s: sends, stamped s                    a: takes the echo of s
//!                        \                                 /
//! follower's clock        x: hears it, refuses to vote until x + V
//! ```
//!
//! The stamp tells the leader that the follower was in its term, and began to refuse, after s; that s and not a counts is
//! what makes delayed messages harmless.

use crate::membership::Membership;
use core::time::Duration;
use hedgerow_types::{Instant, ReplicaId, Term};

#[derive(Debug)]
pub(crate) struct Contact {
    replica: ReplicaId,
    refusal: Duration,
    /// As a restarted replica: it may have heard a leader just before it stopped.
    refuse_since_start: Instant,
    /// As a follower: since it last heard its leader.
    refuse_since_heard: Instant,
    /// As a follower: the leader of which term was heard, and its latest stamp.
    heard: Option<(Term, ReplicaId, u64)>,
    /// As a leader: the latest stamp of this term that each replica echoed.
    echoed: Vec<(ReplicaId, Instant)>,
    /// As a leader: the stamp of the latest response of this term that each replica sent, by its own clock.
    stamps: Vec<(ReplicaId, u64)>,
    /// As a leader: the latest time at or after which a majority was in the leader's term. `None` if there is none yet.
    quorum: Option<Instant>,
}

impl Contact {
    pub(crate) fn new(replica: ReplicaId, refusal: Duration, is_restart: bool, now: Instant) -> Self {
        Self {
            replica,
            refusal,
            refuse_since_start: if is_restart { now + refusal } else { Instant::ZERO },
            refuse_since_heard: Instant::ZERO,
            heard: None,
            echoed: Vec::new(),
            stamps: Vec::new(),
            quorum: None,
        }
    }

    /// Until when the replica refuses because it started a short while ago.
    pub(crate) fn start_fence(&self) -> Instant {
        self.refuse_since_start
    }

    /// Until when the replica refuses because it heard its leader.
    pub(crate) fn heard_fence(&self) -> Instant {
        self.refuse_since_heard
    }

    /// The follower took a message of the leader of `term`.
    pub(crate) fn hear(&mut self, term: Term, leader: ReplicaId, stamp: u64, now: Instant) {
        self.refuse_since_heard = now + self.refusal;
        let known = match self.heard {
            Some((heard_term, heard_leader, known)) if (heard_term, heard_leader) == (term, leader) => known,
            _ => 0,
        };
        self.heard = Some((term, leader, stamp.max(known)));
    }

    /// When the leader of `term` was last heard; `None` if it was not.
    pub(crate) fn heard_at(&self, term: Term, leader: ReplicaId) -> Option<Instant> {
        let is_heard =
            self.heard.is_some_and(|(heard_term, heard_leader, _)| (heard_term, heard_leader) == (term, leader));
        is_heard.then(|| self.refuse_since_heard - self.refusal)
    }

    /// The stamp to echo to `leader` in `term`; 0 if it was not heard in it.
    pub(crate) fn echo(&self, term: Term, leader: ReplicaId) -> u64 {
        match self.heard {
            Some((heard_term, heard_leader, stamp)) if (heard_term, heard_leader) == (term, leader) => stamp,
            _ => 0,
        }
    }

    /// A new leader has heard nobody in its term.
    pub(crate) fn begin_leading(&mut self, membership: &Membership) {
        self.echoed.clear();
        self.stamps.clear();
        self.update(membership);
    }

    /// The leader got back the stamp `echo` from `from`, in its own term.
    pub(crate) fn take_echo(&mut self, from: ReplicaId, echo: Instant, membership: &Membership) {
        match self.echoed.iter_mut().find(|(replica, _)| *replica == from) {
            Some((_, known)) if *known >= echo => return,
            Some((_, known)) => *known = echo,
            None if membership.contains(from) => self.echoed.push((from, echo)),
            None => return,
        }
        self.update(membership);
    }

    /// The leader got a response that `from` sent in its term, at `stamp` of its own clock. The latest to come counts, not the largest: another
    /// process of that replica may have another clock.
    pub(crate) fn take_stamp(&mut self, from: ReplicaId, stamp: u64, membership: &Membership) {
        match self.stamps.iter_mut().find(|(replica, _)| *replica == from) {
            Some((_, known)) => *known = stamp,
            None if membership.contains(from) => self.stamps.push((from, stamp)),
            None => {}
        }
    }

    /// The stamp of the latest response of `to` in the leader's term; 0 if there was none.
    pub(crate) fn stamp_of(&self, to: ReplicaId) -> u64 {
        self.stamps.iter().find(|(replica, _)| *replica == to).map_or(0, |(_, stamp)| *stamp)
    }

    /// Computes the quorum contact again, after an echo or a change of the membership.
    pub(crate) fn update(&mut self, membership: &Membership) {
        self.echoed.retain(|&(replica, _)| membership.contains(replica));
        self.stamps.retain(|&(replica, _)| membership.contains(replica));
        let voters = self.majority(&membership.voters);
        self.quorum =
            if membership.is_joint() { voters.min(self.majority(&membership.voters_outgoing)) } else { voters };
    }

    /// The latest time that a majority of `voters` reaches, the leader itself counting as always in contact.
    fn majority(&self, voters: &[ReplicaId]) -> Option<Instant> {
        let needed = voters.len() / 2 + 1 - usize::from(voters.contains(&self.replica));
        if needed == 0 {
            return Some(Instant(u64::MAX));
        }
        let mut times: Vec<_> =
            self.echoed.iter().filter(|(id, _)| voters.contains(id)).map(|&(_, time)| time).collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.get(needed - 1).copied()
    }

    pub(crate) fn quorum(&self) -> Option<Instant> {
        self.quorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact_of(voters: &[u64], outgoing: &[u64], echoes: &[(u64, u64)]) -> Option<u64> {
        let ids = |list: &[u64]| list.iter().map(|&id| ReplicaId(id)).collect::<Vec<_>>();
        let membership = Membership { voters: ids(voters), voters_outgoing: ids(outgoing), ..Membership::default() };
        let mut contact = Contact::new(ReplicaId(1), Duration::from_secs(1), false, Instant::ZERO);
        contact.begin_leading(&membership);
        for &(from, echo) in echoes {
            contact.take_echo(ReplicaId(from), Instant(echo), &membership);
        }
        contact.quorum().map(|time| time.0)
    }

    #[test]
    fn quorum_contact_is_the_latest_time_that_a_majority_reaches() {
        assert_eq!(contact_of(&[1], &[], &[]), Some(u64::MAX));
        assert_eq!(contact_of(&[1, 2, 3], &[], &[]), None);
        assert_eq!(contact_of(&[1, 2, 3], &[], &[(2, 5)]), Some(5));
        assert_eq!(contact_of(&[1, 2, 3], &[], &[(2, 5), (3, 9), (2, 7)]), Some(9));
        assert_eq!(contact_of(&[1, 2, 3], &[], &[(3, 9), (3, 4)]), Some(9));
        assert_eq!(contact_of(&[1, 2, 3, 4, 5], &[], &[(2, 5), (3, 9)]), Some(5));
        assert_eq!(contact_of(&[1, 2, 3, 4], &[], &[(2, 5), (3, 9)]), Some(5));
        assert_eq!(contact_of(&[1, 2, 3], &[1, 4, 5], &[(2, 5)]), None);
        assert_eq!(contact_of(&[1, 2, 3], &[1, 4, 5], &[(2, 5), (4, 3)]), Some(3));
        assert_eq!(contact_of(&[2, 3], &[], &[(2, 5), (3, 4)]), Some(4));
        assert_eq!(contact_of(&[1, 2], &[], &[(9, 5)]), None);
    }

    #[test]
    fn a_stamp_is_echoed_only_to_the_leader_and_term_it_came_from() {
        let mut contact = Contact::new(ReplicaId(1), Duration::from_secs(1), false, Instant::ZERO);
        contact.hear(3, ReplicaId(2), 70, Instant(5));
        contact.hear(3, ReplicaId(2), 60, Instant(6));
        assert_eq!(contact.echo(3, ReplicaId(2)), 70);
        assert_eq!(contact.echo(4, ReplicaId(2)), 0);
        assert_eq!(contact.echo(3, ReplicaId(3)), 0);
        contact.hear(4, ReplicaId(3), 10, Instant(7));
        assert_eq!(contact.echo(4, ReplicaId(3)), 10);
        assert_eq!(contact.heard_fence(), Instant(7) + Duration::from_secs(1));
    }
}
