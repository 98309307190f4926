//! One run from beginning to end: found a cluster, let clients and faults at it, heal it, and judge.

use crate::client::{Client, Pace};
use crate::clock::{MILLISECOND, SECOND};
use crate::ending::LAST_READER;
use crate::engine::EngineKind;
use crate::history::{History, Operation, Time};
use crate::invariant::{check_converged, check_logs};
use crate::line::Caller;
use crate::owner::Owner;
use crate::progress::Progress;
use crate::protocol;
use crate::scenario::{Plan, Scenario};
use crate::stats::Stats;
use crate::world::World;

/// Longest time for the cluster to be founded and the table to serve.
const FOUNDING_MAX: Time = 20 * SECOND;
/// Longest time for clients to end their last operations.
const LAST_OPERATIONS_MAX: Time = 10 * SECOND;
/// Longest time for the owner of other tables to be through with them.
const TABLES_AWAY_MAX: Time = 60 * SECOND;
/// Longest time from the end of the last fault until all replicas are there and equal.
const CONVERGENCE_MAX: Time = 60 * SECOND;
/// The same where checkpoints are sent slowly: eight of a megabyte, at the least rate.
const CONVERGENCE_MAX_OF_SLOW: Time = 512 * SECOND;
/// How often it is looked whether something has been reached.
const LOOK_INTERVAL: Time = 50 * MILLISECOND;
/// How often leaders are moved once everything is whole again: often where moving leaders is what the run is about.
const MOVES: usize = 1;
const MOVES_OF_TRANSFERS: usize = 6;
/// For how long clients begin operations after each move.
const MOVE_INTERVAL: Time = 100 * MILLISECOND;
/// How long any operation may take then. Moving a leader takes some round trips; two moves that meet take an election.
const ANSWER_MAX: Time = 2 * SECOND;
/// Clients that ask meanwhile, and the number of the first.
const LATE_CLIENT_COUNT: u32 = 6;
const LATE_CLIENT_FIRST: u32 = 500;
/// How often learners are asked for again until they are there, in looks.
const WISH_INTERVAL: u32 = 20;

/// One in so many seeds is a long run.
pub const LONG_INTERVAL: u64 = 1_000;
/// Virtual time that a long run may take for its operations.
const LONG_MAX: Time = 3_000 * SECOND;

/// What to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Everything follows from it, given the rest.
    pub seed: u64,
    /// The kind of run; `None` = drawn from the seed.
    pub scenario: Option<Scenario>,
    /// Number of machines; `None` = drawn from the seed.
    pub machine_count: Option<usize>,
    /// Whether it goes on for very many operations. One of [`LONG_INTERVAL`] seeds does anyway.
    pub is_long: bool,
    /// What nodes store rows with; `None` = drawn from the seed.
    pub engine: Option<EngineKind>,
    /// Whether to print every step.
    pub is_traced: bool,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was run.
    pub request: Request,
    /// What its plan was.
    pub plan: Plan,
    /// What the clients saw.
    pub history: History,
    /// Equal for two runs of one request.
    pub hash: u64,
    /// Counts.
    pub stats: Stats,
    /// What is wrong, if anything is.
    pub failure: Option<String>,
}

impl Request {
    /// What is to be run.
    pub fn plan(&self) -> Plan {
        let mut plan = Plan::new(self.seed, self.scenario, self.machine_count);
        if self.is_long || self.seed.is_multiple_of(LONG_INTERVAL) {
            plan = plan.into_long(self.seed);
        }
        Plan { engine: self.engine.unwrap_or(plan.engine), ..plan }
    }
}

/// Runs `request`.
pub fn run(request: Request) -> Report {
    let plan = request.plan();
    let mut world = World::new(request.seed, &plan, request.is_traced);
    world.trace(|| format!("{plan:?}"));
    let phases = [World::found, World::load, World::converge, World::move_about, World::read_everything, World::judge];
    for phase in phases {
        if world.failure.is_none() {
            phase(&mut world);
        }
    }
    let mut stats = world.stats;
    stats.runs = 1;
    stats.scenarios.insert(plan.scenario.name(), 1);
    stats.engines.insert(plan.engine.name(), 1);
    stats.virtual_time = world.queue.now();
    stats.tables = world.owner.as_ref().map(Owner::counts).unwrap_or_default();
    let broken = (!world.broken.is_empty()).then(|| world.broken.join("\n"));
    let failure = world.failure.or(broken);
    Report { request, plan, hash: world.history.hash(), history: world.history, stats, failure }
}

impl World {
    /// Lets time pass until `is_reached`, at most `most`. Returns whether it was.
    pub(crate) fn wait(&mut self, most: Time, mut is_reached: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.queue.now() + most;
        while self.failure.is_none() {
            if is_reached(self) {
                return true;
            }
            if self.queue.now() >= end {
                return false;
            }
            let next = self.queue.now() + LOOK_INTERVAL;
            self.run_until(next);
        }
        false
    }

    pub(crate) fn found(&mut self) {
        let mut looks = 0;
        let has_table = self.wait(FOUNDING_MAX, |world| {
            looks += 1;
            if looks % 4 == 0 {
                let machine = looks / 4 % world.plan.machine_count;
                let create = protocol::create_table(world.operator.next_sequence_id(), &world.plan);
                world.send_to_machine(Caller::Operator, machine, create);
                let query = protocol::query_table(world.operator.next_sequence_id());
                world.send_to_machine(Caller::Operator, machine, query);
            }
            world.operator.table.is_some()
        });
        if !has_table && self.failure.is_none() {
            self.fail("the cluster was not founded, or the table not created, in time".into());
        }
    }

