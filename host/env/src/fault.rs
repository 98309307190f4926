//! Faults that are made on purpose, decided without clock or socket: when bytes may leave ([`Shaper`]), how long a thread
//! rests that has less than a core ([`Allowance`]), and which faults of a node are switched on ([`Switches`]).
//!
//! Delay and bandwidth are made in user space, by the node itself or by a forwarding proxy, so that they need no rights
//! and work on every kernel.

use hedgerow_types::Instant;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// The longest delay of a link and the longest stall. Beyond it a node is as good as gone, and `kill` says that better.
pub const DELAY_MAX: Duration = Duration::from_secs(60);
/// The lowest bandwidth: one kilobyte per second.
pub const BYTES_PER_SECOND_MIN: u64 = 1_000;
/// Computing that an [`Allowance`] keeps for later at most: so little that what is done with it at once makes no tail.
const SAVED_MAX: Duration = Duration::from_millis(1);

/// One direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    /// How much later the last byte of what is sent arrives, in microseconds, beside the time that bandwidth costs.
    pub delay_us: u64,
    /// Bytes per second; `None` = no limit.
    pub bytes_per_second: Option<u64>,
}

impl Shape {
    /// Whether it changes nothing.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Both one after the other: delays add up, the lower bandwidth holds.
    pub fn and(self, other: Self) -> Self {
        Self {
            delay_us: self.delay_us.saturating_add(other.delay_us),
            bytes_per_second: match (self.bytes_per_second, other.bytes_per_second) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        }
    }

    /// The delay.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us)
    }

    /// What is not allowed about it, if anything.
    pub fn check(&self) -> Result<(), String> {
        check_delay(self.delay_us)?;
        match self.bytes_per_second {
            Some(rate) if rate < BYTES_PER_SECOND_MIN => {
                Err(format!("a bandwidth of {rate} bytes per second: at least {BYTES_PER_SECOND_MIN} are allowed"))
            }
            _ => Ok(()),
        }
    }
}

fn check_delay(delay_us: u64) -> Result<(), String> {
    if Duration::from_micros(delay_us) > DELAY_MAX {
        return Err(format!("a delay of {delay_us} us: at most {} s are allowed", DELAY_MAX.as_secs()));
    }
    Ok(())
}

/// Decides when bytes leave one direction of a link. What enters first leaves first, whatever the shape changes to.
#[derive(Clone, Debug, Default)]
pub struct Shaper {
    shape: Shape,
    /// When everything before has passed the bandwidth's bottleneck.
    is_free_at: Instant,
    /// When what entered last leaves.
    last: Instant,
}

impl Shaper {
    /// A link of this shape through which nothing has passed.
    pub fn new(shape: Shape) -> Self {
        Self { shape, ..Self::default() }
    }

    /// The present shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Changes the shape for what enters from now on.
    pub fn set(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// `size` bytes enter at `now`: when the last of them leaves. Never before `now` nor before what entered earlier.
    pub fn leaves_at(&mut self, now: Instant, size: usize) -> Instant {
        let begin = self.is_free_at.max(now);
        self.is_free_at = match self.shape.bytes_per_second {
            // Nanoseconds per byte would round away a tenth of a fast link.
            Some(rate) => {
                let nanos = (size as u128 * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
                begin + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            None => begin,
        };
        self.last = self.last.max(self.is_free_at + self.shape.delay());
        self.last
    }
}

/// Holds a thread to a share of one core, as a smaller machine would: it saves up what it does not use, up to a millisecond
/// of computing, and rests when it has used more.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    percent: u8,
    /// Nanoseconds of computing that are saved; below 0 what was used in advance.
    saved: i128,
    /// When it was asked last, and how much the thread had computed until then.
    seen: (Instant, Duration),
}

impl Allowance {
    /// `percent` of one core, 1 to 100, from `now` on, when the thread has computed for `used` since it began.
    pub fn new(percent: u8, now: Instant, used: Duration) -> Self {
        Self { percent: percent.clamp(1, 100), saved: 0, seen: (now, used) }
    }

    /// How long the thread has to rest, if at all, that has computed for `used` until `now`.
    pub fn rest(&mut self, now: Instant, used: Duration) -> Option<Duration> {
        let (then, used_then) = std::mem::replace(&mut self.seen, (now, used));
        let percent = i128::from(self.percent);
        let earned = now.since(then).as_nanos() as i128 * percent / 100;
        let spent = used.saturating_sub(used_then).as_nanos() as i128;
        self.saved = (self.saved + earned - spent).min(SAVED_MAX.as_nanos() as i128);
        let owed = u64::try_from(-self.saved * 100 / percent).ok().filter(|owed| *owed > 0)?;
        Some(Duration::from_nanos(owed))
    }
}

/// The faults of one node that last until they are switched off, all of them together: a node that is told twice is as if
/// told once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switches {
    /// How much later everything leaves that this node sends, in microseconds.
    pub slow_us: u64,
    /// The links that are not plain.
    pub links: Vec<Link>,
    /// The share of one core, 1 to 100 %, that the node's thread may use; `None` = all that it gets.
    pub cpu_percent: Option<u8>,
}

/// What one node is told of its link to one place. All connections to the place share its bandwidth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// The place, for people.
    pub place: String,
    /// The nodes there.
    pub nodes: Vec<u16>,
    /// The clients there.
    pub clients: Clients,
    /// What this node sends there.
    pub outgoing: Shape,
    /// What clients there send to this node. What nodes send is shaped where it is sent.
    pub incoming: Shape,
}

