//! A simulated client: one operation at a time, tried at one node after the other until it is answered or too old.
//!
//! It behaves as a careful application's client does. A refusal that promises no effect, a time-out and a broken
//! connection all lead to another attempt; every attempt of a write carries the same client id and sequence. What the
//! client reports is the truth as far as it can know it: an operation failed only if every attempt was refused with that
//! promise.
//!
//! Where the wish says so, the attempts of an operation race each other: `client/racing.rs`.

mod racing;

use crate::clock::{MICROSECOND, MILLISECOND, UNIX_MICROS_AT_START};
use crate::history::{Answer, Call, Operation, Outcome, Seen, Time};
use crate::oracle::WriteId;
use crate::protocol::{self, Attempt, Received, Table};
use crate::reading::Wish;
use crate::workload::Workload;
use bytes::Bytes;
use hedgerow_hedge::{Budget, BudgetOptions, Kind};
use hedgerow_types::limit::{SESSION_AHEAD_MICROS, SESSION_WINDOW};
use hedgerow_types::random::Random;
use hedgerow_types::{Index, ReadLevel, Refusal};
use hedgerow_wire::{Cause, Tie};
use racing::Round;
use std::ops::RangeInclusive;

/// How often in an operation a client goes on to the next node without a pause.
const MOVES_AT_ONCE_MAX: i32 = 3;
/// How far numbers may fall behind the clock before they leap, microseconds.
const SEQUENCE_LAG_MAX: u64 = 100_000;
/// How often a write may take another number.
const RENEWALS_MAX: u32 = 3;
/// What a client's extra attempts may cost: enough that there are many, and not so much that none is ever refused.
const BUDGET: BudgetOptions = BudgetOptions { ratio: 0.7, burst: 10.0 };

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

/// Where a client goes with reads that any replica may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// To any machine.
    Any,
    /// To this one, as long as it answers.
    Near(usize),
    /// To the leader, as long as it answers.
    Leader,
}

impl Preference {
    /// Draws one.
    pub fn drawn(machine_count: usize, random: &mut Random) -> Self {
        match random.below(5) {
            0 | 1 => Self::Any,
            2 | 3 => Self::Near(random.below(machine_count as u64) as usize),
            _ => Self::Leader,
        }
    }
}

/// What a client wants from the world.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// A write begins, which a log may hold from now on.
    Begin {
        /// Its id.
        id: WriteId,
        /// On which record.
        key: u32,
        /// What.
        call: Call,
    },
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
    /// Judge a read whose answer came when another copy or attempt had been answered already, or when it was too late. It
    /// must be right all the same.
    Judge(Operation),
    /// An attempt of a raced operation is sent, to be counted.
    Extra {
        /// Why.
        kind: Kind,
        /// Whether it is one of a write.
        is_write: bool,
    },
    /// An attempt was refused.
    Refused {
        /// By whom.
        machine: usize,
        /// What.
        call: Call,
        /// Why.
        refusal: Refusal,
    },
    /// Stop the run: a reply made no sense.
    Fail(String),
}

/// A reply on its arrival.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What came.
    pub frame: Bytes,
    /// When the machine sent it.
    pub served: Time,
    /// The present.
    pub now: Time,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    number: u32,
    id: u64,
    /// The number of the last write.
    sequence: u64,
    /// The client's clock minus the true one, microseconds.
    clock_offset: i64,
    next_sequence_id: i32,
    token: u64,
    machine_count: usize,
    table: Table,
    /// By partition: whom the client takes for the leader.
    leaders: Vec<usize>,
    preference: Preference,
    /// The session that it is in.
    session: usize,
    pace: Pace,
    random: Random,
    current: Option<Current>,
    /// The operation before, whose copies and attempts may still be answered.
    last: Option<Current>,
    /// What is to be done before anything from the workload; `None` = draw from it.
    script: Option<Vec<Wish>>,
    is_stopped: bool,
    budget: Budget,
    last_request: u64,
}

