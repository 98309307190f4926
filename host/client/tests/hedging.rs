//! Hedged reads against nodes that pretend: the pitfalls of hedging, each with exact numbers of attempts. Time passes only
//! when a test says so.
//!
//! H8 (hedges converge on the same shard) is about many clients and lives in the simulation; H13 (range of the histogram)
//! in `hedgerow-hedge`. H14 (readiness leak) does not apply: no slot is reserved before an attempt is sent.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, after_10_ms, answer, get, ms, pass, patient, settle, spawn_get};
use fake::{Action, refused, value};
use hedgerow_client::{
    BudgetOptions, ClientOptions, ErrorKind, Fallback, HedgeOptions, Kind, Policy, ReadOptions, ReplicaRead, Retry,
};
use hedgerow_types::Refusal;
use std::time::Duration;

fn no_budget() -> Option<BudgetOptions> {
    Some(BudgetOptions { ratio: 0.0, burst: Some(0.0) })
}

#[tokio::test(start_paused = true)]
async fn a_slow_leader_is_hedged_and_the_first_success_wins() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let (client, table) = group.open(after_10_ms()).await;
    let get = spawn_get(&table);
    pass(ms(9)).await;
    assert_eq!(group.counts(), [1, 0, 0]);
    pass(ms(1)).await;
    assert_ne!(answer(get).await, LEADER);
    settle().await;
    assert_eq!((group.sent(), group.nodes[LEADER].cancels().len(), group.cancels()), (2, 1, 1));
    let extensions = group.extensions();
    let (first, hedge) = (&extensions[0].1, &extensions[1].1);
    assert_eq!((first.attempt, first.cause, first.any_replica), (Some(1), None, false));
    assert_eq!((hedge.attempt, hedge.cause, hedge.any_replica), (Some(2), Some(1), true));
    assert_eq!((first.client_id, first.client_id), (Some(client.id()), hedge.client_id));
    assert!(first.request_id.is_some() && first.request_id == hedge.request_id);
    assert_eq!((hedge.read_level_code, hedge.sequence), (first.read_level_code, None));
    let cancel = &group.nodes[LEADER].cancels()[0];
    assert_eq!(
        (Some(cancel.client_id), Some(cancel.request_id), cancel.attempt),
        (first.client_id, first.request_id, Some(1))
    );
    let counters = client.hedge_metrics().counters;
    let hedges = Kind::Hedge.index();
    assert_eq!((counters.first, counters.sent[hedges], counters.won[hedges], counters.cancelled), (1, 1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_reply_in_time_leaves_no_trace() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(9));
    let (client, table) = group.open(after_10_ms()).await;
    for _ in 0..5 {
        let get = spawn_get(&table);
        pass(ms(9)).await;
        assert_eq!(answer(get).await, LEADER);
    }
    pass(ms(50)).await;
    assert_eq!((group.counts(), group.cancels()), (vec![5, 0, 0], 0));
    let metrics = client.hedge_metrics();
    assert_eq!((metrics.counters.first, metrics.counters.sent), (5, [0; Kind::COUNT]));
    assert_eq!(metrics.hosts[0].1.successes, 5);
    assert_eq!(metrics.hedge_delay, Some(ms(10)));
}

/// A table that is opened without a word about hedging is not hedged, nor is one with a delay of 0 or less.
#[tokio::test(start_paused = true)]
async fn pegasus_delay_of_zero_or_less_is_off() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(200));
    let client = group.client(patient()).await;
    let plain = client.open_table("t").await.unwrap();
    for table in [plain, client.open_table_with("t", 0).await.unwrap(), client.open_table_with("t", -5).await.unwrap()]
    {
        let get = spawn_get(&table);
        pass(ms(200)).await;
        assert_eq!(answer(get).await, LEADER);
    }
    assert_eq!(group.counts(), [3, 0, 0]);
    assert!(group.extensions().iter().all(|(_, sent)| sent.request_id.is_none() && sent.client_id.is_none()));
    let get = spawn_get(&client.open_table_with("t", 10).await.unwrap());
    pass(ms(10)).await;
    assert_ne!(answer(get).await, LEADER);
}

