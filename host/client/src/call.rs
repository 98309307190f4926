//! One operation on one partition: attempts, what each failure teaches, and when to give up.

use crate::cluster::{lost_error, millis, partition_refusal_of};
use crate::connection::{Lost, Outgoing, Waiting};
use crate::error::{Error, ErrorKind, Result};
use crate::routes::{Place, Routes, Target};
use crate::runtime::now;
use crate::session::Held;
use hedgerow_routing::{Address, Failure, Reaction};
use hedgerow_types::{NodeId, Refusal};
use hedgerow_wire::{Body, Class, Extension, Header, Reply, reply};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// A node that only stands for "the reply named a leader": replies tell leaders by address.
const NAMED: NodeId = NodeId(0);

/// An operation under way.
struct Call<'a> {
    routes: &'a Arc<Routes>,
    place: Place<'a>,
    body: &'a Body,
    deadline: Instant,
    /// The number of a write, the same in all its attempts.
    held: Option<Held>,
    attempt: u32,
    /// Whether an attempt may have been applied without our knowing.
    is_outcome_unknown: bool,
    /// How the last attempt failed, for when there is no time for another.
    last_error: Option<Error>,
}

/// Runs `body` against the partition at `place` until it succeeds, fails for good or reaches the deadline.
pub(crate) async fn call(routes: &Arc<Routes>, place: Place<'_>, body: &Body) -> Result<Reply> {
    let deadline = now() + routes.cluster.options.operation_timeout;
    let target = routes.target(place);
    let held = match body.method().class() {
        Class::Write => Some(take_sequence(routes, target, deadline).await?),
        Class::Read | Class::Scan | Class::Admin | Class::Connection => None,
    };
    let mut call =
        Call { routes, place, body, deadline, held, attempt: 1, is_outcome_unknown: false, last_error: None };
    let first = match target.address {
        Some(address) => call.try_at(target, address).await,
        None => Err(Lost::NotConnected("no replica to ask is known".to_owned())),
    };
    match first {
        Ok(reply) if !matches!(reply, Reply::Failed(_)) => Ok(reply),
        outcome => call.recover(target, outcome).await,
    }
}

async fn take_sequence(routes: &Routes, target: Target, deadline: Instant) -> Result<Held> {
    let sequences = routes.sequences(target.table, target.partition);
    match sequences.try_take() {
        Some(held) => Ok(held),
        None => timeout_at(deadline, sequences.take())
            .await
            .map_err(|_| Error::new(ErrorKind::Timeout, "too many writes wait for their result in this partition")),
    }
}

