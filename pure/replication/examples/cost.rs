//! What a committed entry costs: `cargo run --release -p hedgerow-replication --example cost`.
//!
//! Three replicas of each group in one thread, every message encoded and decoded, disks and network at once. Prints the time
//! of one entry for all three replicas together, for some numbers of groups and of proposals in one poll.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use bytes::{Bytes, BytesMut};
use hedgerow_replication::{Group, Membership, Message, ReadNeed, ReadStart, Role, Settings, Start};
use hedgerow_types::{GroupId, Instant, ReplicaId};
use std::collections::VecDeque;

const MILLI: u64 = 1_000_000;

struct Trio {
    groups: Vec<Group>,
    mail: VecDeque<(usize, u64, Bytes)>,
    now: Instant,
    messages: u64,
}

impl Trio {
    fn new() -> Self {
        let membership = Membership::of_voters((1..=3).map(ReplicaId));
        let now = Instant(1_000 * MILLI);
        let start = |id: u64| {
            let start = Start::founding(GroupId::META, ReplicaId(id), membership.clone(), id);
            Group::new(&Settings::default(), Start { may_campaign_now: id == 1, ..start }, now)
        };
        let groups = (1..=3).map(|id| start(id).expect("a new replica")).collect();
        let mut trio = Self { groups, mail: VecDeque::new(), now, messages: 0 };
        while trio.groups[0].role() != Role::Leader {
            trio.now.0 += 10 * MILLI;
            trio.groups.iter_mut().for_each(|group| group.handle_tick(trio.now));
            trio.settle();
        }
        trio
    }

    fn settle(&mut self) {
        let mut buffer = BytesMut::with_capacity(1 << 16);
        loop {
            for i in 0..3 {
                while let Some(ready) = self.groups[i].poll_ready(self.now) {
                    for (to, message) in ready.messages {
                        message.encode(&mut buffer);
                        self.messages += 1;
                        self.mail.push_back((to.0 as usize - 1, i as u64 + 1, buffer.split().freeze()));
                    }
                    if let Some(persist) = ready.persist {
                        self.groups[i].handle_persisted(persist.ticket, self.now);
                    }
                    if let Some(last) = ready.committed.last() {
                        let position = last.position();
                        self.groups[i].handle_applied(position.index, self.now);
                        self.groups[i].truncated(position);
                    }
                }
            }
            let Some((to, from, bytes)) = self.mail.pop_front() else { return };
            let message = Message::decode(bytes).expect("a message that was encoded");
            self.groups[to].handle_message(ReplicaId(from), message, self.now);
        }
    }
}

fn main() {
    for (count, batch) in [(1, 1), (1, 32), (64, 1), (64, 4), (64, 32)] {
        let mut trios: Vec<_> = (0..count).map(|_| Trio::new()).collect();
        let value = Bytes::from(vec![7; 1_000]);
        let rounds = 200_000 / (count * batch);
        let before = std::time::Instant::now();
        for _ in 0..rounds {
            for trio in &mut trios {
                trio.now.0 += 1_000;
                for _ in 0..batch {
                    trio.groups[0].propose(value.clone(), trio.now).expect("a leader");
                }
                trio.settle();
            }
        }
        let entries = (rounds * count * batch) as f64;
        let nanos = before.elapsed().as_nanos() as f64 / entries;
        let messages = trios.iter().map(|trio| trio.messages).sum::<u64>() as f64 / entries;
        println!(
            "{count:>3} groups, {batch:>2} proposals at once: {nanos:>6.0} ns and {messages:.1} messages per entry"
        );
    }
    let mut trio = Trio::new();
    trio.settle();
    let before = std::time::Instant::now();
    let count = 10_000_000;
    let mut is_served = |i: &u64| matches!(trio.groups[0].read(*i, ReadNeed::Latest, trio.now), ReadStart::Serve(_));
    let served = (0..count).filter(&mut is_served).count();
    println!("read under the lease: {:.1} ns, {served} of {count}", before.elapsed().as_nanos() as f64 / count as f64);
    let before = std::time::Instant::now();
    let idle = (0..count).filter(|_| trio.groups[0].poll_ready(trio.now).is_none()).count();
    println!("poll without work: {:.1} ns, {idle}", before.elapsed().as_nanos() as f64 / count as f64);
    let before = std::time::Instant::now();
    for _ in 0..1_000_000 {
        trio.now.0 += 100 * MILLI;
        trio.groups.iter_mut().for_each(|group| group.handle_tick(trio.now));
        trio.settle();
    }
    println!("tick of three idle replicas: {:.0} ns", before.elapsed().as_nanos() as f64 / 1e6);
}
