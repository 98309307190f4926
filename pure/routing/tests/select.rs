//! Which replica a read goes to: modes, failures, replicas that nobody knows yet, and the way back.
//!
//! Pitfalls that have no test here: R1 (`reaction.rs`); R4 and R5 (`map.rs`); R7 and R13 (`herd.rs`); R16 and R17
//! (`src/statistics.rs`); R18, R19 (nothing splits or moves partitions by load yet); R21 (this crate logs nothing).

use bytes::Bytes;
use hedgerow_routing::{
    ATTEMPTS_MAX, Address, Candidate, Choice, Failure, LARGE_REPLY_SIZE, Labels, PartitionRoute, REPLICA_BACKOFF_MAX,
    Reaction, ReplicaLoad, ReplicaRead, Selector, State, UNKNOWN_IN_FLIGHT_MAX, replica_reaction,
};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Instant, Lag, Refusal};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const GROUP: GroupId = GroupId::new(1, 0);
const LEADER: u16 = 1;
const NEAR: u16 = 2;
const FAR: u16 = 3;
const LEARNER: u16 = 4;
const ALL: [u16; 4] = [LEADER, NEAR, FAR, LEARNER];

fn at(port: u16) -> Address {
    Address::from(([10, 0, 0, 1], port))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn lagging() -> Refusal {
    Refusal::Lagging(Lag { entries: 9, staleness: None })
}

/// One client near `NEAR`, with a clock that stands still unless it is moved.
struct World {
    selector: Selector,
    route: PartitionRoute,
    random: Random,
    now: Instant,
    tried: Vec<Address>,
    excluded: Vec<Address>,
    size_hint: usize,
}

impl World {
    /// Nothing is known of any node but where it stands.
    fn unknown() -> Self {
        let here = Labels::default().with("region", "eu").with("zone", "a");
        let mut selector = Selector::new(here.clone());
        selector.set_node_labels(at(NEAR), &here);
        selector.set_node_labels(at(FAR), &Labels::default().with("region", "eu").with("zone", "b"));
        let route = PartitionRoute {
            ballot: 1,
            leader: Some(at(LEADER)),
            followers: vec![at(NEAR), at(FAR)],
            learners: vec![at(LEARNER)],
            start: Bytes::new(),
        };
        let now = Instant::ZERO + Duration::from_secs(1_000);
        Self { selector, route, random: Random::new(1), now, tried: Vec::new(), excluded: Vec::new(), size_hint: 0 }
    }

    /// All nodes are known to be equally fast.
    fn known() -> Self {
        let mut world = Self::unknown();
        ALL.into_iter().for_each(|port| world.serve_many(port, ms(1), 20));
        world
    }

    fn choose(&mut self, mode: ReplicaRead) -> u16 {
        let Self { selector, route, random, now, tried, excluded, size_hint } = self;
        let leader = route.leader;
        let choice = Choice { group: GROUP, route, leader, mode, tried, excluded, size_hint: *size_hint };
        let chosen = selector.choose(&choice, *now, random).expect("there are replicas");
        let offered = selector.candidates(&choice, *now);
        assert!(offered.iter().any(|candidate| candidate.address == chosen), "{chosen} is not among {offered:?}");
        chosen.port()
    }

    /// How many of a thousand choices each replica gets.
    fn shares(&mut self, mode: ReplicaRead) -> BTreeMap<u16, u32> {
        let mut shares = BTreeMap::new();
        (0..1_000).for_each(|_| *shares.entry(self.choose(mode)).or_default() += 1);
        shares
    }

    fn chosen(&mut self, mode: ReplicaRead) -> Vec<u16> {
        self.shares(mode).into_keys().collect()
    }

    fn send(&mut self, port: u16) {
        self.selector.note_sent(at(port), self.now);
    }

    fn reply(&mut self, port: u16, latency: Duration) {
        let load = ReplicaLoad { in_flight: 0, service: ms(1), queue: Duration::ZERO };
        self.selector.note_reply(GROUP, at(port), latency, Some(load), self.now);
    }

    fn serve_many(&mut self, port: u16, latency: Duration, count: u32) {
        for _ in 0..count {
            self.send(port);
            self.now = self.now + latency;
            self.reply(port, latency);
        }
    }

    fn fail(&mut self, port: u16, failure: Failure<'_>) {
        self.send(port);
        self.selector.note_failed(GROUP, at(port), failure, self.now);
    }

    fn refuse(&mut self, port: u16, refusal: &Refusal) {
        self.fail(port, Failure::Refused(refusal));
    }
}

#[test]
fn each_mode_has_its_replicas_and_ends_at_the_others() {
    let order = |mode| {
        let mut world = World::known();
        let mut order = Vec::new();
        while world.tried.len() < ALL.len() {
            let chosen = world.chosen(mode);
            world.tried.extend(chosen.iter().copied().map(at));
            order.push(chosen);
        }
        order
    };
    assert_eq!(order(ReplicaRead::Leader), [vec![LEADER], vec![NEAR, FAR, LEARNER]]);
    assert_eq!(order(ReplicaRead::Follower), [vec![NEAR, FAR, LEARNER], vec![LEADER]]);
    assert_eq!(order(ReplicaRead::LeaderAndFollower), [ALL.to_vec()]);
    assert_eq!(order(ReplicaRead::PreferLeader), [vec![LEADER], vec![NEAR, FAR, LEARNER]]);
    for closest in [ReplicaRead::ClosestReplicas, ReplicaRead::ClosestAdaptive] {
        assert_eq!(order(closest), [vec![NEAR], vec![FAR], vec![LEADER, LEARNER]]);
    }
    assert_eq!(order(ReplicaRead::Learner), [vec![LEARNER], vec![NEAR, FAR], vec![LEADER]]);
}

#[test]
fn a_leader_by_a_replicas_word_counts_and_is_a_candidate_once() {
    let mut world = World::known();
    let choice = |leader| Choice {
        group: GROUP,
        route: &world.route,
        leader,
        mode: ReplicaRead::PreferLeader,
        tried: &[],
        excluded: &[],
        size_hint: 0,
    };
    let hinted = world.selector.choose(&choice(Some(at(FAR))), world.now, &mut world.random);
    assert_eq!(hinted, Some(at(FAR)));
    // A leader that the map does not have yet.
    let new = world.selector.choose(&choice(Some(at(9))), world.now, &mut world.random);
    assert_eq!(new, Some(at(9)));
    let nobody = PartitionRoute { leader: None, followers: Vec::new(), learners: Vec::new(), ..world.route.clone() };
    let choice = Choice { route: &nobody, ..choice(None) };
    assert_eq!(world.selector.choose(&choice, world.now, &mut world.random), None);
}

#[test]
fn who_is_excluded_is_never_chosen_in_any_mode() {
    for mode in ReplicaRead::ALL {
        let mut world = World::known();
        world.excluded = vec![at(LEADER), at(NEAR)];
        let of_the_others = |chosen: &[u16]| chosen.iter().all(|port| [FAR, LEARNER].contains(port));
        assert!(of_the_others(&world.chosen(mode)), "{mode}");
        // Neither when the others were asked, nor when they step back.
        world.tried = vec![at(FAR), at(LEARNER)];
        assert!(of_the_others(&world.chosen(mode)), "{mode}");
        [FAR, LEARNER].into_iter().for_each(|port| world.refuse(port, &lagging()));
        assert!(of_the_others(&world.chosen(mode)), "{mode}");
    }
}

#[test]
fn candidates_are_all_that_are_neither_tried_nor_excluded() {
    let mut world = World::known();
    world.send(FAR);
    world.refuse(LEARNER, &lagging());
    let candidates = |tried: &[Address], excluded: &[Address]| {
        let World { selector, route, now, .. } = &world;
        let mode = ReplicaRead::ClosestReplicas;
        let choice = Choice { group: GROUP, route, leader: route.leader, mode, tried, excluded, size_hint: 0 };
        let offered = selector.candidates(&choice, *now);
        let known = |it: &Candidate| (it.address.port(), it.is_leader, it.state, it.rank, it.in_flight);
        offered.iter().map(known).collect::<Vec<_>>()
    };
    let near = (NEAR, false, State::Ready, 0, 0);
    let learner = (LEARNER, false, State::BackedOff, 2, 0);
    let all = [(LEADER, true, State::Ready, 2, 0), near, (FAR, false, State::Ready, 1, 1), learner];
    assert_eq!(candidates(&[], &[]), all);
    assert_eq!(candidates(&[at(FAR)], &[at(LEADER)]), [near, learner]);
    assert_eq!(candidates(&ALL.map(at), &[at(LEADER)]), all[1..]);
    assert_eq!(candidates(&[], &ALL.map(at)), []);
}

/// What a request does that is refused by everybody: the replicas in the order of its attempts, `|` for a pause.
fn story(world: &mut World, mode: ReplicaRead, refusal_of: impl Fn(u16, u32) -> Option<Refusal>) -> String {
    let (mut story, mut attempt, mut rounds) = (String::new(), 1, 0);
    loop {
        let port = world.choose(mode);
        story.push_str(&port.to_string());
        let Some(refusal) = refusal_of(port, attempt) else { return story };
        world.refuse(port, &refusal);
        world.tried.push(at(port));
        let has_others = world.route.replicas().any(|replica| !world.tried.contains(&replica));
        if !has_others {
            rounds += 1;
            world.tried.clear();
        }
        let rounds = if has_others { 0 } else { rounds };
        match replica_reaction(Failure::Refused(&refusal), attempt, rounds, &mut world.random) {
            Reaction::Fail => return story + "F",
            Reaction::Retry { after } | Reaction::RefreshAndRetry { after } => {
                assert!(after <= REPLICA_BACKOFF_MAX);
                if !after.is_zero() {
                    story.push('|');
                    world.now = world.now + after;
                }
                assert_eq!(after.is_zero(), has_others, "a pause only when everybody was asked: {story}");
            }
        }
        attempt += 1;
    }
}

#[test]
fn r02_all_busy_ends_after_bounded_attempts_with_pauses_between_the_rounds() {
    let busy = |_, _| Some(Refusal::Busy(String::new()));
    let story = story(&mut World::known(), ReplicaRead::Follower, busy);
    assert_eq!(story.matches(|c: char| c.is_ascii_digit()).count(), ATTEMPTS_MAX as usize, "{story}");
    assert!(story.ends_with('F'));
    for round in story.split('|').filter(|round| !round.ends_with('F')) {
        let mut asked: Vec<char> = round.chars().collect();
        asked.sort_unstable();
        assert_eq!(asked, ['1', '2', '3', '4'], "each once a round: {story}");
    }
}

#[test]
fn r02_the_least_busy_is_asked_first_in_the_next_round() {
    let mut world = World::known();
    // All were busy, and the far one for the shortest time.
    let others = [LEADER, NEAR, LEARNER];
    others.into_iter().for_each(|port| world.refuse(port, &Refusal::Busy(String::new())));
    world.now = world.now + ms(100);
    others.into_iter().for_each(|port| world.refuse(port, &Refusal::Busy(String::new())));
    world.refuse(FAR, &Refusal::Busy(String::new()));
    assert_eq!(world.chosen(ReplicaRead::Follower), [FAR]);
}

#[test]
fn r03_one_replica_that_always_refuses_costs_one_attempt() {
    let refusal_of = |port, _| (port == LEARNER).then(|| Refusal::NotReady("starting".to_owned()));
    for seed in 0..20 {
        let mut world = World::known();
        world.random = Random::new(seed);
        let story = story(&mut world, ReplicaRead::Learner, refusal_of);
        assert!(story == "42" || story == "43", "{story}");
        // And the next requests do not even try, until it is time again.
        assert_eq!(world.chosen(ReplicaRead::Learner), [NEAR, FAR]);
    }
}

#[test]
fn s05_followers_that_lag_cost_one_read_at_the_leader_and_no_pause() {
    let refusal_of = |port, _| (port != LEADER).then(lagging);
    let story = story(&mut World::known(), ReplicaRead::Follower, refusal_of);
    assert_eq!((story.len(), story.matches('1').count(), story.contains('|')), (4, 1, false), "{story}");
}

/// What was refused by or lost at `NEAR` makes it step back, and within `REPLICA_BACKOFF_MAX` of being well again it is used.
fn steps_back(failure: Failure<'_>) {
    let mut world = World::known();
    assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [NEAR]);
    world.fail(NEAR, failure);
    assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [FAR], "{failure:?}");
    // It goes on failing for a while.
    for _ in 0..100 {
        world.now = world.now + ms(100);
        if world.choose(ReplicaRead::ClosestReplicas) == NEAR {
            world.fail(NEAR, failure);
        }
    }
    // Then it is well again.
    world.now = world.now + REPLICA_BACKOFF_MAX;
    assert_eq!(world.choose(ReplicaRead::ClosestReplicas), NEAR);
    world.send(NEAR);
    assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [FAR], "one request tries it");
    world.now = world.now + ms(1);
    world.reply(NEAR, ms(1));
    assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [NEAR]);
}

