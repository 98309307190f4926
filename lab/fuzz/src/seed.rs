//! Inputs to start from: one whole frame of every call, of every reply and of every kind that nodes send
//! each other, and what the log stores.

use bytes::{Bytes, BytesMut};
use hedgerow_types::codec::{encode_proposal, encode_write_reply};
use hedgerow_types::op::{Check, Mutation, Proposal, Write, WriteDetail, WriteReply};
use hedgerow_types::{ClientId, GroupId, Lag, ReadLevel, Refusal, SessionToken, Status, journal, key};
use hedgerow_wire::message::{
    BatchGet, BatchGetReply, Cancel, CheckAndMutate, CheckAndSet, CheckReply, CreateOptions, CreateTable, DropTable,
    Duplicate, FullData, FullKey, GetReply, GetScanner, Incr, IncrReply, JournalRead, JournalReply, JournalWrite,
    KeyValue, ListNodesReply, ListTables, ListTablesReply, MultiGet, MultiGetReply, MultiPut, MultiRemove, Mutate,
    NodeInfo, NodePlace, PartitionConfig, Put, QueryConfig, QueryConfigReply, RecallTable, RecallTableReply, RowChange,
    Scan, ScanReply, TableInfo, UpdateEnvs, UpdateReply,
};
use hedgerow_wire::{
    Address, Body, Extension, Header, HostPort, Method, Reply, ReplyExtension, Text, Tie, call, encode_reply,
};
use std::time::Duration;

/// The seeds, each with the name of its file in `corpus-seed`.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for body in bodies() {
        let name = format!("{:?}", body.method());
        let mut frame = BytesMut::new();
        call::encode_request_v0(&mut frame, &header(), 7, &body);
        seeds.push((format!("request-v0-{name}"), frame.to_vec()));
        frame.clear();
        call::encode_request(&mut frame, &header(), 7, &body);
        seeds.push((format!("request-v1-{name}"), frame.to_vec()));
    }
    seeds.extend(reads());
    for (method, reply) in replies() {
        let mut frame = BytesMut::new();
        encode_reply(&mut frame, method, 7, &reply, Some(&extension()));
        let kind = if matches!(reply, Reply::Failed(_)) { "failed" } else { "reply" };
        seeds.push((format!("{kind}-{method:?}"), frame.to_vec()));
    }
    seeds.extend(stored());
    seeds.extend(crate::peer::frames());
    seeds.extend(crate::stored::seeds());
    seeds.extend(crate::login::seeds());
    seeds
}

fn header() -> Header {
    Header {
        app_id: 2,
        partition_index: 4,
        timeout_ms: 1000,
        partition_hash: key::partition_hash(b"a", b"b"),
        is_backup: true,
        extension: Some(Extension {
            attempt: Some(1),
            read_level_code: Some(2),
            session_token: Some(token().encode().into()),
            staleness_bound_ms: Some(50),
            tie: Some(Tie { peer: server(), attempt: 2 }.encode()),
            deadline_ms: Some(900),
            busy_threshold_ms: Some(10),
            wants_trace: true,
            client_id: Some(77),
            sequence: Some(3),
            request_id: Some(4),
            any_replica: true,
            cause: Some(2),
        }),
    }
}

/// What a session saw of three partitions.
fn token() -> SessionToken {
    let mut token = SessionToken::of(GroupId::new(2, 4), 300);
    token.observe(GroupId::new(2, 5), 1);
    token.observe(GroupId::new(7, 0), u64::MAX);
    token
}

/// A read at each level beside the bounded one of every other request, with nothing else in its extension, and a
/// session's token.
fn reads() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for level in [ReadLevel::Linearizable, ReadLevel::Session, ReadLevel::Eventual] {
        let session_token = (level == ReadLevel::Session).then(|| token().encode().into());
        let mut extension = Extension { session_token, any_replica: true, ..Extension::default() };
        extension.set_read_level(level);
        let header = Header { is_backup: false, extension: Some(extension), ..header() };
        let mut frame = BytesMut::new();
        call::encode_request(&mut frame, &header, 7, &Body::Get(key::full_key(b"a", b"b")));
        seeds.push((format!("request-v1-read-{level}"), frame.to_vec()));
    }
    let mut frame = BytesMut::new();
    let backup = Header { extension: None, ..header() };
    call::encode_request(&mut frame, &backup, 7, &Body::Ttl(key::full_key(b"a", b"b")));
    seeds.push(("request-v1-backup".into(), frame.to_vec()));
    seeds.push(("session-token".into(), token().encode()));
    seeds
}

