//! Thrift's binary protocol: a bounds-checked reader over one buffer, and the headers a writer needs.

use crate::value::Wire;
use bytes::{BufMut, Bytes, BytesMut};
use core::ops::Range;

/// Type tags of fields and of list elements.
pub(crate) mod tag {
    pub(crate) const STOP: u8 = 0;
    pub(crate) const BOOL: u8 = 2;
    pub(crate) const BYTE: u8 = 3;
    pub(crate) const DOUBLE: u8 = 4;
    pub(crate) const I16: u8 = 6;
    pub(crate) const I32: u8 = 8;
    pub(crate) const I64: u8 = 10;
    pub(crate) const STRING: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const MAP: u8 = 13;
    pub(crate) const SET: u8 = 14;
    pub(crate) const LIST: u8 = 15;
}

/// Most elements of one list or map. Every list of the protocol stays far below it (see [`hedgerow_types::limit`]); it
/// bounds the memory that a list of one-byte elements can claim.
pub(crate) const LIST_COUNT_MAX: usize = 65_536;

/// How deep an unknown field may nest before it is refused.
const SKIP_DEPTH_MAX: u32 = 16;

/// Bytes that do not have the form they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

/// Takes values off the front of a buffer. Byte strings come out as slices of it.
pub(crate) struct Reader {
    data: Bytes,
    at: usize,
    /// Where the part that may be read ends; never past `data`.
    end: usize,
}

impl Reader {
    pub(crate) fn new(data: Bytes) -> Self {
        let end = data.len();
        Self { data, at: 0, end }
    }

    /// Goes to another part of the same buffer: `from` its beginning, `size` bytes or as many as there are.
    pub(crate) fn go_to(&mut self, from: usize, size: usize) {
        self.at = from.min(self.data.len());
        self.end = self.at.saturating_add(size).min(self.data.len());
    }

    /// Bytes not read yet.
    #[inline]
    pub(crate) const fn remaining(&self) -> usize {
        self.end - self.at
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let rest = self.data.get(self.at..self.end).and_then(<[u8]>::first_chunk::<N>);
        let bytes = rest.ok_or(Malformed("message: it ends early"))?;
        self.at += N;
        Ok(*bytes)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn i16(&mut self) -> Result<i16, Malformed> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    #[inline]
    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A length-prefixed byte string.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let length = usize::try_from(self.i32()?).map_err(|_| Malformed("length: it is negative"))?;
        self.take(length)
    }

    #[inline]
    fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        let range = self.pass(length)?;
        Ok(self.data.slice(range))
    }

    /// Passes over the next `length` bytes and says where they are, see [`Reader::at`].
    #[inline]
    pub(crate) fn pass(&mut self, length: usize) -> Result<Range<usize>, Malformed> {
        if length > self.remaining() {
            return Err(Malformed("length: it passes the end of the message"));
        }
        self.at += length;
        Ok(self.at - length..self.at)
    }

    /// The bytes of a range that [`Reader::pass`] gave.
    #[inline]
    pub(crate) fn at(&self, range: Range<usize>) -> &[u8] {
        &self.data[range]
    }

    /// The whole buffer.
    pub(crate) const fn data(&self) -> &Bytes {
        &self.data
    }

    /// Tag and id of the next field; `None` at the end of the struct.
    #[inline]
    pub(crate) fn field(&mut self) -> Result<Option<(u8, i16)>, Malformed> {
        let tag = self.u8()?;
        if tag == tag::STOP { Ok(None) } else { Ok(Some((tag, self.i16()?))) }
    }

    /// A count of elements of at least `size_min` bytes each: never more than the rest of the buffer can hold.
    pub(crate) fn count(&mut self, size_min: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.i32()?).map_err(|_| Malformed("list: its count is negative"))?;
        if count > LIST_COUNT_MAX {
            return Err(Malformed("list: it has more than 65,536 elements"));
        }
        if count.saturating_mul(size_min) > self.remaining() {
            return Err(Malformed("list: its count passes the end of the message"));
        }
        Ok(count)
    }

    /// Passes over a value that nobody knows. Right for simple types, for their containers and for plain structs; the
    /// protocol's placeholder types (see [`crate::value`]) carry a struct's tag without being one, so that passing over
    /// them fails or loses the thread: the caller then reports the message as malformed.
    pub(crate) fn skip(&mut self, tag: u8) -> Result<(), Malformed> {
        self.skip_nested(tag, SKIP_DEPTH_MAX)
    }

    fn skip_nested(&mut self, tag: u8, depth: u32) -> Result<(), Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed("unknown field: it nests too deep"))?;
        match tag {
            tag::BOOL | tag::BYTE => self.array::<1>().map(drop),
            tag::I16 => self.array::<2>().map(drop),
            tag::I32 => self.array::<4>().map(drop),
            tag::I64 | tag::DOUBLE => self.array::<8>().map(drop),
            tag::STRING => self.bytes().map(drop),
            tag::STRUCT => {
                while let Some((tag, _)) = self.field()? {
                    self.skip_nested(tag, depth)?;
                }
                Ok(())
            }
            tag::MAP => {
                let (key, value) = (self.u8()?, self.u8()?);
                for _ in 0..self.count(2)? {
                    self.skip_nested(key, depth)?;
                    self.skip_nested(value, depth)?;
                }
                Ok(())
            }
            tag::SET | tag::LIST => {
                let element = self.u8()?;
                for _ in 0..self.count(1)? {
                    self.skip_nested(element, depth)?;
                }
                Ok(())
            }
            _ => Err(Malformed("unknown field: its type does not exist")),
        }
    }
}

/// Appends one field, or nothing if the value is absent.
#[inline]
pub(crate) fn put_field<T: Wire>(out: &mut BytesMut, id: i16, value: &T) {
    if value.is_present() {
        value.write_field(out, id);
    }
}

/// Appends what stands before a field's value.
#[inline]
pub(crate) fn put_field_header(out: &mut BytesMut, tag: u8, id: i16) {
    let [high, low] = id.to_be_bytes();
    out.put_slice(&[tag, high, low]);
}

/// Appends a length-prefixed byte string.
#[inline]
pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_i32(bytes.len() as i32);
    out.put_slice(bytes);
}
