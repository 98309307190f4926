//! Experiments with load: real nodes in virtual time, where each read takes a machine a while, and clients that ask whatever
//! comes back.
//!
//! Every machine serves one read at a time, from the node's own queue; what arrives meanwhile is handed over when the read is
//! done. Arrivals are an open loop: their times depend on the seed alone. So goodput, extra load and recovery are exact numbers
//! that a test can assert.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | what is run: load, costs, what goes wrong; and what came of it |
//! | `clients.rs` | the clients: `hedgerow_hedge` decides, over the simulated network |

mod clients;

pub(crate) use clients::{Clients, Wake};

use crate::clock::{MILLISECOND, SECOND};
use crate::history::Time;
use crate::machine::Cost;
use crate::network::Delay;
use crate::reading::TableReads;
use crate::scenario::{Plan, Scenario};
use crate::work::Work;
use crate::world::{Event, World};
use hedgerow_hedge::{BudgetOptions, Counters, Policy};
use hedgerow_node::config::APPLY_BYTES_PER_TURN;
use hedgerow_types::GroupId;
use std::time::Duration;

/// Longest time for the clients' last requests.
const LAST_MAX: Time = 30 * SECOND;
/// Time after the table is there until the load begins.
const SETTLING: Time = 2 * SECOND;

/// How the clients choose the replica of a first attempt. Others go to one that was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Any that is not known to be gone.
    Random,
    /// The one of two with the fewer requests of this client under way.
    LessInFlight,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The machine stands still from then on, for so long.
    Stall {
        /// Index of the machine.
        machine: usize,
        /// For so long.
        duration: Time,
    },
    /// The machine is gone.
    Kill {
        /// Index of the machine.
        machine: usize,
    },
    /// From now on every read costs so many times as much, on every machine.
    SlowDown {
        /// How many times.
        factor: u64,
    },
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Everything follows from it, given the rest.
    pub seed: u64,
    /// Machines, with three replicas of each partition.
    pub machine_count: usize,
    /// Partitions of the table.
    pub partition_count: u32,
    /// What a read costs a machine.
    pub cost: Cost,
    /// Requests per second, of all clients together.
    pub rate: u64,
    /// How long they come.
    pub duration: Time,
    /// Clients, each with its own budget.
    pub client_count: usize,
    /// What each of them decides by.
    pub policy: Policy,
    /// What extra attempts may cost; `None` = anything.
    pub budget: Option<BudgetOptions>,
    /// Whether extra attempts say what they are, so that nodes let them wait.
    pub are_extras_marked: bool,
    /// How the first replica is chosen.
    pub choice: Choice,
    /// How long one attempt is waited for; then it counts as failed, and another is sent.
    pub attempt_timeout: Time,
    /// How long a request may take.
    pub deadline: Time,
    /// Most attempts of a request.
    pub attempts_max: u8,
    /// What goes wrong, and when, from the load's beginning.
    pub fault: Option<(Time, Fault)>,
}

impl Setting {
    /// Three nodes that serve 500 reads per second each, and no faults. `load` is a share of what they can serve.
    pub fn new(seed: u64, load: f64) -> Self {
        let read = 2 * MILLISECOND;
        Self {
            seed,
            machine_count: 3,
            partition_count: 2,
            cost: Cost { read, hot: None },
            rate: (3.0 * load * SECOND as f64 / read as f64) as u64,
            duration: 10 * SECOND,
            client_count: 8,
            policy: Policy::None,
            budget: Some(BudgetOptions::default()),
            are_extras_marked: true,
            choice: Choice::Random,
            attempt_timeout: SECOND,
            deadline: SECOND,
            attempts_max: 1,
            fault: None,
        }
    }
}

/// One request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When it began, from the load's beginning.
    pub start: Time,
    /// How long it took; `None` = it was not answered by its deadline.
    pub took: Option<Time>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// All requests, by their beginnings.
    pub requests: Vec<Ended>,
    /// Attempts that were sent, first ones and extra ones.
    pub first: u64,
    /// Extra ones.
    pub extra: u64,
    /// Extra ones for which there was nothing left in the budget.
    pub suppressed: u64,
    /// Reads that each machine has served.
    pub served: Vec<u64>,
    /// Hedges that were sent to each machine.
    pub hedges: Vec<u64>,
    /// Delays after which hedges were planned, one look at a time: when, and how long.
    pub delays: Vec<(Time, Duration)>,
    /// Extra attempts that decided their request.
    pub won: u64,
}

impl Measured {
    /// Of the requests that began from `from` to `to`, the share that was answered in time.
    pub fn goodput(&self, from: Time, to: Time) -> f64 {
        let of = self.requests.iter().filter(|request| (from..to).contains(&request.start));
        let (mut good, mut all) = (0_u64, 0_u64);
        for request in of {
            all += 1;
            good += u64::from(request.took.is_some());
        }
        good as f64 / all.max(1) as f64
    }

    /// The latency that a share of `percentile` / 100 of the answered requests stay below, of those from `from` to `to`.
    pub fn latency(&self, percentile: f64, from: Time, to: Time) -> Time {
        let of = self.requests.iter().filter(|request| (from..to).contains(&request.start));
        let mut took: Vec<Time> = of.filter_map(|request| request.took).collect();
        took.sort_unstable();
        let rank = (took.len() as f64 * percentile / 100.0).ceil() as usize;
        took.get(rank.clamp(1, took.len().max(1)) - 1).copied().unwrap_or(0)
    }

