//! A file that is replaced again and again, once as the node replaces its own and otherwise with a known mistake: the
//! checker has to pass the first and find the others.
#![allow(clippy::disallowed_methods, reason = "its mistakes are those of plain calls")]

use crate::scenario::{Told, Word, tell};
use anyhow::{Context, Result, ensure};
use hedgerow_env::os::OsDisk;
use hedgerow_env::write_file_durably;
use std::fs;
use std::io::Write;
use std::path::Path;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// The new file is not synced before it gets its name.
    UnsyncedFile,
    /// The directory is not synced after that.
    UnsyncedName,
    /// The new file keeps its first name for a while, and the next one is written there.
    SharedName,
}

const SIZE: usize = 2_000;

fn content(number: u64) -> Vec<u8> {
    vec![number as u8; SIZE + number as usize]
}

/// What is recorded.
pub(crate) fn drive(flaw: Flaw, root: &Path, rounds: u64) -> Result<()> {
    let (new, value) = (root.join("new"), root.join("value"));
    for number in 1..=rounds {
        tell(Word::Given, number);
        if flaw == Flaw::None {
            write_file_durably(&OsDisk, &value, &content(number))?;
        } else {
            replace(flaw, &new, &value, number)?;
        }
        if flaw == Flaw::UnsyncedFile {
            fs::File::open(root)?.sync_all()?;
        }
        tell(Word::Durable, number);
    }
    Ok(())
}

fn replace(flaw: Flaw, new: &Path, value: &Path, number: u64) -> Result<()> {
    let mut file = fs::File::create(new)?;
    file.write_all(&content(number))?;
    if flaw != Flaw::UnsyncedFile {
        file.sync_data()?;
    }
    if flaw == Flaw::SharedName {
        // As if by two steps, each of which is durable: the way in which the engine hands a table over.
        let linked = value.with_extension("linked");
        fs::hard_link(new, &linked)?;
        fs::rename(&linked, value)?;
        fs::File::open(value.parent().context("it has a directory")?)?.sync_all()?;
        fs::remove_file(new)?;
    } else {
        fs::rename(new, value)?;
    }
    Ok(())
}

/// What must hold after a crash, and in the life after it.
pub(crate) fn check(flaw: Flaw, root: &Path, told: &Told) -> Result<()> {
    let (new, value) = (root.join("new"), root.join("value"));
    let durable = told.largest(Word::Durable);
    if durable > 0 || value.exists() {
        verify(&value, durable, told.largest(Word::Given))?;
    }
    // The life after it begins another replacement and is killed.
    let mut file = fs::File::create(&new)?;
    file.write_all(b"not complete")?;
    if durable > 0 {
        verify(&value, durable, told.largest(Word::Given)).with_context(|| format!("after going on with {flaw:?}"))?;
    }
    Ok(())
}

fn verify(value: &Path, durable: u64, given: u64) -> Result<()> {
    let found = fs::read(value).context("the value")?;
    ensure!((durable..=given).any(|number| found == content(number)), "the value is none of {durable} to {given}");
    Ok(())
}
