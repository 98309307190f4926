//! A second cluster beside the first, to which the clients' table is duplicated: another [`World`] in the same time, with its own machines,
//! clocks, disks, network, metadata and nemesis.
//!
//! ```text
//! first:  clients -> nodes <- carriers --.   (both ways in some runs)
//!                                         >  gaps: nothing passes for a while, and then late
//! second:            nodes <-------------'
//! ```
//!
//! Both have queues of their own, and the earlier event comes first. Tasks of both run on the first one's executor. Each has its own
//! invariants; the second has no clients, and so no oracle.

use crate::carriers::{Carriers, addresses_of};
use crate::clock::{MILLISECOND, SECOND};
use crate::history::Time;
use crate::nemesis::Step;
use crate::scenario::Plan;
use crate::world::{Event, World};
use hedgerow_types::random::Random;
use std::ops::Range;

const MACHINE_COUNT: usize = 3;
/// Gaps of a run at most, and the longest.
const GAPS_MAX: u64 = 2;
const GAP_MAX: Time = 3 * SECOND;
/// In one of so many runs all of the second cluster is without power for a while, and for how long at least and at most.
const OFF_INTERVAL: u64 = 4;
const OFF_FOR: (Time, Time) = (SECOND, 4 * SECOND);
/// Its machines come back within this time.
const BACK_WITHIN: Time = 300 * MILLISECOND;

/// Which way something goes over a connection between clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Towards {
    /// A request.
    Machine,
    /// A reply.
    Caller,
}

/// When nothing passes between the clusters. What is sent then arrives afterwards, whether anybody still waits for it or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gaps(Vec<Gap>);

#[derive(Clone, Debug)]
struct Gap {
    during: Range<Time>,
    /// `None` = both ways.
    only: Option<Towards>,
}

impl Gaps {
    /// Some that begin within `length` from `start` on.
    fn drawn(start: Time, length: Time, random: &mut Random) -> Self {
        let count = random.below(GAPS_MAX + 1);
        let gap = |_| {
            let begin = start + random.below(length);
            let during = begin..begin + 1 + random.below(GAP_MAX);
            let only = match random.below(4) {
                0 => Some(Towards::Machine),
                1 => Some(Towards::Caller),
                _ => None,
            };
            Gap { during, only }
        };
        let mut gaps: Vec<Gap> = (0..count).map(gap).collect();
        gaps.sort_by_key(|gap| gap.during.start);
        Self(gaps)
    }

    /// When something arrives that would at `at`.
    fn passes(&self, at: Time, towards: Towards) -> Time {
        let stops = |gap: &&Gap| gap.only.is_none_or(|only| only == towards);
        self.0.iter().filter(stops).fold(at, |at, gap| if gap.during.contains(&at) { gap.during.end } else { at })
    }
}

/// Of another kind of run than the first one's. The table has other numbers too.
fn plan_of_second(first: &Plan, seed: u64) -> Plan {
    let plan = Plan::new(seed, None, Some(MACHINE_COUNT));
    let (engine, none) = (first.engine, false);
    Plan { cluster: 1, engine, client_count: 0, has_owner: none, has_echo: none, has_second: none, ..plan }
}

impl World {
    /// Founds a second cluster. Carriers begin beside the nodes of this one, and, if changes are to go both ways, beside those of the second.
    pub(crate) fn found_second(&mut self) {
        let mut random = self.random.fork();
        let plan = plan_of_second(&self.plan, random.next_u64());
        let mut second = Self::new(random.next_u64(), &plan, self.is_traced);
        second.trace(|| format!("{plan:?}"));
        second.found();
        if let Some(why) = second.failure {
            return self.fail(format!("in the second cluster: {why}"));
        }
        self.run_until(second.queue.now());
        second.run_until(self.queue.now());
        second.executor = self.executor.clone();
        self.gaps = Gaps::drawn(self.queue.now(), self.plan.load_time, &mut random);
        second.gaps = self.gaps.clone();
        if random.chance(1, OFF_INTERVAL) {
            second.plan_to_be_off(random.below(self.plan.load_time), &mut random);
        }
        let own = addresses_of(0, self.plan.machine_count);
        let other = addresses_of(1, plan.machine_count);
        if random.chance(1, 2) {
            second.carriers = Some(Carriers::new(other.clone(), own.clone(), random.fork()));
        }
        self.carriers = Some(Carriers::new(own, other, random.fork()));
        (0..plan.machine_count).for_each(|machine| second.start_carriers(machine));
        self.second = Some(Box::new(second));
        (0..self.plan.machine_count).for_each(|machine| self.start_carriers(machine));
    }

    /// All machines are to lose their power after `delay`.
    fn plan_to_be_off(&mut self, delay: Time, random: &mut Random) {
        let (least, most) = OFF_FOR;
        let back = delay + least + random.below(most - least);
        for machine in 0..self.plan.machine_count {
            self.after(delay, Event::Step(Step::Stop { machine, is_power_loss: true }));
            self.after(back + random.below(BACK_WITHIN), Event::Step(Step::Start { machine }));
        }
    }

    /// Whether what happens next, until then, happens in the second cluster.
    pub(crate) fn is_second_next(&self, until: Time) -> bool {
        let at = self.second.as_ref().and_then(|second| second.queue.next_at()).filter(|at| *at <= until);
        at.is_some_and(|at| self.queue.next_at().is_none_or(|own| at < own))
    }

    /// Lets the next event of the second cluster happen.
    pub(crate) fn let_second_happen(&mut self) {
        let Some(second) = &mut self.second else { return };
        let event = second.queue.pop(Time::MAX);
        self.queue.pass_to(second.queue.now());
        event.into_iter().for_each(|event| second.happen(event));
        let (is_due, failure) = (second.traffic.take_due(), second.failure.clone());
        if let Some(why) = failure {
            self.fail(format!("in the second cluster: {why}"));
        } else if is_due {
            self.run_clients();
        }
    }

    /// When something arrives over `line` that would at `at`.
    pub(crate) fn passes(&self, line: u64, at: Time, towards: Towards) -> Time {
        if self.traffic.is_between(line) { self.gaps.passes(at, towards) } else { at }
    }

    /// The clusters have nothing to do with each other any more, and the second is looked at for the last time.
    pub(crate) fn part_from_second(&mut self) {
        let Some(mut second) = self.second.take() else { return };
        (0..self.plan.machine_count).for_each(|machine| self.stop_carriers(machine));
        (0..second.plan.machine_count).for_each(|machine| second.stop_carriers(machine));
        (self.carriers, second.carriers) = (None, None);
        second.converge();
        if let Some(why) = &second.failure {
            self.fail(format!("in the second cluster: {why}"));
        }
        self.stats.add(&second.stats);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_in_a_gap_arrives_after_it() {
        let gaps = Gaps(vec![
            Gap { during: 10..20, only: None },
            Gap { during: 15..40, only: Some(Towards::Caller) },
            Gap { during: 60..70, only: None },
        ]);
        let passes = |at| [Towards::Machine, Towards::Caller].map(|towards| gaps.passes(at, towards));
        assert_eq!([9, 10, 19, 20, 40].map(passes), [[9; 2], [20, 40], [20, 40], [20, 40], [40; 2]]);
        assert_eq!(passes(65), [70; 2]);
    }
}
