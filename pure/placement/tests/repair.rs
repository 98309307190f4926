//! Replacements that are lost in their turn.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hedgerow_placement::limit::REPLICAS_LISTED_MAX;
use hedgerow_placement::{Catalogue, Node, TableSpec};
use hedgerow_types::{GroupId, Incarnation, NodeId, TableId};

fn cluster() -> (Catalogue, GroupId) {
    let nodes = [1, 2, 3].map(NodeId);
    let mut catalogue = Catalogue::bootstrap(9, &nodes.map(|node| (node, entry(node, 1))), &nodes).unwrap();
    catalogue.create_table(TableSpec::hash("t", 2, 3), &nodes.into_iter().collect(), 0).unwrap();
    (catalogue, GroupId { table: TableId(1), partition: 0 })
}

fn entry(node: NodeId, incarnation: u64) -> Node {
    Node::new(format!("n{}:1", node.0), Incarnation(incarnation))
}

/// Pitfall D14: who was to be there from the beginning may be made as long as nobody has joined or left.
#[test]
fn d14_the_voters_that_a_group_began_with_are_known_until_one_is_replaced() {
    let (mut catalogue, group) = cluster();
    let first = |catalogue: &Catalogue| catalogue.group(group).unwrap().first_voters().map(Iterator::collect::<Vec<_>>);
    let voters = first(&catalogue).unwrap();
    assert_eq!(voters.len(), 3);
    // Two lives of one node end before anybody has learned.
    let mut new = voters[0];
    for incarnation in 2..4 {
        catalogue.register_node(new.node(), entry(new.node(), incarnation)).unwrap();
        new = catalogue.replace_lost(group, new).unwrap();
        assert_eq!(first(&catalogue).as_ref(), Some(&voters));
    }
    let mut withdrawn = catalogue.clone();
    assert!(withdrawn.withdraw_replacement(group, voters[0]).unwrap());
    assert_eq!(first(&withdrawn), None, "it is not known any more");
    assert!(catalogue.finish_replacement(group, new).unwrap());
    assert_eq!(first(&catalogue), None);
}

/// A node that loses its data again and again, faster than any replacement learns, is given a replica each time, and the last
/// one takes the place of the voter that was lost first.
#[test]
fn m3d_a_node_may_lose_its_data_any_number_of_times() {
    let (mut catalogue, group) = cluster();
    catalogue.mark_created(group.table, |_| true);
    let voters = |catalogue: &Catalogue| catalogue.group(group).unwrap().voters().collect::<Vec<_>>();
    let mut last = *voters(&catalogue).iter().find(|replica| replica.node() == NodeId(2)).unwrap();
    let first = last;
    for incarnation in 2..100 {
        catalogue.register_node(NodeId(2), entry(NodeId(2), incarnation)).unwrap();
        for (group, lost) in catalogue.lost_replicas() {
            let new = catalogue.replace_lost(group, lost).unwrap();
            let partition = catalogue.group(group).unwrap();
            assert!(partition.replicas.len() <= REPLICAS_LISTED_MAX);
            assert_eq!(catalogue.check(), Ok(()));
            if lost == last {
                assert!(partition.replaced_by(new).contains(&first));
                last = new;
            }
        }
    }
    assert!(catalogue.finish_replacement(group, last).unwrap());
    assert_eq!(catalogue.group(group).unwrap().replicas.len(), 3);
    assert!(voters(&catalogue).contains(&last));
}

/// Two of three nodes begin another life while a table is created: it can never have a leader as it is.
#[test]
fn d3g_a_new_partition_of_which_too_few_voters_are_left_begins_anew() {
    let (mut catalogue, group) = cluster();
    let voters = |catalogue: &Catalogue| catalogue.group(group).unwrap().voters().collect::<Vec<_>>();
    let before = voters(&catalogue);
    catalogue.register_node(NodeId(2), entry(NodeId(2), 2)).unwrap();
    assert!(!catalogue.must_begin_anew(group) && !catalogue.begin_anew(group), "two are a majority");
    catalogue.register_node(NodeId(3), entry(NodeId(3), 2)).unwrap();
    let (_, lost) = catalogue.lost_replicas().into_iter().find(|(of, _)| *of == group).unwrap();
    catalogue.replace_lost(group, lost).unwrap();
    assert!(!catalogue.mark_created(group.table, |_| true), "it had a leader, and has none any more");
    let (mut others, version) = (catalogue.clone(), catalogue.version);
    assert!(catalogue.must_begin_anew(group) && catalogue.begin_anew(group));
    assert_eq!((catalogue.check(), catalogue.version), (Ok(()), version + 1));
    let after = voters(&catalogue);
    assert_eq!(after.len(), 3);
    assert!(after.iter().all(|voter| !before.contains(voter)));
    let first = catalogue.group(group).unwrap().first_voters().map(Iterator::collect::<Vec<_>>);
    assert_eq!(first, Some(after), "and nobody is to join");
    assert!(!catalogue.begin_anew(group), "once");
    // Whoever is served by it has something to lose.
    for node in [NodeId(2), NodeId(3)] {
        others.register_node(node, entry(node, 1)).unwrap();
    }
    assert!(others.mark_created(group.table, |_| true));
    for node in [NodeId(2), NodeId(3)] {
        others.register_node(node, entry(node, 2)).unwrap();
    }
    assert!(!others.must_begin_anew(group) && !others.begin_anew(group));
}

#[test]
fn a_partition_is_led_where_it_is_wanted() {
    let (mut catalogue, group) = cluster();
    let (name, partition) = (catalogue.tables[&group.table].name.clone(), group.partition);
    let leader = |catalogue: &Catalogue| catalogue.group(group).unwrap().preferred_leader;
    let other = catalogue.group(group).unwrap().voters().find(|voter| *voter != leader(&catalogue)).unwrap();
    let version = catalogue.version;
    assert_eq!(catalogue.prefer_leader(&name, partition, other.node()), Ok(true));
    assert_eq!((leader(&catalogue), catalogue.version, catalogue.check()), (other, version + 1, Ok(())));
    assert_eq!(catalogue.prefer_leader(&name, partition, other.node()), Ok(false));
    let nobody = catalogue.prefer_leader(&name, partition, NodeId(77)).unwrap_err().to_string();
    assert!(nobody.starts_with("node 77 has no voting replica of partition 0; those are on: "), "{nobody}");
    assert!(catalogue.prefer_leader(&name, 99, other.node()).unwrap_err().to_string().contains("99"));
    assert!(catalogue.prefer_leader("none", partition, other.node()).is_err());
    assert_eq!(catalogue.version, version + 1);
}
