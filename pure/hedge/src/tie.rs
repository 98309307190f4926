//! Tied requests: when a request is worth sending twice at once, and which of the two copies runs.
//!
//! Both copies name each other. The server that begins first tells the other one, which drops its copy if it has not begun:
//!
//! ```text
//!   client ──copy 1──> server 1   queued ── begins ──> replies
//!          ──copy 2──> server 2   queued      └─ Began ─> drops its copy, tells the client (a note, not an end)
//! ```
//!
//! A copy that has begun is never dropped, and a copy is dropped only because the other has begun. So the two cannot drop
//! each other; if both begin while the messages cross, both run and the client uses one reply; if a message is lost, both run;
//! if the server that began dies, the client's timer sends another attempt.

use core::time::Duration;

/// When to tie. The default is what The Tail at Scale (Dean and Barroso, 2013) describes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TieRule {
    /// Tie if the expected wait in the first replica's queue is more than this many times the network delay. Default 2.
    pub wait_factor: f64,
    /// Tie only if it is more than this, too: what a second copy is worth at the least. Default 0.
    pub wait_min: Duration,
    /// The second copy follows after this many times the network delay, so that the message of an idle server that began
    /// at once arrives first. Default 2.
    pub stagger_factor: f64,
    /// The stagger is not shorter than this. Default 100 us.
    pub stagger_min: Duration,
    /// The stagger is not longer than this, and no tie is made if it would have to be. Default 10 ms.
    pub stagger_max: Duration,
}

impl Default for TieRule {
    fn default() -> Self {
        Self {
            wait_factor: 2.0,
            wait_min: Duration::ZERO,
            stagger_factor: 2.0,
            stagger_min: Duration::from_micros(100),
            stagger_max: Duration::from_millis(10),
        }
    }
}

impl TieRule {
    /// After how long the second copy is sent, if it is worth tying at all: for [`crate::Plan::tie`]. `queue_wait` is what
    /// the first replica is expected to let a request wait, `network_delay` what a message takes one way. Without a queue
    /// a tie costs messages and brings nothing.
    pub fn stagger(&self, queue_wait: Duration, network_delay: Duration) -> Option<Duration> {
        let network = network_delay.as_nanos() as f64;
        let stagger = network * self.stagger_factor;
        let is_near = stagger <= self.stagger_max.as_nanos() as f64;
        let stagger = Duration::from_nanos(stagger as u64).max(self.stagger_min);
        // A copy that is sent when the first one is expected to have begun would only be told to go.
        let is_long = queue_wait.as_nanos() as f64 > network * self.wait_factor && queue_wait > self.wait_min;
        let is_worth_it = is_long && queue_wait > stagger;
        (is_near && is_worth_it).then_some(stagger)
    }
}

/// A tied copy at its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TiedCopy {
    /// It has not arrived.
    #[default]
    Absent,
    /// It waits.
    Queued,
    /// It runs or has run. This is final.
    Begun,
    /// It was dropped unrun. This is final.
    Dropped,
    /// It has not arrived, and the other has begun.
    Outrun,
}

/// What a server does about a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TieStep {
    /// Nothing.
    Nothing,
    /// Put it into the queue.
    Queue,
    /// Run it, and tell the server of the other copy.
    RunAndTell,
    /// Take it out of the queue (if it is there), and tell the client in a note that does not end the race.
    Withdraw,
    /// Take it out of the queue, and tell nobody: the client no longer wants it.
    Forget,
}

impl TiedCopy {
    /// The copy arrives. A copy that comes twice (the same attempt) is not queued twice.
    pub fn handle_arrival(&mut self) -> TieStep {
        match self {
            Self::Absent => self.become_and(Self::Queued, TieStep::Queue),
            Self::Outrun => self.become_and(Self::Dropped, TieStep::Withdraw),
            Self::Queued | Self::Begun | Self::Dropped => TieStep::Nothing,
        }
    }

    /// Its turn has come.
    pub fn handle_turn(&mut self) -> TieStep {
        match self {
            Self::Queued => self.become_and(Self::Begun, TieStep::RunAndTell),
            Self::Absent | Self::Outrun | Self::Begun | Self::Dropped => TieStep::Nothing,
        }
    }

    /// The other server says that its copy has begun.
    pub fn handle_other_began(&mut self) -> TieStep {
        match self {
            Self::Absent => self.become_and(Self::Outrun, TieStep::Nothing),
            Self::Queued => self.become_and(Self::Dropped, TieStep::Withdraw),
            Self::Outrun | Self::Begun | Self::Dropped => TieStep::Nothing,
        }
    }

    /// The client cancels it. What has begun runs on, and its reply finds nobody.
    pub fn handle_cancel(&mut self) -> TieStep {
        match self {
            Self::Absent | Self::Outrun => self.become_and(Self::Dropped, TieStep::Nothing),
            Self::Queued => self.become_and(Self::Dropped, TieStep::Forget),
            Self::Begun | Self::Dropped => TieStep::Nothing,
        }
    }

    fn become_and(&mut self, state: Self, step: TieStep) -> TieStep {
        *self = state;
        step
    }
}
