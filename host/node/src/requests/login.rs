//! Logins by password, over Pegasus' `RPC_NEGOTIATION`: who is at the other end of a connection that shows no certificate.
//!
//! A connection may begin with a login, if it is encrypted and shows no certificate. As soon as it asks for anything else, or has logged
//! in, it has its user for good. So no request, no limit and nothing that is kept with the connection is ever of two users. A login that fails
//! ends its connection.
//!
//! The node computes a handful of hashes for a login. The costly one is the client's (`hedgerow_scram`).

use super::Serving;
use super::attempts::Attempts;
use super::audit::network;
use super::caller::Caller;
use super::front::Front;
use super::read_counts::Lines;
use super::reads::Reflected;
use super::users::Who;
use crate::outbox::ConnectionId;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_placement::Catalogue;
use hedgerow_placement::limit::HOLDER_NAME_SIZE_MAX;
use hedgerow_scram::{Answer, Asked, BINDING_SIZE, Challenge, Failure, Mask, NONCE_SIZE, Nonce, Verifier};
use hedgerow_types::Instant;
use hedgerow_wire::Reply;
use hedgerow_wire::message::{Negotiation, NegotiationReply, NegotiationStatus};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Time from the first step of a login to its end.
const LOGIN_MAX: Duration = Duration::from_secs(10);
/// How often it is looked for those that take longer.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// What a login is told that is refused unseen.
const TOO_MANY: &str = "too-many-failures";

/// What a host knows of an encrypted connection, for a login on it.
#[derive(Clone)]
pub struct Bound {
    /// What both ends of the connection know, and nobody else (RFC 9266).
    pub binding: [u8; BINDING_SIZE],
    /// Randomness that nobody foresees and that never comes again.
    pub nonce: [u8; NONCE_SIZE],
}

/// Nothing of it is for a log.
impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bound")
    }
}

/// The connections that may still log in, and who failed to.
#[derive(Debug, Default)]
pub(super) struct Logins {
    open: FxHashMap<ConnectionId, Box<Login>>,
    /// Those on which a login has failed, until they are closed.
    failed: FxHashSet<ConnectionId>,
    looked_at: Instant,
    attempts: Attempts,
    counts: Counts,
    lines: Lines,
}

/// Since the node started.
#[derive(Debug, Default)]
struct Counts {
    succeeded: u64,
    failed: u64,
    /// Refused unseen.
    refused: u64,
    /// Connections that were closed since their user's password was changed or removed.
    ended: u64,
}

#[derive(Debug)]
struct Login {
    bound: Bound,
    negotiation: hedgerow_scram::Negotiation,
    /// When it began.
    begun: Option<Instant>,
}

/// Why a login comes to nothing.
enum Refused {
    Failed(Failure),
    /// Too many have failed before it.
    Unseen,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What comes of a step.
enum Step {
    Said(NegotiationStatus, String),
    LoggedIn { user: String, verifier: Verifier, message: String },
}

impl Logins {
    /// A connection begins that may log in.
    pub(super) fn note_opened(&mut self, connection: ConnectionId, bound: Bound) {
        let negotiation = hedgerow_scram::Negotiation::default();
        self.open.insert(connection, Box::new(Login { bound, negotiation, begun: None }));
    }

    /// A connection asks for something else: nobody logs in on it any more.
    pub(super) fn close(&mut self, connection: ConnectionId) {
        if !self.open.is_empty() {
            self.open.remove(&connection);
        }
    }

    /// A connection has ended.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.close(connection);
        self.failed.remove(&connection);
    }

    /// Whether a login on a connection has failed: it ends, and nothing more that came on it counts.
    pub(super) fn has_failed(&self, connection: ConnectionId) -> bool {
        !self.failed.is_empty() && self.failed.contains(&connection)
    }