#[test]
fn r06_a_near_replica_that_is_well_again_is_used_again() {
    steps_back(Failure::Unreachable);
    steps_back(Failure::ConnectionLost);
    steps_back(Failure::NoReply);
}

#[test]
fn r08_a_lagging_replica_steps_back_at_once_and_comes_back() {
    steps_back(Failure::Refused(&lagging()));
}

#[test]
fn r08_a_replica_that_lags_in_one_partition_serves_the_others() {
    let mut world = World::known();
    world.refuse(NEAR, &lagging());
    assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [FAR]);
    let other = Choice {
        group: GroupId::new(1, 1),
        route: &world.route,
        leader: world.route.leader,
        mode: ReplicaRead::ClosestReplicas,
        tried: &[],
        excluded: &[],
        size_hint: 0,
    };
    assert_eq!(world.selector.choose(&other, world.now, &mut world.random), Some(at(NEAR)));
}

#[test]
fn r09_a_full_replica_steps_back() {
    steps_back(Failure::Refused(&Refusal::NotReady("its disk is full".to_owned())));
}

#[test]
fn r10_a_replica_without_a_leader_steps_back() {
    steps_back(Failure::Refused(&Refusal::NotLeader { leader: None }));
}

#[test]
fn r11_starting_draining_and_busy_replicas_step_back() {
    for refusal in [
        Refusal::NotReady("starting".to_owned()),
        Refusal::Stopping("draining".to_owned()),
        Refusal::Busy("full queue".to_owned()),
    ] {
        steps_back(Failure::Refused(&refusal));
    }
}

