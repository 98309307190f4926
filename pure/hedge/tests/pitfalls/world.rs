//! Requests, replicas and time in one loop: what a client does with the hedger, the races and the budget.

use hedgerow_hedge::{
    Action, AttemptEnd, Attempts, Budget, BudgetOptions, Class, Ended, Hedger, Outcome, Policy, Race, Time,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// A seeded stream of numbers (xorshift64*).
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How an attempt at a replica ends: after how long, and how.
pub(crate) type Reply = (Duration, Outcome);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start,
    Poll(usize),
    End { request: usize, number: u8, is_success: bool },
    Deadline(usize),
}

struct Request {
    race: Race,
    /// Of each attempt: replica, when it was sent, kind.
    attempts: Vec<AttemptEnd>,
    sent_at: Vec<Time>,
    is_over: bool,
}

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Of the requests that were answered.
    pub(crate) latencies: Vec<Duration>,
    pub(crate) failed: usize,
    pub(crate) sent: usize,
    /// The delay of the hedge at the end of each of 100 parts of the run.
    pub(crate) delays: Vec<Option<Duration>>,
}

impl Run {
    pub(crate) fn percentile(&self, percentile: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted[((sorted.len() - 1) as f64 * percentile / 100.0) as usize]
    }
}

pub(crate) struct World<F> {
    pub(crate) hedger: Hedger,
    pub(crate) budget: Budget,
    pub(crate) replicas: usize,
    pub(crate) now: Time,
    /// Between two requests.
    pub(crate) interval: Duration,
    pub(crate) deadline: Duration,
    /// How an attempt ends that is sent to a replica at a time.
    pub(crate) serve: F,
}

impl<F: FnMut(usize, Time) -> Reply> World<F> {
    pub(crate) fn new(policy: Policy, budget: BudgetOptions, serve: F) -> Self {
        Self {
            hedger: Hedger::new(policy, 7),
            budget: Budget::new(budget),
            replicas: 3,
            now: Time(0),
            interval: Duration::from_micros(200),
            deadline: Duration::from_secs(1),
            serve,
        }
    }

    /// So many requests at equal intervals, until all have ended.
    pub(crate) fn run(&mut self, count: usize) -> Run {
        let mut run = Run::default();
        let mut requests: BTreeMap<usize, Request> = BTreeMap::new();
        let mut events = BinaryHeap::from([Reverse((self.now, Event::Start))]);
        let mut started = 0;
        while let Some(Reverse((now, event))) = events.pop() {
            self.now = now;
            match event {
                Event::Start if started == count => continue,
                Event::Start => {
                    let plan = self.hedger.begin(Class(0), now);
                    self.budget.note_first(now);
                    let race = Race::new(plan, now);
                    requests
                        .insert(started, Request { race, attempts: Vec::new(), sent_at: Vec::new(), is_over: false });
                    events.push(Reverse((now, Event::Poll(started))));
                    events.push(Reverse((now + self.deadline, Event::Deadline(started))));
                    events.push(Reverse((now + self.interval, Event::Start)));
                    started += 1;
                    if started % (count / 100).max(1) == 0 {
                        run.delays.push(self.hedger.hedge_delay(Class(0)));
                    }
                }
                Event::Poll(id) => self.poll(id, &mut requests, &mut events, &mut run),
                Event::End { request, number, is_success } => {
                    let Some(state) = requests.get_mut(&request).filter(|state| !state.is_over) else { continue };
                    let outcome = if is_success { Outcome::Success } else { Outcome::NonFatal };
                    state.race.handle_end(number, outcome);
                    let ended = if is_success { Ended::Won } else { Ended::Failed };
                    self.note(&requests[&request], number, ended);
                    self.poll(request, &mut requests, &mut events, &mut run);
                }
                Event::Deadline(id) => {
                    let Some(request) = requests.remove(&id).filter(|request| !request.is_over) else { continue };
                    run.failed += 1;
                    self.note_all(&request, request.race.open());
                }
            }
        }
        run
    }

    fn poll(
        &mut self,
        id: usize,
        requests: &mut BTreeMap<usize, Request>,
        events: &mut BinaryHeap<Reverse<(Time, Event)>>,
        run: &mut Run,
    ) {
        let now = self.now;
        let Some(request) = requests.get_mut(&id).filter(|request| !request.is_over) else { return };
        loop {
            let (hedger, budget, replicas) = (&mut self.hedger, &self.budget, self.replicas);
            let sent = usize::from(request.race.sent());
            let action = request.race.poll(now, |kind| {
                let may = sent < replicas && budget.try_take();
                hedger.note_extra(kind, may);
                may
            });
            match action {
                Action::Send { number, kind } => {
                    // Each request begins one replica further, and no attempt goes where another went.
                    let replica = (id + sent) % replicas;
                    let (took, outcome) = (self.serve)(replica, now);
                    run.sent += 1;
                    let (class, replica, ended) = (Class(0), replica as u64, Ended::Failed);
                    request.attempts.push(AttemptEnd { class, replica, kind, ended, took });
                    request.sent_at.push(now);
                    let end = Event::End { request: id, number, is_success: outcome == Outcome::Success };
                    events.push(Reverse((now + took, end)));
                }
                Action::Wait { until } => {
                    events.extend(until.map(|until| Reverse((until, Event::Poll(id)))));
                    break;
                }
                Action::Finish { is_success, losers, .. } => {
                    request.is_over = true;
                    run.failed += usize::from(!is_success);
                    if is_success {
                        run.latencies.push(now.since(request.race.start()));
                    }
                    let request = requests.remove(&id).expect("it was found");
                    self.note_all(&request, losers);
                    break;
                }
            }
        }
    }

    fn note(&mut self, request: &Request, number: u8, ended: Ended) {
        let index = usize::from(number) - 1;
        let took = self.now.since(request.sent_at[index]);
        self.hedger.note_attempt(AttemptEnd { ended, took, ..request.attempts[index] }, self.now);
    }

    fn note_all(&mut self, request: &Request, numbers: Attempts) {
        for number in numbers.iter() {
            self.note(request, number, Ended::Cancelled);
        }
    }
}