fn extension() -> ReplyExtension {
    ReplyExtension {
        served_by: server(),
        index: 12,
        staleness_ms: Some(5),
        queue_us: 6,
        requests_in_flight: 7,
        service_us: 8,
        read_level_code: Some(2),
        attempt: Some(2),
        mode: Some(Text::from_static("lease")),
    }
}

fn blob(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn server() -> Text {
    Text::from_static("127.0.0.1:34802")
}

fn address() -> Address {
    Address::new(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 34801))
}

fn bodies() -> Vec<Body> {
    let full_key = key::full_key(b"a", b"b");
    let row = KeyValue { key: blob("s"), value: blob("v"), expire_ts_seconds: Some(9) };
    vec![
        Body::Get(full_key.clone()),
        Body::Put(Put { key: full_key.clone(), value: blob("value"), expire_ts_seconds: 9 }),
        Body::MultiPut(MultiPut { hash_key: blob("a"), kvs: vec![row.clone(), row], expire_ts_seconds: 9 }),
        Body::Remove(full_key.clone()),
        Body::MultiRemove(MultiRemove { hash_key: blob("a"), sort_keys: vec![blob("b"), blob("c")], max_count: 100 }),
        Body::Incr(Incr { key: full_key.clone(), increment: -1, expire_ts_seconds: -1 }),
        Body::CheckAndSet(CheckAndSet {
            hash_key: blob("a"),
            check_sort_key: blob("b"),
            check_type: 10,
            check_operand: blob("o"),
            set_diff_sort_key: true,
            set_sort_key: blob("c"),
            set_value: blob("v"),
            set_expire_ts_seconds: 9,
            return_check_value: true,
        }),
        Body::CheckAndMutate(CheckAndMutate {
            hash_key: blob("a"),
            check_sort_key: blob("b"),
            check_type: 1,
            mutate_list: vec![Mutate { sort_key: blob("c"), ..Mutate::default() }],
            ..CheckAndMutate::default()
        }),
        Body::MultiGet(MultiGet { hash_key: blob("a"), sort_keys: vec![blob("b")], ..MultiGet::default() }),
        Body::BatchGet(BatchGet { keys: vec![FullKey { hash_key: blob("a"), sort_key: blob("b") }] }),
        Body::SortKeyCount(blob("a")),
        Body::Ttl(full_key.clone()),
        Body::GetScanner(GetScanner {
            start_key: full_key,
            stop_key: Bytes::from_static(&[0, 1, b'b']),
            start_inclusive: true,
            batch_size: 10,
            validate_partition_hash: Some(true),
            return_expire_ts: Some(false),
            full_scan: Some(false),
            only_return_count: Some(false),
            ..GetScanner::default()
        }),
        Body::Scan(Scan { context_id: 5 }),
        Body::ClearScanner(5),
        Body::QueryConfig(QueryConfig { app_name: "temp".into(), partition_indices: vec![0, 1] }),
        Body::CreateTable(CreateTable {
            app_name: "temp".into(),
            options: CreateOptions {
                partition_count: 8,
                replica_count: 3,
                success_if_exist: true,
                app_type: "pegasus".into(),
                is_stateful: true,
                envs: vec![("k".into(), "v".into())],
                atomic_idempotent: Some(false),
            },
        }),
        Body::DropTable(DropTable { app_name: "temp".into(), ..DropTable::default() }),
        Body::RecallTable(RecallTable { app_id: 2, new_app_name: "temp".into() }),
        Body::ListTables(ListTables { status: 1, pattern: Some("t".into()), match_type: Some(1) }),
        Body::ListNodes(Default::default()),
        Body::ClusterInfo(Default::default()),
        Body::UpdateEnvs(UpdateEnvs {
            app_name: "temp".into(),
            op: 1,
            keys: Some(vec!["k".into()]),
            values: Some(vec!["v".into()]),
            clear_prefix: None,
        }),
        Body::CommandLine(Default::default()),
        Body::Negotiation(Default::default()),
        Body::HedgerowAdmin(Default::default()),
        Body::HedgerowCancel(Cancel { client_id: 77, request_id: 4, attempt: Some(2), ..Cancel::default() }),
        Body::HedgerowDuplicate(Duplicate { cluster: 8, changes: vec![row_change()] }),
        Body::HedgerowJournalRead(JournalRead { id: 7, from: position().encoded(), bytes_max: 9, round: 1 }),
        Body::HedgerowJournalWrite(JournalWrite {
            action: 1,
            id: 7,
            position: position().encoded(),
            ..Default::default()
        }),
    ]
}

