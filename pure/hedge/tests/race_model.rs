//! Races under random events, beside a model that keeps the whole history and says what must have held.

use hedgerow_hedge::{ATTEMPTS_MAX, Action, Kind, Outcome, PUT_OFF_MAX, Plan, Race, Time};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Time passes, in steps of 100 us.
    Pass(u64),
    /// Time passes until the race wants to be polled.
    PassUntilDue,
    End(u8, Outcome),
    Tokens(u8),
    /// A token comes, for something that was refused.
    Token(usize),
    /// The client was held up for so long, in steps of 100 us; whether servers have answered.
    Late(u64, bool),
}

/// What happened, in order.
#[derive(Default)]
struct Model {
    kinds: Vec<Kind>,
    /// Ends that came while their attempt was open and the race was not over, in order.
    ends: Vec<(u8, Outcome)>,
    finish: Option<(u8, bool)>,
    tokens: u8,
    taken: usize,
    refused_at_last_poll: Vec<Kind>,
    refused: Vec<Kind>,
}

impl Model {
    fn open(&self) -> Vec<u8> {
        let numbers = 1..=self.kinds.len() as u8;
        numbers.filter(|number| self.ends.iter().all(|(ended, _)| ended != number)).collect()
    }

    fn decisive(&self) -> Option<(u8, Outcome)> {
        self.ends.iter().copied().find(|(_, outcome)| matches!(outcome, Outcome::Success | Outcome::Fatal))
    }

    fn executions(&self) -> usize {
        self.kinds.iter().filter(|kind| **kind != Kind::Fallback).count()
    }
}

fn poll(race: &mut Race, model: &mut Model, plan: Plan, now: Time) {
    loop {
        model.refused_at_last_poll.clear();
        let mut admitted = 0;
        let (tokens, refused) = (&mut model.tokens, &mut model.refused_at_last_poll);
        let action = race.poll(now, |kind| {
            let may = *tokens > 0;
            if may {
                *tokens -= 1;
                admitted += 1;
            } else {
                refused.push(kind);
            }
            may
        });
        model.taken += admitted;
        model.refused.extend(&model.refused_at_last_poll);
        match action {
            Action::Send { number, kind } => {
                assert_eq!(number as usize, model.kinds.len() + 1, "numbers have no gaps");
                assert_eq!(kind == Kind::First, number == 1);
                assert_eq!(admitted, usize::from(number > 1), "every extra attempt was admitted, and only it");
                assert_eq!(model.finish, None, "nothing is sent after the end");
                assert!(model.decisive().is_none(), "nothing is sent after the decision");
                model.kinds.push(kind);
                check_sent(model, plan, kind, now);
            }
            Action::Wait { until } => {
                assert_eq!(admitted, 0);
                assert!(!model.open().is_empty(), "somebody is waited for");
                assert!(model.finish.is_none() && model.decisive().is_none());
                assert!(until.is_none_or(|until| until > now), "what is due is done: {until:?} at {now:?}");
                let is_fallback_due = plan.fallback.is_some() && !model.kinds.contains(&Kind::Fallback);
                let was_refused = model.refused_at_last_poll.contains(&Kind::Fallback);
                if is_fallback_due && Time(0) + plan.fallback.expect("there is one") > now && !was_refused {
                    assert!(until.is_some(), "a fallback that is due later is waited for");
                }
                return;
            }
            Action::Finish { number, is_success, losers } => {
                check_finish(model, number, is_success, losers.iter().collect());
                return;
            }
        }
    }
}

fn check_sent(model: &Model, plan: Plan, kind: Kind, now: Time) {
    let after = |delay: Duration| now >= Time(0) + delay;
    let dropped = model.ends.iter().filter(|(_, outcome)| *outcome == Outcome::Dropped).count();
    // A tied copy that was dropped makes room for one, and one replaces them if all were dropped.
    let more = usize::from(model.kinds.contains(&Kind::Tie) && dropped > 0) + usize::from(dropped > 0);
    let most = usize::from(plan.max_executions.max(1)) + more;
    assert!(model.executions() <= most && model.kinds.len() <= usize::from(ATTEMPTS_MAX), "{:?}", model.kinds);
    match kind {
        Kind::First => {}
        Kind::Hedge => assert!(plan.delay.is_some_and(|delay| !delay.is_zero() && after(delay))),
        Kind::Tie => assert!(plan.tie.is_some_and(after)),
        Kind::Retry => {
            assert!(model.ends.iter().any(|(_, outcome)| matches!(outcome, Outcome::NonFatal | Outcome::Dropped)))
        }
        Kind::Fallback => {
            let is_alone = model.open().len() == 1;
            assert!(plan.fallback.is_some_and(|delay| after(delay) || is_alone));
            assert_eq!(model.kinds.iter().filter(|kind| **kind == Kind::Fallback).count(), 1);
        }
    }
}

