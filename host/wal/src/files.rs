//! The files of a log: their names, how a segment is made ready before it counts, and where it goes afterwards.

use crate::format::SegmentHead;
use hedgerow_env::{Disk, File, OpenMode};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Zeros are written in pieces of this size.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];
/// A file being filled with zeros is synced whenever this much is new, so that no sync takes long.
const FILL_SYNC_SIZE: u64 = 8 << 20;
const PREPARED: &str = "next.tmp";

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
            Some((id, "seg")) if id.len() == 16 => u64::from_str_radix(id, 16).map_or(Self::Other, Self::Segment),
            Some((_, "spare")) => Self::Spare,
            Some((_, "tmp")) => Self::Temporary,
            Some(_) | None => Self::Other,
        }
    }
}

pub(crate) fn segment_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.seg"))
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
    /// Preparing failed and waits for the next segment, whose making will show the error.
    is_preparing_off: bool,
}

#[derive(Debug)]
struct Prepared {
    file: Box<dyn File>,
    filled: u64,
}

impl Files {
    /// Removes what is left over in `dir` and collects spare segments.
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, options: FileOptions) -> io::Result<Self> {
        let mut files =
            Self { disk, dir: dir.to_owned(), options, spares: Vec::new(), prepared: None, is_preparing_off: false };
        for name in files.disk.list(dir)? {
            let path = dir.join(&name);
            match Name::parse(&name) {
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

    /// Makes the segment that `head` describes: all its bytes allocated, its head and its name durable.
    pub(crate) fn create(&mut self, head: &SegmentHead) -> io::Result<Arc<dyn File>> {
        self.is_preparing_off = false;
        let (file, path) =
            if head.size == self.options.segment_size { self.take_ready()? } else { self.fresh(head.size)? };
        file.write_at(0, &head.encode())?;
        file.sync_all()?;
        self.disk.rename(&path, &segment_path(&self.dir, head.id))?;
        self.disk.sync_dir(&self.dir)?;
        Ok(Arc::from(file))
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
        if self.is_preparing_off || !self.spares.is_empty() {
            return;
        }
        // An error here costs nothing yet. If it stays, making the next segment will report it.
        if self.try_prepare(size).is_err() {
            self.prepared = None;
            self.is_preparing_off = true;
        }
    }

    fn try_prepare(&mut self, size: u64) -> io::Result<()> {
        if self.prepared.is_none() {
            let file = self.open(&self.dir.join(PREPARED), OpenMode::Create)?;
            self.prepared = Some(Prepared { file, filled: 0 });
        }
        if let Some(prepared) = &mut self.prepared {
            let to = self.options.segment_size.min(prepared.filled.saturating_add(size));
            prepared.fill(to, self.options.segment_size)?;
        }
        Ok(())
    }

    fn take_ready(&mut self) -> io::Result<(Box<dyn File>, PathBuf)> {
        if let Some(path) = self.spares.pop() {
            return Ok((self.open(&path, OpenMode::Write)?, path));
        }
        match self.prepared.take() {
            Some(mut prepared) => {
                prepared.fill(self.options.segment_size, self.options.segment_size)?;
                Ok((prepared.file, self.dir.join(PREPARED)))
            }
            None => self.fresh(self.options.segment_size),
        }
    }

    fn fresh(&self, size: u64) -> io::Result<(Box<dyn File>, PathBuf)> {
        let path = self.dir.join("new.tmp");
        let mut prepared = Prepared { file: self.open(&path, OpenMode::Create)?, filled: 0 };
        prepared.fill(size, size)?;
        Ok((prepared.file, path))
    }
}

impl Prepared {
    /// Fills with zeros up to `to`; the file's final size is `size`.
    fn fill(&mut self, to: u64, size: u64) -> io::Result<()> {
        while self.filled < to {
            let count = (to - self.filled).min(ZEROS.len() as u64);
            self.file.write_at(self.filled, &ZEROS[..count as usize])?;
            self.filled += count;
            if self.filled == size || self.filled.is_multiple_of(FILL_SYNC_SIZE) {
                self.file.sync_data()?;
            }
        }
        Ok(())
    }
}
