//! The queue against plain lists, and what it and the list of names hold after a million cancels.

use super::*;
use crate::requests::cancel::{AttemptName, Attempts};
use bytes::Bytes;
use hedgerow_types::Instant;
use hedgerow_types::random::Random;
use hedgerow_wire::{Extension, Method};
use std::collections::VecDeque;

fn queued(number: i32) -> Queued {
    let extension = Extension { client_id: Some(7), request_id: Some(number as u64), ..Extension::default() };
    let header = Header { extension: Some(extension), ..Header::default() };
    let now = Now { instant: Instant(1), unix_micros: 1 };
    let caller = Caller::of(ConnectionId(number as u64 % 3), &header, number, Method::Get, now);
    Queued { caller, read: Read::Get { key: Bytes::new() }, terms: Terms::AT_LEADER, tie: None, bytes: 7 }
}

fn number(queued: Queued) -> i32 {
    queued.caller.sequence_id
}

#[test]
fn first_attempts_come_first_and_the_oldest_of_them() {
    let mut queue = Queue::default();
    for (at, lane) in [(1, Lane::Extra), (2, Lane::First), (3, Lane::Extra), (4, Lane::First)] {
        queue.push(lane, queued(at));
    }
    assert_eq!((queue.count(Lane::First), queue.count(Lane::Extra)), (2, 2));
    let order: Vec<i32> = std::iter::from_fn(|| queue.pop().map(number)).collect();
    assert_eq!(order, [2, 4, 1, 3]);
    assert_eq!(queue.total(), 0);
}

/// Whatever leaves from wherever, both lanes keep their order: against two plain lists.
#[test]
fn the_queue_does_what_two_lists_do() {
    let mut random = Random::new(5);
    let mut queue = Queue::default();
    let mut lists: [VecDeque<(i32, Slot)>; 2] = Default::default();
    let lanes = [Lane::First, Lane::Extra];
    for at in 0..20_000 {
        let which = random.below(2) as usize;
        match random.below(5) {
            0 | 1 => {
                let slot = queue.push(lanes[which], queued(at));
                lists[which].push_back((at, slot));
            }
            2 => {
                let expected = lists.iter_mut().find_map(VecDeque::pop_front).map(|(at, _)| at);
                assert_eq!(queue.pop().map(number), expected);
            }
            3 => {
                let expected = lists[which].back().copied();
                assert_eq!(queue.newest(lanes[which]), expected.map(|(_, slot)| slot));
                if random.chance(1, 2)
                    && let Some(slot) = queue.newest(lanes[which])
                {
                    assert_eq!(queue.take(slot).map(number), lists[which].pop_back().map(|(at, _)| at));
                }
            }
            _ if !lists[which].is_empty() => {
                let (at, slot) = lists[which].remove(random.below(lists[which].len() as u64) as usize).unwrap();
                assert_eq!(queue.get(slot).map(|it| it.caller.sequence_id), Some(at));
                assert_eq!(queue.take(slot).map(number), Some(at));
                assert!(queue.take(slot).is_none(), "twice");
            }
            _ => {}
        }
        assert_eq!([queue.count(Lane::First), queue.count(Lane::Extra)], [lists[0].len(), lists[1].len()]);
        assert_eq!(queue.oldest(Lane::Extra), lists[1].front().map(|(_, slot)| *slot));
    }
    let gone: Vec<i32> = queue.take_of(ConnectionId(1)).into_iter().map(number).collect();
    assert!(gone.iter().all(|at| at % 3 == 1) && !gone.is_empty());
    lists.iter_mut().for_each(|list| list.retain(|(at, _)| at % 3 != 1));
    let left: Vec<i32> = std::iter::from_fn(|| queue.pop().map(number)).collect();
    assert_eq!(left, lists.into_iter().flatten().map(|(at, _)| at).collect::<Vec<i32>>());
}

/// A place that was left is used again, and so is a name.
#[test]
fn h18_a_million_cancels_take_the_memory_of_what_waits() {
    let mut queue = Queue::default();
    let mut attempts = Attempts::default();
    let mut waiting = VecDeque::new();
    for at in 0..1_000_000 {
        let one = queued(at);
        let (name, ways) = (one.caller.name.unwrap(), (one.caller.connection, at));
        let slot = queue.push(Lane::First, one);
        attempts.list(name, ways, crate::requests::cancel::WaitsIn::Queued(slot));
        waiting.push_back(slot);
        if waiting.len() > 100 {
            // The one in the middle is cancelled.
            let slot = waiting.remove(50).unwrap();
            attempts.forget(&queue.take(slot).unwrap().caller);
        }
    }
    assert_eq!((queue.places.len(), queue.total()), (101, 100));
    assert_eq!(attempts.to_json()["listed"], 100);
    assert!(queue.places.capacity() <= 256);
}

/// A client that gives the name of an attempt that waits to another one can cancel the first; the second leaves no trace.
#[test]
fn h19_a_name_that_is_in_use_stays_with_its_owner() {
    let mut attempts = Attempts::default();
    let (first, mut second) = (queued(3), queued(3));
    second.caller.sequence_id = 4;
    let name = first.caller.name.unwrap();
    assert_eq!(name, AttemptName { client: 7, request: 3, attempt: 1 });
    let mut queue = Queue::default();
    attempts.list_caller(&first.caller, crate::requests::cancel::WaitsIn::Queued(queue.push(Lane::First, queued(3))));
    attempts.list_caller(&second.caller, crate::requests::cancel::WaitsIn::Queued(queue.push(Lane::First, queued(4))));
    attempts.forget(&second.caller);
    assert_eq!(attempts.to_json()["listed"], 1);
    attempts.forget(&first.caller);
    assert_eq!(attempts.to_json()["listed"], 0);
}
