//! The list of requests that wait against a plain one.

use super::*;
use crate::requests::cancel::tests::colliding_names;
use hedgerow_env::Now;
use hedgerow_types::Instant;
use hedgerow_types::random::Random;
use hedgerow_wire::{Header, Method};

fn caller(connection: u64, sequence_id: i32, name: Option<AttemptName>) -> Caller {
    let now = Now { instant: Instant(1), unix_micros: 1 };
    let caller = Caller::of(ConnectionId(connection), &Header::default(), sequence_id, Method::Get, now);
    Caller { name, ..caller }
}

fn name(request: u64) -> AttemptName {
    AttemptName { client: 7, request, attempt: 1 }
}

/// Whatever comes and leaves in whichever order, each is found by number, connection and name until it has left, and never after.
#[test]
fn the_list_does_what_a_plain_list_does() {
    const NAMES: u64 = 40;
    let mut random = Random::new(3);
    let mut callers = Callers::default();
    // With the connection, the name, and whether it is the one that the name means.
    let mut plain: Vec<(RequestId, u64, AttemptName, bool)> = Vec::new();
    let mut gone: Vec<RequestId> = Vec::new();
    for step in 0..30_000 {
        if random.below(100) < if plain.len() < 60 { 60 } else { 40 } {
            let (connection, name) = (random.below(5), name(random.below(NAMES)));
            let means = !plain.iter().any(|it| (it.1, it.2, it.3) == (connection, name, true));
            let id = callers.insert(caller(connection, step, Some(name)), WaitsIn::Service);
            assert!(!gone.contains(&id) && plain.iter().all(|it| it.0 != id));
            plain.push((id, connection, name, means));
        } else if !plain.is_empty() {
            let (id, connection, name, _) = plain.remove(random.below(plain.len() as u64) as usize);
            let left = callers.remove(id).unwrap();
            assert_eq!((left.connection, left.name), (ConnectionId(connection), Some(name)));
            gone.push(id);
        }
        let waits_in = WaitsIn::Aside(step as u64);
        if let Some((id, ..)) = plain.last() {
            callers.note(*id, waits_in);
        }
        let old = gone.len().saturating_sub(20);
        for id in &gone[old..] {
            callers.note(*id, waits_in);
            assert!(callers.get(*id).is_none() && callers.remove(*id).is_none(), "it has left");
        }
        let connection = random.below(5);
        let of: Vec<RequestId> =
            callers.of(ConnectionId(connection), Kind::Read).into_iter().map(|(id, _)| id).collect();
        let expected = plain.iter().filter(|it| it.1 == connection).map(|it| it.0);
        assert_eq!(of, expected.collect::<Vec<_>>());
        let name = name(random.below(NAMES));
        let meant = plain.iter().find(|it| (it.1, it.2, it.3) == (connection, name, true)).map(|it| it.0);
        assert_eq!(callers.named(ConnectionId(connection), name).map(|(id, _)| id), meant);
        assert_eq!(callers.named_count(), plain.iter().filter(|it| it.3).count());
    }
    plain.iter().for_each(|it| drop(callers.remove(it.0)));
    assert!(callers.newest.is_empty() && callers.names.is_empty());
    assert_eq!(callers.count(), 0);
}

/// A client that gives the name of a request that waits to another one can cancel the first; the second leaves no trace.
#[test]
fn h19_a_name_that_is_in_use_stays_with_its_owner() {
    let mut callers = Callers::default();
    let ids = [4, 5].map(|number| callers.insert(caller(1, number, Some(name(3))), WaitsIn::Service));
    callers.note(ids[1], WaitsIn::Delayed(8));
    assert_eq!(callers.named(ConnectionId(1), name(3)), Some((ids[0], WaitsIn::Service)));
    drop(callers.remove(ids[1]));
    assert_eq!(callers.named(ConnectionId(1), name(3)), Some((ids[0], WaitsIn::Service)));
    assert_eq!(callers.named(ConnectionId(2), name(3)), None, "another connection's");
    drop(callers.remove(ids[0]));
    assert_eq!(callers.named_count(), 0);
}

/// A place that was left is used again, and so is a name.
#[test]
fn h18_a_million_cancels_take_the_memory_of_what_waits() {
    let mut callers = Callers::default();
    let mut waiting = std::collections::VecDeque::new();
    for number in 0..1_000_000 {
        waiting.push_back(callers.insert(caller(number % 3, number as i32, Some(name(number))), WaitsIn::Service));
        if waiting.len() > 100 {
            // The one in the middle is cancelled.
            drop(callers.remove(waiting.remove(50).unwrap()));
        }
    }
    assert_eq!((callers.places.len(), callers.free.len(), callers.named_count()), (101, 1, 100));
}

/// A hash map compared each of these names with all others. No clock is looked at: with such a map this test takes minutes.
#[test]
fn n9_names_that_collide_under_a_known_hash_are_listed_as_fast_as_others() {
    const COUNT: u64 = 300_000;
    let mut callers = Callers::default();
    let ids: Vec<RequestId> =
        colliding_names(COUNT).map(|name| callers.insert(caller(1, 5, Some(name)), WaitsIn::Service)).collect();
    assert_eq!(callers.named_count() as u64, COUNT);
    for (name, id) in colliding_names(COUNT).zip(ids) {
        assert_eq!(callers.named(ConnectionId(1), name), Some((id, WaitsIn::Service)));
        drop(callers.remove(id));
    }
    assert_eq!(callers.named_count(), 0);
}

/// Each close looked at all requests that waited, 4 billion of them here. No clock is looked at: done so, this test takes minutes.
#[test]
fn n10_a_connection_that_closes_costs_what_it_had() {
    const CONNECTIONS: u64 = 100_000;
    let mut callers = Callers::default();
    (0..CONNECTIONS).for_each(|connection| _ = callers.insert(caller(connection, 1, None), WaitsIn::Service));
    for connection in 0..CONNECTIONS {
        let of = callers.of(ConnectionId(connection), Kind::Read);
        assert_eq!(of.len(), 1);
        of.into_iter().for_each(|(id, _)| drop(callers.remove(id)));
    }
    assert_eq!((callers.count(), callers.newest.len()), (0, 0));
}

/// A read without a name is found by its number, on its own connection, and as long as it waits. Looking for it has an end.
#[test]
fn n11_a_read_is_found_by_its_number_among_the_newest() {
    let mut callers = Callers::default();
    let found = |callers: &Callers, connection, number| {
        callers.numbered_read(ConnectionId(connection), number).map(|(id, _)| id)
    };
    let ids: Vec<RequestId> = (0..NUMBERED_LOOK_MAX as i32 + 1)
        .map(|number| callers.insert(caller(1, number, None), WaitsIn::Service))
        .collect();
    let write = Caller { method: Method::Put, ..caller(1, 5_000, None) };
    callers.insert(write, WaitsIn::Service);
    assert_eq!((found(&callers, 1, 1), found(&callers, 1, 1_024)), (Some(ids[1]), Some(ids[1_024])));
    assert_eq!(found(&callers, 1, 0), None, "it is too far away");
    assert_eq!((found(&callers, 2, 1), found(&callers, 1, 5_000)), (None, None), "another connection's, and a write");
    drop(callers.remove(ids[700]));
    assert_eq!((found(&callers, 1, 700), found(&callers, 1, 0)), (None, Some(ids[0])));
}
