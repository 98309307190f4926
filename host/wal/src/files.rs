//! The files of a log: their names, how a segment is made ready before it counts, and where it goes afterwards.

use crate::format::{Mark, NUMBER_MAX, SEGMENT_UNIT, SegmentHead, epoch_of, may_be_followed};
use crate::log::OpenError;
use hedgerow_env::{Disk, File, OpenMode, is_shortage, is_unreadable, parent_of, read_file};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Zeros are written in pieces of this size.
static ZEROS: Zeros = Zeros([0; 256 << 10]);
/// A file being filled with zeros is synced whenever this much is new, so that no sync takes long.
const FILL_SYNC_SIZE: u64 = 8 << 20;
const PREPARED: &str = "next.tmp";
/// This share of a segment is used as one where the disk has no room for more.
const PART_SHARE: u64 = 4;
/// What a prepared segment that was not used is called after a restart.
const KEPT: &str = "next.spare";
/// After preparing has failed so many calls do nothing: asking a full disk for space is not free.
const PREPARE_PAUSE: u32 = 16;

/// Aligned, so that they reach the disk without a copy.
#[repr(align(4096))]
struct Zeros([u8; 256 << 10]);

/// What the name of a file in a log's directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Segment(u64),
    /// A segment that counts no more and waits to be used again.
    Spare,
    /// Left over from something that did not finish.
    Temporary,
    /// Not ours.
    Other,
}

impl Name {
    pub(crate) fn parse(name: &str) -> Self {
        match name.rsplit_once('.') {
            Some((id, "seg")) if id.len() == 16 => match u64::from_str_radix(id, 16) {
                Ok(id) if id < NUMBER_MAX => Self::Segment(id),
                Ok(_) | Err(_) => Self::Other,
            },
            Some((_, "spare")) => Self::Spare,
            Some((_, "tmp")) => Self::Temporary,
            Some(_) | None => Self::Other,
        }
    }
}

/// How the names of marks end.
const MARK_END: &str = "mark";

pub(crate) fn segment_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.seg"))
}

/// The mark of the log in `dir` that has this epoch. It is outside, so that whoever puts back an older log does not put back what is
/// noted of it. It stays when another log is in the place of that one, so that no epoch is used twice.
fn mark_path(dir: &Path, epoch: u64) -> PathBuf {
    dir.with_extension(if epoch == 0 { MARK_END.to_owned() } else { format!("{epoch}.{MARK_END}") })
}

/// The epochs of the logs of which something is noted beside `dir`.
pub(crate) fn noted_epochs(disk: &dyn Disk, dir: &Path) -> io::Result<BTreeSet<u64>> {
    let log = dir.file_name().unwrap_or_default().to_string_lossy();
    let epoch = |name: String| {
        let rest = name.strip_prefix(&*log)?.strip_prefix('.')?;
        if rest == MARK_END { Some(0) } else { rest.split_once('.')?.0.parse().ok() }
    };
    let epochs = disk.list(parent_of(dir))?.into_iter().filter_map(epoch);
    Ok(epochs.filter(|epoch| may_be_followed(*epoch)).collect())
}

/// The mark of the log in `dir` that has this epoch, or why there is none that can be used: it is not there, or damaged. An error if that
/// cannot be told, for want of descriptors or permission perhaps: without the mark a lost end of the log would pass for a clean one.
pub(crate) fn read_mark(disk: &dyn Disk, dir: &Path, epoch: u64) -> Result<Result<Mark, String>, OpenError> {
    let path = mark_path(dir, epoch);
    match read_file(disk, &path) {
        Ok(bytes) => Ok(Mark::decode(&bytes).ok_or_else(|| "it is damaged, or of another version".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_unreadable(&error) => Ok(Err(error.to_string())),
        Err(source) => Err(OpenError::Io { path, source }),
    }
}

/// What the files of a log are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOptions {
    pub(crate) segment_size: u64,
    /// Segments that are kept to be used again.
    pub(crate) spare_max: usize,
    /// Whether every write is synced at once, so that the system's cache would only be in the way.
    pub(crate) is_synced: bool,
}

/// Makes segments and takes them back.
#[derive(Debug)]
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: FileOptions,
    spares: Vec<PathBuf>,
    prepared: Option<Prepared>,
    /// Calls of [`Files::prepare`] that are left out because the last one failed.
    prepare_pause: u32,
    /// The disk has refused a segment for want of space or descriptors, and none could be made ready since.
    is_refused: bool,
    /// What was written into the mark last.
    marked: Option<Mark>,
}

