//! Which keys an operation touches: what a read looks at, and what a write may change.
//!
//! Both may name more keys than the operation touches, and never fewer.

use crate::journal::Duplicate;
use crate::key;
use crate::op::{MultiGet, Read, Scan, Selection, Write};
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};

/// Keys that a read may name one by one. One of more keys names the range from its smallest key to its largest.
pub const READ_KEYS_MAX: usize = 64;
/// Keys that a write may name. One of more counts as a write of every key.
pub const WRITE_KEYS_MAX: usize = 1_024;

/// Storage keys that are next to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// One key.
    Key(Bytes),
    /// Those from `start` on and before `end`; `None` = to the last one.
    Range {
        /// The first key.
        start: Bytes,
        /// The first key behind them.
        end: Option<Bytes>,
    },
}

impl Span {
    /// Every key that there is.
    pub const ALL: Self = Self::Range { start: Bytes::new(), end: None };

    /// The bytes of its bounds.
    pub fn size(&self) -> usize {
        match self {
            Self::Key(key) => key.len(),
            Self::Range { start, end } => start.len() + end.as_ref().map_or(0, Bytes::len),
        }
    }

    /// The keys that start with `prefix`.
    fn of_prefix(prefix: &Bytes) -> Self {
        Self::Range { start: prefix.clone(), end: key::prefix_end(prefix) }
    }

    /// From `start` to `last`, and that one too; an empty `last` = to `end`.
    fn through(start: Bytes, last: &[u8], end: Option<Bytes>) -> Self {
        Self::Range { start, end: if last.is_empty() { end } else { Some(join(last, &[0])) } }
    }

    /// The keys of these suffixes, if they are few, or else the range that they lie in: many long keys are never put together, since a read of a
    /// few kilobytes may name more of them than there is memory.
    fn of_suffixes(prefix: &Bytes, suffixes: &[Bytes]) -> Vec<Self> {
        let key = |suffix: &Bytes| if prefix.is_empty() { suffix.clone() } else { join(prefix, suffix) };
        if suffixes.len() <= READ_KEYS_MAX {
            return suffixes.iter().map(|suffix| Self::Key(key(suffix))).collect();
        }
        let (first, last) = (suffixes.iter().min().map(key), suffixes.iter().max().map(key));
        Vec::from([Self::Range { start: first.unwrap_or_default(), end: last.map(|last| join(&last, &[0])) }])
    }
}

impl Read {
    /// The keys that it looks at.
    pub fn spans(&self) -> Vec<Span> {
        match self {
            Self::Get { key } | Self::Ttl { key } => Vec::from([Span::Key(key.clone())]),
            Self::BatchGet { keys } => Span::of_suffixes(&Bytes::new(), keys),
            Self::SortKeyCount { prefix } => Vec::from([Span::of_prefix(prefix)]),
            Self::MultiGet(MultiGet { prefix, selection, .. }) => match selection {
                Selection::Suffixes(suffixes) => Span::of_suffixes(prefix, suffixes),
                Selection::Range { start, stop, .. } => {
                    let last = if stop.is_empty() { Bytes::new() } else { join(prefix, stop) };
                    Vec::from([Span::through(join(prefix, start), &last, key::prefix_end(prefix))])
                }
            },
            Self::Scan(Scan { start, stop, .. }) => Vec::from([Span::through(start.clone(), stop, None)]),
            Self::Checksum | Self::Journal(_) => Vec::from([Span::ALL]),
        }
    }

