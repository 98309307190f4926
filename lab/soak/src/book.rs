//! The books: which requests are under way, what came of them, and when an episode is complete.
//!
//! An episode is a few thousand requests on records of its own. Histories that are judged must be short, and a run that goes on for
//! hours must not remember them all.

use crate::fresh::Record;
use crate::workload::{Wish, Workload};
use hedgerow_sim::history::Outcome;
use hedgerow_types::random::Random;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Requests after which an episode takes no more.
const REQUESTS: usize = 3_000;
/// Times that are kept for the next line of progress at most.
const TIMES_MAX: usize = 1 << 20;

/// Requests on records of their own.
#[derive(Debug)]
pub(crate) struct Episode {
    pub(crate) number: u64,
    pub(crate) workload: Workload,
    /// In the order of their ends.
    pub(crate) records: Vec<Record>,
    begun: usize,
    under_way: usize,
}

/// All episodes that are not complete, the counts, and the first failure.
#[derive(Debug)]
pub(crate) struct Book {
    random: Random,
    current: Episode,
    /// Those that take no more requests, some of which are under way.
    ending: Vec<Episode>,
    complete: VecDeque<Episode>,
    pub(crate) counts: Counts,
    /// Reads by what is told of them: the kind of the attempt that was answered, the part of the replica, the level.
    pub(crate) served: BTreeMap<&'static str, u64>,
    /// How long requests took since that was asked last.
    times: Vec<Duration>,
    failure: Option<String>,
}

/// How requests ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    pub(crate) unknown: u64,
    /// Episodes in which no judge found anything.
    pub(crate) judged: u64,
}

impl Counts {
    pub(crate) fn all(&self) -> u64 {
        self.ok + self.failed + self.unknown
    }
}

impl Book {
    pub(crate) fn new(mut random: Random) -> Self {
        let current = Episode::new(1, random.fork());
        Self {
            random,
            current,
            ending: Vec::new(),
            complete: VecDeque::new(),
            counts: Counts::default(),
            served: BTreeMap::new(),
            times: Vec::new(),
            failure: None,
        }
    }

    /// The next request of a client, and its episode. `written` is what the client has just written and wants to see, by episode
    /// and key, if it does.
    pub(crate) fn begin(&mut self, written: Option<(u64, u32)>) -> (u64, Wish) {
        if self.current.begun == REQUESTS {
            self.turn();
        }
        self.current.begun += 1;
        self.current.under_way += 1;
        let number = self.current.number;
        let workload = &mut self.current.workload;
        let wish = match written.filter(|(episode, _)| *episode == number) {
            Some((_, key)) => workload.draw_read_after(key),
            None => workload.draw(),
        };
        (number, wish)
    }

    /// A request of `episode` has ended.
    pub(crate) fn end(&mut self, episode: u64, record: Record) {
        let operation = &record.operation;
        match operation.outcome {
            Outcome::Ok(_) => self.counts.ok += 1,
            Outcome::Failed => self.counts.failed += 1,
            Outcome::Unknown => self.counts.unknown += 1,
        }
        if self.times.len() < TIMES_MAX {
            self.times.push(Duration::from_nanos(operation.end - operation.start));
        }
        let ending = self.ending.iter_mut().find(|it| it.number == episode);
        let found = ending.unwrap_or(&mut self.current);
        assert_eq!(found.number, episode, "an episode is open while a request of it is under way");
        if let Outcome::Ok(answer) = operation.outcome {
            found.workload.note(operation.key, &operation.call, &answer);
        }
        found.records.push(record);
        found.under_way -= 1;
        self.move_complete();
    }

    /// The current episode takes no more requests.
    pub(crate) fn turn(&mut self) {
        let next = Episode::new(self.current.number + 1, self.random.fork());
        self.ending.push(std::mem::replace(&mut self.current, next));
        self.move_complete();
    }

    /// An episode of which nothing is under way.
    pub(crate) fn take_complete(&mut self) -> Option<Episode> {
        self.complete.pop_front()
    }

    /// How long each request took that has ended since this was asked last.
    pub(crate) fn take_times(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.times)
    }

    /// How many requests ended how, and how reads were served.
    pub(crate) fn totals(&self) -> (Counts, BTreeMap<&'static str, u64>) {
        (self.counts, self.served.clone())
    }

    /// Something is wrong. The first time counts.
    pub(crate) fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn move_complete(&mut self) {
        let is_over = |episode: &mut Episode| episode.under_way == 0;
        self.complete.extend(self.ending.extract_if(.., is_over));
    }
}

impl Episode {
    fn new(number: u64, random: Random) -> Self {
        Self { number, workload: Workload::new(random), records: Vec::new(), begun: 0, under_way: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_sim::history::Operation;

    fn record(wish: Wish) -> Record {
        let Wish { key, call, .. } = wish;
        let operation = Operation { client: 1, key, call, start: 0, end: 1, outcome: Outcome::Failed, seen: None };
        Record { operation, partition: 0, is_in_session: false }
    }

    #[test]
    fn an_episode_is_complete_when_its_last_request_has_ended() {
        let mut book = Book::new(Random::new(1));
        let (first, slow) = book.begin(None);
        for _ in 1..REQUESTS {
            let (episode, wish) = book.begin(None);
            assert_eq!(episode, first);
            book.end(episode, record(wish));
        }
        let (second, wish) = book.begin(None);
        assert_ne!(second, first);
        book.end(second, record(wish));
        assert!(book.take_complete().is_none(), "a request is under way");
        book.end(first, record(slow));
        let complete = book.take_complete().expect("nothing is under way");
        assert_eq!((complete.number, complete.records.len()), (first, REQUESTS));
        book.turn();
        assert_eq!(book.take_complete().map(|episode| episode.records.len()), Some(1));
        assert_eq!(book.counts.all(), REQUESTS as u64 + 1);
        book.fail("one".into());
        book.fail("two".into());
        assert_eq!(book.failure(), Some("one"));
    }
}
