//! What an error of RocksDB means: damage of what is stored, or the machine's fault.
//!
//! RocksDB's statuses say how an error is to be handled inside of it, which is another question: a missing table file is
//! an I/O error there, and a file that may not be looked at can be a corruption. The operating system's reason stands in
//! the text, in the words of `strerror`, and decides.

use crate::engine::{Cause, EngineError};
use hedgerow_env::Disk;
use rocksdb::ErrorKind;
use std::io;
use std::path::Path;

/// Linux numbers its errors up to this.
const OS_ERROR_MAX: i32 = 133;

/// A failure with the operating system's reason as its source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct OsFailure {
    message: String,
    #[source]
    reason: io::Error,
}

/// Damage is [`EngineError::Damaged`] whatever was being done with the database in `dir`; other errors belong to what was.
pub(super) fn classify(
    error: rocksdb::Error,
    disk: &dyn Disk,
    dir: &Path,
    other: impl FnOnce(Cause) -> EngineError,
) -> EngineError {
    let is_corruption = error.kind() == ErrorKind::Corruption;
    let message = error.into_string();
    match os_reason(&message) {
        // A directory that is gone whole was unmounted or removed; its files say nothing then.
        Some((_, reason)) if reason.kind() == io::ErrorKind::NotFound && disk.is_dir(dir) => {
            EngineError::damaged(message)
        }
        Some((text, reason)) => {
            let message = message.strip_suffix(&text).unwrap_or(&message).to_owned();
            other(Box::new(OsFailure { message, reason }))
        }
        None if is_corruption => EngineError::damaged(message),
        None => other(message.into()),
    }
}

/// `error` once more, for somebody else who meets it: as damage if it is that, otherwise as a failure to read for the same
/// reason.
pub(super) fn again(error: &EngineError) -> EngineError {
    let message = error.to_string();
    if error.is_damage() {
        return EngineError::damaged(message);
    }
    let source: Cause = match error.os_reason().and_then(io::Error::raw_os_error) {
        Some(code) => Box::new(OsFailure { message, reason: io::Error::from_raw_os_error(code) }),
        None => message.into(),
    };
    EngineError::Read { source }
}

/// What the operating system said, if it did, with the words for it as they stand in `message`. Where it said several
/// things, a missing file counts least: only as long as nothing else is wrong is it really missing.
fn os_reason(message: &str) -> Option<(String, io::Error)> {
    let found = (1..=OS_ERROR_MAX).filter_map(|code| {
        let reason = io::Error::from_raw_os_error(code);
        let text = reason.to_string();
        let text = format!(": {}", text.strip_suffix(&format!(" (os error {code})"))?);
        let is_whole = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == ' ');
        message.split(&text).skip(1).any(is_whole).then_some((text, reason))
    });
    found.min_by_key(|(_, reason)| reason.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(message: &str) -> Option<i32> {
        os_reason(message).and_then(|(_, reason)| reason.raw_os_error())
    }

    #[test]
    fn the_reason_is_found_in_the_text() {
        let full = "IO error: No space left on device: While appending to file: /d/000012.sst: No space left on device";
        assert_eq!(reason(full), Some(28));
        assert_eq!(reason("IO error: While open a file for random read: /d/000009.sst: Too many open files"), Some(24));
        assert_eq!(reason("IO error: While pread offset 0 len 53: /d/000009.sst: Input/output error"), Some(5));
        assert_eq!(reason("Corruption: block checksum mismatch: stored = 1, computed = 2 in /d/000009.sst"), None);
        assert_eq!(
            reason("Corruption: Can't access /000009.sst: IO error: stat: /d/000009.sst: Permission denied\n"),
            Some(13)
        );
    }

    #[test]
    fn a_missing_file_counts_least() {
        let both = "IO error: No such file or directory: a: No such file or directory: b: Input/output error";
        assert_eq!(reason(both), Some(5));
        assert_eq!(
            reason("IO error: No such file or directory: While open: /d/000009.sst: No such file or directory"),
            Some(2)
        );
    }
}
