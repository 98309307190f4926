//! The folder that the results go to.

use anyhow::{Context as _, Result};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where results go unless something else was asked for.
const BASE: &str = "results";

/// Makes the folder `wanted`, or else a new one below [`BASE`]; its absolute path. Never one that exists.
pub(crate) fn create(wanted: Option<&Path>, workload: &str) -> Result<PathBuf> {
    let path = match wanted {
        Some(path) => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
            }
            fs::create_dir(path).with_context(|| format!("making {}", path.display()))?;
            path.to_owned()
        }
        None => create_numbered(Path::new(BASE), workload)?,
    };
    path.canonicalize().with_context(|| format!("looking for {}", path.display()))
}

fn create_numbered(base: &Path, workload: &str) -> Result<PathBuf> {
    fs::create_dir_all(base).with_context(|| format!("making {}", base.display()))?;
    let name = Path::new(workload).file_stem().unwrap_or_default().to_string_lossy();
    let mut number = 1;
    loop {
        let path = base.join(format!("profile-{name}-{number}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error).with_context(|| format!("making {}", path.display())),
        }
    }
}

/// Writes a whole file of the folder.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_gets_a_folder_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        let first = create_numbered(base.path(), "some/where/reads.toml").unwrap();
        let second = create_numbered(base.path(), "some/where/reads.toml").unwrap();
        assert_eq!(first, base.path().join("profile-reads-1"));
        assert_eq!(second, base.path().join("profile-reads-2"));
        let error = create(Some(&first), "get").unwrap_err();
        assert!(format!("{error:#}").contains("exists"), "{error:#}");
    }
}
