//! What breaks real clients, one test for each trap that the codec can fall into.

use bytes::{BufMut, Bytes, BytesMut};
use hedgerow_types::op::ReadReply;
use hedgerow_types::{Lag, ReadLevel, Refusal, Status};
use hedgerow_wire::message::{
    CheckReply, CommandLine, CommandLineReply, GetReply, ListNodesReply, NodeInfo, PartitionConfig, QueryConfigReply,
    SCAN_DONE, ScanReply,
};
use hedgerow_wire::serve::{Ident, Operation, TableKind, operation, scan_reply};
use hedgerow_wire::{
    Address, Body, Broken, ErrorName, Extension, Failure, Header, Method, Rejected, Reply, Request, Text, call,
    decode_request, encode_reply, frame_size,
};
use std::time::Duration;

/// A v0 frame around a message written by hand.
fn frame(message: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(b"THFT");
    out.put_slice(&[0, 0, 0, 0, 0, 0, 0, 48, 0, 0, 0, 0]);
    out.put_u32(message.len() as u32);
    out.put_slice(&[0; 28]);
    out.put_slice(message);
    out.freeze()
}

fn message(name: &str, sequence_id: i32, arguments: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u32(0x8001_0001);
    out.put_u32(name.len() as u32);
    out.put_slice(name.as_bytes());
    out.put_i32(sequence_id);
    out.put_slice(arguments);
    frame(&out)
}

