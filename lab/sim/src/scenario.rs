//! The kinds of runs: which faults come together, how densely, over what cluster and load.

use crate::client::Pace;
use crate::clock::{MILLISECOND, SECOND};
use crate::engine::EngineKind;
use crate::history::Time;
use crate::invariant::Expected;
use crate::nemesis::{Kind, Temper};
use crate::network::Delay;
use crate::reading::{Mix, TableReads};
use crate::work::{Aside, Work};
use hedgerow_node::config::APPLY_BYTES_PER_TURN;
use hedgerow_replication::Settings;
use hedgerow_types::limit::SESSION_BYTES_MAX;
use hedgerow_types::random::Random;
use std::time::Duration;

/// The clock rate error that the clusters are configured for, parts per million.
pub const CLOCK_RATE_ERROR_PPM: u32 = 20_000;
/// The same for every other run of `clocks`: the most that may be configured.
const CLOCK_RATE_ERROR_PPM_MOST: u32 = 100_000;

/// Replicas of the metadata group, whatever the number of nodes.
pub const META_REPLICA_COUNT: usize = 3;

/// A kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// No faults at all.
    Calm,
    /// Cuts of all shapes.
    Partitions,
    /// An isolated leader that clients still reach (pitfall C13).
    MinorityLeader,
    /// Processes and machines die and come back, one or all.
    Crashes,
    /// Slow, full and failing disks.
    Disks,
    /// Clocks of different and changing rates, pauses longer than a lease, wall clock steps (pitfall C11).
    Clocks,
    /// Leaders are moved about (pitfalls C3, C9).
    Transfers,
    /// Client connections break after requests and before replies.
    Clients,
    /// A disk is lost, or a log damaged, and the replicas on it learn again (pitfalls C15, C16, C18).
    Repair,
    /// Logs are away for a few starts and come back (pitfall D3g).
    LogsAway,
    /// A voter restarts inside the lease that it granted (pitfall C12).
    RestartFence,
    /// New leaders that know less than their clients (pitfalls C1, C2).
    ApplySkew,
    /// Reads of all levels at all replicas, between moderate faults.
    Reads,
    /// The same with learners, which are added and removed meanwhile (pitfall R20).
    ReadsLearners,
    /// Every read is sent to the leader and another replica, and the first answer taken (pitfall C20).
    Hedged,
    /// The attempts of every read race each other, many of them tied, at nodes whose reads queue (pitfalls H15 to H17, H19).
    Tied,
    /// Writes are sent again through other nodes, which pass them on to the leader, while leaders change.
    Speculated,
    /// Everything.
    Chaos,
    /// Clocks beyond the configured error. Not among the drawn ones: no lease survives it, which shows that the
    /// simulation sees what leases prevent.
    ClocksBeyond,
}

/// Everything that distinguishes one run from another, drawn from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which kind of run.
    pub scenario: Scenario,
    /// Number of the cluster: 0 of the one that the clients use, 1 of the second.
    pub cluster: u8,
    /// What its nodes store rows with.
    pub engine: EngineKind,
    /// Machines, 3 to 5.
    pub machine_count: usize,
    /// Data directories of each machine.
    pub directory_count: usize,
    /// What the layouts of their logs are drawn from.
    pub layout_seed: u64,
    /// Partitions of the table.
    pub partition_count: u32,
    /// Voting replicas of each partition.
    pub replica_count: u32,
    /// Learners of each partition, at the beginning and in the end; at most one on each machine without a voter.
    pub learner_count: u32,
    /// What the table says of reads.
    pub table_reads: TableReads,
    /// How clients read.
    pub mix: Mix,
    /// Clients.
    pub client_count: u32,
    /// Whether somebody creates, uses and drops other tables meanwhile.
    pub has_owner: bool,
    /// Whether the clients' table is duplicated meanwhile.
    pub has_echo: bool,
    /// Whether it is to a second cluster.
    pub has_second: bool,
    /// Records besides the counters.
    pub register_count: u32,
    /// Writes among a hundred operations.
    pub write_percent: u64,
    /// How clients behave.
    pub pace: Pace,
    /// Delay between machines, and between them and clients.
    pub delay: Delay,
    /// How long clients ask and faults come, at least.
    pub load_time: Time,
    /// And until there have been so many operations.
    pub operations_min: u64,
    /// The faults; `None` = none.
    pub temper: Option<Temper>,
    /// Elections and leases.
    pub replication: Settings,
    /// Clocks run fast or slow by up to so much, parts per million.
    pub clock_error_ppm: u64,
    /// Bytes of log after which a replica flushes its storage.
    pub flush_bytes: u64,
    /// Bytes of what a partition remembers of its clients' writes. Where it is little, sessions are forgotten all the time.
    pub session_bytes_max: u64,
    /// Reads that a node serves before it looks at what else has come.
    pub reads_per_turn: usize,
    /// What a node applies before it looks at what else has come.
    pub apply_bytes_per_turn: u64,
    /// What the nodes' own work takes.
    pub work: Work,
    /// Which reads other threads run.
    pub aside: Aside,
    /// Into how many shards each node's groups are divided.
    pub shards: usize,
    /// Longest time between two such turns: reads queue meanwhile.
    pub turn_delay_max: Time,
    /// Bytes per second at which checkpoints are sent; `None` = as nodes do it.
    pub snapshot_rate: Option<u64>,
    /// Bytes of a log segment: small, so that segments are recycled within a run.
    pub segment_size: u64,
}

