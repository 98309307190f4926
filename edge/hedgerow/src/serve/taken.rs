//! A node's address that is in use: it is waited for, and who may have it is told.

use std::fmt;
use std::io;
use std::time::Duration;

/// How long a node waits for its address. A connection that has the port may end meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How often it looks meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// So many waits make [`WAIT_MAX`].
const WAITS_MAX: u128 = WAIT_MAX.as_millis() / LOOK_INTERVAL.as_millis();
/// Who may have an address.
const CAUSES: &str = "another process listens there (this node itself, perhaps), or an outgoing connection has the port \
                      (net.ipv4.ip_local_reserved_ports keeps it for the node)";

/// A node's address is in use.
#[derive(Debug)]
pub(crate) struct Taken(String);

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {CAUSES}", self.0)
    }
}

impl std::error::Error for Taken {}

/// The same error; of an address that is in use, a [`Taken`].
pub(super) fn explained(error: anyhow::Error) -> anyhow::Error {
    if is_of_address(&error) { Taken(format!("{error:#}")).into() } else { error }
}

fn is_of_address(error: &anyhow::Error) -> bool {
    let is_in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_in_use))
}

/// What `start` makes. While it finds the node's address in use it is called again, after a `pause` of [`LOOK_INTERVAL`] each time and for
/// [`WAIT_MAX`] at most.
pub(super) fn wait_for_address<T>(
    address: &str,
    mut start: impl FnMut() -> anyhow::Result<T>,
    mut pause: impl FnMut(Duration),
) -> anyhow::Result<T> {
    let mut started = start();
    for wait in 0..WAITS_MAX {
        let is_taken = started.as_ref().is_err_and(|error| error.is::<Taken>());
        if !is_taken {
            break;
        }
        if wait == 0 {
            let seconds_max = WAIT_MAX.as_secs();
            tracing::warn!(address, seconds_max, "the node's address is in use: waiting for it");
        }
        pause(LOOK_INTERVAL);
        started = start();
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: io::ErrorKind) -> anyhow::Error {
        explained(anyhow::Error::new(io::Error::from(kind)).context("cannot listen on a:1"))
    }

    /// What starts of these results come to, and how long that took.
    fn waited(results: impl IntoIterator<Item = anyhow::Result<u8>>) -> (anyhow::Result<u8>, Duration) {
        let (mut results, mut time) = (results.into_iter(), Duration::ZERO);
        let started = wait_for_address("a:1", || results.next().unwrap(), |pause| time += pause);
        (started, time)
    }

    #[test]
    fn an_address_that_is_in_use_is_waited_for() {
        let taken = || Err(refused(io::ErrorKind::AddrInUse));
        let (started, time) = waited([taken(), taken(), taken(), Ok(7)]);
        assert_eq!((started.unwrap(), time), (7, 3 * LOOK_INTERVAL));
        let (started, time) = waited(std::iter::repeat_with(taken));
        assert!(started.unwrap_err().is::<Taken>());
        assert_eq!(time, WAIT_MAX);
    }

    #[test]
    fn other_errors_end_a_start_at_once() {
        let (started, time) = waited([Err(refused(io::ErrorKind::PermissionDenied)), Ok(7)]);
        assert!(!started.unwrap_err().is::<Taken>());
        assert_eq!(time, Duration::ZERO);
    }

    #[test]
    fn both_who_may_have_the_address_are_named() {
        let told = refused(io::ErrorKind::AddrInUse).to_string();
        assert!(told.starts_with("cannot listen on a:1: "), "{told}");
        for cause in ["another process listens there", "an outgoing connection has the port", "ip_local_reserved_ports"]
        {
            assert!(told.contains(cause), "{cause}: {told}");
        }
    }
}
