//! The tables: ours beside the published figures, scenario 4 against 3, single-row reads against their targets.

use super::cases::{Case, FarRead, Scenario};
use super::published::{ETCD_FAR_X16_MS, ETCD_SOURCE, SOURCE, tikv};
use super::{Asked, SHARE_PERCENT, Size3};
use crate::published::{Beside, Comparison};
use crate::read_counts::MESSAGES_PER_READ;
use crate::summary::{Spread, number, or_na, times};
use hedgerow_client::{ReadLevel, ReplicaRead};
use hedgerow_report::{Run, Table};

/// A round trip between the two places, ms.
const ROUND_TRIP_MS: f64 = 28.0;
/// The targets: scenario 4 against 3 for scans of so many rows, messages between nodes per read with so many clients, a
/// linearizable read at a far follower against the round trip, and how much longer than a local read one may take that
/// needs no leader, ms.
const FOLLOWER_SHARE_MIN: (u32, f64) = (10, 0.95);
const MESSAGES_MAX: (u32, f64) = (64, 0.1);
const FAR_RATIO_MAX: f64 = 1.1;
const LOCAL_EXTRA_MS_MAX: f64 = 0.1;

pub(super) fn all(size: &Size3, runs: &[Run]) -> Vec<Table> {
    let runs = Runs(runs);
    let tables = [scans(size, runs), follower_share(size, runs), near(size, runs), far(size, runs), beside_etcd(runs)];
    tables.into_iter().flatten().collect()
}

/// All runs, to pick some from.
#[derive(Clone, Copy)]
struct Runs<'a>(&'a [Run]);

impl Runs<'_> {
    /// A figure of a variant's runs of one workload.
    fn figure(self, case: &Case, what: Asked, figure: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        let (variant, workload) = (case.to_string(), what.workload());
        let own: Vec<_> = self.0.iter().filter(|run| run.variant == variant && run.workload == workload).collect();
        Spread::of_runs(&own, figure)
    }

    fn per_s(self, case: &Case, what: Asked) -> Option<Spread> {
        self.figure(case, what, |run| Some(run.achieved_per_s))
    }

    fn p50_ms(self, case: &Case, what: Asked) -> Option<Spread> {
        self.figure(case, what, |run| run.operations.first().map(|it| it.latency_us.p50 / 1e3))
    }

    fn p99_ms(self, case: &Case, what: Asked) -> Option<Spread> {
        self.figure(case, what, |run| run.operations.first().map(|it| it.latency_us.p99 / 1e3))
    }
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>, notes: &[String]) -> Option<Table> {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    (!rows.is_empty()).then(|| Table { title: title.to_owned(), columns, rows, notes: notes.to_vec() })
}

fn verdict(is_met: bool) -> String {
    if is_met { "met" } else { "MISSED" }.to_owned()
}

fn scans(size: &Size3, runs: Runs<'_>) -> Option<Table> {
    let columns = [
        "scenario",
        "scan keys",
        "theirs/s",
        "ours/s",
        "ours / theirs",
        "theirs, server p99 ms",
        "ours, server p99 ms",
        "theirs, client p99 ms",
        "ours, client p99 ms",
    ];
    let mut rows = Vec::new();
    for scenario in Scenario::ALL {
        for keys in size.scan_rows {
            let (case, what) = (Case::Scan(scenario), Asked::Scan(*keys));
            let Some(per_s) = runs.per_s(&case, what) else { continue };
            let theirs = tikv(*keys, scenario);
            let at_server = runs.figure(&case, what, |run| run.extra.get("at_server_p99_us").map(|us| us / 1e3));
            rows.push(vec![
                scenario.name().to_owned(),
                keys.to_string(),
                or_na(theirs.map(|it| number(it.per_s))),
                per_s.to_string(),
                times(theirs.map(|it| per_s.median / it.per_s)),
                or_na(theirs.map(|it| number(it.server_p99_ms))),
                or_na(at_server),
                or_na(theirs.map(|it| number(it.client_p99_ms))),
                or_na(runs.p99_ms(&case, what)),
            ]);
        }
    }
    let clients = size.scan_clients;
    let notes = [
        format!(
            "Ours: linearizable scans, a closed loop of {clients} clients with one in flight each; median (min-max) of the \
             repetitions. Each node is held to {SHARE_PERCENT} % of a core. Server p99: waiting at the node, an index asked of the leader included, and serving; per page."
        ),
        SOURCE.to_owned(),
    ];
    table("Scans beside TiKV's", &columns, rows, &notes)
}

