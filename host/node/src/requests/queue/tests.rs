//! The queue against plain lists; who has a turn, and who gives room.

use super::*;
use crate::requests::callers::Callers;
use bytes::Bytes;
use hedgerow_types::random::Random;
use std::collections::VecDeque;
use std::sync::Arc;

/// Connections with their reads, the one whose turn it is first.
type Lists = VecDeque<(u64, VecDeque<(i32, Slot)>)>;

/// A queue whose reads have numbers.
struct Numbered {
    queue: Queue,
    callers: Callers,
}

impl Numbered {
    fn new() -> Self {
        let bytes = SharedBound::new(&Arc::default(), READS_QUEUED_BYTES_MAX, 1);
        Self { queue: Queue::new(bytes), callers: Callers::default() }
    }

    fn push(&mut self, lane: Lane, connection: u64, number: i32) -> Slot {
        self.push_large(lane, connection, number, 7)
    }

    fn push_large(&mut self, lane: Lane, connection: u64, number: i32, bytes: usize) -> Slot {
        let connection = ConnectionId(connection);
        let now = Now { instant: hedgerow_types::Instant(1), unix_micros: 1 };
        let caller = Caller::of(connection, &Header::default(), number, hedgerow_wire::Method::Get, now);
        let id = self.callers.insert(caller, WaitsIn::Service);
        let read = Read::Get { key: Bytes::new() };
        self.queue.push(
            lane,
            connection,
            Queued { id, read, terms: Terms::AT_LEADER, tie: None, bytes, has_come_back: false },
        )
    }

    fn number(&mut self, queued: Option<Queued>) -> Option<i32> {
        self.callers.remove(queued?.id).map(|caller| caller.sequence_id)
    }

    fn pop(&mut self) -> Option<i32> {
        let queued = self.queue.pop();
        self.number(queued)
    }

    fn take(&mut self, slot: Slot) -> Option<i32> {
        let queued = self.queue.take(slot);
        self.number(queued)
    }

    fn heavy(&mut self, newcomer: u64) -> Option<i32> {
        let heavy = self.queue.find_heavy(Lane::First, ConnectionId(newcomer), 7)?;
        self.queue.newest_of(Lane::First, heavy).and_then(|slot| self.take(slot))
    }
}

#[test]
fn first_attempts_come_first_and_the_oldest_of_them() {
    let mut queue = Numbered::new();
    for (at, lane) in [(1, Lane::Extra), (2, Lane::First), (3, Lane::Extra), (4, Lane::First)] {
        queue.push(lane, at as u64 % 3, at);
    }
    assert_eq!((queue.queue.count(Lane::First), queue.queue.count(Lane::Extra)), (2, 2));
    let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(order, [2, 4, 1, 3]);
    assert_eq!(queue.queue.total(), 0);
}

/// Whatever leaves from wherever, the reads of a connection keep their order, and connections have sixteen reads each in turn: against
/// plain lists.
#[test]
fn the_queue_does_what_plain_lists_do() {
    const OF_TURN: usize = 16;
    let mut random = Random::new(5);
    let mut queue = Numbered::new();
    let lanes = [Lane::First, Lane::Extra];
    // And how many the first one has had.
    let mut lists: [Lists; 2] = Default::default();
    let mut had = [0; 2];
    for at in 0..30_000 {
        let which = random.below(2) as usize;
        let list = &mut lists[which];
        let drop_empty = |list: &mut Lists, had: &mut usize| {
            if list.front().is_some_and(|(_, reads)| reads.is_empty()) {
                *had = 0;
            }
            list.retain(|(_, reads)| !reads.is_empty());
        };
        match random.below(if at < 20_000 { 5 } else { 7 }) {
            0..=2 => {
                let connection = random.below(6);
                let slot = queue.push(lanes[which], connection, at);
                match list.iter_mut().find(|(of, _)| *of == connection) {
                    Some((_, reads)) => reads.push_back((at, slot)),
                    None => list.push_back((connection, VecDeque::from([(at, slot)]))),
                }
            }
            3 if !list.is_empty() => {
                let which_line = random.below(list.len() as u64) as usize;
                let (_, reads) = &mut list[which_line];
                let (at, slot) = reads.remove(random.below(reads.len() as u64) as usize).unwrap();
                assert_eq!(queue.take(slot), Some(at));
                assert_eq!(queue.take(slot), None, "twice");
                drop_empty(list, &mut had[which]);
            }
            3 => {}
            _ => {
                let which = usize::from(lists[0].is_empty());
                let (list, had) = (&mut lists[which], &mut had[which]);
                if *had >= OF_TURN {
                    *had = 0;
                    list.rotate_left(1);
                }
                let expected = list.front_mut().and_then(|(_, reads)| reads.pop_front());
                *had += usize::from(expected.is_some());
                assert_eq!(queue.pop(), expected.map(|(at, _)| at));
                drop_empty(list, had);
            }
        }
        let all = |which: usize| lists[which].iter().flat_map(|(_, reads)| reads);
        assert_eq!([queue.queue.count(Lane::First), queue.queue.count(Lane::Extra)], [0, 1].map(|it| all(it).count()));
        for (which, lane) in lanes.into_iter().enumerate() {
            let ends = [all(which).min_by_key(|it| it.0), all(which).max_by_key(|it| it.0)];
            assert_eq!([queue.queue.oldest(lane), queue.queue.newest(lane)], ends.map(|it| it.map(|(_, slot)| *slot)));
        }
    }
    while queue.pop().is_some() {}
    assert_eq!((queue.queue.bytes.own(), queue.queue.free.len()), (0, queue.queue.places.len()));
}

