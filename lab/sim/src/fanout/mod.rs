//! The fan-out of "The Tail at Scale" (Dean and Barroso, 2013) in virtual time: a request reads 1,000 keys that lie on 100
//! servers, and is done when the last server has answered. One slow server in a hundred is enough to make it slow.
//!
//! The servers are a model (`server.rs`): a queue, a service time, and rare stalls. What decides about further copies is the
//! real thing: a [`Hedger`] with its policy, a [`Race`] for each part of a request, one [`Budget`]. Each part lies on three
//! servers. Same seed, same policy: the same numbers.

mod report;
mod server;

pub use report::{Row, Variant, csv, table, variants};

use crate::clock::{MICROSECOND, SECOND};
use crate::history::Time;
use crate::queue::Queue;
use hedgerow_hedge::{
    Action, AttemptEnd, Budget, BudgetOptions, Class, Ended, Hedger, Kind, Latencies, Outcome, Plan, Policy, Race,
    RequestInfo, SpeculativeExecutionPolicy,
};
use hedgerow_types::random::Random;
use server::{CopyId, PartId, Server};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Servers, and parts of a request.
pub const SERVER_COUNT: usize = 100;
/// Servers that hold the same part.
const REPLICA_COUNT: usize = 3;
/// Requests per second.
const RATE: u64 = 10;
/// One way, without the part that varies.
const FLIGHT: Time = 100 * MICROSECOND;
const FLIGHT_SPREAD: Time = 50 * MICROSECOND;
/// A request is remembered for so long: what it has under way is over then.
const MEMORY: Time = 60 * SECOND;
/// Time between two tied copies: there and back, so that the first one's word comes before the second one.
const STAGGER: Duration = Duration::from_micros(250);

/// Which server is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Any of the three.
    Random,
    /// The one with the fewest parts of this client under way.
    LeastInFlight,
    /// The one that is known to be ready soonest: nobody can know that.
    Oracle,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Everything follows from it, given the rest.
    pub seed: u64,
    /// Requests.
    pub requests: u64,
    /// What decides about further copies.
    pub policy: Policy,
    /// What they may cost.
    pub budget: BudgetOptions,
    /// Which server is asked first.
    pub selection: Selection,
    /// Whether the policy is [`tied`].
    pub is_tied: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Of all requests, ascending.
    latencies: Vec<Time>,
    /// Parts that were asked for: first copies.
    pub first: u64,
    /// Further copies that were sent.
    pub sent: u64,
    /// Copies that servers began.
    pub begun: u64,
}

impl Measured {
    /// The latency that a share of `percentile` / 100 of the requests stay below.
    pub fn percentile(&self, percentile: f64) -> Duration {
        let rank = (self.latencies.len() as f64 * percentile / 100.0).ceil() as usize;
        let index = rank.clamp(1, self.latencies.len().max(1)) - 1;
        Duration::from_nanos(self.latencies.get(index).copied().unwrap_or(0))
    }

    /// Further copies sent, as a share of the first ones.
    pub fn extra_sent(&self) -> f64 {
        self.sent as f64 / self.first as f64
    }

    /// Copies begun beyond one for each part, as a share of them.
    pub fn extra_begun(&self) -> f64 {
        self.begun as f64 / self.first as f64 - 1.0
    }
}

/// Every part is asked for twice, and the two copies know of each other.
#[derive(Debug)]
struct Tied;

impl SpeculativeExecutionPolicy for Tied {
    fn plan(&self, _: RequestInfo<'_>, _: &dyn Latencies, _: f64) -> Plan {
        Plan { tie: Some(STAGGER), max_executions: 2, ..Plan::default() }
    }
}

/// The policy that ties every part.
pub fn tied() -> Policy {
    Policy::Custom(Arc::new(Tied))
}

#[derive(Debug)]
enum Event {
    Request,
    Timer {
        part: PartId,
    },
    Arrives {
        copy: CopyId,
        server: usize,
    },
    Begins {
        server: usize,
    },
    Ends {
        server: usize,
        copy: CopyId,
    },
    Replied {
        copy: CopyId,
    },
    /// The copy need not begin.
    Withdrawn {
        copy: CopyId,
    },
}

#[derive(Debug)]
struct RequestState {
    start: Time,
    missing: usize,
    /// By home.
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    race: Race,
    /// By number.
    copies: Vec<Sent>,
    /// Copies that need not begin, whenever they come; a bit for each number.
    withdrawn: u16,
    is_done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    server: usize,
    kind: Kind,
    at: Time,
    is_over: bool,
}

