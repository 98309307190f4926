//! What the person who starts an experiment chooses.

use crate::experiment::Size;
use std::path::PathBuf;

/// Repetitions of a full run unless told otherwise.
const REPETITIONS_FULL: u32 = 3;
/// Repetitions of a quick run unless told otherwise.
const REPETITIONS_QUICK: u32 = 1;

/// The choices.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is measured.
    pub size: Size,
    /// Turns of each variant; by default three, and one in a quick run.
    pub repetitions: Option<u32>,
    /// Rows of the table, for experiments on one large table; they have their own default.
    pub rows: Option<u64>,
    /// Of everything that is drawn.
    pub seed: u64,
    /// Only the groups with these names; all of them if empty.
    pub only: Vec<String>,
    /// The folder that gets a folder of results.
    pub results: PathBuf,
    /// Where clusters keep their data meanwhile; the system's temporary folder by default.
    pub data: Option<PathBuf>,
    /// The `hedgerow` binary that serves, and that generator processes are started from.
    pub binary: PathBuf,
    /// The command line, for the results.
    pub command: Vec<String>,
}

impl Options {
    /// Turns of each variant.
    #[must_use]
    pub fn repetitions(&self) -> u32 {
        self.repetitions.unwrap_or(match self.size {
            Size::Quick => REPETITIONS_QUICK,
            Size::Full => REPETITIONS_FULL,
        })
    }
}

#[cfg(test)]
impl Options {
    /// Choices of a test that starts nothing.
    pub(crate) fn of_size(size: Size) -> Self {
        Self {
            size,
            repetitions: None,
            rows: None,
            seed: 1,
            only: Vec::new(),
            results: PathBuf::from("unused"),
            data: None,
            binary: PathBuf::from("unused"),
            command: Vec::new(),
        }
    }
}