#[derive(Debug)]
struct Current {
    wish: Wish,
    start: Time,
    deadline: Time,
    attempts: i32,
    /// Every frame of every attempt.
    sent: Vec<Sent>,
    /// Where the next attempt goes, if it may go anywhere.
    next: Option<usize>,
    /// Whether an attempt may have had an effect, or may still have one.
    is_doubtful: bool,
    /// How often the number of the write was renewed.
    renewals: u32,
    /// The race that is on, of an operation that is raced.
    round: Option<Round>,
    /// What all attempts of a raced operation share.
    request_id: u64,
    /// How it ended, once it has.
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    sequence_id: i32,
    machine: usize,
    at: Time,
    floor: Index,
    /// Within its operation, from 1.
    number: i32,
    /// What it asks for: another level than the operation's, if it is to be content with less.
    call: Call,
    /// Whether it is still waited for. What was given up may be answered all the same.
    is_open: bool,
    is_answered: bool,
}

/// What an attempt says that its operation does not.
#[derive(Clone, Debug, Default)]
struct Words {
    /// The level that it is content with.
    level: Option<ReadLevel>,
    cause: Option<Cause>,
    tie: Option<Tie>,
}

impl Current {
    fn is_waiting(&self) -> bool {
        self.sent.iter().any(|sent| sent.is_open)
    }

    /// Gives up what is waited for, at `machine` or everywhere; it may have had an effect. Returns whether that was
    /// anything.
    fn give_up(&mut self, machine: Option<usize>) -> bool {
        let mut was_any = false;
        for sent in self.sent.iter_mut().filter(|sent| machine.is_none_or(|machine| machine == sent.machine)) {
            was_any |= std::mem::take(&mut sent.is_open);
        }
        self.is_doubtful |= was_any;
        was_any
    }
}

impl Client {
    /// Client `number` with identity `id` (not 0), over machines `0..machine_count`.
    pub fn new(number: u32, id: u64, machine_count: usize, table: Table, pace: Pace, mut random: Random) -> Self {
        let leaders = (0..table.partition_count).map(|_| random.below(machine_count as u64) as usize).collect();
        Self {
            number,
            id,
            sequence: 0,
            clock_offset: match id % 16 {
                1 => 2 * SESSION_AHEAD_MICROS as i64,
                3 | 5 => -10_000_000,
                _ => 0,
            },
            next_sequence_id: 1,
            token: 0,
            machine_count,
            table,
            leaders,
            preference: Preference::drawn(machine_count, &mut random),
            session: number as usize,
            pace,
            random,
            current: None,
            last: None,
            script: None,
            is_stopped: false,
            budget: Budget::new(BUDGET),
            last_request: 0,
        }
    }

    /// Makes the client do these operations one after the other and then stop.
    pub fn with_script(mut self, mut script: Vec<Wish>) -> Self {
        script.reverse();
        self.script = Some(script);
        self
    }

    /// Sends the client there with reads that any replica may answer.
    pub fn with_preference(self, preference: Preference) -> Self {
        Self { preference, ..self }
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
        if current.round.is_some() {
            return self.go_on_racing(now, workload, out);
        }
        if current.give_up(None) {
            self.move_on(None);
        }
        self.attempt(now, workload, out);
    }

