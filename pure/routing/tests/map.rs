//! The partition map: where keys go, what refusals teach, and what a fetched map overrules.

use bytes::Bytes;
use hedgerow_routing::{Address, InvalidMap, PartitionRoute, TableKind, TableMap};
use hedgerow_types::{TableId, key};
use proptest::prelude::*;
use std::ops::Bound;

const A: u16 = 1;
const B: u16 = 2;
const C: u16 = 3;
const D: u16 = 4;

fn at(port: u16) -> Address {
    Address::from(([10, 0, 0, 1], port))
}

/// Led by the first of `ports`.
fn route(ballot: i64, ports: &[u16], start: &[u8]) -> PartitionRoute {
    let (leader, followers) = ports.split_first().expect("a replica");
    let followers = followers.iter().copied().map(at).collect();
    let start = Bytes::copy_from_slice(start);
    PartitionRoute { ballot, leader: Some(at(*leader)), followers, learners: Vec::new(), start }
}

fn hash(routes: &[PartitionRoute]) -> TableMap {
    TableMap::new(TableId(1), TableKind::Hash, routes.to_vec()).expect("a map")
}

fn ordered(starts: &[&[u8]]) -> TableMap {
    let routes = starts.iter().map(|start| route(1, &[A], start)).collect();
    TableMap::new(TableId(1), TableKind::Ordered, routes).expect("a map")
}

fn two() -> TableMap {
    hash(&[route(1, &[A, B, C], b""), route(1, &[B, A, C], b"")])
}

#[test]
fn answers_that_are_not_maps_are_refused() {
    let new = |kind, starts: &[&[u8]]| {
        TableMap::new(TableId(1), kind, starts.iter().map(|start| route(1, &[A], start)).collect()).err()
    };
    assert_eq!(new(TableKind::Hash, &[]), Some(InvalidMap::PartitionCount(0)));
    assert_eq!(new(TableKind::Hash, &[b"", b"", b""]), Some(InvalidMap::PartitionCount(3)));
    assert_eq!(new(TableKind::Hash, &vec![&b""[..]; 8_192]), Some(InvalidMap::PartitionCount(8_192)));
    assert_eq!(new(TableKind::Ordered, &[]), Some(InvalidMap::PartitionCount(0)));
    assert_eq!(new(TableKind::Ordered, &[b"a"]), Some(InvalidMap::Start(0)));
    assert_eq!(new(TableKind::Ordered, &[b"", b"b", b"b"]), Some(InvalidMap::Start(2)));
    assert_eq!(new(TableKind::Ordered, &[b"", b"a", b"b"]), None);
}

#[test]
fn a_range_names_the_partitions_that_hold_its_keys() {
    let map = ordered(&[b"", b"g", b"p"]);
    let range = |start, stop| map.partitions_for_range(start, stop);
    assert_eq!(range(Bound::Unbounded, Bound::Unbounded), 0..3);
    assert_eq!(range(Bound::Included(b"g"), Bound::Excluded(b"p")), 1..2);
    assert_eq!(range(Bound::Included(b"g"), Bound::Included(b"p")), 1..3);
    assert_eq!(range(Bound::Included(b"f"), Bound::Excluded(b"g")), 0..1);
    assert_eq!(range(Bound::Excluded(b"z"), Bound::Unbounded), 2..3);
    for empty in [
        range(Bound::Included(b"b"), Bound::Included(b"a")),
        range(Bound::Included(b"a"), Bound::Excluded(b"a")),
        range(Bound::Excluded(b"a"), Bound::Included(b"a")),
        range(Bound::Unbounded, Bound::Excluded(b"")),
    ] {
        assert!(empty.is_empty());
    }
    assert_eq!(two().partitions_for_range(Bound::Included(b"b"), Bound::Included(b"a")), 0..2);
}

