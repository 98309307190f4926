//! One machine: its disk and clock, which survive everything, and the process that runs on it, which does not.
//!
//! The process is the real [`hedgerow_node::Node`] with its real logs. What the operating system's host does with threads
//! (log rounds, slow jobs, batches of events) is done here in virtual time.

use crate::answers::Answers;
use crate::clock::{LocalClock, MICROSECOND, draw_rate_error};
use crate::commit::CommittedLog;
use crate::copy::{Copied, PutBack};
use crate::engine::MachineEngines;
use crate::history::Time;
use crate::layouts::Layouts;
use crate::network::Packet;
use crate::scenario::Plan;
use crate::work::{Done, Work};
use bytes::{Bytes, BytesMut};
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, Now};
use hedgerow_node::greeting::Caller;
use hedgerow_node::inspect::ReplicaView;
use hedgerow_node::peer::{Greeting, Malformed, Refused};
use hedgerow_node::{Config, Event, Job, JobContext, LogId, Node, ReplicaKey};
use hedgerow_replication::Role;
use hedgerow_types::log::Entry;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Index, Instant, NodeId};
use hedgerow_wal::Submission;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A machine.
#[derive(Debug)]
pub struct Machine {
    /// Its node's id.
    pub id: NodeId,
    /// Number of its cluster.
    cluster: u8,
    /// Its disk.
    pub disk: SimDisk,
    /// Its clock.
    pub clock: LocalClock,
    /// The layouts of its logs.
    layouts: Layouts,
    /// Counts starts: what was meant for an earlier life is dropped.
    pub life: u64,
    /// What runs, if anything does.
    pub process: Option<Process>,
    /// Whether the process stands still.
    pub is_paused: bool,
    /// Disk times are multiplied by this.
    pub disk_factor: u64,
    /// Those of this data directory alone, if it is set.
    pub slow_directory: Option<usize>,
    /// The process takes up to so long to look at what has arrived.
    pub delay_max: Time,
    /// And up to so long between two turns at the reads that queue.
    pub turn_delay_max: Time,
    /// Into how many shards the node's groups are divided.
    shards: usize,
    /// Time that serving a read takes, in experiments with load.
    pub cost: Cost,
    /// Time that its other work takes.
    pub work: Work,
    /// Until when the process is busy with what it has begun.
    pub busy_until: Time,
    /// When its last turn that took time began, by its own clock.
    turn_began: Instant,
    /// Reads that it has served.
    pub served: u64,
    /// What the process owes its clients.
    pub answers: Answers,
    /// Whether a disk fault has been set, so that the process may fail.
    pub may_fail: bool,
    /// Whether its disk refuses to sync or to write.
    pub is_refusing: bool,
    /// A copy of its disk, and what it was when that was made.
    pub copy: Option<Copied>,
    /// Whether its disk was put back from a copy.
    pub is_copy: bool,
    /// What is to happen then.
    pub put_back: PutBack,
    engines: MachineEngines,
    config: Config,
    random: Random,
}

/// A slow disk makes what is not a log's write so much slower at most.
const JOB_FACTOR_MAX: u64 = 10;

/// So many calls to its disk a process may make at most, in the jobs that it runs, when it is killed.
const CALLS_OF_THE_DYING: u64 = 40;

/// Where every machine listens.
const PORT: u16 = 34_601;

/// What serving a read costs a machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Of each read.
    pub read: Time,
    /// Reads of this partition cost as much as so many.
    pub hot: Option<(u32, u64)>,
}

impl Cost {
    fn of(&self, group: GroupId) -> Time {
        match self.hot {
            Some((partition, factor)) if partition == group.partition => self.read * factor,
            _ => self.read,
        }
    }
}

