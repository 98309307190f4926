//! Files of rows, read and written.

use super::{Format, Item, Reader, Row, Shape, Writer};
use crate::encoding::Encoding;
use bytes::Bytes;
use proptest::prelude::*;
use std::io::Read;

const FORMATS: [Format; 3] = [Format::Tsv, Format::Csv, Format::Jsonl];

fn read(input: &[u8], format: Format, shape: Shape) -> Vec<Item> {
    let mut reader = Reader::new(input, format, shape, Encoding::Text, 0, 0);
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

/// What each line is: `Ok(hash key)` or `Err(complaint)`.
fn outcomes(items: &[Item]) -> Vec<(u64, Result<String, String>)> {
    let outcome = |item: &Item| match &item.row {
        Ok(row) => Ok(String::from_utf8_lossy(&row.hash_key).into_owned()),
        Err(error) => Err(format!("{error:#}")),
    };
    items.iter().map(|item| (item.line, outcome(item))).collect()
}

fn any_row(shape: Shape) -> impl Strategy<Value = Row> {
    let bytes = || proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\t'), Just(b'"'), Just(b'\n')], 0..12);
    let life = prop_oneof![1..1000u64, 1..=u64::MAX];
    (proptest::collection::vec(any::<u8>(), 0..8), bytes(), bytes(), proptest::option::of(life)).prop_map(
        move |(hash_key, sort_key, value, ttl_seconds)| Row {
            hash_key: if shape == Shape::Hash { hash_key.into() } else { Bytes::new() },
            sort_key: sort_key.into(),
            value: value.into(),
            ttl_seconds,
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        rows in proptest::collection::vec(any_row(Shape::Hash), 0..8),
        encoding in prop_oneof![Just(Encoding::Text), Just(Encoding::Escaped), Just(Encoding::Hex), Just(Encoding::Base64)],
    ) {
        for format in FORMATS {
            let mut out = Vec::new();
            let mut writer = Writer::new(&mut out, format, Shape::Hash, encoding, true).unwrap();
            rows.iter().for_each(|row| writer.write(row).unwrap());
            let out: &Vec<u8> = writer.into_inner().unwrap();
            let mut reader = Reader::new(&out[..], format, Shape::Hash, encoding, 0, 0);
            let again: Vec<Row> = std::iter::from_fn(|| reader.next().unwrap()).map(|item| item.row.unwrap()).collect();
            prop_assert_eq!(&again, &rows, "{:?} {}", format, String::from_utf8_lossy(out));
        }
    }

    #[test]
    fn reading_can_go_on_behind_any_record(rows in proptest::collection::vec(any_row(Shape::Ordered), 1..8), stop in 0usize..8) {
        for format in FORMATS {
            let mut out = Vec::new();
            let mut writer = Writer::new(&mut out, format, Shape::Ordered, Encoding::Text, true).unwrap();
            rows.iter().for_each(|row| writer.write(row).unwrap());
            let out: &Vec<u8> = writer.into_inner().unwrap();
            let items = read(out, format, Shape::Ordered);
            let stop = stop.min(items.len() - 1);
            let (line, end) = (items[stop].line, items[stop].end);
            let rest = &out[end as usize..];
            let mut reader = Reader::new(rest, format, Shape::Ordered, Encoding::Text, line, end);
            let rest: Vec<Row> = std::iter::from_fn(|| reader.next().unwrap()).map(|item| item.row.unwrap()).collect();
            prop_assert_eq!(&rest[..], &rows[stop + 1..]);
        }
    }

    #[test]
    fn no_input_makes_the_reader_panic(input: Vec<u8>) {
        for format in FORMATS {
            for shape in [Shape::Hash, Shape::Ordered] {
                let items = read(&input, format, shape);
                prop_assert!(items.last().is_none_or(|item| item.end <= input.len() as u64));
            }
        }
    }
}

/// A row in its last second was written with 0, which is read as no time to live: it came back immortal.
#[test]
fn a_row_about_to_expire_is_written_as_one_that_does() {
    let row = Row { hash_key: "h".into(), ttl_seconds: Some(0), ..Row::default() };
    for format in FORMATS {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, format, Shape::Hash, Encoding::Text, true).unwrap();
        writer.write(&row).unwrap();
        let out: &Vec<u8> = writer.into_inner().unwrap();
        let again = read(out, format, Shape::Hash).remove(0).row.unwrap();
        assert_eq!(again, Row { ttl_seconds: Some(1), ..row.clone() }, "{format:?} {}", String::from_utf8_lossy(out));
    }
}

#[test]
fn bad_lines_are_told_by_number_and_the_rest_is_read() {
    let ttl = r#"ttl_seconds: "x" is not a whole number of seconds; 0 = what the table says"#;
    let tsv = b"a\tb\tc\n\nno tabs\nd\te\tf\tx\n\te\tf\ng\th\ti\r\nj\tk\t\\q";
    assert_eq!(
        outcomes(&read(tsv, Format::Tsv, Shape::Hash)),
        [
            (1, Ok("a".to_owned())),
            (3, Err("no column sort_key".to_owned())),
            (4, Err(ttl.to_owned())),
            (5, Ok(String::new())),
            (6, Ok("g".to_owned())),
            (7, Err("column value: unknown escape \\q".to_owned())),
        ]
    );
    let jsonl = b"{\"hash_key\":\"a\",\"sort_key\":\"b\",\"value\":{\"c\":1}}\n[]\n{\"hash_key\":\"d\"}\n";
    let items = read(jsonl, Format::Jsonl, Shape::Hash);
    assert_eq!(items[0].row.as_ref().unwrap().value, "{\"c\":1}");
    assert!(items[1].row.is_err() && items[2].row.is_err());
    assert_eq!(items.len(), 3);
}

#[test]
fn a_csv_file_may_have_a_header_and_line_ends_in_its_fields() {
    let csv = b"hash_key,sort_key,value\na,b,\"1\n2\"\nc,d\ne,f,\"\"\"3\"\"\"\n";
    let titled =
        [&b"Hash Key, Sort key,VALUE"[..], &csv[csv.iter().position(|byte| *byte == b'\n').unwrap()..]].concat();
    let items = read(csv, Format::Csv, Shape::Hash);
    let same = read(&titled, Format::Csv, Shape::Hash);
    assert!(same.len() == items.len() && same[0].row.as_ref().unwrap() == items[0].row.as_ref().unwrap());
    assert_eq!(items[0].row.as_ref().unwrap().value, "1\n2");
    assert_eq!((items[0].line, items[1].line, items[2].line), (2, 4, 5));
    assert!(items[1].row.is_err());
    assert_eq!(items[2].row.as_ref().unwrap().value, "\"3\"");
}

#[test]
fn a_line_beyond_the_limit_is_skipped_without_being_kept() {
    let endless = std::io::repeat(b'x').take(20 << 20);
    let input = endless.chain(&b"\na\tb\tc\n"[..]);
    let mut reader = Reader::new(input, Format::Tsv, Shape::Hash, Encoding::Text, 0, 0);
    let (long, next) = (reader.next().unwrap().unwrap(), reader.next().unwrap().unwrap());
    assert!(long.row.unwrap_err().to_string().contains("longer than"));
    assert_eq!((next.line, next.row.unwrap().hash_key), (2, Bytes::from_static(b"a")));
}

#[test]
fn the_format_is_told_by_the_name() {
    let format = |name: &str| Format::of_path(std::path::Path::new(name)).ok();
    assert_eq!(format("a.tsv"), Some(Format::Tsv));
    assert_eq!(format("dir.csv/a.CSV"), Some(Format::Csv));
    assert_eq!(format("a.ndjson"), Some(Format::Jsonl));
    assert_eq!(format("a"), None);
}

#[test]
fn a_field_that_is_not_known_is_a_complaint() {
    let line = br#"{"hash_key":"h","sort_key":"s","value_base64":"dg==","ttl":5}"#;
    let complaint = format!("{:#}", read(line, Format::Jsonl, Shape::Hash).remove(0).row.unwrap_err());
    assert!(complaint.contains(r#"unknown field "ttl""#) && complaint.contains("ttl_seconds"), "{complaint}");
}
