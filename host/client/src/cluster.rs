//! What one client knows of its cluster: the nodes, the connections to them, and who the client itself is.

use crate::alarm::Alarm;
use crate::connection::{Clock, Outgoing};
use crate::error::{Error, ErrorKind, Result};
use crate::hedging::HedgeOptions;
use crate::lock::lock;
use crate::lost::{CLOSED, Lost, lost_error};
use crate::metrics::{ClientMetrics, Hedging};
use crate::options::ClientOptions;
use crate::pool::Pool;
use crate::reading::Reading;
use crate::refusal::{refusal_of, refusal_of_name};
use crate::resolve::resolve;
use crate::runtime::{now, random_u64, sleep, unix_micros};
use crate::selection::Selection;
use crate::sequences::AllSequences;
use crate::time::millis;
use hedgerow_routing::{Address, Effect, Failure, Reaction, meaning, reaction, replica_reaction};
use hedgerow_types::Refusal;
use hedgerow_types::random::Random;
use hedgerow_wire::{ErrorName, Extension, Header, Reply, request::Body};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// How long one node may take to answer a question that any node can answer from memory.
pub(crate) const ANY_NODE_PATIENCE: Duration = Duration::from_millis(500);
/// Into how many parts the patience with a node is divided: after the first of them another node is asked as well, where nothing
/// changes by it.
const PATIENCE_PARTS: u32 = 10;
/// After so long at most, however long a node may take.
const ASKED_ALONE_MAX: Duration = Duration::from_millis(500);
/// How many forwards in a row are followed: who then forwards again points in a circle.
const FORWARDS_MAX: u32 = 3;
/// Most addresses remembered. Of more, those go that the cluster has not told of for longest.
const ADDRESSES_MAX: usize = 1_024;
/// How long looking up one name again may take.
const LOOK_UP_MAX: Duration = Duration::from_millis(500);
/// Before names are looked up again of which none was found.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(100);
/// How often a client that is being closed looks whether requests are under way.
const CLOSING_LOOK: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) options: ClientOptions,
    pub(crate) client_id: u64,
    pub(crate) sequences: AllSequences,
    pub(crate) pool: Pool,
    pub(crate) selection: Selection,
    /// How tables read that were not told otherwise.
    pub(crate) reading: Option<Arc<Reading>>,
    /// Wakes hedged requests when another attempt is due.
    pub(crate) alarm: Alarm,
    pub(crate) metrics: Arc<ClientMetrics>,
    /// The zero of the clock that hedging decides by.
    pub(crate) origin: Instant,
    /// What the wall clock showed then, microseconds since 1970.
    origin_micros: u64,
    /// Counts requests that may have several attempts.
    request_ids: AtomicU64,
    random: Mutex<Random>,
    nodes: Mutex<Nodes>,
    /// The seeds that were given by name: what they stand for may change.
    names: Vec<String>,
    /// No operation begins any more.
    is_closed: AtomicBool,
    /// Operations under way.
    operations: AtomicUsize,
}

/// The known nodes, and which of them is asked next.
#[derive(Debug)]
struct Nodes {
    addresses: Vec<Address>,
    /// When each was told of last, counted in tellings; those that the client was made with stay.
    told: Vec<u64>,
    tellings: u64,
    turn: usize,
}

impl Nodes {
    fn new(seeds: Vec<Address>, turn: usize) -> Self {
        Self { told: vec![u64::MAX; seeds.len()], addresses: seeds, tellings: 0, turn }
    }

    /// Machines come and go, and each may have another address: the client goes on as long as it is told of one that is there.
    fn note(&mut self, addresses: impl Iterator<Item = Address>) {
        self.tellings += 1;
        for address in addresses {
            match self.addresses.iter().position(|known| *known == address) {
                Some(place) if self.told[place] == u64::MAX => {}
                Some(place) => self.told[place] = self.tellings,
                None => {
                    if self.addresses.len() >= ADDRESSES_MAX && !self.forget_oldest() {
                        return;
                    }
                    self.addresses.push(address);
                    self.told.push(self.tellings);
                }
            }
        }
    }

