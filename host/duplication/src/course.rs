//! How a carrier goes, as it says itself.

use hedgerow_client::duplication::{Instant, present};
use hedgerow_placement::carrying::{Carrying, Stopped};
use hedgerow_types::PartitionIndex;
use hedgerow_types::journal::Phase;
use hedgerow_wire::message::JournalReply;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An error that is over so soon is none that anybody has to know of: an election, say.
const TROUBLE_MIN: Duration = Duration::from_secs(1);
/// Reasons that are told of a duplication.
const REASONS_MAX: usize = 4;

/// What the other cluster was told of a duplication by all who carried any of it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    changes: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, changes: u64, bytes: u64) {
        self.changes.fetch_add(changes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Where one carrier is. It writes, and whoever sums up reads.
#[derive(Debug, Default)]
pub(crate) struct Course(Mutex<Going>);

#[derive(Debug, Default)]
struct Going {
    phase: Phase,
    entries_left: u64,
    bytes_left: u64,
    lag_seconds: Option<u64>,
    /// Why it does not go on, and since when.
    trouble: Option<(String, Instant)>,
}

impl Course {
    fn going(&self) -> MutexGuard<'_, Going> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the partition said last.
    pub(crate) fn note_page(&self, page: &JournalReply) {
        let mut going = self.going();
        going.phase = page.known_phase().unwrap_or_default();
        (going.entries_left, going.bytes_left) = (page.entries_left, page.bytes_left);
        going.lag_seconds = page.lag_seconds();
    }

    /// All that the last page said to be left was told.
    pub(crate) fn note_end(&self) {
        let mut going = self.going();
        (going.entries_left, going.bytes_left) = (0, 0);
        going.lag_seconds = (going.phase == Phase::Following).then_some(0);
    }

    /// It does not go on.
    pub(crate) fn note_trouble(&self, reason: &str) {
        let trouble = &mut self.going().trouble;
        let since = trouble.as_ref().map_or_else(present, |(_, since)| *since);
        *trouble = Some((reason.to_owned(), since));
    }

    /// It goes on.
    pub(crate) fn note_well(&self) {
        self.going().trouble = None;
    }
}

/// How a duplication goes whose partitions are carried like this.
pub(crate) fn sum<'c>(courses: impl Iterator<Item = (PartitionIndex, &'c Course)>, tally: &Tally) -> Carrying {
    let mut sum = Carrying {
        changes_told: tally.changes.load(Ordering::Relaxed),
        bytes_told: tally.bytes.load(Ordering::Relaxed),
        ..Carrying::default()
    };
    for (partition, course) in courses {
        let going = course.going();
        sum.partitions += 1;
        sum.copying += u32::from(going.phase == Phase::Copying);
        sum.following += u32::from(going.phase == Phase::Following);
        // What is left of one that must begin anew says nothing.
        if going.phase != Phase::Overrun {
            sum.entries_left += going.entries_left;
            sum.bytes_left += going.bytes_left;
        }
        sum.lag_seconds = sum.lag_seconds.max(going.lag_seconds);
        let Some((reason, since)) = &going.trouble else { continue };
        let lasting = present() - *since;
        if lasting >= TROUBLE_MIN {
            add(
                &mut sum.stopped,
                Stopped { reason: reason.clone(), partitions: 1, partition, seconds: lasting.as_secs() },
            );
        }
    }
    sum.stopped.sort_by_key(|it| (std::cmp::Reverse(it.partitions), it.partition));
    sum
}

/// Of more reasons than can be told, the last one stands for the others.
fn add(all: &mut Vec<Stopped>, one: Stopped) {
    let place = all.iter().position(|it| it.reason == one.reason);
    let place = place.or_else(|| (all.len() >= REASONS_MAX).then_some(REASONS_MAX - 1));
    match place.map(|place| &mut all[place]) {
        Some(known) => {
            known.partitions += 1;
            known.seconds = known.seconds.max(one.seconds);
        }
        None => all.push(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(phase: Phase, entries_left: u64, age: u64) -> JournalReply {
        JournalReply {
            phase: phase as i32,
            entries_left,
            bytes_left: 10 * entries_left,
            oldest_seconds: 100 - age,
            now_seconds: 100,
            ..JournalReply::default()
        }
    }

    fn summed(courses: &[Course]) -> Carrying {
        sum((0..).zip(courses), &Tally::default())
    }

    #[test]
    fn what_is_left_is_summed_up_and_the_oldest_counts() {
        let courses = [Course::default(), Course::default()];
        courses[0].note_page(&page(Phase::Following, 3, 5));
        courses[1].note_page(&page(Phase::Following, 4, 9));
        let all = summed(&courses);
        assert_eq!((all.partitions, all.entries_left, all.bytes_left, all.lag_seconds), (2, 7, 70, Some(9)));
        courses[1].note_end();
        assert_eq!((summed(&courses).entries_left, summed(&courses).lag_seconds), (3, Some(5)));
        courses[1].note_page(&page(Phase::Copying, 2, 0));
        let all = summed(&courses);
        assert_eq!((all.copying, all.entries_left, all.lag_seconds), (1, 5, Some(5)), "a copy has no lag");
        assert_eq!(all.following, 1);
        courses[1].note_page(&page(Phase::Overrun, 1_000, 50));
        assert_eq!((summed(&courses).entries_left, summed(&courses).lag_seconds), (3, Some(5)));
        assert_eq!(summed(&courses[1..]).lag_seconds, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_counts_once_it_lasts_and_until_it_goes_on() {
        let courses: [Course; 9] = std::array::from_fn(|_| Course::default());
        courses[1].note_trouble("away");
        courses[2].note_trouble("another");
        courses[4].note_trouble("away");
        tokio::time::advance(Duration::from_millis(900)).await;
        assert_eq!(summed(&courses).stopped, []);
        tokio::time::advance(Duration::from_millis(1_200)).await;
        courses[2].note_well();
        courses[4].note_trouble("away");
        let away = Stopped { reason: "away".to_owned(), partitions: 2, partition: 1, seconds: 2 };
        assert_eq!(summed(&courses).stopped, [away]);
        for (number, course) in courses.iter().enumerate() {
            course.note_trouble(&number.to_string());
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        let all = summed(&courses);
        assert_eq!((all.stopped.len(), all.stopped_count()), (REASONS_MAX, 9), "{all:?}");
    }
}
