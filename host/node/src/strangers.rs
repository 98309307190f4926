//! Nodes of another cluster or another version, and lines of the log about them. A node stops if, by its own dialling, most of
//! the addresses that it was given belong to another cluster and none to its own: it has itself been given another cluster's
//! data, which it must not serve to this cluster's clients. Who dials *this* node proves nothing: one wrong address in another
//! cluster's configuration suffices for that.

use crate::node::Node;
use crate::peer::{Greeting, Malformed, VERSION};
use hedgerow_types::{Instant, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

/// Time between two lines of the log about connections from one address.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// Addresses whose last line is remembered.
const LINES_MAX: usize = 1_024;

/// To which cluster the other nodes belong by their own word.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Configured nodes at whose configured address another cluster answered, and which.
    others: BTreeMap<NodeId, u64>,
    /// Nodes of this node's cluster.
    own: BTreeSet<NodeId>,
    /// When the log last got a line about an address.
    lines: BTreeMap<IpAddr, Instant>,
}

impl Strangers {
    /// Another cluster answered where one of the `count` other nodes of the configuration should be. Returns whether that is
    /// news, and whether it is known of too many to go on.
    fn note_answer(&mut self, node: NodeId, cluster: u64, count: usize) -> (bool, bool) {
        let is_news = self.others.insert(node, cluster) != Some(cluster);
        (is_news, self.own.is_empty() && self.others.len() * 2 > count)
    }

    /// `node` belongs to this node's cluster.
    fn note_own(&mut self, node: NodeId) {
        self.others.remove(&node);
        self.own.insert(node);
    }

    /// Whether the log may get a line about a connection from `address`.
    fn may_tell(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.lines.len() >= LINES_MAX {
            self.lines.retain(|_, last| now.since(*last) < LINE_INTERVAL);
        }
        let is_due = self.lines.get(&address).is_none_or(|last| now.since(*last) >= LINE_INTERVAL);
        if !is_due || self.lines.len() >= LINES_MAX {
            return false;
        }
        self.lines.insert(address, now);
        true
    }
}

impl Node {
    /// A connection of `from` has begun, by its word a node of `cluster` (0 = of none yet). Returns whether it is listened
    /// to.
    pub(crate) fn greet(&mut self, from: NodeId, cluster: u64, address: IpAddr) -> bool {
        let ours = self.identity.cluster;
        if cluster == 0 || ours == 0 {
            return true;
        }
        if cluster == ours {
            if from != self.config.node && self.config.peers.contains_key(&from) {
                self.strangers.note_own(from);
            }
            return true;
        }
        if self.strangers.may_tell(address, self.last_tick) {
            let (theirs, ours) = (format!("{cluster:016x}"), format!("{ours:016x}"));
            tracing::warn!(node = from.0, %address, theirs, ours, "a node of another cluster is not listened to");
        }
        false
    }

    /// What came from `address` is no greeting that this node reads.
    pub fn handle_unread_greeting(&mut self, hello: &[u8], address: IpAddr) {
        if let Some((theirs, node)) = Greeting::other_version(hello)
            && self.strangers.may_tell(address, self.last_tick)
        {
            let node = self.config.peers.contains_key(&node).then_some(node.0);
            tracing::warn!(
                node, %address, theirs, ours = VERSION,
                "a node with another version of the protocol between nodes is not listened to: all have to run the same one"
            );
        }
    }

    /// What `node` sent from `address` ended its connection.
    pub(crate) fn note_malformed(&mut self, node: NodeId, address: IpAddr, malformed: &Malformed) {
        if self.strangers.may_tell(address, self.last_tick) {
            tracing::warn!(node = node.0, %address, error = %malformed, "the connection of a node is closed");
        }
    }

    /// A node of `cluster` answered where `node` was dialled; `is_configured` if the address is the configuration's.
    pub(crate) fn note_stranger(&mut self, node: NodeId, cluster: u64, is_configured: bool) {
        let ours = self.identity.cluster;
        if cluster == ours || ours == 0 {
            return;
        }
        // Clients are not sent there.
        self.change_addresses(|addresses| addresses.forget_reached(node));
        if !is_configured || node == self.config.node || !self.config.peers.contains_key(&node) {
            return;
        }
        let (is_news, is_too_many) = self.strangers.note_answer(node, cluster, self.config.peers.len() - 1);
        if is_news {
            let address = self.config.peers.get(&node);
            let (theirs, ours) = (format!("{cluster:016x}"), format!("{ours:016x}"));
            tracing::error!(node = node.0, address, theirs, ours, "another cluster is at a node's address");
        }
        if is_too_many {
            let directories: Vec<String> = self.config.data.iter().map(|data| data.display().to_string()).collect();
            let nodes: Vec<String> = self.strangers.others.keys().map(|node| node.0.to_string()).collect();
            self.shards.first().outbox.fail(format!(
                "the data in {} belongs to cluster {ours:016x}, but the nodes {} belong to cluster {cluster:016x}: either the \
                 data directory or the addresses are another cluster's",
                directories.join(" and "),
                nodes.join(" and "),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n6_one_wrong_address_is_no_reason_to_stop() {
        let mut strangers = Strangers::default();
        assert_eq!(strangers.note_answer(NodeId(2), 7, 2), (true, false));
        assert_eq!(strangers.note_answer(NodeId(2), 7, 2), (false, false));
        assert_eq!(strangers.note_answer(NodeId(3), 7, 2), (true, true), "all the others are another cluster's");
    }

    #[test]
    fn n6_a_node_that_met_its_own_cluster_goes_on() {
        let mut strangers = Strangers::default();
        strangers.note_own(NodeId(4));
        for node in [2, 3, 5] {
            assert!(!strangers.note_answer(NodeId(node), 7, 4).1);
        }
    }

    #[test]
    fn n6_an_address_gets_a_line_in_a_minute() {
        let mut strangers = Strangers::default();
        let at = |seconds: u64| Instant((1_000 + seconds) * 1_000_000_000);
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let told: Vec<u64> = (0..150).filter(|second| strangers.may_tell(address(1), at(*second))).collect();
        assert_eq!(told, [0, 60, 120]);
        assert!(strangers.may_tell(address(2), at(150)));
    }
}
