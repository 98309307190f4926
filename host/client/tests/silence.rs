//! Where first attempts go while a node is silent. Time passes only when a test says so.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, after_10_ms, answer, get, ms, pass, patient, settle, spawn_get};
use fake::{Action, page};
use hedgerow_client::{
    BudgetOptions, Candidate, ClientOptions, HedgeOptions, Kind, LoadBalancing, LoadBalancingPolicy, Policy, ReadLevel,
    ReadOptions, ReplicaRead, RequestInfo, Session, Table,
};
use hedgerow_wire::Body;
use hedgerow_wire::message::SCAN_DONE;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinHandle;

const BOUNDED: ReadLevel = ReadLevel::Bounded(std::time::Duration::from_secs(1));

fn few_tokens() -> ClientOptions {
    ClientOptions { budget: BudgetOptions { ratio: 0.0, burst: Some(5.0) }, ..patient() }
}

/// Two reads wait at the leader, which is silent, one of them for as long as the hedge delay: it answered by its hedge. What is sent
/// there from now on in less than 5 ms is sent to a silent node.
async fn find_silent(group: &Group, table: &Table) -> JoinHandle<usize> {
    group.silence(LEADER);
    let first = spawn_get(table);
    pass(ms(5)).await;
    let second = spawn_get(table);
    pass(ms(5)).await;
    assert_ne!(answer(first).await, LEADER);
    second
}

#[tokio::test(start_paused = true)]
async fn bounded_reads_begin_elsewhere_without_a_token_and_look_whether_the_node_answers_again() {
    let group = Group::start(3).await;
    let (client, table) = group.open_with(after_10_ms(), few_tokens()).await;
    let table = table.level(BOUNDED);
    let second = find_silent(&group, &table).await;
    assert_eq!(group.counts()[LEADER], 2);
    for _ in 0..20 {
        assert_ne!(answer(spawn_get(&table)).await, LEADER, "without time having passed");
    }
    let moved = group.extensions().into_iter().filter(|(node, sent)| *node != LEADER && sent.attempt == Some(1));
    let moved: Vec<_> = moved.map(|(_, sent)| (sent.cause, sent.any_replica)).collect();
    assert_eq!((moved, group.counts()[LEADER]), (vec![(None, true); 20], 2));
    let metrics = client.hedge_metrics();
    assert_eq!((metrics.counters.sent[Kind::Hedge.index()], metrics.budget_tokens), (1, 4.0));
    let attempts = |node: usize| {
        let address = group.nodes[node].address;
        metrics.hosts.iter().find(|(known, _)| *known == address).map_or(0, |(_, host)| host.attempts as usize)
    };
    assert_eq!([0, 1, 2].map(attempts), *group.counts(), "each counts where it went");
    pass(ms(5)).await;
    assert_ne!(answer(second).await, LEADER);
    // A delay after anything was sent there one first attempt is, and no more.
    let probe = spawn_get(&table);
    settle().await;
    assert_eq!((probe.is_finished(), group.counts()[LEADER]), (false, 3));
    assert_ne!(answer(spawn_get(&table)).await, LEADER);
    group.serve(LEADER);
    pass(ms(10)).await;
    assert_ne!(answer(probe).await, LEADER);
    assert_eq!((group.counts()[LEADER], client.hedge_metrics().budget_tokens), (3, 2.0));
    for _ in 0..3 {
        assert_eq!(answer(spawn_get(&table)).await, LEADER, "it is found again");
    }
}

/// Where the mode leaves the choice to the client, it chooses among those that are not silent.
#[tokio::test(start_paused = true)]
async fn a_replica_is_chosen_among_those_that_are_not_silent() {
    let group = Group::start(3).await;
    let (_, table) = group.open_with(after_10_ms(), few_tokens()).await;
    let any = ReadOptions { level: Some(ReadLevel::Eventual), mode: ReplicaRead::Follower, ..ReadOptions::default() };
    let leaders = table.level(BOUNDED);
    let table = table.reading(any);
    (1..3).for_each(|node| group.silence(node));
    let waiting = [(); 24].map(|()| spawn_get(&table));
    pass(ms(5)).await;
    let more = [(); 24].map(|()| spawn_get(&table));
    pass(ms(5)).await;
    // Both followers are silent by now.
    let before = group.counts();
    for _ in 0..10 {
        assert_eq!(answer(spawn_get(&table)).await, LEADER);
    }
    assert_eq!(get(&leaders).await, LEADER);
    assert_eq!((&group.counts()[1..], group.counts()[LEADER]), (&before[1..], before[LEADER] + 11));
    waiting.into_iter().chain(more).for_each(|get| get.abort());
}

/// A policy of the caller's own, which knows a replica and sticks to it.
#[derive(Debug)]
struct Leader;