/// A running node and what its host would hold.
#[derive(Debug)]
pub struct Process {
    /// The node.
    pub node: Node,
    /// What has arrived and not been handled.
    pub inbox: Vec<Input>,
    /// Whether the inbox will be looked at.
    pub is_scheduled: bool,
    /// When, by the machine's clock, the node is to be woken.
    pub wakes_at: Option<Instant>,
    logs: Vec<CommittedLog>,
    context: JobContext,
    jobs: BTreeMap<u64, Job>,
    last_job: u64,
    /// Who is listened to, by the number of the connection.
    callers: BTreeMap<u64, (usize, Caller)>,
    /// Connections that are closed because their dialler is not listened to: its machine, and why.
    pub farewells: Vec<(usize, u64, Refused)>,
    /// Whether it stops because other nodes do not listen to it.
    pub was_refused: bool,
}

/// Something for the node to handle.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are events")]
pub enum Input {
    /// Reads wait for their turn.
    Turn,
    /// The node wanted to be woken then.
    Wake(Instant),
    /// Something came over a connection of another machine.
    Peer(usize, Packet),
    /// The node that was dialled does not listen to this process.
    Refused(NodeId, Refused),
    /// Anything else.
    Event(Event),
}

/// The address of machine `machine` of the first cluster.
pub fn address_of_machine(machine: usize) -> String {
    address_of((0, machine))
}

/// The address of a machine of a cluster.
pub fn address_of(place: (u8, usize)) -> String {
    socket_of(place).to_string()
}

/// That of a machine of the first cluster, as it is dialled.
pub fn socket_of_machine(machine: usize) -> SocketAddr {
    socket_of((0, machine))
}

fn socket_of((cluster, machine): (u8, usize)) -> SocketAddr {
    (Ipv4Addr::new(10, 0, cluster, machine as u8 + 1), PORT).into()
}

/// Whose address this is: the cluster's and the machine's number.
pub fn place_of_socket(address: SocketAddr) -> Option<(u8, usize)> {
    let SocketAddr::V4(address) = address else { return None };
    let [.., cluster, number] = address.ip().octets();
    Some((cluster, usize::from(number).checked_sub(1)?))
}

/// The machine of the first cluster whose address this is.
pub fn machine_of_address(address: &str) -> Option<usize> {
    place_of_socket(address.parse().ok()?).filter(|place| place.0 == 0).map(|place| place.1)
}

/// Data directory `number` of any machine.
pub fn data_directory(number: usize) -> PathBuf {
    PathBuf::from(format!("/data-{number}"))
}

/// The label by which clients prefer machine `machine`.
pub fn label_of(machine: usize) -> (String, String) {
    ("host".to_owned(), format!("m{}", machine + 1))
}

impl Machine {
    /// Machine `index` of `plan`, not running.
    pub fn new(index: usize, plan: &Plan, random: &mut Random) -> Self {
        let node_id = |index: usize| NodeId(index as u16 + 1);
        let peers = (0..plan.machine_count).map(|index| (node_id(index), address_of((plan.cluster, index)))).collect();
        let data = (0..plan.directory_count).map(data_directory).collect();
        let mut config = Config::new(node_id(index), peers, data, 0);
        config.labels = BTreeMap::from([label_of(index)]);
        config.replication = plan.replication.clone();
        config.wal.segment_size = plan.segment_size;
        config.wal.segments_max = 3;
        config.wal.recycle_max = 2;
        config.flush_replica_bytes = plan.flush_bytes;
        config.session_bytes_max = plan.session_bytes_max;
        // A few entries, so that replicas often start with more of them than that.
        config.replay_bytes_max = 2 << 10;
        // So little that replicas which were away also learn from checkpoints.
        config.log_retained_bytes = 2 * plan.flush_bytes;
        config.reads_per_turn = plan.reads_per_turn;
        config.apply_bytes_per_turn = plan.apply_bytes_per_turn;
        config.reads_at_once.rows = plan.aside.rows;
        (config.workers, config.shared_rows) = (plan.aside.workers, 1);
        config.shards = plan.shards;
        if let Some(rate) = plan.snapshot_rate {
            config.snapshot_bytes_per_second = rate;
        }
        let error_ppm = draw_rate_error(plan.clock_error_ppm, random);
        Self {
            id: node_id(index),
            cluster: plan.cluster,
            disk: SimDisk::new(),
            clock: LocalClock::new(random.below(1 << 40), error_ppm),
            life: 0,
            process: None,
            is_paused: false,
            disk_factor: 1,
            slow_directory: None,
            delay_max: 0,
            turn_delay_max: plan.turn_delay_max,
            shards: plan.shards,
            cost: Cost::default(),
            work: plan.work,
            busy_until: 0,
            turn_began: Instant::default(),
            served: 0,
            answers: Answers::new(plan.replication.refusal(), plan.table_reads),
            may_fail: false,
            is_refusing: false,
            copy: None,
            is_copy: false,
            put_back: PutBack::default(),
            layouts: Layouts::of_seed(plan.layout_seed, index, plan.directory_count),
            engines: MachineEngines::new(plan.engine, plan.aside.cold_interval),
            config,
            random: random.fork(),
        }
    }

