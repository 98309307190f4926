//! One operation on one partition: attempts, what each failure teaches, and when to give up.

use crate::connection::{Outgoing, Waiting};
use crate::error::{Error, ErrorKind, Result};
use crate::lost::{Lost, lost_error};
use crate::options::Timeouts;
use crate::reading::Reading;
use crate::refusal::partition_refusal_of;
use crate::routes::{Destination, Routes, Target, Want};
use crate::runtime::{now, random_u64, sleep, timeout_at};
use crate::selection::size_hint;
use crate::sequences::{Held, Renewal};
use crate::served::{Role, Served};
use crate::session::Floor;
use crate::time::{micros, millis};
use hedgerow_hedge::Kind;
use hedgerow_routing::{Address, Effect, Failure, Reaction, ReplicaRead, meaning};
use hedgerow_types::{Lag, NodeId, ReadLevel, Refusal};
use hedgerow_wire::call::ReplyFrame;
use hedgerow_wire::{Body, Class, Extension, Header, Reply, ReplyExtension, reply};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A node that only stands for "the reply named a leader": replies tell leaders by address.
const NAMED: NodeId = NodeId(0);

/// How often a write may take another number. The first refusal says which numbers are taken; more than one more needs
/// others that push the floor up meanwhile.
const RENEWALS_MAX: u32 = 3;

/// An operation under way.
pub(crate) struct Call<'a> {
    pub(crate) routes: &'a Arc<Routes>,
    /// How the handle reads, where that is not the default.
    pub(crate) reading: Option<&'a Reading>,
    /// Of a read that need not go to the leader: who is preferred.
    pub(crate) replicas: Option<ReplicaRead>,
    /// The next page of a scan that is kept by the replica which is asked, whoever leads.
    is_at_holder: bool,
    pub(crate) place: Destination<'a>,
    pub(crate) body: &'a Body,
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
    /// How long one attempt may take.
    attempt_timeout: Duration,
    /// The number of a write, the same in all its attempts in a partition.
    held: Option<Held>,
    pub(crate) attempt: u32,
    /// Whether an attempt may have been applied without our knowing, or may still be. As long as none may, but for the one that
    /// was refused last, a write may take another number.
    pub(crate) is_outcome_unknown: bool,
    /// How often the number of a write was renewed.
    renewals: u32,
    /// How the last attempt failed, for when there is no time for another.
    last_error: Option<Error>,
    /// Why a node was not believed, or did not believe this client: others are asked then, and say nothing of it.
    disbelief: Option<Box<str>>,
    /// Whether there was any other answer or failure than that nodes do not believe this client.
    has_met_others: bool,
    /// Of a read that need not go to the leader: who was asked since the last pause, and how often all were.
    pub(crate) tried: Vec<Address>,
    rounds: u32,
}

/// A reply, and who gave it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// The replica that served a read that it was chosen for; `None` = whoever leads.
    pub(crate) holder: Option<Address>,
}

/// Who served a read, and as which attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedBy {
    pub(crate) target: Target,
    pub(crate) address: Address,
    pub(crate) attempts: u32,
    pub(crate) kind: Kind,
    /// The level that the attempt asked for.
    pub(crate) level: Option<ReadLevel>,
}

/// How long an attempt sent at `now` may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) now: Instant,
    pub(crate) deadline: Instant,
    pub(crate) give_up_at: Instant,
}

impl<'a> Call<'a> {
    /// An operation that begins now.
    pub(crate) fn new(
        routes: &'a Arc<Routes>,
        reading: Option<&'a Reading>,
        timeouts: Timeouts,
        place: Destination<'a>,
        body: &'a Body,
    ) -> Self {
        let is_read = matches!(body.method().class(), Class::Read | Class::Scan);
        let start = now();
        Self {
            routes,
            reading,
            replicas: reading.filter(|_| is_read).and_then(Reading::replicas),
            is_at_holder: false,
            place,
            body,
            start,
            deadline: start + timeouts.operation,
            attempt_timeout: timeouts.attempt,
            held: None,
            attempt: 1,
            is_outcome_unknown: false,
            renewals: 0,
            last_error: None,
            disbelief: None,
            has_met_others: false,
            tried: Vec::new(),
            rounds: 0,
        }
    }