    /// What [`Read::spans`] gives, without giving it: how many, and their bytes together or somewhat more.
    pub fn spans_size(&self) -> (usize, usize) {
        let named = |prefix: usize, suffixes: &[Bytes]| {
            let total = |suffixes: &[Bytes]| suffixes.iter().map(Bytes::len).sum::<usize>();
            match suffixes.len() {
                count @ ..=READ_KEYS_MAX => (count, prefix * count + total(suffixes)),
                _ => (1, 2 * (prefix + suffixes.iter().map(Bytes::len).max().unwrap_or(0)) + 1),
            }
        };
        match self {
            Self::BatchGet { keys } => named(0, keys),
            Self::MultiGet(MultiGet { prefix, selection: Selection::Suffixes(suffixes), .. }) => {
                named(prefix.len(), suffixes)
            }
            Self::Get { key } | Self::Ttl { key } => (1, key.len()),
            Self::SortKeyCount { prefix } => (1, 2 * prefix.len()),
            Self::MultiGet(MultiGet { prefix, selection: Selection::Range { start, stop, .. }, .. }) => {
                (1, 2 * prefix.len() + start.len() + stop.len() + 1)
            }
            Self::Scan(Scan { start, stop, .. }) => (1, start.len() + stop.len() + 1),
            Self::Checksum | Self::Journal(_) => (1, 0),
        }
    }
}

impl Write {
    /// The keys that it may change; `None` = any key. They have buffers of their own.
    pub fn keys(&self) -> Option<Vec<Bytes>> {
        let own = |key: &Bytes| Vec::from([Bytes::copy_from_slice(key)]);
        let below = |prefix: &Bytes, count: usize, suffixes: &mut dyn Iterator<Item = &Bytes>| {
            (count <= WRITE_KEYS_MAX).then(|| suffixes.map(|suffix| join(prefix, suffix)).collect())
        };
        match self {
            Self::Nothing => Some(Vec::new()),
            Self::Put { key, .. } | Self::Remove { key } | Self::Incr { key, .. } => Some(own(key)),
            Self::MultiPut { prefix, rows, .. } => {
                below(prefix, rows.len(), &mut rows.iter().map(|(suffix, _)| suffix))
            }
            Self::MultiRemove { prefix, suffixes } => below(prefix, suffixes.len(), &mut suffixes.iter()),
            Self::CheckAndMutate { prefix, mutations, .. } => {
                below(prefix, mutations.len(), &mut mutations.iter().map(|mutation| mutation.suffix()))
            }
            Self::Duplicate(Duplicate { changes, .. }) => {
                below(&Bytes::new(), changes.len(), &mut changes.iter().map(|change| change.mutation.suffix()))
            }
            // What a question for the journal finds changes by it, and such a question is about every key.
            Self::Journal(_) => None,
        }
    }
}

