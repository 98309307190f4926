//! How much may wait, who is refused when it is too much, and what a refusal says.

use crate::named::{CLIENT, CONNECTION, Small, extra, first, refusal_of};
use crate::world::{MS, value_of};
use bytes::Bytes;
use hedgerow_node::ConnectionId;
use hedgerow_node::config::{
    EXTRA_READS_QUEUED_MAX, FRAME_COST, READS_QUEUED_BYTES_MAX, READS_QUEUED_MAX, READY_TURNS_MAX,
    REQUEST_BYTES_PER_TURN,
};
use hedgerow_types::{NodeId, ReadLevel, Refusal};
use hedgerow_wire::message::{CheckAndSet, CommandLine, MultiGet, QueryConfig};
use hedgerow_wire::{Body, Extension, Header, Reply, Text};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn is_busy(refusal: Option<&Refusal>) -> bool {
    matches!(refusal, Some(Refusal::Busy(_)))
}

/// Fills the queue of `node` with first attempts; their numbers.
fn fill(small: &mut Small, node: NodeId, count: usize) -> Vec<i32> {
    (0..count as u64).map(|request| small.put(node, first(1_000 + request, ReadLevel::Eventual))).collect()
}

/// A queue that one connection fills has room for the read of another one, and none for one more of its own.
#[test]
fn n18_who_fills_the_queue_makes_room_for_others() {
    let mut small = Small::new();
    let node = small.places.leader;
    let queued = fill(&mut small, node, READS_QUEUED_MAX);
    let one_more = small.put(node, first(1, ReadLevel::Eventual));
    let other = small.put_on(ConnectionId(9), node, first(2, ReadLevel::Eventual));
    small.world.settle(node);
    let mut is_served = |number: &i32| value_of(small.world.answer(*number).unwrap().1).is_ok();
    assert!(is_served(&other) && !is_served(&one_more));
    let (newest, rest) = queued.split_last().unwrap();
    assert!(!is_served(newest) && rest.iter().all(is_served));
    small.assert_idle(node);
}

/// What a node knows whatever its load, it says whatever its load.
#[test]
fn r01_a_node_that_does_not_lead_says_so_with_a_full_queue() {
    let mut small = Small::new();
    let follower = small.places.followers[0];
    let queued = fill(&mut small, follower, READS_QUEUED_MAX);
    let misled = Extension { any_replica: false, ..first(1, ReadLevel::Linearizable) };
    let misled = small.put(follower, misled);
    let one_more = small.put(follower, first(2, ReadLevel::Eventual));
    let now = small.world.now;
    small.world.settle(follower);
    assert!(matches!(small.refusal(misled), Some(Refusal::NotLeader { .. })));
    assert!(is_busy(small.refusal(one_more).as_ref()));
    assert!(queued.iter().all(|number| refusal_of(&small.world.answer(*number).unwrap().1).is_none()));
    assert_eq!(small.world.now, now, "at once");
    small.assert_idle(follower);
}

#[test]
fn h20_extra_attempts_are_shed_first_and_the_newest_of_them() {
    let mut small = Small::new();
    let node = small.places.leader;
    let extras: Vec<i32> = (0..EXTRA_READS_QUEUED_MAX as u64)
        .map(|request| small.put(node, extra(request, ReadLevel::Eventual)))
        .collect();
    let refused = small.put(node, extra(90_000, ReadLevel::Eventual));
    let firsts = fill(&mut small, node, READS_QUEUED_MAX - EXTRA_READS_QUEUED_MAX);
    // There is no room any more: the newest extra attempts make it.
    let more: Vec<i32> = (0..10).map(|request| small.put(node, first(80_000 + request, ReadLevel::Eventual))).collect();
    small.world.settle(node);
    let mut is_served = |number: &i32| value_of(small.world.answer(*number).unwrap().1).is_ok();
    assert!(!is_served(&refused), "the extra attempts' share was full");
    assert!(firsts.iter().chain(&more).all(&mut is_served));
    let kept = EXTRA_READS_QUEUED_MAX - more.len();
    assert!(extras[..kept].iter().all(&mut is_served));
    assert!(!extras[kept..].iter().any(&mut is_served));
    let told = small.told(node);
    assert_eq!((&told["first"]["shed"], &told["extra"]["shed"]), (&0.into(), &11.into()), "{told}");
    small.assert_idle(node);
}

