//! The simulated clients' calls as frames of the client protocol, and the replies as answers.

use crate::history::{Answer, Call, Content};
use bytes::{Bytes, BytesMut};
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_types::{Refusal, Status};
use hedgerow_wire::call::{decode_reply, encode_request};
use hedgerow_wire::message::{AdminCommand, CheckAndSet, CreateOptions, CreateTable, Incr, Put, QueryConfig};
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply};

/// Name of the one table.
const TABLE_NAME: &str = "sim";
const SORT_KEY: &[u8] = b"s";
/// Pegasus' number of the check "does not exist".
const CHECK_NOT_EXIST: i32 = 1;
/// Pegasus' number of the check "equal bytes".
const CHECK_EQUAL: i32 = 10;

/// The table that the clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its id.
    pub id: i32,
    /// Its partitions.
    pub partition_count: u32,
}

impl Table {
    /// The partition of `key`.
    pub fn partition_of(&self, key: u32) -> u32 {
        partition_of_hash(partition_hash(&hash_key(key), SORT_KEY), self.partition_count)
    }
}

/// One attempt of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Of what.
    pub call: Call,
    /// On which record.
    pub key: u32,
    /// The number by which the reply is told.
    pub sequence_id: i32,
    /// The client's id.
    pub client_id: u64,
    /// The operation's number within its client; all attempts of a write share it.
    pub sequence: u64,
    /// From 1.
    pub number: i32,
    /// Milliseconds for which the client still waits.
    pub deadline_ms: i64,
}

/// What a reply says about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// It was done.
    Answer(Answer),
    /// It was not done, or not for sure.
    Refused {
        /// Whether this attempt certainly had no effect and will have none.
        is_clean: bool,
        /// Address of the leader, where the node knew it.
        leader: Option<String>,
        /// For traces.
        why: String,
    },
    /// The reply makes no sense; the run has failed.
    Nonsense(String),
}

/// What a reply to the operator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorReply {
    /// The table, once all its partitions have leaders.
    Table(Table),
    /// Done.
    Done,
    /// Not done.
    Failed(String),
}

/// The frame of `attempt`.
pub fn request(attempt: &Attempt, table: Table) -> Bytes {
    let hash_key = hash_key(attempt.key);
    let key = full_key(&hash_key, SORT_KEY);
    let body = match attempt.call {
        Call::Get => Body::Get(key),
        Call::Put(value) => Body::Put(Put { key, value: text(value), expire_ts_seconds: 0 }),
        Call::Remove => Body::Remove(key),
        Call::Incr(by) => Body::Incr(Incr { key, increment: by, expire_ts_seconds: 0 }),
        Call::Swap { expected, new } => Body::CheckAndSet(CheckAndSet {
            check_type: if expected.is_some() { CHECK_EQUAL } else { CHECK_NOT_EXIST },
            check_operand: expected.map_or_else(Bytes::new, text),
            check_sort_key: Bytes::from_static(SORT_KEY),
            set_value: text(new),
            return_check_value: true,
            hash_key: hash_key.clone(),
            ..CheckAndSet::default()
        }),
    };
    let header = Header {
        app_id: table.id,
        partition_index: table.partition_of(attempt.key) as i32,
        timeout_ms: 1_000,
        partition_hash: partition_hash(&hash_key, SORT_KEY),
        is_backup: false,
        extension: Some(Extension {
            attempt: Some(attempt.number),
            deadline_ms: Some(attempt.deadline_ms),
            client_id: Some(attempt.client_id),
            sequence: attempt.call.is_write().then_some(attempt.sequence),
            ..Extension::default()
        }),
    };
    framed(&header, attempt.sequence_id, &body)
}

/// The frame that creates the table.
pub fn create_table(sequence_id: i32, partition_count: u32, replica_count: u32) -> Bytes {
    let options = CreateOptions {
        partition_count: partition_count as i32,
        replica_count: replica_count as i32,
        success_if_exist: true,
        app_type: "pegasus".into(),
        is_stateful: true,
        ..CreateOptions::default()
    };
    operator_frame(sequence_id, &Body::CreateTable(CreateTable { app_name: TABLE_NAME.into(), options }))
}

