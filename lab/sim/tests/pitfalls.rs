//! The pitfalls of reads that other systems fell into, at the level of whole clusters. The names are those of the list of
//! pitfalls; each is a few seeds of the kind of run that provokes it, in which every read is judged at its level by three
//! judges and every replica's silence is measured. The command `hedgerow-sim` runs the same kinds by the thousand.
//!
//! The tests of `hedgerow-replication` cover the list at the level of one group, those of `hedgerow-node` at that of one
//! node. Where a line of the list is not here:
//!
//! - C10 (lease or proof lost between the check and the storage read): a node checks and reads on one thread with one
//!   reading of its clock; nothing comes between. Pauses of whole processes are in C11.
//! - C14 (locks checked only at the leader): there are no locks. A question is never forwarded: one that reaches a replica
//!   that has stepped down is answered so (C03).
//! - C15, C16 (caches of rows and of results): rows that were read lately are kept by the engine, which has its own tests
//!   (`host/storage/tests/engines.rs`); the simulated engine keeps none. What is left of them here is C18.
//! - C17 (a malformed question): machines here send each other only what a node wrote. The decoders' tests have it.
//! - S02, S03, S04 (intents, future and extreme timestamps): no read carries a timestamp and no write an intent; how old
//!   data is, is counted on one clock from the asking on.
//! - S05, S06 (storms of refused reads, flags lost on the way to the leader): the behaviour of `hedgerow-client`, whose tests
//!   have them. The simulated client keeps its level through all attempts.
//! - S07 (merge, split): partitions do neither. Freshness that goes on without writes is in S10.
//! - S09 (a mechanism that is switched off): a replica without a proof asks for one; there is no switch.
//! - S11 (the same snapshot wherever it is read): a bounded read names a bound, not a snapshot.
//! - S12 (a minimum over all stores): no replica's age counts for another one.
//! - S13 (compaction passes the read's timestamp): reads see the newest applied state, which is never compacted away.

use hedgerow_replication::Role;
use hedgerow_sim::history::{Call, Outcome};
use hedgerow_sim::run::{Report, Request, run};
use hedgerow_sim::scenario::Scenario;
use hedgerow_sim::stats::Stats;
use hedgerow_types::ReadLevel;
use std::time::Duration;

const SEEDS: u64 = 30;
/// Within so many a stale read shows where clocks are worse than declared.
const SEEDS_BEYOND: u64 = 100;
const BOUNDED: ReadLevel = ReadLevel::Bounded(Duration::from_secs(1));