#[tokio::test(start_paused = true)]
async fn h01_fast_failing_hedge() {
    for refusal in [Refusal::NotHosted, Refusal::Busy("full".into()), Refusal::Throttled, Refusal::Withdrawn] {
        let group = Group::start(2).await;
        group.slow(LEADER, ms(30));
        group.refuse(1, refusal);
        let (_, table) = group.open(after_10_ms()).await;
        let get = spawn_get(&table);
        pass(ms(30)).await;
        assert_eq!(answer(get).await, LEADER);
        assert_eq!(group.counts(), [1, 1]);
    }
}

/// What a hedge is refused for good may be its node's own trouble, and the first may have been served before.
#[tokio::test(start_paused = true)]
async fn h01_a_final_refusal_of_the_hedge_does_not_end_the_first() {
    for refusal in [Refusal::Unknown, Refusal::Invalid("so".into()), Refusal::Expired] {
        let group = Group::start(3).await;
        group.slow(LEADER, ms(40));
        (1..3).for_each(|node| group.refuse(node, refusal.clone()));
        let reads = Policy::Constant { delay: ms(10), max_executions: 3 };
        let (_, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
        let get = spawn_get(&table);
        pass(ms(40)).await;
        assert_eq!(answer(get).await, LEADER);
        assert_eq!(group.sent(), 2, "nobody is asked after a refusal that is final");
    }
}

/// It does end it as soon as the first has failed too, and is what is told.
#[tokio::test(start_paused = true)]
async fn h01_a_final_refusal_is_what_a_request_ends_with() {
    let group = Group::start(2).await;
    let busy = refused(&Refusal::Busy("full".into()));
    let Action::Reply(busy) = busy else { panic!("a refusal is a reply") };
    group.answer(LEADER, move |_| Action::ReplyAfter(ms(40), busy.clone()));
    group.refuse(1, Refusal::Invalid("so".into()));
    let (_, table) = group.open(after_10_ms()).await;
    let get = tokio::spawn(async move { table.get("h", "s").await });
    pass(ms(40)).await;
    assert_eq!(answer(get).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(group.counts(), [1, 1]);
}

/// How long a request takes that has no reply in its time is not known, but that it takes longer than that.
#[tokio::test(start_paused = true)]
async fn what_is_not_answered_in_time_counts_as_slow() {
    let group = Group::start(1).await;
    let options = ClientOptions { operation_timeout: ms(100), ..patient() };
    let (client, table) = group.open_with(after_10_ms(), options).await;
    for _ in 0..3 {
        assert_eq!(get(&table).await, LEADER);
    }
    group.silence(LEADER);
    let waiting = tokio::spawn(async move { table.get("h", "s").await });
    pass(ms(110)).await;
    assert_eq!(answer(waiting).await.unwrap_err().kind(), ErrorKind::Timeout);
    let metrics = client.hedge_metrics();
    assert_eq!((metrics.counters.cancelled, metrics.hosts[0].1.errors), (1, 1));
}

/// A node that hangs up on the hedge, or cannot be reached, changes nothing either.
#[tokio::test(start_paused = true)]
async fn h01_fast_failing_connection() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(30));
    group.answer(1, |_| Action::Close);
    let (_, table) = group.open(after_10_ms()).await;
    for _ in 0..3 {
        let get = spawn_get(&table);
        pass(ms(30)).await;
        assert_eq!(answer(get).await, LEADER);
    }
    assert_eq!(group.counts()[LEADER], 3);
}

#[tokio::test(start_paused = true)]
async fn h02_same_node_twice() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let reads = Policy::Constant { delay: ms(10), max_executions: 8 };
    let (_, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    pass(ms(200)).await;
    assert_eq!(group.counts(), [1, 1, 1]);
    get.abort();
    settle().await;
    assert_eq!(group.cancels(), 3);
}

