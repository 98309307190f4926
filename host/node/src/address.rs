//! Where the nodes are: what the configuration says, what they say themselves, and what the catalogue remembers.
//!
//! The configuration is the newest word of the operator and comes first: the catalogue can only be changed once nodes have found each
//! other. An address at which a node was reached is what clients are told, because it needs no looking up.

use crate::node::Node;
use hedgerow_types::NodeId;
use hedgerow_wire::Text;
use std::net::SocketAddr;

/// The longest address that is listened to: a name of 253 bytes, and a port.
const ADDRESS_SIZE_MAX: usize = 259;

impl Node {
    /// Every address that `peer` may be reached at, the best first. Somebody else may be there now, who says so when it is greeted.
    pub(crate) fn addresses_of(&self, peer: NodeId) -> Vec<String> {
        let configured = self.config.peers.get(&peer);
        let said = self.reports.nodes.get(&peer).map(|(report, _)| &report.address);
        let told = self.reports.told.get(&peer);
        let kept = self.catalogue.as_ref().and_then(|it| it.nodes.get(&peer)).map(|node| &node.address);
        let mut addresses: Vec<String> = Vec::new();
        for address in configured.into_iter().chain(said).chain(told).chain(kept) {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    /// A node that may be empty says where it is: its machine may have taken another one's place, and be somewhere else.
    pub(crate) fn note_told_address(&mut self, node: NodeId, address: &str) {
        if address.is_empty()
            || address.len() > ADDRESS_SIZE_MAX
            || self.addresses_of(node).iter().any(|known| known == address)
        {
            return;
        }
        self.reports.told.insert(node, address.to_owned());
        self.outbox.moved.insert(node, address.to_owned());
    }

    /// `node` was reached at `address`.
    pub fn note_address(&mut self, node: NodeId, address: SocketAddr) {
        let text = Text::from(address.to_string().as_str());
        if node == self.config.node {
            self.address = text.clone();
        }
        self.reports.addresses.insert(node, text);
    }

    /// Another node was met at the address at which `node` seemed to be.
    pub(crate) fn forget_address(&mut self, node: NodeId) {
        self.reports.addresses.remove(&node);
    }

    /// The address of `node` as a reply carries it.
    pub(crate) fn address_text(&self, node: NodeId) -> Option<Text> {
        let reached = self.reports.addresses.get(&node).cloned();
        reached.or_else(|| self.addresses_of(node).first().map(|address| Text::from(address.as_str())))
    }

    /// The node that replies call by `address`.
    pub(crate) fn node_at(&self, address: &str) -> Option<NodeId> {
        let mut nodes = self.config.peers.keys().copied();
        nodes.find(|node| self.address_text(*node).is_some_and(|text| text.as_str() == address))
    }
}
