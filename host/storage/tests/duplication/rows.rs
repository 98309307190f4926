//! Rows with stamps, and removed ones.

use crate::common::{Fixture, Memory, Rocks, Store, bytes};
use crate::*;
use hedgerow_types::journal::{EXPIRED_SECONDS, TOMBSTONE_SECONDS};
use hedgerow_types::op::{Filter, FilterKind, MultiGet, Scan, Selection};

crate::suite! {
    rows_with_stamps_are_read_as_those_without
    what_is_removed_is_remembered_for_its_time_and_dropped_after_it
    a_row_is_dropped_only_some_time_after_it_has_expired
    what_is_forgotten_is_forgotten_whether_it_is_dropped_or_not
    rows_of_before_are_told_and_remembered_unless_they_had_expired
}

fn reads() -> Vec<Read> {
    let filter = Filter { kind: FilterKind::Anywhere, pattern: bytes("1") };
    let range = |reverse, filter| Selection::Range {
        start: Bytes::new(),
        start_inclusive: true,
        stop: Bytes::new(),
        stop_inclusive: false,
        filter,
        reverse,
    };
    let suffixes = Selection::Suffixes(["a", "b", "n", "m1", "m2", "none"].map(bytes).to_vec());
    let selections = [range(false, Filter::default()), range(true, filter.clone()), suffixes];
    let multi_gets = selections.into_iter().flat_map(|selection| {
        [(0, 0, false), (2, 0, false), (0, 6, false), (0, 0, true)].map(|(count_max, size_max, no_value)| {
            let (prefix, selection) = (bytes("k"), selection.clone());
            Read::MultiGet(MultiGet { prefix, selection, count_max, size_max, no_value })
        })
    });
    let scan = Scan {
        start: Bytes::new(),
        start_inclusive: true,
        stop: Bytes::new(),
        stop_inclusive: false,
        is_hash_table: false,
        hash_key_filter: Filter::default(),
        sort_key_filter: Filter::default(),
        rows_max: 3,
        no_value: false,
        return_expire: true,
        only_count: false,
    };
    let filtered = Scan { sort_key_filter: filter, only_count: true, rows_max: 1_000, ..scan.clone() };
    let keys = ["a", "b", "n", "m1", "m2", "none"].map(key);
    let single = keys.iter().flat_map(|key| [Read::Get { key: key.clone() }, Read::Ttl { key: key.clone() }]);
    let others = [
        Read::BatchGet { keys: keys.to_vec() },
        Read::SortKeyCount { prefix: bytes("k") },
        Read::Scan(scan),
        Read::Scan(filtered),
        Read::Checksum,
    ];
    single.chain(multi_gets).chain(others).collect()
}

fn rows_with_stamps_are_read_as_those_without<F: Fixture>() {
    let (mut plain, mut stamped) = (Store::<F>::new(), Store::<F>::new());
    // As many entries in both logs, since a checksum tells their number.
    plain.write_all(NOW, [Write::Nothing]);
    stamped.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    let writes = [
        put("a", "1", 0),
        put("b", "22", NOW + 10),
        multi_put(&[("m1", "x"), ("m2", ""), ("m3", "z")], NOW + 20),
        incr("n", 5, NOW as i32 + 30),
        incr("a", 5, 0),
        remove("m3"),
        check_and_mutate("b", true, vec![set("c1", "held", 0)]),
    ];
    for store in [&mut plain, &mut stamped] {
        store.write_all(NOW, writes.clone());
        store.flush();
    }
    assert!(
        stamped.rows_of(b'd').iter().all(|(_, row)| row[0] == 2)
            && plain.rows_of(b'd').iter().all(|(_, row)| row[0] == 1)
    );
    for now in [NOW, NOW + 15, NOW + 25, NOW + 40] {
        for read in reads() {
            let expected = plain.partition().read(&read, now).expect("reads");
            assert_eq!(stamped.partition().read(&read, now).expect("reads"), expected, "{read:?}");
            let moment = stamped.partition().moment().expect("a moment");
            assert_eq!(moment.read(&read, now, &|| true).expect("reads"), expected, "{read:?}");
        }
    }
}

/// Drops what may be dropped once the log's time is `now`.
fn compact_at<F: Fixture>(store: &mut Store<F>, now: u32) {
    store.write_all(now, [Write::Nothing]);
    store.compact();
}

