//! Founding a cluster, once: the metadata nodes find each other and agree on who they were when it began.
//!
//! Every node that belongs to no cluster yet asks the metadata nodes. If one of them belongs to a cluster, the node
//! joins it. If none does, and *all* metadata nodes have answered that they are empty too, the lowest of them founds the
//! cluster and tells the others which incarnations its founders had. Only a founder in that incarnation creates its
//! replica of the metadata group; one that lost its data meanwhile comes back in another incarnation and learns.
//! All metadata nodes have to be up once for that, and never again at the same time.
//!
//! A node that has lost the file with its identity takes its cluster from its cached catalogue. One that has lost both and
//! still holds replicas is not empty: nothing is founded over them.

use crate::config::PROBE_INTERVAL;
use crate::node::Node;
use crate::peer::{Founder, Frame, Probe};
use hedgerow_env::Now;
use hedgerow_types::{Instant, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// An answer older than this does not count as a sign that its node is still empty.
const ANSWER_FRESH: Duration = Duration::from_secs(1);
/// How often it is said for whom the founding waits.
const SAY_INTERVAL: Duration = Duration::from_secs(10);
/// The incarnation in a probe of a node that belongs to no cluster and is not empty either.
const NOT_EMPTY: u64 = 0;

/// What is known of the other nodes while there is no cluster.
#[derive(Debug, Default)]
pub(crate) struct Founding {
    answers: BTreeMap<NodeId, (u64, Instant)>,
    last_probe: Option<Instant>,
    /// When it was last said for whom it waits, or the node started.
    said: Option<Instant>,
}

impl Node {
    pub(crate) fn tick_founding(&mut self, now: Now) {
        if self.identity.cluster != 0 {
            return;
        }
        if self.is_robbed() && self.founding.last_probe.is_none() {
            let directories = &self.config.data;
            tracing::error!(
                ?directories,
                "the data directories hold replicas, but neither identity.json nor catalogue.json says of which cluster: \
                 no cluster is founded over them. Put one of the files back, empty the directories, or start a node of \
                 the cluster"
            );
        }
        if self.founding.last_probe.is_none_or(|last| now.instant.since(last) >= PROBE_INTERVAL) {
            self.founding.last_probe = Some(now.instant);
            let probe = Frame::Probe(self.probe(true));
            self.config.meta_nodes.clone().into_iter().for_each(|node| self.shards.first().send(node, &probe));
        }
        self.found_if_all_are_empty(now);
        self.say_for_whom_it_waits(now);
    }

    /// Tells the operator from time to time, and clients with each refusal, which metadata nodes have not answered.
    fn say_for_whom_it_waits(&mut self, now: Now) {
        if self.identity.cluster != 0 || self.is_robbed() {
            return;
        }
        let silent = self.config.meta_nodes.iter().filter(|node| self.answer_of(**node, now).is_none());
        let silent: Vec<String> = silent.map(|node| node.0.to_string()).collect();
        if silent.is_empty() {
            return self.note_forming(String::new());
        }
        let to_do = if self.config.meta_nodes.contains(&self.config.node) { "found" } else { "join" };
        let waits = format!("waiting to {to_do} the cluster: no answer yet from {} of meta_nodes", silent.join(", "));
        let said = *self.founding.said.get_or_insert(now.instant);
        if now.instant.since(said) >= SAY_INTERVAL {
            self.founding.said = Some(now.instant);
            tracing::info!("{waits}");
        }
        self.note_forming(waits);
    }

    fn note_forming(&mut self, waits: String) {
        if *self.view.forming != waits {
            self.change_view(|view| view.forming = waits.as_str().into());
        }
    }

    pub(crate) fn handle_probe(&mut self, from: NodeId, probe: Probe, now: Now) {
        self.note_told_address(from, &probe.address);
        if probe.wants_answer {
            let answer = Frame::Probe(self.probe(false));
            self.shards.first().send(from, &answer);
        }
        if self.identity.cluster != 0 {
            return;
        }
        if probe.cluster != 0 {
            tracing::info!(cluster = format_args!("{:016x}", probe.cluster), %from, "joining the cluster");
            return self.join(probe.cluster, probe.founders);
        }
        if probe.incarnation != NOT_EMPTY {
            self.founding.answers.insert(from, (probe.incarnation, now.instant));
        }
        self.found_if_all_are_empty(now);
    }

    fn probe(&self, wants_answer: bool) -> Probe {
        Probe {
            wants_answer,
            incarnation: if self.is_robbed() { NOT_EMPTY } else { self.identity.incarnation().0 },
            cluster: self.identity.cluster,
            founders: self.identity.founders.clone(),
            address: self.config.address.clone(),
        }
    }

    /// The incarnation in which a node is empty, by its own word of a moment ago.
    fn answer_of(&self, node: NodeId, now: Now) -> Option<u64> {
        match self.founding.answers.get(&node) {
            _ if node == self.config.node => Some(self.identity.incarnation().0),
            Some((incarnation, at)) if now.instant.since(*at) < ANSWER_FRESH => Some(*incarnation),
            Some(_) | None => None,
        }
    }

    /// Whether there are replicas of a cluster whose id is gone.
    fn is_robbed(&self) -> bool {
        self.identity.cluster == 0 && self.identity.has_any_log()
    }

    fn found_if_all_are_empty(&mut self, now: Now) {
        if self.is_robbed() || self.config.meta_nodes.iter().min() != Some(&self.config.node) {
            return;
        }
        let mut founders = Vec::new();
        for node in &self.config.meta_nodes {
            let Some(incarnation) = self.answer_of(*node, now) else { return };
            founders.push(Founder { node: u32::from(node.0), incarnation });
        }
        let cluster = self.shards.first().random.next_u64() | 1;
        tracing::info!(cluster = format_args!("{cluster:016x}"), "founding a cluster");
        self.join(cluster, founders);
        let probe = Frame::Probe(self.probe(false));
        self.config
            .peers
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|node| self.shards.first().send(node, &probe));
    }

    fn join(&mut self, cluster: u64, founders: Vec<Founder>) {
        self.identity.cluster = cluster;
        self.identity.founders = founders;
        if let Err(error) = self.identity.save(&*self.disk, &self.config.data) {
            return self.shards.first().outbox.fail(format!("the node's identity cannot be written: {error}"));
        }
        self.founding.answers.clear();
        self.host_metadata_founder();
    }
}
