//! Reading the exactly-once tables of replicas that have started: by jobs, a few at a time, so that a node with a thousand
//! replicas has job threads left for what serves. A write that needs a table before its turn has it read at once.

use crate::ids::ReplicaKey;
use crate::job::Job;
use crate::shard::Shard;
use std::collections::VecDeque;
use std::sync::Arc;

/// Tables that a node has read at a time. The other threads for jobs are for what serves.
const LOADS_MAX: usize = 2;

/// Whose table is to be read. Nothing of theirs is held open before their turn.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    waiting: VecDeque<ReplicaKey>,
    running: usize,
}

impl Shard {
    /// Has the table of a replica read when it is its turn.
    pub(crate) fn enqueue_load(&mut self, owner: ReplicaKey) {
        self.loads.waiting.push_back(owner);
        self.start_loads();
    }

    /// A table has been read, or could not be.
    pub(crate) fn note_load_ended(&mut self) {
        self.loads.running = self.loads.running.saturating_sub(1);
        self.start_loads();
    }

    fn start_loads(&mut self) {
        while self.loads.running < LOADS_MAX
            && let Some(owner) = self.loads.waiting.pop_front()
        {
            let Some(replica) = self.running_as(owner) else { continue };
            let Some(storage) = replica.storage.as_ref().filter(|storage| !storage.has_sessions()) else { continue };
            let engine = Arc::clone(storage.engine());
            replica.storage_users += 1;
            self.loads.running += 1;
            self.job(Job::LoadSessions { owner, engine });
        }
    }
}
