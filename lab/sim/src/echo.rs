//! Duplication of the clients' table to another one, by the real carriers while faults go on: of the same cluster, or of a second one,
//! perhaps both ways. In the end both hold the same.

use crate::carriers::addresses_of;
use crate::machine::address_of_machine;
use crate::owner::OWNER;
use crate::progress::Progress;
use crate::protocol::TABLE_NAME;
use crate::world::World;
use crate::writer;
use hedgerow_client::simulation;
use hedgerow_client::{Client, ClientOptions, Error, Reserve, ScanOptions, TableSpec};
use hedgerow_duplication::{Connect, Duplicator};
use hedgerow_placement::duplication::{Duplication, OPTION_PREFIX, State, option_name};
use hedgerow_types::random::Random;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a cluster calls itself as the one to tell, and what it calls another one.
const ITSELF: &str = "itself";
const OTHER: &str = "other";
/// The other table, where it is of the same cluster.
const ECHO: &str = "echo";
/// Its partitions: another number than the clients' table has.
const PARTITIONS: [u32; 2] = [2, 8];
/// How often it is looked whether everything is there, once there are no faults any more and nobody writes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// One time in so many the operator of two clusters wants something else.
const DEED_INTERVAL: u64 = 10;

/// What is drawn for a run.
struct Plan {
    /// What the cluster to tell is called.
    cluster: &'static str,
    /// Of the other table, where it is to be created.
    spec: Option<TableSpec>,
    duplication: Duplication,
    /// The way back, if there is one.
    back: Option<Duplication>,
    /// All rows are to be copied anew.
    starts_again: bool,
    /// What the operator wants meanwhile is drawn from this, where there are two clusters.
    deeds: Option<Random>,
    start_after: Duration,
}

impl Plan {
    /// From the cluster of `source` to that of `other`.
    async fn run(mut self, source: &Client, other: &Client, progress: &Progress) {
        simulation::sleep(self.start_after).await;
        if let Some(spec) = &mut self.spec {
            spec.if_not_exists = true;
            persist(|| other.create_table(ECHO, spec)).await;
        }
        self.say(source, other).await;
        while !progress.is_stopped() {
            simulation::sleep(LOOK_INTERVAL).await;
            if self.starts_again {
                self.each(|duplication| duplication.round += 1);
                self.say(source, other).await;
                self.starts_again = false;
            }
            self.change(source, other).await;
        }
        if self.deeds.is_some() {
            self.each(|duplication| duplication.state = State::Running);
            self.say(source, other).await;
        }
        loop {
            match differ(source, (other, &self.duplication.table)).await {
                Ok(None) => break,
                Ok(Some(how)) => progress.wait_for(format!("a duplicated table does not become equal: {how}")),
                Err(error) => progress.wait_for(format!("a duplicated table cannot be read: {error}")),
            }
            simulation::sleep(LOOK_INTERVAL).await;
        }
        progress.wait_for("a duplication is not removed".to_owned());
        self.put_away(source, other).await;
    }

    /// Perhaps has it pause, go on, or copy anew.
    async fn change(&mut self, source: &Client, other: &Client) {
        let Some(random) = &mut self.deeds else { return };
        if !random.chance(1, DEED_INTERVAL) {
            return;
        }
        match random.below(3) {
            0 => self.each(|duplication| duplication.state = State::Paused),
            1 => self.each(|duplication| duplication.state = State::Running),
            _ => self.each(|duplication| duplication.round += 1),
        }
        self.say(source, other).await;
    }

    fn each(&mut self, change: impl Fn(&mut Duplication)) {
        [Some(&mut self.duplication), self.back.as_mut()].into_iter().flatten().for_each(change);
    }

    /// Has the tables' options say what is drawn.
    async fn say(&self, source: &Client, other: &Client) {
        let option = option_name(self.cluster);
        for (client, duplication) in [(source, Some(&self.duplication)), (other, self.back.as_ref())] {
            if let Some(value) = duplication.map(ToString::to_string) {
                persist(|| client.set_option(TABLE_NAME, &option, &value)).await;
            }
        }
    }

    async fn put_away(mut self, source: &Client, other: &Client) {
        self.each(|duplication| duplication.state = State::Removing);
        self.say(source, other).await;
        while is_duplicated(source).await || self.back.is_some() && is_duplicated(other).await {
            simulation::sleep(LOOK_INTERVAL).await;
        }
        if self.spec.is_some() {
            persist(|| other.drop_table(ECHO, true, Reserve::Seconds(0))).await;
        }
    }
}

/// Whether the table's options still want a duplication, as far as can be seen.
async fn is_duplicated(client: &Client) -> bool {
    let tables = client.list_tables().await.unwrap_or_default();
    let table = tables.iter().find(|table| table.name == TABLE_NAME);
    table.is_none_or(|table| table.options.keys().any(|key| key.starts_with(OPTION_PREFIX)))
}

/// Does something that is harmless to repeat until it is done.
async fn persist<T, F: Future<Output = Result<T, Error>>>(mut what: impl FnMut() -> F) {
    while what().await.is_err() {
        simulation::sleep(LOOK_INTERVAL).await;
    }
}

