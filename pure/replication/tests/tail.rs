//! What a log's end says of keys, to whoever asks: all that it touches, and nothing where it cannot be said.

#[allow(unreachable_pub, dead_code, reason = "shared by several test programs")]
mod sim;

use bytes::{Bytes, BytesMut};
use hedgerow_replication::{Group, Mutations, Settings, TailIndex};
use hedgerow_types::op::{Proposal, Write};
use hedgerow_types::span::WRITE_KEYS_MAX;
use hedgerow_types::{ClientId, Index, Span, codec};
use sim::{MILLI, Weather, World};

/// Three voters, 1 leads, and nobody else hears of what it appends from here on.
fn world() -> World {
    let mut world = World::new(7, Settings::default(), Weather::fair(), Mutations::default());
    (1..=3).for_each(|id| world.add_node(id, &[1, 2, 3], 0, id == 1));
    world.run(550 * MILLI);
    world.blocked.extend([(1, 2), (1, 3)]);
    world
}

fn append(world: &mut World, write: Write, now: u32) -> Index {
    let mut data = BytesMut::new();
    codec::encode_proposal(&Proposal { client: ClientId(0), sequence: 0, now, is_agreed: true, write }, &mut data);
    append_bytes(world, data.freeze())
}

fn append_bytes(world: &mut World, data: Bytes) -> Index {
    let time = world.local(1);
    let group = world.nodes.get_mut(&1).and_then(|node| node.group.as_mut()).expect("a running node");
    let position = group.propose(data, time).expect("it leads");
    while group.poll_ready(time).is_some() {}
    position.index
}

fn leader(world: &World) -> &Group {
    world.nodes[&1].group.as_ref().expect("a running node")
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn key(text: &str) -> Vec<Span> {
    vec![Span::Key(bytes(text))]
}

fn remove(key: &str) -> Write {
    Write::Remove { key: bytes(key) }
}

#[test]
fn keys_and_ranges_name_the_last_entry_that_touches_them() {
    let mut world = world();
    let after = leader(&world).last_index();
    let b = append(&mut world, remove("b"), 7);
    let d = append(&mut world, remove("d"), 0);
    let again = append(&mut world, remove("b"), 9);
    let range = |start, end: Option<&str>| vec![Span::Range { start: bytes(start), end: end.map(bytes) }];
    let reads = [
        key("b"),
        key("c"),
        range("c", None),
        range("a", Some("b")),
        range("a", Some("c")),
        range("e", Some("c")),
        vec![Span::ALL],
        Vec::new(),
    ];
    let mut index = TailIndex::default();
    let touches = index.look_up(leader(&world), after, &reads).expect("a short tail");
    assert_eq!(touches.reads, [again, 0, d, 0, again, 0, again, 0]);
    assert_eq!(touches.times, Some((7, 9)));
    // Asked from further on, and from before again.
    assert_eq!(index.look_up(leader(&world), again, &[key("b")]).expect("there").reads, [0]);
    assert_eq!(index.look_up(leader(&world), b, &[key("d"), key("b")]).expect("there").reads, [d, again]);
    assert_eq!(index.look_up(leader(&world), after, &[key("b")]).expect("there").reads, [again]);
    // Whoever has more than this log has is told of nothing.
    assert_eq!(index.look_up(leader(&world), again + 100, &[key("b")]).expect("there").reads, [0]);
    // What comes later is taken in.
    let more = append(&mut world, remove("c"), 0);
    assert_eq!(index.look_up(leader(&world), after, &[key("c")]).expect("there").reads, [more]);
}

/// N4m: a look-up costs its steps, and no more than there are; what was taken in meanwhile is not lost.
#[test]
fn n4m_a_look_up_takes_no_more_steps_than_it_may() {
    let mut world = world();
    let after = leader(&world).last_index();
    let keys: Vec<String> = (0..500).map(|number| format!("{number:03}")).collect();
    let last = keys.iter().map(|key| append(&mut world, remove(key), 0)).last().expect("some");
    let mut index = TailIndex::default();
    let mut look_up = |reads: &[Vec<Span>], steps: usize| {
        let mut left = steps;
        let touches = index.look_up_within(leader(&world), after, reads, &mut left);
        (touches.map(|touches| touches.reads), steps - left)
    };
    // A hundred entries at a time; each counts as 32 steps.
    for _ in 0..5 {
        assert_eq!(look_up(&[key("000")], 3_200), (None, 3_200));
    }
    assert_eq!(look_up(&[key("000")], 3_200), (Some(vec![after + 1]), 16));
    // All but the last key: each is passed by.
    let most = vec![Span::Range { start: bytes("0"), end: Some(bytes("499")) }];
    assert_eq!(look_up(&vec![most.clone(); 3], 3_200), (Some(vec![last - 1; 3]), 3 * (16 + 499)));
    assert_eq!(look_up(&vec![most; 1_024], 3_200).0, None);
    // Every key, and what is behind all that there is.
    assert_eq!(look_up(&vec![vec![Span::ALL]; 100], 3_200), (Some(vec![last; 100]), 1_600));
    let many = vec![vec![Span::ALL; 64]; 100];
    assert_eq!(look_up(&many, 3_200), (Some(vec![last; 100]), 1_600), "no other span is later");
}

#[test]
fn what_cannot_be_read_or_named_touches_every_key() {
    let mut world = world();
    let after = leader(&world).last_index();
    let unreadable = append_bytes(&mut world, bytes("no proposal"));
    let mut index = TailIndex::default();
    assert_eq!(index.look_up(leader(&world), after, &[key("a")]).expect("there").reads, [unreadable]);
    let many = Write::MultiRemove { prefix: bytes("p"), suffixes: vec![bytes("s"); WRITE_KEYS_MAX + 1] };
    let many = append(&mut world, many, 0);
    assert_eq!(index.look_up(leader(&world), after, &[key("a")]).expect("there").reads, [many]);
    assert_eq!(index.look_up(leader(&world), many, &[key("a")]).expect("there").reads, [0]);
}

#[test]
fn of_a_long_tail_and_of_much_in_keys_nothing_is_said() {
    let mut world = world();
    let after = leader(&world).last_index();
    let mut last = after;
    for number in 0..1_025 {
        last = append(&mut world, remove(&number.to_string()), 0);
    }
    let mut index = TailIndex::default();
    assert_eq!(index.look_up(leader(&world), after, &[key("a")]), None);
    assert_eq!(index.look_up(leader(&world), after + 1, &[key("1024")]).expect("just short enough").reads, [last]);
    // The index that was too large to be kept is made anew.
    assert_eq!(index.look_up(leader(&world), after + 1, &[key("1024")]).expect("again").reads, [last]);
    assert_eq!(index.look_up(leader(&world), last, &[key("1024")]).expect("the end").reads, [0]);
    for _ in 0..3 {
        append(&mut world, remove(&"k".repeat(900_000)), 0);
    }
    assert_eq!(index.look_up(leader(&world), last, &[key("a")]), None);
}
