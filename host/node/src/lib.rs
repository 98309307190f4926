//! A node: hosts many groups, applies, serves, streams snapshots.
