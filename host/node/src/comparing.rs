//! Comparing the replicas of a table: each node that hosts some reads them whole, a few at a time, and whoever asked gets their checksums.

use crate::admin::Asker;
use crate::ids::ReplicaKey;
use crate::job::Job;
use crate::node::Node;
use crate::replica::{Hosted, Replica};
use crate::requests::read_jobs::Wish;
use hedgerow_env::Now;
use hedgerow_placement::Table;
use hedgerow_storage::Moment;
use hedgerow_types::op::{Read, ReadReply};
use hedgerow_types::{Refusal, TableId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Time that comparing a table's replicas may take.
const CHECKSUM_MAX: Duration = Duration::from_secs(120);
/// Replicas that are read whole at a time.
const LONG_READS_MAX: usize = 2;

/// The replicas that are read whole for somebody who compares them.
#[derive(Debug, Default)]
pub(crate) struct Comparing {
    /// Those that wait for their turn, for which call, and the seconds by which rows have expired.
    waiting: VecDeque<(u64, ReplicaKey, u32)>,
    /// Those that are read now, by ticket.
    reads: BTreeMap<u64, LongRead>,
}

/// A replica that is read whole.
#[derive(Debug)]
struct LongRead {
    /// For which call.
    call: u64,
    owner: ReplicaKey,
    /// `None` = it is to end: nobody waits for it, or its storage is needed for something else.
    wish: Option<Wish>,
}

impl Comparing {
    /// The storage of `owner` is to be let go of.
    pub(crate) fn end_reads_of(&mut self, owner: ReplicaKey) {
        self.reads.values_mut().filter(|read| read.owner == owner).for_each(|read| read.wish = None);
    }

    /// Nobody waits for a call any more.
    pub(crate) fn end_reads_for(&mut self, call: u64) {
        self.reads.values_mut().filter(|read| read.call == call).for_each(|read| read.wish = None);
    }
}

/// A replica and what its storage holds now, or what it does instead of having storage.
fn with_storage(hosted: &mut Hosted) -> Result<(&mut Replica, Moment), &'static str> {
    match hosted {
        Hosted::Starting { .. } => Err("is being made"),
        Hosted::Lost { .. } => Err("is lost"),
        Hosted::Running(replica) => {
            let storage = replica.storage.as_ref().ok_or("is installing a checkpoint")?;
            let moment = storage.moment().map_err(|_| "cannot be read")?;
            Ok((replica, moment))
        }
    }
}

impl Node {
    /// Asks every node that hosts the table for the checksums of its replicas.
    pub(crate) fn checksum(&mut self, argument: &str, asker: Asker, now: Now) {
        let hosts = match self.table_named(argument).map(Table::hosts) {
            Ok(hosts) => hosts,
            Err(Refusal::NoTable) => {
                return self.answer_unknown_table(("checksum", argument), asker, now, CHECKSUM_MAX);
            }
            Err(refusal) => return self.answer_admin(asker, Err(refusal)),
        };
        let call = self.gather(asker, hosts.len(), now.instant + CHECKSUM_MAX, by_partition);
        for host in hosts {
            if host == self.config.node {
                self.checksum_here(argument, Asker::Gather(call), now);
            } else {
                self.pass_on(host, ("checksum_here", argument), Asker::Gather(call), now, CHECKSUM_MAX);
            }
        }
    }

    pub(crate) fn checksum_here(&mut self, argument: &str, asker: Asker, now: Now) {
        let table = match self.table_named(argument).map(|table| table.id) {
            Ok(table) => table,
            Err(Refusal::NoTable) => {
                return self.answer_unknown_table(("checksum_here", argument), asker, now, CHECKSUM_MAX);
            }
            Err(refusal) => return self.answer_admin(asker, Err(refusal)),
        };
        let owners = self.shards.each_hosted().map(Hosted::owner).filter(|owner| owner.group.table == table);
        let owners: BTreeSet<ReplicaKey> = owners.collect();
        let absent: Vec<ReplicaKey> = self.assigned_here(table).filter(|owner| !owners.contains(owner)).collect();
        let call = self.gather(asker, owners.len() + absent.len(), now.instant + CHECKSUM_MAX, Value::Array);
        for ReplicaKey { group, .. } in absent {
            // Its successor may be here, and says nothing of what was lost.
            let (partition, node) = (group.partition, self.config.node.0);
            self.handle_part(
                call,
                Err(format!("the replica of partition {partition} on node {node} is lost or not made yet")),
            );
        }
        let at = |owner: ReplicaKey| {
            (call, owner, self.shards.at(owner.group).replicas.expiry_time(&self.view, owner.group, now))
        };
        let wanted: Vec<_> = owners.into_iter().map(at).collect();
        self.admin.comparing.waiting.extend(wanted);
        self.start_long_reads();
    }

