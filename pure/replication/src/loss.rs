//! What shows that a replica has lost entries in silence: a disk that was rolled back, the newest file of a log removed.
//!
//! **A replica forgot.** A follower acknowledges only what is durable in its log, in the term of the leader that it answers,
//! and nothing that this leader sends later takes the place of it. So in that term its log neither ends nor differs below what
//! it acknowledged, whatever is delayed, doubled, restarted or installed. A heartbeat's commit index is at most what its
//! receiver acknowledged in the heartbeat's term, so that a receiver with a shorter log has forgotten, however old the
//! heartbeat. A rejection may be older than the acknowledgement; one that echoes a stamp from after the leader knew of the
//! acknowledgement is not, and an honest one names a hint at or above it. (Acknowledgements of the operating system's memory
//! survive a killed process; after a power failure such a replica has indeed forgotten.)
//!
//! **A replica and its leader contradict each other.** What a replica knows to be committed was committed in its own term or
//! an earlier one, and the leaders of that term and of all later ones hold the very same entries. A leader's log only grows in
//! its term, so no message of it, however old, says otherwise, and terms never fall along a log. Only a pre-vote request tells
//! of a commit index without raising the term, so that it is not believed, and only a disk that keeps what was applied and not
//! yet the commit index may be without its term too: then leaders of later terms count only ([`Group::commit_doubt`]).
//! Whichever of the two lost entries, no machine can know it, so that the replica keeps what it has, and takes no part any
//! more.

use crate::group::Group;
use crate::message::{Message, meta_of};
use crate::ready::{FIRST, Loss};
use hedgerow_types::log::LogPosition;
use hedgerow_types::{Index, Instant, ReplicaId, Term};
use raft::eraftpb::{self, MessageType};

/// As a leader: how far each replica has acknowledged the log in this term, and when that became known here.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    of: Vec<(ReplicaId, Index, Instant)>,
    /// Replicas that have forgotten what they had acknowledged.
    forgetful: Vec<ReplicaId>,
}

impl Acknowledged {
    /// A new term has begun, or this replica has stopped leading.
    pub(crate) fn clear(&mut self) {
        self.of.clear();
        self.forgetful.clear();
    }

    /// Forgets replicas that are no members any more.
    pub(crate) fn retain(&mut self, is_member: impl Fn(ReplicaId) -> bool) {
        self.of.retain(|(replica, ..)| is_member(*replica));
        self.forgetful.retain(|replica| is_member(*replica));
    }

    /// `replica` says that it holds the log up to `index`.
    pub(crate) fn note(&mut self, replica: ReplicaId, index: Index, now: Instant) {
        match self.of.iter_mut().find(|(known, ..)| *known == replica) {
            Some((_, known, _)) if *known >= index => {}
            Some((_, known, since)) => (*known, *since) = (index, now),
            None => self.of.push((replica, index, now)),
        }
    }

    fn note_forgetful(&mut self, replica: ReplicaId) {
        self.of.retain(|(known, ..)| *known != replica);
        if !self.forgetful.contains(&replica) {
            self.forgetful.push(replica);
        }
    }

    pub(crate) fn is_forgetful(&self, replica: ReplicaId) -> bool {
        self.forgetful.contains(&replica)
    }
}

impl Group {
    /// What `message` proves to be lost, if anything.
    pub(crate) fn loss_shown_by(&self, message: &Message) -> Option<Loss> {
        let core = &message.core;
        let is_from_leader = core.term >= self.term() && self.admits_leader(core);
        match message.kind() {
            MessageType::MsgHeartbeat if is_from_leader && core.commit > self.last_index() => {
                Some(Loss::Forgot { last: self.last_index(), acknowledged: core.commit })
            }
            MessageType::MsgAppend if is_from_leader && is_consistent(core) => {
                let before = LogPosition { term: core.log_term, index: core.index };
                self.contradiction(core.term, message.from(), before, &core.entries)
            }
            MessageType::MsgSnapshot if is_from_leader => {
                let position = meta_of(core.get_snapshot()).position;
                self.contradiction(core.term, message.from(), position, &[])
            }
            MessageType::MsgAppendResponse if core.reject && core.term == self.term() && self.is_leader() => {
                let known = self.acknowledged.of.iter().find(|(replica, ..)| *replica == message.from());
                let &(replica, acknowledged, since) = known?;
                let is_later = Instant(message.echo) > since;
                (is_later && core.reject_hint < acknowledged).then_some(Loss::PeerForgot {
                    replica,
                    last: core.reject_hint,
                    acknowledged,
                })
            }
            _ => None,
        }
    }

