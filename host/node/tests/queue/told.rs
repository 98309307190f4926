//! What replies say of the read: its level, and on request how the node came to it.

use crate::named::{CONNECTION, Small, extra, first};
use crate::world::{MS, value_of};
use hedgerow_types::{NodeId, ReadLevel};
use hedgerow_wire::message::Put;
use hedgerow_wire::{Body, Extension, ReplyExtension};

fn ask(small: &mut Small, node: NodeId, extension: Extension) -> ReplyExtension {
    let number = small.put(node, extension);
    small.world.settle(node);
    value_of(small.world.wait(number).1).unwrap().1
}

#[test]
fn a_reply_says_at_which_level_it_was_served() {
    let mut small = Small::new();
    let (leader, follower) = (small.places.leader, small.places.followers[0]);
    let levels = [ReadLevel::Linearizable, ReadLevel::Session, ReadLevel::Bounded(1_000 * MS), ReadLevel::Eventual];
    for (code, level) in (0..).zip(levels) {
        for node in [leader, follower] {
            assert_eq!(ask(&mut small, node, first(1, level)).read_level_code, Some(code), "{level} at {node}");
        }
    }
    // Where the request leaves it to the table, and the table is asked for any replica.
    let table = Extension { any_replica: true, ..Extension::default() };
    assert_eq!(ask(&mut small, follower, table).read_level_code, Some(0));
}

/// Replies to callers that know nothing of levels, attempts and traces are what they always were.
#[test]
fn callers_that_ask_for_nothing_new_are_told_nothing_new() {
    let mut small = Small::new();
    let leader = small.places.leader;
    let told = ask(&mut small, leader, Extension { deadline_ms: Some(1_000), ..Extension::default() });
    assert_eq!((told.read_level_code, told.attempt, told.mode), (None, None, None));
    let put = Put { key: small.key.full(), value: "1".into(), expire_ts_seconds: 0 };
    let header = small.header(first(9, ReadLevel::Linearizable));
    let number = small.world.put_on(CONNECTION, leader, &header, &Body::Put(put));
    small.world.settle(leader);
    let told = small.world.wait(number).1.extension.unwrap();
    assert_eq!((told.read_level_code, told.mode), (None, None), "a write has no level");
}

fn mode(small: &mut Small, node: NodeId, extension: Extension) -> String {
    let told = ask(small, node, Extension { wants_trace: true, ..extension });
    told.mode.unwrap().to_string()
}

#[test]
fn a_trace_says_in_a_few_words_how_the_read_was_served() {
    let mut small = Small::new();
    let (leader, follower) = (small.places.leader, small.places.followers[0]);
    assert_eq!(mode(&mut small, leader, first(1, ReadLevel::Linearizable)), "leader lease, queued 0 us");
    assert_eq!(mode(&mut small, follower, first(2, ReadLevel::Linearizable)), "follower index, queued 0 us");
    assert_eq!(mode(&mut small, follower, extra(3, ReadLevel::Eventual)), "follower eventual, queued 0 us extra");
    small.world.run(100 * MS);
    let proof = mode(&mut small, follower, first(4, ReadLevel::Bounded(1_000 * MS)));
    assert!(proof.starts_with("follower proof ") && proof.ends_with(" ms, queued 0 us"), "{proof}");
    let queued = small.put(leader, Extension { wants_trace: true, ..extra(5, ReadLevel::Linearizable) });
    small.world.now = small.world.now + MS;
    small.world.settle(leader);
    let (_, told) = value_of(small.world.wait(queued).1).unwrap();
    assert_eq!(told.mode.unwrap().as_str(), "leader lease, queued 1000 us extra");
    assert_eq!((told.queue_us, told.attempt), (1_000, Some(2)));
}

#[test]
fn a_trace_tells_a_quorum_from_a_lease() {
    let mut small = Small::new();
    let leader = small.places.leader;
    small.world.cut_off(leader);
    small.world.run_until(5_000 * MS, |world| {
        let now = world.now;
        !world.machines[&leader].node.replicas_for_inspection().any(|it| it.id.partition < 2 && it.holds_lease(now))
    });
    let read = Extension { wants_trace: true, deadline_ms: Some(20_000), ..first(1, ReadLevel::Linearizable) };
    let read = small.put(leader, read);
    small.world.settle(leader);
    small.world.cut.clear();
    let (_, told) = value_of(small.world.wait(read).1).unwrap();
    assert_eq!(told.mode.unwrap().as_str(), "leader quorum, queued 0 us");
}
