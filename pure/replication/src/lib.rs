//! One replicated group: events in, actions out.