/// Pitfall R4: hints that lead back, or to a replica that cannot be reached.
#[test]
fn r4_replicas_that_name_each_other_end_in_one_new_map_and_not_in_a_circle() {
    let mut map = two();
    assert_eq!(map.target(0), Some(at(A)));
    map.note_not_leader(0, at(A));
    assert!(map.note_leader(0, at(B)));
    assert_eq!(map.target(0), Some(at(B)));
    map.note_not_leader(0, at(B));
    assert!(!map.note_leader(0, at(A)), "it has just refused");
    assert_eq!(map.target(0), Some(at(C)));
    map.note_not_leader(0, at(C));
    assert_eq!(map.target(0), None);
    assert_eq!(map.stale_partitions(), [0], "the other partition's entry is kept");
    assert_eq!(map.target(1), Some(at(B)), "a refusal counts for its partition alone");
    let asked = map.mark();
    map.update(two(), asked);
    assert_eq!(map.target(0), Some(at(A)), "the map was asked for after the refusals");
}

#[test]
fn r4_a_replica_that_names_itself_or_an_unreachable_one_is_not_believed() {
    let mut map = two();
    map.note_not_leader(0, at(A));
    assert!(!map.note_leader(0, at(A)));
    assert_eq!(map.target(0), Some(at(B)));
    // The hint leads to a node that no connection can be made to.
    assert!(map.note_leader(0, at(D)));
    map.note_not_leader(0, at(D));
    assert!(!map.note_leader(0, at(D)));
    assert_eq!(map.target(0), Some(at(B)));
    map.note_not_leader(0, at(B));
    map.note_not_leader(0, at(C));
    assert_eq!(map.target(0), None);
    map.forgive(0);
    assert_eq!(map.target(0), Some(at(A)));
}

/// Pitfall R5: a replica of an old epoch concerns one entry.
#[test]
fn r5_a_stale_entry_is_reloaded_alone() {
    let mut map = two();
    map.note_not_leader(1, at(B));
    assert!(map.note_leader(1, at(C)));
    map.note_not_hosted(0, at(A));
    assert_eq!(map.stale_partitions(), [0]);
    assert_eq!(map.target(0), Some(at(B)));
    let asked = map.mark();
    assert!(map.update_partition(0, route(2, &[D, B, C], b""), asked));
    assert!(map.stale_partitions().is_empty());
    assert_eq!(map.target(0), Some(at(D)));
    assert_eq!(map.target(1), Some(at(C)), "what is known of other partitions stays");
    assert!(!map.update_partition(2, route(2, &[D], b""), asked));
}

#[test]
fn r5_an_answer_of_an_old_epoch_changes_nothing() {
    let mut map = hash(&[route(5, &[A, B, C], b""), route(5, &[B, A, C], b"")]);
    let asked = map.mark();
    map.update(hash(&[route(4, &[D, B, C], b""), route(6, &[D, A, C], b"")]), asked);
    assert_eq!(map.target(0), Some(at(A)));
    assert_eq!(map.target(1), Some(at(D)));
}

#[test]
fn a_leader_learned_after_the_map_was_asked_for_is_kept() {
    let mut map = two();
    assert!(map.note_leader(0, at(B)));
    let asked = map.mark();
    assert!(map.note_leader(1, at(C)));
    map.update(two(), asked);
    assert_eq!(map.target(0), Some(at(A)), "the map is newer");
    assert_eq!(map.target(1), Some(at(C)), "the replica's word is newer");
    let newer = hash(&[route(2, &[A, B, C], b""), route(2, &[B, A, D], b"")]);
    map.update(newer, asked);
    assert_eq!(map.target(1), Some(at(B)), "it is no longer a replica");
}

#[test]
fn a_refusal_after_the_map_was_asked_for_is_kept() {
    let mut map = two();
    let asked = map.mark();
    map.note_not_leader(0, at(A));
    map.update(two(), asked);
    assert_eq!(map.target(0), Some(at(B)));
}

#[test]
fn another_table_or_partition_count_replaces_everything() {
    let mut map = two();
    assert!(map.note_leader(0, at(C)));
    let asked = map.mark();
    assert!(map.note_leader(0, at(C)));
    let recreated = TableMap::new(TableId(2), TableKind::Hash, vec![route(1, &[A], b""); 2]).expect("a map");
    map.update(recreated, asked);
    assert_eq!((map.table(), map.target(0)), (TableId(2), Some(at(A))));
    assert!(map.mark() > asked, "marks go on rising");
    let doubled = TableMap::new(TableId(2), TableKind::Hash, vec![route(1, &[B], b""); 4]).expect("a map");
    map.update(doubled, map.mark());
    assert_eq!((map.partition_count(), map.target(3)), (4, Some(at(B))));
}

