//! What a cluster has said, as metrics.

use super::counted;
use crate::command::counters::{flat, is_momentary};
use crate::latency::{self, Latency};
use hedgerow_client::{ClusterStatus, NodeStatus, PartitionStatus, TableStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Parts of counters' names that are labels: the names' beginnings, and what the parts after them are called.
const LABELLED: [(&str, &[&str]); 12] = [
    ("served", &["level", "role"]),
    ("refused", &["reason"]),
    ("refused_writes", &["reason"]),
    ("rights.lacking_by_user", &["user"]),
    ("duplication.partitions", &DUPLICATION),
    ("duplication.copying", &DUPLICATION),
    ("duplication.stopped", &DUPLICATION),
    ("duplication.entries_left", &DUPLICATION),
    ("duplication.bytes_left", &DUPLICATION),
    ("duplication.lag_seconds", &DUPLICATION),
    ("duplication.changes_told", &DUPLICATION),
    ("duplication.bytes_told", &DUPLICATION),
];
/// Which one a counter of duplication is about.
const DUPLICATION: [&str; 2] = ["cluster", "table"];

/// What was found out; nothing if the cluster did not answer.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) status: Option<ClusterStatus>,
    /// What each node says that it has counted.
    pub(super) counted: BTreeMap<u16, Value>,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Metric {
    help: String,
    is_counter: bool,
    values: Vec<(Labels, f64)>,
}

/// Metrics by their names.
#[derive(Debug, Default)]
struct Metrics {
    values: BTreeMap<String, Metric>,
    /// How long requests took at the nodes.
    latencies: Vec<(Labels, Latency)>,
}

/// The only histogram.
const LATENCY: (&str, &str) =
    ("latency_seconds", "How long the node took for requests that it served, from when it had read them");

impl Metrics {
    fn gauge(&mut self, name: &str, help: &str, labels: Labels, value: f64) {
        self.add(name, help.to_owned(), false, labels, value);
    }

    fn add(&mut self, name: &str, help: String, is_counter: bool, labels: Labels, value: f64) {
        let metric =
            self.values.entry(name.to_owned()).or_insert_with(|| Metric { help, is_counter, values: Vec::new() });
        metric.values.push((labels, value));
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, Metric { help, is_counter, values }) in &self.values {
            let kind = if *is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in values {
                let mut one = metric.encode_family(labels)?;
                if *is_counter {
                    one.encode_counter::<NoLabelSet, f64, f64>(value, None)?;
                } else {
                    one.encode_gauge(value)?;
                }
            }
        }
        if self.latencies.is_empty() {
            return Ok(());
        }
        let (name, help) = LATENCY;
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, latency) in &self.latencies {
            let end = |us: u64| if us == u64::MAX { f64::INFINITY } else { us as f64 / 1e6 };
            let buckets: Vec<(f64, u64)> = latency.ranges.iter().map(|(us, count)| (end(*us), *count)).collect();
            let mut one = metric.encode_family(labels)?;
            one.encode_histogram::<NoLabelSet>(latency.sum_us as f64 / 1e6, latency.count(), &buckets, None)?;
        }
        Ok(())
    }
}

/// All of it, in the form that Prometheus reads.
pub(super) fn page(found: &Found) -> String {
    let mut metrics = Metrics::default();
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    metrics.gauge("exporter_build_info", "The version of this exporter", version, 1.0);
    let is_reachable = f64::from(found.status.is_some());
    metrics.gauge(
        "cluster_reachable",
        "Whether a node told the cluster's state; otherwise nothing else of the cluster is here",
        vec![],
        is_reachable,
    );
    if let Some(status) = &found.status {
        for node in &status.nodes {
            let help = "Whether the node told what it has counted; otherwise its counters are not here";
            let has_told = f64::from(found.counted.contains_key(&node.node));
            metrics.gauge("node_counters_told", help, vec![("node", node.node.to_string())], has_told);
        }
        of_cluster(&mut metrics, status);
        status.nodes.iter().for_each(|node| of_node(&mut metrics, node));
        status.tables.iter().for_each(|table| of_table(&mut metrics, table));
    }
    for (node, counted) in &found.counted {
        for latency in Latency::all(counted) {
            let labels = vec![("node", node.to_string()), ("operation", latency.kind.clone())];
            metrics.latencies.push((labels, latency));
        }
        for (name, value) in flat(counted).into_iter().filter(|(name, _)| !name.starts_with(latency::NAME)) {
            of_counter(&mut metrics, *node, &name, value);
        }
    }
    let mut registry = Registry::with_prefix("hedgerow");
    registry.register_collector(Box::new(metrics));
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut page, &registry);
    page
}

