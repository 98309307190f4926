//! The client protocol: bytes in, messages out.