/// Clients by where they connect from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clients {
    /// None of them.
    #[default]
    None,
    /// Those that connect from these addresses.
    From(Vec<IpAddr>),
    /// Those that no other link names.
    Others,
}

impl Switches {
    /// Whether nothing is switched on.
    pub fn is_off(&self) -> bool {
        !self.delays() && self.cpu_percent.is_none()
    }

    /// Whether anything that is sent or received may be late.
    pub fn delays(&self) -> bool {
        let is_plain = |link: &Link| link.outgoing.is_plain() && link.incoming.is_plain();
        self.slow_us > 0 || !self.links.iter().all(is_plain)
    }

    /// The link, as an index into `links`, over which a client at `address` is reached.
    pub fn client_link(&self, address: IpAddr) -> Option<usize> {
        let is_named = |link: &Link| matches!(&link.clients, Clients::From(addresses) if addresses.contains(&address));
        let named = self.links.iter().position(is_named);
        named.or_else(|| self.links.iter().position(|link| link.clients == Clients::Others))
    }

    /// The link, as an index into `links`, over which `node` is reached.
    pub fn node_link(&self, node: u16) -> Option<usize> {
        self.links.iter().position(|link| link.nodes.contains(&node))
    }

    /// What is not allowed about them, if anything.
    pub fn check(&self) -> Result<(), String> {
        check_delay(self.slow_us)?;
        if let Some(percent) = self.cpu_percent.filter(|percent| !(1..=100).contains(percent)) {
            return Err(format!("a share of {percent} % of a core: 1 to 100 are allowed"));
        }
        self.links.iter().try_for_each(|link| {
            let checked = link.outgoing.check().and_then(|()| link.incoming.check());
            checked.map_err(|reason| format!("the link to {:?}: {reason}", link.place))
        })
    }
}

/// The argument of the admin command `fault`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The node that is meant; any other refuses, so that a wrong address does no harm.
    pub node: u16,
    /// What to do.
    pub action: Action,
}

/// What a node is to do about its faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Take these switches instead of the present ones.
    Set(Switches),
    /// Stop serving for a while. Sockets stay open, bytes wait in the kernel.
    Stall(Stall),
}

/// One stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Higher than that of every earlier stall; a stall that is asked for twice happens once.
    pub number: u64,
    /// How long, in microseconds.
    pub lasts_us: u64,
}

