//! Where the replicas of a new table go: evenly over the nodes, in different zones, with the leaders even too.
//!
//! Replicas are placed one at a time. Each goes to the zone that has the fewest replicas of its partition, among those to
//! the zone that is least loaded per node, and there to the node with the fewest replicas; a generator seeded with the
//! table's id decides between equals, so that the partners of a node differ from partition to partition and many nodes
//! help when one is to be rebuilt. Without zones, node counts that differ by at most one go on doing so, because the
//! least loaded nodes are always taken first; zones of equal size keep this too. Zones of different size do not: different
//! zones go before equal counts.
//!
//! Learners are placed by the same rules, each beside the replicas that its partition has.
//!
//! Leaders are chosen for all partitions together: first greedily, then by moving leadership along chains of partitions
//! from nodes that lead much to nodes that lead little until no chain helps, which is an optimal choice for the given
//! replicas (paths that shorten a bipartite semi-matching; Harvey, Ladner, Lovász and Tamir, 2006).

use crate::catalogue::Catalogue;
use crate::learner::Presence;
use crate::model::Node;
use hedgerow_types::random::Random;
use hedgerow_types::{NodeId, TableId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The label that names a node's zone. A node without it counts as a zone of its own.
pub const ZONE_LABEL: &str = "zone";

/// How the cluster is loaded, and goes on being loaded while partitions are placed.
pub(crate) struct Spread {
    hosts: Vec<Host>,
    zones: Vec<Zone>,
    /// Index in `zones` of every node, of those too that cannot be given replicas.
    zone_of: BTreeMap<NodeId, usize>,
}

struct Host {
    node: NodeId,
    /// Index in [`Spread::zones`].
    zone: usize,
    replicas: u64,
    leaders: u64,
    /// Most replicas that it may host.
    room: u64,
}

impl Host {
    const fn has_room(&self) -> bool {
        self.replicas < self.room
    }
}

/// A node cannot host what is to be placed.
pub(crate) struct NoRoom {
    pub(crate) node: NodeId,
    /// Most replicas that it may host.
    pub(crate) room: u64,
}

#[derive(Default)]
struct Zone {
    hosts: u64,
    replicas: u64,
}

/// Whether a replica can be placed on a node.
pub(crate) fn is_placeable(id: NodeId, node: &Node, alive: &BTreeSet<NodeId>) -> bool {
    node.is_registered() && alive.contains(&id)
}

impl Spread {
    /// The load of the nodes that can be given replicas. The metadata group does not count: it is small.
    pub(crate) fn new(catalogue: &Catalogue, presence: &Presence) -> Self {
        let (replicas, leaders) = loads(catalogue);
        let mut spread = Self { hosts: Vec::new(), zones: Vec::new(), zone_of: BTreeMap::new() };
        let mut zone_names: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, node) in &catalogue.nodes {
            let own = spread.zones.len();
            let label = node.labels.get(ZONE_LABEL);
            let zone = label.map_or(own, |name| *zone_names.entry(name).or_insert(own));
            if zone == own {
                spread.zones.push(Zone::default());
            }
            spread.zone_of.insert(*id, zone);
            if !is_placeable(*id, node, &presence.alive) {
                continue;
            }
            let load = |loads: &BTreeMap<NodeId, u64>| loads.get(id).copied().unwrap_or(0);
            let room = presence.room.get(id).copied().unwrap_or(u64::MAX);
            let host = Host { node: *id, zone, replicas: load(&replicas), leaders: load(&leaders), room };
            spread.zones[zone].hosts += 1;
            spread.zones[zone].replicas += host.replicas;
            spread.hosts.push(host);
        }
        spread
    }

    /// The nodes of each partition of a new table, the preferred leader first. `replica_count` is from 1 to the number
    /// of placeable nodes.
    pub(crate) fn place(
        &mut self,
        table: TableId,
        partition_count: u32,
        replica_count: u32,
    ) -> Result<Vec<Vec<NodeId>>, NoRoom> {
        assert!((1..=self.hosts.len()).contains(&(replica_count as usize)), "the caller counted the nodes");
        let mut random = Random::new(u64::from(table.0));
        let mut placed: Vec<Vec<usize>> = Vec::with_capacity(partition_count as usize);
        for _ in 0..partition_count {
            let mut hosts = self.pick_hosts(replica_count, &mut random)?;
            self.pick_leader(&mut hosts);
            placed.push(hosts);
        }
        self.level_leaders(&mut placed);
        Ok(placed.into_iter().map(|hosts| hosts.into_iter().map(|host| self.hosts[host].node).collect()).collect())
    }

    /// The node of one more learner of a partition that has replicas on `taken`; `None` if no other node can be given
    /// one.
    pub(crate) fn place_learner(&mut self, taken: &[NodeId], random: &mut Random) -> Option<NodeId> {
        let taken_zones: Vec<usize> = taken.iter().filter_map(|node| self.zone_of.get(node).copied()).collect();
        let may_take = |host: &Host| host.has_room() && !taken.contains(&host.node);
        let free = (0..self.hosts.len()).filter(|host| may_take(&self.hosts[*host]));
        let best = free.min_by_key(|host| {
            let Host { zone, replicas, leaders, .. } = self.hosts[*host];
            let neighbours = taken_zones.iter().filter(|other| **other == zone).count();
            (neighbours, self.zone_load(zone), replicas, leaders, random.next_u64())
        })?;
        self.add_replica(best);
        Some(self.hosts[best].node)
    }

    /// The nodes that may host another replica.
    pub(crate) fn nodes_with_room(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.hosts.iter().filter(|host| host.has_room()).map(|host| host.node)
    }

    fn pick_hosts(&mut self, replica_count: u32, random: &mut Random) -> Result<Vec<usize>, NoRoom> {
        let mut picked: Vec<usize> = Vec::with_capacity(replica_count as usize);
        for _ in 0..replica_count {
            let free = (0..self.hosts.len()).filter(|host| self.hosts[*host].has_room() && !picked.contains(host));
            let best = free.min_by_key(|host| self.cost(*host, &picked, random.next_u64()));
            let Some(best) = best else { return Err(self.fullest()) };
            self.add_replica(best);
            picked.push(best);
        }
        Ok(picked)
    }

    /// Of the nodes without room the one that may host least.
    fn fullest(&self) -> NoRoom {
        let full = self.hosts.iter().filter(|host| !host.has_room()).min_by_key(|host| host.room);
        let Host { node, room, .. } = full.expect("there are at least as many hosts as replicas");
        NoRoom { node: *node, room: *room }
    }

    /// What speaks against one more replica on `host`, the weightiest first.
    fn cost(&self, host: usize, picked: &[usize], tie: u64) -> (usize, u64, u64, u64, u64) {
        let Host { zone, replicas, leaders, .. } = self.hosts[host];
        let neighbours = picked.iter().filter(|other| self.hosts[**other].zone == zone).count();
        // The first replica is the one to lead. The others go where much is led already, so that hosts that lead little
        // are left for the partitions to come.
        let leaders = if picked.is_empty() { leaders } else { u64::MAX - leaders };
        (neighbours, self.zone_load(zone), replicas, leaders, tie)
    }

    /// Replicas per node of a zone that has a host, in fractions of 2^-20: there are at most 2^10 nodes.
    fn zone_load(&self, zone: usize) -> u64 {
        (self.zones[zone].replicas << 20) / self.zones[zone].hosts
    }

    fn add_replica(&mut self, host: usize) {
        self.hosts[host].replicas += 1;
        self.zones[self.hosts[host].zone].replicas += 1;
    }

    /// Puts the host that leads least first.
    fn pick_leader(&mut self, hosts: &mut [usize]) {
        let leader = (0..hosts.len()).min_by_key(|position| self.hosts[hosts[*position]].leaders);
        let leader = leader.expect("a partition has a replica");
        hosts.swap(0, leader);
        self.hosts[hosts[0]].leaders += 1;
    }

    fn level_leaders(&mut self, placed: &mut [Vec<usize>]) {
        while let Some(chain) = self.find_chain(placed) {
            for Handover { partition, to } in chain {
                let position = placed[partition].iter().position(|host| *host == to);
                let position = position.expect("a chain hands over to replicas of the partition");
                self.hosts[placed[partition][0]].leaders -= 1;
                self.hosts[to].leaders += 1;
                placed[partition].swap(0, position);
            }
        }
    }

    /// Handovers that take one partition from a host that leads at least two more than the one that gets one.
    fn find_chain(&self, placed: &[Vec<usize>]) -> Option<Vec<Handover>> {
        let least = self.hosts.iter().map(|host| host.leaders).min()?;
        let mut led = vec![Vec::new(); self.hosts.len()];
        for (partition, hosts) in placed.iter().enumerate() {
            led[hosts[0]].push(partition);
        }
        let mut sources: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].leaders >= least + 2).collect();
        sources.sort_by_key(|host| std::cmp::Reverse(self.hosts[*host].leaders));
        sources.into_iter().find_map(|source| self.find_chain_from(source, placed, &led))
    }

    fn find_chain_from(&self, source: usize, placed: &[Vec<usize>], led: &[Vec<usize>]) -> Option<Vec<Handover>> {
        let mut reached_by: Vec<Option<(usize, usize)>> = vec![None; self.hosts.len()];
        let mut queue = VecDeque::from([source]);
        while let Some(from) = queue.pop_front() {
            if self.hosts[from].leaders + 2 <= self.hosts[source].leaders {
                return Some(chain_to(from, source, &reached_by));
            }
            for partition in &led[from] {
                for to in placed[*partition].iter().skip(1) {
                    if *to != source && reached_by[*to].is_none() {
                        reached_by[*to] = Some((from, *partition));
                        queue.push_back(*to);
                    }
                }
            }
        }
        None
    }
}

/// Leadership of `partition` goes to the host `to`.
struct Handover {
    partition: usize,
    to: usize,
}

fn chain_to(target: usize, source: usize, reached_by: &[Option<(usize, usize)>]) -> Vec<Handover> {
    let mut chain = Vec::new();
    let mut to = target;
    while to != source {
        let (from, partition) = reached_by[to].expect("every host of the chain but the source was reached");
        chain.push(Handover { partition, to });
        to = from;
    }
    chain
}

/// Replicas and preferred leaders of all tables by node.
fn loads(catalogue: &Catalogue) -> (BTreeMap<NodeId, u64>, BTreeMap<NodeId, u64>) {
    let (mut replicas, mut leaders) = (BTreeMap::new(), BTreeMap::new());
    for partition in catalogue.tables.values().flat_map(|table| &table.partitions) {
        // A lost replica and its replacement are on the same node and count as one.
        let nodes: BTreeSet<NodeId> = partition.replicas.iter().map(|replica| replica.id.node()).collect();
        nodes.into_iter().for_each(|node| *replicas.entry(node).or_default() += 1);
        *leaders.entry(partition.preferred_leader.node()).or_default() += 1;
    }
    (replicas, leaders)
}
