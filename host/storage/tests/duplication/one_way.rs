//! From one cluster to another one that nobody else writes to.

use crate::common::{Fixture, Memory, Store, bytes};
use crate::*;
use hedgerow_types::journal::{EXPIRED_SECONDS, Phase};
use hedgerow_types::random::Random;

crate::suite! {
    the_target_has_what_writes_of_every_kind_left_at_the_source
    rows_of_before_are_copied_with_their_expiry
    a_row_that_is_removed_while_rows_are_copied_is_removed_there
    pages_that_come_again_and_late_change_nothing
    who_knows_no_position_goes_on_where_the_partition_is
    a_row_that_one_write_changes_twice_is_told_as_the_write_left_it
    a_late_change_does_not_bring_back_what_has_expired
    what_comes_after_a_long_break_and_again_does_not_either
    rows_of_before_win_against_what_the_target_had
    what_expired_during_a_long_break_is_gone_there_too
}

/// Writes of every kind, three of which change nothing.
fn writes(now: u32) -> Vec<Write> {
    vec![
        put("a", "1", 0),
        put("b", "2", now + 50),
        put("", "the empty sort key", 0),
        put("gone at once", "x", now - 1),
        multi_put(&[("m1", "x"), ("m2", "y"), ("m3", "z")], now + 1_000),
        remove("a"),
        remove("never there"),
        multi_remove(&["m1", "m9"]),
        incr("n", 5, 0),
        incr("n", 5, now as i32 + 500),
        incr("n", 5, 0),
        incr("n2", 5, now as i32 + 500),
        incr("n2", 1, -1),
        incr("m2", 1, 0),
        check_and_mutate("n", true, vec![set("c1", "held", 0), unset("m3")]),
        check_and_mutate("n", false, vec![set("c2", "did not hold", 0), unset("n")]),
        check_and_mutate("c2", false, vec![set("c2", "held", now + 70)]),
        check_and_mutate("c2", true, vec![]),
    ]
}

fn write_any<F: Fixture>(store: &mut Store<F>, now: u32) {
    for write in writes(now) {
        store.write(now, write);
    }
}

fn assert_equal<F: Fixture, G: Fixture>(source: &Store<F>, target: &Store<G>, now: u32) {
    for now in [now, now + 55, now + 75, now + 600, now + 1_001] {
        assert_eq!(source.checksum(now), target.checksum(now), "at {now}");
    }
}

fn the_target_has_what_writes_of_every_kind_left_at_the_source<F: Fixture>() {
    for bytes_max in [1, 150, 1 << 20] {
        let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
        source.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
        // Nothing is there to be copied: all is told from the journal.
        carry(&mut source, &mut target, NOW, bytes_max);
        write_any(&mut source, NOW);
        let pages = carry(&mut source, &mut target, NOW, bytes_max);
        assert!(bytes_max > 150 || pages.len() > 3, "{} pages", pages.len());
        assert_eq!(source.checksum(NOW).1, 7, "of all keys these are there");
        assert_equal(&source, &target, NOW);
        // Later writes are told as well, and time goes on.
        write_any(&mut source, NOW + 60);
        carry(&mut source, &mut target, NOW + 61, bytes_max);
        assert_equal(&source, &target, NOW + 61);
        let page = source.page(bytes_max);
        assert_eq!((page.phase, page.changes.len(), page.entries_left, page.bytes_left), (Phase::Following, 0, 0, 0));
        assert!(!page.has_more);
    }
}

fn rows_of_before_are_copied_with_their_expiry<F: Fixture>() {
    let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
    write_any(&mut source, NOW);
    source.flush();
    source.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    let pages = carry(&mut source, &mut target, NOW, 1);
    assert_eq!(pages[0].phase, Phase::Copying);
    let changes: Vec<&Change> = pages.iter().flat_map(|page| &page.changes).collect();
    // As if all had been changed when the duplication began.
    let begun = u64::from(NOW) << STAMP_COUNT_BITS;
    assert!(changes.len() >= 7 && changes.iter().all(|it| (it.stamp, it.origin) == (begun, HERE)), "{changes:?}");
    assert_equal(&source, &target, NOW);
    // A table that was empty has nothing to copy, and follows at once.
    let mut empty = Store::<F>::new();
    empty.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    assert_eq!(carry(&mut empty, &mut target, NOW, 1).len(), 1);
    assert_eq!(empty.page(1).phase, Phase::Following);
}