/// Also if one of them was asked because another had failed.
#[tokio::test(start_paused = true)]
async fn h02_same_node_twice_after_a_retry() {
    let group = Group::start(3).await;
    group.refuse(LEADER, Refusal::Busy("full".into()));
    (1..3).for_each(|node| group.silence(node));
    let reads = Policy::Constant { delay: ms(10), max_executions: 8 };
    let (_, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    pass(ms(200)).await;
    assert_eq!(group.counts(), [1, 1, 1]);
    get.abort();
}

#[tokio::test(start_paused = true)]
async fn h03_no_alternatives() {
    let group = Group::start(1).await;
    group.slow(LEADER, ms(100));
    let (client, table) = group.open(after_10_ms()).await;
    let get = spawn_get(&table);
    pass(ms(100)).await;
    assert_eq!(answer(get).await, LEADER);
    let metrics = client.hedge_metrics();
    assert_eq!((group.sent(), metrics.budget_tokens), (1, 20.0), "no token is spent on nobody");
    assert_eq!(metrics.counters.suppressed, [0; Kind::COUNT], "it is not the budget that kept it from being sent");
}

/// All replicas are ten times as slow as the delay: every request wants a hedge, and the budget says how many there are.
#[tokio::test(start_paused = true)]
async fn h04_uniform_slowdown() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.slow(node, ms(100)));
    let budget = Some(BudgetOptions { ratio: 0.05, burst: Some(3.0) });
    let (client, table) = group.open(HedgeOptions { budget, ..after_10_ms() }).await;
    for _ in 0..10 {
        let gets: Vec<_> = (0..20).map(|_| spawn_get(&table)).collect();
        // The first attempt still decides, and as fast as without hedging.
        pass(ms(100)).await;
        for get in gets {
            assert_eq!(answer(get).await, LEADER);
        }
    }
    settle().await;
    // Three tokens at first, which the first twenty requests cannot add to, and one for every twenty after that.
    let (first, extra) = (200, 3 + 9);
    assert_eq!((group.counts()[LEADER], group.sent()), (first, first + extra));
    let counters = client.hedge_metrics().counters;
    assert_eq!(counters.sent[Kind::Hedge.index()], extra as u64);
    assert_eq!(counters.suppressed[Kind::Hedge.index()], (first - extra) as u64);
    assert_eq!(group.cancels(), extra);
}

/// gRPC refills its budget by successes, so that slow ones never empty it. Here every reply is a success.
#[tokio::test(start_paused = true)]
async fn h05_slow_successes_do_not_refill_the_budget() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.slow(node, ms(15)));
    let budget = Some(BudgetOptions { ratio: 0.0, burst: Some(2.0) });
    let (_, table) = group.open(HedgeOptions { budget, ..after_10_ms() }).await;
    for _ in 0..20 {
        let get = spawn_get(&table);
        pass(ms(15)).await;
        answer(get).await;
    }
    assert_eq!(group.sent(), 20 + 2);
}

#[tokio::test(start_paused = true)]
async fn h06_an_empty_budget_takes_nothing_back() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(900));
    (1..3).for_each(|node| group.silence(node));
    // The attempt is late long before its reply comes. What is sent beside it is no more than what a plain handle sends.
    let options = ClientOptions { attempt_timeout: Some(ms(100)), ..patient() };
    let (client, table) = group.open_with(HedgeOptions { budget: no_budget(), ..after_10_ms() }, options).await;
    let get = spawn_get(&table);
    pass(ms(900)).await;
    assert_eq!(answer(get).await, LEADER, "what was late is still waited for");
    assert!((4..=10).contains(&group.sent()), "{}", group.sent());
    assert!(group.extensions().iter().all(|(_, sent)| sent.cause.is_none()), "nothing of it is extra");
    let counters = client.hedge_metrics().counters;
    assert_eq!((counters.sent, counters.suppressed[Kind::Hedge.index()]), ([0; Kind::COUNT], 1));
}

/// With a token an attempt that is late gets another one beside it, and may still win.
#[tokio::test(start_paused = true)]
async fn h06_a_late_attempt_may_still_win() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(150));
    (1..3).for_each(|node| group.silence(node));
    let options = ClientOptions { attempt_timeout: Some(ms(100)), ..patient() };
    let observer = Some(hedgerow_client::AttemptObserver::new(|_| {}));
    let (_, table) = group.open_with(HedgeOptions { observer, ..HedgeOptions::default() }, options).await;
    let get = spawn_get(&table);
    pass(ms(99)).await;
    assert_eq!(group.sent(), 1);
    pass(ms(51)).await;
    assert_eq!(answer(get).await, LEADER);
    settle().await;
    assert_eq!((group.sent(), group.cancels()), (2, 1));
}

