//! The simulated clients' calls as frames of the client protocol, and the replies as answers.

use crate::clock::MILLISECOND;
use crate::history::{Answer, Call, Content, Time};
use crate::scenario::Plan;
use crate::workload::COUNTER_KEY_MIN;
use bytes::{Bytes, BytesMut};
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash, split_full_key};
use hedgerow_types::{GroupId, Index, Refusal, Status};
use hedgerow_wire::call::{ReplyFrame, decode_reply, encode_request};
use hedgerow_wire::message::{AdminCommand, Cancel, CreateOptions, CreateTable, QueryConfig};
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply, ReplyExtension};

/// Name of the one table.
pub(crate) const TABLE_NAME: &str = "sim";
pub(crate) const SORT_KEY: &[u8] = b"s";
/// The rows of a record that has several. They are written together, and must never be seen in part.
pub(crate) const ROWS: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
/// Pegasus' number of the check "equal bytes".
const CHECK_EQUAL: i32 = 10;

/// Whether record `key` has several rows: every other one that is no counter.
pub(crate) const fn is_wide(key: u32) -> bool {
    key < COUNTER_KEY_MIN && key % 2 == 1
}

/// The row of record `key` that says what it holds.
pub(crate) const fn first_row(key: u32) -> &'static [u8] {
    if is_wide(key) { ROWS[0] } else { SORT_KEY }
}

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

    /// The group of `partition`.
    pub const fn group(&self, partition: u32) -> GroupId {
        GroupId::new(self.id as u32, partition)
    }

    /// Whether `group` is one of its partitions.
    pub fn has(&self, group: GroupId) -> bool {
        (0..self.partition_count).any(|partition| self.group(partition) == group)
    }

    /// The group that holds `key`.
    pub fn group_of(&self, key: u32) -> GroupId {
        self.group(self.partition_of(key))
    }
}

