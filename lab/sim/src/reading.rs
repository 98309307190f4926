//! How clients read: at which level, at whom, and in which words.

use crate::client::BUDGET;
use crate::clock::MILLISECOND;
use crate::history::{Call, Time};
use hedgerow_client::{Fallback, HedgeOptions, Policy, Retry, TieMode};
use hedgerow_hedge::{Gaps, Latencies, Plan, RequestInfo, SpeculativeExecutionPolicy};
use hedgerow_types::ReadLevel;
use hedgerow_types::random::Random;
use std::sync::Arc;
use std::time::Duration;

/// What the table says of reads that do not say it themselves. Nothing changes it within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableReads {
    /// `read_level`.
    pub read_level: ReadLevel,
    /// `backup_read_level`.
    pub backup_read_level: ReadLevel,
    /// `follower_reads`.
    pub follower_reads: bool,
}

impl TableReads {
    /// What holds for a table without options.
    pub const DEFAULT: Self = Self {
        read_level: ReadLevel::Linearizable,
        backup_read_level: ReadLevel::Bounded(Duration::from_secs(1)),
        follower_reads: false,
    };

    /// The usual rules in half of all runs, otherwise any.
    pub fn drawn(random: &mut Random) -> Self {
        if random.chance(1, 2) {
            return Self::DEFAULT;
        }
        let mut level = || match random.below(4) {
            0 => ReadLevel::Linearizable,
            1 => ReadLevel::Session,
            2 => ReadLevel::Bounded(Duration::from_millis(50 + random.below(1_000))),
            _ => ReadLevel::Eventual,
        };
        let (read_level, backup_read_level) = (level(), level());
        Self { read_level, backup_read_level, follower_reads: random.chance(1, 2) }
    }

    /// The table's options as they are set.
    pub fn options(&self) -> [(&'static str, String); 3] {
        [
            ("read_level", self.read_level.to_string()),
            ("backup_read_level", self.backup_read_level.to_string()),
            ("follower_reads", self.follower_reads.to_string()),
        ]
    }
}

/// How a request says who may answer it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// The leader, at the level that the request names. Every write is asked for so.
    #[default]
    Leader,
    /// Any replica, at the level that the request names.
    AnyReplica,
    /// Any replica, at the table's level.
    TableLevel,
    /// As a client of Pegasus asks: nothing is said, and little is told back.
    Plain,
    /// The same with Pegasus' backup flag.
    Backup,
}

impl Manner {
    /// Whether the request carries our fields.
    pub const fn is_extended(self) -> bool {
        match self {
            Self::Leader | Self::AnyReplica | Self::TableLevel => true,
            Self::Plain | Self::Backup => false,
        }
    }
}

/// An operation and how it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// On which record.
    pub key: u32,
    /// What; a read names the level at which it is judged.
    pub call: Call,
    /// In which words.
    pub manner: Manner,
    /// How its attempts race each other; `None` = one at a time.
    pub hedging: Option<Hedging>,
}

/// How the attempts of an operation race each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hedging {
    /// When they are sent.
    pub plan: Plan,
    /// How old the data may be with which an attempt is content that is sent as a fallback.
    pub bound: Duration,
}

impl Hedging {
    /// Two attempts at once, at the leader and another replica where both are to be asked.
    pub const TWICE: Self = Self {
        plan: Plan {
            delay: Some(Duration::from_nanos(1)),
            gap: Duration::ZERO,
            step: Duration::ZERO,
            gaps: Gaps::NONE,
            max_executions: 2,
            tie: None,
            fallback: None,
        },
        bound: Duration::from_secs(1),
    };

    /// Short delays and long ones, down to none at all. Half of the reads are tied where `may_tie`, and some have a fallback
    /// where `may_fall_back`.
    pub fn drawn(may_tie: bool, may_fall_back: bool, random: &mut Random) -> Self {
        let mut time = |max: Time| {
            let most = max >> random.below(8);
            Duration::from_nanos(random.below(most + 1))
        };
        let (delay, gap, step) = (time(30 * MILLISECOND), time(20 * MILLISECOND), time(5 * MILLISECOND));
        let (stagger, fallback) = (time(2 * MILLISECOND), time(40 * MILLISECOND));
        let bound = Duration::from_millis(20 + random.below(1_000));
        let plan = Plan {
            delay: random.chance(7, 8).then_some(delay),
            gap,
            step,
            max_executions: 2 + random.below(3) as u8,
            tie: (may_tie && random.chance(1, 2)).then_some(stagger),
            fallback: (may_fall_back && random.chance(1, 4)).then_some(fallback),
            ..Plan::default()
        };
        Self { plan, bound }
    }

