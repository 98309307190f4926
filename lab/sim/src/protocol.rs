//! The simulated clients' calls as frames of the client protocol, and the replies as answers.

use crate::clock::MILLISECOND;
use crate::history::{Answer, Call, Content, Time};
use crate::reading::Manner;
use crate::scenario::Plan;
use bytes::{Bytes, BytesMut};
use hedgerow_hedge::Kind;
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_types::{GroupId, Index, Refusal, Status};
use hedgerow_wire::call::{decode_reply, encode_request};
use hedgerow_wire::message::{AdminCommand, Cancel, CheckAndSet, CreateOptions, CreateTable, Incr, Put, QueryConfig};
use hedgerow_wire::{Body, Cause, ErrorName, Extension, Header, Reply, ReplyExtension, Tie};

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

    /// The group of `partition`.
    pub const fn group(&self, partition: u32) -> GroupId {
        GroupId::new(self.id as u32, partition)
    }

    /// The group that holds `key`.
    pub fn group_of(&self, key: u32) -> GroupId {
        self.group(self.partition_of(key))
    }
}

/// One attempt of an operation.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Of what.
    pub call: Call,
    /// In which words.
    pub manner: Manner,
    /// What the session has seen, encoded, for a read that belongs to one.
    pub token: Option<Bytes>,
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
    /// The request's id, the same for all its attempts, if others may be under way.
    pub request_id: Option<u64>,
    /// Why it is sent beside others.
    pub cause: Option<Cause>,
    /// The other attempt, if the two know of each other.
    pub tie: Option<Tie>,
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
        /// Whether this attempt certainly had no effect and will have none.
        is_clean: bool,
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

/// The frame of `attempt`.
pub fn request(attempt: &Attempt, table: Table) -> Bytes {
    let hash_key = hash_key(attempt.key);
    let key = full_key(&hash_key, SORT_KEY);
    let body = match attempt.call {
        Call::Get(_) => Body::Get(key),
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
        is_backup: attempt.manner == Manner::Backup,
        extension: attempt.manner.is_extended().then(|| extension(attempt)),
    };
    framed(&header, attempt.sequence_id, &body)
}

fn extension(attempt: &Attempt) -> Extension {
    let mut extension = Extension {
        attempt: Some(attempt.number),
        deadline_ms: Some(attempt.deadline_ms),
        client_id: Some(attempt.client_id),
        sequence: attempt.call.is_write().then_some(attempt.sequence),
        session_token: attempt.token.clone(),
        any_replica: matches!(attempt.manner, Manner::AnyReplica | Manner::TableLevel),
        request_id: attempt.request_id,
        cause: attempt.cause.map(Cause::code),
        tie: attempt.tie.as_ref().map(Tie::encode),
        ..Extension::default()
    };
    if let (Call::Get(level), Manner::Leader | Manner::AnyReplica) = (attempt.call, attempt.manner) {
        extension.set_read_level(level);
    }
    extension
}

/// The frame that takes an attempt back, or all of a request.
pub fn cancel(sequence_id: i32, client_id: u64, request_id: u64, attempt: Option<i32>) -> Bytes {
    let cancel = Cancel { client_id, request_id, attempt, tie: None };
    framed(
        &Header { extension: Some(Extension::default()), ..Header::default() },
        sequence_id,
        &Body::HedgerowCancel(cancel),
    )
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
        Ok(reply) => (Some(reply.sequence_id), received(&reply.reply, call).with(reply.extension.as_ref())),
        Err(error) => (None, Received::Nonsense(format!("a client cannot read a reply: {error}"))),
    }
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

fn received(reply: &Reply, call: &Call) -> Received {
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
            Received::Refused { is_clean: is_clean(&refusal), leader, refusal }
        }
        Reply::Get(get) => match Status::from_code(get.error) {
            Some(Status::Ok) => number(&get.value).map_or_else(nonsense, |value| content(Some(value))),
            Some(Status::NotFound) => content(None),
            _ => nonsense(),
        },
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

/// What an attempt says of why it is sent; nothing if it is its request's first.
pub(crate) const fn cause_of(kind: Kind) -> Option<Cause> {
    match kind {
        Kind::First => None,
        Kind::Hedge => Some(Cause::Hedge),
        Kind::Tie => Some(Cause::Tie),
        Kind::Retry => Some(Cause::Retry),
        Kind::Fallback => Some(Cause::Fallback),
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

/// Whether a refused attempt has no effect for sure. A stopping node may have proposed the write before.
const fn is_clean(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::NotLeader { .. }
        | Refusal::NotReady(_)
        | Refusal::Lagging(_)
        | Refusal::NotHosted
        | Refusal::Busy(_)
        | Refusal::BusyFor { .. }
        | Refusal::Throttled
        | Refusal::Withdrawn
        | Refusal::Invalid(_)
        | Refusal::TooLarge(_)
        | Refusal::DiskFull(_)
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
    let width: usize = match value % 8 {
        0 => 6_000,
        1 | 2 => 600,
        _ => 1,
    };
    let digits = value.unsigned_abs().to_string();
    let zeros = "0".repeat(width.saturating_sub(digits.len()));
    Bytes::from([if value < 0 { "-" } else { "" }, &zeros, &digits].concat())
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

const fn content(content: Content) -> Received {
    Received::of(Answer::Content(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::ReadLevel;
    use hedgerow_wire::message::{CheckReply, GetReply};
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
    fn the_manner_decides_what_a_read_says_of_itself() {
        let header = |manner| {
            let call = Call::Get(ReadLevel::Eventual);
            let attempt = Attempt {
                call,
                manner,
                token: None,
                key: 1,
                sequence_id: 1,
                client_id: 1,
                sequence: 1,
                number: 1,
                deadline_ms: 9,
                request_id: None,
                cause: None,
                tie: None,
            };
            let frame = request(&attempt, Table { id: 1, partition_count: 1 });
            decode_request(frame).expect("a frame of ours").header
        };
        for (manner, level, is_any) in [
            (Manner::Leader, Some(ReadLevel::Eventual), false),
            (Manner::AnyReplica, Some(ReadLevel::Eventual), true),
            (Manner::TableLevel, None, true),
        ] {
            let extension = header(manner).extension.expect("our fields");
            assert_eq!((extension.read_level(), extension.any_replica), (level, is_any), "{manner:?}");
        }
        for (manner, is_backup) in [(Manner::Plain, false), (Manner::Backup, true)] {
            let header = header(manner);
            assert_eq!((header.is_backup, header.extension), (is_backup, None));
        }
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
        assert!(matches!(forgotten, Received::Refused { is_clean: false, .. }), "{forgotten:?}");
        let busy = Reply::refused(&Refusal::Busy("full".into()), None);
        assert!(matches!(reply_of(Method::Get, &busy, &Call::GET), Received::Refused { is_clean: true, .. }));
        assert!(matches!(reply(Bytes::from_static(b"junk"), &Call::GET), (None, Received::Nonsense(_))));
        let plain = |name| Reply::Failed(hedgerow_wire::Failure { name, detail: None });
        let lagging = plain(ErrorName::of_refusal(&Refusal::Lagging(hedgerow_types::Lag::default())));
        assert!(matches!(reply_of(Method::Get, &lagging, &Call::GET), Received::Refused { is_clean: true, .. }));
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
        let (id, received) = super::reply(frame(method, reply), call);
        assert_eq!(id, Some(5));
        received
    }
}
