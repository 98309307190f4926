//! Reading rows: every record is a row or a complaint with its line number, and reading goes on after a complaint.

use super::{Format, Row, Shape, TTL_COLUMN};
use crate::encoding::{Encoding, unescape};
use crate::number;
use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use serde_json::{Map, Value};
use std::io::{self, BufRead, BufReader, Read};

/// The longest line or record that is taken, bytes.
const LINE_SIZE_MAX: usize = 8 << 20;

/// One record of a file.
#[derive(Debug)]
pub(crate) struct Item {
    /// Its first line, from 1.
    pub(crate) line: u64,
    /// The position behind it, bytes from the beginning of the file.
    pub(crate) end: u64,
    /// The row, or why it is none.
    pub(crate) row: Result<Row>,
}

/// Reads a file of rows from a position between two records.
pub(crate) struct Reader<R> {
    source: Source<R>,
    shape: Shape,
    encoding: Encoding,
    is_first: bool,
}

enum Source<R> {
    Lines { input: BufReader<R>, format: LineFormat, line: u64, end: u64 },
    Csv { input: Box<csv::Reader<R>>, line_before: u64, end_before: u64 },
}

#[derive(Clone, Copy)]
enum LineFormat {
    Tsv,
    Jsonl,
}

impl<R: Read> Reader<R> {
    /// Reads `input`, which stands at byte `end` behind line `line` of its file (both 0 at the beginning).
    pub(crate) fn new(input: R, format: Format, shape: Shape, encoding: Encoding, line: u64, end: u64) -> Self {
        let lines =
            |input, format| Source::Lines { input: BufReader::with_capacity(256 << 10, input), format, line, end };
        let source = match format {
            Format::Tsv => lines(input, LineFormat::Tsv),
            Format::Jsonl => lines(input, LineFormat::Jsonl),
            Format::Csv => {
                let mut builder = csv::ReaderBuilder::new();
                builder.has_headers(false).flexible(true).buffer_capacity(256 << 10);
                Source::Csv { input: Box::new(builder.from_reader(input)), line_before: line, end_before: end }
            }
        };
        Self { source, shape, encoding, is_first: line == 0 }
    }

    /// The next record; `None` at the end. Fails only when the input itself does.
    pub(crate) fn next(&mut self) -> io::Result<Option<Item>> {
        loop {
            let is_first = std::mem::replace(&mut self.is_first, false);
            let item = match &mut self.source {
                Source::Lines { .. } => self.next_line()?,
                Source::Csv { .. } => self.next_record(is_first)?,
            };
            match item {
                Next::Item(item) => return Ok(Some(item)),
                Next::Nothing => {}
                Next::End => return Ok(None),
            }
        }
    }

    fn next_line(&mut self) -> io::Result<Next> {
        let Source::Lines { input, format, line, end } = &mut self.source else { return Ok(Next::End) };
        let mut text = Vec::new();
        let mut size = input.by_ref().take(LINE_SIZE_MAX as u64 + 1).read_until(b'\n', &mut text)?;
        if size == 0 {
            return Ok(Next::End);
        }
        let is_too_long = size > LINE_SIZE_MAX && text.last() != Some(&b'\n');
        if is_too_long {
            size += skip_line(input)?;
        }
        *line += 1;
        *end += size as u64;
        if text.last() == Some(&b'\n') {
            text.pop();
            text.pop_if(|byte| *byte == b'\r');
        }
        if text.is_empty() {
            return Ok(Next::Nothing);
        }
        let row = if is_too_long {
            Err(anyhow::anyhow!("longer than {LINE_SIZE_MAX} bytes"))
        } else {
            match format {
                LineFormat::Tsv => tsv_row(&text, self.shape, self.encoding),
                LineFormat::Jsonl => json_row(&text, self.shape, self.encoding),
            }
        };
        Ok(Next::Item(Item { line: *line, end: *end, row }))
    }

    fn next_record(&mut self, is_first: bool) -> io::Result<Next> {
        let Source::Csv { input, line_before, end_before } = &mut self.source else { return Ok(Next::End) };
        let mut record = csv::ByteRecord::new();
        let line = *line_before + input.position().line();
        let row = match input.read_byte_record(&mut record) {
            Ok(false) => return Ok(Next::End),
            Ok(true) if is_first && is_header(&record, self.shape) => return Ok(Next::Nothing),
            Ok(true) => columns_row(&mut record.iter(), self.shape, &|field| self.encoding.decode(field)),
            Err(error) => match error.into_kind() {
                csv::ErrorKind::Io(error) => return Err(error),
                other => Err(anyhow::anyhow!("not CSV: {other:?}")),
            },
        };
        let line = record.position().map_or(line, |position| *line_before + position.line());
        Ok(Next::Item(Item { line, end: *end_before + input.position().byte(), row }))
    }
}

