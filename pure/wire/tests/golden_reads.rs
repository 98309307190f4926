//! Frames of reads at any replica, byte by byte: Pegasus' backup requests, our fields of requests and replies, and their
//! absence where nobody asked for them.

mod common;

use bytes::{Bytes, BytesMut};
use common::bytes;
use hedgerow_types::{GroupId, Lag, ReadLevel, Refusal, SessionToken, Status, key};
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::message::{GetReply, MultiGet, NodePlace, PartitionConfig, QueryConfigReply};
use hedgerow_wire::serve::{Ident, TableKind, status_reply};
use hedgerow_wire::{
    Address, Body, ErrorName, Extension, Failure, Header, Method, Reply, ReplyExtension, Request, Text, decode_request,
    encode_reply,
};
use std::time::Duration;

/// The five fields of every v1 meta struct: table 2, partition 4, 1000 ms, the hash of "a", backup or not.
const META: &str = "08000100000002 08000200000004 080003000003e8 0a00048c2f8445b4cbfc3c 020005";
const GET_BODY: &str = r#"80010001 00000011 "RPC_RRDB_RRDB_GET" 00000007 | 0c0001 00000004 00016162 | 00"#;
const GET_REPLY_NAME: &str = r#"80010002 00000015 "RPC_RRDB_RRDB_GET_ACK" 00000007"#;

fn header(is_backup: bool, extension: Option<Extension>) -> Header {
    let partition_hash = key::partition_hash(b"a", b"b");
    Header { app_id: 2, partition_index: 4, timeout_ms: 1000, partition_hash, is_backup, extension }
}

/// A v1 frame of `meta` and `body`, each in hexadecimal digits.
fn frame(meta: &str, body: &str) -> Bytes {
    let (meta, body) = (bytes(meta), bytes(body));
    let sizes = format!("54484654 00000001 {:08x} {:08x}", meta.len(), body.len());
    [bytes(&sizes), meta, body].concat().into()
}

/// Checks that `body` under `header` is `frame`, in both directions.
fn is_frame(header: Header, body: Body, frame: &Bytes) {
    let request = Request { header, sequence_id: 7, body };
    let mut out = BytesMut::new();
    call::encode_request(&mut out, &request.header, 7, &request.body);
    assert_eq!(out, frame);
    assert_eq!(decode_request(frame.clone()), Ok(request));
}

fn get() -> Body {
    Body::Get(key::full_key(b"a", b"b"))
}

#[test]
fn the_backup_requests_of_pegasus_java_client() {
    let meta = format!("{META} 01 00");
    is_frame(header(true, None), get(), &frame(&meta, GET_BODY));
    let ttl = r#"80010001 00000011 "RPC_RRDB_RRDB_TTL" 00000007 | 0c0001 00000004 00016162 | 00"#;
    is_frame(header(true, None), Body::Ttl(key::full_key(b"a", b"b")), &frame(&meta, ttl));
    let multi_get = MultiGet {
        hash_key: Bytes::from_static(b"a"),
        sort_keys: vec![Bytes::from_static(b"b")],
        max_kv_count: 100,
        max_kv_size: 1000,
        start_inclusive: true,
        ..MultiGet::default()
    };
    let body = r#"80010001 00000017 "RPC_RRDB_RRDB_MULTI_GET" 00000007
        | 0c0001 (0c0001 00000001 "a" 0f0002 0c 00000001 00000001 "b" 080003 00000064 080004 000003e8 020005 00
        0c0006 00000000 0c0007 00000000 020008 01 020009 00 08000a 00000000 0c000b 00000000 02000c 00 00) | 00"#;
    is_frame(header(true, None), Body::MultiGet(multi_get.clone()), &frame(&meta, body));
    // Java leaves out what is null: here the bounds and the filter.
    let short = r#"80010001 00000017 "RPC_RRDB_RRDB_MULTI_GET" 00000007
        | 0c0001 (0c0001 00000001 "a" 0f0002 0c 00000001 00000001 "b" 080003 00000064 080004 000003e8 020005 00
        020008 01 020009 00 08000a 00000000 02000c 00 00) | 00"#;
    let request = Request { header: header(true, None), sequence_id: 7, body: Body::MultiGet(multi_get) };
    assert_eq!(decode_request(frame(&meta, short)), Ok(request));
}

#[test]
fn the_backup_flag_is_one_byte_and_v0_has_none() {
    is_frame(header(false, None), get(), &frame(&format!("{META} 00 00"), GET_BODY));
    let mut out = BytesMut::new();
    let any = Extension { any_replica: true, ..Extension::default() };
    call::encode_request_v0(&mut out, &header(true, Some(any)), 7, &get());
    let read = decode_request(out.freeze()).map(|request| request.header);
    assert_eq!(read, Ok(header(false, None)));
}