fn reports(scenario: Scenario, machine_count: Option<usize>) -> impl Iterator<Item = Report> {
    (1..=SEEDS).map(move |seed| run(Request { seed, scenario: Some(scenario), machine_count, ..Request::default() }))
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

/// Reads that were served by replicas that did not lead.
fn elsewhere(stats: &Stats, level: ReadLevel) -> u64 {
    stats.reads_of(level, Role::Follower) + stats.reads_of(level, Role::Learner)
}

#[test]
fn c01_apply_skew_and_c02_fresh_leader() {
    let stats = all_good(Scenario::ApplySkew, Some(3));
    assert!(faults(&stats, "death of a leader before a busy follower") >= SEEDS && stats.failovers >= SEEDS);
    assert!(elsewhere(&stats, ReadLevel::Linearizable) >= 10 * SEEDS, "{stats}");
}

#[test]
fn c03_transfer_and_c09_suspect_lease() {
    let stats = all_good(Scenario::Transfers, Some(3));
    assert!(faults(&stats, "leader transfer") >= SEEDS && stats.failovers >= SEEDS);
    assert!(elsewhere(&stats, ReadLevel::Linearizable) >= 10 * SEEDS, "{stats}");
}

/// Answers that overtake each other, questions that are lost or come late out of a healed cut, answers and changes of the
/// leader in one batch of a slow process, reads that come just after a question has left.
#[test]
fn c04_no_folding_c06_fresh_context_c07_leader_change_first_c08_joining() {
    let stats = all_good(Scenario::Reads, Some(5));
    for fault in ["cut pair", "slow process", "leader transfer", "pause"] {
        assert!(faults(&stats, fault) >= SEEDS / 3, "{fault}: {stats}");
    }
    assert!(elsewhere(&stats, ReadLevel::Linearizable) >= 50 * SEEDS, "{stats}");
}

#[test]
fn c05_role_change_with_reads_waiting() {
    let stats = all_good(Scenario::Crashes, Some(5));
    assert!(stats.crashes >= SEEDS && stats.failovers >= SEEDS);
    assert!(elsewhere(&stats, ReadLevel::Linearizable) >= 10 * SEEDS, "{stats}");
}

#[test]
fn c11_lease_clock() {
    let stats = all_good(Scenario::Clocks, Some(3));
    assert!(faults(&stats, "pause leader") >= SEEDS && faults(&stats, "clock rate") >= SEEDS);
    assert!(elsewhere(&stats, BOUNDED) >= 10 * SEEDS, "{stats}");
}

/// No lease and no proof of freshness survives clocks that break its assumption. That this shows, in what the clients read
/// too, proves that the runs above would show it.
#[test]
fn c11_clocks_beyond_the_configured_error_are_noticed() {
    let mut missing =
        vec!["two leases", "a linearizable read is wrong", "is not linearizable", "a bounded read is wrong"];
    for seed in 1..=SEEDS_BEYOND {
        let request =
            Request { seed, scenario: Some(Scenario::ClocksBeyond), machine_count: Some(3), ..Request::default() };
        let failure = run(request).failure.unwrap_or_default();
        missing.retain(|what| !failure.contains(what));
        if missing.is_empty() {
            return;
        }
    }
    panic!("no seed of {SEEDS_BEYOND} shows {missing:?}");
}

#[test]
fn c12_lease_restart() {
    let stats = all_good(Scenario::RestartFence, Some(3));
    assert!(faults(&stats, "restart inside the lease") >= SEEDS);
    all_good(Scenario::RestartFence, Some(5));
}

/// A leader that is cut off answers nobody's questions, and a follower that is cut off says so within the bound: what a
/// replica owes its clients is checked at every moment of every run, see `answers.rs`.
#[test]
fn c13_minority_leader_and_s08_partitioned_follower() {
    let stats = all_good(Scenario::MinorityLeader, Some(3));
    assert!(faults(&stats, "isolate leader") >= SEEDS && stats.failovers >= SEEDS);
    let stats = all_good(Scenario::Partitions, Some(3));
    assert!(faults(&stats, "isolate one") >= SEEDS / 3);
    let refused = |name: &str| stats.refusals.get(name).copied().unwrap_or(0);
    assert!(refused("lagging") >= 5 * SEEDS, "{stats}");
}

/// C15 and C16, too, for what a node keeps above its engine: a replica that was lost and learns again answers nothing from before.
/// And D7: a disk that is put back from a copy is turned away, and so is a clone.
#[test]
fn c18_reads_while_replicas_are_lost_and_learn_again() {
    let mut stats = all_good(Scenario::Repair, Some(3));
    // A copy is put back only where everybody has heard what it lacks, which seldom comes about.
    stats.add(&all_good(Scenario::Repair, Some(5)));
    assert!(faults(&stats, "wiped disk") + faults(&stats, "corrupt log") >= SEEDS && stats.snapshots >= SEEDS);
    let (put_back, cloned) = (faults(&stats, "copy put back"), faults(&stats, "clone started"));
    assert!(put_back > 0 && cloned > 0 && put_back + cloned >= SEEDS / 6, "{stats}");
    assert!(faults(&stats, "copy turned away") == put_back && faults(&stats, "clone turned away") == cloned, "{stats}");
    assert!(elsewhere(&stats, ReadLevel::Linearizable) >= 10 * SEEDS, "{stats}");
}

/// Slow and stuck disks hold up the log's rounds; reads end all the same.
#[test]
fn c19_log_that_blocks() {
    let stats = all_good(Scenario::Disks, Some(3));
    assert!(faults(&stats, "slow disk") >= SEEDS, "{stats}");
    assert!(elsewhere(&stats, ReadLevel::Linearizable) >= 10 * SEEDS, "{stats}");
}

/// Every read goes to the leader and to another replica, where it asks for an index of its own; either answer wins.
#[test]
fn c20_hedged_reads() {
    let (mut stats, mut reads) = (Stats::default(), 0);
    let mut seed = 0;
    while reads < 100_000 {
        seed += 1;
        let report = run(Request { seed, scenario: Some(Scenario::Hedged), ..Request::default() });
        assert_eq!(report.failure, None, "seed {seed}");
        let is_read = |outcome: &Outcome, call: &Call| !call.is_write() && matches!(outcome, Outcome::Ok(_));
        reads += report.history.operations().iter().filter(|one| is_read(&one.outcome, &one.call)).count();
        stats.add(&report.stats);
    }
    let leader = stats.reads_of(ReadLevel::Linearizable, Role::Leader);
    let others = elsewhere(&stats, ReadLevel::Linearizable);
    assert!(leader > reads as u64 / 10 && others > reads as u64 / 10, "one kind of replica wins always: {stats}");
}

/// Reads that are hedged, tied, retried and fall back at nodes whose reads queue, with cancels that come early, late, twice and
/// for what is not there, between faults (H2, H15 to H17, H19). Whatever is answered, first or last, is right at the level of the attempt
/// that it answers, nothing is answered twice, and nothing is left unanswered but what its own client took back.
#[test]
fn h15_cancel_races_h16_h17_ties_h19_others_and_s14_sessions_with_hedges() {
    let stats = all_good(Scenario::Tied, Some(3));
    for name in ["hedged read", "tied read", "retried read"] {
        assert!(stats.raced_as(name) >= 50 * SEEDS, "{name}: {stats}");
    }
    assert!(stats.raced_as("fallback") >= 10 * SEEDS, "{stats}");
    assert!(stats.refusals.get("withdrawn").copied().unwrap_or(0) >= 5 * SEEDS, "{stats}");
    assert!(elsewhere(&stats, ReadLevel::Session) >= 10 * SEEDS && stats.late_reads >= 10 * SEEDS, "{stats}");
}

/// Any write may be sent again through another node, increments and swaps too: it is applied once, and all attempts tell the same
/// (in place of H23: what the type of an operation would forbid, its number allows).
#[test]
fn h23_speculated_writes() {
    let stats = all_good(Scenario::Speculated, None);
    assert!(stats.raced_as("speculated write") >= 100 * SEEDS, "{stats}");
    assert!(stats.raced_as("retried write") >= 10 * SEEDS && stats.failovers >= SEEDS, "{stats}");
}

/// Processes that take long to apply: an age counts only with what is applied.
#[test]
fn s01_freshness_only_with_apply_and_s14_monotonic_sessions() {
    let stats = all_good(Scenario::Reads, Some(3));
    for level in [BOUNDED, ReadLevel::Session, ReadLevel::Eventual] {
        assert!(elsewhere(&stats, level) >= 10 * SEEDS, "{level}: {stats}");
    }
}

/// Elections, new terms and long times without a write: in the end of every run each replica proves its freshness anew, and
/// serves every level itself, see `run.rs`.
#[test]
fn s10_freshness_goes_on_after_elections_and_without_writes() {
    let stats = all_good(Scenario::RestartFence, Some(3));
    assert!(stats.failovers >= SEEDS && elsewhere(&stats, BOUNDED) >= 5 * SEEDS, "{stats}");
}

/// Learners are added and removed under load, with and without faults.
#[test]
fn r20_learners_come_and_go() {
    let stats = all_good(Scenario::ReadsLearners, None);
    assert!(faults(&stats, "change of learners") >= SEEDS, "{stats}");
    for level in [ReadLevel::Linearizable, BOUNDED, ReadLevel::Session, ReadLevel::Eventual] {
        assert!(stats.reads_of(level, Role::Learner) >= SEEDS, "{level}: {stats}");
    }
}
