//! Commands on records: get, set, del, incr, ttl, scan, multi-get.

use crate::any_table::{AnyTable, Key};
use crate::cluster::ClusterArguments;
use crate::encoding::Encoding;
use crate::exit::Exit;
use crate::hedging::WriteHedgeArguments;
use crate::number::{addend, limit, time_to_live};
use crate::output::{Output, print, print_result, quoted, say};
use crate::reading::{OpenSession, ReadArguments, SessionArguments};
use crate::rows::{Row, Shape, TTL_COLUMN, insert_field};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Args;
use hedgerow_client::{Error, ErrorKind, Life, Range, ScanOptions, SortRow};
use serde_json::{Map, Value};
use std::time::Duration;

/// A table and how to reach and show it.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// The table.
    table: String,
    /// How keys and values are written, in the arguments and in the output.
    #[arg(long, value_enum, default_value_t = Encoding::Text)]
    encoding: Encoding,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl Target {
    /// Opens the table to be written in a session.
    async fn open(&self, write: &WriteArguments) -> Result<(AnyTable, OpenSession)> {
        write.session.open_table(&self.cluster, &self.table, &write.hedge).await
    }

    /// Opens the table to be read.
    async fn open_to_read(&self, read: &ReadArguments) -> Result<(AnyTable, OpenSession)> {
        read.open(&self.cluster, &self.table).await
    }

    fn decode(&self, word: &str) -> Result<Bytes> {
        let bytes = self.encoding.decode(word.as_bytes());
        Ok(bytes.with_context(|| format!("{word:?}"))?.into())
    }

    fn decode_all(&self, words: &[String]) -> Result<Vec<Bytes>> {
        words.iter().map(|word| self.decode(word)).collect()
    }
}

/// How a record is written.
#[derive(Args, Debug)]
pub(crate) struct WriteArguments {
    #[command(flatten)]
    session: SessionArguments,
    #[command(flatten)]
    hedge: WriteHedgeArguments,
}

/// Arguments of `get`.
#[derive(Args, Debug)]
pub(crate) struct GetArguments {
    #[command(flatten)]
    target: Target,
    /// Hash key and sort key; in an ordered table, the key.
    #[arg(required = true, num_args = 1..=2)]
    key: Vec<String>,
    #[command(flatten)]
    read: ReadArguments,
}

/// Arguments of `set`.
#[derive(Args, Debug)]
pub(crate) struct SetArguments {
    #[command(flatten)]
    target: Target,
    /// Hash key, sort key and value; in an ordered table, key and value.
    /// Whatever stands behind `--` is no option.
    #[arg(required = true, num_args = 2..=3)]
    key_and_value: Vec<String>,
    /// Let the record expire after so many seconds, up to 1000000000, or after a time such as 60s, 5m, 2h or 7d. Without it, or
    /// with 0, the table's option default_ttl says how long the record lives: for ever unless it is set.
    #[arg(long, value_name = "SECONDS", value_parser = time_to_live)]
    ttl: Option<u64>,
    #[command(flatten)]
    write: WriteArguments,
}

/// Arguments of `del`.
#[derive(Args, Debug)]
pub(crate) struct DelArguments {
    #[command(flatten)]
    target: Target,
    /// Hash key and sort key; in an ordered table, the key.
    #[arg(required = true, num_args = 1..=2)]
    key: Vec<String>,
    #[command(flatten)]
    write: WriteArguments,
}

/// Arguments of `incr`.
#[derive(Args, Debug)]
pub(crate) struct IncrArguments {
    #[command(flatten)]
    target: Target,
    /// Hash key and sort key; in an ordered table, the key.
    #[arg(required = true, num_args = 1..=2)]
    key: Vec<String>,
    /// What to add.
    #[arg(long, default_value = "1", value_parser = addend)]
    by: i64,
    #[command(flatten)]
    write: WriteArguments,
}

/// Arguments of `ttl`.
#[derive(Args, Debug)]
pub(crate) struct TtlArguments {
    #[command(flatten)]
    target: Target,
    /// Hash key and sort key; in an ordered table, the key.
    #[arg(required = true, num_args = 1..=2)]
    key: Vec<String>,
    #[command(flatten)]
    read: ReadArguments,
}

/// Arguments of `scan`.
#[derive(Args, Debug)]
pub(crate) struct ScanArguments {
    #[command(flatten)]
    target: Target,
    /// Only rows of this hash key.
    hash_key: Option<String>,
    /// First sort key (in an ordered table: key).
    #[arg(long, value_name = "KEY")]
    start: Option<String>,
    /// Sort key (in an ordered table: key) before which to stop.
    #[arg(long, value_name = "KEY")]
    stop: Option<String>,
    /// Only sort keys (in an ordered table: keys) that begin with this.
    #[arg(long, conflicts_with_all = ["start", "stop"])]
    prefix: Option<String>,
    /// Most rows; 0 = all.
    #[arg(long, default_value = "1000", value_parser = limit)]
    limit: u64,
    /// Leave values out.
    #[arg(long)]
    no_value: bool,
    #[command(flatten)]
    read: ReadArguments,
}

