//! The clients of an experiment with load: each has a [`Hedger`] and a [`Budget`], each request a [`Race`].

use super::{Choice, Ended, Measured, Setting};
use crate::clock::{MILLISECOND, SECOND};
use crate::history::{Call, Time};
use crate::machine::Cost;

use crate::protocol::{self, Received, Table};

use bytes::Bytes;
use hedgerow_hedge::{Action as Move, AttemptEnd, Budget, Class, Ended as End, Hedger, Kind, Outcome, Plan, Race};
use hedgerow_types::random::Random;
use hedgerow_types::{ReadLevel, Refusal};
use hedgerow_wire::call::decode_reply;
use hedgerow_wire::{Cause, Extension};
use std::collections::BTreeMap;
use std::time::Duration;

/// A machine whose connection broke is not asked for so long.
const AVOID: Time = SECOND;
/// Keys that are read.
const KEY_COUNT: u64 = 64;
/// How often the delay of hedges is looked at.
const LOOK_INTERVAL: Time = 50 * MILLISECOND;

/// What is to happen then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wake {
    /// The next request begins.
    Arrival,
    /// A request wants to be looked at.
    Request { number: u64 },
    /// A machine is gone.
    Kill { machine: usize },
    /// A machine stands still, or does no more.
    Pause { machine: usize, is_paused: bool },
    /// Reads cost this much from now on.
    Costs(Cost),
}

/// What the clients want from the world.
#[derive(Debug)]
pub(crate) enum Action {
    Send { client: usize, machine: usize, frame: Bytes },
    Wake { at: Time, wake: Wake },
}

#[derive(Debug)]
pub(crate) struct Clients {
    setting: Setting,
    table: Table,
    /// By partition: the machines that have it.
    replicas: Vec<Vec<usize>>,
    /// When the load began.
    begin: Time,
    /// Decides what is asked when, and nothing else.
    arrivals: Random,
    random: Random,
    clients: Vec<Client>,
    requests: BTreeMap<u64, Request>,
    next_request: u64,
    next_look: Time,
    result: Measured,
}

#[derive(Debug)]
struct Client {
    hedger: Hedger,
    /// `None` = no limit.
    budget: Option<Budget>,
    next_sequence_id: i32,
    /// By number on the connections: which request and which attempt.
    sent: BTreeMap<i32, (u64, u8)>,
    in_flight: Vec<u32>,
    /// By machine: not to be asked until then.
    avoided: Vec<Time>,
}

#[derive(Debug)]
struct Request {
    client: usize,
    key: u32,
    start: Time,
    race: Race,
    /// By number.
    attempts: Vec<Sent>,
    /// It is over for its caller, and some attempts are not.
    is_decided: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    sequence_id: i32,
    machine: usize,
    at: Time,
    kind: Kind,
    is_open: bool,
}