/// A hedge that is due while the budget is empty waits for a token: the oldest request that is still open takes the next one.
#[tokio::test(start_paused = true)]
async fn h06_a_denied_hedge_gets_a_later_token() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let budget = BudgetOptions { ratio: 0.5, burst: Some(1.0) };
    let (client, table) = group.open_with(after_10_ms(), ClientOptions { budget, ..patient() }).await;
    let one = spawn_get(&table);
    pass(ms(10)).await;
    assert_ne!(answer(one).await, LEADER, "with the token of the beginning");
    // Half a token comes with each of these, and the first hedge that is due takes it.
    let (gone, first, second) = (spawn_get(&table), spawn_get(&table), spawn_get(&table));
    gone.abort();
    pass(ms(10)).await;
    assert_eq!((first.is_finished(), second.is_finished()), (true, false));
    let third = spawn_get(&table);
    pass(ms(9)).await;
    assert!(!second.is_finished(), "half a token is none");
    let fourth = spawn_get(&table);
    settle().await;
    assert_ne!(answer(second).await, LEADER, "as soon as a token is there, and although others are due later");
    pass(ms(20)).await;
    assert!(!third.is_finished() && !fourth.is_finished());
    // Who has ended takes none.
    third.abort();
    settle().await;
    let more = [spawn_get(&table), spawn_get(&table)];
    settle().await;
    assert_ne!(answer(fourth).await, LEADER);
    let metrics = client.hedge_metrics();
    let hedges = Kind::Hedge.index();
    let counters = metrics.counters;
    assert_eq!((counters.sent[hedges], counters.suppressed[hedges], counters.sent_late[hedges]), (4, 3, 2));
    assert_eq!((metrics.budget_tokens, group.sent()), (0.0, counters.first as usize + 4));
    more.into_iter().for_each(|get| get.abort());
}

/// Where too many wait the oldest makes room. It waits again when something else of it is due, here its fallback.
#[tokio::test(start_paused = true)]
async fn h06_a_request_that_made_room_waits_again() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let budget = BudgetOptions { ratio: 0.0009, burst: Some(1.0) };
    let fallback = Some(Fallback { after: ms(30), bound: ms(1_000) });
    let hedge = HedgeOptions { fallback, ..after_10_ms() };
    let (client, table) = group.open_with(hedge, ClientOptions { budget, ..patient() }).await;
    let one = spawn_get(&table);
    pass(ms(10)).await;
    assert_ne!(answer(one).await, LEADER, "with the token of the beginning");
    let oldest = spawn_get(&table);
    pass(ms(10)).await;
    // They wait from 10 ms on, which is when the oldest loses its place, and its fallback is due 10 ms later.
    let younger: Vec<_> = (0..1_024).map(|_| spawn_get(&table)).collect();
    pass(ms(20)).await;
    assert!(!oldest.is_finished());
    // All requests so far have brought most of a token, and these bring the rest.
    let more: Vec<_> = (0..100).map(|_| spawn_get(&table)).collect();
    settle().await;
    assert_ne!(answer(oldest).await, LEADER);
    let counters = client.hedge_metrics().counters;
    assert_eq!((counters.sent[Kind::Fallback.index()], counters.sent_late[Kind::Fallback.index()]), (1, 1));
    younger.into_iter().chain(more).for_each(|get| get.abort());
}

/// Two hedges of one request that are both denied, and both sent late: each is one of those that were suppressed.
#[tokio::test(start_paused = true)]
async fn h06_what_is_sent_late_was_suppressed_before() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let reads = Policy::Constant { delay: ms(10), max_executions: 3 };
    let budget = BudgetOptions { ratio: 0.5, burst: Some(1.0) };
    let options = ClientOptions { budget, ..patient() };
    let (client, table) = group.open_with(HedgeOptions { reads, ..HedgeOptions::default() }, options).await;
    let first = spawn_get(&table);
    pass(ms(10)).await;
    // It has taken the token of the beginning.
    first.abort();
    let get = spawn_get(&table);
    pass(ms(10)).await;
    // Each brings half a token, as it has itself, and the others end before they are hedged.
    for sent in [5, 6, 8] {
        let other = spawn_get(&table);
        settle().await;
        assert_eq!(group.sent(), sent);
        other.abort();
        pass(ms(10)).await;
    }
    let counters = client.hedge_metrics().counters;
    let hedges = Kind::Hedge.index();
    assert_eq!((counters.sent[hedges], counters.suppressed[hedges], counters.sent_late[hedges]), (3, 2, 2));
    get.abort();
}