    /// The same in the client's words. What the plan does not say is drawn.
    pub fn options(self, random: &mut Random) -> HedgeOptions {
        let policy = Policy::Custom(Arc::new(self));
        let tie = match self.plan.tie {
            None => TieMode::Never,
            Some(_) if random.chance(1, 4) => TieMode::Auto,
            Some(_) => TieMode::Always,
        };
        HedgeOptions {
            reads: policy.clone(),
            writes: policy,
            tie,
            retry: match random.below(8) {
                0 => Retry::Rethrow,
                1 => Retry::SameReplica,
                _ => Retry::NextReplica,
            },
            fallback: self.plan.fallback.map(|after| Fallback { after, bound: self.bound }),
            busy_threshold: random.chance(1, 8).then(|| Duration::from_millis(1 + random.below(20))),
            budget: Some(BUDGET),
            is_idempotent: random.chance(1, 16).then_some(false),
            observer: None,
            wants_trace: random.chance(1, 8),
        }
    }
}

/// The same for every request.
impl SpeculativeExecutionPolicy for Hedging {
    fn plan(&self, _: RequestInfo<'_>, _: &dyn Latencies, _: f64) -> Plan {
        self.plan
    }
}

impl Wish {
    /// The operation as the leader is asked for it.
    pub const fn of_leader(key: u32, call: Call) -> Self {
        Self { key, call, manner: Manner::Leader, hedging: None }
    }

    /// A read that any replica may answer.
    pub const fn of_any(key: u32, level: ReadLevel) -> Self {
        Self { key, call: Call::Get(level), manner: Manner::AnyReplica, hedging: None }
    }
}

/// How a run's clients read, in parts of a hundred.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Reads that are linearizable, session reads and bounded ones; the rest is eventual.
    pub levels: [u64; 3],
    /// Reads that any replica may answer.
    pub any_replica: u64,
    /// Of those, the ones that leave the level to the table.
    pub table_level: u64,
    /// Linearizable reads of those that are sent twice.
    pub hedged: u64,
    /// Reads that any replica may answer and writes, of those that say their level: their attempts race each other.
    pub raced: u64,
    /// Reads of clients of Pegasus, before anything else is drawn.
    pub pegasus: u64,
    /// Shortest and longest bound.
    pub bound: (Time, Time),
}

impl Mix {
    /// Where the leader's reads are what the run is about.
    pub const MOSTLY_LEADER: Self = Self {
        levels: [70, 12, 13],
        any_replica: 45,
        table_level: 6,
        hedged: 20,
        raced: 20,
        pegasus: 5,
        bound: (20 * MILLISECOND, 2_000 * MILLISECOND),
    };
    /// Where reads at any replica are.
    pub const ANYWHERE: Self =
        Self { levels: [38, 25, 30], any_replica: 85, table_level: 8, hedged: 15, pegasus: 10, ..Self::MOSTLY_LEADER };
    /// Where it matters how old an answer says that it is.
    pub const AGED: Self = Self { levels: [30, 15, 30], ..Self::ANYWHERE };
    /// Every read is linearizable and sent to the leader and another.
    pub const HEDGED: Self = Self {
        levels: [100, 0, 0],
        any_replica: 100,
        table_level: 0,
        hedged: 100,
        raced: 0,
        pegasus: 0,
        ..Self::MOSTLY_LEADER
    };
    /// Everything is raced.
    pub const RACED: Self = Self {
        levels: [50, 20, 20],
        any_replica: 100,
        table_level: 0,
        hedged: 0,
        raced: 100,
        pegasus: 0,
        ..Self::MOSTLY_LEADER
    };

