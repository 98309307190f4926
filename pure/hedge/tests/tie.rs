//! Tied requests: when two copies are sent, and everything that can happen to them, in every order.
//!
//! H18 (orphan ids) and H19 (a cancel kills only its own client's work) are about the server's lists: `host/node`.

use hedgerow_hedge::{Action, Outcome, Plan, Race, TieRule, TieStep, TiedCopy, Time};
use std::collections::BTreeSet;
use std::time::Duration;

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

#[test]
fn a_request_is_tied_when_its_wait_outweighs_the_messages() {
    let rule = TieRule::default();
    // (queue wait, network delay, stagger), microseconds.
    let table = [
        (0, 50, None),
        (90, 50, None),
        (101, 50, Some(100)),
        (5_000, 50, Some(100)),
        (5_000, 500, Some(1_000)),
        (1_000, 500, None),
        (1_001, 500, Some(1_000)),
        // The stagger has a least length: a copy that is to follow later than the wait is not worth it.
        (60, 5, None),
        (101, 5, Some(100)),
        // Farther than the longest stagger: never.
        (1_000_000, 5_001, None),
        (1_000_000, 5_000, Some(10_000)),
        (1_000, 0, Some(100)),
    ];
    for (wait, network, stagger) in table {
        assert_eq!(rule.stagger(micros(wait), micros(network)), stagger.map(micros), "{wait} us, {network} us");
    }
}

/// H15: a cancel before the copy, in the queue, while it runs, after, twice; and a copy that comes twice.
#[test]
fn h15_a_cancel_at_every_moment() {
    use TieStep::{Forget, Nothing, Queue, RunAndTell};
    let steps: [(&[&str], &[TieStep]); 6] = [
        (&["cancel", "arrive", "turn"], &[Nothing, Nothing, Nothing]),
        (&["arrive", "cancel", "turn", "cancel"], &[Queue, Forget, Nothing, Nothing]),
        (&["arrive", "turn", "cancel", "cancel", "turn"], &[Queue, RunAndTell, Nothing, Nothing, Nothing]),
        (&["arrive", "arrive", "turn", "arrive"], &[Queue, Nothing, RunAndTell, Nothing]),
        (&["began", "cancel", "arrive"], &[Nothing, Nothing, Nothing]),
        (&["arrive", "turn", "began", "began"], &[Queue, RunAndTell, Nothing, Nothing]),
    ];
    for (events, expected) in steps {
        let mut copy = TiedCopy::default();
        let answers: Vec<TieStep> = events.iter().map(|event| tell(&mut copy, event)).collect();
        assert_eq!(answers, expected, "{events:?}");
    }
}

fn tell(copy: &mut TiedCopy, event: &str) -> TieStep {
    match event {
        "arrive" => copy.handle_arrival(),
        "turn" => copy.handle_turn(),
        "began" => copy.handle_other_began(),
        "cancel" => copy.handle_cancel(),
        _ => panic!("{event}: no event"),
    }
}

/// On its way to a server, or from it to the client. Server 2 is the third replica, of the attempt that is not tied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Request(usize),
    Began(usize),
    Cancel(usize),
    Reply(usize),
    Withdrawn(usize),
}

#[derive(Clone, Debug)]
struct World {
    race: Race,
    now: Time,
    messages: BTreeSet<Message>,
    copies: [TiedCopy; 3],
    is_alive: [bool; 3],
    runs: [u8; 3],
    replies_used: u8,
    /// What the world may still do to us.
    losses: u8,
    crashes: u8,
}

/// What was reached at all, so that the search is known not to be empty.
#[derive(Default)]
struct Seen {
    states: BTreeSet<String>,
    both_ran: bool,
    one_withdrawn: bool,
    rescued_by_timer: bool,
}

impl World {
    fn start(losses: u8, crashes: u8) -> Self {
        let delay = Duration::from_millis(10);
        let tie = Some(Duration::from_millis(1));
        // Two tied copies and one more, should both be lost.
        let plan = Plan { delay: Some(delay), gap: delay, max_executions: 3, tie, ..Plan::default() };
        let mut world = Self {
            race: Race::new(plan, Time(0)),
            now: Time(0),
            messages: BTreeSet::new(),
            copies: [TiedCopy::Absent; 3],
            is_alive: [true; 3],
            runs: [0; 3],
            replies_used: 0,
            losses,
            crashes,
        };
        world.poll();
        world
    }

    /// The client does what its race says. Returns until when it waits; `None` = it does not wait for time.
    fn poll(&mut self) -> Option<Time> {
        loop {
            match self.race.poll(self.now, |_| true) {
                Action::Send { number, .. } => {
                    if usize::from(number) <= 3 {
                        self.messages.insert(Message::Request(usize::from(number) - 1));
                    }
                }
                Action::Wait { until } => return until,
                Action::Finish { losers, .. } => {
                    for loser in losers.iter().filter(|number| *number <= 3) {
                        self.messages.insert(Message::Cancel(usize::from(loser) - 1));
                    }
                    return None;
                }
            }
        }
    }

