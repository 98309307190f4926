//! Operations whose attempts race each other: [`Race`] says when to send which, and this carries it out over the simulated
//! network, as a client with hedged, tied and speculated requests does.
//!
//! An attempt without an answer counts as failed after a while, and is cancelled. A race that is lost (everybody was asked, or
//! nothing was left in the budget) is followed by another one after a pause: a new request for the same operation. All attempts
//! of a write carry the same client id and sequence, whichever race they belong to.

use super::{Action, Client, Sent, Words, address_of_machine, machine_of_address};
use crate::history::{Call, Time};
use crate::protocol;
use crate::reading::Hedging;
use crate::workload::Workload;
use hedgerow_hedge::{Action as Move, Kind, Outcome, Race};
use hedgerow_types::Refusal;
use hedgerow_wire::Tie;

/// One cancel in so many is not sent, so that losers answer too.
const UNSENT_CANCEL_INTERVAL: u64 = 3;
/// One in so many is sent twice (pitfall H15).
const DOUBLE_CANCEL_INTERVAL: u64 = 6;

/// One race for an operation.
#[derive(Debug)]
pub(super) struct Round {
    race: Race,
    hedging: Hedging,
    request_id: u64,
    /// Attempts of the operation before this race.
    base: i32,
    /// Machines that were asked.
    asked: Vec<usize>,
    /// Whom the second attempt goes to, if the first one names it.
    tied: Option<usize>,
    /// The leader that a refusal named.
    named: Option<usize>,
    /// The last refusal cost its server nothing, and nothing else is under way.
    is_redirected: bool,
}

impl Round {
    fn number(&self, attempt: i32) -> Option<u8> {
        u8::try_from(attempt - self.base).ok().filter(|number| *number > 0)
    }
}

impl Client {
    /// Begins a race for the current operation.
    pub(super) fn start_round(&mut self, hedging: Hedging, now: Time, workload: &Workload, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        if !current.sent.is_empty() {
            self.last_request += 1;
            current.request_id = self.last_request;
        }
        current.round = Some(Round {
            race: Race::new(hedging.plan, hedgerow_hedge::Time(now)),
            hedging,
            request_id: current.request_id,
            base: current.attempts,
            asked: Vec::new(),
            tied: None,
            named: None,
            is_redirected: false,
        });
        self.budget.note_first();
        self.go_on_racing(now, workload, out);
    }

    /// Does what the race wants now: something ended, or time has passed.
    pub(super) fn go_on_racing(&mut self, now: Time, workload: &Workload, out: &mut Vec<Action>) {
        self.end_late(now, out);
        if self.current.as_ref().is_some_and(|current| now >= current.deadline) {
            self.leave_round(out);
            return self.attempt(now, workload, out);
        }
        loop {
            let target = self.target();
            let Some(current) = &mut self.current else { return };
            let Some(round) = &mut current.round else { return };
            let (budget, is_redirected) = (&self.budget, round.is_redirected);
            let admit = |kind| target.is_some() && (kind == Kind::Retry && is_redirected || budget.try_take());
            match (round.race.poll(hedgerow_hedge::Time(now), admit), target) {
                (Move::Send { number, kind }, Some(target)) => {
                    self.send_racing(number, kind, target, now, workload, out)
                }
                (Move::Wait { until }, _) => {
                    let open = current.sent.iter().filter(|sent| sent.is_open);
                    let late = open.map(|sent| sent.at + self.pace.attempt_timeout).min();
                    let times = [until.map(|until| until.0), late, Some(current.deadline)];
                    let at = times.into_iter().flatten().min().unwrap_or(now);
                    return self.wake_at(at.max(now), out);
                }
                (Move::Send { .. } | Move::Finish { .. }, _) => {
                    let named = round.named.map(address_of_machine);
                    self.leave_round(out);
                    self.move_on(named);
                    return self.back_off(now, out);
                }
            }
        }
    }

