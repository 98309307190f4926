//! The calls of duplication, as operations, and the replies to them.

use super::{Denied, INVALID, Ident, TableKind, count_within, size_within};
use crate::message::{
    CHANGE_PUT, CHANGE_REMOVE, Duplicate, JOURNAL_BEGIN, JOURNAL_END, JOURNAL_REACHED, JournalRead, JournalReply,
    JournalWrite, RowChange,
};
use alloc::format;
use alloc::vec::Vec;
use hedgerow_types::journal::{self, Change, DUPLICATE_CHANGES_MAX, JournalPage, Position};
use hedgerow_types::limit::{HASH_KEY_SIZE_MAX, SORT_KEY_SIZE_MAX};
use hedgerow_types::op::{Mutation, Read, Write};
use hedgerow_types::{Refusal, Status};

/// Largest page of a journal, bytes of keys and values. The last row may exceed it.
const PAGE_SIZE_MAX: u32 = 4 << 20;
/// Longest position: a key with what stands before it.
const POSITION_SIZE_MAX: usize = HASH_KEY_SIZE_MAX + SORT_KEY_SIZE_MAX + 16;
/// Bytes of keys and values that changes may have: a row that was written may come back with its key, so more than one write has.
const CHANGES_SIZE_MAX: usize = 2 * hedgerow_types::limit::WRITE_SIZE_MAX;

pub(super) fn duplicate(request: &Duplicate, table: TableKind) -> Result<Write, Denied> {
    count_within(request.changes.len(), DUPLICATE_CHANGES_MAX)?;
    size_within(request.changes.iter().map(|it| it.key.len() + it.value.len()).sum(), CHANGES_SIZE_MAX)?;
    let changes = request.changes.iter().map(|it| change(it, table)).collect::<Result<_, _>>()?;
    Ok(Write::Duplicate(journal::Duplicate { here: request.cluster, changes }))
}

fn change(change: &RowChange, table: TableKind) -> Result<Change, Denied> {
    let suffix = table.record_key(&change.key)?;
    let mutation = match change.operation {
        CHANGE_PUT => Mutation::Put { suffix, value: change.value.clone(), expire_at: change.expire_ts_seconds as u32 },
        CHANGE_REMOVE => Mutation::Remove { suffix },
        _ => return Err(INVALID),
    };
    Ok(Change { stamp: change.stamp, origin: change.origin, mutation })
}

pub(super) fn read(request: &JournalRead) -> Result<Read, Denied> {
    let from = if request.from.is_empty() { None } else { Some(position(&request.from)?) };
    let bytes_max = u32::try_from(request.bytes_max).unwrap_or(0).clamp(1, PAGE_SIZE_MAX);
    let round = u32::try_from(request.round).map_err(|_| INVALID)?;
    Ok(Read::Journal(journal::JournalRead { id: request.id, round, from, bytes_max }))
}

pub(super) fn write(request: &JournalWrite) -> Result<Write, Denied> {
    let JournalWrite { action, id, cluster, target, bytes_max, .. } = *request;
    let round = u32::try_from(request.round).map_err(|_| INVALID)?;
    Ok(Write::Journal(match action {
        JOURNAL_BEGIN => journal::JournalWrite::Begin { id, round, cluster, target, bytes_max },
        JOURNAL_REACHED => journal::JournalWrite::Reached { id, round, position: position(&request.position)? },
        JOURNAL_END => journal::JournalWrite::End { id },
        _ => return Err(INVALID),
    }))
}

fn position(encoded: &bytes::Bytes) -> Result<Position, Denied> {
    if encoded.len() > POSITION_SIZE_MAX {
        let text = format!("a position of {} bytes, above the limit of {POSITION_SIZE_MAX}", encoded.len());
        return Err(Denied::Refused(Refusal::Invalid(text)));
    }
    Position::decode(encoded.clone()).ok_or(INVALID)
}

/// The reply with this page; of an operation that ended without one, nothing but its status.
pub(super) fn reply(status: Status, page: JournalPage, ident: &Ident<'_>) -> JournalReply {
    let changes = page.changes.into_iter().map(|change| row_change(change, ident.table)).collect::<Option<Vec<_>>>();
    let (status, changes) = match changes {
        Some(changes) => (status, changes),
        None => (Status::Corruption, Vec::new()),
    };
    JournalReply {
        error: status.code(),
        phase: page.phase as i32,
        round: page.round as i32,
        target: page.target,
        changes,
        position: page.position.map(|position| position.encoded()).unwrap_or_default(),
        has_more: page.has_more,
        entries_left: page.entries_left,
        bytes_left: page.bytes_left,
        oldest_seconds: page.oldest.into(),
        now_seconds: page.now.into(),
        unneeded: page.unneeded,
        app_id: ident.app_id,
        partition_index: ident.partition_index,
        server: ident.server.clone(),
    }
}

fn row_change(change: Change, table: TableKind) -> Option<RowChange> {
    let Change { stamp, origin, mutation } = change;
    let key = table.full_key(mutation.suffix())?;
    let (operation, value, expire_at) = match mutation {
        Mutation::Put { value, expire_at, .. } => (CHANGE_PUT, value, expire_at),
        Mutation::Remove { .. } => (CHANGE_REMOVE, bytes::Bytes::new(), 0),
    };
    Some(RowChange { operation, key, value, expire_ts_seconds: expire_at as i32, stamp, origin })
}
