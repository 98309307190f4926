//! The load generator: sends requests when they are due, measures from then, and says when it cannot be trusted.
//!
//! ```text
//! Workload (TOML)      what is asked: operations, keys, value sizes              workload, keys, sizes, mix
//! Arrivals             when: at fixed times, or when a reply has come            arrivals
//!   engine             sends what is due, hands every end to the record          engine, lanes, pace
//!     Target           a cluster through the Rust client, or a fake in tests     target, cluster
//!   record             histograms by operation, seconds, send lag                record
//!   counter            who served reads, and how old they were at most           reading
//!   counts             extra attempts, as the clients count them                 hedging
//! Measurement          merged over processes, judged, made into a report's run   measurement, verdict
//! ```
//!
//! The generator shares the machine with what it measures. So it is one task on one thread per process, that sends all
//! that is due at each turn; between two requests it draws a row, reads the clock twice and counts.
#![allow(clippy::disallowed_methods, reason = "the generator measures real time and starts processes of its own")]

mod arrivals;
mod builtin;
mod cluster;
pub mod cpu;
mod draw;
mod engine;
#[cfg(test)]
mod engine_tests;
mod fake_node;
mod generator;
mod hedging;
mod keys;
mod lanes;
mod load;
mod measurement;
mod mix;
mod operation;
mod overhead;
mod pace;
mod parcel;
mod prepare;
mod processes;
mod reading;
mod record;
mod reply;
mod run;
#[cfg(test)]
mod run_tests;
mod self_test;
mod values;
#[cfg(test)]
mod virtual_time;
mod work;
mod workload;
mod zipf;

pub use arrivals::{Arrivals, IN_FLIGHT_MAX_DEFAULT, Spacing};
pub use hedging::Hedging;
pub use load::Load;
pub use measurement::{LAG_SHARE_MAX, Label, Measurement};
pub use operation::Operation;
pub use prepare::{TABLE_COMMENT, prepare, prepare_with_rows};
pub use processes::worker;
pub use reading::Reading;
pub use run::run;
pub use self_test::{SelfTest, self_test};
pub use work::ServerWork;
pub use workload::{Keys, Kind, ROWS_MAX, Shares, Spread, Table, VALUE_SIZE_MAX, Values, Workload, ZIPFIAN_EXPONENT};
