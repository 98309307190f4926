//! Walks the batches and records of one segment, and tells a torn tail from corruption. Reads only.

use crate::format::{
    ALIGNMENT, BATCH_HEAD_SIZE, BatchHead, BatchList, Listed, LogPlace, RECORD_HEAD_SIZE, RecordHead, RecordKind, seed,
};

/// What the walk meets, in the order of the log.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A batch begins.
    Batch(LogPlace, BatchHead),
    /// A sound record.
    Record(LogPlace, RecordHead, &'a [u8]),
    /// A record whose head is sound and whose payload is not.
    BadPayload(LogPlace, RecordHead),
    /// A record whose head is not sound, and what the batch's list says of it.
    BadHead(LogPlace, Listed),
    /// This many bytes from here on that tell nothing, not even whose they were.
    Unreadable(LogPlace, u64),
}

impl Event<'_> {
    /// Where it is.
    pub fn place(&self) -> LogPlace {
        match *self {
            Self::Batch(place, _)
            | Self::Record(place, ..)
            | Self::BadPayload(place, _)
            | Self::BadHead(place, _)
            | Self::Unreadable(place, _) => place,
        }
    }
}

/// The bytes of one segment and what is known about them.
pub(crate) struct Segment<'a> {
    pub(crate) id: u64,
    pub(crate) bytes: &'a [u8],
    /// Where the first batch stands.
    pub(crate) data_start: usize,
    /// Whether its batches have lists.
    pub(crate) has_lists: bool,
    pub(crate) first_batch: u64,
    /// Batches with a lower number are known to have been durable.
    pub(crate) durable: u64,
    /// Where the segment ends, if a later one says so. Bad bytes before it are corruption.
    pub(crate) end: Option<usize>,
}

/// Where the walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scanned {
    /// First byte past the last sound record.
    pub(crate) end: usize,
    /// Number of the batch that would come next.
    pub(crate) next_batch: u64,
    /// Where the last round begins.
    pub(crate) round_start: usize,
    /// Whether a batch was begun and not finished.
    pub(crate) is_torn: bool,
}

impl Segment<'_> {
    /// Visits everything up to the end, or up to the torn tail.
    pub(crate) fn scan(&self, visit: &mut dyn FnMut(Event<'_>)) -> Scanned {
        let mut walk = Walk {
            segment: self,
            seed: seed(self.id),
            limit: self.end.unwrap_or(self.bytes.len()).min(self.bytes.len()),
            at: self.data_start,
            next_batch: self.first_batch,
            round: (0, self.data_start),
        };
        let is_torn = walk.run(visit);
        let missing = self.end.map_or(0, |end| end.saturating_sub(self.bytes.len()));
        if missing > 0 {
            visit(Event::Unreadable(self.place(self.bytes.len()), missing as u64));
        }
        Scanned { end: walk.at, next_batch: walk.next_batch, round_start: walk.round.1.min(walk.at), is_torn }
    }

    /// The first byte past the batch that reaches the end which is known, if that is in its middle: its list stands behind it. Where the heads of
    /// the batches do not lead so far, the list that stands in for one of them may be anywhere.
    pub(crate) fn end_of_last_list(&self, end: usize) -> usize {
        let (mut at, mut past, mut number) = (self.data_start, end, self.first_batch);
        while self.has_lists && at < end {
            let head = BatchHead::decode(self.bytes, seed(self.id), at).filter(|head| head.number == number);
            let Some(head) = head else { return usize::MAX };
            past = head.list_end(at).max(end);
            (at, number) = (head.list_end(at).next_multiple_of(ALIGNMENT), head.number + 1);
        }
        past
    }

    fn place(&self, offset: usize) -> LogPlace {
        LogPlace { segment: self.id, offset: offset as u64 }
    }
}

struct Walk<'a> {
    segment: &'a Segment<'a>,
    seed: u32,
    limit: usize,
    at: usize,
    next_batch: u64,
    /// `synced` of the round that the last batch belongs to, and where that round began.
    round: (u64, usize),
}

/// A batch of which something is left.
struct Found<'a> {
    head: BatchHead,
    /// Its head is not sound: the list says it all.
    is_headless: bool,
    list: Option<BatchList<'a>>,
}

impl<'a> Walk<'a> {
    /// Returns whether it stopped at a torn batch.
    fn run(&mut self, visit: &mut dyn FnMut(Event<'_>)) -> bool {
        while self.at < self.limit {
            match self.find() {
                Some(found) => {
                    if self.batch(&found, visit) {
                        return true;
                    }
                }
                None => {
                    if !self.skip(visit) {
                        return false;
                    }
                }
            }
        }
        false
    }

    /// The batch that comes next, by its head or by its list. A list may stand past the limit: the end of a segment that
    /// had a torn tail is in the middle of a batch.
    fn find(&self) -> Option<Found<'a>> {
        let bytes = self.segment.bytes;
        let head = BatchHead::decode(bytes, self.seed, self.at)
            .filter(|head| head.number == self.next_batch && self.at + BATCH_HEAD_SIZE <= self.limit);
        if !self.segment.has_lists {
            return head.map(|head| Found { head, is_headless: false, list: None });
        }
        if let Some(head) = head {
            let list = BatchList::decode(bytes, self.seed, head.list_at(self.at));
            let list = list.filter(|list| list.start == self.at && list.head == head);
            return Some(Found { head, is_headless: false, list });
        }
        let is_it = |list: &BatchList<'_>| list.start == self.at && list.head.number == self.next_batch;
        let list =
            self.aligned(self.at, bytes.len()).filter_map(|at| BatchList::decode(bytes, self.seed, at)).find(is_it)?;
        Some(Found { head: list.head, is_headless: true, list: Some(list) })
    }

