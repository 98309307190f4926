//! Passwords in files: one line, and nobody but the owner may read it.
#![allow(clippy::disallowed_methods, reason = "a person's own files, not the store's")]

use std::fs::File;
use std::io::{self, BufRead as _, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// The most that is read of a file, bytes.
const SIZE_MAX: u64 = 4_096;

/// The password in a file, which an error names.
pub fn read(path: &Path) -> io::Result<Zeroizing<String>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("reading the password in {}: {error}", path.display()));
    let file = File::open(path).map_err(named)?;
    let mode = file.metadata().map_err(named)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let text = format!(
            "{} holds a password, and others than its owner may read it (mode {mode:o}): allowed are no rights for group and others, as with 600",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    first_line(file).map_err(named)
}

/// The first line, without its end.
pub fn first_line(from: impl Read) -> io::Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(String::with_capacity(SIZE_MAX as usize));
    io::BufReader::new(from.take(SIZE_MAX)).read_line(&mut line)?;
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    if !line.ends_with('\n') && line.len() as u64 >= SIZE_MAX {
        return Err(wrong(format!("it has more than {SIZE_MAX} bytes")));
    }
    let text = line.trim_end_matches(['\n', '\r']);
    if text.is_empty() {
        return Err(wrong("there is none".to_owned()));
    }
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_one_line_of_a_file_that_nobody_else_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let of = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path).map(|it| it.to_string()).map_err(|error| format!("{error}"))
        };
        assert_eq!(of("with a space \r\nand more\n", 0o600), Ok("with a space ".to_owned()));
        assert_eq!(of("no end", 0o400), Ok("no end".to_owned()));
        for mode in [0o640, 0o604, 0o660] {
            assert!(of("secret", mode).unwrap_err().contains("others than its owner may read it"));
        }
        assert!(of("\n", 0o600).unwrap_err().ends_with("there is none"));
        assert!(of(&"a".repeat(5_000), 0o600).unwrap_err().contains("more than"));
    }
}
