//! What attempts of one request must keep, whichever of them wins: a write's number, a read's level, a session's floor; and
//! what losers leave behind: nothing.
//!
//! H14 and H16 are about servers. H19 (a cancel that kills another client's work) and the server's half of H15 are tested
//! with the nodes; here a cancel names its client, its request and its attempt. H25 is the model of `hedgerow-hedge`: here
//! a request belongs to one task, and only its wake-ups come from elsewhere.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{
    Group, LEADER, LONG, after_10_ms, answer, get, ms, pass, patient, settle, spawn_get, writes_after_10_ms,
};
use fake::{Action, done, refused, value};
use hedgerow_client::{
    Attempt, AttemptEvent, AttemptObserver, BudgetOptions, Check, ClientOptions, Condition, ErrorKind, Expiry,
    Fallback, HedgeOptions, Kind, Mutation, Observer, Policy, ReadLevel, ReadOptions, ReplicaRead, Served, Session,
    SessionToken, TieMode,
};
use hedgerow_types::{GroupId, Refusal};
use hedgerow_wire::{Body, ReplyExtension, Text, Tie};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The partition of the hash key `h`.
const GROUP: GroupId = GroupId::new(1, 0);

/// Runs an operation on a clone of a table beside the test.
macro_rules! spawn {
    ($table:expr, $name:ident => $operation:expr) => {{
        let $name = $table.clone();
        tokio::spawn(async move { $operation.await })
    }};
}

fn as_number(length: usize) -> ReplyExtension {
    ReplyExtension { index: length as u64, ..ReplyExtension::default() }
}

/// The cancel comes when the reply is already there, or on its way: nobody hears of it twice.
#[tokio::test(start_paused = true)]
async fn h15_cancel_races_a_reply_after_the_cancel() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(12));
    let (client, table) = group.open(after_10_ms()).await;
    for _ in 0..3 {
        let get = spawn_get(&table);
        pass(ms(10)).await;
        assert_eq!(answer(get).await, 1, "the hedge has won");
        // Now the leader's reply comes, to a request that nobody knows.
        pass(ms(5)).await;
    }
    let metrics = client.hedge_metrics();
    assert_eq!((group.counts(), group.cancels()), (vec![3, 3], 3));
    assert_eq!(metrics.counters.cancelled, 3);
    assert_eq!((group.nodes[0].connections(), group.nodes[1].connections()), (1, 1));
}

/// Both replies are there when the request looks: one decides, the other is counted as late, and nothing is taken back.
#[tokio::test(start_paused = true)]
async fn h15_cancel_races_both_replies_at_once() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(20));
    group.slow(1, ms(10));
    let (client, table) = group.open(after_10_ms()).await;
    let get = spawn_get(&table);
    pass(ms(20)).await;
    answer(get).await;
    let counters = client.hedge_metrics().counters;
    let is_cancelled = group.cancels() as u64;
    assert_eq!(counters.cancelled, is_cancelled);
    assert_eq!(counters.sent[Kind::Hedge.index()], 1);
}

/// A request whose caller goes away is taken back wherever it is, and every attempt is accounted for.
#[tokio::test(start_paused = true)]
async fn h15_a_dropped_request_takes_back_all_its_attempts() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let events = Events::default();
    let (client, table) = group.open(HedgeOptions { observer: Some(events.observer()), ..after_10_ms() }).await;
    let get = spawn_get(&table);
    pass(ms(10)).await;
    get.abort();
    settle().await;
    assert_eq!((group.sent(), group.cancels(), client.hedge_metrics().counters.cancelled), (2, 2, 2));
    assert_eq!(events.take(), ["1 First start", "2 Hedge start", "1 First cancelled 10", "2 Hedge cancelled 0"]);
}

