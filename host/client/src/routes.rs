//! One table's map and how it is kept fresh: one query at a time, not too often, shared by all who wait for it.

use crate::balancing::{self, LoadBalancingPolicy};
use crate::cluster::{ANY_NODE_PATIENCE, Cluster, Question, Sort};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::metrics::Hedging;
use crate::runtime::{now, sleep, sleep_until, spawn};
use crate::sequences::Sequences;
use crate::served::Role;
use bytes::Bytes;
use hedgerow_hedge::RequestInfo;
use hedgerow_routing::{Address, Choice, Labels, Mark, PartitionRoute, ReplicaRead, TableKind, TableMap};
use hedgerow_types::key::partition_of_hash;
use hedgerow_types::{GroupId, PartitionIndex, TableId};
use hedgerow_wire::message::{NodePlace, QueryConfig, QueryConfigReply};
use hedgerow_wire::{Body, Reply, Text};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

/// Least time between the starts of two queries for the same map.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(30);
/// Age at which a map that reads choose replicas by is fetched again, so that learners that were added get their
/// share. Those that were removed are noticed when they are asked.
const MAP_AGE_MAX: Duration = Duration::from_secs(5);
/// How long one refresh goes on asking nodes.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);
/// How often nodes are asked for a table until one knows it that is known to be there.
const NEWS_PAUSE: Duration = Duration::from_millis(20);

/// What a client knows about one table; shared by all its handles.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(crate) cluster: Arc<Cluster>,
    name: String,
    state: Mutex<State>,
    /// What plain handles share that profiles hedge.
    profiled: OnceLock<Arc<Hedging>>,
    /// Tells those who wait that a refresh has ended, in the order in which they came: a simulated run is to be the same each time.
    finished: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    map: TableMap,
    /// Why the last refresh brought no map, if it did not.
    failure: Option<Error>,
    is_refreshing: bool,
    next_refresh: Instant,
    /// When the map is too old to choose replicas by.
    outdated_at: Instant,
    sequences: FxHashMap<GroupId, Arc<Sequences>>,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination<'a> {
    /// To the partition of this partition hash.
    Hash(u64),
    /// To the partition of this key of an ordered table.
    Key(&'a [u8]),
    /// To this partition.
    Partition(PartitionIndex),
}

/// Whom to ask for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) table: TableId,
    pub(crate) partition: PartitionIndex,
    pub(crate) address: Option<Address>,
}

/// What a read looks for that any replica may serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub(crate) mode: ReplicaRead,
    /// Who was asked already.
    pub(crate) tried: &'a [Address],
    /// Who is never asked.
    pub(crate) excluded: &'a [Address],
    /// Who decides, if that is not the selector.
    pub(crate) balancing: Option<&'a dyn LoadBalancingPolicy>,
    /// What the policy is told of the request.
    pub(crate) operation: &'static str,
    pub(crate) attempt: u32,
    /// Bytes that the reply is expected to have.
    pub(crate) size_hint: usize,
}

impl State {
    /// Whether the map is to be fetched again, and nobody does.
    fn is_outdated(&self, now: Instant) -> bool {
        self.outdated_at <= now && !self.is_refreshing
    }

    fn partition(&self, place: Destination<'_>) -> PartitionIndex {
        match place {
            Destination::Hash(hash) => partition_of_hash(hash, self.map.partition_count()),
            Destination::Key(key) => self.map.partition_for_key(key),
            Destination::Partition(partition) => partition,
        }
    }
}

impl Target {
    pub(crate) fn group(self) -> GroupId {
        GroupId { table: self.table, partition: self.partition }
    }
}

impl Routes {
    /// Fetches the map of the table `name` that was just created or recalled as number `id`, as soon as there is one: who is
    /// asked may know none yet, or the one that had the name before. An error does not take back what was done.
    pub(crate) async fn expect(cluster: Arc<Cluster>, name: &str, id: u64, deadline: Instant) -> Result<Arc<Self>> {
        let map = fetch(&cluster, name, |table| u64::from(table.0) == id, deadline).await;
        let map = map.map_err(|error| error.with_unknown_outcome(true))?;
        Ok(Arc::new(Self::new(cluster, name, map)))
    }