    /// Whether there is one that may go: none of those that were told of just now.
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.told.iter().enumerate().min_by_key(|(_, told)| **told);
        let Some(place) = oldest.filter(|(_, told)| **told < self.tellings).map(|(place, _)| place) else {
            return false;
        };
        self.addresses.remove(place);
        self.told.remove(place);
        true
    }
}

/// A question for the cluster as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) body: &'a Body,
    pub(crate) deadline: Instant,
    /// How long one node may take.
    pub(crate) patience: Duration,
    pub(crate) sort: Sort,
}

/// What becomes of a question that is asked twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// It changes nothing, so that its outcome is always known.
    Look,
    /// It changes something, and twice is as good as once.
    Idempotent,
    /// It is not to run twice.
    Once,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>, options: ClientOptions) -> Self {
        let options = options.clamped();
        let client_id = options.client_id.filter(|id| *id != 0).unwrap_or_else(|| random_u64().max(1));
        let mut random = Random::new(random_u64());
        let turn = random.below(seeds.len().max(1) as u64) as usize;
        let (alarm, origin) = (Alarm::new(), now());
        let clock = Clock { origin, lateness: alarm.lateness() };
        Self {
            client_id,
            sequences: AllSequences::of(client_id),
            pool: Pool::new(&options, clock, random.next_u64()),
            selection: Selection::new(options.labels.clone(), random.fork()),
            alarm,
            metrics: ClientMetrics::new(options.budget),
            origin,
            origin_micros: unix_micros(),
            request_ids: AtomicU64::new(1),
            reading: Reading { options: options.read.clone(), session: None }.shared(),
            options,
            random: Mutex::new(random),
            nodes: Mutex::new(Nodes::new(seeds, turn)),
            names: Vec::new(),
            is_closed: AtomicBool::new(false),
            operations: AtomicUsize::new(0),
        }
    }

    /// The clock that the numbers of writes follow, microseconds since 1970: the wall clock as it was when the client began,
    /// and no step of it since.
    pub(crate) fn number_clock(&self) -> u64 {
        let elapsed = now().saturating_duration_since(self.origin);
        self.origin_micros.saturating_add(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
    }

    /// An id that no other request of this client has.
    pub(crate) fn next_request_id(&self) -> u64 {
        self.request_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// What requests share that are hedged as `options` say; `None` if that is not at all.
    pub(crate) fn hedging(&self, options: HedgeOptions) -> Option<Arc<Hedging>> {
        let seed = lock(&self.random).next_u64();
        self.metrics.open(options, seed)
    }

    /// What requests share that nothing hedges yet.
    pub(crate) fn hedging_base(&self) -> Arc<Hedging> {
        let seed = lock(&self.random).next_u64();
        self.metrics.base(seed)
    }

    /// Has every later operation refused, and waits until those under way have ended, for `patience` at most. Returns whether they had.
    pub(crate) async fn close(&self, patience: Duration) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let until = now().checked_add(patience);
        let is_idle = || self.operations.load(Ordering::SeqCst) == 0;
        while !is_idle() && until.is_none_or(|until| now() < until) {
            sleep(CLOSING_LOOK).await;
        }
        let is_idle = is_idle();
        self.pool.release();
        is_idle
    }

    /// An operation begins, which ends with what this returns. Fails if the client was closed.
    pub(crate) fn begin(&self) -> Result<UnderWay<'_>> {
        // Counted before it is looked: whoever closes the client sees it, or it sees that.
        let under_way = self.count();
        if self.is_closed.load(Ordering::SeqCst) { Err(Error::invalid(CLOSED)) } else { Ok(under_way) }
    }

    /// Something is under way, perhaps as a part of an operation.
    fn count(&self) -> UnderWay<'_> {
        self.operations.fetch_add(1, Ordering::SeqCst);
        UnderWay(self)
    }

    /// Remembers nodes that were heard of.
    pub(crate) fn note_nodes(&self, addresses: impl Iterator<Item = Address>) {
        lock(&self.nodes).note(addresses);
    }

    pub(crate) fn reaction(&self, failure: Failure<'_>, attempt: u32, is_idempotent: bool) -> Reaction {
        reaction(failure, attempt, is_idempotent, &mut lock(&self.random))
    }

    pub(crate) fn replica_reaction(&self, failure: Failure<'_>, attempt: u32, rounds: u32) -> Reaction {
        replica_reaction(failure, attempt, rounds, &mut lock(&self.random))
    }

    /// Asks one node after the other until one answers for the cluster: neither refuses nor points elsewhere.
    pub(crate) async fn ask(&self, question: Question<'_>) -> Result<Reply> {
        let _under_way = self.count();
        self.look_up_first(question.deadline).await?;
        // All attempts, and those before the last pause.
        let (mut attempt, mut paused_at) = (0, 0);
        let mut hint = None;
        // Forwards in a row.
        let mut forwards = 0;
        let mut is_outcome_unknown = false;
        // Why a node could not, which says more than that the last one asked was silent.
        let mut told = None;
        // Answers in a row that were none of nodes, or of such as let nobody in, and the last of all.
        let (mut foreign, mut unmet) = (0, None);
        loop {
            attempt += 1;
            let address = hint.take().or_else(|| self.next_address(&[])).expect("names were looked up");
            let step = self.ask_in_time(address, question, attempt).await;
            let (error, pause) = match step {
                Step::Answer(reply) => return Ok(reply),
                Step::Forward(leader) if forwards < FORWARDS_MAX => {
                    forwards += 1;
                    hint = Some(leader);
                    continue;
                }
                Step::Forward(_) => (Error::new(ErrorKind::Unavailable, "the nodes point at each other"), None),
                Step::Next { error, pause, may_have_run } => {
                    is_outcome_unknown |= may_have_run && question.sort != Sort::Look;
                    foreign = 0;
                    (error, pause)
                }
                // Wherever one asks there is something else, and waiting makes no node of it.
                Step::Foreign(error) if foreign + 1 >= self.node_count() => {
                    return Err(told.unwrap_or(error).with_unknown_outcome(is_outcome_unknown));
                }
                Step::Foreign(error) => {
                    foreign += 1;
                    // One node's word that somebody may not come in is not all nodes'.
                    let error = Error::new(ErrorKind::Unreachable, error.message());
                    unmet = Some(error.clone());
                    (error, None)
                }
                Step::Fail(error) => return Err(error.with_unknown_outcome(is_outcome_unknown)),
            };
            forwards = 0;
            if is_outcome_unknown && question.sort == Sort::Once {
                return Err(error.with_unknown_outcome(true));
            }
            // A lap over all nodes without a pause; then ever longer ones.
            let nodes = self.node_count() as u32;
            let pause = pause.or_else(|| (attempt - paused_at >= nodes).then(|| self.pause(attempt / nodes)));
            let pause = pause.unwrap_or_default();
            let is_silent = is_silence(&error);
            if now() + pause >= question.deadline || self.pool.is_released() {
                let told = told.or(unmet).filter(|_| is_silent);
                return Err(told.unwrap_or(error).with_unknown_outcome(is_outcome_unknown));
            }
            if !is_silent {
                told = Some(error);
            }
            if !pause.is_zero() {
                paused_at = attempt;
                sleep(pause).await;
                self.look_up_again(attempt / nodes).await;
            }
        }
    }

    /// Asks the node at `address`. If that takes long and the question changes nothing, another one is asked as well, and where one of the
    /// two knows nothing the next one, each node once and two at a time. The first answer counts, or the first word on who has it.
    async fn ask_in_time(&self, address: Address, question: Question<'_>, attempt: u32) -> Step {
        let mut open = Box::pin(self.ask_one(address, question, attempt));
        if question.sort != Sort::Look {
            return open.await;
        }
        tokio::select! {
            biased;
            step = &mut open => return step,
            () = sleep(ASKED_ALONE_MAX.min(question.patience / PATIENCE_PARTS)) => {}
        }
        // Who is asked now and silent so far, who was asked in all, and what those said who know nothing.
        let (mut silent, mut asked, mut said) = (address, vec![address], None);
        while now() < question.deadline
            && let Some(other) = self.next_address(&asked)
        {
            asked.push(other);
            let mut second = Box::pin(self.ask_one(other, question, attempt));
            let (step, from) = tokio::select! {
                biased;
                step = &mut open => {
                    open = second;
                    (step, std::mem::replace(&mut silent, other))
                }
                step = &mut second => (step, other),
            };
            match step {
                Step::Next { .. } | Step::Foreign(_) => said = Some(step.or(said)),
                // Who is named is asked already.
                Step::Forward(leader) if leader == silent => {}
                Step::Answer(_) | Step::Forward(_) | Step::Fail(_) => {
                    if from != address {
                        self.ask_next(from);
                    }
                    return step;
                }
            }
        }
        open.await.or(said)
    }

    /// The next question begins at `address`: who has just answered, and not who has been silent.
    fn ask_next(&self, address: Address) {
        let mut nodes = lock(&self.nodes);
        let count = nodes.addresses.len();
        if let Some(index) = nodes.addresses.iter().position(|it| *it == address) {
            nodes.turn = (index + count - 1) % count;
        }
    }

    async fn ask_one(&self, address: Address, question: Question<'_>, attempt: u32) -> Step {
        let deadline = question.deadline.min(now() + question.patience);
        let header = Header {
            app_id: -1,
            partition_index: -1,
            timeout_ms: millis(deadline - now()) as i32,
            extension: Some(Extension {
                attempt: Some(attempt as i32),
                deadline_ms: Some(millis(question.deadline.saturating_duration_since(now()))),
                ..Extension::default()
            }),
            ..Header::default()
        };
        let outgoing = Outgoing { header: &header, body: question.body, now: now(), deadline, give_up_at: deadline };
        let reply = match self.pool.submit(address, &outgoing) {
            Ok(waiting) => waiting.await,
            Err(lost) => Err(lost),
        };
        match reply {
            Ok(frame) => judge(frame.reply),
            // A node may not have heard of a new password yet, or have other authorities; where all say so, it is wrong.
            Err(Lost::Disbelieved { what, is_own: true }) => Step::Foreign(Error::new(ErrorKind::NotAllowed, what)),
            Err(lost @ (Lost::Foreign(_) | Lost::LoginRefused(_) | Lost::Disbelieved { .. })) => {
                Step::Foreign(lost_error(&lost))
            }
            Err(lost) => Step::Next { error: lost_error(&lost), pause: None, may_have_run: lost.may_have_run() },
        }
    }

    /// A client that was made without connecting may know nothing but names.
    async fn look_up_first(&self, deadline: Instant) -> Result<()> {
        while lock(&self.nodes).addresses.is_empty() {
            match resolve(&self.names, LOOK_UP_MAX).await {
                Ok(found) => self.note_nodes(found.into_iter()),
                Err(error) if now() + LOOK_UP_PAUSE >= deadline || self.pool.is_released() => return Err(error),
                Err(_) => sleep(LOOK_UP_PAUSE).await,
            }
        }
        Ok(())
    }

    /// What names stand for may have changed if no node answers at what they stood for: asks again, lap by lap less often.
    async fn look_up_again(&self, lap: u32) {
        if !lap.is_power_of_two() || self.names.is_empty() {
            return;
        }
        let found = resolve(&self.names, LOOK_UP_MAX).await;
        self.note_nodes(found.into_iter().flatten());
    }

    pub(crate) fn node_count(&self) -> usize {
        lock(&self.nodes).addresses.len().max(1)
    }

    /// As it is, for seeds that were given as `names`.
    pub(crate) fn with_names(mut self, mut names: Vec<String>) -> Self {
        names.retain(|name| name.parse::<Address>().is_err());
        self.names = names;
        self
    }

    /// The known addresses that are not among `asked` in turn, those that could not be reached a moment ago last; `None` if there is none.
    fn next_address(&self, asked: &[Address]) -> Option<Address> {
        let mut nodes = lock(&self.nodes);
        let count = nodes.addresses.len();
        let mut turns = (1..=count)
            .map(|step| (nodes.turn + step) % count)
            .filter(|turn| !asked.contains(&nodes.addresses[*turn]))
            .peekable();
        let first = *turns.peek()?;
        let turn = turns.find(|turn| !self.pool.is_resting(nodes.addresses[*turn])).unwrap_or(first);
        nodes.turn = turn;
        Some(nodes.addresses[turn])
    }

    fn pause(&self, lap: u32) -> Duration {
        let whole = Duration::from_millis(10) * (1 << lap.min(6));
        whole / 2 + Duration::from_micros(lock(&self.random).below(whole.as_micros() as u64 / 2))
    }
}