#[tokio::test(start_paused = true)]
async fn h20_attempts_are_numbered_and_say_why_they_are_sent() {
    let group = Group::start(4).await;
    (0..4).for_each(|node| group.silence(node));
    let reads = Policy::Constant { delay: ms(10), max_executions: 4 };
    let (_, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    pass(ms(30)).await;
    get.abort();
    settle().await;
    let mut sent: Vec<_> = group.extensions().iter().map(|(_, sent)| (sent.attempt, sent.cause)).collect();
    sent.sort_unstable();
    assert_eq!(sent, [(Some(1), None), (Some(2), Some(1)), (Some(3), Some(1)), (Some(4), Some(1))]);
    let mut cancelled: Vec<_> =
        group.nodes.iter().flat_map(|node| node.cancels()).map(|cancel| cancel.attempt).collect();
    cancelled.sort_unstable();
    assert_eq!(cancelled, [Some(1), Some(2), Some(3), Some(4)]);
}

/// Everybody refuses, each hedge and each retry: one deadline for all, and a bounded number of attempts.
#[tokio::test(start_paused = true)]
async fn h22_nested_retries_and_hedges() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.refuse(node, Refusal::Busy("full".into())));
    let reads = Policy::Constant { delay: ms(1), max_executions: 16 };
    let budget = Some(BudgetOptions { ratio: 1.0, burst: Some(1_000.0) });
    let (client, table) = group.open(HedgeOptions { reads, budget, ..HedgeOptions::default() }).await;
    let get = spawn!(table, table => table.get("h", "s"));
    pass(LONG / 2).await;
    assert_eq!(answer(get).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!((16..=64).contains(&group.sent()), "{}", group.sent());
    assert!(client.hedge_metrics().counters.sent.iter().sum::<u64>() <= 64);
}

#[tokio::test(start_paused = true)]
async fn h22_one_deadline_for_all_attempts() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let options = ClientOptions { operation_timeout: ms(100), attempt_timeout: Some(ms(20)), ..patient() };
    let (_, table) = group.open_with(after_10_ms(), options).await;
    let get = spawn!(table, table => table.get("h", "s"));
    pass(ms(110)).await;
    assert_eq!(answer(get).await.unwrap_err().kind(), ErrorKind::Timeout);
    for (_, sent) in group.extensions() {
        let left = sent.deadline_ms.unwrap();
        assert!((0..=100).contains(&left), "{left}");
    }
    assert!(group.sent() <= 6, "{}", group.sent());
}

/// Other stores refuse to hedge a write by its type. Here each carries a number by which it is applied once: what is
/// refused is a second copy of a request that its caller calls not idempotent.
#[tokio::test(start_paused = true)]
async fn h23_what_is_not_idempotent_is_never_under_way_twice() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let hedge = HedgeOptions {
        is_idempotent: Some(false),
        tie: TieMode::Always,
        fallback: Some(Fallback { after: ms(5), bound: ms(1_000) }),
        reads: after_10_ms().reads,
        ..writes_after_10_ms()
    };
    let options = ClientOptions { operation_timeout: ms(100), attempt_timeout: Some(ms(20)), ..patient() };
    let (_, table) = group.open_with(hedge.clone(), options.clone()).await;
    let set = spawn!(table, table => table.set("h", "s", "v"));
    pass(ms(110)).await;
    let error = answer(set).await.unwrap_err();
    assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Timeout, true));
    let get = spawn!(table, table => table.get("h", "s"));
    pass(ms(110)).await;
    assert_eq!(answer(get).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(group.sent(), 2, "{:?}", group.counts());
    // Refused without having been run, it may go elsewhere.
    let second = group.nodes[1].address;
    group.answer(LEADER, move |_| fake::not_leader(Some(second)));
    group.serve(1);
    let (_, table) = group.open_with(hedge, options).await;
    answer(spawn!(table, table => table.set("h", "s", "v"))).await.unwrap();
}

