//! Which log it is that lies in a data directory: a number in a file among its segments, which is drawn when the log begins and goes with
//! it wherever it is moved or copied. The node's identity says which logs it has (see `identity.rs`), and other nodes remember how far
//! each of them was (see `lives.rs`). A log that has been written to is nobody's without its number: a copy from before would be another log,
//! of which nobody knows how far it was.

use hedgerow_env::{Disk, read_file_if_exists, write_file_durably};
use std::io;
use std::path::{Path, PathBuf};

/// Digits of a number.
const NUMBER_SIZE: usize = 16;

/// Where the log of data directory `data` lies.
pub(crate) fn log_of(data: &Path) -> PathBuf {
    data.join("log")
}

/// The file with the number of the log in data directory `data`.
pub(crate) fn path_of(data: &Path) -> PathBuf {
    log_of(data).join("id")
}

/// The number of the log in data directory `data`; `None` if it has none. An error of kind `InvalidData` if the file does not say one: a digit
/// that was flipped would be another log. Files of versions before have no checksum.
pub(crate) fn read(disk: &dyn Disk, data: &Path) -> io::Result<Option<u64>> {
    let Some(bytes) = read_file_if_exists(disk, &path_of(data))? else { return Ok(None) };
    match parse(&bytes) {
        Some(id) => Ok(Some(id)),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "it does not match its checksum")),
    }
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let id = u64::from_str_radix(line.get(..NUMBER_SIZE)?, 16).ok()?;
    let text = text_of(id);
    (line == text || line == &text[..NUMBER_SIZE]).then_some(id)
}

fn text_of(id: u64) -> String {
    let number = format!("{id:016x}");
    format!("{number} {:08x}", crc32c::crc32c(number.as_bytes()))
}

/// Gives the log in `data` the number `id`, durably.
pub(crate) fn write(disk: &dyn Disk, data: &Path, id: u64) -> io::Result<()> {
    write_file_durably(disk, &path_of(data), format!("{}\n", text_of(id)).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_env::sim::SimDisk;

    #[test]
    fn d7_a_log_has_its_number_where_it_is_moved() {
        let (disk, data) = (SimDisk::new(), Path::new("/data"));
        let read = |data: &str| read(&disk, Path::new(data)).expect("readable");
        hedgerow_env::create_dir_durably(&disk, &data.join("log")).expect("a directory");
        assert_eq!(read("/data"), None);
        write(&disk, data, 7).expect("writable");
        assert_eq!(read("/data"), Some(7));
        hedgerow_env::create_dir_durably(&disk, Path::new("/other")).expect("a directory");
        disk.rename(&data.join("log"), Path::new("/other/log")).expect("there");
        assert_eq!((read("/data"), read("/other")), (None, Some(7)));
    }

    /// Not even one that was cut where a version before ended it, or has another case.
    #[test]
    fn d7e_no_other_bytes_are_the_number_of_a_log() {
        let whole = format!("{}\n", text_of(0x0123_4567_89ab_cdef)).into_bytes();
        assert_eq!(parse(&whole), Some(0x0123_4567_89ab_cdef));
        assert_eq!(parse(b"0123456789abcdef\n"), Some(0x0123_4567_89ab_cdef), "as versions before wrote it");
        for bit in 0..8 * whole.len() {
            let mut other = whole.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&other), None, "{other:?}");
        }
        (0..whole.len()).for_each(|size| assert_eq!(parse(&whole[..size]), None));
        let others: [&[u8]; 6] = [
            &[0; 17],
            &[0; 26],
            b"none",
            b"0123456789ABCDEF\n",
            b"+123456789abcdef\n",
            "0123456789abcd\u{e9}\n".as_bytes(),
        ];
        assert!(others.iter().all(|other| parse(other).is_none()));
    }
}