/// An attempt that is late is sent again by a plain handle, to whoever the map names by then. An empty budget does not keep a
/// hedging one from doing so, and takes nothing back.
#[tokio::test(start_paused = true)]
async fn h06_a_late_attempt_needs_no_token_for_another() {
    let group = Group::start(2).await;
    group.silence(LEADER);
    let options = ClientOptions { attempt_timeout: Some(ms(100)), ..patient() };
    let budget = Some(BudgetOptions { ratio: 0.0, burst: Some(1.0) });
    let (client, table) = group.open_with(HedgeOptions { budget, ..after_10_ms() }, options).await;
    let hedged = spawn_get(&table);
    pass(ms(10)).await;
    assert_eq!(answer(hedged).await, 1, "with the only token");
    let get = spawn_get(&table);
    pass(ms(99)).await;
    assert_eq!((group.counts(), get.is_finished()), (vec![2, 1], false));
    pass(ms(20)).await;
    assert_eq!(answer(get).await, 1);
    let counters = client.hedge_metrics().counters;
    assert_eq!((counters.sent[Kind::Hedge.index()], counters.sent[Kind::Retry.index()]), (1, 0));
    assert_eq!(group.extensions().last().unwrap().1.cause, None, "no extra one: a plain handle sends it too");
}

/// What was never sent has used nobody's time: the next attempt takes its place, and there is no pause.
#[tokio::test(start_paused = true)]
async fn h06_an_attempt_that_could_not_be_sent_is_replaced_without_a_token() {
    let group = Group::start(3).await;
    (1..3).for_each(|node| group.move_to(node, nobody()));
    let (client, table) = group.open(HedgeOptions { budget: no_budget(), ..after_10_ms() }).await;
    let table = table.reading(ReadOptions { mode: ReplicaRead::Follower, ..ReadOptions::default() });
    assert_eq!(answer(spawn_get(&table)).await, LEADER, "without time having passed");
    assert_eq!(client.hedge_metrics().counters.suppressed, [0; Kind::COUNT]);
}

/// Without a token the next replica is asked after a pause, which is never longer than the time that is left.
#[tokio::test(start_paused = true)]
async fn h06_without_a_token_the_pause_leaves_time_to_ask_again() {
    let group = Group::start(3).await;
    (1..3).for_each(|node| group.refuse(node, Refusal::Busy("full".into())));
    let options = ClientOptions { operation_timeout: ms(8), ..patient() };
    let (_, table) = group.open_with(HedgeOptions { budget: no_budget(), ..after_10_ms() }, options).await;
    let table = table.reading(ReadOptions { mode: ReplicaRead::Follower, ..ReadOptions::default() });
    let get = spawn_get(&table);
    pass(ms(8)).await;
    assert_eq!((answer(get).await, group.sent()), (LEADER, 3));
}

/// A copy whose connection could not be made has reached nobody.
#[tokio::test(start_paused = true)]
async fn h14_a_copy_that_could_not_be_sent_costs_no_token() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(30));
    group.move_to(1, nobody());
    let budget = BudgetOptions { ratio: 0.0, burst: Some(2.0) };
    let (client, table) = group.open_with(after_10_ms(), ClientOptions { budget, ..patient() }).await;
    for _ in 0..3 {
        let get = spawn_get(&table);
        pass(ms(30)).await;
        assert_eq!(answer(get).await, LEADER);
    }
    assert_eq!((group.counts(), client.hedge_metrics().budget_tokens), (vec![3, 0], 2.0));
}

/// An address that refuses connections.
fn nobody() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(start_paused = true)]
async fn h06_silence_ends_at_the_deadline() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let options = ClientOptions { operation_timeout: ms(400), attempt_timeout: Some(ms(100)), ..patient() };
    let (_, table) = group.open_with(HedgeOptions { budget: no_budget(), ..after_10_ms() }, options).await;
    let get = tokio::spawn(async move { table.get("h", "s").await });
    pass(ms(399)).await;
    assert!(!get.is_finished());
    pass(ms(10)).await;
    assert_eq!(get.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    assert!((3..=4).contains(&group.sent()), "{:?}", group.counts());
}

