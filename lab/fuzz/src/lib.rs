//! Fuzzing of everything that parses bytes from outside: one function that feeds a decoder's every entrance, the seeds
//! to start from, and a mutator for the test that runs without a fuzzer.
//!
//! What must hold for any bytes: no panic, no memory out of proportion, and what was read reads the same after it was
//! written again.

/// A function that gives one value of each variant of an enum, with the variant's name. A new variant without a value does
/// not compile.
macro_rules! one_of_each {
    (fn $function:ident() -> $type:ident { $($variant:ident => $value:expr,)* }) => {
        fn $function() -> Vec<(&'static str, $type)> {
            let name = |value: &$type| match value {
                $($type::$variant { .. } => stringify!($variant),)*
            };
            let values = [$((stringify!($variant), $value),)*];
            values.iter().for_each(|(variant, value)| assert_eq!(name(value), *variant, "the value is of another variant"));
            values.into()
        }
    };
}

mod login;
mod mutate;
mod peer;
mod seed;
mod stored;

pub use mutate::{mutate, mutate_json};
pub use seed::seeds;
pub use stored::{File, as_file};

use bytes::{Bytes, BytesMut};
use hedgerow_types::codec::{decode_proposal, decode_write_reply, encode_proposal, encode_write_reply};
use hedgerow_types::op::ReadReply;
use hedgerow_types::{GroupId, SessionToken, Status, key};
use hedgerow_wire::call;
use hedgerow_wire::serve::{Denied, Ident, Operation, TableKind, operation, read_reply, status_reply};
use hedgerow_wire::{
    Body, Header, Method, Rejected, Relay, Reply, Request, Text, decode_request, encode_not_implemented,
    encode_rejection, encode_reply, frame_size,
};

/// Runs every decoder over `data`.
///
/// # Panics
/// If a decoder breaks one of its promises, which is what a fuzzer waits for.
pub fn decode_anything(data: &[u8]) {
    as_stream(data);
    as_request(Bytes::copy_from_slice(data));
    as_reply(Bytes::copy_from_slice(data));
    as_stored(Bytes::copy_from_slice(data));
    as_arguments(data);
    as_token(data);
    as_key(Bytes::copy_from_slice(data));
    peer::as_peer(data);
    stored::as_rows(data);
    login::as_login(data);
}

/// A connection's bytes: frame after frame until one is broken or incomplete.
fn as_stream(data: &[u8]) {
    let mut stream = BytesMut::from(data);
    while let Ok(Some(size)) = frame_size(&stream) {
        assert!(size > 0, "a frame without bytes would be split off for ever");
        if size > stream.len() {
            break;
        }
        as_request(stream.split_to(size).freeze());
    }
    if let Ok(Some(size)) = call::reply_frame_size(data) {
        assert!(size > 0, "a frame without bytes would be split off for ever");
        as_reply(Bytes::copy_from_slice(&data[..size.min(data.len())]));
    }
}

fn as_request(frame: Bytes) {
    match decode_request(frame) {
        Ok(request) => {
            serve(&request.body);
            read_extension(&request.header);
            let mut again = BytesMut::new();
            call::encode_request(&mut again, &request.header, request.sequence_id, &request.body);
            assert_eq!(frame_size(&again), Ok(Some(again.len())));
            assert_eq!(decode_request(again.freeze()), Ok(request));
        }
        Err(Rejected::Answer { name, sequence_id, error }) => {
            let mut answer = BytesMut::new();
            encode_rejection(&mut answer, &name, sequence_id, error);
            assert_eq!(call::reply_frame_size(&answer), Ok(Some(answer.len())));
            let read = call::decode_reply(answer.freeze());
            assert_eq!(read.map(|read| read.sequence_id), Ok(sequence_id));
        }
        Err(Rejected::NotImplemented { name, sequence_id }) => {
            let mut answer = BytesMut::new();
            encode_not_implemented(&mut answer, &name, sequence_id);
            assert_eq!(call::reply_frame_size(&answer), Ok(Some(answer.len())));
        }
        Err(Rejected::Close(_) | Rejected::Ignore) => {}
    }
}

/// What a server makes of a read's own fields. A level that it asks for survives being asked for again.
fn read_extension(header: &Header) {
    let Some(extension) = &header.extension else { return };
    if let Some(level) = extension.read_level() {
        let mut again = extension.clone();
        again.set_read_level(level);
        assert_eq!(again.read_level(), Some(level));
    }
    as_token(extension.session_token.as_deref().unwrap_or_default());
}

/// What a session saw: read in whole and for one partition, which must agree.
fn as_token(data: &[u8]) {
    let whole = SessionToken::decode(data);
    let group = GroupId::new(2, 4);
    assert_eq!(SessionToken::floor_in(data, group), whole.as_ref().map(|token| token.floor(group)).map_err(|it| *it));
    let Ok(token) = whole else { return };
    assert_eq!(SessionToken::decode(&token.encode()).as_ref(), Ok(&token));
    assert_eq!(token.to_string().parse().as_ref(), Ok(&token));
}

