//! What goes wrong, and when: a plan of faults drawn from the seed, each as a few timed steps that also undo it.

use crate::clock::{MILLISECOND, draw_rate_error};
use crate::history::Time;
use hedgerow_types::random::Random;

/// The smallest thing that can be done to a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The nemesis chooses its next fault.
    Decide,
    /// Nothing passes from one machine to another any more.
    Cut {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
    },
    /// It passes again.
    Heal {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
    },
    /// The connections between two machines break, and what was on its way is lost.
    Break {
        /// One.
        a: usize,
        /// The other.
        b: usize,
    },
    /// What a machine sends to others takes longer.
    SlowWires {
        /// The sender.
        machine: usize,
        /// How much longer; 0 = as usual.
        extra_delay: Time,
    },
    /// The process dies, and with it, if `is_power_loss`, what was not synced.
    Stop {
        /// Whose.
        machine: usize,
        /// Whether the machine dies too.
        is_power_loss: bool,
    },
    /// The process starts again, if it does not run.
    Start {
        /// Where.
        machine: usize,
    },
    /// The process stands still; its clock runs on and what arrives waits.
    Pause {
        /// Whose.
        machine: usize,
    },
    /// It goes on.
    Resume {
        /// Whose.
        machine: usize,
    },
    /// Disk writes take `factor` times as long; 1 = as usual.
    SlowDisk {
        /// Whose.
        machine: usize,
        /// Of which data directory; `None` = of all.
        directory: Option<usize>,
        /// How much longer.
        factor: u64,
    },
    /// The process takes up to so long before it looks at what has arrived, and then handles all of it together.
    SlowProcess {
        /// Whose.
        machine: usize,
        /// How long at most; 0 = as usual.
        delay_max: Time,
    },
    /// Syncs fail.
    FailSyncs {
        /// Whose.
        machine: usize,
        /// Of which data directory; `None` = of all.
        directory: Option<usize>,
        /// Whether they do.
        is_failing: bool,
    },
    /// The disk is full.
    FillDisk {
        /// Whose.
        machine: usize,
        /// Whether it is.
        is_full: bool,
    },
    /// The file system takes no writes.
    ProtectDisk {
        /// Whose.
        machine: usize,
        /// Whether it is read-only.
        is_read_only: bool,
    },
    /// The steady clock changes its rate.
    ClockRate {
        /// Whose.
        machine: usize,
        /// How fast it runs, parts per million above true.
        error_ppm: i64,
    },
    /// The wall clock jumps.
    StepWall {
        /// Whose.
        machine: usize,
        /// By how much.
        seconds: i64,
    },
    /// All machines and clients stood still for so long, and nobody's steady clock has noticed.
    PassTime {
        /// How long.
        seconds: i64,
    },
    /// The operator moves the leadership of every table partition.
    Transfer {
        /// To where.
        machine: usize,
    },
    /// The operator wants so many learners of every partition.
    Learners {
        /// How many.
        count: u32,
    },
    /// All client connections of a machine break.
    BreakClients {
        /// Whose.
        machine: usize,
    },
    /// The machine, stopped before, loses its disk.
    Wipe {
        /// Whose.
        machine: usize,
    },
    /// A byte in the older part of the log of the machine, stopped before, goes bad.
    Corrupt {
        /// Whose.
        machine: usize,
    },
    /// The log of a data directory of the machine, stopped before, is not there any more.
    TakeLog {
        /// Whose.
        machine: usize,
        /// Of which data directory.
        directory: usize,
    },
    /// The machine stops and gets that log back, once all others have everything.
    GiveLog {
        /// Whose.
        machine: usize,
    },
    /// A copy of the disk is made.
    Copy {
        /// Whose.
        machine: usize,
    },
    /// It is noted how far the logs are that the copy was made of.
    Mark {
        /// Whose.
        machine: usize,
    },
    /// The machine stops and gets the copy as its disk, if that will be noticed and a majority has everything without it.
    PutBack {
        /// Whose.
        machine: usize,
        /// Whether it dies without a word.
        is_power_loss: bool,
    },
    /// A second process of the node starts beside it with the copy, if that will be noticed.
    Clone {
        /// Whose.
        machine: usize,
    },
}

