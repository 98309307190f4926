//! Taking up a catalogue: it is durable here before anything follows from it, and read and written by a job, since it grows with the
//! cluster and its disk may be slow.

use crate::config::REPORT_INTERVAL;
use crate::hosting::was_removed;
use crate::ids::DirectoryId;
use crate::job::Job;
use crate::node::Node;
use crate::open::write_catalogue;
use crate::peer::{CataloguePush, CatalogueRow, Frame};
use crate::shard::Shard;
use bytes::Bytes;
use hedgerow_env::{Disk, Now, write_file_durably};
use hedgerow_placement::{Catalogue, Node as NodeEntry, RowError};
use hedgerow_types::{Instant, NodeId};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The catalogue as a file in a data directory, so that a node that restarts alone knows its tables.
pub(crate) fn cache_path(directory: &Path) -> PathBuf {
    directory.join("catalogue.json")
}

/// A catalogue that is not durable after so long is on a disk that does not answer.
const LATE_AFTER: Duration = Duration::from_secs(3);

/// A catalogue that is not durable here.
#[derive(Clone, Debug)]
pub enum Unsaved {
    /// As the metadata's leader sent it.
    Sent(CataloguePush),
    /// As this node, which leads the metadata, has read or written it.
    Own(Arc<Catalogue>),
}

impl Unsaved {
    fn version(&self) -> u64 {
        match self {
            Self::Sent(push) => push.version,
            Self::Own(catalogue) => catalogue.version,
        }
    }
}

/// Why a catalogue is not acted on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unadopted {
    /// Kept, it would end the next start.
    #[error("it is of cluster {0:016x}")]
    Foreign(u64),
    #[error("it is of version {0}, and was announced as a newer one")]
    Older(u64),
    #[error("it cannot be understood")]
    Malformed(#[from] RowError),
    #[error("it cannot be written")]
    Unwritten(#[from] io::Error),
}

/// Reads a catalogue of `cluster` that is newer than the `known` one, and writes it to the first of the `places` that takes it. One is enough,
/// since the newest of all counts. Blocks.
pub(crate) fn save(
    disk: &dyn Disk,
    unsaved: Unsaved,
    (cluster, known): (u64, u64),
    places: &[PathBuf],
) -> Result<Arc<Catalogue>, Unadopted> {
    let catalogue = match unsaved {
        Unsaved::Own(catalogue) => catalogue,
        Unsaved::Sent(push) => {
            let rows: BTreeMap<Bytes, Bytes> = push.rows.into_iter().map(|row| (row.key, row.value)).collect();
            Arc::new(Catalogue::from_rows(&rows)?)
        }
    };
    if catalogue.cluster != cluster {
        return Err(Unadopted::Foreign(catalogue.cluster));
    }
    if catalogue.version <= known {
        return Err(Unadopted::Older(catalogue.version));
    }
    let text = write_catalogue(&catalogue).map_err(io::Error::other)?;
    let mut saved = Err(io::Error::other("no data directory takes it"));
    for place in places {
        saved = write_file_durably(disk, place, &text);
        if saved.is_ok() {
            break;
        }
    }
    saved?;
    Ok(catalogue)
}

/// A catalogue that a job writes.
#[derive(Clone, Copy, Debug)]
struct Writing {
    version: u64,
    since: Instant,
    /// It came from another node.
    is_sent: bool,
}

/// Catalogues on their way to the disk: one at a time, so that no older one takes the place of a newer one there.
#[derive(Debug, Default)]
pub(crate) struct Adoption {
    /// The one that is being written.
    writing: Option<Writing>,
    /// The newest one that came meanwhile.
    next: Option<Unsaved>,
}

impl Adoption {
    /// Whether one is under way.
    pub(crate) const fn is_busy(&self) -> bool {
        self.writing.is_some()
    }

    /// The version of the newest one that is under way or comes next.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.next.as_ref().map(Unsaved::version).max(self.writing.map(|writing| writing.version))
    }

    /// Whether one is under way for so long that nobody else should wait for its disk.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.writing.is_some_and(|writing| now.since(writing.since) >= LATE_AFTER)
    }
}

/// Catalogues that the metadata's leader has sent because somebody acts on an older one: the version and when, by node.
#[derive(Debug, Default)]
pub(crate) struct Offers(BTreeMap<NodeId, (u64, Instant)>);

impl Offers {
    /// Whether a node that acts on an older one is to be sent `version`. It may be writing it, and says so with every report.
    pub(crate) fn note(&mut self, to: NodeId, version: u64, now: Instant) -> bool {
        let is_under_way = |(sent, at): &(u64, Instant)| *sent == version && now.since(*at) < REPORT_INTERVAL;
        if self.0.get(&to).is_some_and(is_under_way) {
            return false;
        }
        self.0.insert(to, (version, now));
        true
    }

    /// What was sent may be lost.
    pub(crate) fn forget(&mut self, to: NodeId) {
        self.0.remove(&to);
    }
}

