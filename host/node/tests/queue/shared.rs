//! Reads of many rows that the node's further threads have a part in: which, what they show, and how they end.

use crate::cancel::{OTHER, assert_freed};
use crate::named::{CONNECTION, Small, extra, first};
use crate::world::{MS, bounded};
use hedgerow_node::{Job, JobResult, ReadSize};
use hedgerow_types::{NodeId, ReadLevel, Refusal};
use hedgerow_wire::Extension;
use serde_json::{Value, json};

/// A cluster whose nodes have one further thread, which takes reads of one row too. What it does at `node` stays where it is until it is let
/// go.
fn shared() -> (Small, NodeId) {
    let mut small = Small::configured(|config| (config.workers, config.shared_rows) = (2, 1));
    let node = small.places.leader;
    hold(&mut small, node);
    (small, node)
}

fn hold(small: &mut Small, node: NodeId) {
    small.world.machines.get_mut(&node).unwrap().holds = |job| job.read_size() == Some(ReadSize::Shared);
}

fn told(small: &mut Small, node: NodeId) -> Value {
    small.told(node)["aside"]["shared"].clone()
}

/// What a thread brings back that has not found its rows in memory.
fn not_at_once(job: &Job) -> JobResult {
    let Job::Read { ticket, read, .. } = job else { panic!("it reads") };
    JobResult::NotAtOnce { ticket: *ticket, read: read.clone() }
}

/// Puts a read at the node with another one behind it, so that the first is given away. The second is answered.
fn give_away(small: &mut Small, node: NodeId, request: u64, level: ReadLevel) -> i32 {
    let number = small.put(node, first(request, level));
    let behind = small.put(node, first(request + 1, level));
    small.world.settle(node);
    assert_eq!((small.world.has_answer(number), small.world.has_answer(behind)), (false, true));
    number
}

/// The snapshot is of the moment at which the read was served, and so is the index that the reply names.
#[test]
fn n4f_a_shared_read_shows_its_moment_and_holds_nobody_up() {
    let (mut small, node) = shared();
    let (key, places) = (small.key.clone(), small.places.leader);
    let number = give_away(&mut small, node, 1, ReadLevel::Linearizable);
    assert_eq!(told(&mut small, node), json!({ "run": 1, "running": 1, "waiting": 0, "in_vain": 0 }));
    let index = small.world.write(&key, places, "1");
    small.world.let_go(node);
    let (old, extension) = small.value(number);
    assert!(old == "0" && extension.index < index, "{old} {extension:?}");
    assert_eq!(told(&mut small, node), json!({ "run": 1, "running": 0, "waiting": 0, "in_vain": 0 }));
    small.assert_idle(node);
}

#[test]
fn a_read_that_nobody_waits_behind_is_served_where_it_is() {
    let (mut small, node) = shared();
    let number = small.put(node, first(1, ReadLevel::Linearizable));
    small.world.settle(node);
    assert!(small.world.has_answer(number));
    assert_eq!(told(&mut small, node)["run"], 0);
}

#[test]
fn one_thread_gives_nothing_away_and_few_rows_are_not_worth_it() {
    for (workers, rows) in [(1, 1), (2, 2)] {
        let mut small = Small::configured(|config| (config.workers, config.shared_rows) = (workers, rows));
        let node = small.places.leader;
        let numbers: Vec<i32> = (0..20).map(|request| small.put(node, first(request, ReadLevel::Eventual))).collect();
        small.world.settle(node);
        assert!(numbers.into_iter().all(|number| small.world.has_answer(number)));
        assert_eq!(told(&mut small, node)["run"], 0);
    }
}

/// What the thread did not find in memory goes back to its line, and is read as by a node with one thread.
#[test]
fn n4f_a_shared_read_whose_rows_are_on_a_disk_is_served_once_more() {
    let (mut small, node) = shared();
    let number = give_away(&mut small, node, 1, ReadLevel::Linearizable);
    let (key, places) = (small.key.clone(), small.places.leader);
    small.world.write(&key, places, "1");
    let before = small.told(node)["first"]["run"].as_u64().unwrap();
    let result = not_at_once(&small.world.machines[&node].held[0]);
    let mut done = small.world.run_held(node);
    done[0].result = Ok(result);
    small.world.take_done(node, done);
    assert_eq!(small.told(node)["first"]["queued"], 1);
    small.world.settle(node);
    assert_eq!(small.value(number).0, "1", "judged anew, and no older than when it was");
    assert_eq!(small.told(node)["first"]["run"], before, "it counts once");
    assert_eq!(told(&mut small, node), json!({ "run": 1, "running": 0, "waiting": 0, "in_vain": 1 }));
    small.assert_idle(node);
    // The next few are not tried.
    for request in 0..8 {
        let numbers = [20, 21].map(|at| small.put(node, first(10 * request + at, ReadLevel::Eventual)));
        small.world.settle(node);
        assert!(numbers.into_iter().all(|number| small.world.has_answer(number)));
    }
    hold(&mut small, node);
    let again = give_away(&mut small, node, 1_000, ReadLevel::Eventual);
    small.world.let_go(node);
    assert!(small.world.has_answer(again));
}

