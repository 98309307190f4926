//! Replacements that are lost in their turn.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hedgerow_placement::limit::REPLICAS_LISTED_MAX;
use hedgerow_placement::{Catalogue, Node, TableSpec};
use hedgerow_types::{GroupId, Incarnation, NodeId, TableId};

/// A node that loses its data again and again, faster than any replacement learns, is given a replica each time, and the last
/// one takes the place of the voter that was lost first.
#[test]
fn m3d_a_node_may_lose_its_data_any_number_of_times() {
    let nodes = [1, 2, 3].map(NodeId);
    let entry = |node: NodeId, incarnation: u64| Node::new(format!("n{}:1", node.0), Incarnation(incarnation));
    let mut catalogue = Catalogue::bootstrap(9, &nodes.map(|node| (node, entry(node, 1))), &nodes).unwrap();
    let table = catalogue.create_table(TableSpec::hash("t", 2, 3), &nodes.into_iter().collect(), 0).unwrap();
    catalogue.mark_created(table, |_| true);
    let group = GroupId { table: TableId(1), partition: 0 };
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
