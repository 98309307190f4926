//! What a source keeps, for how long, and which writes it refuses.

use crate::common::{Fixture, Store, bytes};
use crate::*;
use hedgerow_types::journal::{DUPLICATE_CHANGES_MAX, DUPLICATION_COUNT_MAX, Phase, STAMP_AHEAD_MAX};

crate::suite! {
    a_journal_that_becomes_too_long_is_given_up_and_the_writes_go_on
    a_new_round_copies_anew_and_the_same_round_does_not
    a_copy_to_another_table_begins_anew
    what_all_were_told_is_removed_a_bounded_part_with_each_write
    entries_stay_for_the_duplication_that_is_furthest_behind
    foreign_changes_trim_a_journal_as_well
    what_cannot_be_right_is_refused_and_changes_nothing
    what_is_said_too_late_is_no_error_and_changes_nothing
    a_page_ends_at_its_size_and_never_before_its_first_row
}

/// Fills the journal of `count` entries.
fn filled<F: Fixture>(count: u64, bytes_max: u64) -> Store<F> {
    let mut store = Store::<F>::new();
    store.write_all(NOW, [begin(ID, 1, HERE, bytes_max)]);
    store.write_all(NOW, (0..count).map(|it| put(&it.to_string(), "v", 0)));
    store
}

fn a_journal_that_becomes_too_long_is_given_up_and_the_writes_go_on<F: Fixture>() {
    let mut store = filled::<F>(100, 10_000);
    assert_eq!((store.page(1).phase, store.entry_count()), (Phase::Copying, 100));
    let mut written = 100;
    while store.page(1).phase == Phase::Copying {
        store.write_all(NOW, [put(&written.to_string(), "v", 0)]);
        written += 1;
    }
    let page = store.page(1 << 20);
    assert_eq!((page.phase, page.round, &page.position), (Phase::Overrun, 1, &None));
    assert!(page.changes.is_empty() && page.bytes_left > 10_000 && page.bytes_left < 10_100, "{}", page.bytes_left);
    // What nobody needs goes by and by, and nothing comes.
    assert_eq!(store.entry_count(), written - 64);
    assert_eq!(page.unneeded as usize, written - 64);
    for count in (0..written - 64).rev().step_by(64) {
        store.write_all(NOW, [put("a", "v", 0)]);
        assert!(store.entry_count() <= count, "{} entries", store.entry_count());
    }
    store.write_all(NOW, [put("a", "v", 0)]);
    assert_eq!(store.entry_count(), 0);
    assert_eq!(store.checksum(NOW).1, written as u64 + 1);
}

/// With what was removed since the last round had come to its end.
fn a_new_round_copies_anew_and_the_same_round_does_not<F: Fixture>() {
    let (mut store, mut target) = (filled::<F>(3, 300), Store::<F>::new());
    carry(&mut store, &mut target, NOW, 200);
    store.write_all(NOW, [remove("1")]);
    store.write_all(NOW, (3..50).map(|it| put(&it.to_string(), "v", 0)));
    assert_eq!(store.page(1).phase, Phase::Overrun);
    store.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT), begin(ID, 0, HERE, NO_LIMIT)]);
    assert_eq!(store.page(1).phase, Phase::Overrun);
    store.write_all(NOW, [begin(ID, 2, HERE, NO_LIMIT)]);
    assert_eq!((store.page(1).phase, store.page(1).round), (Phase::Copying, 2));
    assert!(target.value("1", NOW).is_some());
    carry(&mut store, &mut target, NOW, 200);
    assert_eq!(store.checksum(NOW), target.checksum(NOW));
    // The limit is another one, and the position as it was.
    store.write_all(NOW, [put("a", "v", 0)]);
    let page = store.page(1 << 20);
    store.write_all(NOW, [begin(ID, 2, HERE, 1)]);
    assert_eq!(store.page(1 << 20), page);
    store.write_all(NOW, [put("a", "v", 0)]);
    assert_eq!(store.page(1).phase, Phase::Overrun);
}

