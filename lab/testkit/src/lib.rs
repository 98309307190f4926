//! Real processes under test.