#[test]
fn what_came_back_is_not_given_away_again() {
    let (mut small, node) = shared();
    let numbers: Vec<i32> = (0..40).map(|request| small.put(node, first(request, ReadLevel::Eventual))).collect();
    small.world.settle(node);
    let held = &small.world.machines[&node].held;
    let results: Vec<_> = held.iter().map(not_at_once).collect();
    assert_eq!(results.len(), 30);
    let mut done = small.world.run_held(node);
    done.iter_mut().zip(results).for_each(|(done, result)| done.result = Ok(result));
    small.world.take_done(node, done);
    small.world.settle(node);
    assert!(numbers.into_iter().all(|number| small.world.has_answer(number)));
    assert_eq!(told(&mut small, node), json!({ "run": 30, "running": 0, "waiting": 0, "in_vain": 30 }));
    small.assert_idle(node);
}

#[test]
fn h21_a_shared_read_is_ended() {
    let (mut small, node) = shared();
    let number = give_away(&mut small, node, 1, ReadLevel::Linearizable);
    assert_freed(&mut small, node, 1, number, "waiting_reads");
    let done = small.world.run_held(node);
    assert!(matches!(done[0].result, Ok(JobResult::NotAtOnce { .. })), "nobody wants it, and it reads nothing");
    small.world.take_done(node, done);
    small.world.settle(node);
    assert_eq!(told(&mut small, node), json!({ "run": 1, "running": 0, "waiting": 0, "in_vain": 0 }));
    small.assert_idle(node);
}

#[test]
fn a_shared_read_ends_with_its_connection_and_its_deadline() {
    let (mut small, node) = shared();
    let gone = give_away(&mut small, node, 1, ReadLevel::Linearizable);
    small.close(CONNECTION, node);
    small.world.let_go(node);
    assert!(!small.world.has_answer(gone));
    hold(&mut small, node);
    let [late, behind] = [10, 11].map(|request| small.put_on(OTHER, node, first(request, ReadLevel::Eventual)));
    small.world.settle(node);
    assert_eq!((small.world.has_answer(late), small.world.has_answer(behind)), (false, true));
    small.world.run(5_100 * MS);
    assert_eq!(small.refusal(late), Some(Refusal::Expired));
    assert_eq!(told(&mut small, node)["running"], 1, "until the job has ended");
    small.world.let_go(node);
    assert_eq!(told(&mut small, node)["running"], 0);
    small.assert_idle(node);
}

/// There are no lanes, and what waits counts as begun: what depends on either stays, and what has no time to wait.
#[test]
fn extra_attempts_bounded_reads_and_those_in_a_hurry_are_served_where_they_are() {
    let (mut small, node) = shared();
    let hurried = Extension { deadline_ms: Some(40), ..first(1, ReadLevel::Eventual) };
    for attempt in [extra(1, ReadLevel::Eventual), first(1, bounded(500)), hurried] {
        let numbers = [0, 1].map(|_| small.put(node, attempt.clone()));
        small.world.settle(node);
        assert!(numbers.into_iter().all(|number| small.world.has_answer(number)), "{attempt:?}");
    }
    assert_eq!(told(&mut small, node)["run"], 0);
}

/// The further thread has three reads for each that waits for the node's own.
#[test]
fn both_have_their_part_of_a_turn() {
    let (mut small, node) = shared();
    let numbers: Vec<i32> = (0..16).map(|request| small.put(node, first(request, ReadLevel::Eventual))).collect();
    small.world.settle(node);
    assert_eq!(numbers.iter().filter(|number| small.world.has_answer(**number)).count(), 4);
    let held = &small.world.machines[&node].held;
    assert!(held.len() == 12 && held.iter().all(|job| matches!(job, Job::Read { .. })));
    small.world.let_go(node);
    assert!(numbers.into_iter().all(|number| small.world.has_answer(number)));
    small.assert_idle(node);
}
