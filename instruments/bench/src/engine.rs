//! The generator itself: sends what is due, hands every end to the record.
//!
//! It is a future that does all it can in each turn: take the ends of requests, send everything that is due, set the alarm
//! for what is due next. All replies that it finds had come when its turn began, so that one look at the clock dates them.
//! When it runs again after the connections had their turn, what it sent before has been handed to the sockets; that
//! moment, not the one of encoding, ends the send lag.

use crate::arrivals::{Arrivals, Schedule};
use crate::lanes::{Bell, Lanes};
use crate::mix::{Mix, Request};
use crate::operation::Operation;
use crate::pace::Pace;
use crate::record::Record;
use crate::reply::{Failure, Reply};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

const SECOND: u64 = 1_000_000_000;
/// The pause of a client in a closed loop after a failed request: a cluster without a leader must not be asked in a busy
/// loop.
const REST: u64 = 10_000_000;
/// Most requests sent in one turn, so that the replies to the first are not kept waiting for the sending of the last.
const SENT_PER_TURN_MAX: usize = 1024;
/// How long replies are waited for after a stop, at most.
const PATIENCE_AFTER_STOP: u64 = SECOND;

/// When to begin and to end, in nanoseconds of the pace's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The first request may be sent.
    pub(crate) start: u64,
    /// What is due from here on counts.
    pub(crate) begin: u64,
    /// What is due from here on is not sent.
    pub(crate) end: u64,
    /// How long after the end replies may come.
    pub(crate) patience: u64,
}

/// What the engine shares with whoever watches it.
#[derive(Debug)]
pub(crate) struct Watched {
    record: Mutex<Record>,
    is_stopped: AtomicBool,
    bell: OnceLock<Arc<Bell>>,
}

impl Watched {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { record: Mutex::new(Record::new()), is_stopped: AtomicBool::new(false), bell: OnceLock::new() })
    }

    /// The record, to look at or to take away.
    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the sending now.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }
}

/// Where requests come from.
pub(crate) enum Source {
    /// An open loop.
    Open {
        /// When they are due, from [`Times::start`] on.
        schedule: Schedule,
        /// Most in flight.
        in_flight_max: usize,
        /// Whether what is due has been waiting for one of those to end.
        is_full: bool,
        /// Requests sent, to choose connections in turn.
        sent: usize,
    },
    /// A closed loop.
    Closed {
        /// Clients that may send; one that may have several in flight is here several times.
        idle: Vec<usize>,
        /// Clients that rest after a failure, and until when.
        resting: VecDeque<(u64, usize)>,
        /// Requests that may still be counted, if that is limited.
        left: Option<u64>,
    },
}