/// Our fields 16 and up; field 23 is always there, so that an extension without any other arrives as one.
#[test]
fn read_levels_in_a_request() {
    let of = |level| {
        let mut extension = Extension { any_replica: true, ..Extension::default() };
        extension.set_read_level(level);
        extension
    };
    for (level, fields) in [
        (ReadLevel::Linearizable, "080011 00000000 020017 00 02001b 01"),
        (ReadLevel::Session, "080011 00000001 020017 00 02001b 01"),
        (ReadLevel::Bounded(Duration::from_secs(2)), "080011 00000002 0a0013 00000000000007d0 020017 00 02001b 01"),
        (ReadLevel::Eventual, "080011 00000003 020017 00 02001b 01"),
    ] {
        assert_eq!(of(level).read_level(), Some(level));
        is_frame(header(false, Some(of(level))), get(), &frame(&format!("{META} 00 {fields} 00"), GET_BODY));
    }
    // A caller that leaves the level to the table, and one that is content with the leader.
    let any = Extension { any_replica: true, ..Extension::default() };
    assert_eq!(any.read_level(), None);
    is_frame(header(false, Some(any)), get(), &frame(&format!("{META} 00 020017 00 02001b 01 00"), GET_BODY));
    let nothing = Some(Extension::default());
    is_frame(header(false, nothing), get(), &frame(&format!("{META} 00 020017 00 00"), GET_BODY));
}

#[test]
fn a_session_token_in_a_request() {
    let token = SessionToken::of(GroupId::new(2, 4), 300);
    let mut extension = Extension { session_token: Some(token.encode().into()), ..Extension::default() };
    extension.set_read_level(ReadLevel::Session);
    // Version 1, one partition: table 2 and partition 4 as one number, then the index.
    let fields = "080011 00000001 0b0012 00000009 (01 01 8480808020 ac02) 020017 00";
    is_frame(header(false, Some(extension)), get(), &frame(&format!("{META} 00 {fields} 00"), GET_BODY));
}

fn is_reply(method: Method, reply: Reply, extension: Option<ReplyExtension>, frame: &str) {
    let mut out = BytesMut::new();
    encode_reply(&mut out, method, 7, &reply, extension.as_ref());
    let frame = bytes(frame);
    assert_eq!(out.freeze().slice(4..), frame);
    let whole = [&(frame.len() as u32 + 4).to_be_bytes()[..], &frame].concat();
    let read = ReplyFrame { sequence_id: 7, method: Some(method), reply, extension };
    assert_eq!(call::decode_reply(whole.into()), Ok(read));
}

fn extension() -> ReplyExtension {
    ReplyExtension {
        served_by: Text::from_static("h:1"),
        index: 12,
        staleness_ms: Some(250),
        queue_us: 3,
        requests_in_flight: 4,
        read_level_code: None,
        attempt: None,
        mode: None,
        service_us: 5,
    }
}

