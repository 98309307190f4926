//! Real processes under test: `hedgerow serve` nodes as children, with data of their own, free ports, and faults on demand.
//!
//! Everything a test starts ends with it: a [`Cluster`] kills its nodes and removes their data when it is dropped, and
//! the kernel kills the nodes if the test itself dies.
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
#![allow(clippy::disallowed_methods, reason = "this crate tests processes of the real operating system")]

mod binary;
mod cluster;
mod node;
mod port;
mod system;

pub use binary::binary;
pub use cluster::{Cluster, Place};
pub use node::Node;
