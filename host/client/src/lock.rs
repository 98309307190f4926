//! How this crate locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a holder has panicked: the panic of one task must not fail all others of its client.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
