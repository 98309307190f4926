//! Every message survives the way there and back, cut frames never pass for whole ones, and unknown fields are passed
//! over.

use crate::call::{self, ReplyFrame};
use crate::header::{Extension, Header, ReplyExtension};
use crate::message::message;
use crate::method::{Body, Method};
use crate::reply::{Detail, Failure, Reply, encode_reply};
use crate::request::{Rejected, Request, decode_request};
use crate::thrift::tag;
use crate::value::{Address, Binary, HostPort, PartitionId, PlainAddress, PlainAddresses, Text};
use crate::{ErrorName, frame_size};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use core::net::SocketAddrV4;
use core::time::Duration;
use hedgerow_types::random::Random;
use hedgerow_types::{Lag, Refusal};
use proptest::prelude::*;

/// A value drawn at random; small values and boundaries are frequent.
pub(crate) trait Sample: Sized {
    fn sample(random: &mut Random) -> Self;
}

impl Sample for bool {
    fn sample(random: &mut Random) -> Self {
        random.chance(1, 2)
    }
}

impl Sample for u64 {
    fn sample(random: &mut Random) -> Self {
        match random.below(4) {
            0 => random.below(3),
            1 => Self::MAX - random.below(3),
            _ => random.next_u64(),
        }
    }
}

impl Sample for i64 {
    fn sample(random: &mut Random) -> Self {
        u64::sample(random) as Self
    }
}

impl Sample for i32 {
    fn sample(random: &mut Random) -> Self {
        u64::sample(random) as Self
    }
}

impl Sample for Bytes {
    fn sample(random: &mut Random) -> Self {
        let size = random.below(20);
        (0..size).map(|_| random.next_u64() as u8).collect()
    }
}

impl Sample for Text {
    fn sample(random: &mut Random) -> Self {
        let size = random.below(12);
        let text: String = (0..size).map(|_| char::from_u32(random.below(0x800) as u32).unwrap_or('x')).collect();
        text.into()
    }
}

