//! Tests of what one user may ask for: how much passes, when a user has recovered, and what is kept.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use hedgerow_types::random::Random;
use hedgerow_wire::{Header, Method};
use std::net::Ipv4Addr;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const MIB: usize = 1 << 20;
const SMALL: usize = 100;

/// 0 = no limit.
fn limits(requests: u64, mib: u64, connections: u64) -> Limits {
    let [requests, bytes, connections] = [requests, mib << 20, connections].map(NonZeroU64::new);
    Limits { limits: UserLimits { requests, bytes, connections }, ..Limits::default() }
}

fn open(limits: &mut Limits, connection: u64, user: &str) -> Place {
    limits.note_opened(ConnectionId(connection), &Who::User(user.into()), HERE);
    limits.connections[&ConnectionId(connection)].place
}

fn judge(limits: &mut Limits, connection: u64, method: Method, bytes: usize, now: Instant) -> Option<Refused> {
    let now = Now { instant: now, unix_micros: 0 };
    let caller = Caller::of(ConnectionId(connection), &Header::default(), 1, method, now);
    limits.judge(&Caller { frame_bytes: bytes, ..caller }, now.instant)
}

fn passes(limits: &mut Limits, connection: u64, bytes: usize, now: Instant) -> bool {
    judge(limits, connection, Method::Get, bytes, now).is_none()
}

fn at(ms: u64) -> Instant {
    Instant((1_000 + ms) * 1_000_000)
}

/// The most that lies within a second, of amounts at times in order.
fn most_in_a_second(taken: &[(Instant, u64)]) -> u64 {
    let within = |begin: usize| {
        let window = taken[begin..].iter().take_while(|(at, _)| at.since(taken[begin].0) < Duration::from_secs(1));
        window.map(|(_, amount)| amount).sum()
    };
    (0..taken.len()).map(within).max().unwrap_or(0)
}

fn replied(bytes: usize, received: Instant) -> Replied {
    Replied { connection: ConnectionId(1), bytes, received }
}

#[test]
fn no_second_has_more_requests_than_the_rate_and_a_full_bucket() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let rate = 1 + random.below(300);
        let mut limits = limits(rate, 0, 0);
        open(&mut limits, 1, "app");
        let (mut now, mut passed) = (at(0), Vec::new());
        // Bursts and pauses, up to ten times what may pass.
        for _ in 0..2_000 {
            let pause = if random.below(1_000) == 0 { 1_500_000_000 } else { 200_000_000 / rate };
            now = now + Duration::from_nanos(random.below(pause + 1));
            if passes(&mut limits, 1, SMALL, now) {
                passed.push((now, 1));
            }
        }
        let most = most_in_a_second(&passed);
        assert!(most <= 2 * rate && most >= rate, "{most} at {rate} per second, seed {seed}");
        // Over all of the time it is the rate.
        let seconds = now.since(at(0)).as_secs_f64();
        assert!(passed.len() as f64 <= (seconds + 1.0) * rate as f64 + 1.0, "seed {seed}");
        assert_eq!(passed.len() as u64 + limits.counts.requests, 2_000);
    }
}

#[test]
fn no_second_has_more_bytes_than_the_rate_a_full_bucket_and_the_largest_request() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let rate = (1 + random.below(8)) << 20;
        let mut limits = limits(0, rate >> 20, 0);
        open(&mut limits, 1, "app");
        let (mut now, mut passed) = (at(0), Vec::new());
        for _ in 0..1_000 {
            now = now + Duration::from_nanos(random.below(60_000_000));
            let (request, reply) = (random.below(2 << 20), random.below(2 << 20));
            if passes(&mut limits, 1, request as usize, now) {
                limits.note_reply(&replied(reply as usize, now));
                passed.push((now, request + reply));
            }
        }
        let most = most_in_a_second(&passed);
        assert!(most <= 2 * rate + (4 << 20), "{most} at {rate} per second, seed {seed}");
        let all: u64 = passed.iter().map(|(_, amount)| amount).sum();
        let seconds = now.since(at(0)).as_secs_f64();
        assert!(all as f64 <= (seconds + 1.0) * rate as f64 + (4 << 20) as f64, "seed {seed}");
        assert!(all as f64 >= seconds * rate as f64 / 2.0, "{all} in {seconds} s at {rate}, seed {seed}");
    }
}