/// Arguments of `multi-get`.
#[derive(Args, Debug)]
pub(crate) struct MultiGetArguments {
    #[command(flatten)]
    target: Target,
    /// Hash key and sort keys; in an ordered table, keys.
    #[arg(required = true, num_args = 1..)]
    keys: Vec<String>,
    #[command(flatten)]
    read: ReadArguments,
}

/// `hedgerow get`.
pub(crate) async fn get(arguments: GetArguments) -> Result<Exit> {
    let target = &arguments.target;
    let (table, session) = target.open_to_read(&arguments.read).await?;
    let key = table.key(target.decode_all(&arguments.key)?)?;
    let value = table.get(&key).await?;
    session.keep()?;
    let Some(value) = value else { return Ok(not_found()) };
    let row = Row { hash_key: key.hash_key, sort_key: key.sort_key, value, ttl_seconds: None };
    let encoding = target.encoding;
    print_result(
        target.cluster.output,
        || encoding.encode(&row.value).into_owned(),
        || row_json(&row, table.shape(), encoding, false),
    )?;
    Ok(Exit::Done)
}

/// `hedgerow set`.
pub(crate) async fn set(arguments: SetArguments) -> Result<Exit> {
    let target = &arguments.target;
    let mut words = target.decode_all(&arguments.key_and_value)?;
    let (table, session) = target.open(&arguments.write).await?;
    check_words_of_set(table.name(), table.shape(), &arguments.key_and_value)?;
    let value = words.pop().unwrap_or_default();
    let key = table.key(words)?;
    table.set(&key, value, arguments.ttl.map(Duration::from_secs)).await.map_err(of_write)?;
    session.keep()?;
    print_result(target.cluster.output, String::new, || key_json(&key, table.shape(), target.encoding))?;
    Ok(Exit::Done)
}

/// Fails if `words` are not the keys and the value of a record in a table of this `shape`. The error shows what may have been meant.
fn check_words_of_set(table: &str, shape: Shape, words: &[String]) -> Result<()> {
    match (shape, words) {
        (Shape::Hash, [first, second]) => {
            let (first, second) = (quoted(first), quoted(second));
            bail!(
                "{table} is a hash table, and its records have a hash key, a sort key and a value: \
                 `hedgerow set {table} {first} {second} VALUE`, or with an empty sort key `hedgerow set {table} {first} \"\" {second}`"
            )
        }
        (Shape::Ordered, [first, _, third]) => {
            let (first, third) = (quoted(first), quoted(third));
            bail!(
                "{table} is an ordered table, and its records have one key and a value: `hedgerow set {table} KEY VALUE`, such as \
                 `hedgerow set {table} {first} {third}`"
            )
        }
        _ => Ok(()),
    }
}

/// `hedgerow del`.
pub(crate) async fn del(arguments: DelArguments) -> Result<Exit> {
    let target = &arguments.target;
    let (table, session) = target.open(&arguments.write).await?;
    let key = table.key(target.decode_all(&arguments.key)?)?;
    table.del(&key).await.map_err(of_write)?;
    session.keep()?;
    if target.cluster.output == Output::Text {
        say(&format!("{}: removed", key_text(&key, table.shape(), target.encoding)));
    }
    print_result(target.cluster.output, String::new, || key_json(&key, table.shape(), target.encoding))?;
    Ok(Exit::Done)
}

/// `hedgerow incr`.
pub(crate) async fn incr(arguments: IncrArguments) -> Result<Exit> {
    let target = &arguments.target;
    let (table, session) = target.open(&arguments.write).await?;
    let key = table.key(target.decode_all(&arguments.key)?)?;
    let sum = match table.incr(&key, arguments.by).await {
        Ok(sum) => sum,
        Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
            let value = table.get(&key).await.ok().flatten();
            return Err(error_of_sum(error, value.as_deref(), arguments.by).into());
        }
        Err(error) => return Err(of_write(error)),
    };
    session.keep()?;
    let json = || {
        let mut json = key_json(&key, table.shape(), target.encoding);
        json["value"] = sum.into();
        json
    };
    print_result(target.cluster.output, || sum.to_string(), json)?;
    Ok(Exit::Done)
}

/// The error of a write. Where the outcome is not known the error says so itself; where the cluster was not there to do it, that nothing
/// was done is added.
fn of_write(error: Error) -> anyhow::Error {
    let is_known = error.may_retry() && !error.is_outcome_unknown();
    let error = anyhow::Error::new(error);
    if is_known { error.context("nothing was written") } else { error }
}