/// Whether its page was told before or not.
fn a_row_that_is_removed_while_rows_are_copied_is_removed_there<F: Fixture>() {
    let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
    source.write_all(NOW, (0..10).map(|it| put(&it.to_string(), "v", 0)));
    source.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    let first = source.page(60);
    assert!(first.has_more && first.changes.len() > 1 && first.changes.len() < 9, "{first:?}");
    source
        .write_all(NOW, [remove("0"), remove("9"), put("1", "new", 0), put("8", "new", 0), put("-", "before all", 0)]);
    target.write_all(NOW, [duplicate(THERE, &first.changes)]);
    source.write_all(NOW, [reached(ID, &first)]);
    carry(&mut source, &mut target, NOW, 60);
    assert_eq!((target.value("0", NOW), target.value("9", NOW)), (None, None));
    assert_eq!(target.value("8", NOW), Some(bytes("new")));
    assert_equal(&source, &target, NOW);
}

fn pages_that_come_again_and_late_change_nothing<F: Fixture>() {
    let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
    write_any(&mut source, NOW);
    source.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    let mut pages = carry(&mut source, &mut target, NOW, 1);
    write_any(&mut source, NOW + 10);
    pages.extend(carry(&mut source, &mut target, NOW + 10, 100));
    write_any(&mut source, NOW + 20);
    pages.extend(carry(&mut source, &mut target, NOW + 20, 1 << 20));
    let content = target.content();
    let mut random = Random::new(1);
    for round in 0..200 {
        let page = &pages[random.below(pages.len() as u64) as usize];
        let mut changes = page.changes.clone();
        if round % 2 == 1 {
            changes.reverse();
        }
        target.write_all(NOW + 20, [duplicate(THERE, &changes)]);
        assert_eq!(target.content(), content, "after {page:?}");
    }
    assert_equal(&source, &target, NOW + 20);
    // All changes but the first page's in the opposite order, at a target that knows none of them.
    let mut reversed = Store::<Memory>::new();
    for page in pages.iter().rev() {
        let changes: Vec<Change> = page.changes.iter().rev().cloned().collect();
        reversed.write_all(NOW + 20, [duplicate(THERE, &changes)]);
    }
    assert_equal(&source, &reversed, NOW + 20);
}

fn who_knows_no_position_goes_on_where_the_partition_is<F: Fixture>() {
    let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
    source.write_all(NOW, [put("a", "1", 0), begin(ID, 1, HERE, NO_LIMIT)]);
    source.write_all(NOW, (0..9).map(|it| put(&it.to_string(), "v", 0)));
    let mut read = 0;
    // Only each third page's position is written down before the reader is another one.
    while source.page(40).has_more {
        let mut from = None;
        for _ in 0..3 {
            let page = page_of(source.partition(), ID, 1, from, 40);
            target.write_all(NOW, [duplicate(THERE, &page.changes)]);
            read += 1;
            from = page.position;
        }
        let page = JournalPage { position: from, round: 1, ..JournalPage::default() };
        source.write_all(NOW, [reached(ID, &page)]);
        // What is behind is of no use, nor what was said in another round.
        let at = page_of(source.partition(), ID, 1, None, 40);
        assert_eq!(page_of(source.partition(), ID, 1, Some(Position::START), 40), at);
        let end = Position::Following { entry: 9, bytes: u64::MAX };
        assert_eq!(page_of(source.partition(), ID, 2, Some(end), 40), at);
    }
    assert!(read > 9, "{read} pages");
    assert_equal(&source, &target, NOW);
}