    /// Attempt `position` was refused.
    pub(super) fn handle_refused(
        &mut self,
        position: usize,
        leader: Option<String>,
        refusal: &Refusal,
        now: Time,
        workload: &Workload,
        out: &mut Vec<Action>,
    ) {
        let Some(current) = &mut self.current else { return };
        let Some(round) = &mut current.round else { return };
        let sent = &mut current.sent[position];
        let Some(number) = round.number(sent.number).filter(|_| std::mem::take(&mut sent.is_open)) else { return };
        round.race.handle_end(number, outcome_of(refusal));
        round.named = leader.as_deref().and_then(machine_of_address).filter(|machine| *machine < self.machine_count);
        round.is_redirected = is_redirect(refusal) && round.race.open().is_empty();
        self.go_on_racing(now, workload, out);
    }

    /// The connection to `machine` is gone.
    pub(super) fn handle_lost(&mut self, machine: usize, now: Time, workload: &Workload, out: &mut Vec<Action>) {
        let lost: Vec<usize> = self.open(|sent| sent.machine == machine);
        if lost.is_empty() {
            return;
        }
        lost.into_iter().for_each(|position| self.end(position));
        self.go_on_racing(now, workload, out);
    }

    /// Attempt `position` has answered: the others are not needed.
    pub(super) fn win(&mut self, position: usize, out: &mut Vec<Action>) {
        let Some(current) = &mut self.current else { return };
        let Some(round) = &mut current.round else { return };
        let sent = &mut current.sent[position];
        // What was given up may answer all the same, and decides as well.
        if let Some(number) = round.number(sent.number).filter(|_| std::mem::take(&mut sent.is_open)) {
            round.race.handle_end(number, Outcome::Success);
            match round.race.poll(hedgerow_hedge::Time(u64::MAX), |_| true) {
                Move::Finish { number: winner, is_success: true, losers } if winner == number => {
                    debug_assert_eq!(losers, round.race.open());
                }
                other => out.push(Action::Fail(format!("attempt {number} succeeded, and the race says {other:?}"))),
            }
        }
        self.leave_round(out);
    }

    /// Ends the race and takes back what is under way.
    pub(super) fn leave_round(&mut self, out: &mut Vec<Action>) {
        for position in self.open(|_| true) {
            self.cancel(position, out);
            self.end(position);
        }
        if let Some(current) = &mut self.current {
            current.round = None;
        }
    }

    fn end_late(&mut self, now: Time, out: &mut Vec<Action>) {
        let patience = self.pace.attempt_timeout;
        for position in self.open(|sent| sent.at + patience <= now) {
            self.cancel(position, out);
            self.end(position);
        }
    }

    fn open(&self, is_meant: impl Fn(&Sent) -> bool) -> Vec<usize> {
        let sent = self.current.as_ref().map_or(&[][..], |current| &current.sent);
        (0..sent.len()).filter(|position| sent[*position].is_open && is_meant(&sent[*position])).collect()
    }

    /// Waits for attempt `position` no longer; it may have had an effect.
    fn end(&mut self, position: usize) {
        let Some(current) = &mut self.current else { return };
        let sent = &mut current.sent[position];
        sent.is_open = false;
        current.is_doubtful = true;
        if let Some(round) = &mut current.round
            && let Some(number) = round.number(sent.number)
        {
            round.race.handle_end(number, Outcome::NonFatal);
            round.is_redirected = false;
        }
    }

    fn cancel(&mut self, position: usize, out: &mut Vec<Action>) {
        let Some(current) = &self.current else { return };
        let Some(round) = &current.round else { return };
        if self.random.chance(1, UNSENT_CANCEL_INTERVAL) {
            return;
        }
        let (sent, request_id) = (current.sent[position], round.request_id);
        let times = if self.random.chance(1, DOUBLE_CANCEL_INTERVAL) { 2 } else { 1 };
        for _ in 0..times {
            let frame = protocol::cancel(self.next_sequence_id, self.id, request_id, Some(sent.number));
            self.next_sequence_id += 1;
            out.push(Action::Send { machine: sent.machine, frame });
        }
    }