    /// Whom to ask first. A write takes its number now, and waits until there is one.
    pub(crate) async fn begin(&mut self) -> Result<Target> {
        let target = self.target();
        self.check_excluded(target)?;
        if self.body.method().class() == Class::Write {
            self.held = Some(take_sequence(self.routes, target, self.deadline).await?);
        }
        Ok(target)
    }

    /// To be called before a write is sent again: numbers of one partition say nothing in another, where other writes have
    /// them. The table may have been dropped, and another one have its name by now.
    pub(crate) async fn renumber(&mut self, target: Target) -> Result<()> {
        if self.may_go_to(target) {
            return Ok(());
        }
        let taken = take_sequence(self.routes, target, self.deadline).await;
        self.held = Some(taken.map_err(|error| error.with_unknown_outcome(self.is_outcome_unknown))?);
        Ok(())
    }

    /// Whether the operation has no number, or one of the target's partition.
    pub(crate) fn may_go_to(&self, target: Target) -> bool {
        self.held.as_ref().is_none_or(|held| held.group() == target.group())
    }

    /// Runs the operation, one attempt at a time, until it succeeds, fails for good or reaches the deadline. The first
    /// attempt goes to `target`.
    pub(crate) async fn run(&mut self, target: Target) -> Result<Answer> {
        let first = match target.address {
            Some(address) => self.try_at(target, address).await,
            None => Err(Lost::NotConnected("no replica to ask is known".to_owned())),
        };
        match first {
            Ok(reply) if !matches!(reply, Reply::Failed(_)) => Ok(self.answer(target, reply)),
            outcome => self.recover(target, outcome).await,
        }
    }

    /// Reads the next page of the scan that the replica at `address` keeps; `None` if that one does not serve it.
    pub(crate) async fn run_at(mut self, address: Address) -> Option<Answer> {
        self.is_at_holder = true;
        let target = Target { address: Some(address), ..self.routes.target(self.place) };
        match self.try_at(target, address).await {
            Ok(Reply::Failed(_)) | Err(_) => None,
            Ok(reply) => Some(Answer { reply, holder: Some(address) }),
        }
    }

    /// Whom to ask next.
    pub(crate) fn target(&self) -> Target {
        match self.replicas {
            None => self.routes.target(self.place),
            Some(_) => self.routes.choose(self.place, &self.want(&self.tried, self.attempt)),
        }
    }

    /// Looks for a replica that is not among `tried`, for attempt number `attempt`.
    pub(crate) fn want<'w>(&'w self, tried: &'w [Address], attempt: u32) -> Want<'w> {
        Want {
            mode: self.replicas.unwrap_or(ReplicaRead::LeaderAndFollower),
            tried,
            excluded: self.excluded(),
            balancing: self.reading.and_then(|reading| reading.options.balancing.custom()),
            operation: self.body.method().short_name(),
            attempt,
            size_hint: size_hint(self.body),
        }
    }

    fn excluded(&self) -> &[Address] {
        self.reading.map_or(&[], |reading| &reading.options.excluded)
    }

    /// Fails if every replica that might serve the read is excluded: waiting brings no other one.
    fn check_excluded(&self, target: Target) -> Result<()> {
        let (excluded, partition) = (self.excluded(), target.partition);
        if target.address.is_some() || self.replicas.is_none() || excluded.is_empty() {
            return Ok(());
        }
        let has_others = |excluded: &[Address]| self.routes.has_others(partition, &[], excluded);
        if has_others(excluded) || !has_others(&[]) {
            return Ok(());
        }
        let table = self.routes.name();
        Err(Error::invalid(format!("every replica of partition {partition} of table {table:?} is on an excluded host")))
    }