    /// Fetches the map of the table `name` for the first time.
    pub(crate) async fn open(cluster: Arc<Cluster>, name: &str, deadline: Instant) -> Result<Arc<Self>> {
        let map = fetch(&cluster, name, |_| true, deadline).await?;
        Ok(Arc::new(Self::new(cluster, name, map)))
    }

    fn new(cluster: Arc<Cluster>, name: &str, map: TableMap) -> Self {
        Self {
            cluster,
            name: name.to_owned(),
            state: Mutex::new(State {
                map,
                failure: None,
                is_refreshing: false,
                next_refresh: now(),
                outdated_at: now() + MAP_AGE_MAX,
                sequences: FxHashMap::default(),
            }),
            profiled: OnceLock::new(),
            finished: Arc::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What plain handles of this table share that profiles hedge.
    pub(crate) fn profiled(&self) -> &Arc<Hedging> {
        self.profiled.get_or_init(|| self.cluster.hedging_base())
    }

    /// The table that has the name, as far as known.
    pub(crate) fn table(&self) -> TableId {
        self.with_map(|map| map.table())
    }

    /// Runs `look` on the map as it is now.
    pub(crate) fn with_map<T>(&self, look: impl FnOnce(&mut TableMap) -> T) -> T {
        look(&mut lock(&self.state).map)
    }

    pub(crate) fn target(&self, place: Destination<'_>) -> Target {
        let state = lock(&self.state);
        let partition = state.partition(place);
        Target { table: state.map.table(), partition, address: state.map.target(partition) }
    }

    /// The replica to send a read to that `want` describes. Has the map fetched again, in the background, if it is old.
    pub(crate) fn choose(self: &Arc<Self>, place: Destination<'_>, want: &Want<'_>) -> Target {
        let now = now();
        let state = lock(&self.state);
        let partition = state.partition(place);
        let table = state.map.table();
        let group = GroupId { table, partition };
        let Want { mode, tried, excluded, balancing, operation, attempt, size_hint } = *want;
        let leader = state.map.leader(partition);
        let choice = state.map.route(partition);
        let choice = choice.map(|route| Choice { group, route, leader, mode, tried, excluded, size_hint });
        let selection = &self.cluster.selection;
        let (mut address, offered) = match (&choice, balancing) {
            (None, _) => (None, Vec::new()),
            (Some(choice), None) => (selection.choose(choice, now), Vec::new()),
            (Some(choice), Some(_)) => selection.offer(choice, now),
        };
        let is_outdated = state.is_outdated(now);
        drop(state);
        if let Some(policy) = balancing {
            let request = RequestInfo { operation, table: &self.name, partition, attempt };
            address = balancing::choose(policy, request, &offered, address);
        }
        if is_outdated {
            drop(self.refresh());
        }
        Target { table, partition, address }
    }

    /// Whether `partition` has a replica that is neither among `tried` nor `excluded`.
    pub(crate) fn has_others(&self, partition: PartitionIndex, tried: &[Address], excluded: &[Address]) -> bool {
        let state = lock(&self.state);
        let replicas = state.map.route(partition).into_iter().flat_map(PartitionRoute::replicas);
        state
            .map
            .leader(partition)
            .into_iter()
            .chain(replicas)
            .any(|it| !tried.contains(&it) && !excluded.contains(&it))
    }

    /// The part that the replica at `address` plays in `partition`, as far as known.
    pub(crate) fn role(&self, partition: PartitionIndex, address: Address) -> Option<Role> {
        let state = lock(&self.state);
        let route = state.map.route(partition)?;
        if state.map.leader(partition) == Some(address) {
            Some(Role::Leader)
        } else if route.learners.contains(&address) {
            Some(Role::Learner)
        } else {
            // Who led by the map and leads no more by a replica's word still votes.
            route.replicas().any(|replica| replica == address).then_some(Role::Follower)
        }
    }

    /// The replicas of the partition at `place`, the leader first.
    pub(crate) fn replicas(self: &Arc<Self>, place: Destination<'_>) -> Vec<(Address, Role)> {
        let is_outdated = lock(&self.state).is_outdated(now());
        if is_outdated {
            drop(self.refresh());
        }
        let state = lock(&self.state);
        let partition = state.partition(place);
        let leader = state.map.leader(partition);
        let Some(route) = state.map.route(partition) else { return Vec::new() };
        let role_of = |address| if route.learners.contains(&address) { Role::Learner } else { Role::Follower };
        let others = route.replicas().filter(|address| Some(*address) != leader);
        let others = others.map(|address| (address, role_of(address)));
        leader.map(|leader| (leader, Role::Leader)).into_iter().chain(others).collect()
    }

    /// The sequence numbers of writes to a partition, the client's, kept here so that a write takes no lock of the whole client.
    pub(crate) fn sequences(&self, group: GroupId) -> Arc<Sequences> {
        let mut state = lock(&self.state);
        if let Some(known) = state.sequences.get(&group) {
            return known.clone();
        }
        let sequences = self.cluster.sequences.partition(group, self.cluster.number_clock());
        state.sequences.insert(group, sequences.clone());
        sequences
    }

    /// Why the map could not be fetched, if the last try failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.state).failure.clone()
    }

    /// Whether there was no such table when the map was last asked for, which is not going on any more.
    pub(crate) fn is_gone(&self) -> bool {
        let state = lock(&self.state);
        !state.is_refreshing && state.failure.as_ref().is_some_and(|error| error.kind() == ErrorKind::NoTable)
    }

    /// Starts fetching the map unless that is under way; the result becomes true when it has been fetched.
    pub(crate) fn refresh(self: &Arc<Self>) -> Refresh {
        // Before the state is looked at: an end that comes after it is heard of.
        let finished = Arc::clone(&self.finished).notified_owned();
        let mut state = lock(&self.state);
        if !state.is_refreshing {
            state.is_refreshing = true;
            let start = state.next_refresh.max(now());
            state.next_refresh = start + REFRESH_INTERVAL_MIN;
            // It ends the refresh also if the runtime drops the task, begun or not.
            let finish = Finish(self.clone());
            spawn(async move { finish.0.run_refresh(start).await });
        }
        Refresh { finished }
    }

    async fn run_refresh(&self, start: Instant) {
        if start > now() {
            sleep_until(start).await;
        }
        let (asked, known) = self.with_map(|map| (map.mark(), map.table()));
        // Table numbers rise: who names a smaller one has not heard that the name is another table's by now. A table that was
        // recalled has a smaller one too; the name has to be opened again for that.
        let result = fetch(&self.cluster, &self.name, |table| table >= known, now() + REFRESH_TIMEOUT).await;
        self.take_over(result, asked);
    }

    fn take_over(&self, result: Result<TableMap>, asked: Mark) {
        let mut state = lock(&self.state);
        state.outdated_at = now() + MAP_AGE_MAX;
        match result {
            Ok(map) if map.kind() != state.map.kind() => {
                let text =
                    format!("the table that was opened as {:?} is dropped, and another kind has its name", self.name);
                state.failure = Some(Error::new(ErrorKind::NoTable, text));
            }
            Ok(map) => {
                tracing::debug!(table = self.name, "fetched the map");
                state.map.update(map, asked);
                state.failure = None;
            }
            Err(error) => {
                tracing::debug!(table = self.name, %error, "could not fetch the map");
                state.failure = Some(error);
            }
        }
    }
}

struct Finish(Arc<Routes>);

impl Drop for Finish {
    fn drop(&mut self) {
        lock(&self.0.state).is_refreshing = false;
        self.0.finished.notify_waiters();
    }
}

/// A refresh under way.
pub(crate) struct Refresh {
    finished: OwnedNotified,
}

impl Refresh {
    /// Waits for its end, successful or not.
    pub(crate) async fn wait(self) {
        self.finished.await;
    }
}

/// The map of the table `name`, as soon as somebody knows it who names a table that `is_it`. Fails with [`ErrorKind::NoTable`]
/// if there is none, which only the metadata's leader says.
async fn fetch(cluster: &Cluster, name: &str, is_it: impl Fn(TableId) -> bool, deadline: Instant) -> Result<TableMap> {
    let body = Body::QueryConfig(QueryConfig { app_name: Text::from(name), partition_indices: Vec::new() });
    let question = Question { body: &body, deadline, patience: ANY_NODE_PATIENCE, sort: Sort::Look };
    loop {
        let map = match cluster.ask(question).await {
            Ok(Reply::QueryConfig(mut reply)) => {
                cluster.selection.set_places(reply.nodes.take().into_iter().flatten().filter_map(place_of));
                read_map(reply)?
            }
            Ok(_) => return Err(Error::protocol("the reply to a configuration query is of another kind")),
            Err(error) if error.kind() == ErrorKind::NoTable => return Err(no_table(name)),
            Err(error) => return Err(error),
        };
        if is_it(map.table()) {
            let routes = (0..map.partition_count()).filter_map(|index| map.route(index));
            cluster.note_nodes(routes.flat_map(PartitionRoute::replicas));
            return Ok(map);
        }
        if now() + NEWS_PAUSE >= deadline {
            let text =
                format!("the nodes that answer know another table by the name {name:?}, number {}", map.table().0);
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        sleep(NEWS_PAUSE).await;
    }
}

fn no_table(name: &str) -> Error {
    Error::new(ErrorKind::NoTable, format!("there is no table {name:?}"))
}

fn read_map(reply: QueryConfigReply) -> Result<TableMap> {
    let kind = match reply.table_kind {
        None | Some(0) => TableKind::Hash,
        Some(1) => TableKind::Ordered,
        Some(other) => return Err(Error::protocol(format!("the table is of a kind {other} that is not known"))),
    };
    let mut partitions = reply.partitions;
    partitions.sort_by_key(|partition| partition.pid.partition_index);
    let is_complete = (0..).zip(&partitions).all(|(index, partition)| partition.pid.partition_index == index);
    if !is_complete || usize::try_from(reply.partition_count) != Ok(partitions.len()) {
        return Err(Error::protocol("the map does not name every partition once"));
    }
    let mut starts = reply.start_keys.unwrap_or_default().into_iter();
    let routes = partitions.into_iter().map(|partition| PartitionRoute {
        ballot: partition.ballot,
        leader: partition.primary.socket().map(Address::from),
        followers: sockets(&partition.secondaries),
        learners: sockets(partition.learners.as_deref().unwrap_or_default()),
        start: starts.next().map_or_else(Bytes::new, |start| start.0),
    });
    TableMap::new(TableId(reply.app_id as u32), kind, routes.collect())
        .map_err(|error| Error::protocol(format!("the map is not valid: {error}")))
}

/// A node's labels; of those that are not `name=value` nothing is known.
fn place_of(place: NodePlace) -> Option<(Address, Labels)> {
    let label = |label: &Text| label.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Some((place.address.socket()?.into(), place.labels.iter().filter_map(label).collect()))
}

fn sockets(addresses: &[hedgerow_wire::Address]) -> Vec<Address> {
    addresses.iter().filter_map(|address| address.socket()).map(Address::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ClientOptions;

    fn routes() -> Arc<Routes> {
        let route = PartitionRoute {
            ballot: 1,
            leader: None,
            followers: Vec::new(),
            learners: Vec::new(),
            start: Bytes::new(),
        };
        let map = TableMap::new(TableId(1), TableKind::Hash, vec![route.clone(), route]).expect("two partitions");
        let seed = "127.0.0.1:1".parse().expect("an address");
        let cluster = Arc::new(Cluster::new(vec![seed], ClientOptions::default()));
        Arc::new(Routes::new(cluster, "t", map))
    }

    #[tokio::test]
    async fn a_refresh_under_way_is_shared() {
        let routes = routes();
        for _ in 0..10 {
            drop(routes.refresh());
        }
        // Every refresh holds the routes.
        assert_eq!(Arc::strong_count(&routes), 2);
    }

    /// Pitfall R20: a learner that was added gets its share without anybody having failed.
    #[tokio::test]
    async fn r20_choosing_by_an_old_map_has_it_fetched_again_once() {
        let routes = routes();
        let want = Want {
            mode: ReplicaRead::Learner,
            tried: &[],
            excluded: &[],
            balancing: None,
            operation: "GET",
            attempt: 1,
            size_hint: 0,
        };
        let is_refreshing = || lock(&routes.state).is_refreshing;
        routes.choose(Destination::Partition(0), &want);
        assert!(!is_refreshing(), "the map is fresh");
        lock(&routes.state).outdated_at = now();
        routes.target(Destination::Partition(0));
        assert!(!is_refreshing(), "who asks the leader hears of another one from the replicas");
        for _ in 0..10 {
            routes.choose(Destination::Partition(0), &want);
        }
        assert!(is_refreshing());
        assert_eq!(Arc::strong_count(&routes), 2, "one task");
        routes.take_over(Err(Error::protocol("no answer")), routes.with_map(|map| map.mark()));
        assert!(lock(&routes.state).outdated_at > now(), "a failed one is not repeated at once");
    }
}