/// The frame that asks where the table is.
pub fn query_table(sequence_id: i32) -> Bytes {
    let query = QueryConfig { app_name: TABLE_NAME.into(), partition_indices: Vec::new() };
    operator_frame(sequence_id, &Body::QueryConfig(query))
}

/// The frame of an administrative command.
pub fn admin(sequence_id: i32, command: &str, argument: &str) -> Bytes {
    let command = AdminCommand { command: command.into(), argument: argument.into() };
    operator_frame(sequence_id, &Body::HedgerowAdmin(command))
}

fn operator_frame(sequence_id: i32, body: &Body) -> Bytes {
    framed(&Header { extension: Some(Extension::default()), ..Header::default() }, sequence_id, body)
}

fn framed(header: &Header, sequence_id: i32, body: &Body) -> Bytes {
    let mut out = BytesMut::with_capacity(256);
    encode_request(&mut out, header, sequence_id, body);
    out.freeze()
}

/// Splits a chunk of whole reply frames.
pub fn split_replies(mut chunk: Bytes) -> Vec<Bytes> {
    let mut frames = Vec::new();
    while let Some(size) = chunk.first_chunk::<4>().map(|size| u32::from_be_bytes(*size) as usize) {
        frames.push(chunk.split_to(size.clamp(4, chunk.len())));
    }
    frames
}

/// Reads the reply to an operation: its number, and what it says.
pub fn reply(frame: Bytes, call: &Call) -> (Option<i32>, Received) {
    match decode_reply(frame) {
        Ok(reply) => (Some(reply.sequence_id), received(&reply.reply, call)),
        Err(error) => (None, Received::Nonsense(format!("a client cannot read a reply: {error}"))),
    }
}

fn received(reply: &Reply, call: &Call) -> Received {
    let nonsense = || Received::Nonsense(format!("{call:?} was answered {reply:?}"));
    match reply {
        Reply::Failed(failure) => {
            let Some(refusal) = failure.refusal() else { return nonsense() };
            // One operation at a time never leaves the window.
            if let Refusal::SessionWindow { .. } = refusal {
                return nonsense();
            }
            let leader = failure.detail.as_ref().map(|detail| detail.leader.as_str()).unwrap_or_default();
            let leader = (!leader.is_empty()).then(|| leader.to_owned());
            Received::Refused { is_clean: is_clean(&refusal), leader, why: refusal.to_string() }
        }
        Reply::Get(get) => match Status::from_code(get.error) {
            Some(Status::Ok) => number(&get.value).map_or_else(nonsense, |value| content(Some(value))),
            Some(Status::NotFound) => content(None),
            _ => nonsense(),
        },
        Reply::Update(update) if update.error == Status::Ok.code() => Received::Answer(Answer::Done),
        Reply::Incr(incr) if incr.error == Status::Ok.code() => Received::Answer(Answer::Sum(incr.new_value)),
        Reply::Check(check) => {
            let is_applied = match Status::from_code(check.error) {
                Some(Status::Ok) => true,
                Some(Status::TryAgain) => false,
                _ => return nonsense(),
            };
            let previous = match (check.check_value_exist, number(&check.check_value)) {
                (false, _) => None,
                (true, Some(value)) => Some(value),
                (true, None) => return nonsense(),
            };
            Received::Answer(Answer::Swapped { is_applied, previous })
        }
        _ => nonsense(),
    }
}

/// Whether a refused attempt has no effect for sure. A stopping node may have proposed the write before.
const fn is_clean(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::NotLeader { .. }
        | Refusal::NotReady(_)
        | Refusal::Lagging(_)
        | Refusal::NotHosted
        | Refusal::Busy(_)
        | Refusal::Invalid(_)
        | Refusal::TooLarge(_)
        | Refusal::NoTable
        | Refusal::Creating
        | Refusal::TableExists
        | Refusal::Unknown => true,
        Refusal::Unresolved | Refusal::Expired | Refusal::SessionWindow { .. } | Refusal::Stopping(_) => false,
    }
}

