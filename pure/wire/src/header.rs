//! What stands around a message: the request's header with our extension fields, and the fields we add to replies.
//!
//! Extension fields are plain optional thrift fields of simple types, so that others pass over them: ids 16 and up in
//! the meta struct of a v1 request, ids 100 and up at the end of a response struct. Replies carry ours only to callers
//! that sent ours, and addresses in them as plain numbers ([`crate::PlainAddress`]).

use crate::message::Message;
use crate::thrift::{Malformed, Reader, put_field};
use crate::value::{Binary, Text, Wire};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use hedgerow_types::ReadLevel;

/// What a request says about itself besides its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Table id; 0 or less for metadata requests.
    pub app_id: i32,
    /// Partition index within the table.
    pub partition_index: i32,
    /// The caller's timeout in ms. Not to be trusted: Go truncates it. [`Extension::deadline_ms`] is the reliable one.
    pub timeout_ms: i32,
    /// Partition hash of the key.
    pub partition_hash: u64,
    /// Whether any replica may answer with what it has (Pegasus' backup request). Only v1 frames can say so.
    pub is_backup: bool,
    /// Our own fields, if the caller sent any.
    pub extension: Option<Extension>,
}

/// Our fields of a request, each absent unless the caller set it. Fits every request, read or write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// 16: number of this attempt within its request, from 1.
    pub attempt: Option<i32>,
    /// 17: number of the read level; see [`Extension::read_level`].
    pub read_level_code: Option<i32>,
    /// 18: what the session has seen, an encoded `hedgerow_types::SessionToken`. It may be cut down to the partition that
    /// is asked.
    pub session_token: Option<Bytes>,
    /// 19: the bound of a bounded read, ms; see [`Extension::read_level`].
    pub staleness_bound_ms: Option<i64>,
    /// 20: who holds the other copy of a tied request, an encoded [`Tie`]. Needs `client_id`, `request_id` and `attempt`.
    pub tie: Option<Bytes>,
    /// 21: ms that the caller will still wait, at the moment of sending.
    pub deadline_ms: Option<i64>,
    /// 22: refuse at once if the queue is expected to take longer than this, ms.
    pub busy_threshold_ms: Option<i32>,
    /// 23: whether the reply should carry a trace.
    pub wants_trace: bool,
    /// 24: the caller, for applying its writes once and for cancelling.
    pub client_id: Option<u64>,
    /// 25: number of the write within the caller.
    pub sequence: Option<u64>,
    /// 26: the request's own id, the same in all its attempts; what a cancel names.
    pub request_id: Option<u64>,
    /// 27: whether any replica may serve the read at its level, instead of naming the leader.
    pub any_replica: bool,
    /// 28: why this attempt is sent beside others, a [`Cause`]; absent for a request's first attempt. What has one queues
    /// behind what has none, and is dropped first.
    pub cause: Option<i32>,
}

/// Why an attempt is sent that is not its request's first ([`Extension::cause`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Others are slow (Pegasus: backup request).
    Hedge = 1,
    /// It is the second of two that know of each other.
    Tie = 2,
    /// Others failed.
    Retry = 3,
    /// Others are slow, and this one asks for less fresh data.
    Fallback = 4,
}

impl Cause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Hedge, Self::Tie, Self::Retry, Self::Fallback];

    /// The cause with this number. One that is not known counts as [`Cause::Hedge`]: it says that there are others.
    pub fn from_code(code: i32) -> Self {
        Self::ALL.into_iter().find(|cause| cause.code() == code).unwrap_or(Self::Hedge)
    }

    /// Its number.
    pub const fn code(self) -> i32 {
        self as i32
    }
}

crate::message::message! {
    /// What each attempt of a tied request says about the other ([`Extension::tie`]).
    pub struct Tie {
        /// Address of the node that the other attempt is sent to.
        1 => peer: Text,
        /// The other attempt's number.
        2 => attempt: i32,
    }
}

impl Tie {
    /// As [`Extension::tie`] carries it.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        self.write(&mut out);
        out.freeze()
    }

    /// Reads what [`Tie::encode`] wrote.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        Self::read(&mut Reader::new(bytes))
    }
}

impl Extension {
    /// Whether other attempts of the request are, or may be, under way.
    pub fn is_extra(&self) -> bool {
        self.cause.is_some()
    }

    /// How fresh the read must be; `None` if the caller leaves it to the table. A level that is not known, or a bound that
    /// is missing or out of its range, is read as the strongest level, which is always safe.
    pub fn read_level(&self) -> Option<ReadLevel> {
        self.read_level_code.map(|code| match code {
            1 => ReadLevel::Session,
            2 => {
                let bound = self.staleness_bound_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
                let is_allowed = |bound: &Duration| (ReadLevel::BOUND_MIN..=ReadLevel::BOUND_MAX).contains(bound);
                bound.filter(is_allowed).map_or(ReadLevel::Linearizable, ReadLevel::Bounded)
            }
            3 => ReadLevel::Eventual,
            _ => ReadLevel::Linearizable,
        })
    }