/// One of three replicas is silent: its requests are hedged, and the delay that the percentile gives does not follow.
#[tokio::test(start_paused = true)]
async fn h07_the_delay_stays_when_a_replica_is_lost() {
    the_delay_stays_after(|group| group.silence(2)).await;
}

/// The same where nothing is read from its connection any more.
#[tokio::test(start_paused = true)]
async fn h07_the_delay_stays_when_a_connection_stalls() {
    the_delay_stays_after(|group| group.stall(2)).await;
}

async fn the_delay_stays_after(fault: impl Fn(&Group)) {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.slow(node, ms(4)));
    let reads = Policy::Percentile { percentile: 95.0, min_delay: ms(1), max_delay: ms(100), max_executions: 2 };
    let budget = Some(BudgetOptions { ratio: 1.0, burst: Some(1_000.0) });
    let (client, table) = group.open(HedgeOptions { reads, budget, ..HedgeOptions::default() }).await;
    let table = table.reading(ReadOptions { mode: ReplicaRead::LeaderAndFollower, ..ReadOptions::default() });
    for _ in 0..50 {
        let gets: Vec<_> = (0..6).map(|_| spawn_get(&table)).collect();
        pass(ms(4)).await;
        for get in gets {
            answer(get).await;
        }
    }
    let before = client.hedge_metrics().hedge_delay.unwrap();
    assert!((ms(4)..=ms(6)).contains(&before), "{before:?}");
    fault(&group);
    for _ in 0..50 {
        let gets: Vec<_> = (0..6).map(|_| spawn_get(&table)).collect();
        pass(ms(16)).await;
        for get in gets {
            assert_ne!(answer(get).await, 2);
        }
    }
    // A delay that followed would rise with every round, to the 16 ms that the lost requests were waited for and more.
    let after = client.hedge_metrics().hedge_delay.unwrap();
    assert!(after < ms(12), "{before:?} became {after:?}");
}

/// The leader is slow and always loses: what is known of its latency is at least how long it was waited for.
#[tokio::test(start_paused = true)]
async fn h09_the_time_of_losers_counts() {
    let group = Group::start(3).await;
    let reads = Policy::Percentile { percentile: 90.0, min_delay: ms(1), max_delay: ms(20), max_executions: 2 };
    let budget = Some(BudgetOptions { ratio: 1.0, burst: Some(1_000.0) });
    let (client, table) = group.open(HedgeOptions { reads, budget, ..HedgeOptions::default() }).await;
    group.silence(LEADER);
    for _ in 0..100 {
        let get = spawn_get(&table);
        pass(ms(20)).await;
        assert_ne!(answer(get).await, LEADER);
    }
    let metrics = client.hedge_metrics();
    // Had the losers been left out, or counted as fast as their winners, the delay would have sunk to what those take.
    assert_eq!(metrics.hedge_delay, Some(ms(20)));
    let (_, leader) = metrics.hosts.iter().find(|(node, _)| *node == group.nodes[LEADER].address).unwrap();
    assert_eq!((leader.attempts, leader.cancelled, leader.successes), (100, 100, 0));
    assert_eq!(leader.latency, ms(20) * 100);
    assert_eq!(metrics.counters.wasted_us, 20_000 * 100);
}

#[tokio::test(start_paused = true)]
async fn h10_fast_failures_do_not_lower_the_delay() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.slow(node, ms(8)));
    let reads = Policy::Percentile { percentile: 90.0, min_delay: ms(1), max_delay: ms(50), max_executions: 2 };
    let (client, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
    let table = table.reading(ReadOptions { mode: ReplicaRead::Follower, ..ReadOptions::default() });
    for _ in 0..100 {
        let get = spawn_get(&table);
        pass(ms(8)).await;
        answer(get).await;
    }
    let before = client.hedge_metrics().hedge_delay.unwrap();
    // From now on every request fails at once at the followers before the leader serves it.
    (1..3).for_each(|node| group.refuse(node, Refusal::NotReady("starting".into())));
    for _ in 0..100 {
        let get = spawn_get(&table);
        pass(ms(8)).await;
        assert_eq!(answer(get).await, LEADER);
    }
    let after = client.hedge_metrics().hedge_delay.unwrap();
    assert!(before >= ms(8) && after >= ms(8), "{before:?} {after:?}");
}

