//! Frames: where a request ends in a stream of bytes, and what stands around its message.

use crate::header::Header;
use crate::message::read_struct;
use crate::thrift::{Malformed, Reader};
use bytes::Bytes;
use hedgerow_types::limit::FRAME_SIZE_MAX;

/// First bytes of every request.
pub(crate) const MAGIC: [u8; 4] = *b"THFT";
/// Size of a v0 header, also written in it.
pub(crate) const V0_HEADER_SIZE: usize = 48;
/// Size of what precedes a v1 meta struct.
pub(crate) const V1_HEADER_SIZE: usize = 16;
/// Longest name of a call (Pegasus).
pub(crate) const NAME_SIZE_MAX: usize = 47;
/// Largest meta struct of a v1 request, bytes.
const META_SIZE_MAX: usize = 64 << 10;

/// A stream of bytes that is not the protocol, or no longer: the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The stream does not begin as a request does.
    #[error("the stream does not begin with THFT")]
    Magic,
    /// The header has a version that does not exist.
    #[error("header version {0} is not known")]
    Version(u32),
    /// A v0 header says another size than it has.
    #[error("a v0 header of {0} bytes")]
    HeaderSize(u32),
    /// A meta struct is larger than it may be.
    #[error("a meta struct of {0} bytes is above the limit")]
    MetaSize(u32),
    /// The frame is larger than [`FRAME_SIZE_MAX`].
    #[error("a frame of {0} bytes is above the limit of 67,108,864")]
    FrameSize(u64),
    /// The frame has another size than its header says.
    #[error("the frame is not whole")]
    Incomplete,
    /// The call's name and number could not be read, so that there is nothing to answer to.
    #[error(transparent)]
    Message(#[from] Malformed),
}

/// How many bytes the request at the front of `buffer` takes; `None` if `buffer` is too short to tell.
///
/// # Errors
/// [`Broken`] as soon as the bytes cannot become a request, which is before a large frame's memory is needed.
pub fn frame_size(buffer: &[u8]) -> Result<Option<usize>, Broken> {
    if !MAGIC.starts_with(&buffer[..buffer.len().min(MAGIC.len())]) {
        return Err(Broken::Magic);
    }
    let Some(version) = word(buffer, 4) else { return Ok(None) };
    let (Some(first), Some(second)) = (word(buffer, 8), word(buffer, if version == 0 { 16 } else { 12 })) else {
        return if version > 1 { Err(Broken::Version(version)) } else { Ok(None) };
    };
    let size = match version {
        0 if first as usize != V0_HEADER_SIZE => return Err(Broken::HeaderSize(first)),
        0 => V0_HEADER_SIZE as u64 + u64::from(second),
        1 if first as usize > META_SIZE_MAX => return Err(Broken::MetaSize(first)),
        1 => V1_HEADER_SIZE as u64 + u64::from(first) + u64::from(second),
        _ => return Err(Broken::Version(version)),
    };
    within_limit(size).map(Some)
}

/// `size` if a frame may have it.
pub(crate) fn within_limit(size: u64) -> Result<usize, Broken> {
    if size > FRAME_SIZE_MAX as u64 { Err(Broken::FrameSize(size)) } else { Ok(size as usize) }
}

/// The big-endian word at `offset`.
pub(crate) fn word(buffer: &[u8], offset: usize) -> Option<u32> {
    buffer.get(offset..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Splits a whole frame into its header and its message. The header of a v1 frame may be unreadable while the message
/// is not, so that the caller can still be told.
pub(crate) fn split(frame: Bytes) -> Result<(Result<Header, Malformed>, Reader), Broken> {
    if frame_size(&frame)? != Some(frame.len()) {
        return Err(Broken::Incomplete);
    }
    let (version, meta_size) = (word(&frame, 4), word(&frame, 8).ok_or(Broken::Incomplete)? as usize);
    let mut input = Reader::new(frame);
    if version == Some(0) {
        let header = read_v0_header(&mut input)?;
        input.go_to(V0_HEADER_SIZE, usize::MAX);
        return Ok((Ok(header), input));
    }
    input.go_to(V1_HEADER_SIZE, meta_size);
    let header = read_struct(&mut input);
    input.go_to(V1_HEADER_SIZE + meta_size, usize::MAX);
    Ok((header, input))
}

/// The fields of a v0 header that mean anything.
fn read_v0_header(input: &mut Reader) -> Result<Header, Malformed> {
    input.go_to(24, V0_HEADER_SIZE - 24);
    let (app_id, partition_index, timeout_ms) = (input.i32()?, input.i32()?, input.i32()?);
    let _thread_hash = input.i32()?;
    let partition_hash = input.i64()? as u64;
    Ok(Header { app_id, partition_index, timeout_ms, partition_hash, is_backup: false, extension: None })
}