/// What a server does with a request before it asks a partition.
fn serve(body: &Body) {
    let server = Text::from_static("127.0.0.1:34801");
    for table in [TableKind::Hash, TableKind::Ordered] {
        let ident = Ident { app_id: 1, partition_index: 0, server: &server, table };
        let reply = match operation(body, table) {
            Ok(Operation::Read(_)) => read_reply(body.method(), ReadReply::Value(Ok(Bytes::new())), &ident),
            Ok(_) => continue,
            Err(Denied::Answered(status)) => status_reply(body.method(), status, &ident),
            Err(Denied::Refused(refusal)) => Reply::refused(&refusal, None),
        };
        encode_reply(&mut BytesMut::new(), body.method(), 1, &reply, None);
    }
    let ident = Ident { app_id: 1, partition_index: 0, server: &server, table: TableKind::Hash };
    encode_reply(
        &mut BytesMut::new(),
        body.method(),
        1,
        &status_reply(body.method(), Status::IoError, &ident),
        Some(&Default::default()),
    );
}

fn as_reply(frame: Bytes) {
    let _ = Relay::default().next(&mut BytesMut::from(&frame[..]), |address| address);
    let Ok(read) = call::decode_reply(frame) else { return };
    let Some(method) = read.method else { return };
    if let Reply::Failed(failure) = &read.reply {
        let _ = failure.refusal();
        return;
    }
    let mut again = BytesMut::new();
    encode_reply(&mut again, method, read.sequence_id, &read.reply, read.extension.as_ref());
    assert_eq!(call::decode_reply(again.freeze()), Ok(read));
}

/// `data` as the arguments of a call, and as the response of one: its first byte says which.
fn as_arguments(data: &[u8]) {
    let Some((first, arguments)) = data.split_first() else { return };
    let method = Method::ALL[usize::from(*first) % Method::ALL.len()];
    as_request(request_around(method, arguments));
    as_reply(reply_around(method, arguments));
}

/// A reply to `method` that goes on with `response`.
pub fn reply_around(method: Method, response: &[u8]) -> Bytes {
    let mut reply = Vec::from([0; 4]);
    for text in ["ERR_OK", method.reply_name()] {
        if text != "ERR_OK" {
            reply.extend_from_slice(&[0x80, 1, 0, 2]);
        }
        reply.extend_from_slice(&(text.len() as u32).to_be_bytes());
        reply.extend_from_slice(text.as_bytes());
    }
    reply.extend_from_slice(&[0, 0, 0, 1, 12, 0, 0]);
    reply.extend_from_slice(response);
    let size = reply.len() as u32;
    reply[..4].copy_from_slice(&size.to_be_bytes());
    reply.into()
}

/// A v1 frame of `method` whose arguments are `arguments`.
pub fn request_around(method: Method, arguments: &[u8]) -> Bytes {
    let mut frame = Vec::from(*b"THFT\0\0\0\x01\0\0\0\x01");
    let name = method.name().as_bytes();
    frame.extend_from_slice(&((12 + name.len() + arguments.len()) as u32).to_be_bytes());
    frame.extend_from_slice(&[0, 0x80, 1, 0, 1]);
    frame.extend_from_slice(&(name.len() as u32).to_be_bytes());
    frame.extend_from_slice(name);
    frame.extend_from_slice(&[0, 0, 0, 1]);
    frame.extend_from_slice(arguments);
    frame.into()
}

/// What a log entry and a session's row hold.
fn as_stored(data: Bytes) {
    if let Ok(proposal) = decode_proposal(data.clone()) {
        let mut again = BytesMut::new();
        encode_proposal(&proposal, &mut again);
        assert_eq!(decode_proposal(again.freeze()), Ok(proposal));
    }
    if let Ok(reply) = decode_write_reply(data) {
        let mut again = BytesMut::new();
        encode_write_reply(&reply, &mut again);
        assert_eq!(decode_write_reply(again.freeze()), Ok(reply));
    }
}

fn as_key(data: Bytes) {
    if let Some(storage_key) = key::hash_storage_key(&data) {
        assert_eq!(key::full_key_of_storage(&storage_key), Some(data.clone()));
    }
    for table in [TableKind::Hash, TableKind::Ordered] {
        let _ = table.full_key(&data);
    }
    if let Some(end) = key::prefix_end(&data) {
        assert!(end > data);
    }
    for body in [Body::Get(data.clone()), Body::SortKeyCount(data)] {
        let request = Request { header: Header::default(), sequence_id: 1, body };
        let mut frame = BytesMut::new();
        call::encode_request_v0(&mut frame, &request.header, request.sequence_id, &request.body);
        serve(&request.body);
        assert_eq!(decode_request(frame.freeze()), Ok(request));
    }
}
