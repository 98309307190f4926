//! The client's side: from a call to a frame, from a frame to a reply.

use crate::error_name::ErrorName;
use crate::frame::{self, Broken, MAGIC, V0_HEADER_SIZE};
use crate::header::{Header, ReplyExtension};
use crate::message::Message;
use crate::method::{Body, Method};
use crate::reply::{Detail, Failure, Reply, has_response_struct};
use crate::request::{CALL, REPLY, STRICT};
use crate::thrift::{Malformed, Reader, put_bytes, tag};
use crate::value::Wire;
use bytes::{BufMut, Bytes, BytesMut};

/// A reply as a server sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyFrame {
    /// The number of the request that it answers.
    pub sequence_id: i32,
    /// The call that it answers; `None` for a failure of a call that this side does not know.
    pub method: Option<Method>,
    /// What it says.
    pub reply: Reply,
    /// The server's own fields.
    pub extension: Option<ReplyExtension>,
}

/// Appends the frame of a call in the newer form (v1), which carries the backup flag and the extension.
pub fn encode_request(out: &mut BytesMut, header: &Header, sequence_id: i32, body: &Body) {
    let start = out.len();
    out.put_slice(&MAGIC);
    out.put_u32(1);
    out.put_u64(0);
    let meta = out.len();
    header.write_fields(out);
    out.put_u8(tag::STOP);
    let message = out.len();
    put_message(out, sequence_id, body);
    let (meta_size, message_size) = ((message - meta) as u32, (out.len() - message) as u32);
    out[start + 8..start + 12].copy_from_slice(&meta_size.to_be_bytes());
    out[start + 12..start + 16].copy_from_slice(&message_size.to_be_bytes());
}

/// Appends the frame of a call in the older form (v0), as Pegasus' Go, Python and Node clients send it. It has no room
/// for the backup flag and the extension, which are left out.
pub fn encode_request_v0(out: &mut BytesMut, header: &Header, sequence_id: i32, body: &Body) {
    let start = out.len();
    out.put_slice(&MAGIC);
    out.put_u32(0);
    out.put_u32(V0_HEADER_SIZE as u32);
    out.put_u32(0);
    out.put_u64(0);
    out.put_i32(header.app_id);
    out.put_i32(header.partition_index);
    out.put_i32(header.timeout_ms);
    out.put_i32(header.app_id.wrapping_mul(7919).wrapping_add(header.partition_index));
    out.put_u64(header.partition_hash);
    let message = out.len();
    put_message(out, sequence_id, body);
    let message_size = (out.len() - message) as u32;
    out[start + 16..start + 20].copy_from_slice(&message_size.to_be_bytes());
}

fn put_message(out: &mut BytesMut, sequence_id: i32, body: &Body) {
    out.put_u32(STRICT | CALL);
    put_bytes(out, body.method().name().as_bytes());
    out.put_i32(sequence_id);
    body.write(out);
}

/// How many bytes the reply at the front of `buffer` takes; `None` if `buffer` is too short to tell.
///
/// # Errors
/// [`Broken`] if no reply has such a size: the connection is of no use any more.
pub fn reply_frame_size(buffer: &[u8]) -> Result<Option<usize>, Broken> {
    let Some(size) = frame::word(buffer, 0) else { return Ok(None) };
    if size < 4 { Err(Broken::FrameSize(size.into())) } else { frame::within_limit(size.into()).map(Some) }
}

/// Reads a whole reply, whose size [`reply_frame_size`] told. Values of the result are slices of `frame`.
///
/// # Errors
/// [`Malformed`] if the bytes are not a reply, or the reply to a call that this side does not know.
pub fn decode_reply(frame: Bytes) -> Result<ReplyFrame, Malformed> {
    if frame::word(&frame, 0) != u32::try_from(frame.len()).ok() {
        return Err(Malformed("reply: the frame is not whole"));
    }
    let mut input = Reader::new(frame);
    input.go_to(4, usize::MAX);
    let name = ErrorName::read(&mut input)?;
    if input.i32()? as u32 != STRICT | REPLY {
        return Err(Malformed("reply: its message is not a reply"));
    }
    let name_size = usize::try_from(input.i32()?).map_err(|_| Malformed("length: it is negative"))?;
    let call = input.pass(name_size)?;
    let method = input.at(call).strip_suffix(b"_ACK").and_then(Method::from_name);
    let sequence_id = input.i32()?;
    if name != ErrorName::Ok {
        let detail = if input.remaining() > 0 { Some(Detail::read(&mut input)?) } else { None };
        let reply = Reply::Failed(Failure { name, detail });
        return Ok(ReplyFrame { sequence_id, method, reply, extension: None });
    }
    let method = method.ok_or(Malformed("reply: it answers an unknown call"))?;
    if has_response_struct(method) && input.field()? != Some((tag::STRUCT, 0)) {
        return Err(Malformed("reply: it has no response"));
    }
    let (reply, extension) = Reply::read(method, &mut input)?;
    Ok(ReplyFrame { sequence_id, method: Some(method), reply, extension })
}
