//! The table's limit on extra attempts.
