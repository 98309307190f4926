//! How a handle reads: how fresh, from whom, in which session, and who is told what served the read.

use crate::balancing::LoadBalancing;
use crate::served::Served;
use crate::session::{Floor, Session};
use bytes::Bytes;
use hedgerow_routing::{Address, ReplicaRead};
use hedgerow_types::{GroupId, Index, ReadLevel, SessionToken};
use hedgerow_wire::Extension;
use std::fmt;
use std::sync::Arc;

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
    /// Who is chosen among them.
    pub balancing: LoadBalancing,
    /// Nodes that are asked for nothing that another one can answer. No attempt of a read is sent there; with
    /// [`ReplicaRead::Leader`] such reads prefer the leader and ask another replica, at their level, where that one is excluded.
    /// If every replica of a partition is excluded, its reads fail at once with [`crate::ErrorKind::Invalid`]. Writes go to who
    /// leads, excluded or not, as nobody else can accept them; further attempts beside the first do not. What is asked of any node
    /// (a table's map, for example) may be asked of these, too.
    pub excluded: Vec<Address>,
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

/// How a handle reads, where that is not the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) options: ReadOptions,
    pub(crate) session: Option<Session>,
}

impl Reading {
    pub(crate) fn shared(self) -> Option<Arc<Self>> {
        let ReadOptions { level, mode, balancing, excluded, observer } = &self.options;
        let is_default = (level, *mode) == (&None, ReplicaRead::Leader)
            && (balancing.custom().is_none() && excluded.is_empty() && observer.is_none())
            && self.session.is_none();
        (!is_default).then(|| Arc::new(self))
    }

    /// The mode, if it is one that asks others than the leader.
    pub(crate) fn replicas(&self) -> Option<ReplicaRead> {
        match self.options.mode {
            ReplicaRead::Leader if self.options.excluded.is_empty() => None,
            // The leader may be excluded.
            ReplicaRead::Leader => Some(ReplicaRead::PreferLeader),
            mode => Some(mode),
        }
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