    /// Starts the process over what the disk holds. The error is the node's own.
    pub fn start(&mut self, now: Time) -> Result<(), String> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let engines = self.engines.begin_life(Arc::clone(&disk))?;
        let mut config = self.config.clone();
        config.seed = self.random.next_u64();
        config.log_layout = self.layouts.draw();
        let _span = self.span().entered();
        #[cfg(feature = "mutations")]
        {
            config.mutations = crate::mutation::of_groups();
        }
        let mut opened = Node::open(config, Arc::clone(&disk), Arc::clone(&engines), self.clock.read(now))
            .map_err(|error| chain(&error))?;
        opened.node.begin_life();
        let readers = opened.logs.iter().map(hedgerow_wal::Log::reader).collect();
        self.life += 1;
        self.is_paused = false;
        self.busy_until = now;
        self.process = Some(Process {
            node: opened.node,
            inbox: Vec::new(),
            is_scheduled: false,
            wakes_at: None,
            logs: opened.logs.into_iter().map(CommittedLog::new).collect(),
            context: JobContext { disk, engines, readers },
            jobs: BTreeMap::new(),
            last_job: 0,
            callers: BTreeMap::new(),
            farewells: Vec::new(),
            was_refused: false,
        });
        Ok(())
    }

    /// Ends the process; a power loss takes with it what was not synced.
    pub fn stop(&mut self, is_power_loss: bool) {
        if self.engines.is_real()
            && let Some(process) = &mut self.process
        {
            // In the middle of what it does beside its logs.
            self.disk.stop_after(self.random.below(CALLS_OF_THE_DYING));
            process.end_jobs();
        }
        self.engines.end_life();
        self.process = None;
        self.answers.clear();
        self.is_paused = false;
        if is_power_loss {
            self.disk.crash(&mut self.random);
        } else {
            self.disk.kill_process();
        }
    }

    /// Empties the disk, or, if there are several data directories, perhaps one of them. The process must not run.
    pub fn wipe(&mut self) {
        assert!(self.process.is_none(), "a disk is taken from a machine that is off");
        let count = self.config.data.len() as u64;
        if count > 1 && self.random.chance(1, 2) {
            let directory = &self.config.data[self.random.below(count) as usize];
            // Whether it was there, and whether the loss is noted on the medium at once, makes no difference.
            drop(self.disk.remove_dir_all(directory));
            // What takes its place is empty: a directory that is not there at all would be waited for.
            drop(self.disk.create_dir_all(directory));
            drop(self.disk.sync_dir(Path::new("/")));
        } else {
            self.disk = SimDisk::new();
        }
    }

    /// Damages a byte in the first half of a log segment, and not in the log's last batch: what comes after it makes sure that it
    /// cannot be taken for a write that a crash cut short. Returns what was damaged.
    pub fn corrupt(&mut self) -> Option<(PathBuf, u64)> {
        let turn = self.random.below(self.config.data.len() as u64) as usize;
        let directory = self.config.data[turn].join("log");
        let mut last = None;
        let mut note = |event: hedgerow_wal::Event<'_>| {
            if let hedgerow_wal::Event::Batch(place, _) = event {
                last = Some(place);
            }
        };
        let segments = hedgerow_wal::inspect(&self.disk, &directory, &mut note).ok()?.segments;
        let used = segments.into_iter().find(|used| used.end > 4_096)?;
        let last = last.filter(|last| last.segment == used.id).map_or(used.end, |last| last.offset);
        let path = directory.join(format!("{:016x}.seg", used.id));
        let offset = self.random.below(last.min(used.end / 2));
        self.disk.flip_byte(&path, offset).ok()?;
        Some((path, offset))
    }

    /// What its node logs is logged under this.
    fn span(&self) -> tracing::Span {
        match self.cluster {
            0 => tracing::info_span!("", m = self.id.0),
            _ => tracing::info_span!("second", m = self.id.0),
        }
    }

    /// Lets the process handle everything that has arrived. Returns how much later it says what came of it.
    pub fn process(&mut self, true_now: Time) -> Result<Time, String> {
        let now = self.clock.read(true_now);
        let (applied, syncs) = (self.applied(), self.disk.sync_count());
        let _span = self.span().entered();
        let Some(process) = &mut self.process else { return Ok(0) };
        process.is_scheduled = false;
        self.answers.begin_turn(now.instant);
        for input in std::mem::take(&mut process.inbox) {
            match &input {
                Input::Wake(at) => self.answers.forgive(now.instant.since(*at)),
                Input::Event(Event::Client(connection, frame)) => {
                    let role_of = |group| process.role(group);
                    self.answers.note_request(connection.0, frame, now.instant, role_of);
                }
                Input::Event(Event::ClientClosed(connection)) => self.answers.forget_line(connection.0),
                Input::Turn | Input::Peer(..) | Input::Refused(..) | Input::Event(_) => {}
            }
            process.handle(input, now)?;
        }
        process.node.drive(now);
        while process.node.has_queued() && self.turn_delay_max == 0 && self.cost.read == 0 {
            process.node.drive(now);
        }
        let (mut work, mut reads) = (0, 0);
        // With one shard what came before a request was looked at when that came.
        let leads = |replica: &ReplicaView<'_>| self.shards > 1 && replica.group.role() == Role::Leader;
        let led: BTreeSet<GroupId> = process.node.replicas_for_inspection().filter(leads).map(|it| it.id).collect();
        for (connection, replies) in &process.node.outbox().clients {
            let cost = self.cost;
            let served = |group| {
                work += cost.of(group);
                reads += 1;
            };
            let leads = |group| led.contains(&group);
            self.answers.note_replies(connection.0, Bytes::copy_from_slice(replies), served, leads);
        }
        self.served += reads;
        if work > 0 {
            self.busy_until = true_now + work;
            process.node.note_work(Duration::from_nanos(work), now.instant);
        }
        for connection in &process.node.outbox().closed {
            self.answers.forget_line(connection.0);
        }
        let replicas = process.node.replicas_for_inspection();
        let leaderships =
            replicas.map(|replica| (replica.id, (replica.group.term(), replica.group.role(), replica.group.leader())));
        self.answers.note_leaderships(now.instant, leaderships);
        let queued = process.node.queued_for_inspection();
        self.answers.note_queued(queued.map(|(connection, number)| (connection.0, number)));
        let done = Done { reads, applied: self.applied_since(&applied), syncs: self.disk.sync_count() - syncs };
        let turn = self.work.takes(done, self.disk_factor.min(JOB_FACTOR_MAX), &mut self.random);
        if turn > 0 {
            self.busy_until = true_now + turn;
            self.turn_began = now.instant;
            if let Some(process) = &mut self.process {
                process.node.note_work(Duration::from_nanos(turn), now.instant);
            }
        }
        Ok(turn)
    }

    /// The turn that [`Machine::process`] began and that took time is over at `true_now`.
    pub fn end_turn(&mut self, true_now: Time) {
        let now = self.clock.read(true_now).instant;
        self.answers.note_turn(self.turn_began, now.since(self.turn_began));
    }

    /// How far each replica has applied its log, where that takes time. One without storage is left out: how far a checkpoint
    /// goes that takes the place of it is not this thread's work.
    fn applied(&self) -> Vec<(ReplicaKey, Index)> {
        if self.work == Work::FREE {
            return Vec::new();
        }
        let replicas = self.process.iter().flat_map(|process| process.node.replicas_for_inspection());
        let with_storage = replicas.filter(|replica| replica.storage.is_some());
        with_storage.map(|it| (ReplicaKey { group: it.id, replica: it.replica }, it.applied())).collect()
    }

    /// How many entries were applied since then.
    fn applied_since(&self, before: &[(ReplicaKey, Index)]) -> u64 {
        let known = |key| before.binary_search_by_key(&key, |(key, _)| *key).ok().map(|place| before[place].1);
        self.applied().into_iter().filter_map(|(key, index)| Some(index.saturating_sub(known(key)?))).sum()
    }

    /// Time that a round of log `log` takes from its write to the end of its sync.
    pub fn round_duration(&mut self, log: LogId) -> Time {
        let (least, spread) = if self.random.chance(1, 30) { (1_000, 10_000) } else { (100, 700) };
        let factor = if self.slow_directory.is_none_or(|slow| slow == log.0) { self.disk_factor } else { 1 };
        (least + self.random.below(spread)) * MICROSECOND * factor
    }

    /// Time that a job takes.
    pub fn job_duration(&mut self) -> Time {
        (50 + self.random.below(3_000)) * MICROSECOND * self.disk_factor.min(JOB_FACTOR_MAX)
    }

    /// Time until the process looks at what has arrived.
    pub fn processing_delay(&mut self) -> Time {
        (1 + self.random.below(20)) * MICROSECOND + self.random.below(self.delay_max + 1)
    }

    /// Sees to it that the node gets another turn if reads wait for one. Returns the time until then, if it does not come by
    /// itself.
    pub fn next_turn(&mut self) -> Option<Time> {
        let process = self.process.as_mut().filter(|process| !process.is_scheduled && process.node.has_queued())?;
        process.is_scheduled = true;
        process.inbox.push(Input::Turn);
        Some(self.random.below(self.turn_delay_max + 1))
    }

    /// When the node wants to be woken, if that is news: by its own clock, and in how much true time.
    pub fn next_wake(&mut self, now: Time) -> Option<(Instant, Time)> {
        let local = self.clock.read(now).instant;
        let process = self.process.as_mut()?;
        let wanted = process.node.wakes_at();
        if wanted == process.wakes_at {
            return None;
        }
        process.wakes_at = wanted;
        let at = wanted?;
        // Not a moment too early: the clock must show that time.
        Some((at, self.clock.true_duration(at.since(local).as_nanos() as u64) + 1))
    }

    /// True time of one tick.
    pub fn tick_interval(&self) -> Time {
        self.clock.true_duration(self.config.replication.tick.as_nanos() as u64)
    }
}