#[test]
fn r11_a_node_that_just_restarted_is_new() {
    let mut world = World::known();
    world.refuse(NEAR, &Refusal::Stopping("restarting".to_owned()));
    world.now = world.now + REPLICA_BACKOFF_MAX;
    world.serve_many(NEAR, ms(1), 1);
    assert_eq!(world.choose(ReplicaRead::ClosestReplicas), NEAR);
    (0..UNKNOWN_IN_FLIGHT_MAX).for_each(|_| world.send(NEAR));
    assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [FAR], "what was known before its restart is void");
}

#[test]
fn r12_a_new_replica_gets_few_requests_at_once_until_it_is_known() {
    let mut world = World::known();
    world.route.learners.push(at(9));
    for _ in 0..1_000 {
        let port = world.choose(ReplicaRead::LeaderAndFollower);
        world.send(port);
    }
    assert_eq!(world.selector.in_flight(at(9)), UNKNOWN_IN_FLIGHT_MAX);
    // It is slow to answer: still no more.
    world.now = world.now + ms(100);
    world.reply(9, ms(100));
    (0..1_000).for_each(|_| {
        let port = world.choose(ReplicaRead::LeaderAndFollower);
        world.send(port);
    });
    assert_eq!(world.selector.in_flight(at(9)), UNKNOWN_IN_FLIGHT_MAX);

    let mut world = World::known();
    world.route.learners.push(at(9));
    world.serve_many(9, ms(1), 10);
    let shares = world.shares(ReplicaRead::LeaderAndFollower);
    assert!((150..250).contains(&shares[&9]), "known, it is one of five: {shares:?}");
}

