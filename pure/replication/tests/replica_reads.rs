//! What a replica owes its host when it reads for others: limits, cancelling, silence when idle, and calm when others lie.

#[allow(unreachable_pub, dead_code, reason = "shared by several test programs")]
mod sim;

use hedgerow_replication::{
    Group, Mutations, ReadIndexReply, ReadIndexRequest, ReadNeed, ReadOutcome, ReadStart, Settings,
};
use hedgerow_types::log::LogPosition;
use hedgerow_types::{Instant, ReplicaId};
use sim::{MILLI, Weather, World};
use std::time::Duration;

const LEADER: ReplicaId = ReplicaId(1);
const SECOND: Duration = Duration::from_secs(1);
/// A bound that is shorter than what heartbeats prove.
const SHORT: Duration = Duration::from_millis(50);

/// Three voters, 1 leads, one write; everything at rest.
fn world() -> World {
    let mut world = World::new(7, Settings::default(), Weather::fair(), Mutations::default());
    (1..=3).for_each(|id| world.add_node(id, &[1, 2, 3], 0, id == 1));
    world.run(550 * MILLI);
    assert!(world.write(1));
    world.run(300 * MILLI);
    world
}

fn group(world: &mut World, id: u64) -> &mut Group {
    world.nodes.get_mut(&id).and_then(|node| node.group.as_mut()).expect("a running node")
}

/// The reads that ended, and the answers to others, of all that the group of `id` wants done now.
fn polled(world: &mut World, id: u64, now: Instant) -> (Vec<(u64, ReadOutcome)>, Vec<ReadIndexReply>) {
    let (mut reads, mut answers) = (Vec::new(), Vec::new());
    while let Some(ready) = group(world, id).poll_ready(now) {
        reads.extend(ready.reads);
        answers.extend(ready.answers.into_iter().map(|(_, answer)| answer));
    }
    (reads, answers)
}

#[test]
fn an_idle_replica_asks_nothing_and_wants_nothing() {
    let mut world = world();
    for id in 1..=3 {
        let now = world.local(id);
        let group = group(&mut world, id);
        assert_eq!((group.wakes_at(), group.wants_to_ask(now)), (None, None), "{id}");
        assert!(group.poll_ready(now).is_none());
        assert_eq!(group.ask(1, now), None);
    }
    // Bounded reads make it ask for a while; afterwards it is silent again.
    assert_eq!(world.read(2, ReadNeed::Within(SHORT)), Some(ReadStart::Wait));
    world.run(40_000 * MILLI);
    let now = world.local(2);
    // One for each half of the bound, for six hundred bounds.
    assert!((1_000..1_300).contains(&world.post.questions), "{}", world.post.questions);
    assert_eq!((group(&mut world, 2).wakes_at(), group(&mut world, 2).wants_to_ask(now)), (None, None));
}

/// Heartbeats and their responses prove how old a follower's data is, without a message more.
#[test]
fn a_follower_that_nobody_has_asked_has_a_proof() {
    let mut world = world();
    for id in [2, 3] {
        let start = world.read(id, ReadNeed::Within(SECOND));
        assert!(matches!(start, Some(ReadStart::Serve(served)) if served.staleness < Some(SECOND / 2)), "{start:?}");
    }
    assert_eq!(world.post.questions, 0);
    // Without its leader it has none that is newer, and what it has grows old.
    world.blocked = [(1, 2), (2, 1)].into();
    world.run(1_100 * MILLI);
    let start = world.read(2, ReadNeed::Within(SECOND));
    assert!(!matches!(start, Some(ReadStart::Serve(_))), "{start:?}");
}

