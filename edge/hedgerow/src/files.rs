//! Files that people name on the command line.
#![allow(clippy::disallowed_methods, reason = "a person's own files, not the store's")]

use anyhow::{Context as _, Result};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, SeekFrom, Write};
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

/// Creates or replaces `path` for writing; `-` is standard output.
pub(crate) fn create(path: &Path) -> Result<Box<dyn Write>> {
    if is_standard(path) {
        return Ok(Box::new(BufWriter::with_capacity(256 << 10, io::stdout())));
    }
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    Ok(Box::new(BufWriter::with_capacity(256 << 10, file)))
}

/// Whether `path` is a directory; an error if there is nothing.
pub(crate) fn is_directory(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.is_dir())
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
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let context = || format!("writing {}", path.display());
    std::fs::write(&temporary, bytes).with_context(context)?;
    std::fs::rename(&temporary, path).with_context(context)
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