/// The cluster does not say what it did not accept: the record, or the sum.
fn error_of_sum(error: Error, value: Option<&[u8]>, by: i64) -> Error {
    let number = value.map(|value| std::str::from_utf8(value).ok()?.parse::<i64>().ok());
    let message = match number {
        Some(None) => "the record does not hold a whole number in decimal, so that nothing can be added".to_owned(),
        Some(Some(number)) if number.checked_add(by).is_none() => {
            format!("the sum of {number} and {by} is beyond {} to {}", i64::MIN, i64::MAX)
        }
        Some(Some(_)) | None => return error,
    };
    Error::new(ErrorKind::FailedPrecondition, message)
}

/// `hedgerow ttl`.
pub(crate) async fn ttl(arguments: TtlArguments) -> Result<Exit> {
    let target = &arguments.target;
    let (table, session) = target.open_to_read(&arguments.read).await?;
    let key = table.key(target.decode_all(&arguments.key)?)?;
    let life = table.ttl(&key).await?;
    session.keep()?;
    let Some(life) = life else { return Ok(not_found()) };
    let seconds = match life {
        Life::Forever => None,
        Life::Left(left) => Some(left.as_secs()),
    };
    let json = || {
        let mut json = key_json(&key, table.shape(), target.encoding);
        json[TTL_COLUMN] = seconds.into();
        json
    };
    let text = || seconds.map_or_else(|| "never expires".to_owned(), |seconds| seconds.to_string());
    print_result(target.cluster.output, text, json)?;
    Ok(Exit::Done)
}

/// `hedgerow scan`.
pub(crate) async fn scan(arguments: ScanArguments) -> Result<Exit> {
    let target = &arguments.target;
    let decode = |word: &Option<String>| word.as_ref().map(|word| target.decode(word)).transpose();
    let range = match decode(&arguments.prefix)? {
        Some(prefix) => Range::prefix(prefix),
        None => {
            Range::between(decode(&arguments.start)?.unwrap_or_default(), decode(&arguments.stop)?.unwrap_or_default())
        }
    };
    let (table, session) = target.open_to_read(&arguments.read).await?;
    let limit = if arguments.limit == 0 { u64::MAX } else { arguments.limit };
    let options =
        ScanOptions { page_rows: limit.min(500) as u32, no_value: arguments.no_value, ..ScanOptions::default() };
    let mut scanner = table.scan(decode(&arguments.hash_key)?.as_ref(), &range, options)?;
    let mut count = 0;
    while let Some(page) = scanner.next_page().await? {
        for row in page {
            if count == limit {
                say(&format!("there are more rows: only the first {limit} are shown (--limit)"));
                session.keep()?;
                return Ok(Exit::Done);
            }
            count += 1;
            print_row(&row, table.shape(), target, arguments.no_value)?;
        }
    }
    session.keep()?;
    Ok(Exit::Done)
}

/// `hedgerow multi-get`.
pub(crate) async fn multi_get(arguments: MultiGetArguments) -> Result<Exit> {
    let target = &arguments.target;
    let keys = target.decode_all(&arguments.keys)?;
    let (table, session) = target.open_to_read(&arguments.read).await?;
    let (rows, asked): (Vec<Row>, &[Bytes]) = match &table {
        AnyTable::Hash(hash) => {
            let (hash_key, sort_keys) = keys.split_first().context("no hash key was given")?;
            if hash_key.is_empty() {
                bail!(
                    "rows with an empty hash key are spread over all partitions by their sort keys, so that they cannot be read \
                     together: `hedgerow get {} \"\" KEY` reads one",
                    table.name()
                );
            }
            if sort_keys.is_empty() {
                let (name, key) = (table.name(), &arguments.keys[0]);
                bail!("no sort key was given: `hedgerow scan {name} {key}` shows all rows of a hash key");
            }
            let found = hash.multi_get(hash_key, sort_keys.iter().cloned()).await?;
            let row = |row: SortRow| Row {
                hash_key: hash_key.clone(),
                sort_key: row.sort_key,
                value: row.value,
                ttl_seconds: None,
            };
            (found.rows.into_iter().map(row).collect(), sort_keys)
        }
        AnyTable::Ordered(ordered) => {
            let mut rows = Vec::new();
            for key in &keys {
                let value = ordered.get(key).await?;
                rows.extend(value.map(|value| Row { sort_key: key.clone(), value, ..Row::default() }));
            }
            (rows, &keys)
        }
    };
    session.keep()?;
    for row in &rows {
        print_row(row, table.shape(), target, false)?;
    }
    let is_missing = |key: &&Bytes| rows.iter().all(|row| row.sort_key != **key);
    let missing: Vec<_> = asked.iter().filter(is_missing).map(|key| target.encoding.encode(key)).collect();
    if !missing.is_empty() {
        say(&format!("there is no such record: {}", missing.join(", ")));
        return Ok(Exit::NotFound);
    }
    Ok(Exit::Done)
}