/// An operation under way.
pub(crate) struct UnderWay<'a>(&'a Cluster);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What one node's reply to a question means.
enum Step {
    Answer(Reply),
    /// Another node is to be asked.
    Forward(Address),
    Next {
        error: Error,
        pause: Option<Duration>,
        may_have_run: bool,
    },
    /// No node answered.
    Foreign(Error),
    Fail(Error),
}

impl Step {
    /// The word of one node, or what others have `said` where that is more. That a node was silent is little, and what is no node says
    /// nothing: it may not end the question while there is a node.
    fn or(self, said: Option<Self>) -> Self {
        let weight = |step: &Self| match step {
            Self::Foreign(_) => 0,
            Self::Next { error, .. } if is_silence(error) => 1,
            Self::Next { .. } => 2,
            Self::Answer(_) | Self::Forward(_) | Self::Fail(_) => 3,
        };
        let (more, less) = match said {
            Some(said) if weight(&said) > weight(&self) => (said, Some(self)),
            said => (self, said),
        };
        match (more, less) {
            (Self::Next { error, pause, may_have_run }, Some(Self::Foreign(other))) if is_silence(&error) => {
                let both = format!("{}; and {}", error.message(), other.message());
                Self::Next { error: error.saying(both), pause, may_have_run }
            }
            (more, _) => more,
        }
    }
}