impl Command {
    /// What is not allowed about it, if anything.
    pub fn check(&self) -> Result<(), String> {
        match &self.action {
            Action::Set(switches) => switches.check(),
            Action::Stall(stall) => check_delay(stall.lasts_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const START: Instant = Instant(1_000_000_000);

    fn shape(delay_us: u64, bytes_per_second: Option<u64>) -> Shape {
        Shape { delay_us, bytes_per_second }
    }

    #[test]
    fn a_plain_link_keeps_nothing() {
        assert_eq!(Shaper::default().leaves_at(START, 1 << 20), START);
    }

    #[test]
    fn a_delay_is_added_once_to_each_write() {
        let mut shaper = Shaper::new(shape(5_000, None));
        assert_eq!(shaper.leaves_at(START, 100), START + 5 * MS);
        assert_eq!(shaper.leaves_at(START + MS, 100), START + 6 * MS);
    }

    #[test]
    fn bandwidth_is_shared_by_what_enters_together() {
        let mut shaper = Shaper::new(shape(5_000, Some(1_000_000)));
        assert_eq!(shaper.leaves_at(START, 1_000), START + 6 * MS);
        assert_eq!(shaper.leaves_at(START, 2_000), START + 8 * MS);
        // An idle link saves nothing up.
        assert_eq!(shaper.leaves_at(START + 20 * MS, 1_000), START + 26 * MS);
    }

    #[test]
    fn what_enters_later_never_leaves_earlier() {
        let mut shaper = Shaper::new(shape(50_000, None));
        let first = shaper.leaves_at(START, 10);
        shaper.set(Shape::default());
        assert_eq!(shaper.leaves_at(START + MS, 10), first);
        assert_eq!(shaper.leaves_at(first + MS, 10), first + MS);
    }

    #[test]
    fn a_bandwidth_of_a_gigabyte_is_kept_to_the_nanosecond() {
        let mut shaper = Shaper::new(shape(0, Some(3_000_000_000)));
        let last = (0..3_000).map(|_| shaper.leaves_at(START, 1_000_000)).last();
        assert!(last.unwrap().since(START).abs_diff(Duration::from_secs(1)) < Duration::from_micros(4));
    }

    /// A thread that computes in pieces of `piece` whenever it may, for a second: what part of it it computes, in percent,
    /// and its longest rest.
    fn busy(percent: u8, piece: Duration) -> (f64, Duration) {
        let (mut now, mut used, mut longest) = (START, Duration::ZERO, Duration::ZERO);
        let mut allowance = Allowance::new(percent, now, used);
        while now.since(START) < 1_000 * MS {
            (now, used) = (now + piece, used + piece);
            let rest = allowance.rest(now, used).unwrap_or_default();
            // The system wakes it late, which it makes up for.
            now = now + rest + if rest.is_zero() { Duration::ZERO } else { MS / 10 };
            longest = longest.max(rest);
        }
        (used.as_secs_f64() / now.since(START).as_secs_f64() * 100.0, longest)
    }

    #[test]
    fn a_share_is_kept_in_small_steps() {
        for percent in [1, 10, 15, 50, 99] {
            let (share, longest) = busy(percent, MS / 20);
            assert!((share - f64::from(percent)).abs() < 0.5, "{percent} %: {share}");
            assert!(longest <= MS * 5 / u32::from(percent), "{percent} %: {longest:?}");
        }
        let (share, longest) = busy(100, MS / 20);
        assert!((share, longest) == (100.0, Duration::ZERO), "{share} {longest:?}");
    }

    #[test]
    fn what_is_not_used_is_kept_up_to_a_millisecond() {
        let mut allowance = Allowance::new(10, START, 3 * MS);
        let later = START + 1_000_000 * MS;
        assert_eq!(allowance.rest(later, 3 * MS), None);
        assert_eq!(allowance.rest(later, 4 * MS), None);
        assert_eq!(allowance.rest(later, 5 * MS), Some(10 * MS));
        // Asked again too early, it tells what is left.
        assert_eq!(allowance.rest(later + 4 * MS, 5 * MS), Some(6 * MS));
    }

    #[test]
    fn shapes_add_up() {
        let both = shape(5_000, Some(2_000)).and(shape(1_000, Some(3_000)));
        assert_eq!(both, shape(6_000, Some(2_000)));
        assert_eq!(shape(0, None).and(shape(0, Some(7_000))), shape(0, Some(7_000)));
    }

    #[test]
    fn clients_are_found_by_their_address_first() {
        let here: IpAddr = "127.0.0.2".parse().unwrap();
        let link = |clients| Link { clients, ..Link::default() };
        let switches = Switches {
            links: vec![link(Clients::Others), link(Clients::From(vec![here])), link(Clients::None)],
            ..Switches::default()
        };
        assert_eq!(switches.client_link(here), Some(1));
        assert_eq!(switches.client_link("127.0.0.1".parse().unwrap()), Some(0));
        assert_eq!(Switches::default().client_link(here), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_limit() {
        let refused = |command: Action| Command { node: 1, action: command }.check().unwrap_err();
        assert!(refused(Action::Stall(Stall { number: 1, lasts_us: 60_000_001 })).contains("60 s"));
        assert!(refused(Action::Set(Switches { slow_us: u64::MAX, ..Switches::default() })).contains("60 s"));
        let link = Link { place: "far".into(), incoming: shape(0, Some(10)), ..Link::default() };
        let text = refused(Action::Set(Switches { links: vec![link], ..Switches::default() }));
        assert!(text.contains("far") && text.contains("1000"), "{text}");
        let share = |percent| Action::Set(Switches { cpu_percent: Some(percent), ..Switches::default() });
        assert!(refused(share(0)).contains("1 to 100") && refused(share(101)).contains("1 to 100"));
    }
}
