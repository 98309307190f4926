//! What reads answer, rule by rule.

use crate::common::{Fixture, Store, bytes};
use crate::{key, pairs, suite};
use bytes::Bytes;
use hedgerow_storage::{EngineError, ReadBudget};
use hedgerow_types::error::Status;
use hedgerow_types::key::{full_key, hash_storage_key};
use hedgerow_types::limit::{READ_ROWS_MAX, READ_SIZE_MAX, SCAN_PAGE_ROWS_MAX};
use hedgerow_types::op::{Filter, FilterKind, MultiGet, Read, ReadReply, Scan, Selection, Write};

fn range() -> Selection {
    Selection::Range {
        start: Bytes::new(),
        start_inclusive: true,
        stop: Bytes::new(),
        stop_inclusive: false,
        filter: Filter::default(),
        reverse: false,
    }
}

fn between(start: &str, start_inclusive: bool, stop: &str, stop_inclusive: bool) -> Selection {
    let (start, stop) = (bytes(start), bytes(stop));
    Selection::Range { start, start_inclusive, stop, stop_inclusive, filter: Filter::default(), reverse: false }
}

fn reversed(selection: Selection) -> Selection {
    match selection {
        Selection::Range { start, start_inclusive, stop, stop_inclusive, filter, .. } => {
            Selection::Range { start, start_inclusive, stop, stop_inclusive, filter, reverse: true }
        }
        Selection::Suffixes(_) => selection,
    }
}

fn filtered(kind: FilterKind, pattern: &str) -> Selection {
    let filter = Filter { kind, pattern: bytes(pattern) };
    let (start, stop) = (Bytes::new(), Bytes::new());
    Selection::Range { start, start_inclusive: true, stop, stop_inclusive: false, filter, reverse: false }
}

fn request(selection: Selection) -> MultiGet {
    MultiGet { prefix: bytes("k"), selection, count_max: 0, size_max: 0, no_value: false }
}

fn multi_get<F: Fixture>(store: &Store<F>, request: MultiGet) -> (Status, Vec<String>) {
    match store.read(Read::MultiGet(request), 10) {
        ReadReply::Rows { status, rows } => (status, pairs(&rows)),
        reply => panic!("{reply:?}"),
    }
}

/// Rows a to e, of which b is expired at 10, and neighbours on both sides of the prefix.
fn filled<F: Fixture>() -> Store<F> {
    let mut store = Store::new();
    for (suffix, value, expire_at) in [("a", "1", 0), ("b", "22", 10), ("c", "333", 11), ("d", "4", 0), ("e", "5", 0)] {
        store.put(suffix, value, expire_at);
    }
    for neighbour in ["j", "jz", "l"] {
        store.write(0, Write::Put { key: bytes(neighbour), value: bytes("no"), expire_at: 0 });
    }
    store
}

fn get_and_ttl_know_expiry<F: Fixture>() {
    let store = filled::<F>();
    assert_eq!((store.value("c", 10), store.value("c", 11)), (Ok("333".into()), Err(Status::NotFound)));
    assert_eq!((store.ttl("c", 4), store.ttl("c", 11)), (Ok(7), Err(Status::NotFound)));
    assert_eq!((store.ttl("a", 4), store.ttl("absent", 4)), (Ok(-1), Err(Status::NotFound)));
    let mut store = store;
    store.put("far", "", u32::MAX);
    assert_eq!(store.ttl("far", 4), Ok(i32::MAX), "more seconds than fit");
}

fn batch_get_leaves_out_the_absent_and_refuses_an_empty_list<F: Fixture>() {
    let store = filled::<F>();
    let keys = ["e", "b", "nothing", "a"].map(key).to_vec();
    match store.read(Read::BatchGet { keys }, 10) {
        ReadReply::Rows { status, rows } => {
            assert_eq!((status, pairs(&rows)), (Status::Ok, vec!["ke=5".into(), "ka=1".into()]))
        }
        reply => panic!("{reply:?}"),
    }
    let empty = ReadReply::Rows { status: Status::InvalidArgument, rows: Vec::new() };
    assert_eq!(store.read(Read::BatchGet { keys: Vec::new() }, 10), empty);
}

