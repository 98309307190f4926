//! What other stores gave on a machine of the same kind, beside what `scale` measured with the same numbers of connections.

use super::{Axis, Loop, Operation, workload_name};
use crate::published::{Beside, Comparison};
use crate::summary::Spread;
use hedgerow_report::{Run, Table};

/// Operation, connections, store, and operations per second.
const PEERS: [(Operation, u32, &str, f64); 11] = [
    (Operation::Put, 1, "etcd 3.6", 888.0),
    (Operation::Put, 1, "Cassandra 5.0, quorum", 557.0),
    (Operation::Put, 1, "NATS JetStream KV R3, sync always", 1_145.0),
    (Operation::Put, 1, "Redis 7, AOF always, WAIT 1", 2_175.0),
    (Operation::Put, 1, "dragonboat 4 in one process", 1_434.0),
    (Operation::Put, 64, "etcd 3.6", 5_117.0),
    (Operation::Put, 64, "NATS JetStream KV R3, sync always", 8_577.0),
    (Operation::Put, 64, "Redis 7, AOF always, WAIT 1", 21_587.0),
    (Operation::Get, 1, "etcd 3.6, linearizable", 1_665.0),
    (Operation::Get, 1, "Cassandra 5.0, quorum", 474.0),
    (Operation::Get, 64, "etcd 3.6, linearizable", 8_902.0),
];

/// The comparison; `None` if no number of connections was measured.
pub(super) fn table(runs: &[Run]) -> Option<Table> {
    let row = |(operation, connections, store, theirs): &(Operation, u32, &str, f64)| {
        let (variant, workload) =
            (format!("connections={connections}"), workload_name(Axis::Connections, *operation, Loop::Closed));
        let all: Vec<_> = runs.iter().filter(|run| run.variant == variant && run.workload == workload).collect();
        Beside {
            what: format!("{} per second, {connections} connections", operation.name()),
            theirs_from: (*store).to_owned(),
            theirs: *theirs,
            ours: Spread::of_runs(&all, |run| Some(run.achieved_per_s)),
        }
    };
    let rows: Vec<_> = PEERS.iter().map(row).filter(|row| row.ours.is_some()).collect();
    let comparison = Comparison {
        title: "Beside other stores".to_owned(),
        rows,
        sources: vec![
            "Theirs: measured once by this project with each store's own client, on another virtual machine with 2 cores: three \
             nodes on loopback, 1000-byte values, fsync as each store does it by default, one request in flight per connection. \
             Not the same machine at the same hour: read the ratios as orders of magnitude."
                .to_owned(),
        ],
    };
    (!comparison.rows.is_empty()).then(|| comparison.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_measured_is_compared() {
        assert_eq!(table(&[]), None);
        let run = Run {
            variant: "connections=64".to_owned(),
            workload: "connections-get-throughput".to_owned(),
            achieved_per_s: 89_020.0,
            ..Run::default()
        };
        let rows = table(&[run]).unwrap().rows;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0][4], "x10.00");
    }
}
