//! Disks that become full, in a cluster in memory: what is refused, what goes on, and what returns.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

#[allow(dead_code, reason = "the tests of reads use the rest of it")]
#[path = "../reads/world.rs"]
mod world;

use hedgerow_node::{Config, Job};
use hedgerow_storage::Debt;
use hedgerow_types::{GroupId, NodeId, Refusal};
use hedgerow_wire::message::AdminCommand;
use hedgerow_wire::{Body, Extension, Header, Reply, Text};
use serde_json::{Value, json};
use std::time::Duration;
use world::{Ask, Key, MS, World};

const MIB: u64 = 1 << 20;
/// Of each disk where a test says nothing else, and what is kept free of it.
const CAPACITY: u64 = 24 * MIB;
const FREE_MIN: u64 = 10 * MIB;
const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

fn configure(config: &mut Config) {
    config.wal.segment_size = MIB;
    config.wal.segments_max = 3;
    config.free_disk_min = Some(FREE_MIN);
    config.flush_replica_bytes = MIB / 2;
}

struct Cluster {
    world: World,
    table: i32,
    written: usize,
}

impl Cluster {
    fn new(configure: impl Fn(&mut Config)) -> Self {
        let mut world = World::configured(3, configure);
        let table = world.create_table(4, &json!({}));
        Self { world, table, written: 0 }
    }

    fn key(&self, number: usize) -> Key {
        Key::new(self.table, 4, &format!("k{number}"))
    }

    fn set_capacity(&self, capacity: Option<u64>, nodes: &[NodeId]) {
        nodes.iter().for_each(|node| self.world.machines[node].disk.set_capacity(capacity));
    }

    /// Writes the next row at its leader; the name and kind of the refusal if it is refused.
    fn write(&mut self, size: usize) -> Result<(), (String, Option<Refusal>)> {
        let key = self.key(self.written);
        let leader = self.world.replicas(key.partition).leader;
        let number = self.world.send_write(&key, leader, &"v".repeat(size));
        match self.world.wait(number).1.reply {
            Reply::Update(update) if update.error == 0 => {
                self.written += 1;
                Ok(())
            }
            Reply::Failed(failure) => Err((failure.name.name().to_owned(), failure.refusal())),
            other => panic!("{other:?}"),
        }
    }

    /// Writes rows of 64 KiB until one is refused, and checks how.
    fn fill(&mut self) {
        self.fill_every(20 * MS);
    }

    fn fill_every(&mut self, pause: Duration) {
        let limit = self.written + 2_000;
        while self.written < limit {
            if let Err((name, refusal)) = self.write(64 << 10) {
                assert_eq!(name, "ERR_DISK_INSUFFICIENT");
                assert!(matches!(refusal, Some(Refusal::DiskFull(_))), "{refusal:?}");
                return;
            }
            self.world.run(pause);
        }
        panic!("nothing was refused");
    }

    fn read_all(&mut self, from: usize) {
        for number in from..self.written {
            let key = self.key(number);
            let leader = self.world.replicas(key.partition).leader;
            let value = self.world.get(&key, leader, &Ask::default()).unwrap().0;
            assert!(value.bytes().all(|byte| byte == b'v'), "row {number}");
        }
    }

    fn remove(&mut self, number: usize) {
        let key = self.key(number);
        let leader = self.world.replicas(key.partition).leader;
        self.try_remove(&key, leader).unwrap();
    }