/// As long as rows are copied; what follows a table does not go on with another one.
fn a_copy_to_another_table_begins_anew<F: Fixture>() {
    let to =
        |target| Write::Journal(JournalWrite::Begin { id: ID, round: 1, cluster: HERE, target, bytes_max: NO_LIMIT });
    let mut store = Store::<F>::new();
    store.write_all(NOW, (0..10).map(|it| put(&it.to_string(), "v", 0)));
    store.write_all(NOW, [to(5)]);
    let first = store.page(1);
    store.write_all(NOW, [reached(ID, &first), to(5)]);
    assert_ne!(store.page(1), first);
    store.write_all(NOW, [to(6)]);
    assert_eq!((store.page(1).changes, store.page(1).target), (first.changes, 6));
    carry(&mut store, &mut Store::<F>::new(), NOW, 1 << 20);
    store.write_all(NOW, [to(7)]);
    assert_eq!((store.page(1).phase, store.page(1).target), (Phase::Following, 6));
}

fn what_all_were_told_is_removed_a_bounded_part_with_each_write<F: Fixture>() {
    const COUNT: u64 = 9_000;
    let mut store = filled::<F>(COUNT, NO_LIMIT);
    assert_eq!(store.entry_count() as u64, COUNT);
    let mut target = Store::<F>::new();
    while store.page(1 << 20).phase == Phase::Copying {
        let page = store.page(1 << 20);
        target.write_all(NOW, [duplicate(THERE, &page.changes)]);
        store.write_all(NOW, [reached(ID, &page)]);
    }
    assert_eq!(store.entry_count() as u64, COUNT, "the copy's end is where the journal began");
    let page = store.page(1 << 20);
    assert_eq!(page.changes.len(), DUPLICATE_CHANGES_MAX, "so many in a page at most");
    store.write_all(NOW, [reached(ID, &page)]);
    assert_eq!(store.entry_count() as u64, COUNT - DUPLICATE_CHANGES_MAX as u64);
    store.write_all(NOW, [Write::Journal(JournalWrite::End { id: ID })]);
    let left = store.entry_count() as u64;
    assert!(left > 0 && left < COUNT - DUPLICATE_CHANGES_MAX as u64 - 4_000, "{left} entries left");
    assert_eq!(store.page(1).phase, Phase::Absent);
    assert_eq!(store.page(1).unneeded, left);
    // What says so late does not bring it back.
    assert_eq!(store.write(NOW, begin(ID, 1, HERE, NO_LIMIT)), Status::InvalidArgument);
    assert_eq!(store.page(1).phase, Phase::Absent);
    let before = store.entry_count();
    store.write_all(NOW, [put("a", "v", 0)]);
    assert_eq!(store.entry_count(), before - 64);
    // On a quiet table, said again.
    while store.page(1).unneeded > 0 {
        let before = store.entry_count();
        store.write_all(NOW, [Write::Journal(JournalWrite::End { id: ID })]);
        assert_eq!(store.entry_count(), before.saturating_sub(4_096));
    }
    store.write_all(NOW, [put("a", "v", 0)]);
    assert_eq!(store.entry_count(), 0, "nobody has anything kept");
}

fn entries_stay_for_the_duplication_that_is_furthest_behind<F: Fixture>() {
    let mut store = filled::<F>(10, NO_LIMIT);
    store.write_all(NOW, [begin(ID + 1, 1, HERE, NO_LIMIT)]);
    store.write_all(NOW, (0..10).map(|it| put(&it.to_string(), "w", 0)));
    let mut target = Store::<F>::new();
    carry(&mut store, &mut target, NOW, 1 << 20);
    assert_eq!(store.entry_count(), 10, "those since the second one began");
    let other = page_of(store.partition(), ID + 1, 1, None, 1 << 20);
    assert_eq!((other.entries_left, other.unneeded), (10, 0));
    store.write_all(NOW, [Write::Journal(JournalWrite::End { id: ID + 1 })]);
    assert_eq!(store.entry_count(), 0);
}

/// A partition that is only told things is rid of its journal too.
fn foreign_changes_trim_a_journal_as_well<F: Fixture>() {
    let mut store = filled::<F>(200, 100);
    assert_eq!(store.page(1).phase, Phase::Overrun);
    let change = foreign(1, THERE, set("a", "v", 0));
    store.write_all(NOW, (0..4).map(|_| duplicate(HERE, std::slice::from_ref(&change))));
    assert_eq!(store.entry_count(), 0);
}

