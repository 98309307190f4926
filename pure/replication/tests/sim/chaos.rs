//! What goes wrong, drawn from the seed: crashes, pauses, partitions, transfers, membership changes, clients.

use super::{MILLI, Weather, World};
use hedgerow_replication::{
    Fetch, MembershipChange, Mutations, ReadIndexReply, ReadIndexRequest, ReadNeed, Settings, SnapshotMeta,
};
use hedgerow_types::log::LogPosition;
use hedgerow_types::random::Random;
use hedgerow_types::{Instant, ReplicaId};
use std::time::Duration;

/// How wrong clocks are, in parts per million, unless a test says otherwise.
const CLOCK_RATE_ERROR_PPM: u32 = 20_000;

/// Times ten times shorter than in production, so that a run sees more elections.
pub fn settings() -> Settings {
    Settings {
        tick: Duration::from_millis(10),
        clock_rate_error_ppm: CLOCK_RATE_ERROR_PPM,
        message_size_max: 160,
        inflight_max: 8,
        cache_size_max: 4_096,
        ..Settings::default()
    }
}

/// Nodes that a world grows to.
const NODES_MAX: u64 = 7;

/// The world of `seed`, before anything happened in it.
pub fn world(seed: u64, mutations: Mutations) -> World {
    world_declaring(seed, mutations, CLOCK_RATE_ERROR_PPM)
}

/// The same with clocks that are wrong by at most `rate_error_ppm`, and declared so.
pub fn world_declaring(seed: u64, mutations: Mutations, rate_error_ppm: u32) -> World {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut pick = |values: &[u64]| values[random.below(values.len() as u64) as usize];
    let weather = Weather {
        delay_us: (50, pick(&[100, 1_000, 8_000])),
        lost: pick(&[0, 0, 20, 100]),
        doubled: pick(&[0, 20, 100]),
        late: pick(&[0, 5, 30]),
        persist_us: (20, pick(&[100, 2_000, 20_000])),
        apply_us: (10, pick(&[100, 5_000, 60_000])),
        flushed: pick(&[5, 30, 100]),
        log_kept: pick(&[0, 5, 1_000]),
        forged: 0,
        apply_refused: 0,
    };
    let count = pick(&[3, 3, 3, 5, 2, 1]);
    let weather = Weather { apply_refused: pick(&[0, 0, 20, 300]), ..weather };
    let settings = Settings { clock_rate_error_ppm: rate_error_ppm, ..settings() };
    let mut world = World::new(seed, settings, weather, mutations);
    world.read_us = (0, pick(&[0, 500, 20_000]));
    world.post.ask_us = (0, pick(&[0, 300, 3_000]));
    (world.hurry, world.other_writes) = (pick(&[0, 50]), pick(&[0, 50, 90]));
    world.is_chaotic = true;
    let voters: Vec<u64> = (1..=count).collect();
    for &id in &voters {
        let rate = world.random.below(2 * u64::from(rate_error_ppm) + 1) as i64 - i64::from(rate_error_ppm);
        world.add_node(id, &voters, rate, id == 1);
    }
    world.schedule_strike(MILLI, Strike::Any);
    world
}

/// One thing that happens to the world.
#[derive(Clone, Copy, Debug)]
pub enum Strike {
    /// Anything; plans the next one.
    Any,
    /// A node hears nobody and nobody hears it.
    Isolate(u64),
    /// Two nodes do not hear each other.
    CutLink(u64, u64),
    /// A node restarts, and its link to the other one breaks.
    RestartAndCut(u64, u64),
    /// A node campaigns.
    Campaign(u64),
    Heal,
}

impl World {
    pub fn strike(&mut self, strike: Strike) {
        if !self.is_chaotic {
            return;
        }
        match strike {
            Strike::Any => self.strike_any(),
            Strike::Isolate(id) => self.isolate(id),
            Strike::CutLink(one, other) => self.blocked.extend([(one, other), (other, one)]),
            Strike::RestartAndCut(id, other) => {
                self.crash(id);
                self.restart(id);
                self.blocked.extend([(id, other), (other, id)]);
            }
            Strike::Campaign(id) => self.campaign_at(id),
            Strike::Heal => self.blocked.clear(),
        }
    }

