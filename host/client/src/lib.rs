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
//! # How a read is made
//!
//! By default a read goes to the partition's leader and is linearizable. [`Table::reading`] gives a handle that reads
//! otherwise, at one of four levels and from any replica; [`ClientOptions::read`] does so for all tables of a client.
//!
//! ```no_run
//! # async fn example() -> hedgerow_client::Result<()> {
//! use hedgerow_client::{Client, ClientOptions, Labels, Observer, ReadLevel, ReadOptions, ReplicaRead};
//! use std::time::Duration;
//!
//! // Where this client stands, in the words of the nodes' labels.
//! let options = ClientOptions { labels: Labels::default().with("zone", "a"), ..ClientOptions::default() };
//! let client = Client::connect_with(&["127.0.0.1:34601"], options).await?;
//! let users = client.open_table("users").await?;
//!
//! // The nearest replica, at most two seconds old; and tell who it was.
//! let near = users.reading(ReadOptions {
//!     level: Some(ReadLevel::Bounded(Duration::from_secs(2))),
//!     mode: ReplicaRead::ClosestReplicas,
//!     observer: Some(Observer::new(|served| println!("{} served, {:?} old", served.node, served.staleness))),
//!     ..ReadOptions::default()
//! });
//! println!("{:?}", near.get("user-17", "name").await?);
//!
//! // Any replica, but nothing older than what this session wrote or read.
//! let session = client.session();
//! let any = ReadOptions { level: Some(ReadLevel::Session), mode: ReplicaRead::LeaderAndFollower, ..ReadOptions::default() };
//! let mine = users.reading(any).in_session(&session);
//! mine.set("user-17", "city", "London").await?;
//! assert!(mine.get("user-17", "city").await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! | level | promise |
//! |---|---|
//! | linearizable | the latest value that was acknowledged before the read began |
//! | session | nothing older than what the session saw or wrote; the token goes to other processes as text |
//! | bounded | nothing is missing that was acknowledged longer ago than the bound; the reply says how old it may be |
//! | eventual | some committed state |
//!
//! A replica that cannot keep the promise says so at once, and the next one is asked without a pause; the leader is
//! the last. Which one is asked first: [`ReplicaRead`] says who is preferred, and among these it is load, latency and
//! failures that decide ([`hedgerow_routing::Selector`]).
//!
//! # When a replica is slow
//!
//! A table that is opened with a delay in milliseconds, as in Pegasus, sends a read that has no reply by then to one more
//! replica; [`HedgeOptions`] say more. Every attempt keeps the read's level, and the first success wins.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hedgerow_client::{Client, HedgeOptions, TieMode};
//!
//! let client = Client::connect(&["127.0.0.1:34601"]).await?;
//! let simple = client.open_table_with("users", 10).await?;
//!
//! // As fast as 2 % of extra reads can make it; and no write waits longer than 50 ms for a slow node either.
//! let options = HedgeOptions {
//!     reads: "adaptive=2%".parse()?,
//!     writes: "50ms".parse()?,
//!     tie: TieMode::Auto,
//!     ..HedgeOptions::default()
//! };
//! let users = client.open_table_with("users", options).await?;
//! println!("{:?}", users.get("user-17", "name").await?);
//! println!("{:?}", client.hedge_metrics().counters);
//! # Ok(())
//! # }
//! ```
//!
//! | option | default | meaning |
//! |---|---|---|
//! | [`HedgeOptions::reads`] | none | when a read gets further attempts: `10ms`, `10ms+50ms`, `99p`, `min(99p,10ms)`, `adaptive=2%` |
//! | [`HedgeOptions::writes`] | none | the same for writes: any node takes them, and each is applied once |
//! | [`HedgeOptions::tie`] | never | two replicas that know of each other: whoever begins first has the other drop its copy |
//! | [`HedgeOptions::retry`] | next replica | what follows a failed attempt |
//! | [`HedgeOptions::fallback`] | none | linearizable within a time, or else at most so old; [`Served::level`] says which |
//! | [`HedgeOptions::busy_threshold`] | none | a replica whose queue takes longer says so at once, and the next one is asked |
//! | [`HedgeOptions::budget`] | the client's | what extra attempts may cost |
//! | [`HedgeOptions::is_idempotent`] | as the operation | `Some(false)`: never two copies under way |
//! | [`HedgeOptions::observer`] | none | is told about every attempt |
//! | [`HedgeOptions::wants_trace`] | no | [`Served::mode`] says how the node came to its answer |
//! | [`ClientOptions::budget`] | 5 %, 20 at once | for all kinds of extra attempts of all tables together |
//!
//! - *Budget.* Only first attempts add to it, so that there are never more extra ones than 20 and 5 % of the requests,
//!   however slow or broken everything is. Without a token a request waits for the attempt that it has, until its deadline:
//!   a retry, too, that would be a copy of something which may still be under way needs one. What was refused without work
//!   goes to the right replica for nothing.
//! - *Distinct replicas.* No two attempts of a round go to one node; without another replica there is no hedge.
//! - *Losers* are cancelled on the wire, and the time that they were waited for counts in what is known of their replicas.
//! - *Silent nodes.* Where requests have waited for the delay and a node has said nothing at all, first attempts of reads at the levels
//!   [`ReadLevel::Bounded`] and [`ReadLevel::Eventual`] begin at another replica. One per delay looks whether the node answers again.
//! - *Little traffic.* 5 % of a few requests are less than one: the first 20 extra attempts come from what there is at
//!   first. Policies that measure need about 100 requests: before, `adaptive` sends nothing, and `99p` waits for its longest delay, 1 s.
//! - [`Client::hedge_metrics`] counts by kind and by node. When nothing is slow, hedging costs a request two short locks and
//!   one small allocation, and a read at one of the levels that begin elsewhere three locks more; `cargo run --release -p hedgerow-client --example hedging_cost` measures it.
//!
//! # When a future is dropped
//!
//! Nobody waits for the operation any more. A read is taken back at its server, hedged or not: what waits there ends unrun, and no answer comes. That
//! is best effort, needs no answer, and dropping never waits for it. A write may have been applied, may still be, or never will. Dropping it does not take it back.
//!
//! # Metrics
//!
//! With the feature `metrics` of this crate the recorder that the program has installed for the facade `metrics` is told of every attempt,
//! of plain requests too. Install it before the client is made: a node's metrics are registered when it is first asked.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `hedgerow_client_attempts_total` | counter | `node`, `kind` | attempts sent: `hedge`, `tie`, `retry` and `fallback` are extra ones, `first` are all others |
//! | `hedgerow_client_attempts_ended_total` | counter | `node`, `outcome` | attempts that are over |
//! | `hedgerow_client_attempt_seconds` | histogram | `node` | of those `answered`: seconds from when it was sent until its caller had the reply |
//!
//! `node` is an address, of which a client knows as many as the cluster has. `outcome` is `answered`; `refused`, with a refusal; `lost`, when
//! the connection broke or no reply came in time; `cancelled`, when another attempt was faster or nobody waited any more; or `unsent`,
//! when there was no connection, or one that was full. What is asked of any node, such as a table's map, counts too. Without the
//! feature this costs nothing; with it and without a recorder, a look at the clock for each attempt.
//!
//! # How one request differs
//!
//! A handle is cheap to make of another one, for a single request too: what is known of latencies, and the budget, are shared.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hedgerow_client::{Client, ClientOptions, Profile, ReadLevel, ReplicaRead, Row};
//! use std::collections::BTreeMap;
//! use std::time::Duration;
//!
//! // Named once, as execution profiles are in Cassandra's drivers ...
//! let page = Profile::default().within(Duration::from_millis(50)).hedge("99p".parse()?);
//! let profiles = BTreeMap::from([("page".to_owned(), page)]);
//! let client = Client::lazy(&["127.0.0.1:34601"], ClientOptions { profiles, ..ClientOptions::default() })?;
//! let users = client.open_table("users").await?;
//! println!("{:?}", users.profile("page")?.get("user-17", "name").await?);
//!
//! // ... or said where they are made: from any replica, at most two seconds old, with a second attempt after 5 ms and an end after 20.
//! let stale = users.level(ReadLevel::Bounded(Duration::from_secs(2))).replicas(ReplicaRead::ClosestAdaptive);
//! let read = stale.hedge("5ms".parse()?).within(Duration::from_millis(20));
//! println!("{:?}", read.get("user-17", "name").await?);
//! println!("{:?}", users.replicas_of("user-17", "name"));
//!
//! // Many writes at a time, each by itself.
//! let rows = (0..1_000).map(|number| Row::new(format!("user-{number}"), "name", "Ada"));
//! assert!(users.batch_set(rows).await.iter().all(Result::is_ok));
//! assert!(client.close(Duration::from_secs(5)).await);
//! # Ok(())
//! # }
//! ```
//!
//! [`Table::without_hosts`] leaves nodes alone, and three decisions may be a type of yours: [`SpeculativeExecutionPolicy`],
//! [`LoadBalancingPolicy`] and [`RetryPolicy`]. Each says what it cannot change.
//!
//! The level does not change who is asked: [`Table::replicas`] does, and hedges ask any replica. Scans are streams
//! ([`Scanner::into_stream`]). With a subscriber of `tracing` at `DEBUG`, each request is a span, with an event for each of its attempts.
//!
//! # How a request travels
//!
//! ```text
//! Table / OrderedTable      builds the message
//!   handle                  one attempt at a time, or a race of several
//!     race                  several attempts of one request                  [hedgerow_hedge::Race]
//!       metrics              latencies, counters and budgets of these         [hedgerow_hedge::Hedger]
//!       alarm               when the next attempt is due
//!   call                    attempts, deadline, what a failure teaches       [hedgerow_routing::reaction]
//!     routes                which partition, which node, the table's map     [hedgerow_routing::TableMap]
//!     profile               what differs for one request
//!     retry                 what a caller's policy makes of a failure
//!     reading, session      level, mode and token of reads that are not made by default
//!     selection             which replica, where it need not be the leader   [hedgerow_routing::Selector]
//!       balancing           the same by a caller's policy
//!     sequences             the write's number, the same in every attempt
//!     pool ─ connection     encodes into the connection's buffer             [hedgerow_wire::call]
//!               driver      the one task that owns the socket
//!               recording   what each node was sent and how it answered
//!   refusal, lost           what a request that failed means
//! ```
//!
//! - No file imports one that stands above it: client, tables, handle, race, call, routes, cluster, pool, connection,
//!   and at the bottom what everybody shares.
//! - Requests are pipelined over few connections; those encoded in one turn of the runtime leave in one system call.
//! - A failed attempt is repeated where that is safe, until the operation's deadline. Writes carry the client's id and
//!   a sequence number, so that the cluster applies a repeated write once.
//! - [`Error::kind`] says what to do about an error, [`Error::is_outcome_unknown`] whether a write may have happened.

