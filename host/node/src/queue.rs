//! Reads that wait for their turn.
