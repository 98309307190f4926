//! Duplication of the clients' table to another one, of the same cluster, by the real carriers while faults go on. In the end
//! both hold the same.

use crate::machine::address_of_machine;
use crate::owner::OWNER;
use crate::progress::Progress;
use crate::protocol::TABLE_NAME;
use crate::world::World;
use hedgerow_client::simulation;
use hedgerow_client::{Client, ClientOptions, Error, Reserve, ScanOptions, TableSpec};
use hedgerow_duplication::{Connect, Duplicator};
use hedgerow_placement::duplication::{Duplication, OPTION_PREFIX, State, option_name};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What the cluster calls itself as the one to tell.
const CLUSTER: &str = "itself";
/// The other table.
const ECHO: &str = "echo";
/// Its partitions: another number than the clients' table has.
const PARTITIONS: [u32; 2] = [2, 8];
/// How long everything may take to be there, once there are no faults any more and nobody writes; looked at so often.
const LOOKS_MAX: u32 = 600;
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What is drawn for a run.
struct Plan {
    spec: TableSpec,
    duplication: Duplication,
    /// The journal is to become too long, so that everything is copied anew.
    starts_again: bool,
    start_after: Duration,
}

impl Plan {
    async fn run(mut self, source: &Client, progress: &Progress) -> Result<(), String> {
        simulation::sleep(self.start_after).await;
        self.spec.if_not_exists = true;
        persist(|| source.create_table(ECHO, &self.spec)).await;
        self.say(source).await;
        while !progress.is_stopped() {
            simulation::sleep(LOOK_INTERVAL).await;
            if self.starts_again {
                self.duplication.round += 1;
                self.say(source).await;
                self.starts_again = false;
            }
        }
        let mut differs = String::new();
        for _ in 0..LOOKS_MAX {
            match differ(source).await {
                Ok(None) => return self.put_away(source).await,
                Ok(Some(how)) => differs = how,
                Err(error) => differs = error.to_string(),
            }
            simulation::sleep(LOOK_INTERVAL).await;
        }
        Err(format!("without any fault a duplicated table does not become equal: {differs}"))
    }

    /// Has the table's option say what is drawn.
    async fn say(&self, source: &Client) {
        let (option, value) = (option_name(CLUSTER), self.duplication.to_string());
        persist(|| source.set_option(TABLE_NAME, &option, &value)).await;
    }

    async fn put_away(mut self, source: &Client) -> Result<(), String> {
        self.duplication.state = State::Removing;
        self.say(source).await;
        for _ in 0..LOOKS_MAX {
            let tables = source.list_tables().await.unwrap_or_default();
            let table = tables.iter().find(|table| table.name == TABLE_NAME);
            if table.is_some_and(|table| !table.options.keys().any(|key| key.starts_with(OPTION_PREFIX))) {
                persist(|| source.drop_table(ECHO, true, Reserve::Seconds(0))).await;
                return Ok(());
            }
            simulation::sleep(LOOK_INTERVAL).await;
        }
        Err("without any fault a duplication is not removed".to_owned())
    }
}

/// Does something that is harmless to repeat until it is done.
async fn persist<T, F: Future<Output = Result<T, Error>>>(mut what: impl FnMut() -> F) {
    while what().await.is_err() {
        simulation::sleep(LOOK_INTERVAL).await;
    }
}

/// How the two tables differ, if they do.
async fn differ(source: &Client) -> Result<Option<String>, Error> {
    let (mut here, mut there) = (rows(source, TABLE_NAME).await?, rows(source, ECHO).await?);
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
    /// Lets somebody duplicate the clients' table from now on.
    pub(crate) fn add_echo(&mut self) {
        let (echo, mut random) = (Progress::default(), self.random.fork());
        let addresses: Arc<[String]> = (0..self.plan.machine_count).map(address_of_machine).collect();
        for own in addresses.iter() {
            let (own, id) = (own.clone(), random.next_u64() | 1);
            let addresses = Arc::clone(&addresses);
            self.executor.spawn(
                OWNER,
                Box::pin(async move {
                    let source = client(&addresses, id);
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
            spec: TableSpec {
                partition_count: PARTITIONS[random.below(2) as usize],
                replica_count: Some(self.plan.replica_count),
                ..TableSpec::default()
            },
            duplication: Duplication {
                table: ECHO.to_owned(),
                id: random.next_u64() | 1,
                round: 1,
                state: State::Running,
                journal_bytes: 1 << (20 + random.below(8)),
            },
            starts_again: random.chance(1, 3),
            start_after: Duration::from_millis(random.below(2_000)),
        };
        let id = random.next_u64() | 1;
        let progress = echo.clone();
        let task = async move {
            // Here, where its chance is the run's.
            let source = client(&addresses, id);
            let ended = plan.run(&source, &progress).await;
            progress.end(ended);
        };
        self.executor.spawn(OWNER, Box::pin(task));
        self.beside.push(echo);
        self.run_clients();
    }
}

fn client(addresses: &[String], id: u64) -> Client {
    let options =
        ClientOptions { operation_timeout: Duration::from_secs(1), client_id: Some(id), ..ClientOptions::default() };
    Client::lazy(addresses, options).expect("addresses are of machines")
}