    /// A reply came.
    pub fn handle_reply(&mut self, delivery: Delivery, workload: &mut Workload, out: &mut Vec<Action>) {
        self.handle_late_reply(&delivery, out);
        let Delivery { frame, served, now } = delivery;
        let Some(current) = &mut self.current else { return };
        let call = current.wish.call;
        let (id, received) = protocol::reply(frame, &call);
        let position = current.sent.iter().position(|sent| Some(sent.sequence_id) == id);
        position.iter().for_each(|position| current.sent[*position].is_answered = true);
        match (position, received) {
            (None, Received::Nonsense(what)) if id.is_none() => out.push(Action::Fail(what)),
            (None, _) => {}
            (Some(_), Received::Nonsense(what)) => out.push(Action::Fail(what)),
            (Some(position), Received::Answer { answer, index, staleness, served_by, level_code, attempt }) => {
                let Sent { machine, at: asked, floor, call, number, .. } = current.sent[position];
                let is_other_level = level_code.is_some() && level_code != protocol::level_code(call);
                if is_other_level || attempt.is_some_and(|attempt| attempt != number) {
                    let what =
                        format!("attempt {number} of {call:?} was answered as {attempt:?} at level {level_code:?}");
                    out.push(Action::Fail(what));
                }
                // A write may have been forwarded to the leader.
                let is_strange = |address: &String| !call.is_write() && *address != address_of_machine(machine);
                if let Some(other) = served_by.filter(is_strange) {
                    out.push(Action::Fail(format!("m{} was asked, and {other} says that it answered", machine + 1)));
                }
                let seen = Seen { machine, index, staleness, asked, served, floor };
                self.take_answer(answer, seen, workload);
                self.win(position, out);
                self.finish(call, Outcome::Ok(answer), Some(seen), now, out);
            }
            (Some(position), Received::Refused { is_clean, leader, refusal }) => {
                let was_doubtful = current.is_doubtful;
                current.is_doubtful |= !is_clean;
                let sent = &mut current.sent[position];
                out.push(Action::Refused { machine: sent.machine, call, refusal: refusal.clone() });
                if let Refusal::SessionWindow { floor, ceiling, .. } = refusal {
                    sent.is_open = false;
                    return self.renew(floor..=ceiling, was_doubtful, now, out);
                }
                if current.round.is_some() {
                    return self.handle_refused(position, leader, &refusal, now, workload, out);
                }
                // What was given up decides nothing, and of two copies the last one does.
                if std::mem::take(&mut sent.is_open) && !current.is_waiting() {
                    let may_follow = leader.is_some() || current.wish.goes_anywhere;
                    let follows_at_once = may_follow && current.attempts <= MOVES_AT_ONCE_MAX;
                    self.move_on(leader);
                    if follows_at_once { self.wake_at(now, out) } else { self.back_off(now, out) }
                }
            }
        }
    }

    fn handle_late_reply(&self, delivery: &Delivery, out: &mut Vec<Action>) {
        let is_awaited = |last: &&Current| last.sent.iter().any(|sent| !sent.is_answered);
        let Some(last) = self.last.as_ref().filter(is_awaited) else { return };
        let key = last.wish.key;
        let (id, received) = protocol::reply(delivery.frame.clone(), &last.wish.call);
        let sent = last.sent.iter().find(|sent| Some(sent.sequence_id) == id);
        let (Some(sent), Received::Answer { answer, index, staleness, .. }) = (sent, received) else { return };
        let Sent { machine, at: asked, floor, call, .. } = *sent;
        // Every attempt of a write tells the same.
        if call.is_write()
            && let Some(first) = last.answer.filter(|first| *first != answer)
        {
            let machine = machine + 1;
            return out.push(Action::Fail(format!("{call:?} was answered {first:?}, and {answer:?} by m{machine}")));
        }
        let seen = Some(Seen { machine, index, staleness, asked, served: delivery.served, floor });
        let (start, end, outcome) = (last.start, delivery.now, Outcome::Ok(answer));
        out.push(Action::Judge(Operation { client: self.number, key, call, start, end, outcome, seen }));
    }

