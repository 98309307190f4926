//! When the questions of many groups leave for one other node: one message carries them all, and few messages are enough.
//!
//! ```text
//! reads      1  2 3   4        5 6        7
//! messages   1------------>answered       7        1 leaves at once: nothing was unanswered
//!                |2 3-------->                      2 and 3 wait for a sixteenth of a round trip, but share a message
//!                      |4--------->                 and so on: about sixteen messages are unanswered at a time
//! ```
//!
//! A question may not join a message that has left (see `waiting.rs`), so a read that comes just afterwards waits for the
//! next one: for a sixteenth of a round trip at most, which counts as 1 to 10 ms, and not at all when everything has been
//! answered. A round trip may have been that of a node that stood still, which says nothing of the next one.

use crate::round_trip::RoundTrip;
use core::time::Duration;
use hedgerow_types::{GroupId, Instant};
use std::collections::{BTreeSet, VecDeque};

/// While answers are outstanding, messages leave at least this far apart.
const GAP_MIN: Duration = Duration::from_millis(1);
/// While answers are outstanding, messages leave a round trip divided by this apart, if that is longer, up to the maximum.
const GAP_DIVISOR: u32 = 16;
const GAP_MAX: Duration = Duration::from_millis(10);
/// A message that is unanswered for eight round trips, within these limits, counts as lost and holds up nothing.
const LOST_AFTER_MIN: Duration = Duration::from_millis(100);
const LOST_AFTER_MAX: Duration = Duration::from_secs(2);

/// Paces the messages with questions to one other node. The host asks [`crate::Group::wants_to_ask`] after it has driven a
/// group, names the group here, and sends a message when [`ReadIndexBatcher::poll`] says so:
///
/// ```text
/// if let Some(leader) = group.wants_to_ask(now)        { asking[node of leader].handle_wanted(group.group()) }
/// if let Some(groups) = asking.poll(fresh id, now)     { ask(id, now) each of the groups, send the questions at once }
/// an answer with that id came from that node           { asking.handle_answered(id, now) }
/// ```
///
/// All questions of one message may have the same id: a question is named by its group and its id.
#[derive(Debug)]
pub struct ReadIndexBatcher {
    gap_max: Duration,
    wanted: BTreeSet<GroupId>,
    /// The messages that nothing came back for, in the order in which they left.
    unanswered: VecDeque<(u64, Instant)>,
    left_at: Instant,
    round_trip: RoundTrip,
}

impl Default for ReadIndexBatcher {
    fn default() -> Self {
        Self {
            gap_max: GAP_MAX,
            wanted: BTreeSet::new(),
            unanswered: VecDeque::new(),
            left_at: Instant::ZERO,
            round_trip: RoundTrip::default(),
        }
    }
}

impl ReadIndexBatcher {
    /// Paces messages that go to several nodes at once: one that stands still must not hold up what the others could answer, so that
    /// the gap is a millisecond however long answers take.
    pub fn to_many() -> Self {
        Self { gap_max: GAP_MIN, ..Self::default() }
    }

    /// `group` has a question for this node.
    pub fn handle_wanted(&mut self, group: GroupId) {
        self.wanted.insert(group);
    }

    /// Whether a message may leave now, and for which groups: then it has to leave, or [`ReadIndexBatcher::handle_unsent`] has to be
    /// told. `id` names the message and was never used before at this node; it is not used up by `None`.
    pub fn poll(&mut self, id: u64, now: Instant) -> Option<Vec<GroupId>> {
        if self.wanted.is_empty() {
            return None;
        }
        let patience = self.lost_after();
        while self.unanswered.front().is_some_and(|&(_, left_at)| now >= left_at + patience) {
            self.unanswered.pop_front();
        }
        if !self.unanswered.is_empty() && now < self.left_at + self.gap() {
            return None;
        }
        self.unanswered.push_back((id, now));
        self.left_at = now;
        Some(core::mem::take(&mut self.wanted).into_iter().collect())
    }

    /// The first answer to a question of the message `id` came; later ones, and those to messages that count as lost, change
    /// nothing.
    pub fn handle_answered(&mut self, id: u64, now: Instant) {
        if let Some(position) = self.unanswered.iter().position(|&(unanswered, _)| unanswered == id)
            && let Some((_, left_at)) = self.unanswered.remove(position)
        {
            self.round_trip.take(now.since(left_at));
        }
    }

