//! The hot path takes no memory: reading GET and PUT, and writing their replies.

#![allow(unsafe_code, reason = "counting allocations needs an allocator, whose trait is unsafe")]

use bytes::{Bytes, BytesMut};
use hedgerow_types::{GroupId, ReadLevel, SessionToken};
use hedgerow_wire::message::{GetReply, Put, UpdateReply};
use hedgerow_wire::{Body, Extension, Header, Method, Reply, ReplyExtension, Text, call, decode_request, encode_reply};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is ours.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of<T>(action: impl FnOnce() -> T) -> (usize, T) {
    let before = COUNT.with(Cell::get);
    let result = action();
    (COUNT.with(Cell::get) - before, result)
}

fn requests() -> Vec<Body> {
    let key = hedgerow_types::key::full_key(b"hash", b"sort");
    let value = Bytes::from(vec![7; 1000]);
    vec![Body::Get(key.clone()), Body::Put(Put { key, value, expire_ts_seconds: 0 })]
}

#[test]
fn reading_get_and_put_allocates_nothing() {
    let mut extension = Extension { attempt: Some(1), client_id: Some(5), sequence: Some(6), ..Extension::default() };
    extension.set_read_level(ReadLevel::Bounded(Duration::from_secs(2)));
    extension.session_token = Some(SessionToken::of(GroupId::new(1, 0), 300).encode().into());
    extension.any_replica = true;
    let header = Header { app_id: 1, extension: Some(extension), ..Header::default() };
    for body in requests() {
        let mut stream = BytesMut::new();
        call::encode_request(&mut stream, &header, 1, &body);
        call::encode_request(&mut stream, &header, 2, &body);
        let frame = stream.split_to(stream.len() / 2).freeze();
        let (count, request) = allocations_of(|| decode_request(frame));
        let request = request.expect("a whole request");
        assert_eq!(request.body, body);
        assert_eq!(count, 0);
        let (count, level) = allocations_of(|| request.header.extension.as_ref().and_then(Extension::read_level));
        assert_eq!((count, level), (0, Some(ReadLevel::Bounded(Duration::from_secs(2)))));
    }
}

#[test]
fn writing_their_replies_allocates_nothing() {
    let server = Text::from_static("127.0.0.1:34801");
    let extension = ReplyExtension {
        served_by: server.clone(),
        index: 7,
        staleness_ms: Some(250),
        requests_in_flight: 4,
        service_us: 5,
        ..ReplyExtension::default()
    };
    let value = Bytes::from(vec![7; 1000]);
    let replies = [
        (Method::Get, Reply::Get(GetReply { value, server: server.clone(), ..GetReply::default() })),
        (Method::Put, Reply::Update(UpdateReply { server, ..UpdateReply::default() })),
    ];
    let mut out = BytesMut::with_capacity(4096);
    for (method, reply) in &replies {
        let (count, ()) = allocations_of(|| encode_reply(&mut out, *method, 1, reply, Some(&extension)));
        assert_eq!(count, 0);
    }
}