fn of_cluster(metrics: &mut Metrics, status: &ClusterStatus) {
    let mut gauge = |name, help, value| metrics.gauge(name, help, vec![], value);
    if let Some(summary) = &status.summary {
        gauge("partitions", "Partitions of tables in use, and the metadata as one", summary.partitions as f64);
        gauge(
            "partitions_without_leader",
            "Partitions whose rows nobody can write, or read linearizably",
            summary.without_leader as f64,
        );
        gauge(
            "partitions_in_repair",
            "Partitions with a replica that is lost, damaged or learning",
            summary.in_repair as f64,
        );
        let has_leader = f64::from(summary.metadata_has_leader);
        gauge("metadata_has_leader", "Whether tables and rights can be changed", has_leader);
    }
    let not_ok: usize = status.tables.iter().map(TableStatus::replicas_not_ok).sum();
    gauge("replicas_not_ok", "Replicas of tables in use that do not serve", not_ok as f64);
}

fn of_node(metrics: &mut Metrics, node: &NodeStatus) {
    let labels = || vec![("node", node.node.to_string())];
    let mut gauge = |name, help, value| metrics.gauge(name, help, labels(), value);
    gauge(
        "node_up",
        "0 as soon as its connection has ended, or 5 s after it was heard of last",
        f64::from(node.state == "alive"),
    );
    // What else is known of one that is down is what it said last.
    if node.state != "alive" {
        return;
    }
    gauge("node_replicas", "Replicas on the node", node.replicas as f64);
    let missing = node.missing_directories.len();
    gauge("node_directories_missing", "Data directories that the node does without", missing as f64);
    gauge("node_leaders", "Replicas on the node that lead", node.leaders as f64);
    gauge("node_slow_score", "How slow the node is, 1 to 100; 0 = not told", node.slow_score.into());
    gauge("node_is_slow", "Whether leaders leave the node since it is slow", f64::from(node.is_slow));
    if let Some(ahead) = node.clock_ahead_ms {
        gauge("node_clock_ahead_seconds", "How far its clock is ahead of a majority's", ahead as f64 / 1e3);
    }
    if let Some(at) = node.certificates_expire_unix_seconds {
        let help = "When the first of its certificates and authorities expires, seconds since 1970";
        gauge("node_certificates_expire_seconds", help, at as f64);
    }
    let of_directory = |place: usize| vec![("node", node.node.to_string()), ("directory", place.to_string())];
    for (place, bytes) in node.log_bytes.iter().flatten().enumerate() {
        metrics.gauge("node_log_bytes", "Bytes of log, by data directory", of_directory(place), *bytes as f64);
    }
    for (place, disk) in node.disks.iter().flatten().enumerate() {
        let mut gauge = |name, help, value| metrics.gauge(name, help, of_directory(place), value);
        gauge("node_disk_full", "Whether the disk takes no more rows", f64::from(disk.state != "ok"));
        gauge("node_disk_total_bytes", "Size of the data directory's file system", disk.total_bytes as f64);
        if let Some(free) = disk.free_bytes {
            gauge("node_disk_free_bytes", "What is free of it", free as f64);
        }
    }
}

fn of_table(metrics: &mut Metrics, table: &TableStatus) {
    let mut gauge = |name, help, value| metrics.gauge(name, help, vec![("table", table.name.clone())], value);
    let replicas = table.partitions.iter().flat_map(|partition| &partition.replicas);
    let has_none = |partition: &&PartitionStatus| partition.leader.is_none();
    let without_leader = table.partitions.iter().filter(has_none).count();
    gauge("table_partitions_without_leader", "Partitions of the table without a leader", without_leader as f64);
    gauge("table_replicas_not_ok", "Replicas of the table that do not serve", table.replicas_not_ok() as f64);
    let lag = replicas.map(|replica| replica.lag).max().unwrap_or_default();
    gauge("table_lag_entries", "How many entries the furthest replica is behind its leader", lag as f64);
}

