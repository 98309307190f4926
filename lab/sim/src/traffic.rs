//! The clients' side of the world: their tasks are run, their connections opened and closed, and what goes over these is read
//! and passed on.

use crate::carriers::cluster_of_caller;
use crate::client::{Client, Told};
use crate::executor::Dial;
use crate::history::{Answer, Call, Operation, Outcome, Time};
use crate::line::Caller;
use crate::machine::place_of_socket;
use crate::owner::{OWNER, Owner};
use crate::progress::Progress;
use crate::protocol;
use crate::second::Towards;
use crate::survey::{Failed, Surveyed};
use crate::tap::{Arrived, Left};
use crate::world::{Event, World};
use bytes::{Bytes, BytesMut};
use hedgerow_client::simulation::Pipe;
use hedgerow_wire::Method;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

/// Of so many cancels one is lost on its way, so that losers answer too.
const CANCEL_LOST_INTERVAL: u64 = 3;
/// One in so many comes twice (pitfall H15).
const CANCEL_TWICE_INTERVAL: u64 = 6;
/// Of so many connections to a machine that is down one is not refused: nobody answers.
const SILENCE_INTERVAL: u64 = 4;

/// The clients' ends of their connections.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    ends: BTreeMap<u64, End>,
    /// In the second cluster: the executor, which is the first one's, is to run.
    is_due: bool,
    /// For when the executor is to run because of time alone.
    armed: Option<Time>,
}

#[derive(Debug)]
struct End {
    client: usize,
    machine: usize,
    /// Whether the client is in the other cluster.
    is_between: bool,
    pipe: Arc<Pipe>,
}

impl Traffic {
    /// Whether the connection is one between clusters.
    pub(crate) fn is_between(&self, line: u64) -> bool {
        self.ends.get(&line).is_some_and(|end| end.is_between)
    }

    /// Whether the executor was to run, and no more.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }
}

impl End {
    fn is_closed(&self) -> bool {
        Arc::strong_count(&self.pipe) == 1
    }

    /// Whether there is anything to carry out.
    fn has_news(&self) -> bool {
        self.is_closed() || self.pipe.has_written()
    }
}

impl World {
    /// Adds a client and lets it begin.
    pub(crate) fn add_client(&mut self, mut client: Client) {
        let index = self.clients.len();
        self.executor.set_clock_offset(index, client.clock_offset());
        self.executor.spawn(index, client.open());
        self.clients.push(client);
        self.run_clients();
    }

    /// Lets all clients do what they can do now.
    pub(crate) fn run_clients(&mut self) {
        if self.plan.cluster > 0 {
            self.traffic.is_due = true;
            return;
        }
        let now = self.queue.now();
        let next = self.executor.run(now);
        self.look_at_clients();
        self.carry_out_writes();
        if let Some(second) = &mut self.second {
            second.carry_out_writes();
        }
        self.open_connections();
        if let Some(at) = next.filter(|at| self.traffic.armed.is_none_or(|armed| *at < armed)) {
            self.traffic.armed = Some(at);
            self.queue.push(at, Event::ClientsWake { at });
        }
    }

    pub(crate) fn wake_clients(&mut self, at: Time) {
        if self.traffic.armed == Some(at) {
            self.traffic.armed = None;
        }
        self.run_clients();
    }

    /// The pause of a client is over.
    pub(crate) fn begin_operation(&mut self, client: usize) {
        let now = self.queue.now();
        if let Some(task) = self.clients[client].begin(now, &mut self.workload) {
            self.executor.spawn(client, task);
            self.run_clients();
        }
    }

    /// Lets somebody create and drop tables from now on.
    pub(crate) fn add_owner(&mut self) {
        let (owner, random) = (Owner::default(), self.random.fork());
        self.executor.spawn(OWNER, owner.task(self.plan.machine_count, self.plan.replica_count, random));
        self.beside.push(owner.progress.clone());
        self.owner = Some(owner);
        self.run_clients();
    }

    fn look_at_clients(&mut self) {
        let now = self.queue.now();
        let failures: Vec<String> = self.beside.iter().filter_map(Progress::failure).collect();
        for why in failures {
            self.break_promise(why);
        }
        for client in 0..self.clients.len() {
            let Some((told, pause)) = self.clients[client].look(now, &mut self.workload) else { continue };
            if let Some(told) = told {
                self.record(&told);
            }
            if let Some(surveyed) = self.clients[client].take_surveyed() {
                self.record_survey(self.clients[client].number, surveyed);
            }
            self.after(pause, Event::ClientBegins { client });
        }
    }

