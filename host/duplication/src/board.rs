//! How all that a node carries goes, for whoever asks the node, and for its log.

use crate::course::{Course, Tally, sum};
use hedgerow_client::duplication::{Instant, present};
use hedgerow_placement::carrying::{Carried, Carriers, Carrying};
use hedgerow_types::PartitionIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How soon the log has another line about the same duplication: with another reason, and with the same one.
const LINE_INTERVALS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Where the [`Duplicator`](crate::Duplicator) shows how it goes.
#[derive(Debug)]
pub struct Board(Mutex<Arc<Carried>>);

impl Board {
    /// For a node whose configuration names these clusters.
    pub fn new(clusters: BTreeSet<String>) -> Self {
        Self(Mutex::new(Arc::new(Carried { clusters, ..Carried::default() })))
    }

    /// It goes like this; a failure says why it is not known what is to be carried.
    pub(crate) fn show(&self, failure: Option<String>, duplications: BTreeMap<u64, Carrying>) {
        let shown = Carried { clusters: self.told().clusters.clone(), failure, duplications };
        // What was shown before is freed by whoever has it last, and never while others wait.
        let before = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(shown));
        drop(before);
    }
}

impl Carriers for Board {
    fn told(&self) -> Arc<Carried> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A duplication, as its log lines call it.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    table: String,
    cluster: String,
    /// What all who carry any of it add to.
    pub(crate) tally: Arc<Tally>,
    news: News,
}

/// What the log said last.
#[derive(Debug, Default)]
struct News {
    /// Why it does not go on, as the last line about it said; `None` = it goes on, or nobody here carries it.
    reason: Option<String>,
    /// When the last line was about that.
    said_at: Option<Instant>,
    /// Since when there is no reason any more, while that is not said yet.
    well_since: Option<Instant>,
    is_copying: bool,
}

/// Something to say.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Stopped,
    GoesOn,
    Copying,
    Copied,
}

impl Subject {
    pub(crate) fn new(table: &str, cluster: &str) -> Self {
        Self { table: table.to_owned(), cluster: cluster.to_owned(), ..Self::default() }
    }

    /// How it goes now. Says in the log what is new.
    pub(crate) fn sum_up<'c>(&mut self, courses: impl Iterator<Item = (PartitionIndex, &'c Course)>) -> Carrying {
        let carrying = sum(courses, &self.tally);
        let Self { table, cluster, news, .. } = self;
        for line in news.of(&carrying) {
            match (line, carrying.stopped.first()) {
                (Line::Stopped, Some(stopped)) => {
                    let (partitions, error) = (carrying.stopped_count(), &stopped.reason);
                    tracing::warn!(
                        table,
                        cluster,
                        partitions,
                        partition = stopped.partition,
                        error,
                        "a duplication does not go on"
                    );
                }
                (Line::Stopped, None) => {}
                (Line::GoesOn, _) => tracing::info!(table, cluster, "a duplication goes on again"),
                (Line::Copying, _) => tracing::info!(table, cluster, "a table is being copied to another cluster"),
                (Line::Copied, _) => tracing::info!(
                    table,
                    cluster,
                    "a table is copied, as far as this node leads it; what is written is carried"
                ),
            }
        }
        carrying
    }
}

impl News {
    fn of(&mut self, carrying: &Carrying) -> Vec<Line> {
        if carrying.partitions == 0 {
            // Paused, or another node carries it by now.
            *self = Self::default();
            return Vec::new();
        }
        let mut lines = Vec::new();
        let is_over = |at: Option<Instant>, interval| at.is_none_or(|at| present() - at >= interval);
        match carrying.stopped.first().map(|it| it.reason.clone()) {
            None if self.reason.is_some() => {
                let since = *self.well_since.get_or_insert_with(present);
                if is_over(Some(since), LINE_INTERVALS.0) {
                    (self.reason, self.well_since) = (None, None);
                    lines.push(Line::GoesOn);
                }
            }
            None => {}
            Some(reason) => {
                self.well_since = None;
                let is_same = self.reason.as_ref() == Some(&reason);
                if is_over(self.said_at, if is_same { LINE_INTERVALS.1 } else { LINE_INTERVALS.0 }) {
                    (self.reason, self.said_at) = (Some(reason), Some(present()));
                    lines.push(Line::Stopped);
                }
            }
        }
        if carrying.copying > 0 && !self.is_copying {
            self.is_copying = true;
            lines.push(Line::Copying);
        }
        if self.is_copying && carrying.following == carrying.partitions {
            self.is_copying = false;
            lines.push(Line::Copied);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_placement::carrying::Stopped;

    fn stopped(reason: &str) -> Carrying {
        let stopped = Stopped { reason: reason.to_owned(), partitions: 2, partition: 0, seconds: 1 };
        Carrying { partitions: 4, stopped: vec![stopped], ..Carrying::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_says_what_is_new_and_repeats_it_seldom() {
        let mut news = News::default();
        let well = Carrying { partitions: 4, following: 4, ..Carrying::default() };
        assert_eq!(news.of(&well), []);
        assert_eq!(news.of(&stopped("away")), [Line::Stopped]);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(news.of(&stopped("away")), []);
        assert_eq!(news.of(&stopped("no such table")), [Line::Stopped], "another reason is news");
        assert_eq!(news.of(&stopped("away")), [], "not each second");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(news.of(&stopped("no such table")), [Line::Stopped]);
        assert_eq!(news.of(&well), [], "it may be over for a moment only");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(news.of(&well), [Line::GoesOn]);
        assert_eq!(news.of(&well), []);
        // Whoever does not carry it any more says nothing of it.
        assert_eq!(news.of(&stopped("away")), [Line::Stopped]);
        assert_eq!(news.of(&Carrying::default()), []);
        assert_eq!(news.of(&well), []);
    }

    #[test]
    fn the_log_says_when_a_copy_begins_and_ends() {
        let mut news = News::default();
        let of = |copying, following| Carrying { partitions: 4, copying, following, ..Carrying::default() };
        assert_eq!(news.of(&of(1, 0)), [Line::Copying]);
        assert_eq!(news.of(&of(4, 0)), []);
        assert_eq!(news.of(&of(0, 3)), [], "one is overrun, or begins anew");
        assert_eq!(news.of(&of(0, 4)), [Line::Copied]);
        assert_eq!(news.of(&of(2, 2)), [Line::Copying]);
        // Another node carries them now.
        assert_eq!(news.of(&Carrying::default()), []);
    }

    #[test]
    fn what_is_shown_is_told() {
        let board = Board::new(["west".to_owned()].into());
        board.show(Some("no leader".to_owned()), [(7, stopped("away"))].into());
        assert_eq!(board.told().duplications[&7].stopped_count(), 2);
        assert_eq!(board.told().failure.as_deref(), Some("no leader"));
        board.show(None, BTreeMap::new());
        assert_eq!(*board.told(), Carried { clusters: ["west".to_owned()].into(), ..Carried::default() });
    }
}
