//! What an empty budget takes from nobody, and where tokens are after every ending. Time passes only when a test says so.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, after_10_ms, answer, ms, pass, patient, settle};
use fake::{Action, refused, value};
use hedgerow_client::{BudgetOptions, Client, ClientOptions, Fallback, HedgeOptions, Policy, Table, TieMode};
use hedgerow_types::Refusal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// An address that refuses connections.
fn nobody() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The first `count` requests are answered so, and the others served.
fn at_first(group: &Group, node: usize, count: usize, action: impl Fn() -> Action + Send + Sync + 'static) {
    let asked = AtomicUsize::new(0);
    group.answer(node, move |request| match asked.fetch_add(1, Ordering::Relaxed) < count {
        true => action(),
        false if matches!(request.body, hedgerow_wire::Body::Get(_)) => Action::Reply(value(b"0")),
        false => Action::Reply(fake::done()),
    });
}

/// Each fault of a group of so many replicas, and after how long the map says that another one leads.
type Fault = (&'static str, usize, fn(&Group), Option<u64>);

const FAULTS: [Fault; 7] = [
    ("busy", 3, |group| at_first(group, LEADER, 3, || refused(&Refusal::Busy("full".into()))), None),
    ("starting", 1, |group| at_first(group, LEADER, 2, || refused(&Refusal::NotReady("starting".into()))), None),
    ("closes", 1, |group| at_first(group, LEADER, 2, || Action::Close), None),
    ("half-open", 1, |group| at_first(group, LEADER, 1, || Action::Stall), None),
    ("half-open, with followers that know who leads", 3, half_open, None),
    ("silent until another leads", 3, |group| group.silence(LEADER), Some(300)),
    ("away until another leads", 3, |group| group.move_to(LEADER, nobody()), Some(300)),
];

fn half_open(group: &Group) {
    at_first(group, LEADER, 1, || Action::Stall);
    let leader = group.nodes[LEADER].address;
    (1..3).for_each(|node| group.answer(node, move |_| fake::not_leader(Some(leader))));
}

/// Pitfall H6: with a budget that never has a token a hedging handle is served where a plain one is.
#[tokio::test(start_paused = true)]
async fn h06_an_empty_budget_makes_no_handle_less_available_than_a_plain_one() {
    let policy = || Policy::Constant { delay: ms(10), max_executions: 2 };
    let empty = BudgetOptions { ratio: 0.0, burst: Some(0.0) };
    let hedged = || HedgeOptions { reads: policy(), writes: policy(), budget: Some(empty), ..HedgeOptions::default() };
    for (fault, count, break_it, leads_after) in FAULTS {
        for is_write in [false, true] {
            for hedge in [HedgeOptions::default(), hedged()] {
                let group = Group::start(count).await;
                let options =
                    ClientOptions { attempt_timeout: Some(ms(250)), operation_timeout: ms(1_500), ..patient() };
                let is_plain = hedge.budget.is_none();
                break_it(&group);
                let (client, table) = group.open_with(hedge, options).await;
                let call = tokio::spawn(async move {
                    if is_write { table.set("h", "s", "v").await } else { table.get("h", "s").await.map(drop) }
                });
                if let Some(after) = leads_after {
                    pass(ms(after)).await;
                    group.lead(1);
                }
                for _ in 0..30 {
                    if !call.is_finished() {
                        pass(ms(50)).await;
                    }
                }
                let told = call.await.unwrap();
                assert!(
                    told.is_ok(),
                    "{fault}, a write: {is_write}, plain: {is_plain}: {told:?}, {:?}",
                    group.counts()
                );
                assert!(group.extensions().iter().all(|(_, sent)| sent.cause.is_none()), "{fault}");
                drop(client);
            }
        }
    }
}

const TOKENS: f64 = 4.0;

/// How one or a few requests end, in one of which a token is taken at least.
type Ending = (&'static str, fn(&Group), Duration, Then);

#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// They end by themselves.
    Wait,
    Abort,
    Close,
}

const ENDINGS: [Ending; 12] = [
    ("the hedge answers", |group| group.silence(LEADER), ms(10), Then::Wait),
    ("the first answers", |group| all_slow(group, 15), ms(15), Then::Wait),
    (
        "the hedge is refused",
        |group| others(group, |group, node| group.refuse(node, Refusal::Throttled)),
        ms(20),
        Then::Wait,
    ),
    (
        "the hedge is dropped",
        |group| others(group, |group, node| group.refuse(node, Refusal::Withdrawn)),
        ms(20),
        Then::Wait,
    ),
    ("both are refused for good", |group| others(group, refuse_all), ms(20), Then::Wait),
    (
        "the connection ends",
        |group| others(group, |group, node| group.answer(node, |_| Action::Close)),
        ms(20),
        Then::Wait,
    ),
    (
        "the hedge cannot be sent",
        |group| others(group, |group, node| group.move_to(node, nobody())),
        ms(20),
        Then::Wait,
    ),
    ("the first cannot be sent", |group| group.move_to(LEADER, nobody()), ms(20), Then::Wait),
    ("none has an answer in time", |group| (0..3).for_each(|node| group.silence(node)), ms(400), Then::Wait),
    ("the caller goes away", |group| (0..3).for_each(|node| group.silence(node)), ms(12), Then::Abort),
    ("the caller goes away before", |group| (0..3).for_each(|node| group.silence(node)), ms(5), Then::Abort),
    ("the client is closed", |group| (0..3).for_each(|node| group.silence(node)), ms(12), Then::Close),
];

fn all_slow(group: &Group, delay_ms: u64) {
    (0..3).for_each(|node| group.slow(node, ms(delay_ms)));
}

/// The leader takes 20 ms, and the others do so.
fn others(group: &Group, how: impl Fn(&Group, usize)) {
    group.slow(LEADER, ms(20));
    (1..3).for_each(|node| how(group, node));
}

fn refuse_all(group: &Group, node: usize) {
    group.refuse(node, Refusal::Invalid("so".into()));
    group.answer(LEADER, |_| {
        let Action::Reply(refusal) = refused(&Refusal::Invalid("so".into())) else { panic!("a refusal is a reply") };
        Action::ReplyAfter(ms(20), refusal)
    });
}

/// Pitfall H14: whatever ends a request, each of its tokens is spent on one attempt that was sent, or is back. More requests run than
/// there are tokens, so that some wait for one.
#[tokio::test(start_paused = true)]
async fn h14_every_token_is_spent_once_or_comes_back() {
    let hedges = [
        after_10_ms(),
        HedgeOptions { tie: TieMode::Always, ..after_10_ms() },
        HedgeOptions { fallback: Some(Fallback { after: ms(5), bound: ms(1_000) }), ..after_10_ms() },
    ];
    for (ending, set_up, time, then) in ENDINGS {
        for hedge in hedges.clone() {
            // What is on a connection that ends may have been read, or not: nodes know less than the client of what was sent.
            let most = if ending == "the connection ends" { 1 } else { 6 };
            for requests in [1, most] {
                let what = format!("{ending}, {requests} requests, {hedge:?}");
                let group = Group::start(3).await;
                let budget = BudgetOptions { ratio: 0.0, burst: Some(TOKENS) };
                let options =
                    ClientOptions { budget, operation_timeout: ms(390), attempt_timeout: Some(ms(100)), ..patient() };
                set_up(&group);
                let (client, table) = group.open_with(hedge.clone(), options).await;
                end(&client, &table, requests, time, then).await;
                let extra = group.extensions().iter().filter(|(_, sent)| sent.cause.is_some()).count();
                let left = client.hedge_metrics().budget_tokens;
                assert_eq!(left, TOKENS - extra as f64, "{what}");
            }
        }
    }
}

async fn end(client: &Client, table: &Table, requests: usize, time: Duration, then: Then) {
    let read = |table: Table| tokio::spawn(async move { table.get("h", "s").await.map(drop) });
    let gets: Vec<_> = (0..requests).map(|_| read(table.clone())).collect();
    pass(time).await;
    match then {
        // Of several some may still wait for a token, and are dropped.
        Then::Wait => {
            assert!(requests > 1 || gets[0].is_finished());
            gets.iter().for_each(|get| get.abort());
        }
        Then::Abort => gets.iter().for_each(|get| get.abort()),
        Then::Close => {
            let client = client.clone();
            let closing = tokio::spawn(async move { client.close(Duration::ZERO).await });
            pass(ms(5)).await;
            assert!(!answer(closing).await);
            for get in gets {
                let _ = answer(get).await;
            }
        }
    }
    settle().await;
}