    /// Where the next attempt goes, if there is anybody left to ask.
    fn target(&mut self) -> Option<usize> {
        let count = self.machine_count;
        let current = self.current.as_mut()?;
        let wish = current.wish;
        let leader = self.leaders[self.table.partition_of(wish.key) as usize];
        let round = current.round.as_mut()?;
        if round.asked.is_empty() {
            let anybody = self.random.below(count as u64) as usize;
            // A node that does not lead passes a write on.
            let is_passed_on = wish.call.is_write() && self.random.chance(1, 3);
            let chosen = current.next.unwrap_or(if is_passed_on { anybody } else { leader });
            current.next = Some(chosen);
            return Some(chosen);
        }
        let is_open = |machine| current.sent.iter().any(|sent| sent.is_open && sent.machine == machine);
        if let Some(named) = round.named.filter(|named| !is_open(*named)) {
            return Some(named);
        }
        if let Some(tied) = round.tied.filter(|tied| !round.asked.contains(tied)) {
            return Some(tied);
        }
        let left: Vec<usize> = (0..count).filter(|machine| !round.asked.contains(machine)).collect();
        if wish.call.is_write() && left.contains(&leader) {
            return Some(leader);
        }
        (!left.is_empty()).then(|| left[self.random.below(left.len() as u64) as usize])
    }

    fn send_racing(
        &mut self,
        number: u8,
        kind: Kind,
        target: usize,
        now: Time,
        workload: &Workload,
        out: &mut Vec<Action>,
    ) {
        let count = self.machine_count as u64;
        let Some(current) = &mut self.current else { return };
        let Some(round) = &mut current.round else { return };
        if current.sent.iter().any(|sent| sent.is_open && sent.machine == target) {
            out.push(Action::Fail(format!("m{} is asked twice at a time for one operation", target + 1)));
        }
        let first = round.asked.first().copied();
        round.asked.push(target);
        (round.named, round.is_redirected) = (None, false);
        let plan = round.hedging.plan;
        if kind == Kind::First {
            current.next = None;
            let is_tied = plan.tie.is_some() && plan.max_executions > 1;
            let other = (target + 1 + self.random.below(count - 1) as usize) % count as usize;
            round.tied = is_tied.then_some(other);
        }
        let tie_to = |machine: usize, attempt: i32| {
            let (peer, attempt) = (address_of_machine(machine).as_str().into(), round.base + attempt);
            Tie { peer, attempt }
        };
        let tie = match (kind, first) {
            (Kind::First, _) => round.tied.map(|tied| tie_to(tied, 2)),
            (Kind::Tie, Some(first)) if number == 2 => Some(tie_to(first, 1)),
            _ => None,
        };
        let level = (kind == Kind::Fallback).then_some(round.hedging.fallback);
        let cause = protocol::cause_of(kind);
        let level = match current.wish.call {
            Call::Get(level_of_wish) => level.or(Some(level_of_wish)),
            Call::Put(_) | Call::Remove | Call::Incr(_) | Call::Swap { .. } => None,
        };
        current.attempts = round.base + i32::from(number);
        out.push(Action::Extra { kind, is_write: current.wish.call.is_write() });
        self.send(target, Words { level, cause, tie }, now, workload, out);
    }
}

/// What a refusal means for the other attempts.
const fn outcome_of(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::NotLeader { .. }
        | Refusal::NotReady(_)
        | Refusal::Lagging(_)
        | Refusal::NotHosted
        | Refusal::Busy(_)
        | Refusal::BusyFor { .. }
        | Refusal::Stopping(_)
        | Refusal::Creating
        | Refusal::Unresolved => Outcome::NonFatal,
        Refusal::Throttled | Refusal::Withdrawn => Outcome::Dropped,
        Refusal::Invalid(_)
        | Refusal::TooLarge(_)
        | Refusal::DiskFull(_)
        | Refusal::NoTable
        | Refusal::TableExists
        | Refusal::Unknown
        | Refusal::Expired
        | Refusal::SessionWindow { .. } => Outcome::Fatal,
    }
}

/// Whether the server has done nothing for the request, and another one is to be asked.
const fn is_redirect(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NotLeader { .. } | Refusal::NotReady(_) | Refusal::Lagging(_) | Refusal::NotHosted)
}
