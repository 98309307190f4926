//! Whole clusters on one thread, in virtual time, from one seed.
//!
//! The node's code is the real one ([`hedgerow_node::Node`] with its logs, groups and storage); only what lies around it is
//! simulated: clocks, network, disks, clients. A run is a function of its [`run::Request`], so that a failure is replayed
//! from one number.
//!
//! Commands: `hedgerow-sim --seeds N` runs many, `hedgerow-sim --seed X --trace` replays one, and
//! `hedgerow-sim-mutations` (feature `mutations`) checks that the absence of each safety rule is noticed.
//!
//! | file | idea |
//! |---|---|
//! | `run.rs`, `ending.rs` | a run from beginning to end; what everybody reads last, and the verdict |
//! | `batch.rs` | many runs on all cores, and their summary |
//! | `regressions.rs` | seeds that failed once |
//! | `scenario.rs` | the kinds of runs |
//! | `nemesis.rs`, `fault.rs` | what goes wrong; doing it |
//! | `world.rs`, `queue.rs` | events |
//! | `machine.rs`, `commit.rs`, `clock.rs` | a machine: disk, process, its logs' rounds, clock |
//! | `engine/` | the storage engine of a run: the one in memory, or RocksDB on the simulated disk |
//! | `network.rs`, `greeting.rs`, `line.rs` | wires and connections between machines, and connections of clients |
//! | `copy.rs` | a disk that is put back from a copy |
//! | `client.rs`, `executor.rs`, `traffic.rs`, `tap.rs` | the real client: its tasks, its connections, and what goes over them |
//! | `foreign.rs`, `survey.rs`, `owner.rs`, `echo.rs` | a client of Pegasus; reads of many records at once; tables that come and go; a duplicated table |
//! | `second.rs`, `carriers.rs`, `writer.rs` | a second cluster; what carries changes between two; who writes at either |
//! | `work.rs` | what the work of a node takes |
//! | `workload.rs`, `protocol.rs`, `operator.rs` | what is asked for, in which bytes; who runs the cluster |
//! | `reading.rs`, `session.rs` | how clients read, and what their sessions have seen |
//! | `history.rs`, `linear.rs`, `once.rs`, `oracle.rs`, `export.rs` | what clients saw, and the judges of it |
//! | `invariant.rs`, `answers.rs` | what must hold at every moment; what nodes owe their clients |
//! | `load/` | experiments with load: reads cost time, clients ask whatever comes back |
//! | `mutation.rs` | safety rules that can be taken away |
//! | `fanout/` | a hundred modelled servers and one request over all of them: what each policy makes of the tail |

pub mod answers;
mod away;
pub mod batch;
mod carriers;
pub mod client;
pub mod clock;
mod commit;
pub mod copy;
pub mod echo;
mod ending;
pub mod engine;
pub mod executor;
pub mod export;
pub mod fanout;
mod fault;
mod foreign;
mod greeting;
pub mod history;
pub mod invariant;
pub mod layouts;
pub mod line;
pub mod linear;
pub mod load;
pub mod machine;
#[cfg(feature = "mutations")]
pub mod mutation;
pub mod nemesis;
pub mod network;
pub mod once;
pub mod operator;
pub mod oracle;
pub mod owner;
pub mod progress;
pub mod protocol;
pub mod queue;
pub mod reading;
pub mod regressions;
pub mod run;
pub mod scenario;
mod second;
pub mod session;
pub mod stats;
pub mod survey;
pub mod tap;
mod traffic;
pub mod work;
pub mod workload;
pub mod world;
mod writer;
