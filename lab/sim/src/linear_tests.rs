//! Hand-made histories, good and bad, and a comparison with a search that tries every order.

use super::*;
use hedgerow_types::random::Random;

fn operation(client: u32, start: u64, end: u64, call: Call, outcome: Outcome) -> Operation {
    Operation { client, key: 0, call, start, end, outcome, seen: None }
}

fn ok(client: u32, start: u64, end: u64, call: Call, answer: Answer) -> Operation {
    operation(client, start, end, call, Outcome::Ok(answer))
}

fn got(client: u32, start: u64, end: u64, content: Content) -> Operation {
    ok(client, start, end, Call::GET, Answer::Content(content))
}

fn put(client: u32, start: u64, end: u64, value: i64) -> Operation {
    ok(client, start, end, Call::Put(value), Answer::Done)
}

fn unknown(client: u32, start: u64, call: Call) -> Operation {
    operation(client, start, start + 1, call, Outcome::Unknown)
}

fn verdict(operations: &[Operation]) -> Verdict {
    let mut history = History::default();
    operations.iter().for_each(|operation| history.push(*operation));
    check(&history)
}

fn is_good(operations: &[Operation]) -> bool {
    let verdict = verdict(operations);
    assert!(verdict.undecided.is_empty());
    verdict.violations.is_empty()
}

#[test]
fn a_read_sees_the_write_before_it() {
    assert!(is_good(&[put(1, 0, 10, 5), got(2, 20, 30, Some(5))]));
    assert!(!is_good(&[put(1, 0, 10, 5), got(2, 20, 30, None)]));
    assert!(!is_good(&[put(1, 0, 10, 5), put(1, 11, 19, 6), got(2, 20, 30, Some(5))]));
}

#[test]
fn concurrent_operations_may_go_either_way() {
    for content in [None, Some(5)] {
        assert!(is_good(&[put(1, 0, 100, 5), got(2, 20, 30, content)]));
    }
    assert!(is_good(&[put(1, 0, 100, 5), got(2, 20, 30, None), got(2, 40, 50, Some(5))]));
    assert!(!is_good(&[put(1, 0, 100, 5), got(2, 20, 30, Some(5)), got(2, 40, 50, None)]), "time does not run back");
    assert!(!is_good(&[put(1, 0, 100, 5), got(2, 20, 30, Some(5)), got(3, 40, 50, None)]), "nor between clients");
}

#[test]
fn operations_that_touch_are_concurrent() {
    assert!(is_good(&[put(1, 0, 10, 5), got(2, 10, 30, None)]));
}

#[test]
fn an_unknown_write_may_happen_late_or_never_but_once() {
    let write = unknown(1, 0, Call::Put(5));
    assert!(is_good(&[write, got(2, 20, 30, None)]));
    assert!(is_good(&[write, got(2, 20, 30, None), got(2, 40, 50, Some(5))]));
    assert!(!is_good(&[write, got(2, 20, 30, Some(5)), got(2, 40, 50, None)]));
    let removal = unknown(1, 5, Call::Remove);
    assert!(is_good(&[put(2, 0, 3, 1), removal, got(2, 20, 30, Some(1)), got(2, 40, 50, None)]));
    let again = put(2, 60, 70, 1);
    assert!(!is_good(&[put(2, 0, 3, 1), removal, got(2, 40, 50, None), again, got(2, 80, 90, None)]));
}

#[test]
fn an_unknown_write_does_not_happen_before_it_started() {
    assert!(!is_good(&[got(2, 0, 10, Some(5)), unknown(1, 20, Call::Put(5))]));
}

#[test]
fn a_failed_write_never_happens() {
    let failed = operation(1, 0, 10, Call::Put(5), Outcome::Failed);
    assert!(is_good(&[failed, got(2, 20, 30, None)]));
    assert!(!is_good(&[failed, got(2, 20, 30, Some(5))]));
}

#[test]
fn a_doubled_increment_shows_in_sums() {
    let first = ok(1, 0, 10, Call::Incr(4), Answer::Sum(4));
    assert!(is_good(&[first, ok(2, 20, 30, Call::Incr(1), Answer::Sum(5))]));
    assert!(!is_good(&[first, ok(2, 20, 30, Call::Incr(1), Answer::Sum(9))]));
    let open = unknown(1, 0, Call::Incr(4));
    assert!(is_good(&[open, got(2, 20, 30, Some(4))]));
    assert!(!is_good(&[open, got(2, 20, 30, Some(8))]));
}

#[test]
fn hundreds_of_unknown_writes_are_no_reason_to_give_up() {
    let mut operations = Vec::new();
    let mut sum = 0;
    for round in 0..300u64 {
        let now = round * 100;
        operations.push(unknown(1, now, Call::Incr(1 + round as i64 % 5)));
        operations.push(unknown(2, now + 1, Call::Remove));
        // Some of the unknown increments happened, and only the next sum tells.
        let late = if round % 7 == 3 { 1 + round as i64 % 5 } else { 0 };
        sum += late + 10;
        operations.push(ok(3, now + 50, now + 60, Call::Incr(10), Answer::Sum(sum)));
    }
    assert!(is_good(&operations));
    operations.insert(6, ok(3, 170, 180, Call::Incr(10), Answer::Sum(9)));
    assert!(!is_good(&operations[..7]), "a sum that no choice of them reaches");
}

