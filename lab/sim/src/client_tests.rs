//! What counts as an answer to the operation that is on: everything else the simulation says rests on it.

use super::*;
use crate::clock::MILLISECOND;
use crate::executor::Executor;
use crate::reading::Hedging;
use crate::scenario::Plan;

const PACE: Pace = Pace { think_max: 0, attempt_timeout: 100 * MILLISECOND, deadline: 250 * MILLISECOND };

fn client(call: Call) -> Client {
    let table = Table { id: 1, partition_count: 2 };
    let mut client = Client::new(7, 99, 3, table, PACE, Random::new(1));
    let current = Current { wish: Wish::of_leader(0, call), start: 10, floor: 3, heard: Vec::new(), may_fail: false };
    client.current = Some(current);
    client
}

fn heard(call: Call, start: Time, answer: Answer) -> Heard {
    let seen = Seen { machine: 1, index: Some(5), staleness: None, asked: start, served: 20, floor: 0 };
    let outcome = Outcome::Ok(answer);
    let operation = Operation { client: 7, key: 0, call, start, end: 30, outcome, seen: Some(seen) };
    Heard { operation, seen, is_fallback: false }
}

fn told(client: &mut Client, result: Result<Answer, GaveUp>) -> Told {
    put(&client.ended, Ended::Operation(result));
    let mut workload = Workload::new(&Plan::new(1, None, None), Random::new(2));
    let (told, _) = client.look(40, &mut workload).expect("it has ended");
    told.expect("an operation")
}

#[test]
fn an_answer_counts_for_the_operation_that_asked_for_it() {
    for (other, is_meant) in [
        (heard(Call::Put(1), 10, Answer::Done), true),
        // What an operation before asked for, and hears of now.
        (heard(Call::Put(1), 9, Answer::Done), false),
        (heard(Call::Put(2), 11, Answer::Done), false),
        (heard(Call::Remove, 11, Answer::Done), false),
        (heard(Call::GET, 11, Answer::Content(None)), false),
        (
            Heard {
                operation: Operation { key: 1, ..heard(Call::Put(1), 10, Answer::Done).operation },
                ..heard(Call::Put(1), 10, Answer::Done)
            },
            false,
        ),
    ] {
        let mut client = client(Call::Put(1));
        client.hear(other);
        let told = told(&mut client, Ok(Answer::Done));
        assert_eq!(told.heard.is_some(), is_meant, "{other:?}");
        assert_eq!(told.operation.seen.is_some(), is_meant);
        assert!(client.current.is_none());
    }
}

#[test]
fn what_nobody_answered_rests_on_nothing() {
    let mut client = client(Call::GET);
    client.hear(heard(Call::GET, 12, Answer::Content(Some(4))));
    assert_eq!(told(&mut client, Ok(Answer::Content(Some(5)))).heard, None);
}

#[test]
fn a_fallback_is_judged_at_its_own_level_and_every_read_by_its_session() {
    let mut client = client(Call::GET);
    let bounded = Call::Get(ReadLevel::Bounded(Duration::from_millis(50)));
    client.hear(Heard { is_fallback: true, ..heard(bounded, 12, Answer::Content(None)) });
    let told = told(&mut client, Ok(Answer::Content(None)));
    assert_eq!(told.operation.call, bounded);
    assert_eq!(told.operation.seen.map(|seen| seen.floor), Some(3));
}

#[test]
fn a_write_failed_only_if_the_client_says_that_it_had_no_effect() {
    for (is_unknown, outcome) in [(true, Outcome::Unknown), (false, Outcome::Failed)] {
        let told = told(&mut client(Call::Incr(1)), Err(GaveUp { is_unknown, is_late: true }));
        assert_eq!((told.operation.outcome, told.is_late), (outcome, true));
    }
}

/// The same words in the real client's own terms.
#[test]
fn options_say_what_the_plan_says() {
    let mut random = Random::new(3);
    let is_whole = |hedging: &Hedging| hedging.plan.tie.is_some() && hedging.plan.fallback.is_some();
    let mut drawn = std::iter::repeat_with(|| Hedging::drawn(true, true, &mut random));
    let hedging = drawn.find(is_whole).expect("one in eight");
    let options = hedging.options(&mut Random::new(1));
    assert_eq!(options.fallback.map(|fallback| Some(fallback.after)), Some(hedging.plan.fallback));
    assert_ne!(options.tie, hedgerow_client::TieMode::Never);
}

/// A client alone in the world goes on dialling, and its tasks are woken when they asked for it.
#[test]
fn a_client_that_nobody_answers_goes_on_dialling() {
    let executor = Executor::new(Random::new(1));
    let mut client = client(Call::GET);
    executor.spawn(0, client.open());
    let (mut now, mut dials) = (0, 0);
    for _ in 0..1_000 {
        let next = executor.run(now);
        for dial in executor.take_dials() {
            dials += 1;
            dial.pipe.end(std::io::ErrorKind::ConnectionRefused);
        }
        now = executor.run(now).or(next).expect("it tries again");
    }
    assert!(dials > 50 && client.opened.is_none(), "{dials} until {now}");
}
