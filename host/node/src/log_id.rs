//! Which log it is that lies in a data directory: a number in a file among its segments, which is drawn when the log begins and goes with
//! it wherever it is moved or copied. The node's identity says which logs it has (see `identity.rs`), and other nodes remember how far
//! each of them was (see `lives.rs`).

use hedgerow_env::{Disk, read_file, write_file_durably};
use std::io;
use std::path::{Path, PathBuf};

/// Where the log of data directory `data` lies.
pub(crate) fn log_of(data: &Path) -> PathBuf {
    data.join("log")
}

fn path_of(data: &Path) -> PathBuf {
    log_of(data).join("id")
}

/// The number of the log in data directory `data`; `None` if it has none that can be read, and so is another one than any that is known.
pub(crate) fn read(disk: &dyn Disk, data: &Path) -> Option<u64> {
    let path = path_of(data);
    let found = read_file(disk, &path).and_then(|bytes| {
        let text = std::str::from_utf8(&bytes).map_err(io::Error::other)?;
        u64::from_str_radix(text.trim_end(), 16).map_err(io::Error::other)
    });
    match found {
        Ok(id) => Some(id),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "which log it is cannot be read: it counts as another one");
            None
        }
    }
}

/// Gives the log in `data` the number `id`, durably.
pub(crate) fn write(disk: &dyn Disk, data: &Path, id: u64) -> io::Result<()> {
    write_file_durably(disk, &path_of(data), format!("{id:016x}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_env::sim::SimDisk;

    #[test]
    fn d7_a_log_has_its_number_where_it_is_moved_and_damage_is_none() {
        let (disk, data) = (SimDisk::new(), Path::new("/data"));
        hedgerow_env::create_dir_durably(&disk, &data.join("log")).expect("a directory");
        assert_eq!(read(&disk, data), None);
        write(&disk, data, 7).expect("writable");
        assert_eq!(read(&disk, data), Some(7));
        hedgerow_env::create_dir_durably(&disk, Path::new("/other")).expect("a directory");
        disk.rename(&data.join("log"), Path::new("/other/log")).expect("there");
        assert_eq!((read(&disk, data), read(&disk, Path::new("/other"))), (None, Some(7)));
        write_file_durably(&disk, &path_of(Path::new("/other")), b"none").expect("a file");
        assert_eq!(read(&disk, Path::new("/other")), None);
    }
}
