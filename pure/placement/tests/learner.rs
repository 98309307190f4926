//! Read-only replicas: as many as are asked for and possible, evenly spread, without touching a voter.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hedgerow_placement::{Catalogue, Node, Presence, Replica, ReplicaRole, Settings, TableSpec, ZONE_LABEL};
use hedgerow_types::{GroupId, Incarnation, NodeId, ReadLevel, TableId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A cluster of registered nodes, each in the zone of its number modulo `zones`; 0 = without zones.
fn cluster(nodes: u16, zones: u16) -> (Catalogue, Presence) {
    let nodes: Vec<(NodeId, Node)> = (1..=nodes).map(|id| (NodeId(id), node(id, u64::from(id), zones))).collect();
    let alive = nodes.iter().map(|(id, _)| *id).collect();
    (
        Catalogue::bootstrap(1, &nodes, &[NodeId(1)]).unwrap(),
        Presence { alive, gone: BTreeSet::new(), ..Presence::default() },
    )
}

fn node(id: u16, incarnation: u64, zones: u16) -> Node {
    let mut node = Node::new(format!("n{id}:1"), Incarnation(incarnation));
    if zones > 0 {
        node.labels.insert(ZONE_LABEL.to_owned(), zone(NodeId(id), zones));
    }
    node
}

fn zone(node: NodeId, zones: u16) -> String {
    format!("z{}", node.0 % zones)
}

fn create(catalogue: &mut Catalogue, presence: &Presence, partitions: u32, replicas: u32) -> String {
    let name = format!("t{}", catalogue.next_table);
    let id = catalogue.create_table(TableSpec::ordered(&name, partitions, replicas), &presence.alive, 0).unwrap();
    catalogue.mark_created(id, |_| true);
    name
}

fn set(catalogue: &mut Catalogue, table: &str, count: u32) {
    catalogue.set_option(table, "read_replicas", &count.to_string()).unwrap();
}

/// Where the learners of each partition are.
fn learners(catalogue: &Catalogue) -> BTreeMap<GroupId, Vec<NodeId>> {
    catalogue.groups().map(|(group, it)| (group, it.learners().map(|id| id.node()).collect())).collect()
}

fn voters_and_joining(catalogue: &Catalogue) -> Vec<(GroupId, Replica)> {
    let others = |it: &&Replica| it.role != ReplicaRole::Learner;
    catalogue.groups().flat_map(|(group, it)| it.replicas.iter().filter(others).map(move |it| (group, *it))).collect()
}

/// The difference between the nodes with the most and the fewest replicas.
fn imbalance(catalogue: &Catalogue) -> usize {
    let count = |node: &NodeId| catalogue.hosted_by(*node).filter(|(group, _)| *group != GroupId::META).count();
    let counts: Vec<usize> = catalogue.nodes.keys().map(count).collect();
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

/// Arranges, and checks what must hold whatever came before.
fn arrange(catalogue: &mut Catalogue, presence: &Presence) {
    let before = catalogue.clone();
    let is_wanted = catalogue.wants_arranging(presence);
    let is_changed = catalogue.arrange_learners(presence);
    assert_eq!(is_wanted, is_changed);
    assert_eq!(is_changed, *catalogue != before);
    assert_eq!(catalogue.version, before.version + u64::from(is_changed));
    assert_eq!(catalogue.check(), Ok(()));
    assert_eq!(voters_and_joining(catalogue), voters_and_joining(&before), "only learners are touched");
    for ((_, old), (group, new)) in before.groups().zip(catalogue.groups()) {
        let is_changed = old.replicas != new.replicas;
        assert_eq!(new.version, old.version + u64::from(is_changed), "{group}");
        let is_added = |replica: &&Replica| old.replica(replica.id).is_none();
        assert!(new.replicas.iter().filter(is_added).all(|it| presence.alive.contains(&it.id.node())), "{group}");
    }
    for table in catalogue.tables.values() {
        let wanted = Settings::from_options(&table.options).unwrap().read_replicas as usize;
        for partition in &table.partitions {
            let has = partition.learners().count();
            let is_present = |id: &NodeId| presence.alive.contains(id) || !presence.gone.contains(id);
            let present = partition.learners().filter(|id| is_present(&id.node())).count();
            let is_free = |id: &&NodeId| catalogue.nodes[id].is_registered() && !partition.is_on(**id);
            let free = presence.alive.iter().filter(is_free).count();
            assert!(has <= wanted && (present == wanted || free == 0), "{wanted} wanted, {free} free: {partition:?}");
        }
    }
    let once = catalogue.clone();
    assert!(!catalogue.arrange_learners(presence), "there is nothing left to do");
    assert_eq!(*catalogue, once);
}

proptest! {
    /// Whatever comes and goes, a step brings as many learners as there should and can be.
    #[test]
    fn arranging_ends_where_it_should(
        zones in 0u16..4,
        steps in proptest::collection::vec((0u8..8, 1u16..9, any::<u8>()), 1..40),
    ) {
        let (mut catalogue, mut presence) = cluster(6, zones);
        let mut incarnations = 100;
        for (kind, which, value) in steps {
            let (node_id, table) = (NodeId(which), format!("t{which}"));
            match kind {
                0 => {
                    let (partitions, replicas) = (1 + u32::from(value % 9), 1 + u32::from(value % 3));
                    if presence.alive.len() >= replicas as usize {
                        create(&mut catalogue, &presence, partitions, replicas);
                    }
                }
                1 | 2 => _ = catalogue.set_option(&table, "read_replicas", &(value % 4).to_string()),
                3 => {
                    presence.alive.remove(&node_id);
                }
                4 => {
                    presence.alive.remove(&node_id);
                    presence.gone.insert(node_id);
                }
                5 => {
                    let known = catalogue.nodes.get(&node_id).map(|node| node.incarnation.0);
                    incarnations += 1;
                    let life = known.filter(|_| value % 2 == 0).unwrap_or(incarnations);
                    catalogue.register_node(node_id, node(which, life, zones)).unwrap();
                    presence.alive.insert(node_id);
                    presence.gone.remove(&node_id);
                }
                6 => {
                    for (group, lost) in catalogue.lost_replicas() {
                        catalogue.replace_lost(group, lost).unwrap();
                    }
                }
                _ => _ = catalogue.drop_table(&table, true).unwrap(),
            }
            arrange(&mut catalogue, &presence);
        }
    }

    #[test]
    fn fewer_are_those_that_fewer_would_have_been(
        nodes in 5u16..10,
        zones in 0u16..4,
        partitions in 1u32..40,
        more in 1u32..5,
        fewer in 0u32..5,
    ) {
        let (mut catalogue, presence) = cluster(nodes, zones);
        let table = create(&mut catalogue, &presence, partitions, 3);
        let more = more.min(u32::from(nodes) - 3);
        let fewer = fewer.min(more);
        let mut directly = catalogue.clone();
        set(&mut directly, &table, fewer);
        arrange(&mut directly, &presence);
        for count in [more, fewer] {
            set(&mut catalogue, &table, count);
            arrange(&mut catalogue, &presence);
        }
        prop_assert_eq!(learners(&catalogue), learners(&directly));
    }

    /// Counts of voters alone differ by at most one. A learner cannot go where its partition is already, so that a node
    /// may stay behind; never far, and seldom by more than two.
    #[test]
    fn counts_stay_even_with_learners(
        nodes in 3u16..12,
        tables in proptest::collection::vec((1u32..40, 1u32..=3, 0u32..4), 1..5),
    ) {
        let (mut catalogue, presence) = cluster(nodes, 0);
        for (partitions, replicas, read_replicas) in tables {
            let table = create(&mut catalogue, &presence, partitions, replicas);
            set(&mut catalogue, &table, read_replicas.min(u32::from(nodes) - replicas));
            arrange(&mut catalogue, &presence);
            prop_assert!(imbalance(&catalogue) <= 3, "{}", imbalance(&catalogue));
        }
    }

    #[test]
    fn replicas_are_in_as_many_zones_as_there_are(
        per_zone in 1u16..4,
        zones in 1u16..6,
        replicas in 1u32..4,
        read_replicas in 0u32..4,
    ) {
        let nodes = per_zone * zones;
        let replicas = replicas.min(u32::from(nodes));
        let (mut catalogue, presence) = cluster(nodes, zones);
        let table = create(&mut catalogue, &presence, 16, replicas);
        set(&mut catalogue, &table, read_replicas.min(u32::from(nodes) - replicas));
        arrange(&mut catalogue, &presence);
        for partition in &catalogue.table_by_name(&table).unwrap().partitions {
            let mut count: BTreeMap<String, usize> = (0..zones).map(|it| (zone(NodeId(it), zones), 0)).collect();
            partition.replicas.iter().for_each(|it| *count.get_mut(&zone(it.id.node(), zones)).unwrap() += 1);
            prop_assert!(count.values().max().unwrap() - count.values().min().unwrap() <= 1, "{:?}", partition);
        }
    }
}

#[test]
fn a_zone_whose_node_is_away_is_not_free() {
    // The voters are in zones 1, 2 and 3; nodes 4 and 5 are in zones 0 and 1. While node 1 is away, node 5 is still near it.
    let (mut catalogue, mut presence) = cluster(3, 4);
    let table = create(&mut catalogue, &presence, 4, 3);
    for id in [4, 5] {
        catalogue.register_node(NodeId(id), node(id, 7, 4)).unwrap();
        presence.alive.insert(NodeId(id));
    }
    presence.alive.remove(&NodeId(1));
    set(&mut catalogue, &table, 1);
    arrange(&mut catalogue, &presence);
    assert_eq!(catalogue.hosted_by(NodeId(4)).count(), 4);
}

#[test]
fn new_nodes_take_the_learners_and_share_them() {
    let (mut catalogue, mut presence) = cluster(3, 0);
    let table = create(&mut catalogue, &presence, 8, 3);
    for id in [4, 5] {
        catalogue.register_node(NodeId(id), node(id, 7, 0)).unwrap();
        presence.alive.insert(NodeId(id));
    }
    set(&mut catalogue, &table, 1);
    arrange(&mut catalogue, &presence);
    let of = |id| catalogue.hosted_by(NodeId(id)).count();
    assert_eq!((of(4), of(5)), (4, 4));
}

#[test]
fn what_nodes_are_missing_for_comes_with_them() {
    // While node 4 is away, a partition with a voter there has two free nodes, and any other has one.
    let (mut catalogue, mut presence) = cluster(4, 0);
    let table = create(&mut catalogue, &presence, 8, 2);
    presence.alive.remove(&NodeId(4));
    set(&mut catalogue, &table, 2);
    arrange(&mut catalogue, &presence);
    let counts: BTreeSet<usize> =
        learners(&catalogue).iter().filter(|(it, _)| **it != GroupId::META).map(|(_, it)| it.len()).collect();
    assert_eq!(counts, BTreeSet::from([1, 2]));
    presence.alive.insert(NodeId(4));
    arrange(&mut catalogue, &presence);
    assert!(learners(&catalogue).iter().all(|(group, it)| *group == GroupId::META || it.len() == 2));
}

#[test]
fn a_learner_whose_data_is_lost_is_replaced_and_counts_meanwhile() {
    let (mut catalogue, mut presence) = cluster(5, 0);
    presence.alive.remove(&NodeId(1));
    let table = create(&mut catalogue, &presence, 1, 3);
    set(&mut catalogue, &table, 1);
    arrange(&mut catalogue, &presence);
    let group = GroupId { table: TableId(1), partition: 0 };
    let lost = catalogue.group(group).unwrap().learners().next().unwrap();
    catalogue.register_node(lost.node(), node(lost.node().0, 99, 0)).unwrap();
    arrange(&mut catalogue, &presence);
    assert_eq!(catalogue.lost_replicas(), [(group, lost)]);
    let new = catalogue.replace_lost(group, lost).unwrap();
    assert_eq!(catalogue.group(group).unwrap().learners().collect::<Vec<_>>(), [new]);
    assert_eq!((new.node(), catalogue.lost_replicas()), (lost.node(), vec![]));
    arrange(&mut catalogue, &presence);
}

#[test]
fn options_that_are_not_set_have_their_defaults() {
    let defaults = Settings::default();
    assert_eq!(Settings::from_options(&BTreeMap::new()), Ok(defaults.clone()));
    assert_eq!(defaults.read_level, ReadLevel::Linearizable);
    assert_eq!(defaults.backup_read_level, ReadLevel::Bounded(Duration::from_secs(1)));
    assert_eq!((defaults.follower_reads, defaults.read_replicas), (false, 0));
    let options = [("read_level", "session"), ("backup_read_level", "eventual"), ("follower_reads", "true")];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let settings = Settings::from_options(&options).unwrap();
    let levels = (settings.read_level, settings.backup_read_level, settings.follower_reads);
    assert_eq!(levels, (ReadLevel::Session, ReadLevel::Eventual, true));
}
