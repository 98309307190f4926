//! Hosts that are excluded, against nodes that pretend: who is asked instead, and what nobody else can do.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{Group, LEADER, after_10_ms, answer, get, ms, pass, patient, spawn_get};
use hedgerow_client::{
    ClientOptions, ErrorKind, Fallback, HedgeOptions, Kind, Policy, Profile, ReadLevel, ReadOptions, ReplicaRead,
    TieMode,
};
use hedgerow_types::Refusal;
use std::collections::BTreeSet;

#[tokio::test(start_paused = true)]
async fn a_read_asks_another_replica_than_an_excluded_leader_at_its_own_level() {
    let group = Group::start(3).await;
    let table = group.client(patient()).await.open_table("t").await.unwrap();
    let without = table.without_hosts([group.nodes[LEADER].address]);
    let mut seen = BTreeSet::new();
    for level in [ReadLevel::Linearizable, ReadLevel::Bounded(ms(1_000))] {
        for _ in 0..20 {
            seen.insert(get(&without.level(level)).await);
        }
    }
    assert_eq!(seen, BTreeSet::from([1, 2]));
    let extensions = group.extensions();
    assert!(extensions.iter().all(|(_, sent)| sent.any_replica && sent.attempt == Some(1)));
    let codes: BTreeSet<_> = extensions.iter().map(|(_, sent)| sent.read_level_code).collect();
    assert_eq!(codes.len(), 2, "as the level says, and not as the mode");
    // Nobody of these is excluded for the handle that it was made of.
    assert_eq!(get(&table).await, LEADER);
    assert_eq!(get(&without.without_hosts([])).await, LEADER);
}

/// Where it is another node that is excluded, the leader is asked as ever.
#[tokio::test(start_paused = true)]
async fn a_read_at_the_leader_stays_there_while_that_one_is_not_excluded() {
    let group = Group::start(3).await;
    let table = group.client(patient()).await.open_table("t").await.unwrap().without_hosts([group.nodes[1].address]);
    for _ in 0..20 {
        assert_eq!(get(&table).await, LEADER);
    }
}

#[tokio::test(start_paused = true)]
async fn no_retry_hedge_tie_or_fallback_goes_to_an_excluded_host() {
    let fallback = Some(Fallback { after: ms(15), bound: ms(1_000) });
    let busy = HedgeOptions { reads: "5ms x8".parse().unwrap(), fallback, ..HedgeOptions::default() };
    for (tie, is_refusing) in [(TieMode::Never, false), (TieMode::Always, false), (TieMode::Never, true)] {
        let group = Group::start(4).await;
        let excluded = group.nodes[2].address;
        for node in [LEADER, 1, 3] {
            if is_refusing { group.refuse(node, Refusal::Busy("full".into())) } else { group.silence(node) }
        }
        let options = ClientOptions { operation_timeout: ms(400), ..patient() };
        let (_, table) = group.open_with(HedgeOptions { tie, ..busy.clone() }, options).await;
        let table = table.without_hosts([excluded]).replicas(ReplicaRead::LeaderAndFollower);
        let get = tokio::spawn(async move { table.get("h", "s").await });
        pass(ms(450)).await;
        assert!(answer(get).await.is_err());
        let counts = group.counts();
        assert_eq!(counts[2], 0, "{tie:?} {is_refusing}: {counts:?}");
        assert!([LEADER, 1, 3].iter().all(|node| counts[*node] > 0), "{tie:?} {is_refusing}: {counts:?}");
    }
}

/// No copy is sent where the only other replica is excluded, and none waits for a token either.
#[tokio::test(start_paused = true)]
async fn without_another_replica_there_is_no_hedge() {
    let group = Group::start(2).await;
    group.slow(LEADER, ms(50));
    let (client, table) = group.open(after_10_ms()).await;
    let get = spawn_get(&table.without_hosts([group.nodes[1].address]));
    pass(ms(50)).await;
    assert_eq!((answer(get).await, group.counts()), (LEADER, vec![1, 0]));
    assert_eq!(client.hedge_metrics().counters.suppressed, [0; Kind::COUNT]);
}

#[tokio::test(start_paused = true)]
async fn a_read_fails_at_once_if_every_replica_is_excluded() {
    let group = Group::start(3).await;
    let all: Vec<_> = group.nodes.iter().map(|node| node.address).collect();
    // For all tables of a client, by a profile, and for one request of a table that is hedged.
    let read = ReadOptions { excluded: all.clone(), ..ReadOptions::default() };
    let profiles = [("nobody".to_owned(), Profile::default().without_hosts(all.clone()))];
    let profiled = ClientOptions { profiles: profiles.into(), ..patient() };
    let tables = [
        group.client(ClientOptions { read, ..patient() }).await.open_table("t").await.unwrap(),
        group.client(profiled).await.open_table("t").await.unwrap().profile("nobody").unwrap(),
        group.open(after_10_ms()).await.1.without_hosts(all),
    ];
    for table in tables {
        let error = table.get("h", "s").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with("every replica of partition "), "{error}");
    }
    assert_eq!(group.sent(), 0);
}

/// Only who leads can accept a write. Copies of it are another matter.
#[tokio::test(start_paused = true)]
async fn a_write_goes_to_an_excluded_leader_and_its_copies_to_nobody_who_is_excluded() {
    let group = Group::start(3).await;
    group.slow(LEADER, ms(50));
    let writes = Policy::Constant { delay: ms(10), max_executions: 3 };
    let (_, table) = group.open(HedgeOptions { writes, ..HedgeOptions::default() }).await;
    group.silence(1);
    let table = table.without_hosts([group.nodes[LEADER].address, group.nodes[2].address]);
    let set = tokio::spawn(async move { table.set("h", "s", "v").await });
    pass(ms(50)).await;
    answer(set).await.unwrap();
    assert_eq!(group.counts(), [1, 1, 0]);
}