fn sort_keys_come_in_the_order_asked_for<F: Fixture>() {
    let store = filled::<F>();
    let list = |suffixes: &[&str]| Selection::Suffixes(suffixes.iter().map(|suffix| bytes(suffix)).collect());
    let ask =
        |count_max, size_max, suffixes| multi_get(&store, MultiGet { count_max, size_max, ..request(list(suffixes)) });
    assert_eq!(ask(0, 0, &["e", "b", "x", "a"]), (Status::Ok, vec!["e=5".into(), "a=1".into()]));
    assert_eq!(ask(1, 0, &["e", "a"]), (Status::Incomplete, vec!["e=5".into()]));
    assert_eq!(ask(1, 0, &["e", "b", "x"]), (Status::Ok, vec!["e=5".into()]), "nothing is left");
    assert_eq!(ask(0, 2, &["e", "a"]), (Status::Incomplete, vec!["e=5".into()]));
    assert_eq!(ask(0, 3, &["e", "a"]), (Status::Ok, vec!["e=5".into(), "a=1".into()]), "checked before each row");
    let names = MultiGet { no_value: true, ..request(list(&["e", "a"])) };
    assert_eq!(multi_get(&store, names), (Status::Ok, vec!["e=".into(), "a=".into()]));
}

fn a_range_obeys_its_bounds<F: Fixture>() {
    let store = filled::<F>();
    let ask = |selection| multi_get(&store, request(selection)).1.concat();
    assert_eq!(ask(range()), "a=1c=333d=4e=5");
    assert_eq!(ask(between("a", true, "d", false)), "a=1c=333");
    assert_eq!(ask(between("a", false, "d", true)), "c=333d=4");
    assert_eq!(ask(between("d", true, "d", true)), "d=4");
    assert_eq!(ask(between("d", true, "d", false)), "");
    assert_eq!(ask(between("e", true, "a", true)), "");
    assert_eq!(ask(between("", false, "", true)), "a=1c=333d=4e=5", "an empty stop is the prefix's end");
    assert_eq!(ask(reversed(between("a", false, "e", false))), "c=333d=4", "ascending all the same");
    assert_eq!(multi_get(&store, request(between("x", true, "", false))).0, Status::Ok);
}

fn limits_end_a_range_with_incomplete<F: Fixture>() {
    let store = filled::<F>();
    let ask = |count_max, size_max, selection| {
        let (status, rows) = multi_get(&store, MultiGet { count_max, size_max, ..request(selection) });
        (status, rows.concat())
    };
    assert_eq!(ask(2, 0, range()), (Status::Incomplete, "a=1c=333".into()));
    assert_eq!(ask(4, 0, range()), (Status::Ok, "a=1c=333d=4e=5".into()), "no row of the range is left");
    assert_eq!(ask(2, 0, reversed(range())), (Status::Incomplete, "d=4e=5".into()));
    assert_eq!(ask(0, 3, range()), (Status::Incomplete, "a=1c=333".into()), "2 bytes before c, 6 behind it");
    assert_eq!(ask(0, 2, range()), (Status::Incomplete, "a=1".into()));
    assert_eq!(ask(0, 2, reversed(range())), (Status::Incomplete, "e=5".into()));
    assert_eq!(ask(1, 0, between("d", true, "e", false)), (Status::Ok, "d=4".into()));
}

fn filters_apply_to_the_sort_key<F: Fixture>() {
    let mut store = Store::<F>::new();
    for suffix in ["aa", "ab", "ba", "bab"] {
        store.put(suffix, "", 0);
    }
    let ask = |kind, pattern| multi_get(&store, request(filtered(kind, pattern)));
    assert_eq!(ask(FilterKind::Prefix, "a"), (Status::Ok, vec!["aa=".into(), "ab=".into()]));
    assert_eq!(ask(FilterKind::Postfix, "ab").1.concat(), "ab=bab=");
    assert_eq!(ask(FilterKind::Anywhere, "a").1.concat(), "aa=ab=ba=bab=");
    assert_eq!(ask(FilterKind::Anywhere, "").1.len(), 4);
    assert_eq!(ask(FilterKind::None, "zz").1.len(), 4);
    let first = MultiGet { count_max: 2, ..request(filtered(FilterKind::Prefix, "a")) };
    assert_eq!(multi_get(&store, first).0, Status::Ok, "the prefix narrows the range");
}

fn many<F: Fixture>(count: usize, expire_at: u32) -> Store<F> {
    let mut store = Store::new();
    let rows = (0..count).map(|number| (Bytes::from(format!("{number:05}")), bytes("v"))).collect();
    store.write(0, Write::MultiPut { prefix: bytes("k"), rows, expire_at });
    store
}

