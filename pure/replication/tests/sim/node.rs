//! One machine of the world: a group, its log on a disk that forgets, its storage, and its clock.

use super::Event;
use super::readers::Read;
use hedgerow_replication::{FIRST, Group, Membership, Mutations, Persist, Settings, SnapshotMeta, Start, TailIndex};
use hedgerow_types::log::{Entry, HardState, LogPosition};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Index, Instant, ReplicaId, Term};
use std::collections::{BTreeMap, VecDeque};

/// What the storage holds.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub applied: LogPosition,
    pub membership: Membership,
    /// The register: the index of the last write.
    pub last_write: Index,
}

#[derive(Default)]
pub struct Disk {
    pub start: LogPosition,
    pub entries: VecDeque<Entry>,
    pub hard_state: HardState,
    /// The storage as it was last flushed.
    pub machine: Machine,
    unsynced: VecDeque<Persist>,
}

impl Disk {
    pub fn begin(&mut self, persist: Persist) {
        self.unsynced.push_back(persist);
    }

    pub fn finish(&mut self, ticket: u64) {
        while self.unsynced.front().is_some_and(|persist| persist.ticket <= ticket) {
            if let Some(persist) = self.unsynced.pop_front() {
                self.write(persist);
            }
        }
    }

    /// The first write under way is torn behind its entries.
    pub fn tear(&mut self) {
        let persist = self.unsynced.pop_front().expect("a write is under way");
        assert!(!persist.entries.is_empty() && persist.hard_state.is_some(), "{persist:?}");
        self.unsynced.clear();
        self.write(Persist { hard_state: None, ..persist });
    }

    fn write(&mut self, persist: Persist) {
        if let Some(position) = persist.reset {
            self.start = position;
            self.entries.clear();
        }
        if let Some(first) = persist.entries.first() {
            assert!(first.index > self.start.index, "entries are not written before the log's beginning");
            self.entries.retain(|entry| entry.index < first.index);
            let last = self.entries.back().map_or(self.start, Entry::position);
            assert_eq!(first.index, last.index + 1, "the log has no gap");
        }
        self.entries.extend(persist.entries);
        self.hard_state = persist.hard_state.unwrap_or(self.hard_state);
    }

    pub fn read(&self, low: Index, high: Index, size_max: u64) -> Vec<Entry> {
        let mut size = 0;
        let wanted = self.entries.iter().filter(|entry| low <= entry.index && entry.index < high).enumerate();
        let within = wanted.take_while(|(i, entry)| {
            size += entry.data.len() as u64;
            *i < 1 || size <= size_max
        });
        within.map(|(_, entry)| entry.clone()).collect()
    }

    /// Drops entries up to `through` that the flushed storage holds.
    pub fn truncate(&mut self, through: Index) -> Option<LogPosition> {
        let through = through.min(self.machine.applied.index);
        let mut dropped = None;
        while self.entries.front().is_some_and(|entry| entry.index <= through) {
            dropped = self.entries.pop_front().map(|entry| entry.position());
        }
        self.start = dropped.unwrap_or(self.start);
        dropped
    }
}

pub struct Node {
    pub id: u64,
    pub rate_ppm: i64,
    clock_offset: i64,
    pub life: u64,
    pub group: Option<Group>,
    pub is_paused: bool,
    /// Whether events are only collected: the group is not polled before the host has taken all that arrived together.
    pub is_gathering: bool,
    pub backlog: Vec<(u64, Event)>,
    pub disk: Disk,
    pub persisted_at: u64,
    pub machine: Machine,
    pub queue: VecDeque<Entry>,
    pub is_applying: bool,
    pub is_apply_stopped: bool,
    /// The storage takes nothing.
    pub refuses_apply: bool,
    pub checkpoints: BTreeMap<u64, Machine>,
    pub received: BTreeMap<Index, Machine>,
    pub proposals: BTreeMap<Index, (Term, u64)>,
    pub reads: BTreeMap<u64, Read>,
    /// Whether a question is planned, and until when the group sleeps, by its own clock.
    pub will_ask: bool,
    pub will_ask_tails: bool,
    pub tail: TailIndex,
    pub wakes_at: Option<Instant>,
    /// The log as it is in memory.
    pub log: BTreeMap<Index, Term>,
}