/// What has expired holds no place.
#[test]
fn expired_extra_attempts_make_room_for_new_ones() {
    let mut small = Small::new();
    let node = small.places.leader;
    for request in 0..EXTRA_READS_QUEUED_MAX as u64 {
        small.put(node, Extension { deadline_ms: Some(5), ..extra(request, ReadLevel::Eventual) });
    }
    small.world.now = small.world.now + 5 * MS;
    let fresh = small.put(node, extra(90_000, ReadLevel::Eventual));
    assert_eq!(small.turn(node).last(), Some(&fresh), "served, behind the refusals");
    let told = small.told(node);
    assert_eq!((&told["extra"]["expired"], &told["extra"]["shed"]), (&EXTRA_READS_QUEUED_MAX.into(), &0.into()));
}

/// Lets `node` serve two batches of 64 reads at so much each.
fn teach(small: &mut Small, node: NodeId, each: Duration) {
    for batch in 0..2 {
        for request in 0..64 {
            small.put(node, first(batch * 100 + request, ReadLevel::Eventual));
        }
        small.world.settle(node);
        let now = small.world.now;
        small.world.machines.get_mut(&node).unwrap().node.note_work(each * 64, now);
    }
}

fn with_threshold(extension: Extension, ms: i32) -> Extension {
    Extension { busy_threshold_ms: Some(ms), ..extension }
}

#[test]
fn a_caller_that_would_not_wait_so_long_is_told_at_once_how_long_it_is() {
    let mut small = Small::new();
    let node = small.places.leader;
    teach(&mut small, node, MS);
    let queued = fill(&mut small, node, 10);
    let [impatient, patient] =
        [9, 10].map(|threshold| small.put(node, with_threshold(first(1, ReadLevel::Eventual), threshold)));
    // An extra attempt waits for every first one, and not the other way round.
    let behind = small.put(node, with_threshold(extra(2, ReadLevel::Eventual), 10));
    let queued_extra = small.put(node, extra(3, ReadLevel::Eventual));
    let before = small.put(node, with_threshold(first(4, ReadLevel::Eventual), 11));
    let indifferent = small.put(node, first(5, ReadLevel::Eventual));
    let at_once = small.world.machines.get_mut(&node).unwrap().node.outbox().clients[&CONNECTION].clone();
    assert!(!at_once.is_empty(), "the node was not driven");
    small.world.settle(node);
    assert_eq!(small.refusal(impatient), Some(Refusal::BusyFor { estimated_wait_ms: 10 }));
    assert_eq!(small.refusal(behind), Some(Refusal::BusyFor { estimated_wait_ms: 11 }));
    for number in queued.into_iter().chain([patient, queued_extra, before, indifferent]) {
        assert!(value_of(small.world.answer(number).unwrap().1).is_ok());
    }
    let told = small.told(node);
    assert_eq!((&told["first"]["busy_for"], &told["extra"]["busy_for"]), (&1.into(), &1.into()), "{told}");
    small.assert_idle(node);
}

/// Nobody is sent away for what was a while ago, in another life of the process, or once.
#[test]
fn r16_no_stale_busy() {
    let mut small = Small::new();
    let node = small.places.leader;
    let ask = |small: &mut Small, request| {
        fill(small, node, 100);
        let number = small.put(node, with_threshold(first(request, ReadLevel::Eventual), 1));
        small.world.settle(node);
        let now = small.world.now;
        small.world.machines.get_mut(&node).unwrap().node.note_work(100 * MS, now);
        refusal_of(&small.world.answer(number).unwrap().1)
    };
    assert_eq!(ask(&mut small, 1), None, "nothing is known yet");
    teach(&mut small, node, MS);
    assert_eq!(ask(&mut small, 2), Some(Refusal::BusyFor { estimated_wait_ms: 100 }));
    teach(&mut small, node, MS);
    small.world.run(1_100 * MS);
    assert_eq!(ask(&mut small, 3), None, "a second ago it was slow");
    teach(&mut small, node, Duration::from_micros(3));
    // One read that took a second, a stall of the machine say.
    small.put(node, first(4, ReadLevel::Eventual));
    small.world.settle(node);
    let now = small.world.now;
    small.world.machines.get_mut(&node).unwrap().node.note_work(1_000 * MS, now);
    assert_eq!(ask(&mut small, 5), None, "one slow request");
    teach(&mut small, node, MS);
    assert!(ask(&mut small, 6).is_some());
    teach(&mut small, node, MS);
    small.world.restart(node);
    small.world.run(5_000 * MS);
    assert_eq!(ask(&mut small, 7), None, "a new life");
}