fn what_cannot_be_right_is_refused_and_changes_nothing<F: Fixture>() {
    let mut fresh = Store::<F>::new();
    let change = |seconds: u32, origin| foreign(seconds, origin, set("foreign", "v", 0));
    let good = change(NOW, THERE);
    let refused = |store: &mut Store<F>, write: Write| {
        let before = store.content();
        assert_eq!(store.write(NOW, write.clone()), Status::InvalidArgument, "{write:?}");
        assert_eq!(store.content(), before, "{write:?}");
    };
    refused(&mut fresh, begin(ID, 1, 0, NO_LIMIT));
    refused(&mut fresh, duplicate(0, std::slice::from_ref(&good)));
    refused(&mut fresh, duplicate(HERE, &[good.clone(), change(NOW + STAMP_AHEAD_MAX + 1, THERE)]));
    refused(&mut fresh, duplicate(HERE, &[good.clone(), change(NOW, 0)]));
    assert!(fresh.content().is_empty());
    fresh.write_all(NOW, [put("a", "v", 0)]);
    assert_eq!(fresh.rows_of(b'd')[0].1[0], 1, "rows have no stamps yet");
    fresh.write_all(NOW, [duplicate(HERE, &[change(NOW + STAMP_AHEAD_MAX, THERE)])]);
    refused(&mut fresh, duplicate(THERE, std::slice::from_ref(&good)));
    refused(&mut fresh, begin(ID, 1, THERE, NO_LIMIT));

    let mut store = filled::<F>(3, NO_LIMIT);
    store.write_all(NOW, (1..DUPLICATION_COUNT_MAX as u64).map(|it| begin(ID + it, 1, HERE, NO_LIMIT)));
    refused(&mut store, begin(ID + 9, 1, HERE, NO_LIMIT));
    refused(&mut store, begin(1, 1, HERE, NO_LIMIT));
    refused(&mut store, begin(ID, 2, THERE, NO_LIMIT));
    refused(&mut store, duplicate(THERE, std::slice::from_ref(&good)));
    let end = page_of(store.partition(), ID, 1, Some(Position::Following { entry: 0, bytes: 0 }), 1 << 20);
    let Some(Position::Following { entry, bytes }) = end.position else { panic!("{end:?}") };
    assert_eq!((entry, end.has_more), (3, false));
    for (entry, bytes) in
        [(entry + 1, bytes), (entry, bytes + 1), (entry, bytes - 1), (u64::MAX, u64::MAX), (0, 1), (1, 0)]
    {
        let position = Position::Following { entry, bytes };
        refused(&mut store, Write::Journal(JournalWrite::Reached { id: ID, round: 1, position }));
    }
    store.write_all(NOW, [reached(ID, &end)]);
    assert_eq!(store.page(1).entries_left, 0);
}

fn what_is_said_too_late_is_no_error_and_changes_nothing<F: Fixture>() {
    let reached = |round, position| Write::Journal(JournalWrite::Reached { id: ID, round, position });
    let mut fresh = Store::<F>::new();
    assert_eq!(fresh.write(NOW, reached(1, Position::START)), Status::NotFound);
    fresh.write_all(NOW, [Write::Journal(JournalWrite::End { id: ID })]);
    assert!(fresh.content().is_empty());
    let mut store = filled::<F>(3, NO_LIMIT);
    carry(&mut store, &mut Store::<F>::new(), NOW, 1 << 20);
    store.write_all(NOW, [put("a", "v", 0)]);
    let before = store.content();
    let end = Position::Following { entry: u64::MAX, bytes: u64::MAX };
    let late = [
        reached(1, Position::Copying(bytes("dz"))),
        reached(1, Position::Following { entry: 0, bytes: 0 }),
        reached(0, end.clone()),
        reached(2, end),
    ];
    store.write_all(NOW, late);
    assert_eq!(
        store.write(NOW, Write::Journal(JournalWrite::Reached { id: 1, round: 1, position: Position::START })),
        Status::NotFound
    );
    assert_eq!(store.content(), before);
}

fn a_page_ends_at_its_size_and_never_before_its_first_row<F: Fixture>() {
    let mut store = Store::<F>::new();
    let large = "v".repeat(1_000);
    store.write_all(NOW, (0..10).map(|it| put(&it.to_string(), &large, 0)));
    store.write_all(NOW, [begin(ID, 1, HERE, NO_LIMIT)]);
    store.write_all(NOW, (0..10).map(|it| put(&it.to_string(), &large, 0)));
    for bytes_max in [0, 1, 999, 3_000, u32::MAX] {
        let fitting = usize::max(1, bytes_max.div_ceil(1_050).min(10) as usize);
        // A position of the caller's does not make a page longer, whatever it says.
        for from in [None, Some(Position::Following { entry: 0, bytes: u64::MAX })] {
            let page = page_of(store.partition(), ID, 1, from, bytes_max);
            assert_eq!(page.changes.len(), fitting, "{bytes_max}");
        }
    }
}
