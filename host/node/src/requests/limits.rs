//! What one user may ask of this node: requests and bytes per second, and connections.
//!
//! A user is the name in a client's certificate. Clients that show none count by address. Only reads and writes are limited. Users that
//! may do everything have no limit.
//!
//! Requests and bytes have a bucket each, which holds one second's worth. A request passes if there is a token for it, and if any bytes are left. Its
//! frame is charged then, and its reply when it is sent, as of the time at which the request came. What is charged may be more than is
//! left: then nothing passes until that has come back.
//!
//! Beyond its limit a user may have a few connections for commands, so that somebody can look what the others do. The node refuses reads and
//! writes on these, and everything on further ones, and closes the connection then.

use crate::config::{Config, UserLimits};
use crate::outbox::ConnectionId;
use crate::requests::Replied;
use crate::requests::bucket::Bucket;
use crate::requests::caller::Caller;
use crate::requests::front::Front;
use crate::requests::read_counts::Lines;
use crate::requests::users::Who;
use hedgerow_env::Now;
use hedgerow_types::{Instant, Refusal};
use hedgerow_wire::Class;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// Connections of a user beyond its limit that may be open for commands.
const SPARE_MAX: u64 = 8;
/// How often users are forgotten of whom there is nothing to know.
const FORGET_EVERY: Duration = Duration::from_secs(1);
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The users of all connections, and what they have asked for lately.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    limits: UserLimits,
    connections: FxHashMap<ConnectionId, Connection>,
    /// Those with connections, and those whose buckets are not full. A tree, since clients may choose their addresses, and could have all of
    /// them collide in a hash map (N9).
    users: BTreeMap<User, Usage>,
    forgot_at: Instant,
    counts: Counts,
    lines: Lines,
}

/// Whose requests count together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Named(Arc<str>),
    At(IpAddr),
}

#[derive(Debug)]
struct Connection {
    user: User,
    place: Place,
}

/// Whether a connection counts among those that its user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Counted,
    /// It is for commands.
    Spare,
    /// It is closed with its first request.
    None,
}

#[derive(Debug, Default)]
struct Usage {
    requests: Bucket,
    bytes: Bucket,
    counted: u64,
    spare: u64,
    /// Connections without a place that are not closed yet.
    others: u64,
}

/// What was refused since the node started.
#[derive(Debug, Default)]
struct Counts {
    requests: u64,
    bytes: u64,
    connections: u64,
}

/// A limit that somebody is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Requests(NonZeroU64),
    /// In bytes.
    Bytes(NonZeroU64),
    Connections(NonZeroU64),
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
struct Refused {
    text: String,
    /// Its connection ends with it.
    closes: bool,
}

impl User {
    fn of(who: &Who, from: IpAddr) -> Self {
        match who {
            Who::User(name) => Self::Named(Arc::clone(name)),
            Who::Anybody | Who::Node => Self::At(from.to_canonical()),
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, "user {name:?}"),
            Self::At(address) => write!(f, "address {address}"),
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |count: &NonZeroU64| if count.get() == 1 { "" } else { "s" };
        match self {
            Self::Requests(count) => write!(f, "{count} request{} per second", end(count)),
            Self::Bytes(bytes) => write!(f, "{} MiB per second", bytes.get() >> 20),
            Self::Connections(count) => write!(f, "{count} connection{}", end(count)),
        }
    }
}

impl Usage {
    /// Gives a new connection a place.
    fn open(&mut self, limit: Option<NonZeroU64>) -> Place {
        if limit.is_none_or(|limit| self.counted < limit.get()) {
            self.counted += 1;
            Place::Counted
        } else if self.spare < SPARE_MAX {
            self.spare += 1;
            Place::Spare
        } else {
            self.refuse()
        }
    }

    /// A connection is to be closed.
    const fn refuse(&mut self) -> Place {
        self.others += 1;
        Place::None
    }

    /// Takes the place of a connection back.
    fn close(&mut self, place: Place) {
        match place {
            Place::Counted => self.counted -= 1,
            Place::Spare => self.spare -= 1,
            Place::None => self.others -= 1,
        }
    }

    /// Takes what a request of so many bytes needs, or says which limit keeps it from that.
    fn take(&mut self, limits: &UserLimits, bytes: usize, now: Instant) -> Option<Over> {
        if let Some(rate) = limits.bytes.filter(|_| self.bytes.is_spent(now)) {
            return Some(Over::Bytes(rate));
        }
        if let Some(rate) = limits.requests
            && !self.requests.take(Some(Duration::from_nanos(NANOS_PER_SECOND / rate)), now)
        {
            return Some(Over::Requests(rate));
        }
        self.charge(limits, bytes, now);
        None
    }

