//! The stored form of the catalogue: JSON rows of the metadata group, and the writes that change them.
//!
//! | row | holds |
//! |---|---|
//! | `version` | the version, in decimal digits |
//! | `header` | format, cluster id, next ids |
//! | `meta` | the metadata group's replicas |
//! | `node/00001` | one node |
//! | `table/0000000001` | one table with its partitions |
//! | `rights/NAME` | what one user or role may do |
//! | `password/NAME` | what one user's password is checked by |
//! | `passwords` | the secret by which names without a password look as if they had one |
//!
//! A replica is written as `[host, counter]`, where `host` is a position in the row's list of `[node, incarnation]`, so
//! that a table of 4096 partitions stays below 1 MB, and below 1.5 MB with the most learners. A joining replica has the
//! counter of the replica that it replaces third, 0 for none. Rows with unknown fields are refused: a later version that
//! adds one raises the format. Format 2 has rights; a catalogue without any is of format 1, as before there were rights. Format 3 has
//! passwords, and is written only while there are any.

use crate::catalogue::Catalogue;
use crate::error::RowError;
use crate::model::{Dropped, Node, Partition, Replica, ReplicaRole, Table, TableKind, TableState};
use crate::password::Passwords;
use crate::rights::{Grant, Holder, Rights};
use bytes::Bytes;
use hedgerow_scram::{Mask, Verifier};
use hedgerow_types::op::{Check, Mutation, Write};
use hedgerow_types::{Incarnation, NodeId, ReplicaId, TableId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use zeroize::Zeroizing;

/// Key of the row that every change compares and raises.
pub const VERSION_ROW: &[u8] = b"version";
/// Versions of the stored form: the newest that is read, the one of a catalogue without passwords, and the one without rights too.
const FORMAT: u32 = 3;
const FORMAT_WITHOUT_PASSWORDS: u32 = 2;
const FORMAT_WITHOUT_RIGHTS: u32 = 1;

const HEADER_ROW: &[u8] = b"header";
const META_ROW: &[u8] = b"meta";
const PASSWORDS_ROW: &[u8] = b"passwords";
/// Bytes in a table's row of what has no length of its own, of one partition's such part, and of a replica, with numbers of up to seven
/// digits.
const TABLE_SIZE: usize = 512;
const PARTITION_SIZE: usize = 64;
const REPLICA_SIZE: usize = 24;
/// "Bytes equal" and "does not exist" among the check kinds of the client protocol.
const CHECK_BYTES_EQUAL: i32 = 10;
const CHECK_NOT_EXIST: i32 = 1;

impl Catalogue {
    /// Every row, the version row included.
    pub fn rows(&self) -> BTreeMap<Bytes, Bytes> {
        let mut rows = BTreeMap::from([
            (Bytes::from_static(VERSION_ROW), self.version_value()),
            (Bytes::from_static(HEADER_ROW), json(&Header::of(self))),
            (Bytes::from_static(META_ROW), encode_meta(&self.meta)),
        ]);
        rows.extend(self.nodes.iter().map(|(id, node)| (node_key(*id), encode_node(node))));
        rows.extend(self.tables.iter().map(|(id, table)| (table_key(*id), encode_table(table))));
        rows.extend(self.rights.granted.iter().map(|(holder, grants)| (rights_key(holder), encode_grants(grants))));
        rows.extend(
            self.passwords.by_user.iter().map(|(user, verifier)| (password_key(user), encode_verifier(verifier))),
        );
        rows.extend(self.passwords.mask.iter().map(|mask| (Bytes::from_static(PASSWORDS_ROW), encode_mask(mask))));
        rows
    }

    /// The catalogue that `rows` hold. Anything that is not understood or contradicts itself is an error.
    pub fn from_rows(rows: &BTreeMap<Bytes, Bytes>) -> Result<Self, RowError> {
        let required = |key: &'static [u8], name| rows.get(key).ok_or(RowError::Missing(name));
        let version = required(VERSION_ROW, "version")?;
        let header = required(HEADER_ROW, "header")?;
        let Format { format } = parse(HEADER_ROW, header)?;
        if !(FORMAT_WITHOUT_RIGHTS..=FORMAT).contains(&format) {
            return Err(RowError::Format { found: format, supported: FORMAT });
        }
        let header: Header = parse(HEADER_ROW, header)?;
        let meta = parse::<StoredGroup>(META_ROW, required(META_ROW, "meta")?)?;
        let mut catalogue = Self {
            cluster: header.cluster,
            version: parse_version(version)?,
            next_table: header.next_table,
            next_replica: header.next_replica,
            nodes: BTreeMap::new(),
            tables: BTreeMap::new(),
            meta: meta.partition.restore(&meta.hosts).map_err(|reason| malformed(META_ROW, reason))?,
            rights: Rights::default(),
            passwords: Passwords::default(),
        };
        for (key, value) in rows {
            catalogue.read_row(key, value)?;
        }
        catalogue.check().map_err(RowError::Inconsistent)?;
        Ok(catalogue)
    }

    /// What turns the rows of `self` into those of `newer`, the version row left out. The suffixes are whole keys: the
    /// rows have an empty prefix.
    pub fn diff(&self, newer: &Self) -> Vec<Mutation> {
        debug_assert_eq!(newer.check(), Ok(()), "a change must not be stored that could not be read again");
        let mut mutations = Vec::new();
        let row = |key: &'static [u8], value| put(Bytes::from_static(key), value);
        if Header::of(self) != Header::of(newer) {
            mutations.push(row(HEADER_ROW, json(&Header::of(newer))));
        }
        if self.meta != newer.meta {
            mutations.push(row(META_ROW, encode_meta(&newer.meta)));
        }
        diff_rows(&self.nodes, &newer.nodes, |id| node_key(*id), encode_node, &mut mutations);
        diff_rows(&self.tables, &newer.tables, |id| table_key(*id), encode_table, &mut mutations);
        diff_rows(&self.rights.granted, &newer.rights.granted, rights_key, encode_grants, &mut mutations);
        let (old, new) = (&self.passwords, &newer.passwords);
        diff_rows(&old.by_user, &new.by_user, password_key, encode_verifier, &mut mutations);
        match &new.mask {
            _ if old.mask == new.mask => {}
            Some(mask) => mutations.push(row(PASSWORDS_ROW, encode_mask(mask))),
            None => mutations.push(Mutation::Remove { suffix: Bytes::from_static(PASSWORDS_ROW) }),
        }
        mutations
    }

    /// The write that stores the first catalogue. Its check fails where one is stored already.
    pub fn write_first(&self) -> Write {
        let mutations = self.rows().into_iter().map(|(key, value)| put(key, value)).collect();
        conditional(CHECK_NOT_EXIST, Bytes::new(), mutations)
    }

    /// The write that turns the stored catalogue from `self` into `newer`. Its check fails
    /// ([`hedgerow_types::Status::TryAgain`]) if the stored version is not that of `self`: then read, change and write
    /// again. [`Write::Nothing`] if nothing changed.
    pub fn write_to(&self, newer: &Self) -> Write {
        if self == newer {
            return Write::Nothing;
        }
        assert!(newer.version > self.version, "every change raises the version");
        let mut mutations = self.diff(newer);
        mutations.push(put(Bytes::from_static(VERSION_ROW), newer.version_value()));
        conditional(CHECK_BYTES_EQUAL, self.version_value(), mutations)
    }

    fn version_value(&self) -> Bytes {
        Bytes::from(self.version.to_string())
    }

    fn read_row(&mut self, key: &Bytes, value: &Bytes) -> Result<(), RowError> {
        if [VERSION_ROW, HEADER_ROW, META_ROW].contains(&&key[..]) {
            return Ok(());
        }
        let text = str::from_utf8(key).unwrap_or_default();
        if let Some(id) = text.strip_prefix("node/").and_then(|id| id.parse().ok()).map(NodeId)
            && node_key(id) == key
        {
            self.nodes.insert(id, parse::<StoredNode>(key, value)?.restore());
            return Ok(());
        }
        if let Some(id) = text.strip_prefix("table/").and_then(|id| id.parse().ok()).map(TableId)
            && table_key(id) == key
        {
            let table = parse::<StoredTable>(key, value)?.restore(id);
            self.tables.insert(id, table.map_err(|reason| malformed(key, reason))?);
            return Ok(());
        }
        if let Some(Ok(holder)) = text.strip_prefix("rights/").map(Holder::from_str) {
            self.rights.granted.insert(holder, parse_grants(key, value)?);
            return Ok(());
        }
        if let Some(Ok(user)) = text.strip_prefix("password/").map(Holder::from_str) {
            self.passwords.by_user.insert(user, parse_secret::<StoredVerifier, _>(key, value, |it| it.verifier)?);
            return Ok(());
        }
        if key == PASSWORDS_ROW {
            self.passwords.mask = Some(parse_secret::<StoredMask, _>(key, value, |it| it.mask)?);
            return Ok(());
        }
        Err(malformed(key, "no row has this key"))
    }
}

fn diff_rows<K: Ord, V: PartialEq>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    key: fn(&K) -> Bytes,
    encode: fn(&V) -> Bytes,
    out: &mut Vec<Mutation>,
) {
    let gone = old.keys().filter(|id| !new.contains_key(id));
    out.extend(gone.map(|id| Mutation::Remove { suffix: key(id) }));
    let changed = new.iter().filter(|(id, value)| old.get(id) != Some(value));
    out.extend(changed.map(|(id, value)| put(key(id), encode(value))));
}