fn join(prefix: &[u8], suffix: &[u8]) -> Bytes {
    let mut key = BytesMut::with_capacity(prefix.len() + suffix.len());
    key.put_slice(prefix);
    key.put_slice(suffix);
    key.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Check, Filter, Mutation};

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn holds(span: &Span, key: &str) -> bool {
        match span {
            Span::Key(own) => own[..] == *key.as_bytes(),
            Span::Range { start, end } => {
                start[..] <= *key.as_bytes() && end.as_ref().is_none_or(|end| *key.as_bytes() < end[..])
            }
        }
    }

    fn multi_get(selection: Selection) -> Read {
        Read::MultiGet(MultiGet { prefix: bytes("h:"), selection, count_max: 0, size_max: 0, no_value: false })
    }

    fn range(start: &'static str, stop: &'static str) -> Read {
        multi_get(Selection::Range {
            start: bytes(start),
            start_inclusive: false,
            stop: bytes(stop),
            stop_inclusive: true,
            filter: Filter::default(),
            reverse: false,
        })
    }

    fn scan(start: &'static str, stop: &'static str) -> Read {
        Read::Scan(Scan {
            start: bytes(start),
            start_inclusive: true,
            stop: bytes(stop),
            stop_inclusive: true,
            is_hash_table: false,
            hash_key_filter: Filter::default(),
            sort_key_filter: Filter::default(),
            rows_max: 1,
            no_value: false,
            return_expire: false,
            only_count: false,
        })
    }

    #[test]
    fn a_read_names_every_key_that_it_looks_at() {
        let many: Vec<Bytes> = (0..200).map(|i| Bytes::from(alloc::format!("{i:03}"))).collect();
        let reads = [
            (Read::Get { key: bytes("k") }, "k", "k0"),
            (Read::Ttl { key: bytes("k") }, "k", "j"),
            (Read::BatchGet { keys: Vec::from([bytes("a"), bytes("c")]) }, "c", "b"),
            (Read::BatchGet { keys: many.clone() }, "199", "200"),
            (Read::SortKeyCount { prefix: bytes("h:") }, "h:x", "h;"),
            (multi_get(Selection::Suffixes(Vec::from([bytes("a")]))), "h:a", "h:b"),
            (multi_get(Selection::Suffixes(many)), "h:000", "h:2"),
            (range("b", "d"), "h:d", "h:d0"),
            (range("b", ""), "h:zzz", "h;"),
            (scan("b", "d"), "d", "d0"),
            (scan("", ""), "z", ""),
        ];
        for (read, inside, outside) in reads {
            let spans = read.spans();
            assert!(spans.iter().any(|span| holds(span, inside)), "{read:?} {inside}");
            if !outside.is_empty() {
                assert!(!spans.iter().any(|span| holds(span, outside)), "{read:?} {outside}");
            }
            assert!(spans.len() <= READ_KEYS_MAX && spans.iter().all(|span| span.size() < 20));
            let (count, size) = read.spans_size();
            let exact = spans.iter().map(Span::size).sum::<usize>();
            assert!(count == spans.len() && (exact..exact + 20).contains(&size), "{read:?}: {size} for {exact}");
        }
        assert_eq!(Read::Checksum.spans(), [Span::ALL]);
    }

    /// Pitfall N4o: ten thousand keys below a hash key of 64 KiB are 655 MB if they are put together.
    #[test]
    fn n4o_a_read_of_many_long_keys_names_two_of_them() {
        let suffixes: Vec<Bytes> = (0..10_000).map(|i| Bytes::from(alloc::format!("{i}"))).collect();
        let prefix = Bytes::from(alloc::vec![b'h'; 65_000]);
        let Read::MultiGet(query) = multi_get(Selection::Suffixes(suffixes)) else { unreachable!() };
        let read = Read::MultiGet(MultiGet { prefix, ..query });
        let spans = read.spans();
        assert_eq!((spans.len(), spans[0].size(), read.spans_size()), (1, 130_006, (1, 130_009)));
    }

    #[test]
    fn a_write_names_every_key_that_it_may_change() {
        let check = Check { suffix: bytes("only-read"), kind: 0, operand: Bytes::new() };
        let mutations = Vec::from([
            Mutation::Remove { suffix: bytes("a") },
            Mutation::Put { suffix: bytes("b"), value: bytes("v"), expire_at: 0 },
        ]);
        let many = |count| Write::MultiRemove { prefix: bytes("h"), suffixes: alloc::vec![bytes("s"); count] };
        let (prefix, value) = (bytes("h"), bytes("v"));
        let writes = [
            (Write::Nothing, Some(Vec::new())),
            (Write::Put { key: bytes("k"), value: value.clone(), expire_at: 0 }, Some(Vec::from([bytes("k")]))),
            (Write::Remove { key: bytes("k") }, Some(Vec::from([bytes("k")]))),
            (Write::Incr { key: bytes("k"), by: 1, expire_at: 0 }, Some(Vec::from([bytes("k")]))),
            (
                Write::MultiPut { prefix: prefix.clone(), rows: Vec::from([(bytes("a"), value)]), expire_at: 0 },
                Some(Vec::from([bytes("ha")])),
            ),
            (
                Write::CheckAndMutate { prefix, check, mutations, return_check_value: false },
                Some(Vec::from([bytes("ha"), bytes("hb")])),
            ),
            (many(WRITE_KEYS_MAX), Some(alloc::vec![bytes("hs"); WRITE_KEYS_MAX])),
            (many(WRITE_KEYS_MAX + 1), None),
        ];
        for (write, expected) in writes {
            assert_eq!(write.keys(), expected, "{write:?}");
        }
    }
}