fn what_is_removed_is_remembered_for_its_time_and_dropped_after_it<F: Fixture>() {
    let mut store = Store::<F>::new();
    store
        .write_all(NOW, [put("before", "v", 0), begin(ID, 1, HERE, NO_LIMIT), remove("before"), remove("never there")]);
    compact_at(&mut store, NOW + TOMBSTONE_SECONDS + EXPIRED_SECONDS - 1);
    assert_eq!((store.rows_of(b't').len(), store.rows_of(b'd').len()), (2, 0));
    compact_at(&mut store, NOW + TOMBSTONE_SECONDS + EXPIRED_SECONDS);
    assert_eq!(store.rows_of(b't').len(), 0);
}

fn a_row_is_dropped_only_some_time_after_it_has_expired<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.write_all(NOW, [put("before", "v", NOW + 10), begin(ID, 1, HERE, NO_LIMIT), put("after", "v", NOW + 10)]);
    compact_at(&mut store, NOW + 10 + EXPIRED_SECONDS - 1);
    assert_eq!((store.rows_of(b'd').len(), store.checksum(0).1), (2, 0));
    compact_at(&mut store, NOW + 10 + EXPIRED_SECONDS);
    assert_eq!(store.rows_of(b'd').len(), 0);
}

/// Two replicas of which one compacts all the time do the same with old foreign changes, before and after the rows are forgotten.
fn what_is_forgotten_is_forgotten_whether_it_is_dropped_or_not<F: Fixture>() {
    let (mut lazy, mut busy) = (Store::<Memory>::new(), Store::<F>::new());
    let old = |suffix| foreign(1, THERE, set(suffix, "old", 0));
    let steps = [
        (NOW, put("v1", "v", NOW + 10)),
        (NOW, begin(ID, 1, HERE, NO_LIMIT)),
        (NOW, put("v2", "v", NOW + 10)),
        (NOW, remove("gone")),
        (NOW + 10, duplicate(HERE, &[old("v2"), old("gone")])),
        (NOW + 10, duplicate(HERE, &[old("v1")])),
        (NOW + 9 + EXPIRED_SECONDS, duplicate(HERE, &[old("v1"), old("v2")])),
        (NOW + 10 + EXPIRED_SECONDS, duplicate(HERE, &[old("v1"), old("v2")])),
        (NOW - 1 + TOMBSTONE_SECONDS, duplicate(HERE, &[old("gone")])),
        (NOW + TOMBSTONE_SECONDS, duplicate(HERE, &[old("gone")])),
    ];
    let mut seen = Vec::new();
    for (now, write) in steps {
        lazy.write_all(now, [write.clone()]);
        compact_at(&mut busy, now);
        busy.write_all(now, [write]);
        assert_eq!(lazy.checksum(now), busy.checksum(now));
        let values = ["v1", "v2", "gone"].map(|suffix| lazy.value(suffix, now).is_some_and(|it| it == bytes("old")));
        assert_eq!(
            values,
            ["v1", "v2", "gone"].map(|suffix| busy.value(suffix, now).is_some_and(|it| it == bytes("old")))
        );
        seen.push(values.iter().filter(|it| **it).count());
    }
    assert_eq!(seen, [0, 0, 0, 0, 0, 0, 0, 2, 2, 3], "how many are back");
}

/// Both engines hold the same rows, byte by byte.
#[test]
fn engines_are_equal() {
    let (mut memory, mut rocks) = (Store::<Memory>::new(), Store::<Rocks>::new());
    let writes = [begin(ID, 1, HERE, NO_LIMIT), put("a", "1", 0), remove("b"), incr("c", 1, 0)];
    memory.write_all(NOW, writes.clone());
    rocks.write_all(NOW, writes);
    assert_eq!(memory.rows(), rocks.rows());
}

/// Both sides go by the same: what one tells, it remembers itself, so that of two rows the same one stands at both.
fn rows_of_before_are_told_and_remembered_unless_they_had_expired<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.write_all(NOW - 20, [put("over", "v", NOW - 10), put("soon", "v", NOW + 10)]);
    store.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    let told: Vec<Bytes> = store.page(1 << 20).changes.iter().map(|it| it.mutation.suffix().clone()).collect();
    assert_eq!(told, [key("soon")]);
    compact_at(&mut store, NOW + 10);
    let older = ["over", "soon"].map(|suffix| foreign(NOW - 5, THERE, set(suffix, "there", 0)));
    store.write_all(NOW + 10, [duplicate(HERE, &older)]);
    assert_eq!(["over", "soon"].map(|suffix| store.value(suffix, NOW + 10)), [Some(bytes("there")), None]);
}