#[test]
fn r12_where_nobody_is_known_all_share() {
    let mut world = World::unknown();
    for _ in 0..400 {
        let port = world.choose(ReplicaRead::LeaderAndFollower);
        world.send(port);
    }
    for port in ALL {
        let in_flight = world.selector.in_flight(at(port));
        assert!((80..120).contains(&in_flight), "{port}: {in_flight}");
    }
}

#[test]
fn r14_every_way_a_request_ends_is_counted() {
    let mut world = World::known();
    let endings: [fn(&mut World); 4] = [
        |world| world.reply(NEAR, ms(1)),
        |world| world.selector.note_failed(GROUP, at(NEAR), Failure::NoReply, world.now),
        |world| world.selector.note_failed(GROUP, at(NEAR), Failure::Refused(&Refusal::Expired), world.now),
        |world| world.selector.note_cancelled(at(NEAR), ms(1), world.now),
    ];
    for ending in endings {
        world.send(NEAR);
        assert_eq!(world.selector.in_flight(at(NEAR)), 1);
        ending(&mut world);
        assert_eq!(world.selector.in_flight(at(NEAR)), 0);
    }
}

#[test]
fn r14_a_replica_whose_requests_are_given_up_looks_slow() {
    let mut world = World::known();
    for _ in 0..10 {
        world.send(NEAR);
        world.now = world.now + ms(50);
        world.selector.note_cancelled(at(NEAR), ms(50), world.now);
    }
    let shares = world.shares(ReplicaRead::LeaderAndFollower);
    assert!(shares.get(&NEAR).is_none_or(|count| *count < 20), "{shares:?}");
}

