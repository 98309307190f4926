//! What a client knows about one node's speed, from the replies of the node alone.
//!
//! ```text
//! cost = latency + (1 + queue + own requests in flight) x service time
//! ```
//!
//! - *latency*: smoothed time of replies. Of an unused node it sinks, so that one that was slow is tried again: fast
//!   to what the way there and back takes, and from there slowly, because one that is far away will still be. While
//!   requests wait and nothing is heard, at least the silence so far: a node that has stalled sends no replies that
//!   could say so.
//! - *queue* and *service time*: what the node says of itself with each reply. They change fast and become wrong fast,
//!   so the queue is believed for a tenth of a second or so (pitfall R16: no "busy" out of the past).
//! - *own requests in flight* stand beside the queue although some are counted in it: they are the part that is not
//!   stale, and keep clients that all heard the same from all doing the same (C3, NSDI'15, counts them so too).
//!
//! The cost grows with each of its parts and is in units of time. Elasticsearch had its rank inverted in the service
//! time for four years (#65838); a test holds the directions.

use core::time::Duration;
use hedgerow_types::Instant;

/// What a node says of itself with a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaLoad {
    /// Requests it had taken and not answered.
    pub in_flight: u32,
    /// What one costs it on average at the moment; zero if it does not know.
    pub service: Duration,
    /// How long the request that it replies to had waited there.
    pub queue: Duration,
}

/// What a request to a node is expected to meet there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// How long it would wait until it is served.
    pub queue: Duration,
    /// What the way there and back takes.
    pub network: Duration,
}

/// Replies after which a node counts as known.
pub(crate) const SAMPLES_MIN: u32 = 10;
/// Time after which what was known of an unused node is worth nothing.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
/// Replies after which a node that was forgotten counts as known again.
const SAMPLES_AGAIN: u32 = 2;
/// How long a reply counts in the smoothed latency and service time.
const LATENCY_WINDOW: Duration = Duration::from_millis(50);
/// How long a reply counts in the smoothed queue.
const QUEUE_WINDOW: Duration = Duration::from_millis(10);
/// Age at which a queue of the past counts half.
const QUEUE_HALF_LIFE: Duration = Duration::from_millis(100);
/// How long a reply counts in the time of the way. A shorter one counts at once.
const WAY_WINDOW: Duration = Duration::from_secs(600);
/// Age at which the time of the way counts half.
const WAY_HALF_LIFE: Duration = Duration::from_secs(10);
/// Age at which the rest of a latency of the past counts a quarter.
const LATENCY_HALF_LIFE: Duration = Duration::from_secs(1);
/// Requests that are given up again and again, without any reply in between, count as one that waits on: at most so many
/// times as long as each was waited for. Without it, a client that hedges would never learn how slow a silent node is.
const SILENCE_FACTOR: u32 = 8;
/// The part of the latency that is taken for the service time of a node that does not tell it.
const SERVICE_SHARE: f64 = 0.25;

/// Times are in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics {
    /// This client's unanswered requests.
    pub(crate) in_flight: u32,
    samples: u32,
    latency: f64,
    /// About the best latency without the time that requests waited at the node: the way there and back, and the work.
    way: f64,
    service: f64,
    queue: f64,
    /// When the last sample came.
    sampled: Instant,
    /// When the node was last heard, or the first request after a quiet time was sent.
    heard: Instant,
    /// When the first of those was sent that were given up since a request last came to its end.
    unanswered: Option<Instant>,
}

impl Statistics {
    pub(crate) fn note_sent(&mut self, now: Instant) {
        if self.in_flight == 0 {
            self.heard = now;
        }
        self.in_flight += 1;
    }

    /// A request is over, one way or another.
    pub(crate) fn note_over(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.heard = self.heard.max(now);
        self.unanswered = None;
    }

    /// As [`Statistics::note_over`], for one that was given up after `waited`: its reply would have taken longer.
    pub(crate) fn note_abandoned(&mut self, waited: Duration, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let since = *self.unanswered.get_or_insert(now - waited);
        let waited = now.since(since).min(waited * SILENCE_FACTOR).max(waited);
        if self.is_known(now) && nanos(waited) > self.aged_latency(now) {
            self.sample_latency(waited, now);
            self.sampled = now;
        }
    }