    /// The most extra attempts that `budget` allows each of `client_count` clients together.
    pub fn extra_allowed(&self, budget: BudgetOptions, client_count: usize) -> f64 {
        client_count as f64 * budget.initial_tokens() + self.first as f64 * budget.ratio
    }

    /// How much more the busiest machine serves than the mean one.
    pub fn skew(&self) -> f64 {
        skew(&self.served)
    }

    /// The same for hedges.
    pub fn hedge_skew(&self) -> f64 {
        skew(&self.hedges)
    }

    fn add(&mut self, counters: &Counters) {
        self.won += counters.won.iter().sum::<u64>();
    }
}

fn skew(counts: &[u64]) -> f64 {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64;
    counts.iter().max().map_or(0.0, |most| *most as f64 / mean)
}

/// Runs `setting`.
///
/// # Panics
///
/// If the cluster breaks a promise.
pub fn run(setting: &Setting) -> Measured {
    let plan = plan(setting);
    let mut world = World::new(setting.seed, &plan, false);
    world.found();
    let settled = world.queue.now() + SETTLING;
    world.run_until(settled);
    for machine in &mut world.machines {
        machine.cost = setting.cost;
    }
    let begin = world.queue.now();
    if let Some((at, fault)) = setting.fault {
        world.plan_fault(begin + at, fault, setting);
    }
    world.load = world.operator.table.map(|table| {
        let replicas = (0..table.partition_count).map(|partition| world.machines_of(table.group(partition)));
        Clients::new(setting.clone(), table, replicas.collect(), begin)
    });
    world.queue.push(begin, Event::Load(Wake::Arrival));
    world.run_until(begin + setting.duration);
    let is_quiet = world.wait(LAST_MAX, |world| world.load.as_ref().is_some_and(Clients::is_done));
    assert_eq!(world.failure, None, "seed {}", setting.seed);
    assert!(is_quiet, "requests did not end");
    let served = world.machines.iter().map(|machine| machine.served).collect();
    let mut result = world.load.map(Clients::into_result).unwrap_or_default();
    result.served = served;
    result
}

fn plan(setting: &Setting) -> Plan {
    let mut plan = Plan::new(setting.seed, Some(Scenario::Calm), Some(setting.machine_count));
    plan.replica_count = 3;
    plan.learner_count = 0;
    plan.partition_count = setting.partition_count;
    plan.directory_count = 1;
    plan.table_reads = TableReads::DEFAULT;
    plan.delay = Delay { slow_one_in: 0, ..Delay::NEAR };
    plan.reads_per_turn = 1;
    plan.apply_bytes_per_turn = APPLY_BYTES_PER_TURN;
    plan.turn_delay_max = 0;
    plan.work = Work::FREE;
    // A read costs what it costs the node's own thread: those of others are not counted here.
    plan.aside.workers = 1;
    plan.shards = 1;
    plan
}

impl World {
    /// The machines that have a replica of `group`.
    fn machines_of(&self, group: GroupId) -> Vec<usize> {
        let has = |machine: &usize| {
            self.machines[*machine].process.as_ref().is_some_and(|process| process.role(group).is_some())
        };
        (0..self.machines.len()).filter(has).collect()
    }

    fn plan_fault(&mut self, at: Time, fault: Fault, setting: &Setting) {
        match fault {
            Fault::Stall { machine, duration } => {
                self.queue.push(at, Event::Load(Wake::Pause { machine, is_paused: true }));
                self.queue.push(at + duration, Event::Load(Wake::Pause { machine, is_paused: false }));
            }
            Fault::Kill { machine } => self.queue.push(at, Event::Load(Wake::Kill { machine })),
            Fault::SlowDown { factor } => {
                let cost = Cost { read: setting.cost.read * factor, ..setting.cost };
                self.queue.push(at, Event::Load(Wake::Costs(cost)));
            }
        }
    }

    pub(crate) fn load_happens(&mut self, wake: Wake) {
        match wake {
            Wake::Kill { machine } => self.stop_machine(machine, false),
            Wake::Pause { machine, is_paused } => {
                self.machines[machine].is_paused = is_paused;
                self.schedule(machine);
            }
            Wake::Costs(cost) => self.machines.iter_mut().for_each(|machine| machine.cost = cost),
            Wake::Arrival | Wake::Request { .. } => self.with_load(|load, now, out| load.handle_wake(wake, now, out)),
        }
    }

    /// Lets the clients do something, and carries out what they want.
    pub(crate) fn with_load(&mut self, act: impl FnOnce(&mut Clients, Time, &mut Vec<clients::Action>)) {
        let (now, mut out) = (self.queue.now(), Vec::new());
        if let Some(load) = &mut self.load {
            act(load, now, &mut out);
        }
        for action in out {
            match action {
                clients::Action::Send { client, machine, frame } => {
                    self.send_to_machine(crate::line::Caller::Load(client), machine, frame);
                }
                clients::Action::Wake { at, wake } => self.queue.push(at, Event::Load(wake)),
            }
        }
    }
}