/// Every kind of write: the copy has the number of the first, and goes to another node.
#[tokio::test(start_paused = true)]
async fn h23_speculated_writes_carry_the_same_number() {
    let group = Group::start(3).await;
    let (_, table) = group.open(writes_after_10_ms()).await;
    let check = || Check { sort_key: "s".into(), condition: Condition::Absent, return_value: false };
    let mut expected = 0;
    macro_rules! speculated {
        ($table:ident => $operation:expr) => {
            group.silence(LEADER);
            let running = spawn!(table, $table => $operation);
            pass(ms(10)).await;
            answer(running).await.unwrap();
            expected += 1;
            assert_eq!(group.counts()[LEADER], expected);
            assert_eq!(group.sent(), 2 * expected);
        };
    }
    speculated!(table => table.set("h", "s", "v"));
    speculated!(table => table.del("h", "s"));
    speculated!(table => table.multi_set("h", [("s", "v")], None));
    speculated!(table => table.incr("h", "s", 5, Expiry::Keep));
    speculated!(table => table.check_and_set("h", check(), "s", "v", None));
    speculated!(table => table.check_and_mutate("h", check(), [Mutation::Delete { sort_key: "s".into() }]));
    let mut numbers: Vec<_> =
        group.extensions().iter().map(|(_, sent)| (sent.sequence.unwrap(), sent.attempt)).collect();
    numbers.sort_unstable();
    let distinct: BTreeSet<u64> = numbers.iter().map(|(number, _)| *number).collect();
    let pairs: Vec<_> = distinct.iter().flat_map(|number| [(*number, Some(1)), (*number, Some(2))]).collect();
    assert_eq!((distinct.len(), numbers), (6, pairs));
    assert_eq!(group.nodes[LEADER].cancels().len(), 6);
    // A read of the same table is not hedged: only its writes are.
    let get = spawn_get(&table);
    pass(ms(50)).await;
    assert!(!get.is_finished());
    get.abort();
}

#[tokio::test(start_paused = true)]
async fn h23_a_speculated_incr_returns_what_the_one_that_was_applied_did() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(15));
    group.refuse(1, Refusal::Unresolved);
    let (_, table) = group.open(writes_after_10_ms()).await;
    let incr = spawn!(table, table => table.incr("h", "s", 1, Expiry::Keep));
    pass(ms(15)).await;
    assert_eq!(answer(incr).await.unwrap(), 7);
    assert_eq!(group.counts(), [1, 1]);
}

/// The leader's connection is stuck, with all that waits there: hedges travel on another node's.
#[tokio::test(start_paused = true)]
async fn h24_connection_isolation() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.serve(node));
    let (_, table) = group
        .open(HedgeOptions { budget: Some(BudgetOptions { ratio: 1.0, burst: Some(100.0) }), ..after_10_ms() })
        .await;
    get(&table).await;
    group.silence(LEADER);
    let gets: Vec<_> = (0..50).map(|_| spawn_get(&table)).collect();
    pass(ms(10)).await;
    for get in gets {
        assert_ne!(answer(get).await, LEADER);
    }
    assert!(group.nodes.iter().all(|node| node.connections() <= 1));
    assert_eq!(group.counts()[LEADER], 51);
}

/// The leader's end of a connection is not read any more, and large writes fill the buffers of both ends: nothing more can even
/// be sent there. Hedges travel on another node's connection, and none is opened beside the one that stalls.
#[tokio::test(start_paused = true)]
async fn h24_a_stalled_connection_holds_up_no_hedge() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.serve(node));
    let (_, table) = group
        .open(HedgeOptions { budget: Some(BudgetOptions { ratio: 1.0, burst: Some(100.0) }), ..after_10_ms() })
        .await;
    get(&table).await;
    group.stall(LEADER);
    let large = || vec![7; 1 << 20];
    let writes: Vec<_> = (0..32).map(|_| spawn!(table, table => table.set("h", "large", large()))).collect();
    settle().await;
    let arrived = group.counts()[LEADER];
    assert!(arrived < writes.len(), "all of {arrived} writes were read");
    let gets: Vec<_> = (0..50).map(|_| spawn_get(&table)).collect();
    pass(ms(10)).await;
    for get in gets {
        assert_ne!(answer(get).await, LEADER);
    }
    assert_eq!(group.counts()[LEADER], arrived, "the first attempts are stuck behind the writes");
    assert!(writes.iter().all(|write| !write.is_finished()));
    assert!(group.nodes.iter().all(|node| node.connections() <= 1));
}

