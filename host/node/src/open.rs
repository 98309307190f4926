//! Starting a node: what its directories hold, replica by replica, and which of it is fit to go on.

use crate::admin::AdminCalls;
use crate::adopt::{Adoption, cache_path};
use crate::config::Config;
use crate::creations::Creations;
use crate::drive::chain;
use crate::errands::trash_of;
use crate::failure::{Failures, is_device_failure, takes_no_writes};
use crate::founding::Founding;
use crate::identity::{self, Found, FoundLog, Identity, IdentityError, Missing};
use crate::ids::{DirectoryId, LogId, ReplicaKey, ShardId};
use crate::layout::{LogLayout, Shelf, has_log, is_idle};
use crate::lives::Lives;
use crate::lives::check_copy;
use crate::log_id;
use crate::looks::Looks;
use crate::metadata::Metadata;
use crate::node::Node;
use crate::replica::{Hosted, directory_of, incoming_of, owner_of};
use crate::report::Reports;
use crate::requests::front::Front;
use crate::shard::Shard;
use crate::shards::Shards;
use crate::shared_bound::Kept;
use crate::slow::Speeds;
use crate::strangers::Strangers;
use crate::view::View;
use bytes::Bytes;
use hedgerow_env::{Disk, Now, read_file_if_exists};
use hedgerow_placement::Catalogue;
use hedgerow_storage::Engines;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, NodeId, ReplicaId};
use hedgerow_wal::{CopyError, Log, Recovered};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A node that has started, and its logs, which the caller drives.
#[derive(Debug)]
pub struct Opened {
    /// The node.
    pub node: Node,
    /// The logs that it uses, by number.
    pub logs: Vec<Log>,
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration contradicts itself.
    #[error("configuration: {0}")]
    Config(String),
    /// The data directories cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The data is a copy from before the node's newest process, by the catalogue that lies beside it. Nothing of it was changed.
    #[error("{0}")]
    Refused(String),
    /// A log cannot be opened.
    #[error("cannot open the log in {}", directory.display())]
    Log {
        /// Its directory.
        directory: PathBuf,
        /// Why.
        source: hedgerow_wal::OpenError,
    },
    /// The data directory with the node's only log is left out.
    #[error(
        "`log.layout` is `node`, and the log of all replicas is in {}, which cannot be used: {reason}. Bring it back. If it is lost, so \
         are the replicas of this node: an empty directory in its place has it learn them again from the others",
        directory.display()
    )]
    NoHome {
        /// The first data directory.
        directory: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// A change of layout was interrupted, and the log that groups were copied from may be in a data directory that is left out. Nothing was
    /// removed: that one may have been struck out already, so that the copies are all there is.
    #[error(
        "a change of `log.layout` was interrupted, and logs that it copied (number of groups: {groups}) may be in {}, which cannot be used: \
         {reason}. Bring it back and start the node again. If it is lost, an empty directory in its place has the node learn them again from \
         the others",
        directory.display()
    )]
    Unsettled {
        /// The data directory.
        directory: PathBuf,
        /// Why it cannot be used.
        reason: String,
        /// How many.
        groups: usize,
    },
    /// Groups cannot come to a log of the layout that is configured. Nothing is lost, and what there is of the copies counts for nothing.
    #[error(
        "groups cannot be moved to the log in {}, where they belong by `log.layout`: mend that and start the node again, or start it with the \
         layout that it had",
        directory.display()
    )]
    Moving {
        /// The directory of the log.
        directory: PathBuf,
        /// Why.
        source: CopyError,
    },
    /// There is no room for groups in the log where they belong. Nothing of theirs was changed.
    #[error(
        "groups are to be moved to the log in {}, where they belong by `log.layout`: that takes {} MiB, and the disk has {} MiB free. Make \
         room there, or start the node with the layout that it had",
        directory.display(), needed.div_ceil(1 << 20), free >> 20
    )]
    NoRoomToMove {
        /// The directory of the log.
        directory: PathBuf,
        /// Bytes that the copies and the ends of the logs on that disk take.
        needed: u64,
        /// Bytes that it has.
        free: u64,
    },
    /// A log holds replicas of another node. Nothing of it was removed.
    #[error(
        "the log in {} is of node {}, this is node {}: put each node's log back in its place, or empty the data directory and \
         let the node learn again",
        directory.display(), found.0, expected.0
    )]
    ForeignLog {
        /// Its directory.
        directory: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Who we are.
        expected: NodeId,
    },
    /// One replica stands in two logs. Nothing was removed.
    #[error(
        "replica {replica} of group {group} is in the logs of {} and of {}: one of them is a copy of the other. Take the copy off `data`, or \
         empty it",
        first.display(), second.display()
    )]
    Copied {
        /// Its group.
        group: GroupId,
        /// Which one.
        replica: ReplicaId,
        /// A data directory.
        first: PathBuf,
        /// Another one.
        second: PathBuf,
    },
    /// A replica may be whole, but could not be looked at. Nothing of it was changed.
    #[error("replica {replica} of group {group} cannot be opened in {}; nothing of it was removed", directory.display())]
    Replica {
        /// Its group.
        group: GroupId,
        /// Which one.
        replica: ReplicaId,
        /// Its storage.
        directory: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The cached catalogue is another cluster's. Nothing was removed.
    #[error(
        "{} is of cluster {found:016x}, identity.json says {expected:016x}: put the right file in its place, or remove it; the \
         cluster tells the node what it was",
        path.display()
    )]
    ForeignCatalogue {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: u64,
        /// What the node's identity says.
        expected: u64,
    },
    /// The cached catalogue cannot be read.
    #[error("cannot read {}", path.display())]
    Catalogue {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Node {
    /// Starts the node from its directories, which are created where they do not exist. Blocks until everything that
    /// was there is open and the logs are read.
    pub fn open(
        mut config: Config,
        disk: Arc<dyn Disk>,
        engines: Arc<dyn Engines>,
        now: Now,
    ) -> Result<Opened, OpenError> {
        config.check().map_err(OpenError::Config)?;
        let mut random = Random::new(config.seed);
        let mut found = identity::open(&*disk, &config.data, config.node, random.next_u64())?;
        let catalogue = read_catalogue(&*disk, &found.present, found.identity.cluster)?.map(Arc::new);
        let known = catalogue.as_ref().and_then(|catalogue| catalogue.nodes.get(&config.node));
        found.identity.note_known_start(known.map_or(0, |known| known.boot));
        check_copy(&config, catalogue.as_deref(), &found)?;
        found.save(&*disk, &mut random)?;
        let Found { mut identity, present, mut missing, locks, .. } = found;
        let (mut shelf, recovered) = open_logs(&disk, &mut config, present, &mut missing)?;
        check_copies(&config, &shelf, &recovered)?;
        for (directory, reason) in &missing {
            tracing::error!(directory = %directory.display(), %reason, "a data directory is left out");
        }
        identity.remember_cluster(catalogue.as_ref().map_or(0, |catalogue| catalogue.cluster));
        let found = find_logs(&*disk, &config, &shelf, &identity)?;
        check_meta_nodes(&config, &identity);
        let has_logs = identity.has_logs(&counted(&config, &shelf, &found, &identity));
        shelf.is_whole = has_logs && !shelf.logs.iter().any(Log::has_unknown_loss);
        check_settled(&shelf, &recovered, &missing)?;
        let ids = take_up_logs(&*disk, &config, (&shelf, &found, has_logs), &mut identity, &mut random)?;
        let config = Arc::new(config);
        let view = Arc::new(View::new(&config));
        let kept = Kept::default();
        let shard = |id, random| {
            let (config, disk, engines) = (Arc::clone(&config), Arc::clone(&disk), Arc::clone(&engines));
            Shard::new(ShardId(id), config, disk, engines, (random, Arc::clone(&view), &kept), now.instant)
        };
        let others: Vec<Shard> = (1..config.shards).map(|id| shard(id, Random::new(random.next_u64()))).collect();
        let mut first = shard(0, random);
        let mut node = Node {
            admin: AdminCalls::new(first.random.next_u64()),
            front: Front::new(&config),
            view,
            shards: Shards::new(std::iter::once(first).chain(others).collect()),
            speeds: Speeds::new(&config),
            looks: Looks::new(&config),
            config,
            disk,
            engines,
            identity,
            founding: Founding::default(),
            metadata: Metadata::default(),
            adoption: Adoption::default(),
            reports: Reports::default(),
            failures: Failures::default(),
            missing,
            locks: Arc::new(locks),
            strangers: Strangers::default(),
            lives: Lives::default(),
            creations: Creations::default(),
            keeps_given_up: false,
            has_unreconciled: false,
            former: BTreeMap::new(),
            begun: BTreeSet::new(),
            last_tick: now.instant,
        };
        let now = node.judge_clock(now);
        // Replicas start with the tables known, and tables are acted on with the replicas there.
        node.change_view(|view| view.catalogue.clone_from(&catalogue));
        let dropped = node.recover_all((&mut shelf, &ids), recovered, now)?;
        let logs = node.use_logs(shelf, ids)?;
        if let Some(catalogue) = catalogue {
            node.act_on_catalogue(catalogue, now);
            // Nobody waits for this thread yet, and what follows looks for what is not hosted.
            while node.has_unreconciled {
                node.reconcile_hosting(now);
            }
        } else if node.identity.cluster != 0 {
            node.host_metadata_founder();
        }
        node.note_without_log();
        node.clear_leftovers(&dropped);
        node.drive(now);
        Ok(Opened { node, logs })
    }

    /// The logs that the node uses, which its identity names from here on, with those that somebody is left in. The others go. `ids` are the
    /// numbers of all.
    fn use_logs(&mut self, mut shelf: Shelf, ids: Vec<u64>) -> Result<Vec<Log>, OpenError> {
        let used = self.config.log_count();
        let mut named: Vec<(DirectoryId, u64)> = shelf.homes.iter().copied().zip(ids).collect();
        let idle = shelf.take_idle(used);
        let (gone, left): (Vec<_>, Vec<_>) =
            named.into_iter().partition(|(home, _)| idle.iter().any(|(of, _)| of == home));
        named = left;
        let begun = named.iter().zip(&shelf.logs).map(|((_, id), log)| (*id, log.synced() > 1));
        let has_changed = self.identity.log_layout() != self.config.log_layout || !idle.is_empty();
        if has_changed {
            self.identity.use_logs(begun);
            self.identity.use_no_more(gone.into_iter().map(|(_, id)| id));
            if shelf.logs.len() == used {
                self.identity.set_log_layout(self.config.log_layout);
            }
            self.identity.save_to_each(&*self.disk, &self.config.data)?;
        }
        for (home, log) in idle {
            let directory = log_id::log_of(self.config.path_of(home));
            if let Err(error) = log.end() {
                tracing::warn!(directory = %directory.display(), %error, "where this log was one will count as lost");
            }
            tracing::info!(directory = %directory.display(), "a log that no group is in any more is removed");
            self.discard_now(home, vec![directory]);
        }
        shelf.logs.truncate(used);
        let ids = named.into_iter().map(|(_, id)| id);
        self.begin_logs(&shelf.logs, ids.zip(shelf.begun).collect());
        Ok(shelf.logs)
    }

    /// A replica that is forgotten for another of its group may vote by a newer catalogue, and must not begin anew under its id. Called before
    /// anything of it goes.
    pub(crate) fn forget_dropped(&mut self, dropped: &BTreeSet<ReplicaKey>) -> Result<(), OpenError> {
        if dropped.iter().all(|owner| self.is_gone(*owner)) {
            return Ok(());
        }
        self.identity.renew(self.shards.first().random.next_u64());
        Ok(self.identity.save_to_each(&*self.disk, &self.config.data)?)
    }

    /// The replicas of this node that the catalogue lists.
    fn listed(&self) -> impl Iterator<Item = ReplicaKey> {
        let listed = self.view.catalogue.iter().flat_map(|catalogue| catalogue.hosted_by(self.config.node));
        listed.map(|(group, replica)| ReplicaKey { group, replica: replica.id })
    }

    /// Replicas of this node that the catalogue lists and no log knows are lost. Their storage stays until the metadata has them
    /// replaced: where the logs of a majority are away, not mounted perhaps, it is needed again when they are back.
    fn note_without_log(&mut self) {
        let unknown = self.listed().filter(|owner| self.shards.hosted(owner.group).is_none());
        let unknown: Vec<ReplicaKey> = unknown.collect();
        for owner in unknown {
            let is_there = |data: &PathBuf| self.disk.exists(&directory_of(data, owner));
            if let Some(place) = self.config.data.iter().position(is_there) {
                self.note_lost(owner, DirectoryId(place), "no log knows it");
            }
        }
    }

    /// Removes what an earlier life left in the directories: storage of replicas that are gone by the catalogue, or were `dropped`, and
    /// checkpoints that were made for others. What the catalogue may be too old to know stays, until a newer one says.
    fn clear_leftovers(&mut self, dropped: &BTreeSet<ReplicaKey>) {
        // Wherever it lies, and whatever else of its group is hosted: what is not where it should be may be put back.
        let hosted: BTreeSet<ReplicaKey> = self.shards.each_hosted().map(Hosted::owner).collect();
        for directory in self.config.directories() {
            let data = self.config.path_of(directory).to_owned();
            let below = |name: &str| {
                let parent = data.join(name);
                let names = self.disk.list(&parent).unwrap_or_default();
                names.into_iter().map(move |name| parent.join(name))
            };
            let mut unused = Vec::new();
            for path in below("replicas") {
                let Some(owner) = owner_of(&path) else { continue };
                if hosted.contains(&owner) {
                    // Nobody ends an installation beside storage that is there.
                    let storage = directory_of(&data, owner);
                    if path != storage && self.disk.exists(&storage) {
                        unused.push(path);
                    }
                } else if self.is_gone(owner) || self.view.catalogue.is_some() && dropped.contains(&owner) {
                    unused.push(path);
                } else {
                    self.former.insert(owner, directory);
                }
            }
            // What is received goes on where it stopped, as long as there is somebody to install it.
            let owners = self.shards.each_hosted().filter(|hosted| hosted.directory() == directory).map(Hosted::owner);
            let received: BTreeSet<PathBuf> = owners.flat_map(|owner| incoming_of(&*self.disk, &data, owner)).collect();
            let is_forgotten = |path: &PathBuf| self.view.catalogue.is_some() && !received.contains(path);
            let forgotten = below("incoming").filter(is_forgotten);
            let paths = unused.into_iter().chain(forgotten).chain(below("checkpoints")).collect();
            // What an earlier life of the node has not come to remove.
            let removed = self.disk.list(&trash_of(&data)).unwrap_or_default();
            let removed = removed.into_iter().map(|name| trash_of(&data).join(name)).collect();
            self.shards.first().enqueue_removal(None, removed);
            self.discard_now(directory, paths);
        }
    }

    /// Removes what is below a data directory, and has it under no name that counts at once. Only for a start: it blocks.
    fn discard_now(&mut self, directory: DirectoryId, paths: Vec<PathBuf>) {
        let removed = self.shards.first().trash(directory).put_aside(&*self.disk, paths);
        self.shards.first().enqueue_removal(None, removed);
    }
}

/// The name of the checksum among the rows of the cached catalogue.
const CHECKSUM_ROW: &str = "checksum";

/// What logs hold, with their numbers.
type InLogs = Vec<(LogId, Recovered)>;

/// Opens the logs of the directories that are `present`, those that the layout has not only if they are there, and leaves those directories
/// out whose disk refuses while another does not. The configuration's directories are those that remain; what is recovered has its log's
/// number.
fn open_logs(
    disk: &Arc<dyn Disk>,
    config: &mut Config,
    present: Vec<PathBuf>,
    missing: &mut Vec<Missing>,
) -> Result<(Shelf, InLogs), OpenError> {
    let (mut shelf, mut recovered, mut failure) = (Shelf::default(), Vec::new(), None);
    check_home(config, &present, missing)?;
    config.data.clear();
    for data in present {
        let directory = log_id::log_of(&data);
        let place = DirectoryId(config.data.len());
        let is_used = config.home_of(config.log_of(place)) == place;
        if !is_used && !has_log(&**disk, &data) {
            config.data.push(data);
            continue;
        }
        let files = disk.list(&directory).unwrap_or_default().len();
        tracing::info!(directory = %directory.display(), files, "reading the log");
        match Log::open(Arc::clone(disk), &directory, config.wal) {
            Ok((log, found)) => {
                check_owner(&found, config.node, &directory)?;
                recovered.extend(found.into_iter().map(|found| (LogId(shelf.logs.len()), found)));
                shelf.begun.push(log.synced());
                shelf.logs.push(log);
                shelf.homes.push(place);
                config.data.push(data);
            }
            Err(source) if is_out_of_use(&source) && !(is_used && config.log_layout == LogLayout::Node) => {
                missing.push((data, chain(&source)));
                failure.get_or_insert(OpenError::Log { directory, source });
            }
            Err(source) => return Err(OpenError::Log { directory, source }),
        }
    }
    match failure {
        Some(failure) if shelf.logs.is_empty() => Err(failure),
        Some(_) | None => Ok((shelf, recovered)),
    }
}

/// An error if the only log is in a directory that is left out.
fn check_home(config: &Config, present: &[PathBuf], missing: &[Missing]) -> Result<(), OpenError> {
    let Some(home) = config.data.first().filter(|_| config.log_layout == LogLayout::Node) else { return Ok(()) };
    if present.contains(home) {
        return Ok(());
    }
    let reason = missing.iter().find(|(directory, _)| directory == home).map(|(_, reason)| reason.clone());
    Err(OpenError::NoHome { directory: home.clone(), reason: reason.unwrap_or_default() })
}

/// The numbers of the logs, and whether they have been written to. An error if one of them may be a copy.
fn find_logs(
    disk: &dyn Disk,
    config: &Config,
    shelf: &Shelf,
    identity: &Identity,
) -> Result<Vec<FoundLog>, IdentityError> {
    let find = |(home, log): (&DirectoryId, &Log)| {
        let data = config.path_of(*home);
        let id = log_id::read(disk, data).map_err(|source| IdentityError::Io { directory: data.to_owned(), source })?;
        // A segment without a batch says nothing yet.
        let found = FoundLog { id, is_begun: log.synced() > 1 };
        identity.check_log(data, &found)?;
        Ok(found)
    };
    shelf.homes.iter().zip(&shelf.logs).map(find).collect()
}

/// Says so where the configuration names other metadata nodes than those that founded the cluster: only the founding asks for them.
fn check_meta_nodes(config: &Config, identity: &Identity) {
    let founders: BTreeSet<u32> = identity.founders.iter().map(|founder| founder.node).collect();
    let configured: BTreeSet<u32> = config.meta_nodes.iter().map(|node| u32::from(node.0)).collect();
    if !founders.is_empty() && founders != configured {
        tracing::warn!(
            ?founders,
            "meta_nodes counts only when the cluster is founded, and other nodes founded this one"
        );
    }
}

/// Whether a start goes on that finds pending copies alone: not while a data directory is left out in which they may have come from a log. That
/// one may have been struck out already, so that they are all there is, or has gone on, so that they are outdated. Asked before
/// anything says which logs are used: otherwise they would be all at the next start.
fn check_settled(shelf: &Shelf, recovered: &[(LogId, Recovered)], missing: &[Missing]) -> Result<(), OpenError> {
    let Some((directory, reason)) = missing.first().filter(|_| !shelf.is_whole) else { return Ok(()) };
    let same = |one: &Recovered, other: &Recovered| (one.group, one.replica) == (other.group, other.replica);
    let is_alone = |one: &Recovered| recovered.iter().filter(|(_, other)| same(one, other)).count() == 1;
    match recovered.iter().filter(|(_, one)| one.is_pending && is_alone(one)).count() {
        0 => Ok(()),
        groups => Err(OpenError::Unsettled { directory: directory.clone(), reason: reason.clone(), groups }),
    }
}

/// The numbers of the logs, which are the node's from here on. Where the node had others (not `has_logs`), or one has lost something of whatever
/// group, a replica that is missing now may be what was lost, so that nothing may be created in this incarnation's name any more. All of that is
/// durable in every directory before anything is written to a log.
fn take_up_logs(
    disk: &dyn Disk,
    config: &Config,
    (shelf, found, has_logs): (&Shelf, &[FoundLog], bool),
    identity: &mut Identity,
    random: &mut Random,
) -> Result<Vec<u64>, IdentityError> {
    let logs = &shelf.logs;
    if !has_logs {
        tracing::warn!(
            "a data directory is away or new since the last start: the replicas in it are learned again from the other nodes"
        );
    }
    let paths: Vec<&Path> = shelf.homes.iter().map(|home| config.path_of(*home)).collect();
    for (data, log) in paths.iter().zip(logs) {
        let directory = data.display();
        if log.has_unknown_loss() {
            tracing::error!(%directory, "the log has lost what it held: replicas whose records stood there are lost");
        }
        if let Some(reason) = log.mark_problem() {
            tracing::warn!(%directory, reason, "the log's mark cannot be used: a lost end would go unnoticed");
        }
    }
    let ids = numbers_of((logs, found), has_logs, random);
    let named = paths.iter().zip(found).zip(ids.iter().copied());
    let renamed: Vec<((&&Path, &FoundLog), u64)> = named.filter(|((_, own), id)| own.id != Some(*id)).collect();
    let begun = renamed.iter().filter(|((_, own), _)| own.is_begun).map(|(_, id)| *id);
    // Random, from another stream than the node's own.
    identity.begin(Random::new(!config.seed).next_u64(), begun);
    identity.save_to_each(disk, &config.data)?;
    for ((data, _), id) in renamed {
        log_id::write(disk, data, id).map_err(|source| IdentityError::Io { directory: data.to_path_buf(), source })?;
    }
    if !shelf.is_whole {
        identity.renew(random.next_u64());
    }
    identity.use_logs(ids.iter().copied().zip(found.iter().map(|log| log.is_begun)));
    if config.log_layout != LogLayout::default() {
        identity.set_log_layout(config.log_layout);
    }
    identity.save_to_each(disk, &config.data)?;
    Ok(ids)
}

/// The logs that must be those that were used last. Another layout than the last one has new logs where none was, and a log that no group is
/// in any more may have been left by a start that was interrupted before it removed that.
fn counted(config: &Config, shelf: &Shelf, found: &[FoundLog], identity: &Identity) -> Vec<FoundLog> {
    let is_new_layout = identity.log_layout() != config.log_layout;
    let used = config.log_count();
    let logs = found.iter().zip(&shelf.logs).enumerate();
    let is_counted = |(number, (own, log)): &(usize, (&FoundLog, &Log))| {
        let may_be_new = is_new_layout && !own.is_begun;
        let may_be_left = *number >= used && is_idle(log);
        identity.has_used(own) || !(may_be_new || may_be_left)
    };
    logs.filter(is_counted).map(|(_, (own, _))| *own).collect()
}

/// The numbers that logs have from now on. A log that has lost something, or all, is another one from here on: nothing is compared with what
/// is known of it.
fn numbers_of((logs, found): (&[Log], &[FoundLog]), has_logs: bool, random: &mut Random) -> Vec<u64> {
    let mut ids: Vec<u64> = Vec::new();
    for (log, own) in logs.iter().zip(found) {
        let is_same = (own.is_begun || has_logs) && !log.has_unknown_loss();
        let known = own.id.filter(|id| is_same && !ids.contains(id));
        ids.push(known.unwrap_or_else(|| random.next_u64()));
    }
    ids
}

/// A log knows by the ids of its replicas whose it is. Of another node's log nothing goes on here, and a replica that is not in
/// it would begin anew under its old id, having forgotten its votes and its log. Where a state was lost the id is 0.
fn check_owner(found: &[Recovered], expected: NodeId, directory: &Path) -> Result<(), OpenError> {
    let mut nodes = found.iter().filter(|one| one.replica != ReplicaId(0)).map(|one| one.replica.node());
    match nodes.find(|node| *node != expected) {
        Some(found) => Err(OpenError::ForeignLog { directory: directory.to_path_buf(), found, expected }),
        None => Ok(()),
    }
}

/// Ids of replicas are never used twice, so that one in two logs was copied, unless it has come from one to the other, which its generation
/// tells, or that it is pending. Whichever went on, the other one's storage would be taken for its own.
fn check_copies(config: &Config, shelf: &Shelf, recovered: &[(LogId, Recovered)]) -> Result<(), OpenError> {
    let mut seen: BTreeMap<(GroupId, ReplicaId, u64), LogId> = BTreeMap::new();
    for (log, found) in recovered.iter().filter(|(_, found)| found.replica != ReplicaId(0) && !found.is_pending) {
        if let Some(before) = seen.insert((found.group, found.replica, found.generation), *log) {
            let path = |log: LogId| config.path_of(shelf.home_of(log)).to_owned();
            let (first, second) = (path(before), path(*log));
            return Err(OpenError::Copied { group: found.group, replica: found.replica, first, second });
        }
    }
    Ok(())
}

/// Whether a log's disk fails, or takes no writes as one does that has failed.
fn is_out_of_use(error: &hedgerow_wal::OpenError) -> bool {
    is_device_failure(error) || matches!(error, hedgerow_wal::OpenError::Io { source, .. } if takes_no_writes(source))
}

/// The catalogue that the node acted on last: the newest of all data directories, since the first one may have been away. A damaged
/// one is put aside: the metadata leader sends it again, and until then the node goes by its log.
fn read_catalogue(disk: &dyn Disk, data: &[PathBuf], cluster: u64) -> Result<Option<Catalogue>, OpenError> {
    let mut newest: Option<Catalogue> = None;
    for path in data.iter().map(|directory| cache_path(directory)) {
        let failed = |source| OpenError::Catalogue { path: path.clone(), source };
        let text = match read_file_if_exists(disk, &path) {
            Ok(Some(text)) => text,
            Ok(None) => continue,
            // What the others do not know stays.
            Err(error) if is_device_failure(&error) => {
                tracing::error!(file = %path.display(), %error, "a catalogue cannot be read and is left out");
                continue;
            }
            Err(source) => return Err(failed(source)),
        };
        match parse_catalogue(&text) {
            // Acted on, it would have the replicas of this one removed.
            Ok(catalogue) if cluster != 0 && catalogue.cluster != cluster => {
                return Err(OpenError::ForeignCatalogue { path, found: catalogue.cluster, expected: cluster });
            }
            Ok(catalogue) if newest.as_ref().is_some_and(|newest| newest.version >= catalogue.version) => {}
            Ok(catalogue) => newest = Some(catalogue),
            Err(reason) => {
                let aside = path.with_extension("json.damaged");
                let (file, put) = (path.display(), aside.display());
                tracing::error!(%file, %reason, aside = %put, "a damaged catalogue is put aside");
                match disk.rename(&path, &aside) {
                    // The directory is left out when it is written to.
                    Err(error) if takes_no_writes(&error) => {}
                    put => put.map_err(failed)?,
                }
            }
        }
    }
    Ok(newest)
}

/// The file's rows. Replicas are removed by what they say: one wrong digit would do, and still be a catalogue.
pub(crate) fn parse_catalogue(text: &[u8]) -> Result<Catalogue, String> {
    let mut rows: BTreeMap<String, String> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    // Files of earlier programs have none.
    if let Some(checksum) = rows.remove(CHECKSUM_ROW)
        && checksum != checksum_of(&rows)
    {
        return Err("its checksum is another".to_owned());
    }
    let rows: BTreeMap<Bytes, Bytes> = rows.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    Catalogue::from_rows(&rows).map_err(|error| error.to_string())
}

/// A catalogue as [`parse_catalogue`] reads it.
pub(crate) fn write_catalogue(catalogue: &Catalogue) -> serde_json::Result<Vec<u8>> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let mut rows: BTreeMap<String, String> =
        catalogue.rows().iter().map(|(key, value)| (text(key), text(value))).collect();
    rows.insert(CHECKSUM_ROW.to_owned(), checksum_of(&rows));
    serde_json::to_vec(&rows)
}

fn checksum_of(rows: &BTreeMap<String, String>) -> String {
    let parts = rows.iter().flat_map(|(key, value)| [key, "\0", value, "\0"]);
    format!("{:08x}", parts.fold(0, |sum, part| crc32c::crc32c_append(sum, part.as_bytes())))
}
