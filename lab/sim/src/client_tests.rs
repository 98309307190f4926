//! What a client reports must be true, whatever the replies: everything else the simulation says rests on it.

use super::*;
use crate::scenario::Plan;
use bytes::BytesMut;
use hedgerow_types::{Refusal, Status};
use hedgerow_wire::message::{GetReply, IncrReply};
use hedgerow_wire::{Method, Reply, ReplyExtension, decode_request, encode_reply};

const PACE: Pace = Pace { think_max: 0, attempt_timeout: 100 * MILLISECOND, deadline: 250 * MILLISECOND };

/// A client in the middle of one increment, and what it did last.
struct Bench {
    client: Client,
    workload: Workload,
    actions: Vec<Action>,
    now: Time,
}

/// An attempt as the node would see it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    machine: usize,
    client: u64,
    sequence: u64,
    attempt: i32,
    sequence_id: i32,
}

impl Bench {
    fn new() -> Self {
        let table = Table { id: 1, partition_count: 2 };
        let client =
            Client::new(7, 99, 3, table, PACE, Random::new(1)).with_script(vec![Wish::of_leader(0, Call::Incr(5))]);
        let workload = Workload::new(&Plan::new(1, None, None), Random::new(2));
        let mut bench = Self { client, workload, actions: Vec::new(), now: 0 };
        bench.client.start(0, &mut bench.actions);
        bench
    }

    /// Lets the next pause or time-out end, and returns the attempt that follows, if one does.
    fn wake(&mut self) -> Option<Seen> {
        let latest = std::mem::take(&mut self.actions).into_iter().rev().find_map(|action| match action {
            Action::Wake { at, token } => Some((at, token)),
            _ => None,
        });
        let (at, token) = latest.expect("it waits for something");
        self.now = at;
        self.client.handle_wake(token, at, &mut self.workload, &mut self.actions);
        self.actions.iter().find_map(|action| match action {
            Action::Send { machine, frame } => Some(seen(*machine, frame)),
            _ => None,
        })
    }

    /// The machine that was asked replies.
    fn reply(&mut self, sequence_id: i32, reply: &Reply) {
        let mut frame = BytesMut::new();
        let sent = self.client.current.as_ref().and_then(|it| it.sent.iter().find(|it| it.sequence_id == sequence_id));
        let served_by = address_of_machine(sent.map_or(0, |sent| sent.machine)).as_str().into();
        let extension = ReplyExtension { served_by, ..ReplyExtension::default() };
        encode_reply(&mut frame, hedgerow_wire::Method::Incr, sequence_id, reply, Some(&extension));
        let delivery = Delivery { frame: frame.freeze(), served: self.now, now: self.now };
        self.client.handle_reply(delivery, &mut self.workload, &mut self.actions);
    }

    fn recorded(&self) -> Option<Outcome> {
        self.actions.iter().find_map(|action| match action {
            Action::Record(operation) => Some(operation.outcome),
            _ => None,
        })
    }
}

fn seen(machine: usize, frame: &Bytes) -> Seen {
    let request = decode_request(frame.clone()).expect("a frame of ours");
    let extension = request.header.extension.expect("with our fields");
    Seen {
        machine,
        client: extension.client_id.expect("named"),
        // Reads have none.
        sequence: extension.sequence.unwrap_or(0),
        attempt: extension.attempt.expect("counted"),
        sequence_id: request.sequence_id,
    }
}

fn done() -> Reply {
    Reply::Incr(IncrReply { new_value: 5, ..IncrReply::default() })
}

fn refused(refusal: &Refusal) -> Reply {
    Reply::refused(refusal, Some(&"10.0.0.3:34601".into()))
}

#[test]
fn a_retry_carries_the_same_identity_to_the_leader_that_was_named() {
    let mut bench = Bench::new();
    let first = bench.wake().expect("an attempt");
    bench.reply(first.sequence_id, &refused(&Refusal::NotLeader { leader: None }));
    let second = bench.wake().expect("another attempt");
    assert_eq!((second.machine, second.attempt), (2, 2));
    assert_eq!((second.client, second.sequence), (first.client, first.sequence));
    bench.reply(second.sequence_id, &done());
    assert_eq!(bench.recorded(), Some(Outcome::Ok(Answer::Sum(5))));
    assert!(bench.client.is_done());
}

