//! A simulated client: one operation at a time, tried at one node after the other until it is answered or too old.
//!
//! It behaves as a careful application's client does. A refusal that promises no effect, a time-out and a broken
//! connection all lead to another attempt; every attempt of a write carries the same client id and sequence. What the
//! client reports is the truth as far as it can know it: an operation failed only if every attempt was refused with that
//! promise.

use crate::clock::MILLISECOND;
use crate::history::{Call, Operation, Outcome, Time};
use crate::protocol::{self, Attempt, Received, Table};
use crate::workload::Workload;
use bytes::Bytes;
use hedgerow_types::random::Random;

/// How often in an operation a client goes to a leader that was named to it without a pause.
const REDIRECTS_AT_ONCE_MAX: i32 = 3;

/// How the clients of a run behave.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Longest pause between two operations.
    pub think_max: Time,
    /// How long one attempt is waited for.
    pub attempt_timeout: Time,
    /// How long an operation is tried.
    pub deadline: Time,
}

/// What a client wants from the world.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a frame to machine `machine`.
    Send {
        /// Index of the machine.
        machine: usize,
        /// The frame.
        frame: Bytes,
    },
    /// Call [`Client::handle_wake`] with `token` then.
    Wake {
        /// When.
        at: Time,
        /// What for.
        token: u64,
    },
    /// Record the operation.
    Record(Operation),
    /// Say so in the trace: an attempt was refused.
    Note(String),
    /// Stop the run: a reply made no sense.
    Fail(String),
}

/// One client.
#[derive(Debug)]
pub struct Client {
    number: u32,
    id: u64,
    sequence: u64,
    next_sequence_id: i32,
    token: u64,
    machine_count: usize,
    table: Table,
    /// By partition: whom the client takes for the leader.
    leaders: Vec<usize>,
    pace: Pace,
    random: Random,
    current: Option<Current>,
    /// What is to be done before anything from the workload; `None` = draw from it.
    script: Option<Vec<(u32, Call)>>,
    is_stopped: bool,
}

#[derive(Debug)]
struct Current {
    call: Call,
    key: u32,
    start: Time,
    deadline: Time,
    attempts: i32,
    /// Number of the first attempt's frame; later attempts count on.
    first_sequence_id: i32,
    machine: usize,
    /// Whether an attempt may have had an effect, or may still have one.
    is_doubtful: bool,
    /// Whether the latest attempt has not been answered.
    is_waiting: bool,
}

impl Client {
    /// Client `number` with identity `id` (not 0), over machines `0..machine_count`.
    pub fn new(number: u32, id: u64, machine_count: usize, table: Table, pace: Pace, mut random: Random) -> Self {
        let leaders = (0..table.partition_count).map(|_| random.below(machine_count as u64) as usize).collect();
        Self {
            number,
            id,
            sequence: 0,
            next_sequence_id: 1,
            token: 0,
            machine_count,
            table,
            leaders,
            pace,
            random,
            current: None,
            script: None,
            is_stopped: false,
        }
    }

    /// Makes the client do these operations one after the other and then stop.
    pub fn with_script(mut self, mut script: Vec<(u32, Call)>) -> Self {
        script.reverse();
        self.script = Some(script);
        self
    }

    /// Begins.
    pub fn start(&mut self, now: Time, out: &mut Vec<Action>) {
        let pause = self.random.below(self.pace.think_max + 1);
        self.wake_at(now + pause, out);
    }

    /// Begins nothing new from now on.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether it waits for nothing any more.
    pub fn is_done(&self) -> bool {
        self.current.is_none() && (self.is_stopped || self.script.as_ref().is_some_and(Vec::is_empty))
    }

    /// A pause or a time-out is over.
    pub fn handle_wake(&mut self, token: u64, now: Time, workload: &mut Workload, out: &mut Vec<Action>) {
        if token != self.token {
            return;
        }
        let Some(current) = &mut self.current else { return self.begin(now, workload, out) };
        if current.is_waiting {
            current.is_doubtful = true;
            current.is_waiting = false;
            self.move_on(None);
        }
        self.attempt(now, out);
    }