impl Step {
    /// Whether it may keep a node from saying, or from remembering, what it has heard of another one.
    pub const fn silences(self) -> bool {
        match self {
            Self::Cut { .. }
            | Self::Stop { .. }
            | Self::Pause { .. }
            | Self::Wipe { .. }
            | Self::Corrupt { .. }
            | Self::TakeLog { .. }
            | Self::GiveLog { .. } => true,
            Self::FailSyncs { is_failing, .. } => is_failing,
            Self::FillDisk { is_full, .. } => is_full,
            Self::ProtectDisk { is_read_only, .. } => is_read_only,
            Self::Decide
            | Self::Heal { .. }
            | Self::Break { .. }
            | Self::SlowWires { .. }
            | Self::Start { .. }
            | Self::Resume { .. }
            | Self::SlowDisk { .. }
            | Self::SlowProcess { .. }
            | Self::ClockRate { .. }
            | Self::StepWall { .. }
            | Self::PassTime { .. }
            | Self::Transfer { .. }
            | Self::Learners { .. }
            | Self::BreakClients { .. }
            | Self::Copy { .. }
            | Self::Mark { .. }
            | Self::PutBack { .. }
            | Self::Clone { .. } => false,
        }
    }
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is described where its steps are, in `Nemesis::steps`")]
pub enum Kind {
    CutPair,
    CutOneWay,
    IsolateOne,
    IsolateLeader,
    IsolateLeaderWithOne,
    BreakLinks,
    Pause,
    PauseLeader,
    KillProcess,
    PowerLoss,
    PowerLossEverywhere,
    SlowDisk,
    SlowProcess,
    FailSync,
    FullDisk,
    ReadOnlyDisk,
    ClockRate,
    StepWall,
    TimePasses,
    Transfer,
    BreakClients,
    Wipe,
    LoseMachine,
    Corrupt,
    LogAway,
    RolledBack,
    RestartFence,
    ApplySkew,
    Learners { most: u32 },
}

impl Kind {
    /// The name under which the summary counts it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CutPair => "cut pair",
            Self::CutOneWay => "cut one way",
            Self::IsolateOne => "isolate one",
            Self::IsolateLeader => "isolate leader",
            Self::IsolateLeaderWithOne => "isolate leader with one",
            Self::BreakLinks => "break links",
            Self::Pause => "pause",
            Self::PauseLeader => "pause leader",
            Self::KillProcess => "kill process",
            Self::PowerLoss => "power loss",
            Self::PowerLossEverywhere => "power loss everywhere",
            Self::SlowDisk => "slow disk",
            Self::SlowProcess => "slow process",
            Self::FailSync => "failing sync",
            Self::FullDisk => "full disk",
            Self::ReadOnlyDisk => "read-only disk",
            Self::ClockRate => "clock rate",
            Self::StepWall => "wall clock step",
            Self::TimePasses => "time passes",
            Self::Transfer => "leader transfer",
            Self::BreakClients => "break clients",
            Self::Wipe => "wiped disk",
            Self::LoseMachine => "lost machine",
            Self::Corrupt => "corrupt log",
            Self::LogAway => "log away",
            Self::RolledBack => "copy of a disk",
            Self::RestartFence => "restart inside the lease",
            Self::ApplySkew => "death of a leader before a busy follower",
            Self::Learners { .. } => "change of learners",
        }
    }
}

/// For so long before a copy is put back its logs were further than the copy, and everybody has heard so.
pub(crate) const HEARD_MIN: Time = 400 * MILLISECOND;

/// A machine that is lost is replaced so much later at the earliest.
const REPLACED_AFTER: Time = 2_000 * MILLISECOND;

/// By how much a wall clock is put forward or back, seconds: an hour, a year, and as much as a bad time server may.
const WALL_STEPS: [i64; 6] = [3_600, -3_600, 31_536_000, -31_536_000, 2, -30];

/// What the nemesis sees of a world when it decides.
#[derive(Clone, Debug)]
pub struct View {
    /// Number of machines.
    pub machine_count: usize,
    /// Machines that lead a table partition.
    pub leaders: Vec<usize>,
    /// Machines that run and are not paused.
    pub running: Vec<usize>,
    /// Whether every voter runs and no disk refuses what may cost it one, so that one machine's data may be lost.
    pub is_whole: bool,
    /// Data directories of a machine. If there are several, a disk that refuses costs it data: its node gives a directory up
    /// and goes on with another.
    pub directory_count: usize,
}