/// What a reply says about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// It was done.
    Answer {
        /// The result.
        answer: Answer,
        /// The log position that the reply names, if it names one.
        index: Option<Index>,
        /// How old it says that it is at most.
        staleness: Option<Time>,
        /// Address of the node that says to have served it, if one does.
        served_by: Option<String>,
        /// Number of the level at which a read was served, if the reply says it.
        level_code: Option<i32>,
        /// Number of the attempt, if it was an extra one.
        attempt: Option<i32>,
    },
    /// It was not done, or not for sure.
    Refused {
        /// Address of the leader, where the node knew it.
        leader: Option<String>,
        /// Why.
        refusal: Refusal,
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

/// The number of the level at which `call` reads, as replies say it.
pub fn level_code(call: Call) -> Option<i32> {
    let Call::Get(level) = call else { return None };
    let mut extension = Extension::default();
    extension.set_read_level(level);
    extension.read_level_code
}

/// The frame of a read. Without an extension it is in Pegasus' words.
pub fn read(key: u32, sequence_id: i32, is_backup: bool, extension: Option<Extension>, table: Table) -> Bytes {
    let hash_key = hash_key(key);
    let header = Header {
        app_id: table.id,
        partition_index: table.partition_of(key) as i32,
        timeout_ms: 1_000,
        partition_hash: partition_hash(&hash_key, SORT_KEY),
        is_backup,
        extension,
    };
    framed(&header, sequence_id, &Body::Get(full_key(&hash_key, first_row(key))))
}

/// The frame that takes an attempt back, or all of a request.
pub fn cancel(sequence_id: i32, client_id: u64, request_id: u64, attempt: Option<i32>) -> Bytes {
    let cancel = Cancel { client_id, request_id, attempt, ..Cancel::default() };
    operator_frame(sequence_id, &Body::HedgerowCancel(cancel))
}

/// The operation that a request asks for, and on which record. A read's level is not in its body. `None` = it is none of ours.
pub fn call_of(body: &Body) -> Option<(u32, Call)> {
    let of = |full_key: &Bytes| key_of(split_full_key(full_key)?.0);
    Some(match body {
        Body::Get(key) => (of(key)?, Call::GET),
        Body::Put(put) => (of(&put.key)?, Call::Put(number(&put.value)?)),
        Body::Remove(key) => (of(key)?, Call::Remove),
        Body::Incr(incr) => (of(&incr.key)?, Call::Incr(incr.increment)),
        Body::CheckAndSet(set) => {
            let expected = match set.check_type {
                CHECK_EQUAL => Some(number(&set.check_operand)?),
                _ => None,
            };
            (key_of(&set.hash_key)?, Call::Swap { expected, new: number(&set.set_value)? })
        }
        Body::MultiGet(get) => (key_of(&get.hash_key)?, Call::GET),
        Body::MultiPut(put) => {
            let rows = content_of_rows(put.kvs.iter().map(|row| &row.value[..]))?;
            (key_of(&put.hash_key)?, Call::Put(rows?))
        }
        Body::MultiRemove(remove) => (key_of(&remove.hash_key)?, Call::Remove),
        Body::CheckAndMutate(mutate) => {
            let expected = match mutate.check_type {
                CHECK_EQUAL => Some(number(&mutate.check_operand)?),
                _ => None,
            };
            let new = content_of_rows(mutate.mutate_list.iter().map(|row| &row.value[..]))?;
            (key_of(&mutate.hash_key)?, Call::Swap { expected, new: new? })
        }
        _ => return None,
    })
}

/// When what a write stores expires, in expiry-epoch seconds; 0 = never.
pub fn expiry_of(body: &Body) -> u32 {
    match body {
        Body::Put(put) => put.expire_ts_seconds as u32,
        Body::MultiPut(put) => put.expire_ts_seconds as u32,
        _ => 0,
    }
}

/// The frame that creates the table of `plan`.
pub fn create_table(sequence_id: i32, plan: &Plan) -> Bytes {
    let learners = ("read_replicas", plan.learner_count.to_string());
    let envs = plan.table_reads.options().into_iter().chain([learners]);
    let options = CreateOptions {
        envs: envs.map(|(key, value)| (key.into(), value.as_str().into())).collect(),
        partition_count: plan.partition_count as i32,
        replica_count: plan.replica_count as i32,
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

pub(crate) fn framed(header: &Header, sequence_id: i32, body: &Body) -> Bytes {
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

/// Reads the reply to an operation.
pub fn received(reply: &ReplyFrame, call: &Call) -> Received {
    content_of(&reply.reply, call).with(reply.extension.as_ref())
}

impl Received {
    const fn of(answer: Answer) -> Self {
        Self::Answer { answer, index: None, staleness: None, served_by: None, level_code: None, attempt: None }
    }

    /// With what the server says beside the answer.
    fn with(self, extension: Option<&ReplyExtension>) -> Self {
        match (self, extension) {
            (Self::Answer { answer, .. }, Some(extension)) => Self::Answer {
                answer,
                index: (extension.index > 0).then_some(extension.index),
                staleness: extension.staleness_ms.map(|ms| ms.max(0) as Time * MILLISECOND),
                served_by: Some(extension.served_by.to_string()),
                level_code: extension.read_level_code,
                attempt: extension.attempt,
            },
            (other, _) => other,
        }
    }
}

fn content_of(reply: &Reply, call: &Call) -> Received {
    let nonsense = || Received::Nonsense(format!("{call:?} was answered {reply:?}"));
    match reply {
        Reply::Failed(failure) => {
            let Some(refusal) = failure.refusal().or_else(|| plain_refusal(failure.name)) else { return nonsense() };
            // Reads have no number.
            if matches!(refusal, Refusal::SessionWindow { .. }) && !call.is_write() {
                return nonsense();
            }
            let leader = failure.detail.as_ref().map(|detail| detail.leader.as_str()).unwrap_or_default();
            let leader = (!leader.is_empty()).then(|| leader.to_owned());
            Received::Refused { leader, refusal }
        }
        Reply::Get(get) => match Status::from_code(get.error) {
            Some(Status::Ok) => number(&get.value).map_or_else(nonsense, |value| content(Some(value))),
            Some(Status::NotFound) => content(None),
            _ => nonsense(),
        },
        Reply::MultiGet(get) if get.error == Status::Ok.code() => {
            content_of_rows(get.kvs.iter().map(|row| &row.value[..])).map_or_else(nonsense, content)
        }
        Reply::MultiRemove(remove) if remove.error == Status::Ok.code() => Received::of(Answer::Done),
        Reply::Update(update) if update.error == Status::Ok.code() => Received::of(Answer::Done),
        Reply::Incr(incr) if incr.error == Status::Ok.code() => Received::of(Answer::Sum(incr.new_value)),
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
            Received::of(Answer::Swapped { is_applied, previous })
        }
        _ => nonsense(),
    }
}

/// What a refusal means to a caller that is told no more than its name.
fn plain_refusal(name: ErrorName) -> Option<Refusal> {
    match name {
        ErrorName::InvalidState => Some(Refusal::NotLeader { leader: None }),
        ErrorName::ObjectNotFound => Some(Refusal::NotHosted),
        ErrorName::Busy => Some(Refusal::Busy(String::new())),
        ErrorName::Timeout => Some(Refusal::Expired),
        _ => None,
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

/// The hash key of record `key`.
pub(crate) fn hash_key(key: u32) -> Bytes {
    Bytes::from(format!("key-{key}"))
}

/// A number with as many zeros before it as make some records large. The same number has the same text everywhere.
pub(crate) fn text(value: i64) -> Bytes {
    let width: usize = match value % 8 {
        0 => 6_000,
        1 | 2 => 600,
        _ => 1,
    };
    let digits = value.unsigned_abs().to_string();
    let zeros = "0".repeat(width.saturating_sub(digits.len()));
    Bytes::from([if value < 0 { "-" } else { "" }, &zeros, &digits].concat())
}

/// What the values of a record with several rows say together; `None` if they are only some of them, or not of one write.
pub(crate) fn content_of_rows<'a>(values: impl ExactSizeIterator<Item = &'a [u8]>) -> Option<Content> {
    let count = values.len();
    let mut numbers = values.map(number);
    let Some(first) = numbers.next() else { return Some(None) };
    (count == ROWS.len() && first.is_some() && numbers.all(|number| number == first)).then_some(first)
}

fn key_of(hash_key: &[u8]) -> Option<u32> {
    std::str::from_utf8(hash_key).ok()?.strip_prefix("key-")?.parse().ok()
}

/// The number that a value says. Large values are numbers with very many zeros before them.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    let first = text.iter().position(|byte| *byte != b'0').unwrap_or(text.len().saturating_sub(1));
    std::str::from_utf8(&text[first..]).ok()?.parse().ok()
}

const fn content(content: Content) -> Received {
    Received::of(Answer::Content(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_wire::message::{CheckAndSet, CheckReply, GetReply, KeyValue, MultiGetReply, MultiPut, Put};
    use hedgerow_wire::{Method, decode_request, encode_reply};

    fn frame(method: Method, reply: &Reply) -> Bytes {
        let mut out = BytesMut::new();
        let served_by = "10.0.0.1:34601".into();
        let extension = ReplyExtension { index: 9, staleness_ms: Some(2), served_by, ..ReplyExtension::default() };
        encode_reply(&mut out, method, 5, reply, Some(&extension));
        out.freeze()
    }

    fn answered(answer: Answer) -> Received {
        let (staleness, served_by) = (Some(2 * MILLISECOND), Some("10.0.0.1:34601".to_owned()));
        Received::Answer { answer, index: Some(9), staleness, served_by, level_code: None, attempt: None }
    }

    #[test]
    fn a_request_tells_its_record_and_its_operation() {
        let hash_key = hash_key(17);
        let key = full_key(&hash_key, SORT_KEY);
        let put = Put { key: key.clone(), value: text(8), ..Put::default() };
        let set = CheckAndSet {
            hash_key,
            check_type: CHECK_EQUAL,
            check_operand: text(3),
            set_value: text(1),
            ..CheckAndSet::default()
        };
        for (body, call) in [
            (Body::Get(key.clone()), Call::GET),
            (Body::Put(put), Call::Put(8)),
            (Body::Remove(key), Call::Remove),
            (Body::CheckAndSet(set.clone()), Call::Swap { expected: Some(3), new: 1 }),
            (Body::CheckAndSet(CheckAndSet { check_type: 1, ..set }), Call::Swap { expected: None, new: 1 }),
        ] {
            assert_eq!(call_of(&body), Some((17, call)));
        }
        let table = Table { id: 1, partition_count: 2 };
        let frame = read(17, 1, true, None, table);
        let header = decode_request(frame).expect("a frame of ours").header;
        assert_eq!((header.is_backup, header.extension), (true, None));
    }

    #[test]
    fn a_record_of_several_rows_is_never_seen_in_part() {
        let row = |value: i64| KeyValue { value: text(value), ..KeyValue::default() };
        let read = |rows: &[i64]| {
            let kvs = rows.iter().map(|value| row(*value)).collect();
            reply_of(Method::MultiGet, &Reply::MultiGet(MultiGetReply { kvs, ..MultiGetReply::default() }), &Call::GET)
        };
        assert_eq!(read(&[]), answered(Answer::Content(None)));
        assert_eq!(read(&[7; 4]), answered(Answer::Content(Some(7))));
        for torn in [&[7; 3][..], &[7, 7, 8, 7], &[7; 5]] {
            assert!(matches!(read(torn), Received::Nonsense(_)), "{torn:?}");
        }
        let put = MultiPut { hash_key: hash_key(1), kvs: vec![row(9); 4], ..MultiPut::default() };
        assert_eq!(call_of(&Body::MultiPut(put)), Some((1, Call::Put(9))));
    }

    #[test]
    fn a_large_record_reads_back_as_its_number() {
        for value in [0, 1, 8, 17, 1_000, -3, -8] {
            let reply = Reply::Get(GetReply { value: text(value), ..GetReply::default() });
            assert_eq!(reply_of(Method::Get, &reply, &Call::GET), answered(Answer::Content(Some(value))));
        }
        assert!(text(8).len() > 4_096);
    }

    #[test]
    fn a_swap_that_was_not_done_tells_what_was_there() {
        let call = Call::Swap { expected: None, new: 1 };
        let (error, check_value) = (Status::TryAgain.code(), text(3));
        let check = CheckReply { error, check_value_exist: true, check_value, ..CheckReply::default() };
        let expected = answered(Answer::Swapped { is_applied: false, previous: Some(3) });
        assert_eq!(reply_of(Method::CheckAndSet, &Reply::Check(check), &call), expected);
    }

    #[test]
    fn replies_that_make_no_sense_are_told_apart_from_refusals() {
        let error = Status::Corruption.code();
        let corrupt = Reply::Get(GetReply { error, ..GetReply::default() });
        assert!(matches!(reply_of(Method::Get, &corrupt, &Call::GET), Received::Nonsense(_)));
        let window = Reply::refused(&Refusal::SessionWindow { sequence: 1, floor: 0, ceiling: 0 }, None);
        assert!(matches!(reply_of(Method::Get, &window, &Call::GET), Received::Nonsense(_)));
        let swap = Call::Swap { expected: Some(1), new: 2 };
        let forgotten = reply_of(Method::CheckAndSet, &window, &swap);
        assert!(matches!(forgotten, Received::Refused { .. }), "{forgotten:?}");
        let busy = Reply::refused(&Refusal::Busy("full".into()), None);
        assert!(matches!(reply_of(Method::Get, &busy, &Call::GET), Received::Refused { .. }));
        let plain = |name| Reply::Failed(hedgerow_wire::Failure { name, detail: None });
        let lagging = plain(ErrorName::of_refusal(&Refusal::Lagging(hedgerow_types::Lag::default())));
        assert!(matches!(reply_of(Method::Get, &lagging, &Call::GET), Received::Refused { .. }));
        let invalid = plain(ErrorName::InvalidParameters);
        assert!(matches!(reply_of(Method::Get, &invalid, &Call::GET), Received::Nonsense(_)));
    }

    #[test]
    fn a_chunk_of_replies_falls_into_its_frames() {
        let one = frame(Method::Get, &Reply::Get(GetReply::default()));
        let chunk = Bytes::from([&one[..], &one[..]].concat());
        assert_eq!(split_replies(chunk), [one.clone(), one]);
    }

    fn reply_of(method: Method, reply: &Reply, call: &Call) -> Received {
        received(&decode_reply(frame(method, reply)).expect("a reply"), call)
    }
}