/// Whether a node said nothing at all.
fn is_silence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Timeout)
}

fn judge(reply: Reply) -> Step {
    if let Reply::Failed(failure) = &reply {
        if let Some(leader) = failure.detail.as_ref().and_then(|detail| detail.leader.parse().ok()) {
            return Step::Forward(leader);
        }
        return refused(&refusal_of(failure));
    }
    if let Reply::QueryConfig(answer) = &reply
        && answer.err == ErrorName::ForwardToOthers
        && let Some(leader) = answer.partitions.first().and_then(|partition| partition.primary.socket())
    {
        return Step::Forward(leader.into());
    }
    let Some((name, hint)) = error_of(&reply) else { return Step::Answer(reply) };
    match name {
        ErrorName::Ok => Step::Answer(reply),
        ErrorName::ForwardToOthers => refused(&Refusal::NotLeader { leader: None }),
        ErrorName::ServiceNotActive => refused(&Refusal::NotReady("the node is starting".to_owned())),
        name => {
            let refusal = refusal_of_name(name);
            match hint {
                Some(hint) => match refused(&refusal) {
                    Step::Fail(error) => Step::Fail(Error::new(error.kind(), hint)),
                    Step::Next { error, pause, may_have_run } => {
                        Step::Next { error: Error::new(error.kind(), hint), pause, may_have_run }
                    }
                    other => other,
                },
                None => refused(&refusal),
            }
        }
    }
}