    /// Each record counts as read alone, some time since the survey began.
    fn record_survey(&mut self, client: u32, surveyed: Surveyed) {
        let Surveyed { kind, start, found } = surveyed;
        self.trace(|| {
            let outcome = match &found {
                Ok(found) => format!("{} records", found.len()),
                Err(why) => format!("{why:?}"),
            };
            format!("[{:>11.6} ..] client {client} {kind}: {outcome}", start as f64 / 1e9)
        });
        let read = |key, outcome, end| Operation { client, key, call: Call::GET, start, end, outcome, seen: None };
        let now = self.queue.now();
        match found {
            Ok(found) => {
                *self.stats.surveys.entry(kind).or_default() += 1;
                for (key, content) in found {
                    self.history.push(read(key, Outcome::Ok(Answer::Content(content)), now));
                }
            }
            Err(Failed::GaveUp(why)) if why.is_late => self.late.push(read(0, Outcome::Failed, now)),
            Err(Failed::GaveUp(_)) => {}
            Err(Failed::Nonsense(why)) => self.fail(why),
        }
    }

    fn record(&mut self, told: &Told) {
        let Told { operation, heard, is_late } = *told;
        self.trace(|| operation.to_string());
        if matches!(operation.outcome, Outcome::Ok(_)) && heard.is_none() {
            return self.fail(format!("a client says what nobody has answered: {operation}"));
        }
        if is_late {
            self.late.push(operation);
        }
        if heard.is_some() && !operation.call.is_write() {
            // Counted on its arrival.
            self.stats.late_reads -= 1;
        }
        let Some(table) = self.operator.table else { return };
        let group = table.group_of(operation.key);
        let role = operation.seen.and_then(|seen| self.machines[seen.machine].process.as_ref()?.role(group));
        self.stats.note_operation(&operation, role);
        self.history.push(operation);
        if let Err(why) = self.oracle.handle_operation(group, &operation) {
            self.break_promise(why);
        }
    }

    /// What clients have written goes on its way, and connections that they have closed end.
    pub(crate) fn carry_out_writes(&mut self) {
        let lines: Vec<u64> =
            self.traffic.ends.iter().filter(|(_, end)| end.has_news()).map(|(line, _)| *line).collect();
        for line in lines {
            let Some(end) = self.traffic.ends.get(&line) else { continue };
            let (client, machine) = (end.client, end.machine);
            let mut written = end.pipe.take_written();
            let is_closed = end.is_closed();
            while let Some(frame) = next_frame(&mut written) {
                self.carry(client, line, machine, frame);
            }
            if !written.is_empty() {
                self.fail(format!("client {client} sent what is no request"));
            }
            if is_closed {
                self.traffic.ends.remove(&line);
                self.hang_up(line);
            }
        }
    }

    fn hang_up(&mut self, line: u64) {
        let Some(machine) = self.lines.hang_up(line) else { return };
        let life = self.machines[machine].life;
        let at = self.queue.now() + self.delay();
        let at = self.lines.send_to_machine(line, at);
        self.queue.push(at, Event::ClosedAtMachine { line, machine, life });
    }

    /// A frame of a client goes to `machine`.
    fn carry(&mut self, client: usize, line: u64, machine: usize, frame: Bytes) {
        let now = self.queue.now();
        let frame = as_sent(frame);
        // What others than the clients ask for is not judged here.
        let number = self.clients.get(client).map(|client| client.number);
        let left = self.operator.table.zip(number).and_then(|(table, number)| {
            let way = (line, machine);
            self.tap.note_request(way, number, &frame, table, now)
        });
        if let Some(Left { begun, raced, is_write }) = left {
            if let Some(begun) = begun {
                self.oracle.note_begin(&begun);
            }
            raced.into_iter().for_each(|kind| self.stats.note_attempt(kind, is_write));
        }
        if !self.lines.is_open(line) {
            return;
        }
        let mut times = 1;
        if left.is_none() && is_cancel(&frame) {
            if self.random.chance(1, CANCEL_LOST_INTERVAL) {
                return;
            }
            times += u8::from(self.random.chance(1, CANCEL_TWICE_INTERVAL));
        }
        for _ in 0..times {
            let at = now + self.delay();
            let at = self.passes(line, at, Towards::Machine);
            let at = self.lines.send_to_machine(line, at);
            self.queue.push(at, Event::ToMachine { line, frame: frame.clone() });
        }
    }