    /// Visits the batch at `at` and moves past it; or, if it is torn, to its first bad record, and returns true.
    fn batch(&mut self, found: &Found<'_>, visit: &mut dyn FnMut(Event<'_>)) -> bool {
        let head = found.head;
        let start = self.at + BATCH_HEAD_SIZE;
        let end = start.saturating_add(head.size as usize);
        let bad = self.first_bad(found, start, end);
        let torn_at = bad.filter(|at| !self.is_synced(head.number, *at));
        // Without a head the records before the cut could not be found again.
        if torn_at.is_some_and(|at| at == start || found.is_headless) {
            return true;
        }
        if head.synced != self.round.0 {
            self.round = (head.synced, self.at);
        }
        visit(Event::Batch(self.segment.place(self.at), head));
        self.records(found, start, torn_at.unwrap_or(end.min(self.limit)), &mut |_, event| {
            visit(event);
            true
        });
        let past = if self.segment.has_lists { head.list_end(self.at) } else { end };
        self.next_batch = head.number + 1;
        self.at = torn_at.unwrap_or_else(|| past.next_multiple_of(ALIGNMENT).min(self.limit));
        torn_at.is_some()
    }

    /// The offset of the first record that is not sound, of those that should fill `start..end`.
    fn first_bad(&self, found: &Found<'_>, start: usize, end: usize) -> Option<usize> {
        let is_short = end > self.limit && self.segment.end.is_none();
        let mut bad = None;
        let past = self.records(found, start, end.min(self.limit), &mut |at, event| {
            let is_sound = matches!(event, Event::Record(..));
            bad = (!is_sound).then_some(at);
            is_sound
        });
        bad.or_else(|| is_short.then_some(past))
    }

    /// Shows what stands in `start..end`, each with its offset, until told to stop. Returns where the next would begin.
    fn records(
        &self,
        found: &Found<'_>,
        start: usize,
        end: usize,
        visit: &mut dyn FnMut(usize, Event<'_>) -> bool,
    ) -> usize {
        let (mut at, mut number) = (start, 0);
        while at < end {
            let listed = found.list.as_ref().and_then(|list| list.at(number));
            let (event, size) = self.record(at, end, listed);
            if !visit(at, event) {
                break;
            }
            at = at.saturating_add(size);
            number += 1;
        }
        at
    }

    /// What stands at `at`, and how many bytes it takes.
    fn record(&self, at: usize, end: usize, listed: Option<Listed>) -> (Event<'a>, usize) {
        let (place, bytes) = (self.segment.place(at), &self.segment.bytes[at..end]);
        let payload = |size: u32| bytes.get(RECORD_HEAD_SIZE..RECORD_HEAD_SIZE + size as usize);
        let taken = |size: u32| RECORD_HEAD_SIZE + size as usize;
        if let Some(head) = RecordHead::decode(bytes, self.seed) {
            let sound = payload(head.size).filter(|payload| head.is_payload(self.seed, payload));
            let event = match sound {
                Some(payload) => Event::Record(place, head, payload),
                // Its head says it all.
                None if head.kind == RecordKind::Freed => Event::Record(place, head, &[]),
                None => Event::BadPayload(place, head),
            };
            return (event, taken(head.size));
        }
        let Some(listed) = listed else { return (Event::Unreadable(place, bytes.len() as u64), bytes.len()) };
        let freed = payload(listed.size).filter(|_| listed.kind == RecordKind::Freed);
        let event = match freed.and_then(|payload| Some((RecordHead::of_freed(payload, self.seed)?, payload))) {
            Some((head, payload)) => Event::Record(place, head, payload),
            None => Event::BadHead(place, listed),
        };
        (event, taken(listed.size))
    }

    /// Moves from a place where the next batch should begin and does not to where a later one does. False: none does.
    fn skip(&mut self, visit: &mut dyn FnMut(Event<'_>)) -> bool {
        let is_corrupt = self.segment.end.is_some() || self.is_synced(self.next_batch, self.at);
        if !is_corrupt {
            return false;
        }
        let found = self.batches(self.at).find(|(at, head)| *at >= self.at && head.number > self.next_batch);
        let to = found.map_or(self.limit, |(at, _)| at);
        visit(Event::Unreadable(self.segment.place(self.at), (to - self.at) as u64));
        self.at = to;
        self.next_batch = found.map_or(self.next_batch, |(_, head)| head.number);
        true
    }

    /// Whether batch `number`, some of which is bad, was durable once: known end, or a later round after it.
    fn is_synced(&self, number: u64, from: usize) -> bool {
        self.segment.end.is_some()
            || number < self.segment.durable
            || self.batches(from).any(|(_, head)| head.synced > number)
    }

    /// Every batch whose head or list is sound and stands at or after `from`, and where the batch begins.
    fn batches(&self, from: usize) -> impl Iterator<Item = (usize, BatchHead)> {
        let bytes = &self.segment.bytes[..self.limit];
        self.aligned(from, self.limit).filter_map(move |at| {
            let head = BatchHead::decode(bytes, self.seed, at).map(|head| (at, head));
            head.or_else(|| {
                let list = BatchList::decode(bytes, self.seed, at).filter(|_| self.segment.has_lists)?;
                Some((list.start, list.head))
            })
        })
    }

    fn aligned(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<> {
        (from.next_multiple_of(ALIGNMENT)..to).step_by(ALIGNMENT)
    }
}