impl Process {
    /// The part that the replica of `group` plays at the moment, if there is one.
    pub fn role(&self, group: GroupId) -> Option<Role> {
        let mut replicas = self.node.replicas_for_inspection();
        replicas.find(|replica| replica.id == group).map(|replica| replica.group.role())
    }

    fn handle(&mut self, input: Input, now: Now) -> Result<(), String> {
        match input {
            Input::Turn => {}
            Input::Wake(_) => self.node.handle(Event::Wake, now),
            Input::Peer(from, packet) => self.handle_packet(from, packet, now).map_err(|error| error.to_string())?,
            Input::Refused(by, refused) => {
                self.node.handle_greeting_answer(by, refused, true);
                self.was_refused |= self.node.outbox().failure.is_some();
            }
            Input::Event(event) => {
                if matches!(event, Event::Tick) {
                    self.logs.iter_mut().for_each(|log| log.mark(now.instant));
                }
                self.node.handle(event, now);
            }
        }
        Ok(())
    }

    fn handle_packet(&mut self, from: usize, packet: Packet, now: Now) -> Result<(), Malformed> {
        match packet {
            Packet::Greeting(connection, bytes) => {
                let greeting = Greeting::decode(&bytes)?;
                match self.node.handle_greeting(&greeting, socket_of_machine(from).ip()) {
                    Ok(caller) => _ = self.callers.insert(connection, (from, caller)),
                    Err(refused) => self.farewells.push((from, connection, refused)),
                }
            }
            Packet::Frames(connection, bytes) => {
                // What follows a greeting that was refused is not read.
                let Some((_, caller)) = self.callers.get(&connection) else { return Ok(()) };
                if let Err(refused) = self.node.handle_frames(caller, &mut BytesMut::from(&bytes[..]), now)? {
                    self.node.handle_hangup(caller);
                    self.callers.remove(&connection);
                    self.farewells.push((from, connection, refused));
                }
            }
            Packet::End(last) => {
                self.callers.retain(|connection, (of, caller)| {
                    let is_over = *of == from && *connection <= last;
                    if is_over {
                        self.node.handle_hangup(caller);
                    }
                    !is_over
                });
            }
        }
        Ok(())
    }

