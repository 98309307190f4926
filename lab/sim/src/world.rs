//! A cluster with its clients, its network and its nemesis, moved forward event by event. In some runs with a second cluster beside it,
//! which is another such world.

use crate::carriers::Carriers;
use crate::client::Client;
use crate::clock::MICROSECOND;
use crate::executor::Executor;
use crate::greeting::Links;
use crate::history::{History, Operation, Time};
use crate::invariant::{Invariants, check_leases};
use crate::line::{Caller, Lines};
use crate::load::{Clients, Wake};
use crate::machine::{Input, Machine};
use crate::nemesis::{Nemesis, Step};
use crate::network::{Packet, Wire};
use crate::operator::Operator;
use crate::oracle::Oracle;
use crate::owner::Owner;
use crate::progress::Progress;
use crate::protocol;
use crate::queue::Queue;
use crate::scenario::{Plan, Scenario};
use crate::second::{Gaps, Towards};
use crate::stats::Stats;
use crate::tap::Tap;
use crate::traffic::Traffic;
use crate::workload::Workload;
use bytes::{Bytes, BytesMut};
use hedgerow_node::inspect::ReplicaView;
use hedgerow_node::peer::Refused;
use hedgerow_node::{ConnectionId, Event as NodeEvent, LogId};
use hedgerow_types::Instant;
use hedgerow_types::random::Random;

/// Events after which a run counts as running away, and so many more for each operation that is wanted of it.
const EVENTS_MAX: u64 = 5_000_000;
const EVENTS_PER_OPERATION: u64 = 400;

/// Broken promises that are reported of one run.
const BROKEN_MAX: usize = 50;

/// What can happen.
#[derive(Debug)]
pub(crate) enum Event {
    Tick { machine: usize, life: u64 },
    Wake { machine: usize, life: u64, at: Instant },
    Process { machine: usize, life: u64 },
    TurnEnds { machine: usize, life: u64, since: Time },
    FromPeer { from: usize, to: usize, epoch: u64, packet: Packet },
    Dial { from: usize, to: usize, life: u64 },
    PeerGone { from: usize, to: usize, connection: u64 },
    Answered { from: usize, to: usize, connection: u64, refused: Refused },
    CopyIsDue { machine: usize },
    StartAfterCopy { machine: usize },
    ToMachine { line: u64, frame: Bytes },
    ClosedAtMachine { line: u64, machine: usize, life: u64 },
    ToCaller { line: u64, chunk: Bytes, served: Time },
    ClosedAtCaller { caller: Caller, machine: usize, line: u64 },
    RoundEnds { machine: usize, life: u64, log: LogId },
    JobEnds { machine: usize, life: u64, job: u64 },
    Accepted { line: u64 },
    ClientsWake { at: Time },
    ClientBegins { client: usize },
    Load(Wake),
    Step(Step),
    StepOfCopy(Step),
}

/// One run's world.
#[derive(Debug)]
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) queue: Queue<Event>,
    /// Those of the nodes, and perhaps one more, on which a clone of a node runs.
    pub(crate) machines: Vec<Machine>,
    pub(crate) wires: Vec<Wire>,
    /// The connections between machines.
    pub(crate) links: Links,
    pub(crate) lines: Lines,
    pub(crate) clients: Vec<Client>,
    pub(crate) executor: Executor,
    pub(crate) traffic: Traffic,
    pub(crate) tap: Tap,
    pub(crate) workload: Workload,
    pub(crate) operator: Operator,
    /// Who creates and drops tables meanwhile, if anybody does.
    pub(crate) owner: Option<Owner>,
    /// Those who do something beside the clients, and are to end before everything is compared.
    pub(crate) beside: Vec<Progress>,
    pub(crate) nemesis: Option<Nemesis>,
    pub(crate) history: History,
    /// Operations for which there was no time.
    pub(crate) late: Vec<Operation>,
    pub(crate) invariants: Invariants,
    pub(crate) oracle: Oracle,
    pub(crate) stats: Stats,
    /// Why the run has failed, if it has.
    pub(crate) failure: Option<String>,
    /// What clocks beyond the declared error have broken: the run goes on, to see what else they break.
    pub(crate) broken: Vec<String>,
    pub(crate) random: Random,
    pub(crate) is_traced: bool,
    /// Another cluster. Its tasks run on the executor of this world.
    pub(crate) second: Option<Box<World>>,
    /// When nothing passes between the two.
    pub(crate) gaps: Gaps,
    /// What carries changes from this cluster to the other, beside its nodes.
    pub(crate) carriers: Option<Carriers>,
    /// The clients of an experiment with load, instead of others.
    pub(crate) load: Option<Clients>,
    /// When the last reading of everything began.
    pub(crate) last_reads_since: Time,
}