    /// The connection to `machine` is gone.
    pub fn handle_closed(&mut self, machine: usize, now: Time, workload: &Workload, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        if current.round.is_some() {
            return self.handle_lost(machine, now, workload, out);
        }
        if current.give_up(Some(machine)) && !current.is_waiting() {
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
        let Some(wish) = next else { return };
        self.session = workload.sessions.next(self.session, &mut self.random);
        self.sequence = self.next_sequence(now);
        if wish.call.is_write() {
            out.push(Action::Begin { id: (self.id, self.sequence), key: wish.key, call: wish.call });
        }
        let deadline = now + self.pace.deadline;
        let next = match self.preference {
            _ if !wish.goes_anywhere => None,
            Preference::Any => Some(self.random.below(self.machine_count as u64) as usize),
            Preference::Near(machine) => Some(machine),
            Preference::Leader => None,
        };
        self.last_request += 1;
        self.current = Some(Current {
            wish,
            start: now,
            deadline,
            attempts: 0,
            sent: Vec::new(),
            next,
            is_doubtful: false,
            renewals: 0,
            round: None,
            request_id: self.last_request,
            answer: None,
        });
        self.attempt(now, workload, out);
    }

    /// Numbers rise by one, and leap once they lie behind the client's clock.
    fn next_sequence(&self, now: Time) -> u64 {
        let lag = (self.clock_micros(now)).saturating_sub(self.sequence);
        let leap = if lag > SEQUENCE_LAG_MAX { lag / SESSION_WINDOW * SESSION_WINDOW } else { 0 };
        self.sequence + 1 + leap
    }

    const fn clock_micros(&self, now: Time) -> u64 {
        (UNIX_MICROS_AT_START + now / MICROSECOND).saturating_add_signed(self.clock_offset)
    }

    /// The number of the present write is refused: it is not in `range`, or the write was applied and its result is gone. If
    /// no other attempt can have reached a log it was not applied, and takes another number. Otherwise nobody can tell.
    fn renew(&mut self, range: RangeInclusive<u64>, was_doubtful: bool, now: Time, out: &mut Vec<Action>) {
        let is_other_open = self.current.as_ref().is_some_and(Current::is_waiting);
        self.leave_round(out);
        let Some(current) = &mut self.current else { return };
        let (call, key) = (current.wish.call, current.wish.key);
        if was_doubtful || is_other_open || current.renewals >= RENEWALS_MAX {
            return self.finish(call, Outcome::Unknown, None, now, out);
        }
        current.renewals += 1;
        current.sent.clear();
        current.is_doubtful = false;
        let present = range.end().saturating_sub(SESSION_AHEAD_MICROS);
        if self.sequence > *range.end() {
            // Numbers never go down, but under another name.
            self.id = self.id.rotate_left(7) | 1;
            self.sequence = present;
        } else {
            self.sequence = self.sequence.max(*range.start()).max(present);
        }
        self.sequence += 1;
        self.clock_offset += self.sequence.wrapping_sub(self.clock_micros(now)) as i64;
        out.push(Action::Begin { id: (self.id, self.sequence), key, call });
        self.wake_at(now, out);
    }

    fn attempt(&mut self, now: Time, workload: &Workload, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        if now >= current.deadline {
            let call = current.wish.call;
            let is_unknown = current.is_doubtful && call.is_write();
            return self.finish(call, if is_unknown { Outcome::Unknown } else { Outcome::Failed }, None, now, out);
        }
        let wish = current.wish;
        if let Some(hedging) = wish.hedging {
            return self.start_round(hedging, now, workload, out);
        }
        current.attempts += 1;
        let leader = self.leaders[self.table.partition_of(wish.key) as usize];
        let first = current.next.take().unwrap_or(leader);
        let other = if first == leader {
            (first + 1 + self.random.below(self.machine_count as u64 - 1) as usize) % self.machine_count
        } else {
            leader
        };
        let until = (now + self.pace.attempt_timeout).min(current.deadline);
        self.send(first, Words::default(), now, workload, out);
        if wish.is_hedged {
            self.send(other, Words::default(), now, workload, out);
        }
        self.wake_at(until, out);
    }

    fn send(&mut self, machine: usize, words: Words, now: Time, workload: &Workload, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        let Wish { key, call, manner, .. } = current.wish;
        let call = words.level.map_or(call, Call::Get);
        let group = self.table.group_of(key);
        // A session may read at other levels too, and must not see less than before then either (pitfall S14).
        let is_session = call == Call::Get(ReadLevel::Session) || self.random.chance(1, 2);
        let has_token = is_session && manner.is_extended() && !call.is_write();
        let is_whole = self.random.chance(1, 2);
        let attempt = Attempt {
            call: on_the_wire(call, words.cause),
            manner,
            token: has_token.then(|| workload.sessions.token(self.session, group, is_whole)),
            key,
            sequence_id: self.next_sequence_id,
            client_id: self.id,
            sequence: self.sequence,
            number: current.attempts,
            deadline_ms: ((current.deadline - now) / MILLISECOND + 1) as i64,
            request_id: current.wish.hedging.map(|_| current.request_id),
            cause: words.cause,
            tie: words.tie,
        };
        let floor = if has_token { workload.sessions.floor(self.session, group) } else { 0 };
        let sequence_id = self.next_sequence_id;
        let number = current.attempts;
        current.sent.push(Sent {
            sequence_id,
            machine,
            at: now,
            floor,
            number,
            call,
            is_open: true,
            is_answered: false,
        });
        self.next_sequence_id += 1;
        out.push(Action::Send { machine, frame: protocol::request(&attempt, self.table) });
    }

    /// Chooses whom to ask next: the leader that was named, or anybody.
    fn move_on(&mut self, leader: Option<String>) {
        let Some(current) = &mut self.current else { return };
        let Some(last) = current.sent.last() else { return };
        let count = self.machine_count;
        let named = leader.as_deref().and_then(machine_of_address).filter(|machine| *machine < count);
        let other = (last.machine + 1 + self.random.below(count as u64 - 1) as usize) % count;
        let believed = &mut self.leaders[self.table.partition_of(current.wish.key) as usize];
        if named.is_some() || last.machine == *believed {
            *believed = named.unwrap_or(other);
        }
        // Half of the reads that were refused somewhere go to the leader in the end.
        if current.wish.goes_anywhere && self.random.chance(1, 2) {
            current.next = Some(other);
        }
    }

    fn back_off(&mut self, now: Time, out: &mut Vec<Action>) {
        let pause = MILLISECOND + self.random.below(20 * MILLISECOND);
        self.wake_at(now + pause, out);
    }

    fn take_answer(&self, answer: Answer, seen: Seen, workload: &mut Workload) {
        let Some(Wish { key, call, .. }) = self.current.as_ref().map(|current| current.wish) else { return };
        workload.note(key, &call, &answer);
        if let Some(index) = seen.index {
            workload.sessions.observe(self.session, self.table.group_of(key), index);
        }
    }

    /// The operation has ended, at the level of `call`.
    fn finish(&mut self, call: Call, outcome: Outcome, seen: Option<Seen>, now: Time, out: &mut Vec<Action>) {
        self.last = self.current.take();
        let Some(Current { wish: Wish { key, .. }, start, answer, .. }) = &mut self.last else { return };
        if let Outcome::Ok(first) = outcome {
            *answer = Some(first);
        }
        let (key, start) = (*key, *start);
        out.push(Action::Record(Operation { client: self.number, key, call, start, end: now, outcome, seen }));
        let pause = self.random.below(self.pace.think_max + 1);
        self.wake_at(now + pause, out);
    }

    fn wake_at(&mut self, at: Time, out: &mut Vec<Action>) {
        self.token += 1;
        out.push(Action::Wake { at, token: self.token });
    }
}

/// What an attempt asks for when it is sent for `cause`: what it is judged by.
#[cfg(not(feature = "mutations"))]
const fn on_the_wire(call: Call, _cause: Option<Cause>) -> Call {
    call
}

/// The same, unless that rule is away.
#[cfg(feature = "mutations")]
fn on_the_wire(call: Call, cause: Option<Cause>) -> Call {
    let is_weakened = cause == Some(Cause::Hedge) && !call.is_write() && crate::mutation::weakens_hedges();
    if is_weakened { Call::Get(ReadLevel::Eventual) } else { call }
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
