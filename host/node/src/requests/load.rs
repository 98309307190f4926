//! How much the node has to do, as its replies tell clients: requests in flight and what one costs.

use hedgerow_types::Instant;
use std::time::Duration;

/// In this time what a request costs is forgotten, however few there are (R16).
const MEMORY: Duration = Duration::from_secs(1);
/// The most that one request is taken to have cost: a process that stood still says nothing of its requests.
const SERVICE_MAX: Duration = Duration::from_millis(100);
/// The cost is an average over about so many requests.
const SMOOTHING: u64 = 64;

/// Counts requests from the moment they are taken until their replies leave.
#[derive(Debug, Default)]
pub(crate) struct NodeLoad {
    /// Taken and without an answer.
    unanswered: u32,
    /// Answered since the node was driven last: their replies have not left.
    leaving: u32,
    /// Reads and writes taken or answered since work was last noted.
    touched: u64,
    /// Reads and writes answered since work was last accounted for.
    answered: u64,
    /// Work whose requests have no answer yet.
    unaccounted: Duration,
    service_nanos: Option<u64>,
    /// What a request cost in the last two batches that had any, the older one first; `None` before there were two, or if
    /// there was a long pause between them.
    latest: [Option<u64>; 2],
    noted: Instant,
}

impl NodeLoad {
    /// A request came; only reads and writes count in what one costs.
    pub(crate) fn take(&mut self, is_data: bool) {
        self.unanswered += 1;
        self.touched += u64::from(is_data);
    }

