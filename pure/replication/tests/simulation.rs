//! Random histories: whatever happens, the properties of `sim/check.rs` hold.

#[allow(unreachable_pub, dead_code, reason = "shared by several test programs")]
mod sim;

use hedgerow_replication::Mutations;
use sim::{MILLI, World, chaos};

/// A run's length; elections take 100 to 200 ms in it.
const RUN: u64 = 1_500 * MILLI;

fn run(seed: u64, mutations: Mutations) -> World {
    let mut world = chaos::world(seed, mutations);
    world.run(RUN);
    world
}

/// The seeds to run: `SEEDS=first..end` replaces the default.
fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SEEDS") else { return default };
    let (first, end) = text.split_once("..").expect("SEEDS=first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

#[test]
fn every_history_is_safe() {
    let mut totals = [(0, ""); 24];
    for seed in seeds(0..1_000) {
        let world = run(seed, Mutations::default());
        if let Some(violation) = &world.check.violation {
            let command = "cargo test -p hedgerow-replication --test simulation every_history";
            let history = trace(seed).join("\n");
            panic!("{history}\nseed {seed}: {violation}\nSEEDS={seed}..{} {command}", seed + 1);
        }
        let (check, counts) = (&world.check, world.counts);
        let of_world = [
            (check.writes, "writes"),
            (check.reads, "reads"),
            (check.served[0], "reads of the latest"),
            (check.served[1], "reads of an index"),
            (check.served[2], "reads within a bound"),
            (check.served[3], "reads of anything"),
            (world.post.questions, "questions"),
            (world.post.tail_questions, "questions to logs"),
            (world.post.tail_answers[0], "logs that hold nothing newer"),
            (world.post.tail_answers[1], "logs that hold something newer"),
            (world.post.tail_answers[2], "logs that are to be asked again"),
            (world.post.served_by_quorum, "reads served by a majority's logs"),
            (check.refused, "reads refused"),
            (check.lagging, "reads lagging"),
            (world.event_count, "events"),
            (counts.elections, "elections"),
            (counts.installs, "snapshots installed"),
            (counts.snapshots, "snapshots sent"),
            (counts.fetches, "fetches"),
            (counts.joint, "joint memberships"),
            (counts.truncations, "truncations"),
            (counts.restarts, "restarts"),
            (counts.resets, "log resets"),
            (counts.held, "applications refused"),
        ];
        for (total, (count, name)) in totals.iter_mut().zip(of_world) {
            *total = (total.0 + count, name);
        }
    }
    for (total, name) in totals {
        println!("{total} {name}");
        assert!(total > 0, "no history had {name}");
    }
}

/// When everything is whole again, the group goes on, and everybody in it catches up.
#[test]
fn every_group_recovers() {
    for seed in seeds(0..500) {
        let mut world = run(seed, Mutations::default());
        world.calm_down();
        world.run(3_000 * MILLI);
        let leader = world.leader().unwrap_or_else(|| panic!("seed {seed}: no leader"));
        let before = world.check.writes;
        assert!(world.write(leader), "seed {seed}: {leader} takes no write");
        world.run(300 * MILLI);
        assert_eq!(world.check.violation, None, "seed {seed}");
        assert!(world.check.writes > before, "seed {seed}: the write is not acknowledged");
        let group = |id: u64| world.nodes[&id].group.as_ref().expect("a running node");
        let membership = group(leader).membership().clone();
        assert!(!membership.is_joint(), "seed {seed}: {membership:?}");
        for replica in membership.replicas() {
            let (applied, expected) = (group(replica.0).applied(), group(leader).last_index());
            assert_eq!(applied, expected, "seed {seed}: {replica:?} has not caught up with {leader}");
        }
        assert_eq!(world.leader(), Some(leader), "seed {seed}: the leader changed");
        let waiting = world.nodes.values().find(|node| !node.reads.is_empty());
        assert!(waiting.is_none(), "seed {seed}: {:?} has reads that nothing ends", waiting.map(|node| node.id));
    }
}

/// Everything that happens in a run.
fn trace(seed: u64) -> Vec<String> {
    let mut world = chaos::world(seed, Mutations::default());
    world.trace = Some(Vec::new());
    world.run(RUN);
    world.trace.unwrap_or_default()
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let (first, second) = (trace(seed), trace(seed));
        assert!(!first.is_empty(), "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Messages that no replica would send may do harm, but must not bring a replica down.
#[test]
fn forged_messages_do_not_panic() {
    for seed in seeds(0..500) {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = chaos::world(seed, Mutations::default());
            world.weather.forged = 30;
            world.check.is_lenient = true;
            world.run(RUN);
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

/// The number of seeds until the mutation is noticed; fails if none notices it.
fn noticed(name: &str, mutations: Mutations) {
    let most = 3_000;
    let noticed = (0..most).find_map(|seed| run(seed, mutations).check.violation.map(|violation| (seed, violation)));
    match noticed {
        Some((seed, violation)) => println!("{name}: seed {seed}: {violation}"),
        None => panic!("no seed of {most} notices {name}"),
    }
}

/// The most that can be declared, a tenth.
const DECLARED_MAX_PPM: u32 = 100_000;

/// Half of the clocks run a tenth too fast and the others a tenth too slow, in a world that was told of `declared_ppm`.
fn worst_clocks(seed: u64, declared_ppm: u32) -> World {
    let mut world = chaos::world_declaring(seed, Mutations::default(), declared_ppm);
    let (time, rate) = (world.time, i64::from(DECLARED_MAX_PPM));
    for node in world.nodes.values_mut() {
        // Whether the first one, which leads at first, is slow is drawn too.
        node.set_rate(if (node.id + seed).is_multiple_of(2) { rate } else { -rate }, time);
    }
    world.run(RUN);
    world
}

/// Pitfall C11: clocks that are wrong by a tenth, where that is declared, make nothing stale.
#[test]
fn c11_clocks_wrong_by_a_tenth_are_safe_where_that_is_declared() {
    let mut served = [0; 4];
    for seed in 0..200 {
        let world = worst_clocks(seed, DECLARED_MAX_PPM);
        assert_eq!(world.check.violation, None, "seed {seed}");
        for (total, count) in served.iter_mut().zip(world.check.served) {
            *total += count;
        }
    }
    assert!(served.iter().all(|count| *count > 300), "{served:?}");
}

/// The same clocks show where less is declared: the runs above would show a lease that is too long.
#[test]
fn c11_clocks_wrong_by_a_tenth_are_noticed_where_less_is_declared() {
    let broken = (0..1_000).find_map(|seed| worst_clocks(seed, 5_000).check.violation);
    println!("{}", broken.expect("a violation"));
}

/// Clocks that are wrong by more than the settings allow break what rests on them: the test can see it.
#[test]
fn clocks_beyond_the_bound_are_noticed() {
    let broken = (0..500).find_map(|seed| {
        let mut world = chaos::world(seed, Mutations::default());
        let time = world.time;
        for node in world.nodes.values_mut() {
            node.set_rate(if node.id % 2 == 0 { -400_000 } else { 400_000 }, time);
        }
        world.run(RUN);
        world.check.violation
    });
    println!("{}", broken.expect("a violation"));
}

macro_rules! mutations {
    ($($test:ident => $field:ident,)*) => {
        $(
            #[test]
            fn $test() {
                noticed(stringify!($field), Mutations { $field: true, ..Mutations::default() });
            }
        )*
    };
}

// `keep_reads_across_terms` is so rarely noticed by chance that the script `c05_no_sharing_across_roles` stands for it, and
// `quorum_asks_anew_after_a_change` stands for `ignore_changes_in_tail`.
mutations! {
    a_missing_restart_fence_is_noticed => skip_restart_fence,
    a_missing_vote_fence_is_noticed => skip_vote_fence,
    a_missing_apply_wait_is_noticed => skip_apply_wait,
    a_lease_during_a_transfer_is_noticed => lease_ignores_transfer,
    a_lease_from_receipt_is_noticed => lease_from_receipt,
    an_endless_lease_is_noticed => lease_never_ends,
    a_missing_quorum_check_is_noticed => skip_quorum_check,
    a_read_before_the_own_commit_is_noticed => skip_own_term_commit,
    sending_before_persisting_is_noticed => send_before_persist,
    a_forgotten_commit_index_is_noticed => forget_commit,
    an_unapplied_index_at_a_follower_is_noticed => follower_skip_apply_wait,
    a_read_that_joins_a_sent_question_is_noticed => join_sent_question,
    an_answer_to_another_question_is_noticed => take_any_answer,
    an_unconfirmed_answer_is_noticed => answer_unconfirmed,
    an_answer_before_the_own_commit_is_noticed => answer_before_own_commit,
    a_proof_from_receipt_is_noticed => prove_from_receipt,
    a_proof_before_its_index_is_applied_is_noticed => prove_before_apply,
    a_proof_of_a_leader_alone_is_noticed => prove_without_quorum,
    an_ignored_session_is_noticed => ignore_session_floor,
    an_ignored_clock_rate_is_noticed => ignore_clock_rate,
    a_log_that_is_asked_alone_is_noticed => ask_own_log_only,
    an_ignored_touch_is_noticed => ignore_touches,
    a_read_that_joins_a_sent_question_to_logs_is_noticed => join_sent_tail_question,
    a_log_that_is_cut_and_asked_is_noticed => ignore_cut_tail,
}
