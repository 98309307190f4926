//! Writing rows: the inverse of reading, byte for byte.

use super::{Format, Row, Shape, TTL_COLUMN};
use crate::encoding::{Encoding, escape};
use serde_json::{Map, Value};
use std::io::{self, Write};

/// Writes rows to a file.
pub(crate) struct Writer<W: Write> {
    sink: Sink<W>,
    shape: Shape,
    encoding: Encoding,
    has_ttl: bool,
}

enum Sink<W: Write> {
    Tsv(W),
    Csv(Box<csv::Writer<W>>),
    Jsonl(W),
}

impl<W: Write> Writer<W> {
    /// Writes to `output`; with `has_ttl` each row carries its time to live, if it has one.
    pub(crate) fn new(output: W, format: Format, shape: Shape, encoding: Encoding, has_ttl: bool) -> io::Result<Self> {
        let sink = match format {
            Format::Tsv => Sink::Tsv(output),
            Format::Jsonl => Sink::Jsonl(output),
            Format::Csv => {
                let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(output);
                let ttl = has_ttl.then_some(TTL_COLUMN);
                writer.write_record(shape.columns().iter().copied().chain(ttl))?;
                Sink::Csv(Box::new(writer))
            }
        };
        Ok(Self { sink, shape, encoding, has_ttl })
    }

    /// Writes one row. One that expires within this second has 1 to live: 0 would be read as none.
    pub(crate) fn write(&mut self, row: &Row) -> io::Result<()> {
        let keys: &[&[u8]] = match self.shape {
            Shape::Hash => &[&row.hash_key, &row.sort_key, &row.value],
            Shape::Ordered => &[&row.sort_key, &row.value],
        };
        let seconds = row.ttl_seconds.filter(|_| self.has_ttl).map(|seconds| seconds.max(1));
        let ttl = self.has_ttl.then(|| seconds.map(|seconds| seconds.to_string()).unwrap_or_default());
        match &mut self.sink {
            Sink::Tsv(output) => {
                for (place, field) in keys.iter().enumerate() {
                    let separator = if place == 0 { "" } else { "\t" };
                    let field = match self.encoding {
                        Encoding::Text | Encoding::Escaped => escape(field),
                        Encoding::Hex | Encoding::Base64 => self.encoding.encode(field),
                    };
                    write!(output, "{separator}{field}")?;
                }
                match ttl {
                    Some(ttl) if !ttl.is_empty() => writeln!(output, "\t{ttl}"),
                    Some(_) | None => writeln!(output),
                }
            }
            Sink::Csv(output) => {
                for field in keys {
                    match self.encoding {
                        Encoding::Text => output.write_field(field)?,
                        Encoding::Escaped | Encoding::Hex | Encoding::Base64 => {
                            output.write_field(self.encoding.encode(field).as_bytes())?;
                        }
                    }
                }
                if let Some(ttl) = ttl {
                    output.write_field(ttl)?;
                }
                Ok(output.write_record(None::<&[u8]>)?)
            }
            Sink::Jsonl(output) => {
                let mut object = Map::new();
                for (name, field) in self.shape.columns().iter().zip(keys) {
                    insert_field(&mut object, name, field, self.encoding);
                }
                if let Some(seconds) = seconds {
                    object.insert(TTL_COLUMN.to_owned(), seconds.into());
                }
                writeln!(output, "{}", Value::Object(object))
            }
        }
    }

    /// What it writes to, with all rows in it.
    pub(crate) fn into_inner(self) -> io::Result<W> {
        match self.sink {
            Sink::Tsv(output) | Sink::Jsonl(output) => Ok(output),
            Sink::Csv(output) => output.into_inner().map_err(|error| error.into_error()),
        }
    }
}

/// Adds `field` to a JSON object: as it stands where it is text, under `name_base64` where it is not.
pub(crate) fn insert_field(object: &mut Map<String, Value>, name: &str, field: &[u8], encoding: Encoding) {
    match (encoding, std::str::from_utf8(field)) {
        (Encoding::Text, Ok(text)) => object.insert(name.to_owned(), text.into()),
        (Encoding::Text, Err(_)) => {
            object.insert(format!("{name}_base64"), Encoding::Base64.encode(field).into_owned().into())
        }
        (encoding, _) => object.insert(name.to_owned(), encoding.encode(field).into_owned().into()),
    };
}
