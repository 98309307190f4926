//! Rows in files: what a row is, and one reader and one writer for each of the three formats.
//!
//! | format | hash table | ordered table |
//! |---|---|---|
//! | TSV | hash key, sort key, value [, seconds to live] | key, value [, seconds to live] |
//! | CSV | the same columns; a first line that names them (`hash_key,sort_key,value` or `key,value`, in any case and with spaces too) is skipped | the same |
//! | JSON Lines | `{"hash_key", "sort_key", "value" [, "ttl_seconds"]}` | `{"key", "value" [, "ttl_seconds"]}` |

mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::{Item, Reader};
pub(crate) use write::{Writer, insert_field};

use crate::files;
use anyhow::{Result, bail};
use bytes::Bytes;
use clap::ValueEnum;
use std::path::Path;

/// The format of a file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns separated by tabs, with \t, \n, \r, \\ and \xNN as escapes.
    Tsv,
    /// Columns separated by commas, quoted where needed (RFC 4180).
    Csv,
    /// One JSON object per line.
    Jsonl,
}

impl Format {
    /// The format that was asked for, or else that of the file: lines of tab-separated values on standard input or output.
    pub(crate) fn choose(asked: Option<Self>, path: &Path) -> Result<Self> {
        match asked {
            Some(format) => Ok(format),
            None if files::is_standard(path) => Ok(Self::Tsv),
            None => Self::of_path(path),
        }
    }

    /// The format that a file's name tells.
    fn of_path(path: &Path) -> Result<Self> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "tsv" | "tab" => Ok(Self::Tsv),
            "csv" => Ok(Self::Csv),
            "jsonl" | "ndjson" => Ok(Self::Jsonl),
            _ => bail!("the name of {} does not tell its format: give --format tsv, csv or jsonl", path.display()),
        }
    }
}

/// Which columns a table's rows have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Hash key, sort key, value.
    Hash,
    /// Key, value.
    Ordered,
}

impl Shape {
    /// The names of the columns in front of the optional time to live.
    pub(crate) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Hash => &["hash_key", "sort_key", "value"],
            Self::Ordered => &["key", "value"],
        }
    }
}

/// The name of the optional last column.
pub(crate) const TTL_COLUMN: &str = "ttl_seconds";

/// A row of a table. In an ordered table `hash_key` is empty and `sort_key` is the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) hash_key: Bytes,
    pub(crate) sort_key: Bytes,
    pub(crate) value: Bytes,
    /// Seconds until the row expires; `None` = never.
    pub(crate) ttl_seconds: Option<u64>,
}