    /// A read of `key`.
    pub fn draw(&self, key: u32, table: &TableReads, random: &mut Random) -> Wish {
        if random.chance(self.pegasus, 100) {
            return Self::pegasus(key, table, random);
        }
        let level = self.level(random);
        if !random.chance(self.any_replica, 100) {
            return Wish::of_leader(key, Call::Get(level));
        }
        if random.chance(self.table_level, 100) {
            let call = Call::Get(table.read_level);
            return Wish { call, manner: Manner::TableLevel, ..Wish::of_any(key, level) };
        }
        let is_linearizable = level == ReadLevel::Linearizable;
        if random.chance(self.raced, 100) {
            let hedging = Some(Hedging::drawn(true, is_linearizable, random));
            return Wish { hedging, ..Wish::of_any(key, level) };
        }
        let is_hedged = is_linearizable && random.chance(self.hedged, 100);
        Wish { hedging: is_hedged.then_some(Hedging::TWICE), ..Wish::of_any(key, level) }
    }

    /// A write on `key`: another node than the leader passes it on.
    pub fn draw_write(&self, key: u32, call: Call, random: &mut Random) -> Wish {
        let is_raced = random.chance(self.raced, 100);
        let hedging = is_raced.then(|| Hedging::drawn(false, false, random));
        Wish { hedging, ..Wish::of_leader(key, call) }
    }

    fn pegasus(key: u32, table: &TableReads, random: &mut Random) -> Wish {
        let any = Wish::of_any(key, table.backup_read_level);
        if random.chance(2, 3) {
            return Wish { manner: Manner::Backup, ..any };
        }
        Wish { call: Call::Get(table.read_level), manner: Manner::Plain, ..any }
    }

    fn level(&self, random: &mut Random) -> ReadLevel {
        let drawn = random.below(100);
        let [linearizable, session, bounded] = self.levels;
        if drawn < linearizable {
            ReadLevel::Linearizable
        } else if drawn < linearizable + session {
            ReadLevel::Session
        } else if drawn < linearizable + session + bounded {
            // Short and long ones alike.
            let (min, max) = self.bound;
            let most = (max >> random.below(6)).max(min);
            ReadLevel::Bounded(Duration::from_millis((min + random.below(most - min + 1)) / MILLISECOND))
        } else {
            ReadLevel::Eventual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_level_and_every_manner_is_drawn_and_bounds_stay_in_their_range() {
        let mut random = Random::new(1);
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        let (least, most) = (Duration::from_millis(20), Duration::from_millis(2_000));
        for _ in 0..5_000 {
            let wish = Mix::ANYWHERE.draw(3, &TableReads::DEFAULT, &mut random);
            let Call::Get(level) = wish.call else { panic!("{wish:?} is no read") };
            if let ReadLevel::Bounded(bound) = level {
                assert!((least..=most).contains(&bound), "{bound:?}");
            }
            let name = level.to_string().split('=').next().map(str::to_owned).unwrap_or_default();
            *seen.entry(name).or_default() += 1;
            *seen.entry(format!("{:?}", wish.manner)).or_default() += 1;
            *seen.entry(format!("hedged {}", wish.hedging == Some(Hedging::TWICE))).or_default() += 1;
            *seen.entry(format!("raced {}", wish.hedging.is_some())).or_default() += 1;
        }
        for name in ["linearizable", "session", "bounded", "eventual", "hedged true", "raced true"] {
            assert!(seen[name] > 100, "{name}: {seen:?}");
        }
        for manner in [Manner::Leader, Manner::AnyReplica, Manner::TableLevel, Manner::Plain, Manner::Backup] {
            assert!(seen[&format!("{manner:?}")] > 50, "{manner:?}: {seen:?}");
        }
    }

    #[test]
    fn what_a_request_does_not_say_is_judged_as_the_table_says() {
        let table =
            TableReads { read_level: ReadLevel::Session, backup_read_level: ReadLevel::Eventual, follower_reads: true };
        let mut random = Random::new(2);
        for _ in 0..500 {
            let wish = Mix::ANYWHERE.draw(3, &table, &mut random);
            match wish.manner {
                Manner::TableLevel | Manner::Plain => assert_eq!(wish.call, Call::Get(ReadLevel::Session)),
                Manner::Backup => assert_eq!(wish.call, Call::Get(ReadLevel::Eventual)),
                Manner::Leader | Manner::AnyReplica => assert!(matches!(wish.call, Call::Get(_))),
            }
        }
    }
}
