//! Policies of a caller's own, against nodes that pretend: what they are told, what they decide, and what they cannot break.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::panic, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, after_10_ms, answer, get, ms, pass, settle, spawn_get};
use fake::{Action, not_leader, refused, value};
use hedgerow_client::{
    Candidate, ErrorKind, FailedAttempt, HedgeOptions, Latencies, LoadBalancing, LoadBalancingPolicy, Plan, Policy,
    Profile, ReplicaRead, RequestInfo, Retry, RetryDecision, RetryPolicy, SpeculativeExecutionPolicy, Table,
};
use hedgerow_types::Refusal;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A policy that is a function.
struct Own<F>(F);

impl<F> fmt::Debug for Own<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

impl<F: Fn(RequestInfo<'_>) -> Plan + Send + Sync> SpeculativeExecutionPolicy for Own<F> {
    fn plan(&self, request: RequestInfo<'_>, _: &dyn Latencies, _: f64) -> Plan {
        (self.0)(request)
    }
}

impl<F: Fn(RequestInfo<'_>, &FailedAttempt<'_>) -> RetryDecision + Send + Sync> RetryPolicy for Own<F> {
    fn decide(&self, request: RequestInfo<'_>, failed: &FailedAttempt<'_>) -> RetryDecision {
        (self.0)(request, failed)
    }
}

impl<F: Fn(RequestInfo<'_>, &[Candidate]) -> Option<usize> + Send + Sync> LoadBalancingPolicy for Own<F> {
    fn choose(&self, request: RequestInfo<'_>, replicas: &[Candidate]) -> Option<usize> {
        (self.0)(request, replicas)
    }
}