impl Sample for Binary {
    fn sample(random: &mut Random) -> Self {
        Self(Bytes::sample(random))
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(random: &mut Random) -> Self {
        random.chance(1, 2).then(|| T::sample(random))
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(random: &mut Random) -> Self {
        (0..random.below(4)).map(|_| T::sample(random)).collect()
    }
}

impl<A: Sample, B: Sample> Sample for (A, B) {
    fn sample(random: &mut Random) -> Self {
        (A::sample(random), B::sample(random))
    }
}

impl Sample for ErrorName {
    fn sample(random: &mut Random) -> Self {
        Self::ALL[random.below(Self::ALL.len() as u64) as usize]
    }
}

impl Sample for Address {
    fn sample(random: &mut Random) -> Self {
        match random.below(4) {
            0 => Self::NONE,
            _ => Self::new(SocketAddrV4::new((random.next_u64() as u32).into(), random.next_u64() as u16)),
        }
    }
}

impl Sample for PlainAddress {
    fn sample(random: &mut Random) -> Self {
        Self(Address::sample(random))
    }
}

impl Sample for PlainAddresses {
    fn sample(random: &mut Random) -> Self {
        Self(Vec::sample(random))
    }
}

impl Sample for HostPort {
    fn sample(random: &mut Random) -> Self {
        Self { host: Text::sample(random), port: random.next_u64() as u16, kind: random.below(2) as u8 }
    }
}

impl Sample for PartitionId {
    fn sample(random: &mut Random) -> Self {
        Self { app_id: i32::sample(random), partition_index: i32::sample(random) }
    }
}

impl Sample for Extension {
    fn sample(random: &mut Random) -> Self {
        Self {
            attempt: Sample::sample(random),
            read_level_code: Sample::sample(random),
            any_replica: Sample::sample(random),
            cause: Sample::sample(random),
            session_token: Sample::sample(random),
            staleness_bound_ms: Sample::sample(random),
            tie: Sample::sample(random),
            deadline_ms: Sample::sample(random),
            busy_threshold_ms: Sample::sample(random),
            wants_trace: Sample::sample(random),
            client_id: Sample::sample(random),
            sequence: Sample::sample(random),
            request_id: Sample::sample(random),
        }
    }
}

impl Sample for Header {
    fn sample(random: &mut Random) -> Self {
        Self {
            app_id: Sample::sample(random),
            partition_index: Sample::sample(random),
            timeout_ms: Sample::sample(random),
            partition_hash: Sample::sample(random),
            is_backup: Sample::sample(random),
            extension: Sample::sample(random),
        }
    }
}

fn encoded(header: &Header, sequence_id: i32, body: &Body) -> Bytes {
    let mut out = BytesMut::new();
    call::encode_request(&mut out, header, sequence_id, body);
    out.freeze()
}

fn encoded_reply(method: Method, sequence_id: i32, reply: &Reply, extension: Option<&ReplyExtension>) -> Bytes {
    let mut out = BytesMut::new();
    encode_reply(&mut out, method, sequence_id, reply, extension);
    out.freeze()
}

proptest! {
    #[test]
    fn every_request_survives_the_round_trip(seed: u64, sequence_id: i32) {
        let random = &mut Random::new(seed);
        for method in Method::ALL {
            let body = Body::sample(*method, random);
            let header = Header::sample(random);
            let frame = encoded(&header, sequence_id, &body);
            prop_assert_eq!(frame_size(&frame), Ok(Some(frame.len())));
            let request = Request { header: header.clone(), sequence_id, body: body.clone() };
            prop_assert_eq!(decode_request(frame), Ok(request));

            let mut out = BytesMut::new();
            call::encode_request_v0(&mut out, &header, sequence_id, &body);
            prop_assert_eq!(frame_size(&out), Ok(Some(out.len())));
            let header = Header { is_backup: false, extension: None, ..header };
            prop_assert_eq!(decode_request(out.freeze()), Ok(Request { header, sequence_id, body }));
        }
    }

    #[test]
    fn every_reply_survives_the_round_trip(seed: u64, sequence_id: i32) {
        let random = &mut Random::new(seed);
        for method in Method::ALL {
            let Some(reply) = Reply::sample(*method, random) else { continue };
            let extension = <Option<ReplyExtension>>::sample(random);
            let frame = encoded_reply(*method, sequence_id, &reply, extension.as_ref());
            prop_assert_eq!(call::reply_frame_size(&frame), Ok(Some(frame.len())));
            let expected = ReplyFrame { sequence_id, method: Some(*method), reply, extension };
            prop_assert_eq!(call::decode_reply(frame), Ok(expected));
        }
    }

    #[test]
    fn a_cut_frame_is_never_whole(seed: u64) {
        let random = &mut Random::new(seed);
        let method = Method::ALL[random.below(Method::ALL.len() as u64) as usize];
        let frame = encoded(&Header::sample(random), 1, &Body::sample(method, random));
        for cut in 0..frame.len() {
            prop_assert!(matches!(frame_size(&frame[..cut]), Ok(None | Some(_))));
            prop_assert!(matches!(decode_request(frame.slice(..cut)), Err(Rejected::Close(_))));
        }
        let Some(reply) = Reply::sample(method, random) else { return Ok(()) };
        let frame = encoded_reply(method, 1, &reply, None);
        for cut in 0..frame.len() {
            prop_assert!(call::decode_reply(frame.slice(..cut)).is_err());
        }
    }

    #[test]
    fn a_frame_with_one_wrong_byte_is_read_or_refused(seed: u64) {
        let random = &mut Random::new(seed);
        for method in Method::ALL {
            let mut request = encoded(&Header::sample(random), 1, &Body::sample(*method, random)).to_vec();
            let at = random.below(request.len() as u64) as usize;
            request[at] = random.next_u64() as u8;
            let _ = frame_size(&request);
            let _ = decode_request(request.into());
            let Some(reply) = Reply::sample(*method, random) else { continue };
            let mut reply = encoded_reply(*method, 1, &reply, None).to_vec();
            let at = 4 + random.below(reply.len() as u64 - 4) as usize;
            reply[at] = random.next_u64() as u8;
            let _ = call::decode_reply(reply.into());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(data: Vec<u8>) {
        let _ = frame_size(&data);
        let _ = decode_request(data.clone().into());
        let _ = call::reply_frame_size(&data);
        let _ = call::decode_reply(data.into());
    }
}

#[test]
fn every_refusal_reaches_a_caller_with_an_extension() {
    let text = || String::from("why");
    let refusals = [
        Refusal::NotLeader { leader: None },
        Refusal::NotReady(text()),
        Refusal::NotHosted,
        Refusal::Busy(text()),
        Refusal::Unresolved,
        Refusal::Expired,
        Refusal::SessionWindow { sequence: u64::MAX, floor: 0, ceiling: 0 },
        Refusal::SessionWindow { sequence: 1, floor: u64::MAX, ceiling: u64::MAX },
        Refusal::Invalid(text()),
        Refusal::TooLarge(text()),
        Refusal::DiskFull(text()),
        Refusal::NotAllowed(text()),
        Refusal::NoTable,
        Refusal::Creating,
        Refusal::TableExists,
        Refusal::FailedPrecondition("user app has a password already".into()),
        Refusal::Stopping(text()),
        Refusal::Lagging(Lag { entries: 7, staleness: Some(Duration::from_millis(1_500)) }),
        Refusal::Lagging(Lag { entries: 7, staleness: None }),
        Refusal::Unknown,
    ];
    let leader = Text::from("10.0.0.1:34801");
    for refusal in refusals {
        let reply = Reply::refused(&refusal, Some(&leader));
        let frame = encoded_reply(Method::Put, 5, &reply, Some(&ReplyExtension::default()));
        let read = call::decode_reply(frame).expect("a whole reply");
        let Reply::Failed(failure) = read.reply else { panic!("{refusal} became a success") };
        assert_eq!(failure.name, ErrorName::of_refusal(&refusal));
        assert_eq!(failure.detail.as_ref().map(|detail| detail.leader.as_str()), Some(leader.as_str()));
        assert_eq!(failure.refusal(), Some(refusal));
    }
}

#[test]
fn a_caller_without_an_extension_is_told_a_refusals_name_only() {
    let reply = Reply::refused(&Refusal::Busy("queue".to_string()), None);
    let frame = encoded_reply(Method::Get, 5, &reply, None);
    let bare = Reply::Failed(Failure { name: ErrorName::Busy, detail: None });
    assert_eq!(call::decode_reply(frame.clone()).map(|read| read.reply), Ok(bare));
    assert!(frame.ends_with(&[0, 0, 0, 5]), "nothing follows the sequence id");
}

#[test]
fn a_kind_of_refusal_from_the_future_is_no_refusal_we_know() {
    let detail = Detail { kind: 99, ..Detail::default() };
    assert_eq!(Failure { name: ErrorName::Busy, detail: Some(detail) }.refusal(), None);
}

message! {
    /// Fields that no message of ours has, of every type that can be passed over.
    pub(crate) struct Stranger {
        /// A simple one.
        90 => number: i64,
        /// A string.
        91 => text: Text,
        /// A list.
        92 => numbers: Vec<i32>,
        /// A map.
        93 => pairs: Vec<(Text, Text)>,
    }
}

#[test]
fn unknown_fields_are_passed_over() {
    use crate::message::{Message, Put};
    use crate::value::Wire;
    let random = &mut Random::new(7);
    let (put, stranger) = (Put::sample(random), Stranger::sample(random));
    let mut out = BytesMut::new();
    stranger.write_fields(&mut out);
    out.put_slice(&[tag::STRUCT, 0, 94]);
    stranger.write(&mut out);
    put.write(&mut out);
    let read = Put::read(&mut crate::thrift::Reader::new(out.freeze()));
    assert_eq!(read, Ok(put));
}

message! {
    /// A configuration reply as a reader knows it that has none of our fields.
    pub(crate) struct OlderQueryConfigReply {
        /// How it went.
        1 => err: ErrorName,
        /// The partitions.
        5 => partitions: Vec<OlderPartitionConfig>,
    }

    /// A partition as that reader knows it.
    pub(crate) struct OlderPartitionConfig {
        /// Table and index.
        1 => pid: PartitionId,
        /// Its version.
        2 => ballot: i64,
        /// The leader.
        4 => primary: Address,
        /// The other replicas.
        5 => secondaries: Vec<Address>,
        /// Replicas that were lost.
        6 => last_drops: Vec<Address>,
    }
}

#[test]
fn readers_that_do_not_know_our_fields_pass_over_them() {
    use crate::message::{Message, NodePlace, PartitionConfig, QueryConfigReply};
    use crate::value::Wire;
    let address = Address::new("127.0.0.1:34801".parse().expect("an address"));
    let partition = PartitionConfig {
        ballot: 3,
        primary: address,
        learners: Some([address, address].into_iter().collect()),
        ..PartitionConfig::default()
    };
    let place = NodePlace { address: address.into(), labels: Vec::from(["zone=a".into()]) };
    let reply = QueryConfigReply {
        table_kind: Some(1),
        start_keys: Some(Vec::from([Binary(Bytes::from_static(b"m"))])),
        nodes: Some(Vec::from([place])),
        ..QueryConfigReply::found(2, 1, Vec::from([partition]))
    };
    let mut out = BytesMut::new();
    reply.write_fields(&mut out);
    ReplyExtension { staleness_ms: Some(5), ..ReplyExtension::default() }.write(&mut out);
    let older = OlderPartitionConfig { ballot: 3, primary: address, ..OlderPartitionConfig::default() };
    let older = OlderQueryConfigReply { err: ErrorName::Ok, partitions: Vec::from([older]) };
    assert_eq!(OlderQueryConfigReply::read(&mut crate::thrift::Reader::new(out.freeze())), Ok(older));
}

#[test]
fn fields_of_ours_from_the_future_do_not_disturb_todays() {
    use crate::message::Message;
    let header = Header { app_id: 3, extension: Some(Extension::default()), ..Header::default() };
    let body = Body::Get(Bytes::from_static(b"\0\0k"));
    let frame = encoded(&header, 1, &body);
    let meta_size = crate::frame::word(&frame, 8).expect("a v1 frame") as usize;
    let mut extra = BytesMut::new();
    Stranger::sample(&mut Random::new(9)).write_fields(&mut extra);
    let mut longer = BytesMut::from(&frame[..16]);
    longer.put_slice(&extra);
    longer.put_slice(&frame[16..]);
    longer[8..12].copy_from_slice(&((meta_size + extra.len()) as u32).to_be_bytes());
    assert_eq!(decode_request(longer.freeze()), Ok(Request { header, sequence_id: 1, body }));
}

#[test]
fn a_list_cannot_claim_more_memory_than_its_frame_justifies() {
    use crate::message::KeyValue;
    use crate::thrift::{Malformed, Reader};
    use crate::value::Wire;
    let list = |count: i32, bytes: usize| {
        let mut out = BytesMut::new();
        out.put_u8(tag::STRUCT);
        out.put_i32(count);
        out.put_bytes(0, bytes);
        <Vec<KeyValue>>::read(&mut Reader::new(out.freeze())).map(|rows| rows.len())
    };
    assert_eq!(list(100, 100), Ok(100));
    assert_eq!(list(100, 99), Err(Malformed("list: its count passes the end of the message")));
    assert_eq!(list(65_537, 70_000), Err(Malformed("list: it has more than 65,536 elements")));
    assert_eq!(list(i32::MAX, 99), Err(Malformed("list: it has more than 65,536 elements")));
    assert_eq!(list(-1, 99), Err(Malformed("list: its count is negative")));
}

#[test]
fn an_unknown_field_cannot_nest_without_end() {
    use crate::thrift::{Malformed, Reader};
    let nested = |depth: usize| {
        let mut out = BytesMut::new();
        (1..depth).for_each(|_| out.put_slice(&[tag::STRUCT, 0, 1]));
        out.put_bytes(tag::STOP, depth);
        Reader::new(out.freeze()).skip(tag::STRUCT)
    };
    assert_eq!(nested(16), Ok(()));
    assert_eq!(nested(17), Err(Malformed("unknown field: it nests too deep")));
}

#[test]
fn a_length_reaches_to_the_end_of_its_part_and_no_further() {
    use crate::thrift::Reader;
    let data = Bytes::from_static(&[0, 0, 0, 2, b'a', b'b', b'c']);
    for (size, fits) in [(7, true), (6, true), (5, false), (3, false)] {
        let mut input = Reader::new(data.clone());
        input.go_to(0, size);
        assert_eq!(input.bytes().is_ok(), fits, "{size}");
    }
    assert!(Reader::new(data.slice(..5)).bytes().is_err());
}