fn not_found() -> Exit {
    say("there is no such record");
    Exit::NotFound
}

fn print_row(row: &Row, shape: Shape, target: &Target, no_value: bool) -> Result<()> {
    let encoding = target.encoding;
    match target.cluster.output {
        Output::Json => print(&row_json(row, shape, encoding, no_value).to_string()),
        Output::Text => {
            let mut fields: Vec<&[u8]> = match shape {
                Shape::Hash => vec![&row.hash_key, &row.sort_key, &row.value],
                Shape::Ordered => vec![&row.sort_key, &row.value],
            };
            if no_value {
                fields.pop();
            }
            let fields: Vec<_> = fields.into_iter().map(|field| encoding.encode(field)).collect();
            print(&fields.join("\t"))
        }
    }
}

fn row_json(row: &Row, shape: Shape, encoding: Encoding, no_value: bool) -> Value {
    let key = Key { hash_key: row.hash_key.clone(), sort_key: row.sort_key.clone() };
    let mut json = key_json(&key, shape, encoding);
    if let (Value::Object(object), false) = (&mut json, no_value) {
        insert_field(object, "value", &row.value, encoding);
    }
    json
}

/// Which record it is, for people.
fn key_text(key: &Key, shape: Shape, encoding: Encoding) -> String {
    let shown = |bytes: &Bytes| format!("\"{}\"", encoding.encode(bytes));
    match shape {
        Shape::Hash => format!("hash key {}, sort key {}", shown(&key.hash_key), shown(&key.sort_key)),
        Shape::Ordered => format!("key {}", shown(&key.sort_key)),
    }
}

fn key_json(key: &Key, shape: Shape, encoding: Encoding) -> Value {
    let mut object = Map::new();
    match shape {
        Shape::Hash => {
            insert_field(&mut object, "hash_key", &key.hash_key, encoding);
            insert_field(&mut object, "sort_key", &key.sort_key, encoding);
        }
        Shape::Ordered => insert_field(&mut object, "key", &key.sort_key, encoding),
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_increment_that_is_refused_says_whether_the_record_or_the_sum_is_to_blame() {
        let told = |value: Option<&[u8]>, by| {
            let error = Error::new(ErrorKind::FailedPrecondition, "as the server said it");
            error_of_sum(error, value, by).message().to_owned()
        };
        assert!(told(Some(b"Ada"), 1).contains("does not hold a whole number"));
        assert!(told(Some(b"\xff"), 1).contains("does not hold a whole number"));
        assert!(told(Some(b"9223372036854775807"), 1).contains("the sum of 9223372036854775807 and 1 is beyond"));
        assert_eq!(told(Some(b"7"), 1), "as the server said it");
        assert_eq!(told(None, 1), "as the server said it");
    }

    #[test]
    fn a_set_that_lacks_a_key_or_a_value_is_shown_its_form() {
        let told = |shape, line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            check_words_of_set("t", shape, &words).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let said = told(Shape::Hash, "foo bar");
        assert!(said.contains("`hedgerow set t foo bar VALUE`"), "{said}");
        assert!(said.ends_with("with an empty sort key `hedgerow set t foo \"\" bar`"), "{said}");
        let said = told(Shape::Ordered, "foo bar 7");
        assert!(said.contains("`hedgerow set t KEY VALUE`") && said.ends_with("`hedgerow set t foo 7`"), "{said}");
        assert_eq!(told(Shape::Hash, "foo bar 7") + &told(Shape::Ordered, "foo 7"), "");
    }

    #[test]
    fn a_record_is_named_by_its_keys() {
        let key = Key { hash_key: Bytes::from("foo"), sort_key: Bytes::from("a\tb") };
        assert_eq!(key_text(&key, Shape::Hash, Encoding::Text), "hash key \"foo\", sort key \"a\\tb\"");
        assert_eq!(key_text(&key, Shape::Ordered, Encoding::Hex), "key \"610962\"");
    }

    #[test]
    fn a_write_that_was_not_done_says_so() {
        let told = |kind| format!("{:#}", of_write(Error::new(kind, "no leader: 1 of 3 replicas up")));
        assert_eq!(told(ErrorKind::Unavailable), "nothing was written: no leader: 1 of 3 replicas up");
        assert_eq!(told(ErrorKind::DiskFull), "no leader: 1 of 3 replicas up");
        assert_eq!(Exit::of(&of_write(Error::new(ErrorKind::Timeout, "late"))), Exit::Unreachable);
    }
}