impl Clients {
    pub(crate) fn new(setting: Setting, table: Table, replicas: Vec<Vec<usize>>, begin: Time) -> Self {
        let mut random = Random::new(setting.seed ^ 0x6c6f_6164);
        let arrivals = random.fork();
        let machines = setting.machine_count;
        let clients = (0..setting.client_count)
            .map(|_| Client {
                hedger: Hedger::new(setting.policy.clone(), random.next_u64()),
                budget: setting.budget.map(Budget::new),
                next_sequence_id: 1,
                sent: BTreeMap::new(),
                in_flight: vec![0; machines],
                avoided: vec![0; machines],
            })
            .collect();
        let result = Measured { hedges: vec![0; machines], ..Measured::default() };
        let requests = BTreeMap::new();
        Self {
            setting,
            table,
            replicas,
            begin,
            arrivals,
            random,
            clients,
            requests,
            next_request: 0,
            next_look: begin,
            result,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.requests.values().all(|request| request.is_decided)
    }

    pub(crate) fn into_result(mut self) -> Measured {
        self.clients.iter().for_each(|client| self.result.add(&client.hedger.counters()));
        self.result.requests.sort_unstable_by_key(|request| request.start);
        self.result
    }

    pub(crate) fn handle_wake(&mut self, wake: Wake, now: Time, out: &mut Vec<Action>) {
        match wake {
            Wake::Arrival => self.arrive(now, out),
            Wake::Request { number } => self.go_on(number, now, out),
            Wake::Kill { .. } | Wake::Pause { .. } | Wake::Costs(_) => {}
        }
    }

    pub(crate) fn handle_reply(&mut self, client: usize, frame: Bytes, now: Time, out: &mut Vec<Action>) {
        let Ok(reply) = decode_reply(frame) else { return };
        let Some((number, attempt)) = self.clients[client].sent.remove(&reply.sequence_id) else { return };
        let (outcome, ended) = match protocol::received(&reply, &Call::Get(ReadLevel::Eventual)) {
            Received::Answer { .. } => (Outcome::Success, End::Won),
            Received::Refused { refusal: Refusal::Throttled | Refusal::Withdrawn, .. } => {
                (Outcome::Dropped, End::Dropped)
            }
            Received::Refused { .. } | Received::Nonsense(_) => (Outcome::NonFatal, End::Failed),
        };
        self.end(number, attempt, outcome, ended, now);
        self.go_on(number, now, out);
    }

    /// The connection of a client to `machine` is gone.
    pub(crate) fn handle_closed(&mut self, client: usize, machine: usize, now: Time, out: &mut Vec<Action>) {
        self.clients[client].avoided[machine] = now + AVOID;
        let lost: Vec<(u64, u8)> = self.clients[client].sent.values().copied().collect();
        for (number, attempt) in lost {
            let Some(request) = self.requests.get(&number) else { continue };
            let sent = request.attempts[usize::from(attempt) - 1];
            if sent.machine == machine {
                self.clients[client].sent.remove(&sent.sequence_id);
                self.end(number, attempt, Outcome::NonFatal, End::Failed, now);
                self.go_on(number, now, out);
            }
        }
    }

    fn arrive(&mut self, now: Time, out: &mut Vec<Action>) {
        if now >= self.begin + self.setting.duration {
            return;
        }
        let share = (self.arrivals.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
        let gap = (-share.ln() * SECOND as f64 / self.setting.rate as f64) as Time;
        out.push(Action::Wake { at: now + gap, wake: Wake::Arrival });
        let number = self.next_request;
        self.next_request += 1;
        let client = self.arrivals.below(self.clients.len() as u64) as usize;
        let key = self.arrivals.below(KEY_COUNT) as u32;
        let mut plan = self.clients[client].hedger.begin(Class(0), hedgerow_hedge::Time(now));
        plan.max_executions = plan.max_executions.max(self.setting.attempts_max);
        self.look(client, plan, now);
        let race = Race::new(plan, hedgerow_hedge::Time(now));
        let request = Request { client, key, start: now, race, attempts: Vec::new(), is_decided: false };
        self.requests.insert(number, request);
        if let Some(budget) = &self.clients[client].budget {
            budget.note_first(hedgerow_hedge::Time(now));
        }
        self.go_on(number, now, out);
    }

    fn look(&mut self, client: usize, plan: Plan, now: Time) {
        if let Some(delay) = plan.delay.filter(|_| client == 0 && now >= self.next_look) {
            self.next_look = now + LOOK_INTERVAL;
            self.result.delays.push((now - self.begin, delay));
        }
    }

    /// Does what the request's race wants now.
    fn go_on(&mut self, number: u64, now: Time, out: &mut Vec<Action>) {
        self.end_late(number, now, out);
        loop {
            let target = self.target(number, now);
            let Some(request) = self.requests.get_mut(&number).filter(|request| !request.is_decided) else { return };
            let deadline = request.start + self.setting.deadline;
            let client = &mut self.clients[request.client];
            let mut suppressed = 0;
            let admit = |kind| {
                let has_token = target.is_some() && client.budget.as_ref().is_none_or(Budget::try_take);
                suppressed += u64::from(!has_token);
                client.hedger.note_extra(kind, has_token);
                has_token
            };
            let wanted = request.race.poll(hedgerow_hedge::Time(now), admit);
            self.result.suppressed += suppressed;
            match (wanted, target) {
                _ if now >= deadline => return self.decide(number, None, now, out),
                (Move::Send { number: attempt, kind }, Some(machine)) => {
                    self.send(number, attempt, kind, machine, now, out);
                }
                (Move::Wait { until }, _) => {
                    let open = request.attempts.iter().filter(|sent| sent.is_open);
                    let late = open.map(|sent| sent.at + self.setting.attempt_timeout).min();
                    let times = [until.map(|until| until.0), late, Some(deadline)];
                    let at = times.into_iter().flatten().min().unwrap_or(deadline);
                    return out.push(Action::Wake { at, wake: Wake::Request { number } });
                }
                (Move::Finish { is_success: true, .. }, _) => {
                    let took = Some(now - request.start);
                    return self.decide(number, took, now, out);
                }
                (Move::Send { .. } | Move::Finish { .. }, _) => return self.decide(number, None, now, out),
            }
        }
    }

    /// Gives up attempts that took too long.
    fn end_late(&mut self, number: u64, now: Time, out: &mut Vec<Action>) {
        let patience = self.setting.attempt_timeout;
        let Some(request) = self.requests.get(&number).filter(|request| !request.is_decided) else { return };
        let late = (1..).zip(&request.attempts).filter(|(_, sent)| sent.is_open && sent.at + patience <= now);
        let late: Vec<u8> = late.map(|(attempt, _)| attempt).collect();
        for attempt in late {
            self.cancel(number, attempt, out);
            self.end(number, attempt, Outcome::NonFatal, End::Cancelled, now);
        }
    }

    fn end(&mut self, number: u64, attempt: u8, outcome: Outcome, ended: End, now: Time) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let sent = &mut request.attempts[usize::from(attempt) - 1];
        if !std::mem::take(&mut sent.is_open) {
            return;
        }
        let (client, took) = (&mut self.clients[request.client], Duration::from_nanos(now - sent.at));
        client.in_flight[sent.machine] -= 1;
        let is_counted = request.race.handle_end(attempt, outcome);
        let ended = if ended == End::Won && !is_counted { End::Late } else { ended };
        let end = AttemptEnd { class: Class(0), replica: sent.machine as u64, kind: sent.kind, ended, took };
        client.hedger.note_attempt(end, hedgerow_hedge::Time(now));
    }

    /// The request is over for its caller.
    fn decide(&mut self, number: u64, took: Option<Time>, now: Time, out: &mut Vec<Action>) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        request.is_decided = true;
        self.result.requests.push(Ended { start: request.start - self.begin, took });
        let open = (1..).zip(&request.attempts).filter(|(_, sent)| sent.is_open);
        let open: Vec<u8> = open.map(|(attempt, _)| attempt).collect();
        for attempt in open {
            self.cancel(number, attempt, out);
            self.end(number, attempt, Outcome::Dropped, End::Cancelled, now);
        }
        self.requests.remove(&number);
    }