impl Node {
    pub fn new(id: u64, rate_ppm: i64, membership: Membership) -> Self {
        let applied = if membership.voters.is_empty() { LogPosition::default() } else { FIRST };
        let disk = Disk { machine: Machine { membership, applied, ..Machine::default() }, ..Disk::default() };
        Self {
            id,
            rate_ppm,
            clock_offset: 0,
            life: 0,
            group: None,
            is_paused: false,
            is_gathering: false,
            backlog: Vec::new(),
            disk,
            persisted_at: 0,
            machine: Machine::default(),
            queue: VecDeque::new(),
            is_applying: false,
            is_apply_stopped: false,
            refuses_apply: false,
            checkpoints: BTreeMap::new(),
            received: BTreeMap::new(),
            proposals: BTreeMap::new(),
            reads: BTreeMap::new(),
            will_ask: false,
            will_ask_tails: false,
            tail: TailIndex::default(),
            wakes_at: None,
            log: BTreeMap::new(),
        }
    }

    /// The node's own clock, which starts anywhere and runs at its own rate.
    pub fn now(&self, time: u64) -> Instant {
        let elapsed = i128::from(time) * i128::from(1_000_000 + self.rate_ppm) / 1_000_000;
        Instant((elapsed + i128::from(self.clock_offset)) as u64 + self.id * 1_000_000_007)
    }

    /// From now on the clock runs at another rate.
    pub fn set_rate(&mut self, rate_ppm: i64, time: u64) {
        let before = self.now(time).0;
        self.rate_ppm = rate_ppm;
        self.clock_offset += before as i64 - self.now(time).0 as i64;
    }

    pub fn start(
        &mut self,
        settings: &Settings,
        mutations: Mutations,
        time: u64,
        is_restart: bool,
        may_campaign_now: bool,
        seed: u64,
    ) {
        self.life += 1;
        self.machine = self.disk.machine.clone();
        self.log = self.disk.entries.iter().map(|entry| (entry.index, entry.term)).collect();
        self.log.insert(self.disk.start.index, self.disk.start.term);
        self.log.insert(self.machine.applied.index, self.machine.applied.term);
        // Half of the time only the end of the log is read.
        let mut entries: Vec<_> = self.disk.entries.iter().cloned().collect();
        let last = entries.last().map_or(0, |entry| entry.index);
        if seed.is_multiple_of(2) {
            let applied = self.machine.applied.index;
            entries.retain(|entry| entry.index > applied || entry.index == last);
        }
        let (membership, applied) = (self.machine.membership.clone(), self.machine.applied);
        let (group, replica) = (GroupId::META, ReplicaId(self.id));
        let start = Start {
            membership,
            hard_state: self.disk.hard_state,
            log_start: self.disk.start,
            entries,
            applied,
            is_restart,
            may_campaign_now,
            ..Start::joining(group, replica, seed)
        };
        let mut group = Group::new(settings, start, self.now(time)).expect("a disk that the group itself wrote");
        group.set_mutations(mutations);
        self.group = Some(group);
    }

    /// Loses everything that is not durable. Writes under way may have reached the disk, in their order.
    pub fn crash(&mut self, random: &mut Random) {
        self.group = None;
        self.is_paused = false;
        self.is_gathering = false;
        self.backlog.clear();
        while let Some(persist) = self.disk.unsynced.pop_front() {
            if random.chance(1, 2) {
                if persist.reset.is_none() && !persist.entries.is_empty() && random.chance(1, 2) {
                    // It is torn: first the entries are written, then the hard state.
                    let mut torn = Persist { hard_state: None, ..persist };
                    torn.entries.truncate(1 + random.below(torn.entries.len() as u64) as usize);
                    self.disk.write(torn);
                }
                break;
            }
            self.disk.write(persist);
        }
        self.disk.unsynced.clear();
        self.queue.clear();
        self.is_applying = false;
        self.checkpoints.clear();
        self.received.clear();
        self.proposals.clear();
        self.reads.clear();
        (self.will_ask, self.will_ask_tails, self.wakes_at) = (false, false, None);
        self.tail = TailIndex::default();
    }

    pub fn remember(&mut self, persist: &Persist) {
        if let Some(position) = persist.reset {
            self.log = BTreeMap::from([(position.index, position.term)]);
        }
        if let Some(first) = persist.entries.first() {
            self.log.split_off(&first.index);
        }
        self.log.extend(persist.entries.iter().map(|entry| (entry.index, entry.term)));
    }

    pub fn checkpoint(&mut self) -> Option<SnapshotMeta> {
        if self.machine.applied.index == 0 {
            return None;
        }
        let id = self.machine.applied.index;
        self.checkpoints.insert(id, self.machine.clone());
        Some(SnapshotMeta { position: self.machine.applied, membership: self.machine.membership.clone(), id })
    }
}
