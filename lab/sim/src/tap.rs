//! What clients and nodes say to each other, read on its way: every attempt as it leaves, every answer as it arrives, whether
//! its client still waits for it or not.
//!
//! The judges rest on this and not on what a client says of itself: an answer that a client drops, or takes for what it is
//! not, must be right as well.

use crate::history::{Answer, Call, Operation, Outcome, Seen, Time};
use crate::machine::address_of_machine;
use crate::oracle::WriteId;
use crate::protocol::{self, Received, Table};
use crate::reading::TableReads;
use bytes::Bytes;
use hedgerow_hedge::Kind;
use hedgerow_types::{GroupId, Index, Refusal, SessionToken};
use hedgerow_wire::call::decode_reply;
use hedgerow_wire::{Cause, Extension, Header};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// What was read of the clients' connections.
#[derive(Debug)]
pub struct Tap {
    table: TableReads,
    /// Attempts without an answer, by connection and number.
    sent: BTreeMap<(u64, i32), Sent>,
    /// Writes that were asked for, since when, and what was answered first.
    writes: FxHashMap<(GroupId, WriteId), (Time, Option<Answer>)>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    machine: usize,
    client: u32,
    at: Time,
    key: u32,
    /// At the level that the attempt itself asks for.
    call: Call,
    floor: Index,
    /// Its number within its request, if it says one.
    number: Option<i32>,
    cause: Option<Cause>,
    write: Option<(GroupId, WriteId)>,
}

/// A write that nobody has asked for before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Where.
    pub group: GroupId,
    /// Its id there.
    pub id: WriteId,
    /// On which record.
    pub key: u32,
    /// What.
    pub call: Call,
    /// When what it stores expires, in expiry-epoch seconds; 0 = never.
    pub expire_at: u32,
}

/// An attempt that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The write that begins with it, if one does.
    pub begun: Option<Begun>,
    /// Why it is sent, if it is one of a request that may have several.
    pub raced: Option<Kind>,
    /// Whether it is one of a write.
    pub is_write: bool,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrived {
    /// An answer, to be judged. It stands for an operation that began when its attempt was sent.
    Answer(Heard),
    /// A refusal by that machine.
    Refused {
        /// Of what.
        call: Call,
        /// By whom.
        machine: usize,
        /// Why.
        refusal: Refusal,
    },
    /// Nothing that is judged here.
    Other,
}

/// An answer that arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heard {
    /// The attempt and its answer.
    pub operation: Operation,
    /// What it says of itself.
    pub seen: Seen,
    /// Whether the attempt asked for less than its request.
    pub is_fallback: bool,
}

impl Tap {
    /// Of clients of a table that says this of reads.
    pub fn new(table: TableReads) -> Self {
        Self { table, sent: BTreeMap::new(), writes: FxHashMap::default() }
    }

    /// A frame leaves client number `client` for `machine` over `line`. `None` = no operation on a record.
    pub fn note_request(
        &mut self,
        (line, machine): (u64, usize),
        client: u32,
        frame: &Bytes,
        table: Table,
        now: Time,
    ) -> Option<Left> {
        let request = hedgerow_wire::decode_request(frame.clone()).ok()?;
        let (key, call) = protocol::call_of(&request.body)?;
        let expire_at = protocol::expiry_of(&request.body);
        let header = &request.header;
        let call = self.at_level(call, header);
        let extension = header.extension.as_ref();
        let floor = extension.and_then(|it| SessionToken::decode(it.session_token.as_ref()?).ok());
        let group = table.group_of(key);
        let id = extension.and_then(|it| Some((it.client_id?, it.sequence?)));
        let write = id.filter(|_| call.is_write()).map(|id| (group, id));
        let is_new = write.is_some_and(|write| !self.writes.contains_key(&write));
        if let Some(write) = write {
            self.writes.entry(write).or_insert((now, None));
        }
        let cause = extension.and_then(|it| it.cause).map(Cause::from_code);
        let number = extension.and_then(|it| it.attempt);
        let sent = Sent {
            machine,
            client,
            at: now,
            key,
            call,
            floor: floor.map_or(0, |token| token.floor(group)),
            number,
            cause,
            write,
        };
        self.sent.insert((line, request.sequence_id), sent);
        let is_raced = extension.is_some_and(|it| it.request_id.is_some());
        Some(Left {
            begun: write.filter(|_| is_new).map(|(group, id)| Begun { group, id, key, call, expire_at }),
            raced: is_raced.then(|| kind_of(cause, number)),
            is_write: call.is_write(),
        })
    }