    /// Gives up logins that have begun long ago, which take the place of others. Those whose connections are to be closed.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<ConnectionId> {
        if self.open.is_empty() || now.since(self.looked_at) < LOOK_INTERVAL {
            return Vec::new();
        }
        self.looked_at = now;
        let is_late = |login: &Login| login.begun.is_some_and(|begun| now.since(begun) >= LOGIN_MAX);
        let late: Vec<ConnectionId> = self.open.iter().filter(|(_, it)| is_late(it)).map(|(id, _)| *id).collect();
        for connection in &late {
            self.open.remove(connection);
            self.failed.insert(*connection);
        }
        late
    }

    /// What the operator is told.
    pub(super) fn told(&self) -> Value {
        let Counts { succeeded, failed, refused, ended } = self.counts;
        json!({ "succeeded": succeeded, "failed": failed, "refused": refused, "ended": ended })
    }

    /// Takes a step of a login from an address.
    fn step(
        &mut self,
        login: &mut Login,
        asked: &Negotiation,
        catalogue: &Catalogue,
        (from, now): (IpAddr, Instant),
    ) -> Result<Step, Refused> {
        let Login { bound, negotiation, begun } = login;
        begun.get_or_insert(now);
        let named = negotiation.user().map(str::to_owned);
        // Several may have been challenged before the first of them failed.
        if self.attempts.is_refused(from, named.as_deref(), now) {
            return Err(Refused::Unseen);
        }
        let verifier = negotiation.verifier().cloned();
        let asked = match NegotiationStatus::from_code(asked.status) {
            Some(NegotiationStatus::ListMechanisms) => Asked::Mechanisms,
            Some(NegotiationStatus::Select) => Asked::Select(&asked.msg),
            Some(NegotiationStatus::Initiate) => Asked::Initiate(&asked.msg),
            Some(NegotiationStatus::ChallengeResponse) => Asked::Response(&asked.msg),
            Some(_) | None => return Err(Failure::OutOfTurn.into()),
        };
        match negotiation.handle(asked, |user| challenge(catalogue, bound, user))? {
            Answer::Mechanisms(names) => Ok(Step::Said(NegotiationStatus::Mechanisms, names.to_owned())),
            Answer::Selected => Ok(Step::Said(NegotiationStatus::Selected, String::new())),
            Answer::Challenge(_) if self.attempts.is_refused(from, negotiation.user(), now) => Err(Refused::Unseen),
            Answer::Challenge(text) => Ok(Step::Said(NegotiationStatus::Challenge, text)),
            Answer::Accepted { user, message } => {
                // The password may have been changed since the challenge.
                let verifier = verifier.filter(|it| catalogue.passwords.verifier(&user) == Some(it));
                let verifier = verifier.ok_or(Failure::Proof)?;
                Ok(Step::LoggedIn { user, verifier, message })
            }
        }
    }
}

/// What is shown of `user`: where there is none, of somebody who could be there.
fn challenge(catalogue: &Catalogue, bound: &Bound, user: &str) -> Challenge {
    let passwords = &catalogue.passwords;
    let masked = match passwords.mask() {
        Some(mask) => mask.verifier(user),
        // Nobody has a password.
        None => {
            let mut cluster = [0; 32];
            cluster[..8].copy_from_slice(&catalogue.cluster.to_be_bytes());
            Mask::new(cluster).verifier(user)
        }
    };
    let known = passwords.verifier(user);
    Challenge {
        verifier: known.cloned().unwrap_or(masked),
        is_known: known.is_some(),
        nonce: Nonce::new(bound.nonce),
        binding: Some(bound.binding),
    }
}

impl Front {
    /// Takes a step of a login, if the connection may log in.
    pub(super) fn negotiate(&mut self, serving: &mut Serving<'_>, caller: &Caller, asked: &Negotiation, now: Now) {
        let connection = caller.connection;
        let (_, from) = self.users.at(connection);
        let logins = &mut self.logins;
        let (Some(mut login), Some(from)) = (logins.open.remove(&connection), from.map(network)) else {
            return answer(serving, caller, NegotiationStatus::AuthDisabled, "");
        };
        let Some(catalogue) = &serving.view.catalogue else {
            logins.open.insert(connection, login);
            return serving.answer_failed(caller, &serving.view.no_catalogue());
        };
        let named = login.negotiation.user().map(str::to_owned);
        match logins.step(&mut login, asked, catalogue, (from, now.instant)) {
            Ok(Step::Said(status, text)) => {
                logins.open.insert(connection, login);
                answer(serving, caller, status, &text);
            }
            Ok(Step::LoggedIn { user, verifier, message }) => {
                logins.counts.succeeded += 1;
                logins.attempts.note_succeeded(from, &user);
                self.note_logged_in(connection, &user, verifier, now.instant);
                answer(serving, caller, NegotiationStatus::Success, &message);
            }
            Err(refused) => {
                let named = login.negotiation.user().map(str::to_owned).or(named);
                self.note_login_refused(connection, named.as_deref(), &refused, now.instant);
                let word = match refused {
                    Refused::Failed(failure) => failure.word(),
                    Refused::Unseen => TOO_MANY,
                };
                answer(serving, caller, NegotiationStatus::AuthFailed, &format!("e={word}"));
                self.logins.failed.insert(connection);
                serving.outbox.closed.push(connection);
            }
        }
    }