/// How faults come.
#[derive(Clone, Debug)]
pub struct Temper {
    /// Kinds, each with its weight.
    pub kinds: Vec<(Kind, u32)>,
    /// Shortest and longest time between two faults.
    pub gap: (Time, Time),
    /// Longest duration of an ordinary fault.
    pub duration_max: Time,
    /// The time for which voters refuse to vote after they heard their leader.
    pub refusal: Time,
    /// The largest clock rate error, parts per million.
    pub clock_rate_error_ppm: u64,
}

/// The chooser of faults.
#[derive(Debug)]
pub struct Nemesis {
    temper: Temper,
    random: Random,
    /// Whose wall clock is set wrong: a majority's stays right, which is what the time rests on (decision 012).
    mistaken: Option<usize>,
    /// Whether a copy of a disk was used, or is about to be: once in a run.
    has_rolled_back: bool,
}

/// A fault: what it is, and its steps with their distance from now.
pub type Fault = (Kind, Vec<(Time, Step)>);

impl Nemesis {
    /// A nemesis of this temper.
    pub const fn new(temper: Temper, random: Random) -> Self {
        Self { temper, random, mistaken: None, has_rolled_back: false }
    }

    /// Time until the next decision.
    pub fn gap(&mut self) -> Time {
        let (min, max) = self.temper.gap;
        min + self.random.below(max - min + 1)
    }

    /// A copy could not be used when the time had come: it may be tried again.
    pub const fn note_not_rolled_back(&mut self) {
        self.has_rolled_back = false;
    }

