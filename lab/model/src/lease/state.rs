//! What the model of the lease consists of: replicas, what is on its way between them, and one waiting read.

use super::Lease;
use crate::log::Log;
use crate::rule::Rule;

/// Replicas that the arrays have room for.
pub const VOTERS_MAX: usize = 3;
/// A voter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replica {
    /// Its term; durable.
    pub term: u8,
    /// Its log; durable.
    pub log: Log,
    /// What it knows to be committed. It has applied that and may have shown it to anybody; durable.
    pub commit: u8,
    /// For how long it still refuses to vote, on its own clock.
    pub refusal: u8,
    /// As a leader: how long ago, on its own clock, it sent the latest message that a majority echoed; see
    /// [`Lease::no_contact`].
    pub contact: u8,
    /// Whether it leads, as far as it knows.
    pub leads: bool,
    /// As a leader: whether it began to hand over in this term.
    pub hands_over: bool,
}

/// A leader's message to a follower, or its echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Exchange {
    /// The leader's term.
    pub term: u8,
    /// The leader's log when it sent.
    pub log: Log,
    /// The leader's commit index when it sent; 0 when heard.
    pub commit: u8,
    /// Whether the follower has heard it, so that the echo is on its way.
    pub is_heard: bool,
    /// How long ago it was sent, on the leader's clock. At most the length of the lease.
    pub age: u8,
    /// Whether it was sent after the waiting read arrived.
    pub follows_read: bool,
}

/// What a read that waits at a leader will be served with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// It gets its index at the first commit of the leader's term, and must not miss `floor`.
    Open {
        /// The largest index that was known to be committed anywhere when the read arrived.
        floor: u8,
    },
    /// Its index is not less than what was known to be committed anywhere when it arrived.
    Covers,
    /// Its index is less.
    Misses(Stale),
}

/// A read that waits at a leader without a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Read {
    /// Where it waits.
    pub at: u8,
    /// What it will be served with.
    pub verdict: Verdict,
    /// Whether a majority has echoed what was sent after it arrived.
    pub is_confirmed: bool,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stale {
    /// What the read was served with.
    pub served: u8,
    /// What it had to cover.
    pub floor: u8,
}

/// The order to a replica to campaign at once, on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handover {
    /// To whom.
    pub to: u8,
    /// The term of the leader that sent it.
    pub term: u8,
}

/// A state of the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// The voters; those that the model does not have stay as they are by default.
    pub replicas: [Replica; VOTERS_MAX],
    /// The latest exchange of each leader (first index) with each follower.
    pub exchanges: [[Option<Exchange>; VOTERS_MAX]; VOTERS_MAX],
    /// The order to campaign that is on its way.
    pub handover: Option<Handover>,
    /// A read that waits at a leader.
    pub read: Option<Read>,
    /// Restarts that may still happen.
    pub restarts_left: u8,
    /// Transfers of the leadership that may still be begun.
    pub transfers_left: u8,
    /// Set once a promise was broken; nothing happens after it.
    pub stale: Option<Stale>,
}

impl State {
    /// The largest index that anybody knows to be committed: it may have been acknowledged, or shown to somebody.
    pub fn known(&self) -> u8 {
        self.replicas.iter().map(|replica| replica.commit).max().unwrap_or_default()
    }

    /// Whether `replica` may give indices away: it leads, and an entry of its own term is committed.
    pub fn has_own_commit(&self, model: &Lease, replica: usize) -> bool {
        let Replica { log, commit, term, leads, .. } = self.replicas[replica];
        leads && (log.term(commit) == term || !model.rules.has(Rule::OwnTermCommit))
    }

    /// Whether `replica` may serve a read without asking anybody.
    pub fn has_lease(&self, model: &Lease, replica: usize) -> bool {
        let Replica { contact, hands_over, .. } = self.replicas[replica];
        let has_time = contact < model.no_contact();
        let is_whole = !hands_over || !model.rules.has(Rule::LeaseEndsAtTransfer);
        has_time && is_whole && self.has_own_commit(model, replica)
    }

    /// Whether `replica` must not help to elect anyone.
    pub fn is_fenced(&self, model: &Lease, replica: usize) -> bool {
        self.replicas[replica].refusal > 0 || self.has_lease(model, replica)
    }

    /// Replaces what can have no effect any more by nothing, so that states that differ only in it are one.
    pub(super) fn forget_dead(&mut self, model: &Lease) {
        let asks = self.read.filter(|read| !read.is_confirmed).map(|read| usize::from(read.at));
        for leader in 0..VOTERS_MAX {
            let Replica { term, leads, contact, commit, .. } = self.replicas[leader];
            for follower in 0..VOTERS_MAX {
                let Some(exchange) = &mut self.exchanges[leader][follower] else { continue };
                let is_current = leads && term == exchange.term;
                if !is_current {
                    exchange.age = model.lease;
                }
                exchange.follows_read &= is_current && asks == Some(leader);
                let renews = exchange.age < contact || !model.rules.has(Rule::LeaseFromSending);
                let is_news = renews || exchange.log.last() > commit || exchange.follows_read;
                let is_dead = match exchange.is_heard {
                    false => exchange.term < self.replicas[follower].term,
                    true => !is_current || !is_news,
                };
                if is_dead {
                    self.exchanges[leader][follower] = None;
                }
            }
        }
        let is_late = |handover: Handover| self.replicas[usize::from(handover.to)].term > handover.term;
        self.handover = self.handover.filter(|&handover| !is_late(handover));
    }

    /// The same state with the replicas in the order of what they are: voters have no names in this model.
    pub(super) fn sorted(self, voters: usize) -> Self {
        let mut order: [usize; VOTERS_MAX] = core::array::from_fn(|i| i);
        // What is on its way breaks ties between replicas that are alike.
        let key = |i: usize| {
            let mut sent = self.exchanges[i];
            let mut heard: [_; VOTERS_MAX] = core::array::from_fn(|leader| self.exchanges[leader][i]);
            sent.sort_unstable();
            heard.sort_unstable();
            let has_read = self.read.is_some_and(|read| usize::from(read.at) == i);
            let is_successor = self.handover.is_some_and(|it| usize::from(it.to) == i);
            (self.replicas[i], has_read, is_successor, sent, heard)
        };
        order[..voters].sort_by_key(|&i| key(i));
        self.renamed(order)
    }

    /// The same state with the replica that was at `order[i]` at `i`.
    fn renamed(self, order: [usize; VOTERS_MAX]) -> Self {
        let mut place = [0; VOTERS_MAX];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new as u8);
        let moved = |old: u8| place[usize::from(old)];
        Self {
            replicas: order.map(|old| self.replicas[old]),
            exchanges: order.map(|leader| order.map(|follower| self.exchanges[leader][follower])),
            handover: self.handover.map(|it| Handover { to: moved(it.to), ..it }),
            read: self.read.map(|it| Read { at: moved(it.at), ..it }),
            ..self
        }
    }

    /// Whether only the names of the replicas differ.
    pub(super) fn is_like(self, other: Self) -> bool {
        const ORDERS: [[usize; VOTERS_MAX]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        ORDERS.into_iter().any(|order| self.renamed(order) == other)
    }
}
