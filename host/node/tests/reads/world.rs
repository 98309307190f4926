//! A cluster in memory with a clock of its own: real nodes, logs and storage, links with a delay that can be cut.

use bytes::{Bytes, BytesMut};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, Now, read_file};
use hedgerow_node::{Config, ConnectionId, Event, Job, JobContext, JobDone, JobResult, LogId, Node, peer};
use hedgerow_storage::{Debt, Engines, MemoryEngines};
use hedgerow_types::key::{full_key, partition_hash, partition_of_hash};
use hedgerow_types::{GroupId, Instant, NodeId, ReadLevel, Refusal, ReplicaId};
use hedgerow_wal::{Begun, Failed, Round, Rounds};
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::message::{AdminCommand, Put, QueryConfig, QueryConfigReply};
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply, ReplyExtension, Text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub const MS: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(50);

/// Clients on connections from this one on number their requests themselves: their replies are in [`World::replies`] alone.
pub const FOREIGN: ConnectionId = ConnectionId(1_000_000);

pub struct Machine {
    pub node: Node,
    pub config: Config,
    pub disk: SimDisk,
    logs: Vec<Rounds>,
    /// Those that failed.
    failed_logs: BTreeSet<LogId>,
    pub jobs: JobContext,
    pub next_tick: Instant,
    /// Jobs of these kinds are kept until they are let go.
    pub held: Vec<Job>,
    pub holds: fn(&Job) -> bool,
    /// Checkpoints that were begun.
    pub checkpoints: usize,
    /// What compactions have still to do; the engine in memory has none.
    pub debt: Debt,
    /// The disk of the log stands still.
    pub is_log_stuck: bool,
    /// A log waits for a segment.
    pub is_log_stalled: bool,
    /// A write to the log takes so long; what comes meanwhile goes into the next one.
    pub log_takes: Duration,
    /// The most bytes of replies that one turn gave.
    pub turn_bytes_max: usize,
    log_is_done_at: Option<Instant>,
}

pub struct World {
    pub now: Instant,
    pub machines: BTreeMap<NodeId, Machine>,
    /// The node that may end by itself, and what it says then.
    pub may_end: Option<NodeId>,
    pub end: Option<String>,
    /// Links that lose everything, one way.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    pub delay: Duration,
    /// What becomes of what a node sends to another one.
    pub meddler: Option<Box<dyn Meddler>>,
    /// Added to everything that a node sends, to clients too.
    pub late: BTreeMap<NodeId, Duration>,
    /// How many seconds nodes' wall clocks are ahead of the true time.
    pub wall_ahead: BTreeMap<NodeId, i64>,
    on_the_way: BTreeMap<(Instant, u64), (NodeId, NodeId, BytesMut)>,
    last: u64,
    /// By the number of the request: when it was answered, and how.
    answers: BTreeMap<i32, (Instant, ReplyFrame)>,
    /// Every request that has ever been answered: none is twice.
    answered: BTreeSet<i32>,
    /// Every reply as its client saw it: over which connection of which node, and its bytes.
    pub replies: Vec<(NodeId, ConnectionId, Bytes)>,
    last_request: i32,
}

/// Changes what is on its way.
pub trait Meddler {
    /// What is delivered in the place of `frames`, which a node sends to another one.
    fn meddle(&mut self, way: (NodeId, NodeId), frames: BytesMut) -> BytesMut;
}

/// How a read is asked for.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub extension: Option<Extension>,
    pub is_backup: bool,
}

impl Ask {
    /// From any replica, at `level`.
    pub fn anywhere(level: ReadLevel) -> Self {
        let mut extension = Extension { any_replica: true, ..Extension::default() };
        extension.set_read_level(level);
        Self { extension: Some(extension), is_backup: false }
    }

    pub fn with_token(mut self, token: &[u8]) -> Self {
        let extension = self.extension.get_or_insert_default();
        extension.session_token = Some(Bytes::copy_from_slice(token));
        self
    }

    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.extension.get_or_insert_default().deadline_ms = Some(deadline.as_millis() as i64);
        self
    }
}

pub fn bounded(ms: u64) -> ReadLevel {
    ReadLevel::Bounded(Duration::from_millis(ms))
}

