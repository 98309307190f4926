//! From a partition's answer to a reply.

use super::TableKind;
use crate::error_name::ErrorName;
use crate::message::{
    BatchGetReply, CheckReply, CountReply, FullData, GetReply, IncrReply, KeyValue, MultiGetReply, MultiRemoveReply,
    SCAN_DONE, ScanReply, TtlReply, UpdateReply,
};
use crate::method::Method;
use crate::reply::{Failure, Reply};
use crate::value::Text;
use alloc::vec::Vec;
use bytes::Bytes;
use hedgerow_types::Status;
use hedgerow_types::journal::JournalPage;
use hedgerow_types::key;
use hedgerow_types::op::{ReadReply, Row, WriteDetail, WriteReply};

/// Who answers.
#[derive(Clone, Copy, Debug)]
pub struct Ident<'a> {
    /// Id of the table.
    pub app_id: i32,
    /// Index of the partition.
    pub partition_index: i32,
    /// The serving node's `host:port`.
    pub server: &'a Text,
    /// What the table's keys look like.
    pub table: TableKind,
}

/// The reply to a read. A page of a scan is taken for the last one: see [`scan_reply`] for the others.
pub fn read_reply(method: Method, reply: ReadReply, ident: &Ident<'_>) -> Reply {
    let Ident { app_id, partition_index, server, .. } = *ident;
    let server = server.clone();
    match (method, reply) {
        (Method::Get, ReadReply::Value(result)) => {
            let (error, value) = code_and(result);
            Reply::Get(GetReply { error, value, app_id, partition_index, server })
        }
        (Method::Ttl, ReadReply::Ttl(result)) => {
            let (error, ttl_seconds) = code_and(result);
            Reply::Ttl(TtlReply { error, ttl_seconds, app_id, partition_index, server })
        }
        (Method::SortKeyCount, ReadReply::Count(result)) => {
            let (error, count) = code_and(result);
            Reply::Count(CountReply { error, count, app_id, partition_index, server })
        }
        (Method::MultiGet, ReadReply::Rows { status, rows }) => {
            let kvs = rows.into_iter().map(|row| key_value(row.key.clone(), row)).collect();
            Reply::MultiGet(MultiGetReply { error: status.code(), kvs, app_id, partition_index, server })
        }
        (Method::BatchGet, ReadReply::Rows { status, rows }) => {
            let data = rows.into_iter().map(|row| full_data(row, ident.table)).collect::<Option<Vec<_>>>();
            let (error, data) = whole(status, data);
            Reply::BatchGet(BatchGetReply { error, data, app_id, partition_index, server })
        }
        (Method::HedgerowJournalRead, ReadReply::Journal(page)) => {
            Reply::Journal(super::journal::reply(Status::Ok, page, ident))
        }
        (Method::GetScanner | Method::Scan, page @ ReadReply::Page { .. }) => scan_reply(page, SCAN_DONE, false, ident),
        // An answer to another question: an error of ours, and nothing that the caller can use.
        _ => Reply::Failed(Failure { name: ErrorName::Unknown, detail: None }),
    }
}

/// The reply to a scan whose next page `context_id` names ([`SCAN_DONE`] = there is none). `only_count` is what the scan
/// asked for.
pub fn scan_reply(page: ReadReply, context_id: i64, only_count: bool, ident: &Ident<'_>) -> Reply {
    let ReadReply::Page { status, rows, count, .. } = page else {
        return Reply::Failed(Failure { name: ErrorName::Unknown, detail: None });
    };
    let full = |row: Row| Some(key_value(ident.table.full_key(&row.key)?, row));
    let (error, kvs) = whole(status, rows.into_iter().map(full).collect());
    Reply::Scan(ScanReply {
        error,
        kvs,
        context_id: if error == Status::Ok.code() { context_id } else { SCAN_DONE },
        app_id: ident.app_id,
        partition_index: ident.partition_index,
        server: ident.server.clone(),
        kv_count: only_count.then_some(count.min(i32::MAX as u32) as i32),
    })
}

/// The reply to a write, whose log index is `decree`.
pub fn write_reply(method: Method, reply: WriteReply, decree: u64, ident: &Ident<'_>) -> Reply {
    let Ident { app_id, partition_index, server, .. } = *ident;
    let (server, decree, error) = (server.clone(), decree as i64, reply.status.code());
    match method {
        Method::Put | Method::Remove | Method::MultiPut | Method::HedgerowDuplicate | Method::HedgerowJournalWrite => {
            Reply::Update(UpdateReply { error, app_id, partition_index, decree, server })
        }
        Method::MultiRemove => {
            let count = if let WriteDetail::Removed(count) = reply.detail { count } else { 0 };
            Reply::MultiRemove(MultiRemoveReply { error, count, app_id, partition_index, decree, server })
        }
        Method::Incr => {
            let new_value = if let WriteDetail::Value(value) = reply.detail { value } else { 0 };
            Reply::Incr(IncrReply { error, new_value, app_id, partition_index, decree, server })
        }
        Method::CheckAndSet | Method::CheckAndMutate => {
            let checked = if let WriteDetail::Checked(checked) = reply.detail { checked } else { None };
            Reply::Check(CheckReply {
                error,
                check_value_returned: checked.is_some(),
                check_value_exist: matches!(checked, Some(Some(_))),
                check_value: checked.flatten().unwrap_or_default(),
                app_id,
                partition_index,
                decree,
                server,
            })
        }
        _ => Reply::Failed(Failure { name: ErrorName::Unknown, detail: None }),
    }
}

/// The reply of an operation that ended in `status` before it looked at any data.
pub fn status_reply(method: Method, status: Status, ident: &Ident<'_>) -> Reply {
    let read = match method {
        Method::Get => ReadReply::Value(Err(status)),
        Method::Ttl => ReadReply::Ttl(Err(status)),
        Method::SortKeyCount => ReadReply::Count(Err(status)),
        Method::MultiGet | Method::BatchGet => ReadReply::Rows { status, rows: Vec::new() },
        Method::GetScanner | Method::Scan => ReadReply::Page { status, rows: Vec::new(), count: 0, resume_after: None },
        Method::HedgerowJournalRead => {
            return Reply::Journal(super::journal::reply(status, JournalPage::default(), ident));
        }
        _ => return write_reply(method, WriteReply { status, detail: WriteDetail::None }, 0, ident),
    };
    read_reply(method, read, ident)
}

fn code_and<T: Default>(result: Result<T, Status>) -> (i32, T) {
    match result {
        Ok(value) => (Status::Ok.code(), value),
        Err(status) => (status.code(), T::default()),
    }
}

/// `rows` if every stored key had its proper form; otherwise nothing but [`Status::Corruption`].
fn whole<T>(status: Status, rows: Option<Vec<T>>) -> (i32, Vec<T>) {
    match rows {
        Some(rows) => (status.code(), rows),
        None => (Status::Corruption.code(), Vec::new()),
    }
}

fn key_value(key: Bytes, row: Row) -> KeyValue {
    KeyValue { key, value: row.value, expire_ts_seconds: row.expire_at.map(|seconds| seconds as i32) }
}

fn full_data(row: Row, table: TableKind) -> Option<FullData> {
    let full_key = table.full_key(&row.key)?;
    let hash_key_size = key::split_full_key(&full_key)?.0.len();
    Some(FullData {
        hash_key: full_key.slice(2..2 + hash_key_size),
        sort_key: full_key.slice(2 + hash_key_size..),
        value: row.value,
    })
}
