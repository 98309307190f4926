//! Whether a node is silent: requests have waited for it for as long as a hedge would, and nothing at all has come.
//!
//! First attempts that another replica may serve go there instead. No request has more attempts by that, so that it costs no token.
//! One goes to the silent node all the same after each delay in which nothing did, so that it is found again.
//!
//! ```text
//!   sent ──> waits ──── heard ──> all that was waited for is forgotten
//!              └─ idle (what waited was taken back) ──> the wait is kept until something is heard
//! ```
//!
//! Invariants: without a request that waits, or did, nobody is silent; one word makes a node heard again, over whichever connection it
//! comes; time for which the client was held up itself does not count, and after that it has the time to read which hedges are put off by.

use crate::race::PUT_OFF_MAX;
use crate::time::Time;
use core::time::Duration;

/// What has come over one connection, and for how long it was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    /// Since when something waits without a word.
    waits_since: Option<Time>,
    /// How long such waits took that have ended, since the last word.
    waited: Duration,
    /// How long the client had been held up when the first of them began.
    held_up: Duration,
    asked_at: Option<Time>,
    heard_at: Option<Time>,
}

impl Silence {
    /// A first attempt leaves at `now`. `held_up` is how long the client has been held up in all.
    pub fn handle_sent(&mut self, now: Time, held_up: Duration) {
        self.asked_at = Some(now);
        self.handle_extra_sent(now, held_up);
    }

    /// The same of an attempt beside others. It is no look whether the node answers: it may be taken back before it could.
    pub fn handle_extra_sent(&mut self, now: Time, held_up: Duration) {
        if self.waits_since.is_none() {
            self.waits_since = Some(now);
            if self.waited.is_zero() {
                self.held_up = held_up;
            }
        }
    }

    /// Something has come at `now`, whatever it is.
    pub fn handle_heard(&mut self, now: Time) {
        *self = Self { asked_at: self.asked_at, heard_at: Some(now), ..Self::default() };
    }

    /// Nobody waits for anything any more at `now`: the last request was taken back.
    pub fn handle_idle(&mut self, now: Time) {
        if let Some(since) = self.waits_since.take() {
            self.waited = self.waited.saturating_add(now.since(since));
        }
    }

    /// Since when something waits without a word; `None` if nothing waits, or since something came.
    pub fn waits_since(&self) -> Option<Time> {
        self.waits_since
    }

    /// Whether anything has ever come.
    pub fn has_been_heard(&self) -> bool {
        self.heard_at.is_some()
    }

    /// Whether a first attempt that is sent at `now`, and would be hedged after `delay`, is better sent to another node than the one at
    /// the other end of these `connections`. `held_up` is how long the client has been held up in all.
    pub fn is_spared(connections: impl Iterator<Item = Self>, delay: Duration, held_up: Duration, now: Time) -> bool {
        let (mut is_silent, mut heard_at, mut asked_at) = (false, None, None);
        for connection in connections {
            is_silent |= connection.is_silent(delay, held_up, now);
            heard_at = heard_at.max(connection.heard_at);
            asked_at = asked_at.max(connection.asked_at);
        }
        let is_long_ago = |at: Option<Time>| at.is_none_or(|at| now.since(at) >= delay);
        is_silent && is_long_ago(heard_at) && !is_long_ago(asked_at)
    }

    /// Whether the client has waited for a whole `delay` without a word, and could have read one.
    fn is_silent(&self, delay: Duration, held_up: Duration, now: Time) -> bool {
        let waits = self.waits_since.map(|since| now.since(since)).unwrap_or_default();
        let held_up = held_up.saturating_sub(self.held_up);
        let to_read = if held_up.is_zero() { Duration::ZERO } else { (delay / 2).min(PUT_OFF_MAX) };
        self.waited.saturating_add(waits) >= delay.saturating_add(held_up).saturating_add(to_read)
    }
}