impl Machine {
    fn drive(&mut self, now: Now) {
        let waiting = |node: &mut Node| node.outbox().clients.values().map(|it| it.len()).sum::<usize>();
        let before = waiting(&mut self.node);
        self.node.drive(now);
        self.turn_bytes_max = self.turn_bytes_max.max(waiting(&mut self.node) - before);
    }

    fn run_job(&self, job: Job) -> JobDone {
        let mut done = job.run(&self.jobs);
        if let Ok(JobResult::Flushed { debt, .. } | JobResult::Debt(debt)) = &mut done.result {
            *debt = self.debt;
        }
        done
    }

    /// What waits for the disk of the log is durable.
    fn finish_log(&mut self, now: Now) {
        (0..self.logs.len()).map(LogId).for_each(|log| self.commit(log, now));
    }

    /// Commits what waits for one log, unless that waits for a segment.
    fn commit(&mut self, log: LogId, now: Now) {
        if self.failed_logs.contains(&log) {
            return;
        }
        let rounds = &mut self.logs[log.0];
        loop {
            match rounds.begin().unwrap() {
                Begun::Nothing => break,
                Begun::Written => {
                    let tickets = rounds.finish().unwrap();
                    self.node.handle(Event::Round(log, Round::Done { tickets, synced: rounds.log().synced() }), now);
                    rounds.tend().unwrap();
                    rounds.mark(now.instant);
                }
                Begun::Stalled(reason) => {
                    self.is_log_stalled = true;
                    return self.node.handle(Event::Round(log, Round::Stalled { reason }), now);
                }
            }
        }
        self.is_log_stalled = false;
        self.node.handle(Event::Round(log, Round::Room { left: rounds.log().left() }), now);
    }

    /// Logs whose disk refuses them room are tended although nothing is written.
    fn tend_logs(&mut self, now: Now) {
        for (id, rounds) in (0..).map(LogId).zip(&mut self.logs) {
            if rounds.log().left().is_some() && !rounds.has_waiting() {
                rounds.tend().unwrap();
                self.node.handle(Event::Round(id, Round::Room { left: rounds.log().left() }), now);
            }
        }
    }

    /// What is left of the first log once the disk refuses it room.
    pub fn log_left(&self) -> Option<u64> {
        self.logs[0].log().left()
    }
}

impl World {
    pub fn new(count: u16) -> Self {
        Self::configured(count, |_| {})
    }

    pub fn configured(count: u16, configure: impl Fn(&mut Config)) -> Self {
        let peers: BTreeMap<NodeId, String> =
            (1..=count).map(|id| (NodeId(id), format!("127.0.0.{id}:34601"))).collect();
        let mut world = Self {
            now: Instant(1_000_000_000),
            machines: BTreeMap::new(),
            may_end: None,
            end: None,
            cut: BTreeSet::new(),
            delay: Duration::from_micros(50),
            meddler: None,
            late: BTreeMap::new(),
            wall_ahead: BTreeMap::new(),
            on_the_way: BTreeMap::new(),
            last: 0,
            answers: BTreeMap::new(),
            answered: BTreeSet::new(),
            replies: Vec::new(),
            last_request: 0,
        };
        for node in peers.keys() {
            let data = vec![PathBuf::from("/data")];
            let mut config = Config::new(*node, peers.clone(), data, u64::from(node.0));
            config.wal.segment_size = 1 << 20;
            configure(&mut config);
            world.machines.insert(*node, start(config, SimDisk::new(), world.now));
        }
        world.run_until(Duration::from_secs(60), World::is_serving);
        world
    }

    pub fn restart(&mut self, node: NodeId) {
        let Machine { mut config, disk, .. } = self.machines.remove(&node).unwrap();
        config.seed += 1_000;
        disk.kill_process();
        self.machines.insert(node, start_at(config, disk, self.clock_of(node)));
        self.settle(node);
    }

    /// Starts the node anew, with an empty disk.
    pub fn wipe(&mut self, node: NodeId) {
        let Machine { mut config, .. } = self.machines.remove(&node).unwrap();
        config.seed += 1_000;
        self.machines.insert(node, start_at(config, SimDisk::new(), self.clock_of(node)));
        self.settle(node);
    }

    fn is_serving(&mut self) -> bool {
        self.machines.values().all(|machine| machine.node.is_serving() && machine.node.knows_all_leaders())
    }

