//! A disk that is put back from a copy, as after a mistaken restore: the node has then forgotten what it acknowledged, voted and
//! granted since, and looks whole. By decision 014 the others do not listen to it, and it stops.
//!
//! Only what is to be noticed is planted. Every other machine runs, and has heard without a break for `HEARD_MIN` that the
//! node's data was further than the copy, in its count of starts or in one of its logs. Nothing else goes wrong until the copy has
//! been turned away: whoever starts anew has forgotten what it heard, and whoever is cut off cannot say it. After that the operator
//! does what the message says, and the node learns again from the others, who have everything without it. Before that the copy may be started
//! again, as a service manager does, or with one of its directories emptied, which is no better.
//!
//! A clone is a second process of a node that runs, on a machine of its own with the copy. It dials the others; nobody dials it, since
//! the node's address is the first one's. The others hear the first, whether the copy has forgotten something or not: it is the second
//! that stops, and the first never hears of it.

use crate::clock::{MILLISECOND, SECOND};
use crate::history::Time;
use crate::machine::{Machine, data_directory};
use crate::nemesis::HEARD_MIN;
use crate::world::{Event, World};
use hedgerow_env::Disk;
use hedgerow_env::sim::SimDisk;

/// A copy is turned away within this time after it was put back. As long as the process before it seems to be there, and during
/// the cuts that come with it, it goes on trying.
const TURNED_AWAY_MAX: Time = 8 * SECOND;
/// Longest time until the operator has removed the data, or the copy is started again.
const REMOVED_MAX: Time = 500 * MILLISECOND;
/// How often a copy is started again, as a service manager does, before the operator comes.
const STARTED_AGAIN_MAX: u64 = 2;

/// A copy of a machine's disk, and what is known of the data that it was made of.
#[derive(Debug)]
pub struct Copied {
    disk: SimDisk,
    /// The process that ran then.
    life: u64,
    /// How far its logs were.
    synced: Vec<u64>,
    /// When its logs were how far later on, and whose they were.
    marked: Option<(Time, Vec<u64>, u64)>,
}

/// What happens to a copy that was put back, until its data is removed.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutBack {
    /// By then it is turned away.
    until: Time,
    /// How often it is started again.
    again: u64,
    /// Whether one of its directories may be emptied then. The other one's log may be as it was in the node's own data; that it is a copy
    /// shows only if a process was started between.
    may_be_emptied: bool,
}

impl Copied {
    /// Whether others knew at the mark that the data was further than the copy, and since then it is `life` that ran.
    fn is_behind(&self, life: u64) -> Option<Time> {
        let (at, synced, marked_life) = self.marked.as_ref().filter(|(_, _, of)| *of == life)?;
        let is_further = || synced.iter().zip(&self.synced).any(|(known, copied)| known > copied);
        (*marked_life != self.life || is_further()).then_some(*at)
    }
}

impl World {
    /// Whether a clone runs.
    pub(crate) fn is_clone_near(&self) -> bool {
        self.machines[self.plan.machine_count..].iter().any(|clone| clone.is_copy) && !listens_to_copies()
    }

    /// Whether some machine has its data from a copy and was not turned away yet, or gets it soon.
    pub(crate) fn is_copy_near(&self) -> bool {
        let is_marked = |copy: &Copied| copy.marked.is_some();
        self.machines.iter().any(|machine| machine.is_copy || machine.copy.as_ref().is_some_and(is_marked))
    }

    pub(crate) fn copy_disk(&mut self, machine: usize) {
        let state = &mut self.machines[machine];
        let (disk, life) = (state.disk.copy(), state.life);
        let synced = state.process.as_ref().map(|process| process.synced());
        state.copy = synced.map(|synced| Copied { disk, life, synced, marked: None });
    }

    pub(crate) fn mark_logs(&mut self, machine: usize) {
        let now = self.queue.now();
        let is_clear = self.is_clear(machine, now);
        let state = &mut self.machines[machine];
        if let (Some(copy), Some(process), true) = (&mut state.copy, &state.process, is_clear) {
            copy.marked = Some((now, process.synced(), state.life));
        }
    }

    /// Whether all machines run, with all data, and have heard since then everything that `machine` says.
    fn is_clear(&self, machine: usize, since: Time) -> bool {
        let mut others = (0..self.plan.machine_count).filter(|other| *other != machine);
        self.is_whole()
            && !self.machines.iter().any(|state| state.is_refusing || state.is_paused)
            && others.all(|other| {
                let is_up = self.wires[self.wire_index(machine, other)].is_up(self.queue.now());
                is_up && self.links.clear_since(machine, other).is_some_and(|clear| clear <= since)
            })
    }