    /// A request is being answered.
    pub(crate) fn answer(&mut self, is_data: bool) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.leaving += 1;
        self.touched += u64::from(is_data);
        self.answered += u64::from(is_data);
    }

    /// A request is being refused. That says nothing of what requests cost: in a batch with others it is part of theirs.
    pub(crate) fn refuse(&mut self, is_data: bool) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.leaving += 1;
        self.touched = self.touched.saturating_sub(u64::from(is_data));
    }

    /// A request is not answered at all.
    pub(crate) fn forget(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// The replies leave.
    pub(crate) fn leave(&mut self) {
        self.leaving = 0;
    }

    /// Requests in flight besides the one that is just being answered.
    pub(crate) fn in_flight(&self) -> i32 {
        i32::try_from(self.unanswered + self.leaving.saturating_sub(1)).unwrap_or(i32::MAX)
    }

    /// What a request costs, microseconds rounded up; 0 = not known.
    pub(crate) fn service_us(&self) -> i32 {
        self.service_nanos.map_or(0, |nanos| i32::try_from(nanos.div_ceil(1_000)).unwrap_or(i32::MAX))
    }

    /// Reads and writes taken or answered since work was last noted.
    pub(crate) fn touched(&self) -> u32 {
        u32::try_from(self.touched).unwrap_or(u32::MAX)
    }

    /// The same as far as it is known; otherwise nothing.
    pub(crate) fn service(&self) -> Duration {
        self.service_nanos.map_or(Duration::ZERO, Duration::from_nanos)
    }

    /// How long `count` requests will take, zero if that is not known. By the average, but no more than by the cheaper of the
    /// last two batches: one slow request makes nobody think that all are, and what was long ago says nothing (R16).
    pub(crate) fn wait_behind(&self, count: usize, now: Instant) -> Duration {
        let ([Some(before), Some(last)], Some(average)) = (self.latest, self.service_nanos) else {
            return Duration::ZERO;
        };
        if now.since(self.noted) > MEMORY {
            return Duration::ZERO;
        }
        Duration::from_nanos(average.min(before).min(last).saturating_mul(count as u64))
    }

    /// `took` was spent on a batch of events that clients' requests were part of.
    pub(crate) fn note_work(&mut self, took: Duration, now: Instant) {
        if std::mem::take(&mut self.touched) == 0 {
            return;
        }
        self.unaccounted += took;
        if self.answered == 0 {
            return;
        }
        let (answered, work) = (std::mem::take(&mut self.answered), std::mem::take(&mut self.unaccounted));
        let most = SERVICE_MAX * u32::try_from(answered).unwrap_or(u32::MAX);
        let one = u64::try_from(work.min(most).as_nanos()).unwrap_or(u64::MAX) / answered;
        let pause = now.since(self.noted);
        self.latest = [self.latest[1].filter(|_| pause <= MEMORY), Some(one)];
        let elapsed = pause.min(MEMORY).as_micros() as u64;
        // Parts in a thousand.
        let weight =
            (answered.min(SMOOTHING) * 1_000 / SMOOTHING + elapsed * 1_000 / MEMORY.as_micros() as u64).min(1_000);
        self.service_nanos = Some(match self.service_nanos {
            Some(before) => (before * (1_000 - weight) + one * weight) / 1_000,
            None => one,
        });
        self.noted = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instants a second apart have no load in common.
    fn at(millis: u64) -> Instant {
        Instant((10_000 + millis) * 1_000_000)
    }

    #[test]
    fn r17_requests_in_flight_return_to_zero() {
        let mut load = NodeLoad::default();
        (0..5).for_each(|turn| load.take(turn > 0));
        load.answer(true);
        assert_eq!(load.in_flight(), 4, "the four others");
        load.answer(true);
        assert_eq!(load.in_flight(), 4, "the reply before has not left yet");
        load.leave();
        load.forget();
        load.answer(true);
        load.answer(false);
        load.leave();
        assert_eq!((load.in_flight(), load.unanswered), (0, 0));
    }

    #[test]
    fn r16_what_a_request_costs_is_an_average_that_time_forgets() {
        let mut load = NodeLoad::default();
        let mut batch = |count: u32, micros: u64, millis: u64| {
            (0..count).for_each(|_| load.take(true));
            (0..count).for_each(|_| load.answer(true));
            load.leave();
            load.note_work(Duration::from_micros(micros), at(millis));
            load.service_us()
        };
        assert_eq!(batch(10, 50, 0), 5);
        assert_eq!(batch(64, 640, 1), 10);
        assert_eq!(batch(1, 74, 1), 11, "one request is one of sixty-four");
        assert!(batch(1, 60_000_000, 2) < 1_700, "a pause of a minute counts as a tenth of a second");
        assert!(batch(1, 7, 502) < 850, "half a second forgets half of it");
        assert_eq!(batch(1, 7, 1_502), 7, "a second forgets it");
    }

    /// The wait that a request is told of is that of the queue before it.
    #[test]
    fn r16_no_stale_busy() {
        let mut load = NodeLoad::default();
        let batch = |load: &mut NodeLoad, count: u32, micros: u64, millis: u64| {
            (0..count).for_each(|_| load.take(true));
            (0..count).for_each(|_| load.answer(true));
            load.leave();
            load.note_work(Duration::from_micros(micros), at(millis));
        };
        let wait = |load: &NodeLoad, millis: u64| load.wait_behind(1_000, at(millis)).as_micros();
        assert_eq!(wait(&load, 0), 0, "after a restart nothing is known");
        batch(&mut load, 1, 90_000, 0);
        assert_eq!(wait(&load, 0), 0, "one request says nothing");
        batch(&mut load, 64, 640, 1);
        batch(&mut load, 64, 640, 2);
        assert_eq!(wait(&load, 2), 10_000);
        batch(&mut load, 1, 90_000, 3);
        assert_eq!(wait(&load, 3), 10_000, "one slow request among quick ones");
        batch(&mut load, 64, 64 * 90_000, 4);
        assert!(wait(&load, 4) > 80_000_000, "all of them are slow");
        assert!(wait(&load, 1_004) > 80_000_000);
        assert_eq!(wait(&load, 1_005), 0, "an idle second forgets it");
        batch(&mut load, 1, 90_000, 1_200);
        assert_eq!(wait(&load, 1_200), 0, "nor does it come back with the first slow request after the pause");
        assert_eq!(load.wait_behind(0, at(4)), Duration::ZERO, "an empty queue is never busy");
    }

    /// Refusals take no time worth telling, however many there are.
    #[test]
    fn r16_refusals_do_not_make_requests_look_cheap_or_dear() {
        let mut load = NodeLoad::default();
        for millis in 0..1_000 {
            load.take(true);
            load.refuse(true);
            load.leave();
            load.note_work(Duration::from_micros(20), at(millis));
        }
        assert_eq!((load.in_flight(), load.service_us()), (0, 0), "nothing was served");
        (0..100).for_each(|_| load.take(true));
        (0..90).for_each(|_| load.refuse(true));
        (0..10).for_each(|_| load.answer(true));
        load.leave();
        load.note_work(Duration::from_micros(100), at(1_000));
        assert_eq!(load.service_us(), 10);
    }

    #[test]
    fn work_for_requests_without_an_answer_counts_when_they_have_one() {
        let mut load = NodeLoad::default();
        load.take(true);
        load.note_work(Duration::from_micros(30), at(0));
        assert_eq!(load.service_us(), 0);
        // The operator's questions are neither reads nor writes.
        load.take(false);
        load.answer(false);
        load.note_work(Duration::from_micros(9_999), at(1));
        load.answer(true);
        load.note_work(Duration::from_micros(10), at(1));
        assert_eq!(load.service_us(), 40);
    }
}
