//! What requests ask for and what answers say, case by case.

use super::*;
use crate::message::{
    BatchGet, CheckReply, FullData, FullKey, GetScanner, Incr, KeyValue, Put, SCAN_DONE, Scan, ScanReply,
};
use crate::method::Method;
use crate::reply::Reply;
use crate::value::Text;
use alloc::vec;
use hedgerow_types::key;
use hedgerow_types::op::{ReadReply, Row, WriteDetail, WriteReply};
use proptest::prelude::*;

const HASH: TableKind = TableKind::Hash;
const ORDERED: TableKind = TableKind::Ordered;

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn stored(hash_key: &[u8], sort_key: &[u8]) -> Bytes {
    key::hash_storage_key(&key::full_key(hash_key, sort_key)).expect("well formed")
}

/// The words of a refusal.
fn refusal(body: &Body, table: TableKind) -> Refusal {
    match operation(body, table) {
        Err(Denied::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_record_of_a_hash_table_is_found_by_its_full_key() {
    for (hash_key, sort_key) in [(&b"h"[..], &b"s"[..]), (b"h", b""), (b"", b"s"), (b"", b"")] {
        let body = Body::Get(key::full_key(hash_key, sort_key));
        let expected = Operation::Read(Read::Get { key: stored(hash_key, sort_key) });
        assert_eq!(operation(&body, HASH), Ok(expected));
    }
}

#[test]
fn a_record_of_an_ordered_table_is_found_by_its_sort_key() {
    let body = Body::Ttl(key::full_key(b"", b"key"));
    assert_eq!(operation(&body, ORDERED), Ok(Operation::Read(Read::Ttl { key: text("key") })));
    let body = Body::Ttl(key::full_key(b"h", b"key"));
    assert!(matches!(refusal(&body, ORDERED), Refusal::Invalid(_)));
}

#[test]
fn a_key_that_is_shorter_than_it_says_is_invalid() {
    for key in [&b""[..], b"\0", b"\0\x05abc"] {
        for table in [HASH, ORDERED] {
            assert_eq!(operation(&Body::Remove(Bytes::from_static(key)), table), Err(INVALID));
        }
    }
}

#[test]
fn expiry_times_are_unsigned_numbers_in_signed_fields() {
    let put = Put { key: key::full_key(b"h", b"s"), value: text("v"), expire_ts_seconds: -1 };
    let expected = Write::Put { key: stored(b"h", b"s"), value: text("v"), expire_at: u32::MAX };
    assert_eq!(operation(&Body::Put(put), HASH), Ok(Operation::Write(expected)));
    let incr = Incr { key: key::full_key(b"h", b"s"), increment: -5, expire_ts_seconds: -1 };
    let expected = Write::Incr { key: stored(b"h", b"s"), by: -5, expire_at: -1 };
    assert_eq!(operation(&Body::Incr(incr), HASH), Ok(Operation::Write(expected)));
}

#[test]
fn empty_lists_are_invalid() {
    let hash_key = text("h");
    let bodies = [
        Body::BatchGet(BatchGet::default()),
        Body::MultiPut(MultiPut { hash_key: hash_key.clone(), ..MultiPut::default() }),
        Body::MultiRemove(MultiRemove { hash_key: hash_key.clone(), ..MultiRemove::default() }),
        Body::CheckAndMutate(CheckAndMutate { hash_key, ..CheckAndMutate::default() }),
    ];
    for body in bodies {
        assert_eq!(operation(&body, HASH), Err(INVALID), "{body:?}");
    }
}

#[test]
fn operations_on_a_hash_key_need_one_in_a_hash_table() {
    let row = KeyValue { key: text("s"), ..KeyValue::default() };
    let bodies = [
        Body::MultiPut(MultiPut { kvs: vec![row], ..MultiPut::default() }),
        Body::MultiRemove(MultiRemove { sort_keys: vec![text("s")], ..MultiRemove::default() }),
        Body::MultiGet(MultiGet::default()),
        Body::SortKeyCount(Bytes::new()),
        Body::CheckAndSet(CheckAndSet::default()),
    ];
    for body in bodies {
        assert_eq!(operation(&body, HASH), Err(INVALID), "{body:?}");
        assert!(operation(&body, ORDERED).is_ok(), "{body:?}");
    }
}

#[test]
fn operations_on_an_ordered_table_take_no_hash_key() {
    let bodies = [
        Body::MultiRemove(MultiRemove { hash_key: text("h"), sort_keys: vec![text("s")], max_count: 100 }),
        Body::MultiGet(MultiGet { hash_key: text("h"), ..MultiGet::default() }),
        Body::SortKeyCount(text("h")),
        Body::BatchGet(BatchGet { keys: vec![FullKey { hash_key: text("h"), sort_key: text("s") }] }),
    ];
    for body in bodies {
        assert!(matches!(refusal(&body, ORDERED), Refusal::Invalid(_)), "{body:?}");
    }
}

#[test]
fn limits_are_named_when_they_refuse() {
    let long = Bytes::from(vec![b'x'; 65_536]);
    let sort_key_too_long = Body::Get(key::full_key(b"h", &long));
    let hash_key_too_long = Body::SortKeyCount(Bytes::from(vec![b'x'; 65_535]));
    let mut full_key = vec![b'x'; 2 + 65_535];
    full_key[..2].copy_from_slice(&[0xff, 0xff]);
    let full_hash_key_too_long = Body::Remove(full_key.into());
    let pieces_too_long = Body::BatchGet(BatchGet { keys: vec![FullKey { hash_key: long, sort_key: text("s") }] });
    let too_many =
        Body::MultiRemove(MultiRemove { hash_key: text("h"), sort_keys: vec![text("s"); 10_001], max_count: 0 });
    let too_large =
        Body::Put(Put { key: key::full_key(b"h", b"s"), value: Bytes::from(vec![0; 1 << 20]), expire_ts_seconds: 0 });
    // 66 KB on the wire: each of its 65 rows is stored with the hash key.
    let stored_too_large = Body::MultiPut(MultiPut {
        hash_key: Bytes::from(vec![b'x'; 65_000]),
        kvs: (0..65).map(|_| KeyValue { key: text("s"), value: text("v"), expire_ts_seconds: None }).collect(),
        expire_ts_seconds: 0,
    });
    let pattern = Bytes::from(vec![b'x'; 65_536]);
    let filter_too_long = Body::MultiGet(MultiGet {
        hash_key: text("h"),
        sort_key_filter_type: 1,
        sort_key_filter_pattern: pattern,
        ..MultiGet::default()
    });
    for (body, refused) in [
        (filter_too_long, Refusal::Invalid("a filter of 65536 bytes, above the limit of 65535".into())),
        (
            stored_too_large,
            Refusal::TooLarge(
                "a write of 4225780 bytes when its hash key counts for each row, above the limit of 4194304".into(),
            ),
        ),
        (sort_key_too_long, Refusal::Invalid("a sort key of 65536 bytes, above the limit of 65535".into())),
        (hash_key_too_long, Refusal::Invalid("a hash key of 65535 bytes, above the limit of 65534".into())),
        (full_hash_key_too_long, Refusal::Invalid("a hash key of 65535 bytes, above the limit of 65534".into())),
        (pieces_too_long, Refusal::Invalid("a hash key of 65536 bytes, above the limit of 65534".into())),
        (too_many, Refusal::Invalid("10001 keys in one request, above the limit of 10000".into())),
        (too_large, Refusal::TooLarge("a write of 1048580 bytes, above the limit of 1048576".into())),
    ] {
        assert_eq!(refusal(&body, HASH), refused);
    }
}

#[test]
fn a_batch_of_keys_joins_their_parts() {
    let keys = vec![
        FullKey { hash_key: text("h"), sort_key: text("s") },
        FullKey { hash_key: Bytes::new(), sort_key: text("t") },
    ];
    let expected = Read::BatchGet { keys: vec![stored(b"h", b"s"), stored(b"", b"t")] };
    assert_eq!(operation(&Body::BatchGet(BatchGet { keys }), HASH), Ok(Operation::Read(expected)));
}

#[test]
fn multi_get_reads_by_sort_keys_or_else_by_range() {
    let by_key = MultiGet { hash_key: text("h"), sort_keys: vec![text("b"), text("a")], ..MultiGet::default() };
    let prefix = key::hash_storage_prefix(b"h");
    let Ok(Operation::Read(Read::MultiGet(read))) = operation(&Body::MultiGet(by_key), HASH) else { panic!() };
    assert_eq!((read.prefix, read.selection), (prefix, Selection::Suffixes(vec![text("b"), text("a")])));

    let by_range = MultiGet {
        hash_key: text("h"),
        max_kv_count: 5,
        max_kv_size: 6,
        no_value: true,
        start_sortkey: text("a"),
        start_inclusive: true,
        sort_key_filter_type: 2,
        sort_key_filter_pattern: text("p"),
        reverse: true,
        ..MultiGet::default()
    };
    let Ok(Operation::Read(Read::MultiGet(read))) = operation(&Body::MultiGet(by_range.clone()), HASH) else {
        panic!()
    };
    let range = Selection::Range {
        start: text("a"),
        start_inclusive: true,
        stop: Bytes::new(),
        stop_inclusive: false,
        filter: Filter { kind: FilterKind::Prefix, pattern: text("p") },
        reverse: true,
    };
    assert_eq!((read.selection, read.count_max, read.size_max, read.no_value), (range, 5, 6, true));

    let unknown_filter = MultiGet { sort_key_filter_type: 4, ..by_range };
    assert_eq!(operation(&Body::MultiGet(unknown_filter), HASH), Err(INVALID));
}

#[test]
fn check_and_set_sets_the_checked_row_unless_told_otherwise() {
    let request = CheckAndSet {
        hash_key: text("h"),
        check_sort_key: text("c"),
        check_type: 99,
        check_operand: text("o"),
        set_sort_key: text("s"),
        set_value: text("v"),
        set_expire_ts_seconds: 4,
        return_check_value: true,
        ..CheckAndSet::default()
    };
    for (set_diff_sort_key, suffix) in [(false, text("c")), (true, text("s"))] {
        let body = Body::CheckAndSet(CheckAndSet { set_diff_sort_key, ..request.clone() });
        let expected = Write::CheckAndMutate {
            prefix: key::hash_storage_prefix(b"h"),
            check: Check { suffix: text("c"), kind: 99, operand: text("o") },
            mutations: vec![Mutation::Put { suffix, value: text("v"), expire_at: 4 }],
            return_check_value: true,
        };
        assert_eq!(operation(&body, HASH), Ok(Operation::Write(expected)));
    }
}

#[test]
fn check_and_mutate_puts_and_removes_and_knows_nothing_else() {
    let change = |operation, sort_key| Mutate { operation, sort_key: text(sort_key), ..Mutate::default() };
    let request = |mutate_list| {
        Body::CheckAndMutate(CheckAndMutate { hash_key: text("h"), mutate_list, ..CheckAndMutate::default() })
    };
    let Ok(Operation::Write(Write::CheckAndMutate { mutations, .. })) =
        operation(&request(vec![change(0, "a"), change(1, "b")]), HASH)
    else {
        panic!()
    };
    let put = Mutation::Put { suffix: text("a"), value: Bytes::new(), expire_at: 0 };
    assert_eq!(mutations, [put, Mutation::Remove { suffix: text("b") }]);
    assert_eq!(operation(&request(vec![change(2, "a")]), HASH), Err(INVALID));
}

/// Start and stop of the storage range that a scan request becomes.
fn range(start: &[u8], stop: &[u8], table: TableKind) -> Result<(Bytes, Bytes), Denied> {
    let request = GetScanner {
        start_key: Bytes::copy_from_slice(start),
        stop_key: Bytes::copy_from_slice(stop),
        start_inclusive: true,
        ..GetScanner::default()
    };
    match operation(&Body::GetScanner(request), table)? {
        Operation::OpenScan { scan, .. } => Ok((scan.start, scan.stop)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_scan_covers_the_partition_and_restarts_after_any_row() {
    let nothing = Bytes::new();
    for start in [&b""[..], b"\0", b"\0\0"] {
        for stop in [&b""[..], b"\xff\xff", b"\xff\xff\x01", "\u{ff}\u{ff}".as_bytes()] {
            assert_eq!(range(start, stop, HASH), Ok((nothing.clone(), nothing.clone())));
        }
    }
    for (hash_key, sort_key) in [(&b"h"[..], &b"s"[..]), (b"", b"s")] {
        let last = key::full_key(hash_key, sort_key);
        assert_eq!(range(&last, b"\xff\xff", HASH), Ok((stored(hash_key, sort_key), nothing.clone())));
    }
    // After the record whose key is empty altogether, too: it must not come a second time.
    let after_the_empty_key = GetScanner { start_key: Bytes::from_static(&[0, 0]), ..GetScanner::default() };
    let Ok(Operation::OpenScan { scan, .. }) = operation(&Body::GetScanner(after_the_empty_key), HASH) else {
        panic!()
    };
    assert_eq!((scan.start, scan.start_inclusive), (stored(b"", b""), false));
}

#[test]
fn a_scan_of_one_hash_key_ends_with_it() {
    for hash_key in [&b"h"[..], b"h\xff", b"\xff", b"\xff\xff"] {
        let start = key::full_key(hash_key, b"");
        let stop = key::prefix_end(&start).expect("the length is below the largest");
        let end = key::prefix_end(&key::hash_storage_prefix(hash_key)).expect("so is the prefix");
        assert_eq!(range(&start, &stop, HASH), Ok((stored(hash_key, b""), end.clone())));
        let later = key::full_key(hash_key, b"row");
        assert_eq!(range(&later, &stop, HASH), Ok((stored(hash_key, b"row"), end)));
        let (from, to) = (key::full_key(hash_key, b"a"), key::full_key(hash_key, b"b"));
        assert_eq!(range(&from, &to, HASH), Ok((stored(hash_key, b"a"), stored(hash_key, b"b"))));
    }
}

#[test]
fn the_ends_of_a_range_are_in_it_if_they_should_be() {
    for table in [HASH, ORDERED] {
        let hash_key: &[u8] = if table == HASH { b"h" } else { b"" };
        for (start_inclusive, stop_inclusive) in [(false, true), (true, false)] {
            let request = GetScanner {
                start_key: key::full_key(hash_key, b"a"),
                stop_key: key::full_key(hash_key, b"b"),
                start_inclusive,
                stop_inclusive,
                ..GetScanner::default()
            };
            let Ok(Operation::OpenScan { scan, .. }) = operation(&Body::GetScanner(request), table) else { panic!() };
            assert_eq!((scan.start_inclusive, scan.stop_inclusive), (start_inclusive, stop_inclusive));
        }
    }
}

#[test]
fn a_scan_across_hash_keys_is_refused() {
    let (a, b) = (key::full_key(b"a", b""), key::full_key(b"b", b"x"));
    for (start, stop) in [(&a[..], &b[..]), (b"", &a), (b"\0\0", &b), (&a, b"\0\x05a"), (b"\0\x05a", b"\xff\xff")] {
        assert_eq!(range(start, stop, HASH), Err(INVALID), "{start:?} to {stop:?}");
    }
}

#[test]
fn a_scan_of_an_ordered_table_is_any_range() {
    let full = |key: &str| key::full_key(b"", key.as_bytes());
    assert_eq!(range(&full("a"), &full("b"), ORDERED), Ok((text("a"), text("b"))));
    for stop in [&b""[..], b"\xff\xff", b"\0\x01"] {
        assert_eq!(range(b"\0\0", stop, ORDERED), Ok((Bytes::new(), Bytes::new())));
    }
    assert_eq!(range(b"\0\x01a", b"", ORDERED), Err(INVALID));
    // Up to the empty key, exclusive: nothing, and not everything.
    assert_eq!(range(b"\0\0", b"\0\0", ORDERED), Ok((text("\0"), text("\0"))));
    // Behind the empty key, as who has its row asks: all rows but that one.
    let after_the_empty_key = GetScanner { start_key: Bytes::from_static(&[0, 0]), ..GetScanner::default() };
    let Ok(Operation::OpenScan { scan, .. }) = operation(&Body::GetScanner(after_the_empty_key), ORDERED) else {
        panic!()
    };
    assert_eq!((&scan.start, scan.start_inclusive, scan.stop.is_empty()), (&text("\0"), true, true));
    // The node goes on in the same way.
    let rest = scan.clone().after(Bytes::new());
    assert_eq!((rest.start, rest.start_inclusive), (text("\0"), true));
    let rest = scan.after(text("a"));
    assert_eq!((rest.start, rest.start_inclusive), (text("a"), false));
}

#[test]
fn a_scans_page_is_bounded() {
    for (batch_size, rows_max) in [(-1, 1000), (0, 1000), (7, 7), (1000, 1000), (i32::MAX, 1000)] {
        let request = GetScanner { batch_size, validate_partition_hash: Some(false), ..GetScanner::default() };
        let Ok(Operation::OpenScan { scan, validate_hash }) = operation(&Body::GetScanner(request), HASH) else {
            panic!()
        };
        assert_eq!((scan.rows_max, validate_hash), (rows_max, false));
    }
    let unknown_filter = GetScanner { hash_key_filter_type: -1, ..GetScanner::default() };
    assert_eq!(operation(&Body::GetScanner(unknown_filter), HASH), Err(INVALID));
}

#[test]
fn scans_are_continued_and_cleared_by_context() {
    let body = Body::Scan(Scan { context_id: 5 });
    assert_eq!(operation(&body, HASH), Ok(Operation::ContinueScan { context: 5 }));
    assert_eq!(operation(&Body::ClearScanner(6), HASH), Ok(Operation::ClearScan { context: 6 }));
    assert_eq!(operation(&Body::Negotiation(Default::default()), HASH), Ok(Operation::Other));
}

const SERVER: Text = Text::from_static("h:1");

fn ident(table: TableKind) -> Ident<'static> {
    static SERVER_TEXT: Text = SERVER;
    Ident { app_id: 2, partition_index: 3, server: &SERVER_TEXT, table }
}

#[test]
fn rows_of_a_scan_carry_full_keys() {
    let row = |key| Row { key, value: text("v"), expire_at: Some(u32::MAX) };
    for (table, storage_key, full_key) in
        [(HASH, stored(b"h", b"s"), key::full_key(b"h", b"s")), (ORDERED, text("key"), key::full_key(b"", b"key"))]
    {
        let page = ReadReply::Page { status: Status::Ok, rows: vec![row(storage_key)], count: 1, resume_after: None };
        let kvs = vec![KeyValue { key: full_key, value: text("v"), expire_ts_seconds: Some(-1) }];
        let expected =
            ScanReply { error: 0, kvs, context_id: 9, app_id: 2, partition_index: 3, server: SERVER, kv_count: None };
        assert_eq!(scan_reply(page, 9, false, &ident(table)), Reply::Scan(expected));
    }
    let page = ReadReply::Page { status: Status::Ok, rows: vec![row(text("short"))], count: 1, resume_after: None };
    let Reply::Scan(reply) = scan_reply(page, 9, false, &ident(HASH)) else { panic!() };
    assert_eq!((reply.error, reply.context_id, reply.kvs), (Status::Corruption.code(), SCAN_DONE, vec![]));
}

#[test]
fn a_counting_scan_says_how_many() {
    let page = ReadReply::Page { status: Status::Ok, rows: vec![], count: 12, resume_after: Some(text("k")) };
    let Reply::Scan(reply) = scan_reply(page, 9, true, &ident(HASH)) else { panic!() };
    assert_eq!((reply.kv_count, reply.context_id), (Some(12), 9));
}

#[test]
fn records_of_a_batch_come_back_in_two_parts() {
    let rows = vec![Row { key: stored(b"h", b"s"), value: text("v"), expire_at: None }];
    let Reply::BatchGet(reply) =
        read_reply(Method::BatchGet, ReadReply::Rows { status: Status::Ok, rows }, &ident(HASH))
    else {
        panic!()
    };
    assert_eq!(reply.data, [FullData { hash_key: text("h"), sort_key: text("s"), value: text("v") }]);
}

#[test]
fn a_checked_value_is_returned_as_it_was_asked_for() {
    for (checked, returned, exists, value) in
        [(None, false, false, ""), (Some(None), true, false, ""), (Some(Some(text("old"))), true, true, "old")]
    {
        let reply = WriteReply { status: Status::TryAgain, detail: WriteDetail::Checked(checked) };
        let expected = CheckReply {
            error: 13,
            check_value_returned: returned,
            check_value_exist: exists,
            check_value: text(value),
            app_id: 2,
            partition_index: 3,
            decree: 7,
            server: SERVER,
        };
        assert_eq!(write_reply(Method::CheckAndSet, reply, 7, &ident(HASH)), Reply::Check(expected));
    }
}

#[test]
fn a_status_alone_answers_every_storage_call() {
    for method in Method::ALL {
        let is_storage = matches!(method.class(), crate::Class::Read | crate::Class::Write | crate::Class::Scan);
        let reply = status_reply(*method, Status::InvalidArgument, &ident(HASH));
        let error = match reply {
            Reply::Get(reply) => reply.error,
            Reply::Ttl(reply) => reply.error,
            Reply::Count(reply) => reply.error,
            Reply::MultiGet(reply) => reply.error,
            Reply::BatchGet(reply) => reply.error,
            Reply::Scan(reply) => reply.error,
            Reply::Update(reply) => reply.error,
            Reply::MultiRemove(reply) => reply.error,
            Reply::Incr(reply) => reply.error,
            Reply::Check(reply) => reply.error,
            Reply::Journal(reply) => reply.error,
            other => {
                assert!(!is_storage || method.is_one_way(), "{method:?}: {other:?}");
                continue;
            }
        };
        assert!(is_storage && error == 4, "{method:?}");
    }
}

#[test]
fn every_metadata_call_can_say_why_it_was_not_done() {
    for method in Method::ALL.iter().filter(|method| method.class() == crate::Class::Admin) {
        let reply = Reply::admin_refused(*method, &Refusal::NoTable);
        assert!(!matches!(reply, Reply::Failed(_)), "{method:?}");
    }
    let Reply::DropTable(reply) = Reply::admin_refused(Method::DropTable, &Refusal::NoTable) else { panic!() };
    assert_eq!(reply.err.name(), "ERR_APP_NOT_EXIST");
    let Reply::QueryConfig(reply) = Reply::admin_refused(Method::QueryConfig, &Refusal::NoTable) else { panic!() };
    assert_eq!(reply.err.name(), "ERR_OBJECT_NOT_FOUND");
}

proptest! {
    /// Whatever the bounds, a scan that is not refused returns what it would in Pegasus' order.
    #[test]
    fn a_scan_means_the_same_in_both_orders(
        keys in proptest::collection::btree_set((short_key(), short_key()), 0..30),
        (start_hash, start_sort, stop_hash, stop_sort) in (short_key(), short_key(), short_key(), short_key()),
        (whole_hash_key, same_hash_key) in any::<(bool, bool)>(),
        start_inclusive: bool,
        stop_inclusive: bool,
    ) {
        let start_key = key::full_key(&start_hash, &start_sort);
        let stop_hash = if same_hash_key { start_hash.clone() } else { stop_hash };
        let end_of_hash_key = key::prefix_end(&key::full_key(&start_hash, b"")).expect("short");
        let stop_key = if whole_hash_key { end_of_hash_key.clone() } else { key::full_key(&stop_hash, &stop_sort) };
        let request = GetScanner {
            start_key: start_key.clone(),
            stop_key: stop_key.clone(),
            start_inclusive,
            // At the end of a hash key "inclusive" could only add another one's row, and is not heard.
            stop_inclusive: stop_inclusive && stop_key != end_of_hash_key,
            ..GetScanner::default()
        };
        let stop_inclusive = request.stop_inclusive;
        let spans_hash_keys = start_hash.is_empty() || (stop_key != end_of_hash_key && stop_hash != start_hash);
        let Ok(Operation::OpenScan { scan, .. }) = operation(&Body::GetScanner(request), HASH) else {
            prop_assert!(spans_hash_keys, "{:?} to {:?} is refused", start_key, stop_key);
            return Ok(());
        };
        prop_assert!(!spans_hash_keys, "{:?} to {:?} is not refused", start_key, stop_key);
        for (hash_key, sort_key) in keys {
            let full_key = key::full_key(&hash_key, &sort_key);
            let in_theirs = above(&full_key, &start_key, start_inclusive) && above(&stop_key, &full_key, stop_inclusive);
            let place = stored(&hash_key, &sort_key);
            let in_ours = (scan.start.is_empty() || above(&place, &scan.start, scan.start_inclusive))
                && (scan.stop.is_empty() || above(&scan.stop, &place, scan.stop_inclusive));
            prop_assert_eq!(in_theirs, in_ours, "{:?}", full_key);
        }
    }
}

fn short_key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff), Just(b'a')], 0..3)
}

fn above(key: &Bytes, bound: &Bytes, inclusive: bool) -> bool {
    if inclusive { key >= bound } else { key > bound }
}