#[derive(Debug)]
struct Fanout {
    setting: Setting,
    random: Random,
    queue: Queue<Event>,
    servers: Vec<Server>,
    /// Whether a beginning is scheduled.
    is_waking: Vec<bool>,
    in_flight: Vec<u32>,
    /// The last ones; those before are over.
    requests: VecDeque<RequestState>,
    begun: usize,
    hedger: Hedger,
    budget: Budget,
    result: Measured,
}

/// Runs `setting`.
pub fn run(setting: Setting) -> Measured {
    let mut random = Random::new(setting.seed);
    let servers = (0..SERVER_COUNT).map(|_| Server::new(random.fork())).collect();
    let mut fanout = Fanout {
        random,
        queue: Queue::default(),
        servers,
        is_waking: vec![false; SERVER_COUNT],
        in_flight: vec![0; SERVER_COUNT],
        requests: VecDeque::new(),
        begun: 0,
        hedger: Hedger::new(setting.policy.clone(), setting.seed),
        budget: Budget::new(setting.budget),
        result: Measured { latencies: Vec::new(), first: 0, sent: 0, begun: 0 },
        setting,
    };
    fanout.queue.push(0, Event::Request);
    while let Some(event) = fanout.queue.pop(Time::MAX) {
        fanout.happen(event);
    }
    fanout.result.latencies.sort_unstable();
    fanout.result
}

impl Fanout {
    fn happen(&mut self, event: Event) {
        let now = self.queue.now();
        match event {
            Event::Request => self.request(now),
            Event::Timer { part } => {
                if self.part(part).is_some_and(|part| !part.is_done) {
                    self.poll(part, now);
                }
            }
            Event::Arrives { copy, server } => {
                if self.part(copy.part).is_some_and(|part| part.withdrawn & (1 << copy.number) != 0) {
                    return self.drop_unrun(copy, now);
                }
                self.servers[server].push(copy);
                self.wake(server, now);
            }
            Event::Begins { server } => self.begin(server, now),
            Event::Ends { server, copy } => {
                self.servers[server].end();
                self.after(now, Event::Replied { copy });
                self.wake(server, now);
            }
            Event::Replied { copy } => self.replied(copy, now),
            Event::Withdrawn { copy } => {
                if let Some(part) = self.part(copy.part) {
                    part.withdrawn |= 1 << copy.number;
                }
                let server = self.sent(copy).map(|sent| sent.server);
                if server.is_some_and(|server| self.servers[server].remove(copy)) {
                    self.drop_unrun(copy, now);
                }
            }
        }
    }

    fn drop_unrun(&mut self, copy: CopyId, now: Time) {
        if let Some(part) = self.part(copy.part) {
            part.race.handle_end(copy.number, Outcome::Dropped);
        }
        self.over(copy, Ended::Dropped, now);
    }

    fn sent(&mut self, copy: CopyId) -> Option<&mut Sent> {
        self.part(copy.part)?.copies.get_mut(usize::from(copy.number) - 1)
    }

    /// What is known of a part, unless it has been over for long.
    fn part(&mut self, id: PartId) -> Option<&mut Part> {
        let forgotten = self.begun - self.requests.len();
        let request = self.requests.get_mut(id.request.checked_sub(forgotten)?)?;
        request.parts.get_mut(id.home)
    }

    fn after(&mut self, now: Time, event: Event) {
        let flight = FLIGHT + self.random.below(FLIGHT_SPREAD);
        self.queue.push(now + flight, event);
    }

    fn request(&mut self, now: Time) {
        while self.requests.front().is_some_and(|first| first.missing == 0 && first.start + MEMORY < now) {
            self.requests.pop_front();
        }
        let request = self.begun;
        self.begun += 1;
        let start = hedgerow_hedge::Time(now);
        let race = |hedger: &mut Hedger| Race::new(hedger.begin(Class(0), start), start);
        let parts = (0..SERVER_COUNT)
            .map(|_| Part { race: race(&mut self.hedger), copies: Vec::new(), withdrawn: 0, is_done: false })
            .collect();
        self.requests.push_back(RequestState { start: now, missing: SERVER_COUNT, parts });
        for home in 0..SERVER_COUNT {
            self.budget.note_first(start);
            self.poll(PartId { request, home }, now);
        }
        if (self.begun as u64) < self.setting.requests {
            // Open loop: the next one does not wait for this one.
            let gap = SECOND / RATE;
            let next = now + gap / 2 + self.random.below(gap);
            self.queue.push(next, Event::Request);
        }
    }