    /// The next fault, if the drawn one is possible now.
    pub fn decide(&mut self, view: &View) -> Option<Fault> {
        let total: u32 = self.temper.kinds.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.random.below(u64::from(total)) as u32;
        let (kind, _) = *self.temper.kinds.iter().find(|(_, weight)| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        })?;
        self.steps(kind, view).map(|steps| (kind, steps))
    }

    fn steps(&mut self, kind: Kind, view: &View) -> Option<Vec<(Time, Step)>> {
        let duration = self.duration();
        let any = self.random.below(view.machine_count as u64) as usize;
        let other = (any + 1 + self.random.below(view.machine_count as u64 - 1) as usize) % view.machine_count;
        Some(match kind {
            Kind::CutPair => cut(&[any], &[other], true, 0, duration),
            Kind::CutOneWay => cut(&[any], &[other], false, 0, duration),
            Kind::IsolateOne => cut(&[any], &others(&[any], view), self.random.chance(3, 4), 0, duration),
            Kind::IsolateLeader => {
                let leader = self.leader(view)?;
                cut(&[leader], &others(&[leader], view), self.random.chance(3, 4), 0, duration)
            }
            Kind::IsolateLeaderWithOne => self.isolate_with_one(view)?,
            Kind::BreakLinks => vec![(0, Step::Break { a: any, b: other })],
            Kind::Pause => self.pause(any),
            Kind::PauseLeader => {
                let leader = self.leader(view)?;
                let mut steps = self.pause(leader);
                // Perhaps it hears nothing of what happened meanwhile, either.
                if self.random.chance(1, 2) {
                    let end =
                        steps.iter().map(|step| step.0).max().unwrap_or(0) + self.random.below(self.temper.refusal);
                    steps.extend(cut(&[leader], &others(&[leader], view), true, 0, end));
                }
                steps
            }
            Kind::KillProcess => self.stop(self.victim(any, view), false, duration),
            Kind::PowerLoss => self.stop(self.victim(any, view), true, duration),
            Kind::PowerLossEverywhere => self.stop_everything(view),
            Kind::SlowDisk => {
                let (factor, directory) = (2 + self.random.below(100), self.directory(view));
                let slow = |factor| Step::SlowDisk { machine: any, directory, factor };
                vec![(0, slow(factor)), (duration, slow(1))]
            }
            Kind::SlowProcess => {
                let delay_max = MILLISECOND + self.random.below(20 * MILLISECOND);
                vec![
                    (0, Step::SlowProcess { machine: any, delay_max }),
                    (duration, Step::SlowProcess { machine: any, delay_max: 0 }),
                ]
            }
            Kind::FailSync | Kind::ReadOnlyDisk if view.directory_count > 1 && !view.is_whole => return None,
            // Without a power loss the next process reads what no sync has made durable.
            Kind::FailSync => {
                let directory = self.directory(view);
                let fail = |is_failing| Step::FailSyncs { machine: any, directory, is_failing };
                vec![
                    (0, fail(true)),
                    (duration, Step::Stop { machine: any, is_power_loss: self.random.chance(1, 2) }),
                    (duration, fail(false)),
                    (duration + MILLISECOND, Step::Start { machine: any }),
                ]
            }
            Kind::FullDisk => vec![
                (0, Step::FillDisk { machine: any, is_full: true }),
                (duration, Step::FillDisk { machine: any, is_full: false }),
                (duration + MILLISECOND, Step::Start { machine: any }),
            ],
            Kind::ReadOnlyDisk => vec![
                (0, Step::ProtectDisk { machine: any, is_read_only: true }),
                (duration, Step::ProtectDisk { machine: any, is_read_only: false }),
                (duration + MILLISECOND, Step::Start { machine: any }),
            ],
            Kind::ClockRate => {
                let error_ppm = draw_rate_error(self.temper.clock_rate_error_ppm, &mut self.random);
                vec![(0, Step::ClockRate { machine: any, error_ppm })]
            }
            Kind::StepWall => {
                let seconds = WALL_STEPS[self.random.below(WALL_STEPS.len() as u64) as usize];
                vec![(0, Step::StepWall { machine: *self.mistaken.get_or_insert(any), seconds })]
            }
            Kind::TimePasses => vec![(0, Step::PassTime { seconds: 60 + self.random.below(20_000) as i64 })],
            Kind::Transfer => vec![(0, Step::Transfer { machine: any })],
            Kind::Learners { most } => {
                // Mostly there are some: a learner takes its time to learn.
                let count = if self.random.chance(1, 3) { 0 } else { 1 + self.random.below(u64::from(most)) as u32 };
                vec![(0, Step::Learners { count: count.min(most) })]
            }
            Kind::BreakClients => vec![(0, Step::BreakClients { machine: any })],
            Kind::Wipe => return self.lose_data(Step::Wipe { machine: any }, any, duration, view),
            // What takes its place comes when nobody waits for it any more.
            Kind::LoseMachine => {
                let replaced = REPLACED_AFTER + self.random.below(REPLACED_AFTER);
                return self.lose_data(Step::Wipe { machine: any }, any, replaced, view);
            }
            Kind::Corrupt => return self.lose_data(Step::Corrupt { machine: any }, any, duration, view),
            Kind::LogAway => return self.log_away(any, duration, view),
            Kind::RolledBack => return self.rolled_back(any, view),
            Kind::RestartFence => return self.restart_fence(view),
            Kind::ApplySkew => return self.apply_skew(view),
        })
    }

    /// One of several data directories, or all.
    fn directory(&mut self, view: &View) -> Option<usize> {
        let one = self.random.below(view.directory_count as u64) as usize;
        (view.directory_count > 1 && self.random.chance(1, 2)).then_some(one)
    }

    fn duration(&mut self) -> Time {
        // Short and long ones alike: the exponent is drawn, not the length.
        let length = self.temper.duration_max >> self.random.below(7);
        length / 2 + self.random.below(length / 2 + 1)
    }

    fn leader(&mut self, view: &View) -> Option<usize> {
        let count = view.leaders.len() as u64;
        view.leaders.get(self.random.below(count) as usize).copied()
    }

    /// Leaders die as often as all others together.
    fn victim(&self, any: usize, view: &View) -> usize {
        if any.is_multiple_of(2) { view.leaders.first().copied().unwrap_or(any) } else { any }
    }

    /// Long enough for the others to elect another leader, of whom the one that is left with the old leader does not hear.
    /// That takes a minority of two, or a leader with a learner; among three machines the leader is alone.
    fn isolate_with_one(&mut self, view: &View) -> Option<Vec<(Time, Step)>> {
        let leader = self.leader(view)?;
        let rest = others(&[leader], view);
        let turn = self.random.below(rest.len() as u64) as usize;
        let minority = if view.machine_count == 3 { vec![leader] } else { vec![leader, rest[turn]] };
        let duration = self.temper.refusal + self.random.below(2 * self.temper.refusal);
        Some(cut(&minority, &others(&minority, view), true, 0, duration))
    }

    fn pause(&mut self, machine: usize) -> Vec<(Time, Step)> {
        let duration = MILLISECOND + self.random.below(3 * self.temper.refusal);
        vec![(0, Step::Pause { machine }), (duration, Step::Resume { machine })]
    }

    fn stop(&mut self, machine: usize, is_power_loss: bool, duration: Time) -> Vec<(Time, Step)> {
        vec![(0, Step::Stop { machine, is_power_loss }), (duration, Step::Start { machine })]
    }

    fn stop_everything(&mut self, view: &View) -> Vec<(Time, Step)> {
        let mut steps = Vec::new();
        for machine in 0..view.machine_count {
            steps.push((0, Step::Stop { machine, is_power_loss: true }));
            steps.push((MILLISECOND + self.random.below(300 * MILLISECOND), Step::Start { machine }));
        }
        steps
    }

    /// Only while nobody misses anything: no system survives the loss of a majority. What was lost before is there again by then.
    fn lose_data(&self, loss: Step, machine: usize, duration: Time, view: &View) -> Option<Vec<(Time, Step)>> {
        if !view.is_whole {
            return None;
        }
        let stop = Step::Stop { machine, is_power_loss: true };
        Some(vec![(0, stop), (0, loss), (duration, Step::Start { machine })])
    }

    /// Under the same condition. Its node may start several times before the log is back.
    fn log_away(&mut self, machine: usize, duration: Time, view: &View) -> Option<Vec<(Time, Step)>> {
        let directory = self.random.below(view.directory_count as u64) as usize;
        let mut steps = self.lose_data(Step::TakeLog { machine, directory }, machine, duration, view)?;
        let back = duration + self.random.below(2 * REPLACED_AFTER);
        steps.push((back, Step::GiveLog { machine }));
        Some(steps)
    }

    /// The disk of `machine` is put back from a copy that was made a while before; perhaps the process was started again in
    /// between. Half of the time what it has forgotten is what counts: the copy comes back while those who have it otherwise are
    /// cut off, and its vote would elect somebody who does not.
    ///
    /// ```text
    /// waiting voters --x-- leader ---- machine       (what is acknowledged now is on the leader and the machine)
    /// waiting voters ---- copy --x-- leader          (a majority that has never heard of it)
    /// ```
    fn rolled_back(&mut self, machine: usize, view: &View) -> Option<Vec<(Time, Step)>> {
        if self.has_rolled_back || !view.is_whole {
            return None;
        }
        self.has_rolled_back = true;
        if self.random.chance(1, 3) {
            return Some(self.cloned(machine));
        }
        let refusal = self.temper.refusal;
        let mut steps = vec![(0, Step::Copy { machine })];
        let mut at = self.random.below(refusal);
        if self.random.chance(1, 3) {
            steps.push((at, Step::Stop { machine, is_power_loss: self.random.chance(1, 2) }));
            at += MILLISECOND + self.random.below(100 * MILLISECOND);
            steps.push((at, Step::Start { machine }));
            at += refusal + self.random.below(2 * refusal);
        }
        let mark = at + self.random.below(refusal);
        let back = mark + HEARD_MIN + MILLISECOND;
        steps.push((mark, Step::Mark { machine }));
        steps.push((back, Step::PutBack { machine, is_power_loss: self.random.chance(1, 4) }));
        steps.push((back + MILLISECOND + self.random.below(200 * MILLISECOND), Step::Start { machine }));
        let leader = view.leaders.iter().copied().find(|leader| *leader != machine);
        if let Some(leader) = leader.filter(|_| self.random.chance(1, 2)) {
            let mut rest = others(&[leader, machine], view);
            let turn = self.random.below(rest.len() as u64) as usize;
            rest.rotate_left(turn);
            let (waiting, knowing) = rest.split_at(view.machine_count / 2);
            let knowing = [&[leader], knowing].concat();
            let lag = self.random.below(HEARD_MIN);
            let end = back + 3 * refusal + self.random.below(refusal);
            steps.extend(cut(&knowing, waiting, true, back - lag, end));
            steps.extend(cut(&knowing, &[machine], true, back, end));
        }
        Some(steps)
    }

    /// A second process of the node starts with a copy, either at once, when nobody but the node itself speaks against it, or when it
    /// has forgotten something.
    fn cloned(&mut self, machine: usize) -> Vec<(Time, Step)> {
        let refusal = self.temper.refusal;
        let soon = MILLISECOND + self.random.below(refusal);
        if self.random.chance(1, 2) {
            return vec![(0, Step::Copy { machine }), (soon, Step::Clone { machine })];
        }
        let start = soon + HEARD_MIN + MILLISECOND + self.random.below(refusal);
        vec![(0, Step::Copy { machine }), (soon, Step::Mark { machine }), (start, Step::Clone { machine })]
    }

    /// A leader keeps its lease by the word of voters, one of which restarts at once while the rest has long been
    /// waiting for its vote:
    ///
    /// ```text
    /// waiting voters --x-- leader ---- granting voters          (until the waiting ones have given up on the leader)
    /// waiting voters --x-- leader --x-- granting voters         (one of them restarts here)
    ///        |______________________________|                   (a majority without the leader)
    /// ```
    fn restart_fence(&mut self, view: &View) -> Option<Vec<(Time, Step)>> {
        let leader = self.leader(view)?;
        if view.running.len() < view.machine_count {
            return None;
        }
        let mut rest = others(&[leader], view);
        let turn = self.random.below(rest.len() as u64) as usize;
        rest.rotate_left(turn);
        let (waiting, granting) = rest.split_at(view.machine_count / 2);
        let refusal = self.temper.refusal;
        let tired = refusal + self.random.below(refusal);
        let back = tired + MILLISECOND + self.random.below(refusal / 8);
        let end = back + refusal;
        let mut steps = cut(&[leader], waiting, true, 0, end);
        steps.extend(cut(&[leader], granting, true, tired, end));
        steps.push((tired, Step::Stop { machine: granting[0], is_power_loss: self.random.chance(1, 2) }));
        steps.push((back, Step::Start { machine: granting[0] }));
        Some(steps)
    }

    /// A leader dies when it has acknowledged writes whose commitment the others have not heard of, because its word takes
    /// long to reach them. The others handle what arrives in large batches, so that the news of the commitment, which the
    /// first entry of the next leader brings, and a client's read of the same record come together.
    fn apply_skew(&mut self, view: &View) -> Option<Vec<(Time, Step)>> {
        let leader = self.leader(view)?;
        let refusal = self.temper.refusal;
        let extra_delay = refusal / 16 + self.random.below(refusal / 6);
        let delay_max = refusal / 40 + self.random.below(refusal / 5);
        let death = 2 * extra_delay + self.random.below(refusal);
        let end = death + 3 * refusal;
        let mut steps = vec![(0, Step::SlowWires { machine: leader, extra_delay })];
        for machine in others(&[leader], view) {
            steps.push((death, Step::SlowProcess { machine, delay_max }));
            steps.push((end, Step::SlowProcess { machine, delay_max: 0 }));
        }
        steps.push((death, Step::Stop { machine: leader, is_power_loss: false }));
        steps.extend(others(&[leader], view).into_iter().map(|other| (death, Step::Break { a: leader, b: other })));
        steps.push((death, Step::SlowWires { machine: leader, extra_delay: 0 }));
        steps.push((end, Step::Start { machine: leader }));
        Some(steps)
    }
}