    fn open_connections(&mut self) {
        for dial in self.executor.take_dials() {
            let place = place_of_socket(dial.address);
            match (place.filter(|place| place.0 > 0), &mut self.second) {
                (Some((_, machine)), Some(second)) => second.open_connection(dial, machine),
                (Some(_), None) => {}
                (None, _) => {
                    let machine = place.map(|place| place.1).filter(|machine| *machine < self.plan.machine_count);
                    let Some(machine) = machine else {
                        self.fail(format!("client {} dials {}", dial.client, dial.address));
                        return;
                    };
                    self.open_connection(dial, machine);
                }
            }
        }
    }

    fn open_connection(&mut self, dial: Dial, machine: usize) {
        let Dial { client, pipe, .. } = dial;
        let line = self.lines.add(Caller::Client(client), machine);
        let is_between = cluster_of_caller(client).is_some_and(|cluster| cluster != self.plan.cluster);
        self.traffic.ends.insert(line, End { client, machine, is_between, pipe });
        let delay = self.delay() + self.delay();
        let at = self.passes(line, self.queue.now() + delay, Towards::Machine);
        self.queue.push(at, Event::Accepted { line });
    }

    /// A machine has heard that a client wants this connection.
    pub(crate) fn accept(&mut self, line: u64) {
        let Some(end) = self.traffic.ends.get(&line) else { return };
        let machine = end.machine;
        if self.machines[machine].process.is_some() {
            end.pipe.open();
        } else if self.random.chance(1, SILENCE_INTERVAL) {
            return;
        } else {
            end.pipe.end(ErrorKind::ConnectionRefused);
            self.traffic.ends.remove(&line);
            self.lines.hang_up(line);
        }
        self.run_clients();
    }

    /// Replies arrive at a client.
    pub(crate) fn deliver_to_client(&mut self, client: usize, line: u64, chunk: Bytes, served: Time) {
        let now = self.queue.now();
        for frame in protocol::split_replies(chunk.clone()) {
            match self.tap.note_reply(line, &frame, served, now) {
                Ok(Arrived::Answer(heard)) => {
                    self.clients[client].hear(heard);
                    self.stats.late_reads += u64::from(!heard.operation.call.is_write());
                    self.judge_answer(&heard.operation);
                }
                Ok(Arrived::Refused { call, machine, refusal }) => {
                    self.trace(|| format!("client {client} refused by m{}: {refusal} to {call:?}", machine + 1));
                    self.stats.note_refusal(&refusal);
                }
                Ok(Arrived::Other) => {}
                Err(why) => self.fail(why),
            }
        }
        if let Some(end) = self.traffic.ends.get(&line) {
            end.pipe.deliver(&chunk);
            self.run_clients();
        }
    }

    /// Judges an answer on its arrival, whether anybody still waits for it or not.
    fn judge_answer(&mut self, operation: &Operation) {
        let Some(table) = self.operator.table else { return };
        if let Err(why) = self.oracle.judge(table.group_of(operation.key), operation) {
            self.break_promise(why);
        }
    }

    /// A client hears that a connection has ended.
    pub(crate) fn closed_at_client(&mut self, line: u64) {
        if let Some(end) = self.traffic.ends.remove(&line) {
            let kind = if self.random.chance(1, 2) { ErrorKind::ConnectionReset } else { ErrorKind::UnexpectedEof };
            end.pipe.end(kind);
            self.run_clients();
        }
    }
}

/// The first whole request in `bytes`.
fn next_frame(bytes: &mut BytesMut) -> Option<Bytes> {
    let size = hedgerow_wire::frame_size(bytes).ok()??;
    (size <= bytes.len()).then(|| bytes.split_to(size).freeze())
}

fn is_cancel(frame: &Bytes) -> bool {
    hedgerow_wire::decode_request(frame.clone()).is_ok_and(|request| request.body.method() == Method::HedgerowCancel)
}

/// What a client sends.
#[cfg(not(feature = "mutations"))]
const fn as_sent(frame: Bytes) -> Bytes {
    frame
}

/// The same, unless the rule is away that hedges ask for their request's level.
#[cfg(feature = "mutations")]
fn as_sent(frame: Bytes) -> Bytes {
    if !crate::mutation::weakens_hedges() {
        return frame;
    }
    let Ok(mut request) = hedgerow_wire::decode_request(frame.clone()) else { return frame };
    match &mut request.header.extension {
        Some(extension) if extension.cause == Some(hedgerow_wire::Cause::Hedge.code()) && extension.any_replica => {
            extension.set_read_level(hedgerow_types::ReadLevel::Eventual);
        }
        _ => return frame,
    }
    protocol::framed(&request.header, request.sequence_id, &request.body)
}