/// A file that has the size of a segment and is none yet.
#[derive(Debug)]
pub(crate) struct Made {
    file: Box<dyn File>,
    path: PathBuf,
    /// Bytes.
    pub(crate) size: u64,
}

#[derive(Debug)]
struct Prepared {
    file: Box<dyn File>,
    filled: u64,
}

impl Files {
    /// Removes what is left over in `dir` and collects spare segments.
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, options: FileOptions) -> io::Result<Self> {
        let mut files = Self {
            disk,
            dir: dir.to_owned(),
            options,
            spares: Vec::new(),
            prepared: None,
            prepare_pause: 0,
            is_refused: false,
            marked: None,
        };
        for name in files.disk.list(dir)? {
            let path = dir.join(&name);
            match Name::parse(&name) {
                // The reserve of the life before: on a full disk there would be no other.
                Name::Temporary
                    if name == PREPARED && !files.spares.contains(&dir.join(KEPT)) && files.may_keep(&path)? =>
                {
                    let spare = dir.join(KEPT);
                    files.disk.rename(&path, &spare)?;
                    files.spares.push(spare);
                }
                Name::Temporary => files.disk.remove_file(&path)?,
                Name::Spare if files.may_keep(&path)? => files.spares.push(path),
                Name::Spare => files.disk.remove_file(&path)?,
                Name::Segment(_) | Name::Other => {}
            }
        }
        Ok(files)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        if self.options.is_synced { self.disk.open_sequential(path, mode) } else { self.disk.open(path, mode) }
    }

    fn may_keep(&self, path: &Path) -> io::Result<bool> {
        let len = self.disk.open(path, OpenMode::Read)?.len()?;
        Ok(self.spares.len() < self.options.spare_max && len == self.options.segment_size)
    }

    pub(crate) fn spare_count(&self) -> usize {
        self.spares.len()
    }

    /// Segments that can be had without asking the disk for space.
    pub(crate) fn ready_count(&self) -> usize {
        let is_whole = |prepared: &Prepared| prepared.filled == self.options.segment_size;
        self.spares.len() + usize::from(self.prepared.as_ref().is_some_and(is_whole))
    }

    /// Bytes of them.
    pub(crate) fn ready_bytes(&self) -> u64 {
        self.ready_count() as u64 * self.options.segment_size
    }

    /// Whether the disk has refused a segment for want of space or descriptors, and none could be made ready since. A part of
    /// one is none.
    pub(crate) const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Makes a file for a segment with room for a batch, all of it allocated: of `needed` bytes at least, and of the usual size, unless
    /// the disk has no room for that, but for a part. If it fails nothing is lost, and it can be tried again.
    pub(crate) fn make(&mut self, needed: u64) -> io::Result<Made> {
        let made = self.try_make(needed.max(self.options.segment_size));
        self.prepare_pause = if made.is_err() { PREPARE_PAUSE } else { 0 };
        self.is_refused = made.as_ref().is_err_and(is_shortage);
        if made.is_err()
            && let Some(part) = self.take_part(needed)?
        {
            return Ok(part);
        }
        made
    }

    /// What could be filled of a segment on a disk that is full now, cut to a small one: votes need little.
    fn take_part(&mut self, needed: u64) -> io::Result<Option<Made>> {
        let size = needed.max((self.options.segment_size / PART_SHARE).next_multiple_of(SEGMENT_UNIT as u64));
        let Some(prepared) = self.prepared.take_if(|prepared| prepared.filled >= size) else { return Ok(None) };
        prepared.file.set_len(size)?;
        Ok(Some(Made { file: prepared.file, path: self.dir.join(PREPARED), size }))
    }

    fn try_make(&mut self, size: u64) -> io::Result<Made> {
        if size != self.options.segment_size {
            return self.fresh(size);
        }
        if let Some(path) = self.spares.last().cloned() {
            let file = self.open(&path, OpenMode::Write)?;
            self.spares.pop();
            return Ok(Made { file, path, size });
        }
        self.fill_prepared(size)?;
        match self.prepared.take() {
            Some(prepared) => Ok(Made { file: prepared.file, path: self.dir.join(PREPARED), size }),
            None => self.fresh(size),
        }
    }

    /// Makes it the segment that `head` describes, with head and name durable.
    pub(crate) fn publish(&self, made: Made, head: &SegmentHead) -> io::Result<Arc<dyn File>> {
        made.file.write_at(0, &head.encode())?;
        made.file.sync_all()?;
        self.disk.rename(&made.path, &segment_path(&self.dir, head.id))?;
        self.disk.sync_dir(&self.dir)?;
        Ok(Arc::from(made.file))
    }

    pub(crate) fn is_marked(&self, mark: Mark) -> bool {
        self.marked == Some(mark)
    }

    /// Writes the mark over the one before. Only where there was none something waits for the medium.
    pub(crate) fn mark(&mut self, mark: Mark) -> io::Result<()> {
        let path = mark_path(&self.dir, epoch_of(mark.segment));
        // Never cut to nothing first: the mark that stands there is true until it is replaced.
        let is_new = !self.disk.exists(&path);
        let mode = if is_new { OpenMode::Create } else { OpenMode::Write };
        self.disk.open(&path, mode)?.write_at(0, &mark.encode())?;
        if is_new {
            self.disk.sync_dir(parent_of(&path))?;
        }
        self.marked = Some(mark);
        Ok(())
    }

    /// Makes the mark of the log with this epoch say nothing, durably, if there is one. That there was such a log is still noted.
    pub(crate) fn unmark(&mut self, epoch: u64) -> io::Result<()> {
        let path = mark_path(&self.dir, epoch);
        if !self.disk.exists(&path) {
            return Ok(());
        }
        let file = self.disk.open(&path, OpenMode::Write)?;
        file.write_at(0, &Mark { segment: 0, batch: 0 }.encode())?;
        file.sync_all()
    }

    /// Takes back a segment that counts no more, whose records nobody can need.
    pub(crate) fn free(&mut self, id: u64, size: u64) -> io::Result<()> {
        let path = segment_path(&self.dir, id);
        if size == self.options.segment_size && self.spares.len() < self.options.spare_max {
            let spare = self.dir.join(format!("{id:016x}.spare"));
            self.disk.rename(&path, &spare)?;
            self.spares.push(spare);
            Ok(())
        } else {
            self.disk.remove_file(&path)
        }
    }

    /// Fills up to `size` more bytes of the segment after the present one, so that making it will take no time.
    pub(crate) fn prepare(&mut self, size: u64) {
        if self.prepare_pause > 0 {
            self.prepare_pause -= 1;
        }
        // An error here costs nothing yet. If it stays, making the next segment will report it.
        if self.prepare_pause == 0
            && self.ready_count() == 0
            && let Err(error) = self.fill_prepared(size)
        {
            self.prepare_pause = PREPARE_PAUSE;
            self.is_refused |= is_shortage(&error);
        }
        self.is_refused &= self.ready_count() == 0;
    }

    /// Fills up to `size` more bytes of the prepared file. What it has is kept if the disk is full; after any other error
    /// it begins anew.
    fn fill_prepared(&mut self, size: u64) -> io::Result<()> {
        if self.prepared.is_none() {
            let file = self.open(&self.dir.join(PREPARED), OpenMode::Create)?;
            self.prepared = Some(Prepared { file, filled: 0 });
        }
        let Some(prepared) = &mut self.prepared else { return Ok(()) };
        let to = self.options.segment_size.min(prepared.filled.saturating_add(size));
        let filled = prepared.fill(to, self.options.segment_size);
        if filled.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::StorageFull) {
            self.prepared = None;
        }
        filled
    }

    fn fresh(&self, size: u64) -> io::Result<Made> {
        let path = self.dir.join("new.tmp");
        let mut prepared = Prepared { file: self.open(&path, OpenMode::Create)?, filled: 0 };
        if let Err(error) = prepared.fill(size, size) {
            // Others need the space more. It goes at the next attempt, or at the next start, if not now.
            drop(self.disk.remove_file(&path));
            return Err(error);
        }
        Ok(Made { file: prepared.file, path, size })
    }
}

impl Prepared {
    /// Fills with zeros up to `to`; the file's final size is `size`.
    fn fill(&mut self, to: u64, size: u64) -> io::Result<()> {
        while self.filled < to {
            let count = (to - self.filled).min(ZEROS.0.len() as u64);
            self.file.write_at(self.filled, &ZEROS.0[..count as usize])?;
            let filled = self.filled + count;
            if filled == size || filled.is_multiple_of(FILL_SYNC_SIZE) {
                self.file.sync_data()?;
            }
            self.filled = filled;
        }
        Ok(())
    }
}
