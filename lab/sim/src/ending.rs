//! The end of a run, when all faults are over: everything is read from everywhere, and all that was seen is judged.

use crate::client::{Client, Pace, Preference};
use crate::clock::{MILLISECOND, SECOND};
use crate::history::{Answer, Call, Operation, Outcome, Time};
use crate::linear;
use crate::network::Delay;
use crate::once;
use crate::reading::Wish;
use crate::workload::{COUNTER_KEY_MIN, FLEETING_KEYS};
use crate::world::World;
use hedgerow_client::ReplicaRead;
use hedgerow_types::{GroupId, ReadLevel, ReplicaId, Term};
use std::time::Duration;

/// Number of the client that reads everything at the end; those after it read from one machine each.
pub(crate) const LAST_READER: u32 = 1_000;
/// Time under one leader in which a replica that has just started begins to serve reads.
const SETTLING: Time = 700 * MILLISECOND;
/// Longest time until all leaders have stayed for so long. A node that was slow during the faults hands over what it leads
/// when it notices, and a few seconds later what it could not hand over then.
const SETTLING_MAX: Time = 20 * SECOND;
/// How often everything is read again because a leader has moved under the readers.
const READINGS_MAX: usize = 5;
/// Longest time for all last reads together.
const LAST_READS_MAX: Time = 60 * SECOND;
/// Keys that are read from every machine.
const KEYS_EVERYWHERE: usize = 4;
/// The levels at which they are. The first proves the replica fresh enough for the second.
const LEVELS: [ReadLevel; 4] =
    [ReadLevel::Linearizable, ReadLevel::Bounded(Duration::from_millis(500)), ReadLevel::Session, ReadLevel::Eventual];

impl World {
    /// Asks the leaders for everything, and every machine for something at every level.
    ///
    /// Nothing goes wrong any more, but leaders may still move: a node that the faults made look slow is noticed when those
    /// who judge it have run for long enough, and trusted again only after seconds of health. While a leader moves there is
    /// none for some round trips, and a replica that has just started leaves reads to others until it has had the same leader
    /// for half a second. Both are what nodes promise. And a client asks only replicas of which its map says that their node is
    /// alive, which the node that tells it the map may not have heard yet. So it counts what is read while all leaders stay and
    /// every machine is asked, and it counts as a failure if that does not come about.
    pub(crate) fn read_everything(&mut self) {
        for _ in 0..READINGS_MAX {
            if self.plan.learner_max() > 0 {
                self.converge();
            }
            self.settle();
            if self.failure.is_some() {
                return;
            }
            let have_stayed = self.read_once();
            if self.failure.is_some() || have_stayed && self.find_strange_server().is_none() {
                return;
            }
            self.trace(|| "a leader moved under the last reads, or a machine was not asked: they begin again".into());
        }
        let strange = self.find_strange_server();
        self.fail(strange.unwrap_or_else(|| "leaders go on moving without any fault".into()));
    }

    /// Waits until all leaders have stayed for a while.
    fn settle(&mut self) {
        let (mut leaders, mut since) = (self.leaders(), self.queue.now());
        let has_settled = self.wait(SETTLING_MAX, |world| {
            let found = world.leaders();
            if found != leaders {
                (leaders, since) = (found, world.queue.now());
            }
            world.queue.now() >= since + SETTLING
        });
        if !has_settled && self.failure.is_none() {
            self.fail("leaders go on moving without any fault".into());
        }
    }

    /// Who leads which group in which term.
    fn leaders(&self) -> Vec<(GroupId, Term, ReplicaId)> {
        let mut leaders: Vec<_> =
            self.replicas().filter_map(|replica| Some((replica.id, replica.leads()?, replica.replica))).collect();
        leaders.sort_unstable();
        leaders
    }

