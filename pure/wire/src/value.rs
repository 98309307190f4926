//! Values of the protocol: thrift's simple types, and Pegasus' placeholder types, which carry the tag of a struct but
//! have a form of their own.

use crate::thrift::{self, Malformed, Reader, tag};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use core::fmt;
use core::net::{Ipv4Addr, SocketAddrV4};

/// A value with a form on the wire.
pub(crate) trait Wire: Sized {
    /// Thrift's type tag.
    const TAG: u8;
    /// Fewest bytes that a value takes.
    const SIZE_MIN: usize;

    /// Takes a value off the front of `input`.
    fn read(input: &mut Reader) -> Result<Self, Malformed>;

    /// Appends the value.
    fn write(&self, out: &mut BytesMut);

    /// Appends the value as a struct's field.
    #[inline]
    fn write_field(&self, out: &mut BytesMut, id: i16) {
        thrift::put_field_header(out, Self::TAG, id);
        self.write(out);
    }

    /// Whether a struct's field of this value is written at all.
    #[inline]
    fn is_present(&self) -> bool {
        true
    }
}

impl Wire for bool {
    const TAG: u8 = tag::BOOL;
    const SIZE_MIN: usize = 1;

    #[inline]
    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(input.u8()? != 0)
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
}

impl Wire for i32 {
    const TAG: u8 = tag::I32;
    const SIZE_MIN: usize = 4;

    #[inline]
    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        input.i32()
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        out.put_i32(*self);
    }

    /// In one piece: most fields of the hot path are numbers.
    #[inline]
    fn write_field(&self, out: &mut BytesMut, id: i16) {
        let mut field = [Self::TAG, 0, 0, 0, 0, 0, 0];
        field[1..3].copy_from_slice(&id.to_be_bytes());
        field[3..].copy_from_slice(&self.to_be_bytes());
        out.put_slice(&field);
    }
}

impl Wire for i64 {
    const TAG: u8 = tag::I64;
    const SIZE_MIN: usize = 8;

    #[inline]
    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        input.i64()
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        out.put_i64(*self);
    }

    #[inline]
    fn write_field(&self, out: &mut BytesMut, id: i16) {
        let mut field = [Self::TAG, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        field[1..3].copy_from_slice(&id.to_be_bytes());
        field[3..].copy_from_slice(&self.to_be_bytes());
        out.put_slice(&field);
    }
}

/// The same 64 bits as an `i64`, read without a sign.
impl Wire for u64 {
    const TAG: u8 = tag::I64;
    const SIZE_MIN: usize = 8;

    #[inline]
    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(input.i64()? as Self)
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        out.put_u64(*self);
    }

    #[inline]
    fn write_field(&self, out: &mut BytesMut, id: i16) {
        (*self as i64).write_field(out, id);
    }
}

/// A blob: placeholder type, length and bytes.
impl Wire for Bytes {
    const TAG: u8 = tag::STRUCT;
    const SIZE_MIN: usize = 4;

    #[inline]
    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        input.bytes()
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        thrift::put_bytes(out, self);
    }
}

/// An optional field: absent instead of a default.
impl<T: Wire> Wire for Option<T> {
    const TAG: u8 = T::TAG;
    const SIZE_MIN: usize = T::SIZE_MIN;

    #[inline]
    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        T::read(input).map(Some)
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        if let Some(value) = self {
            value.write(out);
        }
    }

    #[inline]
    fn write_field(&self, out: &mut BytesMut, id: i16) {
        if let Some(value) = self {
            value.write_field(out, id);
        }
    }

    #[inline]
    fn is_present(&self) -> bool {
        self.is_some()
    }
}

/// Elements of a list take at most so many times the memory that they are long. A struct without fields is one byte long, and
/// takes a hundred and more; those that clients send have some of their fields.
const LIST_MEMORY_FACTOR: usize = 32;
/// So many elements may be of any length.
const SHORT_LIST: usize = 128;

