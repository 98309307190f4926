//! Real records to load: the machine's Debian packages, or the lines of a text file.

use crate::files;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use std::path::Path;
use std::process::Command;

/// One record.
pub(crate) struct Record {
    pub(crate) hash_key: String,
    pub(crate) sort_key: String,
    pub(crate) value: Bytes,
}

/// What `dpkg-query` is asked for: section, name, and what there is to say.
const FORMAT: &str = "${Section}\\t${Package}\\t${Version}, ${Installed-Size} KiB: ${binary:Summary}\\n";
/// A text file that every Unix has.
const SERVICES: &str = "/etc/services";

/// The records of `file`, or of this machine.
pub(crate) fn records(file: Option<&Path>) -> Result<Vec<Record>> {
    if let Some(path) = file {
        return of_file(path);
    }
    match Command::new("dpkg-query").args(["-W", "-f", FORMAT]).output() {
        Ok(output) if output.status.success() => {
            super::say("real data: the Debian package database (hash key = section, sort key = package)");
            Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(package).collect())
        }
        Ok(_) | Err(_) => of_file(Path::new(SERVICES)),
    }
}

fn package(line: &str) -> Option<Record> {
    let mut fields = line.splitn(3, '\t');
    let (section, name, value) = (fields.next()?, fields.next()?, fields.next()?);
    let hash_key = if section.is_empty() { "unknown" } else { section };
    Some(Record {
        hash_key: hash_key.to_owned(),
        sort_key: name.to_owned(),
        value: Bytes::copy_from_slice(value.as_bytes()),
    })
}

fn of_file(path: &Path) -> Result<Vec<Record>> {
    super::say(&format!("real data: {} (hash key = first letter, sort key = line number)", path.display()));
    let text = files::read_text(path).with_context(|| format!("reading {}", path.display()))?;
    let records: Vec<Record> = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| Record {
            hash_key: line.trim().chars().take(1).collect(),
            sort_key: format!("{number:08}"),
            value: Bytes::copy_from_slice(line.as_bytes()),
        })
        .collect();
    ensure!(!records.is_empty(), "{} has no line to load", path.display());
    Ok(records)
}
