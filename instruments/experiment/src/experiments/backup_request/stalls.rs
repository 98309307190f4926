//! The fault plans, fitted to how long a run takes.

use super::cases::{NODE_COUNT, Stalls};
use anyhow::Result;
use hedgerow_faults::Plan;
use std::time::Duration;

/// The share of reads that meet a rare stall: what p99.99 shows, and p99.9 does not.
pub(super) const MET_SHARE: f64 = 0.000_7;
/// How far the length of a stall is from the middle one, at most.
const SPREAD: f64 = 0.25;

/// How long a rare stall is in the middle, in a run of `duration` that has one.
pub(super) fn rare_stall(duration: Duration) -> Duration {
    duration.mul_f64(MET_SHARE * NODE_COUNT as f64)
}

/// The text of one `[[fault]]` for runs of `duration` after `warm_up`.
pub(super) fn fault(stalls: Stalls, duration: Duration, warm_up: Duration) -> String {
    match stalls {
        Stalls::Rare => {
            let middle = rare_stall(duration);
            let [least, most] = [1.0 - SPREAD, 1.0 + SPREAD].map(|part| middle.mul_f64(part).as_micros());
            // One occurrence per run: the first falls anywhere within the first gap.
            let (begin, every) = (warm_up.as_millis(), duration.as_millis());
            format!(
                "[[fault]]\nkind = \"stall\"\nnodes = \"any\"\nbegin = \"{begin}ms\"\nevery = \"{every}ms\"\n\
                 lasts = \"{least}us..{most}us\"\n"
            )
        }
        Stalls::Often => {
            "[[fault]]\nkind = \"stall\"\nnodes = \"every\"\nevery = \"2s..8s\"\nlasts = \"20ms..200ms\"\n".to_owned()
        }
    }
}

/// What every plan begins with.
pub(super) fn head(seed: u64) -> String {
    format!("name = \"backup-request\"\nseed = {seed}\n\n")
}

/// The plan of a turn whose seed is `seed`.
pub(super) fn plan(stalls: Stalls, duration: Duration, warm_up: Duration, seed: u64) -> Result<Plan> {
    Ok(Plan::parse(&format!("{}{}", head(seed), fault(stalls, duration, warm_up)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM_UP: Duration = Duration::from_secs(1);

    #[test]
    fn every_run_has_one_rare_stall_of_the_share_that_is_meant() {
        let duration = Duration::from_secs(60);
        let mut lasted = Duration::ZERO;
        for seed in 0..100 {
            let events = plan(Stalls::Rare, duration, WARM_UP, seed).unwrap().schedule(3, duration + WARM_UP);
            assert_eq!(events.len(), 1, "{events:?}");
            assert!(events[0].at >= WARM_UP && events[0].end() <= duration + WARM_UP);
            lasted += events[0].lasts;
        }
        let share = lasted.as_secs_f64() / (100.0 * 3.0 * duration.as_secs_f64());
        assert!((0.000_6..0.000_8).contains(&share), "{share}");
        assert_eq!(rare_stall(duration), Duration::from_millis(126));
    }

    #[test]
    fn variants_of_a_repetition_meet_the_same_stalls() {
        let schedule = |seed| {
            let plan = plan(Stalls::Often, Duration::from_secs(20), WARM_UP, seed).unwrap();
            plan.schedule(3, Duration::from_secs(21))
        };
        assert_eq!(schedule(2), schedule(2));
        assert_ne!(schedule(2), schedule(3));
        assert!(schedule(2).len() >= 6);
    }
}