#[test]
fn r15_a_replica_that_was_slow_is_tried_again_and_believed() {
    let mut world = World::known();
    world.serve_many(NEAR, ms(500), 20);
    for port in [LEADER, FAR, LEARNER] {
        world.serve_many(port, ms(1), 20);
    }
    let mode = ReplicaRead::LeaderAndFollower;
    assert!(world.shares(mode).get(&NEAR).is_none_or(|count| *count < 5));
    // A hundred reads a second for twenty seconds; whichever is asked answers in a millisecond.
    let mut used = 0;
    for _ in 0..2_000 {
        let port = world.choose(mode);
        world.send(port);
        world.now = world.now + ms(1);
        world.reply(port, ms(1));
        world.now = world.now + ms(9);
        used += u32::from(port == NEAR);
    }
    assert!(used > 50, "{used}");
    let shares = world.shares(mode);
    assert!(shares[&NEAR] > 150, "{shares:?}");
}

#[test]
fn r20_a_replica_that_has_gone_costs_one_redirect() {
    let refusal_of = |port, _| (port == LEARNER).then_some(Refusal::NotHosted);
    let mut world = World::known();
    let story = story(&mut world, ReplicaRead::Learner, refusal_of);
    assert_eq!((story.len(), story.contains('|')), (2, false), "{story}");
    world.tried.clear();
    assert_eq!(world.chosen(ReplicaRead::Learner), [NEAR, FAR], "until the map is fetched again");
}

#[test]
fn a_failure_of_the_request_says_nothing_about_the_replica() {
    let mut world = World::known();
    for refusal in [Refusal::Expired, Refusal::Invalid(String::new()), Refusal::TooLarge(String::new())] {
        world.refuse(NEAR, &refusal);
        assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [NEAR]);
    }
}

#[test]
fn replicas_that_are_all_set_back_are_asked_all_the_same() {
    let mut world = World::known();
    for port in ALL {
        world.refuse(port, &lagging());
        world.now = world.now + ms(1);
    }
    // The one whose time is over first.
    assert_eq!(world.chosen(ReplicaRead::LeaderAndFollower), [LEADER]);
    assert_eq!(world.chosen(ReplicaRead::ClosestReplicas), [LEADER]);
}