/// Counts the lines that reach the log.
struct Log(Arc<AtomicU64>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn r21_overload_is_a_line_in_ten_seconds() {
    let lines = Arc::new(AtomicU64::new(0));
    // A second one: with one alone, `tracing` asks the threads of other tests whether anybody listens.
    let _second = tracing::Dispatch::new(Log(Arc::new(AtomicU64::new(0))));
    let mut small = Small::new();
    let node = small.places.leader;
    let refused = tracing::subscriber::with_default(Log(Arc::clone(&lines)), || {
        for _ in 0..20 {
            for request in 0..2 * EXTRA_READS_QUEUED_MAX as u64 {
                small.put(node, extra(request, ReadLevel::Eventual));
            }
            small.world.settle(node);
            small.world.run(1_000 * MS);
        }
        small.told(node)["extra"]["shed"].as_u64()
    });
    assert_eq!(refused, Some(20 * EXTRA_READS_QUEUED_MAX as u64));
    let lines = lines.load(Ordering::Relaxed);
    assert!((2..=3).contains(&lines), "{lines} lines in 20 s");
}

#[test]
fn n4a_large_replies_end_a_turn() {
    let mut small = Small::configured(|config| config.read_bytes_per_turn = 40_000);
    let (node, key) = (small.places.leader, small.key.clone());
    small.world.write(&key, node, &"v".repeat(30_000));
    let reads = fill(&mut small, node, 5);
    for expected in [&reads[..2], &reads[2..4], &reads[4..]] {
        assert_eq!(small.turn(node), expected);
    }
    // One larger than a turn takes one of its own.
    small.world.write(&key, node, &"v".repeat(50_000));
    let reads = fill(&mut small, node, 2);
    assert_eq!((small.turn(node), small.turn(node)), (reads[..1].to_vec(), reads[1..].to_vec()));
    small.assert_idle(node);
}

#[test]
fn n4a_reads_that_wait_for_who_does_not_read_are_refused() {
    let mut small = Small::new();
    let node = small.places.followers[0];
    let waiting = small.put(node, first(1, ReadLevel::Linearizable));
    assert_eq!(small.turn(node), [0; 0], "it waits for an index");
    let queued = small.put(node, first(2, ReadLevel::Eventual));
    let other = small.put_on(ConnectionId(9), node, first(3, ReadLevel::Eventual));
    let now = small.world.clock();
    let machine = small.world.machines.get_mut(&node).unwrap();
    assert!(machine.node.refuse_unread(CONNECTION, now));
    assert!(!machine.node.refuse_unread(CONNECTION, now), "none are left");
    small.world.settle(node);
    assert!(is_busy(small.refusal(waiting).as_ref()) && is_busy(small.refusal(queued).as_ref()));
    assert!(!is_busy(small.refusal(other).as_ref()));
    small.assert_idle(node);
}

#[test]
fn n4a_what_waited_and_becomes_ready_all_at_once_has_a_bound() {
    let mut small = Small::configured(|config| config.read_bytes_per_turn = 1_000);
    let (leader, node, key) = (small.places.leader, small.places.followers[0], small.key.clone());
    small.world.write(&key, leader, &"v".repeat(30_000));
    let reads: Vec<i32> = (0..20).map(|request| small.put(node, first(request, ReadLevel::Linearizable))).collect();
    small.world.run(100 * MS);
    let refused = reads.iter().filter(|number| is_busy(small.refusal(**number).as_ref())).count();
    assert_eq!(refused, 11, "nine of them are more than {READY_TURNS_MAX} kB");
    small.assert_idle(node);
}

/// Reads that wait for an index have so many bytes on a node, however many shards it has, and give them back however they end.
#[test]
fn n4n_what_waiting_reads_keep_has_a_bound_and_is_given_back() {
    for shards in [1, 4] {
        let mut small = Small::configured(|config| (config.waiting_read_bytes_max, config.shards) = (100_000, shards));
        let (leader, node) = (small.places.leader, small.places.followers[0]);
        let put = |small: &mut Small, connection, request, size: usize, deadline: i64| {
            let sort_keys = vec![Bytes::from(vec![b's'; size])];
            let multi_get = MultiGet { hash_key: small.key.hash_key.clone().into(), sort_keys, ..MultiGet::default() };
            let mut extension = first(request, ReadLevel::Linearizable);
            extension.deadline_ms = Some(deadline);
            let header = small.header(extension);
            let number = small.world.put_on(connection, node, &header, &Body::MultiGet(multi_get));
            small.turn(node);
            number
        };
        let kept = |small: &mut Small| small.counts(node)["waiting_bytes"]["kept"].as_u64().unwrap();
        for end in ["served", "cancelled", "closed", "unread", "expired", "refused", "dropped"] {
            small.world.settle(node);
            if end != "served" {
                small.world.cut_off(node);
            }
            let deadline = if end == "expired" { 200 } else { 20_000 };
            let waiting = put(&mut small, CONNECTION, 1, 60_000, deadline);
            assert!((60_000..61_000).contains(&kept(&mut small)), "{end}");
            let busy = put(&mut small, ConnectionId(10), 2, 60_000, 20_000);
            let little = put(&mut small, ConnectionId(10), 3, 1_000, deadline);
            small.world.settle(node);
            assert!(is_busy(small.refusal(busy).as_ref()) && !small.world.has_answer(little), "{end}");
            match end {
                "cancelled" => small.cancel(CONNECTION, node, CLIENT, 1, Some(1)),
                "closed" => small.close(CONNECTION, node),
                "unread" => {
                    let now = small.world.clock();
                    assert!(small.world.machines.get_mut(&node).unwrap().node.refuse_unread(CONNECTION, now));
                }
                "dropped" => {
                    // The node hears of it from another one, while nobody answers the replica's questions.
                    small.world.cut.retain(|(from, to)| *from != node && *to == node);
                    small.world.admin(leader, "drop_table", &json!({ "name": "t", "reserve_seconds": 0 })).unwrap();
                }
                _ => {}
            }
            if end != "refused" {
                small.world.run(if end == "dropped" { 400 * MS } else { 250 * MS });
            } else {
                small.world.run(3_000 * MS);
            }
            let is_answered = small.world.has_answer(waiting);
            assert_eq!(is_answered, !matches!(end, "cancelled" | "closed"), "{end}");
            small.world.cut.clear();
            small.close(ConnectionId(10), node);
            small.close(CONNECTION, node);
            assert_eq!(kept(&mut small), 0, "{end}");
            small.world.run(3_000 * MS);
        }
        small.assert_idle(node);
    }
}

/// Writes of a hundred bytes that each return a large row, committed all at once: on every replica they are applied a few at a
/// time.
#[test]
fn n4i_what_small_writes_look_up_ends_a_turn() {
    let mut small = Small::configured(|config| config.apply_bytes_per_turn = 200_000);
    let (node, key) = (small.places.leader, small.key.clone());
    small.world.write(&key, node, &"v".repeat(30_000));
    let write = |number: u64| {
        Body::CheckAndSet(CheckAndSet {
            hash_key: key.hash_key.clone().into(),
            check_sort_key: "s".into(),
            check_type: 1,
            set_diff_sort_key: true,
            set_sort_key: "other".into(),
            set_value: number.to_string().into(),
            return_check_value: true,
            ..CheckAndSet::default()
        })
    };
    let header = small.header(Extension::default());
    let numbers: Vec<i32> = (0..40).map(|number| small.world.put(node, &header, &write(number))).collect();
    small.world.settle(node);
    small.world.run(100 * MS);
    for number in numbers {
        let (_, frame) = small.world.answer(number).expect("it is applied");
        let Reply::Check(reply) = frame.reply else { panic!("{frame:?}") };
        assert_eq!(reply.check_value.len(), 30_000);
    }
    let most = small.world.machines[&node].turn_bytes_max;
    assert!((30_000..300_000).contains(&most), "{most} bytes in one turn");
    small.assert_idle(node);
}

/// Maps are answered as they are asked for: whoever owns the sockets hears when that is enough.
#[test]
fn n4a_large_answers_that_are_given_at_once_end_a_turn() {
    let mut small = Small::configured(|config| config.read_bytes_per_turn = 4_000);
    let node = NodeId(1);
    let query = Body::QueryConfig(QueryConfig { app_name: Text::from("t"), partition_indices: Vec::new() });
    let mut taken = 0;
    while small.world.machines[&node].node.takes_requests() {
        small.world.put(node, &Header::default(), &query);
        taken += 1;
        assert!(taken < 200, "a map has no bytes");
    }
    let waiting: usize =
        small.world.machines.get_mut(&node).unwrap().node.outbox().clients.values().map(|it| it.len()).sum();
    assert!(taken > 1 && (4_000..8_000).contains(&waiting), "{taken} answers of {waiting} bytes");
    small.world.settle(node);
    assert!(small.world.machines[&node].node.takes_requests());
}

/// A read that waits for its turn keeps its keys, of which all that wait have so many bytes together.
#[test]
fn n12_what_queued_reads_keep_has_a_bound() {
    let mut small = Small::new();
    let node = small.places.leader;
    let sort_keys: Vec<Bytes> = (0..100).map(|_| Bytes::from(vec![b's'; 60_000])).collect();
    let put = |small: &mut Small, extension: Extension| {
        let (hash_key, sort_keys) = (small.key.hash_key.clone().into(), sort_keys.clone());
        let header = small.header(extension);
        let multi_get = Body::MultiGet(MultiGet { hash_key, sort_keys, ..MultiGet::default() });
        small.world.put_on(CONNECTION, node, &header, &multi_get)
    };
    let extra_one = put(&mut small, extra(1, ReadLevel::Eventual));
    let fitting = (READS_QUEUED_BYTES_MAX / 6_010_000) as u64;
    let firsts: Vec<i32> =
        (0..fitting).map(|request| put(&mut small, first(10 + request, ReadLevel::Eventual))).collect();
    let kept = small.told(node)["bytes"].as_u64().unwrap();
    assert!((6_000_000 * fitting..=READS_QUEUED_BYTES_MAX as u64).contains(&kept), "{kept}");
    let refused = put(&mut small, first(99, ReadLevel::Eventual));
    let little = small.put(node, first(100, ReadLevel::Eventual));
    small.world.settle(node);
    assert!(is_busy(small.refusal(extra_one).as_ref()) && is_busy(small.refusal(refused).as_ref()));
    assert!(firsts.iter().chain([&little]).all(|number| !is_busy(small.refusal(*number).as_ref())));
    assert_eq!(small.told(node)["bytes"], 0);
    small.assert_idle(node);
}

/// What is long to read, or comes in great numbers, and has no answer: whoever owns the sockets hears when that is enough.
#[test]
fn n15_requests_without_answers_end_a_turn() {
    let mut small = Small::new();
    let node = small.places.leader;
    let mut taken = 0;
    while small.world.machines[&node].node.takes_requests() {
        small.cancel(CONNECTION, node, CLIENT, 5, Some(1));
        taken += 1;
    }
    assert!((REQUEST_BYTES_PER_TURN / FRAME_COST / 4..REQUEST_BYTES_PER_TURN / FRAME_COST).contains(&taken), "{taken}");
    small.turn(node);
    assert!(small.world.machines[&node].node.takes_requests());
    let header = small.header(first(1, ReadLevel::Eventual));
    let sort_keys = vec![Bytes::new(); REQUEST_BYTES_PER_TURN / 4];
    small.world.put_on(CONNECTION, node, &header, &Body::MultiGet(MultiGet { sort_keys, ..MultiGet::default() }));
    assert!(!small.world.machines[&node].node.takes_requests());
    small.world.settle(node);
}

/// Its answer is short, and what it takes grows with the cluster.
#[test]
fn n15_an_administrative_call_ends_a_turn() {
    let mut small = Small::new();
    let node = small.places.leader;
    let query = Body::QueryConfig(QueryConfig { app_name: Text::from("t"), ..QueryConfig::default() });
    let status = CommandLine { command: Text::from("status"), ..CommandLine::default() };
    let is_taken = |small: &Small| small.world.machines[&node].node.takes_requests();
    small.world.put_on(CONNECTION, node, &Header::default(), &query);
    assert!(is_taken(&small), "clients ask for maps at any time");
    small.world.put_on(CONNECTION, node, &Header::default(), &Body::CommandLine(status));
    assert!(!is_taken(&small));
    small.turn(node);
    assert!(is_taken(&small));
}
