//! Looks at a log at rest, record by record, without changing it.

use crate::format::LogPlace;
use crate::log::{OpenError, Recovered};
use crate::recover::{Found, Recovery};
use crate::scan::Event;
use hedgerow_env::Disk;
use std::path::Path;

/// What the log as a whole is.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The segments that count and where each ends.
    pub segments: Vec<LogPlace>,
    /// Segments that are there and do not count.
    pub garbage_segments: Vec<u64>,
    /// The groups as [`crate::Log::open`] would recover them.
    pub groups: Vec<Recovered>,
    /// As [`crate::Log::has_unknown_loss`] would say.
    pub has_unknown_loss: bool,
}

/// Shows everything in the log in `dir` to `visit`, in the order of the log. Nothing may be writing to it.
pub fn inspect(disk: &dyn Disk, dir: &Path, visit: &mut dyn FnMut(Event<'_>)) -> Result<Inspection, OpenError> {
    let recovery = Recovery::read(disk, dir, visit)?;
    let (lost, has_unknown_loss) = (recovery.lost, recovery.has_unknown_loss());
    let place = |(id, found): (&u64, &Found)| LogPlace { segment: *id, offset: found.end };
    Ok(Inspection {
        segments: recovery.segments.iter().map(place).collect(),
        garbage_segments: recovery.garbage,
        groups: recovery.groups.into_iter().map(|(group, replay)| replay.into_group(group, lost).recovered).collect(),
        has_unknown_loss,
    })
}
