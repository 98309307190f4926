//! The data directories of a configuration, as they are found on this machine. Nothing is made or changed.

use crate::files::{Place, canonical, place};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Refuses a directory that is listed twice, by whatever names, and a file in the place of one.
pub(super) fn check(directories: &[PathBuf]) -> Result<()> {
    let mut seen: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    for directory in directories {
        ensure!(place(directory) != Place::File, "data: {} is a file, not a directory", directory.display());
        let before = seen.insert(canonical(directory), directory);
        if let Some(before) = before {
            let (one, other) = (before.display(), directory.display());
            ensure!(before == directory, "data: {one} and {other} are one directory");
            anyhow::bail!("data: {one} is listed twice");
        }
    }
    Ok(())
}

/// What there is to say of each of them behind its name.
pub(super) fn remarks(directories: &[PathBuf]) -> Vec<&'static str> {
    let places: Vec<Place> = directories.iter().map(|directory| place(directory)).collect();
    let has_data = places.contains(&Place::Used);
    let remark = |place: &Place| match place {
        Place::Used | Place::File => "",
        Place::Empty if has_data => {
            " (empty, while another one has data: learned again from other nodes if the node used it before)"
        }
        Place::Empty => " (empty)",
        Place::Missing if has_data => {
            " (NOT THERE, while another one has data: if the node used it before, it starts without it)"
        }
        Place::Missing => " (not there yet)",
    };
    places.iter().map(remark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_counts_once_and_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        crate::files::replace(&path("file"), b"x").unwrap();
        crate::files::make_directory(&path("d")).unwrap();
        let refused = |names: &[&str]| {
            let directories: Vec<PathBuf> = names.iter().map(|name| path(name)).collect();
            check(&directories).err().map(|error| error.to_string())
        };
        assert_eq!(refused(&["d", "e"]), None);
        assert!(refused(&["e", "e"]).unwrap().ends_with("e is listed twice"));
        assert!(refused(&["d", "d/../d"]).unwrap().ends_with("are one directory"));
        assert!(refused(&["d", "file"]).unwrap().ends_with("file is a file, not a directory"));
    }

    #[test]
    fn one_that_is_away_while_another_has_data_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let directories = ["one", "two"].map(|name| folder.path().join(name));
        assert_eq!(remarks(&directories), [" (not there yet)"; 2]);
        crate::files::make_directory(&directories[0]).unwrap();
        assert_eq!(remarks(&directories), [" (empty)", " (not there yet)"]);
        crate::files::replace(&directories[0].join("identity"), b"x").unwrap();
        let remarks = remarks(&directories);
        assert!(remarks[0].is_empty() && remarks[1].contains("NOT THERE"), "{remarks:?}");
    }
}
