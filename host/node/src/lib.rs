//! A node: hosts many groups, applies their logs, serves clients, streams checkpoints.
//!
//! [`Node`] is the whole of it as a machine without I/O: events in, an [`Outbox`] out. Two hosts drive it: the operating
//! system's ([`os`]) with sockets, threads and disks, and the simulation with virtual ones.
//!
//! It has two halves. What serves is the shard, which cannot reach the rest: groups with their storage and log writes, and requests. The rest
//! decides what the shard hosts and who should lead.
//!
//! | file | idea |
//! |---|---|
//! | `event.rs` | what a host tells it |
//! | `node.rs` | events, and who takes them; the rest, as a whole |
//! | `shard.rs`, `shards.rs` | a shard, as a whole; all of a node's |
//! | `inbox.rs` | what a shard is handed; its turn |
//! | `view.rs`, `notice.rs` | what the shard goes by of the rest; what it tells the rest |
//! | `os.rs`, `os/` | sockets, threads, disks |
//!
//! The shard:
//!
//! | file | idea |
//! |---|---|
//! | `requests/` | who waits for what: every request of a client from its frame to its reply |
//! | `replicas.rs`, `propose.rs` | the replicas here; writes on their way into a log |
//! | `drive.rs` | carrying out what groups ask for: messages, log writes, checkpoints |
//! | `log_writes.rs` | what is on its way into the logs, and who waits for it |
//! | `apply.rs`, `flush.rs` | applying what is committed, a piece in each turn; when storage is flushed |
//! | `read_indexes.rs`, `read_index_frame.rs` | replicas that do not lead ask what is committed |
//! | `tails.rs`, `tail_frame.rs` | replicas ask the other voters' logs instead, where the leader is silent |
//! | `wake.rs` | deadlines, and what else waits for a time |
//! | `snapshot.rs`, `receive.rs`, `rate.rs` | checkpoints, at either end, and how fast they travel |
//! | `received.rs` | what is here of a checkpoint before it is received |
//! | `checkpoint_room.rs`, `doubt.rs` | where a checkpoint has no room; what a sender does whose checkpoint was refused as damaged |
//! | `damage.rs` | replicas that are found damaged |
//! | `room.rs`, `debt.rs`, `heavy.rs` | writes that are refused: on full disks, for compactions that fall behind, for becoming large |
//! | `retain.rs`, `pace.rs` | what the log is kept for; when a replica has caught up |
//! | `loads.rs`, `removals.rs` | reading exactly-once tables, and clearing up, a few at a time |
//! | `errands.rs` | what is to be done with directories, in order |
//!
//! The rest:
//!
//! | file | idea |
//! |---|---|
//! | `clock.rs` | what time it is, by the word of a majority |
//! | `slow.rs` | which nodes are slow, and who should lead meanwhile |
//! | `admin.rs`, `admin_client.rs`, `status.rs` | clients' administrative operations |
//! | `comparing.rs` | the replicas of a table, read whole |
//! | `metadata.rs`, `catalogue_change.rs` | what the leader of the metadata does; what is to change in the catalogue |
//! | `adopt.rs` | making a catalogue durable before it is acted on |
//! | `hosting.rs` | acting on the catalogue: which replicas are here, and in which group |
//! | `finish.rs`, `failure.rs` | what follows when a job has ended; when storage fails |
//! | `looks.rs` | looking at the disks |
//! | `fault.rs` | faults made on request |
//! | `files.rs` | how many replicas and connections the limit of open files allows |
//! | `address.rs` | where the nodes are |
//! | `report.rs`, `standing.rs` | what nodes tell each other; how all stands by it |
//! | `strangers.rs`, `lives.rs` | nodes of another cluster; copies and clones of a node |
//! | `greeting.rs`, `greeting_frame.rs` | a connection between nodes, from the greeting to the end; the greeting's form |
//! | `founding.rs`, `identity.rs`, `open.rs`, `recover.rs` | starting |
//! | `at_rest.rs` | what a data directory tells without the node |
//!
//! Both:
//!
//! | file | idea |
//! |---|---|
//! | `job.rs`, `install.rs` | work that blocks; among it putting a checkpoint in the place of storage |
//! | `ids.rs` | what its parts call replicas, data directories and logs |
//! | `peer.rs`, `sparse.rs` | the form of what nodes say to each other; lists that would take too much memory |

mod address;
mod admin;
mod admin_client;
mod adopt;
mod apply;
pub mod at_rest;
mod carried;
mod catalogue_change;
mod checkpoint_room;
mod clock;
mod comparing;
pub mod config;
mod creations;
mod damage;
mod debt;
mod doubt;
mod drive;
mod errands;
mod event;
mod failure;
mod fault;
pub mod files;
mod finish;
mod flush;
mod founding;
mod gone;
pub mod greeting;
mod greeting_frame;
mod heavy;
mod hosting;
mod identity;
mod ids;
mod inbox;
pub mod inspect;
mod install;
pub mod job;
mod layout;
mod lives;
mod loads;
mod log_id;
mod log_writes;
mod looks;
mod metadata;
#[cfg(feature = "mutations")]
pub mod mutation;
mod node;
mod notice;
mod open;
pub mod os;
mod outbox;
mod pace;
mod passed_on;
pub mod peer;
mod propose;
mod rate;
pub mod read_index_frame;
mod read_indexes;
mod receive;
mod received;
mod recover;
mod removals;
mod repair;
mod replica;
mod replicas;
mod report;
mod requests;
mod reserve;
mod retain;
mod room;
mod shard;
mod shards;
mod shared_bound;
mod slow;
mod snapshot;
mod sparse;
mod standing;
mod status;
mod strangers;
pub mod tail_frame;
mod tails;
mod view;
mod wake;

pub use config::Config;
pub use event::Event;
pub use hedgerow_placement::{CLOCK_SKEW_MAX, SlowLimits};
pub use identity::IdentityError;
pub use ids::{DirectoryId, LogId, ReplicaKey, ShardId};
pub use job::{Job, JobContext, JobDone, JobResult};
pub use layout::LogLayout;
pub use node::Node;
pub use open::{OpenError, Opened};
pub use outbox::{ConnectionId, Outbox};
pub use requests::login::Bound;
pub use requests::read_jobs::{ReadSize, Wanted};
pub use requests::users::Who;