    fn answer(&self, target: Target, reply: Reply) -> Answer {
        Answer { reply, holder: target.address.filter(|_| self.replicas.is_some()) }
    }

    /// Sends the request to `address` and waits for the reply, for as long as one attempt may take.
    async fn try_at(&self, target: Target, address: Address) -> Result<Reply, Lost> {
        tracing::debug!(node = %address, attempt = self.attempt, "sends");
        match self.reading {
            None => Ok(self.send(target, address, Floor::default())?.await?.reply),
            Some(reading) => self.try_reading(reading, target, address).await,
        }
    }

    /// As [`Call::try_at`], for a handle that does not read as all do: the session, the selector and the observer
    /// learn of the reply.
    async fn try_reading(&self, reading: &Reading, target: Target, address: Address) -> Result<Reply, Lost> {
        let group = target.group();
        let floor = if self.is_write() { Floor::default() } else { reading.floor(group) };
        let sent = self.replicas.map(|_| self.routes.cluster.selection.send(group, address));
        let result = match self.send(target, address, floor) {
            Ok(waiting) => waiting.await,
            Err(lost) => Err(lost),
        };
        let ReplyFrame { reply, extension, .. } = match result {
            Ok(frame) => frame,
            Err(lost) => {
                sent.into_iter().for_each(|sent| sent.lost(&lost));
                return Err(lost);
            }
        };
        let reply = if self.is_write() { reply } else { refuse_older(reply, extension.as_ref(), floor) };
        if let Reply::Failed(failure) = &reply {
            sent.into_iter().for_each(|sent| sent.refused(&partition_refusal_of(failure)));
            return Ok(reply);
        }
        sent.into_iter().for_each(|sent| sent.served(extension.as_ref()));
        let extension = extension.unwrap_or_default();
        reading.observe_index(group, extension.index);
        if !self.is_write() {
            let by =
                ServedBy { target, address, attempts: self.attempt, kind: Kind::First, level: reading.options.level };
            reading.tell(|| self.served(by, &extension));
        }
        Ok(reply)
    }

    pub(crate) fn served(&self, by: ServedBy, extension: &ReplyExtension) -> Served {
        let staleness_ms = extension.staleness_ms.and_then(|ms| u64::try_from(ms).ok());
        let staleness = staleness_ms.map(Duration::from_millis);
        let has_told = !extension.served_by.is_empty();
        let told = extension.mode.as_ref().and_then(|mode| Role::told(mode.as_str()));
        Served {
            node: extension.served_by.parse().unwrap_or(by.address),
            // The client's map may be older than the answer.
            role: told.or_else(|| self.routes.role(by.target.partition, by.address)),
            partition: by.target.partition,
            index: extension.index,
            staleness,
            attempts: by.attempts,
            queue: has_told.then(|| micros(extension.queue_us)),
            service: has_told.then(|| micros(extension.service_us)).filter(|it| !it.is_zero()),
            level: extension.read_level_code.map(|code| level_of(code, by.level, staleness)),
            kind: by.kind,
            mode: extension.mode.as_ref().map(ToString::to_string),
        }
    }

    fn send(&self, target: Target, address: Address, floor: Floor) -> Result<Waiting, Lost> {
        let now = now();
        let deadline = self.late_at(now);
        self.submit(target, address, self.extension(target, floor, now), Limits { now, deadline, give_up_at: deadline })
    }

    /// When an attempt that is sent `now` is late.
    pub(crate) fn late_at(&self, now: Instant) -> Instant {
        self.deadline.min(now + self.attempt_timeout)
    }