#[test]
fn a_swap_tells_what_was_there() {
    let swap = |start, expected, is_applied, previous| {
        ok(2, start, start + 5, Call::Swap { expected, new: 9 }, Answer::Swapped { is_applied, previous })
    };
    assert!(is_good(&[put(1, 0, 5, 1), swap(10, Some(1), true, Some(1)), got(1, 20, 30, Some(9))]));
    assert!(is_good(&[put(1, 0, 5, 1), swap(10, Some(2), false, Some(1)), got(1, 20, 30, Some(1))]));
    assert!(is_good(&[swap(10, None, true, None), got(1, 20, 30, Some(9))]));
    assert!(!is_good(&[put(1, 0, 5, 1), swap(10, Some(1), true, Some(1)), swap(20, Some(1), true, Some(1))]));
    assert!(!is_good(&[put(1, 0, 5, 1), swap(10, Some(1), false, Some(1))]));
}

#[test]
fn a_violation_is_told_by_few_operations() {
    let mut operations: Vec<Operation> = (0..50).map(|i| put(1, i * 10, i * 10 + 5, i as i64)).collect();
    operations.extend((0..50).map(|i| got(2, i * 10 + 6, i * 10 + 7, Some(i as i64))));
    operations.push(got(3, 208, 209, Some(19)));
    operations.push(unknown(4, 400, Call::Put(77)));
    let verdict = verdict(&operations);
    let violation = &verdict.violations[0];
    assert_eq!(violation.culprit, got(3, 208, 209, Some(19)));
    assert_eq!(violation.reachable, [Some(20)]);
    assert_eq!(violation.operations.iter().filter(|operation| !operation.call.is_write()).count(), 1);
    assert!(violation.operations.iter().all(|operation| operation.start <= 209), "{violation}");
}

/// The definition, taken literally: tries every order of every subset that contains what was acknowledged.
fn is_explained_by_some_order(operations: &[Operation], placed: &mut Vec<usize>, content: Content) -> bool {
    let is_open = |index: &usize| !placed.contains(index);
    let open: Vec<usize> = (0..operations.len()).filter(is_open).collect();
    let must = |index: &&usize| matches!(operations[**index].outcome, Outcome::Ok(_));
    let Some(first_end) = open.iter().filter(must).map(|index| operations[*index].end).min() else { return true };
    for index in open {
        let operation = &operations[index];
        let answer = match operation.outcome {
            Outcome::Ok(answer) => Some(answer),
            Outcome::Unknown => None,
            Outcome::Failed => continue,
        };
        if operation.start <= first_end
            && let Some(after) = step(content, &operation.call, answer)
        {
            placed.push(index);
            if is_explained_by_some_order(operations, placed, after) {
                return true;
            }
            placed.pop();
        }
    }
    false
}

fn random_history(random: &mut Random) -> Vec<Operation> {
    let mut operations: Vec<Operation> = Vec::new();
    for client in 0..3 {
        let mut time = random.below(10);
        for _ in 0..1 + random.below(3) {
            let small = random.below(3) as i64;
            let content = random.chance(2, 3).then_some(small);
            let (call, answer) = match random.below(5) {
                0 => (Call::GET, Answer::Content(content)),
                1 => (Call::Put(small), Answer::Done),
                2 => (Call::Remove, Answer::Done),
                3 => {
                    let by = if random.chance(1, 20) { -1 } else { 1 + random.below(2) as i64 };
                    (Call::Incr(by), Answer::Sum(by + random.below(3) as i64))
                }
                _ => {
                    let expected = random.chance(1, 2).then_some(1);
                    let is_applied = expected == content;
                    (Call::Swap { expected, new: small }, Answer::Swapped { is_applied, previous: content })
                }
            };
            let end = time + 1 + random.below(10);
            let outcome = if random.chance(1, 4) { Outcome::Unknown } else { Outcome::Ok(answer) };
            operations.push(operation(client, time, end, call, outcome));
            time = end + random.below(4);
        }
    }
    operations
}

#[test]
fn the_search_agrees_with_the_definition() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..20_000 {
        let operations = random_history(&mut Random::new(seed));
        let expected = is_explained_by_some_order(&operations, &mut Vec::new(), None);
        assert_eq!(is_good(&operations), expected, "seed {seed}: {operations:#?}");
        *(if expected { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 1_000 && bad > 1_000, "both kinds must occur: {good} good, {bad} bad");
}

#[test]
fn thousands_of_operations_with_open_ones_are_judged_within_the_limit_of_pairs() {
    let mut random = Random::new(1);
    let mut history = History::default();
    let mut contents = [None; 8];
    for i in 0..4_000u64 {
        // Each operation takes effect in the middle of its time, so the order of the loop is an explanation.
        let key = random.below(8) as usize;
        let (start, end) = (1_000 + i * 10 - random.below(200), 1_000 + i * 10 + 1 + random.below(200));
        let (call, answer) = match random.below(3) {
            0 => (Call::GET, Answer::Content(contents[key])),
            1 => {
                contents[key] = Some(i as i64);
                (Call::Put(i as i64), Answer::Done)
            }
            _ => {
                let sum: i64 = contents[key].unwrap_or(0) + 1;
                contents[key] = Some(sum);
                (Call::Incr(1), Answer::Sum(sum))
            }
        };
        let outcome = if random.chance(1, 100) { Outcome::Unknown } else { Outcome::Ok(answer) };
        history.push(Operation { client: i as u32, key: key as u32, call, start, end, outcome, seen: None });
    }
    assert_eq!(check(&history), Verdict::default());
}