#[test]
fn a_cancelled_read_is_forgotten_wherever_it_waits() {
    let mut world = world();
    let now = world.local(2);
    let replica = group(&mut world, 2);
    let far = replica.applied() + 5;
    // Gathered, asked, with an index, with a bound: two of each, and one of each is cancelled.
    for ticket in [1, 2] {
        assert_eq!(replica.read(ticket, ReadNeed::Latest, now), ReadStart::Wait);
    }
    let (_, first) = replica.ask(100, now).expect("something to ask");
    for ticket in [3, 4] {
        assert_eq!(replica.read(ticket, ReadNeed::Latest, now), ReadStart::Wait);
        assert_eq!(replica.read(ticket + 2, ReadNeed::AtLeast(far), now), ReadStart::Wait);
        assert_eq!(replica.read(ticket + 4, ReadNeed::Within(SHORT), now), ReadStart::Wait);
    }
    [1, 3, 5, 7, 99].into_iter().for_each(|ticket| replica.cancel_read(ticket));
    let commit = Some(LogPosition { term: replica.term(), index: far });
    replica.handle_read_index_reply(LEADER, ReadIndexReply { term: first.term, id: first.id, commit }, now);
    let (ended, _) = polled(&mut world, 2, now);
    assert!(ended.is_empty(), "the index is not there yet: {ended:?}");
    // Their patience is over, and their leader has not been silent for long enough to be given up.
    let patience = Settings::default().refusal() / 2 + Duration::from_millis(1);
    let later = now + patience;
    group(&mut world, 2).handle_tick(later);
    let (ended, _) = polled(&mut world, 2, later);
    let mut tickets: Vec<_> = ended.iter().map(|&(ticket, _)| ticket).collect();
    tickets.sort_unstable();
    assert_eq!(tickets, [2, 4, 6, 8]);
    assert!(ended.iter().all(|(_, outcome)| matches!(outcome, ReadOutcome::Lagging(_))), "{ended:?}");
    // Cancelled between its end and the report of it.
    assert_eq!(group(&mut world, 2).read(9, ReadNeed::AtLeast(far), later), ReadStart::Wait);
    group(&mut world, 2).handle_tick(later + patience);
    group(&mut world, 2).cancel_read(9);
    assert_eq!(polled(&mut world, 2, later + patience).0, []);
}

#[test]
fn c17_malformed_and_repeated_questions_harm_nobody() {
    let mut world = world();
    let now = world.local(1);
    let leader = group(&mut world, 1);
    let (term, commit) = (leader.term(), leader.commit());
    for (from, term, id) in [(2, term, 5), (2, term, 5), (3, term - 1, 6), (3, term + 9, 7), (77, u64::MAX, 0)] {
        leader.handle_read_index_request(ReplicaId(from), ReadIndexRequest { term, id }, now);
    }
    let (_, answers) = polled(&mut world, 1, now);
    let commits: Vec<_> = answers.iter().map(|answer| (answer.id, answer.commit.map(|at| at.index))).collect();
    assert_eq!(commits, [(5, Some(commit)), (5, Some(commit)), (6, None), (7, None), (0, None)]);
    assert!(answers.iter().all(|answer| answer.term == term));
}

#[test]
fn c17_malformed_and_repeated_answers_end_one_question_at_most() {
    let mut world = world();
    let now = world.local(2);
    let replica = group(&mut world, 2);
    let (term, index) = (replica.term(), replica.applied());
    let good = Some(LogPosition { term, index });
    let mut id = 10;
    let mut refused = |answer: ReadIndexReply, from: ReplicaId, replica: &mut Group| {
        assert_eq!(replica.read(id, ReadNeed::Latest, now), ReadStart::Wait);
        assert!(replica.ask(id, now).is_some());
        replica.handle_read_index_reply(from, ReadIndexReply { id: answer.id + id, ..answer }, now);
        id += 1;
    };
    // Refused: whoever was asked does not lead, or says what cannot be.
    for commit in [
        None,
        Some(LogPosition { term: 0, index: 91 }),
        Some(LogPosition { term: term + 1, index }),
        Some(LogPosition { term, index: u64::MAX }),
    ] {
        refused(ReadIndexReply { term, id: 0, commit }, LEADER, replica);
    }
    refused(ReadIndexReply { term: term + 1, id: 0, commit: good }, LEADER, replica);
    // Ignored: another question, another sender.
    refused(ReadIndexReply { term, id: 1_000, commit: good }, LEADER, replica);
    refused(ReadIndexReply { term, id: 0, commit: good }, ReplicaId(3), replica);
    let (ended, _) = polled(&mut world, 2, now);
    let expected: Vec<_> = (10..15).map(|ticket| (ticket, ReadOutcome::Refused)).collect();
    assert_eq!(ended, expected);
    // The two that were left alone are served by their own answers, once.
    let replica = group(&mut world, 2);
    for id in [16, 15, 15, 16, 10] {
        replica.handle_read_index_reply(LEADER, ReadIndexReply { term, id, commit: good }, now);
    }
    let (mut ended, _) = polled(&mut world, 2, now);
    ended.sort_unstable_by_key(|&(ticket, _)| ticket);
    assert!(matches!(ended[..], [(15, ReadOutcome::Serve(_)), (16, ReadOutcome::Serve(_))]), "{ended:?}");
}