    /// What an attempt says that differs in nothing from the others of its request but in its number.
    pub(crate) fn extension(&self, target: Target, floor: Floor, now: Instant) -> Extension {
        let left = self.deadline.saturating_duration_since(now);
        let mut extension = Extension {
            attempt: Some(self.attempt as i32),
            deadline_ms: Some(millis(left)),
            client_id: self.held.as_ref().map(Held::client),
            sequence: self.held.as_ref().map(Held::sequence),
            ..Extension::default()
        };
        if let Some(reading) = self.reading.filter(|_| !self.is_write()) {
            reading.write(&mut extension, target.group(), floor);
        }
        extension.any_replica |= self.is_at_holder;
        extension
    }

    pub(crate) fn submit(
        &self,
        target: Target,
        address: Address,
        extension: Extension,
        limits: Limits,
    ) -> Result<Waiting, Lost> {
        let Limits { now, deadline, give_up_at } = limits;
        let header = Header {
            app_id: target.table.0 as i32,
            partition_index: target.partition as i32,
            timeout_ms: millis(self.deadline.saturating_duration_since(now)) as i32,
            partition_hash: match self.place {
                Destination::Hash(hash) => hash,
                Destination::Key(_) | Destination::Partition(_) => target.partition.into(),
            },
            is_backup: false,
            extension: Some(extension),
        };
        self.routes
            .cluster
            .pool
            .submit(address, &Outgoing { header: &header, body: self.body, now, deadline, give_up_at })
    }

    /// What follows an attempt that failed: off the common path, so that its state does not burden every operation.
    async fn recover(&mut self, mut target: Target, mut outcome: Result<Reply, Lost>) -> Result<Answer> {
        loop {
            let error = match outcome {
                Ok(Reply::Failed(failure)) => self.handle_refusal(target, &failure).await,
                Ok(reply) => return Ok(self.answer(target, reply)),
                Err(lost) => self.handle_loss(target, &lost).await,
            };
            match error {
                Some(error) => return Err(error.with_unknown_outcome(self.is_write() && self.is_outcome_unknown)),
                None => self.attempt += 1,
            }
            target = self.target();
            if target.address.is_none() {
                target = self.find_target().await?;
            }
            self.renumber(target).await?;
            outcome = match target.address {
                Some(address) => Box::pin(self.try_at(target, address)).await,
                None => Err(Lost::NotConnected("no replica to ask is known".to_owned())),
            };
        }
    }

    pub(crate) fn is_write(&self) -> bool {
        self.held.is_some()
    }

    /// Learns from a refusal and waits as long as it asks for; gives the error if that was the last attempt.
    async fn handle_refusal(&mut self, target: Target, failure: &reply::Failure) -> Option<Error> {
        let refusal = self.learn_refusal(target, failure);
        if self.renew_number(&refusal) {
            return None;
        }
        let error = Error::new(ErrorKind::from(&refusal), refusal_text(&refusal, failure));
        // A write carries its number, so that sending it again is always harmless.
        let reaction = self.reaction(target, Failure::Refused(&refusal));
        self.react(reaction, error).await
    }

    /// What a refusal says of the map. One that names a leader that is not believed names none in the result.
    pub(crate) fn learn_refusal(&mut self, target: Target, failure: &reply::Failure) -> Refusal {
        let mut refusal = partition_refusal_of(failure);
        self.has_met_others = true;
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
        self.is_outcome_unknown |= meaning(&refusal).effect == Effect::Unknown;
        refusal
    }

    /// After a refusal: takes another number for a write whose number its partition does not take. The state machine has
    /// judged the one attempt that may have reached a log, and it did not apply the write. With another attempt it may have
    /// applied that one and forgotten it; then the caller has to know.
    pub(crate) fn renew_number(&mut self, refusal: &Refusal) -> bool {
        let Refusal::SessionWindow { floor, ceiling, .. } = *refusal else { return false };
        let Some(held) = self.held.as_mut().filter(|_| ceiling > 0) else { return false };
        if self.is_outcome_unknown || self.renewals >= RENEWALS_MAX {
            return false;
        }
        self.renewals += 1;
        let client = random_u64().max(1);
        held.renew(Renewal { floor, ceiling, clock: self.routes.cluster.number_clock(), client })
    }

