//! Replies, and how they become frames.
//!
//! There are three layers of errors: the frame's own error name ([`Reply::Failed`]), the `err` of metadata replies, and
//! the status code of storage replies.

use crate::error_name::ErrorName;
use crate::header::ReplyExtension;
use crate::message::{
    AdminCommandReply, BatchGetReply, CheckReply, ClusterInfoReply, CommandLineReply, CountReply, CreateTableReply,
    DropTableReply, GetReply, IncrReply, JournalReply, ListNodesReply, ListTablesReply, Message, MultiGetReply,
    MultiRemoveReply, NegotiationReply, PartitionConfig, QueryConfigReply, RecallTableReply, ScanReply, TtlReply,
    UpdateEnvsReply, UpdateReply, message,
};
use crate::method::Method;
use crate::request::{REPLY, STRICT};
use crate::thrift::{Malformed, Reader, put_bytes, put_field, put_field_header, tag};
use crate::value::{Address, Text, Wire};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::{BufMut, BytesMut};
use core::time::Duration;
use hedgerow_types::{Lag, Refusal};

macro_rules! replies {
    ($($(#[$doc:meta])* $variant:ident($message:ident) for $($method:ident)|+;)*) => {
        /// What a request is answered.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Reply {
            /// The request was not run.
            Failed(Failure),
            $($(#[$doc])* $variant($message),)*
        }

        impl Reply {
            /// Appends the fields of the response struct; nothing for a failure, which has none.
            fn write_fields(&self, out: &mut BytesMut) {
                match self {
                    Self::Failed(_) => {}
                    $(Self::$variant(message) => message.write_fields(out),)*
                }
            }

            /// Takes the response struct of `method`, and our own fields where there are any.
            pub(crate) fn read(
                method: Method,
                input: &mut Reader,
            ) -> Result<(Self, Option<ReplyExtension>), Malformed> {
                match method {
                    $($(Method::$method)|+ => {
                        let (message, extension) = read_with_extension(input)?;
                        Ok((Self::$variant(message), extension))
                    })*
                    Method::ClearScanner | Method::HedgerowCancel => Err(Malformed("reply: the call is one-way")),
                }
            }

            #[cfg(test)]
            pub(crate) fn sample(method: Method, random: &mut hedgerow_types::random::Random) -> Option<Self> {
                match method {
                    $($(Method::$method)|+ => Some(Self::$variant(crate::tests::Sample::sample(random))),)*
                    Method::ClearScanner | Method::HedgerowCancel => None,
                }
            }
        }
    };
}

replies! {
    /// To a read of a record.
    Get(GetReply) for Get;
    /// To a write without a result of its own.
    Update(UpdateReply) for Put | Remove | MultiPut | HedgerowDuplicate | HedgerowJournalWrite;
    /// To a deletion of rows.
    MultiRemove(MultiRemoveReply) for MultiRemove;
    /// To an addition.
    Incr(IncrReply) for Incr;
    /// To a conditional write.
    Check(CheckReply) for CheckAndSet | CheckAndMutate;
    /// To a read of rows.
    MultiGet(MultiGetReply) for MultiGet;
    /// To a read of records.
    BatchGet(BatchGetReply) for BatchGet;
    /// To a count.
    Count(CountReply) for SortKeyCount;
    /// To a question for remaining life.
    Ttl(TtlReply) for Ttl;
    /// To a scan.
    Scan(ScanReply) for GetScanner | Scan;
    /// To a configuration query.
    QueryConfig(QueryConfigReply) for QueryConfig;
    /// To a creation.
    CreateTable(CreateTableReply) for CreateTable;
    /// To a drop.
    DropTable(DropTableReply) for DropTable;
    /// To a recall.
    RecallTable(RecallTableReply) for RecallTable;
    /// To a listing of tables.
    ListTables(ListTablesReply) for ListTables;
    /// To a listing of nodes.
    ListNodes(ListNodesReply) for ListNodes;
    /// To a question about the cluster.
    ClusterInfo(ClusterInfoReply) for ClusterInfo;
    /// To a change of options.
    UpdateEnvs(UpdateEnvsReply) for UpdateEnvs;
    /// To a command.
    CommandLine(CommandLineReply) for CommandLine;
    /// To a step of authentication.
    Negotiation(NegotiationReply) for Negotiation;
    /// To a question for a journal.
    Journal(JournalReply) for HedgerowJournalRead;
    /// To our own admin call.
    HedgerowAdmin(AdminCommandReply) for HedgerowAdmin;
}

/// Why a request was not run, as the frame says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// What every client understands; not `ERR_OK`.
    pub name: ErrorName,
    /// More, for callers that sent an extension.
    pub detail: Option<Detail>,
}

message! {
    /// A refusal in full.
    pub struct Detail {
        /// Which [`Refusal`]; 0 = none of them.
        100 => kind: i32,
        /// Address of the leader, if the replica knows one; otherwise empty.
        101 => leader: Text,
        /// What the refusal holds: its text, or its number in decimal.
        102 => message: Text,
    }
}

impl Failure {
    /// The failure for `refusal`, with the leader's address where the server knows it.
    pub fn new(refusal: &Refusal, leader: Option<&Text>) -> Self {
        let detail =
            Detail { kind: kind(refusal), leader: leader.cloned().unwrap_or_default(), message: held(refusal) };
        Self { name: ErrorName::of_refusal(refusal), detail: Some(detail) }
    }

    /// The refusal that the server meant, `None` if it did not say. A leader is told by address (see
    /// [`Detail::leader`]), so that [`Refusal::NotLeader`] names none here.
    pub fn refusal(&self) -> Option<Refusal> {
        let Detail { kind, message, .. } = self.detail.as_ref()?;
        let text = || message.to_string();
        Some(match kind {
            1 => Refusal::NotLeader { leader: None },
            2 => Refusal::NotReady(text()),
            3 => Refusal::NotHosted,
            4 => Refusal::Busy(text()),
            5 => Refusal::Unresolved,
            6 => Refusal::Expired,
            7 => read_session_window(message),
            8 => Refusal::Invalid(text()),
            9 => Refusal::TooLarge(text()),
            10 => Refusal::NoTable,
            11 => Refusal::Creating,
            12 => Refusal::TableExists,
            13 => Refusal::Stopping(text()),
            14 => Refusal::Unknown,
            15 => Refusal::Lagging(read_lag(message)),
            16 => Refusal::BusyFor { estimated_wait_ms: message.parse().unwrap_or(0) },
            17 => Refusal::Throttled,
            18 => Refusal::Withdrawn,
            19 => Refusal::DiskFull(text()),
            20 => Refusal::NotAllowed(text()),
            21 => Refusal::FailedPrecondition(text()),
            _ => return None,
        })
    }
}

/// The wire number of `refusal`; [`Failure::refusal`] is the inverse.
const fn kind(refusal: &Refusal) -> i32 {
    match refusal {
        Refusal::NotLeader { .. } => 1,
        Refusal::NotReady(_) => 2,
        Refusal::NotHosted => 3,
        Refusal::Busy(_) => 4,
        Refusal::Unresolved => 5,
        Refusal::Expired => 6,
        Refusal::SessionWindow { .. } => 7,
        Refusal::Invalid(_) => 8,
        Refusal::TooLarge(_) => 9,
        Refusal::NoTable => 10,
        Refusal::Creating => 11,
        Refusal::TableExists => 12,
        Refusal::Stopping(_) => 13,
        Refusal::Unknown => 14,
        Refusal::Lagging(_) => 15,
        Refusal::BusyFor { .. } => 16,
        Refusal::Throttled => 17,
        Refusal::Withdrawn => 18,
        Refusal::DiskFull(_) => 19,
        Refusal::NotAllowed(_) => 20,
        Refusal::FailedPrecondition(_) => 21,
    }
}

fn held(refusal: &Refusal) -> Text {
    match refusal {
        Refusal::NotReady(text)
        | Refusal::Busy(text)
        | Refusal::Invalid(text)
        | Refusal::TooLarge(text)
        | Refusal::DiskFull(text)
        | Refusal::NotAllowed(text)
        | Refusal::FailedPrecondition(text)
        | Refusal::Stopping(text) => Text::from(text.as_str()),
        Refusal::SessionWindow { sequence, ceiling: 0, .. } => Text::from(sequence.to_string()),
        Refusal::SessionWindow { sequence, floor, ceiling } => Text::from(format!("{sequence} {floor} {ceiling}")),
        Refusal::Lagging(lag) => Text::from(written_lag(lag)),
        Refusal::BusyFor { estimated_wait_ms } => Text::from(estimated_wait_ms.to_string()),
        Refusal::NotLeader { .. }
        | Refusal::NotHosted
        | Refusal::Throttled
        | Refusal::Withdrawn
        | Refusal::Unresolved
        | Refusal::Expired
        | Refusal::NoTable
        | Refusal::Creating
        | Refusal::TableExists
        | Refusal::Unknown => Text::default(),
    }
}

/// The number, and where they are known the ends of the range.
fn read_session_window(message: &str) -> Refusal {
    let mut numbers = message.split(' ').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    Refusal::SessionWindow { sequence: next(), floor: next(), ceiling: next() }
}

/// Entries, and after a space milliseconds where they are known.
fn written_lag(lag: &Lag) -> String {
    match lag.staleness {
        Some(staleness) => format!("{} {}", lag.entries, staleness.as_millis()),
        None => lag.entries.to_string(),
    }
}

fn read_lag(text: &str) -> Lag {
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let entries = numbers.next().flatten().unwrap_or(0);
    Lag { entries, staleness: numbers.next().flatten().map(Duration::from_millis) }
}

impl Reply {
    /// The reply to a request that was not run.
    pub fn refused(refusal: &Refusal, leader: Option<&Text>) -> Self {
        Self::Failed(Failure::new(refusal, leader))
    }

    /// The reply to a metadata request that was not done: the frame itself is fine, and the response says `err`, with
    /// `message` where the response has room for one. Other calls fail with that name.
    pub fn admin_failed(method: Method, err: ErrorName, message: &str) -> Self {
        match method {
            Method::QueryConfig => Self::QueryConfig(QueryConfigReply { err, ..QueryConfigReply::default() }),
            Method::CreateTable => Self::CreateTable(CreateTableReply { err, ..CreateTableReply::default() }),
            Method::DropTable => Self::DropTable(DropTableReply { err }),
            Method::RecallTable => Self::RecallTable(RecallTableReply { err, ..RecallTableReply::default() }),
            Method::ListTables => {
                Self::ListTables(ListTablesReply { err, hint: Some(message.into()), ..ListTablesReply::default() })
            }
            Method::ListNodes => Self::ListNodes(ListNodesReply { err, ..ListNodesReply::default() }),
            Method::ClusterInfo => Self::ClusterInfo(ClusterInfoReply { err, ..ClusterInfoReply::default() }),
            Method::UpdateEnvs => Self::UpdateEnvs(UpdateEnvsReply { err, hint_message: message.into() }),
            Method::CommandLine => Self::CommandLine(CommandLineReply { output: message.into() }),
            Method::HedgerowAdmin => Self::HedgerowAdmin(AdminCommandReply { err, text: message.into() }),
            _ => Self::Failed(Failure { name: err, detail: None }),
        }
    }

    /// [`Reply::admin_failed`] for `refusal`.
    pub fn admin_refused(method: Method, refusal: &Refusal) -> Self {
        let err = match method {
            Method::QueryConfig => ErrorName::of_query_refusal(refusal),
            _ => ErrorName::of_admin_refusal(refusal),
        };
        Self::admin_failed(method, err, &refusal.to_string())
    }
}

// Python takes a table for opened by the first reply that is stateful, whatever its error: only the answer that a table exists is.
impl QueryConfigReply {
    /// The answer that a table exists: its id, how many partitions it has, and those that were asked for.
    pub fn found(app_id: i32, partition_count: i32, partitions: Vec<PartitionConfig>) -> Self {
        Self { app_id, partition_count, is_stateful: true, partitions, ..Self::default() }
    }

    /// The answer of a node that does not lead the metadata: ask `leader`, if it is known.
    pub fn forward(leader: Address) -> Self {
        let first = PartitionConfig { primary: leader, ..PartitionConfig::default() };
        Self {
            err: ErrorName::ForwardToOthers,
            partitions: if leader == Address::NONE { Vec::new() } else { Vec::from([first]) },
            ..Self::default()
        }
    }
}

/// Whether the result of `method` is a struct of its own, and not a text.
pub(crate) const fn has_response_struct(method: Method) -> bool {
    !matches!(method, Method::CommandLine)
}

/// Appends the frame of a reply; nothing if `method` is one-way. `extension` is given exactly if the request had one.
pub fn encode_reply(
    out: &mut BytesMut,
    method: Method,
    sequence_id: i32,
    reply: &Reply,
    extension: Option<&ReplyExtension>,
) {
    if method.is_one_way() {
        return;
    }
    let start = out.len();
    match reply {
        Reply::Failed(failure) => {
            put_begin(out, failure.name, &[method.reply_name().as_bytes()], sequence_id);
            if let (Some(detail), Some(_)) = (&failure.detail, extension) {
                detail.write(out);
            }
        }
        _ => {
            put_begin(out, ErrorName::Ok, &[method.reply_name().as_bytes()], sequence_id);
            let has_struct = has_response_struct(method);
            if has_struct {
                put_field_header(out, tag::STRUCT, 0);
            }
            reply.write_fields(out);
            if let Some(extension) = extension {
                extension.write_fields(out);
            }
            if has_struct {
                out.put_u8(tag::STOP);
            }
            out.put_u8(tag::STOP);
        }
    }
    finish(out, start);
}

/// Appends the answer to a request that could not be read: name and number as they came, and an error.
pub fn encode_rejection(out: &mut BytesMut, name: &[u8], sequence_id: i32, error: ErrorName) {
    let start = out.len();
    put_begin(out, error, &[name, b"_ACK"], sequence_id);
    finish(out, start);
}

/// Appends the answer to an administrative call that we do not serve: the frame is fine, and the response's first field,
/// `err` in each of them, is `ERR_NOT_IMPLEMENTED`.
pub fn encode_not_implemented(out: &mut BytesMut, name: &[u8], sequence_id: i32) {
    let start = out.len();
    put_begin(out, ErrorName::Ok, &[name, b"_ACK"], sequence_id);
    put_field_header(out, tag::STRUCT, 0);
    put_field(out, 1, &ErrorName::NotImplemented);
    out.put_slice(&[tag::STOP, tag::STOP]);
    finish(out, start);
}

/// Appends what stands before a reply's struct; the frame's size comes later.
fn put_begin(out: &mut BytesMut, error: ErrorName, name_parts: &[&[u8]], sequence_id: i32) {
    out.put_i32(0);
    put_bytes(out, error.name().as_bytes());
    out.put_u32(STRICT | REPLY);
    out.put_i32(name_parts.iter().map(|part| part.len()).sum::<usize>() as i32);
    name_parts.iter().for_each(|part| out.put_slice(part));
    out.put_i32(sequence_id);
}

fn finish(out: &mut BytesMut, start: usize) {
    let size = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
}

fn read_with_extension<M: Message>(input: &mut Reader) -> Result<(M, Option<ReplyExtension>), Malformed> {
    let mut message = M::default();
    let mut extension = None::<ReplyExtension>;
    while let Some((tag, id)) = input.field()? {
        if message.read_field(id, tag, input)? {
            continue;
        }
        let is_ours = (100..109).contains(&id) && extension.get_or_insert_default().read_field(id, tag, input)?;
        if !is_ours {
            input.skip(tag)?;
        }
    }
    Ok((message, extension))
}