    fn poll(&mut self, id: PartId, now: Time) {
        loop {
            let forgotten = self.begun - self.requests.len();
            let (budget, hedger) = (&self.budget, &mut self.hedger);
            let part = &mut self.requests[id.request - forgotten].parts[id.home];
            let is_left = part.copies.len() < REPLICA_COUNT;
            let admit = |kind| {
                let is_sent = is_left && budget.try_take();
                hedger.note_extra(kind, is_sent);
                is_sent
            };
            match part.race.poll(hedgerow_hedge::Time(now), admit) {
                Action::Send { number, kind } => self.send(CopyId { part: id, number }, kind, now),
                Action::Wait { until } => {
                    if let Some(until) = until {
                        self.queue.push(until.0, Event::Timer { part: id });
                    }
                    return;
                }
                Action::Finish { losers, .. } => return self.finish(id, losers, now),
            }
        }
    }

    fn send(&mut self, copy: CopyId, kind: Kind, now: Time) {
        let server = self.choose(copy.part, now);
        if let Some(part) = self.part(copy.part) {
            part.copies.push(Sent { server, kind, at: now, is_over: false });
        }
        self.in_flight[server] += 1;
        *(if kind == Kind::First { &mut self.result.first } else { &mut self.result.sent }) += 1;
        self.after(now, Event::Arrives { copy, server });
    }

    /// A server that holds the part and was not asked for it.
    fn choose(&mut self, id: PartId, now: Time) -> usize {
        let asked: Vec<usize> =
            self.part(id).map(|part| part.copies.iter().map(|sent| sent.server).collect()).unwrap_or_default();
        let candidates = (0..REPLICA_COUNT).map(|step| (id.home + step) % SERVER_COUNT);
        let mut left: Vec<usize> = candidates.filter(|server| !asked.contains(server)).collect();
        let turn = self.random.below(left.len() as u64) as usize;
        left.rotate_left(turn);
        let best = match self.setting.selection {
            Selection::Random => None,
            Selection::LeastInFlight => left.iter().copied().min_by_key(|server| self.in_flight[*server]),
            Selection::Oracle => left
                .iter()
                .copied()
                .min_by_key(|server| (self.servers[*server].stillness(now), self.servers[*server].length())),
        };
        best.unwrap_or(left[0])
    }

    fn wake(&mut self, server: usize, now: Time) {
        if !self.is_waking[server]
            && let Some(at) = self.servers[server].may_begin(now)
        {
            self.is_waking[server] = true;
            self.queue.push(at, Event::Begins { server });
        }
    }

    fn begin(&mut self, server: usize, now: Time) {
        self.is_waking[server] = false;
        // It may have begun to stand still meanwhile, or what waited is gone.
        match self.servers[server].may_begin(now) {
            Some(at) if at > now => return self.wake(server, now),
            Some(_) => {}
            None => return,
        }
        let Some((copy, end)) = self.servers[server].begin(now) else { return };
        self.result.begun += 1;
        self.queue.push(end, Event::Ends { server, copy });
        // Each of two tied copies names the other one, whether or not that was sent yet.
        if self.setting.is_tied {
            self.after(now, Event::Withdrawn { copy: CopyId { number: 3 - copy.number, ..copy } });
        }
    }

    fn replied(&mut self, copy: CopyId, now: Time) {
        let Some(part) = self.part(copy.part) else { return };
        let is_first = part.race.handle_end(copy.number, Outcome::Success);
        self.over(copy, if is_first { Ended::Won } else { Ended::Late }, now);
        if is_first {
            self.poll(copy.part, now);
        }
    }

    fn over(&mut self, copy: CopyId, ended: Ended, now: Time) {
        let Some(sent) = self.sent(copy) else { return };
        if std::mem::replace(&mut sent.is_over, true) {
            return;
        }
        let Sent { server, kind, at, .. } = *sent;
        self.in_flight[server] -= 1;
        let end =
            AttemptEnd { class: Class(0), replica: server as u64, kind, ended, took: Duration::from_nanos(now - at) };
        self.hedger.note_attempt(end, hedgerow_hedge::Time(now));
    }

    fn finish(&mut self, id: PartId, losers: hedgerow_hedge::Attempts, now: Time) {
        if let Some(part) = self.part(id) {
            part.is_done = true;
        }
        for number in losers.iter() {
            let copy = CopyId { part: id, number };
            self.over(copy, Ended::Cancelled, now);
            self.after(now, Event::Withdrawn { copy });
        }
        let forgotten = self.begun - self.requests.len();
        let request = &mut self.requests[id.request - forgotten];
        request.missing -= 1;
        if request.missing == 0 {
            self.result.latencies.push(now - request.start);
        }
    }
}
