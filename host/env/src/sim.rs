//! The simulated machine: a clock that moves when told, and a disk that forgets in a crash what was not synced.

mod clock;
mod disk;
mod file;
mod tree;

pub use clock::SimClock;
pub use disk::SimDisk;
