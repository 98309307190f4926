//! The cluster's catalogue and where replicas go: pure functions from a catalogue and a request to a changed catalogue.
//!
//! The metadata group keeps the catalogue as rows of an ordinary replicated key-value group. Its leader reads the rows
//! ([`Catalogue::from_rows`]), changes a copy, and writes the difference in one conditional write
//! ([`Catalogue::write_to`]), which fails if somebody else changed the catalogue meanwhile:
//!
//! ```text
//! rows --from_rows--> catalogue --clone--> newer --create_table, register_node, ...--> newer
//!                         '-------------- write_to(newer) ------------------------------'--> one CheckAndMutate
//! ```
//!
//! Learners are arranged beside: the option says how many there should be, [`Catalogue::arrange_learners`] steps towards it.
//!
//! Deliberately absent: clocks, liveness, the network. Who is alive and what time it is are arguments.
#![warn(missing_docs)]

pub mod carrying;
mod catalogue;
mod change;
mod clock;
pub mod duplication;
mod error;
mod learner;
mod life;
pub mod limit;
mod model;
pub mod option;
mod password;
mod repair;
mod rights;
mod row;
mod slow;
mod spread;
mod throttling;

pub use catalogue::Catalogue;
pub use clock::{CLOCK_SKEW_MAX, Clock, ClockRow, ClockWord};
pub use error::{CatalogueError, RowError};
pub use learner::Presence;
pub use life::{Ancestor, Known, Life, RETIRED_MAX, Said, Verdict, is_copy, judge};
pub use model::{Dropped, Node, Partition, Replica, ReplicaRole, Table, TableKind, TableSpec, TableState};
pub use option::Settings;
pub use password::Passwords;
pub use rights::{EVERYONE, Grant, Holder, Rights, TableRights, Tables};
pub use row::VERSION_ROW;
pub use slow::{SCORE_MAX, SCORE_MIN, SCORE_RECOVERED, SCORE_SLOW, SlowLimits, SlowRow, SlowScores};
pub use spread::ZONE_LABEL;
pub use throttling::{Delay, Throttling};