#[test]
fn the_leader_is_who_a_replica_named_last_also_if_it_refused() {
    let mut map = two();
    assert_eq!(map.leader(0), Some(at(A)));
    assert!(map.note_leader(0, at(B)));
    assert_eq!(map.leader(0), Some(at(B)));
    map.note_not_leader(0, at(B));
    assert_eq!((map.leader(0), map.leader(9)), (Some(at(A)), None));
}

#[test]
fn learners_are_replicas_that_never_lead() {
    let with_learner = |ballot| PartitionRoute { learners: vec![at(D)], ..route(ballot, &[A, B, C], b"") };
    let mut map = hash(&[with_learner(1), with_learner(1)]);
    let replicas: Vec<_> = map.route(0).expect("a partition").replicas().collect();
    assert_eq!(replicas, [A, B, C, D].map(at));
    [A, B, C].map(at).into_iter().for_each(|address| map.note_not_leader(0, address));
    assert_eq!(map.target(0), None);
    // Somebody names it all the same, and a newer map does not.
    let asked = map.mark();
    assert!(map.note_leader(1, at(D)));
    map.update(hash(&[with_learner(2), with_learner(2)]), asked);
    assert_eq!(map.target(1), Some(at(A)));
}

#[test]
fn partitions_that_do_not_exist_are_harmless() {
    let mut map = two();
    assert_eq!(map.target(9), None);
    assert!(map.route(9).is_none());
    assert!(!map.note_leader(9, at(A)));
    map.note_not_leader(9, at(A));
    map.note_not_hosted(9, at(A));
    map.forgive(9);
    assert!(map.stale_partitions().is_empty());
}

proptest! {
    #[test]
    fn a_hash_record_goes_where_its_storage_key_lies(hash_key: Vec<u8>, sort_key: Vec<u8>, bits in 0u32..8) {
        let count = 1u32 << bits;
        let map = hash(&vec![route(1, &[A], b""); count as usize]);
        let partition = map.partition_for_hash_key(&hash_key, &sort_key);
        let storage = key::hash_storage_key(&key::full_key(&hash_key, &sort_key)).expect("well formed");
        let (start, end) = key::hash_partition_range(partition, count);
        prop_assert!(storage >= start && end.is_none_or(|end| storage < end));
        prop_assert_eq!(map.partition_for_key(&sort_key), map.partition_for_hash_key(b"", &sort_key));
    }

    #[test]
    fn an_ordered_record_goes_to_the_partition_that_holds_it(
        starts in proptest::collection::btree_set(proptest::collection::vec(0u8..4, 1..3), 0..8),
        key in proptest::collection::vec(0u8..4, 0..4),
        stop in proptest::collection::vec(0u8..4, 0..4),
    ) {
        let starts: Vec<Vec<u8>> = std::iter::once(Vec::new()).chain(starts).collect();
        let map = ordered(&starts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let partition = map.partition_for_key(&key) as usize;
        prop_assert!(starts[partition] <= key);
        prop_assert!(starts.get(partition + 1).is_none_or(|next| key < *next));
        let range = map.partitions_for_range(Bound::Included(&key), Bound::Excluded(&stop));
        for index in 0..starts.len() {
            let overlaps = key < stop && starts[index] < stop && starts.get(index + 1).is_none_or(|end| key < *end);
            prop_assert_eq!(range.contains(&(index as u32)), overlaps);
        }
    }

    /// Whatever replicas say, a client runs out of targets after asking each address at most once, hints included.
    #[test]
    fn r4_no_sequence_of_hints_asks_an_address_twice(hints in proptest::collection::vec(0u16..8, 0..64)) {
        let mut map = two();
        let mut asked = Vec::new();
        let mut hints = hints.into_iter();
        while let Some(target) = map.target(0) {
            prop_assert!(!asked.contains(&target));
            asked.push(target);
            map.note_not_leader(0, target);
            if let Some(hint) = hints.next() {
                map.note_leader(0, at(hint));
            }
        }
        prop_assert!(asked.len() >= 3);
    }
}
