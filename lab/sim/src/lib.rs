//! Whole clusters on one thread, in virtual time, from one seed.