/// All changes of one write have one stamp: the other side would take the first of them.
fn a_row_that_one_write_changes_twice_is_told_as_the_write_left_it<F: Fixture>() {
    let twice = [
        multi_put(&[("a", "1"), ("a", "2")], 0),
        put("b", "1", 0),
        check_and_mutate("a", true, vec![unset("b"), set("b", "2", 0)]),
        check_and_mutate("a", true, vec![set("c", "1", 0), unset("c"), set("d", "1", 0), set("d", "2", 0)]),
        multi_remove(&["e", "e"]),
    ];
    let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
    source.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    carry(&mut source, &mut target, NOW, 1 << 20);
    source.write_all(NOW, twice);
    for suffix in ["a", "b", "d"] {
        assert_eq!(source.value(suffix, NOW), Some(bytes("2")), "{suffix}");
    }
    carry(&mut source, &mut target, NOW, 1 << 20);
    assert_equal(&source, &target, NOW);
    // Live and removed rows are copied apart, so that they may come in either order.
    let mut other = Store::<Memory>::new();
    source.write_all(NOW, [begin(ID, 2, HERE, NO_LIMIT)]);
    let mut changes = source.page(1 << 20).changes;
    changes.reverse();
    other.write_all(NOW, [duplicate(THERE, &changes)]);
    assert_equal(&source, &other, NOW);
}

fn a_late_change_does_not_bring_back_what_has_expired<F: Fixture>() {
    let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
    source.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT), put("a", "for ever", 0)]);
    let late = carry(&mut source, &mut target, NOW, 1 << 20);
    source.write_all(NOW, [put("a", "for a while", NOW + 5)]);
    carry(&mut source, &mut target, NOW, 1 << 20);
    for later in [5, EXPIRED_SECONDS] {
        target.compact();
        late.iter().for_each(|page| target.write_all(NOW + later, [duplicate(THERE, &page.changes)]));
        assert_eq!(target.value("a", NOW + later), None, "{later} s later");
        assert_equal(&source, &target, NOW + later);
    }
}

/// The target hears of both hours after the second has expired, and of the first again after that.
fn what_comes_after_a_long_break_and_again_does_not_either<F: Fixture>() {
    let later = NOW + 2 * EXPIRED_SECONDS;
    let mut target = Store::<F>::new();
    let for_ever = foreign(NOW, HERE, set("a", "for ever", 0));
    let for_a_while = foreign(NOW + 1, HERE, set("a", "for a while", NOW + 60));
    target.write_all(later, [duplicate(THERE, &[for_ever.clone(), for_a_while])]);
    target.compact();
    target.write_all(later, [duplicate(THERE, &[for_ever])]);
    assert_eq!(target.value("a", later), None);
}

/// Whatever their clusters' numbers are, and whether the target's rows have stamps already.
fn rows_of_before_win_against_what_the_target_had<F: Fixture>() {
    for has_stamps in [false, true] {
        let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
        if has_stamps {
            target.write_all(NOW, [begin(9, 1, THERE, NO_LIMIT)]);
        }
        target.write_all(NOW, [put("a", "of before", 0), put("b", "v", 0), remove("b")]);
        source.write_all(NOW + 10, [put("a", "loaded", 0), put("b", "loaded", 0), begin(ID, 1, HERE, NO_LIMIT)]);
        carry(&mut source, &mut target, NOW + 10, 1 << 20);
        assert_eq!(source.checksum(NOW + 10), target.checksum(NOW + 10), "with stamps: {has_stamps}");
    }
}

/// The source does not have the row any more by the time it is told, and the target has an older one.
fn what_expired_during_a_long_break_is_gone_there_too<F: Fixture>() {
    let (mut source, mut target) = (Store::<F>::new(), Store::<F>::new());
    source.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT), put("a", "for ever", 0), put("b", "for ever", 0)]);
    carry(&mut source, &mut target, NOW, 1 << 20);
    source.write_all(NOW + 1, [put("a", "for a while", NOW + 60), put("b", "of then", 0)]);
    let later = NOW + 3 * EXPIRED_SECONDS;
    source.write_all(later, [put("b", "of now", 0)]);
    source.compact();
    carry(&mut source, &mut target, later, 1 << 20);
    assert_eq!((target.value("a", later), target.value("b", later)), (None, Some(bytes("of now"))));
    assert_eq!(source.checksum(later), target.checksum(later));
}