/// The leader's machine takes connections, as a kernel does for a process that stands still, and nobody ever answers on them.
#[tokio::test(start_paused = true)]
async fn h24_a_node_that_accepts_and_never_answers_holds_up_no_hedge() {
    let group = Group::start(2).await;
    // Nobody accepts here: connections are made all the same.
    let standing_still = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    group.move_to(LEADER, standing_still.local_addr().unwrap());
    let (_, table) = group
        .open(HedgeOptions { budget: Some(BudgetOptions { ratio: 1.0, burst: Some(100.0) }), ..after_10_ms() })
        .await;
    let gets: Vec<_> = (0..50).map(|_| spawn_get(&table)).collect();
    pass(ms(10)).await;
    for get in gets {
        assert_eq!(answer(get).await, 1);
    }
    assert_eq!(group.counts(), [0, 50]);
    standing_still.set_nonblocking(true).unwrap();
    assert!(standing_still.accept().is_ok(), "the first attempts were on their way");
    assert!(standing_still.accept().is_err(), "on one connection");
}

/// The leader is always busy, and the followers twice: no spinning, and in the end whoever would have let it wait least.
#[tokio::test(start_paused = true)]
async fn r02_idle_replica_spin() {
    let group = Group::start(3).await;
    let busy = |estimated_wait_ms| Refusal::BusyFor { estimated_wait_ms };
    group.refuse(LEADER, busy(500));
    for (node, wait) in [(1, 90), (2, 40)] {
        group.answer(node, move |request| {
            // Without a limit on waiting a node takes what it is given.
            match request.header.extension.as_ref().unwrap().busy_threshold_ms {
                Some(_) => refused(&busy(wait)),
                None => Action::Reply(value(node.to_string().as_bytes())),
            }
        });
    }
    let reads = Policy::Constant { delay: ms(1_000), max_executions: 3 };
    let hedge = HedgeOptions { reads, busy_threshold: Some(Duration::from_micros(1_500)), ..HedgeOptions::default() };
    let (client, table) = group.open(hedge).await;
    let get = spawn_get(&table);
    pass(ms(50)).await;
    assert_eq!(answer(get).await, 2, "the least busy one");
    assert_eq!((group.counts(), group.cancels()), (vec![1, 1, 2], 0));
    assert_eq!(group.extensions()[0].1.busy_threshold_ms, Some(2), "rounded up");
    assert_eq!(client.hedge_metrics().counters.sent[Kind::Retry.index()], 2, "the last one takes the others' place");
}

/// Statistics on the ways of hedges and cancels: after all of it nothing counts as being under way.
#[tokio::test(start_paused = true)]
async fn r14_every_attempt_is_accounted_for() {
    let group = Group::start(3).await;
    let events = Events::default();
    let reads = Policy::Constant { delay: ms(10), max_executions: 3 };
    let hedge = HedgeOptions {
        reads,
        observer: Some(events.observer()),
        budget: Some(BudgetOptions { ratio: 1.0, burst: Some(1_000.0) }),
        ..HedgeOptions::default()
    };
    let (client, table) = group.open(hedge).await;
    let table = table.reading(ReadOptions { mode: ReplicaRead::LeaderAndFollower, ..ReadOptions::default() });
    let ways: [fn(&Group, usize); 5] = [
        |group, node| group.serve(node),
        |group, node| group.silence(node),
        |group, node| group.slow(node, ms(12)),
        |group, node| group.refuse(node, Refusal::Lagging(Default::default())),
        |group, node| group.answer(node, |_| Action::Close),
    ];
    for (round, way) in ways.iter().cycle().take(25).enumerate() {
        way(&group, round % 3);
        let multi_get = spawn!(table, table => table.multi_get("h", ["s"]));
        let get = spawn!(table, table => table.get("h", "s"));
        pass(ms(25)).await;
        get.abort();
        multi_get.abort();
        settle().await;
    }
    let metrics = client.hedge_metrics();
    let mut sum = [0; 4];
    for (_, host) in &metrics.hosts {
        assert_eq!(host.attempts, host.successes + host.errors + host.cancelled, "{host:?}");
        sum[0] += host.attempts;
        sum[1] += host.extra;
        sum[2] += host.cancelled;
    }
    assert_eq!(sum[1], metrics.counters.sent.iter().sum::<u64>());
    assert_eq!(sum[2], metrics.counters.cancelled);
    let events = events.take();
    let starts = events.iter().filter(|event| event.ends_with("start")).count();
    assert_eq!((starts, events.len()), (sum[0] as usize, 2 * starts), "each has one end");
}

