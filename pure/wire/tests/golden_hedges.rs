//! Frames of requests with several attempts, byte by byte: what attempts say of themselves and of each other, how one is taken
//! back, and what replies and notes say.

mod common;

use bytes::{Bytes, BytesMut};
use common::bytes;
use hedgerow_types::{Refusal, key};
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::message::{Cancel, GetReply, Incr, IncrReply};
use hedgerow_wire::{
    Body, Cause, ErrorName, Extension, Failure, Header, Method, Reply, ReplyExtension, Request, Text, Tie,
    decode_request, encode_reply,
};

/// The five fields of every v1 meta struct: table 2, partition 4, 1000 ms, the hash of "a", no backup.
const META: &str = "08000100000002 08000200000004 080003000003e8 0a00048c2f8445b4cbfc3c 02000500";
const GET_BODY: &str = r#"80010001 00000011 "RPC_RRDB_RRDB_GET" 00000007 | 0c0001 00000004 00016162 | 00"#;
const INCR_BODY: &str = r#"80010001 00000012 "RPC_RRDB_RRDB_INCR" 00000007
    | 0c0001 (0c0001 00000004 00016162 0a0002 0000000000000003 080003 00000000 00) | 00"#;

fn frame(meta: &str, body: &str) -> Bytes {
    let (meta, body) = (bytes(meta), bytes(body));
    let sizes = format!("54484654 00000001 {:08x} {:08x}", meta.len(), body.len());
    [bytes(&sizes), meta, body].concat().into()
}

/// Checks that `body` with `extension` is `META`, `fields` and `text`, in both directions.
fn is_request(extension: Extension, body: Body, fields: &str, text: &str) {
    let partition_hash = key::partition_hash(b"a", b"b");
    let header = Header {
        app_id: 2,
        partition_index: 4,
        timeout_ms: 1000,
        partition_hash,
        is_backup: false,
        extension: Some(extension),
    };
    let mut out = BytesMut::new();
    call::encode_request(&mut out, &header, 7, &body);
    let frame = frame(&format!("{META} {fields} 00"), text);
    assert_eq!(out, frame);
    assert_eq!(decode_request(frame), Ok(Request { header, sequence_id: 7, body }));
}

fn get() -> Body {
    Body::Get(key::full_key(b"a", b"b"))
}

fn attempt(attempt: i32, cause: Option<Cause>) -> Extension {
    Extension {
        attempt: Some(attempt),
        client_id: Some(0x0102_0304_0506_0708),
        request_id: Some(9),
        cause: cause.map(Cause::code),
        ..Extension::default()
    }
}

#[test]
fn attempts_of_a_read() {
    let name = "0a0018 0102030405060708 0a001a 0000000000000009";
    is_request(attempt(1, None), get(), &format!("080010 00000001 020017 00 {name}"), GET_BODY);
    for (cause, code) in [(Cause::Hedge, 1), (Cause::Tie, 2), (Cause::Retry, 3), (Cause::Fallback, 4)] {
        let extra = attempt(2, Some(cause));
        assert!(extra.is_extra() && Cause::from_code(code) == cause);
        let fields = format!("080010 00000002 020017 00 {name} 08001c 0000000{code}");
        is_request(extra, get(), &fields, GET_BODY);
    }
    assert!(!attempt(1, None).is_extra());
    // Later versions may have more of them.
    assert_eq!([0, 5, -1, i32::MAX].map(Cause::from_code), [Cause::Hedge; 4]);
}

#[test]
fn an_attempt_with_a_deadline_a_threshold_and_a_trace() {
    let extension = Extension {
        deadline_ms: Some(80),
        busy_threshold_ms: Some(5),
        wants_trace: true,
        any_replica: true,
        ..attempt(3, Some(Cause::Retry))
    };
    let fields = "080010 00000003 0a0015 0000000000000050 080016 00000005 020017 01 0a0018 0102030405060708
        0a001a 0000000000000009 02001b 01 08001c 00000003";
    is_request(extension, get(), fields, GET_BODY);
}

#[test]
fn a_speculated_write() {
    let extension = Extension { sequence: Some(6), ..attempt(2, Some(Cause::Hedge)) };
    let fields = "080010 00000002 020017 00 0a0018 0102030405060708 0a0019 0000000000000006 0a001a 0000000000000009
        08001c 00000001";
    let incr = Incr { key: key::full_key(b"a", b"b"), increment: 3, expire_ts_seconds: 0 };
    is_request(extension, Body::Incr(incr), fields, INCR_BODY);
}