fn follower_share(size: &Size3, runs: Runs<'_>) -> Option<Table> {
    let columns = ["scan keys", "3 leader local/s", "4 follower beside leader/s", "4 / 3", "theirs, 4 / 3", "target"];
    let row = |keys: &u32| {
        let of = |scenario| runs.per_s(&Case::Scan(scenario), Asked::Scan(*keys));
        let (leader, follower) = (of(Scenario::LeaderLocal)?, of(Scenario::FollowerBeside)?);
        let ratio = follower.ratio(leader);
        let theirs = tikv(*keys, Scenario::FollowerBeside).zip(tikv(*keys, Scenario::LeaderLocal));
        let (target_keys, share) = FOLLOWER_SHARE_MIN;
        let target = match ratio {
            Some(ratio) if *keys == target_keys => format!(">= x{share}: {}", verdict(ratio >= share)),
            _ => "none".to_owned(),
        };
        let theirs = times(theirs.map(|(follower, leader)| follower.per_s / leader.per_s));
        Some(vec![keys.to_string(), leader.to_string(), follower.to_string(), times(ratio), theirs, target])
    };
    let rows = size.scan_rows.iter().filter_map(row).collect();
    table("What a linearizable scan at a follower costs", &columns, rows, &[])
}

fn near(size: &Size3, runs: Runs<'_>) -> Option<Table> {
    let columns =
        ["clients", "read at", "per second", "p50 ms", "p99 ms", "messages per read at a follower", "targets"];
    let cases = [Scenario::LeaderLocal, Scenario::FollowerBeside].map(Case::Near);
    let alone = size.near_clients.first().copied().unwrap_or(1);
    let get = |clients| Asked::Get { clients, place: "near" };
    // One client's read at the leader is a round trip and little else.
    let round_trip = runs.p50_ms(&cases[0], get(alone));
    let mut rows = Vec::new();
    for clients in size.near_clients {
        let leader = runs.p50_ms(&cases[0], get(*clients));
        for case in &cases {
            let Some(per_s) = runs.per_s(case, get(*clients)) else { continue };
            let (p50, p99) = (runs.p50_ms(case, get(*clients)), runs.p99_ms(case, get(*clients)));
            let messages = runs.figure(case, get(*clients), |run| run.extra.get(MESSAGES_PER_READ).copied());
            let mut targets = Vec::new();
            if case.mode() == ReplicaRead::Follower {
                if let (Some(p50), Some(leader), Some(round_trip)) = (p50, leader, round_trip) {
                    let most = leader.median + round_trip.median;
                    targets.push(format!("p50 <= {}: {}", number(most), verdict(p50.median <= most)));
                }
                if let Some(messages) = messages.filter(|_| *clients >= MESSAGES_MAX.0) {
                    targets.push(format!(
                        "messages <= {}: {}",
                        MESSAGES_MAX.1,
                        verdict(messages.median <= MESSAGES_MAX.1)
                    ));
                }
            }
            rows.push(vec![
                clients.to_string(),
                case.to_string(),
                per_s.to_string(),
                or_na(p50),
                or_na(p99),
                or_na(messages),
                if targets.is_empty() { "none".to_owned() } else { targets.join(", ") },
            ]);
        }
    }
    let notes = ["Closed loops, one request in flight per client, clients share 4 connections to each node. The p50 at the follower \
                  may be longer than the leader's by a round trip, for which the p50 of one client's read at the leader stands."
        .to_owned()];
    table("Linearizable reads of single rows, all in one place", &columns, rows, &notes)
}

fn far(size: &Size3, runs: Runs<'_>) -> Option<Table> {
    let columns = ["read", "clients", "per second", "p50 ms", "p99 ms", "messages per read at a follower", "target"];
    let mut rows = Vec::new();
    for read in FarRead::all() {
        for clients in size.far_clients {
            let (case, what) = (Case::Far(read), Asked::Get { clients: *clients, place: "far" });
            let (Some(per_s), Some(p50)) = (runs.per_s(&case, what), runs.p50_ms(&case, what)) else { continue };
            let local = runs.p50_ms(&Case::Far(FarRead::local()), what).map(|local| local.median);
            let messages = runs.figure(&case, what, |run| run.extra.get(MESSAGES_PER_READ).copied());
            rows.push(vec![
                read.to_string(),
                clients.to_string(),
                per_s.to_string(),
                p50.to_string(),
                or_na(runs.p99_ms(&case, what)),
                or_na(messages),
                target(read, p50, local),
            ]);
        }
    }
    let notes = [
        format!(
            "Clients and follower in one place, the leader {ROUND_TRIP_MS} ms round trip away; closed loops, clients share 4 \
             connections to each node. Local latency: that of {}.",
            FarRead::local()
        ),
        ETCD_SOURCE.to_owned(),
    ];
    table("Reads of single rows, the leader far away", &columns, rows, &notes)
}

