//! The settings of a group and the times that follow from them, with the arithmetic that makes the lease safe.

use core::time::Duration;

/// Bytes of proposals that may wait for their commit; above it a leader answers `Busy`.
pub(crate) const UNCOMMITTED_SIZE_MAX: usize = 32 << 20;
/// Bytes of entries that a replica takes while its storage takes none; above it a leader answers `Busy`, and a follower
/// drops what its leader sends, as a lossy link would.
pub(crate) const HELD_SIZE_MAX: usize = 32 << 20;
/// Reads that may wait in one group; above it a read is refused.
pub(crate) const READS_WAITING_MAX: usize = 65_536;
/// Questions of other replicas that may wait in one group; above it they are answered as if this replica did not lead.
pub(crate) const QUESTIONS_WAITING_MAX: usize = 1_024;
/// Committed entries that a replica may be behind and still let reads wait; above it they are sent away at once.
pub(crate) const LAG_MAX: u64 = 10_000;
/// A leader that was not heard for this many of its heartbeats looks unreachable.
const HEARTBEATS_MISSED_MAX: u32 = 2;
/// Terms and indices from outside stay below this, so that adding to one cannot overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
/// The largest clock rate error that a setting may claim.
const CLOCK_RATE_ERROR_PPM_MAX: u32 = 100_000;

/// Times and limits of one group. All replicas of a group must have the same times: the lease of a leader trusts the
/// election timeout of its followers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The unit of the periods below; the host calls [`crate::Group::handle_tick`] about this often. Default 50 ms.
    pub tick: Duration,
    /// Ticks without a word of the leader after which a follower may campaign, and for which it refuses to vote for
    /// anyone else. Default 8: 400 ms.
    pub election_ticks: u32,
    /// Ticks between two heartbeats of a leader. Default 2: three in a row have to be lost before anybody campaigns.
    pub heartbeat_ticks: u32,
    /// How far the rate of a machine's clock may be from the true one, in parts per million: rho of the lease rule.
    /// Default 5,000 (0.5 %), at most 100,000.
    pub clock_rate_error_ppm: u32,
    /// Bytes of entries in one append message; one entry may be larger. Default 1 MiB.
    pub message_size_max: u64,
    /// Append messages on their way to one follower. Default 256.
    pub inflight_max: usize,
    /// Bytes of entries kept in memory for followers that lag; a follower keeps a sixteenth of it. Entries that are not
    /// yet applied or not yet persisted are kept whatever their size. Default 4 MiB.
    pub cache_size_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(50),
            election_ticks: 8,
            heartbeat_ticks: 2,
            clock_rate_error_ppm: 5_000,
            message_size_max: 1 << 20,
            inflight_max: 256,
            cache_size_max: 4 << 20,
        }
    }
}

impl Settings {
    /// Says what is wrong, if anything is.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.tick.is_zero() {
            return Err("tick must not be zero");
        }
        if self.heartbeat_ticks == 0 || self.election_ticks <= self.heartbeat_ticks {
            return Err("election_ticks must be larger than heartbeat_ticks, and that larger than zero");
        }
        if self.clock_rate_error_ppm > CLOCK_RATE_ERROR_PPM_MAX {
            return Err("clock_rate_error_ppm must be at most 100000");
        }
        if self.inflight_max == 0 || self.message_size_max == 0 {
            return Err("inflight_max and message_size_max must not be zero");
        }
        Ok(())
    }

    /// Bytes of committed entries that are handed out at a time; one entry may be larger.
    pub(crate) fn committed_size_max(&self) -> u64 {
        self.message_size_max.saturating_mul(4)
    }

    /// For how long a leader may say nothing before it looks unreachable.
    pub(crate) fn missed_after(&self) -> Duration {
        self.tick * self.heartbeat_ticks * HEARTBEATS_MISSED_MAX
    }

    /// V: for how long a voter refuses to vote, on its own clock, after it heard its leader.
    pub fn refusal(&self) -> Duration {
        self.tick * self.election_ticks
    }

    /// D: for how long a leader holds its lease, on its own clock, after it sent what a majority has acknowledged.
    ///
    /// A voter heard the leader after the leader sent, and its clock runs at most at the rate 1 + rho, so in true time it
    /// refuses for at least V / (1 + rho). The leader's clock runs at least at 1 - rho, so D on it is at most D / (1 - rho)
    /// of true time. The lease ends first if D / (1 - rho) < V / (1 + rho), that is D < V (1 - rho) / (1 + rho). A tenth
    /// is kept back for what the model leaves out.
    pub fn lease(&self) -> Duration {
        let million = 1_000_000_u128;
        let rho = u128::from(self.clock_rate_error_ppm);
        let nanos = self.refusal().as_nanos() * (million - rho) / (million + rho) * 9 / 10;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_ends_before_the_refusal_at_the_worst_clock_rates() {
        for ppm in [0, 5_000, 100_000] {
            let settings = Settings { clock_rate_error_ppm: ppm, ..Settings::default() };
            let rho = f64::from(ppm) / 1e6;
            assert!(settings.lease().as_secs_f64() / (1.0 - rho) < settings.refusal().as_secs_f64() / (1.0 + rho));
        }
    }

    #[test]
    fn bad_settings_are_refused() {
        assert_eq!(Settings::default().check(), Ok(()));
        for bad in [
            Settings { tick: Duration::ZERO, ..Settings::default() },
            Settings { heartbeat_ticks: 0, ..Settings::default() },
            Settings { election_ticks: 2, ..Settings::default() },
            Settings { clock_rate_error_ppm: 100_001, ..Settings::default() },
            Settings { inflight_max: 0, ..Settings::default() },
        ] {
            assert!(bad.check().is_err());
        }
    }
}
