//! The Rust client of Hedgerow.
//!
//! ```no_run
//! # async fn example() -> hedgerow_client::Result<()> {
//! use hedgerow_client::Client;
//!
//! let client = Client::connect(&["127.0.0.1:34601", "127.0.0.1:34602", "127.0.0.1:34603"]).await?;
//! let table = client.open_table("users").await?;
//! table.set("user-17", "name", "Ada").await?;
//! assert_eq!(table.get("user-17", "name").await?.as_deref(), Some(&b"Ada"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! The same against a cluster of your own: `cargo run -p hedgerow-client --example quickstart -- --cluster
//! 127.0.0.1:34601`.
//!
//! # How a request travels
//!
//! ```text
//! Table / OrderedTable      builds the message
//!   call                    attempts, deadline, what a failure teaches       [hedgerow_routing::reaction]
//!     routes                which partition, which node, the table's map     [hedgerow_routing::TableMap]
//!     session               the write's number, the same in every attempt
//!     pool ─ connection     encodes into the connection's buffer             [hedgerow_wire::call]
//!               driver      the one task that owns the socket
//! ```
//!
//! - Requests are pipelined over few connections; those encoded in one turn of the runtime leave in one system call.
//! - A failed attempt is repeated where that is safe, until the operation's deadline. Writes carry the client's id and a
//!   sequence number, so that the cluster applies a repeated write once.
//! - [`Error::kind`] says what to do about an error, [`Error::is_outcome_unknown`] whether a write may have happened.
//!
//! Deliberately absent: hedged reads and read levels below linearizable.

mod admin;
mod call;
mod client;
mod cluster;
mod connection;
mod driver;
mod error;
mod options;
mod ordered;
mod pool;
mod routes;
mod runtime;
mod scan;
mod session;
mod table;
mod types;

pub use admin::{NodeSummary, TableSpec, TableSummary};
pub use client::Client;
pub use error::{Error, ErrorKind, Result};
pub use hedgerow_routing::TableKind;
pub use hedgerow_types::op::{Filter, FilterKind};
pub use options::ClientOptions;
pub use ordered::{OrderedScanner, OrderedTable};
pub use scan::Scanner;
pub use table::Table;
pub use types::{
    Check, Checked, Comparison, Condition, Expiry, Life, Mutation, OrderedRow, Range, Row, ScanOptions, Select,
    SortRow, SortRows,
};
