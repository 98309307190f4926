//! Between messages and operations: what a request asks of a partition, and what the partition's answer says on the wire.
//!
//! Limits and argument rules are checked here, so that the storage sees operations only.

mod answer;
mod journal;
mod keys;
mod range;
#[cfg(test)]
mod tests;

pub use answer::{Ident, read_reply, scan_reply, status_reply, write_reply};

use crate::message::{CheckAndMutate, CheckAndSet, MultiGet, MultiPut, MultiRemove, Mutate};
use crate::method::Body;
use alloc::format;
use alloc::vec::Vec;
use bytes::Bytes;
use hedgerow_types::limit::{
    BATCH_READ_COUNT_MAX, MULTI_WRITE_COUNT_MAX, SORT_KEY_SIZE_MAX, WRITE_SIZE_MAX, WRITE_STORED_SIZE_MAX,
};
use hedgerow_types::op::{self, Check, Filter, FilterKind, Mutation, Read, Selection, Write};
use hedgerow_types::{Refusal, Status};

/// How a table's keys become storage keys (see [`hedgerow_types::key`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TableKind {
    /// Keys have two parts, and the hash of the first says which partition they are in.
    #[default]
    Hash = 0,
    /// Keys have one part, sent as the sort key of an empty hash key, and partitions are ranges of them.
    Ordered = 1,
}

impl TableKind {
    /// The kind with wire number `code`; the number itself is `kind as i32`.
    pub const fn from_code(code: i32) -> Option<Self> {
        match code {
            0 => Some(Self::Hash),
            1 => Some(Self::Ordered),
            _ => None,
        }
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read of one partition.
    Read(Read),
    /// A write to one partition.
    Write(Write),
    /// The first page of a scan, which is to be remembered if it has more.
    OpenScan {
        /// The page, and where the next ones begin and end.
        scan: op::Scan,
        /// Whether rows that a split gave to another partition must be hidden.
        validate_hash: bool,
    },
    /// The next page of the scan `context`, which this request uses up.
    ContinueScan {
        /// Its id.
        context: i64,
    },
    /// The scan `context` is not wanted any more. No answer.
    ClearScan {
        /// Its id.
        context: i64,
    },
    /// Nothing that a partition could do: the body says the rest.
    Other,
}

/// An answer that needs no partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The request is refused: a limit, or a key that the table cannot have. See [`crate::Reply::refused`].
    Refused(Refusal),
    /// The operation's own answer. See [`status_reply`].
    Answered(Status),
}

const INVALID: Denied = Denied::Answered(Status::InvalidArgument);

/// What `body` asks of a partition of a table of the given kind.
///
/// # Errors
/// [`Denied`] where the answer is known without looking at any data.
pub fn operation(body: &Body, table: TableKind) -> Result<Operation, Denied> {
    let read = match body {
        Body::Get(key) => Read::Get { key: table.record_key(key)? },
        Body::Ttl(key) => Read::Ttl { key: table.record_key(key)? },
        Body::SortKeyCount(hash_key) => Read::SortKeyCount { prefix: table.prefix(hash_key)? },
        Body::MultiGet(request) => multi_get(request, table)?,
        Body::BatchGet(request) => {
            count_within(request.keys.len(), BATCH_READ_COUNT_MAX)?;
            let keys = request.keys.iter().map(|key| table.joined_key(&key.hash_key, &key.sort_key));
            Read::BatchGet { keys: keys.collect::<Result<_, _>>()? }
        }
        Body::GetScanner(request) => {
            let scan = range::scan(request, table)?;
            return Ok(Operation::OpenScan { scan, validate_hash: request.validate_partition_hash.unwrap_or(true) });
        }
        Body::HedgerowJournalRead(request) => journal::read(request)?,
        Body::Scan(request) => return Ok(Operation::ContinueScan { context: request.context_id }),
        Body::ClearScanner(context) => return Ok(Operation::ClearScan { context: *context }),
        Body::Put(_)
        | Body::MultiPut(_)
        | Body::Remove(_)
        | Body::MultiRemove(_)
        | Body::Incr(_)
        | Body::CheckAndSet(_)
        | Body::CheckAndMutate(_)
        | Body::HedgerowDuplicate(_)
        | Body::HedgerowJournalWrite(_) => return write(body, table).map(Operation::Write),
        Body::QueryConfig(_)
        | Body::CreateTable(_)
        | Body::DropTable(_)
        | Body::RecallTable(_)
        | Body::ListTables(_)
        | Body::ListNodes(_)
        | Body::ClusterInfo(_)
        | Body::UpdateEnvs(_)
        | Body::CommandLine(_)
        | Body::Negotiation(_)
        | Body::HedgerowAdmin(_)
        | Body::HedgerowCancel(_) => return Ok(Operation::Other),
    };
    Ok(Operation::Read(read))
}