impl World {
    /// The world of `seed` and `plan` at its beginning: all machines are on.
    pub fn new(seed: u64, plan: &Plan, is_traced: bool) -> Self {
        let mut random = Random::new(seed);
        let machines: Vec<Machine> =
            (0..plan.machine_count).map(|index| Machine::new(index, plan, &mut random)).collect();
        let nemesis = plan.temper.clone().map(|temper| Nemesis::new(temper, random.fork()));
        let mut world = Self {
            queue: Queue::default(),
            wires: std::iter::repeat_with(Wire::default).take((machines.len() + 1).pow(2)).collect(),
            links: Links::default(),
            lines: Lines::default(),
            clients: Vec::new(),
            executor: Executor::new(random.fork()),
            traffic: Traffic::default(),
            tap: Tap::new(plan.table_reads),
            workload: Workload::new(plan, random.fork()),
            operator: Operator::default(),
            owner: None,
            beside: Vec::new(),
            nemesis,
            history: History::default(),
            late: Vec::new(),
            invariants: Invariants::default(),
            oracle: Oracle::new(plan.session_bytes_max),
            stats: Stats::default(),
            failure: None,
            broken: Vec::new(),
            random,
            is_traced,
            second: None,
            gaps: Gaps::default(),
            carriers: None,
            load: None,
            last_reads_since: 0,
            machines,
            plan: plan.clone(),
        };
        (0..world.machines.len()).for_each(|machine| world.start_machine(machine));
        world
    }

    /// Lets events happen until `until`, or until the run has failed.
    pub fn run_until(&mut self, until: Time) {
        while self.failure.is_none() && self.let_next_happen(until) {
            self.stats.events += 1;
            if self.stats.events > EVENTS_MAX + EVENTS_PER_OPERATION * self.plan.operations_min {
                self.fail("the run does not come to an end: too many events".into());
            }
        }
    }

    /// Lets the next event happen, here or in the second cluster, if it does until then. Time is the same in both.
    fn let_next_happen(&mut self, until: Time) -> bool {
        if self.is_second_next(until) {
            self.let_second_happen();
            return true;
        }
        let event = self.queue.pop(until);
        if let Some(second) = &mut self.second {
            second.queue.pass_to(self.queue.now());
        }
        let is_there = event.is_some();
        event.into_iter().for_each(|event| self.happen(event));
        is_there
    }

    /// The machines that are the cluster.
    pub(crate) fn nodes(&self) -> &[Machine] {
        &self.machines[..self.plan.machine_count]
    }

