//! The partition map of one table, and what refusals have taught about it since it was fetched.
//!
//! Two sources tell who leads a partition. The map is complete but cached by whoever answered the query; a refusal
//! comes from a replica of the group itself but knows one partition. So a leader named by a refusal goes before the
//! map's, until the map was asked for after the refusal or no longer has that replica. An address that refused is not
//! asked again before the map was asked again, whoever names it: two replicas that name each other cannot keep a
//! client going in circles.

use alloc::vec::Vec;
use bytes::Bytes;
use core::net::SocketAddr;
use core::ops::{Bound, Range};
use hedgerow_types::limit::PARTITION_COUNT_MAX;
use hedgerow_types::{PartitionIndex, TableId, key};

/// Where a node serves clients.
pub type Address = SocketAddr;

/// Most refusals remembered for one partition; beyond it the oldest is forgotten.
const REFUSALS_MAX: usize = 16;

/// How a table's keys are spread over its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// By the hash of the hash key.
    Hash,
    /// By ranges of the key itself.
    Ordered,
}

impl TableKind {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Ordered => "ordered",
        }
    }
}

/// What the map says of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRoute {
    /// Rises with every change of the partition's replicas; negative while the partition is not yet served.
    pub ballot: i64,
    /// The replica that leads, if one does.
    pub leader: Option<Address>,
    /// The others that vote.
    pub followers: Vec<Address>,
    /// Those that only follow: they serve reads and never lead.
    pub learners: Vec<Address>,
    /// Ordered tables: the partition's smallest key. Hash tables: not looked at.
    pub start: Bytes,
}

impl PartitionRoute {
    /// All replicas: the leader, the followers, the learners.
    pub fn replicas(&self) -> impl Iterator<Item = Address> + '_ {
        self.leader.into_iter().chain(self.followers.iter().copied()).chain(self.learners.iter().copied())
    }

    /// Whether the replica at `address` may lead.
    fn votes(&self, address: Address) -> bool {
        self.leader == Some(address) || self.followers.contains(&address)
    }
}

/// Why routes are not a map. The answer they came in is to be discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMap {
    /// None, more than [`PARTITION_COUNT_MAX`], or, for a hash table, not a power of two.
    #[error("{0} partitions are not a map")]
    PartitionCount(usize),
    /// An ordered table whose first partition has a lower bound, or whose bounds do not ascend.
    #[error("the lower bound of partition {0} is not allowed")]
    Start(PartitionIndex),
}

/// A point in what a map has learned; see [`TableMap::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The partitions of one table.
#[derive(Clone, Debug)]
pub struct TableMap {
    table: TableId,
    kind: TableKind,
    partitions: Vec<Known>,
    /// Counts what was learned from replies, so that it can be told from what a query asked later brings.
    lessons: u64,
}

#[derive(Clone, Debug)]
struct Known {
    route: PartitionRoute,
    hint: Option<Hint>,
    refusals: Vec<Refused>,
    is_stale: bool,
}

#[derive(Clone, Copy, Debug)]
struct Hint {
    leader: Address,
    learned: u64,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    address: Address,
    learned: u64,
}

impl TableMap {
    /// The map of `table` as an answer to a query gives it.
    pub fn new(table: TableId, kind: TableKind, routes: Vec<PartitionRoute>) -> Result<Self, InvalidMap> {
        let count = routes.len();
        let is_count_allowed = match kind {
            TableKind::Hash => count.is_power_of_two(),
            TableKind::Ordered => count > 0,
        };
        if !is_count_allowed || count > PARTITION_COUNT_MAX as usize {
            return Err(InvalidMap::PartitionCount(count));
        }
        if kind == TableKind::Ordered {
            check_starts(&routes)?;
        }
        Ok(Self { table, kind, partitions: routes.into_iter().map(Known::new).collect(), lessons: 0 })
    }

    /// The table's id.
    pub fn table(&self) -> TableId {
        self.table
    }

    /// How its keys are spread.
    pub fn kind(&self) -> TableKind {
        self.kind
    }

    /// How many partitions it has; at least one.
    pub fn partition_count(&self) -> u32 {
        self.partitions.len() as u32
    }

