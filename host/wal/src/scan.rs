//! Walks the batches and records of one segment, and tells a torn tail from corruption. Reads only.

use crate::format::{ALIGNMENT, BATCH_HEAD_SIZE, BatchHead, Place, RECORD_HEAD_SIZE, RecordHead, seed};

/// What the walk meets, in the order of the log.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A batch begins.
    Batch(Place, BatchHead),
    /// A sound record.
    Record(Place, RecordHead, &'a [u8]),
    /// A record whose head is sound and whose payload is not.
    BadPayload(Place, RecordHead),
    /// This many bytes from here on that tell nothing, not even whose they were.
    Unreadable(Place, u64),
}

/// The bytes of one segment and what is known about them.
pub(crate) struct Segment<'a> {
    pub(crate) id: u64,
    pub(crate) bytes: &'a [u8],
    /// Where the first batch stands.
    pub(crate) data_start: usize,
    pub(crate) first_batch: u64,
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

    fn place(&self, offset: usize) -> Place {
        Place { segment: self.id, offset: offset as u64 }
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

impl Walk<'_> {
    /// Returns whether it stopped at a torn batch.
    fn run(&mut self, visit: &mut dyn FnMut(Event<'_>)) -> bool {
        while self.at < self.limit {
            let head = BatchHead::decode(self.segment.bytes, self.seed, self.at)
                .filter(|head| head.number == self.next_batch && self.at + BATCH_HEAD_SIZE <= self.limit);
            match head {
                Some(head) => {
                    if self.batch(head, visit) {
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

    /// Visits the batch at `at` and moves past it; or, if it is torn, to its first bad record, and returns true.
    fn batch(&mut self, head: BatchHead, visit: &mut dyn FnMut(Event<'_>)) -> bool {
        let start = self.at + BATCH_HEAD_SIZE;
        let end = start.saturating_add(head.size as usize);
        let bad = self.first_bad(start, end.min(self.limit), end > self.limit && self.segment.end.is_none());
        let torn_at = bad.filter(|at| !self.is_synced(head.number, *at));
        if torn_at == Some(start) {
            return true;
        }
        if head.synced != self.round.0 {
            self.round = (head.synced, self.at);
        }
        visit(Event::Batch(self.segment.place(self.at), head));
        self.records(start, torn_at.unwrap_or(end.min(self.limit)), visit);
        self.next_batch = head.number + 1;
        self.at = torn_at.unwrap_or_else(|| end.next_multiple_of(ALIGNMENT).min(self.limit));
        torn_at.is_some()
    }

    /// The offset of the first record that is not sound, of those that should fill `start..end`.
    fn first_bad(&self, start: usize, end: usize, is_short: bool) -> Option<usize> {
        let mut at = start;
        while at < end {
            match self.record(at, end) {
                Some((head, Some(_))) => at += RECORD_HEAD_SIZE + head.size as usize,
                Some((_, None)) | None => return Some(at),
            }
        }
        is_short.then_some(at)
    }

    fn records(&self, start: usize, end: usize, visit: &mut dyn FnMut(Event<'_>)) {
        let mut at = start;
        while at < end {
            let place = self.segment.place(at);
            match self.record(at, end) {
                Some((head, payload)) => {
                    visit(match payload {
                        Some(payload) => Event::Record(place, head, payload),
                        None => Event::BadPayload(place, head),
                    });
                    at += RECORD_HEAD_SIZE + head.size as usize;
                }
                None => {
                    visit(Event::Unreadable(place, (end - at) as u64));
                    return;
                }
            }
        }
    }

    /// The record at `at`: its head if that is sound, its payload if that is sound too.
    fn record(&self, at: usize, end: usize) -> Option<(RecordHead, Option<&[u8]>)> {
        let bytes = self.segment.bytes.get(at..end)?;
        let head = RecordHead::decode(bytes, self.seed)?;
        let payload = bytes.get(RECORD_HEAD_SIZE..RECORD_HEAD_SIZE + head.size as usize);
        Some((head, payload.filter(|payload| head.is_payload(self.seed, payload))))
    }

    /// Moves from a place where the next batch should begin and does not to where a later one does. False: none does.
    fn skip(&mut self, visit: &mut dyn FnMut(Event<'_>)) -> bool {
        let is_corrupt = self.segment.end.is_some() || self.is_synced(self.next_batch, self.at);
        if !is_corrupt {
            return false;
        }
        let found = self.heads(self.at).find(|(_, head)| head.number > self.next_batch);
        let to = found.map_or(self.limit, |(at, _)| at);
        visit(Event::Unreadable(self.segment.place(self.at), (to - self.at) as u64));
        self.at = to;
        self.next_batch = found.map_or(self.next_batch, |(_, head)| head.number);
        true
    }

    /// Whether batch `number`, some of which is bad, was durable once: known end, or a later round after it.
    fn is_synced(&self, number: u64, from: usize) -> bool {
        self.segment.end.is_some() || self.heads(from).any(|(_, head)| head.synced > number)
    }

    /// Every sound batch head at or after `from`.
    fn heads(&self, from: usize) -> impl Iterator<Item = (usize, BatchHead)> {
        let bytes = &self.segment.bytes[..self.limit];
        (from.next_multiple_of(ALIGNMENT)..self.limit)
            .step_by(ALIGNMENT)
            .filter_map(move |at| Some((at, BatchHead::decode(bytes, self.seed, at)?)))
    }
}
