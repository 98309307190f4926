//! The stored form of a [`Proposal`] and of a [`WriteReply`]: little-endian, length-prefixed, with a version byte first.
//!
//! Values are taken out of the input as slices of the same buffer, so that decoding an entry copies no value.

use crate::error::Status;
use crate::id::ClientId;
use crate::journal::{Change, Duplicate, JournalWrite, Position};
use crate::op::{Check, Mutation, Proposal, Write, WriteDetail, WriteReply};
use alloc::vec::Vec;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Version of an encoded reply, its first byte; and of proposals that were encoded before sessions had a bound.
pub const VERSION: u8 = 1;
/// Version of an encoded proposal, its first byte. Proposals of all versions have the same form; the number tells the state
/// machine from which entry on all replicas bound their sessions.
pub const PROPOSAL_VERSION: u8 = 2;
/// The same of a proposal whose time is agreed ([`Proposal::is_agreed`]).
pub const PROPOSAL_VERSION_AGREED: u8 = 3;

/// What an encoded change takes at least: stamp, origin, kind, length of the key.
const CHANGE_SIZE_MIN: usize = 21;

/// Whether whoever encoded the proposal `data` bounds sessions.
pub fn bounds_sessions(data: &[u8]) -> bool {
    data.first().is_some_and(|version| *version >= PROPOSAL_VERSION)
}

/// Stored bytes that do not have the form they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

/// Appends `proposal` to `out`.
pub fn encode_proposal(proposal: &Proposal, out: &mut BytesMut) {
    out.put_u8(if proposal.is_agreed { PROPOSAL_VERSION_AGREED } else { PROPOSAL_VERSION });
    out.put_u64_le(proposal.client.0);
    out.put_u64_le(proposal.sequence);
    out.put_u32_le(proposal.now);
    match &proposal.write {
        Write::Nothing => out.put_u8(0),
        Write::Put { key, value, expire_at } => {
            out.put_u8(1);
            put_bytes(out, key);
            put_bytes(out, value);
            out.put_u32_le(*expire_at);
        }
        Write::Remove { key } => {
            out.put_u8(2);
            put_bytes(out, key);
        }
        Write::MultiPut { prefix, rows, expire_at } => {
            out.put_u8(3);
            put_bytes(out, prefix);
            out.put_u32_le(rows.len() as u32);
            for (suffix, value) in rows {
                put_bytes(out, suffix);
                put_bytes(out, value);
            }
            out.put_u32_le(*expire_at);
        }
        Write::MultiRemove { prefix, suffixes } => {
            out.put_u8(4);
            put_bytes(out, prefix);
            out.put_u32_le(suffixes.len() as u32);
            suffixes.iter().for_each(|suffix| put_bytes(out, suffix));
        }
        Write::Incr { key, by, expire_at } => {
            out.put_u8(5);
            put_bytes(out, key);
            out.put_i64_le(*by);
            out.put_i32_le(*expire_at);
        }
        Write::CheckAndMutate { prefix, check, mutations, return_check_value } => {
            out.put_u8(6);
            put_bytes(out, prefix);
            put_bytes(out, &check.suffix);
            out.put_i32_le(check.kind);
            put_bytes(out, &check.operand);
            out.put_u32_le(mutations.len() as u32);
            mutations.iter().for_each(|mutation| put_mutation(out, mutation));
            out.put_u8(u8::from(*return_check_value));
        }
        Write::Duplicate(Duplicate { here, changes }) => {
            out.put_u8(7);
            out.put_u64_le(*here);
            out.put_u32_le(changes.len() as u32);
            changes.iter().for_each(|change| put_change(out, change));
        }
        Write::Journal(JournalWrite::Begin { id, round, cluster, target, bytes_max }) => {
            out.put_u8(8);
            out.put_u64_le(*id);
            out.put_u32_le(*round);
            out.put_u64_le(*cluster);
            out.put_u64_le(*target);
            out.put_u64_le(*bytes_max);
        }
        Write::Journal(JournalWrite::Reached { id, round, position }) => {
            out.put_u8(9);
            out.put_u64_le(*id);
            out.put_u32_le(*round);
            put_bytes(out, &position.encoded());
        }
        Write::Journal(JournalWrite::End { id }) => {
            out.put_u8(10);
            out.put_u64_le(*id);
        }
    }
}