impl Node {
    /// A catalogue came from the metadata leader.
    pub(crate) fn handle_catalogue(&mut self, push: CataloguePush) {
        if push.cluster == self.identity.cluster {
            self.adopt_catalogue(Unsaved::Sent(push));
        }
    }

    /// Makes a catalogue what this node acts on, as soon as it is durable here, unless it has a newer one. One that comes to nothing is heard of
    /// again: with the next report, or [`Node::adopt_current`].
    pub(crate) fn adopt_catalogue(&mut self, unsaved: Unsaved) {
        if Some(unsaved.version()) <= self.adoption.newest().max(Some(self.catalogue_version())) {
            return;
        }
        if self.adoption.is_busy() {
            self.adoption.next = Some(unsaved);
            return;
        }
        let is_sent = matches!(unsaved, Unsaved::Sent(_));
        self.adoption.writing = Some(Writing { version: unsaved.version(), since: self.last_tick, is_sent });
        // One that does not answer says nothing, and would have the others wait: it comes last.
        let mut directories: Vec<DirectoryId> = self.usable_directories().collect();
        directories.sort_by_key(|directory| !self.looks.answers(*directory, self.last_tick));
        let places = directories.into_iter().map(|it| cache_path(self.config.path_of(it))).collect();
        let (cluster, known) = (self.identity.cluster, self.catalogue_version());
        self.shards.first().job(Job::SaveCatalogue { unsaved: Box::new(unsaved), cluster, known, places });
    }

    /// A catalogue is durable, or came to nothing.
    pub(crate) fn handle_catalogue_saved(&mut self, saved: Result<Arc<Catalogue>, String>, now: Now) {
        let is_sent = self.adoption.writing.take().is_some_and(|writing| writing.is_sent);
        match saved {
            // Only one is written at a time, and those that a start reads are there before.
            Ok(catalogue) => self.act_on_catalogue(catalogue, now),
            Err(reason) => tracing::error!(reason, "a catalogue is not acted on"),
        }
        if let Some(next) = self.adoption.next.take() {
            self.adopt_catalogue(next);
        }
        if is_sent {
            // What was announced as newer may have been none, and has kept this node's own out. That is tried again after a while.
            self.adopt_current();
        }
        self.give_held_answers();
        self.note_adopted(now);
    }

    /// The version of the catalogue that this node acts on; 0 = none.
    pub(crate) fn catalogue_version(&self) -> u64 {
        self.view.catalogue_version()
    }

    /// As the metadata leader: acts on the catalogue as it holds it, if that could not be written before.
    pub(crate) fn adopt_current(&mut self) {
        if let Some(current) = &self.metadata.current {
            self.adopt_catalogue(Unsaved::Own(Arc::clone(current)));
        }
    }

    /// Acts on a catalogue that is durable here.
    pub(crate) fn act_on_catalogue(&mut self, catalogue: Arc<Catalogue>, now: Now) {
        self.note_members(&catalogue);
        // A group that began anew counts its terms from the beginning.
        self.forget_leaders(|group, leader| was_removed(&catalogue, group, leader));
        // What was let through by the catalogue before is judged by it.
        self.shards.iter_mut().for_each(Shard::take_inbox);
        let before = Arc::clone(&self.view.settings);
        self.change_view(|view| view.go_by(catalogue));
        self.warn_of_unnamed_clusters(&before);
        self.front.end_outdated_logins(&mut self.shards.first().serving());
        self.check_own_life();
        self.refresh_shapes();
        self.reconcile_hosting(now);
    }

    /// The audit log tells which nodes are new since the catalogue before, have begun anew, or are elsewhere.
    fn note_members(&mut self, catalogue: &Catalogue) {
        let Some(before) = &self.view.catalogue else { return };
        let is_known = |id: &NodeId, node: &NodeEntry| {
            let same = |it: &NodeEntry| (it.incarnation, &it.address) == (node.incarnation, &node.address);
            before.nodes.get(id).is_some_and(same)
        };
        for (id, node) in catalogue.nodes.iter().filter(|(id, node)| !is_known(id, node)) {
            self.front.audit().note_member(*id, &node.address);
        }
    }

    /// The catalogue as it travels between nodes.
    pub(crate) fn catalogue_push(catalogue: &Catalogue) -> Frame {
        let rows = catalogue.rows().into_iter().map(|(key, value)| CatalogueRow { key, value }).collect();
        Frame::Catalogue(CataloguePush { cluster: catalogue.cluster, version: catalogue.version, rows })
    }

    /// Sends the catalogue to a node that acts on an older one.
    pub(crate) fn offer_catalogue(&mut self, to: NodeId, version: u64, now: Now) {
        let Some(current) = self.metadata.current.as_ref().filter(|current| current.version > version) else { return };
        if self.metadata.offers.note(to, current.version, now.instant) {
            let push = Self::catalogue_push(current);
            self.shards.first().send(to, &push);
        }
    }
}