fn write(body: &Body, table: TableKind) -> Result<Write, Denied> {
    let write = match body {
        Body::Put(request) => {
            size_within(request.key.len() + request.value.len(), WRITE_SIZE_MAX)?;
            Write::Put {
                key: table.record_key(&request.key)?,
                value: request.value.clone(),
                expire_at: request.expire_ts_seconds as u32,
            }
        }
        Body::Remove(key) => Write::Remove { key: table.record_key(key)? },
        Body::Incr(request) => Write::Incr {
            key: table.record_key(&request.key)?,
            by: request.increment,
            expire_at: request.expire_ts_seconds,
        },
        Body::MultiPut(request) => multi_put(request, table)?,
        Body::MultiRemove(request) => multi_remove(request, table)?,
        Body::CheckAndSet(request) => check_and_set(request, table)?,
        Body::CheckAndMutate(request) => check_and_mutate(request, table)?,
        Body::HedgerowDuplicate(request) => journal::duplicate(request, table)?,
        Body::HedgerowJournalWrite(request) => journal::write(request)?,
        _ => return Err(Denied::Refused(Refusal::Unknown)),
    };
    stored_within(&write)?;
    Ok(write)
}

fn multi_get(request: &MultiGet, table: TableKind) -> Result<Read, Denied> {
    let selection = if request.sort_keys.is_empty() {
        Selection::Range {
            start: request.start_sortkey.clone(),
            start_inclusive: request.start_inclusive,
            stop: request.stop_sortkey.clone(),
            stop_inclusive: request.stop_inclusive,
            filter: filter(request.sort_key_filter_type, &request.sort_key_filter_pattern)?,
            reverse: request.reverse,
        }
    } else {
        count_within(request.sort_keys.len(), BATCH_READ_COUNT_MAX)?;
        Selection::Suffixes(suffixes(&request.sort_keys)?)
    };
    Ok(Read::MultiGet(op::MultiGet {
        prefix: table.prefix(&request.hash_key)?,
        selection,
        count_max: request.max_kv_count,
        size_max: request.max_kv_size,
        no_value: request.no_value,
    }))
}

fn multi_put(request: &MultiPut, table: TableKind) -> Result<Write, Denied> {
    count_within(request.kvs.len(), MULTI_WRITE_COUNT_MAX)?;
    let rows_size: usize = request.kvs.iter().map(|row| row.key.len() + row.value.len()).sum();
    size_within(request.hash_key.len() + rows_size, WRITE_SIZE_MAX)?;
    let rows = request.kvs.iter().map(|row| Ok((keys::suffix(&row.key)?, row.value.clone())));
    Ok(Write::MultiPut {
        prefix: table.prefix(&request.hash_key)?,
        rows: rows.collect::<Result<_, Denied>>()?,
        expire_at: request.expire_ts_seconds as u32,
    })
}

fn multi_remove(request: &MultiRemove, table: TableKind) -> Result<Write, Denied> {
    count_within(request.sort_keys.len(), MULTI_WRITE_COUNT_MAX)?;
    size_within(request.hash_key.len() + request.sort_keys.iter().map(Bytes::len).sum::<usize>(), WRITE_SIZE_MAX)?;
    Ok(Write::MultiRemove { prefix: table.prefix(&request.hash_key)?, suffixes: suffixes(&request.sort_keys)? })
}