impl LoadBalancingPolicy for Leader {
    fn choose(&self, _: RequestInfo<'_>, candidates: &[Candidate]) -> Option<usize> {
        candidates.iter().position(|candidate| candidate.is_leader)
    }
}

/// What only the leader may answer waits for it, what its table decides about may be that, and a policy of the caller's own is not overruled.
#[tokio::test(start_paused = true)]
async fn all_other_first_attempts_go_where_they_went() {
    let group = Group::start(3).await;
    let (_, table) = group.open_with(after_10_ms(), few_tokens()).await;
    let second = find_silent(&group, &table.level(BOUNDED)).await;
    let own = ReadOptions {
        level: Some(BOUNDED),
        mode: ReplicaRead::LeaderAndFollower,
        balancing: LoadBalancing::Custom(Arc::new(Leader)),
        ..ReadOptions::default()
    };
    let others = [
        table.clone(),
        table.level(ReadLevel::Linearizable),
        table.level(ReadLevel::Session).in_session(&Session::new()),
        table.level(BOUNDED).hedge(Policy::None),
        table.reading(own),
    ];
    let waiting: Vec<_> = others.iter().map(spawn_get).collect();
    let write = {
        let table = table.level(BOUNDED);
        tokio::spawn(async move { table.set("h", "s", "v").await })
    };
    settle().await;
    let first = 2 + others.len() + 1;
    assert_eq!((group.counts()[LEADER], group.sent()), (first, first + 1), "and one hedge of before");
    write.abort();
    waiting.into_iter().chain([second]).for_each(|get| get.abort());
}

#[tokio::test(start_paused = true)]
async fn where_all_are_silent_the_first_attempt_goes_where_it_went() {
    let group = Group::start(2).await;
    (0..2).for_each(|node| group.silence(node));
    let budget = Some(BudgetOptions { ratio: 1.0, burst: Some(100.0) });
    let (_, table) = group.open(HedgeOptions { budget, ..after_10_ms() }).await;
    let table = table.level(BOUNDED);
    let mut waiting = Vec::new();
    // Each has been looked at within the last delay.
    for _ in 0..17 {
        waiting.push(spawn_get(&table));
        pass(ms(3)).await;
    }
    let before = group.counts();
    waiting.push(spawn_get(&table));
    settle().await;
    assert_eq!(group.counts(), [before[0] + 1, before[1]]);
    waiting.into_iter().for_each(|get| get.abort());
}

/// Pitfall H26: the leader has answered long ago, and the client stood still.
#[tokio::test(start_paused = true)]
async fn h26_a_client_that_was_held_up_takes_no_node_for_silent() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(5));
    let (_, table) = group.open(after_10_ms()).await;
    let table = table.level(BOUNDED);
    for round in 1..4 {
        let before = spawn_get(&table);
        settle().await;
        tokio::time::advance(ms(30)).await;
        // The first of them would go there anyway, to look whether it answers again.
        let after = [(); 2].map(|()| spawn_get(&table));
        assert_eq!(answer(before).await, LEADER);
        pass(ms(5)).await;
        for after in after {
            assert_eq!(answer(after).await, LEADER);
        }
        assert_eq!(group.counts(), [3 * round, 0, 0]);
    }
}

/// The pages of a scan that was opened elsewhere are there.
#[tokio::test(start_paused = true)]
async fn a_scan_that_begins_elsewhere_stays_there() {
    let group = Group::start(2).await;
    let (_, table) = group.open_with(after_10_ms(), few_tokens()).await;
    let table = table.level(BOUNDED);
    let second = find_silent(&group, &table).await;
    let pages = Arc::new(AtomicUsize::new(0));
    let counted = pages.clone();
    group.answer(1, move |request| {
        Action::Reply(match &request.body {
            Body::GetScanner(_) => page(&["1"], 7),
            _ if counted.fetch_add(1, Ordering::Relaxed) == 0 => page(&["2"], 7),
            _ => page(&["3"], SCAN_DONE),
        })
    });
    let mut scanner = table.scan("h", &Default::default(), Default::default()).unwrap();
    let rows = tokio::spawn(async move {
        let mut keys = Vec::new();
        while let Some(row) = scanner.next().await.unwrap() {
            keys.push(row.sort_key);
        }
        keys
    });

    assert_eq!(answer(rows).await, ["1", "2", "3"]);
    assert_eq!((group.counts()[LEADER], pages.load(Ordering::Relaxed)), (2, 2));
    // A node refuses pages of who asks for the leader.
    let of_the_scan = group.extensions().into_iter().filter(|(node, sent)| *node == 1 && sent.cause.is_none());
    assert_eq!(of_the_scan.map(|(_, sent)| sent.any_replica).collect::<Vec<_>>(), [true; 3]);
    second.abort();
}
