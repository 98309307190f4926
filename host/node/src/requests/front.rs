//! A client's frame, up to where it is known who goes on with it: whose it is, and whether they may ask for that now.
//!
//! What is known of a connection is known here alone. What is behind it, groups and administration, takes what was let through, and asks
//! nobody again.

use crate::config::Config;
use crate::outbox::ConnectionId;
use crate::peer::Principal;
use crate::requests::audit::{Audit, Told};
use crate::requests::caller::Caller;
use crate::requests::limits::Limits;
use crate::requests::login::{Bound, Logins};
use crate::requests::users::{Users, Who};
use crate::requests::{Replied, Serving};
use crate::view::View;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_types::{Instant, Refusal, Status};
use hedgerow_wire::message::Cancel;
use hedgerow_wire::{Body, Class, Header, Method, Rejected, Request};
use serde_json::{Value, json};
use std::net::IpAddr;

/// Who is at the other end of each client's connection, and what they may ask for.
#[derive(Debug)]
pub(crate) struct Front {
    pub(super) users: Users,
    pub(super) logins: Logins,
    pub(super) limits: Limits,
}

/// What was let through, for others to go on with.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are of the largest kind")]
pub(crate) enum Taken {
    /// A read or a write, for the group that it names.
    Data(Caller, Header, Body),
    /// What a client wants no more.
    Cancel(Cancel),
    /// An administrative call.
    Admin(Caller, Body),
}

impl Front {
    /// No connection is open.
    pub(crate) fn new(config: &Config) -> Self {
        Self { users: Users::new(config), logins: Logins::default(), limits: Limits::new(config) }
    }

    /// Time has passed. `serving` ends connections whose logins take too long.
    pub(crate) fn tick(&mut self, serving: &mut Serving<'_>, now: Instant) {
        self.users.audit.tick(now);
        self.limits.tick(now);
        self.end_late_logins(serving, now);
    }

    /// A client's connection begins.
    pub(crate) fn note_opened(
        &mut self,
        connection: ConnectionId,
        who: Who,
        from: IpAddr,
        bound: Option<Bound>,
        now: Instant,
    ) {
        if let Some(bound) = bound {
            self.logins.note_opened(connection, bound);
        }
        if !self.users.may_everything(&who) {
            self.limits.note_opened(connection, &who, from);
        }
        self.users.note_opened(connection, who, from, now);
    }

    /// A client's connection is gone.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.users.forget(connection);
        self.logins.forget(connection);
        self.limits.forget(connection);
    }

    /// A whole frame came from a client. Whatever is not let through `serving` has answered.
    pub(crate) fn take(
        &mut self,
        serving: &mut Serving<'_>,
        connection: ConnectionId,
        frame: Bytes,
        now: Now,
    ) -> Option<Taken> {
        let size = frame.len();
        serving.requests.note_taken(size);
        match hedgerow_wire::decode_request(frame) {
            Ok(request) => return self.admit(serving, connection, request, size, now),
            Err(Rejected::Answer { name, sequence_id, error }) => {
                hedgerow_wire::encode_rejection(serving.outbox.client(connection), &name, sequence_id, error);
            }
            Err(Rejected::NotImplemented { name, sequence_id }) => {
                hedgerow_wire::encode_not_implemented(serving.outbox.client(connection), &name, sequence_id);
            }
            Err(Rejected::Ignore) => {}
            Err(Rejected::Close(reason)) => {
                tracing::debug!(connection = connection.0, %reason, "a client's connection is closed");
                serving.outbox.closed.push(connection);
            }
        }
        None
    }

    fn admit(
        &mut self,
        serving: &mut Serving<'_>,
        connection: ConnectionId,
        request: Request,
        frame_bytes: usize,
        now: Now,
    ) -> Option<Taken> {
        let Request { header, sequence_id, body } = request;
        if self.logins.has_failed(connection) {
            return None;
        }
        let caller = Caller { frame_bytes, ..Caller::of(connection, &header, sequence_id, body.method(), now) };
        if let Body::Negotiation(asked) = body {
            serving.note_request(&caller);
            self.negotiate(serving, &caller, &asked, now);
            return None;
        }
        // Whose the connection is, is settled, and whose limits count.
        self.logins.close(connection);
        if let Some((refusal, closes)) = self.why_over_limit(&caller, now) {
            serving.note_request(&caller);
            serving.answer_failed(&caller, &refusal);
            serving.outbox.closed.extend(closes.then_some(connection));
            return None;
        }
        match caller.method.class() {
            Class::Read | Class::Scan | Class::Write => {
                if let Some(refusal) = self.why_not_rows(serving.view, &caller, now) {
                    serving.note_request(&caller);
                    refuse_rows(serving, &caller, &refusal);
                    return None;
                }
                Some(Taken::Data(caller, header, body))
            }
            Class::Admin => {
                serving.note_request(&caller);
                // What an answer takes grows with the cluster, however short it is. Maps, which clients ask for at any time, are counted by
                // what they show.
                if caller.method != Method::QueryConfig {
                    serving.requests.fill_turn();
                }
                Some(Taken::Admin(caller, body))
            }
            Class::Connection => match body {
                Body::HedgerowCancel(cancel) => Some(Taken::Cancel(cancel)),
                _ => None,
            },
        }
    }

    /// A request that was let through has its reply.
    pub(crate) fn note_reply(&mut self, replied: &Replied) {
        self.limits.note_reply(replied);
    }

    /// A command that changes something is to be carried out for a connection. As [`Audit::note_command`].
    pub(crate) fn note_command(
        &mut self,
        connection: ConnectionId,
        command: (&str, &str),
        now: Instant,
    ) -> Result<Option<Told>, Refusal> {
        self.users.audit.note_command(self.users.at(connection), command, now)
    }

    /// The audit log, for what is not a request's.
    pub(crate) const fn audit(&mut self) -> &mut Audit {
        &mut self.users.audit
    }

    /// Who is at the other end of a connection, for another node.
    pub(crate) fn principal(&self, connection: ConnectionId) -> Principal {
        self.users.principal(connection)
    }

    /// Whether the user of a connection may know of the table called `name`.
    pub(crate) fn may_see(&self, view: &View, connection: ConnectionId, name: &str) -> bool {
        self.users.may_see(view, connection, name)
    }

    /// Who is at the other end of a connection, for themselves.
    pub(crate) fn who_told(&self, view: &View, connection: ConnectionId) -> Value {
        self.users.told_to(view, connection)
    }

    /// Adds to what the operator is told of requests.
    pub(crate) fn add_told(&self, told: &mut Value) {
        told["rights"] = self.users.told();
        told["logins"] = self.logins.told();
        told["limits"] = self.limits.told();
        told["audit"] = json!({ "lost": self.users.audit.lost() });
    }
}

/// A user may not do this with the rows of a table.
fn refuse_rows(serving: &mut Serving<'_>, caller: &Caller, refusal: &Refusal) {
    if caller.is_extended || !matches!(refusal, Refusal::NotAllowed(_)) {
        serving.answer_refused(caller, refusal);
    } else {
        // Pegasus' clients do not know `ERR_ACL_DENY` as the end of a request: Python's ends the connection, and Go's asks again until its
        // time is over. A status is told to the caller at once.
        serving.answer_status(caller, Status::NotSupported);
    }
}
