//! Where a key lives and which replica to ask.
