//! What time it is: the wall time that everything in the node goes by is a majority's (`hedgerow_placement::Clock`).
//!
//! Pulses (`slow.rs`) carry what their sender's wall clock shows. Together with their echo, which bounds how long they were
//! on their way, that says how far the clocks of two nodes are apart. See `docs/decisions/012-the-logs-time.md`.

use crate::node::Node;
use crate::peer::Pulse;
use crate::replica::Hosted;
use hedgerow_env::Now;
use hedgerow_placement::{ClockRow, ClockWord};
use hedgerow_storage::Partition;
use hedgerow_types::time::expiry_seconds;
use hedgerow_types::{GroupId, Instant, NodeId, Refusal};
use std::time::Duration;

impl Node {
    /// The time that counts, for an event that came when this node's own clocks showed `now`. Wall time 0 = not known.
    pub(crate) fn agreed(&self, now: Now) -> Now {
        let agreed = Now { unix_micros: self.clock.unix_micros(now.instant).unwrap_or(0), ..now };
        #[cfg(feature = "mutations")]
        let agreed = crate::mutation::agreed(agreed, now);
        agreed
    }

    /// By what time a read or a write of a group judges which rows have expired, in expiry-epoch seconds: the time, or what it had
    /// come to, here and in the log, before it was forgotten. What was shown as expired must not come back, and be written to.
    pub(crate) fn expiry_time(&self, group: GroupId, now: Now) -> u32 {
        match now.unix_micros {
            0 => expiry_seconds(self.clock.at_least(now.instant)).max(self.log_time(group)),
            known => expiry_seconds(known),
        }
    }

    /// Whether this node has just started, or was away, and does not know yet what time it is. Rows that have expired meanwhile,
    /// which others no longer show, would be alive here.
    pub(crate) fn awaits_time(&self, now: Now) -> bool {
        now.unix_micros == 0 && self.clock.is_awaited(now.instant)
    }

    fn log_time(&self, group: GroupId) -> u32 {
        match self.hosted.get(&group) {
            Some(Hosted::Running(replica)) => replica.storage.as_ref().map_or(0, Partition::log_time),
            Some(Hosted::Starting { .. } | Hosted::Lost { .. }) | None => 0,
        }
    }

    /// Judges the clocks anew.
    pub(crate) fn judge_clock(&mut self, now: Now) -> Now {
        let had_jumped = self.clock.has_jumped();
        for (node, is_off, ahead_micros) in self.clock.judge(now.unix_micros, now.instant) {
            let (node, ahead_seconds) = (node.0, ahead_micros as f64 / 1e6);
            if is_off {
                tracing::warn!(node, ahead_seconds, "the clock of a node is off and does not count");
            } else {
                tracing::info!(node, ahead_seconds, "the clock of a node is right again");
            }
        }
        if self.clock.has_jumped() && !had_jumped {
            tracing::warn!("a majority of the clocks has jumped; it will be followed if it stays there for minutes");
        }
        self.agreed(now)
    }

    /// A pulse came that answers one of this node's.
    pub(crate) fn note_clock(&mut self, from: NodeId, pulse: &Pulse, now: Instant) {
        if pulse.echo == 0 || pulse.echo > now.0 || pulse.unix_micros == 0 {
            return;
        }
        let trip = now.since(Instant(pulse.echo)).saturating_sub(Duration::from_nanos(pulse.held));
        let error = trip / 2;
        let unix_micros = pulse.unix_micros.saturating_add(u64::try_from(error.as_micros()).unwrap_or(u64::MAX));
        self.clock.handle_row(from, ClockRow { unix_micros, error }, now);
    }

    /// From when a time to live counts that begins now, in expiry-epoch seconds. While no time is known it is the later one of
    /// this node's clock and the log's time: a row may live longer then, and never shorter.
    pub(crate) fn life_begins(&self, group: GroupId, now: Now) -> u32 {
        if now.unix_micros != 0 {
            return expiry_seconds(now.unix_micros);
        }
        self.log_time(group).max(expiry_seconds(self.clock.own_unix_micros(now.instant)))
    }

    /// What is known of the time here, for the status.
    pub(crate) const fn clock_word(&self) -> &'static str {
        match self.clock.word() {
            ClockWord::Agreed => "agreed",
            ClockWord::Held => "held",
            ClockWord::Unknown => "unknown",
        }
    }
}

/// For whoever asks what has expired while [`Node::awaits_time`].
pub(crate) fn no_time() -> Refusal {
    Refusal::NotReady("the node does not know yet what time it is".into())
}