    /// Stops the machine and puts its disk back, if that is to be noticed.
    pub(crate) fn put_back(&mut self, machine: usize, is_power_loss: bool) {
        let life = self.machines[machine].life;
        let copy = self.machines[machine].copy.take();
        let marked = copy.as_ref().and_then(|copy| copy.is_behind(life));
        let marked = marked.filter(|marked| self.is_clear(machine, *marked));
        let (Some(copy), Some(marked)) = (copy, marked) else { return self.spare_copy() };
        assert!(self.queue.now() >= marked + HEARD_MIN, "a copy is put back some time after the mark");
        self.stats.note_fault("copy put back");
        self.stop_machine(machine, is_power_loss);
        let again = self.random.below(STARTED_AGAIN_MAX + 1);
        let may_be_emptied = self.plan.directory_count > 1 && copy.life != life;
        let state = &mut self.machines[machine];
        (state.disk, state.is_copy) = (copy.disk, true);
        state.put_back = PutBack { until: 0, again, may_be_emptied };
        self.expect_turned_away(machine);
    }

    fn expect_turned_away(&mut self, machine: usize) {
        self.machines[machine].put_back.until = self.queue.now() + TURNED_AWAY_MAX;
        self.after(TURNED_AWAY_MAX, Event::CopyIsDue { machine });
    }

    fn spare_copy(&mut self) {
        if let Some(nemesis) = &mut self.nemesis {
            nemesis.note_not_rolled_back();
        }
    }

    /// Starts a second process of the node with the copy, if that is to be noticed.
    pub(crate) fn start_clone(&mut self, machine: usize) {
        let (now, life) = (self.queue.now(), self.machines[machine].life);
        let copy = self.machines[machine].copy.take();
        let heard = copy.as_ref().and_then(|copy| match copy.marked {
            Some(_) => copy.is_behind(life),
            None => (copy.life == life).then(|| now.saturating_sub(HEARD_MIN)),
        });
        let heard = heard.filter(|heard| self.is_clear(machine, *heard));
        let (Some(copy), Some(_)) = (copy, heard) else { return self.spare_copy() };
        self.stats.note_fault("clone started");
        let clone = self.machines.len();
        let mut state = Machine::new(machine, &self.plan, &mut self.random);
        (state.disk, state.is_copy) = (copy.disk, true);
        self.machines.push(state);
        self.start_machine(clone);
        self.expect_turned_away(clone);
    }

    /// The process with the copy has stopped as it should: it is started again, perhaps with an empty directory, or its data is removed.
    pub(crate) fn remove_copy(&mut self, machine: usize) {
        self.stop_machine(machine, false);
        let is_clone = machine >= self.plan.machine_count;
        let PutBack { again, may_be_emptied, .. } = self.machines[machine].put_back;
        if again > 0 {
            self.machines[machine].put_back.again -= 1;
            self.stats.note_fault("copy started again");
            if may_be_emptied && self.random.chance(1, 2) {
                // Not the other one too: nothing of the copy would be left.
                self.machines[machine].put_back.may_be_emptied = false;
                self.stats.note_fault("directory of a copy emptied");
                self.empty_directory(machine);
            }
            self.expect_turned_away(machine);
        } else {
            self.stats.note_fault(if is_clone { "clone turned away" } else { "copy turned away" });
            let state = &mut self.machines[machine];
            (state.disk, state.is_copy) = (SimDisk::new(), false);
            if is_clone {
                return;
            }
        }
        let delay = self.random.below(REMOVED_MAX);
        self.after(delay, Event::StartAfterCopy { machine });
    }

    fn empty_directory(&mut self, machine: usize) {
        let directory = data_directory(self.random.below(self.plan.directory_count as u64) as usize);
        let disk = &self.machines[machine].disk;
        disk.remove_dir_all(&directory).and_then(|()| disk.create_dir_all(&directory)).expect("a disk without faults");
        disk.sync_dir(hedgerow_env::parent_of(&directory)).expect("a disk without faults");
    }

    pub(crate) fn check_copy(&mut self, machine: usize) {
        if self.queue.now() < self.machines[machine].put_back.until {
            return;
        }
        if std::mem::take(&mut self.machines[machine].is_copy) && !listens_to_copies() {
            self.fail(format!("m{} goes on with data that was put back from a copy", machine + 1));
        }
    }
}

#[cfg(not(feature = "mutations"))]
const fn listens_to_copies() -> bool {
    false
}

/// Whether the rule is away.
#[cfg(feature = "mutations")]
fn listens_to_copies() -> bool {
    hedgerow_node::mutation::LISTEN_TO_COPIES.load(std::sync::atomic::Ordering::SeqCst)
}