/// The reply of each kind and the call it answers, and refusals.
fn replies() -> Vec<(Method, Reply)> {
    let method_of = |name: &str| match name {
        "Failed" => Method::Remove,
        "Update" => Method::Put,
        "Check" => Method::CheckAndSet,
        "Count" => Method::SortKeyCount,
        "Scan" => Method::GetScanner,
        "Journal" => Method::HedgerowJournalRead,
        _ => *Method::ALL.iter().find(|method| format!("{method:?}") == name).expect("it is named after its call"),
    };
    let mut replies: Vec<_> = reply_kinds().into_iter().map(|(name, reply)| (method_of(name), reply)).collect();
    let lag = Lag { entries: 7, staleness: Some(Duration::from_millis(1_500)) };
    replies.push((Method::Ttl, Reply::refused(&Refusal::Lagging(lag), Some(&server()))));
    replies
}

fn row() -> KeyValue {
    KeyValue { key: key::full_key(b"a", b"b"), value: blob("v"), expire_ts_seconds: Some(9) }
}

fn table() -> TableInfo {
    TableInfo { status: 1, app_name: "temp".into(), envs: vec![("k".into(), "v".into())], ..TableInfo::default() }
}

fn map() -> QueryConfigReply {
    let partition = PartitionConfig {
        ballot: 3,
        max_replica_count: 3,
        primary: address(),
        secondaries: vec![address(), Address::NONE],
        hp_primary: Some(HostPort { host: "localhost".into(), port: 34801, kind: 1 }),
        hp_secondaries: Some(vec![HostPort::default()]),
        learners: Some([address()].into_iter().collect()),
        ..PartitionConfig::default()
    };
    let place = NodePlace { address: address().into(), labels: vec!["region=eu".into(), "zone=a".into()] };
    QueryConfigReply { nodes: Some(vec![place]), ..QueryConfigReply::found(2, 2, vec![partition]) }
}

fn refused(method: Method) -> Reply {
    Reply::admin_refused(method, &Refusal::TableExists)
}

one_of_each! {
    fn reply_kinds() -> Reply {
        Failed => Reply::refused(&Refusal::SessionWindow { sequence: 3, floor: 4, ceiling: 5 }, Some(&server())),
        Get => Reply::Get(GetReply { value: blob("v"), server: server(), ..GetReply::default() }),
        Update => Reply::Update(UpdateReply { decree: 12, server: server(), ..UpdateReply::default() }),
        MultiRemove => Reply::MultiRemove(Default::default()),
        Incr => Reply::Incr(IncrReply { new_value: -4, ..IncrReply::default() }),
        Check => Reply::Check(CheckReply { check_value: blob("old"), ..CheckReply::default() }),
        MultiGet => Reply::MultiGet(MultiGetReply { kvs: vec![row()], ..MultiGetReply::default() }),
        BatchGet => Reply::BatchGet(BatchGetReply { data: vec![FullData::default()], ..BatchGetReply::default() }),
        Count => Reply::Count(Default::default()),
        Ttl => Reply::Ttl(Default::default()),
        Scan => Reply::Scan(ScanReply { kvs: vec![row()], context_id: 9, kv_count: Some(1), ..ScanReply::default() }),
        QueryConfig => Reply::QueryConfig(map()),
        CreateTable => refused(Method::CreateTable),
        DropTable => refused(Method::DropTable),
        RecallTable => Reply::RecallTable(RecallTableReply { info: table(), ..RecallTableReply::default() }),
        ListTables => Reply::ListTables(ListTablesReply { infos: vec![table()], ..ListTablesReply::default() }),
        ListNodes => Reply::ListNodes(ListNodesReply {
            infos: vec![NodeInfo { status: 1, node: address(), hp_node: None }],
            ..ListNodesReply::default()
        }),
        ClusterInfo => refused(Method::ClusterInfo),
        UpdateEnvs => refused(Method::UpdateEnvs),
        CommandLine => Reply::CommandLine(Default::default()),
        Negotiation => Reply::Negotiation(Default::default()),
        HedgerowAdmin => refused(Method::HedgerowAdmin),
        Journal => Reply::Journal(JournalReply {
            phase: 2,
            changes: vec![row_change()],
            position: position().encoded(),
            unneeded: 7,
            server: server(),
            ..JournalReply::default()
        }),
    }
}