    /// The level that a read asks for where it does not say it.
    fn at_level(&self, call: Call, header: &Header) -> Call {
        if call.is_write() {
            return call;
        }
        let default = if header.is_backup { self.table.backup_read_level } else { self.table.read_level };
        Call::Get(header.extension.as_ref().and_then(Extension::read_level).unwrap_or(default))
    }

    /// A frame that a machine sent at `served` arrives over `line`. The error says what no client can make sense of.
    pub fn note_reply(&mut self, line: u64, frame: &Bytes, served: Time, now: Time) -> Result<Arrived, String> {
        let reply = decode_reply(frame.clone()).map_err(|error| format!("a client cannot read a reply: {error}"))?;
        let Some(sent) = self.sent.remove(&(line, reply.sequence_id)) else { return Ok(Arrived::Other) };
        let Sent { machine, client, at, key, call, floor, number, cause, write } = sent;
        match protocol::received(&reply, &call) {
            Received::Nonsense(what) => Err(what),
            Received::Refused { refusal, .. } => Ok(Arrived::Refused { call, machine, refusal }),
            Received::Answer { answer, index, staleness, served_by, level_code, attempt } => {
                let is_other_level = level_code.is_some() && level_code != protocol::level_code(call);
                if is_other_level || attempt.is_some_and(|attempt| Some(attempt) != number) {
                    let asked = format!("attempt {number:?} of {call:?}");
                    return Err(format!("{asked} was answered as {attempt:?} at level {level_code:?}"));
                }
                // A write may have been forwarded to the leader.
                let is_strange = |address: &String| !call.is_write() && *address != address_of_machine(machine);
                if let Some(other) = served_by.filter(is_strange) {
                    return Err(format!("m{} was asked, and {other} says that it answered", machine + 1));
                }
                let begun = self.check_repetition(write, call, answer, machine)?.unwrap_or(at);
                let seen = Seen { machine, index, staleness, asked: at, served, floor };
                let outcome = Outcome::Ok(answer);
                let operation = Operation { client, key, call, start: begun, end: now, outcome, seen: Some(seen) };
                Ok(Arrived::Answer(Heard { operation, seen, is_fallback: cause == Some(Cause::Fallback) }))
            }
        }
    }

    /// Every attempt of a write tells the same. Returns when the first was sent.
    fn check_repetition(
        &mut self,
        write: Option<(GroupId, WriteId)>,
        call: Call,
        answer: Answer,
        machine: usize,
    ) -> Result<Option<Time>, String> {
        let Some((begun, first)) = write.and_then(|write| self.writes.get_mut(&write)) else { return Ok(None) };
        let first = *first.get_or_insert(answer);
        if first != answer {
            return Err(format!("{call:?} was answered {first:?}, and {answer:?} by m{}", machine + 1));
        }
        Ok(Some(*begun))
    }
}