    /// The client that attempts name: a write's number is that client's.
    pub(crate) fn client_id(&self) -> u64 {
        self.held.as_ref().map_or(self.routes.cluster.client_id, Held::client)
    }

    async fn handle_loss(&mut self, target: Target, lost: &Lost) -> Option<Error> {
        self.learn_loss(target, lost);
        let reaction = self.reaction_to_loss(target, lost);
        self.react(reaction, lost_error(lost)).await
    }

    pub(crate) fn learn_loss(&mut self, target: Target, lost: &Lost) {
        // What no node takes, and whom none lets in, says nothing of the one that it was meant for.
        let says_nothing = matches!(lost, Lost::TooLarge(_) | Lost::LoginRefused(_));
        if let Some(asked) = target.address.filter(|_| !says_nothing) {
            self.routes.with_map(|map| map.note_not_leader(target.partition, asked));
        }
        self.is_outcome_unknown |= lost.may_have_run();
        if let Lost::Disbelieved { what, .. } = lost {
            self.disbelief = Some(what.as_str().into());
        }
        self.has_met_others |= !matches!(lost, Lost::Disbelieved { is_own: true, .. });
    }

    pub(crate) fn reaction_to_loss(&mut self, target: Target, lost: &Lost) -> Reaction {
        let reaction = self.reaction(target, lost.failure());
        // A server that breaks the protocol will do so again.
        if matches!(lost, Lost::Malformed(_)) && self.attempt > 1 { Reaction::Fail } else { reaction }
    }

    /// What follows a failed attempt where the same replica is asked again.
    pub(crate) fn reaction_in_place(&self, failure: Failure<'_>) -> Reaction {
        self.routes.cluster.reaction(failure, self.attempt, true)
    }

    /// What follows a failed attempt. Every replica that may serve a read is asked before there is a pause.
    pub(crate) fn reaction(&mut self, target: Target, failure: Failure<'_>) -> Reaction {
        let cluster = &self.routes.cluster;
        if self.replicas.is_none() {
            return self.reaction_in_place(failure);
        }
        self.tried.extend(target.address);
        if self.routes.has_others(target.partition, &self.tried, self.excluded()) {
            return cluster.replica_reaction(failure, self.attempt, 0);
        }
        self.tried.clear();
        self.rounds += 1;
        cluster.replica_reaction(failure, self.attempt, self.rounds)
    }

    /// Waits as `reaction` says; gives the error if there is no time or reason for another attempt.
    pub(crate) async fn react(&mut self, reaction: Reaction, error: Error) -> Option<Error> {
        // A node that could be asked knows more of why nobody serves than one that could not, or that had no time left to say.
        let told = self.last_error.take().filter(|told| told.kind() == ErrorKind::Unavailable);
        let says_less = match error.kind() {
            ErrorKind::Unreachable => true,
            ErrorKind::Timeout => self.deadline <= now(),
            _ => false,
        };
        let error = told.filter(|_| says_less).unwrap_or(error);
        let after = match reaction {
            Reaction::Fail => return Some(error),
            Reaction::Retry { after } => after,
            // The map, which was asked for after the first attempt, says so too.
            Reaction::RefreshAndRetry { .. }
                if error.kind() == ErrorKind::NoTable && self.attempt > 1 && self.routes.is_gone() =>
            {
                return Some(error);
            }
            Reaction::RefreshAndRetry { after } => {
                drop(self.routes.refresh());
                after
            }
        };
        if self.routes.cluster.pool.is_released() {
            return Some(error);
        }
        let left = self.deadline.saturating_duration_since(now());
        if left <= after {
            return Some(self.timed_out(&error));
        }
        self.last_error = Some(error);
        if !after.is_zero() {
            sleep(after).await;
        }
        None
    }