/// The inverse of [`encode_proposal`]; refuses other versions, unknown operations and trailing bytes.
pub fn decode_proposal(data: Bytes) -> Result<Proposal, Malformed> {
    let mut input = Input { data, what: "proposal" };
    let is_agreed = match input.u8()? {
        VERSION | PROPOSAL_VERSION => false,
        PROPOSAL_VERSION_AGREED => true,
        _ => return Err(input.malformed()),
    };
    let client = ClientId(input.u64()?);
    let sequence = input.u64()?;
    let now = input.u32()?;
    let write = match input.u8()? {
        0 => Write::Nothing,
        1 => Write::Put { key: input.bytes()?, value: input.bytes()?, expire_at: input.u32()? },
        2 => Write::Remove { key: input.bytes()? },
        3 => Write::MultiPut {
            prefix: input.bytes()?,
            rows: input.list(8, |input| Ok((input.bytes()?, input.bytes()?)))?,
            expire_at: input.u32()?,
        },
        4 => Write::MultiRemove { prefix: input.bytes()?, suffixes: input.list(4, Input::bytes)? },
        5 => Write::Incr { key: input.bytes()?, by: input.u64()? as i64, expire_at: input.u32()? as i32 },
        6 => Write::CheckAndMutate {
            prefix: input.bytes()?,
            check: Check { suffix: input.bytes()?, kind: input.u32()? as i32, operand: input.bytes()? },
            mutations: input.list(5, Input::mutation)?,
            return_check_value: input.u8()? != 0,
        },
        7 => Write::Duplicate(Duplicate { here: input.u64()?, changes: input.list(CHANGE_SIZE_MIN, Input::change)? }),
        8 => Write::Journal(JournalWrite::Begin {
            id: input.u64()?,
            round: input.u32()?,
            cluster: input.u64()?,
            target: input.u64()?,
            bytes_max: input.u64()?,
        }),
        9 => Write::Journal(JournalWrite::Reached {
            id: input.u64()?,
            round: input.u32()?,
            position: Position::decode(input.bytes()?).ok_or(input.malformed())?,
        }),
        10 => Write::Journal(JournalWrite::End { id: input.u64()? }),
        _ => return Err(input.malformed()),
    };
    input.end()?;
    Ok(Proposal { client, sequence, now, is_agreed, write })
}

/// Appends `reply` to `out`.
pub fn encode_write_reply(reply: &WriteReply, out: &mut BytesMut) {
    out.put_u8(VERSION);
    out.put_u8(reply.status.code() as u8);
    match &reply.detail {
        WriteDetail::None => out.put_u8(0),
        WriteDetail::Removed(count) => {
            out.put_u8(1);
            out.put_i64_le(*count);
        }
        WriteDetail::Value(value) => {
            out.put_u8(2);
            out.put_i64_le(*value);
        }
        WriteDetail::Checked(None) => out.put_u8(3),
        WriteDetail::Checked(Some(None)) => out.put_u8(4),
        WriteDetail::Checked(Some(Some(value))) => {
            out.put_u8(5);
            put_bytes(out, value);
        }
    }
}

/// The inverse of [`encode_write_reply`].
pub fn decode_write_reply(data: Bytes) -> Result<WriteReply, Malformed> {
    let mut input = Input { data, what: "write reply" };
    input.version()?;
    let status = Status::from_code(i32::from(input.u8()?)).ok_or(input.malformed())?;
    let detail = match input.u8()? {
        0 => WriteDetail::None,
        1 => WriteDetail::Removed(input.u64()? as i64),
        2 => WriteDetail::Value(input.u64()? as i64),
        3 => WriteDetail::Checked(None),
        4 => WriteDetail::Checked(Some(None)),
        5 => WriteDetail::Checked(Some(Some(input.bytes()?))),
        _ => return Err(input.malformed()),
    };
    input.end()?;
    Ok(WriteReply { status, detail })
}

fn put_bytes(out: &mut BytesMut, bytes: &Bytes) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Appends the changes of one entry of a journal, or of a page of rows.
pub fn encode_changes(changes: &[Change], out: &mut BytesMut) {
    out.put_u32_le(changes.len() as u32);
    changes.iter().for_each(|change| put_change(out, change));
}

