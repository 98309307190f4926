//! Images as real directories.
#![allow(clippy::disallowed_methods, reason = "it makes and reads files of the checker's own")]

use crate::disk::{Image, Node};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

impl Image {
    /// Makes the directory `root`, which must not exist, as the image says. Names of one file are names of one file there.
    pub(crate) fn build(&self, root: &Path) -> Result<()> {
        fs::create_dir_all(root)?;
        let mut built: BTreeMap<usize, &str> = BTreeMap::new();
        for (path, node) in &self.names {
            let to = root.join(path);
            match node {
                Node::Dir => fs::create_dir(&to).with_context(|| format!("cannot make {path}"))?,
                Node::File(file) => match built.get(file) {
                    Some(first) => fs::hard_link(root.join(first), &to)?,
                    None => {
                        fs::write(&to, &*self.contents[file].bytes)?;
                        built.insert(*file, path);
                    }
                },
            }
        }
        Ok(())
    }

    /// Fails if `root` does not hold what the image says: then something was done to it that was not recorded.
    pub(crate) fn compare(&self, root: &Path) -> Result<()> {
        let mut count = 0;
        let mut dirs = vec![root.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir)? {
                let path = entry?.path();
                let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
                count += 1;
                match self.names.get(&name) {
                    Some(Node::Dir) if path.is_dir() => dirs.push(path),
                    Some(Node::File(file)) if path.is_file() => {
                        if fs::read(&path)? != *self.contents[file].bytes {
                            bail!("{name} does not hold what was recorded");
                        }
                    }
                    Some(_) | None => bail!("{name} was not recorded"),
                }
            }
        }
        if count != self.names.len() {
            bail!("{} names were recorded and {count} are there", self.names.len());
        }
        Ok(())
    }
}
