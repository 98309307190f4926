//! The only door outside: clocks, disks, randomness and threads, the operating system's and the simulated ones.
//!
//! Everything above this crate takes a [`Clock`] or a [`Disk`] as an argument, so that the same code runs on a real
//! machine ([`os`]) and inside a simulation ([`sim`]) where a seed decides what a crash loses.

pub mod clock;
pub mod disk;
pub mod fault;
pub mod os;
pub mod sim;
pub mod timer;

pub use clock::{Clock, Now};
pub use disk::{
    DirLock, Disk, File, OpenMode, Space, create_dir_durably, is_shortage, is_unreadable, parent_of, read_file,
    read_file_if_exists, read_what_is_readable, write_file_durably,
};
