//! What a run leaves behind: a folder with `result.json`, histogram logs, the workload, the fault plan and plots.

mod schema;

pub use schema::*;
