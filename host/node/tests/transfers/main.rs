//! Replicas that lag or begin from nothing, in a cluster in memory with a clock of its own: what the log is kept for, and
//! checkpoints on their way.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

mod damaged;
mod moved;
mod mutated;
mod reading;
mod retained;
#[allow(dead_code, reason = "each test uses its part")]
#[path = "../reads/world.rs"]
mod world;

use hedgerow_env::Disk;
use hedgerow_node::Config;
use hedgerow_types::NodeId;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use world::{Key, World, files_of};

const SECOND: Duration = Duration::from_secs(1);

/// Three nodes, a table, and one of its partitions, whose storage is flushed every 16 KiB.
struct Stage {
    world: World,
    key: Key,
    leader: NodeId,
    followers: Vec<NodeId>,
    written: u64,
}

impl Stage {
    fn new(configure: impl Fn(&mut Config)) -> Self {
        let mut world = World::configured(3, |config| {
            config.flush_replica_bytes = 16 << 10;
            configure(config);
        });
        let table = world.create_table(2, &json!({}));
        world.run(20 * SECOND);
        let key = Key::new(table, 2, "a");
        let places = world.replicas(key.partition);
        Self { world, key, leader: places.leader, followers: places.followers, written: 0 }
    }

    /// Writes `count` values of a kilobyte; the clock goes on by a millisecond for each.
    fn write(&mut self, count: u64) {
        for _ in 0..count {
            self.written += 1;
            let value = format!("{:01000}", self.written);
            self.world.write(&self.key, self.leader, &value);
            self.world.run(Duration::from_millis(1));
        }
    }

    /// The node starts anew with nothing.
    fn wipe(&mut self) -> NodeId {
        let wiped = self.followers[0];
        self.world.wipe(wiped);
        wiped
    }

    /// What is left of checkpoints that were received.
    fn below_incoming(&self) -> Vec<PathBuf> {
        let disks = self.world.machines.values().map(|machine| &machine.disk);
        let directory = Path::new("/data/incoming");
        disks.filter(|disk| disk.is_dir(directory)).flat_map(|disk| files_of(disk, directory).into_keys()).collect()
    }

    fn checkpoints(&self) -> usize {
        self.world.machines.values().map(|machine| machine.checkpoints).sum()
    }

    fn status(&mut self, asked: NodeId) -> Value {
        self.world.admin(asked, "status", &json!({})).unwrap()
    }

    /// What a node says of itself in the status.
    fn node(&mut self, asked: NodeId, node: NodeId) -> Value {
        let status = self.status(asked);
        let nodes = status["nodes"].as_array().unwrap().clone();
        nodes.into_iter().find(|it| it["node"] == node.0).unwrap()
    }

    /// The replicas of the partition, as a node knows them.
    fn replicas(&mut self, asked: NodeId) -> Vec<Value> {
        let status = self.status(asked);
        let partition = &status["tables"][0]["partitions"][self.key.partition as usize];
        partition["replicas"].as_array().unwrap().clone()
    }

    /// Whether all replicas are sound and have applied the same.
    fn is_whole(&mut self, asked: NodeId) -> bool {
        let replicas = self.replicas(asked);
        let first = replicas[0]["applied"].as_u64().unwrap();
        replicas.len() == 3
            && replicas
                .iter()
                .all(|it| it["state"] == "ok" && it["role"] == "voter" && it["applied"].as_u64().unwrap() == first)
    }

    fn run_until_whole(&mut self, asked: NodeId, seconds: u32) {
        for _ in 0..seconds {
            self.world.run(SECOND);
            if self.is_whole(asked) {
                return;
            }
        }
        panic!("not whole after {seconds} s: {:#?}", self.replicas(asked));
    }
}