    fn charge(&mut self, limits: &UserLimits, bytes: usize, at: Instant) {
        let Some(rate) = limits.bytes else { return };
        let nanos = (bytes as u128 * u128::from(NANOS_PER_SECOND)).div_ceil(u128::from(rate.get()));
        self.bytes.charge(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)), at);
    }

    /// Whether nothing would be different if it had never been.
    fn is_over(&self, now: Instant) -> bool {
        self.counted + self.spare + self.others == 0 && self.requests.is_full(now) && self.bytes.is_full(now)
    }
}

impl Limits {
    pub(crate) fn new(config: &Config) -> Self {
        Self { limits: config.user_limits, ..Self::default() }
    }

    /// A connection begins whose user may not do everything.
    pub(crate) fn note_opened(&mut self, connection: ConnectionId, who: &Who, from: IpAddr) {
        if !self.limits.is_any() {
            return;
        }
        let user = User::of(who, from);
        let place = self.users.entry(user.clone()).or_default().open(self.limits.connections);
        self.counts.connections += u64::from(place == Place::None);
        self.connections.insert(connection, Connection { user, place });
    }

    /// A connection has ended. Its user stays as long as something was asked for lately.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        if let Some(Connection { user, place }) = self.connections.remove(&connection)
            && let Some(usage) = self.users.get_mut(&user)
        {
            usage.close(place);
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        if now.since(self.forgot_at) >= FORGET_EVERY {
            self.forgot_at = now;
            self.users.retain(|_, usage| !usage.is_over(now));
        }
    }

    /// A request that passed has its reply.
    pub(crate) fn note_reply(&mut self, replied: &Replied) {
        if let Some(Connection { user, .. }) = self.connections.get(&replied.connection)
            && let Some(usage) = self.users.get_mut(user)
        {
            usage.charge(&self.limits, replied.bytes, replied.received);
        }
    }

    /// Why a request is refused, if it is. One that passes is charged.
    fn judge(&mut self, caller: &Caller, now: Instant) -> Option<Refused> {
        let Self { limits, connections, users, counts, .. } = self;
        let Connection { user, place } = connections.get_mut(&caller.connection)?;
        let usage = users.get_mut(user)?;
        let is_data = matches!(caller.method.class(), Class::Read | Class::Scan | Class::Write);
        // What nobody waits for gives something back.
        let is_limited = is_data && !caller.method.is_one_way();
        if *place == Place::Spare && is_limited {
            usage.close(*place);
            // Another connection may have ended meanwhile.
            let has_place = limits.connections.is_none_or(|limit| usage.counted < limit.get());
            *place = if has_place { usage.open(limits.connections) } else { usage.refuse() };
            counts.connections += u64::from(!has_place);
        }
        let over = match *place {
            Place::None => limits.connections.map(Over::Connections),
            Place::Counted if is_limited => usage.take(limits, caller.frame_bytes, now),
            Place::Counted | Place::Spare => None,
        }?;
        match over {
            Over::Requests(_) => counts.requests += 1,
            Over::Bytes(_) => counts.bytes += 1,
            Over::Connections(_) => {}
        }
        let text = format!("{user} is over its limit of {over} at this node");
        Some(Refused { text, closes: *place == Place::None })
    }

    /// What the operator is told.
    pub(crate) fn told(&self) -> Value {
        let Counts { requests, bytes, connections } = self.counts;
        json!({ "requests": requests, "bytes": bytes, "connections": connections })
    }
}

impl Front {
    /// Why `caller` is refused because its user asks for more than it may, and whether its connection ends with that.
    pub(super) fn why_over_limit(&mut self, caller: &Caller, now: Now) -> Option<(Refusal, bool)> {
        let Refused { text, closes } = self.limits.judge(caller, now.instant)?;
        let (who, from) = self.users.at(caller.connection);
        self.users.audit.note_limited((&who, from), &text, now.instant);
        if let Some(left_out) = self.limits.lines.poll(now.instant) {
            let from = from.map(tracing::field::display);
            tracing::warn!(from, left_out, "a request is refused: {text}");
        }
        Some((Refusal::Busy(text), closes))
    }
}

#[cfg(test)]
#[path = "limits/tests.rs"]
mod tests;
