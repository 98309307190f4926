//! Clusters of clocks, told of each other every 100 ms.

use super::*;

const SECOND: i64 = 1_000_000;
const YEAR: i64 = 365 * 86_400 * SECOND;
/// Wall time at true zero.
const START: i64 = 1_700_000_000 * SECOND;
const STEP: Duration = Duration::from_millis(100);

/// Node 1's clock among `ahead.len()` nodes; `None` = not heard of.
struct World {
    clock: Clock,
    now: Instant,
    ahead: Vec<Option<i64>>,
}

impl World {
    fn new(ahead: &[Option<i64>]) -> Self {
        let clock = Clock::new(NodeId(1), ahead.len(), CLOCK_SKEW_MAX);
        let mut world = Self { clock, now: Instant(77_000_000_000), ahead: ahead.to_vec() };
        world.step();
        world
    }

    fn wall(&self, ahead: i64) -> u64 {
        (START + (self.now.0 / 1_000) as i64 + ahead) as u64
    }

    fn step(&mut self) -> Vec<(NodeId, bool, i64)> {
        self.now = self.now + STEP;
        for (number, ahead) in (1..).zip(self.ahead.clone()).skip(1) {
            if let Some(ahead) = ahead {
                let row = ClockRow { unix_micros: self.wall(ahead), error: Duration::from_millis(1) };
                self.clock.handle_row(NodeId(number), row, self.now);
            }
        }
        self.clock.judge(self.wall(self.ahead[0].unwrap()), self.now)
    }

    fn run(&mut self, seconds: u64) {
        (0..seconds * 10).for_each(|_| drop(self.step()));
    }

    /// How far the time is ahead of the true one.
    fn error(&self) -> Option<i64> {
        Some(self.clock.unix_micros(self.now)? as i64 - self.wall(0) as i64)
    }
}

#[test]
fn d6_what_the_time_had_come_to_is_not_forgotten() {
    let mut world = World::new(&[Some(0), Some(0), Some(0)]);
    let said = world.clock.unix_micros(world.now).unwrap();
    assert_eq!(world.clock.at_least(world.now), said);
    // Away, and not judged yet: what was last believed. Then nobody is heard of.
    world.now = world.now + Duration::from_secs(60);
    let least = world.clock.at_least(world.now);
    assert_eq!((world.error(), least), (None, said + AWAY_MAX.as_micros() as u64));
    world.ahead = vec![Some(YEAR), None, None];
    world.step();
    assert_eq!((world.error(), world.clock.at_least(world.now)), (None, least));
    world.run(20);
    assert_eq!((world.error(), world.clock.at_least(world.now)), (None, least), "it stands still");
    world.ahead = vec![Some(0), Some(0), Some(0)];
    world.step();
    assert_eq!((world.error(), world.clock.at_least(world.now)), (Some(0), world.wall(0)));
}

#[test]
fn d6_a_clock_a_year_ahead_is_outvoted_and_named() {
    let mut world = World::new(&[Some(0), Some(0), Some(0)]);
    assert_eq!((world.error(), world.clock.word()), (Some(0), ClockWord::Agreed));
    world.ahead[0] = Some(YEAR);
    assert_eq!(world.step(), [(NodeId(1), true, YEAR)]);
    world.run(3_600);
    assert_eq!((world.error(), world.clock.word()), (Some(0), ClockWord::Agreed));
    assert!(world.clock.is_off(NodeId(1)) && !world.clock.is_off(NodeId(2)));
    world.ahead = vec![Some(0), Some(-YEAR), Some(0)];
    assert_eq!(world.step(), [(NodeId(1), false, 0), (NodeId(2), true, -YEAR)]);
    assert_eq!(world.clock.ahead_micros(NodeId(2)), Some(-YEAR));
}

#[test]
fn d6_a_node_that_starts_with_a_wrong_clock_has_no_time_before_a_majority_says_it() {
    let mut world = World::new(&[Some(YEAR), None, None]);
    assert_eq!((world.error(), world.clock.word()), (None, ClockWord::Unknown));
    world.ahead[1] = Some(0);
    world.run(1_000);
    assert_eq!((world.error(), world.clock.word()), (None, ClockWord::Unknown), "one word against another");
    world.ahead[2] = Some(SECOND);
    world.step();
    assert_eq!((world.error(), world.clock.word()), (Some(0), ClockWord::Agreed));
    assert!(world.clock.is_off(NodeId(1)));
}

#[test]
fn d6_without_a_majority_the_time_goes_on_with_the_steady_clock() {
    let mut world = World::new(&[Some(0), Some(0), Some(0)]);
    world.ahead = vec![Some(YEAR), Some(0), None];
    world.run(3_600);
    assert_eq!((world.error(), world.clock.word()), (Some(0), ClockWord::Held));
    assert!(world.clock.is_off(NodeId(1)), "still named: by the time that was agreed on");
    world.ahead = vec![Some(0), None, None];
    world.run(10);
    assert_eq!((world.error(), world.clock.word()), (Some(0), ClockWord::Held));
}

#[test]
fn d6_a_lone_node_follows_its_clock_but_no_jump() {
    let mut world = World::new(&[Some(0)]);
    world.ahead = vec![Some(YEAR)];
    world.run(290);
    assert_eq!((world.error(), world.clock.has_jumped()), (Some(0), true));
    world.ahead = vec![Some(0)];
    world.run(100);
    assert!(!world.clock.has_jumped() && !world.clock.is_off(NodeId(1)));
    world.ahead = vec![Some(YEAR)];
    world.run(301);
    assert_eq!((world.error(), world.clock.has_jumped()), (Some(YEAR), false), "it has stayed there");
}

#[test]
fn d6_small_differences_are_made_up_smoothly_and_never_backwards() {
    for ahead in [4 * SECOND, -4 * SECOND] {
        let mut world = World::new(&[Some(0), Some(0), Some(0)]);
        world.ahead = vec![Some(ahead); 3];
        let mut before = world.clock.unix_micros(world.now).unwrap();
        for _ in 0..200 {
            world.step();
            let time = world.clock.unix_micros(world.now).unwrap();
            assert!((75_000..=125_000).contains(&(time - before)), "{}", time - before);
            before = time;
        }
        assert_eq!(world.error(), Some(ahead));
    }
}

#[test]
fn d6_a_node_whose_steady_clock_leaps_asks_a_majority_again() {
    let mut world = World::new(&[Some(0), Some(0), Some(0)]);
    world.now = world.now + Duration::from_secs(365 * 86_400);
    assert_eq!(world.error(), None, "before it has judged already");
    // Its own clocks both say that a year has passed; the others' do not.
    world.ahead = vec![Some(0), Some(-YEAR), Some(-YEAR)];
    drop(world.clock.judge(world.wall(0), world.now));
    assert_eq!(world.error(), None);
    world.step();
    assert_eq!((world.error(), world.clock.is_off(NodeId(1))), (Some(-YEAR), true));
}

#[test]
fn a_word_that_was_too_long_on_its_way_or_is_old_does_not_count() {
    let mut world = World::new(&[Some(0), None, None]);
    let row = ClockRow { unix_micros: world.wall(0), error: Duration::from_secs(3) };
    world.clock.handle_row(NodeId(2), row, world.now);
    world.step();
    assert_eq!(world.error(), None);
    world.ahead[1] = Some(0);
    world.step();
    assert_eq!((world.error(), world.clock.word()), (Some(0), ClockWord::Agreed));
    world.ahead[1] = None;
    world.run(4);
    assert_eq!((world.error(), world.clock.word()), (Some(0), ClockWord::Held));
}
