//! How all that a node carries goes, for whoever asks the node, and for its log.

use crate::course::{Course, Shared, sum};
use hedgerow_client::duplication::{Instant, present};
use hedgerow_placement::carrying::{Carried, Carriers, Carrying};
use hedgerow_types::PartitionIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How soon the log has another line about the same duplication: with another reason, and with the same one.
const LINE_INTERVALS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Where the [`Duplicator`](crate::Duplicator) shows how it goes.
#[derive(Debug)]
pub struct Board(Mutex<Carried>);

impl Board {
    /// For a node whose configuration names these clusters.
    pub fn new(clusters: BTreeSet<String>) -> Self {
        Self(Mutex::new(Carried { clusters, ..Carried::default() }))
    }

    fn carried(&self) -> MutexGuard<'_, Carried> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be carried is not known now.
    pub(crate) fn show_failure(&self, failure: &str) {
        self.carried().failure = Some(failure.to_owned());
    }

    /// It is known, and goes like this.
    pub(crate) fn show(&self, duplications: BTreeMap<u64, Carrying>) {
        let mut carried = self.carried();
        (carried.failure, carried.duplications) = (None, duplications);
    }
}

impl Carriers for Board {
    fn told(&self) -> Carried {
        self.carried().clone()
    }
}

/// A duplication, as its log lines call it.
#[derive(Debug, Default)]
pub(crate) struct Subject {
    pub(crate) table: String,
    pub(crate) cluster: String,
    pub(crate) tally: Shared,
    news: News,
}

/// What the log said last.
#[derive(Debug, Default)]
struct News {
    /// Why it does not go on, and when that was said.
    reason: Option<(String, Instant)>,
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
                        "a duplication does not go on; it is tried again"
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
        let mut lines = Vec::new();
        let reason = carrying.stopped.first().map(|it| it.reason.clone());
        match (reason, &self.reason) {
            (None, None) => {}
            (None, Some(_)) => {
                self.reason = None;
                lines.push(Line::GoesOn);
            }
            (Some(reason), known) => {
                let is_due = known.as_ref().is_none_or(|(known, at)| {
                    present() - *at >= if *known == reason { LINE_INTERVALS.1 } else { LINE_INTERVALS.0 }
                });
                if is_due {
                    self.reason = Some((reason, present()));
                    lines.push(Line::Stopped);
                }
            }
        }
        let is_copying = carrying.copying > 0;
        if is_copying && !self.is_copying {
            lines.push(Line::Copying);
        }
        if !is_copying && self.is_copying && carrying.partitions > 0 && carrying.stopped.is_empty() {
            lines.push(Line::Copied);
        }
        self.is_copying = is_copying;
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
        let well = Carrying { partitions: 4, ..Carrying::default() };
        assert_eq!(news.of(&well), []);
        assert_eq!(news.of(&stopped("away")), [Line::Stopped]);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(news.of(&stopped("away")), []);
        assert_eq!(news.of(&stopped("no such table")), [Line::Stopped], "another reason is news");
        assert_eq!(news.of(&stopped("away")), [], "not each second");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(news.of(&stopped("no such table")), [Line::Stopped]);
        assert_eq!(news.of(&well), [Line::GoesOn]);
        assert_eq!(news.of(&well), []);
    }

    #[test]
    fn the_log_says_when_a_copy_begins_and_ends() {
        let mut news = News::default();
        let copying = |copying| Carrying { partitions: 4, copying, ..Carrying::default() };
        assert_eq!(news.of(&copying(1)), [Line::Copying]);
        assert_eq!(news.of(&copying(4)), []);
        assert_eq!(news.of(&copying(0)), [Line::Copied]);
        assert_eq!(news.of(&copying(2)), [Line::Copying]);
        // Another node carries them now.
        assert_eq!(news.of(&Carrying::default()), []);
    }

    #[test]
    fn what_is_shown_is_told() {
        let board = Board::new(["west".to_owned()].into());
        board.show([(7, stopped("away"))].into());
        assert_eq!(board.told().duplications[&7].stopped_count(), 2);
        board.show_failure("no leader");
        assert_eq!((board.told().failure.as_deref(), board.told().duplications.len()), (Some("no leader"), 1));
        board.show(BTreeMap::new());
        assert_eq!(board.told(), Carried { clusters: ["west".to_owned()].into(), ..Carried::default() });
    }
}