    /// Asks for `level`, in the fields that [`Extension::read_level`] looks at.
    pub fn set_read_level(&mut self, level: ReadLevel) {
        let (code, bound) = match level {
            ReadLevel::Linearizable => (0, None),
            ReadLevel::Session => (1, None),
            ReadLevel::Bounded(bound) => (2, Some(i64::try_from(bound.as_millis()).unwrap_or(i64::MAX))),
            ReadLevel::Eventual => (3, None),
        };
        (self.read_level_code, self.staleness_bound_ms) = (Some(code), bound);
    }

    /// Takes field `id` if it is ours.
    fn read_field(slot: &mut Option<Self>, id: i16, tag: u8, input: &mut Reader) -> Result<bool, Malformed> {
        let known = match id {
            16 | 17 | 22 | 28 => tag == i32::TAG,
            18 | 20 => tag == Binary::TAG,
            19 | 21 | 24..=26 => tag == i64::TAG,
            23 | 27 => tag == bool::TAG,
            _ => false,
        };
        if !known {
            return Ok(false);
        }
        let this = slot.get_or_insert_default();
        match id {
            16 => this.attempt = Some(input.i32()?),
            17 => this.read_level_code = Some(input.i32()?),
            18 => this.session_token = Some(input.bytes()?),
            19 => this.staleness_bound_ms = Some(input.i64()?),
            20 => this.tie = Some(input.bytes()?),
            21 => this.deadline_ms = Some(input.i64()?),
            22 => this.busy_threshold_ms = Some(input.i32()?),
            23 => this.wants_trace = bool::read(input)?,
            24 => this.client_id = Some(u64::read(input)?),
            25 => this.sequence = Some(u64::read(input)?),
            26 => this.request_id = Some(u64::read(input)?),
            27 => this.any_replica = bool::read(input)?,
            _ => this.cause = Some(input.i32()?),
        }
        Ok(true)
    }

    fn write_fields(&self, out: &mut BytesMut) {
        put_field(out, 16, &self.attempt);
        put_field(out, 17, &self.read_level_code);
        put_field(out, 18, &self.session_token.clone().map(Binary));
        put_field(out, 19, &self.staleness_bound_ms);
        put_field(out, 20, &self.tie.clone().map(Binary));
        put_field(out, 21, &self.deadline_ms);
        put_field(out, 22, &self.busy_threshold_ms);
        // Always written: an extension without any field would not arrive as one.
        put_field(out, 23, &self.wants_trace);
        put_field(out, 24, &self.client_id);
        put_field(out, 25, &self.sequence);
        put_field(out, 26, &self.request_id);
        if self.any_replica {
            put_field(out, 27, &true);
        }
        put_field(out, 28, &self.cause);
    }
}

/// The meta struct of a v1 request. Fields that nobody knows are passed over.
impl Message for Header {
    fn read_field(&mut self, id: i16, tag: u8, input: &mut Reader) -> Result<bool, Malformed> {
        match id {
            1 if tag == i32::TAG => self.app_id = input.i32()?,
            2 if tag == i32::TAG => self.partition_index = input.i32()?,
            3 if tag == i32::TAG => self.timeout_ms = input.i32()?,
            4 if tag == i64::TAG => self.partition_hash = u64::read(input)?,
            5 if tag == bool::TAG => self.is_backup = bool::read(input)?,
            _ => return Extension::read_field(&mut self.extension, id, tag, input),
        }
        Ok(true)
    }

    fn write_fields(&self, out: &mut BytesMut) {
        put_field(out, 1, &self.app_id);
        put_field(out, 2, &self.partition_index);
        put_field(out, 3, &self.timeout_ms);
        put_field(out, 4, &self.partition_hash);
        put_field(out, 5, &self.is_backup);
        if let Some(extension) = &self.extension {
            extension.write_fields(out);
        }
    }
}

crate::message::message! {
    /// Our fields of a reply.
    pub struct ReplyExtension {
        /// Address of the node that served the request.
        100 => served_by: Text,
        /// Log position that the reply reflects (reads) or that the write has (writes); 0 = none.
        101 => index: u64,
        /// How old a read's data may be, ms; absent if it is not known or has no meaning.
        102 => staleness_ms: Option<i64>,
        /// Time that the request waited before it was served, microseconds.
        103 => queue_us: i32,
        /// Requests that the node had taken and not answered when it replied, this one not counted.
        104 => requests_in_flight: i32,
        /// What a read or write costs the node at the moment, on average, microseconds; 0 = not known.
        105 => service_us: i32,
        /// The read level at which a read was served, its number as in [`Extension::read_level_code`]; absent for writes.
        106 => read_level_code: Option<i32>,
        /// Number of the attempt that this answers, if that one was an extra one.
        107 => attempt: Option<i32>,
        /// For callers that want a trace: how the node came to its answer, in a few words; otherwise absent.
        108 => mode: Option<Text>,
    }
}
