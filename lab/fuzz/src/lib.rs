//! Fuzzing of everything that parses bytes from outside.
