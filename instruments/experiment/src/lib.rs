//! Named experiments: variants side by side, repeated, checked, beside the published figures.
//!
//! An experiment says what it compares ([`Experiment::groups`]) and how one variant is measured once
//! ([`Experiment::measure`]); the frame ([`conduct`]) does the rest:
//!
//! ```text
//! for each group of variants that are compared
//!     prepare A, prepare B, ...          once: a cluster of processes with its data
//!     A1 B1 ... A2 B2 ... A3 B3 ...      repetitions, interleaved; a VOID turn is repeated once
//! tables: growth or ratios, ours beside the published
//! checks: what had to hold for the figures to mean something
//! ```
//!
//! `experiments/` has one file per experiment. How to run them: docs/experiments.md.

mod checks;
mod clock;
mod experiment;
mod experiments;
mod frame;
mod hedged;
mod options;
mod pair;
mod progress;
mod published;
mod read_counts;
mod stage;
mod summary;

pub use checks::Ending;
pub use experiment::{Context, Description, Experiment, Group, Size, Variant};
pub use experiments::{Entry, list, run};
pub use frame::{Finished, conduct};
pub use options::Options;
pub use progress::{Event, Progress};
pub use published::{Beside, Comparison};
pub use summary::Spread;
