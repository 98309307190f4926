//! Safety rules that can be taken away, to see that the simulation notices.
//!
//! The switches hold for the whole process, so one mutation is tried at a time.

use hedgerow_replication::Mutations;
use std::sync::atomic::{AtomicBool, Ordering};

static SKIP_RESTART_FENCE: AtomicBool = AtomicBool::new(false);
static SKIP_APPLY_WAIT: AtomicBool = AtomicBool::new(false);

/// A rule to take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A restarted voter votes at once.
    RestartFence,
    /// A leader's read does not wait until what is committed is applied.
    ApplyWait,
    /// Log writes are acknowledged before they are durable.
    Fsync,
    /// A repeated write is applied again.
    Sessions,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RestartFence, Self::ApplyWait, Self::Fsync, Self::Sessions];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RestartFence => "restart-fence",
            Self::ApplyWait => "apply-wait",
            Self::Fsync => "fsync",
            Self::Sessions => "sessions",
        }
    }

    /// The mutation with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutation| mutation.name() == name)
    }

    /// Takes the rule away, or gives it back.
    pub fn set(self, is_away: bool) {
        let switch = match self {
            Self::RestartFence => &SKIP_RESTART_FENCE,
            Self::ApplyWait => &SKIP_APPLY_WAIT,
            Self::Fsync => &hedgerow_wal::mutation::SKIP_SYNC,
            Self::Sessions => &hedgerow_storage::mutations::FORGET_SESSIONS,
        };
        switch.store(is_away, Ordering::SeqCst);
    }
}

/// What groups are to be started with.
pub(crate) fn of_groups() -> Mutations {
    Mutations {
        skip_restart_fence: SKIP_RESTART_FENCE.load(Ordering::SeqCst),
        skip_apply_wait: SKIP_APPLY_WAIT.load(Ordering::SeqCst),
        ..Mutations::default()
    }
}
