//! The messages themselves, one struct each, with the fields of Pegasus' definitions.
//!
//! A missing field is its type's default on reading; every field that is not an `Option` is written, since clients read
//! replies without looking whether a field is there.

mod admin;
mod journal;
mod query;
mod scan;
#[cfg(test)]
mod schema_test;
mod storage;

pub use admin::*;
pub use journal::*;
pub use query::*;
pub use scan::*;
pub use storage::*;

use crate::thrift::{Malformed, Reader};
use bytes::BytesMut;

/// A struct on the wire.
pub(crate) trait Message: Default {
    /// Takes field `id` with type `tag`; `false` if the struct has no such field.
    fn read_field(&mut self, id: i16, tag: u8, input: &mut Reader) -> Result<bool, Malformed>;

    /// Appends the fields, without the end mark.
    fn write_fields(&self, out: &mut BytesMut);
}

/// Takes a struct off the front of `input`, passing over fields it does not have.
pub(crate) fn read_struct<M: Message>(input: &mut Reader) -> Result<M, Malformed> {
    let mut message = M::default();
    while let Some((tag, id)) = input.field()? {
        if !message.read_field(id, tag, input)? {
            input.skip(tag)?;
        }
    }
    Ok(message)
}

/// Defines a message: the struct, and its form on the wire from one table of field ids.
macro_rules! message {
    ($(
        $(#[$doc:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_doc:meta])* $id:literal => $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $visibility struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::message::Message for $name {
            #[allow(unused_variables, reason = "some messages have no field")]
            fn read_field(
                &mut self,
                id: i16,
                tag: u8,
                input: &mut $crate::thrift::Reader,
            ) -> Result<bool, $crate::thrift::Malformed> {
                match id {
                    $($id if tag == <$type as $crate::value::Wire>::TAG => {
                        self.$field = <$type as $crate::value::Wire>::read(input)?;
                        Ok(true)
                    })*
                    _ => Ok(false),
                }
            }

            #[allow(unused_variables, reason = "some messages have no field")]
            fn write_fields(&self, out: &mut bytes::BytesMut) {
                $($crate::thrift::put_field(out, $id, &self.$field);)*
            }
        }

        impl $crate::value::Wire for $name {
            const TAG: u8 = $crate::thrift::tag::STRUCT;
            const SIZE_MIN: usize = 1;

            fn read(input: &mut $crate::thrift::Reader) -> Result<Self, $crate::thrift::Malformed> {
                $crate::message::read_struct(input)
            }

            fn write(&self, out: &mut bytes::BytesMut) {
                use bytes::BufMut;
                $crate::message::Message::write_fields(self, out);
                out.put_u8($crate::thrift::tag::STOP);
            }
        }

        #[cfg(test)]
        impl $name {
            /// Id, name and type tag of each field.
            #[allow(dead_code, reason = "only the protocol's own messages have a fixed form")]
            pub(crate) const FIELDS: &'static [(i16, &'static str, u8)] =
                &[$(($id, stringify!($field), <$type as $crate::value::Wire>::TAG),)*];
        }

        #[cfg(test)]
        impl $crate::tests::Sample for $name {
            #[allow(unused_variables, reason = "some messages have no field")]
            fn sample(random: &mut hedgerow_types::random::Random) -> Self {
                Self { $($field: $crate::tests::Sample::sample(random),)* }
            }
        }
    )*};
}
pub(crate) use message;