/// The `err` of a metadata reply, with its explanation if it has one.
fn error_of(reply: &Reply) -> Option<(ErrorName, Option<String>)> {
    let some = |text: &hedgerow_wire::Text| (!text.is_empty()).then(|| text.to_string());
    Some(match reply {
        Reply::QueryConfig(reply) => (reply.err, None),
        Reply::CreateTable(reply) => (reply.err, None),
        Reply::DropTable(reply) => (reply.err, None),
        Reply::RecallTable(reply) => (reply.err, None),
        Reply::ListTables(reply) => (reply.err, reply.hint.as_ref().and_then(some)),
        Reply::ListNodes(reply) => (reply.err, None),
        Reply::ClusterInfo(reply) => (reply.err, None),
        Reply::UpdateEnvs(reply) => (reply.err, some(&reply.hint_message)),
        Reply::HedgerowAdmin(reply) => (reply.err, some(&reply.text)),
        Reply::Failed(_)
        | Reply::Get(_)
        | Reply::Update(_)
        | Reply::MultiRemove(_)
        | Reply::Incr(_)
        | Reply::Check(_)
        | Reply::MultiGet(_)
        | Reply::BatchGet(_)
        | Reply::Count(_)
        | Reply::Ttl(_)
        | Reply::Scan(_)
        | Reply::Journal(_)
        | Reply::CommandLine(_)
        | Reply::Negotiation(_) => return None,
    })
}