fn a_read_looks_at_a_limited_number_of_rows<F: Fixture>() {
    let mut store = many::<F>(READ_ROWS_MAX, 10);
    store.put("00000", "v", 0);
    assert_eq!(multi_get(&store, request(range())), (Status::Ok, vec!["00000=v".into()]));
    store.put("x", "v", 0);
    assert_eq!(multi_get(&store, request(range())), (Status::Incomplete, vec!["00000=v".into()]), "expired rows count");
    let count = store.read(Read::SortKeyCount { prefix: bytes("k") }, 10);
    assert_eq!(count, ReadReply::Count(Ok(2)));
}

fn a_reply_stays_within_the_size_limit<F: Fixture>() {
    let mut store = Store::<F>::new();
    let value = Bytes::from(vec![7; 1 << 20]);
    let suffixes: Vec<Bytes> = (0..READ_SIZE_MAX >> 20).map(|number| Bytes::from(format!("{number:02}"))).collect();
    let rows = suffixes.iter().map(|suffix| (suffix.clone(), value.clone())).chain([(bytes("z"), value.clone())]);
    let put = Write::MultiPut { prefix: bytes("k"), rows: rows.collect(), expire_at: 0 };
    store.write(0, put);
    let keys = suffixes.iter().map(|suffix| Bytes::from([b"k", &suffix[..]].concat())).chain([key("z")]).collect();
    let list = Selection::Suffixes(suffixes.iter().cloned().chain([bytes("z")]).collect());
    for read in [Read::MultiGet(request(range())), Read::MultiGet(request(list)), Read::BatchGet { keys }] {
        let ReadReply::Rows { status, rows } = store.read(read, 10) else { panic!("rows") };
        assert_eq!((status, rows.len()), (Status::Incomplete, suffixes.len()));
    }
    let ReadReply::Page { count, resume_after, .. } = store.read(Read::Scan(scan()), 10) else { panic!("a page") };
    assert_eq!((count as usize, resume_after), (suffixes.len(), Some(key("29"))));
    store.write(0, Write::Remove { key: key("z") });
    let ReadReply::Page { resume_after, .. } = store.read(Read::Scan(scan()), 10) else { panic!("a page") };
    assert_eq!(resume_after, None, "full, and complete");
}

fn scan() -> Scan {
    Scan {
        start: Bytes::new(),
        start_inclusive: true,
        stop: Bytes::new(),
        stop_inclusive: false,
        is_hash_table: false,
        hash_key_filter: Filter::default(),
        sort_key_filter: Filter::default(),
        rows_max: 1_000,
        no_value: false,
        return_expire: false,
        only_count: false,
    }
}

/// Rows and the key to go on from.
fn page<F: Fixture>(store: &Store<F>, scan: Scan, now: u32) -> (String, u32, Option<Bytes>) {
    match store.read(Read::Scan(scan), now) {
        ReadReply::Page { status: Status::Ok, rows, count, resume_after } => {
            (pairs(&rows).concat(), count, resume_after)
        }
        reply => panic!("{reply:?}"),
    }
}

fn pages_of_a_scan_join_without_a_gap<F: Fixture>() {
    let store = filled::<F>();
    let (mut whole, mut pages) = (String::new(), 0);
    let mut next = Scan { rows_max: 2, ..scan() };
    loop {
        let (rows, _, resume_after) = page(&store, next.clone(), 10);
        whole.push_str(&rows);
        pages += 1;
        let Some(key) = resume_after else { break };
        next = Scan { start: key, start_inclusive: false, ..next };
    }
    assert_eq!(whole, "j=nojz=noka=1kc=333kd=4ke=5l=no");
    assert_eq!(pages, 4);
    assert_eq!(page(&store, Scan { rows_max: 7, ..scan() }, 10).2, None, "the last page says that it is the last");
    assert_eq!(page(&store, Scan { start: bytes("m"), ..scan() }, 10), (String::new(), 0, None));
}