    fn end(&mut self, server: usize, outcome: Outcome) {
        let counts = self.race.handle_end(server as u8 + 1, outcome);
        self.replies_used += u8::from(counts && outcome == Outcome::Success);
        // A client that is done does not send its cancels again.
        if counts {
            self.poll();
        }
    }

    fn step(&mut self, server: usize, step: TieStep) {
        match step {
            TieStep::RunAndTell => {
                self.runs[server] += 1;
                self.messages.insert(Message::Reply(server));
                if server < 2 {
                    self.messages.insert(Message::Began(1 - server));
                }
            }
            TieStep::Withdraw => {
                self.messages.insert(Message::Withdrawn(server));
            }
            TieStep::Nothing | TieStep::Queue | TieStep::Forget => {}
        }
    }

    fn deliver(&mut self, message: Message) {
        self.messages.remove(&message);
        match message {
            Message::Reply(server) => self.end(server, Outcome::Success),
            Message::Withdrawn(server) => self.end(server, Outcome::Dropped),
            Message::Request(server) | Message::Began(server) | Message::Cancel(server) => {
                if !self.is_alive[server] {
                    return;
                }
                let copy = &mut self.copies[server];
                let step = match message {
                    Message::Request(_) => copy.handle_arrival(),
                    Message::Began(_) => copy.handle_other_began(),
                    _ => copy.handle_cancel(),
                };
                self.step(server, step);
            }
        }
    }

    /// Every world that may be next.
    fn next(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut and = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(world);
        };
        for message in self.messages.iter().copied() {
            and(&|world| world.deliver(message));
            // The third attempt stands for all that follow: it is not lost.
            let may_be_lost = !matches!(message, Message::Request(2) | Message::Reply(2));
            if self.losses > 0 && may_be_lost {
                and(&|world| {
                    world.messages.remove(&message);
                    world.losses -= 1;
                });
            }
        }
        for server in 0..3 {
            if self.is_alive[server] && self.copies[server] == TiedCopy::Queued {
                and(&|world| {
                    let step = world.copies[server].handle_turn();
                    world.step(server, step);
                });
            }
            if self.is_alive[server] && self.crashes > 0 && server < 2 {
                and(&|world| {
                    world.is_alive[server] = false;
                    world.crashes -= 1;
                });
            }
        }
        if let Some(until) = self.clone().poll() {
            and(&|world| {
                world.now = until;
                world.poll();
            });
        }
        next
    }

    fn check(&self) {
        assert!(self.runs.iter().all(|runs| *runs <= 1), "a copy runs once: {self:?}");
        assert!(self.replies_used <= 1, "one reply is used: {self:?}");
        if self.replies_used == 0 {
            let is_dropped = |server: usize| self.copies[server] == TiedCopy::Dropped;
            assert!(!(is_dropped(0) && is_dropped(1)), "H17: both copies are gone: {self:?}");
            assert!(!is_dropped(0) || self.runs[1] == 1, "who goes, goes for one that runs: {self:?}");
            assert!(!is_dropped(1) || self.runs[0] == 1, "who goes, goes for one that runs: {self:?}");
        }
    }
}

fn explore(losses: u8, crashes: u8) -> Seen {
    let mut seen = Seen::default();
    let mut open = vec![World::start(losses, crashes)];
    while let Some(world) = open.pop() {
        if !seen.states.insert(format!("{world:?}")) {
            continue;
        }
        world.check();
        seen.both_ran |= world.runs[0] + world.runs[1] == 2;
        seen.one_withdrawn |= world.copies.contains(&TiedCopy::Dropped) && world.runs[0] + world.runs[1] == 1;
        seen.rescued_by_timer |= world.runs == [0, 0, 1] && world.replies_used == 1;
        let next = world.next();
        if next.is_empty() {
            assert_eq!(world.replies_used, 1, "nothing more can happen, and nobody has answered: {world:?}");
        }
        open.extend(next);
    }
    seen
}

/// H16: copies that begin while the messages cross both run, and one reply is used. H17: they never cancel each other.
#[test]
fn h16_h17_every_order_of_two_servers() {
    let seen = explore(0, 0);
    assert!(seen.both_ran && seen.one_withdrawn, "both ends are reached");
    assert!(seen.states.len() > 200, "{}", seen.states.len());
}

/// H17: peers that are dead or cut off, requests, cancels and notes that are lost: one reply, if need be after the timer.
#[test]
fn h17_every_order_with_lost_messages_and_dead_servers() {
    let seen = explore(2, 1);
    assert!(seen.both_ran && seen.one_withdrawn && seen.rescued_by_timer);
    let all_die = explore(1, 2);
    assert!(all_die.rescued_by_timer);
}