/// How the two tables differ, if they do.
async fn differ(source: &Client, (other, table): (&Client, &str)) -> Result<Option<String>, Error> {
    let (mut here, mut there) = (rows(source, TABLE_NAME).await?, rows(other, table).await?);
    let same: Vec<_> =
        here.iter().filter(|(key, row)| there.get(*key) == Some(row)).map(|(key, _)| key.clone()).collect();
    for key in same {
        here.remove(&key);
        there.remove(&key);
    }
    let differ = !here.is_empty() || !there.is_empty();
    Ok(differ.then(|| format!("{here:?} here, {there:?} there")))
}

type Key = (Vec<u8>, Vec<u8>);

async fn rows(client: &Client, table: &str) -> Result<BTreeMap<Key, Vec<u8>>, Error> {
    let mut scanner = client.open_table(table).await?.scan_all(ScanOptions::default());
    let mut rows = BTreeMap::new();
    while let Some(row) = scanner.next().await? {
        rows.insert((row.hash_key.to_vec(), row.sort_key.to_vec()), row.value.to_vec());
    }
    Ok(rows)
}

impl World {
    /// Lets somebody duplicate the clients' table from now on, to the second cluster if there is one.
    pub(crate) fn add_echo(&mut self) {
        if self.second.is_some() {
            self.add_echo_to_second();
        } else {
            self.add_echo_to_itself();
        }
        self.run_clients();
    }

    fn add_echo_to_itself(&mut self) {
        let (echo, mut random) = (Progress::default(), self.random.fork());
        let addresses: Arc<[String]> = (0..self.plan.machine_count).map(address_of_machine).collect();
        for own in addresses.iter() {
            let (own, id) = (own.clone(), random.next_u64() | 1);
            let addresses = Arc::clone(&addresses);
            self.executor.spawn(
                OWNER,
                Box::pin(async move {
                    let source = client(&addresses, Some(id));
                    let told = source.clone();
                    let connect: Connect = Arc::new(move |_| {
                        let told = told.clone();
                        Box::pin(async move { Ok(told) })
                    });
                    Duplicator::new(Box::new(move || Ok(source.clone())), own, connect).run().await;
                }),
            );
        }
        let plan = Plan {
            cluster: ITSELF,
            spec: Some(TableSpec {
                partition_count: PARTITIONS[random.below(2) as usize],
                replica_count: Some(self.plan.replica_count),
                ..TableSpec::default()
            }),
            duplication: drawn(ECHO, &mut random),
            back: None,
            starts_again: random.chance(1, 3),
            deeds: None,
            start_after: Duration::from_millis(random.below(2_000)),
        };
        let id = random.next_u64() | 1;
        let progress = echo.clone();
        let task = async move {
            // Here, where its chance is the run's.
            let source = client(&addresses, Some(id));
            plan.run(&source, &source, &progress).await;
            progress.end(Ok(()));
        };
        self.executor.spawn(OWNER, Box::pin(task));
        self.beside.push(echo);
        *self.stats.duplicated.entry("within a cluster").or_default() += 1;
    }

    fn add_echo_to_second(&mut self) {
        let Some(second) = &self.second else { return };
        let (echo, mut random) = (Progress::default(), self.random.fork());
        let clusters = [(0, self.plan.machine_count), (1, second.plan.machine_count)];
        let clusters = clusters.map(|(cluster, machine_count)| addresses_of(cluster, machine_count));
        let is_two_way = second.carriers.is_some();
        let plan = Plan {
            cluster: OTHER,
            spec: None,
            duplication: drawn(TABLE_NAME, &mut random),
            back: is_two_way.then(|| drawn(TABLE_NAME, &mut random)),
            starts_again: random.chance(1, 3),
            deeds: Some(random.fork()),
            start_after: Duration::from_millis(random.below(2_000)),
        };
        if is_two_way {
            for (cluster, addresses) in (0..).zip(clusters.clone()) {
                self.add_writer(cluster, addresses, &echo, &mut random);
            }
        }
        let progress = echo.clone();
        let task = async move {
            let [source, other] = clusters.map(|addresses| client(&addresses, None));
            plan.run(&source, &other, &progress).await;
            progress.end(Ok(()));
        };
        self.executor.spawn(OWNER, Box::pin(task));
        self.beside.push(echo);
        let way = if is_two_way { "with a second cluster, both ways" } else { "to a second cluster" };
        *self.stats.duplicated.entry(way).or_default() += 1;
    }

    fn add_writer(&mut self, cluster: u8, addresses: Arc<[String]>, echo: &Progress, random: &mut Random) {
        let (id, random, progress) = (random.next_u64() | 1, random.fork(), echo.clone());
        self.oracle.note_stranger(id);
        let task = async move { writer::write(&client(&addresses, Some(id)), cluster, random, &progress).await };
        self.executor.spawn(OWNER, Box::pin(task));
    }
}

/// To the table of this name.
fn drawn(table: &str, random: &mut Random) -> Duplication {
    let id = random.next_u64() | 1;
    let journal_bytes = 1 << (20 + random.below(8));
    Duplication { table: table.to_owned(), id, round: 1, state: State::Running, journal_bytes }
}

/// A client of the cluster at these addresses. Without an id to be made by a task, where its chance is the run's.
pub(crate) fn client(addresses: &[String], id: Option<u64>) -> Client {
    let options =
        ClientOptions { operation_timeout: Duration::from_secs(1), client_id: id, ..ClientOptions::default() };
    Client::lazy(addresses, options).expect("addresses are of machines")
}
