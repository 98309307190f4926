//! Which partitions are carried where, looked at again and again.

use crate::board::{Board, Subject};
use crate::carrier::{Carrier, Means, Turns, Work};
use crate::course::Course;
use crate::remote::{Cluster, Remote};
use hedgerow_client::duplication::{pause, spawn};
use hedgerow_client::{Client, Error, ErrorKind, TableStatus};
use hedgerow_placement::duplication::{Duplication, OPTION_PREFIX, State, option_name};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the tables are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A client of another cluster, or why there is none.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Client, String>> + Send>>;

/// Connects to the cluster of the name.
pub type Connect = Arc<dyn Fn(&str) -> Connecting + Send + Sync>;

/// Makes a client of the own cluster, by what is in its files now.
pub type Source = Box<dyn Fn() -> Result<Client, String> + Send + Sync>;

/// Carries what one node leads to other clusters, for as long as it is not dropped.
pub struct Duplicator {
    make_source: Source,
    /// `None` = to be made.
    source: Option<Client>,
    board: Option<Arc<Board>>,
    /// Why the tables were not known when they were looked at last.
    failure: Option<String>,
    /// Where the node serves clients, as the cluster's status says it.
    own: String,
    connect: Connect,
    /// By table id, duplication and partition.
    carried: BTreeMap<(u64, u64, u32), Carried>,
    /// How many there are.
    count: Arc<AtomicUsize>,
    /// By name: a cluster, and what those who carry there take turns by.
    clusters: BTreeMap<String, (Arc<Cluster>, Turns)>,
    /// By duplication.
    subjects: BTreeMap<u64, Subject>,
    /// Duplications that are being removed by a task.
    removals: Arc<Mutex<BTreeSet<u64>>>,
}

struct Carried {
    work: Work,
    course: Arc<Course>,
    is_wanted: Arc<AtomicBool>,
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

impl Duplicator {
    /// For the node that serves clients at `own`. `make_source` gives clients of its cluster that may do everything with its tables.
    pub fn new(make_source: Source, own: String, connect: Connect) -> Self {
        Self {
            make_source,
            source: None,
            board: None,
            failure: None,
            own,
            connect,
            carried: BTreeMap::new(),
            count: Arc::default(),
            clusters: BTreeMap::new(),
            subjects: BTreeMap::new(),
            removals: Arc::default(),
        }
    }

    /// Shows there how it goes.
    #[must_use]
    pub fn with_board(self, board: Arc<Board>) -> Self {
        Self { board: Some(board), ..self }
    }

    /// Carries until it is dropped.
    pub async fn run(mut self) {
        loop {
            let failure = self.look_as_client().await.err();
            self.show(failure);
            pause(LOOK_INTERVAL).await;
        }
    }

    /// Has the log and the board know how it goes.
    fn show(&mut self, failure: Option<String>) {
        match (&failure, self.failure.is_some()) {
            (Some(error), false) => {
                tracing::warn!(error, "the tables to duplicate are not known; they are looked for again")
            }
            (None, true) => tracing::info!("the tables to duplicate are known again"),
            _ => {}
        }
        let mut courses: BTreeMap<u64, Vec<(u32, &Course)>> = BTreeMap::new();
        for ((_, id, partition), carried) in &self.carried {
            courses.entry(*id).or_default().push((*partition, &carried.course));
        }
        let sum_up = |(id, subject): (&u64, &mut Subject)| {
            (*id, subject.sum_up(courses.remove(id).unwrap_or_default().into_iter()))
        };
        let all = self.subjects.iter_mut().map(sum_up).collect();
        if let Some(board) = &self.board {
            board.show(failure.clone(), all);
        }
        self.failure = failure;
    }

    /// Looks with the client there is, or another one where nodes do not believe that one any more.
    async fn look_as_client(&mut self) -> Result<(), String> {
        let source = match &self.source {
            Some(source) => source.clone(),
            None => (self.make_source)()?,
        };
        self.source = Some(source.clone());
        self.look(&source).await.map_err(|error| {
            if error.kind() == ErrorKind::NotAllowed {
                self.source = None;
                self.carried.clear();
            }
            error.to_string()
        })
    }