impl Source {
    /// `arrivals`, where `phase` is this generator's share of a gap of a constant rate.
    pub(crate) fn new(arrivals: Arrivals, operations: Option<u64>, phase: f64, seed: u64) -> Self {
        match arrivals {
            Arrivals::Open { rate, spacing, in_flight_max } => Self::Open {
                schedule: Schedule::new(rate, spacing, phase, seed),
                in_flight_max: in_flight_max as usize,
                is_full: false,
                sent: 0,
            },
            Arrivals::Closed { clients, in_flight } => {
                let round = || (0..clients as usize).rev();
                let idle = (0..in_flight).flat_map(|_| round()).collect();
                Self::Closed { idle, resting: VecDeque::new(), left: operations }
            }
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    operation: Operation,
    due: u64,
    inserted: Option<u64>,
    client: usize,
}

/// Sends requests by calling `call` with the number of a client or request and what to ask.
pub(crate) struct Engine<P, C, F> {
    call: C,
    pace: P,
    times: Times,
    mix: Mix,
    source: Source,
    lanes: Lanes<F, Sent>,
    watched: Arc<Watched>,
    /// Due times of counted requests that were encoded in the last turn.
    handed: Vec<u64>,
    /// When the last counted request ended.
    last_end: u64,
    is_limit_reached: bool,
}

impl<P, C, F> Engine<P, C, F>
where
    P: Pace,
    C: Fn(usize, Request) -> F,
    F: Future<Output = Reply>,
{
    pub(crate) fn new(call: C, pace: P, times: Times, mix: Mix, source: Source, watched: Arc<Watched>) -> Self {
        let lanes = Lanes::new();
        watched.bell.get_or_init(|| lanes.bell());
        Self {
            call,
            pace,
            times,
            mix,
            source,
            lanes,
            watched,
            handed: Vec::new(),
            last_end: times.begin,
            is_limit_reached: false,
        }
    }

    fn turn(&mut self, record: &mut Record, context: &Context<'_>) -> Turn {
        let now = self.pace.now();
        if self.watched.is_stopped.load(Ordering::Relaxed) && now < self.times.end {
            self.times.end = now;
            self.times.patience = self.times.patience.min(PATIENCE_AFTER_STOP);
        }
        for due in self.handed.drain(..) {
            record.note_lag(now.saturating_sub(due));
        }
        self.take_ends(record, now, context);
        let next = self.send(record, now);
        if now >= self.times.end.saturating_add(self.times.patience) {
            self.give_up(record, now);
            return Turn::Over;
        }
        let is_idle = self.lanes.len() == 0 && self.handed.is_empty();
        match next {
            Next::Never if is_idle => Turn::Over,
            Next::Now => Turn::Again,
            _ if !self.handed.is_empty() => Turn::Again,
            Next::At(at) => Turn::Wait(at),
            Next::Never | Next::AfterAReply => Turn::Wait(self.times.end.saturating_add(self.times.patience)),
        }
    }

    fn take_ends(&mut self, record: &mut Record, now: u64, context: &Context<'_>) {
        let Self { lanes, mix, source, times, last_end, .. } = self;
        lanes.poll_woken(context, |reply, sent| {
            Self::note_end(record, times, mix, source, sent, now, reply);
            *last_end = now;
        });
        if let Source::Closed { idle, resting, .. } = source {
            while resting.front().is_some_and(|(until, _)| *until <= now) {
                idle.extend(resting.pop_front().map(|(_, client)| client));
            }
        }
    }

    fn note_end(
        record: &mut Record,
        times: &Times,
        mix: &mut Mix,
        source: &mut Source,
        sent: Sent,
        now: u64,
        reply: Reply,
    ) {
        if sent.due >= times.begin {
            let second = ((sent.due - times.begin) / SECOND) as usize;
            record.note_end(sent.operation, second, now.saturating_sub(sent.due), reply);
        }
        if let (Some(row), Ok(_)) = (sent.inserted, reply) {
            mix.note_inserted(row);
        }
        if let Source::Closed { idle, resting, .. } = source {
            match reply {
                Ok(_) => idle.push(sent.client),
                Err(_) => resting.push_back((now + REST, sent.client)),
            }
        }
    }

    /// Sends what is due; tells when there will be more to send.
    fn send(&mut self, record: &mut Record, now: u64) -> Next {
        for _ in 0..SENT_PER_TURN_MAX {
            let (client, due) = match self.take_due(record, now) {
                Ok(found) => found,
                Err(next) => return next,
            };
            self.send_one(record, client, due);
        }
        Next::Now
    }

    /// The client and the due time of the next request, or when there will be one.
    fn take_due(&mut self, record: &mut Record, now: u64) -> Result<(usize, u64), Next> {
        let is_over = now >= self.times.end;
        match &mut self.source {
            Source::Open { schedule, in_flight_max, is_full, sent } => {
                let due = self.times.start + schedule.next_due();
                if due >= self.times.end {
                    return Err(Next::Never);
                }
                if due > now {
                    *is_full = false;
                    return Err(Next::At(due));
                }
                if self.lanes.len() >= *in_flight_max {
                    *is_full = true;
                    return Err(Next::AfterAReply);
                }
                if *is_full && due < now && due >= self.times.begin {
                    record.held_back += 1;
                }
                schedule.advance();
                *sent += 1;
                Ok((*sent - 1, due))
            }
            Source::Closed { .. } if is_over || self.is_limit_reached => Err(Next::Never),
            Source::Closed { idle, resting, left } => {
                let rest = || resting.front().map_or(Next::AfterAReply, |(until, _)| Next::At(*until));
                // Later than `now`: sending the others of this turn has taken its time.
                let due = self.pace.now();
                if due >= self.times.end {
                    return Err(Next::Never);
                }
                let client = idle.pop().ok_or_else(rest)?;
                if due >= self.times.begin
                    && let Some(left) = left
                {
                    *left = left.saturating_sub(1);
                    self.is_limit_reached = *left == 0;
                }
                Ok((client, due))
            }
        }
    }

    fn send_one(&mut self, record: &mut Record, client: usize, due: u64) {
        let request = self.mix.next();
        let sent = Sent { operation: request.operation(), due, inserted: request.inserted_row(), client };
        if due >= self.times.begin && matches!(self.source, Source::Open { .. }) {
            self.handed.push(due);
        }
        let future = (self.call)(client, request);
        if let Some((reply, sent)) = self.lanes.start(future, sent) {
            let now = self.pace.now();
            Self::note_end(record, &self.times, &mut self.mix, &mut self.source, sent, now, reply);
            self.last_end = now;
        }
    }

    /// Counts what has no reply, and what was never sent, as timed out.
    fn give_up(&mut self, record: &mut Record, now: u64) {
        let abandoned: Vec<_> = self.lanes.abandon().collect();
        for sent in abandoned {
            let (mix, source) = (&mut self.mix, &mut self.source);
            Self::note_end(record, &self.times, mix, source, sent, now, Err(Failure::Timeout));
        }
        let Source::Open { schedule, .. } = &mut self.source else { return };
        let times = &self.times;
        while times.start + schedule.next_due() < times.end {
            let due = times.start + schedule.next_due();
            schedule.advance();
            let operation = self.mix.next().operation();
            if due >= times.begin {
                record.unsent += 1;
                record.note_end(operation, ((due - times.begin) / SECOND) as usize, now - due, Err(Failure::Timeout));
            }
        }
    }
}

/// When there is something to send.
enum Next {
    Now,
    At(u64),
    AfterAReply,
    Never,
}

/// What follows a turn.
enum Turn {
    Again,
    Wait(u64),
    Over,
}

impl<P, C, F> Future for Engine<P, C, F>
where
    P: Pace + Unpin,
    C: Fn(usize, Request) -> F + Unpin,
    F: Future<Output = Reply>,
{
    /// When the measurement was over: as planned, or earlier if it was stopped or the number of operations was reached.
    type Output = u64;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u64> {
        let this = self.get_mut();
        let watched = this.watched.clone();
        let turn = this.turn(&mut watched.record(), context);
        match turn {
            Turn::Over if this.is_limit_reached => return Poll::Ready(this.last_end.min(this.times.end)),
            Turn::Over => return Poll::Ready(this.times.end),
            Turn::Again => context.waker().wake_by_ref(),
            Turn::Wait(at) => {
                if this.pace.poll_until(at, context).is_ready() {
                    context.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    }
}