#[test]
fn an_operation_failed_only_if_every_attempt_was_refused_without_effect() {
    let clean = Refusal::NotReady("starting".into());
    for (doubtful, expected) in [
        (clean.clone(), Outcome::Failed),
        (Refusal::Unresolved, Outcome::Unknown),
        (Refusal::Expired, Outcome::Unknown),
        (Refusal::Stopping("full".into()), Outcome::Unknown),
    ] {
        let mut bench = Bench::new();
        let mut refusal = &doubtful;
        while let Some(attempt) = bench.wake() {
            bench.reply(attempt.sequence_id, &refused(refusal));
            refusal = &clean;
        }
        assert_eq!(bench.recorded(), Some(expected), "{doubtful:?}");
    }
}

#[test]
fn an_attempt_without_an_answer_leaves_the_outcome_open() {
    let mut bench = Bench::new();
    while bench.wake().is_some() {}
    assert_eq!(bench.recorded(), Some(Outcome::Unknown));
}

#[test]
fn a_broken_connection_leaves_the_outcome_open() {
    let mut bench = Bench::new();
    let attempt = bench.wake().expect("an attempt");
    bench.now = PACE.deadline;
    bench.client.handle_closed(attempt.machine, bench.now, &bench.workload, &mut bench.actions);
    assert_eq!(bench.wake(), None);
    assert_eq!(bench.recorded(), Some(Outcome::Unknown));
}

#[test]
fn a_late_success_of_an_earlier_attempt_counts() {
    let mut bench = Bench::new();
    let first = bench.wake().expect("an attempt");
    let second = bench.wake().expect("another attempt, after a time-out");
    assert_ne!(first.sequence_id, second.sequence_id);
    bench.reply(first.sequence_id, &refused(&Refusal::Unresolved));
    assert_eq!(bench.recorded(), None, "an earlier attempt's error ends nothing");
    bench.reply(first.sequence_id, &done());
    assert_eq!(bench.recorded(), Some(Outcome::Ok(Answer::Sum(5))));
    bench.reply(second.sequence_id, &done());
    assert_eq!(bench.actions.iter().filter(|action| matches!(action, Action::Record(_))).count(), 1);
}

#[test]
fn two_tied_attempts_name_each_other_and_the_one_that_lost_is_taken_back() {
    let ms = std::time::Duration::from_millis;
    let plan = hedgerow_hedge::Plan { tie: Some(ms(1)), max_executions: 2, ..hedgerow_hedge::Plan::default() };
    let mut has_cancelled = false;
    // Not every cancel is sent.
    for seed in 0..8 {
        let mut bench = Bench::new();
        let hedging = crate::reading::Hedging { plan, fallback: ReadLevel::Eventual };
        let wish = Wish { hedging: Some(hedging), ..Wish::of_any(0, ReadLevel::Linearizable) };
        bench.client.random = Random::new(seed);
        bench.client = bench.client.with_script(vec![wish]);
        let first = bench.wake().expect("an attempt");
        let requests = |actions: &[Action]| -> Vec<(usize, hedgerow_wire::Request)> {
            let sent = actions.iter().filter_map(|action| match action {
                Action::Send { machine, frame } => Some((*machine, frame.clone())),
                _ => None,
            });
            sent.map(|(machine, frame)| (machine, decode_request(frame).expect("a frame of ours"))).collect()
        };
        let tie_of = |request: &hedgerow_wire::Request| {
            let extension = request.header.extension.clone().expect("with our fields");
            Tie::decode(extension.tie.expect("it is tied")).expect("well formed")
        };
        let sent = requests(&bench.actions);
        let second_machine = machine_of_address(tie_of(&sent[0].1).peer.as_str()).expect("a machine");
        assert_ne!(second_machine, first.machine, "pitfall H2");
        let second = bench.wake().expect("the other one");
        assert_eq!((second.machine, second.attempt), (second_machine, 2));
        let tie = tie_of(&requests(&bench.actions)[0].1);
        assert_eq!((machine_of_address(tie.peer.as_str()), tie.attempt), (Some(first.machine), 1));
        let mut frame = BytesMut::new();
        let reply = Reply::Get(GetReply { error: Status::NotFound.code(), ..GetReply::default() });
        encode_reply(&mut frame, Method::Get, second.sequence_id, &reply, None);
        bench.actions.clear();
        let delivery = Delivery { frame: frame.freeze(), served: bench.now, now: bench.now };
        bench.client.handle_reply(delivery, &mut bench.workload, &mut bench.actions);
        assert!(bench.recorded().is_some());
        for (machine, request) in requests(&bench.actions) {
            let hedgerow_wire::Body::HedgerowCancel(cancel) = request.body else { panic!("{request:?}") };
            assert_eq!((machine, cancel.client_id, cancel.attempt), (first.machine, 99, Some(1)));
            has_cancelled = true;
        }
    }
    assert!(has_cancelled);
}