/// In one of so many runs there are other tables.
const OWNER_INTERVAL: u64 = 4;
/// In one of so many runs the clients' table is duplicated.
const ECHO_INTERVAL: u64 = 8;
/// Whether that is to a second cluster, in half of them. Drawn from the seed alone, as [`Work::of_seed`].
const fn has_second(seed: u64) -> bool {
    seed % ECHO_INTERVAL == 3 && Random::new(seed ^ 0x0074_6865_7265).chance(1, 2)
}

/// Operations of a long run.
const LONG_OPERATIONS: u64 = 100_000;
/// Least bytes between two flushes of a long run.
const LONG_FLUSH_BYTES_MIN: u64 = 16 << 10;

impl Scenario {
    /// Every kind of run, [`Scenario::ClocksBeyond`] last.
    pub const ALL: [Self; 19] = [
        Self::Calm,
        Self::Partitions,
        Self::MinorityLeader,
        Self::Crashes,
        Self::Disks,
        Self::Clocks,
        Self::Transfers,
        Self::Clients,
        Self::Repair,
        Self::LogsAway,
        Self::RestartFence,
        Self::ApplySkew,
        Self::Reads,
        Self::ReadsLearners,
        Self::Hedged,
        Self::Tied,
        Self::Speculated,
        Self::Chaos,
        Self::ClocksBeyond,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Partitions => "partitions",
            Self::MinorityLeader => "minority-leader",
            Self::Crashes => "crashes",
            Self::Disks => "disks",
            Self::Clocks => "clocks",
            Self::Transfers => "transfers",
            Self::Clients => "clients",
            Self::Repair => "repair",
            Self::LogsAway => "logs-away",
            Self::RestartFence => "restart-fence",
            Self::ApplySkew => "apply-skew",
            Self::Reads => "reads",
            Self::ReadsLearners => "reads-learners",
            Self::Hedged => "hedged",
            Self::Tied => "tied",
            Self::Speculated => "speculated",
            Self::Chaos => "chaos",
            Self::ClocksBeyond => "clocks-beyond",
        }
    }

    /// The kind of run with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name)
    }

    fn drawn(random: &mut Random) -> Self {
        match random.below(100) {
            0..1 => Self::Calm,
            1..2 => Self::LogsAway,
            2..9 => Self::Partitions,
            9..15 => Self::MinorityLeader,
            15..24 => Self::Crashes,
            24..28 => Self::Disks,
            28..35 => Self::Clocks,
            35..40 => Self::Transfers,
            40..44 => Self::Clients,
            44..50 => Self::Repair,
            50..56 => Self::RestartFence,
            56..61 => Self::ApplySkew,
            61..67 => Self::Reads,
            67..73 => Self::ReadsLearners,
            73..76 => Self::Hedged,
            76..82 => Self::Tied,
            82..88 => Self::Speculated,
            _ => Self::Chaos,
        }
    }

    /// Registers, writes in a hundred operations, and the time between faults.
    fn shape(self, refusal: Time, random: &mut Random) -> (u32, u64, (Time, Time)) {
        let (registers, write_percent) = (1 + random.below(5) as u32, 30 + random.below(40));
        let gap_max = (200 + random.below(1_200)) * MILLISECOND;
        match self {
            // A voter that has fallen behind is not elected, so a restart inside a lease shows only while little is written.
            Self::RestartFence => (registers, random.below(4), (2 * refusal, 4 * refusal)),
            // The record that is read must be the one that was written last.
            Self::ApplySkew => (1 + registers / 3, write_percent, (3 * refusal, 5 * refusal)),
            Self::Tied => (registers, 10 + write_percent / 4, (gap_max / 8, gap_max)),
            Self::Speculated => (registers, 20 + write_percent, (gap_max / 8, gap_max)),
            _ => (registers, write_percent, (gap_max / 8, gap_max)),
        }
    }

    /// How clients read.
    fn mix(self, random: &mut Random) -> Mix {
        match self {
            Self::Reads | Self::ReadsLearners | Self::Chaos => Mix::ANYWHERE,
            Self::Clocks | Self::ClocksBeyond => Mix::AGED,
            Self::Hedged => Mix::HEDGED,
            Self::Tied | Self::Speculated => Mix::RACED,
            Self::Calm | Self::RestartFence | Self::ApplySkew => Mix::MOSTLY_LEADER,
            Self::Partitions
            | Self::MinorityLeader
            | Self::Crashes
            | Self::Disks
            | Self::Transfers
            | Self::Clients
            | Self::Repair
            | Self::LogsAway => {
                if random.chance(1, 2) {
                    Mix::ANYWHERE
                } else {
                    Mix::MOSTLY_LEADER
                }
            }
        }
    }

    /// Whether reads queue at nodes.
    const fn has_queues(self) -> bool {
        matches!(self, Self::Reads | Self::Tied | Self::Speculated | Self::Chaos)
    }

    /// The faults and their weights, on a cluster where a partition may have up to `learner_max` learners.
    fn kinds(self, learner_max: u32) -> Vec<(Kind, u32)> {
        let partitions = [
            (Kind::CutPair, 3),
            (Kind::CutOneWay, 3),
            (Kind::IsolateOne, 2),
            (Kind::IsolateLeader, 3),
            (Kind::IsolateLeaderWithOne, 3),
            (Kind::BreakLinks, 3),
        ];
        let crashes =
            [(Kind::KillProcess, 2), (Kind::PowerLoss, 4), (Kind::PowerLossEverywhere, 2), (Kind::BreakLinks, 1)];
        let disks = [
            (Kind::SlowDisk, 4),
            (Kind::FailSync, 2),
            (Kind::FullDisk, 2),
            (Kind::ReadOnlyDisk, 1),
            (Kind::PowerLoss, 1),
        ];
        let clocks = [
            (Kind::ClockRate, 4),
            (Kind::Pause, 2),
            (Kind::PauseLeader, 4),
            (Kind::StepWall, 1),
            (Kind::IsolateLeader, 2),
            // A replica that is cut off goes on serving for a while, by its own clock.
            (Kind::IsolateOne, 3),
        ];
        let transfers = [
            (Kind::Transfer, 6),
            (Kind::CutOneWay, 1),
            (Kind::PauseLeader, 1),
            (Kind::SlowDisk, 1),
            (Kind::IsolateLeader, 1),
        ];
        let clients = [(Kind::BreakClients, 6), (Kind::KillProcess, 1), (Kind::IsolateLeader, 1)];
        let repair = [
            (Kind::Wipe, 3),
            (Kind::LoseMachine, 2),
            (Kind::Corrupt, 4),
            (Kind::KillProcess, 1),
            (Kind::PowerLoss, 1),
            (Kind::BreakLinks, 1),
            (Kind::CutPair, 1),
            (Kind::PauseLeader, 1),
        ];
        let logs = [
            (Kind::LogAway, 6),
            (Kind::KillProcess, 2),
            (Kind::PowerLoss, 2),
            (Kind::Wipe, 1),
            (Kind::CutPair, 1),
            (Kind::IsolateLeader, 1),
            (Kind::Pause, 1),
            (Kind::PauseLeader, 1),
        ];
        let copies = [(Kind::RolledBack, 6)];
        let reads = [
            (Kind::CutPair, 2),
            (Kind::CutOneWay, 2),
            (Kind::IsolateOne, 3),
            (Kind::IsolateLeaderWithOne, 3),
            (Kind::BreakLinks, 2),
            (Kind::SlowProcess, 3),
            (Kind::SlowDisk, 2),
            (Kind::Transfer, 4),
            (Kind::Pause, 2),
            (Kind::KillProcess, 2),
            (Kind::ClockRate, 2),
        ];
        let learners = [(Kind::Learners { most: learner_max }, 5), (Kind::Wipe, 1), (Kind::PowerLoss, 1)];
        let hedged = [(Kind::Transfer, 3), (Kind::IsolateLeader, 3), (Kind::SlowProcess, 3), (Kind::PauseLeader, 3)];
        match self {
            Self::Calm => Vec::new(),
            Self::Partitions => partitions.to_vec(),
            Self::MinorityLeader => {
                vec![(Kind::IsolateLeader, 4), (Kind::IsolateLeaderWithOne, 4), (Kind::PauseLeader, 1)]
            }
            Self::Crashes => crashes.to_vec(),
            Self::Disks => disks.to_vec(),
            Self::Clocks => clocks.to_vec(),
            Self::ClocksBeyond => vec![(Kind::ClockRate, 3), (Kind::IsolateLeaderWithOne, 4), (Kind::PauseLeader, 1)],
            Self::Transfers => transfers.to_vec(),
            Self::Clients => clients.to_vec(),
            Self::Repair => [&repair[..], &copies].concat(),
            Self::LogsAway => logs.to_vec(),
            Self::RestartFence => vec![(Kind::RestartFence, 1)],
            Self::ApplySkew => vec![(Kind::ApplySkew, 4), (Kind::SlowProcess, 1)],
            Self::Reads => reads.to_vec(),
            Self::ReadsLearners => [&reads[..], &learners].concat(),
            Self::Hedged => [&hedged[..], &crashes].concat(),
            Self::Tied => [&hedged[..], &reads, &clients, &crashes].concat(),
            Self::Speculated => [&hedged[..], &partitions, &transfers, &clients, &crashes].concat(),
            Self::Chaos => {
                let all = [&partitions[..], &crashes, &disks, &clocks, &transfers, &clients, &repair, &copies];
                let special = [(Kind::RestartFence, 1), (Kind::ApplySkew, 1), (Kind::SlowProcess, 2)];
                let learners = (learner_max > 0).then_some((Kind::Learners { most: learner_max }, 6));
                all.into_iter().flatten().copied().chain(special).chain(learners).collect()
            }
        }
    }
}

