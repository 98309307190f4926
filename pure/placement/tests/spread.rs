//! Placement: counts stay even over the whole cluster, zones differ, and the same request gives the same answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hedgerow_placement::{Catalogue, Node, Presence, TableSpec, ZONE_LABEL};
use hedgerow_types::{Incarnation, NodeId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn cluster(zone_of: &[Option<usize>]) -> (Catalogue, BTreeSet<NodeId>) {
    let nodes: Vec<(NodeId, Node)> = (1..)
        .zip(zone_of)
        .map(|(id, zone): (u16, _)| {
            let mut node = Node::new(format!("n{id}:1"), Incarnation(u64::from(id)));
            if let Some(zone) = zone {
                node.labels.insert(ZONE_LABEL.to_owned(), format!("z{zone}"));
            }
            (NodeId(id), node)
        })
        .collect();
    let alive = nodes.iter().map(|(id, _)| *id).collect();
    (Catalogue::bootstrap(1, &nodes, &[NodeId(1)]).unwrap(), alive)
}

fn create(catalogue: &mut Catalogue, alive: &BTreeSet<NodeId>, partitions: u32, replicas: u32) {
    let name = format!("t{}", catalogue.next_table);
    let id = catalogue.create_table(TableSpec::ordered(name, partitions, replicas), alive, 0).unwrap();
    assert_eq!(catalogue.check(), Ok(()));
    // Whatever the nodes led before, no partition of the new table would be better led by another of its replicas.
    let (_, leaders) = counts(catalogue);
    for partition in &catalogue.tables[&id].partitions {
        let most = leaders[&partition.preferred_leader.node()];
        assert!(partition.voters().all(|id| most <= leaders[&id.node()] + 1), "{partition:?} {leaders:?}");
    }
}

type Counts = BTreeMap<NodeId, u64>;

/// Replicas and preferred leaders by node.
fn counts(catalogue: &Catalogue) -> (Counts, Counts) {
    let mut replicas: Counts = catalogue.nodes.keys().map(|id| (*id, 0)).collect();
    let mut leaders = replicas.clone();
    for partition in catalogue.tables.values().flat_map(|table| &table.partitions) {
        partition.voters().for_each(|id| *replicas.get_mut(&id.node()).unwrap() += 1);
        *leaders.get_mut(&partition.preferred_leader.node()).unwrap() += 1;
    }
    (replicas, leaders)
}

/// The difference between the most and the least loaded node, by replicas and by preferred leaders.
fn imbalance(catalogue: &Catalogue) -> (u64, u64) {
    let (replicas, leaders) = counts(catalogue);
    let spread = |counts: Counts| counts.values().max().unwrap() - counts.values().min().unwrap();
    (spread(replicas), spread(leaders))
}

fn zones_of(catalogue: &Catalogue, zone_of: &[Option<usize>]) -> Vec<Vec<usize>> {
    let zone = |id: NodeId| zone_of[usize::from(id.0) - 1].expect("every node has a zone");
    let partitions = catalogue.tables.values().flat_map(|table| &table.partitions);
    partitions.map(|partition| partition.voters().map(|id| zone(id.node())).collect()).collect()
}

proptest! {
    #[test]
    fn counts_differ_by_at_most_one_over_all_tables(
        nodes in 1usize..12,
        replicas in 1u32..=7,
        tables in proptest::collection::vec(1u32..40, 1..6),
    ) {
        let replicas = replicas.min(nodes as u32);
        let (mut catalogue, alive) = cluster(&vec![None; nodes]);
        for partitions in tables {
            create(&mut catalogue, &alive, partitions, replicas);
            let (by_replicas, by_leaders) = imbalance(&catalogue);
            prop_assert!(by_replicas <= 1 && by_leaders <= 1, "{by_replicas} {by_leaders}");
        }
    }

    #[test]
    fn counts_stay_even_with_tables_of_different_replication(
        nodes in 3usize..10,
        tables in proptest::collection::vec((1u32..40, 1u32..=7), 1..6),
    ) {
        let (mut catalogue, alive) = cluster(&vec![None; nodes]);
        for (partitions, replicas) in tables {
            create(&mut catalogue, &alive, partitions, replicas.min(nodes as u32));
            prop_assert!(imbalance(&catalogue).0 <= 1);
        }
    }

    #[test]
    fn zones_of_equal_size_keep_counts_even_and_partitions_apart(
        zones in 1usize..5,
        nodes_per_zone in 1usize..4,
        tables in proptest::collection::vec((1u32..40, 1u32..=4), 1..6),
    ) {
        let zone_of: Vec<Option<usize>> = (0..zones * nodes_per_zone).map(|node| Some(node % zones)).collect();
        let (mut catalogue, alive) = cluster(&zone_of);
        for (partitions, replicas) in tables {
            create(&mut catalogue, &alive, partitions, replicas.min(zone_of.len() as u32));
            prop_assert!(imbalance(&catalogue).0 <= 1);
        }
        for used in zones_of(&catalogue, &zone_of) {
            let distinct: BTreeSet<usize> = used.iter().copied().collect();
            prop_assert_eq!(distinct.len(), used.len().min(zones));
        }
    }

    #[test]
    fn any_zones_and_drops_keep_partitions_apart(
        zone_of in proptest::collection::vec(0usize..4, 1..10),
        steps in proptest::collection::vec((any::<bool>(), 1u32..20, 1u32..=4), 1..8),
    ) {
        let zone_of: Vec<Option<usize>> = zone_of.into_iter().map(Some).collect();
        let zones: BTreeSet<usize> = zone_of.iter().flatten().copied().collect();
        let (mut catalogue, alive) = cluster(&zone_of);
        for (is_drop, partitions, replicas) in steps {
            let first = catalogue.tables.values().next().map(|table| table.name.clone());
            match first.filter(|_| is_drop) {
                Some(name) => drop(catalogue.drop_table(&name, false).unwrap()),
                None => create(&mut catalogue, &alive, partitions, replicas.min(zone_of.len() as u32)),
            }
            for used in zones_of(&catalogue, &zone_of) {
                let distinct: BTreeSet<usize> = used.iter().copied().collect();
                prop_assert_eq!(distinct.len(), used.len().min(zones.len()));
            }
        }
    }
}

proptest! {
    #[test]
    fn a_table_created_after_drops_levels_the_leaders(
        nodes in 3usize..10,
        tables in proptest::collection::vec((1u32..20, any::<bool>()), 1..8),
    ) {
        let (mut catalogue, alive) = cluster(&vec![None; nodes]);
        for (partitions, _) in &tables {
            create(&mut catalogue, &alive, *partitions, 3);
        }
        for (index, (_, is_dropped)) in (1..).zip(&tables) {
            if *is_dropped {
                catalogue.drop_table(&format!("t{index}"), false).unwrap();
            }
        }
        create(&mut catalogue, &alive, 10 * nodes as u32, 3);
        prop_assert!(imbalance(&catalogue).1 <= 1, "{:?}", imbalance(&catalogue));
    }
}

#[test]
fn the_same_request_gives_the_same_placement() {
    let once = || {
        let (mut catalogue, alive) = cluster(&[None; 9]);
        create(&mut catalogue, &alive, 64, 3);
        catalogue
    };
    assert_eq!(once(), once());
}

#[test]
fn a_node_has_many_partners() {
    let (mut catalogue, alive) = cluster(&[None; 9]);
    create(&mut catalogue, &alive, 64, 3);
    let partners: BTreeSet<NodeId> = catalogue
        .hosted_by(NodeId(1))
        .filter_map(|(group, _)| catalogue.group(group))
        .flat_map(|partition| partition.voters().map(|id| id.node()))
        .collect();
    assert_eq!(partners.len(), 9);
}

#[test]
fn a_new_node_takes_part_in_every_partition_until_it_has_its_share() {
    let (mut catalogue, mut alive) = cluster(&[None; 4]);
    create(&mut catalogue, &alive, 8, 2);
    catalogue.register_node(NodeId(5), Node::new("n5:1", Incarnation(5))).unwrap();
    alive.insert(NodeId(5));
    create(&mut catalogue, &alive, 4, 2);
    assert_eq!(catalogue.hosted_by(NodeId(5)).count(), 4);
}

#[test]
fn only_living_registered_nodes_get_replicas() {
    let (mut catalogue, mut alive) = cluster(&[None; 4]);
    alive.remove(&NodeId(2));
    create(&mut catalogue, &alive, 16, 3);
    assert_eq!(catalogue.hosted_by(NodeId(2)).count(), 0);
}

#[test]
fn n4_nodes_get_no_more_than_they_have_room_for() {
    let (mut catalogue, alive) = cluster(&[None; 4]);
    let room = BTreeMap::from([(NodeId(2), 5), (NodeId(3), 100)]);
    let presence = Presence { alive, room, ..Presence::default() };
    let before = catalogue.clone();
    let spec = |partitions| TableSpec::ordered("t", partitions, 3);
    // Two nodes take any number, but every partition needs three.
    let error = catalogue.create_table_within(spec(106), &presence, 0).unwrap_err().to_string();
    assert!(
        error.starts_with("a partition count of 106 and a replica count of 3 do not fit: node 2 may host 5 in all."),
        "{error}"
    );
    assert_eq!(catalogue, before);
    catalogue.create_table_within(spec(100), &presence, 0).unwrap();
    assert_eq!(counts(&catalogue).0[&NodeId(2)], 5);
}
