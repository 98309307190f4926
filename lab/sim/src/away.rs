//! A log that is away for a few starts of its node, as when its disk is not mounted, and then back in the place of the one that was
//! begun meanwhile; and that one again when the first is away once more. Each time the node loses what only the log that is not there
//! holds, so that nobody else may miss anything: what is acknowledged is on a majority without this node.

use crate::clock::MILLISECOND;
use crate::history::Time;
use crate::machine::data_directory;
use crate::nemesis::Step;
use crate::world::{Event, World};
use hedgerow_env::Disk;
use hedgerow_types::GroupId;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Whether the log can be given back is looked at so often.
const LOOKED_EVERY: Time = 150 * MILLISECOND;
/// A node stands still for so long at most while its log is given back.
const GIVEN_BACK_MAX: Time = 200 * MILLISECOND;

/// Where a log lies that is not in its place, and what is noted of it, if that was moved too.
fn away(directory: usize) -> PathBuf {
    PathBuf::from(format!("/away-{directory}"))
}

fn log(directory: usize) -> PathBuf {
    data_directory(directory).join("log")
}

impl World {
    /// Takes a log from the machine, which was stopped before, unless it was started again meanwhile or has never written one. If another
    /// one was there while it was away before, that one is there again.
    pub(crate) fn take_log(&mut self, machine: usize, directory: usize) {
        let is_of_another = self.away_from(machine).is_some_and(|other| other != directory);
        let state = &self.machines[machine];
        if state.process.is_some() || is_of_another || !state.disk.exists(&log(directory)) {
            return;
        }
        self.stats.note_fault("log taken away");
        self.swap_log(machine, directory);
        // An unmounted directory is there and empty, one of another disk is not there.
        let disk = &self.machines[machine].disk;
        if !disk.exists(&log(directory)) && self.random.chance(1, 2) {
            disk.create_dir_all(&log(directory)).expect("a disk without faults");
        }
    }

    /// Stops the machine and gives it back the log that was taken from it, as soon as all others have everything.
    pub(crate) fn give_log(&mut self, machine: usize) {
        let Some(directory) = self.away_from(machine) else { return };
        let is_refusing = self.machines.iter().any(|machine| machine.is_refusing);
        if is_refusing || !self.is_whole_beside(machine) {
            return self.after(LOOKED_EVERY, Event::Step(Step::GiveLog { machine }));
        }
        self.stats.note_fault("log given back");
        let is_power_loss = self.random.chance(1, 2);
        self.stop_machine(machine, is_power_loss);
        self.swap_log(machine, directory);
        let delay = self.random.below(GIVEN_BACK_MAX);
        self.after(delay, Event::Step(Step::Start { machine }));
    }

    /// The data directory whose log is away.
    fn away_from(&self, machine: usize) -> Option<usize> {
        (0..self.plan.directory_count)
            .find(|directory| self.machines[machine].disk.exists(&away(*directory).join("log")))
    }

    /// What lies in the log's place and what lies beside change places, with or without what is noted of them.
    fn swap_log(&mut self, machine: usize, directory: usize) {
        let with_notes = self.random.chance(1, 2);
        let disk = &self.machines[machine].disk;
        let (there, beside, hand) = (data_directory(directory), away(directory), PathBuf::from("/in-hand"));
        for (from, to) in [(&there, &hand), (&beside, &there), (&hand, &beside)] {
            disk.create_dir_all(from).and_then(|()| disk.create_dir_all(to)).expect("a disk without faults");
            let is_moved = |name: &String| name == "log" || with_notes && name.starts_with("log.");
            for name in disk.list(from).expect("it was made").into_iter().filter(is_moved) {
                disk.rename(&from.join(&name), &to.join(&name)).expect("a disk without faults");
            }
        }
        for path in [&there, &beside] {
            disk.sync_dir(path).expect("a disk without faults");
        }
        disk.sync_dir(hedgerow_env::parent_of(&beside)).expect("a disk without faults");
    }

    /// Whether all voters on other machines run, of all groups, and know that no change of the membership is under way.
    fn is_whole_beside(&self, machine: usize) -> bool {
        let replicas: Vec<_> = self.replicas().collect();
        let there: BTreeSet<_> = replicas.iter().map(|replica| (replica.id, replica.replica)).collect();
        let partitions = replicas.iter().filter(|it| self.operator.table.is_some_and(|table| table.has(it.id)));
        let groups: BTreeSet<GroupId> = partitions.map(|replica| replica.id).collect();
        let beside = self.machines[machine].id;
        groups.len() == self.plan.partition_count as usize
            && replicas.iter().all(|replica| {
                let membership = replica.group.membership();
                let mut others = membership.voters.iter().filter(|voter| voter.node() != beside);
                let is_there = |voter| there.contains(&(replica.id, voter));
                membership.voters_outgoing.is_empty() && others.all(|voter| is_there(*voter))
            })
    }
}