fn a_scan_obeys_its_bounds_and_options<F: Fixture>() {
    let store = filled::<F>();
    let inner = Scan { start: bytes("ka"), stop: bytes("kd"), ..scan() };
    assert_eq!(page(&store, inner.clone(), 10).0, "ka=1kc=333");
    let inner = Scan { start_inclusive: false, stop_inclusive: true, ..inner };
    assert_eq!(page(&store, inner.clone(), 10).0, "kc=333kd=4");
    assert_eq!(page(&store, Scan { no_value: true, ..inner.clone() }, 10).0, "kc=kd=");
    assert_eq!(page(&store, Scan { only_count: true, ..inner.clone() }, 10), (String::new(), 2, None));
    let only = Scan { sort_key_filter: Filter { kind: FilterKind::Postfix, pattern: bytes("d") }, ..inner.clone() };
    assert_eq!(page(&store, only, 10).0, "kd=4", "the whole key of an ordered table");
    let ReadReply::Page { rows, .. } = store.read(Read::Scan(Scan { return_expire: true, ..inner }), 10) else {
        panic!("a page");
    };
    assert_eq!(rows.iter().map(|row| row.expire_at).collect::<Vec<_>>(), [Some(11), Some(0)]);
}

fn a_page_looks_at_a_limited_number_of_rows<F: Fixture>() {
    let mut store = many::<F>(SCAN_PAGE_ROWS_MAX, 10);
    assert_eq!(page(&store, scan(), 10), (String::new(), 0, None));
    store.put("x", "v", 0);
    let (rows, count, resume_after) = page(&store, scan(), 10);
    assert_eq!(
        (rows.as_str(), count, resume_after),
        ("", 0, Some(key("00999"))),
        "a page may be empty and not the last"
    );
    let rest = Scan { start: key("00999"), start_inclusive: false, ..scan() };
    assert_eq!(page(&store, rest, 10), ("kx=v".into(), 1, None));
}

fn scan_filters_know_hash_and_sort_key<F: Fixture>() {
    let mut store = Store::<F>::new();
    for (hash_key, sort_key) in [("user1", "age"), ("user1", "name"), ("user2", "age"), ("item", "name"), ("", "age")] {
        let key = hash_storage_key(&full_key(hash_key.as_bytes(), sort_key.as_bytes())).expect("well formed");
        store.write(0, Write::Put { key, value: bytes(""), expire_at: 0 });
    }
    let count = |hash: (FilterKind, &str), sort: (FilterKind, &str)| {
        let filter = |(kind, pattern): (FilterKind, &str)| Filter { kind, pattern: bytes(pattern) };
        let (hash_key_filter, sort_key_filter) = (filter(hash), filter(sort));
        page(&store, Scan { is_hash_table: true, only_count: true, hash_key_filter, sort_key_filter, ..scan() }, 10).1
    };
    let all = (FilterKind::None, "");
    assert_eq!(count(all, all), 5);
    assert_eq!(count((FilterKind::Prefix, "user"), all), 3);
    assert_eq!(count((FilterKind::Postfix, "1"), (FilterKind::Anywhere, "a")), 2);
    assert_eq!(count(all, (FilterKind::Prefix, "age")), 3);
    assert_eq!(count((FilterKind::Prefix, "age"), all), 0, "an empty hash key does not borrow the sort key");
}

fn a_malformed_hash_key_is_damage<F: Fixture>() {
    let store = filled::<F>();
    let hash_key_filter = Filter { kind: FilterKind::Prefix, pattern: bytes("u") };
    let read = Read::Scan(Scan { is_hash_table: true, hash_key_filter, ..scan() });
    assert!(store.partition().read(&read, 10).expect_err("refused").is_damage());
}

fn checksum<F: Fixture>(store: &Store<F>, now: u32) -> (u64, u64, u64) {
    match store.read(Read::Checksum, now) {
        ReadReply::Checksum { checksum, rows, index } => (checksum, rows, index),
        reply => panic!("{reply:?}"),
    }
}

fn checksums_are_equal_exactly_for_equal_live_rows<F: Fixture>() {
    let mut one = Store::<F>::new();
    let mut other = Store::<F>::new();
    assert_eq!(checksum(&one, 0), (0, 0, 0));
    one.put("a", "1", 0);
    one.put("b", "2", 20);
    one.put("gone", "x", 5);
    other.put("b", "9", 0);
    other.put("b", "2", 20);
    other.put("a", "1", 0);
    assert_eq!(checksum(&one, 5), checksum(&other, 5));
    assert_eq!(checksum(&one, 5).1, 2);
    assert_ne!(checksum(&one, 4).0, checksum(&other, 4).0, "the third row still lives");
    assert_eq!(checksum(&one, 5), checksum(&one, 5));
    other.put("b", "2", 21);
    assert_ne!(checksum(&one, 5).0, checksum(&other, 5).0, "expiry counts");
    other.put("b", "3", 20);
    assert_ne!(checksum(&one, 5).0, checksum(&other, 5).0, "value counts");
    assert_eq!(checksum(&other, 5).2, 5, "position");
}