    fn load(&mut self) {
        let Some(table) = self.operator.table else { return };
        self.trace(|| format!("{table:?} serves"));
        if self.plan.has_second {
            self.found_second();
        }
        for number in 0..self.plan.client_count {
            let random = self.random.fork();
            let id = self.random.next_u64() | 1;
            self.add_client(Client::new(number, id, self.plan.machine_count, table, self.plan.pace, random));
        }
        if self.plan.has_owner {
            self.add_owner();
        }
        if self.plan.has_echo {
            self.add_echo();
        }
        self.unleash();
        let end = self.queue.now() + self.plan.load_time;
        self.run_until(end);
        let has_all = |world: &mut Self| world.stats.operations() >= world.plan.operations_min;
        if !self.wait(LONG_MAX, has_all) && self.failure.is_none() {
            self.fail("a long run did not come to its operations".into());
        }
        self.heal_everything();
        self.clients.iter_mut().for_each(Client::stop);
        let is_quiet = self.wait(LAST_OPERATIONS_MAX, |world| world.clients.iter().all(Client::is_done));
        if !is_quiet && self.failure.is_none() {
            self.fail("a client did not come to the end of its operation".into());
        }
        self.put_tables_away();
    }

    /// The other tables are dropped before everything is compared.
    fn put_tables_away(&mut self) {
        self.beside.iter().for_each(Progress::stop);
        let is_over = self.wait(TABLES_AWAY_MAX, |world| world.beside.iter().all(Progress::is_done));
        if !is_over && self.failure.is_none() {
            let waits_for: Vec<String> = self.beside.iter().map(Progress::waits_for).collect();
            self.fail(format!("without any fault tables could not be dropped; {}", waits_for.concat()));
        }
        self.part_from_second();
    }

    pub(crate) fn converge(&mut self) {
        let expected = self.plan.expected();
        let (mut missing, mut looks) = (String::new(), 0);
        let most = if self.plan.snapshot_rate.is_some() { CONVERGENCE_MAX_OF_SLOW } else { CONVERGENCE_MAX };
        let has_converged = self.wait(most, |world| {
            world.restart_stopped();
            if looks % WISH_INTERVAL == 0 && world.plan.learner_max() > 0 {
                world.set_learners(world.plan.learner_count);
            }
            looks += 1;
            match check_converged(world.nodes(), &expected) {
                Ok(()) => !world.is_clone_near(),
                Err(why) => {
                    missing = why;
                    false
                }
            }
        });
        if !has_converged && self.failure.is_none() {
            self.fail(format!("the cluster did not converge after the last fault: {missing}"));
        }
        if let Err(why) = check_logs(self.nodes()) {
            self.fail(why);
        }
    }

    /// Without faults everything is answered soon, even while leaders are moved at nodes so busy that they always find
    /// several events at once.
    fn move_about(&mut self) {
        for machine in &mut self.machines {
            (machine.delay_max, machine.disk_factor) = (MILLISECOND, 4);
        }
        let moves = match self.plan.scenario {
            Scenario::Transfers | Scenario::ReadsLearners => MOVES_OF_TRANSFERS,
            _ => MOVES,
        };
        (0..moves).for_each(|_| self.move_once());
        for machine in &mut self.machines {
            (machine.delay_max, machine.disk_factor) = (0, 1);
        }
        let is_of_then = |operation: &&Operation| (LATE_CLIENT_FIRST..LAST_READER).contains(&operation.client);
        if let Some(operation) = self.late.iter().find(is_of_then).map(ToString::to_string) {
            self.fail(format!("without any fault this was not answered in time: {operation}"));
        }
    }

    /// Moves all leaders once under load, and changes the number of learners where there may be any. What was asked meanwhile
    /// ends before the next move, which would free what hangs.
    fn move_once(&mut self) {
        let Some(table) = self.operator.table.filter(|_| self.failure.is_none()) else { return };
        let pace = Pace { think_max: 2 * MILLISECOND, attempt_timeout: ANSWER_MAX, deadline: ANSWER_MAX };
        for _ in 0..LATE_CLIENT_COUNT {
            let number = LATE_CLIENT_FIRST + self.clients.len() as u32;
            let (id, random) = (self.random.next_u64() | 1, self.random.fork());
            self.add_client(Client::new(number, id, self.plan.machine_count, table, pace, random));
        }
        let to = self.random.below(self.plan.machine_count as u64) as usize;
        self.trace(|| format!("without any fault, leaders go to m{}", to + 1));
        self.move_leaders(to);
        if self.plan.learner_max() > 0 {
            let count = self.random.below(u64::from(self.plan.learner_max()) + 1) as u32;
            self.set_learners(count);
        }
        let end = self.queue.now() + MOVE_INTERVAL;
        self.run_until(end);
        self.clients.iter_mut().for_each(Client::stop);
        let is_quiet = self.wait(LAST_OPERATIONS_MAX, |world| world.clients.iter().all(Client::is_done));
        if !is_quiet && self.failure.is_none() {
            self.fail("a client did not come to the end of its operation after a move".into());
        }
    }
}
