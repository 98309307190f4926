//! What replicas write to the node's logs: gathered over a batch of events, one submission to each log, and who waits for it.

use crate::ids::{LogId, Numbers, ReplicaKey};
use crate::outbox::Outbox;
use hedgerow_types::GroupId;
use hedgerow_wal::{Append, Submission};
use std::collections::{BTreeMap, BTreeSet};

/// What an entry takes of a log besides its data, at most, bytes.
const ENTRY_OVERHEAD: u64 = 128;

/// Log writes of the current batch of events, and those under way.
#[derive(Debug)]
pub(crate) struct LogWrites {
    /// By log.
    gathering: BTreeMap<LogId, Gathering>,
    /// By log and submission ticket: whom to tell.
    under_way: BTreeMap<(LogId, u64), UnderWay>,
    /// Logs that take nothing more.
    failed: BTreeSet<LogId>,
    tickets: Numbers,
}

#[derive(Debug, Default)]
struct Gathering {
    appends: Vec<Append>,
    truncations: Vec<(GroupId, u64)>,
    removals: Vec<GroupId>,
    waiting: Vec<(ReplicaKey, u64)>,
}

/// A submission that is not durable.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// Replicas that wait for it, each with the ticket of what it has in it.
    pub(crate) waiting: Vec<(ReplicaKey, u64)>,
    /// About so many bytes of entries.
    pub(crate) bytes: u64,
}

impl LogWrites {
    /// Nothing is on its way; submissions have these `tickets`.
    pub(crate) const fn new(tickets: Numbers) -> Self {
        Self { gathering: BTreeMap::new(), under_way: BTreeMap::new(), failed: BTreeSet::new(), tickets }
    }

    pub(crate) fn append(&mut self, log: LogId, owner: ReplicaKey, ticket: Option<u64>, append: Append) {
        let gathering = self.gathering.entry(log).or_default();
        gathering.appends.push(append);
        gathering.waiting.extend(ticket.map(|ticket| (owner, ticket)));
    }

    pub(crate) fn truncate(&mut self, log: LogId, group: GroupId, through: u64) {
        self.gathering.entry(log).or_default().truncations.push((group, through));
    }

    /// A removal must not overtake appends of the same group that were gathered before it, nor follow those gathered
    /// after it, so that it closes the batch of its log.
    pub(crate) fn remove(&mut self, log: LogId, group: GroupId, outbox: &mut Outbox) {
        self.submit(log, outbox);
        self.gathering.entry(log).or_default().removals.push(group);
        self.submit(log, outbox);
    }

    pub(crate) fn submit_all(&mut self, outbox: &mut Outbox) {
        let logs: Vec<LogId> = self.gathering.keys().copied().collect();
        logs.into_iter().for_each(|log| self.submit(log, outbox));
    }

    fn submit(&mut self, log: LogId, outbox: &mut Outbox) {
        let Some(Gathering { appends, truncations, removals, waiting }) = self.gathering.remove(&log) else { return };
        if self.failed.contains(&log) {
            return;
        }
        let ticket = self.tickets.next();
        let entries = appends.iter().flat_map(|append| &append.entries);
        let bytes = entries.map(|entry| entry.data.len() as u64 + ENTRY_OVERHEAD).sum();
        self.under_way.insert((log, ticket), UnderWay { waiting, bytes });
        outbox.submissions.push((log, Submission { appends, truncations, removals, ticket }));
    }

    /// A submission to a log is durable.
    pub(crate) fn end(&mut self, log: LogId, ticket: u64) -> Option<UnderWay> {
        self.under_way.remove(&(log, ticket))
    }

    /// Bytes of entries on their way to a log, about.
    pub(crate) fn bytes_under_way(&self, log: LogId) -> u64 {
        self.under_way.range((log, 0)..=(log, u64::MAX)).map(|(_, submission)| submission.bytes).sum()
    }

    /// A log takes nothing more, and says nothing of what is under way to it.
    pub(crate) fn fail(&mut self, log: LogId) {
        self.under_way.retain(|(of, _), _| *of != log);
        self.failed.insert(log);
    }
}