/// One, two or four. Drawn from the seed alone, as [`Work::of_seed`].
fn shards_of_seed(seed: u64) -> usize {
    1 << Random::new(seed ^ 0x7368_6172_6473).below(3)
}

impl Plan {
    /// Most learners that a partition can have.
    pub const fn learner_max(&self) -> u32 {
        self.machine_count as u32 - self.replica_count
    }

    /// What there is to be of every group in the end.
    pub const fn expected(&self) -> Expected {
        Expected {
            partitions: self.partition_count as usize,
            voters: self.replica_count as usize,
            learners: self.learner_count as usize,
        }
    }

    /// Voters of all groups; the metadata always has three.
    pub const fn voter_total(&self) -> usize {
        self.partition_count as usize * self.replica_count as usize + META_REPLICA_COUNT
    }

    /// The plan of `seed`; `scenario` and `machine_count` override what would be drawn.
    pub fn new(seed: u64, scenario: Option<Scenario>, machine_count: Option<usize>) -> Self {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let drawn = Scenario::drawn(&mut random);
        let scenario = scenario.unwrap_or(drawn);
        let drawn_count = if random.chance(3, 4) { 3 } else { 5 };
        let machine_count = match scenario {
            Scenario::ReadsLearners => machine_count.map_or(4 + random.below(2) as usize, |count| count.max(4)),
            _ => machine_count.unwrap_or(drawn_count),
        };
        let has_learners = scenario == Scenario::ReadsLearners || scenario == Scenario::Chaos && random.chance(1, 2);
        let replica_count = if has_learners || machine_count == 4 { 3 } else { machine_count as u32 };
        let learner_max = machine_count as u32 - replica_count;
        let learner_count = if random.chance(1, 5) { 0 } else { learner_max };
        let mut replication = replication(&mut random);
        if scenario == Scenario::Clocks && seed.is_multiple_of(2) {
            replication.clock_rate_error_ppm = CLOCK_RATE_ERROR_PPM_MOST;
        }
        if scenario == Scenario::ApplySkew {
            // What is committed is then applied in small portions, with reads between them.
            replication.message_size_max = 256;
        }
        let beyond = if scenario == Scenario::ClocksBeyond { 40 } else { 1 };
        let clock_error_ppm = u64::from(replication.clock_rate_error_ppm) * beyond;
        // Stale reads take somebody who reads in the short time in which two replicas believe that they lead.
        let think_max = match scenario {
            Scenario::ClocksBeyond => 20,
            // So that reads queue.
            Scenario::Tied => 5 + random.below(20),
            _ => 20 + random.below(130),
        };
        let refusal = replication.refusal().as_nanos() as Time;
        let (register_count, write_percent, gap) = scenario.shape(refusal, &mut random);
        let temper = Temper {
            kinds: scenario.kinds(learner_max),
            gap,
            duration_max: (300 + random.below(2_000)) * MILLISECOND,
            refusal,
            clock_rate_error_ppm: clock_error_ppm,
        };
        Self {
            scenario,
            cluster: 0,
            engine: EngineKind::of_seed(seed),
            machine_count,
            directory_count: if random.chance(2, 3) { 1 } else { 2 },
            layout_seed: seed,
            partition_count: if random.chance(4, 5) { 2 } else { 4 },
            replica_count,
            learner_count,
            table_reads: TableReads::drawn(&mut random),
            mix: scenario.mix(&mut random),
            client_count: 3 + random.below(4) as u32,
            has_owner: seed % OWNER_INTERVAL == 1,
            has_echo: seed % ECHO_INTERVAL == 3,
            has_second: has_second(seed),
            register_count,
            write_percent,
            pace: Pace {
                think_max: think_max * MILLISECOND,
                attempt_timeout: (100 + random.below(400)) * MILLISECOND,
                deadline: SECOND + random.below(2 * SECOND),
            },
            delay: if random.chance(1, 4) { Delay::JITTERY } else { Delay::NEAR },
            load_time: 4 * SECOND + random.below(3 * SECOND),
            operations_min: 0,
            temper: (!temper.kinds.is_empty()).then_some(temper),
            replication,
            clock_error_ppm,
            flush_bytes: 1 << (9 + random.below(8)),
            session_bytes_max: session_bytes_max(seed),
            snapshot_rate: None,
            segment_size: (20 << 10) << random.below(3),
            reads_per_turn: 1 + random.below(4) as usize,
            apply_bytes_per_turn: apply_bytes_per_turn(seed),
            work: Work::of_seed(seed),
            aside: Aside::of_seed(seed),
            shards: shards_of_seed(seed),
            turn_delay_max: if scenario.has_queues() { MILLISECOND << random.below(4) } else { 0 },
        }
    }
}