mod admin;
mod alarm;
mod balancing;
mod call;
mod client;
mod cluster;
mod connection;
mod credentials;
mod driver;
#[doc(hidden)]
pub mod duplication;
mod error;
mod handle;
mod hedging;
mod lock;
mod lost;
mod metrics;
mod options;
mod ordered;
mod pages;
#[doc(hidden)]
pub mod password_file;
mod passwords;
mod pool;
mod profile;
mod race;
mod reading;
mod record;
mod recording;
mod refusal;
mod resolve;
mod retry;
mod rights;
mod routes;
mod runtime;
mod scan;
mod selection;
mod sequences;
mod served;
mod session;
#[cfg(feature = "simulation")]
pub mod simulation;
mod status;
mod table;
mod time;
mod tokens;
mod types;
#[cfg(feature = "simulation")]
mod world;

pub use admin::{DroppedTable, Kept, NodeSummary, Reserve, TableSpec, TableSummary};
pub use balancing::{LoadBalancing, LoadBalancingPolicy};
pub use client::Client;
pub use credentials::Credentials;
pub use error::{Error, ErrorKind, Result};
pub use hedgerow_hedge::{
    BudgetOptions, Counters, Gaps, InvalidBudget, InvalidPolicy, Kind, Latencies, Plan, Policy, RequestInfo,
    SpeculativeExecutionPolicy,
};
pub use hedgerow_routing::{
    Address, Candidate, InvalidLabels, InvalidReplicaRead, Labels, ReplicaRead, State, TableKind,
};
pub use hedgerow_tls::{ClientTls, ClientTlsFiles, ClusterName, FileError, NameError};
pub use hedgerow_types::op::{Filter, FilterKind};
pub use hedgerow_types::{Index, PartitionIndex, ReadLevel, SessionToken};
pub use hedging::{
    Attempt, AttemptEvent, AttemptObserver, Fallback, HedgeMetrics, HedgeOptions, HostMetrics, TableOptions, TieMode,
};
pub use options::ClientOptions;
pub use ordered::{OrderedScanner, OrderedTable};
pub use profile::Profile;
pub use reading::{Observer, ReadOptions};
pub use retry::{FailedAttempt, Retry, RetryDecision, RetryPolicy};
pub use rights::{Holding, Identity};
pub use scan::Scanner;
pub use served::{Role, Served};
pub use session::Session;
pub use status::{
    ClusterStatus, DiskStatus, DroppedTableStatus, NodeStatus, PartitionStatus, ReplicaStatus, Summary, TableStatus,
    Transfer,
};
pub use table::Table;
pub use types::{
    Before, Check, Checked, Comparison, Condition, Expiry, Life, Mutation, OrderedRow, Range, Row, ScanOptions, Select,
    SortRow, SortRows,
};
