//! Where the nodes are: what the configuration says, what they say themselves, and what the catalogue remembers.
//!
//! The configuration is the newest word of the operator and comes first: the catalogue can only be changed once nodes have found each
//! other. An address at which a node was reached is what clients are told, because it needs no looking up.

use crate::config::Config;
use crate::node::Node;
use crate::view::View;
use hedgerow_types::NodeId;
use hedgerow_wire::Text;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The longest address that is listened to: a name of 253 bytes, and a port.
const ADDRESS_SIZE_MAX: usize = 259;

/// What is known of the nodes' addresses but what the catalogue remembers.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// Where this node serves, as replies carry it.
    own: Text,
    configured: BTreeMap<NodeId, String>,
    /// Where nodes say that they are in their reports.
    reported: BTreeMap<NodeId, String>,
    /// The same of those that have no report to make yet.
    told: BTreeMap<NodeId, String>,
    /// Where they were reached last.
    reached: BTreeMap<NodeId, Text>,
}

impl Addresses {
    /// Those of the configuration.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            own: Text::from(config.address.as_str()),
            configured: config.peers.clone(),
            reported: BTreeMap::new(),
            told: BTreeMap::new(),
            reached: BTreeMap::new(),
        }
    }

    /// This node's own.
    pub(crate) const fn own(&self) -> &Text {
        &self.own
    }

    /// Whether what a report of `node` says of where it is is known.
    pub(crate) fn is_as_reported(&self, node: NodeId, address: &str, is_complete: bool) -> bool {
        let is_told = is_complete && self.told.contains_key(&node);
        !is_told && self.reported.get(&node).is_some_and(|known| known == address)
    }

    /// A report of `node` says where it is; `is_complete` as in the report. Whether it said something else before.
    pub(crate) fn note_reported(&mut self, node: NodeId, address: &str, is_complete: bool) -> bool {
        if is_complete {
            self.told.remove(&node);
        }
        match self.reported.get_mut(&node) {
            Some(known) if known == address => false,
            Some(known) => {
                address.clone_into(known);
                true
            }
            None if is_complete => {
                self.reported.insert(node, address.to_owned());
                false
            }
            None => false,
        }
    }

    /// Another node was met at the address at which `node` seemed to be.
    pub(crate) fn forget_reached(&mut self, node: NodeId) {
        self.reached.remove(&node);
    }
}

impl View {
    /// Every address that `peer` may be reached at, the best first. Somebody else may be there now, who says so when it is greeted.
    pub(crate) fn addresses_of(&self, peer: NodeId) -> Vec<String> {
        let Addresses { configured, reported, told, .. } = &*self.addresses;
        let kept = self.catalogue.as_ref().and_then(|it| it.nodes.get(&peer)).map(|node| &node.address);
        let mut addresses: Vec<String> = Vec::new();
        for address in [configured, reported, told].into_iter().filter_map(|known| known.get(&peer)).chain(kept) {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    /// The address of `node` as a reply carries it.
    pub(crate) fn address_text(&self, node: NodeId) -> Option<Text> {
        let reached = self.addresses.reached.get(&node).cloned();
        reached.or_else(|| self.addresses_of(node).first().map(|address| Text::from(address.as_str())))
    }

    /// The node that replies call by `address`.
    pub(crate) fn node_at(&self, address: &str) -> Option<NodeId> {
        let mut nodes = self.addresses.configured.keys().copied();
        nodes.find(|node| self.address_text(*node).is_some_and(|text| text.as_str() == address))
    }
}

impl Node {
    /// A node that may be empty says where it is: its machine may have taken another one's place, and be somewhere else.
    pub(crate) fn note_told_address(&mut self, node: NodeId, address: &str) {
        if address.is_empty()
            || address.len() > ADDRESS_SIZE_MAX
            || self.view.addresses_of(node).iter().any(|known| known == address)
        {
            return;
        }
        self.change_addresses(|addresses| addresses.told.insert(node, address.to_owned()));
        self.shards.first().outbox.moved.insert(node, address.to_owned());
    }

    /// `node` was reached at `address`.
    pub fn note_address(&mut self, node: NodeId, address: SocketAddr) {
        let text = Text::from(address.to_string().as_str());
        let is_own = node == self.config.node;
        self.change_addresses(|addresses| {
            if is_own {
                addresses.own = text.clone();
            }
            addresses.reached.insert(node, text);
        });
    }
}