impl Plan {
    /// The plan of a run that lasts until logs were cut many times, sessions forgotten and their windows passed, with checkpoints that take longer
    /// to send than the log is kept.
    pub fn into_long(mut self, seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6c6f_6e67);
        self.operations_min = LONG_OPERATIONS;
        self.client_count = 6 + random.below(6) as u32;
        self.has_owner = true;
        // Where time leaps by hours one cluster believes it minutes before the other, and the other takes no changes meanwhile.
        self.has_second = false;
        self.register_count = 20 + random.below(40) as u32;
        self.pace.think_max = (1 + random.below(4)) * MILLISECOND;
        self.snapshot_rate = Some((16 << 10) << random.below(6));
        // Less often by the write than in short runs: a flush of the engine in memory writes everything.
        self.flush_bytes = self.flush_bytes.max(LONG_FLUSH_BYTES_MIN);
        if let Some(temper) = &mut self.temper {
            temper.kinds.push((Kind::TimePasses, 1));
            // Between two faults much is done.
            let (least, most) = temper.gap;
            temper.gap = (least.max(SECOND), most.max(4 * SECOND));
        }
        self
    }
}

/// In every third run there is room for two or three clients with a few writes each. Drawn from the seed alone, since what is
/// drawn from the run's own randomness changes all that is drawn after it.
const fn session_bytes_max(seed: u64) -> u64 {
    if seed.is_multiple_of(3) { 600 + seed % 7 * 100 } else { SESSION_BYTES_MAX }
}

/// In every third run other than those, a turn applies a write or a few. Drawn as above.
const fn apply_bytes_per_turn(seed: u64) -> u64 {
    if seed % 3 == 1 { 1 + seed % 5 * 2_048 } else { APPLY_BYTES_PER_TURN }
}

/// Short times, so that much happens; sizes from large to hardly enough, so that messages are split and followers need
/// entries that are no longer in memory.
fn replication(random: &mut Random) -> Settings {
    Settings {
        tick: Duration::from_millis(40),
        election_ticks: 10,
        clock_rate_error_ppm: CLOCK_RATE_ERROR_PPM,
        message_size_max: 256 << random.below(13),
        inflight_max: 2 << random.below(8),
        cache_size_max: 1_024 << random.below(13),
        ..Settings::default()
    }
}
