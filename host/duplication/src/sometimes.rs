//! What is logged again and again as long as it goes on, and not each time.

use hedgerow_client::duplication::{Instant, present};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(30);

/// When a line was logged last.
#[derive(Default)]
pub(crate) struct Sometimes(Option<Instant>);

impl Sometimes {
    /// Whether it is logged now.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|at| present() - at >= INTERVAL);
        if is_due {
            self.0 = Some(present());
        }
        is_due
    }
}