impl<T: Wire> Wire for Vec<T> {
    const TAG: u8 = tag::LIST;
    const SIZE_MIN: usize = 5;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        let element = input.u8()?;
        let count = input.count(T::SIZE_MIN)?;
        // Some writers give an empty list no proper element type.
        if element != T::TAG && count > 0 {
            return Err(Malformed("list: its elements have another type"));
        }
        let start = input.remaining();
        let most = start.saturating_mul(LIST_MEMORY_FACTOR) / size_of::<T>().max(1);
        let mut items = Self::with_capacity(count.min(most.max(SHORT_LIST)));
        for _ in 0..count {
            items.push(T::read(input)?);
            let taken = start - input.remaining();
            if items.len() > SHORT_LIST && items.len() * size_of::<T>() > taken.saturating_mul(LIST_MEMORY_FACTOR) {
                return Err(Malformed("list: its elements are nearly empty"));
            }
        }
        Ok(items)
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u8(T::TAG);
        out.put_i32(self.len() as i32);
        self.iter().for_each(|item| item.write(out));
    }
}

/// A `map<string,string>`, in the sender's order.
impl Wire for Vec<(Text, Text)> {
    const TAG: u8 = tag::MAP;
    const SIZE_MIN: usize = 6;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        let (key, value) = (input.u8()?, input.u8()?);
        let count = input.count(2 * Text::SIZE_MIN)?;
        if count > 0 && (key, value) != (Text::TAG, Text::TAG) {
            return Err(Malformed("map: it does not hold strings"));
        }
        let mut items = Self::with_capacity(count);
        for _ in 0..count {
            items.push((Text::read(input)?, Text::read(input)?));
        }
        Ok(items)
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_slice(&[Text::TAG, Text::TAG]);
        out.put_i32(self.len() as i32);
        for (key, value) in self {
            key.write(out);
            value.write(out);
        }
    }
}

/// A string that is cheap to clone: UTF-8 in a shared buffer.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Bytes);

impl Text {
    /// A string that lives as long as the program.
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).expect("every constructor takes UTF-8 only")
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Wire for Text {
    const TAG: u8 = tag::STRING;
    const SIZE_MIN: usize = 4;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        let bytes = input.bytes()?;
        core::str::from_utf8(&bytes).map_err(|_| Malformed("string: it is not UTF-8"))?;
        Ok(Self(bytes))
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        thrift::put_bytes(out, &self.0);
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

impl From<&Text> for String {
    fn from(text: &Text) -> Self {
        Self::from(text.as_str())
    }
}

impl core::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        *self == **other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A byte string under thrift's own tag for strings, which a blob does not carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binary(pub Bytes);

impl Wire for Binary {
    const TAG: u8 = tag::STRING;
    const SIZE_MIN: usize = 4;

    #[inline]
    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        input.bytes().map(Self)
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        thrift::put_bytes(out, &self.0);
    }
}

/// Table and partition in one number (`gpid`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionId {
    /// Id of the table.
    pub app_id: i32,
    /// Index of the partition within it.
    pub partition_index: i32,
}

impl Wire for PartitionId {
    const TAG: u8 = tag::STRUCT;
    const SIZE_MIN: usize = 8;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        let packed = input.i64()?;
        Ok(Self { app_id: packed as i32, partition_index: (packed >> 32) as i32 })
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i64((i64::from(self.partition_index) << 32) | i64::from(self.app_id as u32));
    }
}

/// An IPv4 address with port in one number (`rpc_address`); 0 = no address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Address {
    /// No address: a partition without a leader, a forwarder that knows nobody.
    pub const NONE: Self = Self(0);

    /// The number for `address`.
    pub const fn new(address: SocketAddrV4) -> Self {
        Self(((address.ip().to_bits() as u64) << 32) | ((address.port() as u64) << 16) | 1)
    }

    /// The address; `None` if there is none or it has a form that is not IPv4.
    pub const fn socket(self) -> Option<SocketAddrV4> {
        if self.0 & 0xffff == 1 {
            Some(SocketAddrV4::new(Ipv4Addr::from_bits((self.0 >> 32) as u32), (self.0 >> 16) as u16))
        } else {
            None
        }
    }
}

