//! Who is served when, and by which clock.

use crate::named::{CONNECTION, Small, extra, first};
use crate::world::{MS, value_of};
use hedgerow_node::ConnectionId;
use hedgerow_types::{ReadLevel, Refusal};
use hedgerow_wire::{Body, Extension, Header};

#[test]
fn h20_extra_attempts_queue_behind_first_ones() {
    let mut small = Small::configured(|config| config.reads_per_turn = 4);
    let node = small.places.leader;
    let extras: Vec<i32> = (0..3).map(|request| small.put(node, extra(request, ReadLevel::Linearizable))).collect();
    // Pegasus' flag says the same without our extension.
    let flagged = Header { is_backup: true, ..Header { extension: None, ..small.header(Extension::default()) } };
    let flagged = small.world.put_on(CONNECTION, node, &flagged, &Body::Get(small.key.full()));
    let firsts: Vec<i32> = (10..15).map(|request| small.put(node, first(request, ReadLevel::Linearizable))).collect();
    assert_eq!(small.turn(node), firsts[..4]);
    // One that comes later is a first attempt all the same.
    let late = small.put(node, first(20, ReadLevel::Linearizable));
    assert_eq!(small.turn(node), [firsts[4], late, extras[0], extras[1]]);
    assert!(small.world.machines[&node].node.has_queued());
    assert_eq!(small.turn(node), [extras[2], flagged]);
    assert!(!small.world.machines[&node].node.has_queued());
    let told = small.told(node);
    assert_eq!((&told["first"]["run"], &told["extra"]["run"]), (&6.into(), &4.into()), "{told}");
    small.assert_idle(node);
}

/// The lease is looked at when the read is served, not when it came.
#[test]
fn a_read_that_was_queued_is_not_served_from_a_lease_that_was_lost_meanwhile() {
    let mut small = Small::new();
    let leader = small.places.leader;
    small.world.cut_off(leader);
    small.world.run(MS);
    assert!(small.world.machines[&leader].node.replicas_for_inspection().any(|it| it.holds_lease(small.world.now)));
    let read = Extension { deadline_ms: Some(60_000), ..first(1, ReadLevel::Linearizable) };
    let read = small.put(leader, read);
    // The process stands still while the others choose a new leader and write.
    let machine = small.world.machines.remove(&leader).unwrap();
    small.world.run(10_000 * MS);
    let to = small.places.followers.clone();
    let key = small.key.clone();
    let wrote = to.into_iter().find(|node| {
        let number = small.world.send_write(&key, *node, "1");
        small.world.wait(number).1.extension.is_some_and(|extension| extension.index > 0)
    });
    assert!(wrote.is_some(), "one of them leads");
    small.world.machines.insert(leader, machine);
    small.world.settle(leader);
    assert!(small.world.answer(read).is_none(), "it waits for a majority");
    small.world.cut.clear();
    let (_, frame) = small.world.wait(read);
    match value_of(frame) {
        Ok((value, _)) => assert_eq!(value, "1"),
        Err((refusal, name)) => assert!(matches!(refusal, Some(Refusal::NotLeader { .. })), "{refusal:?} {name}"),
    }
}

/// A deadline that passes in the queue is answered, and the read is not run. The time is that of the caller's own word.
#[test]
fn a_read_whose_deadline_passed_in_the_queue_is_refused_unrun() {
    let mut small = Small::new();
    let node = small.places.leader;
    let run = small.told(node)["first"]["run"].as_u64();
    let late = Extension { deadline_ms: Some(3), ..first(1, ReadLevel::Eventual) };
    let (late, in_time) = (small.put(node, late), small.put(node, first(2, ReadLevel::Eventual)));
    small.world.now = small.world.now + 3 * MS;
    small.world.settle(node);
    assert_eq!(small.refusal(late), Some(Refusal::Expired));
    assert!(value_of(small.world.answer(in_time).unwrap().1).is_ok());
    let told = small.told(node);
    assert_eq!((told["first"]["run"].as_u64(), &told["first"]["expired"]), (run.map(|run| run + 1), &1.into()));
    small.assert_idle(node);
}

/// Extra attempts that no turn comes for are told so when their time is over, while first ones are served.
#[test]
fn extra_attempts_expire_behind_a_steady_stream_of_first_ones() {
    let mut small = Small::configured(|config| config.reads_per_turn = 2);
    let node = small.places.leader;
    let starved = Extension { deadline_ms: Some(2), ..extra(1, ReadLevel::Eventual) };
    let starved = small.put(node, starved);
    let mut answered = Vec::new();
    for turn in 0..4 {
        small.world.now = small.world.now + MS;
        for request in 0..4 {
            small.put(node, first(10 + 4 * turn + request, ReadLevel::Eventual));
        }
        answered.push(small.turn(node).contains(&starved));
    }
    assert_eq!(answered, [false, true, false, false]);
    let told = small.told(node);
    assert_eq!((&told["extra"]["expired"], &told["extra"]["run"]), (&1.into(), &0.into()), "{told}");
}

/// One connection has sent much more than a turn takes when another one sends a read: it is served in the next turn. So are those of the
/// first one, in the order in which they came.
#[test]
fn n18_a_read_of_another_connection_does_not_wait_for_all_that_came_before() {
    let mut small = Small::configured(|config| config.reads_per_turn = 17);
    let node = small.places.leader;
    let many: Vec<i32> = (0..100).map(|request| small.put(node, first(request, ReadLevel::Linearizable))).collect();
    assert_eq!(small.turn(node), many[..17]);
    let other = ConnectionId(9);
    small.put_on(other, node, first(1_000, ReadLevel::Linearizable));
    let mut rest = small.turn(node);
    let has_answer = |small: &mut Small| {
        let outbox = small.world.machines.get_mut(&node).unwrap().node.outbox();
        outbox.clients.remove(&other).is_some()
    };
    assert!(has_answer(&mut small), "its turn is over, and so is that of all others");
    rest.extend((0..10).flat_map(|_| small.turn(node)));
    assert_eq!(rest, many[17..]);
    small.assert_idle(node);
}