/// One connection has sent ten thousand reads when another one sends its first.
#[test]
fn n18_a_read_waits_for_no_more_than_a_turn_of_each_other_connection() {
    let mut queue = Numbered::new();
    (0..10_000).for_each(|at| _ = queue.push(Lane::First, 1, at));
    assert!((0..100).all(|_| queue.pop().is_some()));
    queue.push(Lane::First, 2, -1);
    assert_eq!(queue.queue.ahead_of(Lane::First, ConnectionId(2)), 1 + 16);
    let before = std::iter::from_fn(|| queue.pop()).take_while(|at| *at >= 0).count();
    assert!(before <= 16, "{before}");
    // What is long to send counts more: one of them is a turn.
    queue.push(Lane::First, 2, -2);
    let mut before = 0;
    while queue.pop().is_some_and(|at| at >= 0) {
        queue.queue.note_served(Lane::First, ConnectionId(1), 200_000);
        before += 1;
    }
    assert!(before <= 1, "{before}");
}

/// Where the queue is full, whoever has more than most and more than the newcomer gives room, and nobody else.
#[test]
fn n18_the_newest_read_of_a_heavy_connection_gives_room() {
    let mut queue = Numbered::new();
    assert_eq!(queue.heavy(900), None);
    (0..500).for_each(|at| _ = queue.push(Lane::First, 1, at));
    assert_eq!((queue.heavy(900), queue.heavy(1)), (Some(499), None), "nobody else is there");
    (0..200).for_each(|at| _ = queue.push(Lane::First, 2 + at as u64, 1_000 + at));
    assert_eq!((queue.heavy(900), queue.heavy(50), queue.heavy(901)), (Some(498), Some(497), Some(496)));
    assert_eq!(queue.heavy(1), None, "its own reads give it no room");
    // A few large reads weigh as much as many small ones, wherever they are. The last one stays.
    (0..4).for_each(|at| _ = queue.push_large(Lane::First, 800, 5_000 + at, 1 << 20));
    let given: Vec<i32> = (0..600).filter_map(|_| queue.heavy(900)).collect();
    assert!(given.contains(&5_003) && given.contains(&5_001) && !given.contains(&5_000), "{given:?}");
    assert!(!given.iter().any(|at| (1_000..2_000).contains(at)), "{given:?}");
    assert_eq!((0..10).find_map(|_| queue.heavy(900)), None, "all have about the same now");
}

/// Connections with equally many give room to one that has none.
#[test]
fn n18_two_that_fill_the_queue_give_room_to_a_third() {
    let mut queue = Numbered::new();
    (0..1_000).for_each(|at| _ = queue.push(Lane::First, 1 + at as u64 % 2, at));
    assert!(queue.heavy(3).is_some());
    assert_eq!((queue.heavy(1), queue.heavy(2)), (None, None));
}