#[test]
fn who_served_a_read_and_how_old_it_is() {
    let answer = GetReply { value: Bytes::from_static(b"c"), app_id: 2, partition_index: 4, ..GetReply::default() };
    let fields = r#"080001 00000000 0c0002 00000001 "c" 080003 00000002 080004 00000004 0b0006 00000000"#;
    let begin = format!(r#"00000006 "ERR_OK" {GET_REPLY_NAME} | 0c0000 {fields}"#);
    let ours = r#"0b0064 00000003 "h:1" 0a0065 000000000000000c 0a0066 00000000000000fa 080067 00000003
        080068 00000004 080069 00000005"#;
    is_reply(Method::Get, Reply::Get(answer.clone()), Some(extension()), &format!("{begin} {ours} 00 00"));
    is_reply(Method::Get, Reply::Get(answer), None, &format!("{begin} 00 00"));
}

#[test]
fn a_replica_that_lags_says_by_how_much() {
    let failed = |lag: &str| {
        let size = lag.len();
        format!(
            r#"00000011 "ERR_INVALID_STATE" {GET_REPLY_NAME}
            | 080064 0000000f 0b0065 00000005 "10.:1" 0b0066 {size:08x} "{lag}" 00"#
        )
    };
    let leader = Text::from_static("10.:1");
    for (lag, text) in [
        (Lag { entries: 7, staleness: Some(Duration::from_millis(1_500)) }, "7 1500"),
        (Lag { entries: 0, staleness: None }, "0"),
    ] {
        let failure = Failure::new(&Refusal::Lagging(lag), Some(&leader));
        assert_eq!(failure.refusal(), Some(Refusal::Lagging(lag)));
        let mut out = BytesMut::new();
        encode_reply(&mut out, Method::Get, 7, &Reply::Failed(failure.clone()), Some(&ReplyExtension::default()));
        assert_eq!(out.clone().freeze().slice(4..), bytes(&failed(text)));
        let read = call::decode_reply(out.freeze()).map(|frame| frame.reply);
        assert_eq!(read, Ok(Reply::Failed(failure.clone())));
        // Pegasus' clients are told no more than the name, which makes them ask for the map again.
        let mut bare = BytesMut::new();
        encode_reply(&mut bare, Method::Get, 7, &Reply::Failed(failure), None);
        assert_eq!(bare.freeze().slice(4..), bytes(&format!(r#"00000011 "ERR_INVALID_STATE" {GET_REPLY_NAME}"#)));
    }
    let name = ErrorName::of_refusal(&Refusal::Lagging(Lag::default()));
    assert_eq!(name, ErrorName::InvalidState);
}

fn address(text: &str) -> Address {
    Address::new(text.parse().expect("an address"))
}

const PARTITION: &str = "0c0001 0000000000000000 0a0002 0000000000000003 080003 00000003 0c0004 7f00000187f10001 \
    0f0005 0c 00000001 7f00000187f20001 0f0006 0c 00000000 0a0007 0000000000000000 080008 00000000";

#[test]
fn learners_and_places_in_a_configuration_reply() {
    let partition = PartitionConfig {
        ballot: 3,
        max_replica_count: 3,
        primary: address("127.0.0.1:34801"),
        secondaries: vec![address("127.0.0.1:34802")],
        ..PartitionConfig::default()
    };
    let begin = r#"00000006 "ERR_OK" 80010002 0000002a "RPC_CM_QUERY_PARTITION_CONFIG_BY_INDEX_ACK" 00000007
        | 0c0000 0c0001 00000006 "ERR_OK" 080002 00000002 080003 00000001 020004 01 0f0005 0c 00000001"#;
    let plain = QueryConfigReply::found(2, 1, vec![partition.clone()]);
    let reply = Reply::QueryConfig(plain.clone());
    is_reply(Method::QueryConfig, reply, None, &format!("{begin} ({PARTITION} 00) 00 00"));

    let learners = Some([address("127.0.0.1:34804")].into_iter().collect());
    let place = NodePlace {
        address: address("127.0.0.1:34801").into(),
        labels: vec![Text::from_static("region=eu"), Text::from_static("zone=a")],
    };
    let extended = QueryConfigReply {
        partitions: vec![PartitionConfig { learners, ..partition }],
        table_kind: Some(0),
        nodes: Some(vec![place, NodePlace::default()]),
        ..plain
    };
    let ours = r#"0f0070 0c 00000002 (0a0001 7f00000187f10001 0f0002 0b 00000002 00000009 "region=eu" 00000006 "zone=a" 00)
        (0a0001 0000000000000000 0f0002 0b 00000000 00)"#;
    let partition = format!("{PARTITION} 0f006e 0a 00000001 7f00000187f40001 00");
    is_reply(
        Method::QueryConfig,
        Reply::QueryConfig(extended),
        None,
        &format!("{begin} ({partition}) 08006e 00000000 {ours} 00 00"),
    );
}

/// What a reply carries beside Pegasus' fields is appended for callers with an extension, and changes nothing before.
#[test]
fn a_caller_without_an_extension_gets_no_field_of_ours() {
    for method in Method::ALL.iter().filter(|method| !method.is_one_way()) {
        let server = Text::from_static("h:1");
        let ident = Ident { app_id: 2, partition_index: 4, server: &server, table: TableKind::Hash };
        let reply = match Reply::admin_failed(*method, ErrorName::Ok, "") {
            Reply::Failed(_) => status_reply(*method, Status::Ok, &ident),
            reply => reply,
        };
        let encoded = |extension: Option<&ReplyExtension>| {
            let mut out = BytesMut::new();
            encode_reply(&mut out, *method, 7, &reply, extension);
            out.freeze().slice(4..)
        };
        let (with, without) = (encoded(Some(&extension())), encoded(None));
        assert_ne!(matches!(reply, Reply::Failed(_)), with != without, "{method:?}");
        if with == without {
            continue;
        }
        // The ends of the response struct and of the result; a command's answer has no struct.
        let end: &[u8] = if *method == Method::CommandLine { &[0] } else { &[0, 0] };
        let fields = without.strip_suffix(end).expect("its ends");
        let ours = with.strip_prefix(fields).and_then(|rest| rest.strip_suffix(end)).expect("fields of ours between");
        assert!(ours.starts_with(&[11, 0, 100]), "{method:?}");
    }
}