    /// Whether `first` and the entries `next` to it, which `leader` holds in `term`, cannot be in one log with what is
    /// committed here.
    pub(crate) fn contradiction(
        &self,
        term: Term,
        leader: ReplicaId,
        first: LogPosition,
        next: &[eraftpb::Entry],
    ) -> Option<Loss> {
        let commit = LogPosition { index: self.commit(), term: self.known_term(self.commit())? };
        if term <= self.commit_doubt {
            return None;
        }
        let contradicts = |entry: &LogPosition| match entry.index.cmp(&commit.index) {
            core::cmp::Ordering::Greater => entry.term < commit.term,
            core::cmp::Ordering::Equal => entry.term != commit.term,
            // The term of an entry that is only on disk is not known, but it is not above the committed one's.
            core::cmp::Ordering::Less => {
                let is_other = |own| own != entry.term;
                entry.index >= FIRST.index
                    && (entry.term > commit.term || self.known_term(entry.index).is_some_and(is_other))
            }
        };
        // Terms do not fall, so what follows the commit index adds nothing.
        let next = next.iter().map(|entry| LogPosition { term: entry.term, index: entry.index });
        let next = next.take_while(|entry| entry.index <= commit.index);
        let entry = core::iter::once(first).chain(next).find(contradicts)?;
        Some(Loss::Contradiction { commit, leader, term, entry })
    }

    fn known_term(&self, index: Index) -> Option<Term> {
        // The core says 0 for an index that its log does not cover.
        self.core.raft.raft_log.term(index).ok().filter(|term| *term > 0)
    }

    /// Acts on a loss that a message of `term` has shown.
    pub(crate) fn handle_loss(&mut self, loss: Loss, term: Term) {
        self.is_dirty = true;
        match loss {
            Loss::Forgot { .. } | Loss::Contradiction { .. } => self.withdraw(loss.clone(), term),
            Loss::PeerForgot { replica, last, .. } => self.doubt_peer(replica, last),
        }
        self.losses.push(loss);
    }

    /// From now on the replica neither votes nor acknowledges nor serves, whatever comes.
    fn withdraw(&mut self, loss: Loss, term: Term) {
        let term = self.term().max(term);
        self.core.raft.become_follower(term, 0);
        self.settle();
        self.reads.refuse_all();
        self.questions.refuse_all();
        self.begin_reads_again();
        self.withdrawn = Some(loss);
    }

    /// What `replica` acknowledged no longer counts; it is known as little as if this leader had just been elected.
    fn doubt_peer(&mut self, replica: ReplicaId, last: Index) {
        self.acknowledged.note_forgetful(replica);
        let Some(progress) = self.core.raft.mut_prs().get_mut(replica.0) else { return };
        progress.matched = 0;
        progress.become_probe();
        progress.next_idx = last + 1;
        self.core.raft.send_append(replica.0);
    }

    /// Why this replica takes no part in its group any more, if so: [`Loss::Forgot`] or [`Loss::Contradiction`]. It lasts
    /// until the replica is started anew.
    pub fn withdrawn(&self) -> Option<&Loss> {
        self.withdrawn.as_ref()
    }
}

/// Whether an append follows the index that it names, with terms that do not fall.
pub(crate) fn is_consistent(core: &eraftpb::Message) -> bool {
    let mut term = core.log_term;
    core.entries.iter().zip(core.index + 1..).all(|(entry, index)| {
        let is_next = entry.index == index && entry.term >= term && entry.term <= core.term;
        term = entry.term;
        is_next
    })
}