fn others(these: &[usize], view: &View) -> Vec<usize> {
    (0..view.machine_count).filter(|machine| !these.contains(machine)).collect()
}

fn cut(a: &[usize], b: &[usize], is_both_ways: bool, start: Time, end: Time) -> Vec<(Time, Step)> {
    let mut steps = Vec::new();
    for &from in a {
        for &to in b {
            steps.push((start, Step::Cut { from, to }));
            steps.push((end, Step::Heal { from, to }));
            if is_both_ways {
                steps.push((start, Step::Cut { from: to, to: from }));
                steps.push((end, Step::Heal { from: to, to: from }));
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 29] = [
        Kind::CutPair,
        Kind::CutOneWay,
        Kind::IsolateOne,
        Kind::IsolateLeader,
        Kind::IsolateLeaderWithOne,
        Kind::BreakLinks,
        Kind::Pause,
        Kind::PauseLeader,
        Kind::KillProcess,
        Kind::PowerLoss,
        Kind::PowerLossEverywhere,
        Kind::SlowDisk,
        Kind::SlowProcess,
        Kind::FailSync,
        Kind::FullDisk,
        Kind::ReadOnlyDisk,
        Kind::ClockRate,
        Kind::StepWall,
        Kind::TimePasses,
        Kind::Transfer,
        Kind::BreakClients,
        Kind::Wipe,
        Kind::LoseMachine,
        Kind::Corrupt,
        Kind::LogAway,
        Kind::RolledBack,
        Kind::RestartFence,
        Kind::ApplySkew,
        Kind::Learners { most: 2 },
    ];

    fn nemesis(kind: Kind, seed: u64) -> Nemesis {
        let temper = Temper {
            kinds: vec![(kind, 1)],
            gap: (1, 2),
            duration_max: 1_000 * MILLISECOND,
            refusal: 400 * MILLISECOND,
            clock_rate_error_ppm: 100,
        };
        Nemesis::new(temper, Random::new(seed))
    }

    fn view(machine_count: usize) -> View {
        let running = (0..machine_count).collect();
        View { machine_count, leaders: vec![1], running, is_whole: true, directory_count: 2 }
    }

    /// What ends `step`, unless it needs no end.
    fn undoing(step: Step) -> Option<Step> {
        match step {
            Step::Cut { from, to } => Some(Step::Heal { from, to }),
            Step::Stop { machine, .. } | Step::PutBack { machine, .. } => Some(Step::Start { machine }),
            Step::Pause { machine } => Some(Step::Resume { machine }),
            Step::TakeLog { machine, .. } => Some(Step::GiveLog { machine }),
            Step::SlowDisk { machine, directory, factor: 2.. } => {
                Some(Step::SlowDisk { machine, directory, factor: 1 })
            }
            Step::SlowProcess { machine, delay_max: 1.. } => Some(Step::SlowProcess { machine, delay_max: 0 }),
            Step::SlowWires { machine, extra_delay: 1.. } => Some(Step::SlowWires { machine, extra_delay: 0 }),
            Step::FailSyncs { machine, directory, is_failing: true } => {
                Some(Step::FailSyncs { machine, directory, is_failing: false })
            }
            Step::FillDisk { machine, is_full: true } => Some(Step::FillDisk { machine, is_full: false }),
            Step::ProtectDisk { machine, is_read_only: true } => {
                Some(Step::ProtectDisk { machine, is_read_only: false })
            }
            _ => None,
        }
    }

    #[test]
    fn every_fault_undoes_itself() {
        for kind in KINDS {
            for (seed, machine_count) in (0..50).flat_map(|seed| [(seed, 3), (seed, 5)]) {
                let (_, steps) = nemesis(kind, seed).decide(&view(machine_count)).expect("possible");
                assert!(!steps.is_empty(), "{kind:?}");
                for (at, step) in &steps {
                    if let Some(end) = undoing(*step) {
                        let is_undone = steps.iter().any(|(later, other)| *other == end && later >= at);
                        assert!(is_undone, "{kind:?} seed {seed}: {step:?} of {steps:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn data_is_lost_only_while_everything_else_is_there_and_again_once_it_is() {
        for kind in [Kind::Wipe, Kind::LoseMachine, Kind::Corrupt, Kind::LogAway] {
            let mut nemesis = nemesis(kind, 1);
            assert!(nemesis.decide(&View { is_whole: false, ..view(3) }).is_none());
            assert!(nemesis.decide(&view(3)).is_some() && nemesis.decide(&view(3)).is_some());
        }
    }

    #[test]
    fn a_second_directory_is_lost_only_once_the_first_is_replaced() {
        for kind in [Kind::FailSync, Kind::ReadOnlyDisk] {
            let mut nemesis = nemesis(kind, 1);
            assert!(nemesis.decide(&View { is_whole: false, ..view(3) }).is_none(), "{kind:?}");
            assert!(nemesis.decide(&view(3)).is_some() && nemesis.decide(&view(3)).is_some(), "{kind:?}");
            let single = View { is_whole: false, directory_count: 1, ..view(3) };
            assert!(nemesis.decide(&single).is_some(), "the process ends, and comes back with all it had");
        }
    }
}
