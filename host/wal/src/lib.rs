//! Durable logs shared by many groups: one directory of segments takes the entries of every group that is given to it.
//!
//! ```text
//!   Append, Append, ...          write: one batch of records, one system call
//!         |                      sync:  one for all of them; only then is anything acknowledged
//!         v
//!   [segment 7][segment 8][segment 9 ......      ]
//!         ^                                            truncate_prefix, remove_group: records fall out of use
//!         |                                            collect: segments without a record in use go, wherever they
//!         '-- Reader, by an index in memory            stand; the few records that hold others back are moved
//! ```
//!
//! - [`mod@format`]: every byte, and why recovery can tell a torn tail from corruption.
//! - [`Log`]: opening, writing, syncing, collecting. After the first failed write or sync it takes nothing more: what a
//!   file holds after a failed sync is unknown, and only reading it again after a restart tells. A segment that cannot be
//!   made for want of space or descriptors is no failure: the write waits ([`Halt::Stalled`]).
//! - [`Reader`]: entries back, while the log goes on.
//! - [`Rounds`]: group commit, driven by the caller; [`Committer`]: the same for all logs of a device, on threads of its own.
//! - [`Log::copy_groups`], [`Log::strike_groups`], [`Log::settle_groups`]: how groups come from one log to another.
//! - [`inspect()`]: a log at rest, without changing it; [`Follower`]: its records, a segment in memory at a time, and what comes
//!   after them while a node writes.

mod collect;
mod commit;
mod copy;
mod files;
mod follow;
pub mod format;
mod index;
mod inspect;
mod log;
#[cfg(feature = "mutations")]
pub mod mutation;
mod reader;
mod recover;
mod rounds;
mod scan;
mod told;
mod turns;
mod write;

pub use collect::Collected;
pub use commit::{Committer, OnRound, Round, Stopped};
pub use copy::CopyError;
pub use follow::{Follower, Seen};
pub use index::ENTRY_MEMORY;
pub use inspect::{Damage, Damaged, End, Inspection, SegmentView, inspect, inspect_as, inspect_running, segment_sizes};
pub use log::{Append, Durability, Failed, Halt, Log, OpenError, Options, Recovered, Stalled, Stats};
pub use reader::Reader;
pub use rounds::{Begun, Rounds, Submission};
pub use scan::Event;
pub use told::Told;