#[test]
fn a_read_that_is_answered_twice_is_recorded_once_and_judged_twice() {
    let mut bench = Bench::new();
    bench.client = bench.client.with_script(vec![Wish { is_hedged: true, ..Wish::of_any(0, ReadLevel::Linearizable) }]);
    let Some(Action::Wake { at, token }) = bench.actions.pop() else { panic!("it waits") };
    bench.client.handle_wake(token, at, &mut bench.workload, &mut bench.actions);
    let machines = |action: &Action| match action {
        Action::Send { machine, .. } => Some(*machine),
        _ => None,
    };
    let asked: Vec<usize> = bench.actions.iter().filter_map(machines).collect();
    assert!(asked.len() == 2 && asked[0] != asked[1], "{asked:?}");
    (bench.now, bench.actions) = (at + 1, Vec::new());
    for sequence_id in [2, 1] {
        let mut frame = BytesMut::new();
        let reply = Reply::Get(GetReply { error: Status::NotFound.code(), ..GetReply::default() });
        encode_reply(&mut frame, Method::Get, sequence_id, &reply, None);
        let delivery = Delivery { frame: frame.freeze(), served: bench.now, now: bench.now };
        bench.client.handle_reply(delivery, &mut bench.workload, &mut bench.actions);
    }
    let machine_of = |action: &Action| match action {
        Action::Record(operation) => Some((true, operation.seen?.machine)),
        Action::Judge(operation) => Some((false, operation.seen?.machine)),
        _ => None,
    };
    let judged: Vec<(bool, usize)> = bench.actions.iter().filter_map(machine_of).collect();
    assert_eq!(judged, [(true, asked[1]), (false, asked[0])]);
}

/// Pitfall D9: as the client of `host/client` does.
#[test]
fn d9_a_number_out_of_range_is_renewed_if_it_was_sent_once() {
    let ahead = SESSION_AHEAD_MICROS;
    for (floor, ceiling) in [(u64::MAX - 2 * ahead, u64::MAX - ahead), (0, 2 * ahead)] {
        for is_sent_before in [false, true] {
            let mut bench = Bench::new();
            let mut sent = bench.wake().expect("an attempt");
            if is_sent_before {
                bench.reply(sent.sequence_id, &refused(&Refusal::Unresolved));
                sent = bench.wake().expect("another attempt");
            }
            let refusal = Refusal::SessionWindow { sequence: sent.sequence, floor, ceiling };
            bench.reply(sent.sequence_id, &refused(&refusal));
            if is_sent_before {
                assert_eq!(bench.recorded(), Some(Outcome::Unknown));
                continue;
            }
            let begins = bench.actions.iter().any(|action| matches!(action, Action::Begin { .. }));
            let renewed = bench.wake().expect("another attempt");
            assert!(begins && (floor + 1..=ceiling).contains(&renewed.sequence), "{renewed:?}");
            assert_eq!(renewed.client == sent.client, floor > 0);
            bench.reply(renewed.sequence_id, &done());
            assert_eq!(bench.recorded(), Some(Outcome::Ok(Answer::Sum(5))));
        }
    }
}
