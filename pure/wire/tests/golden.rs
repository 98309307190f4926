//! Frames byte by byte, as unmodified clients and servers exchange them.

mod common;

use bytes::{Bytes, BytesMut};
use common::bytes;
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::message::{
    GetReply, KeyValue, MultiPut, PartitionConfig, Put, QueryConfig, QueryConfigReply, ScanReply, UpdateReply,
};
use hedgerow_wire::{
    Address, Body, ErrorName, Failure, Header, HostPort, Method, PartitionId, Reply, Request, decode_request,
    encode_rejection, encode_reply, frame_size,
};

const GET_BODY: &str = r#"80010001 00000011 "RPC_RRDB_RRDB_GET" 00000007 | 0c0001 00000004 00016162 | 00"#;
const GET_REPLY_NAME: &str = r#"80010002 00000015 "RPC_RRDB_RRDB_GET_ACK" 00000007"#;

fn get_v1() -> Bytes {
    bytes(&format!(
        "54484654 00000001 00000025 00000029 | 08000100000002 08000200000004 080003000003e8 \
         0a00048c2f8445b4cbfc3c 02000501 00 | {GET_BODY}"
    ))
}

fn get_v0() -> Bytes {
    bytes(&format!(
        "54484654 00000000 00000030 00000000 00000029 00000000 00000002 00000004 000003e8 00003de2 \
         8c2f8445b4cbfc3c | {GET_BODY}"
    ))
}

fn get_header(is_backup: bool) -> Header {
    let partition_hash = hedgerow_types::key::partition_hash(b"a", b"b");
    Header { app_id: 2, partition_index: 4, timeout_ms: 1000, partition_hash, is_backup, extension: None }
}

fn get_body() -> Body {
    Body::Get(hedgerow_types::key::full_key(b"a", b"b"))
}

fn request(body: &Body) -> Bytes {
    let mut out = BytesMut::new();
    call::encode_request_v0(&mut out, &Header::default(), 7, body);
    assert_eq!(
        decode_request(out.clone().freeze()),
        Ok(Request { header: Header::default(), sequence_id: 7, body: body.clone() })
    );
    out.freeze().slice(48..)
}

fn reply(method: Method, reply: &Reply) -> Bytes {
    let mut out = BytesMut::new();
    encode_reply(&mut out, method, 7, reply, None);
    let frame = ReplyFrame { sequence_id: 7, method: Some(method), reply: reply.clone(), extension: None };
    assert_eq!(call::decode_reply(out.clone().freeze()), Ok(frame));
    out.freeze()
}

#[test]
fn get_in_a_v1_frame_with_the_backup_flag() {
    let expected = Request { header: get_header(true), sequence_id: 7, body: get_body() };
    assert_eq!(frame_size(&get_v1()), Ok(Some(get_v1().len())));
    assert_eq!(decode_request(get_v1()), Ok(expected));
    let mut out = BytesMut::new();
    call::encode_request(&mut out, &get_header(true), 7, &get_body());
    assert_eq!(out, get_v1());
}

#[test]
fn get_in_a_v0_frame() {
    let expected = Request { header: get_header(false), sequence_id: 7, body: get_body() };
    assert_eq!(frame_size(&get_v0()), Ok(Some(get_v0().len())));
    assert_eq!(decode_request(get_v0()), Ok(expected));
    let mut out = BytesMut::new();
    call::encode_request_v0(&mut out, &get_header(true), 7, &get_body());
    assert_eq!(out, get_v0());
}