    /// Nothing goes wrong from now on.
    pub fn calm_down(&mut self) {
        self.is_chaotic = false;
        self.weather = Weather { log_kept: self.weather.log_kept, ..Weather::fair() };
        self.blocked.clear();
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.restart(id);
        }
    }

    fn strike_any(&mut self) {
        let delay = self.random.below(2 * MILLI);
        self.schedule_strike(delay, Strike::Any);
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        let id = ids[self.random.below(ids.len() as u64) as usize];
        match self.random.below(1_000) {
            0..400 => self.write_somewhere(id),
            400..860 => self.read_somewhere(id),
            860..945 => {}
            945..975 => {
                let nanos = self.random.below(4 * MILLI);
                self.gather(id, nanos);
            }
            975..978 => self.confuse(id),
            978..984 => self.set_trap(id),
            984..987 => self.cut(id),
            987..990 => self.blocked.clear(),
            990..993 => self.take_down(id),
            993..995 => {
                let nanos = self.random.below(250 * MILLI);
                self.pause(id, nanos);
            }
            995..997 => self.transfer(id),
            997..999 => self.change_membership(),
            _ => self.campaign_at(id),
        }
    }

    /// One of the sequences that leases and reads are known to fail on, at random times.
    fn set_trap(&mut self, other: u64) {
        let Some(leader) = self.leader() else { return };
        let refusal = self.settings.refusal().as_nanos() as u64;
        self.blocked.clear();
        match self.random.below(7) {
            // The leader is alone with a replica that has no vote and goes on following it, and misses the election.
            6 => {
                let group = self.nodes[&leader].group.as_ref();
                let learner = group.and_then(|group| group.membership().learners.last().copied());
                let Some(ReplicaId(learner)) = learner else { return self.add_learner(leader) };
                self.isolate(leader);
                self.isolate(learner);
                self.blocked.retain(|link| ![(leader, learner), (learner, leader)].contains(link));
                let delay = 2 * refusal + self.random.below(refusal);
                self.pause(leader, delay);
                self.schedule_strike(delay + refusal, Strike::Heal);
            }
            // The leadership is handed over, and the old leader hears nothing of it.
            0 => {
                self.transfer(other);
                let delay = self.random.below(6 * MILLI);
                self.schedule_strike(delay, Strike::Isolate(leader));
            }
            // One node lost the leader and tries to be elected; the node between them restarts.
            1..4 => {
                let bridge = self.nodes.keys().copied().find(|&id| id != leader && id != other);
                // Without writes, or the lost node would be too far behind to be elected.
                let delay = refusal + self.random.below(2 * refusal);
                self.writes_from = self.time + delay;
                self.schedule_strike(refusal / 4, Strike::CutLink(leader, other));
                self.schedule_strike(delay, Strike::RestartAndCut(bridge.unwrap_or(other), leader));
            }
            // A leader is alone for a while, then leads again.
            _ => {
                self.isolate(leader);
                let delay = refusal + self.random.below(3 * refusal);
                self.schedule_strike(delay, Strike::Heal);
                self.schedule_strike(delay + refusal + self.random.clone().below(refusal), Strike::Campaign(leader));
            }
        }
    }

    fn isolate(&mut self, id: u64) {
        for other in self.nodes.keys().copied().filter(|&other| other != id) {
            self.blocked.extend([(id, other), (other, id)]);
        }
        self.log(|_| format!("isolate {id}"));
    }

    fn write_somewhere(&mut self, id: u64) {
        if self.time < self.writes_from {
            return;
        }
        self.write(id);
        if let Some(leader) = self.leader() {
            self.write(leader);
        }
    }

    fn read_somewhere(&mut self, id: u64) {
        let need = self.any_need();
        self.read(id, need);
        // Whoever believes to lead is asked, old leaders above all.
        let need = if self.random.chance(1, 2) { ReadNeed::Latest } else { self.any_need() };
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.read(id, need);
        }
    }

    fn any_need(&mut self) -> ReadNeed {
        match self.random.below(8) {
            0..3 => ReadNeed::Latest,
            3 => ReadNeed::AtLeast(self.check.floor),
            4 => ReadNeed::AtLeast(self.random.below(self.check.floor + 1)),
            5 => ReadNeed::Anything,
            6 => ReadNeed::Within(Duration::from_millis(1 + self.random.below(20))),
            _ => ReadNeed::Within(Duration::from_millis(1 + self.random.below(400))),
        }
    }

    /// Blocks one direction, both directions or one link; the rest of the world goes on. Heals what was cut before.
    fn cut(&mut self, id: u64) {
        let id = if self.random.chance(1, 2) { self.leader().unwrap_or(id) } else { id };
        let others: Vec<u64> = self.nodes.keys().copied().filter(|&other| other != id).collect();
        let kind = self.random.below(4);
        let spared = others.get(self.random.below(others.len() as u64 + 1) as usize).copied();
        self.blocked.clear();
        for other in others {
            let is_spared = kind == 3 && Some(other) == spared;
            if kind != 1 && !is_spared {
                self.blocked.insert((id, other));
            }
            if kind != 0 && !is_spared {
                self.blocked.insert((other, id));
            }
        }
        self.log(|world| format!("blocked {:?}", world.blocked));
    }

    /// Crashes a node and starts it again at once, or later; sometimes all of them.
    fn take_down(&mut self, id: u64) {
        if self.random.chance(1, 8) {
            let ids: Vec<u64> = self.nodes.keys().copied().collect();
            ids.iter().for_each(|&id| self.crash(id));
            ids.iter().for_each(|&id| self.restart(id));
            return;
        }
        self.crash(id);
        if self.random.chance(2, 3) {
            self.restart(id);
        }
        for down in self.nodes.keys().copied().filter(|&other| other != id).collect::<Vec<_>>() {
            self.restart(down);
        }
    }

    fn transfer(&mut self, to: u64) {
        let Some(leader) = self.leader() else { return };
        let now = self.local(leader);
        let node = self.nodes.get_mut(&leader).filter(|node| !node.is_paused);
        if let Some(group) = node.and_then(|node| node.group.as_mut()) {
            let result = group.transfer_leader(ReplicaId(to), now);
            self.log(|_| format!("transfer {leader} to {to}: {result:?}"));
            self.poll(leader);
        }
    }

    /// The host says things that are late, doubled or about nothing.
    fn confuse(&mut self, id: u64) {
        let now = self.local(id);
        let mut random = self.random.fork();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_paused) else { return };
        let Some(group) = node.group.as_mut() else { return };
        let position = LogPosition { term: random.below(9), index: random.below(2) * (u64::MAX - 1) };
        let meta = SnapshotMeta { position, membership: group.membership().clone(), id: 1 };
        group.handle_persisted(u64::MAX - random.below(9), now);
        group.handle_persisted(0, now);
        group.handle_applied(u64::MAX, now);
        group.handle_applied(group.applied() / 2, now);
        group.truncated(position);
        group.handle_snapshot_sent(ReplicaId(random.below(9)), random.chance(1, 2), now);
        group.handle_snapshot_installed(&meta, now);
        if position.index > 0 {
            group.handle_checkpoint(meta, now);
        }
        let fetch = Fetch { id: random.below(9), low: random.below(9), high_exclusive: u64::MAX, size_max: 1 };
        group.handle_entries_fetched(fetch, Vec::new(), now);
        let question =
            ReadIndexRequest { term: group.term().saturating_sub(random.below(2)), id: u64::MAX - random.below(2) };
        group.handle_read_index_request(ReplicaId(random.below(9)), question, now);
        let answer = ReadIndexReply { term: group.term(), id: u64::MAX - random.below(2), commit: Some(position) };
        group.handle_read_index_reply(ReplicaId(random.below(9)), answer, now);
        let _ = (group.wakes_at(), group.lag(now), group.wants_to_ask(now));
        let ticket = random.below(1 << 20);
        group.cancel_read(ticket);
        node.reads.remove(&ticket);
        group.handle_tick(Instant(now.0 / 2));
        self.poll(id);
    }

    fn campaign_at(&mut self, id: u64) {
        let now = self.local(id);
        let node = self.nodes.get_mut(&id).filter(|node| !node.is_paused);
        if let Some(group) = node.and_then(|node| node.group.as_mut()) {
            group.campaign(now);
            self.poll(id);
        }
    }

    fn add_learner(&mut self, leader: u64) {
        let new = self.nodes.keys().next_back().copied().unwrap_or(0) + 1;
        if new <= NODES_MAX {
            let change = MembershipChange { add_learners: vec![ReplicaId(new)], ..MembershipChange::default() };
            self.propose_change(leader, &change, Some(new));
        }
    }

    /// Adds a learner, promotes one, removes one, or replaces one by joint consensus.
    fn change_membership(&mut self) {
        let Some(leader) = self.leader() else { return };
        let Some(group) = self.nodes[&leader].group.as_ref() else { return };
        let membership = group.membership().clone();
        let new = self.nodes.keys().next_back().copied().unwrap_or(0) + 1;
        let any = |random: &mut Random, list: &[ReplicaId]| {
            list.get(random.below(list.len().max(1) as u64) as usize).copied().into_iter().collect::<Vec<_>>()
        };
        let mut change = MembershipChange::default();
        match self.random.below(8) {
            0 | 5 => change.add_learners = vec![ReplicaId(new)],
            1 => change.promote = any(&mut self.random, &membership.learners),
            2 => change.remove = any(&mut self.random, &membership.voters),
            3 | 6 | 7 => {
                change.promote = any(&mut self.random, &membership.learners);
                change.remove = any(&mut self.random, &membership.voters);
            }
            _ => change.add_learners = any(&mut self.random, &membership.voters),
        }
        let is_new = change.add_learners == [ReplicaId(new)];
        if is_new && new > NODES_MAX {
            return;
        }
        self.propose_change(leader, &change, is_new.then_some(new));
    }

    /// Proposes a change of the membership; `new` starts if it is taken.
    fn propose_change(&mut self, leader: u64, change: &MembershipChange, new: Option<u64>) {
        let now = self.local(leader);
        let node = self.nodes.get_mut(&leader).filter(|node| !node.is_paused);
        let Some(group) = node.and_then(|node| node.group.as_mut()) else { return };
        let result = group.propose_membership(change, now);
        self.log(|_| format!("change at {leader}: {change:?}: {result:?}"));
        if let (Ok(_), Some(new)) = (result, new) {
            let rate = self.random.below(40_001) as i64 - 20_000;
            self.add_node(new, &[], rate, false);
        }
        self.poll(leader);
    }
}