impl From<SocketAddrV4> for Address {
    fn from(address: SocketAddrV4) -> Self {
        Self::new(address)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.socket() {
            Some(address) => fmt::Display::fmt(&address, f),
            None => write!(f, "no address ({:#x})", self.0),
        }
    }
}

impl Wire for Address {
    const TAG: u8 = tag::STRUCT;
    const SIZE_MIN: usize = 8;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        input.i64().map(|packed| Self(packed as u64))
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u64(self.0);
    }
}

/// An address as a plain number, which readers that do not know the field can pass over: they cannot with [`Address`],
/// whose tag is that of a struct. Our own fields hold addresses in this form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainAddress(pub Address);

impl core::ops::Deref for PlainAddress {
    type Target = Address;

    fn deref(&self) -> &Address {
        &self.0
    }
}

impl From<Address> for PlainAddress {
    fn from(address: Address) -> Self {
        Self(address)
    }
}

impl Wire for PlainAddress {
    const TAG: u8 = tag::I64;
    const SIZE_MIN: usize = 8;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        Address::read(input).map(Self)
    }

    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
    }
}

/// A list of [`PlainAddress`]es.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainAddresses(pub Vec<Address>);

impl core::ops::Deref for PlainAddresses {
    type Target = [Address];

    fn deref(&self) -> &[Address] {
        &self.0
    }
}

impl FromIterator<Address> for PlainAddresses {
    fn from_iter<I: IntoIterator<Item = Address>>(addresses: I) -> Self {
        Self(addresses.into_iter().collect())
    }
}

impl Wire for PlainAddresses {
    const TAG: u8 = tag::LIST;
    const SIZE_MIN: usize = <Vec<PlainAddress> as Wire>::SIZE_MIN;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Vec::<PlainAddress>::read(input)?.into_iter().map(|address| address.0).collect())
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u8(PlainAddress::TAG);
        out.put_i32(self.0.len() as i32);
        self.0.iter().for_each(|address| address.write(out));
    }
}

/// A host name with port (`host_port`). Only Pegasus 2.6 reads it; to older clients it is poison, so that fields of this
/// type stay absent unless the operator asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address of the host.
    pub host: Text,
    /// Its port.
    pub port: u16,
    /// 0 = invalid, 1 = IPv4.
    pub kind: u8,
}

impl Wire for HostPort {
    const TAG: u8 = tag::STRUCT;
    const SIZE_MIN: usize = 7;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self { host: Text::read(input)?, port: input.i16()? as u16, kind: input.u8()? })
    }

    fn write(&self, out: &mut BytesMut) {
        self.host.write(out);
        out.put_u16(self.port);
        out.put_u8(self.kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written<T: Wire>(value: &T) -> Vec<u8> {
        let mut out = BytesMut::new();
        value.write(&mut out);
        out.to_vec()
    }

    #[test]
    fn an_address_packs_as_pegasus_does() {
        let address = Address::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 34801));
        assert_eq!(written(&address), 0x7f00_0001_87f1_0001_u64.to_be_bytes());
        assert_eq!(address.socket(), Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 34801)));
        assert_eq!(Address::NONE.socket(), None);
    }

    #[test]
    fn a_partition_id_has_the_table_in_its_low_half() {
        let id = PartitionId { app_id: 2, partition_index: 4 };
        assert_eq!(written(&id), 0x0000_0004_0000_0002_u64.to_be_bytes());
        let negative = PartitionId { app_id: -1, partition_index: -1 };
        assert_eq!(PartitionId::read(&mut Reader::new(Bytes::from(written(&negative)))), Ok(negative));
    }

    #[test]
    fn a_list_of_blobs_carries_the_tag_of_a_struct() {
        let list = alloc::vec![Bytes::from_static(b"x")];
        assert_eq!(written(&list), [12, 0, 0, 0, 1, 0, 0, 0, 1, b'x']);
    }

    #[test]
    fn an_empty_list_of_any_type_is_taken() {
        let mut input = Reader::new(Bytes::from_static(&[3, 0, 0, 0, 0]));
        assert_eq!(Vec::<Bytes>::read(&mut input), Ok(Vec::new()));
    }
}