/// What is looked at counts, also what is not returned; and nothing is fetched for a list that is too long anyway.
fn a_read_at_once_keeps_within_its_budget<F: Fixture>() {
    let store = many::<F>(40, 0);
    let now = 10;
    let at_once = |read: &Read, rows: u64, bytes: u64| {
        let reply = store.partition().read_at_once(read, now, ReadBudget { rows, bytes }).expect("reads");
        reply.inspect(|reply| assert_eq!(*reply, store.partition().read(read, now).expect("reads"))).is_some()
    };
    let count = Read::SortKeyCount { prefix: bytes("k") };
    // One more is looked at: that of the next hash key, or the row behind all data.
    assert!(at_once(&count, 41, 1 << 20));
    assert!(!at_once(&count, 39, 1 << 20) && !at_once(&count, 41, 100));
    let one = Read::Get { key: Bytes::from_static(b"absent") };
    assert!(at_once(&one, 1, 1) && !at_once(&one, 0, 1));
    let keys = |count: usize| Read::BatchGet { keys: vec![Bytes::from_static(b"absent"); count] };
    assert!(at_once(&keys(3), 3, 1) && !at_once(&keys(4), 3, 1));
    assert!(!at_once(&Read::Checksum, u64::MAX, u64::MAX));
    let moment = store.partition().moment().expect("a snapshot");
    for read in [&count, &one, &keys(4), &Read::Checksum] {
        let reply = moment.read(read, now, &|| true).expect("reads");
        assert_eq!(reply, store.partition().read(read, now).expect("reads"));
        assert!(matches!(moment.read(read, now, &|| false), Err(EngineError::NotAtOnce)));
    }
    let at_once = |read: &Read, rows: u64, bytes: u64| {
        let reply = moment.read_at_once(read, now, ReadBudget { rows, bytes }).expect("reads");
        reply.inspect(|reply| assert_eq!(*reply, store.partition().read(read, now).expect("reads"))).is_some()
    };
    assert!(at_once(&count, 41, 1 << 20) && !at_once(&count, 39, 1 << 20) && !at_once(&count, 41, 100));
    assert!(at_once(&one, 1, 1) && at_once(&keys(3), 3, 1) && !at_once(&keys(4), 3, 1));
}

fn a_moment_stays_what_it_was_on_another_thread<F: Fixture>() {
    let mut store = Store::<F>::new();
    store.put("a", "1", 50);
    let before = store.partition().moment().expect("a snapshot");
    store.put("a", "2", 50);
    store.flush();
    store.write(60, Write::Nothing);
    let after = store.partition().moment().expect("a snapshot");
    let get = Read::Get { key: key("a") };
    let before_flush = before.clone();
    let [before, after] = [before, after].map(|moment| {
        let read = || moment.read(&get, 40, &|| true);
        std::thread::scope(|scope| scope.spawn(read).join().expect("runs")).expect("reads")
    });
    assert_eq!(before, ReadReply::Value(Ok(bytes("1"))));
    assert_eq!(after, ReadReply::Value(Err(Status::NotFound)), "the log's time counts for readers too");
    // What was flushed since is not what it had: it looks for that in its own layers.
    let at_once = before_flush.read_at_once(&get, 40, ReadBudget { rows: 1, bytes: 1 << 10 }).expect("reads");
    assert_eq!(at_once, Some(ReadReply::Value(Ok(bytes("1")))));
}

suite! {
    get_and_ttl_know_expiry
    batch_get_leaves_out_the_absent_and_refuses_an_empty_list
    sort_keys_come_in_the_order_asked_for
    a_range_obeys_its_bounds
    limits_end_a_range_with_incomplete
    filters_apply_to_the_sort_key
    a_read_looks_at_a_limited_number_of_rows
    a_reply_stays_within_the_size_limit
    pages_of_a_scan_join_without_a_gap
    a_scan_obeys_its_bounds_and_options
    a_page_looks_at_a_limited_number_of_rows
    scan_filters_know_hash_and_sort_key
    a_malformed_hash_key_is_damage
    checksums_are_equal_exactly_for_equal_live_rows
    a_moment_stays_what_it_was_on_another_thread
    a_read_at_once_keeps_within_its_budget
}
