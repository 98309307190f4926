//! Files that people name on the command line.
#![allow(clippy::disallowed_methods, reason = "a person's own files, not the store's")]

use crate::output::StandardOutput;
use anyhow::{Context as _, Result};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// An opened input.
pub(crate) struct Input {
    pub(crate) reader: Box<dyn Read + Send>,
    /// Its size; `None` for what is not a regular file.
    pub(crate) size: Option<u64>,
}

/// Whether `path` means standard input or output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens `path` for reading from byte `offset` on; `-` is standard input.
pub(crate) fn open(path: &Path, offset: u64) -> Result<Input> {
    if is_standard(path) {
        return Ok(Input { reader: Box::new(io::stdin()), size: None });
    }
    let context = || format!("opening {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let metadata = file.metadata().with_context(context)?;
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).with_context(context)?;
    }
    Ok(Input { reader: Box::new(file), size: metadata.is_file().then_some(metadata.len()) })
}

/// A file that is being written. What was there before stays until [`Output::finish`]: somebody may have nothing else.
pub(crate) struct Output {
    writer: BufWriter<Box<dyn Write>>,
    /// Where it is written, and where it goes.
    renamed: Option<(PathBuf, PathBuf)>,
}

impl Output {
    /// Creates or replaces `path`; `-` is standard output. What is no regular file is written to as it stands.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let writer = |sink: Box<dyn Write>| BufWriter::with_capacity(256 << 10, sink);
        if is_standard(path) {
            return Ok(Self { writer: writer(Box::new(StandardOutput::new())), renamed: None });
        }
        let before = std::fs::metadata(path).ok();
        let is_special = before.as_ref().is_some_and(|found| !found.is_file());
        // What a link names is replaced, not the link.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let written = if is_special { path.clone() } else { beside(&path) };
        let context = || format!("creating {}", written.display());
        let file = File::create(&written).with_context(context)?;
        if let Some(before) = before.filter(|_| !is_special) {
            file.set_permissions(before.permissions()).with_context(context)?;
        }
        let renamed = (!is_special).then_some((written, path));
        Ok(Self { writer: writer(Box::new(file)), renamed })
    }

    /// All is written: it takes its place.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.writer.flush()?;
        if let Some((written, path)) = &self.renamed {
            File::open(written)?.sync_all()?;
            std::fs::rename(written, path)?;
        }
        self.renamed = None;
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((written, _)) = &self.renamed {
            drop(std::fs::remove_file(written));
        }
    }
}

/// The name of a file that is to take the place of `path`.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// `path` from the root on, without a look at what is there.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot tell where {} is", path.display()))
}

/// Whether `path` is a directory; an error if there is nothing.
pub(crate) fn is_directory(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.is_dir())
}

/// Whether `path` is a regular file; an error if there is nothing, or nothing that can be looked at.
pub(crate) fn is_regular(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.is_file())
}

/// What is found where a data directory should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing, or nothing that can be looked at.
    Missing,
    /// Something that is no directory.
    File,
    /// A directory with nothing in it.
    Empty,
    /// A directory with something in it.
    Used,
}

/// Looks at `path`.
pub(crate) fn place(path: &Path) -> Place {
    match std::fs::metadata(path) {
        Err(_) => Place::Missing,
        Ok(found) if !found.is_dir() => Place::File,
        Ok(_) => match std::fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Place::Used,
            Ok(false) => Place::Empty,
            Err(_) => Place::Missing,
        },
    }
}

/// The one name of `path` that has no links in it; of what is not there, the name as it was given.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Makes the directory `path`, and those above it, unless they are there.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("making the folder {}", path.display()))
}

/// The small file beside `path` that remembers how far it has been loaded.
pub(crate) fn progress_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".hedgerow-progress");
    name.into()
}

/// The text in the file `path`.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path)
}

/// The contents of `path`, or `None` if there is no such file.
pub(crate) fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Replaces the contents of `path` in one step.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = beside(path);
    let context = || format!("writing {}", path.display());
    std::fs::write(&temporary, bytes).with_context(context)?;
    std::fs::rename(&temporary, path).with_context(context)
}

/// As [`replace`], for what only its owner may read.
pub(crate) fn replace_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = beside(path);
    let context = || format!("writing {}", path.display());
    remove(&temporary)?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(&temporary);
    file.and_then(|mut file| file.write_all(bytes)).with_context(context)?;
    std::fs::rename(&temporary, path).with_context(context)
}

/// Who may do what with a file.
#[cfg(test)]
pub(crate) fn mode(path: &Path) -> io::Result<u32> {
    Ok(std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path)?.permissions()))
}

/// Removes `path`; that it does not exist is no error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_stays_until_what_replaces_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.tsv");
        std::fs::write(&path, "old").unwrap();
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        let mut output = Output::create(&path).unwrap();
        output.write_all(b"half").unwrap();
        output.flush().unwrap();
        drop(output);
        assert_eq!((read_text(&path).unwrap().as_str(), names()), ("old", 1));
        let mut output = Output::create(&path).unwrap();
        output.write_all(b"new").unwrap();
        output.finish().unwrap();
        assert_eq!((read_text(&path).unwrap().as_str(), names()), ("new", 1));
    }
}
