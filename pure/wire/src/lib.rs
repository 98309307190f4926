//! The client protocol, Apache Pegasus' with our extension fields: bytes in, messages out, and back.
//!
//! ```text
//!            frame            request                serve
//! bytes ──► split ──► decode_request ──► Body ──► operation ──► op::Read / op::Write
//! bytes ◄─────────── encode_reply ◄──── Reply ◄── read_reply / write_reply
//! ```
//!
//! [`call`] is the same the other way round, for clients, and [`relay`] is for what stands between them. Nothing here opens a socket;
//! whatever the bytes, decoding ends in a message or in an error, takes memory in proportion to the frame, and copies no key and no
//! value.
#![no_std]

extern crate alloc;

pub mod call;
pub mod error_name;
pub mod frame;
pub mod header;
pub mod message;
pub mod method;
pub mod relay;
pub mod reply;
pub mod request;
pub mod serve;
#[cfg(test)]
mod tests;
mod thrift;
pub mod value;

pub use error_name::ErrorName;
pub use frame::{Broken, frame_size};
pub use header::{Cause, Extension, Header, ReplyExtension, Tie};
pub use method::{Class, Method};
pub use relay::Relay;
pub use reply::{Failure, Reply, encode_not_implemented, encode_rejection, encode_reply};
pub use request::{Body, Rejected, Request, decode_request};
pub use thrift::Malformed;
pub use value::{Address, HostPort, PartitionId, PlainAddress, PlainAddresses, Text};