/// Reads the reply to the operator.
pub fn operator_reply(frame: Bytes) -> (Option<i32>, OperatorReply) {
    let reply = match decode_reply(frame) {
        Ok(reply) => reply,
        Err(error) => return (None, OperatorReply::Failed(format!("the operator cannot read a reply: {error}"))),
    };
    let outcome = match &reply.reply {
        Reply::QueryConfig(config) if config.err == ErrorName::Ok => {
            let is_whole = !config.partitions.is_empty()
                && config
                    .partitions
                    .iter()
                    .all(|partition| partition.ballot >= 0 && partition.primary.socket().is_some());
            let table = Table { id: config.app_id, partition_count: config.partition_count as u32 };
            if is_whole {
                OperatorReply::Table(table)
            } else {
                OperatorReply::Failed("a partition has no leader".into())
            }
        }
        Reply::CreateTable(created) if created.err == ErrorName::Ok => OperatorReply::Done,
        Reply::HedgerowAdmin(done) if done.err == ErrorName::Ok => OperatorReply::Done,
        other => OperatorReply::Failed(format!("{other:?}")),
    };
    (Some(reply.sequence_id), outcome)
}

fn hash_key(key: u32) -> Bytes {
    Bytes::from(format!("key-{key}"))
}

/// A number with as many zeros before it as make some records large. The same number has the same text everywhere.
fn text(value: i64) -> Bytes {
    let width = match value % 8 {
        0 => 6_000,
        1 | 2 => 600,
        _ => 1,
    };
    Bytes::from(format!("{value:0width$}"))
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

const fn content(content: Content) -> Received {
    Received::Answer(Answer::Content(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_wire::message::{CheckReply, GetReply};
    use hedgerow_wire::{Method, ReplyExtension, encode_reply};

    fn frame(method: Method, reply: &Reply) -> Bytes {
        let mut out = BytesMut::new();
        encode_reply(&mut out, method, 5, reply, Some(&ReplyExtension::default()));
        out.freeze()
    }

    #[test]
    fn a_large_record_reads_back_as_its_number() {
        for value in [0, 1, 8, 17, 1_000, -3] {
            let reply = Reply::Get(GetReply { value: text(value), ..GetReply::default() });
            assert_eq!(reply_of(Method::Get, &reply, &Call::Get), Received::Answer(Answer::Content(Some(value))));
        }
        assert!(text(8).len() > 4_096);
    }

    #[test]
    fn a_swap_that_was_not_done_tells_what_was_there() {
        let call = Call::Swap { expected: None, new: 1 };
        let (error, check_value) = (Status::TryAgain.code(), text(3));
        let check = CheckReply { error, check_value_exist: true, check_value, ..CheckReply::default() };
        let expected = Answer::Swapped { is_applied: false, previous: Some(3) };
        assert_eq!(reply_of(Method::CheckAndSet, &Reply::Check(check), &call), Received::Answer(expected));
    }

    #[test]
    fn replies_that_make_no_sense_are_told_apart_from_refusals() {
        let error = Status::Corruption.code();
        let corrupt = Reply::Get(GetReply { error, ..GetReply::default() });
        assert!(matches!(reply_of(Method::Get, &corrupt, &Call::Get), Received::Nonsense(_)));
        let window = Reply::refused(&Refusal::SessionWindow { sequence: 1 }, None);
        assert!(matches!(reply_of(Method::Get, &window, &Call::Get), Received::Nonsense(_)));
        let busy = Reply::refused(&Refusal::Busy("full".into()), None);
        assert!(matches!(reply_of(Method::Get, &busy, &Call::Get), Received::Refused { is_clean: true, .. }));
        assert!(matches!(reply(Bytes::from_static(b"junk"), &Call::Get), (None, Received::Nonsense(_))));
    }

    #[test]
    fn a_chunk_of_replies_falls_into_its_frames() {
        let one = frame(Method::Get, &Reply::Get(GetReply::default()));
        let chunk = Bytes::from([&one[..], &one[..]].concat());
        assert_eq!(split_replies(chunk), [one.clone(), one]);
    }

    fn reply_of(method: Method, reply: &Reply, call: &Call) -> Received {
        let (id, received) = super::reply(frame(method, reply), call);
        assert_eq!(id, Some(5));
        received
    }
}