#[tokio::test(start_paused = true)]
async fn an_observer_hears_of_every_attempt() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(25));
    group.refuse(1, Refusal::Throttled);
    let events = Events::default();
    let (client, table) = group.open(HedgeOptions { observer: Some(events.observer()), ..after_10_ms() }).await;
    let get = spawn_get(&table);
    pass(ms(25)).await;
    assert_eq!(answer(get).await, LEADER, "a throttled hedge changes nothing");
    assert_eq!(events.take(), ["1 First start", "2 Hedge start", "2 Hedge error 0", "1 First success 25"]);
    assert_eq!(client.hedge_metrics().counters.dropped, 1);
    group.serve(1);
    group.silence(LEADER);
    let get = spawn_get(&table);
    pass(ms(10)).await;
    answer(get).await;
    let events = events.take();
    assert_eq!(events, ["1 First start", "2 Hedge start", "2 Hedge success 0", "1 First cancelled 10"]);
}

/// What was dropped by its server, or withdrawn, never ends a request that has another attempt: nor does it if it is the
/// first one.
#[tokio::test(start_paused = true)]
async fn a_withdrawn_first_attempt_leaves_the_other() {
    let group = Group::start(2).await;
    group.answer(LEADER, |_| Action::ReplyAfter(ms(12), hedgerow_wire::Reply::refused(&Refusal::Withdrawn, None)));
    group.slow(1, ms(10));
    let (client, table) = group.open(after_10_ms()).await;
    let get = spawn_get(&table);
    pass(ms(20)).await;
    assert_eq!(answer(get).await, 1);
    assert_eq!((group.counts(), client.hedge_metrics().counters.dropped), (vec![1, 1], 1));
}

#[tokio::test(start_paused = true)]
async fn every_attempt_keeps_the_level_and_the_session() {
    for level in [ReadLevel::Linearizable, ReadLevel::Session, ReadLevel::Bounded(ms(2_000)), ReadLevel::Eventual] {
        let group = Group::start(3).await;
        group.silence(LEADER);
        let (_, table) = group.open(after_10_ms()).await;
        let session = Session::from_token(SessionToken::of(GROUP, 7));
        let read = ReadOptions { level: Some(level), ..ReadOptions::default() };
        let get = spawn_get(&table.reading(read).in_session(&session));
        pass(ms(10)).await;
        answer(get).await;
        let sent = group.extensions();
        let token = (level == ReadLevel::Session).then(|| SessionToken::of(GROUP, 7).encode().into());
        assert_eq!(sent.len(), 2);
        for (_, sent) in sent {
            assert_eq!((sent.read_level(), &sent.session_token), (Some(level), &token));
        }
    }
}

/// A hedge that shows less than the session has seen is a replica that lags: the first attempt decides.
#[tokio::test(start_paused = true)]
async fn a_hedge_below_the_floor_of_the_session_does_not_win() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(15));
    group.answer(1, |_| Action::ReplyWith(value(b"1"), as_number(3)));
    let (_, table) = group.open(after_10_ms()).await;
    let session = Session::from_token(SessionToken::of(GROUP, 7));
    let read = ReadOptions { level: Some(ReadLevel::Eventual), ..ReadOptions::default() };
    let get = spawn_get(&table.reading(read).in_session(&session));
    pass(ms(15)).await;
    assert_eq!((answer(get).await, group.counts()), (LEADER, vec![1, 1]));
}

