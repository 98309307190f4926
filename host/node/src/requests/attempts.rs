//! Logins that failed lately: who fails again and again has to wait.
//!
//! Each address has a few failures for each name, and some more for all names together, and gets them back in time. While none is left, its
//! logins are refused unseen, right ones too. What others fail at does not count: nobody keeps a user out who is elsewhere.

use hedgerow_types::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Failures that one address has for one name, and after how long one comes back.
const BY_USER: Allowance = Allowance { count: 5, interval: Duration::from_secs(10) };
/// The same for all names.
const BY_ADDRESS: Allowance = Allowance { count: 50, interval: Duration::from_secs(1) };
/// What is kept of each kind at least, and half of what is kept at most.
const KEPT_MAX: usize = 4_096;

#[derive(Clone, Copy, Debug)]
struct Allowance {
    count: u32,
    interval: Duration,
}

impl Allowance {
    /// Whether nothing is left of it, where all would be there again at `full_at`.
    fn is_spent(self, full_at: Instant, now: Instant) -> bool {
        full_at.since(now) > self.interval * (self.count - 1)
    }
}

/// Who has failed lately.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    users: Recent<(IpAddr, String)>,
    addresses: Recent<IpAddr>,
}

/// When each would have all of its failures again. The oldest of too many are forgotten.
#[derive(Debug)]
struct Recent<K> {
    young: BTreeMap<K, Instant>,
    old: BTreeMap<K, Instant>,
}

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self { young: BTreeMap::new(), old: BTreeMap::new() }
    }
}

impl<K: Ord> Recent<K> {
    fn full_at(&self, key: &K) -> Instant {
        self.young.get(key).or_else(|| self.old.get(key)).copied().unwrap_or_default()
    }

    fn set(&mut self, key: K, full_at: Instant) {
        if self.young.len() >= KEPT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, full_at);
    }

    /// A failure more. Nobody waits longer for many than for all that there are.
    fn charge(&mut self, key: K, of: Allowance, now: Instant) {
        let full_at = (self.full_at(&key).max(now) + of.interval).min(now + of.interval * of.count);
        self.set(key, full_at);
    }
}

impl Attempts {
    /// Whether a login of `user` from there, or of whoever is not named yet, is refused unseen.
    pub(super) fn is_refused(&self, from: IpAddr, user: Option<&str>, now: Instant) -> bool {
        let by_user = user.map(|user| self.users.full_at(&(from, user.to_owned())));
        by_user.is_some_and(|full_at| BY_USER.is_spent(full_at, now))
            || BY_ADDRESS.is_spent(self.addresses.full_at(&from), now)
    }

    /// A login failed, of a user that was named or before one was.
    pub(super) fn note_failed(&mut self, from: IpAddr, user: Option<&str>, now: Instant) {
        if let Some(user) = user {
            self.users.charge((from, user.to_owned()), BY_USER, now);
        }
        self.addresses.charge(from, BY_ADDRESS, now);
    }

    /// A login succeeded: somebody there knows the password.
    pub(super) fn note_succeeded(&mut self, from: IpAddr, user: &str) {
        let key = (from, user.to_owned());
        self.users.young.remove(&key);
        self.users.old.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn who_fails_again_and_again_waits_and_nobody_else() {
        let mut attempts = Attempts::default();
        let now = at(1_000);
        for _ in 0..BY_USER.count {
            assert!(!attempts.is_refused(HERE, Some("app"), now));
            attempts.note_failed(HERE, Some("app"), now);
        }
        assert!(attempts.is_refused(HERE, Some("app"), now));
        assert!(!attempts.is_refused(HERE, Some("other"), now) && !attempts.is_refused(address(1), Some("app"), now));
        // One comes back.
        let later = now + BY_USER.interval;
        assert!(!attempts.is_refused(HERE, Some("app"), later));
        attempts.note_failed(HERE, Some("app"), later);
        assert!(attempts.is_refused(HERE, Some("app"), later));
        attempts.note_succeeded(HERE, "app");
        assert!(!attempts.is_refused(HERE, Some("app"), later));
    }

    #[test]
    fn an_address_that_tries_many_names_waits() {
        let mut attempts = Attempts::default();
        for number in 0..BY_ADDRESS.count {
            assert!(!attempts.is_refused(HERE, Some("app"), at(1)));
            attempts.note_failed(HERE, Some(&format!("user-{number}")), at(1));
        }
        assert!(attempts.is_refused(HERE, Some("app"), at(1)) && !attempts.is_refused(address(1), Some("app"), at(1)));
        assert!(!attempts.is_refused(HERE, Some("app"), at(2)));
        attempts.note_failed(HERE, None, at(2));
        assert!(attempts.is_refused(HERE, Some("app"), at(2)));
    }

    #[test]
    fn n4d_what_is_kept_of_failures_has_a_bound_and_the_youngest_stay() {
        let mut attempts = Attempts::default();
        for number in 0..5 * KEPT_MAX as u32 {
            (0..BY_USER.count).for_each(|_| attempts.note_failed(address(number), Some("app"), at(1)));
            assert!(attempts.is_refused(address(number), Some("app"), at(1)));
        }
        let size = |recent: &BTreeMap<_, _>| recent.len();
        assert!(size(&attempts.addresses.young) + size(&attempts.addresses.old) <= 2 * KEPT_MAX);
        assert!(attempts.users.young.len() + attempts.users.old.len() <= 2 * KEPT_MAX);
    }

    #[test]
    fn nobody_waits_longer_for_many_failures_than_for_all() {
        let mut attempts = Attempts::default();
        (0..10_000).for_each(|_| attempts.note_failed(HERE, Some("app"), at(1)));
        assert!(attempts.is_refused(HERE, None, at(1)));
        assert!(!attempts.is_refused(HERE, None, at(3)), "one in a second");
        assert!(attempts.is_refused(HERE, Some("app"), at(3)) && !attempts.is_refused(HERE, Some("app"), at(12)));
    }
}