fn refused(refusal: &Refusal) -> Step {
    let kind = ErrorKind::from(refusal);
    let error = Error::new(kind, refusal.to_string());
    // A table that is still being created when its time is over is there.
    let may_have_run = meaning(refusal).effect == Effect::Unknown || *refusal == Refusal::Creating;
    if kind == ErrorKind::Unavailable || may_have_run {
        Step::Next { error, pause: None, may_have_run }
    } else {
        Step::Fail(error)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test")]

    use super::*;
    use bytes::{Buf as _, BytesMut};
    use hedgerow_wire::message::{ListNodes, ListNodesReply};
    use hedgerow_wire::{decode_request, encode_reply, frame_size};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// Answers one question with an empty list of nodes.
    async fn answer(mut stream: TcpStream) {
        let mut buffer = BytesMut::new();
        loop {
            let size = frame_size(&buffer).expect("a frame").filter(|size| *size <= buffer.remaining());
            let Some(size) = size else {
                assert!(stream.read_buf(&mut buffer).await.expect("bytes") > 0, "the connection ended");
                continue;
            };
            let request = decode_request(buffer.split_to(size).freeze()).expect("a request");
            let (mut out, reply) = (BytesMut::new(), Reply::ListNodes(ListNodesReply::default()));
            encode_reply(&mut out, request.body.method(), request.sequence_id, &reply, None);
            return stream.write_all(&out).await.expect("it is read");
        }
    }

    #[test]
    fn addresses_that_nobody_tells_of_any_more_make_room_for_new_ones() {
        let address = |number: usize| Address::from(([10, 0, (number >> 8) as u8, number as u8], 1));
        let mut nodes = Nodes::new(vec![address(0)], 0);
        nodes.note((1..ADDRESSES_MAX).map(address));
        nodes.note([address(1), address(7)].into_iter());
        // As many again, a few at a time: the seed stays, and the two that were told of since are the last to go.
        for first in (ADDRESSES_MAX..2 * ADDRESSES_MAX - 3).step_by(5) {
            nodes.note((first..(first + 5).min(2 * ADDRESSES_MAX - 3)).map(address));
        }
        assert_eq!((nodes.addresses.len(), nodes.told.len()), (ADDRESSES_MAX, ADDRESSES_MAX));
        let is_known = |number: usize| nodes.addresses.contains(&address(number));
        assert!([0, 1, 7, ADDRESSES_MAX, 2 * ADDRESSES_MAX - 4].into_iter().all(is_known));
        assert!(!is_known(2) && !is_known(ADDRESSES_MAX - 1));
        // A cluster of more nodes than that: those that are known stay.
        nodes.note((5_000..5_000 + 2 * ADDRESSES_MAX).map(address));
        assert_eq!(nodes.addresses.len(), ADDRESSES_MAX);
        assert!(nodes.addresses.contains(&address(0)));
    }

    /// A name stands for another address by now: nobody is at the one that was found at first.
    #[tokio::test]
    async fn names_are_looked_up_again_when_nobody_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let name = format!("localhost:{}", listener.local_addr().expect("an address").port());
        // A port that is nobody's as long as the socket is held.
        let nobody = tokio::net::TcpSocket::new_v4().expect("a socket");
        nobody.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let old = nobody.local_addr().expect("an address");
        let cluster = Cluster::new(vec![old], ClientOptions::default()).with_names(vec![name]);
        let question = Question {
            body: &Body::ListNodes(ListNodes::default()),
            deadline: now() + Duration::from_secs(20),
            patience: ANY_NODE_PATIENCE,
            sort: Sort::Look,
        };
        let serve = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            answer(stream).await;
            std::future::pending::<()>().await;
        };
        let reply = tokio::select! {
            reply = cluster.ask(question) => reply,
            () = serve => unreachable!("it serves for ever"),
        };
        assert!(matches!(reply, Ok(Reply::ListNodes(_))), "{reply:?}");
        assert!(cluster.node_count() > 1);
        drop(nobody);
    }
}