    pub(crate) fn note_reply(&mut self, latency: Duration, load: Option<ReplicaLoad>, now: Instant) {
        self.note_over(now);
        if self.is_forgotten(now) {
            self.samples = self.samples.min(SAMPLES_MIN - SAMPLES_AGAIN);
        }
        self.sample_latency(latency, now);
        self.sample_way(latency.saturating_sub(load.unwrap_or_default().queue), now);
        if let Some(load) = load {
            self.service += (nanos(load.service) - self.service) * self.weight(LATENCY_WINDOW, now);
            let queue = self.aged_queue(now);
            self.queue = queue + (f64::from(load.in_flight) - queue) * self.weight(QUEUE_WINDOW, now);
        }
        self.samples = self.samples.saturating_add(1);
        self.sampled = now;
    }

    /// The node's life has ended: what was known says nothing of its next.
    pub(crate) fn forget(&mut self) {
        *self = Self { in_flight: self.in_flight, heard: self.heard, ..Self::default() };
    }

    /// Whether enough is known to compare it with others.
    pub(crate) fn is_known(&self, now: Instant) -> bool {
        self.samples >= SAMPLES_MIN && !self.is_forgotten(now)
    }

    /// What a request is expected to take.
    pub(crate) fn cost(&self, now: Instant) -> f64 {
        let service = if self.service > 0.0 { self.service } else { self.latency * SERVICE_SHARE };
        self.aged_latency(now) + (1.0 + self.aged_queue(now) + f64::from(self.in_flight)) * service
    }

    /// What a request is expected to take while there are no others.
    pub(crate) fn idle_cost(&self) -> f64 {
        self.way
    }

    /// What a request is expected to meet; `None` while too little is known, or if the node does not tell what serving costs
    /// it.
    pub(crate) fn expected(&self, now: Instant) -> Option<Expected> {
        if !self.is_known(now) || self.service <= 0.0 {
            return None;
        }
        let queue = (self.aged_queue(now) + f64::from(self.in_flight)) * self.service;
        let network = (self.way - self.service).max(0.0);
        let duration = |nanos: f64| Duration::from_nanos(nanos as u64);
        Some(Expected { queue: duration(queue), network: duration(network) })
    }

    /// What it would cost if the node were as fast as one with this idle cost: for nodes that are not known.
    pub(crate) fn cost_like(&self, idle_cost: f64) -> f64 {
        idle_cost * (1.0 + SERVICE_SHARE * f64::from(self.in_flight))
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        now.since(self.sampled) > FORGOTTEN_AFTER
    }

    fn sample_latency(&mut self, latency: Duration, now: Instant) {
        self.latency += (nanos(latency) - self.latency) * self.weight(LATENCY_WINDOW, now);
    }

    fn sample_way(&mut self, way: Duration, now: Instant) {
        let way = nanos(way);
        let smoothed = self.way + (way - self.way) * self.weight(WAY_WINDOW, now);
        self.way = smoothed.min(way);
    }

    /// How much the newest sample counts: as much as each before while there are few, then by the time since the last.
    fn weight(&self, window: Duration, now: Instant) -> f64 {
        let elapsed = nanos(now.since(self.sampled));
        let by_time = elapsed / (elapsed + nanos(window));
        if self.samples < SAMPLES_MIN { by_time.max(1.0 / (f64::from(self.samples) + 1.0)) } else { by_time }
    }

    fn aged_queue(&self, now: Instant) -> f64 {
        self.queue * fresh_share(now.since(self.sampled), QUEUE_HALF_LIFE)
    }

    fn aged_latency(&self, now: Instant) -> f64 {
        let age = now.since(self.sampled);
        let rest = (self.latency - self.way).max(0.0);
        // Squared, or a stall of a second would keep a node that is well again away for half a minute.
        let rest_share = fresh_share(age, LATENCY_HALF_LIFE) * fresh_share(age, LATENCY_HALF_LIFE);
        let smoothed = self.way * fresh_share(age, WAY_HALF_LIFE) + rest * rest_share;
        let silence = if self.in_flight > 0 { nanos(now.since(self.heard)) } else { 0.0 };
        smoothed.max(silence)
    }
}

fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// What is left of an estimate of this age.
fn fresh_share(age: Duration, half_life: Duration) -> f64 {
    nanos(half_life) / (nanos(half_life) + nanos(age))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn statistics(latency_ms: u64, load: ReplicaLoad) -> Statistics {
        let mut statistics = Statistics::default();
        for time in 0..20 {
            statistics.note_sent(at(time));
            statistics.note_reply(ms(latency_ms), Some(load), at(time));
        }
        statistics
    }

    /// Elasticsearch #65838 and #70283: the directions of a rank, and a mean that was overwritten.
    #[test]
    fn the_cost_grows_with_latency_queue_service_and_own_requests() {
        let base = ReplicaLoad { in_flight: 4, service: ms(1), ..ReplicaLoad::default() };
        let cost = statistics(10, base).cost(at(20));
        assert!(statistics(11, base).cost(at(20)) > cost);
        assert!(statistics(10, ReplicaLoad { in_flight: 5, ..base }).cost(at(20)) > cost);
        assert!(statistics(10, ReplicaLoad { service: ms(2), ..base }).cost(at(20)) > cost);
        let mut sending = statistics(10, base);
        sending.note_sent(at(20));
        assert!(sending.cost(at(20)) > cost);
        let mut once_slow = statistics(10, base);
        once_slow.note_sent(at(20));
        once_slow.note_reply(ms(1_000), Some(base), at(20));
        let after = once_slow.cost(at(20));
        assert!(after > cost && after < 10.0 * cost, "one reply is one of many: {after} after {cost}");
    }

    #[test]
    fn r16_a_queue_of_the_past_is_not_believed() {
        let busy = statistics(1, ReplicaLoad { in_flight: 1_000, service: ms(1), ..ReplicaLoad::default() });
        let idle = statistics(1, ReplicaLoad { in_flight: 0, service: ms(1), ..ReplicaLoad::default() });
        assert!(busy.cost(at(20)) > 100.0 * idle.cost(at(20)));
        assert!(busy.cost(at(520)) < busy.cost(at(20)) / 5.0);
        // After a gap the first reply is believed at once, not averaged with what was before the gap.
        let mut busy = busy;
        busy.note_sent(at(1_020));
        busy.note_reply(ms(1), Some(ReplicaLoad { in_flight: 0, service: ms(1), ..ReplicaLoad::default() }), at(1_020));
        assert!(busy.cost(at(1_020)) < 3.0 * idle.cost(at(1_020)), "{}", busy.cost(at(1_020)));
    }

    #[test]
    fn silence_counts_as_latency_while_requests_wait() {
        let mut stalled = statistics(1, ReplicaLoad { in_flight: 1, service: ms(1), ..ReplicaLoad::default() });
        assert!(stalled.cost(at(2_000)) < 5e6, "nobody waits");
        stalled.note_sent(at(2_000));
        assert!(stalled.cost(at(2_100)) > 100e6);
        stalled.note_abandoned(ms(100), at(2_100));
        assert!(stalled.cost(at(2_100)) > 20e6, "whoever gave up has learned something");
    }

    /// Pitfall H9: a client that hedges gives up early, and so would never see more than its own patience.
    #[test]
    fn h09_a_node_that_loses_again_and_again_costs_more_each_time() {
        let load = ReplicaLoad { in_flight: 1, service: ms(1), ..ReplicaLoad::default() };
        let give_up = |statistics: &mut Statistics, time| {
            statistics.note_sent(at(time));
            statistics.note_abandoned(ms(10), at(time + 10));
        };
        let mut silent = statistics(4, load);
        give_up(&mut silent, 20);
        let once = silent.cost(at(30));
        (1..20).for_each(|index| give_up(&mut silent, 20 + index * 10));
        let often = silent.cost(at(220));
        assert!(often > 4.0 * once && often < 100e6, "{once} {often}");
        // One that answers in between is as slow as it was waited for.
        let mut slow = statistics(4, load);
        for index in 0..20 {
            give_up(&mut slow, 20 + index * 10);
            slow.note_sent(at(30 + index * 10));
            slow.note_reply(ms(4), Some(load), at(30 + index * 10));
        }
        let answering = slow.cost(at(220));
        assert!(answering < 13e6 && answering < often / 2.0, "{answering} {often}");
    }

    #[test]
    fn what_is_expected_of_a_node_is_its_queue_and_the_way() {
        let mut busy = statistics(10, ReplicaLoad { in_flight: 4, service: ms(2), ..ReplicaLoad::default() });
        let Expected { queue, network } = busy.expected(at(19)).expect("it is known");
        // What is known of a queue ages, so that a bit less than four requests of 2 ms are expected.
        assert!((ms(7)..ms(8)).contains(&queue) && network.as_millis() == 8, "{queue:?} {network:?}");
        busy.note_sent(at(19));
        assert_eq!(busy.expected(at(19)).expect("it is known").queue - queue, ms(2));
        assert_eq!(statistics(10, ReplicaLoad { in_flight: 4, ..ReplicaLoad::default() }).expected(at(19)), None);
        assert_eq!(Statistics::default().expected(at(19)), None);
    }

    #[test]
    fn r17_no_request_stays_counted() {
        let mut statistics = Statistics::default();
        for _ in 0..3 {
            statistics.note_sent(at(0));
        }
        statistics.note_reply(ms(1), None, at(1));
        statistics.note_over(at(1));
        statistics.note_abandoned(ms(1), at(1));
        assert_eq!(statistics.in_flight, 0);
    }
}