    fn cancel(&mut self, number: u64, attempt: u8, out: &mut Vec<Action>) {
        let Some(request) = self.requests.get(&number) else { return };
        let (sent, client) = (request.attempts[usize::from(attempt) - 1], request.client);
        let state = &mut self.clients[client];
        state.sent.remove(&sent.sequence_id);
        let frame = protocol::cancel(state.next_sequence_id, id_of(client), number, Some(attempt.into()));
        state.next_sequence_id += 1;
        out.push(Action::Send { client, machine: sent.machine, frame });
    }

    /// Whom the next attempt goes to: a replica that was not asked, or when all were, any other than the last one.
    fn target(&mut self, number: u64, now: Time) -> Option<usize> {
        let draws = [self.random.next_u64(), self.random.next_u64()];
        let request = self.requests.get(&number)?;
        let client = &self.clients[request.client];
        let replicas = &self.replicas[self.table.partition_of(request.key) as usize];
        let asked = |machine: usize| request.attempts.iter().any(|sent| sent.machine == machine);
        let is_last = |machine: usize| request.attempts.last().is_some_and(|sent| sent.machine == machine);
        let is_there = |machine: &usize| client.avoided[*machine] <= now;
        let there: Vec<usize> = replicas.iter().copied().filter(is_there).collect();
        let fresh: Vec<usize> = there.iter().copied().filter(|machine| !asked(*machine)).collect();
        let left =
            if fresh.is_empty() { there.into_iter().filter(|machine| !is_last(*machine)).collect() } else { fresh };
        if left.is_empty() {
            return None;
        }
        let [one, other] = draws.map(|draw| left[(draw % left.len() as u64) as usize]);
        Some(match self.setting.choice {
            Choice::LessInFlight if client.in_flight[other] < client.in_flight[one] => other,
            Choice::LessInFlight | Choice::Random => one,
        })
    }

    fn send(&mut self, number: u64, attempt: u8, kind: Kind, machine: usize, now: Time, out: &mut Vec<Action>) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let client = &mut self.clients[request.client];
        let sequence_id = client.next_sequence_id;
        client.next_sequence_id += 1;
        client.sent.insert(sequence_id, (number, attempt));
        client.in_flight[machine] += 1;
        request.attempts.push(Sent { sequence_id, machine, at: now, kind, is_open: true });
        let cause = cause_of(kind);
        *(if kind == Kind::First { &mut self.result.first } else { &mut self.result.extra }) += 1;
        self.result.hedges[machine] += u64::from(kind == Kind::Hedge);
        let patience = self.setting.attempt_timeout.min(request.start + self.setting.deadline - now);
        let mut extension = Extension {
            any_replica: true,
            attempt: Some(i32::from(attempt)),
            deadline_ms: Some((patience / MILLISECOND) as i64),
            client_id: Some(id_of(request.client)),
            request_id: Some(number),
            cause: cause.filter(|_| self.setting.are_extras_marked).map(Cause::code),
            ..Extension::default()
        };
        extension.set_read_level(ReadLevel::Eventual);
        let frame = protocol::read(request.key, sequence_id, false, Some(extension), self.table);
        out.push(Action::Send { client: request.client, machine, frame });
    }
}

/// What an attempt says of why it is sent; nothing if it is its request's first.
const fn cause_of(kind: Kind) -> Option<Cause> {
    match kind {
        Kind::First => None,
        Kind::Hedge => Some(Cause::Hedge),
        Kind::Tie => Some(Cause::Tie),
        Kind::Retry => Some(Cause::Retry),
        Kind::Fallback => Some(Cause::Fallback),
    }
}

const fn id_of(client: usize) -> u64 {
    client as u64 + 1
}
