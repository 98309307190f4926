//! What the node says of the tables that are duplicated to other clusters: of what it leads, whether it is carried, by the word of
//! those who do it beside the node ([`hedgerow_placement::carrying`]).

use crate::node::Node;
use crate::replica::Hosted;
use hedgerow_placement::carrying::{Carried, Carrying, Stopped};
use hedgerow_placement::duplication::State;
use hedgerow_placement::{Settings, Table};
use hedgerow_replication::Role;
use hedgerow_types::{PartitionIndex, TableId};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A duplication, and how it goes in what the node leads.
struct Told<'v> {
    table: &'v Table,
    cluster: &'v str,
    /// Partitions that the node leads.
    leads: u32,
    carrying: Carrying,
}

impl Node {
    /// Every duplication of a table in use, and why the node does not carry what it leads of it, where it does not.
    pub(crate) fn duplications_told(&self) -> Value {
        let carried = self.carried();
        let of_one = |it: Told<'_>| {
            let of_reason = |stopped: &Stopped| {
                let Stopped { reason, partitions, partition, seconds } = stopped;
                json!({ "reason": reason, "partitions": partitions, "partition": partition, "seconds": seconds })
            };
            let reasons: Vec<_> = it.carrying.stopped.iter().map(of_reason).collect();
            json!({ "table": it.table.name, "cluster": it.cluster, "reasons": reasons })
        };
        let duplications: Vec<_> = self.told_of(&carried).into_iter().map(of_one).collect();
        json!({ "node": self.config.node.0, "clusters": carried.clusters, "duplications": duplications })
    }

    /// The same as numbers: by what they count, the cluster and the table.
    pub(crate) fn duplication_counters(&self) -> Value {
        let carried = self.carried();
        let mut counters: BTreeMap<&str, BTreeMap<&str, Map<String, Value>>> = BTreeMap::new();
        for it in self.told_of(&carried) {
            let stopped = u64::from(it.carrying.stopped_count());
            let numbers = [
                ("partitions", it.leads.into()),
                ("copying", it.carrying.copying.into()),
                ("stopped", stopped),
                ("entries_left", it.carrying.entries_left),
                ("bytes_left", it.carrying.bytes_left),
                ("changes_told", it.carrying.changes_told),
                ("bytes_told", it.carrying.bytes_told),
            ];
            let lag = it.carrying.lag_seconds.map(|lag| ("lag_seconds", lag));
            for (name, value) in numbers.into_iter().chain(lag) {
                let of_cluster = counters.entry(name).or_default().entry(it.cluster).or_default();
                of_cluster.insert(it.table.name.clone(), json!(value));
            }
        }
        json!(counters)
    }

    /// The log says to which clusters tables are duplicated that the node's configuration does not name, and were not by the options `before`.
    pub(crate) fn warn_of_unnamed_clusters(&self, before: &BTreeMap<TableId, Settings>) {
        let mut unnamed_clusters: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, settings) in self.duplicated() {
            let is_new = |cluster: &&String| !before.get(id).is_some_and(|it| it.duplications.contains_key(*cluster));
            let running = settings.duplications.iter().filter(|(_, it)| it.state == State::Running);
            for cluster in running.map(|(cluster, _)| cluster).filter(is_new) {
                *unnamed_clusters.entry(cluster).or_default() += 1;
            }
        }
        if unnamed_clusters.is_empty() {
            return;
        }
        let carried = self.carried();
        for (cluster, tables) in
            unnamed_clusters.into_iter().filter(|(cluster, _)| !carried.clusters.contains(*cluster))
        {
            let error = unnamed(cluster);
            tracing::warn!(tables, cluster, error, "what this node leads of tables is not carried");
        }
    }

    fn carried(&self) -> Arc<Carried> {
        self.config.carriers.as_ref().map(|carriers| carriers.told()).unwrap_or_default()
    }

    /// The tables in use that are duplicated.
    fn duplicated(&self) -> impl Iterator<Item = (&TableId, &Settings)> {
        let catalogue = self.view.catalogue.as_ref();
        let is_in_use =
            move |id: &TableId| catalogue.is_some_and(|it| it.tables.get(id).is_some_and(|it| it.dropped.is_none()));
        self.view.settings.iter().filter(move |(id, settings)| !settings.duplications.is_empty() && is_in_use(id))
    }

    fn told_of(&self, carried: &Carried) -> Vec<Told<'_>> {
        let mut told = Vec::new();
        let Some(catalogue) = &self.view.catalogue else { return told };
        let mut led: BTreeMap<TableId, Vec<PartitionIndex>> =
            self.duplicated().map(|(id, _)| (*id, Vec::new())).collect();
        if led.is_empty() {
            return told;
        }
        for (group, hosted) in self.shards.all_hosted() {
            if let (Hosted::Running(replica), Some(led)) = (hosted, led.get_mut(&group.table))
                && replica.group.role() == Role::Leader
            {
                led.push(group.partition);
            }
        }
        for (id, settings) in self.duplicated() {
            let (Some(table), Some(led)) = (catalogue.tables.get(id), led.get(id)) else { continue };
            for (cluster, duplication) in &settings.duplications {
                let mut carrying = carried.duplications.get(&duplication.id).cloned().unwrap_or_default();
                if duplication.state == State::Running {
                    carrying.stopped.extend(why_not_carried(carried, cluster, &carrying, led));
                }
                told.push(Told { table, cluster, leads: led.len() as u32, carrying });
            }
        }
        told
    }
}

/// Why nobody carries those partitions that nobody carries, where that is known.
fn why_not_carried(carried: &Carried, cluster: &str, carrying: &Carrying, led: &[PartitionIndex]) -> Option<Stopped> {
    let partitions = (led.len() as u32).saturating_sub(carrying.partitions);
    let partition = *led.first().filter(|_| partitions > 0)?;
    let is_named = carried.clusters.contains(cluster);
    let reason = if is_named { carried.failure.clone()? } else { unnamed(cluster) };
    Some(Stopped { reason, partitions, partition, seconds: 0 })
}

fn unnamed(cluster: &str) -> String {
    format!("this node's configuration has no [clusters.{cluster}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_why_nobody_carries() {
        let carried = Carried { clusters: ["west".to_owned()].into(), failure: None, ..Carried::default() };
        let none = Carrying::default();
        let why = |carried: &Carried, cluster, carrying: &Carrying, led: &[PartitionIndex]| {
            why_not_carried(carried, cluster, carrying, led).map(|it| (it.reason, it.partitions, it.partition))
        };
        let unnamed = "this node's configuration has no [clusters.east]".to_owned();
        assert_eq!(why(&carried, "east", &none, &[3, 5]), Some((unnamed, 2, 3)));
        assert_eq!(why(&carried, "east", &none, &[]), None);
        // It begins in a moment.
        assert_eq!(why(&carried, "west", &none, &[3, 5]), None);
        let failed = Carried { failure: Some("no metadata".to_owned()), ..carried };
        let one = Carrying { partitions: 1, ..Carrying::default() };
        assert_eq!(why(&failed, "west", &one, &[3, 5]), Some(("no metadata".to_owned(), 1, 3)));
        assert_eq!(why(&failed, "west", &one, &[5]), None);
    }
}