/// Why an attempt is sent, by what it says.
fn kind_of(cause: Option<Cause>, number: Option<i32>) -> Kind {
    match cause {
        Some(Cause::Hedge) => Kind::Hedge,
        Some(Cause::Tie) => Kind::Tie,
        Some(Cause::Retry) => Kind::Retry,
        Some(Cause::Fallback) => Kind::Fallback,
        // One that takes the place of another which was refused without work says nothing.
        None if number.is_some_and(|number| number > 1) => Kind::Retry,
        None => Kind::First,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use hedgerow_types::Status;
    use hedgerow_wire::message::{GetReply, IncrReply, Put};
    use hedgerow_wire::{Body, Method, Reply, ReplyExtension, encode_reply};

    const TABLE: Table = Table { id: 1, partition_count: 1 };

    fn tap() -> Tap {
        Tap::new(TableReads::DEFAULT)
    }

    fn put(tap: &mut Tap, line: u64, attempt: i32, now: Time) -> Option<Left> {
        let extension =
            Extension { client_id: Some(9), sequence: Some(4), attempt: Some(attempt), ..Extension::default() };
        let header = Header { extension: Some(extension), ..Header::default() };
        let key = hedgerow_types::key::full_key(&protocol::hash_key(3), protocol::SORT_KEY);
        let put = Body::Put(Put { key, value: protocol::text(1), ..Put::default() });
        tap.note_request((line, 0), 7, &protocol::framed(&header, 1, &put), TABLE, now)
    }

    fn reply(method: Method, reply: &Reply, served_by: &str) -> Bytes {
        let mut out = BytesMut::new();
        let extension = ReplyExtension { index: 5, served_by: served_by.into(), ..ReplyExtension::default() };
        encode_reply(&mut out, method, 1, reply, Some(&extension));
        out.freeze()
    }

    #[test]
    fn a_write_begins_once_and_all_its_attempts_tell_the_same() {
        let mut tap = tap();
        let begun = put(&mut tap, 1, 1, 10).and_then(|left| left.begun);
        let expected = Begun { group: GroupId::new(1, 0), id: (9, 4), key: 3, call: Call::Put(1), expire_at: 0 };
        assert_eq!(begun, Some(expected));
        assert_eq!(put(&mut tap, 2, 2, 20).and_then(|left| left.begun), None);
        let done = reply(Method::Put, &Reply::Update(Default::default()), "10.0.0.2:34601");
        for line in [1, 2] {
            let arrived = tap.note_reply(line, &done, 25, 30).expect("an answer");
            let Arrived::Answer(heard) = arrived else { panic!("{arrived:?}") };
            assert_eq!((heard.operation.start, heard.operation.end), (10, 30), "it began with its first attempt");
        }
        assert_eq!(tap.note_reply(2, &done, 25, 30), Ok(Arrived::Other), "nobody asked");
        assert!(put(&mut tap, 3, 3, 40).is_some());
        let other = reply(Method::Incr, &Reply::Incr(IncrReply { new_value: 2, ..IncrReply::default() }), "");
        assert!(tap.note_reply(3, &other, 45, 50).is_err_and(|why| why.contains("was answered Done")));
    }

    #[test]
    fn a_read_is_answered_by_whom_it_asked() {
        let get = |tap: &mut Tap| {
            let frame = protocol::read(3, 1, true, None, TABLE);
            tap.note_request((1, 0), 7, &frame, TABLE, 10).expect("a read")
        };
        let mut tap = tap();
        assert_eq!(get(&mut tap), Left { begun: None, raced: None, is_write: false });
        let found = Reply::Get(GetReply { error: Status::NotFound.code(), ..GetReply::default() });
        let arrived = tap.note_reply(1, &reply(Method::Get, &found, "10.0.0.1:34601"), 15, 20).expect("an answer");
        let Arrived::Answer(heard) = arrived else { panic!("{arrived:?}") };
        assert_eq!(heard.operation.call, Call::Get(TableReads::DEFAULT.backup_read_level));
        get(&mut tap);
        let strange = tap.note_reply(1, &reply(Method::Get, &found, "10.0.0.2:34601"), 15, 20);
        assert!(strange.is_err_and(|why| why.contains("says that it answered")));
    }
}