    /// A reply came from `machine`.
    pub fn handle_reply(&mut self, frame: Bytes, now: Time, workload: &mut Workload, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        let (sequence_id, received) = protocol::reply(frame, &current.call);
        let latest = current.first_sequence_id + current.attempts - 1;
        match (sequence_id, received) {
            (None, Received::Nonsense(what)) => out.push(Action::Fail(what)),
            (Some(id), _) if id < current.first_sequence_id || id > latest => {}
            (_, Received::Answer(answer)) => {
                workload.note(current.key, &current.call, &answer);
                self.finish(Outcome::Ok(answer), now, out);
            }
            (_, Received::Nonsense(what)) => out.push(Action::Fail(what)),
            (id, Received::Refused { is_clean, leader, why }) => {
                current.is_doubtful |= !is_clean;
                let (number, machine) = (self.number, current.machine + 1);
                out.push(Action::Note(format!("client {number} refused by m{machine}: {why}; leader {leader:?}")));
                // An earlier attempt was given up already; only the latest decides what to do next.
                if id == Some(latest) && current.is_waiting {
                    current.is_waiting = false;
                    let follows_at_once = leader.is_some() && current.attempts <= REDIRECTS_AT_ONCE_MAX;
                    self.move_on(leader);
                    if follows_at_once { self.wake_at(now, out) } else { self.back_off(now, out) }
                }
            }
        }
    }

    /// The connection to `machine` is gone.
    pub fn handle_closed(&mut self, machine: usize, now: Time, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        if current.is_waiting && current.machine == machine {
            current.is_doubtful = true;
            current.is_waiting = false;
            self.move_on(None);
            self.back_off(now, out);
        }
    }

    fn begin(&mut self, now: Time, workload: &mut Workload, out: &mut Vec<Action>) {
        let next = match &mut self.script {
            _ if self.is_stopped => None,
            Some(script) => script.pop(),
            None => Some(workload.draw()),
        };
        let Some((key, call)) = next else { return };
        self.sequence += 1;
        let machine = self.leaders[self.table.partition_of(key) as usize];
        self.current = Some(Current {
            call,
            key,
            start: now,
            deadline: now + self.pace.deadline,
            attempts: 0,
            first_sequence_id: self.next_sequence_id,
            machine,
            is_doubtful: false,
            is_waiting: false,
        });
        self.attempt(now, out);
    }

    fn attempt(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        if now >= current.deadline {
            let is_unknown = current.is_doubtful && current.call.is_write();
            return self.finish(if is_unknown { Outcome::Unknown } else { Outcome::Failed }, now, out);
        }
        current.attempts += 1;
        current.is_waiting = true;
        current.machine = self.leaders[self.table.partition_of(current.key) as usize];
        let attempt = Attempt {
            call: current.call,
            key: current.key,
            sequence_id: self.next_sequence_id,
            client_id: self.id,
            sequence: self.sequence,
            number: current.attempts,
            deadline_ms: ((current.deadline - now) / MILLISECOND + 1) as i64,
        };
        self.next_sequence_id += 1;
        out.push(Action::Send { machine: current.machine, frame: protocol::request(&attempt, self.table) });
        let until = (now + self.pace.attempt_timeout).min(current.deadline);
        self.wake_at(until, out);
    }

    /// Chooses whom to ask next: the leader that was named, or anybody.
    fn move_on(&mut self, leader: Option<String>) {
        let Some(current) = &self.current else { return };
        let named = leader.as_deref().and_then(machine_of_address).filter(|machine| *machine < self.machine_count);
        let other =
            || (current.machine + 1 + self.random.below(self.machine_count as u64 - 1) as usize) % self.machine_count;
        self.leaders[self.table.partition_of(current.key) as usize] = named.unwrap_or_else(other);
    }

    fn back_off(&mut self, now: Time, out: &mut Vec<Action>) {
        let pause = MILLISECOND + self.random.below(20 * MILLISECOND);
        self.wake_at(now + pause, out);
    }

    fn finish(&mut self, outcome: Outcome, now: Time, out: &mut Vec<Action>) {
        let Some(Current { call, key, start, .. }) = self.current.take() else { return };
        out.push(Action::Record(Operation { client: self.number, key, call, start, end: now, outcome }));
        let pause = self.random.below(self.pace.think_max + 1);
        self.wake_at(now + pause, out);
    }

    fn wake_at(&mut self, at: Time, out: &mut Vec<Action>) {
        self.token += 1;
        out.push(Action::Wake { at, token: self.token });
    }
}

/// The address of machine `machine`.
pub fn address_of_machine(machine: usize) -> String {
    format!("10.0.0.{}:34601", machine + 1)
}

fn machine_of_address(address: &str) -> Option<usize> {
    let last = address.strip_prefix("10.0.0.")?.split(':').next()?;
    last.parse::<usize>().ok()?.checked_sub(1)
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
