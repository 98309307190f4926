//! Faults on demand: seeded plans of them, what carries a plan out against a running cluster, and a proxy that delays.
//!
//! | file | idea |
//! |---|---|
//! | `units.rs` | durations, bandwidths and sizes as people write them |
//! | `draw.rs` | times that are drawn from the seed |
//! | `plan.rs`, `check.rs` | a plan as a TOML file, and what is allowed in it |
//! | `schedule.rs` | from a plan to what happens when; pure |
//! | `state.rs` | from what is on to what each node is told; pure |
//! | `run.rs` | carries a schedule out |
//! | `target.rs` | what a plan is carried out against: a cluster of this machine or of others |
//! | `control.rs` | admin calls to one node |
//! | `processes.rs` | processes that somebody else started, by their ids |
//! | `hog.rs` | processes that compete for the disk and the CPU |
//! | `proxy.rs`, `proxy/` | the same delays in front of any server |
//!
//! ```
//! let plan = hedgerow_faults::Plan::named("stall").expect("it is built in");
//! let minute = std::time::Duration::from_secs(60);
//! let events = plan.schedule(3, minute);
//! assert_eq!(events, plan.schedule(3, minute));
//! ```

mod check;
mod control;
mod draw;
pub mod hog;
mod plan;
mod processes;
mod proxy;
mod run;
mod schedule;
mod state;
mod target;
pub mod units;

pub use control::call;
pub use draw::Draw;
pub use plan::{Fault, Kind, Nodes, Plan, PlanError, Zone};
pub use processes::Pids;
pub use proxy::{Direction, Proxies, Proxy};
pub use run::{Report, Running, check, run, start};
pub use schedule::{Competitor, Event, Switch, Where};
pub use state::switches;
pub use target::{Cluster, Processes, Target};