#[test]
fn questions_that_wait_for_a_majority_are_bounded_and_answered_together() {
    let mut world = world();
    world.post.holds_answers = true;
    world.blocked.extend([(1, 2), (2, 1), (1, 3), (3, 1)]);
    world.run(Settings::default().lease().as_nanos() as u64 + 20 * MILLI);
    let now = world.local(1);
    let leader = group(&mut world, 1);
    assert!(!leader.lease_holds(now));
    let (term, commit) = (leader.term(), leader.commit());
    (0..1_030).for_each(|id| leader.handle_read_index_request(ReplicaId(3), ReadIndexRequest { term, id }, now));
    world.poll(1);
    let early: Vec<_> = world.post.held.drain(..).map(|(_, _, answer)| (answer.id, answer.commit)).collect();
    assert_eq!(early, (1_024..1_030).map(|id| (id, None)).collect::<Vec<_>>(), "those that found no place");
    // One more heartbeat, which a majority answers, is enough for all of them.
    world.blocked.clear();
    world.run(300 * MILLI);
    let at = Some(LogPosition { term, index: commit });
    let late: Vec<_> = world.post.held.drain(..).map(|(_, _, answer)| (answer.id, answer.commit)).collect();
    assert_eq!(late, (0..1_024).map(|id| (id, at)).collect::<Vec<_>>());
}

#[test]
fn reads_that_wait_are_bounded() {
    let mut world = world();
    let now = world.local(2);
    let replica = group(&mut world, 2);
    let starts = (0..70_000).map(|ticket| replica.read(ticket, ReadNeed::Latest, now));
    assert_eq!(starts.filter(|start| *start == ReadStart::Wait).count(), 65_536);
    assert!(matches!(replica.read(70_000, ReadNeed::AtLeast(99), now), ReadStart::NotReady(_)));
    assert!(matches!(replica.read(70_000, ReadNeed::Within(SHORT), now), ReadStart::NotReady(_)));
    assert!(matches!(replica.read(70_000, ReadNeed::Anything, now), ReadStart::Serve(_)));
}

/// R8: a replica that is too far behind says so at once, with its lag; what does not need more is served.
#[test]
fn r08_a_replica_far_behind_refuses_at_once() {
    let mut world = world();
    world.nodes.get_mut(&2).expect("a node").is_apply_stopped = true;
    for _ in 0..10_100 {
        assert!(world.write(1));
        world.run(MILLI / 2);
    }
    world.run(300 * MILLI);
    let behind = group(&mut world, 1).commit() - group(&mut world, 2).applied();
    assert!(behind > 10_000, "{behind}");
    let applied = group(&mut world, 2).applied();
    for need in [ReadNeed::Latest, ReadNeed::AtLeast(applied + 1), ReadNeed::Within(SECOND)] {
        let start = world.read(2, need);
        assert!(matches!(start, Some(ReadStart::Lagging(lag)) if lag.entries == behind), "{need:?}: {start:?}");
    }
    assert!(matches!(world.read(2, ReadNeed::AtLeast(applied)), Some(ReadStart::Serve(_))));
    world.release_apply(2);
    world.run(300 * MILLI);
    let reads = world.check.reads;
    assert_eq!(world.read(2, ReadNeed::Latest), Some(ReadStart::Wait));
    world.run(MILLI);
    assert_eq!((world.check.reads, &world.check.violation), (reads + 1, &None));
}

/// One follower, 64 readers that read again as soon as they are answered: reads share questions.
#[test]
fn many_readers_share_few_questions() {
    let mut world = world();
    world.post.ask_us = (200, 0);
    let before = (world.check.reads, world.post.questions + world.post.answers);
    for _ in 0..100 {
        (0..64).for_each(|_| assert_eq!(world.read(2, ReadNeed::Latest), Some(ReadStart::Wait)));
        world.run(MILLI);
    }
    let reads = world.check.reads - before.0;
    let messages = world.post.questions + world.post.answers - before.1;
    assert_eq!(reads, 6_400);
    assert!(messages * 10 <= reads, "{messages} messages for {reads} reads");
}