    /// The replicas of a table that this node should have.
    fn assigned_here(&self, table: TableId) -> impl Iterator<Item = ReplicaKey> {
        let groups = self.view.catalogue.iter().flat_map(|catalogue| catalogue.groups());
        let replicas = groups.filter(move |(group, _)| group.table == table).flat_map(|(group, partition)| {
            partition.replicas.iter().map(move |replica| ReplicaKey { group, replica: replica.id })
        });
        replicas.filter(|owner| owner.replica.node() == self.config.node)
    }

    /// Has the replicas read whose turn it is, unless nobody waits for them any more: the other threads for jobs are for what
    /// serves.
    fn start_long_reads(&mut self) {
        while self.admin.comparing.reads.len() < LONG_READS_MAX
            && let Some((call, owner, now)) = self.admin.comparing.waiting.pop_front()
        {
            if !self.admin.is_gathering(call) {
                continue;
            }
            let shard = self.shards.of(owner.group);
            let ticket = shard.replicas.ticket();
            let hosted = shard.replicas.hosted.get_mut(&owner.group).filter(|hosted| hosted.owner() == owner);
            match hosted.ok_or("is gone").and_then(with_storage) {
                Ok((replica, moment)) => {
                    replica.storage_users += 1;
                    let (wish, wanted) = Wish::new();
                    self.admin.comparing.reads.insert(ticket, LongRead { call, owner, wish: Some(wish) });
                    shard.outbox.jobs.push(Job::Read {
                        owner,
                        place: None,
                        moment,
                        ticket,
                        read: Read::Checksum,
                        now,
                        wanted,
                    });
                }
                Err(state) => {
                    let (partition, node) = (owner.group.partition, self.config.node);
                    let reason = format!("the replica of partition {partition} on node {} {state}", node.0);
                    self.handle_part(call, Err(reason));
                }
            }
        }
    }

    /// A job has read something, for somebody who compares replicas or for a client.
    pub(crate) fn handle_read(&mut self, ticket: u64, reply: ReadReply, now: Now) {
        match self.admin.comparing.reads.remove(&ticket) {
            Some(of) => self.handle_long_read(of, Ok(reply)),
            None => self.shards.that_gave(ticket).serving().finish_read_job(ticket, Ok(reply), now),
        }
    }

    /// A job could not read it.
    pub(crate) fn handle_not_done(&mut self, ticket: u64, reason: String, refusal: Refusal, now: Now) {
        match self.admin.comparing.reads.remove(&ticket) {
            Some(of) => self.handle_long_read(of, Err(reason)),
            None => self.shards.that_gave(ticket).serving().finish_read_job(ticket, Err(refusal), now),
        }
    }

    fn handle_long_read(&mut self, LongRead { call, owner, .. }: LongRead, result: Result<ReadReply, String>) {
        let part = match result {
            Ok(ReadReply::Checksum { checksum, rows, index }) => Ok(json!({
                "index": owner.group.partition,
                "node": self.config.node.0,
                "checksum": format!("{checksum:016x}"),
                "rows": rows,
                "applied": index,
            })),
            Ok(_) => Err("the storage gave another answer than a checksum".to_owned()),
            Err(reason) => Err(reason),
        };
        self.handle_part(call, part);
        self.start_long_reads();
    }
}

/// Checksums of replicas, grouped by partition.
fn by_partition(parts: Vec<Value>) -> Value {
    let mut partitions: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for part in parts {
        let index = part.get("index").and_then(Value::as_u64).unwrap_or(0);
        let replica = json!({
            "node": part["node"],
            "checksum": part["checksum"],
            "rows": part["rows"],
            "index": part["applied"],
        });
        partitions.entry(index).or_default().push(replica);
    }
    let partitions: Vec<Value> =
        partitions.into_iter().map(|(index, replicas)| json!({ "index": index, "replicas": replicas })).collect();
    json!({ "partitions": partitions })
}
