//! The end of a run, when all faults are over: everything is read from everywhere, and all that was seen is judged.

use crate::client::{Client, Pace, Preference};
use crate::clock::{MILLISECOND, SECOND};
use crate::history::{Answer, Call, Operation, Outcome, Time};
use crate::linear;
use crate::network::Delay;
use crate::once;
use crate::reading::Wish;
use crate::workload::COUNTER_KEY_MIN;
use crate::world::World;
use hedgerow_types::ReadLevel;
use std::time::Duration;

/// Number of the client that reads everything at the end; those after it read from one machine each.
pub(crate) const LAST_READER: u32 = 1_000;
/// Time in which a replica that has just started begins to serve reads.
const SETTLING: Time = 700 * MILLISECOND;
/// Longest time for all last reads together.
const LAST_READS_MAX: Time = 60 * SECOND;
/// Keys that are read from every machine.
const KEYS_EVERYWHERE: usize = 4;
/// The levels at which they are. The first proves the replica fresh enough for the second.
const LEVELS: [ReadLevel; 4] =
    [ReadLevel::Linearizable, ReadLevel::Bounded(Duration::from_millis(500)), ReadLevel::Session, ReadLevel::Eventual];

impl World {
    /// Asks the leaders for everything, and every machine for something at every level.
    pub(crate) fn read_everything(&mut self) {
        if self.plan.learner_max() > 0 {
            self.converge();
        }
        let settled = self.queue.now() + SETTLING;
        self.run_until(settled);
        let keys: Vec<u32> = self.workload.keys().collect();
        let of_leader = keys.iter().map(|key| Wish::of_leader(*key, Call::GET)).collect();
        self.add_last_reader(LAST_READER, Preference::Leader, of_leader);
        for machine in 0..self.machines.len() {
            let any = |key: &u32| LEVELS.map(|level| Wish::of_any(*key, level));
            let of_machine = keys.iter().take(KEYS_EVERYWHERE).flat_map(any).collect();
            self.add_last_reader(LAST_READER + 1 + machine as u32, Preference::Near(machine), of_machine);
        }
        let is_done = self.wait(LAST_READS_MAX, |world| world.clients.iter().all(Client::is_done));
        if !is_done && self.failure.is_none() {
            self.fail("the last reads did not end".into());
        }
    }

    fn add_last_reader(&mut self, number: u32, preference: Preference, script: Vec<Wish>) {
        let Some(table) = self.operator.table else { return };
        let pace = Pace { think_max: 0, attempt_timeout: SECOND, deadline: 5 * SECOND };
        let (id, random) = (self.random.next_u64() | 1, self.random.fork());
        let reader = Client::new(number, id, self.machines.len(), table, pace, random);
        self.add_client(reader.with_preference(preference).with_script(script));
    }

    /// All judges' verdicts but the oracle's, which has judged every operation at its end.
    pub(crate) fn judge(&mut self) {
        let verdict = linear::check(&self.history);
        self.stats.undecided += verdict.undecided.len() as u64;
        if let Some(violation) = verdict.violations.first() {
            self.break_promise(format!("the history is not linearizable\n{violation}"));
        }
        for (key, operations) in self.history.by_key() {
            if let Err(why) = judge_key(key, &operations) {
                return self.fail(why);
            }
        }
        if let Some(why) = self.find_strange_server() {
            self.fail(why);
        }
    }

    /// Every machine serves every level itself now, from every replica that it has. Where messages may take long it may
    /// have had to leave a read to others.
    fn find_strange_server(&self) -> Option<String> {
        if self.plan.delay.slow_max > Delay::NEAR.slow_max {
            return None;
        }
        let table = self.operator.table?;
        self.history.operations().iter().filter(|operation| operation.client > LAST_READER).find_map(|operation| {
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