#[test]
fn an_overloaded_leader_is_left_by_some_and_a_busy_one_is_not_left_by_small_differences() {
    let mut world = World::known();
    assert_eq!(world.chosen(ReplicaRead::PreferLeader), [LEADER]);
    let load = ReplicaLoad { in_flight: 5, service: ms(1), queue: ms(5) };
    (0..20).for_each(|_| {
        world.send(LEADER);
        world.now = world.now + ms(1);
        world.selector.note_reply(GROUP, at(LEADER), ms(6), Some(load), world.now);
    });
    assert_eq!(world.chosen(ReplicaRead::PreferLeader), [LEADER]);
    let load = ReplicaLoad { in_flight: 200, service: ms(1), queue: ms(200) };
    (0..20).for_each(|_| {
        world.send(LEADER);
        world.now = world.now + ms(1);
        world.selector.note_reply(GROUP, at(LEADER), ms(200), Some(load), world.now);
    });
    let shares = world.shares(ReplicaRead::PreferLeader);
    assert!((20..300).contains(&shares[&LEADER]), "{shares:?}");
}

#[test]
fn large_replies_stay_near_for_longer() {
    let mut world = World::known();
    world.serve_many(FAR, ms(2), 20);
    let load = ReplicaLoad { in_flight: 4, service: ms(1), queue: ms(4) };
    (0..20).for_each(|_| {
        world.send(NEAR);
        world.now = world.now + ms(1);
        world.selector.note_reply(GROUP, at(NEAR), ms(5), Some(load), world.now);
    });
    let small = world.shares(ReplicaRead::ClosestAdaptive);
    assert!(small[&NEAR] < 900, "{small:?}");
    world.size_hint = LARGE_REPLY_SIZE;
    assert_eq!(world.chosen(ReplicaRead::ClosestAdaptive), [NEAR]);
}

#[test]
fn the_same_seed_makes_the_same_choices() {
    let choices = || {
        let mut world = World::known();
        (0..100).map(|_| world.choose(ReplicaRead::LeaderAndFollower)).collect::<Vec<_>>()
    };
    assert_eq!(choices(), choices());
}

#[test]
fn modes_and_labels_are_read_as_they_are_written() {
    for mode in ReplicaRead::ALL {
        assert_eq!(mode.to_string().parse(), Ok(mode));
        assert!(ReplicaRead::FORMS.contains(mode.name()));
    }
    let error = "nearest".parse::<ReplicaRead>().expect_err("there is no such mode");
    assert!(error.to_string().contains("closest-replicas"), "{error}");
    for text in ["", "zone=a", "region=eu,zone=a"] {
        assert_eq!(text.parse::<Labels>().expect(text).to_string(), text);
    }
    for text in ["zone", "=a", "zone=", "zone=a,", "zone=a,zone=b"] {
        let error = text.parse::<Labels>().expect_err(text);
        assert!(error.to_string().contains("name=value"), "{error}");
    }
}

proptest! {
    /// Whatever happened before, a choice is a replica of the partition, and one that was not tried while there is one.
    #[test]
    fn a_choice_is_always_a_replica_that_was_not_tried(
        events in proptest::collection::vec((0u8..6, 0usize..4, 0u64..3_000), 0..200),
        tried in proptest::collection::btree_set(0usize..4, 0..5),
        mode in 0usize..7,
    ) {
        let mut world = World::unknown();
        for (event, port, pause) in events {
            let port = ALL[port];
            match event {
                0 => world.send(port),
                1 => world.serve_many(port, ms(1 + pause / 100), 1),
                2 => world.refuse(port, &lagging()),
                3 => world.fail(port, Failure::NoReply),
                4 => world.selector.note_cancelled(at(port), ms(pause), world.now),
                _ => world.now = world.now + ms(pause),
            }
        }
        world.tried = tried.iter().map(|index| at(ALL[*index])).collect();
        let chosen = at(world.choose(ReplicaRead::ALL[mode]));
        prop_assert!(world.route.replicas().any(|replica| replica == chosen));
        prop_assert!(world.tried.len() == ALL.len() || !world.tried.contains(&chosen));
    }
}