/// The inverse of [`encode_changes`].
pub fn decode_changes(data: Bytes) -> Result<Vec<Change>, Malformed> {
    let mut input = Input { data, what: "list of changes" };
    let changes = input.list(CHANGE_SIZE_MIN, Input::change)?;
    input.end()?;
    Ok(changes)
}

fn put_change(out: &mut BytesMut, change: &Change) {
    out.put_u64_le(change.stamp);
    out.put_u64_le(change.origin);
    put_mutation(out, &change.mutation);
}

fn put_mutation(out: &mut BytesMut, mutation: &Mutation) {
    match mutation {
        Mutation::Put { suffix, value, expire_at } => {
            out.put_u8(0);
            put_bytes(out, suffix);
            put_bytes(out, value);
            out.put_u32_le(*expire_at);
        }
        Mutation::Remove { suffix } => {
            out.put_u8(1);
            put_bytes(out, suffix);
        }
    }
}

struct Input {
    data: Bytes,
    what: &'static str,
}

impl Input {
    fn malformed(&self) -> Malformed {
        Malformed(self.what)
    }

    fn need(&self, count: usize) -> Result<(), Malformed> {
        if self.data.len() < count { Err(self.malformed()) } else { Ok(()) }
    }

    fn version(&mut self) -> Result<(), Malformed> {
        if self.u8()? == VERSION { Ok(()) } else { Err(self.malformed()) }
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.need(1)?;
        Ok(self.data.get_u8())
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.need(4)?;
        Ok(self.data.get_u32_le())
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.need(8)?;
        Ok(self.data.get_u64_le())
    }

    fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let length = self.u32()? as usize;
        self.need(length)?;
        Ok(self.data.split_to(length))
    }

    /// A list whose items take at least `item_size_min` bytes each: a count above what fits cannot make us reserve memory.
    fn list<T>(
        &mut self,
        item_size_min: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        self.need(count.saturating_mul(item_size_min))?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn mutation(&mut self) -> Result<Mutation, Malformed> {
        Ok(match self.u8()? {
            0 => Mutation::Put { suffix: self.bytes()?, value: self.bytes()?, expire_at: self.u32()? },
            1 => Mutation::Remove { suffix: self.bytes()? },
            _ => return Err(self.malformed()),
        })
    }

    fn change(&mut self) -> Result<Change, Malformed> {
        Ok(Change { stamp: self.u64()?, origin: self.u64()?, mutation: self.mutation()? })
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.data.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
    }

    fn mutation() -> impl Strategy<Value = Mutation> {
        prop_oneof![
            (bytes(), bytes(), any::<u32>()).prop_map(|(suffix, value, expire_at)| Mutation::Put {
                suffix,
                value,
                expire_at
            }),
            bytes().prop_map(|suffix| Mutation::Remove { suffix }),
        ]
    }

    fn change() -> impl Strategy<Value = Change> {
        (any::<u64>(), any::<u64>(), mutation()).prop_map(|(stamp, origin, mutation)| Change {
            stamp,
            origin,
            mutation,
        })
    }

    fn position() -> impl Strategy<Value = Position> {
        prop_oneof![
            bytes().prop_map(Position::Copying),
            (any::<u64>(), any::<u64>()).prop_map(|(entry, bytes)| Position::Following { entry, bytes }),
        ]
    }

    fn write() -> BoxedStrategy<Write> {
        prop_oneof![
            Just(Write::Nothing),
            (bytes(), bytes(), any::<u32>()).prop_map(|(key, value, expire_at)| Write::Put { key, value, expire_at }),
            bytes().prop_map(|key| Write::Remove { key }),
            (bytes(), proptest::collection::vec((bytes(), bytes()), 0..4), any::<u32>())
                .prop_map(|(prefix, rows, expire_at)| Write::MultiPut { prefix, rows, expire_at }),
            (bytes(), proptest::collection::vec(bytes(), 0..4))
                .prop_map(|(prefix, suffixes)| Write::MultiRemove { prefix, suffixes }),
            (bytes(), any::<i64>(), any::<i32>()).prop_map(|(key, by, expire_at)| Write::Incr { key, by, expire_at }),
            (bytes(), bytes(), any::<i32>(), bytes(), proptest::collection::vec(mutation(), 0..4), any::<bool>())
                .prop_map(|(prefix, suffix, kind, operand, mutations, return_check_value)| Write::CheckAndMutate {
                    prefix,
                    check: Check { suffix, kind, operand },
                    mutations,
                    return_check_value
                }),
            (any::<u64>(), proptest::collection::vec(change(), 0..4))
                .prop_map(|(here, changes)| Write::Duplicate(Duplicate { here, changes })),
            (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
                |(id, round, cluster, target, bytes_max)| {
                    Write::Journal(JournalWrite::Begin { id, round, cluster, target, bytes_max })
                }
            ),
            (any::<u64>(), any::<u32>(), position())
                .prop_map(|(id, round, position)| Write::Journal(JournalWrite::Reached { id, round, position })),
            any::<u64>().prop_map(|id| Write::Journal(JournalWrite::End { id })),
        ]
        .boxed()
    }

    proptest! {
        #[test]
        fn a_proposal_survives_the_round_trip(
            client: u64, sequence: u64, now: u32, is_agreed: bool, write in write(),
        ) {
            let proposal = Proposal { client: ClientId(client), sequence, now, is_agreed, write };
            let mut out = BytesMut::new();
            encode_proposal(&proposal, &mut out);
            let whole = out.freeze();
            for cut in 0..whole.len() {
                prop_assert!(decode_proposal(whole.slice(..cut)).is_err());
            }
            prop_assert_eq!(decode_proposal(whole), Ok(proposal));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(data: Vec<u8>) {
            if let Ok(proposal) = decode_proposal(Bytes::from(data.clone())) {
                let mut out = BytesMut::new();
                encode_proposal(&proposal, &mut out);
                prop_assert_eq!(decode_proposal(out.freeze()), Ok(proposal));
            }
            if let Ok(reply) = decode_write_reply(Bytes::from(data)) {
                let mut out = BytesMut::new();
                encode_write_reply(&reply, &mut out);
                prop_assert_eq!(decode_write_reply(out.freeze()), Ok(reply));
            }
        }
    }

    #[test]
    fn the_stored_form_is_fixed() {
        let write = Write::Put { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v"), expire_at: 7 };
        let mut out = BytesMut::new();
        let proposal = Proposal { client: ClientId(2), sequence: 3, now: 4, is_agreed: false, write };
        encode_proposal(&proposal, &mut out);
        let expected: Vec<u8> = [
            &[2][..],
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[4, 0, 0, 0],
            &[1],
            &[1, 0, 0, 0, b'k'],
            &[1, 0, 0, 0, b'v'],
            &[7, 0, 0, 0],
        ]
        .concat();
        assert_eq!(out, expected);
        let mut agreed = BytesMut::new();
        encode_proposal(&Proposal { is_agreed: true, ..proposal }, &mut agreed);
        assert_eq!((agreed[0], &agreed[1..]), (3, &expected[1..]));
        assert!(bounds_sessions(&out));
    }

    #[test]
    fn a_proposal_of_the_first_version_is_read_and_a_later_one_is_not() {
        let proposal = Proposal { client: ClientId(2), sequence: 3, now: 4, is_agreed: false, write: Write::Nothing };
        let mut out = BytesMut::new();
        encode_proposal(&proposal, &mut out);
        for (version, is_read) in [(0, false), (1, true), (2, true), (4, false)] {
            out[0] = version;
            let decoded = decode_proposal(out.clone().freeze());
            assert_eq!(decoded.as_ref().ok(), is_read.then_some(&proposal), "version {version}");
        }
        out[0] = 1;
        assert!(!bounds_sessions(&out) && !bounds_sessions(&[]));
    }

    #[test]
    fn a_write_reply_survives_the_round_trip() {
        for detail in [
            WriteDetail::None,
            WriteDetail::Removed(-3),
            WriteDetail::Value(i64::MIN),
            WriteDetail::Checked(None),
            WriteDetail::Checked(Some(None)),
            WriteDetail::Checked(Some(Some(Bytes::from(vec![1, 2, 3])))),
        ] {
            let reply = WriteReply { status: Status::TryAgain, detail };
            let mut out = BytesMut::new();
            encode_write_reply(&reply, &mut out);
            assert_eq!(decode_write_reply(out.freeze()), Ok(reply));
        }
    }
}
