//! Takes groups' logs over from another log, and strikes them out there: how a group comes from one log to another while nothing else
//! is written for it.
//!
//! A copy says that it is incomplete until its last record, and is in the next generation. So however often it is interrupted, one log of
//! the group is complete: the former one until it is struck out, which is after the copy is durable. Until then both say the same.

use crate::format::State;
use crate::log::{Failed, Group, Halt, Log};
use hedgerow_types::GroupId;
use std::io;

/// Bytes of entries that are in memory at a time.
const PIECE_SIZE: usize = 4 << 20;

/// Why groups' logs could not be copied. What there is of the copies counts for nothing: open the log again.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// This log takes nothing more, for the moment or at all.
    #[error(transparent)]
    Halt(#[from] Halt),
    /// The other one cannot be read, and may be whole.
    #[error("group {group} cannot be copied to another log")]
    Unreadable {
        /// Whose log.
        group: GroupId,
        /// The disk's answer.
        source: io::Error,
    },
}

impl From<Failed> for CopyError {
    fn from(failed: Failed) -> Self {
        Self::Halt(failed.into())
    }
}

impl Log {
    /// Copies the logs of `groups` from `from`, each into its next generation; those that it does not hold are left out. What this log held
    /// of them is void. What of a group is damaged stays so. When this returns `Ok` the copies survive a power failure, whatever the
    /// durability.
    pub fn copy_groups(&mut self, from: &Self, groups: &[GroupId]) -> Result<(), CopyError> {
        self.check()?;
        self.encode_unwritten()?;
        for group in groups {
            if let Some(source) = from.groups.get(group) {
                self.copy_group(from, *group, source)?;
            }
        }
        self.flush()?;
        Ok(self.sync_active()?)
    }

    fn copy_group(&mut self, from: &Self, group: GroupId, source: &Group) -> Result<(), CopyError> {
        let generation = source.generation + 1;
        let born = self.reserve(State::RECORD_SIZE)?;
        let mut copy = Group { born, last: source.start, generation, is_incomplete: true, ..*source };
        self.encode_begin(group, &copy)?;
        while copy.last.index < source.last.index {
            let next = copy.last.index + 1;
            match from.reader().entries(group, next, source.last.index + 1, PIECE_SIZE) {
                Ok(entries) if !entries.is_empty() => {
                    for entry in &entries {
                        self.encode_entry(group, entry)?;
                        copy.last = entry.position();
                    }
                    self.flush()?;
                }
                Err(source) if source.kind() != io::ErrorKind::InvalidData => {
                    return Err(CopyError::Unreadable { group, source });
                }
                Ok(_) | Err(_) => {
                    copy.is_damaged = true;
                    break;
                }
            }
        }
        copy.is_incomplete = false;
        self.encode_state(group, &copy)?;
        self.groups.insert(group, copy);
        Ok(())
    }

    /// Forgets `groups`, so that no opening will find them here, whatever the durability.
    pub fn strike_groups(&mut self, groups: &[GroupId]) -> Result<(), Halt> {
        self.check()?;
        groups.iter().for_each(|group| self.remove_group(*group));
        self.encode_unwritten()?;
        self.flush()?;
        Ok(self.sync_active()?)
    }
}