one_of_each! {
    fn writes() -> Write {
        Nothing => Write::Nothing,
        Put => Write::Put { key: blob("k"), value: blob("v"), expire_at: 9 },
        Remove => Write::Remove { key: blob("k") },
        MultiPut => Write::MultiPut {
            prefix: key::hash_storage_prefix(b"a"),
            rows: vec![(blob("b"), blob("v"))],
            expire_at: 0,
        },
        MultiRemove => Write::MultiRemove { prefix: key::hash_storage_prefix(b"a"), suffixes: vec![blob("b"), blob("c")] },
        Incr => Write::Incr { key: blob("k"), by: -2, expire_at: -1 },
        CheckAndMutate => Write::CheckAndMutate {
            prefix: key::hash_storage_prefix(b"a"),
            check: Check { suffix: blob("b"), kind: 3, operand: blob("o") },
            mutations: mutations().into_iter().map(|(_, mutation)| mutation).collect(),
            return_check_value: true,
        },
        Duplicate => Write::Duplicate(journal::Duplicate {
            here: 8,
            changes: mutations()
                .into_iter()
                .map(|(_, mutation)| journal::Change { stamp: 9, origin: 7, mutation })
                .collect(),
        }),
        Journal => Write::Journal(journal::JournalWrite::Reached { id: 7, round: 1, position: position() }),
    }
}

fn position() -> journal::Position {
    journal::Position::Following { entry: 3, bytes: 90 }
}

fn row_change() -> RowChange {
    RowChange { key: key::full_key(b"a", b"b"), value: blob("v"), stamp: 9, origin: 7, ..RowChange::default() }
}

one_of_each! {
    fn mutations() -> Mutation {
        Put => Mutation::Put { suffix: blob("b"), value: blob("v"), expire_at: 9 },
        Remove => Mutation::Remove { suffix: blob("b") },
    }
}

one_of_each! {
    fn details() -> WriteDetail {
        None => WriteDetail::None,
        Removed => WriteDetail::Removed(3),
        Value => WriteDetail::Value(-4),
        Checked => WriteDetail::Checked(Some(Some(blob("old")))),
    }
}

/// What a log entry and a session's row hold.
fn stored() -> Vec<(String, Vec<u8>)> {
    let mut stored = Vec::new();
    for (name, write) in writes() {
        let mut out = BytesMut::new();
        let is_agreed = matches!(write, Write::Incr { .. });
        encode_proposal(&Proposal { client: ClientId(77), sequence: 3, now: 4, is_agreed, write }, &mut out);
        stored.push((format!("proposal-{name}"), out.to_vec()));
    }
    for (name, detail) in details() {
        let mut out = BytesMut::new();
        encode_write_reply(&WriteReply { status: Status::TryAgain, detail }, &mut out);
        stored.push((format!("write-reply-{name}"), out.to_vec()));
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn there_is_a_request_of_every_method() {
        let methods: BTreeSet<Method> = bodies().iter().map(Body::method).collect();
        assert!(methods.iter().eq(&Method::ALL.iter().copied().collect::<BTreeSet<_>>()), "{methods:?}");
    }
}
