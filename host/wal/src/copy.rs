//! Takes groups' logs over from another log, and strikes them out there: how a group comes from one log to another while nothing else
//! is written for it.
//!
//! A copy says that it is incomplete until its last record, and pending until the former log is struck out, which is after the copy is
//! durable. So however often it is interrupted, one log of the group is complete, and whoever finds a pending one knows that there may be
//! another that says the same, and writes nothing before that is struck out: an outdated one is never left anywhere.

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
    /// Copies the logs of `groups` from `from`, each into the generation that stands beside it; those that it does not hold are left out. What
    /// this log held of them is void. What of a group is damaged stays so. When this returns `Ok` the copies survive a power failure, whatever
    /// the durability. They are pending.
    pub fn copy_groups(&mut self, from: &Self, groups: &[(GroupId, u64)]) -> Result<(), CopyError> {
        self.write(&[])?;
        for (group, generation) in groups {
            if let Some(source) = from.groups.get(group) {
                self.copy_group(from, *group, &Group { generation: *generation, ..*source })?;
            }
        }
        self.flush()?;
        self.sync_active()?;
        // A lost end would otherwise be a torn tail, when nothing else has the copies any more.
        self.mark();
        Ok(())
    }

    fn copy_group(&mut self, from: &Self, group: GroupId, source: &Group) -> Result<(), CopyError> {
        let born = self.reserve(State::RECORD_SIZE)?;
        let mut copy = Group { born, last: source.start, is_incomplete: true, is_pending: true, ..*source };
        self.encode_begin(group, &copy)?;
        while copy.last.index < source.last.index {
            let next = copy.last.index + 1;
            let entries = from.reader().entries(group, next, source.last.index + 1, PIECE_SIZE);
            let entries = entries.and_then(|entries| match entries.len() {
                0 => Err(io::Error::new(io::ErrorKind::InvalidData, format!("entry {next} is not there"))),
                _ => Ok(entries),
            });
            // It could be read a moment ago, so that it is no damage yet.
            for entry in &entries.map_err(|source| CopyError::Unreadable { group, source })? {
                self.encode_entry(group, entry)?;
                copy.last = entry.position();
            }
            self.flush()?;
        }
        copy.is_incomplete = false;
        self.encode_state(group, &copy)?;
        self.groups.insert(group, copy);
        Ok(())
    }

    /// Forgets `groups`, so that no opening will find them here, whatever the durability.
    pub fn strike_groups(&mut self, groups: &[GroupId]) -> Result<(), Halt> {
        groups.iter().for_each(|group| self.remove_group(*group));
        self.write(&[])?;
        Ok(self.sync_active()?)
    }

    /// What copies of `groups` are copies of is struck out: they are pending no more, whatever the durability.
    pub fn settle_groups(&mut self, groups: &[GroupId]) -> Result<(), Halt> {
        for group in groups {
            if let Some(meta) = self.groups.get_mut(group).filter(|meta| meta.is_pending) {
                meta.is_pending = false;
                self.unwritten_states.insert(*group);
            }
        }
        self.write(&[])?;
        Ok(self.sync_active()?)
    }
}
