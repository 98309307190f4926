//! The only door outside: clock, disk, network, randomness, threads.
