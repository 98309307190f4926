//! What time it is: the wall time that everything in the node goes by is a majority's (`hedgerow_placement::Clock`).
//!
//! Pulses (`slow.rs`) carry what their sender's wall clock shows. Together with their echo, which bounds how long they were
//! on their way, that says how far the clocks of two nodes are apart. See `docs/decisions/012-the-logs-time.md`.

use crate::node::Node;
use crate::peer::Pulse;
use hedgerow_env::Now;
use hedgerow_placement::{ClockRow, ClockWord};
use hedgerow_types::{Instant, NodeId, Refusal};
use std::time::Duration;

impl Node {
    /// Judges the clocks anew.
    pub(crate) fn judge_clock(&mut self, now: Now) -> Now {
        let had_jumped = self.view.clock.has_jumped();
        for (node, is_off, ahead_micros) in self.change_view(|view| view.clock.judge(now.unix_micros, now.instant)) {
            let (node, ahead_seconds) = (node.0, ahead_micros as f64 / 1e6);
            if is_off {
                tracing::warn!(node, ahead_seconds, "the clock of a node is off and does not count");
            } else {
                tracing::info!(node, ahead_seconds, "the clock of a node is right again");
            }
        }
        if self.view.clock.has_jumped() && !had_jumped {
            tracing::warn!("a majority of the clocks has jumped; it will be followed if it stays there for minutes");
        }
        self.view.agreed(now)
    }

    /// A pulse came that answers one of this node's.
    pub(crate) fn note_clock(&mut self, from: NodeId, pulse: &Pulse, now: Instant) {
        if pulse.echo == 0 || pulse.echo > now.0 || pulse.unix_micros == 0 {
            return;
        }
        let trip = now.since(Instant(pulse.echo)).saturating_sub(Duration::from_nanos(pulse.held));
        let error = trip / 2;
        let unix_micros = pulse.unix_micros.saturating_add(u64::try_from(error.as_micros()).unwrap_or(u64::MAX));
        self.change_view(|view| view.clock.handle_row(from, ClockRow { unix_micros, error }, now));
    }

    /// What is known of the time here, for the status.
    pub(crate) fn clock_word(&self) -> &'static str {
        match self.view.clock.word() {
            ClockWord::Agreed => "agreed",
            ClockWord::Held => "held",
            ClockWord::Unknown => "unknown",
        }
    }
}

/// For whoever asks what has expired while [`View::awaits_time`].
pub(crate) fn no_time() -> Refusal {
    Refusal::NotReady("the node does not know yet what time it is".into())
}