/// What a read that is far from its leader should reach.
fn target(read: FarRead, p50: Spread, local_ms: Option<f64>) -> String {
    if !read.is_far || read.mode == ReplicaRead::Leader {
        return "none".to_owned();
    }
    let most = match (read.level, local_ms) {
        (ReadLevel::Linearizable, _) => ROUND_TRIP_MS * FAR_RATIO_MAX,
        (ReadLevel::Session | ReadLevel::Bounded(_) | ReadLevel::Eventual, Some(local)) => local + LOCAL_EXTRA_MS_MAX,
        (ReadLevel::Session | ReadLevel::Bounded(_) | ReadLevel::Eventual, None) => return "none".to_owned(),
    };
    format!("p50 <= {}: {}", number(most), verdict(p50.median <= most))
}

fn beside_etcd(runs: Runs<'_>) -> Option<Table> {
    let read = FarRead::all()
        .into_iter()
        .find(|read| read.is_far && (read.level, read.mode) == (ReadLevel::Linearizable, ReplicaRead::Follower))?;
    let ours = runs.p50_ms(&Case::Far(read), Asked::Get { clients: 16, place: "far" })?;
    let what = "linearizable read at a follower 28 ms away from its leader, 16 clients: ms".to_owned();
    let row = Beside { what, theirs_from: "etcd 3.7".to_owned(), theirs: ETCD_FAR_X16_MS, ours: Some(ours) };
    let comparison = Comparison {
        title: "Beside etcd".to_owned(),
        rows: vec![row],
        sources: vec![ETCD_SOURCE.to_owned(), "Ours: p50.".to_owned()],
    };
    Some(comparison.table())
}

#[cfg(test)]
mod tests {
    use super::super::FULL;
    use super::*;
    use hedgerow_report::{Latency, Operation};

    fn run(case: &Case, what: Asked, per_s: f64, p50_ms: f64, messages: f64) -> Run {
        let latency_us = Latency { p50: p50_ms * 1e3, p99: p50_ms * 2e3, ..Latency::default() };
        let operations = vec![Operation { count: 1000, latency_us, ..Operation::default() }];
        let extra = [(MESSAGES_PER_READ.to_owned(), messages), ("at_server_p99_us".to_owned(), 1_500.0)];
        Run {
            variant: case.to_string(),
            workload: what.workload(),
            achieved_per_s: per_s,
            operations,
            extra: extra.into(),
            ..Run::default()
        }
    }

    #[test]
    fn scans_stand_beside_tikvs_and_the_follower_beside_the_leader() {
        let scan = |scenario, per_s| run(&Case::Scan(scenario), Asked::Scan(10), per_s, 2.0, 0.01);
        let runs = [scan(Scenario::LeaderLocal, 20_000.0), scan(Scenario::FollowerBeside, 19_200.0)];
        let tables = all(&FULL, &runs);
        assert_eq!(tables.len(), 2);
        let expected = ["3 leader local", "10", "18,865", "20,000", "x1.06", "31.0", "1.50", "33.0", "4.00"];
        assert_eq!(tables[0].rows[0], expected);
        assert_eq!(tables[1].rows[0][3..], ["x0.96", "x0.80", ">= x0.95: met"]);
    }

    #[test]
    fn reads_near_the_leader_are_held_against_a_round_trip_and_counted_in_messages() {
        let get = |scenario, clients, p50, messages| {
            run(&Case::Near(scenario), Asked::Get { clients, place: "near" }, 1_000.0, p50, messages)
        };
        let runs = [
            get(Scenario::LeaderLocal, 1, 0.05, 0.0),
            get(Scenario::FollowerBeside, 1, 0.11, 2.0),
            get(Scenario::LeaderLocal, 64, 0.2, 0.0),
            get(Scenario::FollowerBeside, 64, 0.24, 0.05),
        ];
        let rows = all(&FULL, &runs).remove(0).rows;
        assert_eq!(rows[1][6], "p50 <= 0.100: MISSED");
        assert_eq!(rows[3][6], "p50 <= 0.250: met, messages <= 0.1: met");
        assert_eq!((rows[0][6].as_str(), rows[3][5].as_str()), ("none", "0.050"));
    }

    #[test]
    fn reads_far_from_the_leader_are_held_against_the_link_or_local_latency() {
        let get = |level, is_far, p50| {
            let read = FarRead { level, mode: ReplicaRead::Follower, is_far };
            run(&Case::Far(read), Asked::Get { clients: 16, place: "far" }, 500.0, p50, 0.1)
        };
        let runs = [
            get(ReadLevel::Linearizable, true, 29.0),
            get(ReadLevel::Session, true, 0.5),
            get(FarRead::BOUNDED, true, 0.2),
            get(ReadLevel::Eventual, false, 0.2),
        ];
        let tables = all(&FULL, &runs);
        let targets: Vec<_> = tables[0].rows.iter().map(|row| row[6].as_str()).collect();
        assert_eq!(targets, ["p50 <= 30.8: met", "p50 <= 0.300: MISSED", "p50 <= 0.300: met", "none"]);
        assert_eq!(tables[1].rows[0][3..], ["29.0", "x0.25"]);
    }
}
