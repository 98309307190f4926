//! Clusters of real processes: `hedgerow serve` nodes as children, with data of their own, free ports, and signals on demand.
//! The one place that starts them, for tests, for the demonstration and for experiments.
//!
//! Everything that is started ends with its owner: a [`Cluster`] kills its nodes and removes their data when it is dropped,
//! and the kernel kills the nodes if the thread that started them dies.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let mut cluster = hedgerow_testkit::Cluster::start(3)?;
//! cluster.run(&["table", "create", "t", "--partitions", "4"])?;
//! cluster.kill(2)?;
//! cluster.restart(2)?;
//! # Ok(())
//! # }
//! ```
#![allow(clippy::disallowed_methods, reason = "this crate runs processes of the real operating system")]

mod binary;
mod cluster;
mod documents;
mod node;
mod port;
mod settings;
mod system;
mod tls;

pub use binary::binary;
pub use cluster::{Cluster, Readiness};
pub use documents::{Line, calls_of_x, command_lines};
pub use node::Node;
pub use port::{Port, reserve_port};
pub use settings::{DataPlace, Durability, Settings};
pub use tls::{ROOT, USER};
