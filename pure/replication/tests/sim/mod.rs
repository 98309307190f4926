//! A small deterministic world of replicas: network, disks, clocks and storage, all driven by one seed.
//!
//! The register that the replicas keep holds the index of the last write, which makes every check exact: see `check.rs`.

pub mod chaos;
pub mod check;
pub mod node;
pub mod readers;

use bytes::{Bytes, BytesMut};
use chaos::Strike;
use check::{Check, Done};
use hedgerow_replication::{
    Fetch, Membership, Message, Mutations, Persist, ReadNeed, Ready, Role, Settings, SnapshotMeta, SnapshotSend,
};
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::random::Random;
use hedgerow_types::{Instant, ReplicaId};
use node::{Machine, Node};
use readers::{Mail, Post, Read, data_of, is_of_register};
use std::collections::{BTreeMap, BTreeSet};

pub const MILLI: u64 = 1_000_000;

/// What the network and the disks do of their own accord.
#[derive(Clone, Debug)]
pub struct Weather {
    /// Least and additional delay of a message, microseconds.
    pub delay_us: (u64, u64),
    /// Messages of 1,000 that are lost, doubled, or delayed by up to 30 election timeouts.
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    /// Least and additional delay of a write to the log, and of the application of entries, microseconds.
    pub persist_us: (u64, u64),
    pub apply_us: (u64, u64),
    /// Applications of 1,000 in which the storage refuses some of the entries.
    pub apply_refused: u64,
    /// Applications of 100 after which the storage is flushed.
    pub flushed: u64,
    /// Entries behind the flushed storage that the log keeps.
    pub log_kept: u64,
    /// Messages of 1,000 that are forged: a field of a real one is replaced.
    pub forged: u64,
}

impl Weather {
    pub fn fair() -> Self {
        Self {
            delay_us: (100, 0),
            lost: 0,
            doubled: 0,
            late: 0,
            persist_us: (100, 0),
            apply_us: (50, 0),
            apply_refused: 0,
            flushed: 100,
            log_kept: 1_000_000,
            forged: 0,
        }
    }
}

/// How often the rarer paths were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub elections: u64,
    pub installs: u64,
    pub snapshots: u64,
    pub fetches: u64,
    pub joint: u64,
    pub truncations: u64,
    pub restarts: u64,
    pub resets: u64,
    pub held: u64,
}

pub enum Event {
    Tick,
    Deliver { from: u64, bytes: Bytes },
    Persisted { ticket: u64 },
    Apply,
    CheckpointMade,
    SnapshotArrives { from: u64, bytes: Bytes, machine: Box<Machine> },
    SnapshotSent { to: u64, ok: bool },
    Install { meta: SnapshotMeta },
    Fetched { fetch: Fetch },
    ReadDone { done: Done },
    ReadArrives { read: Read },
    Mail { from: u64, mail: Mail },
    Ask,
    AskTails,
    Wake,
    Resume,
    Drive,
    Chaos(Strike),
}

pub struct World {
    pub time: u64,
    pub random: Random,
    pub settings: Settings,
    pub weather: Weather,
    pub mutations: Mutations,
    pub nodes: BTreeMap<u64, Node>,
    /// Directed links that carry nothing.
    pub blocked: BTreeSet<(u64, u64)>,
    pub check: Check,
    pub post: Post,
    pub next_ticket: u64,
    /// How a read that is served at once spends its time before the lease is checked again, microseconds.
    pub read_us: (u64, u64),
    /// Reads of 100 that are in a hurry, and writes of another key.
    pub hurry: u64,
    pub other_writes: u64,
    pub is_chaotic: bool,
    /// Clients do not write before.
    pub writes_from: u64,
    pub trace: Option<Vec<String>>,
    pub counts: Counts,
    events: BTreeMap<(u64, u64), (u64, u64, Event)>,
    event_last: u64,
    pub event_count: u64,
}

impl World {
    pub fn new(seed: u64, settings: Settings, weather: Weather, mutations: Mutations) -> Self {
        Self {
            time: 1_000 * MILLI,
            random: Random::new(seed),
            settings,
            weather,
            mutations,
            nodes: BTreeMap::new(),
            blocked: BTreeSet::new(),
            check: Check::default(),
            post: Post::default(),
            next_ticket: 1,
            read_us: (0, 0),
            hurry: 0,
            other_writes: 0,
            is_chaotic: false,
            writes_from: 0,
            trace: None,
            counts: Counts::default(),
            events: BTreeMap::new(),
            event_last: 0,
            event_count: 0,
        }
    }

