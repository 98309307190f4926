//! Reading the exactly-once tables of replicas that have started: by jobs, a few at a time in each data directory, so that a node with a
//! thousand replicas has job threads left for what serves, and a disk that does not answer holds up no other. A table that a write needs is read
//! before the others, and its group applies nothing meanwhile: it may have hundreds of thousands of rows, and the node's thread would be longer
//! over it than others wait for a leader.

use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::Job;
use crate::shard::Shard;
use hedgerow_env::Now;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Tables that are read at a time in a data directory. The other threads for jobs are for what serves.
const LOADS_MAX: usize = 2;

/// Whose table is to be read. Nothing of theirs is held open before their turn.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    /// Those that writes wait for.
    hastened: VecDeque<ReplicaKey>,
    waiting: VecDeque<ReplicaKey>,
    running: BTreeMap<ReplicaKey, DirectoryId>,
}

impl Shard {
    /// Has the table of a replica read when it is its turn.
    pub(crate) fn enqueue_load(&mut self, owner: ReplicaKey) {
        self.loads.waiting.push_back(owner);
        self.start_loads();
    }

    /// A write waits for the table of a replica, which goes on with it when the table is there, or cannot be read.
    pub(crate) fn hasten_load(&mut self, owner: ReplicaKey) {
        if !self.loads.running.contains_key(&owner) && !self.loads.hastened.contains(&owner) {
            self.loads.waiting.retain(|other| *other != owner);
            self.loads.hastened.push_back(owner);
            self.start_loads();
        }
    }

    /// A table has been read, or could not be: what waits for it is applied, or meets the same error.
    pub(crate) fn note_load_ended(&mut self, owner: ReplicaKey, is_read: bool, now: Now) {
        self.loads.running.remove(&owner);
        if let Some(replica) = self.running_as(owner) {
            replica.reads_table_itself = !is_read;
            replica.group.take_up(now.instant);
            self.mark_dirty(owner.group);
        }
        self.start_loads();
    }

    fn start_loads(&mut self) {
        while let Some(owner) = self.next_load() {
            let Some(replica) = self.running_as(owner) else { continue };
            let Some(storage) = replica.storage.as_ref().filter(|storage| !storage.has_sessions()) else { continue };
            let (engine, directory) = (Arc::clone(storage.engine()), replica.directory);
            replica.storage_users += 1;
            self.loads.running.insert(owner, directory);
            self.job(Job::LoadSessions { owner, engine });
        }
    }

    /// Takes out the first one that may be read now, or that is not here any more.
    fn next_load(&mut self) -> Option<ReplicaKey> {
        let Self { loads, replicas, .. } = self;
        let Loads { hastened, waiting, running } = loads;
        let mut may_go = |owner: &ReplicaKey| {
            let directory = replicas.running_as(*owner).map(|replica| replica.directory);
            directory.is_none_or(|directory| running.values().filter(|it| **it == directory).count() < LOADS_MAX)
        };
        if let Some(place) = hastened.iter().position(&mut may_go) {
            return hastened.remove(place);
        }
        let place = waiting.iter().position(may_go)?;
        waiting.remove(place)
    }
}