    /// A node hears of something.
    pub fn handle(&mut self, node: NodeId, event: Event) {
        let now = self.clock();
        self.machines.get_mut(&node).unwrap().node.handle(event, now);
    }

    pub fn clock(&self) -> Now {
        right(self.now)
    }

    /// What the clocks of `node` show.
    pub fn clock_of(&self, node: NodeId) -> Now {
        let ahead = self.wall_ahead.get(&node).copied().unwrap_or_default();
        let now = self.clock();
        Now { unix_micros: now.unix_micros.saturating_add_signed(ahead * 1_000_000), ..now }
    }

    /// Lets time pass.
    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end) {}
        self.now = end;
    }

    /// Lets time pass until `is_done`, at most so long.
    pub fn run_until(&mut self, most: Duration, mut is_done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + most;
        while !is_done(self) {
            assert!(self.step(end), "it did not come within {most:?}");
        }
    }

    /// The next thing that happens before `end`, if anything does.
    fn step(&mut self, end: Instant) -> bool {
        let next = |machine: &Machine| {
            let times = [Some(machine.next_tick), machine.node.wakes_at(), machine.log_is_done_at];
            times.into_iter().flatten().min().unwrap()
        };
        let machine = self.machines.iter().map(|(id, machine)| (next(machine), *id)).min().unwrap();
        let message = self.on_the_way.keys().next().copied();
        if let Some((at, number)) = message.filter(|(at, _)| *at <= machine.0) {
            if at > end {
                return false;
            }
            self.now = self.now.max(at);
            let (from, to, mut bytes) = self.on_the_way.remove(&(at, number)).unwrap();
            let now = self.clock_of(to);
            // A frame that was meddled with may have named another receiver of its answer.
            let Some(Machine { node, .. }) = self.machines.get_mut(&to) else { return true };
            while let Some(frame) = peer::take(&mut bytes).unwrap() {
                node.handle(Event::Peer(from, frame), now);
            }
            self.settle(to);
            return true;
        }
        let (at, id) = machine;
        if at > end {
            return false;
        }
        self.now = self.now.max(at);
        let now = self.clock_of(id);
        let machine = self.machines.get_mut(&id).unwrap();
        if machine.next_tick <= self.now {
            machine.next_tick = self.now + TICK;
            machine.node.handle(Event::Tick, now);
            if machine.is_log_stalled {
                machine.finish_log(now);
            }
            machine.tend_logs(now);
        }
        if machine.node.wakes_at().is_some_and(|at| at <= self.now) {
            machine.node.handle(Event::Wake, now);
        }
        if machine.log_is_done_at.take_if(|at| *at <= self.now).is_some() {
            machine.finish_log(now);
        }
        self.settle(id);
        true
    }

    /// Drives the node and carries out what it wants.
    pub fn settle(&mut self, id: NodeId) {
        let now = self.clock_of(id);
        let machine = self.machines.get_mut(&id).unwrap();
        loop {
            machine.drive(now);
            while machine.node.has_queued() {
                machine.drive(now);
            }
            let outbox = std::mem::take(machine.node.outbox());
            if self.may_end == Some(id) && outbox.failure.is_some() {
                self.end = outbox.failure;
                machine.disk.kill_process();
                self.machines.remove(&id);
                return;
            }
            assert_eq!(outbox.failure, None);
            if outbox.is_empty() {
                return;
            }
            for (log, submission) in outbox.submissions {
                machine.logs[log.0].submit(submission);
                if machine.is_log_stuck {
                    continue;
                }
                if !machine.log_takes.is_zero() {
                    machine.log_is_done_at.get_or_insert(self.now + machine.log_takes);
                    continue;
                }
                machine.commit(log, now);
            }
            for job in outbox.jobs {
                machine.checkpoints += usize::from(matches!(job, Job::Checkpoint { .. }));
                if (machine.holds)(&job) {
                    machine.held.push(job);
                } else {
                    let done = machine.run_job(job);
                    machine.node.handle(Event::Job(done), now);
                }
            }
            for (to, bytes) in outbox.peers.into_iter().chain(outbox.bulk) {
                if self.cut.contains(&(id, to)) {
                    continue;
                }
                let bytes = match &mut self.meddler {
                    Some(meddler) => meddler.meddle((id, to), bytes),
                    None => bytes,
                };
                self.last += 1;
                let late = self.late.get(&id).copied().unwrap_or_default();
                self.on_the_way.insert((self.now + self.delay + late, self.last), (id, to, bytes));
            }
            for (connection, mut replies) in outbox.clients {
                while let Some(size) = call::reply_frame_size(&replies).unwrap() {
                    let bytes = replies.split_to(size).freeze();
                    self.replies.push((id, connection, bytes.clone()));
                    let frame = call::decode_reply(bytes).unwrap();
                    if connection >= FOREIGN {
                        continue;
                    }
                    assert!(self.answered.insert(frame.sequence_id), "answered twice: {frame:?}");
                    let late = self.late.get(&id).copied().unwrap_or_default();
                    self.answers.insert(frame.sequence_id, (self.now + late, frame));
                }
            }
        }
    }

    /// Log `log` of a node fails and takes nothing more.
    pub fn fail_log(&mut self, id: NodeId, log: LogId) {
        let now = self.clock();
        let machine = self.machines.get_mut(&id).unwrap();
        let source = Arc::new(std::io::Error::from_raw_os_error(5));
        machine.failed_logs.insert(log);
        let reason = Failed { dir: machine.config.data[log.0].join("log"), operation: "sync", source };
        machine.node.handle(Event::Round(log, Round::Failed { reason }), now);
        self.settle(id);
    }

    /// Runs the jobs that were held.
    pub fn let_go(&mut self, id: NodeId) {
        self.finish_held(id);
        self.settle(id);
    }

    /// The same, but the node is not driven: something else happens in the same batch.
    pub fn finish_held(&mut self, id: NodeId) {
        let done = self.run_held(id);
        self.take_done(id, done);
    }

    /// Runs the jobs that were held; the node does not hear of it yet.
    pub fn run_held(&mut self, id: NodeId) -> Vec<JobDone> {
        let machine = self.machines.get_mut(&id).unwrap();
        machine.holds = |_| false;
        let held = std::mem::take(&mut machine.held);
        held.into_iter().map(|job| machine.run_job(job)).collect()
    }

    /// The node hears of jobs that have ended.
    pub fn take_done(&mut self, id: NodeId, done: Vec<JobDone>) {
        let now = self.clock_of(id);
        let node = &mut self.machines.get_mut(&id).unwrap().node;
        done.into_iter().for_each(|done| node.handle(Event::Job(done), now));
    }

    /// The disk of the log goes on.
    pub fn unstick(&mut self, id: NodeId) {
        let now = self.clock_of(id);
        let machine = self.machines.get_mut(&id).unwrap();
        machine.is_log_stuck = false;
        machine.finish_log(now);
        self.settle(id);
    }

    /// Sends a request; its number. The node takes it at once and is driven if `is_driven`.
    pub fn send(&mut self, to: NodeId, header: &Header, body: &Body) -> i32 {
        let number = self.put(to, header, body);
        self.settle(to);
        number
    }

    /// Like `send`, but the node is not driven: other requests come in the same batch.
    pub fn put(&mut self, to: NodeId, header: &Header, body: &Body) -> i32 {
        self.put_on(ConnectionId(7), to, header, body)
    }

    /// The same over a connection of the caller's choice.
    pub fn put_on(&mut self, connection: ConnectionId, to: NodeId, header: &Header, body: &Body) -> i32 {
        self.last_request += 1;
        let mut frame = BytesMut::new();
        call::encode_request(&mut frame, header, self.last_request, body);
        let now = self.clock_of(to);
        let node = &mut self.machines.get_mut(&to).unwrap().node;
        node.handle(Event::Client(connection, frame.freeze()), now);
        self.last_request
    }

    /// The answer to request `number`, if there is one, and when it came.
    pub fn answer(&mut self, number: i32) -> Option<(Instant, ReplyFrame)> {
        self.answers.remove(&number)
    }

    /// Whether request `number` is answered.
    pub fn has_answer(&self, number: i32) -> bool {
        self.answers.contains_key(&number)
    }

    pub fn wait(&mut self, number: i32) -> (Instant, ReplyFrame) {
        self.run_until(Duration::from_secs(30), |world| world.answers.contains_key(&number));
        self.answer(number).unwrap()
    }

    pub fn admin(&mut self, to: NodeId, command: &str, argument: &Value) -> Result<Value, String> {
        let number = self.send_admin(to, command, argument);
        self.wait_for_admin(number)
    }

    pub fn send_admin(&mut self, to: NodeId, command: &str, argument: &Value) -> i32 {
        let header = Header { extension: Some(Extension::default()), ..Header::default() };
        let body = AdminCommand { command: Text::from(command), argument: Text::from(argument.to_string()) };
        self.send(to, &header, &Body::HedgerowAdmin(body))
    }

    pub fn wait_for_admin(&mut self, number: i32) -> Result<Value, String> {
        match self.wait(number).1.reply {
            Reply::HedgerowAdmin(reply) => Ok(serde_json::from_str(reply.text.as_str()).unwrap()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Creates a hash table with three voters and gives its id.
    pub fn create_table(&mut self, partitions: u32, options: &Value) -> i32 {
        self.create_table_of(3, partitions, options)
    }

    pub fn create_table_of(&mut self, replicas: u32, partitions: u32, options: &Value) -> i32 {
        let argument =
            json!({ "name": "t", "partition_count": partitions, "replica_count": replicas, "options": options });
        let created = self.admin(NodeId(1), "create_table", &argument).unwrap();
        self.run(2_000 * MS);
        created["created"].as_i64().unwrap() as i32
    }

    pub fn set_option(&mut self, key: &str, value: &str) {
        self.admin(NodeId(1), "set_options", &json!({ "name": "t", "options": { key: value } })).unwrap();
        self.run(200 * MS);
    }

    /// What the table's map is by the first node, or by the one that it names.
    pub fn map(&mut self, is_extended: bool) -> QueryConfigReply {
        let map = self.map_of(NodeId(1), is_extended);
        match map.partitions.first().filter(|_| map.err == ErrorName::ForwardToOthers) {
            Some(first) => self.map_of(node_of(&first.primary), is_extended),
            None => map,
        }
    }

    pub fn map_of(&mut self, node: NodeId, is_extended: bool) -> QueryConfigReply {
        let header = Header { extension: is_extended.then(Extension::default), ..Header::default() };
        let query = QueryConfig { app_name: Text::from("t"), partition_indices: Vec::new() };
        let number = self.send(node, &header, &Body::QueryConfig(query));
        match self.wait(number).1.reply {
            Reply::QueryConfig(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Leader, followers and learners of a partition.
    pub fn replicas(&mut self, partition: i32) -> Places {
        let map = self.map(true);
        let config = map.partitions.iter().find(|it| it.pid.partition_index == partition).unwrap();
        Places {
            leader: node_of(&config.primary),
            followers: config.secondaries.iter().map(node_of).collect(),
            learners: config.learners.iter().flat_map(|it| it.iter()).map(node_of).collect(),
        }
    }

    pub fn cut_off(&mut self, node: NodeId) {
        let others: Vec<NodeId> = self.machines.keys().copied().filter(|other| *other != node).collect();
        self.cut.extend(others.into_iter().flat_map(|other| [(node, other), (other, node)]));
    }

    /// Writes, and gives the index.
    pub fn write(&mut self, key: &Key, to: NodeId, value: &str) -> u64 {
        let number = self.send_write(key, to, value);
        let frame = self.wait(number).1;
        assert!(matches!(&frame.reply, Reply::Update(update) if update.error == 0), "{frame:?}");
        frame.extension.unwrap().index
    }

    pub fn send_write(&mut self, key: &Key, to: NodeId, value: &str) -> i32 {
        let put = Put { key: key.full(), value: Bytes::copy_from_slice(value.as_bytes()), expire_ts_seconds: 0 };
        let header = key.header(&Ask { extension: Some(Extension::default()), is_backup: false });
        self.send(to, &header, &Body::Put(put))
    }

    pub fn send_get(&mut self, key: &Key, to: NodeId, ask: &Ask) -> i32 {
        self.send(to, &key.header(ask), &Body::Get(key.full()))
    }

    /// Reads; the value and what the reply says of itself.
    pub fn get(&mut self, key: &Key, to: NodeId, ask: &Ask) -> Result<(String, ReplyExtension), Refused> {
        let number = self.send_get(key, to, ask);
        let since = self.now;
        let (at, frame) = self.wait(number);
        value_of(frame).map_err(|(refusal, name)| Refused { refusal, name, after: at.since(since) })
    }

    /// What a node tells of its reads.
    pub fn counts(&mut self, node: NodeId) -> Value {
        self.admin(node, "reads", &json!({})).unwrap()
    }
}

/// Where a partition's replicas are.
#[derive(Debug)]
pub struct Places {
    pub leader: NodeId,
    pub followers: Vec<NodeId>,
    pub learners: Vec<NodeId>,
}

#[derive(Debug)]
pub struct Refused {
    pub refusal: Option<Refusal>,
    pub name: String,
    /// Time from the request to its refusal.
    pub after: Duration,
}

pub fn value_of(frame: ReplyFrame) -> Result<(String, ReplyExtension), (Option<Refusal>, String)> {
    match frame.reply {
        Reply::Get(get) if get.error == 0 => {
            Ok((String::from_utf8(get.value.to_vec()).unwrap(), frame.extension.unwrap_or_default()))
        }
        Reply::Get(get) => Err((None, format!("status {}", get.error))),
        Reply::Failed(failure) => Err((failure.refusal(), failure.name.name().to_owned())),
        other => panic!("{other:?}"),
    }
}

fn node_of(address: &hedgerow_wire::Address) -> NodeId {
    NodeId(u16::from(address.socket().unwrap().ip().octets()[3]))
}

/// A record of a table.
#[derive(Clone, Debug)]
pub struct Key {
    pub table: i32,
    pub partition: i32,
    pub hash_key: String,
}

impl Key {
    pub fn new(table: i32, partitions: u32, hash_key: &str) -> Self {
        let partition = partition_of_hash(partition_hash(hash_key.as_bytes(), b""), partitions) as i32;
        Self { table, partition, hash_key: hash_key.to_owned() }
    }

    pub fn full(&self) -> Bytes {
        full_key(self.hash_key.as_bytes(), b"s")
    }

    pub fn header(&self, ask: &Ask) -> Header {
        Header {
            app_id: self.table,
            partition_index: self.partition,
            timeout_ms: 5_000,
            is_backup: ask.is_backup,
            extension: ask.extension.clone(),
            ..Header::default()
        }
    }
}

/// What the clocks of a node show that are right.
fn right(now: Instant) -> Now {
    Now { instant: now, unix_micros: 1_700_000_000_000_000 + now.0 / 1_000 }
}

pub fn start(config: Config, disk: SimDisk, now: Instant) -> Machine {
    start_at(config, disk, right(now))
}

fn start_at(config: Config, disk: SimDisk, clock: Now) -> Machine {
    let engines = Arc::new(MemoryEngines::new(Arc::new(disk.clone())));
    start_with(config, disk, engines, clock)
}

/// Starts a node on `engines`, whose files are on `disk`.
pub fn start_with(config: Config, disk: SimDisk, engines: Arc<dyn Engines>, clock: Now) -> Machine {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let opened = Node::open(config.clone(), Arc::clone(&shared), Arc::clone(&engines), clock).unwrap();
    let readers = opened.logs.iter().map(hedgerow_wal::Log::reader).collect();
    Machine {
        node: opened.node,
        config,
        disk,
        logs: opened.logs.into_iter().map(Rounds::new).collect(),
        jobs: JobContext { disk: shared, engines, readers },
        next_tick: clock.instant + TICK,
        held: Vec::new(),
        holds: |_| false,
        checkpoints: 0,
        debt: Debt::default(),
        is_log_stuck: false,
        failed_logs: BTreeSet::new(),
        is_log_stalled: false,
        log_takes: Duration::ZERO,
        turn_bytes_max: 0,
        log_is_done_at: None,
    }
}

/// Every file below `directory`, with its content.
pub fn files_of(disk: &SimDisk, directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for name in disk.list(directory).unwrap() {
        let path = directory.join(name);
        if disk.is_dir(&path) {
            files.extend(files_of(disk, &path));
        } else {
            files.insert(path.clone(), read_file(disk, &path).unwrap());
        }
    }
    files
}

/// Which replica of each group runs on `node`.
pub fn running(world: &World, node: NodeId) -> BTreeMap<GroupId, ReplicaId> {
    world.machines[&node].node.replicas_for_inspection().map(|replica| (replica.id, replica.replica)).collect()
}
