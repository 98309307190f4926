//! How fast checkpoints travel: what they may take of the network, and how fast each one is.

use crate::config::SNAPSHOT_CHUNK_SIZE;
use std::time::Duration;

/// How often the rate of a transfer is taken.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// How far a checkpoint on its way is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Bytes that the receiver has written.
    pub(crate) done: u64,
    /// Bytes of the checkpoint.
    pub(crate) total: u64,
    /// Bytes per second of late.
    pub(crate) rate: u64,
    /// `done` when the rate was taken last, and the time since.
    measured: (u64, Duration),
}

impl Progress {
    /// Nothing of `total` bytes yet.
    pub(crate) fn new(total: u64) -> Self {
        Self { total, ..Self::default() }
    }

    pub(crate) fn tick(&mut self, elapsed: Duration) {
        self.measured.1 += elapsed;
        let (before, since) = self.measured;
        if since >= RATE_INTERVAL {
            let fresh = (u128::from(self.done.saturating_sub(before)) * 1_000 / since.as_millis().max(1)) as u64;
            self.rate = if self.rate == 0 { fresh } else { (self.rate * 3 + fresh) / 4 };
            self.measured = (self.done, Duration::ZERO);
        }
    }
}

/// Bytes that checkpoints may still take of the network.
#[derive(Debug)]
pub(crate) struct Limiter {
    bytes_per_second: u64,
    tokens: u64,
    /// Who takes first changes with every tick.
    pub(crate) turn: usize,
}

impl Limiter {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, tokens: SNAPSHOT_CHUNK_SIZE, turn: 0 }
    }

    pub(crate) fn refill(&mut self, elapsed: Duration) {
        let fresh = (u128::from(self.bytes_per_second) * elapsed.as_nanos() / 1_000_000_000) as u64;
        self.tokens = (self.tokens + fresh).min(self.bytes_per_second.max(SNAPSHOT_CHUNK_SIZE));
    }

    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let has_enough = self.tokens >= bytes;
        if has_enough {
            self.tokens -= bytes;
        }
        has_enough
    }
}