    /// Every replica that runs on a node.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = ReplicaView<'_>> {
        let processes = self.nodes().iter().filter_map(|machine| machine.process.as_ref());
        processes.flat_map(|process| process.node.replicas_for_inspection())
    }

    /// Writes a line of the trace.
    pub(crate) fn trace(&self, line: impl FnOnce() -> String) {
        if self.is_traced {
            let cluster = if self.plan.cluster == 0 { "" } else { "second: " };
            println!("{:>12.6} {cluster}{}", self.queue.now() as f64 / 1e9, line());
        }
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.trace(|| format!("FAILED {why}"));
        self.failure.get_or_insert(why);
    }

    /// A promise is broken that rests on the clocks.
    pub(crate) fn break_promise(&mut self, why: String) {
        if self.plan.scenario != Scenario::ClocksBeyond {
            return self.fail(why);
        }
        self.trace(|| format!("BROKEN {why}"));
        if self.broken.len() < BROKEN_MAX && !self.broken.contains(&why) {
            self.broken.push(why);
        }
    }

    pub(crate) fn after(&mut self, delay: Time, event: Event) {
        self.queue.push(self.queue.now() + delay, event);
    }

    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Tick { machine, life } => self.tick(machine, life),
            Event::Wake { machine, life, at } => self.wake(machine, life, at),
            Event::Process { machine, life } => self.process(machine, life),
            Event::TurnEnds { machine, life, since } => {
                if self.machines[machine].life == life {
                    self.machines[machine].end_turn(self.queue.now());
                    self.dispatch(machine, since);
                }
            }
            Event::FromPeer { from, to, epoch, packet } => {
                if self.wire(from, to).delivers(epoch) {
                    self.deliver(to, Input::Peer(from, packet));
                }
            }
            Event::Dial { from, to, life } => self.dial(from, to, life),
            Event::PeerGone { from, to, connection } => self.deliver(to, Input::Peer(from, Packet::End(connection))),
            Event::Answered { from, to, connection, refused } => self.answered(from, to, connection, refused),
            Event::CopyIsDue { machine } => self.check_copy(machine),
            Event::StartAfterCopy { machine } => self.start_machine(machine),
            Event::ToMachine { line, frame } => match self.lines.machine_of(line) {
                Some(machine) if self.machines[machine].process.is_some() => {
                    self.deliver(machine, Input::Event(NodeEvent::Client(ConnectionId(line), frame)));
                }
                Some(_) => self.refuse_connection(line),
                None => {}
            },
            Event::ClosedAtMachine { line, machine, life } => {
                if self.machines[machine].life == life {
                    self.deliver(machine, Input::Event(NodeEvent::ClientClosed(ConnectionId(line))));
                }
            }
            Event::ToCaller { line, chunk, served } => {
                if let Some(caller) = self.lines.caller_of(line) {
                    self.deliver_to_caller(caller, line, chunk, served);
                }
            }
            Event::ClosedAtCaller { caller, machine, line } => self.closed_at_caller(caller, machine, line),
            Event::RoundEnds { machine, life, log } => self.end_round(machine, life, log),
            Event::JobEnds { machine, life, job } => {
                if self.machines[machine].life == life
                    && let Some(process) = &mut self.machines[machine].process
                {
                    process.end_job(job);
                    self.schedule(machine);
                }
            }
            Event::Accepted { line } => self.accept(line),
            Event::ClientsWake { at } => self.wake_clients(at),
            Event::ClientBegins { client } => self.begin_operation(client),
            Event::Load(wake) => self.load_happens(wake),
            Event::Step(step) => self.take_step(step),
            Event::StepOfCopy(step) => self.take_any_step(step),
        }
    }

    pub(crate) fn start_machine(&mut self, machine: usize) {
        let now = self.queue.now();
        if self.machines[machine].process.is_some() {
            return;
        }
        self.trace(|| format!("m{} starts", machine + 1));
        match self.machines[machine].start(now) {
            Ok(()) => {
                let life = self.machines[machine].life;
                let interval = self.machines[machine].tick_interval();
                let first = self.random.below(interval);
                self.after(first, Event::Tick { machine, life });
                self.dial_all(machine);
                self.dispatch(machine, now);
                self.start_carriers(machine);
            }
            // Its catalogue may tell, which the one before it has had from the others.
            Err(why) if self.machines[machine].is_copy && why.contains("put back from a copy") => {
                self.trace(|| format!("m{} is turned away by its own data: {why}", machine + 1));
                self.remove_copy(machine);
            }
            Err(why) if self.machines[machine].may_fail => {
                self.trace(|| format!("m{} cannot start: {why}", machine + 1));
            }
            Err(why) => self.fail(format!("m{} cannot start: {why}", machine + 1)),
        }
    }

    pub(crate) fn stop_machine(&mut self, machine: usize, is_power_loss: bool) {
        self.trace(|| format!("m{} stops{}", machine + 1, if is_power_loss { " with its power" } else { "" }));
        self.machines[machine].stop(is_power_loss);
        self.stop_carriers(machine);
        self.invariants.forget(machine);
        self.end_connections_of(machine, is_power_loss);
        self.break_clients(machine, true);
    }

    pub(crate) fn break_clients(&mut self, machine: usize, is_dead: bool) {
        let life = self.machines[machine].life;
        for (line, caller) in self.lines.break_all(machine, is_dead, &mut self.random) {
            let delay = self.delay();
            self.after(delay, Event::ClosedAtCaller { caller, machine, line });
            if !is_dead {
                // The end of a stream is read after what it carries.
                let at = self.queue.now() + self.delay();
                let at = self.lines.send_to_machine(line, at);
                self.queue.push(at, Event::ClosedAtMachine { line, machine, life });
            }
        }
    }

    fn refuse_connection(&mut self, line: u64) {
        let Some(machine) = self.lines.machine_of(line) else { return };
        if let Some(caller) = self.lines.close(line) {
            let delay = self.delay();
            self.after(delay, Event::ClosedAtCaller { caller, machine, line });
        }
    }

    fn tick(&mut self, machine: usize, life: u64) {
        if self.machines[machine].life != life {
            return;
        }
        let Some(process) = &mut self.machines[machine].process else { return };
        if !process.inbox.iter().any(|input| matches!(input, Input::Event(NodeEvent::Tick))) {
            process.inbox.push(Input::Event(NodeEvent::Tick));
        }
        self.schedule(machine);
        let interval = self.machines[machine].tick_interval();
        self.after(interval, Event::Tick { machine, life });
    }

    fn wake(&mut self, machine: usize, life: u64, at: Instant) {
        if self.machines[machine].life == life
            && let Some(process) = &mut self.machines[machine].process
            && process.wakes_at == Some(at)
        {
            process.wakes_at = None;
            process.inbox.push(Input::Wake(at));
            self.schedule(machine);
        }
    }

    /// Sees to it that the node is woken when it wants to be.
    pub(crate) fn schedule_wake(&mut self, machine: usize) {
        let now = self.queue.now();
        if let Some((at, delay)) = self.machines[machine].next_wake(now) {
            let life = self.machines[machine].life;
            self.after(delay, Event::Wake { machine, life, at });
        }
    }

    /// Sees to it that reads that wait for their turn get it.
    fn schedule_turn(&mut self, machine: usize) {
        let now = self.queue.now();
        let state = &mut self.machines[machine];
        let (life, busy_until) = (state.life, state.busy_until);
        let delay = state.processing_delay();
        if let Some(pause) = state.next_turn() {
            let delay = (delay + pause).max(busy_until.saturating_sub(now));
            self.after(delay, Event::Process { machine, life });
        }
    }

    pub(crate) fn deliver(&mut self, machine: usize, input: Input) {
        if let Some(process) = &mut self.machines[machine].process {
            process.inbox.push(input);
            self.schedule(machine);
        }
    }

    /// Sees to it that the process looks at its inbox.
    pub(crate) fn schedule(&mut self, machine: usize) {
        let state = &mut self.machines[machine];
        if state.is_paused {
            return;
        }
        let life = state.life;
        let delay = state.processing_delay().max(state.busy_until.saturating_sub(self.queue.now()));
        let Some(process) = &mut state.process else { return };
        if !process.is_scheduled && !process.inbox.is_empty() {
            process.is_scheduled = true;
            self.after(delay, Event::Process { machine, life });
        }
    }

    fn process(&mut self, machine: usize, life: u64) {
        let now = self.queue.now();
        let state = &mut self.machines[machine];
        if state.life != life {
            return;
        }
        if state.is_paused {
            if let Some(process) = &mut state.process {
                process.is_scheduled = false;
            }
            return;
        }
        let turn = match state.process(now) {
            Ok(turn) => turn,
            Err(why) => return self.fail(format!("m{} cannot read what another node sent: {why}", machine + 1)),
        };
        let local = self.machines[machine].clock.read(now).instant;
        if let Err(why) = self.machines[machine].answers.check(local) {
            self.fail(format!("m{}: {why}", machine + 1));
        }
        // The second cluster has no clients whose writes would explain its logs.
        if self.plan.cluster == 0
            && let Some(process) = &self.machines[machine].process
            && let Err(why) = self.oracle.follow(machine, process, self.operator.table, now)
        {
            self.fail(why);
        }
        if turn > 0 {
            self.after(turn, Event::TurnEnds { machine, life, since: now });
        } else {
            self.dispatch(machine, now);
        }
        if let Err(why) = self.invariants.check(&self.machines, machine, &mut self.stats) {
            self.fail(why);
        }
        if let Err(why) = check_leases(&self.machines, machine, now) {
            self.break_promise(why);
        }
    }

    /// Carries out what a node's outbox asks for. What it answers is true of the beginning of its turn.
    fn dispatch(&mut self, machine: usize, since: Time) {
        let Some(process) = &mut self.machines[machine].process else { return };
        let outbox = std::mem::take(process.node.outbox());
        let (farewells, was_refused) = (std::mem::take(&mut process.farewells), process.was_refused);
        self.send_farewells(machine, farewells);
        let Some(process) = &mut self.machines[machine].process else { return };
        for (log, submission) in outbox.submissions {
            process.submit(log, submission);
        }
        for (to, bytes) in outbox.peers {
            self.send_to_peer(machine, usize::from(to.0) - 1, bytes.freeze());
        }
        for (to, bytes) in outbox.bulk {
            self.send_to_peer(machine, usize::from(to.0) - 1, bytes.freeze());
        }
        let ready = self.machines[machine].busy_until;
        for (connection, bytes) in outbox.clients {
            self.send_to_caller(connection, bytes, since, ready);
        }
        for connection in outbox.closed {
            let line = connection.0;
            if let Some(caller) = self.lines.close(line) {
                let delay = self.delay();
                self.after(delay, Event::ClosedAtCaller { caller, machine, line });
            }
        }
        for job in outbox.jobs {
            self.stats.note_job(&job);
            let state = &mut self.machines[machine];
            let (life, duration) = (state.life, state.job_duration());
            let Some(process) = &mut state.process else { return };
            let job = process.begin_job(job);
            self.after(duration, Event::JobEnds { machine, life, job });
        }
        self.begin_rounds(machine);
        self.schedule_wake(machine);
        self.schedule_turn(machine);
        if let Some(why) = outbox.failure {
            self.process_failed(machine, &why, was_refused);
        }
    }

    fn process_failed(&mut self, machine: usize, why: &str, was_refused: bool) {
        self.trace(|| format!("m{} gives up: {why}", machine + 1));
        if self.machines[machine].is_copy {
            return self.remove_copy(machine);
        }
        if was_refused {
            return self.fail(format!("m{} is taken for a copy: {why}", machine + 1));
        }
        self.stats.node_failures += 1;
        if self.machines[machine].may_fail {
            self.stop_machine(machine, false);
        } else {
            self.fail(format!("m{} gave up without a disk fault: {why}", machine + 1));
        }
    }

    fn begin_rounds(&mut self, machine: usize) {
        let state = &mut self.machines[machine];
        let life = state.life;
        let Some(process) = &mut state.process else { return };
        for log in process.begin_rounds() {
            let duration = self.machines[machine].round_duration(log);
            self.after(duration, Event::RoundEnds { machine, life, log });
        }
        self.schedule(machine);
    }

    fn end_round(&mut self, machine: usize, life: u64, log: LogId) {
        if self.machines[machine].life == life
            && let Some(process) = &mut self.machines[machine].process
        {
            process.end_round(log);
            self.begin_rounds(machine);
        }
    }

    /// Sends replies that are complete at `ready`.
    fn send_to_caller(&mut self, connection: ConnectionId, bytes: BytesMut, served: Time, ready: Time) {
        let at = self.queue.now().max(ready) + self.delay();
        let at = self.passes(connection.0, at, Towards::Caller);
        if let Some(at) = self.lines.send_to_caller(connection.0, at) {
            self.queue.push(at, Event::ToCaller { line: connection.0, chunk: bytes.freeze(), served });
        }
    }

    /// Sends a caller's frame to a machine, over its connection or a new one.
    pub(crate) fn send_to_machine(&mut self, caller: Caller, machine: usize, frame: Bytes) {
        let at = self.queue.now() + self.delay();
        let line = self.lines.connect(caller, machine);
        let at = self.lines.send_to_machine(line, at);
        self.queue.push(at, Event::ToMachine { line, frame });
    }

    fn deliver_to_caller(&mut self, caller: Caller, line: u64, chunk: Bytes, served: Time) {
        match caller {
            Caller::Client(client) => self.deliver_to_client(client, line, chunk, served),
            Caller::Operator => {
                protocol::split_replies(chunk).into_iter().for_each(|frame| self.operator.handle_reply(frame));
            }
            Caller::Load(client) => {
                for frame in protocol::split_replies(chunk) {
                    self.with_load(|load, now, out| load.handle_reply(client, frame, now, out));
                }
            }
        }
    }

    fn closed_at_caller(&mut self, caller: Caller, machine: usize, line: u64) {
        match caller {
            Caller::Client(_) => self.closed_at_client(line),
            Caller::Load(client) => self.with_load(|load, now, out| load.handle_closed(client, machine, now, out)),
            Caller::Operator => {}
        }
    }

    /// Of the wire between two machines, one of which may be a clone's.
    pub(crate) const fn wire_index(&self, from: usize, to: usize) -> usize {
        from * (self.plan.machine_count + 1) + to
    }

    pub(crate) fn wire(&mut self, from: usize, to: usize) -> &mut Wire {
        let index = self.wire_index(from, to);
        &mut self.wires[index]
    }

    pub(crate) fn delay(&mut self) -> Time {
        self.plan.delay.draw(&mut self.random).max(MICROSECOND)
    }
}