/// A policy that learns knows nothing yet: no hedge until the longest delay that it may choose.
#[tokio::test(start_paused = true)]
async fn h11_first_request_never_hedges() {
    for reads in ["99p", "adaptive=2%"] {
        let group = Group::start(3).await;
        group.slow(LEADER, ms(400));
        let reads: Policy = reads.parse().unwrap();
        let (_, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
        let get = spawn_get(&table);
        pass(ms(400)).await;
        assert_eq!((answer(get).await, group.counts()), (LEADER, vec![1, 0, 0]));
    }
}

/// 0.3 ms, with a runtime whose timer knows milliseconds: never at once, and on a paused clock in the next millisecond.
#[tokio::test(start_paused = true)]
async fn h12_timer_resolution() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let (_, table) = group.open(HedgeOptions::backup_request(Duration::from_micros(300))).await;
    let get = spawn_get(&table);
    settle().await;
    assert_eq!(group.counts(), [1, 0, 0], "not without time having passed");
    pass(ms(1)).await;
    assert_ne!(answer(get).await, LEADER);
}

/// The client stands still for 30 ms and wakes up with a reply to read and a hedge that is due. It reads first.
#[tokio::test(start_paused = true)]
async fn h26_a_client_that_was_held_up_reads_replies_first() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(5));
    let (client, table) = group.open(after_10_ms()).await;
    for round in 1..4 {
        let get = spawn_get(&table);
        settle().await;
        tokio::time::advance(ms(30)).await;
        assert_eq!(answer(get).await, LEADER);
        assert_eq!(group.counts(), [round, 0, 0]);
    }
    let late = client.hedge_metrics().late_alarms;
    assert_eq!((late.count, late.total, late.longest), (3, ms(60), ms(20)));
    // On time it is hedged on time.
    group.silence(LEADER);
    let get = spawn_get(&table);
    pass(ms(10)).await;
    assert_ne!(answer(get).await, LEADER);
    assert_eq!(client.hedge_metrics().late_alarms, late);
}

/// A node that stands still costs such a client half a delay more and no more, also if it is always held up.
#[tokio::test(start_paused = true)]
async fn h26_a_silent_node_is_hedged_half_a_delay_later() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let (client, table) = group.open(after_10_ms()).await;
    let get = spawn_get(&table);
    settle().await;
    tokio::time::advance(ms(30)).await;
    pass(ms(4)).await;
    assert_eq!(group.counts(), [1, 0, 0]);
    pass(ms(1)).await;
    assert_ne!(answer(get).await, LEADER);
    assert_eq!(client.hedge_metrics().late_alarms.put_off, 1);
    let get = spawn_get(&table);
    settle().await;
    tokio::time::advance(ms(30)).await;
    settle().await;
    tokio::time::advance(ms(30)).await;
    assert_ne!(answer(get).await, LEADER, "the second time it is sent, late or not");
}

/// A token that comes while a hedge is put off stays with its request. It went to the next one, and the request waited for another.
#[tokio::test(start_paused = true)]
async fn h26_a_hedge_that_is_put_off_keeps_its_token() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let budget = BudgetOptions { ratio: 0.4, burst: Some(1.0) };
    let (client, table) = group.open_with(after_10_ms(), ClientOptions { budget, ..patient() }).await;
    let first = spawn_get(&table);
    pass(ms(10)).await;
    assert_ne!(answer(first).await, LEADER, "with the token of the beginning");
    let denied = spawn_get(&table);
    pass(ms(10)).await;
    // The client stands still for 30 ms, which it notices by the alarm of another request. That one's hedge is put off by 5 ms.
    let other = spawn_get(&table);
    settle().await;
    tokio::time::advance(ms(30)).await;
    settle().await;
    // The rest of a token comes, and the hedge that has waited for it is put off by 20 ms.
    let last = spawn_get(&table);
    pass(ms(19)).await;
    assert!(!denied.is_finished());
    pass(ms(1)).await;
    assert_ne!(answer(denied).await, LEADER);
    assert!(!other.is_finished());
    let metrics = client.hedge_metrics();
    let hedges = Kind::Hedge.index();
    assert_eq!((metrics.counters.sent[hedges], metrics.counters.sent_late[hedges]), (2, 1));
    assert_eq!(metrics.late_alarms.put_off, 2);
    [other, last].into_iter().for_each(|get| get.abort());
}