impl Call<'_> {
    /// Sends the request to `address` and waits for the reply, for as long as one attempt may take.
    async fn try_at(&self, target: Target, address: Address) -> Result<Reply, Lost> {
        let waiting = self.send(target, address)?;
        Ok(waiting.await?.reply)
    }

    fn send(&self, target: Target, address: Address) -> Result<Waiting, Lost> {
        let cluster = &self.routes.cluster;
        let now = now();
        let left = self.deadline.saturating_duration_since(now);
        let header = Header {
            app_id: target.table.0 as i32,
            partition_index: target.partition as i32,
            timeout_ms: millis(left) as i32,
            partition_hash: match self.place {
                Place::Hash(hash) => hash,
                Place::Key(_) | Place::Partition(_) => target.partition.into(),
            },
            is_backup: false,
            extension: Some(Extension {
                attempt: Some(self.attempt as i32),
                deadline_ms: Some(millis(left)),
                client_id: self.held.is_some().then_some(cluster.client_id),
                sequence: self.held.as_ref().map(Held::sequence),
                ..Extension::default()
            }),
        };
        let deadline = self.deadline.min(now + cluster.options.attempt_timeout());
        cluster.pool.submit(address, &Outgoing { header: &header, body: self.body, deadline })
    }

    /// What follows an attempt that failed: off the common path, so that its state does not burden every operation.
    async fn recover(&mut self, mut target: Target, mut outcome: Result<Reply, Lost>) -> Result<Reply> {
        loop {
            let error = match outcome {
                Ok(Reply::Failed(failure)) => self.handle_refusal(target, &failure).await,
                Ok(reply) => return Ok(reply),
                Err(lost) => self.handle_loss(target, &lost).await,
            };
            match error {
                Some(error) => return Err(error.with_unknown_outcome(self.is_write() && self.is_outcome_unknown)),
                None => self.attempt += 1,
            }
            target = self.routes.target(self.place);
            if target.address.is_none() {
                target = self.find_target().await?;
            }
            outcome = match target.address {
                Some(address) => Box::pin(self.try_at(target, address)).await,
                None => Err(Lost::NotConnected("no replica to ask is known".to_owned())),
            };
        }
    }

    fn is_write(&self) -> bool {
        self.held.is_some()
    }

    /// Learns from a refusal and waits as long as it asks for; gives the error if that was the last attempt.
    async fn handle_refusal(&mut self, target: Target, failure: &reply::Failure) -> Option<Error> {
        let mut refusal = partition_refusal_of(failure);
        let asked = target.address;
        let leader = failure.detail.as_ref().and_then(|detail| detail.leader.parse::<Address>().ok());
        self.routes.with_map(|map| match (&mut refusal, asked) {
            (Refusal::NotLeader { leader: named }, Some(asked)) => {
                map.note_not_leader(target.partition, asked);
                let is_believed = leader.is_some_and(|leader| map.note_leader(target.partition, leader));
                *named = is_believed.then_some(NAMED);
            }
            (Refusal::NotHosted, Some(asked)) => map.note_not_hosted(target.partition, asked),
            (Refusal::Stopping(_), Some(asked)) => map.note_not_leader(target.partition, asked),
            _ => {}
        });
        self.is_outcome_unknown |= matches!(refusal, Refusal::Unresolved | Refusal::Expired);
        let error = Error::new(ErrorKind::from(&refusal), refusal.to_string());
        // A write carries its number, so that sending it again is always harmless.
        let reaction = self.routes.cluster.reaction(Failure::Refused(&refusal), self.attempt, true);
        self.react(reaction, error).await
    }

    async fn handle_loss(&mut self, target: Target, lost: &Lost) -> Option<Error> {
        if let Some(asked) = target.address {
            self.routes.with_map(|map| map.note_not_leader(target.partition, asked));
        }
        self.is_outcome_unknown |= lost.may_have_run();
        let failure = match lost {
            Lost::NotConnected(_) => Failure::Unreachable,
            Lost::Full => Failure::Refused(&Refusal::Busy(String::new())),
            Lost::Broken(_) | Lost::Malformed(_) => Failure::ConnectionLost,
            Lost::Late => Failure::NoReply,
        };
        let reaction = self.routes.cluster.reaction(failure, self.attempt, true);
        // A server that breaks the protocol will do so again.
        let reaction = if matches!(lost, Lost::Malformed(_)) && self.attempt > 1 { Reaction::Fail } else { reaction };
        self.react(reaction, lost_error(lost)).await
    }

    /// Waits as `reaction` says; gives the error if there is no time or reason for another attempt.
    async fn react(&mut self, reaction: Reaction, error: Error) -> Option<Error> {
        let after = match reaction {
            Reaction::Fail => return Some(error),
            Reaction::Retry { after } => after,
            Reaction::RefreshAndRetry { after } => {
                drop(self.routes.refresh());
                after
            }
        };
        let left = self.deadline.saturating_duration_since(now());
        if left <= after {
            return Some(timed_out(&error));
        }
        self.last_error = Some(error);
        if !after.is_zero() {
            sleep(after).await;
        }
        None
    }

    /// Waits for a fresh map when no replica is left to ask; starts over with the known ones if the map names none.
    async fn find_target(&self) -> Result<Target> {
        let wait = self.routes.refresh().wait();
        if timeout_at(self.deadline, wait).await.is_err() {
            let cause = self.last_error.clone().or_else(|| self.routes.failure());
            let cause = cause.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no replica serves the partition"));
            return Err(timed_out(&cause).with_unknown_outcome(self.is_write() && self.is_outcome_unknown));
        }
        if let Some(error) = self.routes.failure().filter(|error| error.kind() == ErrorKind::NoTable) {
            return Err(error.with_unknown_outcome(self.is_write() && self.is_outcome_unknown));
        }
        let target = self.routes.target(self.place);
        if target.address.is_none() {
            self.routes.with_map(|map| map.forgive(target.partition));
            sleep(Duration::from_millis(5)).await;
        }
        Ok(self.routes.target(self.place))
    }
}

/// The error of an operation whose time is over, by what kept it from succeeding.
fn timed_out(cause: &Error) -> Error {
    match cause.kind() {
        ErrorKind::Unreachable | ErrorKind::Unavailable => {
            Error::new(cause.kind(), format!("gave up at the deadline: {}", cause.message()))
        }
        _ => Error::new(ErrorKind::Timeout, format!("the deadline passed: {}", cause.message())),
    }
}
