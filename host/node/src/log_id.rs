//! Which log it is that lies in a data directory: a number that is drawn when the log begins and goes with it wherever it is moved or
//! copied, so that what others know of it can be compared with what it holds.

use hedgerow_env::{Disk, read_file, write_file_durably};
use hedgerow_wal::note_path;
use std::io;
use std::path::{Path, PathBuf};

fn path_of(data: &Path, epoch: u64) -> PathBuf {
    note_path(&data.join("log"), epoch, "id")
}

/// The number of the log in `data` that has this epoch. It is `drawn` if it has none yet, or if it is not `is_whole` and so holds no
/// more what it was known for: nothing is compared then with what it was before.
pub(crate) fn of(disk: &dyn Disk, data: &Path, epoch: u64, is_whole: bool, drawn: u64) -> u64 {
    let path = path_of(data, epoch);
    match read(disk, &path) {
        Ok(id) if is_whole => return id,
        Err(error) if is_whole && error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "which log it is cannot be read: it gets a new number");
        }
        Ok(_) | Err(_) => {}
    }
    if let Err(error) = write_file_durably(disk, &path, format!("{drawn:016x}\n").as_bytes()) {
        tracing::warn!(path = %path.display(), %error, "which log it is cannot be noted: it will have another number after the next start");
    }
    drawn
}

fn read(disk: &dyn Disk, path: &Path) -> io::Result<u64> {
    let bytes = read_file(disk, path)?;
    let text = std::str::from_utf8(&bytes).map_err(io::Error::other)?;
    u64::from_str_radix(text.trim_end(), 16).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_env::sim::SimDisk;

    #[test]
    fn d7_a_log_keeps_its_number_until_it_begins_anew() {
        let (disk, data) = (SimDisk::new(), Path::new("/data"));
        disk.create_dir_all(data).expect("a directory");
        assert_eq!(of(&disk, data, 0, true, 1), 1);
        assert_eq!(of(&disk, data, 0, true, 2), 1, "also if nothing was written to it before");
        assert_eq!(of(&disk, data, 0, false, 3), 3);
        write_file_durably(&disk, &path_of(data, 0), b"none").expect("a file");
        assert_eq!(of(&disk, data, 0, true, 4), 4);
        assert_eq!(of(&disk, data, 0, true, 5), 4);
        assert_eq!(of(&disk, data, 1, true, 6), 6, "another log has begun");
        assert_eq!(of(&disk, data, 0, true, 7), 4, "and the former one is back");
    }
}