/// A node that has answered others meanwhile is alive, and what it has sent is read soon.
#[tokio::test(start_paused = true)]
async fn h26_a_node_that_answers_others_is_hedged_as_soon_as_its_replies_are_read() {
    let group = Group::start(3).await;
    let calls = std::sync::atomic::AtomicUsize::new(0);
    group.answer(LEADER, move |_| match calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Action::Silence,
        _ => Action::Reply(value(b"0")),
    });
    let (_, table) = group.open(after_10_ms()).await;
    let slow = spawn_get(&table);
    settle().await;
    tokio::time::advance(ms(1)).await;
    assert_eq!(get(&table).await, LEADER);
    tokio::time::advance(ms(30)).await;
    settle().await;
    assert_eq!(group.counts(), [2, 0, 0]);
    pass(ms(1)).await;
    assert_ne!(answer(slow).await, LEADER);
}

#[tokio::test(start_paused = true)]
async fn a_failure_with_nothing_else_under_way_goes_on_as_ever() {
    let group = Group::start(3).await;
    let calls = std::sync::atomic::AtomicUsize::new(0);
    group.answer(LEADER, move |_| match calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 | 1 => refused(&Refusal::Busy("full".into())),
        _ => Action::Reply(value(b"0")),
    });
    let retry = Retry::SameReplica;
    let (_, table) = group.open(HedgeOptions { retry, budget: no_budget(), ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    pass(ms(40)).await;
    assert_eq!((answer(get).await, group.counts()), (LEADER, vec![3, 0, 0]));
    let attempts: Vec<_> = group.extensions().iter().map(|(_, sent)| (sent.attempt, sent.cause)).collect();
    assert_eq!(attempts, [(Some(1), None), (Some(2), None), (Some(3), None)], "nothing is extra that is alone");
}

#[tokio::test(start_paused = true)]
async fn the_retry_policy_says_what_follows_a_failure() {
    for (retry, expected) in [
        (Retry::Rethrow, Err(ErrorKind::Unavailable)),
        (Retry::SameReplica, Ok(vec![3, 0, 0])),
        (Retry::NextReplica, Ok(vec![1, 1, 0])),
    ] {
        let group = Group::start(3).await;
        let calls = std::sync::atomic::AtomicUsize::new(0);
        group.answer(LEADER, move |_| match calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 | 1 => refused(&Refusal::Busy("full".into())),
            _ => Action::Reply(value(b"0")),
        });
        let (_, table) =
            group.open(HedgeOptions { retry: retry.clone(), ..HedgeOptions::backup_request(ms(500)) }).await;
        let get = tokio::spawn(async move { table.get("h", "s").await });
        pass(ms(40)).await;
        let mut counts = group.counts();
        counts[1..].sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(get.await.unwrap().map(|_| counts).map_err(|error| error.kind()), expected, "{retry:?}");
    }
}

/// A redirect is followed whatever the policy says, and costs no token.
#[tokio::test(start_paused = true)]
async fn a_redirect_is_no_extra_attempt() {
    let group = Group::start(3).await;
    let leader = group.nodes[1].address;
    group.answer(LEADER, move |_| fake::not_leader(Some(leader)));
    for retry in [Retry::Rethrow, Retry::NextReplica] {
        let hedge = HedgeOptions { retry, budget: no_budget(), ..HedgeOptions::backup_request(ms(500)) };
        let (client, table) = group.open(hedge).await;
        assert_eq!(get(&table).await, 1);
        assert_eq!(client.hedge_metrics().counters.sent, [0; Kind::COUNT]);
    }
    assert!(group.extensions().iter().all(|(_, sent)| sent.cause.is_none()));
}
