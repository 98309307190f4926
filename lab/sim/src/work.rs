//! What a node's own work takes in virtual time. What it does in one turn costs it this time, in which it hears nothing, and
//! at whose end it says what came of it. What it hands to its log or to a job takes other time (`machine.rs`).

use crate::clock::{MICROSECOND, MILLISECOND};
use crate::history::Time;
use hedgerow_types::random::Random;

/// What work costs the nodes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// A read of what is in memory.
    read: Time,
    /// A read that goes to the disk, and one in how many does.
    cold: (Time, u64),
    /// An entry that is applied.
    apply: Time,
    /// A sync on the thread that serves: of the catalogue, the identity, a directory.
    sync: Time,
}

/// Which reads a node's thread leaves to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aside {
    /// One in so many rows that were flushed counts as not being in memory, in the engine that has all of them there; `None` = none.
    pub cold_interval: Option<u32>,
    /// Those that look at more rows.
    pub rows: u64,
    /// Threads that serve reads, however few rows they look at.
    pub workers: usize,
}

impl Aside {
    /// In two of three runs there are many. Drawn from the seed alone, as [`Work::of_seed`].
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6173_6964);
        let (cold_interval, rows) = match random.chance(1, 3) {
            true => (None, hedgerow_node::config::READS_AT_ONCE.rows),
            false => (Some(1 + random.below(6) as u32), 1 + random.below(6)),
        };
        Self { cold_interval, rows, workers: 1 << random.below(3) }
    }
}

/// What a node has done in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Reads answered.
    pub reads: u64,
    /// Entries applied, over all groups.
    pub applied: u64,
    /// Syncs that were not the log's and not a job's.
    pub syncs: u64,
}

impl Work {
    /// Nothing takes time.
    pub const FREE: Self = Self { read: 0, cold: (0, 1), apply: 0, sync: 0 };

    /// In every other run work takes time. Drawn from the seed alone, since what is drawn from the run's own randomness
    /// changes all that is drawn after it.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x776f_726b);
        if random.chance(1, 2) {
            return Self::FREE;
        }
        let mut up_to = |most: Time| random.below(most) + 1;
        Self {
            read: up_to(200 * MICROSECOND),
            cold: (up_to(15 * MILLISECOND), 20 + up_to(200)),
            apply: up_to(100 * MICROSECOND),
            sync: up_to(20 * MILLISECOND),
        }
    }

    /// How long the turn took in which this was done. A slow disk takes `disk_factor` times as long.
    pub fn takes(&self, done: Done, disk_factor: u64, random: &mut Random) -> Time {
        if *self == Self::FREE {
            return 0;
        }
        let cold = (0..done.reads).filter(|_| random.chance(1, self.cold.1)).count() as u64;
        let of_disk = cold * self.cold.0 + done.syncs * self.sync;
        done.reads * self.read + done.applied * self.apply + of_disk * disk_factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_in_about_every_other_run() {
        let free = (0..1_000).filter(|seed| Work::of_seed(*seed) == Work::FREE).count();
        assert!((400..600).contains(&free), "{free}");
    }

    #[test]
    fn a_turn_takes_as_long_as_what_is_done_in_it() {
        let mut random = Random::new(1);
        let done = Done { reads: 3, applied: 2, syncs: 1 };
        assert_eq!(Work::FREE.takes(done, 1, &mut random), 0);
        let work = Work { read: 1, cold: (1_000, 1), apply: 10, sync: 10_000 };
        assert_eq!(work.takes(done, 1, &mut random), 13_023);
        assert_eq!(work.takes(done, 2, &mut random), 26_023);
        assert_eq!(work.takes(Done::default(), 2, &mut random), 0);
    }
}
