//! The window of the log: what it keeps, what it forgets.

use super::*;
use bytes::Bytes;
use hedgerow_types::log::EntryKind;

fn position(term: Term, index: Index) -> LogPosition {
    LogPosition { term, index }
}

fn entry(term: Term, index: Index) -> log::Entry {
    log::Entry { index, term, kind: EntryKind::Normal, data: Bytes::from_static(&[0; 100]) }
}

/// Entries of term 1 up to 10, then of term 2 up to 20, of which the last five are in memory.
fn window() -> Window {
    let entries = (16..=20).map(|index| entry(2, index)).collect();
    Window::new(position(1, 4), entries, position(2, 18), 1_000).unwrap()
}

fn append_context() -> GetEntriesContext {
    GetEntriesContext::empty(true)
}

fn indices(entries: &[Entry]) -> Vec<Index> {
    entries.iter().map(|entry| entry.index).collect()
}

#[test]
fn terms_are_known_at_the_start_and_in_memory() {
    let window = window();
    let known: Vec<_> = [3, 4, 5, 15, 16, 20, 21].iter().map(|&index| window.known_term(index)).collect();
    assert_eq!(known, [None, Some(1), None, None, Some(2), Some(2), None]);
    let barely = Window::new(position(1, 4), vec![entry(3, 9)], position(2, 8), 1_000).unwrap();
    assert_eq!((barely.known_term(7), barely.known_term(8), barely.known_term(9)), (None, Some(2), Some(3)));
}

#[test]
fn entries_that_do_not_fit_together_are_refused() {
    let new = |indices: &[u64], applied| {
        let entries = indices.iter().map(|&index| entry(2, index)).collect();
        Window::new(position(1, 4), entries, position(2, applied), 1_000).map(|window| window.last())
    };
    assert_eq!(new(&[5, 6], 5), Ok(6));
    assert_eq!(new(&[8, 9], 7), Ok(9));
    assert_eq!(new(&[8, 9], 6), Err(StartError::Entries(8)));
    assert_eq!(new(&[5, 7], 5), Err(StartError::Entries(7)));
    assert_eq!(new(&[4, 5], 5), Err(StartError::Entries(4)));
}

#[test]
fn entries_on_disk_are_fetched_with_the_term_before_them() {
    let mut window = window();
    assert!(window.entries(12, 21, None, append_context()).is_err());
    assert!(window.entries(12, 21, None, append_context()).is_err());
    let fetches = window.take_fetches();
    assert_eq!(fetches, [Fetch { id: 1, low: 11, high_exclusive: 16, size_max: 1_000 }]);
    let answer = (11..14).map(|index| entry(2, index)).collect();
    assert_eq!(window.set_fetched(&fetches[0], answer).len(), 2);
    assert_eq!(window.known_term(11), Some(2));
    assert_eq!(indices(&window.entries(12, 21, None, append_context()).unwrap()), [12, 13]);
    window.forget_fetched();
    assert_eq!(window.known_term(13), Some(2));
    assert!(window.set_fetched(&fetches[0], Vec::new()).is_empty(), "answered already");

    assert!(window.entries(14, 21, None, append_context()).is_err());
    assert_eq!(window.take_fetches()[0].low, 14);
}

#[test]
fn an_answer_with_nothing_but_the_entry_before_makes_the_next_request_smaller() {
    let mut window = window();
    assert!(window.entries(12, 21, None, append_context()).is_err());
    let fetch = window.take_fetches()[0];
    assert_eq!(window.set_fetched(&fetch, vec![entry(2, 11)]).len(), 1);
    assert!(window.entries(12, 21, None, append_context()).is_err());
    assert_eq!(window.take_fetches()[0].low, 12);
}

#[test]
fn a_lost_answer_is_asked_for_again_after_a_while() {
    let mut window = window();
    assert!(window.entries(12, 21, None, append_context()).is_err());
    assert!(window.has_requests());
    assert_eq!(window.take_fetches().len(), 1);
    (0..FETCH_TICKS_MAX).for_each(|_| window.tick());
    assert!(!window.has_requests());
    assert!(window.entries(12, 21, None, append_context()).is_err());
    assert_eq!(window.take_fetches().len(), 1);
}

#[test]
fn an_append_replaces_what_it_overlaps() {
    let mut window = window();
    let core = |term, index| crate::message::core_entry(position(term, index), EntryKind::Normal, Bytes::new());
    window.append(vec![core(3, 19), core(4, 20), core(4, 21)]);
    let terms: Vec<_> = (18..=21).map(|index| window.known_term(index)).collect();
    assert_eq!(terms, [Some(2), Some(3), Some(4), Some(4)]);
    window.append(vec![core(5, 20)]);
    assert_eq!((window.last(), window.known_term(20), window.known_term(21)), (20, Some(5), None));
    assert_eq!(indices(&window.entries(16, 21, None, append_context()).unwrap()), [16, 17, 18, 19, 20]);
    assert_eq!(indices(&window.entries(16, 21, 300, append_context()).unwrap()), [16]);
}

#[test]
fn a_truncation_keeps_what_is_unknown_unknown() {
    let mut window = window();
    window.truncate(position(1, 10));
    let known: Vec<_> = [9, 10, 11, 15, 16].iter().map(|&index| window.known_term(index)).collect();
    assert_eq!(known, [None, Some(1), None, None, Some(2)]);
    window.truncate(position(2, 15));
    assert_eq!((window.known_term(15), window.known_term(16)), (Some(2), Some(2)));
    window.truncate(position(2, 20));
    assert_eq!((window.start(), window.last(), window.size()), (position(2, 20), 20, 0));
    window.truncate(position(2, 25));
    assert_eq!(window.start(), position(2, 20));
    let compacted = window.entries(20, 21, None, append_context());
    assert_eq!(compacted.unwrap_err(), Error::Store(StorageError::Compacted));
}

#[test]
fn eviction_spares_what_is_needed() {
    let mut window = window();
    window.evict(17, 0);
    assert_eq!(window.first_in_memory(), 18);
    assert_eq!(window.known_term(16), Some(2));
}

#[test]
fn a_checkpoint_serves_whom_it_names_until_the_log_passes_it() {
    let mut window = window();
    let meta = |index| SnapshotMeta {
        position: position(2, index),
        membership: Membership::of_voters([ReplicaId(1), ReplicaId(2)]),
        id: index,
    };
    assert!(window.snapshot(0, 2).is_err());
    assert!(window.take_checkpoint_request());
    assert!(window.snapshot(0, 2).is_err());
    assert!(!window.take_checkpoint_request(), "asked for once");
    window.set_checkpoint(meta(12));
    assert_eq!(window.snapshot(0, 2).unwrap().get_metadata().index, 12);
    assert!(window.snapshot(13, 2).is_err(), "must cover what is requested");
    assert!(window.snapshot(0, 3).is_err(), "would be refused by who is not in it");
    window.set_checkpoint(meta(11));
    assert_eq!(window.snapshot(0, 2).unwrap().get_metadata().index, 12);
    window.truncate(position(2, 13));
    assert!(window.snapshot(0, 2).is_err());
}
