//! How far a task is that goes on beside the clients until it is told to put everything away: it and the run each hold a copy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a run knows of such a task.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    is_done: bool,
    waits_for: String,
    failure: Option<String>,
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the task to put everything away, once it is through with what it does.
    pub fn stop(&self) {
        self.state().is_stopped = true;
    }

    /// Whether it was told so.
    pub fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    /// What the task waits for before it can be through.
    pub fn wait_for(&self, what: String) {
        self.state().waits_for = what;
    }

    /// The same, for the one who waits for the task.
    pub fn waits_for(&self) -> String {
        self.state().waits_for.clone()
    }

    /// The task is through.
    pub fn end(&self, ended: Result<(), String>) {
        let mut state = self.state();
        (state.is_done, state.failure) = (true, ended.err());
    }

    /// Whether everything is put away.
    pub fn is_done(&self) -> bool {
        self.state().is_done
    }

    /// What the task was told that cannot be.
    pub fn failure(&self) -> Option<String> {
        self.state().failure.clone()
    }
}