    /// The message `id` was not sent after all: no group had a question left, or there is no connection.
    pub fn handle_unsent(&mut self, id: u64) {
        self.unanswered.retain(|&(unanswered, _)| unanswered != id);
    }

    /// When [`ReadIndexBatcher::poll`] may have something although nothing else happens; `None` if no group waits.
    pub fn wakes_at(&self) -> Option<Instant> {
        if self.wanted.is_empty() {
            return None;
        }
        let Some(&(_, oldest)) = self.unanswered.front() else { return Some(self.left_at) };
        // When the oldest is given up, others may still be unanswered; then the gap decides, which is over long before.
        Some((self.left_at + self.gap()).min(oldest + self.lost_after()))
    }

    fn gap(&self) -> Duration {
        self.round_trip.smoothed().map_or(GAP_MIN, |known| (known / GAP_DIVISOR).clamp(GAP_MIN, self.gap_max))
    }

    fn lost_after(&self) -> Duration {
        self.round_trip.patience(LOST_AFTER_MIN, LOST_AFTER_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::random::Random;
    use std::collections::BTreeMap;

    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000 * MICRO;

    fn group(partition: u32) -> GroupId {
        GroupId::new(1, partition)
    }

    fn at(millis: u64) -> Instant {
        Instant((1_000 + millis) * MILLI)
    }

    #[test]
    fn the_first_leaves_at_once_and_the_next_after_the_gap_or_the_answer() {
        let mut asking = ReadIndexBatcher::default();
        let (mut messages, mut questions) = (0, 0);
        let mut count = |left: Option<Vec<GroupId>>| {
            messages += usize::from(left.is_some());
            questions += left.as_ref().map_or(0, Vec::len);
            left
        };
        assert_eq!((count(asking.poll(1, at(0))), asking.wakes_at()), (None, None));
        asking.handle_wanted(group(1));
        assert_eq!(count(asking.poll(1, at(0))), Some(vec![group(1)]));
        asking.handle_wanted(group(2));
        asking.handle_wanted(group(1));
        asking.handle_wanted(group(2));
        assert_eq!((count(asking.poll(2, at(0))), asking.wakes_at()), (None, Some(at(1))));
        assert_eq!(count(asking.poll(2, at(1))), Some(vec![group(1), group(2)]));
        asking.handle_answered(1, at(32));
        asking.handle_wanted(group(3));
        assert_eq!(count(asking.poll(3, at(32))), Some(vec![group(3)]));
        asking.handle_wanted(group(3));
        assert_eq!((count(asking.poll(4, at(33))), asking.wakes_at()), (None, Some(at(34))));
        asking.handle_answered(3, at(33));
        asking.handle_answered(2, at(33));
        assert_eq!(count(asking.poll(4, at(33))), Some(vec![group(3)]));
        assert_eq!((messages, questions), (4, 5));
    }

    /// A node that stood still for a second has answered, and another message was lost: reads do not wait for long.
    #[test]
    fn what_a_pause_took_says_nothing_of_the_next_question() {
        let mut asking = ReadIndexBatcher::default();
        for (id, millis) in [(1, 0), (2, 10)] {
            asking.handle_wanted(group(1));
            assert!(asking.poll(id, at(millis)).is_some());
        }
        asking.handle_answered(1, at(1_000));
        asking.handle_wanted(group(1));
        assert!(asking.poll(3, at(1_000)).is_some());
        asking.handle_wanted(group(2));
        assert_eq!((asking.poll(4, at(1_009)), asking.wakes_at()), (None, Some(at(1_010))));
        assert_eq!(asking.poll(4, at(1_010)), Some(vec![group(2)]));
    }

    #[test]
    fn of_many_nodes_one_that_stands_still_holds_nothing_up() {
        let mut asking = ReadIndexBatcher::to_many();
        for id in 0..100 {
            asking.handle_wanted(group(1));
            assert!(asking.poll(id, at(id)).is_some(), "message {id}");
        }
        (0..50).for_each(|id| asking.handle_answered(id, at(150)));
        asking.handle_wanted(group(1));
        assert!(asking.poll(100, at(151)).is_some());
        asking.handle_wanted(group(1));
        assert_eq!((asking.poll(101, at(151)), asking.wakes_at()), (None, Some(at(152))));
    }

    #[test]
    fn lost_messages_stop_nothing() {
        let mut asking = ReadIndexBatcher::default();
        for id in 0..10_000 {
            asking.handle_wanted(group(1));
            let now = asking.wakes_at().expect("a group waits").max(at(0));
            assert_eq!(asking.poll(id, now), Some(vec![group(1)]), "message {id} at {now:?}");
            assert!(asking.unanswered.len() <= 2_000, "what is lost is forgotten");
        }
        // After a silence everything counts as lost, and the next one leaves at once; a late answer changes nothing.
        asking.handle_wanted(group(1));
        assert!(asking.poll(10_000, at(60_000)).is_some());
        assert_eq!(asking.unanswered.len(), 1);
        asking.handle_answered(5, at(60_001));
        assert_eq!(asking.unanswered.len(), 1);
        asking.handle_unsent(10_000);
        asking.handle_wanted(group(1));
        assert!(asking.poll(10_001, at(60_000)).is_some());
        asking.handle_unsent(10_001);
        assert!(asking.unanswered.is_empty());
    }

    /// Readers in a closed loop at one node: each waits for the answer to a question that left after its read arrived, then
    /// reads again. Returns messages (both directions) per read and the longest wait before a question left.
    fn simulate(readers: u64, round_trip: u64, pause: u64, seed: u64) -> (f64, Duration) {
        let mut random = Random::new(seed);
        let mut asking = ReadIndexBatcher::default();
        let mut arrivals: BTreeMap<(u64, u64), ()> = BTreeMap::new();
        arrivals.extend((0..readers).map(|reader| ((random.below(round_trip + 1), reader), ())));
        let mut answers: VecDeque<(u64, u64, Vec<u64>)> = VecDeque::new();
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        let (mut reads, mut id, mut longest) = (0_u64, 0, 0);
        let start = at(0).0;
        while reads < 20_000 {
            let arrival = arrivals.keys().next().map_or(u64::MAX, |&(time, _)| time);
            let answer = answers.front().map_or(u64::MAX, |&(time, _, _)| time);
            let wake = asking.wakes_at().map_or(u64::MAX, |wake| wake.0.saturating_sub(start));
            let time = arrival.min(answer).min(wake);
            let now = Instant(start + time);
            while let Some((&(due, reader), ())) = arrivals.first_key_value().filter(|((due, _), ())| *due <= time) {
                arrivals.pop_first();
                waiting.push((due, reader));
                asking.handle_wanted(group(reader as u32 % 8));
            }
            while answers.front().is_some_and(|&(due, _, _)| due <= time) {
                let Some((_, number, readers)) = answers.pop_front() else { break };
                asking.handle_answered(number, now);
                reads += readers.len() as u64;
                for reader in readers {
                    arrivals.insert((time + random.below(pause + 1), reader), ());
                }
            }
            if asking.poll(id, now).is_some() {
                longest = waiting.iter().map(|&(since, _)| time - since).fold(longest, u64::max);
                let readers = waiting.drain(..).map(|(_, reader)| reader).collect();
                answers.push_back((time + round_trip, id, readers));
                id += 1;
            }
        }
        (2.0 * id as f64 / reads as f64, Duration::from_nanos(longest))
    }

    #[test]
    fn many_readers_share_messages_and_none_waits_long_for_its_own_to_leave() {
        for (round_trip, pause) in [(200 * MICRO, 0), (200 * MICRO, 50 * MICRO), (MILLI, 0), (28 * MILLI, MILLI)] {
            let (one, _) = simulate(1, round_trip, pause, 7);
            assert!(one <= 2.001, "{one} messages per read of one reader");
            let (per_read, longest) = simulate(64, round_trip, pause, 7);
            let most = Duration::from_nanos(round_trip / 16) + GAP_MIN;
            assert!(longest <= most, "a read waited {longest:?} at a round trip of {round_trip} ns");
            // Far away at most 17 messages leave in a round trip, however many readers there are.
            let limit = if round_trip > 10 * MILLI { 34.0 / 64.0 + 0.05 } else { 0.1 };
            assert!(per_read <= limit, "{per_read} messages per read at a round trip of {round_trip} ns");
        }
    }
}
