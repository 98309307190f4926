//! Storage engines and the state machine over them.