#[test]
fn get_in_the_old_message_form() {
    let mut frame = get_v0()[..48].to_vec();
    frame.extend_from_slice(&bytes(r#"00000011 "RPC_RRDB_RRDB_GET" 01 00000007 0c0001 00000004 00016162 00"#));
    frame[16..20].copy_from_slice(&38u32.to_be_bytes());
    let expected = Request { header: get_header(false), sequence_id: 7, body: get_body() };
    assert_eq!(decode_request(frame.into()), Ok(expected));
}

#[test]
fn get_as_a_message_that_calls_itself_one_way() {
    let mut frame = get_v0().to_vec();
    frame[51] = 4;
    assert_eq!(decode_request(frame.into()).map(|request| request.body), Ok(get_body()));
}

#[test]
fn a_successful_reply_to_get() {
    let expected = bytes(&format!(
        r#"00000067 00000006 "ERR_OK" {GET_REPLY_NAME} | 0c0000 080001 00000000 0c0002 00000001 "c" 080003 00000002
           080004 00000004 0b0006 0000000f "127.0.0.1:34802" 00 00"#
    ));
    let answer = GetReply {
        error: 0,
        value: Bytes::from_static(b"c"),
        app_id: 2,
        partition_index: 4,
        server: "127.0.0.1:34802".into(),
    };
    assert_eq!(reply(Method::Get, &Reply::Get(answer)), expected);
}

#[test]
fn a_failed_reply_to_get() {
    let expected = bytes(&format!(r#"0000003a 00000011 "ERR_INVALID_STATE" {GET_REPLY_NAME}"#));
    let failure = Reply::Failed(Failure { name: ErrorName::InvalidState, detail: None });
    assert_eq!(reply(Method::Get, &failure), expected);
}

#[test]
fn an_unknown_call_is_answered_under_its_own_name() {
    let mut out = BytesMut::new();
    encode_rejection(&mut out, b"RPC_X", 9, ErrorName::HandlerNotFound);
    let expected = bytes(r#"00000032 00000015 "ERR_HANDLER_NOT_FOUND" 80010002 00000009 "RPC_X_ACK" 00000009"#);
    assert_eq!(out, expected);
}

#[test]
fn put_and_its_reply() {
    let body =
        Body::Put(Put { key: Bytes::from_static(b"\0\x01ab"), value: Bytes::from_static(b"v"), expire_ts_seconds: 9 });
    let expected = bytes(
        r#"80010001 00000011 "RPC_RRDB_RRDB_PUT" 00000007
           | 0c0001 (0c0001 00000004 00016162 0c0002 00000001 "v" 080003 00000009 00) 00"#,
    );
    assert_eq!(request(&body), expected);
    let answer = UpdateReply { error: 0, app_id: 2, partition_index: 4, decree: 77, server: "h:1".into() };
    let expected = bytes(
        r#"0000005e 00000006 "ERR_OK" 80010002 00000015 "RPC_RRDB_RRDB_PUT_ACK" 00000007
           | 0c0000 (080001 00000000 080002 00000002 080003 00000004 0a0004 000000000000004d 0b0005 00000003 "h:1" 00)
           00"#,
    );
    assert_eq!(reply(Method::Put, &Reply::Update(answer)), expected);
}

#[test]
fn a_list_of_structs_and_an_absent_optional_field() {
    let row = KeyValue { key: Bytes::from_static(b"s"), value: Bytes::from_static(b"v"), expire_ts_seconds: None };
    let body = Body::MultiPut(MultiPut { hash_key: Bytes::from_static(b"h"), kvs: vec![row], expire_ts_seconds: 0 });
    let expected = bytes(
        r#"80010001 00000017 "RPC_RRDB_RRDB_MULTI_PUT" 00000007 | 0c0001 (0c0001 00000001 "h"
           0f0002 0c 00000001 (0c0001 00000001 "s" 0c0002 00000001 "v" 00) 080003 00000000 00) 00"#,
    );
    assert_eq!(request(&body), expected);
}

#[test]
fn clear_scanner_carries_a_bare_number() {
    let expected = bytes(r#"80010001 0000001b "RPC_RRDB_RRDB_CLEAR_SCANNER" 00000007 0a0001 0000000000000005 00"#);
    assert_eq!(request(&Body::ClearScanner(5)), expected);
}

#[test]
fn the_end_of_a_scan() {
    let answer = ScanReply { context_id: -1, ..ScanReply::default() };
    let expected = bytes(
        r#"00000064 00000006 "ERR_OK" 80010002 00000016 "RPC_RRDB_RRDB_SCAN_ACK" 00000007
           | 0c0000 (080001 00000000 0f0002 0c 00000000 0a0003 ffffffffffffffff 080004 00000000 080005 00000000
             0b0006 00000000 00) 00"#,
    );
    assert_eq!(reply(Method::Scan, &Reply::Scan(answer)), expected);
}

fn partition() -> PartitionConfig {
    PartitionConfig {
        pid: PartitionId { app_id: 2, partition_index: 1 },
        ballot: 3,
        max_replica_count: 3,
        primary: Address::new("127.0.0.1:34801".parse().expect("an address")),
        secondaries: vec![Address::new("127.0.0.1:34802".parse().expect("an address"))],
        ..PartitionConfig::default()
    }
}

const PARTITION: &str = "0c0001 0000000100000002 0a0002 0000000000000003 080003 00000003 0c0004 7f00000187f10001 \
    0f0005 0c 00000001 7f00000187f20001 0f0006 0c 00000000 0a0007 0000000000000000 080008 00000000";

#[test]
fn a_configuration_query_and_its_reply() {
    let body = Body::QueryConfig(QueryConfig { app_name: "temp".into(), partition_indices: vec![] });
    let expected = bytes(
        r#"80010001 00000026 "RPC_CM_QUERY_PARTITION_CONFIG_BY_INDEX" 00000007
           | 0c0001 (0b0001 00000004 "temp" 0f0002 08 00000000 00) 00"#,
    );
    assert_eq!(request(&body), expected);
    let answer = QueryConfigReply::found(2, 4, vec![partition()]);
    let body = bytes(&format!(
        r#"00000006 "ERR_OK" 80010002 0000002a "RPC_CM_QUERY_PARTITION_CONFIG_BY_INDEX_ACK" 00000007
           | 0c0000 (0c0001 00000006 "ERR_OK" 080002 00000002 080003 00000004 020004 01
             0f0005 0c 00000001 ({PARTITION} 00) 00) 00"#
    ));
    assert_eq!(reply(Method::QueryConfig, &Reply::QueryConfig(answer)).slice(4..), body);
}

#[test]
fn host_ports_are_written_where_they_are_wanted() {
    let host = HostPort { host: "n1".into(), port: 34801, kind: 1 };
    let partition = PartitionConfig {
        hp_primary: Some(host.clone()),
        hp_secondaries: Some(vec![host]),
        hp_last_drops: Some(vec![]),
        ..partition()
    };
    let answer = reply(Method::QueryConfig, &Reply::QueryConfig(QueryConfigReply::found(2, 4, vec![partition])));
    let tail = bytes(
        r#"080008 00000000 0c0009 00000002 "n1" 87f1 01 0f000a 0c 00000001 00000002 "n1" 87f1 01
           0f000b 0c 00000000 00 00 00"#,
    );
    assert!(answer.ends_with(&tail), "{answer:?}");
}