    fn try_remove(&mut self, key: &Key, leader: NodeId) -> Result<(), Refusal> {
        let number = self.put_remove(key, leader);
        self.world.settle(leader);
        match self.world.wait(number).1.reply {
            Reply::Update(update) if update.error == 0 => Ok(()),
            Reply::Failed(failure) => Err(failure.refusal().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Asks the leader for it; others may come in the same batch.
    fn put_remove(&mut self, key: &Key, leader: NodeId) -> i32 {
        let header = key.header(&Ask { extension: Some(Extension::default()), is_backup: false });
        self.world.put(leader, &header, &Body::Remove(key.full()))
    }

    /// So many keys of a partition, of at least so many bytes.
    fn keys_of(&self, partition: i32, count: usize, size: usize) -> Vec<Key> {
        let keys = (0..).map(|number| Key::new(self.table, 4, &format!("{number:0size$}")));
        keys.filter(|key| key.partition == partition).take(count).collect()
    }

    fn metadata_leader(&self) -> NodeId {
        let mut replicas = self.world.machines[&NodeId(1)].node.replicas_for_inspection();
        replicas.find(|replica| replica.id == GroupId::META).unwrap().group.leader().unwrap().node()
    }

    fn group(&self, partition: i32) -> GroupId {
        GroupId::new(self.table as u32, partition as u32)
    }

    /// Bytes of rows that a node holds in memory alone.
    fn unflushed(&self, node: NodeId) -> u64 {
        let replicas = self.world.machines[&node].node.replicas_for_inspection();
        replicas.filter_map(|replica| replica.storage).map(|storage| storage.engine().unflushed_bytes()).sum()
    }

    fn disk_states(&mut self) -> Vec<Value> {
        let status = self.world.admin(NodeId(1), "status", &json!({})).unwrap();
        status["nodes"].as_array().unwrap().iter().map(|node| node["disks"][0]["state"].clone()).collect()
    }
}

#[test]
fn n1_full_disks_refuse_data_and_take_it_again_when_there_is_space() {
    let mut cluster = Cluster::new(configure);
    cluster.set_capacity(Some(CAPACITY), &NODES);
    cluster.fill();
    assert!(cluster.written > 20, "{}", cluster.written);
    cluster.world.run(Duration::from_secs(3));
    let full = cluster.disk_states().iter().filter(|state| **state == "full").count();
    assert!(full >= 2, "data is refused when a majority has no room: {full}");
    cluster.read_all(0);
    cluster.remove(0);
    for node in NODES {
        cluster.world.restart(node);
        cluster.world.run(Duration::from_secs(5));
    }
    assert!(cluster.write(64 << 10).is_err(), "it is as full after a restart");
    cluster.read_all(1);
    cluster.remove(1);
    cluster.set_capacity(Some(2 * CAPACITY), &NODES);
    cluster.world.run(Duration::from_secs(3));
    assert_eq!(cluster.disk_states(), ["ok"; 3]);
    cluster.write(64 << 10).unwrap();
    cluster.read_all(2);
}

/// Writes take within a second what is left above the watermark and what is below it: data is refused before the log's reserve is needed, wherever
/// between two looks that begins.
#[test]
fn n1_a_disk_that_fills_within_a_second_takes_deletes() {
    for more in 0..6 {
        let mut cluster = Cluster::new(configure);
        cluster.set_capacity(Some(3 * CAPACITY + more * 4 * MIB), &NODES);
        cluster.fill_every(2 * MS);
        cluster.remove(0);
    }
}

/// Others have filled the disks to the last byte, and every node has to start on them.
#[test]
fn n1_nodes_start_on_disks_without_a_byte_of_room() {
    let mut cluster = Cluster::new(configure);
    (0..20).for_each(|_| cluster.write(1_000).unwrap());
    cluster.world.run(Duration::from_secs(20));
    for node in NODES {
        cluster.world.machines[&node].disk.leave_free(0);
    }
    NODES.iter().for_each(|node| cluster.world.restart(*node));
    cluster.world.run(Duration::from_secs(10));
    cluster.read_all(0);
    assert_eq!(cluster.disk_states(), ["full"; 3]);
    assert!(cluster.write(1_000).is_err());
    cluster.remove(0);
    cluster.set_capacity(None, &NODES);
    cluster.world.run(Duration::from_secs(3));
    cluster.write(1_000).unwrap();
    cluster.read_all(1);
}

#[test]
fn n1_one_full_disk_of_three_stops_only_what_is_led_there() {
    let mut cluster = Cluster::new(configure);
    let key = cluster.key(0);
    let places = cluster.world.replicas(key.partition);
    let full = FREE_MIN;
    cluster.set_capacity(Some(full), &places.followers[..1]);
    cluster.world.run(Duration::from_secs(2));
    cluster.write(10).expect("a majority has room");
    cluster.set_capacity(Some(full), &places.followers);
    cluster.world.run(Duration::from_secs(2));
    cluster.written = 0;
    let (name, refusal) = cluster.write(10).unwrap_err();
    assert_eq!(name, "ERR_DISK_INSUFFICIENT");
    assert!(refusal.unwrap().to_string().contains("most replicas"));
    cluster.set_capacity(None, &places.followers[1..]);
    cluster.world.run(Duration::from_secs(2));
    cluster.write(10).expect("a majority has room again");
}

/// A leader whose disk is full makes room for one that takes data, and has nothing back before it has room.
#[test]
fn n1_a_leader_with_a_full_disk_hands_over_to_one_with_room() {
    let mut cluster = Cluster::new(configure);
    cluster.world.run(Duration::from_secs(20));
    let partition = cluster.key(0).partition;
    let first = cluster.world.replicas(partition).leader;
    cluster.set_capacity(Some(FREE_MIN), &[first]);
    for _ in 0..15 {
        cluster.world.run(Duration::from_secs(2));
        if cluster.world.replicas(partition).leader != first {
            cluster.written = 0;
            cluster.write(10).expect("a majority and the leader have room");
        }
    }
    assert_ne!(cluster.world.replicas(partition).leader, first);
    let key = (0..).map(|number| cluster.key(number)).find(|key| key.partition == partition).unwrap();
    let number = cluster.world.send_write(&key, first, "v");
    let reply = cluster.world.wait(number).1.reply;
    let refusal = if let Reply::Failed(failure) = &reply { failure.refusal() } else { None };
    assert!(matches!(refusal, Some(Refusal::NotLeader { .. })), "whoever asks there is to go to the leader: {reply:?}");
    let leads = |cluster: &mut Cluster| (0..4).any(|it| cluster.world.replicas(it).leader == first);
    assert!(!leads(&mut cluster));
    cluster.set_capacity(None, &[first]);
    cluster.world.run(Duration::from_secs(30));
    assert!(leads(&mut cluster), "what it should lead comes back");
}

/// What leaders elsewhere send to a node without space does not use up its log: when another node is lost, the metadata go on.
#[test]
fn n1x_a_follower_without_space_has_room_in_its_log_for_the_metadata() {
    let mut cluster = Cluster::new(configure);
    let lost = cluster.metadata_leader();
    let mut others = NODES.into_iter().filter(|node| *node != lost);
    let (full, other) = (others.next().unwrap(), others.next().unwrap());
    cluster.set_capacity(Some(0), &[full]);
    cluster.world.run(Duration::from_secs(5));
    for _ in 0..100 {
        drop(cluster.write(64 << 10));
        cluster.world.run(20 * MS);
    }
    assert!(cluster.written > 50, "two of three have room");
    cluster.world.cut_off(lost);
    cluster.world.run(Duration::from_secs(10));
    let argument = json!({ "name": "t", "options": { "comment": "changed" } });
    cluster.world.admin(other, "set_options", &argument).unwrap();
    cluster.set_capacity(None, &[full]);
    cluster.world.cut.clear();
    cluster.world.run(Duration::from_secs(20));
    cluster.write(64 << 10).unwrap();
    cluster.world.run(Duration::from_secs(5));
    for group in (0..4).map(|partition| cluster.group(partition)) {
        assert_eq!(applied(&cluster, full, group), applied(&cluster, other, group), "it has caught up");
    }
}

/// A batch of deletes is larger than a row, and is taken all the same. So much of them that the log would end is not.
#[test]
fn n1x_a_follower_short_of_log_takes_deletes_and_keeps_the_end() {
    let mut cluster = Cluster::new(configure);
    let full = cluster.world.replicas(0).followers[0];
    cluster.set_capacity(Some(0), &[full]);
    cluster.world.run(Duration::from_secs(30));
    let leaders: Vec<NodeId> = (0..2).map(|partition| cluster.world.replicas(partition).leader).collect();
    assert!(!leaders.contains(&full), "it has handed over what it led");
    let row = cluster.keys_of(0, 1, 1).remove(0);
    let left = |cluster: &Cluster| cluster.world.machines[&full].log_left().unwrap_or(u64::MAX);
    for _ in 0..100 {
        cluster.world.write(&row, leaders[0], &"v".repeat(64 << 10));
    }
    assert!((MIB / 4..MIB / 2).contains(&left(&cluster)), "what is large is not taken");
    let keys = cluster.keys_of(1, 200, 1);
    for round in 0..40 {
        let before = applied(&cluster, full, cluster.group(1));
        let numbers: Vec<i32> = keys.iter().map(|key| cluster.put_remove(key, leaders[1])).collect();
        cluster.world.settle(leaders[1]);
        cluster.world.run(100 * MS);
        for number in numbers {
            let reply = cluster.world.answer(number).unwrap().1.reply;
            assert!(matches!(&reply, Reply::Update(update) if update.error == 0), "{reply:?}");
        }
        if round == 0 {
            assert_eq!(applied(&cluster, full, cluster.group(1)), before + 200);
        }
    }
    assert!((MIB / 16..MIB / 4).contains(&left(&cluster)), "{}", left(&cluster));
    assert!(!cluster.world.machines[&full].is_log_stalled);
    cluster.set_capacity(None, &[full]);
    cluster.world.run(Duration::from_secs(10));
    for partition in 0..2 {
        let group = cluster.group(partition);
        assert_eq!(applied(&cluster, full, group), applied(&cluster, leaders[partition as usize], group));
    }
}

/// The leader has all the room there is: without a majority that takes them it refuses deletes, and nothing hangs.
#[test]
fn n1x_deletes_are_refused_while_the_logs_of_most_replicas_are_short() {
    let mut cluster = Cluster::new(configure);
    let places = cluster.world.replicas(0);
    cluster.set_capacity(Some(0), &places.followers);
    cluster.world.run(Duration::from_secs(2));
    let keys = cluster.keys_of(0, 2_000, 3_000);
    let refusal = keys.iter().find_map(|key| {
        cluster.world.run(5 * MS);
        cluster.try_remove(key, places.leader).err()
    });
    assert!(matches!(&refusal, Some(Refusal::DiskFull(text)) if text.contains("of most replicas")), "{refusal:?}");
    assert!(cluster.world.machines.values().all(|machine| !machine.is_log_stalled));
    cluster.set_capacity(None, &places.followers);
    cluster.world.run(Duration::from_secs(5));
    cluster.try_remove(&keys[0], places.leader).unwrap();
    cluster.world.write(&keys[0], places.leader, "v");
    cluster.world.run(Duration::from_secs(1));
    let group = cluster.group(0);
    assert!(NODES.iter().all(|node| applied(&cluster, *node, group) == applied(&cluster, places.leader, group)));
}

/// Disks that are full without a warning, by somebody else's files, and writes larger than what is left of a segment: the logs wait, nothing is acknowledged, nobody gives up.
#[test]
fn n1_logs_without_space_wait_and_go_on() {
    let mut cluster = Cluster::new(|config| {
        config.wal.segment_size = 128 << 10;
        config.flush_replica_bytes = 1 << 40;
        config.flush_node_bytes = 1 << 40;
    });
    (0..4).for_each(|_| cluster.write(1_000).unwrap());
    cluster.world.machines.values().for_each(|machine| machine.disk.set_full(true));
    let mut waiting = Vec::new();
    for number in 0..60 {
        let key = Key::new(cluster.table, 4, &format!("late{number}"));
        let leader = cluster.world.replicas(key.partition).leader;
        waiting.push((key.clone(), cluster.world.send_write(&key, leader, &"w".repeat(200_000))));
    }
    cluster.world.run(Duration::from_secs(3));
    assert!(cluster.world.machines.values().all(|machine| machine.is_log_stalled));
    assert_eq!(cluster.disk_states(), ["stalled"; 3]);
    cluster.read_all(0);
    cluster.world.machines.values().for_each(|machine| machine.disk.set_full(false));
    cluster.world.run(Duration::from_secs(3));
    for (key, number) in waiting {
        let reply = cluster.world.answer(number).expect("every write is answered").1.reply;
        let leader = cluster.world.replicas(key.partition).leader;
        if matches!(&reply, Reply::Update(update) if update.error == 0) {
            cluster.world.get(&key, leader, &Ask::default()).unwrap();
        }
    }
    cluster.write(10).unwrap();
    assert_eq!(cluster.disk_states(), ["ok"; 3]);
}

/// Followers that cannot flush hold no more than they may, writes are refused once they are a majority, and they catch up.
#[test]
fn n2_followers_that_cannot_flush_push_back_before_memory_ends() {
    let limit = 256 << 10;
    let mut cluster = Cluster::new(|config| {
        config.flush_replica_bytes = 16 << 10;
        config.flush_node_bytes = limit / 4;
    });
    let places = cluster.world.replicas(cluster.key(0).partition);
    for follower in &places.followers {
        cluster.world.machines.get_mut(follower).unwrap().holds = |job| matches!(job, Job::Flush { .. });
    }
    let key = cluster.key(0);
    let mut held = 0;
    let refusal = (0..200).find_map(|_| {
        cluster.world.run(60 * MS);
        held = places.followers.iter().map(|follower| cluster.unflushed(*follower)).chain([held]).max().unwrap();
        let number = cluster.world.send_write(&key, places.leader, &"v".repeat(16 << 10));
        match cluster.world.wait(number).1.reply {
            // The one that was on its way when they fell behind waits for them.
            Reply::Failed(failure) if failure.refusal() == Some(Refusal::Expired) => None,
            Reply::Failed(failure) => failure.refusal(),
            _ => None,
        }
    });
    let refusal = refusal.expect("a majority is behind").to_string();
    assert!(refusal.contains("most replicas do not keep up"), "{refusal}");
    assert!((limit..2 * limit).contains(&held), "{held} bytes at most");
    for follower in places.followers {
        cluster.world.let_go(follower);
    }
    cluster.world.run(Duration::from_secs(5));
    cluster.world.write(&key, places.leader, "after");
    assert!(NODES.iter().all(|node| cluster.unflushed(*node) < limit));
}

/// Compactions of `nodes` have so many files of level 0 still to merge.
fn set_files(cluster: &mut Cluster, nodes: &[NodeId], files: u64) {
    for node in nodes {
        cluster.world.machines.get_mut(node).unwrap().debt = Debt { files, bytes: 0 };
    }
}

/// Of 32 writes to one partition, how many are refused; none otherwise than with "try again".
fn refused_of_32(cluster: &mut Cluster, key: &Key) -> usize {
    let leader = cluster.world.replicas(key.partition).leader;
    let is_refused = |_: &usize| {
        let number = cluster.world.send_write(key, leader, "v");
        match cluster.world.wait(number).1.reply {
            Reply::Update(update) if update.error == 0 => false,
            Reply::Failed(failure) => {
                let refusal = failure.refusal().unwrap().to_string();
                assert!(refusal.contains("compactions of the partition do not keep up"), "{refusal}");
                true
            }
            other => panic!("{other:?}"),
        }
    };
    (0..32).filter(is_refused).count()
}

fn cluster_with_small_flushes() -> Cluster {
    Cluster::new(|config| config.flush_replica_bytes = 4 << 10)
}

/// Leaders slow down as the debt of their own compactions grows, and nothing has to be written for them to go on.
#[test]
fn n2_compactions_that_fall_behind_slow_writes_down_and_never_stop_them_for_good() {
    let mut cluster = cluster_with_small_flushes();
    let key = cluster.key(0);
    let leader = cluster.world.replicas(key.partition).leader;
    for (files, refused) in [(128, 0), (160, 8), (208, 20), (256, 32), (1_000, 32), (128, 0)] {
        set_files(&mut cluster, &[leader], files);
        if files == 160 {
            // The flush of it tells.
            cluster.world.write(&key, leader, &"v".repeat(8 << 10));
        }
        cluster.world.run(Duration::from_secs(2));
        assert_eq!(refused_of_32(&mut cluster, &key), refused, "{files} files");
    }
}

/// One follower's debt is its own affair: it takes no more until it has caught up. That of a majority slows the leader down.
#[test]
fn n2_followers_whose_compactions_fall_behind_push_back() {
    let mut cluster = cluster_with_small_flushes();
    let key = cluster.key(0);
    let places = cluster.world.replicas(key.partition);
    set_files(&mut cluster, &places.followers[..1], 256);
    cluster.world.write(&key, places.leader, &"v".repeat(8 << 10));
    cluster.world.run(Duration::from_secs(2));
    assert_eq!(refused_of_32(&mut cluster, &key), 0, "a majority keeps up");
    let group = GroupId::new(cluster.table as u32, key.partition as u32);
    let index = cluster.world.write(&key, places.leader, &"w".repeat(8 << 10));
    cluster.world.run(Duration::from_secs(2));
    assert!(applied(&cluster, places.followers[0], group) < index, "what is large is dropped");
    assert!(applied(&cluster, places.followers[1], group) >= index);
    set_files(&mut cluster, &places.followers[1..], 192);
    cluster.world.write(&key, places.leader, &"v".repeat(8 << 10));
    cluster.world.run(Duration::from_secs(2));
    assert_eq!(refused_of_32(&mut cluster, &key), 16);
    set_files(&mut cluster, &places.followers, 0);
    cluster.world.run(Duration::from_secs(2));
    assert_eq!(refused_of_32(&mut cluster, &key), 0);
    let index = cluster.world.write(&key, places.leader, "after");
    cluster.world.run(Duration::from_secs(2));
    assert!(NODES.iter().all(|node| applied(&cluster, *node, group) >= index), "all have caught up");
}

/// On a full disk compactions may wait for what deletes give back: what the disk says counts, not the debt.
#[test]
fn n2_a_debt_does_not_refuse_deletes_on_a_full_disk() {
    let mut cluster = Cluster::new(|config| {
        config.free_disk_min = Some(FREE_MIN);
        config.flush_replica_bytes = 4 << 10;
    });
    let key = cluster.key(0);
    let leader = cluster.world.replicas(key.partition).leader;
    set_files(&mut cluster, &NODES, 256);
    cluster.world.write(&key, leader, &"v".repeat(8 << 10));
    cluster.world.run(Duration::from_secs(2));
    assert_eq!(refused_of_32(&mut cluster, &key), 32);
    cluster.set_capacity(Some(FREE_MIN), &NODES);
    cluster.world.run(Duration::from_secs(2));
    cluster.remove(0);
    assert_eq!(cluster.write(10).unwrap_err().0, "ERR_DISK_INSUFFICIENT");
    cluster.set_capacity(None, &NODES);
    cluster.world.run(Duration::from_secs(2));
    assert_eq!(refused_of_32(&mut cluster, &key), 32, "there is room, and compactions have to catch up");
    set_files(&mut cluster, &NODES, 0);
    cluster.world.run(Duration::from_secs(3));
    assert_eq!(refused_of_32(&mut cluster, &key), 0);
}

/// Flushes keep a pace, so that they must not take the threads of all jobs; those of a node that stops keep none.
#[test]
fn n2_two_flushes_run_at_a_time() {
    let mut cluster = cluster_with_small_flushes();
    let node = cluster.world.replicas(0).followers[0];
    cluster.world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Flush { .. });
    let write_all = |cluster: &mut Cluster| {
        for _ in 0..32 {
            cluster.write(8 << 10).unwrap();
            cluster.world.run(20 * MS);
        }
        cluster.world.run(Duration::from_secs(1));
        let held = &cluster.world.machines[&node].held;
        held.iter().map(|job| matches!(job, Job::Flush { is_pressing: true, .. })).collect::<Vec<bool>>()
    };
    assert_eq!(write_all(&mut cluster), [false; 2], "the table has four partitions");
    cluster.world.let_go(node);
    cluster.world.run(Duration::from_secs(1));
    assert!(cluster.unflushed(node) < 4 * (8 << 10), "all had their turn");
    let now = cluster.world.clock();
    cluster.world.machines.get_mut(&node).unwrap().node.hand_over(now);
    cluster.world.run(Duration::from_secs(1));
    cluster.world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Flush { .. });
    assert_eq!(write_all(&mut cluster), [true; 2]);
}

fn applied(cluster: &Cluster, node: NodeId, group: GroupId) -> u64 {
    let mut replicas = cluster.world.machines[&node].node.replicas_for_inspection();
    replicas.find(|replica| replica.id == group).map_or(0, |replica| replica.applied())
}

/// Whoever asks for checksums again and again leaves job threads for flushes, checkpoints and new replicas.
#[test]
fn n4a_a_few_replicas_are_read_whole_at_a_time() {
    let mut cluster = Cluster::new(configure);
    (0..10).for_each(|_| cluster.write(100).unwrap());
    let is_read = |job: &Job| matches!(job, Job::Read { .. });
    cluster.world.machines.values_mut().for_each(|machine| machine.holds = is_read);
    let header = Header { extension: Some(Extension::default()), ..Header::default() };
    let argument = Text::from(r#"{"table":"t"}"#);
    let ask = Body::HedgerowAdmin(AdminCommand { command: Text::from("checksum"), argument });
    let calls: Vec<i32> = (0..20).map(|_| cluster.world.send(NodeId(1), &header, &ask)).collect();
    cluster.world.run(Duration::from_secs(1));
    for node in NODES {
        assert_eq!(cluster.world.machines[&node].held.len(), 2, "{node:?}");
    }
    NODES.iter().for_each(|node| cluster.world.let_go(*node));
    for call in calls {
        let reply = cluster.world.wait(call).1.reply;
        let Reply::HedgerowAdmin(answer) = reply else { panic!("{reply:?}") };
        let answer: Value = serde_json::from_str(answer.text.as_str()).unwrap();
        assert_eq!(answer["partitions"].as_array().unwrap().len(), 4);
    }
}
