//! The pitfalls of linearizable reads that other systems fell into, at the level of whole clusters. The names are those of
//! the list of pitfalls; each is a few seeds of the kind of run that provokes it. The command `hedgerow-sim` runs the same
//! kinds by the thousand.
//!
//! At the level of one group, the tests of `hedgerow-replication` cover the same list, and with it those lines that a whole
//! cluster cannot tell apart (C4 no folding, C6 fresh context, C7 priority of a leader change, C8 batching, C10 check
//! around the storage read, C17 malformed messages).

use hedgerow_sim::run::{Report, Request, run};
use hedgerow_sim::scenario::Scenario;
use hedgerow_sim::stats::Stats;

const SEEDS: u64 = 30;

fn reports(scenario: Scenario, machine_count: Option<usize>) -> impl Iterator<Item = Report> {
    (1..=SEEDS).map(move |seed| run(Request { seed, scenario: Some(scenario), machine_count, is_traced: false }))
}

fn all_good(scenario: Scenario, machine_count: Option<usize>) -> Stats {
    let mut stats = Stats::default();
    for report in reports(scenario, machine_count) {
        assert_eq!(report.failure, None, "{} seed {}", scenario.name(), report.request.seed);
        stats.add(&report.stats);
    }
    stats
}

fn faults(stats: &Stats, name: &str) -> u64 {
    stats.faults.get(name).copied().unwrap_or(0)
}

#[test]
fn c01_apply_skew_and_c02_fresh_leader() {
    let stats = all_good(Scenario::ApplySkew, Some(3));
    assert!(faults(&stats, "death of a leader before a busy follower") >= SEEDS && stats.failovers >= SEEDS);
}

#[test]
fn c03_transfer_and_c09_suspect_lease() {
    let stats = all_good(Scenario::Transfers, Some(3));
    assert!(faults(&stats, "leader transfer") >= SEEDS && stats.failovers >= SEEDS);
}

#[test]
fn c05_leader_change_with_reads_waiting() {
    let stats = all_good(Scenario::Crashes, Some(5));
    assert!(stats.crashes >= SEEDS && stats.failovers >= SEEDS);
}

#[test]
fn c11_lease_clock() {
    let stats = all_good(Scenario::Clocks, Some(3));
    assert!(faults(&stats, "pause leader") >= SEEDS && faults(&stats, "clock rate") >= SEEDS);
}

/// No lease survives clocks that break its assumption. That this shows proves that the runs above would show it too.
#[test]
fn c11_clocks_beyond_the_configured_error_are_noticed() {
    let is_noticed = |report: Report| report.failure.is_some_and(|failure| failure.contains("two leases"));
    assert!(reports(Scenario::ClocksBeyond, Some(3)).any(is_noticed));
}

#[test]
fn c12_lease_restart() {
    let stats = all_good(Scenario::RestartFence, Some(3));
    assert!(faults(&stats, "restart inside the lease") >= SEEDS);
    all_good(Scenario::RestartFence, Some(5));
}

#[test]
fn c13_minority_leader() {
    let stats = all_good(Scenario::MinorityLeader, Some(3));
    assert!(faults(&stats, "isolate leader") >= SEEDS && stats.failovers >= SEEDS);
}

/// C15 and C16 speak of caches that this system does not have; what is left of them is that a replica that was lost and
/// learns again answers nothing from before.
#[test]
fn c18_reads_while_replicas_are_lost_and_learn_again() {
    let stats = all_good(Scenario::Repair, Some(3));
    assert!(faults(&stats, "wiped disk") + faults(&stats, "corrupt log") >= SEEDS / 2 && stats.snapshots >= SEEDS / 2);
}