/// Linearizable within 5 ms, or else at most a second old; and the reply says which it was.
#[tokio::test(start_paused = true)]
async fn s06_a_fallback_asks_for_less_and_says_so() {
    let group = Group::start(3).await;
    let level = |code| ReplyExtension { read_level_code: Some(code), index: 9, ..ReplyExtension::default() };
    group.answer(LEADER, |_| Action::Silence);
    for node in 1..3 {
        group.answer(node, move |request| {
            let code = request.header.extension.as_ref().unwrap().read_level_code.unwrap_or(0);
            Action::ReplyWith(value(node.to_string().as_bytes()), level(code))
        });
    }
    let fallback = Some(Fallback { after: ms(5), bound: ms(1_000) });
    let (client, table) = group.open(HedgeOptions { fallback, ..HedgeOptions::default() }).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let seen = seen.clone();
        Some(Observer::new(move |served: &Served| {
            seen.lock().unwrap().push((served.level, served.kind, served.attempts))
        }))
    };
    let session = Session::from_token(SessionToken::of(GROUP, 7));
    let table = table.reading(ReadOptions { observer, ..ReadOptions::default() }).in_session(&session);
    let get = spawn_get(&table);
    pass(ms(4)).await;
    assert_eq!(group.sent(), 1);
    pass(ms(1)).await;
    assert_ne!(answer(get).await, LEADER);
    let bounded = ReadLevel::Bounded(ms(1_000));
    let mut sent = group.extensions();
    assert_eq!(sent.len(), 2);
    let (node, first) = sent.remove(0);
    // None: at the level of the table.
    assert_eq!((node, first.read_level(), first.any_replica), (LEADER, None, false));
    let (_, sent) = sent.remove(0);
    assert_eq!((sent.read_level(), sent.any_replica, sent.cause), (Some(bounded), true, Some(4)));
    assert_eq!(sent.session_token, Some(SessionToken::of(GROUP, 7).encode().into()));
    group.answer(LEADER, move |_| Action::ReplyWith(value(b"0"), level(0)));
    assert_eq!(fake::group::get(&table).await, LEADER);
    let expected = [(Some(bounded), Kind::Fallback, 2), (Some(ReadLevel::Linearizable), Kind::First, 1)];
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(client.hedge_metrics().counters.won[Kind::Fallback.index()], 1);
    // A read that asks for less anyway has nothing to fall back to.
    let read = ReadOptions { level: Some(ReadLevel::Eventual), ..ReadOptions::default() };
    group.silence(LEADER);
    let before = group.sent();
    let get = spawn_get(&table.reading(read));
    pass(ms(20)).await;
    assert_eq!(group.sent(), before + 1);
    get.abort();
}

/// A fallback that shows less than its session has seen does not answer.
#[tokio::test(start_paused = true)]
async fn the_floor_of_a_session_holds_for_a_fallback() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(15));
    group.answer(1, |_| Action::ReplyWith(value(b"1"), as_number(3)));
    let fallback = Some(Fallback { after: ms(5), bound: ms(1_000) });
    let (_, table) = group.open(HedgeOptions { fallback, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table.in_session(&Session::from_token(SessionToken::of(GROUP, 7))));
    pass(ms(15)).await;
    assert_eq!((answer(get).await, group.counts()), (LEADER, vec![1, 1]));
}