#[test]
fn two_attempts_that_name_each_other() {
    let tie = Tie { peer: Text::from_static("h:1"), attempt: 1 };
    let encoded = bytes(r#"0b0001 00000003 "h:1" 080002 00000001 00"#);
    assert_eq!((tie.encode(), Tie::decode(encoded.clone())), (encoded, Ok(tie.clone())));
    let extension = Extension { tie: Some(tie.encode()), ..attempt(2, Some(Cause::Tie)) };
    let fields = r#"080010 00000002 0b0014 00000012 (0b0001 00000003 "h:1" 080002 00000001 00) 020017 00
        0a0018 0102030405060708 0a001a 0000000000000009 08001c 00000002"#;
    is_request(extension, get(), fields, GET_BODY);
    for malformed in [&b""[..], b"\x0b\0\x01\0\0\0\x09h:1", b"\xff"] {
        assert!(Tie::decode(Bytes::copy_from_slice(malformed)).is_err(), "{malformed:?}");
    }
}

#[test]
fn an_attempt_is_taken_back_without_a_reply() {
    let begin =
        r#"80010001 00000013 "RPC_HEDGEROW_CANCEL" 00000007 | 0c0001 0a0001 0102030405060708 0a0002 0000000000000009"#;
    for (attempt, field) in [(Some(2), "080003 00000002"), (None, "")] {
        let cancel = Cancel { client_id: 0x0102_0304_0506_0708, request_id: 9, attempt, ..Cancel::default() };
        let fields = "020017 00";
        is_request(Extension::default(), Body::HedgerowCancel(cancel), fields, &format!("{begin} {field} 00 | 00"));
    }
    // By the number that the request had on its connection.
    let numbered = Cancel { sequence_id: Some(6), ..Cancel::default() };
    let body = r#"80010001 00000013 "RPC_HEDGEROW_CANCEL" 00000007 | 0c0001 0a0001 0000000000000000 0a0002 0000000000000000
        080005 00000006 00 | 00"#;
    is_request(Extension::default(), Body::HedgerowCancel(numbered), "020017 00", body);
    let mut out = BytesMut::new();
    let failed = Reply::Failed(Failure { name: ErrorName::Ok, detail: None });
    encode_reply(&mut out, Method::HedgerowCancel, 7, &failed, Some(&ReplyExtension::default()));
    assert!(Method::HedgerowCancel.is_one_way() && out.is_empty());
}

fn is_reply(method: Method, reply: Reply, extension: Option<ReplyExtension>, text: &str) {
    let mut out = BytesMut::new();
    encode_reply(&mut out, method, 7, &reply, extension.as_ref());
    let frame = bytes(text);
    assert_eq!(out.clone().freeze().slice(4..), frame);
    let read = ReplyFrame { sequence_id: 7, method: Some(method), reply, extension };
    assert_eq!(call::decode_reply(out.freeze()), Ok(read));
}

#[test]
fn who_answered_and_how() {
    let extension = ReplyExtension {
        served_by: Text::from_static("h:1"),
        index: 12,
        staleness_ms: None,
        queue_us: 3,
        requests_in_flight: 4,
        service_us: 5,
        read_level_code: Some(2),
        attempt: Some(3),
        mode: Some(Text::from_static("why")),
    };
    let answer = GetReply { value: Bytes::from_static(b"c"), app_id: 2, partition_index: 4, ..GetReply::default() };
    let text = r#"00000006 "ERR_OK" 80010002 00000015 "RPC_RRDB_RRDB_GET_ACK" 00000007
        | 0c0000 080001 00000000 0c0002 00000001 "c" 080003 00000002 080004 00000004 0b0006 00000000
        0b0064 00000003 "h:1" 0a0065 000000000000000c 080067 00000003 080068 00000004 080069 00000005
        08006a 00000002 08006b 00000003 0b006c 00000003 "why" 00 00"#;
    is_reply(Method::Get, Reply::Get(answer), Some(extension.clone()), text);
    // A write has no level, and who did not ask for a trace gets none.
    let extension = ReplyExtension { read_level_code: None, mode: None, ..extension };
    let answer = IncrReply { new_value: 3, app_id: 2, partition_index: 4, decree: 12, ..IncrReply::default() };
    let text = r#"00000006 "ERR_OK" 80010002 00000016 "RPC_RRDB_RRDB_INCR_ACK" 00000007
        | 0c0000 080001 00000000 0a0002 0000000000000003 080003 00000002 080004 00000004 0a0005 000000000000000c
        0b0006 00000000 0b0064 00000003 "h:1" 0a0065 000000000000000c 080067 00000003 080068 00000004 080069 00000005
        08006b 00000003 00 00"#;
    is_reply(Method::Incr, Reply::Incr(answer), Some(extension), text);
}

/// Notes and refusals that only callers with an extension are told; the name is what others would make of it.
#[test]
fn what_becomes_of_an_attempt_that_is_not_run() {
    for (refusal, name, kind, held) in [
        (Refusal::BusyFor { estimated_wait_ms: 17 }, ErrorName::Busy, 16, "17"),
        (Refusal::Throttled, ErrorName::Busy, 17, ""),
        (Refusal::Withdrawn, ErrorName::Busy, 18, ""),
    ] {
        let failure = Failure::new(&refusal, None);
        assert_eq!((failure.name, failure.refusal()), (name, Some(refusal.clone())));
        let text = format!(
            r#"{:08x} "{}" 80010002 00000015 "RPC_RRDB_RRDB_GET_ACK" 00000007
            | 080064 {kind:08x} 0b0065 00000000 0b0066 {:08x} "{held}" 00"#,
            name.name().len(),
            name.name(),
            held.len()
        );
        let mut out = BytesMut::new();
        encode_reply(&mut out, Method::Get, 7, &Reply::Failed(failure.clone()), Some(&ReplyExtension::default()));
        assert_eq!(out.clone().freeze().slice(4..), bytes(&text), "{refusal}");
        assert_eq!(call::decode_reply(out.freeze()).map(|frame| frame.reply), Ok(Reply::Failed(failure)));
    }
}