    /// How far each log is durable.
    pub fn synced(&self) -> Vec<u64> {
        self.logs.iter().map(CommittedLog::synced).collect()
    }

    /// Hands log writes to log `log`.
    pub fn submit(&mut self, log: LogId, submission: Submission) {
        self.logs[log.0].submit(submission);
    }

    /// Begins a round of every log that has something to write and is not busy. Returns the logs.
    pub fn begin_rounds(&mut self) -> Vec<LogId> {
        let mut begun = Vec::new();
        for (id, log) in (0..).map(LogId).zip(&mut self.logs) {
            let (has_begun, news) = log.begin();
            begun.extend(has_begun.then_some(id));
            self.inbox.extend(news.map(|round| Input::Event(Event::Round(id, round))));
        }
        begun
    }

    /// Ends the round of log `log` that was begun last.
    pub fn end_round(&mut self, log: LogId) {
        let news = self.logs[log.0].end();
        self.inbox.extend(news.into_iter().map(|round| Input::Event(Event::Round(log, round))));
    }

    /// What the log of `replica` holds of its group from index `low` to `last`.
    pub fn entries(&self, replica: &ReplicaView<'_>, low: Index, last: Index) -> Result<Vec<Entry>, String> {
        let reader = &self.context.readers[replica.log.0];
        let mut entries = Vec::new();
        let mut next = low;
        while next <= last {
            let piece = reader.entries(replica.id, next, last + 1, usize::MAX).map_err(|error| error.to_string())?;
            let Some(end) = piece.last() else { break };
            next = end.index + 1;
            entries.extend(piece);
        }
        Ok(entries)
    }

    /// Keeps a job until [`Process::end_job`]; returns its number.
    pub fn begin_job(&mut self, job: Job) -> u64 {
        self.last_job += 1;
        self.jobs.insert(self.last_job, job);
        self.last_job
    }

    /// Runs all jobs, and nobody hears of it.
    fn end_jobs(&mut self) {
        for job in std::mem::take(&mut self.jobs).into_values() {
            drop(job.run(&self.context));
        }
    }

    /// Runs a job and hands its result to the node.
    pub fn end_job(&mut self, number: u64) {
        if let Some(job) = self.jobs.remove(&number) {
            let done = job.run(&self.context);
            self.inbox.push(Input::Event(Event::Job(done)));
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
