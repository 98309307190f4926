//! What is driven while it is recorded, and what must hold in every state that a crash can leave of it.

use crate::flaw::{self, Flaw};
use crate::recorder;
use crate::{replica, storage, wal};
use anyhow::Result;
use clap::ValueEnum;
use hedgerow_wal::Durability;
use std::path::Path;

/// Something that writes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// The real engine below a partition: flushes, compactions, checkpoints, openings.
    Storage,
    /// The log of a data directory: rounds, full segments, segments used again, truncations, removals.
    Wal,
    /// The same without syncs: what is reported survives the process, and after a power failure the log ends earlier.
    WalOs,
    /// Both together, as a node uses them: synced, applied, flushed, cut.
    Replica,
    /// A file replaced with care, as the node replaces its own, for the checker's own tests.
    Flawless,
    /// One that is not synced.
    UnsyncedFile,
    /// One whose name is not synced.
    UnsyncedName,
    /// One that is written to by a name that it should have lost.
    SharedName,
}

impl Scenario {
    /// What is of interest by itself.
    pub(crate) const ALL: [Self; 4] = [Self::Storage, Self::Wal, Self::WalOs, Self::Replica];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Wal => "wal",
            Self::WalOs => "wal-os",
            Self::Replica => "replica",
            Self::Flawless => "flawless",
            Self::UnsyncedFile => "unsynced-file",
            Self::UnsyncedName => "unsynced-name",
            Self::SharedName => "shared-name",
        }
    }

    fn flaw(self) -> Flaw {
        match self {
            Self::Storage | Self::Wal | Self::WalOs | Self::Replica | Self::Flawless => Flaw::None,
            Self::UnsyncedFile => Flaw::UnsyncedFile,
            Self::UnsyncedName => Flaw::UnsyncedName,
            Self::SharedName => Flaw::SharedName,
        }
    }

    /// How long it is driven if nobody says: through every kind of operation several times.
    pub(crate) fn usual_rounds(self) -> u64 {
        match self {
            Self::Storage => 16,
            Self::Wal | Self::WalOs => 120,
            Self::Replica => 40,
            Self::Flawless | Self::UnsyncedFile | Self::UnsyncedName | Self::SharedName => 5,
        }
    }

    /// Drives it below `root`. As long as `rounds` says.
    pub(crate) fn drive(self, root: &Path, rounds: u64) -> Result<()> {
        match self {
            Self::Storage => storage::drive(root, rounds),
            Self::Wal => wal::drive(root, rounds, Durability::Fsync),
            Self::WalOs => wal::drive(root, rounds, Durability::Os),
            Self::Replica => replica::drive(root, rounds),
            Self::Flawless | Self::UnsyncedFile | Self::UnsyncedName | Self::SharedName => {
                flaw::drive(self.flaw(), root, rounds)
            }
        }
    }

    /// What counts of what was `told` after a crash that the system has, or has not, survived.
    pub(crate) fn binding(self, told: &Told, is_kill: bool) -> Told {
        let is_void = |word| self == Self::WalOs && !is_kill && word == Word::Durable;
        Told(told.0.iter().filter(|(word, _)| !is_void(*word)).copied().collect())
    }

    /// Whether what it leaves after a crash in a second life can be told from what it was told.
    pub(crate) fn has_second_life(self) -> bool {
        matches!(self, Self::Storage | Self::Replica)
    }

    /// Goes on in `root` for a while after a crash.
    pub(crate) fn live_on(self, root: &Path) -> Result<()> {
        match self {
            Self::Storage => storage::live_on(root),
            Self::Replica => replica::live_on(root),
            Self::Wal | Self::WalOs | Self::Flawless | Self::UnsyncedFile | Self::UnsyncedName | Self::SharedName => {
                Ok(())
            }
        }
    }

    /// Fails unless what is in `root` keeps what `told` says, in a life after the crash too. `rounds` as it was driven.
    pub(crate) fn check(self, root: &Path, rounds: u64, told: &Told) -> Result<()> {
        match self {
            Self::Storage => storage::check(root, told),
            Self::Wal => wal::check(root, rounds, Durability::Fsync, told),
            Self::WalOs => wal::check(root, rounds, Durability::Os, told),
            Self::Replica => replica::check(root, told),
            Self::Flawless | Self::UnsyncedFile | Self::UnsyncedName | Self::SharedName => {
                flaw::check(self.flaw(), root, told)
            }
        }
    }
}

/// Something that the driven code has begun or promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Word {
    /// Entries, or rounds, up to a number were given to the code: they may be there.
    Given,
    /// Those up to a number were reported durable: they must be there.
    Durable,
    /// The checkpoint of a number was reported complete.
    Checkpoint,
    /// The checkpoint of a number is about to be removed.
    Removal,
}

const WORDS: [(Word, &str); 4] =
    [(Word::Given, "given"), (Word::Durable, "durable"), (Word::Checkpoint, "checkpoint"), (Word::Removal, "removal")];

/// Puts a word into the trace.
pub(crate) fn tell(word: Word, number: u64) {
    if let Some((_, text)) = WORDS.iter().find(|(other, _)| *other == word) {
        recorder::mark(format!("{text} {number}"));
    }
}

/// The words up to some moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Vec<(Word, u64)>);

impl Told {
    /// Takes in a marker of a trace.
    pub(crate) fn hear(&mut self, text: &str) {
        let Some((word, number)) = text.split_once(' ') else { return };
        let word = WORDS.iter().find(|(_, text)| *text == word).map(|(word, _)| *word);
        self.0.extend(word.zip(number.parse().ok()));
    }

    /// The largest number with `word`, 0 without any.
    pub(crate) fn largest(&self, word: Word) -> u64 {
        self.all(word).max().unwrap_or(0)
    }

    /// The numbers with `word`.
    pub(crate) fn all(&self, word: Word) -> impl Iterator<Item = u64> {
        self.0.iter().filter(move |(other, _)| *other == word).map(|(_, number)| *number)
    }

    /// The markers again.
    pub(crate) fn markers(&self) -> Vec<String> {
        let text = |word| WORDS.iter().find(|(other, _)| *other == word).map_or("", |(_, text)| *text);
        self.0.iter().map(|(word, number)| format!("{} {number}", text(*word))).collect()
    }

    /// Equal for states of which the same is to be checked.
    pub(crate) fn fingerprint(&self) -> String {
        format!("{:?}", self.0)
    }
}