/// A counter of `hedgerow counters`, by the name that it has there.
fn of_counter(metrics: &mut Metrics, node: u16, name: &str, value: u64) {
    let mut labels = vec![("node", node.to_string())];
    let labelled = LABELLED.iter().find_map(|(begin, called)| {
        let rest = name.strip_prefix(begin)?.strip_prefix('.')?;
        let parts: Vec<&str> = rest.splitn(called.len(), '.').collect();
        (parts.len() == called.len()).then_some((*begin, *called, parts))
    });
    let begin = match labelled {
        Some((begin, called, parts)) => {
            labels.extend(called.iter().zip(parts).map(|(called, part)| (*called, part.to_owned())));
            begin
        }
        None => name,
    };
    let help = counted::what(begin).to_owned();
    metrics.add(&counted::metric(begin), help, !is_momentary(name), labels, value as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_have_their_parts_as_labels() {
        let counted = json!({
            "node": 2,
            "served": { "linearizable": { "leader": 7, "follower": 1 } },
            "refused": { "busy": 3 },
            "rights": { "lacking": 4, "lacking_by_user": { "app": 4 } },
            "queue": { "first": { "queued": 5, "run": 6 } },
            "latency": { "write": { "sum_us": 3_000, "up_to_us": { "500": 4, "1000": 1, "more": 1 } } },
            "duplication": { "stopped": { "west": { "a.b": 2 } }, "bytes_told": { "west": { "a.b": 9 } } },
            "read_index": { "read_index_requests_sent": 8 },
            "newer": 9,
        });
        let page = page(&Found { status: Some(ClusterStatus::default()), counted: [(2, counted)].into() });
        for line in [
            "hedgerow_cluster_reachable 1",
            "# TYPE hedgerow_served counter",
            "hedgerow_served_total{node=\"2\",level=\"linearizable\",role=\"leader\"} 7",
            "hedgerow_refused_total{node=\"2\",reason=\"busy\"} 3",
            "hedgerow_rights_lacking_total{node=\"2\"} 4",
            "hedgerow_rights_lacking_by_user_total{node=\"2\",user=\"app\"} 4",
            "# TYPE hedgerow_queue_first_queued gauge",
            "hedgerow_queue_first_queued{node=\"2\"} 5",
            "hedgerow_queue_first_run_total{node=\"2\"} 6",
            "hedgerow_duplication_stopped{node=\"2\",cluster=\"west\",table=\"a.b\"} 2",
            "hedgerow_duplication_bytes_told_total{node=\"2\",cluster=\"west\",table=\"a.b\"} 9",
            "# TYPE hedgerow_latency_seconds histogram",
            "hedgerow_latency_seconds_sum{node=\"2\",operation=\"write\"} 0.003",
            "hedgerow_latency_seconds_count{node=\"2\",operation=\"write\"} 6",
            "hedgerow_latency_seconds_bucket{le=\"0.001\",node=\"2\",operation=\"write\"} 5",
            "hedgerow_latency_seconds_bucket{le=\"+Inf\",node=\"2\",operation=\"write\"} 6",
            "# HELP hedgerow_queue_first_run First attempts of reads that were begun",
            "hedgerow_read_index_requests_sent_total{node=\"2\"} 8",
            "# HELP hedgerow_newer A counter of a node that is newer than this exporter",
            concat!("hedgerow_exporter_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "# EOF",
        ] {
            let is_line = |it: &str| it == line || it.strip_suffix(".0") == Some(line);
            assert!(page.lines().any(is_line), "{line}: {page}");
        }
    }

    #[test]
    fn a_cluster_that_does_not_answer_is_told() {
        let page = page(&Found::default());
        assert!(page.contains("hedgerow_cluster_reachable 0") && !page.contains("hedgerow_partitions"), "{page}");
    }
}
