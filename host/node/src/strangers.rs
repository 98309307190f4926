//! Nodes of another cluster. Whoever finds more of them than of its own behind the addresses that it was given has itself
//! been given another cluster's data, and stops before it serves that to this cluster's clients.

use crate::node::Node;
use hedgerow_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// To which cluster the other nodes belong by their own word.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Nodes of another cluster, and which.
    others: BTreeMap<NodeId, u64>,
    /// Nodes of this node's cluster.
    own: BTreeSet<NodeId>,
}

impl Node {
    /// A connection of `from` has begun, by its word a node of `cluster` (0 = of none yet). Returns whether it is listened
    /// to.
    pub(crate) fn greet(&mut self, from: NodeId, cluster: u64) -> bool {
        let ours = self.identity.cluster;
        if cluster == 0 || ours == 0 {
            return true;
        }
        if cluster == ours {
            self.strangers.others.remove(&from);
            self.strangers.own.insert(from);
            return true;
        }
        self.strangers.own.remove(&from);
        let address = self.address_text(from).map_or_else(String::new, |text| text.to_string());
        if self.strangers.others.insert(from, cluster) != Some(cluster) {
            let (theirs, ours) = (format!("{cluster:016x}"), format!("{ours:016x}"));
            tracing::error!(node = from.0, address, theirs, ours, "a node of another cluster is not listened to");
        }
        if self.strangers.others.len() > self.strangers.own.len() + 1 {
            let directories: Vec<String> = self.config.data.iter().map(|data| data.display().to_string()).collect();
            let nodes: Vec<String> = self.strangers.others.keys().map(|node| node.0.to_string()).collect();
            self.outbox.fail(format!(
                "the data in {} belongs to cluster {ours:016x}, but the nodes {} belong to cluster {cluster:016x}: either the \
                 data directory or the addresses are another cluster's",
                directories.join(" and "),
                nodes.join(" and "),
            ));
        }
        false
    }
}