fn put(suffix: Bytes, value: Bytes) -> Mutation {
    Mutation::Put { suffix, value, expire_at: 0 }
}

fn conditional(kind: i32, operand: Bytes, mutations: Vec<Mutation>) -> Write {
    let check = Check { suffix: Bytes::from_static(VERSION_ROW), kind, operand };
    Write::CheckAndMutate { prefix: Bytes::new(), check, mutations, return_check_value: true }
}

fn node_key(id: NodeId) -> Bytes {
    Bytes::from(format!("node/{:05}", id.0))
}

fn table_key(id: TableId) -> Bytes {
    Bytes::from(format!("table/{:010}", id.0))
}

fn rights_key(holder: &Holder) -> Bytes {
    Bytes::from(format!("rights/{holder}"))
}

fn encode_grants(grants: &BTreeSet<Grant>) -> Bytes {
    json(&grants.iter().map(Grant::to_string).collect::<Vec<_>>())
}

fn parse_grants(key: &[u8], value: &[u8]) -> Result<BTreeSet<Grant>, RowError> {
    let texts: Vec<String> = parse(key, value)?;
    let grants = texts.iter().map(|text| text.parse::<Grant>());
    grants.collect::<Result<_, _>>().map_err(|error| malformed(key, error.to_string()))
}