    pub fn log(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>9.3} {}", self.time as f64 / 1e6, line(self));
            if let Some(trace) = &mut self.trace {
                trace.push(line);
            }
        }
    }

    /// Adds a replica that was created just now. `voters` is empty for one that joins.
    pub fn add_node(&mut self, id: u64, voters: &[u64], rate_ppm: i64, is_eager: bool) {
        let membership = Membership::of_voters(voters.iter().map(|&id| ReplicaId(id)));
        let mut node = Node::new(id, rate_ppm, membership);
        node.start(&self.settings, self.mutations, self.time, false, is_eager, self.random.next_u64());
        self.nodes.insert(id, node);
        self.schedule(id, 0, Event::Tick);
        self.poll(id);
    }

    pub fn crash(&mut self, id: u64) {
        let mut random = self.random.fork();
        if let Some(node) = self.nodes.get_mut(&id) {
            node.crash(&mut random);
            self.log(|_| format!("crash {id}"));
        }
    }

    /// As a crash in which the write under way is torn: its entries are there, the hard state behind them is not.
    pub fn tear(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.disk.tear();
        }
        self.crash(id);
    }

    pub fn restart(&mut self, id: u64) {
        let seed = self.random.next_u64();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.group.is_none() {
            self.counts.restarts += 1;
            node.start(&self.settings, self.mutations, self.time, true, false, seed);
            self.schedule(id, 0, Event::Tick);
            self.log(|_| format!("restart {id}"));
            self.poll(id);
        }
    }

    pub fn pause(&mut self, id: u64, nanos: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !node.is_paused {
            node.is_paused = true;
            self.log(|_| format!("pause {id} {}ms", nanos / MILLI));
            self.schedule_any_life(id, nanos, Event::Resume);
        }
    }

    pub fn schedule(&mut self, id: u64, delay: u64, event: Event) {
        let life = self.nodes.get(&id).map_or(0, |node| node.life);
        self.push(id, life, delay, event);
    }

    fn schedule_any_life(&mut self, id: u64, delay: u64, event: Event) {
        self.push(id, 0, delay, event);
    }

    fn push(&mut self, id: u64, life: u64, delay: u64, event: Event) {
        self.event_last += 1;
        self.events.insert((self.time + delay, self.event_last), (id, life, event));
    }

    pub fn schedule_strike(&mut self, delay: u64, strike: Strike) {
        self.push(0, 0, delay, Event::Chaos(strike));
    }

    fn draw(&mut self, (least, more): (u64, u64)) -> u64 {
        (least + self.random.below(more + 1)) * 1_000
    }

    /// Lets `nanos` pass. Stops early at a violation.
    pub fn run(&mut self, nanos: u64) {
        let end = self.time + nanos;
        while self.check.violation.is_none() {
            let Some(entry) = self.events.first_entry() else { break };
            if entry.key().0 > end {
                break;
            }
            let ((time, _), (id, life, event)) = entry.remove_entry();
            self.time = time;
            self.event_count += 1;
            self.handle(id, life, event);
        }
        self.time = self.time.max(end);
    }

    fn handle(&mut self, id: u64, life: u64, event: Event) {
        if let Event::Chaos(strike) = event {
            return self.strike(strike);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Event::Resume = event {
            node.is_paused = false;
            let backlog = std::mem::take(&mut node.backlog);
            for (life, event) in backlog {
                self.handle(id, life, event);
            }
            return;
        }
        if life != 0 && life != node.life || node.group.is_none() {
            return;
        }
        if node.is_paused {
            node.backlog.push((life, event));
            return;
        }
        self.happen(id, event);
        self.poll(id);
    }

    fn happen(&mut self, id: u64, event: Event) {
        let settings_tick = self.settings.tick.as_nanos() as u64;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let now = node.now(self.time);
        let Some(group) = node.group.as_mut() else { return };
        match event {
            Event::Tick => {
                group.handle_tick(now);
                let jitter = self.random.below(settings_tick / 4);
                self.schedule(id, settings_tick * 7 / 8 + jitter, Event::Tick);
            }
            Event::Deliver { from, bytes } => {
                if let Ok(mut message) = Message::decode(bytes) {
                    if self.weather.lost > 0 && self.random.chance(self.weather.lost, 1000) {
                        // A receiver without room.
                        message.keep_small(usize::MAX, self.random.below(1_000) as usize);
                    }
                    group.handle_message(ReplicaId(from), message, now);
                }
            }
            Event::Persisted { ticket } => {
                node.disk.finish(ticket);
                group.handle_persisted(ticket, now);
            }
            Event::Apply => self.apply(id),
            Event::CheckpointMade => {
                let meta = node.checkpoint();
                if let (Some(meta), Some(group)) = (meta, node.group.as_mut()) {
                    group.handle_checkpoint(meta, now);
                }
            }
            Event::SnapshotArrives { from, bytes, machine } => {
                let message = Message::decode(bytes).expect("a message that was encoded");
                let meta = message.snapshot().expect("a snapshot message");
                if group.handle_snapshot_received(ReplicaId(from), message, now) {
                    node.received.insert(meta.position.index, *machine);
                }
            }
            Event::SnapshotSent { to, ok } => group.handle_snapshot_sent(ReplicaId(to), ok, now),
            Event::Install { meta } => {
                let machine = node.received.remove(&meta.position.index).expect("files that were received");
                assert_eq!(machine.applied, meta.position);
                node.machine = machine.clone();
                node.disk.machine = machine;
                node.queue.clear();
                group.handle_snapshot_installed(&meta, now);
            }
            Event::Fetched { fetch } => {
                let entries = node.disk.read(fetch.low, fetch.high_exclusive, fetch.size_max);
                group.handle_entries_fetched(fetch, entries, now);
            }
            Event::ReadDone { done } => {
                if group.lease_holds(now) {
                    self.check.read_done(self.time, done);
                }
            }
            Event::ReadArrives { read } => {
                self.start_read(id, read);
            }
            Event::Mail { from, mail } => self.take_mail(id, from, mail),
            Event::Ask => self.ask(id),
            Event::AskTails => self.ask_tails(id),
            Event::Wake => {
                node.wakes_at = None;
                group.handle_tick(now);
                let next = group.wakes_at();
                assert!(next.is_none_or(|at| at > now), "{id} wants to be woken at {next:?}, at {now:?}");
            }
            Event::Drive => node.is_gathering = false,
            Event::Resume | Event::Chaos(_) => {}
        }
    }

    /// Applies what has been handed over, with the results known to the proposers here.
    fn apply(&mut self, id: u64) {
        let flushed = self.random.chance(self.weather.flushed, 100);
        let kept = self.weather.log_kept;
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let now = node.now(self.time);
        let Some(group) = node.group.as_mut() else { return };
        node.is_applying = false;
        let is_refused = self.weather.apply_refused > 0 && self.random.chance(self.weather.apply_refused, 1_000);
        if node.refuses_apply || is_refused {
            // As the node does: what the entries mean for the membership comes first, then the storage takes some of them.
            let changes = node.queue.iter().filter(|entry| entry.kind == EntryKind::Membership);
            let is_understood = changes.clone().all(|entry| group.handle_membership_applied(entry).is_ok());
            let taken = if node.refuses_apply || !is_understood {
                0
            } else {
                self.random.below(node.queue.len().max(1) as u64)
            };
            node.queue.truncate(taken as usize);
            self.counts.held += 1;
        }
        let is_held = node.refuses_apply || is_refused;
        for entry in std::mem::take(&mut node.queue) {
            let machine = &mut node.machine;
            assert_eq!(entry.index, machine.applied.index + 1, "entries are applied in order");
            self.check.applied(id, &entry);
            match entry.kind {
                EntryKind::Membership => {
                    let Ok(membership) = group.handle_membership_applied(&entry) else {
                        assert!(self.weather.forged > 0, "a change of our own can be read");
                        return self.crash(id);
                    };
                    self.counts.joint += u64::from(membership.is_joint());
                    machine.membership = membership;
                }
                EntryKind::Normal if entry.data.is_empty() || !is_of_register(&entry.data) => {}
                EntryKind::Normal => machine.last_write = entry.index,
            }
            machine.applied = entry.position();
            if let Some((term, ticket)) = node.proposals.remove(&entry.index)
                && term == entry.term
            {
                self.check.acknowledged(self.time, id, ticket, &entry);
            }
        }
        group.handle_applied(node.machine.applied.index, now);
        if is_held {
            group.handle_not_applied(now);
        }
        if flushed {
            node.disk.machine = node.machine.clone();
            let through = node.disk.truncate(node.machine.applied.index.saturating_sub(kept));
            if let Some(through) = through {
                self.counts.truncations += 1;
                group.truncated(through);
            }
        }
    }

    /// Lets the host of `id` take everything that arrives in the next `nanos` as one batch.
    pub fn gather(&mut self, id: u64, nanos: u64) {
        if let Some(node) = self.nodes.get_mut(&id).filter(|node| node.group.is_some()) {
            node.is_gathering = true;
            self.schedule(id, nanos, Event::Drive);
        }
    }

    /// Does what the group of `id` wants done.
    pub fn poll(&mut self, id: u64) {
        loop {
            let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_gathering) else { return };
            let now = node.now(self.time);
            let Some(group) = node.group.as_mut() else { return };
            let Some(ready) = group.poll_ready(now) else {
                if group.lease_holds(now) && group.applied() >= group.commit() {
                    let is_idle = |read: &&Read| !matches!(read.need, ReadNeed::AtLeast(_));
                    self.check.nothing_to_wait_for(id, node.reads.values().filter(is_idle).count());
                }
                return self.plan(id);
            };
            assert!(!ready.is_empty());
            self.carry_out(id, ready);
        }
    }

    fn carry_out(&mut self, id: u64, ready: Ready) {
        let Ready { messages, persist, committed, reads, role, install, wants_checkpoint, snapshots, fetch, answers } =
            ready;
        if let Some(persist) = persist {
            self.persist(id, persist);
        }
        if let Some(change) = role {
            self.log(|_| format!("{id} is {:?} of {:?} in term {}", change.role, change.leader, change.term));
            if change.role == Role::Leader {
                self.counts.elections += 1;
                let log = &self.nodes[&id].log;
                self.check.elected(id, change.term, log);
            }
        }
        for (ticket, outcome) in reads {
            self.end_read(id, ticket, outcome);
        }
        for (to, answer) in answers {
            self.send_answer(id, to, answer);
        }
        for (to, message) in messages {
            self.send(id, to.0, &message);
        }
        if !committed.is_empty() {
            self.queue(id, committed);
        }
        if let Some(meta) = install {
            self.counts.installs += 1;
            self.log(|_| format!("{id} installs {:?}", meta.position));
            let delay = self.draw(self.weather.apply_us);
            self.schedule(id, delay, Event::Install { meta });
        }
        if wants_checkpoint {
            let delay = self.draw(self.weather.apply_us);
            self.schedule(id, delay, Event::CheckpointMade);
        }
        for send in snapshots {
            self.counts.snapshots += 1;
            self.send_snapshot(id, send);
        }
        for fetch in fetch {
            self.counts.fetches += 1;
            let delay = self.draw(self.weather.persist_us);
            self.schedule(id, delay, Event::Fetched { fetch });
        }
    }

    fn persist(&mut self, id: u64, persist: Persist) {
        let delay = self.draw(self.weather.persist_us);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        self.counts.resets += u64::from(persist.reset.is_some());
        node.remember(&persist);
        let at = (self.time + delay).max(node.persisted_at + 1);
        node.persisted_at = at;
        let ticket = persist.ticket;
        node.disk.begin(persist);
        self.schedule(id, at - self.time, Event::Persisted { ticket });
    }

    fn queue(&mut self, id: u64, committed: Vec<Entry>) {
        let delay = self.draw(self.weather.apply_us);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.queue.extend(committed);
        if !node.is_applying && !node.is_apply_stopped {
            node.is_applying = true;
            self.schedule(id, delay, Event::Apply);
        }
    }

    fn send(&mut self, from: u64, to: u64, message: &Message) {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes);
        assert_eq!(bytes.len(), message.encoded_size());
        let is_forged = self.random.chance(self.weather.forged, 1000);
        let bytes = if is_forged { self.forge(from, bytes) } else { bytes.freeze() };
        self.deliver(from, to, || Event::Deliver { from, bytes: bytes.clone() });
    }

    /// Gives what travels from one node to another to the network.
    fn deliver(&mut self, from: u64, to: u64, event: impl Fn() -> Event) {
        let copies = if self.random.chance(self.weather.doubled, 1000) { 2 } else { 1 };
        for _ in 0..copies {
            let mut delay = self.draw(self.weather.delay_us);
            if self.random.chance(self.weather.late, 1000) {
                delay += self.random.below(30 * self.settings.refusal().as_nanos() as u64 / 10);
            }
            let is_lost = self.random.chance(self.weather.lost, 1000) || self.blocked.contains(&(from, to));
            if !is_lost {
                self.schedule_any_life(to, delay, event());
            }
        }
    }

    /// Replaces one byte or one number by another that could be there.
    fn forge(&mut self, from: u64, mut bytes: BytesMut) -> Bytes {
        let near = self.nodes[&from].group.as_ref().map_or(0, |group| group.last_index());
        for _ in 0..=self.random.below(3) {
            let at = self.random.below(bytes.len() as u64 / 8) as usize * 8 + 3;
            let number = match self.random.below(5) {
                0 => self.random.below(4),
                1 => near + self.random.below(10),
                2 => near.saturating_sub(self.random.below(10)),
                3 => (1 << 62) - 1,
                _ => self.random.below(near + 2),
            };
            match bytes.get_mut(at..at + 8) {
                Some(field) if self.random.chance(4, 5) => field.copy_from_slice(&number.to_le_bytes()),
                _ => bytes[1] = 1 + self.random.below(10) as u8,
            }
        }
        bytes.freeze()
    }

    fn send_snapshot(&mut self, from: u64, send: SnapshotSend) {
        let to = send.to.0;
        let machine = self.nodes[&from].checkpoints.get(&send.meta.id).cloned();
        let is_lost = self.blocked.contains(&(from, to)) || self.random.chance(self.weather.lost * 3, 1000);
        let delay = self.draw(self.weather.delay_us) * 4;
        let ok = machine.is_some() && !is_lost;
        self.log(|_| format!("{from} sends {to} snapshot {:?}: {ok}", send.meta.position));
        if let (Some(machine), false) = (machine, is_lost) {
            let mut bytes = BytesMut::new();
            send.message.encode(&mut bytes);
            let event = Event::SnapshotArrives { from, bytes: bytes.freeze(), machine: Box::new(machine) };
            self.schedule_any_life(to, delay, event);
        }
        self.schedule(from, delay * 2, Event::SnapshotSent { to, ok });
    }

    /// A client proposes a write at `id`. Returns whether it was taken.
    pub fn write(&mut self, id: u64) -> bool {
        let is_other = self.other_writes > 0 && self.random.chance(self.other_writes, 100);
        self.write_to(id, !is_other)
    }

    /// Writes the register, or another key.
    pub fn write_to(&mut self, id: u64, is_of_register: bool) -> bool {
        let ticket = self.next_ticket;
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        let now = node.now(self.time);
        if node.is_paused {
            return false;
        }
        let Some(group) = node.group.as_mut() else { return false };
        let Ok(position) = group.propose(data_of(ticket, is_of_register), now) else { return false };
        self.next_ticket += 1;
        node.proposals.insert(position.index, (position.term, ticket));
        self.poll(id);
        true
    }

    /// What a held application had to wait with happens now.
    pub fn release_apply(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.is_apply_stopped = false;
        }
        self.queue(id, Vec::new());
    }

    /// Drops everything from the log of `id` that its flushed storage holds.
    pub fn truncate(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.disk.machine = node.machine.clone();
        if let (Some(through), Some(group)) = (node.disk.truncate(u64::MAX), node.group.as_mut()) {
            group.truncated(through);
        }
    }

    pub fn mutate(&mut self, mutations: Mutations) {
        self.mutations = mutations;
        self.nodes.values_mut().filter_map(|node| node.group.as_mut()).for_each(|group| group.set_mutations(mutations));
    }

    /// The running replica that leads in the highest term.
    pub fn leader(&self) -> Option<u64> {
        let leads = |node: &&Node| node.group.as_ref().is_some_and(|group| group.role() == Role::Leader);
        let term = |node: &&Node| node.group.as_ref().map_or(0, |group| group.term());
        self.nodes.values().filter(leads).max_by_key(term).map(|node| node.id)
    }

    pub fn local(&self, id: u64) -> Instant {
        self.nodes[&id].now(self.time)
    }
}