    /// One reading of everything. Returns whether all leaders stayed meanwhile.
    fn read_once(&mut self) -> bool {
        let leaders = self.leaders();
        self.last_reads_since = self.queue.now();
        let keys: Vec<u32> = self.workload.keys().collect();
        let of_leader = keys.iter().map(|key| Wish::of_leader(*key, Call::GET)).collect();
        self.add_last_reader(LAST_READER, Preference::Mode(ReplicaRead::Leader), of_leader);
        for machine in 0..self.plan.machine_count {
            let any = |key: &u32| LEVELS.map(|level| Wish::of_any(*key, level));
            let of_machine = keys.iter().take(KEYS_EVERYWHERE).flat_map(any).collect();
            self.add_last_reader(LAST_READER + 1 + machine as u32, Preference::Near(machine), of_machine);
        }
        let is_done = self.wait(LAST_READS_MAX, |world| world.clients.iter().all(Client::is_done));
        if !is_done && self.failure.is_none() {
            self.fail("the last reads did not end".into());
        }
        self.leaders() == leaders
    }

    fn add_last_reader(&mut self, number: u32, preference: Preference, script: Vec<Wish>) {
        let Some(table) = self.operator.table else { return };
        let pace = Pace { think_max: 0, attempt_timeout: SECOND, deadline: 5 * SECOND };
        let (id, random) = (self.random.next_u64() | 1, self.random.fork());
        let reader = Client::new(number, id, self.plan.machine_count, table, pace, random);
        self.add_client(reader.with_preference(preference).with_script(script));
    }

    /// All judges' verdicts. The oracle has judged every operation at its end, if it could.
    pub(crate) fn judge(&mut self) {
        if let Some(why) = self.oracle.find_unjudged() {
            self.break_promise(why);
        }
        let is_lasting = |operation: &&Operation| !FLEETING_KEYS.contains(&operation.key);
        let verdict = linear::check(&self.history.operations().iter().filter(is_lasting).copied().collect());
        if let Some(key) = verdict.undecided.first() {
            self.fail(format!("the history of key {key:?} is too large to judge"));
        }
        if let Some(violation) = verdict.violations.first() {
            self.break_promise(format!("the history is not linearizable\n{violation}"));
        }
        for (key, operations) in self.history.by_key() {
            if let Err(why) = judge_key(key, &operations) {
                return self.fail(why);
            }
        }
    }

    /// Every machine serves every level itself now, from every replica that it has. Where messages may take long it may
    /// have had to leave a read to others.
    fn find_strange_server(&self) -> Option<String> {
        if self.plan.delay.slow_max > Delay::NEAR.slow_max {
            return None;
        }
        let table = self.operator.table?;
        let is_last =
            |operation: &&Operation| operation.client > LAST_READER && operation.start >= self.last_reads_since;
        self.history.operations().iter().filter(is_last).find_map(|operation| {
            let machine = (operation.client - LAST_READER - 1) as usize;
            let group = table.group_of(operation.key);
            let is_there = self.machines[machine].process.as_ref().is_some_and(|process| process.role(group).is_some());
            let is_own = operation.seen.is_some_and(|seen| seen.machine == machine);
            (is_there && !is_own).then(|| format!("m{} does not serve without any fault: {operation}", machine + 1))
        })
    }
}

/// What the last reader must have found.
fn judge_key(key: u32, operations: &[Operation]) -> Result<(), String> {
    let last = operations.iter().rfind(|operation| operation.client == LAST_READER);
    let Some(Outcome::Ok(Answer::Content(content))) = last.map(|operation| operation.outcome) else {
        return Err(format!("key {key} cannot be read after all faults have ended"));
    };
    if key >= COUNTER_KEY_MIN {
        once::check(operations, content).map_err(|why| format!("counter key {key}: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Plan, Scenario};

    /// A leader moves under the last reads, as a node that was slow makes it do. What was refused meanwhile is no fault.
    #[test]
    fn n8c_last_reads_count_while_all_leaders_stay() {
        let mut refused = 0;
        for seed in 1..=10 {
            let mut world = World::new(seed, &Plan::new(seed, Some(Scenario::Calm), Some(3)), false);
            world.found();
            world.converge();
            let to = world.leaders()[0].2.node();
            world.move_leaders(usize::from(to.0) % 3);
            let has_stayed = world.read_once();
            refused += usize::from(!has_stayed && world.find_strange_server().is_some());
            world.read_everything();
            world.judge();
            assert_eq!((world.failure, world.broken), (None, Vec::new()), "seed {seed}");
        }
        assert!(refused > 0, "no leader moved under a read");
    }
}