enum Next {
    Item(Item),
    /// An empty line or a header.
    Nothing,
    End,
}

/// Skips to the end of the line without keeping it.
fn skip_line(input: &mut impl BufRead) -> io::Result<usize> {
    let mut skipped = 0;
    loop {
        let available = input.fill_buf()?;
        let (count, is_end) = match available.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (available.len(), available.is_empty()),
        };
        input.consume(count);
        skipped += count;
        if is_end {
            return Ok(skipped);
        }
    }
}

fn is_header(record: &csv::ByteRecord, shape: Shape) -> bool {
    let columns = shape.columns();
    let is_named = |(name, field): (&&str, &[u8])| {
        let plain = |byte: &u8| if *byte == b' ' { b'_' } else { byte.to_ascii_lowercase() };
        field.trim_ascii().iter().map(plain).eq(name.bytes())
    };
    record.len() >= columns.len() && columns.iter().zip(record).all(is_named)
}

fn tsv_row(line: &[u8], shape: Shape, encoding: Encoding) -> Result<Row> {
    columns_row(&mut line.split(|byte| *byte == b'\t'), shape, &|field| match encoding {
        // Text in a line-based format needs escapes for tabs and line ends.
        Encoding::Text | Encoding::Escaped => unescape(field),
        Encoding::Hex | Encoding::Base64 => encoding.decode(field),
    })
}

/// A row from its columns; `decode` turns a key or a value into its bytes.
fn columns_row<'a>(
    fields: &mut dyn Iterator<Item = &'a [u8]>,
    shape: Shape,
    decode: &dyn Fn(&[u8]) -> Result<Vec<u8>>,
) -> Result<Row> {
    let mut column = |name: &'static str| -> Result<Bytes> {
        let field = fields.next().with_context(|| format!("no column {name}"))?;
        Ok(Bytes::from(decode(field).with_context(|| format!("column {name}"))?))
    };
    let mut row = match shape {
        Shape::Hash => Row {
            hash_key: column("hash_key")?,
            sort_key: column("sort_key")?,
            value: column("value")?,
            ttl_seconds: None,
        },
        Shape::Ordered => Row { sort_key: column("key")?, value: column("value")?, ..Row::default() },
    };
    if let Some(ttl) = fields.next() {
        row.ttl_seconds = parse_ttl(std::str::from_utf8(ttl).unwrap_or("?"))?;
    }
    if fields.next().is_some() {
        bail!("too many columns");
    }
    Ok(row)
}

fn parse_ttl(text: &str) -> Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    let seconds = number::time_to_live_of_row(text).map_err(|reason| anyhow!("{TTL_COLUMN}: {reason}"))?;
    Ok((seconds > 0).then_some(seconds))
}

fn json_row(line: &[u8], shape: Shape, encoding: Encoding) -> Result<Row> {
    let object: Map<String, Value> = serde_json::from_slice(line).context("not a JSON object")?;
    let is_known =
        |name: &str| name == TTL_COLUMN || shape.columns().contains(&name.strip_suffix("_base64").unwrap_or(name));
    if let Some(unknown) = object.keys().find(|name| !is_known(name)) {
        bail!(
            "unknown field {unknown:?}: there are {}, each perhaps with _base64, and {TTL_COLUMN}",
            shape.columns().join(", ")
        );
    }
    let field = |name: &str| -> Result<Bytes> {
        let (value, encoding) = match (object.get(name), object.get(&format!("{name}_base64"))) {
            (Some(value), None) => (value, encoding),
            (None, Some(value)) => (value, Encoding::Base64),
            (Some(_), Some(_)) => bail!("both {name} and {name}_base64"),
            (None, None) => bail!("no field {name}"),
        };
        let bytes = match value {
            Value::String(text) => encoding.decode(text.as_bytes()).with_context(|| format!("field {name}"))?,
            // What is not a string is kept as the JSON that it is.
            other => other.to_string().into_bytes(),
        };
        Ok(bytes.into())
    };
    let mut row = match shape {
        Shape::Hash => Row {
            hash_key: field("hash_key")?,
            sort_key: field("sort_key")?,
            value: field("value")?,
            ttl_seconds: None,
        },
        Shape::Ordered => Row { sort_key: field("key")?, value: field("value")?, ..Row::default() },
    };
    row.ttl_seconds = match object.get(TTL_COLUMN) {
        None | Some(Value::Null) => None,
        Some(value) => parse_ttl(&value.to_string())?,
    };
    Ok(row)
}
