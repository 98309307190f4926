//! Threads beside the node's own that take the turns of shards. They share no state with it while they do, and it waits until all have ended.

use crate::shard::Shard;
use crate::shards::{OneByOne, Shards, Turns};
use hedgerow_env::os::spawn_thread;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::io;
use std::time::Duration;

/// A shard with less to do is not worth another thread: to wake one, and to wait for it, takes tens of microseconds.
const WORTH: Duration = Duration::from_micros(100);

/// The threads, if there are any.
pub(super) struct Crew {
    pool: Option<ThreadPool>,
}

impl Crew {
    /// Starts `count` threads.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let thread = |thread: rayon::ThreadBuilder| spawn_thread("shard", move || thread.run()).map(drop);
        let pool = || ThreadPoolBuilder::new().num_threads(count).spawn_handler(thread).build();
        Ok(Self { pool: (count > 0).then(pool).transpose().map_err(io::Error::other)? })
    }
}

impl Turns for Crew {
    fn take(&self, shards: &mut Shards, turn: impl Fn(&mut Shard) + Sync) {
        let is_busy = |shard: &&mut Shard| shard.backlog() >= WORTH;
        let Some(pool) = &self.pool else { return OneByOne.take(shards, turn) };
        let (mut busy, idle): (Vec<_>, Vec<_>) = shards.iter_mut().partition(is_busy);
        // This thread has a core already.
        let own = busy.pop();
        pool.in_place_scope(|scope| {
            let turn = &turn;
            busy.into_iter().for_each(|shard| scope.spawn(move |_| turn(shard)));
            own.into_iter().chain(idle).for_each(turn);
        });
    }
}
