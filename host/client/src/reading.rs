//! How a handle reads: how fresh, from whom, in which session, and who is told what served the read.

use crate::call::{Answer, call};
use crate::error::Result;
use crate::hedging::{HedgeOptions, TableOptions};
use crate::ledger::Hedging;
use crate::routes::{Place, Routes};
use crate::session::{Floor, Session};
use bytes::Bytes;
use hedgerow_hedge::Kind;
use hedgerow_routing::{Address, ReplicaRead};
use hedgerow_types::{GroupId, Index, PartitionIndex, ReadLevel, SessionToken};
use hedgerow_wire::{Body, Extension, Reply};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How reads are made. The default reads at the leader, at the table's level (an option of the table, linearizable
/// unless it was changed).
///
/// ```
/// use hedgerow_client::{ReadLevel, ReadOptions, ReplicaRead};
/// use std::time::Duration;
///
/// let options = ReadOptions {
///     level: Some(ReadLevel::Bounded(Duration::from_secs(2))),
///     mode: ReplicaRead::ClosestReplicas,
///     ..ReadOptions::default()
/// };
/// assert_eq!(options.level, "bounded=2s".parse().ok());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// How fresh reads must be; `None` = as the table says. A bound outside of 1 ms to 24 h counts as linearizable.
    pub level: Option<ReadLevel>,
    /// Which replicas are asked. Whoever is asked, the level holds.
    pub mode: ReplicaRead,
    /// Who is told about each read that was served.
    pub observer: Option<Observer>,
}

/// A function that is called with the facts of each read that a replica served: once per request, so once for a `get`,
/// once per page of a scan and once per partition of a `batch_get`. It runs in the task that reads and should be quick.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(&Served) + Send + Sync>);

impl Observer {
    /// An observer that calls `observe`.
    pub fn new(observe: impl Fn(&Served) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Who served a read, and what it reflects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The node that served it.
    pub node: Address,
    /// The part that the node's replica plays, as far as this client knows.
    pub role: Option<Role>,
    /// The partition.
    pub partition: PartitionIndex,
    /// The log index that the read reflects; 0 = not told.
    pub index: Index,
    /// How old the data was at most; `None` if that is not known or, as for linearizable reads, has no meaning.
    pub staleness: Option<Duration>,
    /// Attempts that it took, this one included.
    pub attempts: u32,
    /// How long the request waited at the node until it was served; `None` = not told.
    pub queue: Option<Duration>,
    /// What serving costs the node at the moment, on average; `None` = not told.
    pub service: Option<Duration>,
    /// The level at which it was served; `None` = not told. It differs from the one that was asked for where a
    /// [`crate::Fallback`] answered.
    pub level: Option<ReadLevel>,
    /// Why the attempt was sent that served it.
    pub kind: Kind,
    /// How the node came to its answer, if [`crate::HedgeOptions::wants_trace`].
    pub mode: Option<String>,
}

/// The part that a replica plays in its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It leads.
    Leader,
    /// It votes.
    Follower,
    /// It only follows.
    Learner,
}

impl Role {
    /// What a node calls itself at the beginning of its words on how it came to an answer.
    pub(crate) fn told(mode: &str) -> Option<Self> {
        [Self::Leader, Self::Follower, Self::Learner]
            .into_iter()
            .find(|role| mode.split(' ').next() == Some(role.name()))
    }

    /// Its name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What every table handle holds: the table, and how it is read.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) routes: Arc<Routes>,
    /// `None` = the default, which costs nothing.
    pub(crate) reading: Option<Arc<Reading>>,
    /// `None` = every request has one attempt at a time.
    pub(crate) hedging: Option<Arc<Hedging>>,
}

impl Handle {
    pub(crate) fn reading(&self, options: ReadOptions) -> Self {
        let session = self.reading.as_ref().and_then(|reading| reading.session.clone());
        Self { reading: Reading { options, session }.shared(), ..self.clone() }
    }

    pub(crate) fn opened_with(&self, options: TableOptions) -> Self {
        let read = options.read.map_or_else(|| self.clone(), |read| self.reading(read));
        read.hedging(options.hedge)
    }

    pub(crate) fn hedging(&self, options: HedgeOptions) -> Self {
        Self { hedging: self.routes.cluster.hedging(options), ..self.clone() }
    }

    pub(crate) fn in_session(&self, session: &Session) -> Self {
        let options = self.reading.as_ref().map(|reading| reading.options.clone()).unwrap_or_default();
        Self { reading: Reading { options, session: Some(session.clone()) }.shared(), ..self.clone() }
    }

    /// Runs `body` against the partition at `place` until it succeeds, fails for good or reaches the deadline.
    pub(crate) async fn call(&self, place: Place<'_>, body: &Body) -> Result<Reply> {
        let Answer { reply, .. } = call(self, place, body).await?;
        Ok(reply)
    }
}

/// How a handle reads, where that is not the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) options: ReadOptions,
    pub(crate) session: Option<Session>,
}

impl Reading {
    pub(crate) fn shared(self) -> Option<Arc<Self>> {
        let ReadOptions { level, mode, observer } = &self.options;
        let is_default = (level, *mode) == (&None, ReplicaRead::Leader) && observer.is_none() && self.session.is_none();
        (!is_default).then(|| Arc::new(self))
    }

    /// The mode, if it is one that asks others than the leader.
    pub(crate) fn replicas(&self) -> Option<ReplicaRead> {
        Some(self.options.mode).filter(|mode| *mode != ReplicaRead::Leader)
    }

    pub(crate) fn floor(&self, group: GroupId) -> Floor {
        self.session.as_ref().map(|session| session.floor(group)).unwrap_or_default()
    }

    /// Says in `extension` how fresh the read must be and who may serve it: the same in every attempt.
    pub(crate) fn write(&self, extension: &mut Extension, group: GroupId, floor: Floor) {
        let level = if floor.is_uncertain { Some(ReadLevel::Linearizable) } else { self.options.level };
        if let Some(level) = level {
            extension.set_read_level(level);
        }
        // Where the table decides, its level may be that of a session.
        if floor.index > 0 && matches!(level, None | Some(ReadLevel::Session)) {
            extension.session_token = Some(Bytes::from(SessionToken::of(group, floor.index).encode()));
        }
        extension.any_replica |= self.replicas().is_some();
    }

    pub(crate) fn observe_index(&self, group: GroupId, index: Index) {
        if let Some(session) = &self.session {
            session.observe(group, index);
        }
    }

    /// Tells the observer, if there is one, what `served` makes.
    pub(crate) fn tell(&self, served: impl FnOnce() -> Served) {
        if let Some(Observer(observe)) = &self.options.observer {
            observe(&served());
        }
    }
}
