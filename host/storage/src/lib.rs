//! Storage engines and the state machine over them.
//!
//! [`Engine`] is an ordered map of bytes with atomic batches, an explicit flush and checkpoints. There are two:
//! [`RocksEngines`] opens RocksDB databases, [`MemoryEngines`] keeps rows in memory and is the reference that most of the
//! simulation runs on. [`Partition`] is the state machine of one replica over either: the only code that knows what
//! an operation means. It applies log entries exactly once and answers reads.
//!
//! Neither engine has a log of its own: what was written since the last flush is lost in a crash, and comes back by
//! applying the group's log again from [`Partition::applied`]. So data, applied position and session results always
//! travel in one batch.

mod batch;
mod check;
mod debt;
mod engine;
mod journal;
mod layout;
mod memory;
#[cfg(feature = "mutations")]
pub mod mutations;
mod partition;
mod read;
mod rocks;
mod session;
mod write;

pub use batch::Batch;
pub use debt::{Debt, PARTS};
pub use engine::{
    Cause, Direction, Engine, EngineError, EngineStats, Engines, FailureKind, KeyRange, RowVisitor, Snapshot,
};
pub use memory::{MemoryEngine, MemoryEngines};
pub use partition::{ApplyError, ApplyOutcome, FlushPoint, Partition};
pub use read::{Moment, ReadBudget};
pub use rocks::{RocksEngine, RocksEngines, RocksSettings, is_table};
pub use session::Sessions;