    /// What the latest map says of `partition`, without what refusals taught.
    pub fn route(&self, partition: PartitionIndex) -> Option<&PartitionRoute> {
        self.partitions.get(partition as usize).map(|known| &known.route)
    }

    /// The partition of a record. An ordered table's records have an empty hash key.
    pub fn partition_for_hash_key(&self, hash_key: &[u8], sort_key: &[u8]) -> PartitionIndex {
        match self.kind {
            TableKind::Hash => key::partition_of_hash(key::partition_hash(hash_key, sort_key), self.partition_count()),
            TableKind::Ordered => self.find(sort_key),
        }
    }

    /// The partition of an ordered table's record. In a hash table, that of the record with an empty hash key.
    pub fn partition_for_key(&self, key: &[u8]) -> PartitionIndex {
        self.partition_for_hash_key(&[], key)
    }

    /// The partitions that hold the keys between `start` and `stop`, in the order of their keys; none for an empty
    /// range. In a hash table keys are not in order, so it is all of them.
    pub fn partitions_for_range(&self, start: Bound<&[u8]>, stop: Bound<&[u8]>) -> Range<PartitionIndex> {
        if self.kind == TableKind::Hash {
            return 0..self.partition_count();
        }
        if is_empty(start, stop) {
            return 0..0;
        }
        let first = match start {
            Bound::Included(start) | Bound::Excluded(start) => self.find(start),
            Bound::Unbounded => 0,
        };
        let end = match stop {
            Bound::Included(stop) => self.find(stop) + 1,
            Bound::Excluded(stop) => self.partitions.partition_point(|known| known.route.start < stop) as u32,
            Bound::Unbounded => self.partition_count(),
        };
        first..end
    }

    /// Who leads `partition` as far as known: by a replica's word, else by the map. Unlike [`TableMap::target`] it may
    /// have refused.
    pub fn leader(&self, partition: PartitionIndex) -> Option<Address> {
        let known = self.partitions.get(partition as usize)?;
        known.hint.map(|hint| hint.leader).or(known.route.leader)
    }

    /// The address to send a request to that needs the leader of `partition`: the leader, as far as known and unless it
    /// refused, else another replica that has not refused, which may know the leader. `None` if there is no such
    /// replica (or partition): fetch the map again ([`TableMap::update`]), or start over with what is known
    /// ([`TableMap::forgive`]).
    pub fn target(&self, partition: PartitionIndex) -> Option<Address> {
        let known = self.partitions.get(partition as usize)?;
        let hint = known.hint.map(|hint| hint.leader);
        let candidates = hint.into_iter().chain(known.route.leader).chain(known.route.followers.iter().copied());
        candidates.into_iter().find(|address| !known.has_refused(*address))
    }

    /// Takes a replica's word that `leader` leads `partition`. Returns whether it is now the target. It is not if it
    /// refused itself since the map was fetched: then the caller does as if no leader had been named.
    pub fn note_leader(&mut self, partition: PartitionIndex, leader: Address) -> bool {
        self.lessons += 1;
        let learned = self.lessons;
        let Some(known) = self.partitions.get_mut(partition as usize) else { return false };
        let is_believed = !known.has_refused(leader);
        if is_believed {
            known.hint = Some(Hint { leader, learned });
        }
        is_believed
    }

    /// Notes that the replica at `address` does not lead `partition`, or could not be reached.
    pub fn note_not_leader(&mut self, partition: PartitionIndex, address: Address) {
        self.lessons += 1;
        let learned = self.lessons;
        let Some(known) = self.partitions.get_mut(partition as usize) else { return };
        known.hint = known.hint.filter(|hint| hint.leader != address);
        known.refusals.retain(|refused| refused.address != address);
        if known.refusals.len() >= REFUSALS_MAX {
            known.refusals.remove(0);
        }
        known.refusals.push(Refused { address, learned });
    }

    /// Notes that the node at `address` does not host `partition`: it is asked no more, and the partition's entry is
    /// stale ([`TableMap::stale_partitions`]); all others stay as they are.
    pub fn note_not_hosted(&mut self, partition: PartitionIndex, address: Address) {
        self.note_not_leader(partition, address);
        if let Some(known) = self.partitions.get_mut(partition as usize) {
            known.is_stale = true;
        }
    }