fn planning(plan: impl Fn(RequestInfo<'_>) -> Plan + Send + Sync + 'static) -> Policy {
    Policy::Custom(Arc::new(Own(plan)))
}

fn deciding(
    decide: impl Fn(RequestInfo<'_>, &FailedAttempt<'_>) -> RetryDecision + Send + Sync + 'static,
) -> HedgeOptions {
    HedgeOptions { retry: Retry::Custom(Arc::new(Own(decide))), ..HedgeOptions::default() }
}

fn choosing(
    table: &Table,
    choose: impl Fn(RequestInfo<'_>, &[Candidate]) -> Option<usize> + Send + Sync + 'static,
) -> Table {
    let balancing = LoadBalancing::Custom(Arc::new(Own(choose)));
    table.with(&Profile::default().balancing(balancing).replicas(ReplicaRead::LeaderAndFollower))
}

/// What a policy was told, in words.
type Told = Arc<Mutex<Vec<String>>>;

fn told(told: &Told) -> Vec<String> {
    std::mem::take(&mut told.lock().unwrap())
}

fn say(told: &Told, request: RequestInfo<'_>, more: impl fmt::Display) {
    let RequestInfo { operation, table, attempt, .. } = request;
    told.lock().unwrap().push(format!("{operation} {table} {attempt}{more}"));
}

/// A node that is busy `count` times.
fn busy_for(group: &Group, node: usize, count: usize) {
    let calls = AtomicUsize::new(0);
    group.answer(node, move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        call if call < count => refused(&Refusal::Busy("full".into())),
        _ => Action::Reply(value(node.to_string().as_bytes())),
    });
}

#[tokio::test(start_paused = true)]
async fn a_speculative_policy_is_told_of_the_request_and_lists_its_delays() {
    let group = Group::start(4).await;
    (0..4).for_each(|node| group.silence(node));
    let seen = Told::default();
    let saying = seen.clone();
    let reads = planning(move |request| {
        say(&saying, request, "");
        if request.operation == "GET" { Plan::after(&[ms(10), ms(30), ms(5)]) } else { Plan::default() }
    });
    let (_, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    let mut sent = Vec::new();
    for wait in [9, 1, 29, 1, 4, 1, 200] {
        pass(ms(wait)).await;
        sent.push(group.sent());
    }
    assert_eq!(sent, [1, 2, 2, 3, 3, 4, 4]);
    get.abort();
    let count = tokio::spawn(async move { table.sort_key_count("h").await });
    pass(ms(200)).await;
    assert_eq!(group.sent(), 5, "no delay is listed for it");
    count.abort();
    assert_eq!(told(&seen), ["GET t 1", "SORTKEY_COUNT t 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_starts_over_is_planned_anew() {
    let group = Group::start(2).await;
    busy_for(&group, LEADER, 1);
    group.refuse(1, Refusal::Busy("full".into()));
    let seen = Told::default();
    let saying = seen.clone();
    let reads = planning(move |request| {
        say(&saying, request, "");
        Plan::default()
    });
    let (_, table) = group.open(HedgeOptions { reads, ..HedgeOptions::default() }).await;
    let get = spawn_get(&table);
    pass(ms(20)).await;
    assert_eq!((answer(get).await, told(&seen)), (LEADER, vec!["GET t 1".to_owned(), "GET t 2".to_owned()]));
}

/// Whatever a plan says: one attempt at a replica, each for a token, and none beside what must not run twice.
#[tokio::test(start_paused = true)]
async fn a_plan_breaks_no_rule() {
    let mad = || planning(|_| Plan { tie: Some(ms(1)), fallback: Some(ms(1)), ..Plan::after(&[ms(1); 400]) });
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.silence(node));
    let hedge = HedgeOptions { reads: mad(), writes: mad(), ..HedgeOptions::default() };
    let (client, table) = group.open(HedgeOptions { budget: Some("5%:2".parse().unwrap()), ..hedge }).await;
    let gets: Vec<_> = (0..3).map(|_| spawn_get(&table)).collect();
    pass(ms(100)).await;
    assert_eq!((group.sent(), group.extensions().iter().filter(|(_, sent)| sent.cause.is_some()).count()), (5, 2));
    gets.iter().for_each(|get| get.abort());
    let write = table.idempotent(false);
    let set = tokio::spawn(async move { write.set("h", "s", "v").await });
    pass(ms(100)).await;
    assert_eq!(group.sent(), 6);
    set.abort();
    let counters = client.hedge_metrics().counters;
    assert_eq!((counters.sent[hedgerow_client::Kind::Tie.index()], counters.first), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn a_retry_policy_is_told_of_the_failure_and_decides_what_follows() {
    let group = Group::start(3).await;
    busy_for(&group, LEADER, 2);
    let seen = Told::default();
    let saying = seen.clone();
    let hedge = deciding(move |request, failed| {
        let FailedAttempt { node, error, may_have_run, is_idempotent, left } = *failed;
        assert!(node.is_some() && is_idempotent && !left.is_zero());
        say(&saying, request, format_args!(" {:?} {may_have_run}", error.kind()));
        if request.attempt == 1 { RetryDecision::SameReplica } else { RetryDecision::NextReplica }
    });
    let (_, table) = group.open(HedgeOptions { retry: hedge.retry, ..HedgeOptions::backup_request(ms(500)) }).await;
    let get = spawn_get(&table);
    pass(ms(20)).await;
    assert_ne!(answer(get).await, LEADER);
    assert_eq!((group.counts()[LEADER], group.sent()), (2, 3));
    assert_eq!(told(&seen), ["GET t 1 Unavailable false", "GET t 2 Unavailable false"]);
    // For one request another one decides.
    busy_for(&group, LEADER, 1);
    let error = table.with(&Profile::default().retry(Retry::Rethrow)).get("h", "s").await.unwrap_err();
    assert_eq!((error.kind(), told(&seen).len()), (ErrorKind::Unavailable, 0));
}

#[tokio::test(start_paused = true)]
async fn a_retry_policy_sends_nothing_twice_that_may_have_run_and_must_not() {
    for (is_idempotent, sent) in [(true, 2), (false, 1)] {
        let group = Group::start(2).await;
        let calls = AtomicUsize::new(0);
        group.answer(LEADER, move |_| match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Action::Close,
            _ => Action::Reply(fake::done()),
        });
        let seen = Told::default();
        let saying = seen.clone();
        let hedge = deciding(move |request, failed| {
            say(&saying, request, format_args!(" {} {}", failed.may_have_run, failed.is_idempotent));
            RetryDecision::NextReplica
        });
        let (_, table) = group.open(HedgeOptions { is_idempotent: Some(is_idempotent), ..hedge }).await;
        let set = tokio::spawn(async move { table.set("h", "s", "v").await });
        pass(ms(1_200)).await;
        let result = answer(set).await;
        assert_eq!((result.is_ok(), group.sent()), (is_idempotent, sent));
        assert!(result.err().is_none_or(|error| error.is_outcome_unknown()));
        assert_eq!(told(&seen)[0], format!("PUT t 1 true {is_idempotent}"));
    }
}

/// Where there is nothing to decide it is not asked: a redirect is followed, and what is final is final.
#[tokio::test(start_paused = true)]
async fn a_retry_policy_is_asked_only_where_there_is_something_to_decide() {
    let group = Group::start(3).await;
    let leader = group.nodes[1].address;
    group.answer(LEADER, move |_| not_leader(Some(leader)));
    let (_, table) = group.open(deciding(|_, _| panic!("nothing is to be decided"))).await;
    assert_eq!(get(&table).await, 1);
    group.refuse(1, Refusal::Invalid("so".into()));
    assert_eq!(table.get("h", "s").await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_balancing_policy_chooses_among_those_that_may_be_asked() {
    let group = Group::start(3).await;
    [LEADER, 1].into_iter().for_each(|node| group.refuse(node, Refusal::Busy("full".into())));
    let seen = Told::default();
    let saying = seen.clone();
    let leader = group.nodes[LEADER].address;
    let (_, table) = group.open(HedgeOptions::default()).await;
    let second = group.nodes[1].address;
    let table = choosing(&table, move |request, replicas| {
        say(&saying, request, format_args!(" of {}", replicas.len()));
        assert!(replicas.iter().all(|replica| replica.is_leader == (replica.address == leader)));
        let wanted = if request.attempt == 1 { leader } else { second };
        replicas.iter().position(|replica| replica.address == wanted)
    });
    assert_eq!(get(&table).await, 2);
    assert_eq!(group.counts(), [1, 1, 1]);
    assert_eq!(told(&seen), ["GET t 1 of 3", "GET t 2 of 2", "GET t 3 of 1"]);
}

/// Hedges are offered nobody who is asked already, or excluded; and a choice that is none of those counts for nothing.
#[tokio::test(start_paused = true)]
async fn a_balancing_policy_breaks_no_rule() {
    for index in [Some(0), Some(7), Some(usize::MAX), None] {
        let group = Group::start(4).await;
        (0..4).for_each(|node| group.silence(node));
        let (_, table) = group.open(HedgeOptions { reads: "5ms x8".parse().unwrap(), ..HedgeOptions::default() }).await;
        let table = choosing(&table, move |_, _| index).without_hosts([group.nodes[3].address]);
        let get = spawn_get(&table);
        pass(ms(60)).await;
        assert_eq!(group.counts(), [1, 1, 1, 0], "{index:?}");
        get.abort();
    }
}

/// A policy that panics takes its own request with it: what that had under way is taken back, and the next one is served.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_policy_is_its_own_requests() {
    let group = Group::start(3).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let first = move || calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
    let (plan, choose, decide) = (first.clone(), first.clone(), first);
    let reads = planning(move |_| if plan() { panic!("a plan") } else { Plan::default() });
    let retry = deciding(move |_, _| if decide() { panic!("a decision") } else { RetryDecision::NextReplica }).retry;
    let (client, table) = group.open(HedgeOptions::default()).await;
    let tables = [
        table.hedging(HedgeOptions { reads, ..HedgeOptions::default() }),
        choosing(&table, move |_, _| if choose() { panic!("a choice") } else { Some(0) }),
    ];
    for table in tables {
        assert!(spawn_get(&table).await.unwrap_err().is_panic());
        get(&table).await;
    }
    // The leader fails while a hedge is under way.
    let table = table.hedging(HedgeOptions { retry, ..after_10_ms() });
    let Action::Reply(busy) = refused(&Refusal::Busy("full".into())) else { panic!("a refusal is a reply") };
    group.answer(LEADER, move |_| Action::ReplyAfter(ms(20), busy.clone()));
    (1..3).for_each(|node| group.silence(node));
    let get = spawn_get(&table);
    pass(ms(20)).await;
    assert!(get.await.unwrap_err().is_panic());
    settle().await;
    assert_eq!(group.cancels(), 1);
    (0..3).for_each(|node| group.serve(node));
    assert_eq!(fake::group::get(&table).await, LEADER);
    assert!(client.close(ms(0)).await, "nothing is under way");
}
