//! What a node keeps about itself and its cluster: rows of the catalogue, `catalogue.json`, `identity.json`.
//!
//! The two files are given to a node that starts. The node ends with an error that names the file, or it starts, and then
//! starts once more with what it made of them.

use bytes::Bytes;
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, Now, read_file, write_file_durably};
use hedgerow_node::peer::{CataloguePush, CatalogueRow, Founder, Frame, Probe};
use hedgerow_node::{Config, Event, Job, JobContext, Node, OpenError, Opened};
use hedgerow_placement::{Catalogue, Dropped, Node as NodeRow, Replica, ReplicaRole, Settings, TableSpec};
use hedgerow_scram::Mask;
use hedgerow_storage::MemoryEngines;
use hedgerow_types::{Incarnation, Instant, NodeId, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const CLUSTER: u64 = 2;
const DATA: &str = "/data";

type Rows = BTreeMap<Bytes, Bytes>;

/// A file in a node's data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Who the node is.
    Identity,
    /// The catalogue that the node acted on last.
    Catalogue,
}

impl File {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Identity, Self::Catalogue];

    fn path(self) -> PathBuf {
        Path::new(DATA).join(match self {
            Self::Identity => "identity.json",
            Self::Catalogue => "catalogue.json",
        })
    }
}

/// Rows as lines of the form `key value`.
pub(crate) fn as_rows(data: &[u8]) {
    static SOUND: OnceLock<Rows> = OnceLock::new();
    let found = rows_of(data);
    if found.is_empty() {
        return;
    }
    as_catalogue(&found);
    // One row among sound ones gets further than alone.
    let mut rows = SOUND.get_or_init(|| every_row().rows()).clone();
    rows.extend(found);
    as_catalogue(&rows);
}

/// What is read is sound, and is read the same after it was written again.
fn as_catalogue(rows: &Rows) {
    let catalogue = match Catalogue::from_rows(rows) {
        Ok(catalogue) => catalogue,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(catalogue.check(), Ok(()));
    assert_eq!(Catalogue::from_rows(&catalogue.rows()).as_ref(), Ok(&catalogue));
    for (group, partition) in catalogue.groups() {
        assert!(catalogue.range(group).is_some());
        assert!(partition.replica(partition.preferred_leader).is_some());
    }
    // Options that mean nothing are those of a later version, and are not acted on.
    catalogue.tables.values().for_each(|table| drop(Settings::from_options(&table.options)));
}

fn rows_of(data: &[u8]) -> Rows {
    let lines = data.split(|byte| *byte == b'\n');
    let parts = lines.filter_map(|line| Some(line.split_at(line.iter().position(|byte| *byte == b' ')?)));
    parts.map(|(key, value)| (Bytes::copy_from_slice(key), Bytes::copy_from_slice(&value[1..]))).collect()
}

fn line_of((key, value): (&Bytes, &Bytes)) -> Vec<u8> {
    [key, &b" "[..], value].concat()
}

/// A node that has joined a cluster starts with `data` as its file.
///
/// # Panics
/// If the node does, or if it ends without saying which file is wrong, or changes a file that it refuses.
pub fn as_file(file: File, data: &[u8]) {
    static SOUND: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let sound = SOUND.get_or_init(files);
    let disk = disk_with(&[(File::Identity, &sound[0]), (File::Catalogue, &sound[1]), (file, data)]);
    let first = open(&disk);
    if let Err(error) = first {
        let text = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(text.contains(DATA), "nobody can tell from this what is wrong: {text}");
        if text.contains(&file.path().display().to_string()) {
            let stays = read_file(&disk, &file.path()).expect("it is there");
            assert!(stays == data, "a file that was refused was changed: {error}");
        }
        return;
    }
    drop(first);
    disk.kill_process();
    let second = open(&disk);
    assert!(second.is_ok(), "what it made of the file is refused: {:?}", second.err());
    let aside = disk.exists(&file.path().with_extension("json.damaged"));
    assert!(file == File::Catalogue || !aside);
}

fn disk_with(files: &[(File, &[u8])]) -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new(DATA)).expect("an empty disk");
    for (file, data) in files {
        write_file_durably(&disk, &file.path(), data).expect("an empty disk");
    }
    disk
}

fn now() -> Now {
    Now { instant: Instant(1_000_000_000), unix_micros: 1_700_000_000_000_000 }
}