    fn note_login_refused(&mut self, connection: ConnectionId, named: Option<&str>, refused: &Refused, now: Instant) {
        let (_, address) = self.users.at(connection);
        let Some(address) = address else { return };
        let logins = &mut self.logins;
        // No user has a longer name, nor one with other characters.
        let is_name = |name: &&str| {
            name.len() <= HOLDER_NAME_SIZE_MAX && name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-')
        };
        let who = named.map(|name| if is_name(&name) { name } else { "(no name of a user)" });
        let reason = match refused {
            Refused::Failed(failure) => {
                logins.counts.failed += 1;
                // Who asks for another mechanism has tried no password.
                if *failure != Failure::Mechanism {
                    logins.attempts.note_failed(network(address), who, now);
                }
                failure.to_string()
            }
            Refused::Unseen => {
                logins.counts.refused += 1;
                "too many logins have failed lately".to_owned()
            }
        };
        let text = match who {
            Some(who) => format!("a login as user {who:?} is refused: {reason}"),
            None => format!("a login is refused: {reason}"),
        };
        if let Some(left_out) = logins.lines.poll(now) {
            tracing::warn!(from = %address, left_out, "{text}");
        }
        self.users.audit.note_login_failed(address, text, now);
    }

    /// Time has passed: connections end whose logins take too long.
    pub(super) fn end_late_logins(&mut self, serving: &mut Serving<'_>, now: Instant) {
        let late = self.logins.take_late(now);
        serving.outbox.closed.extend(late);
    }

    /// Another catalogue is acted on: connections end whose user has another password now, or none.
    pub(crate) fn end_outdated_logins(&mut self, serving: &mut Serving<'_>) {
        let Some(catalogue) = &serving.view.catalogue else { return };
        let ended = self.users.take_outdated(catalogue);
        for connection in ended {
            self.logins.counts.ended += 1;
            let (from, id) = (self.users.at(connection).1.map(tracing::field::display), connection.0);
            tracing::info!(connection = id, from, "a connection is closed: its user's password was changed or removed");
            serving.outbox.closed.push(connection);
        }
    }

    /// Somebody has proven on a connection to be `user`.
    fn note_logged_in(&mut self, connection: ConnectionId, user: &str, verifier: Verifier, now: Instant) {
        let who = Who::User(user.into());
        let Some(from) = self.users.note_logged_in(connection, &who, verifier, now) else { return };
        // Its requests count as those of any connection of that user.
        self.limits.forget(connection);
        if !self.users.may_everything(&who) {
            self.limits.note_opened(connection, &who, from);
        }
    }
}

fn answer(serving: &mut Serving<'_>, caller: &Caller, status: NegotiationStatus, text: &str) {
    let reply = NegotiationReply { status: status.code(), msg: Bytes::copy_from_slice(text.as_bytes()) };
    serving.answer(caller, &Reply::Negotiation(reply), Reflected::default());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use hedgerow_placement::Node;
    use hedgerow_types::{Incarnation, NodeId};

    /// Half a login would keep its place for as long as its client likes.
    #[test]
    fn a_login_that_has_begun_has_an_end() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let node = (NodeId(1), Node::new("127.0.0.1:1".to_owned(), Incarnation(1)));
        let catalogue = Catalogue::bootstrap(7, &[node], &[NodeId(1)]).unwrap();
        let mut logins = Logins::default();
        let (silent, slow) = (ConnectionId(1), ConnectionId(2));
        for connection in [silent, slow] {
            logins.note_opened(connection, Bound { binding: [0; BINDING_SIZE], nonce: [0; NONCE_SIZE] });
        }
        let mut login = logins.open.remove(&slow).unwrap();
        let asked = Negotiation { status: NegotiationStatus::ListMechanisms.code(), msg: Bytes::new() };
        let from = IpAddr::from([10, 0, 0, 4]);
        assert!(logins.step(&mut login, &asked, &catalogue, (from, at(100))).is_ok());
        logins.open.insert(slow, login);
        assert!(logins.take_late(at(109)).is_empty());
        assert_eq!(logins.take_late(at(111)), [slow]);
        assert!(logins.has_failed(slow) && !logins.has_failed(silent), "what comes on it counts no more");
        logins.forget(slow);
        assert!(!logins.has_failed(slow));
    }
}
