//! Flame graphs of server and client, and counts of allocations and system calls per operation.

fn main() {}