fn open(disk: &SimDisk) -> Result<Opened, OpenError> {
    let peers = (1..=3).map(|node| (NodeId(node), format!("10.0.0.{node}:34601"))).collect();
    let config = Config::new(NodeId(1), peers, vec![DATA.into()], 1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let engines = Arc::new(MemoryEngines::new(Arc::clone(&shared)));
    Node::open(config, shared, engines, now())
}

/// The identity and the catalogue of a node that was told of its cluster, as it wrote them.
fn files() -> [Vec<u8>; 2] {
    let disk = SimDisk::new();
    let mut node = open(&disk).expect("an empty disk").node;
    let founders = vec![Founder { node: 2, incarnation: 12 }, Founder { node: 3, incarnation: 13 }];
    let probe = Probe { wants_answer: false, incarnation: 12, cluster: CLUSTER, founders, address: String::new() };
    node.handle(Event::Peer(NodeId(2), Frame::Probe(probe)), now());
    let catalogue = every_row();
    let rows = catalogue.rows().into_iter().map(|(key, value)| CatalogueRow { key, value }).collect();
    let push = CataloguePush { cluster: CLUSTER, version: catalogue.version, rows };
    node.handle(Event::Peer(NodeId(2), Frame::Catalogue(push)), now());
    let disk_of_jobs: Arc<dyn Disk> = Arc::new(disk.clone());
    let engines = Arc::new(MemoryEngines::new(Arc::clone(&disk_of_jobs)));
    let context = JobContext { disk: disk_of_jobs, engines, readers: Vec::new() };
    for job in std::mem::take(&mut node.outbox().jobs) {
        if matches!(job, Job::SaveCatalogue { .. }) {
            node.handle(Event::Job(job.run(&context)), now());
        }
    }
    File::ALL.map(|file| read_file(&disk, &file.path()).expect("the node has written it"))
}

/// The rows, each alone and all together, and the two files, each also as former versions wrote it: without a checksum.
pub(crate) fn seeds() -> Vec<(String, Vec<u8>)> {
    let rows = every_row().rows();
    let name = |key: &Bytes| String::from_utf8_lossy(key).replace('/', "-");
    let mut seeds: Vec<_> = rows.iter().map(|row| (format!("catalogue-row-{}", name(row.0)), line_of(row))).collect();
    let lines: Vec<Vec<u8>> = rows.iter().map(line_of).collect();
    seeds.push(("catalogue-rows".into(), lines.join(&b'\n')));
    for (name, file, checksum) in [("identity", 0, "crc32c"), ("catalogue", 1, "checksum")] {
        let file = &files()[file];
        seeds.push((format!("file-{name}"), file.clone()));
        let mut fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(file).expect("a node wrote it");
        assert!(fields.remove(checksum).is_some(), "{name} has no checksum");
        let text = serde_json::to_vec(&fields).expect("it was JSON before");
        seeds.push((format!("file-{name}-unchecked"), text));
    }
    seeds
}

/// A catalogue with every kind of row, table and replica.
fn every_row() -> Catalogue {
    let node = |id: u16, life| (NodeId(id), NodeRow::new(format!("10.0.0.{id}:34601"), Incarnation(life)));
    let mut nodes = [node(1, 11), node(2, 12), node(3, 13)];
    nodes[0].1.labels.insert("zone".to_owned(), "a".to_owned());
    (nodes[0].1.boot, nodes[0].1.start) = (3, 4);
    let all: Vec<NodeId> = nodes.iter().map(|(id, _)| *id).collect();
    let alive: BTreeSet<NodeId> = all.iter().copied().collect();
    let mut catalogue = Catalogue::bootstrap(CLUSTER, &nodes, &all).expect("three nodes found a cluster");
    let options = BTreeMap::from([("default_ttl".to_owned(), "60".to_owned())]);
    let hash = TableSpec { options, ..TableSpec::hash("users", 2, 3) };
    let hash = catalogue.create_table(hash, &alive, 1_700_000_000).expect("it fits");
    let ordered = TableSpec { split_keys: vec![b"m\xff".to_vec()], ..TableSpec::ordered("log", 2, 1) };
    let ordered = catalogue.create_table(ordered, &alive, 1_700_000_001).expect("it fits");
    catalogue.create_table(TableSpec::hash("old", 2, 1), &alive, 1_700_000_002).expect("it fits");
    let dropped = Dropped { at_unix_seconds: 1_700_000_003, until_unix_seconds: 1_700_604_803 };
    catalogue.drop_and_keep("old", false, dropped).expect("it is there");
    assert!(catalogue.mark_created(hash, |_| true));
    catalogue.register_node(NodeId(2), node(2, 22).1).expect("it may begin anew");
    let (group, lost) = *catalogue.lost_replicas().first().expect("its former replicas");
    catalogue.replace_lost(group, lost).expect("it can be replaced");
    let partition = &mut catalogue.tables.get_mut(&ordered).expect("it was created").partitions[0];
    let free: Vec<NodeId> = all.into_iter().filter(|id| *id != partition.replicas[0].id.node()).collect();
    for (node, role) in free.into_iter().zip([ReplicaRole::Joining { replaces: None }, ReplicaRole::Learner]) {
        let id = ReplicaId::new(catalogue.next_replica, node);
        partition.replicas.push(Replica { id, incarnation: catalogue.nodes[&node].incarnation, role });
        catalogue.next_replica += 1;
    }
    let (user, mask) = ("app".parse().expect("it may be a name"), Mask::new([2; 32]));
    catalogue.set_password(&user, mask.verifier("app"), mask, true).expect("it has none");
    assert_eq!(catalogue.check(), Ok(()));
    catalogue
}