fn password_key(user: &Holder) -> Bytes {
    Bytes::from(format!("password/{user}"))
}

fn encode_verifier(verifier: &Verifier) -> Bytes {
    json(&StoredVerifier { verifier: verifier.to_text() })
}

fn encode_mask(mask: &Mask) -> Bytes {
    json(&StoredMask { mask: mask.to_text() })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredVerifier {
    verifier: Zeroizing<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMask {
    mask: Zeroizing<String>,
}

/// The secret in a row. What is wrong with one that is malformed is not said in its own words.
fn parse_secret<T: DeserializeOwned, S: FromStr>(
    key: &[u8],
    value: &[u8],
    text: fn(T) -> Zeroizing<String>,
) -> Result<S, RowError> {
    let stored = serde_json::from_slice(value).ok().map(text);
    stored.and_then(|text| text.parse().ok()).ok_or_else(|| malformed(key, "it is not of the form of its secret"))
}

fn json(value: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("strings, numbers and lists always have a JSON form"))
}

fn parse<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, RowError> {
    serde_json::from_slice(value).map_err(|error| malformed(key, error.to_string()))
}

fn parse_version(value: &[u8]) -> Result<u64, RowError> {
    let number = str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
    // The stored bytes are compared with what is written here, so they must be the one way of writing the number.
    let number = number.filter(|number| number.to_string().as_bytes() == value);
    number.ok_or_else(|| malformed(VERSION_ROW, "it is not a number"))
}

fn malformed(key: &[u8], reason: impl Into<String>) -> RowError {
    RowError::Malformed { key: String::from_utf8_lossy(key).into_owned(), reason: reason.into() }
}

/// Read before the rest of the header, which may look different in another format.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    cluster: u64,
    next_table: u32,
    next_replica: u64,
}