/// Both attempts name each other, from the start.
#[tokio::test(start_paused = true)]
async fn tied_attempts_name_each_other() {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let (client, table) = group.open(HedgeOptions { tie: TieMode::Always, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    settle().await;
    assert_eq!(group.counts(), [1, 0, 0], "the second one is staggered");
    pass(ms(2)).await;
    let second = (1..3).find(|node| group.counts()[*node] == 1).unwrap();
    let tie = |node: usize| {
        let sent = group.nodes[node].requests()[0].header.extension.clone().unwrap();
        (Tie::decode(sent.tie.unwrap()).unwrap(), sent.attempt, sent.cause)
    };
    let peer = |node: usize| Text::from(group.nodes[node].address.to_string());
    assert_eq!(tie(LEADER), (Tie { peer: peer(second), attempt: 2 }, Some(1), None));
    assert_eq!(tie(second), (Tie { peer: peer(LEADER), attempt: 1 }, Some(2), Some(2)));
    assert_eq!(client.hedge_metrics().counters.sent[Kind::Tie.index()], 1);
    get.abort();
    settle().await;
    let cancels: Vec<_> = group.nodes.iter().flat_map(|node| node.cancels()).collect();
    assert!(cancels.len() == 2 && cancels.iter().all(|cancel| cancel.tie.is_some()), "{cancels:?}");
}

/// Both copies were dropped, each because the other was said to have begun: another one is sent, and nobody waits for ever.
#[tokio::test(start_paused = true)]
async fn h17_both_copies_withdrawn() {
    let group = Group::start(3).await;
    let calls = Arc::new(Mutex::new(0));
    for node in 0..3 {
        let calls = calls.clone();
        group.answer(node, move |_| {
            *calls.lock().unwrap() += 1;
            match *calls.lock().unwrap() {
                1 | 2 => Action::ReplyAfter(ms(5), hedgerow_wire::Reply::refused(&Refusal::Withdrawn, None)),
                _ => Action::Reply(value(node.to_string().as_bytes())),
            }
        });
    }
    let (_, table) = group.open(HedgeOptions { tie: TieMode::Always, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    pass(ms(30)).await;
    answer(get).await;
    assert_eq!(group.sent(), 3);
}

/// One copy was dropped because the other had begun, and then the node that ran it vanished.
#[tokio::test(start_paused = true)]
async fn h17_the_runner_vanishes() {
    let group = Group::start(3).await;
    group.refuse(LEADER, Refusal::Withdrawn);
    let is_first = Arc::new(Mutex::new(true));
    for node in 1..3 {
        let is_first = is_first.clone();
        group.answer(node, move |_| match std::mem::take(&mut *is_first.lock().unwrap()) {
            true => Action::Silence,
            false => Action::Reply(value(node.to_string().as_bytes())),
        });
    }
    let hedge = HedgeOptions { tie: TieMode::Always, ..HedgeOptions::backup_request(ms(40)) };
    let (_, table) = group.open(hedge).await;
    let get = spawn_get(&table);
    pass(ms(39)).await;
    assert!(!get.is_finished());
    pass(ms(2)).await;
    answer(get).await;
    assert_eq!(group.sent(), 3);
}

/// A tie is worth it when the queue at the first replica takes longer than the way there and back, twice.
#[tokio::test(start_paused = true)]
async fn ties_are_made_when_the_queue_is_long() {
    let group = Group::start(3).await;
    let load = |requests_in_flight| ReplyExtension { requests_in_flight, service_us: 500, ..ReplyExtension::default() };
    let hedge = HedgeOptions { tie: TieMode::Auto, ..HedgeOptions::default() };
    let (client, table) = group.open(hedge).await;
    for (queue, is_tied) in [(0, false), (100, true)] {
        group.answer(LEADER, move |_| Action::ReplyWith(value(b"0"), load(queue)));
        for _ in 0..30 {
            assert_eq!(get(&table).await, LEADER);
            tokio::time::advance(ms(1)).await;
        }
        let tied = group.nodes[LEADER].requests().pop().unwrap().header.extension.unwrap().tie.is_some();
        assert_eq!(tied, is_tied, "{queue} waiting");
    }
    assert_eq!(
        client.hedge_metrics().counters.sent[Kind::Tie.index()],
        0,
        "the replies came before the stagger was over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_trace_is_asked_for_and_handed_on() {
    let group = Group::start(1).await;
    let extension = ReplyExtension { mode: Some(Text::from("lease")), ..ReplyExtension::default() };
    group.answer(LEADER, move |request| {
        assert!(request.header.extension.as_ref().unwrap().wants_trace);
        Action::ReplyWith(value(b"0"), extension.clone())
    });
    let (_, table) = group.open(HedgeOptions { wants_trace: true, ..HedgeOptions::default() }).await;
    let seen = Arc::new(Mutex::new(None));
    let observer = {
        let seen = seen.clone();
        Some(Observer::new(move |served: &Served| *seen.lock().unwrap() = served.mode.clone()))
    };
    get(&table.reading(ReadOptions { observer, ..ReadOptions::default() })).await;
    assert_eq!(seen.lock().unwrap().as_deref(), Some("lease"));
}

/// All tables of a client spend from one budget, unless a table has its own; what they did is added up, also of handles
/// that are gone.
#[tokio::test(start_paused = true)]
async fn one_budget_for_all_tables_of_a_client() {
    let group = Group::start(3).await;
    group.silence(LEADER);
    let budget = BudgetOptions { ratio: 0.0, burst: Some(2.0) };
    let client = group.client(ClientOptions { budget, ..patient() }).await;
    let tables = [client.open_table_with("t", 10).await.unwrap(), client.open_table_with("t", 10).await.unwrap()];
    let gets: Vec<_> = (0..4).map(|index| spawn_get(&tables[index % 2])).collect();
    let own = HedgeOptions { budget: Some(BudgetOptions { ratio: 0.0, burst: Some(1.0) }), ..after_10_ms() };
    let own_get = spawn_get(&client.open_table_with("t", own).await.unwrap());
    pass(ms(10)).await;
    answer(own_get).await;
    assert_eq!(gets.iter().filter(|get| get.is_finished()).count(), 2);
    drop(tables);
    gets.into_iter().for_each(|get| get.abort());
    settle().await;
    let metrics = client.hedge_metrics();
    assert_eq!((metrics.counters.first, metrics.counters.sent[Kind::Hedge.index()]), (5, 3));
    assert_eq!(metrics.counters.suppressed[Kind::Hedge.index()], 2);
    assert_eq!(metrics.budget_tokens, 0.0);
}

/// A scan that was opened by a hedge goes on where it is, for all of its pages.
#[tokio::test(start_paused = true)]
async fn a_scan_goes_on_at_the_node_that_won() {
    let group = Group::start(2).await;
    group.silence(LEADER);
    group.answer(1, |request| {
        Action::Reply(match &request.body {
            Body::GetScanner(_) => fake::page(&["1"], 7),
            Body::Scan(scan) if scan.context_id == 7 => fake::page(&["2"], 8),
            Body::Scan(_) => fake::page(&["3"], hedgerow_wire::message::SCAN_DONE),
            _ => done(),
        })
    });
    let (_, table) = group.open(after_10_ms()).await;
    let mut scanner = table.scan("h", &Default::default(), Default::default()).unwrap();
    let first = tokio::spawn(async move {
        let mut keys = Vec::new();
        while let Some(row) = scanner.next().await.unwrap() {
            keys.push(row.sort_key);
        }
        keys
    });
    pass(ms(10)).await;
    assert_eq!(answer(first).await, ["1", "2", "3"]);
    assert_eq!(group.counts(), [1, 3]);
    let may_be_any = group.extensions().into_iter().filter(|(node, _)| *node == 1).map(|(_, sent)| sent.any_replica);
    assert_eq!(may_be_any.collect::<Vec<_>>(), [true; 3], "a node refuses pages of who asks for the leader");
}

/// What an observer heard, as lines.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn observer(&self) -> AttemptObserver {
        let events = self.0.clone();
        AttemptObserver::new(move |attempt: &Attempt<'_>| {
            let event = match attempt.event {
                AttemptEvent::Start => "start".to_owned(),
                AttemptEvent::Success { took } => format!("success {}", took.as_millis()),
                AttemptEvent::Error { took, .. } => format!("error {}", took.as_millis()),
                AttemptEvent::Cancelled { took } => format!("cancelled {}", took.as_millis()),
            };
            events.lock().unwrap().push(format!("{} {:?} {event}", attempt.number, attempt.kind));
        })
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}