    /// The partitions whose entries should be fetched again: those that a node no longer hosts, and those without a
    /// [`TableMap::target`].
    pub fn stale_partitions(&self) -> Vec<PartitionIndex> {
        let is_stale = |index: &u32| self.partitions[*index as usize].is_stale || self.target(*index).is_none();
        (0..self.partition_count()).filter(is_stale).collect()
    }

    /// Forgets which replicas of `partition` refused, so that they are asked once more.
    pub fn forgive(&mut self, partition: PartitionIndex) {
        if let Some(known) = self.partitions.get_mut(partition as usize) {
            known.refusals.clear();
        }
    }

    /// What has been learned so far. Taken when a query for the map is sent and handed back with its answer, so that
    /// the answer does not overrule what replicas said in between.
    pub fn mark(&self) -> Mark {
        Mark(self.lessons)
    }

    /// Takes over a newly fetched map that was asked for at `asked`. An entry with a smaller ballot than the known one
    /// is old and changes nothing. Another table under the same name, or another number of partitions, replaces
    /// everything.
    pub fn update(&mut self, newer: Self, asked: Mark) {
        let is_same_shape = (self.table, self.kind, self.partitions.len())
            == (newer.table, newer.kind, newer.partitions.len())
            && self.partitions.iter().zip(&newer.partitions).all(|(ours, theirs)| ours.has_bounds_of(theirs));
        if is_same_shape {
            for (ours, theirs) in self.partitions.iter_mut().zip(newer.partitions) {
                ours.update(theirs.route, asked);
            }
        } else {
            // Marks taken before must stay comparable, so the count goes on.
            let lessons = self.lessons;
            *self = Self { lessons, ..newer };
        }
    }

    /// Takes over the newly fetched entry of one partition, as [`TableMap::update`] does for all. Returns false, and
    /// changes nothing, if there is no such partition.
    pub fn update_partition(&mut self, partition: PartitionIndex, route: PartitionRoute, asked: Mark) -> bool {
        let known = self.partitions.get_mut(partition as usize);
        known.map(|known| known.update(route, asked)).is_some()
    }

    fn find(&self, key: &[u8]) -> PartitionIndex {
        // The first partition starts at the empty key, so at least one start is not above `key`.
        (self.partitions.partition_point(|known| known.route.start <= key) as u32).saturating_sub(1)
    }
}

impl Known {
    fn new(route: PartitionRoute) -> Self {
        Self { route, hint: None, refusals: Vec::new(), is_stale: false }
    }

    fn has_refused(&self, address: Address) -> bool {
        self.refusals.iter().any(|refused| refused.address == address)
    }

    fn has_bounds_of(&self, other: &Self) -> bool {
        self.route.start == other.route.start
    }

    fn update(&mut self, route: PartitionRoute, asked: Mark) {
        if route.ballot < self.route.ballot {
            return;
        }
        let is_newer = route.ballot > self.route.ballot;
        let may_lead = |hint: &Hint| !is_newer || route.votes(hint.leader);
        self.hint = self.hint.filter(|hint| hint.learned > asked.0 && may_lead(hint));
        self.refusals.retain(|refused| refused.learned > asked.0);
        self.is_stale = false;
        self.route = route;
    }
}

fn check_starts(routes: &[PartitionRoute]) -> Result<(), InvalidMap> {
    let mut before: Option<&Bytes> = None;
    for (index, route) in (0..).zip(routes) {
        if before.map_or(!route.start.is_empty(), |before| route.start <= *before) {
            return Err(InvalidMap::Start(index));
        }
        before = Some(&route.start);
    }
    Ok(())
}

fn is_empty(start: Bound<&[u8]>, stop: Bound<&[u8]>) -> bool {
    match (start, stop) {
        (Bound::Included(start), Bound::Included(stop)) => start > stop,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(stop))
        | (Bound::Excluded(start), Bound::Included(stop)) => start >= stop,
        (Bound::Unbounded, Bound::Excluded(stop)) => stop.is_empty(),
        (Bound::Unbounded, Bound::Included(_) | Bound::Unbounded) | (_, Bound::Unbounded) => false,
    }
}