impl Header {
    fn of(catalogue: &Catalogue) -> Self {
        let Catalogue { cluster, next_table, next_replica, .. } = *catalogue;
        let format = match (catalogue.passwords.is_empty(), catalogue.rights.is_empty()) {
            (false, _) => FORMAT,
            (true, false) => FORMAT_WITHOUT_PASSWORDS,
            (true, true) => FORMAT_WITHOUT_RIGHTS,
        };
        Self { format, cluster, next_table, next_replica }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredNode {
    address: String,
    incarnation: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    boot: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    start: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    logs: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retired: Vec<u64>,
}

impl StoredNode {
    fn restore(self) -> Node {
        let Self { address, incarnation, labels, boot, start, logs, retired } = self;
        let retired = retired.into_iter().map(Incarnation).collect();
        Node { address, incarnation: Incarnation(incarnation), labels, boot, start, logs, retired }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn encode_node(node: &Node) -> Bytes {
    let Node { address, incarnation, labels, boot, start, logs, retired } = node.clone();
    let retired = retired.into_iter().map(|incarnation| incarnation.0).collect();
    json(&StoredNode { address, incarnation: incarnation.0, labels, boot, start, logs, retired })
}

/// `(node, incarnation)`.
type Host = (u16, u64);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredGroup {
    hosts: Vec<Host>,
    partition: StoredPartition,
}

fn encode_meta(meta: &Partition) -> Bytes {
    let hosts = hosts(std::slice::from_ref(meta));
    json(&StoredGroup { partition: StoredPartition::of(meta, &hosts), hosts })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTable {
    name: String,
    kind: TableKind,
    replica_count: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    options: BTreeMap<String, String>,
    state: TableState,
    created_unix_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dropped: Option<Dropped>,
    hosts: Vec<Host>,
    partitions: Vec<StoredPartition>,
}

impl StoredTable {
    fn restore(self, id: TableId) -> Result<Table, &'static str> {
        let Self { name, kind, replica_count, options, state, created_unix_seconds, dropped, .. } = self;
        let restored = self.partitions.into_iter().map(|partition| partition.restore(&self.hosts));
        let partitions = restored.collect::<Result<_, _>>()?;
        Ok(Table { id, name, kind, replica_count, options, partitions, state, created_unix_seconds, dropped })
    }
}

impl Table {
    /// About how many bytes the table's row takes, without making it: never less where numbers have up to seven digits.
    pub fn row_size(&self) -> usize {
        let of_partition = |partition: &Partition| {
            PARTITION_SIZE + 2 * partition.start.len() + REPLICA_SIZE * partition.replicas.len()
        };
        TABLE_SIZE
            + size_of_text(&self.name)
            + size_of_options(&self.options)
            + self.partitions.iter().map(of_partition).sum::<usize>()
    }
}

/// Bytes that options take in a table's row.
pub(crate) fn size_of_options(options: &BTreeMap<String, String>) -> usize {
    options.iter().map(|(key, value)| 2 + size_of_text(key) + size_of_text(value)).sum()
}

/// With its quotes, and the escapes that JSON may need.
fn size_of_text(text: &str) -> usize {
    let of_byte = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    2 + text.bytes().map(of_byte).sum::<usize>()
}

fn encode_table(table: &Table) -> Bytes {
    let hosts = hosts(&table.partitions);
    json(&StoredTable {
        name: table.name.clone(),
        kind: table.kind,
        replica_count: table.replica_count,
        options: table.options.clone(),
        state: table.state,
        created_unix_seconds: table.created_unix_seconds,
        dropped: table.dropped,
        partitions: table.partitions.iter().map(|partition| StoredPartition::of(partition, &hosts)).collect(),
        hosts,
    })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPartition {
    /// In hexadecimal digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    start: String,
    version: u64,
    /// Counter of the preferred leader.
    leader: u64,
    voters: Vec<(usize, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    joining: Vec<(usize, u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    learners: Vec<(usize, u64)>,
}

impl StoredPartition {
    fn of(partition: &Partition, hosts: &[Host]) -> Self {
        let (mut voters, mut joining, mut learners) = (Vec::new(), Vec::new(), Vec::new());
        for replica in &partition.replicas {
            let host = hosts.binary_search(&host_of(replica)).expect("the list was made of these replicas");
            let counter = replica.id.counter();
            match replica.role {
                ReplicaRole::Voter => voters.push((host, counter)),
                ReplicaRole::Joining { replaces } => {
                    joining.push((host, counter, replaces.map_or(0, ReplicaId::counter)))
                }
                ReplicaRole::Learner => learners.push((host, counter)),
            }
        }
        let leader = partition.preferred_leader.counter();
        Self { start: to_hex(&partition.start), version: partition.version, leader, voters, joining, learners }
    }

    fn restore(self, hosts: &[Host]) -> Result<Partition, &'static str> {
        let host = |host: usize| hosts.get(host).ok_or("a replica is on a host that is not listed");
        let mut replicas = Vec::with_capacity(self.voters.len() + self.joining.len() + self.learners.len());
        let mut add = |position: usize, counter: u64, role| {
            let (node, incarnation) = *host(position)?;
            if counter >> 48 != 0 {
                return Err("a replica's counter is too large");
            }
            let id = ReplicaId::new(counter, NodeId(node));
            replicas.push(Replica { id, incarnation: Incarnation(incarnation), role });
            Ok(id)
        };
        let mut ids = BTreeMap::new();
        for (position, counter) in self.voters {
            ids.insert(counter, add(position, counter, ReplicaRole::Voter)?);
        }
        for (position, counter, replaced) in self.joining {
            // A replica joins after the one that it replaces, so that one has been seen.
            let replaces = match replaced {
                0 => None,
                _ => Some(*ids.get(&replaced).ok_or("a replica replaces one that is not there")?),
            };
            ids.insert(counter, add(position, counter, ReplicaRole::Joining { replaces })?);
        }
        for (position, counter) in self.learners {
            ids.insert(counter, add(position, counter, ReplicaRole::Learner)?);
        }
        let start = from_hex(&self.start).ok_or("a start key is not hexadecimal")?;
        let preferred_leader = *ids.get(&self.leader).ok_or("the preferred leader is not there")?;
        Ok(Partition { start, replicas, preferred_leader, version: self.version })
    }
}

/// Where the replicas of `partitions` are, each place once, in ascending order.
fn hosts(partitions: &[Partition]) -> Vec<Host> {
    let places: BTreeSet<Host> = partitions.iter().flat_map(|it| &it.replicas).map(host_of).collect();
    places.into_iter().collect()
}

fn host_of(replica: &Replica) -> Host {
    (replica.id.node().0, replica.incarnation.0)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}
