//! The stored form: fixed bytes, round trips, conditional writes, and nothing that makes reading panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use hedgerow_placement::limit::{READ_REPLICA_COUNT_MAX, TABLES_SIZE_MAX};
use hedgerow_placement::{
    Catalogue, Dropped, Node, Partition, Presence, Replica, ReplicaRole, RowError, TableKind, TableSpec, TableState,
    VERSION_ROW,
};
use hedgerow_types::op::{Mutation, Write};
use hedgerow_types::{GroupId, Incarnation, NodeId, ReplicaId, TableId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

type Rows = BTreeMap<Bytes, Bytes>;

/// A catalogue with every kind of row and replica.
fn full() -> Catalogue {
    let node = |id: u16, incarnation| (NodeId(id), Node::new(format!("10.0.0.{id}:34601"), Incarnation(incarnation)));
    let mut nodes = [node(1, 11), node(2, 12), node(3, u64::MAX)];
    nodes[0].1.labels.insert("zone".to_owned(), "a".to_owned());
    let alive: BTreeSet<NodeId> = nodes.iter().map(|(id, _)| *id).collect();
    let mut catalogue = Catalogue::bootstrap(u64::MAX, &nodes, &[NodeId(1), NodeId(2), NodeId(3)]).unwrap();
    let mut hash = TableSpec::hash("users", 2, 3);
    hash.options.insert("default_ttl".to_owned(), "60".to_owned());
    let hash = catalogue.create_table(hash, &alive, 1_700_000_000).unwrap();
    let mut ordered = TableSpec::ordered("log", 2, 1);
    ordered.split_keys.push(b"m\xff".to_vec());
    let ordered = catalogue.create_table(ordered, &alive, 1_700_000_001).unwrap();
    assert!(catalogue.mark_created(hash, |_| true));
    let group = GroupId { table: hash, partition: 0 };
    let lost = catalogue.hosted_by(NodeId(2)).find(|(it, _)| *it == group).unwrap().1.id;
    catalogue.register_node(NodeId(2), node(2, 22).1).unwrap();
    catalogue.replace_lost(group, lost).unwrap();
    // A later version adds voters beside those that replace others; the stored form knows them already.
    let partition = &mut catalogue.tables.get_mut(&ordered).unwrap().partitions[0];
    let free: Vec<NodeId> = alive.into_iter().filter(|id| *id != partition.replicas[0].id.node()).collect();
    for (node, role) in free.into_iter().zip([ReplicaRole::Joining { replaces: None }, ReplicaRole::Learner]) {
        let id = ReplicaId::new(catalogue.next_replica, node);
        partition.replicas.push(Replica { id, incarnation: catalogue.nodes[&node].incarnation, role });
        catalogue.next_replica += 1;
    }
    assert_eq!(catalogue.check(), Ok(()));
    catalogue
}

/// The estimate that bounds the catalogue is not below what is stored, and not far above it.
#[test]
fn n4d_the_size_of_a_table_is_known_without_storing_it() {
    let mut catalogue = full();
    let alive = catalogue.nodes.keys().copied().collect();
    let mut spec = TableSpec::hash("large", 1_024, 3);
    spec.options.insert("business.info".to_owned(), "a \"quoted\" text".to_owned());
    catalogue.create_table(spec, &alive, 0).unwrap();
    let rows = catalogue.rows();
    for table in catalogue.tables.values() {
        let stored = rows[&Bytes::from(format!("table/{:010}", table.id.0))].len();
        let most = if table.partitions.len() > 100 { 5 * stored / 2 } else { stored + 1_024 };
        assert!((stored..=most).contains(&table.row_size()), "{}: {stored} and {}", table.name, table.row_size());
    }
}

/// Options and tables are refused from a total size on. What makes it smaller is not.
#[test]
fn n4d_the_catalogue_has_a_bound() {
    let mut catalogue = full();
    let alive: BTreeSet<NodeId> = catalogue.nodes.keys().copied().collect();
    let value = "v".repeat(4_096);
    let large = |name: String| {
        let options = (0..64).map(|number| (format!("manual_compact.{number}"), value.clone())).collect();
        TableSpec { options, ..TableSpec::hash(name, 2, 1) }
    };
    let mut create = |number: usize| catalogue.create_table(large(format!("t{number}")), &alive, 0);
    create(0).unwrap();
    let count = (1..1_000).position(|number| create(number).is_err()).unwrap() + 1;
    assert_eq!(count, TABLES_SIZE_MAX / (64 * 4_096) - 1);
    let error = create(count).unwrap_err().to_string();
    assert!(error.contains("bytes of its catalogue"), "{error}");
    let frame: usize = catalogue.rows().iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(frame < 20 << 20, "{frame}");
    let version = catalogue.version;
    let options: Vec<(String, &str)> = (0..64).map(|number| (format!("manual_compact.{number}"), &*value)).collect();
    let options = || options.iter().map(|(key, value)| (&**key, *value));
    assert!(catalogue.set_options("users", options()).is_err());
    assert_eq!(catalogue.version, version);
    assert!(catalogue.set_option("t0", "manual_compact.0", "short").unwrap());
    catalogue.drop_table("t1", false).unwrap();
    assert!(catalogue.set_options("users", options()).unwrap());
}

/// What a partition does with a conditional write; false if its check fails.
fn apply(rows: &mut Rows, write: &Write) -> bool {
    let (check, mutations) = match write {
        Write::Nothing => return true,
        Write::CheckAndMutate { prefix, check, mutations, .. } if prefix.is_empty() => (check, mutations),
        other => panic!("{other:?}"),
    };
    let found = rows.get(&check.suffix);
    let holds = match check.kind {
        1 => found.is_none(),
        10 => found == Some(&check.operand),
        other => panic!("check kind {other}"),
    };
    for mutation in mutations.iter().filter(|_| holds) {
        match mutation {
            Mutation::Put { suffix, value, expire_at: 0 } => drop(rows.insert(suffix.clone(), value.clone())),
            Mutation::Put { .. } => panic!("a row that expires"),
            Mutation::Remove { suffix } => drop(rows.remove(suffix).expect("only what exists is removed")),
        }
    }
    holds
}

/// Rows as they stand on disks since format 1. What is read from them must not change.
#[test]
fn the_stored_form_is_fixed() {
    let text = include_str!("fixtures/catalogue-format-1.txt");
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    let rows: Rows = lines.map(|(key, value)| (key.into(), value.into())).collect();
    let catalogue = Catalogue::from_rows(&rows).unwrap();
    assert_eq!(catalogue.rows(), rows);

    assert_eq!((catalogue.cluster, catalogue.version), (u64::MAX, 6));
    assert_eq!((catalogue.next_table, catalogue.next_replica), (3, 15));
    let mut first = Node::new("10.0.0.1:34601", Incarnation(11));
    first.labels.insert("zone".to_owned(), "a".to_owned());
    assert_eq!(catalogue.nodes[&NodeId(1)], first);
    assert_eq!(catalogue.meta.preferred_leader, ReplicaId::new(1, NodeId(1)));
    let users = catalogue.table_by_name("users").unwrap();
    assert_eq!((users.id, users.kind, users.state), (TableId(1), TableKind::Hash, TableState::Available));
    assert_eq!((users.replica_count, users.created_unix_seconds), (3, 1_700_000_000));
    assert_eq!(users.options["default_ttl"], "60");
    let replica = |counter, node, life, role| Replica {
        id: ReplicaId::new(counter, NodeId(node)),
        incarnation: Incarnation(life),
        role,
    };
    let lost = replica(6, 2, 12, ReplicaRole::Voter);
    let expected = Partition {
        start: Vec::new(),
        replicas: vec![
            replica(4, 1, 11, ReplicaRole::Voter),
            replica(5, 3, u64::MAX, ReplicaRole::Voter),
            lost,
            replica(12, 2, 22, ReplicaRole::Joining { replaces: Some(lost.id) }),
        ],
        preferred_leader: ReplicaId::new(4, NodeId(1)),
        version: 2,
    };
    assert_eq!(users.partitions[0], expected);
    let log = catalogue.table_by_name("log").unwrap();
    assert_eq!((log.kind, log.state), (TableKind::Ordered, TableState::Creating));
    let [_, joining, learner] = log.partitions[0].replicas[..] else { panic!("three replicas") };
    assert_eq!(joining.role, ReplicaRole::Joining { replaces: None });
    assert_eq!(learner.role, ReplicaRole::Learner);
    assert_eq!(log.partitions[1].start, b"m\xff");
}

/// A row as it stands on disks since dropped tables are kept. Rows of tables in use have not changed.
#[test]
fn p10_the_stored_form_of_a_dropped_table_is_fixed() {
    let mut catalogue = full();
    let dropped = Dropped { at_unix_seconds: 1_700_000_002, until_unix_seconds: 1_700_604_802 };
    assert_eq!(catalogue.drop_and_keep("users", false, dropped), Ok(Some(TableId(1))));
    let rows = catalogue.rows();
    let row = str::from_utf8(&rows[&b"table/0000000001"[..]]).unwrap();
    let stored = r#""created_unix_seconds":1700000000,"dropped":{"at_unix_seconds":1700000002,"until_unix_seconds":1700604802},"#;
    assert!(row.contains(stored), "{row}");
    assert_eq!(Catalogue::from_rows(&rows).unwrap().tables[&TableId(1)].dropped, Some(dropped));
    // Its name is free: another table in use may have it, and two that are dropped.
    let alive: BTreeSet<NodeId> = catalogue.nodes.keys().copied().collect();
    for _ in 0..2 {
        catalogue.create_table(TableSpec::hash("users", 2, 3), &alive, 0).unwrap();
        assert_eq!(Catalogue::from_rows(&catalogue.rows()).as_ref(), Ok(&catalogue));
        catalogue.drop_and_keep("users", false, dropped).unwrap();
    }
    assert_eq!(Catalogue::from_rows(&catalogue.rows()), Ok(catalogue));
}

#[test]
fn a_later_format_is_refused_by_its_number() {
    let mut rows = full().rows();
    rows.insert("header".into(), r#"{"format":4,"shape":"round"}"#.into());
    assert_eq!(Catalogue::from_rows(&rows), Err(RowError::Format { found: 4, supported: 3 }));
}

#[test]
fn rows_that_are_missing_malformed_or_contradictory_are_refused() {
    let rows = full().rows();
    let table = str::from_utf8(&rows[&b"table/0000000001"[..]]).unwrap().to_owned();
    let replace = |key: &str, value: &str| {
        let mut rows = rows.clone();
        rows.insert(Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
        Catalogue::from_rows(&rows).unwrap_err().to_string()
    };
    for key in ["version", "header", "meta"] {
        let mut rows = rows.clone();
        rows.remove(key.as_bytes());
        assert!(matches!(Catalogue::from_rows(&rows), Err(RowError::Missing(it)) if it == key));
    }
    let mut without_node = rows.clone();
    without_node.remove(&b"node/00003"[..]);
    for (error, expected) in [
        (Catalogue::from_rows(&without_node).unwrap_err().to_string(), "on an unknown node"),
        (replace("version", "007"), "is not a number"),
        (replace("version", "-1"), "is not a number"),
        (replace("node/1", "{}"), "no row has this key"),
        (replace("node/99999", "{}"), "no row has this key"),
        (replace("other", ""), "no row has this key"),
        (replace("node/00001", "{"), "malformed"),
        (replace("table/0000000009", &table.replace("users", "more")), "id 9 is not allowed"),
        (replace("table/0000000002", &table), "two tables are called"),
        (replace("table/0000000002", &table.replace("users", "more")), "was used twice"),
        (replace("table/0000000001", &table.replace("\"name\"", "\"nom\"")), "unknown field"),
        (replace("table/0000000001", &table.replace("\"hosts\":[[", "\"hosts\":[[9,9],[")), "unknown node"),
        (replace("table/0000000001", &table.replace("\"hosts\":[[1,11],", "\"hosts\":[")), "not listed"),
        (replace("table/0000000001", &table.replace("\"leader\":", "\"leader\":9")), "preferred leader is not there"),
    ] {
        assert!(error.contains(expected), "{error} does not say {expected}");
    }
}

#[test]
fn a_write_fails_on_another_version_and_changes_only_what_differs() {
    let mut rows = Rows::new();
    let first = full();
    assert!(apply(&mut rows, &first.write_first()));
    assert!(!apply(&mut rows, &first.write_first()));
    assert_eq!(rows, first.rows());

    let (mut one, mut other) = (first.clone(), first.clone());
    assert!(one.set_option("users", "comment", "one").unwrap());
    assert_eq!(other.drop_table("log", false).unwrap().len(), 2);
    assert_eq!(first.diff(&one).len(), 1);
    assert!(apply(&mut rows, &first.write_to(&one)));
    assert!(!apply(&mut rows, &first.write_to(&other)));
    assert_eq!(rows, one.rows());
    assert_eq!(one.write_to(&one), Write::Nothing);
    assert!(!first.diff(&other).iter().any(|it| matches!(it, Mutation::Put { suffix, .. } if suffix == VERSION_ROW)));
}

#[test]
fn the_largest_table_has_a_row_below_1500_kb() {
    let node =
        |id: u16| (NodeId(id), Node::new(format!("host-{id}.example:34601"), Incarnation(u64::MAX - u64::from(id))));
    let nodes: Vec<_> = (1..=1_000).map(node).collect();
    let alive = nodes.iter().map(|(id, _)| *id).collect();
    let mut catalogue = Catalogue::bootstrap(1, &nodes, &[NodeId(1)]).unwrap();
    // As if the cluster had assigned ten million replicas before.
    catalogue.next_replica = 10_000_000;
    let mut spec = TableSpec::ordered("x".repeat(128), 4_096, 7);
    spec.split_keys = (1..4_096).map(|i| format!("{i:016}").into_bytes()).collect();
    spec.options.insert("comment".to_owned(), "\"".repeat(256));
    spec.options.insert("read_replicas".to_owned(), READ_REPLICA_COUNT_MAX.to_string());
    let id = catalogue.create_table(spec, &alive, u64::MAX).unwrap();
    catalogue.mark_created(id, |_| true);
    assert!(catalogue.arrange_learners(&Presence { alive, gone: BTreeSet::new(), ..Presence::default() }));
    assert!(catalogue.groups().skip(1).all(|(_, it)| it.learners().count() == READ_REPLICA_COUNT_MAX as usize));
    // A tenth of the nodes loses its data.
    for id in 1..=100 {
        catalogue.register_node(NodeId(id), Node::new(format!("host-{id}.example:1"), Incarnation(u64::MAX))).unwrap();
    }
    for (group, lost) in catalogue.lost_replicas() {
        catalogue.replace_lost(group, lost).unwrap();
    }
    let rows = catalogue.rows();
    let size = rows[format!("table/{:010}", id.0).as_bytes()].len();
    assert!(size < 1_500_000, "{size}");
    assert_eq!(Catalogue::from_rows(&rows), Ok(catalogue));
}

proptest! {
    #[test]
    fn every_change_can_be_written_and_read(steps in proptest::collection::vec((0u8..12, 0u16..5, any::<u8>()), 1..30)) {
        let mut catalogue = full();
        let mut rows = catalogue.rows();
        for (kind, which, value) in steps {
            let before = catalogue.clone();
            step(&mut catalogue, kind, which, value);
            prop_assert!(catalogue.version - before.version <= 1);
            prop_assert_eq!(catalogue.version == before.version, catalogue == before);
            prop_assert!(apply(&mut rows, &before.write_to(&catalogue)));
            prop_assert_eq!(&rows, &catalogue.rows());
            let read = Catalogue::from_rows(&rows);
            prop_assert_eq!(read.as_ref(), Ok(&catalogue));
        }
    }

    #[test]
    fn damaged_rows_are_read_or_refused(which in 0usize..8, at in any::<prop::sample::Index>(), with: u8) {
        let mut rows = full().rows();
        let key = rows.keys().nth(which % rows.len()).unwrap().clone();
        let mut value = rows[&key].to_vec();
        let at = at.index(value.len());
        value[at] = with;
        rows.insert(key.clone(), value.into());
        if let Ok(catalogue) = Catalogue::from_rows(&rows) {
            prop_assert_eq!(catalogue.check(), Ok(()));
            prop_assert_eq!(Catalogue::from_rows(&catalogue.rows()), Ok(catalogue));
        }
        rows.insert(key, Bytes::from(vec![with; at]));
        let _ = Catalogue::from_rows(&rows);
    }
}

fn step(catalogue: &mut Catalogue, kind: u8, which: u16, value: u8) {
    let alive: BTreeSet<NodeId> = catalogue.nodes.keys().copied().collect();
    let name = format!("t{which}");
    let _ = match kind {
        0 => catalogue.create_table(TableSpec::hash(name, 4, 1 + u32::from(value % 4)), &alive, 0).is_ok(),
        1 => catalogue.create_table(TableSpec::ordered(name, u32::from(value % 8), 2), &alive, 0).is_ok(),
        2 => catalogue.drop_table(&name, false).is_ok(),
        3 => catalogue.set_option(&name, "comment", &value.to_string()).is_ok(),
        4 => {
            let node = Node::new(format!("n{which}:1"), Incarnation(u64::from(value % 4)));
            catalogue.register_node(NodeId(which), node).is_ok()
        }
        5 => {
            let lost = catalogue.lost_replicas();
            let chosen = lost.get(usize::from(value) % lost.len().max(1)).copied();
            chosen.is_some_and(|(group, lost)| catalogue.replace_lost(group, lost).is_ok())
        }
        6 => catalogue.set_option(&name, "read_replicas", &(value % 4).to_string()).is_ok(),
        7 => {
            let alive = alive.into_iter().filter(|id| id.0 % 3 != u16::from(value % 4)).collect();
            catalogue.arrange_learners(&Presence {
                alive,
                gone: BTreeSet::from([NodeId(which)]),
                ..Presence::default()
            })
        }
        8 => {
            let dropped = Dropped { at_unix_seconds: 0, until_unix_seconds: u64::from(value) };
            catalogue.drop_and_keep(&name, false, dropped).is_ok()
        }
        9 => {
            catalogue.recall_table(TableId(u32::from(which)), value.is_multiple_of(2).then_some(name.as_str())).is_ok()
        }
        10 => !catalogue.remove_overdue(u64::from(value / 2)).is_empty(),
        _ => {
            let joining = |it: &&Replica| matches!(it.role, ReplicaRole::Joining { .. });
            let chosen = catalogue.groups().find_map(|(id, it)| Some((id, it.replicas.iter().find(joining)?.id)));
            let is_finished = chosen.is_some_and(|(group, new)| catalogue.finish_replacement(group, new).is_ok());
            is_finished || catalogue.mark_created(TableId(u32::from(which)), |_| true)
        }
    };
}
