//! What a run leaves behind: a folder with `result.json`, histogram logs, the workload, the fault plan and plots.
//!
//! A measurement fills an [`Outcome`], asks its [`Folder`] where the histograms belong, and ends with
//! [`Folder::write`]. [`Outcome::read`] and [`page`] turn such folders into one HTML page. `docs/results.md` describes
//! the folder.

mod folder;
mod histogram;
mod machine;
mod outcome;
mod page;
mod plot;
mod schema;
mod summary;
mod table;
mod time;
mod units;
mod variants;

pub use crate::time::{rfc3339, utc_now};
pub use folder::Folder;
pub use histogram::{merge_histograms, read_histogram, write_histogram};
pub use page::page;
pub use plot::{Act, Tradeoff, draw_acts};
pub use schema::*;