#[test]
fn what_is_refused_takes_nothing_away() {
    let mut limits = limits(10, 1, 0);
    open(&mut limits, 1, "app");
    assert_eq!((0..1_000).filter(|_| passes(&mut limits, 1, SMALL, at(0))).count(), 10);
    assert!(!passes(&mut limits, 1, SMALL, at(99)) && passes(&mut limits, 1, SMALL, at(100)));
    assert_eq!((0..1_000).filter(|_| passes(&mut limits, 1, SMALL, at(1_100))).count(), 10);
    // What is refused for its bytes takes no token.
    assert!(passes(&mut limits, 1, 2 * MIB, at(2_100)));
    assert_eq!((0..1_000).filter(|_| passes(&mut limits, 1, SMALL, at(2_100))).count(), 0);
    assert_eq!((0..1_000).filter(|_| passes(&mut limits, 1, SMALL, at(3_200))).count(), 10);
    assert_eq!(limits.told()["bytes"], 1_000);
}

#[test]
fn a_large_reply_is_charged_afterwards_and_worked_off() {
    let mut limits = limits(0, 1, 0);
    open(&mut limits, 1, "app");
    assert!(passes(&mut limits, 1, SMALL, at(0)));
    limits.note_reply(&replied(5 * MIB, at(0)));
    let refused = judge(&mut limits, 1, Method::Get, SMALL, at(3_999)).unwrap();
    assert_eq!(refused.text, r#"user "app" is over its limit of 1 MiB per second at this node"#);
    assert!(!refused.closes && passes(&mut limits, 1, SMALL, at(4_001)));
    // The largest request passes as soon as anything is left.
    assert!(passes(&mut limits, 1, 64 * MIB, at(4_100)) && !passes(&mut limits, 1, SMALL, at(60_000)));
}

#[test]
fn users_have_their_limits_by_name_on_all_connections_and_others_by_address() {
    let mut limits = limits(1, 0, 0);
    for connection in [1, 2] {
        open(&mut limits, connection, "app");
    }
    open(&mut limits, 3, "other");
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped().into();
    for (connection, from) in [(4, HERE), (5, mapped), (6, Ipv4Addr::new(10, 0, 0, 1).into())] {
        limits.note_opened(ConnectionId(connection), &Who::Anybody, from);
    }
    let passed: Vec<u64> = (1..=6).filter(|connection| passes(&mut limits, *connection, SMALL, at(0))).collect();
    assert_eq!(passed, [1, 3, 4, 6]);
    let text = |limits: &mut Limits, connection| judge(limits, connection, Method::Put, SMALL, at(0)).unwrap().text;
    assert_eq!(text(&mut limits, 2), r#"user "app" is over its limit of 1 request per second at this node"#);
    assert_eq!(text(&mut limits, 5), "address 127.0.0.1 is over its limit of 1 request per second at this node");
    // Connections that nobody told of.
    assert!((0..100).all(|_| passes(&mut limits, 7, SMALL, at(0))));
}

#[test]
fn commands_are_not_limited_and_what_nobody_waits_for_is_not_either() {
    let mut limits = limits(1, 1, 1);
    open(&mut limits, 1, "app");
    assert!(passes(&mut limits, 1, 2 * MIB, at(0)) && !passes(&mut limits, 1, SMALL, at(0)));
    for method in [Method::HedgerowAdmin, Method::QueryConfig, Method::ClearScanner, Method::HedgerowCancel] {
        assert_eq!(judge(&mut limits, 1, method, MIB, at(0)), None, "{method:?}");
    }
}

#[test]
fn connections_beyond_the_limit_are_for_commands_and_further_ones_for_nothing() {
    let mut limits = limits(0, 0, 2);
    let places: Vec<Place> = (1..=11).map(|connection| open(&mut limits, connection, "app")).collect();
    assert_eq!(places[..2], [Place::Counted; 2]);
    assert_eq!((&places[2..10], places[10]), (&[Place::Spare; 8][..], Place::None));
    assert_eq!(open(&mut limits, 20, "other"), Place::Counted);
    // The first ones are not touched.
    assert!(passes(&mut limits, 1, SMALL, at(0)) && passes(&mut limits, 20, SMALL, at(0)));
    let over = || {
        let text = r#"user "app" is over its limit of 2 connections at this node"#.to_owned();
        Some(Refused { text, closes: true })
    };
    assert_eq!(judge(&mut limits, 3, Method::HedgerowAdmin, SMALL, at(0)), None);
    for method in [Method::Get, Method::Get, Method::HedgerowAdmin] {
        assert_eq!(judge(&mut limits, 3, method, SMALL, at(0)), over(), "what is over does not come back");
    }
    assert_eq!(judge(&mut limits, 11, Method::HedgerowAdmin, SMALL, at(0)), over());
    // Each connection is one, whatever was asked on it.
    assert_eq!(limits.told()["connections"], 2);
    // The place of the one that was for commands is free for another one.
    assert_eq!(open(&mut limits, 12, "app"), Place::Spare);
    // Where one has ended, whoever asks next has its place.
    limits.forget(ConnectionId(1));
    assert!(passes(&mut limits, 5, SMALL, at(0)) && !passes(&mut limits, 6, SMALL, at(0)));
    for connection in 1..=20 {
        limits.forget(ConnectionId(connection));
    }
    limits.tick(at(5_000));
    assert!(limits.users.is_empty() && limits.connections.is_empty());
}

/// One that is to be closed, and on which nothing came yet.
#[test]
fn whoever_has_any_connection_is_not_forgotten() {
    let mut limits = limits(1, 0, 1);
    let places: Vec<Place> = (1..=10).map(|connection| open(&mut limits, connection, "app")).collect();
    assert_eq!(places[9], Place::None);
    (1..=9).for_each(|connection| limits.forget(ConnectionId(connection)));
    limits.tick(at(5_000));
    assert!(!passes(&mut limits, 10, SMALL, at(5_000)));
    limits.forget(ConnectionId(10));
    limits.tick(at(10_000));
    assert!(limits.users.is_empty());
}

#[test]
fn users_without_connections_are_forgotten_once_nothing_is_owed() {
    let mut limits = limits(1_000, 1, 0);
    for user in 0..100 {
        open(&mut limits, user, &format!("user-{user}"));
        assert!(passes(&mut limits, user, if user == 7 { 3 * MIB } else { SMALL }, at(0)));
        limits.forget(ConnectionId(user));
    }
    limits.tick(at(1_000));
    assert_eq!(limits.users.keys().cloned().collect::<Vec<_>>(), [User::Named("user-7".into())]);
    // Whoever comes back owes what they owed.
    open(&mut limits, 200, "user-7");
    assert!(!passes(&mut limits, 200, SMALL, at(1_500)));
    limits.tick(at(60_000));
    assert_eq!(limits.users.len(), 1, "it has a connection");
    limits.forget(ConnectionId(200));
    limits.tick(at(61_000));
    assert!(limits.users.is_empty());
}

#[test]
fn without_limits_nothing_is_kept() {
    let mut limits = limits(0, 0, 0);
    limits.note_opened(ConnectionId(1), &Who::User("app".into()), HERE);
    assert!(limits.users.is_empty() && limits.connections.is_empty());
    assert!((0..1_000).all(|_| passes(&mut limits, 1, 64 * MIB, at(0))));
}