    /// Starts carriers for what is to be carried and is not, and ends the others.
    async fn look(&mut self, source: &Client) -> Result<(), Error> {
        let mut wanted = BTreeMap::new();
        let (mut removed, mut present) = (Vec::new(), BTreeSet::new());
        for table in source.list_tables().await? {
            let duplications: Vec<_> = table.options.iter().filter_map(duplication_of).collect();
            if duplications.is_empty() || !table.is_available {
                continue;
            }
            let Ok(status) = source.describe_table(&table.name).await else {
                // What goes on there goes on.
                present.extend(duplications.iter().map(|(_, it)| it.id));
                let known = self.carried.iter().filter(|(key, _)| key.0 == table.id);
                wanted.extend(known.map(|(key, carried)| (*key, carried.work.clone())));
                continue;
            };
            for (cluster, duplication) in duplications {
                present.insert(duplication.id);
                if duplication.state == State::Removing {
                    removed.push((status.clone(), cluster.to_owned(), duplication));
                } else if duplication.state == State::Running {
                    let led = status.partitions.iter().filter(|it| it.leader.as_deref() == Some(&self.own));
                    for partition in led {
                        let work = Work {
                            table: table.name.clone(),
                            cluster: cluster.to_owned(),
                            duplication: duplication.clone(),
                            partition: partition.index,
                        };
                        wanted.insert((status.id, duplication.id, partition.index), work);
                    }
                }
            }
        }
        self.subjects.retain(|id, _| present.contains(id));
        self.carried.retain(|key, carried| wanted.get(key) == Some(&carried.work));
        for (key, work) in wanted {
            if !self.carried.contains_key(&key) {
                self.carry(source, key, work);
            }
        }
        self.count.store(self.carried.len(), Ordering::Relaxed);
        for (table, cluster, duplication) in removed {
            self.start_removal(source, table, cluster, duplication.id);
        }
        Ok(())
    }

    /// Has a duplication removed beside what is carried, by the node that leads the first partition. It takes long where journals are long.
    fn start_removal(&self, source: &Client, table: TableStatus, cluster: String, id: u64) {
        let leads = table.partitions.first().is_some_and(|it| it.leader.as_deref() == Some(&self.own));
        if !leads || !lock(&self.removals).insert(id) {
            return;
        }
        let (source, removals) = (source.clone(), Arc::clone(&self.removals));
        spawn(async move {
            if let Err(error) = remove(&source, &table, &cluster, id).await {
                tracing::warn!(table = table.name, cluster, %error, "a duplication is not removed yet");
            }
            lock(&removals).remove(&id);
        });
    }

    fn carry(&mut self, source: &Client, key: (u64, u64, u32), work: Work) {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let connect = Arc::clone(&self.connect);
        let made = || (Arc::new(Cluster::new(connect, &work.cluster)), Turns::new());
        let (cluster, turns) = self.clusters.entry(work.cluster.clone()).or_insert_with(made);
        let remote = Remote::new(Arc::clone(cluster), &work.duplication.table);
        let new_subject = || Subject::new(&work.table, &work.cluster);
        let subject = self.subjects.entry(key.1).or_insert_with(new_subject);
        let course = Arc::<Course>::default();
        let means = Means {
            turns: turns.clone(),
            count: Arc::clone(&self.count),
            is_wanted: Arc::clone(&is_wanted),
            course: Arc::clone(&course),
            tally: Arc::clone(&subject.tally),
        };
        let carrier = Carrier::new(source.clone(), remote, work.clone(), means);
        spawn(carrier.run());
        self.carried.insert(key, Carried { work, course, is_wanted });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a duplication in all partitions, and then forgets it.
async fn remove(source: &Client, table: &TableStatus, cluster: &str, id: u64) -> Result<(), Error> {
    source.open_journals(&table.name).await?.end_everywhere(id).await?;
    // Another one may have its place by now. One that is not being removed keeps it in any case.
    let option = option_name(cluster);
    let present = source.describe_table(&table.name).await?;
    if present.options.get(&option) != table.options.get(&option) {
        return Ok(());
    }
    source.set_option(&table.name, &option, "").await?;
    tracing::info!(table = table.name, cluster, "a duplication is removed");
    Ok(())
}

/// What an option says of a duplication, and to which cluster, if it is about one.
fn duplication_of<'o>((name, value): (&'o String, &'o String)) -> Option<(&'o str, Duplication)> {
    let cluster = name.strip_prefix(OPTION_PREFIX)?;
    Some((cluster, value.parse().ok()?))
}