fn check_and_set(request: &CheckAndSet, table: TableKind) -> Result<Write, Denied> {
    let key = if request.set_diff_sort_key { &request.set_sort_key } else { &request.check_sort_key };
    size_within(
        request.hash_key.len()
            + request.check_sort_key.len()
            + request.check_operand.len()
            + request.set_sort_key.len()
            + request.set_value.len(),
        WRITE_SIZE_MAX,
    )?;
    Ok(Write::CheckAndMutate {
        prefix: table.prefix(&request.hash_key)?,
        check: Check {
            suffix: keys::suffix(&request.check_sort_key)?,
            kind: request.check_type,
            operand: request.check_operand.clone(),
        },
        mutations: Vec::from([Mutation::Put {
            suffix: keys::suffix(key)?,
            value: request.set_value.clone(),
            expire_at: request.set_expire_ts_seconds as u32,
        }]),
        return_check_value: request.return_check_value,
    })
}

fn check_and_mutate(request: &CheckAndMutate, table: TableKind) -> Result<Write, Denied> {
    count_within(request.mutate_list.len(), MULTI_WRITE_COUNT_MAX)?;
    let changes_size: usize = request.mutate_list.iter().map(|change| change.sort_key.len() + change.value.len()).sum();
    size_within(
        request.hash_key.len() + request.check_sort_key.len() + request.check_operand.len() + changes_size,
        WRITE_SIZE_MAX,
    )?;
    Ok(Write::CheckAndMutate {
        prefix: table.prefix(&request.hash_key)?,
        check: Check {
            suffix: keys::suffix(&request.check_sort_key)?,
            kind: request.check_type,
            operand: request.check_operand.clone(),
        },
        mutations: request.mutate_list.iter().map(mutation).collect::<Result<_, _>>()?,
        return_check_value: request.return_check_value,
    })
}

fn mutation(change: &Mutate) -> Result<Mutation, Denied> {
    let suffix = keys::suffix(&change.sort_key)?;
    match change.operation {
        0 => Ok(Mutation::Put { suffix, value: change.value.clone(), expire_at: change.set_expire_ts_seconds as u32 }),
        1 => Ok(Mutation::Remove { suffix }),
        _ => Err(INVALID),
    }
}

fn suffixes(sort_keys: &[Bytes]) -> Result<Vec<Bytes>, Denied> {
    sort_keys.iter().map(keys::suffix).collect()
}

fn filter(kind: i32, pattern: &Bytes) -> Result<Filter, Denied> {
    let kind = match kind {
        0 => FilterKind::None,
        1 => FilterKind::Anywhere,
        2 => FilterKind::Prefix,
        3 => FilterKind::Postfix,
        _ => return Err(INVALID),
    };
    if pattern.len() > SORT_KEY_SIZE_MAX {
        let text = format!("a filter of {} bytes, above the limit of {SORT_KEY_SIZE_MAX}", pattern.len());
        return Err(Denied::Refused(Refusal::Invalid(text)));
    }
    Ok(Filter { kind, pattern: pattern.clone() })
}

/// A list of a multi-key operation: not empty, which is answered as Pegasus does, and not too long.
fn count_within(count: usize, count_max: usize) -> Result<(), Denied> {
    if count == 0 {
        return Err(INVALID);
    }
    if count > count_max {
        let text = format!("{count} keys in one request, above the limit of {count_max}");
        return Err(Denied::Refused(Refusal::Invalid(text)));
    }
    Ok(())
}

/// What storage makes of a write: much more than is sent, where a long hash key has many rows.
fn stored_within(write: &Write) -> Result<(), Denied> {
    let size = write.stored_size();
    if size > WRITE_STORED_SIZE_MAX {
        let text = format!(
            "a write of {size} bytes when its hash key counts for each row, above the limit of {WRITE_STORED_SIZE_MAX}"
        );
        return Err(Denied::Refused(Refusal::TooLarge(text)));
    }
    Ok(())
}

/// A write's keys and values together.
fn size_within(size: usize, size_max: usize) -> Result<(), Denied> {
    if size > size_max {
        let text = format!("a write of {size} bytes, above the limit of {size_max}");
        return Err(Denied::Refused(Refusal::TooLarge(text)));
    }
    Ok(())
}