fn check_finish(model: &mut Model, number: u8, is_success: bool, losers: Vec<u8>) {
    assert_eq!(losers, model.open(), "everything that is open is cancelled");
    match model.decisive() {
        Some((first, outcome)) => assert_eq!((number, is_success), (first, outcome == Outcome::Success)),
        None => {
            assert!(losers.is_empty(), "a failure that is not final does not end the race of the others");
            assert!(!is_success);
            let last = model.ends.iter().rev().find(|(_, outcome)| *outcome == Outcome::NonFatal);
            assert_eq!(number, last.or(model.ends.first()).expect("somebody has ended").0);
        }
    }
    assert!(model.finish.is_none_or(|finish| finish == (number, is_success)), "the end stays the same");
    model.finish = Some((number, is_success));
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        1 => Just(Outcome::Success),
        1 => Just(Outcome::Fatal),
        3 => Just(Outcome::NonFatal),
        3 => Just(Outcome::Dropped),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1..200_u64).prop_map(Event::Pass),
        2 => Just(Event::PassUntilDue),
        3 => (1..6_u8, outcomes()).prop_map(|(number, outcome)| Event::End(number, outcome)),
        1 => (0..5_u8).prop_map(Event::Tokens),
        2 => (0..4_usize).prop_map(Event::Token),
        2 => (0..400_u64, any::<bool>()).prop_map(|(steps, has_heard)| Event::Late(steps, has_heard)),
    ];
    prop::collection::vec(event, 0..40)
}

fn plans() -> impl Strategy<Value = Plan> {
    let delay = || prop::option::of((0..100_u64).prop_map(|steps| Duration::from_micros(steps * 100)));
    (delay(), 0..50_u64, 0..20_u64, 0..6_u8, delay(), delay()).prop_map(
        |(delay, gap, step, max_executions, tie, fallback)| Plan {
            delay,
            gap: Duration::from_micros(gap * 100),
            step: Duration::from_micros(step * 100),
            max_executions,
            tie,
            fallback,
            ..Plan::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_race_is_as_its_model(plan in plans(), events in events(), tokens in 0..8_u8) {
        let mut race = Race::new(plan, Time(0));
        let mut model = Model { tokens, ..Model::default() };
        let mut now = Time(0);
        poll(&mut race, &mut model, plan, now);
        for event in events {
            match event {
                Event::Pass(steps) => now = now + Duration::from_micros(steps * 100),
                Event::PassUntilDue => {
                    if let Action::Wait { until: Some(until) } = race.poll(now, |_| panic!("nothing is due now")) {
                        now = until;
                    }
                }
                Event::Tokens(count) => model.tokens = count,
                Event::Late(steps, has_heard) => {
                    let held = Duration::from_micros(steps * 100);
                    now = now + held / 2;
                    let due = race.next_at();
                    if race.handle_late(now, held, || has_heard) {
                        let next = race.next_at().expect("it is still due");
                        let due = due.expect("something was due");
                        prop_assert!(due <= now);
                        // A fallback keeps its time.
                        prop_assert!(next <= now || next - now <= ((due - Time(0)) / 2).min(PUT_OFF_MAX));
                        prop_assert!(!race.handle_late(next, held, || has_heard), "once for each attempt");
                    }
                }
                Event::Token(index) => {
                    if index < model.refused.len() {
                        model.tokens += 1;
                        race.handle_token(model.refused.remove(index), now);
                    }
                }
                Event::End(number, outcome) => {
                    let counts = model.open().contains(&number) && model.finish.is_none() && model.decisive().is_none();
                    let is_open = model.open().contains(&number);
                    prop_assert_eq!(race.handle_end(number, outcome), counts);
                    if is_open {
                        model.ends.push((number, outcome));
                    }
                }
            }
            poll(&mut race, &mut model, plan, now);
        }
        prop_assert_eq!(race.sent() as usize, model.kinds.len());
        prop_assert_eq!(race.open().iter().collect::<Vec<_>>(), model.open());
        prop_assert_eq!(model.taken, model.kinds.len() - 1);
    }
}
