//! From a frame to a request.

pub use crate::method::Body;

use crate::error_name::ErrorName;
use crate::frame::{self, Broken, NAME_SIZE_MAX};
use crate::header::Header;
use crate::method::Method;
use crate::thrift::{Malformed, Reader};
use bytes::Bytes;
use core::ops::Range;

/// First half-word of a message in thrift's strict form; the second is its type.
pub(crate) const STRICT: u32 = 0x8001_0000;
/// Message type of a call.
pub(crate) const CALL: u32 = 1;
/// Message type of a reply.
pub(crate) const REPLY: u32 = 2;
/// Message type of a call without reply.
const ONE_WAY: u32 = 4;

/// A request as a client sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it goes and how.
    pub header: Header,
    /// The caller's number for it within its connection; the reply must carry the same.
    pub sequence_id: i32,
    /// The call.
    pub body: Body,
}

/// A frame that is not a request we know. No other connection is touched by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Close the connection.
    Close(Broken),
    /// Answer with [`crate::encode_rejection`] and go on.
    Answer {
        /// The call's name, as it came.
        name: Bytes,
        /// The call's number.
        sequence_id: i32,
        /// What to say.
        error: ErrorName,
    },
    /// Answer with [`crate::encode_not_implemented`] and go on: an administrative call of Pegasus' that there is not here.
    NotImplemented {
        /// The call's name, as it came.
        name: Bytes,
        /// The call's number.
        sequence_id: i32,
    },
    /// Go on without an answer: the call is one-way.
    Ignore,
}

/// Reads a whole frame, whose size [`crate::frame_size`] told. Keys and values of the result are slices of `frame`.
///
/// # Errors
/// [`Rejected::Answer`] where the call's name and number could be read: `ERR_HANDLER_NOT_FOUND` for a name that we do
/// not serve, `ERR_INVALID_DATA` for arguments that do not parse. [`Rejected::NotImplemented`] for the name of an
/// administrative call that we do not serve. [`Rejected::Close`] otherwise.
pub fn decode_request(frame: Bytes) -> Result<Request, Rejected> {
    let (header, mut input) = frame::split(frame).map_err(Rejected::Close)?;
    let (name, sequence_id) = read_begin(&mut input).map_err(|error| Rejected::Close(error.into()))?;
    let answer = |input: &Reader, name: Range<usize>, error| {
        let name = input.data().slice(name);
        Err(Rejected::Answer { name, sequence_id, error })
    };
    let Some(method) = Method::from_name(input.at(name.clone())) else {
        if is_administrative(input.at(name.clone())) {
            return Err(Rejected::NotImplemented { name: input.data().slice(name), sequence_id });
        }
        return answer(&input, name, ErrorName::HandlerNotFound);
    };
    match header.and_then(|header| Ok(Request { header, sequence_id, body: Body::read(method, &mut input)? })) {
        Ok(request) => Ok(request),
        Err(_) if method.is_one_way() => Err(Rejected::Ignore),
        Err(_) => answer(&input, name, ErrorName::InvalidData),
    }
}

/// Whether a call that we do not serve is one of Pegasus' administrative ones. Their clients send a transport error again
/// until their deadline, and end at once over an error inside the reply, whose first field it is in each of them.
fn is_administrative(name: &[u8]) -> bool {
    const OTHERS: [&[u8]; 3] = [b"RPC_DETECT_HOTKEY", b"RPC_ADD_NEW_DISK", b"RPC_COLD_BACKUP"];
    name.starts_with(b"RPC_CM_") || name.starts_with(b"RPC_QUERY_") || OTHERS.contains(&name)
}

/// Name and number of a call, in thrift's strict form or in the old one, which begins with the name.
fn read_begin(input: &mut Reader) -> Result<(Range<usize>, i32), Malformed> {
    let first = input.i32()? as u32;
    let is_strict = first & 0xffff_0000 == STRICT;
    if is_strict && !matches!(first & 0xff, CALL | ONE_WAY) {
        return Err(Malformed("message: it is not a call"));
    }
    let name_size = if is_strict { input.i32()? as u32 } else { first };
    if name_size as usize > NAME_SIZE_MAX {
        return Err(Malformed("message: its name is longer than 47 bytes"));
    }
    let name = input.pass(name_size as usize)?;
    if !is_strict && !matches!(u32::from(input.u8()?), CALL | ONE_WAY) {
        return Err(Malformed("message: it is not a call"));
    }
    Ok((name, input.i32()?))
}
