//! Whether a server that requests wait for says nothing any more, so that new requests better begin elsewhere.
//!
//! Hedging finds the silence of a server anew with every request, and pays a token each time. What is remembered here needs
//! none: after one delay of silence first attempts go elsewhere, but for a probe now and then.

use crate::time::Time;
use core::time::Duration;

/// A silent server gets one first attempt in so many delays, and all of them again when it has answered one.
const DELAYS_BETWEEN_PROBES: u32 = 10;

/// What is known of one server. Requests that were given up count as ones that it has not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    unheard: Option<Unheard>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unheard {
    /// When the first attempt was sent since it was last heard.
    since: Time,
    /// When the last one was.
    sent_at: Time,
}

impl Silence {
    /// An attempt is sent to it.
    pub fn note_sent(&mut self, now: Time) {
        let since = self.unheard.map_or(now, |unheard| unheard.since);
        self.unheard = Some(Unheard { since, sent_at: now });
    }

    /// Something has come from it.
    pub fn note_heard(&mut self) {
        self.unheard = None;
    }

    /// For how long it has said nothing, although it was to.
    pub fn lasts(&self, now: Time) -> Duration {
        self.unheard.map_or(Duration::ZERO, |unheard| now.since(unheard.since))
    }

    /// Whether a first attempt had better go elsewhere, where requests are hedged after `delay`.
    pub fn is_silent(&self, now: Time, delay: Duration) -> bool {
        self.unheard.is_some_and(|Unheard { since, sent_at }| {
            now.since(since) > delay && now.since(sent_at) < delay.saturating_mul(DELAYS_BETWEEN_PROBES)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn h24_a_server_is_silent_from_a_delay_on_until_it_is_heard_but_for_probes() {
        let delay = Duration::from_millis(10);
        let mut silence = Silence::default();
        assert!(!silence.is_silent(ms(1_000), delay), "nothing was sent");
        silence.note_sent(ms(1_000));
        assert!(!silence.is_silent(ms(1_010), delay), "it has the delay to answer");
        assert_eq!((silence.lasts(ms(1_010)), Silence::default().lasts(ms(1_010))), (delay, Duration::ZERO));
        assert!(silence.is_silent(ms(1_011), delay) && silence.is_silent(ms(1_099), delay));
        assert!(!silence.is_silent(ms(1_100), delay), "a probe");
        silence.note_sent(ms(1_100));
        assert!(silence.is_silent(ms(1_101), delay) && silence.is_silent(ms(1_199), delay), "one");
        silence.note_heard();
        assert!(!silence.is_silent(ms(1_199), delay));
        silence.note_sent(ms(1_300));
        assert!(!silence.is_silent(ms(1_310), delay) && silence.is_silent(ms(1_311), delay));
    }
}