    /// The error of an operation whose time is over, by what kept it from succeeding.
    fn timed_out(&self, cause: &Error) -> Error {
        let message = match &self.disbelief {
            Some(why) if **why != *cause.message() => format!("{}; and {why}", cause.message()),
            _ => cause.message().to_owned(),
        };
        match cause.kind() {
            // No node believes it, as far as they were asked.
            ErrorKind::Unreachable if self.disbelief.is_some() && !self.has_met_others => {
                Error::new(ErrorKind::NotAllowed, message)
            }
            ErrorKind::Unreachable | ErrorKind::Unavailable => {
                Error::new(cause.kind(), format!("gave up at the deadline: {message}"))
            }
            _ => Error::new(ErrorKind::Timeout, format!("the deadline passed: {message}")),
        }
    }

    /// Waits for a fresh map when no replica is left to ask; starts over with the known ones if the map names none.
    pub(crate) async fn find_target(&self) -> Result<Target> {
        let wait = self.routes.refresh().wait();
        if timeout_at(self.deadline, wait).await.is_err() {
            let cause = self.last_error.clone().or_else(|| self.routes.failure());
            let cause = cause.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no replica serves the partition"));
            return Err(self.timed_out(&cause).with_unknown_outcome(self.is_write() && self.is_outcome_unknown));
        }
        if let Some(error) = self.routes.failure().filter(|error| error.kind() == ErrorKind::NoTable) {
            return Err(error.with_unknown_outcome(self.is_write() && self.is_outcome_unknown));
        }
        let target = self.target();
        if target.address.is_none() {
            self.routes.with_map(|map| map.forgive(target.partition));
            self.check_excluded(target)?;
            sleep(Duration::from_millis(5)).await;
        }
        Ok(self.target())
    }
}

async fn take_sequence(routes: &Routes, target: Target, deadline: Instant) -> Result<Held> {
    let sequences = routes.sequences(target.group());
    match sequences.try_take(routes.cluster.number_clock()) {
        Some(held) => Ok(held),
        None => timeout_at(deadline, sequences.take(|| routes.cluster.number_clock()))
            .await
            .map_err(|_| Error::new(ErrorKind::Timeout, "too many writes wait for their result in this partition")),
    }
}

/// A reply that is older than what its session saw when the request left is as good as that of a replica that says so
/// itself. Levels below that of a session do not make the node look.
pub(crate) fn refuse_older(reply: Reply, extension: Option<&ReplyExtension>, floor: Floor) -> Reply {
    let index = extension.map_or(0, |extension| extension.index);
    if index == 0 || index >= floor.index || matches!(reply, Reply::Failed(_)) {
        return reply;
    }
    Reply::refused(&Refusal::Lagging(Lag { entries: floor.index - index, staleness: None }), None)
}

/// The level of this number, by which a read was served that asked for `asked`.
fn level_of(code: i32, asked: Option<ReadLevel>, staleness: Option<Duration>) -> ReadLevel {
    let mut said = Extension { read_level_code: Some(code), ..Extension::default() };
    let bound = match asked {
        Some(ReadLevel::Bounded(bound)) => bound,
        // The table's bound, which is not told: at least what is told of the data.
        _ => staleness.unwrap_or(ReadLevel::BOUND_MAX).clamp(ReadLevel::BOUND_MIN, ReadLevel::BOUND_MAX),
    };
    said.staleness_bound_ms = i64::try_from(bound.as_millis()).ok();
    said.read_level().unwrap_or_default()
}

/// What a refusal says to people. A node that knows no leader tells why.
fn refusal_text(refusal: &Refusal, failure: &reply::Failure) -> String {
    let told = failure.detail.as_ref().map(|detail| detail.message.to_string()).unwrap_or_default();
    match refusal {
        Refusal::NotLeader { .. } if !told.is_empty() => told,
        _ => refusal.to_string(),
    }
}