fn written(method: Method, sequence_id: i32, reply: &Reply) -> Bytes {
    let mut out = BytesMut::new();
    encode_reply(&mut out, method, sequence_id, reply, None);
    out.freeze()
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn trap_1_clear_scanner_is_never_answered() {
    for method in [Method::ClearScanner, Method::HedgerowCancel] {
        let failed = Reply::Failed(Failure { name: ErrorName::InvalidState, detail: None });
        assert!(written(method, 1, &failed).is_empty());
        let malformed = message(method.name(), 1, &[12, 0, 9, 255]);
        assert_eq!(decode_request(malformed), Err(Rejected::Ignore));
    }
    let answered: Vec<_> = Method::ALL.iter().filter(|method| !method.is_one_way()).collect();
    assert_eq!(answered.len(), Method::ALL.len() - 2);
}

#[test]
fn trap_2_host_ports_are_absent_unless_asked_for() {
    let partitions = vec![PartitionConfig::default()];
    let reply = written(Method::QueryConfig, 1, &Reply::QueryConfig(QueryConfigReply::found(1, 1, partitions)));
    // Field 8, the last of Pegasus 2.5, then the ends of partition, response and result.
    assert!(reply.ends_with(&[8, 0, 8, 0, 0, 0, 0, 0, 0, 0]), "{reply:?}");
    let infos = vec![NodeInfo { status: 1, node: Address::NONE, hp_node: None }];
    let nodes = written(Method::ListNodes, 1, &Reply::ListNodes(ListNodesReply { err: ErrorName::Ok, infos }));
    assert!(nodes.ends_with(&[12, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "{nodes:?}");
}

#[test]
fn trap_3_placeholder_types_are_read_by_their_own_form() {
    // A blob whose content would pass for fields of a struct.
    let content = [8, 0, 1, 0, 0, 0, 5, 0];
    let mut arguments = BytesMut::new();
    arguments.put_slice(&[12, 0, 1]);
    arguments.put_u32(content.len() as u32);
    arguments.put_slice(&content);
    arguments.put_u8(0);
    let request = decode_request(message("RPC_RRDB_RRDB_GET", 1, &arguments)).expect("a whole request");
    assert_eq!(request.body, Body::Get(Bytes::copy_from_slice(&content)));
}

#[test]
fn trap_4_replies_carry_name_and_number_of_their_request() {
    for method in Method::ALL.iter().filter(|method| !method.is_one_way()) {
        let failed = Reply::Failed(Failure { name: ErrorName::Busy, detail: None });
        let reply = written(*method, 0x0102_0304, &failed);
        let mut tail = method.name().as_bytes().to_vec();
        tail.extend_from_slice(b"_ACK\x01\x02\x03\x04");
        assert!(reply.ends_with(&tail), "{method:?}");
        assert!(method.name().len() <= 47, "{method:?}");
    }
}

#[test]
fn trap_5_no_error_name_outside_the_safe_set() {
    let safe = "ERR_OK, ERR_UNKNOWN, ERR_SERVICE_NOT_ACTIVE, ERR_BUSY, ERR_FORWARD_TO_OTHERS, ERR_OBJECT_NOT_FOUND, \
        ERR_HANDLER_NOT_FOUND, ERR_INVALID_VERSION, ERR_INVALID_PARAMETERS, ERR_CAPACITY_EXCEEDED, ERR_INVALID_STATE, \
        ERR_INACTIVE_STATE, ERR_NOT_ENOUGH_MEMBER, ERR_FILE_OPERATION_FAILED, ERR_INVALID_DATA, ERR_VERSION_OUTDATED, \
        ERR_STATE_FREEZED, ERR_LOCAL_APP_FAILURE, ERR_NOT_IMPLEMENTED, ERR_CORRUPTION, ERR_TRY_AGAIN, \
        ERR_NO_NEED_OPERATE, ERR_REPLICATION_FAILURE, ERR_APP_EXIST, ERR_APP_NOT_EXIST, ERR_APP_DROPPED, \
        ERR_BUSY_CREATING, ERR_BUSY_DROPPING, ERR_NETWORK_FAILURE, ERR_UNDER_RECOVERY, ERR_OPERATION_DISABLED, \
        ERR_EXPIRED, ERR_TIMEOUT, ERR_INGESTION_FAILED, ERR_UNAUTHENTICATED, ERR_ACL_DENY, ERR_SPLITTING, \
        ERR_PARENT_PARTITION_MISUSED, ERR_CHILD_NOT_READY, ERR_DISK_INSUFFICIENT";
    let safe: Vec<&str> = safe.split(", ").collect();
    let ours: Vec<&str> = ErrorName::ALL.iter().map(|error| error.name()).collect();
    assert_eq!(ours, safe);
    for error in ErrorName::ALL {
        assert_eq!(ErrorName::from_name(error.name().as_bytes()), Some(*error));
    }
}

#[test]
fn trap_6_fields_that_are_not_optional_are_always_written() {
    let get = written(Method::Get, 1, &Reply::Get(GetReply { error: 1, ..GetReply::default() }));
    assert!(contains(&get, &[12, 0, 2, 0, 0, 0, 0]), "the empty value: {get:?}");
    assert!(contains(&get, &[11, 0, 6, 0, 0, 0, 0]), "the empty server: {get:?}");
    let check = written(Method::CheckAndSet, 1, &Reply::Check(CheckReply::default()));
    assert!(contains(&check, &[2, 0, 2, 0, 2, 0, 3, 0, 12, 0, 4, 0, 0, 0, 0]), "{check:?}");
}

#[test]
fn trap_7_only_the_answer_that_a_table_exists_is_stateful() {
    assert!(QueryConfigReply::found(1, 2, vec![]).is_stateful);
    let without_leader = QueryConfigReply::forward(Address::NONE);
    let forward = QueryConfigReply::forward(Address::new("10.0.0.1:34601".parse().expect("an address")));
    assert_eq!(without_leader.partitions.len(), 0);
    assert_eq!(forward.partitions[0].primary.socket(), "10.0.0.1:34601".parse().ok());
    let Reply::QueryConfig(failed) = Reply::admin_failed(Method::QueryConfig, ErrorName::ObjectNotFound, "") else {
        panic!("the reply to a query is a query's reply");
    };
    assert!([without_leader, forward, failed].iter().all(|reply| !reply.is_stateful));
}

#[test]
fn trap_12_missing_fields_have_their_defaults() {
    let empty = message("RPC_RRDB_RRDB_GET_SCANNER", 3, &[12, 0, 1, 0, 0]);
    let request = decode_request(empty).expect("a whole request");
    let Body::GetScanner(scanner) = &request.body else { panic!("another call") };
    assert_eq!(scanner, &Default::default());
    let Ok(Operation::OpenScan { scan, validate_hash }) = operation(&request.body, TableKind::Hash) else {
        panic!("an empty request scans everything");
    };
    assert!(validate_hash && !scan.start_inclusive && scan.start.is_empty() && scan.stop.is_empty());
    assert_eq!(scan.rows_max, 1000);
    // Even the argument itself may be missing.
    let request = decode_request(message("RPC_RRDB_RRDB_PUT", 3, &[0])).expect("a whole request");
    assert_eq!(request.body, Body::Put(Default::default()));
}

#[test]
fn trap_13_an_empty_range_ends_the_scan_at_once() {
    let server = Text::from("h:1");
    let ident = Ident { app_id: 1, partition_index: 0, server: &server, table: TableKind::Hash };
    let page = ReadReply::Page { status: Status::Ok, rows: vec![], count: 0, resume_after: None };
    let reply = scan_reply(page, SCAN_DONE, false, &ident);
    let expected =
        ScanReply { context_id: -1, app_id: 1, server: "h:1".into(), kv_count: None, ..ScanReply::default() };
    assert_eq!(reply, Reply::Scan(expected));
}

#[test]
fn an_unknown_call_is_answered_and_the_connection_stays() {
    let rejected = decode_request(message("RPC_RRDB_RRDB_BULK_LOAD", 9, &[12, 0, 1, 1, 2, 3]));
    let name = Bytes::from_static(b"RPC_RRDB_RRDB_BULK_LOAD");
    assert_eq!(rejected, Err(Rejected::Answer { name, sequence_id: 9, error: ErrorName::HandlerNotFound }));
}

#[test]
fn arguments_that_do_not_parse_are_answered() {
    for arguments in [&[12, 0, 1, 127, 255, 255, 255][..], &[12, 0, 1, 255, 255, 255, 255], &[], &[99, 0, 1]] {
        let rejected = decode_request(message("RPC_RRDB_RRDB_GET", 9, arguments));
        let name = Bytes::from_static(b"RPC_RRDB_RRDB_GET");
        assert_eq!(rejected, Err(Rejected::Answer { name, sequence_id: 9, error: ErrorName::InvalidData }));
    }
}

#[test]
fn a_header_that_does_not_parse_is_answered() {
    let mut out = BytesMut::new();
    call::encode_request(&mut out, &Header::default(), 9, &Body::Get(Bytes::new()));
    out[16] = 77;
    let name = Bytes::from_static(b"RPC_RRDB_RRDB_GET");
    let expected = Rejected::Answer { name, sequence_id: 9, error: ErrorName::InvalidData };
    assert_eq!(decode_request(out.freeze()), Err(expected));
}

#[test]
fn what_is_not_the_protocol_closes_the_connection() {
    assert_eq!(frame_size(b"GET / HTTP/1.1"), Err(Broken::Magic));
    assert_eq!(frame_size(b"R"), Err(Broken::Magic));
    assert_eq!(frame_size(b"THFT\0\0\0\x02"), Err(Broken::Version(2)));
    assert_eq!(frame_size(b"THFT\0\0\0\0\0\0\0\x31\0\0\0\0\0\0\0\0"), Err(Broken::HeaderSize(49)));
    assert_eq!(frame_size(b"THFT\0\0\0\x01\0\x01\0\x01\0\0\0\0"), Err(Broken::MetaSize(65_537)));
    assert_eq!(frame_size(b"THFT\0\0\0\x01\0\0\0\0\xff\xff\xff\xff"), Err(Broken::FrameSize(16 + u64::from(u32::MAX))));
    assert_eq!(decode_request(frame(b"")), Err(Rejected::Close(decode_error(b""))));
    let long_name = [&[0x80, 1, 0, 1, 0, 0, 0, 48][..], &[b'x'; 48], &[0; 5]].concat();
    assert!(matches!(decode_request(frame(&long_name)), Err(Rejected::Close(Broken::Message(_)))));
    let a_reply = [0x80, 1, 0, 2, 0, 0, 0, 1, b'x', 0, 0, 0, 1, 0];
    assert!(matches!(decode_request(frame(&a_reply)), Err(Rejected::Close(Broken::Message(_)))));
}

#[test]
fn what_is_not_a_reply_is_refused() {
    assert_eq!(call::reply_frame_size(&[0, 0, 0]), Ok(None));
    assert_eq!(call::reply_frame_size(&[0, 0, 0, 3]), Err(Broken::FrameSize(3)));
    assert_eq!(call::reply_frame_size(&[0, 0, 0, 4]), Ok(Some(4)));
    assert_eq!(call::reply_frame_size(&[4, 0, 0, 1]), Err(Broken::FrameSize(0x0400_0001)));
    let reply = written(Method::Get, 1, &Reply::Get(GetReply::default()));
    assert!(call::decode_reply(reply.clone()).is_ok());
    let mut a_call = reply.to_vec();
    a_call[17] = 1;
    assert!(call::decode_reply(a_call.into()).is_err());
}

fn decode_error(message: &[u8]) -> Broken {
    match decode_request(frame(message)) {
        Err(Rejected::Close(broken)) => broken,
        other => panic!("{other:?}"),
    }
}

/// What a v1 request's extension becomes when `fields` stand in its meta struct; an error if the request is refused.
fn extension_of(fields: &[u8]) -> Result<Option<Extension>, Rejected> {
    let mut frame = BytesMut::new();
    call::encode_request(&mut frame, &Header::default(), 9, &Body::Get(Bytes::new()));
    let meta_size = u32::from_be_bytes([frame[8], frame[9], frame[10], frame[11]]);
    let longer = [&frame[..16], fields, &frame[16..]].concat();
    let mut longer = BytesMut::from(&longer[..]);
    longer[8..12].copy_from_slice(&(meta_size + fields.len() as u32).to_be_bytes());
    decode_request(longer.freeze()).map(|request| request.header.extension)
}

fn level_of(code: i32, bound_ms: Option<i64>) -> Option<ReadLevel> {
    let mut fields = BytesMut::new();
    fields.put_slice(&[8, 0, 17]);
    fields.put_i32(code);
    if let Some(bound) = bound_ms {
        fields.put_slice(&[10, 0, 19]);
        fields.put_i64(bound);
    }
    extension_of(&fields).expect("a whole request").expect("a field of ours").read_level()
}

#[test]
fn a_read_level_that_is_not_known_is_the_strongest() {
    for code in [-1, 4, 5, 256, 258, i32::MIN, i32::MAX] {
        assert_eq!(level_of(code, Some(50)), Some(ReadLevel::Linearizable), "{code}");
        assert_eq!(level_of(code, None), Some(ReadLevel::Linearizable), "{code}");
    }
    // A bound does not weaken another level.
    assert_eq!(level_of(0, Some(50)), Some(ReadLevel::Linearizable));
    assert_eq!(level_of(1, Some(50)), Some(ReadLevel::Session));
    assert_eq!(level_of(3, Some(50)), Some(ReadLevel::Eventual));
}

#[test]
fn a_bound_that_is_out_of_range_or_missing_asks_for_the_strongest_level() {
    let bounded = |ms| Some(ReadLevel::Bounded(Duration::from_millis(ms)));
    assert_eq!(level_of(2, Some(1)), bounded(1));
    assert_eq!(level_of(2, Some(86_400_000)), bounded(86_400_000));
    for bound in [None, Some(0), Some(-1), Some(86_400_001), Some(i64::MIN), Some(i64::MAX), Some(1 << 32)] {
        assert_eq!(level_of(2, bound), Some(ReadLevel::Linearizable), "{bound:?}");
    }
}

#[test]
fn fields_of_ours_with_another_type_are_passed_over() {
    // Level, token, bound and any replica, each as a type that it does not have, and a number in place of a list.
    for fields in [
        &[10, 0, 17, 0, 0, 0, 0, 0, 0, 0, 3][..],
        &[8, 0, 18, 0, 0, 0, 3],
        &[8, 0, 19, 0, 0, 0, 3],
        &[8, 0, 27, 0, 0, 0, 1],
        &[3, 0, 27, 1],
        &[15, 0, 18, 3, 0, 0, 0, 1, 7],
    ] {
        assert_eq!(extension_of(fields), Ok(None), "{fields:?}");
    }
}

#[test]
fn a_session_token_cannot_reach_past_its_request() {
    let token = |length: i32, bytes: &[u8]| {
        let mut fields = BytesMut::new();
        fields.put_slice(&[11, 0, 18]);
        fields.put_i32(length);
        fields.put_slice(bytes);
        extension_of(&fields)
    };
    let read = token(3, b"abc").map(|extension| extension.and_then(|extension| extension.session_token));
    assert_eq!(read, Ok(Some(Bytes::from_static(b"abc"))));
    let refused = |result| matches!(result, Err(Rejected::Answer { error: ErrorName::InvalidData, .. }));
    // The last one would end within the message, which is behind the meta struct.
    for length in [-1, i32::MIN, i32::MAX, 60] {
        assert!(refused(token(length, b"abc")), "{length}");
    }
}

#[test]
fn lists_of_ours_cannot_claim_more_than_they_are() {
    let reply = |partition: &[u8], response: &[u8]| {
        let mut out = BytesMut::new();
        let found = QueryConfigReply::found(1, 1, vec![PartitionConfig::default()]);
        encode_reply(&mut out, Method::QueryConfig, 1, &Reply::QueryConfig(found), None);
        // The ends of partition, response and result are the last three bytes.
        let fields = out.split_to(out.len() - 3);
        let mut frame = [&fields[..], partition, &[0], response, &[0, 0]].concat();
        let size = frame.len() as u32;
        frame[..4].copy_from_slice(&size.to_be_bytes());
        call::decode_reply(frame.into()).map(|read| read.reply)
    };
    let list = |element: u8, count: i32, bytes: &[u8]| [&[element][..], &count.to_be_bytes(), bytes].concat();
    let learners = |list: Vec<u8>| reply(&[&[15, 0, 110][..], &list].concat(), &[]);
    let nodes = |list: Vec<u8>| reply(&[], &[&[15, 0, 112][..], &list].concat());
    assert!(learners(list(10, 1, &[0; 8])).is_ok());
    assert!(nodes(list(12, 2, &[0; 2])).is_ok());
    for count in [-1, 2, 65_537, i32::MAX, i32::MIN] {
        assert!(learners(list(10, count, &[0; 8])).is_err(), "{count}");
        assert!(nodes(list(12, count, &[15, 0, 2, 11, 0, 0, 0, 0])).is_err(), "{count}");
    }
    // Elements of another type, and labels that are longer than the frame.
    assert!(learners(list(12, 1, &[0; 8])).is_err());
    assert!(nodes(list(10, 1, &[0; 8])).is_err());
    assert!(nodes(list(12, 1, &[15, 0, 2, 11, 127, 255, 255, 255, 0])).is_err());
}

#[test]
fn n4c_a_long_list_of_nearly_nothing_is_refused() {
    let put = |count: i32, row: &[u8]| {
        let head = [&[12, 0, 1, 15, 0, 2, 12][..], &count.to_be_bytes()].concat();
        decode_request(message(
            "RPC_RRDB_RRDB_MULTI_PUT",
            9,
            &[&head, &row.repeat(count as usize)[..], &[0, 0]].concat(),
        ))
    };
    // Rows with a sort key and nothing else, as many as there may be.
    assert!(put(65_536, &[11, 0, 1, 0, 0, 0, 1, b'k', 0]).is_ok());
    assert!(put(128, &[0]).is_ok(), "a missing field has its default");
    let name = Bytes::from_static(b"RPC_RRDB_RRDB_MULTI_PUT");
    let refused = Err(Rejected::Answer { name, sequence_id: 9, error: ErrorName::InvalidData });
    assert_eq!(put(10_000, &[0]), refused);
}

#[test]
fn a_lag_that_makes_no_sense_is_read_as_one_of_unknown_age() {
    let lag_of = |text: &'static str| {
        let mut failure = Failure::new(&Refusal::Lagging(Lag::default()), None);
        failure.detail.as_mut().expect("a new failure has one").message = Text::from_static(text);
        failure.refusal()
    };
    let lagging =
        |entries, ms: Option<u64>| Some(Refusal::Lagging(Lag { entries, staleness: ms.map(Duration::from_millis) }));
    assert_eq!(lag_of("7 1500"), lagging(7, Some(1_500)));
    for (text, entries, ms) in [
        ("", 0, None),
        (" ", 0, None),
        ("7", 7, None),
        ("7 ", 7, None),
        ("7 -1", 7, None),
        ("7 99999999999999999999", 7, None),
        ("99999999999999999999", 0, None),
        ("x 5", 0, Some(5)),
        ("7 18446744073709551615 3", 7, Some(u64::MAX)),
    ] {
        assert_eq!(lag_of(text), lagging(entries, ms), "{text:?}");
    }
}

#[test]
fn frames_are_split_off_a_stream_one_after_another() {
    let mut stream = BytesMut::new();
    for sequence_id in 1..=3 {
        let body = Body::Get(Bytes::from_static(b"\0\0k"));
        if sequence_id == 2 {
            call::encode_request_v0(&mut stream, &Header::default(), sequence_id, &body);
        } else {
            call::encode_request(&mut stream, &Header::default(), sequence_id, &body);
        }
    }
    let mut seen = Vec::new();
    while let Some(size) = frame_size(&stream).expect("whole frames") {
        let Request { sequence_id, .. } = decode_request(stream.split_to(size).freeze()).expect("a request");
        seen.push(sequence_id);
    }
    assert_eq!(seen, [1, 2, 3]);
    assert!(stream.is_empty());
}

#[test]
fn p2_an_administrative_call_that_is_not_served_fails_inside_its_reply() {
    for call in ["RPC_CM_START_MANUAL_COMPACT", "RPC_QUERY_DISK_INFO", "RPC_DETECT_HOTKEY"] {
        let rejected = decode_request(message(call, 9, &[12, 0, 1, 1, 2, 3]));
        let name = Bytes::copy_from_slice(call.as_bytes());
        assert_eq!(rejected, Err(Rejected::NotImplemented { name: name.clone(), sequence_id: 9 }));
        let mut out = BytesMut::new();
        hedgerow_wire::encode_not_implemented(&mut out, &name, 9);
        let mut expected = BytesMut::new();
        expected.put_i32(0);
        expected.put_slice(b"\0\0\0\x06ERR_OK\x80\x01\0\x02");
        expected.put_i32(call.len() as i32 + 4);
        expected.put_slice(call.as_bytes());
        expected.put_slice(b"_ACK\0\0\0\x09\x0c\0\0\x0c\0\x01\0\0\0\x13ERR_NOT_IMPLEMENTED\0\0");
        let size = expected.len() as i32;
        expected[..4].copy_from_slice(&size.to_be_bytes());
        assert_eq!(out, expected);
    }
}

#[test]
fn p7_the_answer_to_a_command_is_a_text_and_no_struct() {
    let request = message("RPC_CLI_CLI_CALL", 9, b"\x0c\0\x01\x0b\0\x01\0\0\0\x04help\x0f\0\x02\x0b\0\0\0\0\0\0");
    let call = CommandLine { command: "help".into(), arguments: Vec::new() };
    assert_eq!(decode_request(request).map(|request| request.body), Ok(Body::CommandLine(call)));
    let reply = written(Method::CommandLine, 9, &Reply::CommandLine(CommandLineReply { output: "ok".into() }));
    assert!(reply.ends_with(b"RPC_CLI_CLI_CALL_ACK\0\0\0\x09\x0b\0\0\0\0\0\x02ok\0"), "{reply:?}");
}
