//! The metadata leader's work: changing the catalogue, one conditional write at a time, and seeing to what is lost.
//!
//! The catalogue is rows of an ordinary group. Whoever leads that group reads them, works on a copy, and writes the
//! difference with a condition on the version row; a leader that was deposed without noticing fails the condition. All
//! changes that are waiting go into one write. Everything asked for is answered after the write is applied.

use crate::admin::Asker;
use crate::admin_client::shortened;
use crate::adopt::{Offers, Unsaved};
use crate::catalogue_change::Change;
use crate::config::{CREATION_REPEATED_FOR, GONE_AFTER, REPORT_INTERVAL, creation_wait};
use crate::damage::note_read;
use crate::drive::chain;
use crate::node::Node;
use crate::repair::Losses;
use crate::replica::{Hosted, Origin};
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_placement::{
    Catalogue, CatalogueError, Dropped, Node as NodeEntry, Presence, Table, TableState, VERSION_ROW,
};
use hedgerow_replication::{Role, RoleChange};
use hedgerow_storage::EngineError;
use hedgerow_types::op::{Filter, Read, ReadReply, Scan, Write, WriteReply};
use hedgerow_types::{ClientId, GroupId, Instant, NodeId, Refusal, Status, TableId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Changes that may wait while another is being written. All of them go into the next write.
const QUEUE_MAX: usize = 128;

/// What the node does while it leads the metadata group.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    /// The catalogue as the group holds it; absent while this node does not lead the group or has not read it yet.
    pub(crate) current: Option<Arc<Catalogue>>,
    step: Step,
    /// What was sent to nodes that act on an older one.
    pub(crate) offers: Offers,
    queue: VecDeque<(Change, Asker)>,
    /// Who is answered, and how, when the draft is written: what a change that is not made answers may rest on others in the
    /// draft.
    written_for: Vec<(Asker, Result<Value, Refusal>)>,
    /// Who waits for a table's partitions to have leaders.
    creating: Vec<(TableId, Asker, Instant)>,
    /// Creations that may be asked for again: through which nodes they came, and when the table was last seen not to serve
    /// yet.
    repeatable: BTreeMap<TableId, (BTreeSet<NodeId>, Instant)>,
    /// Since when the node leads the group without a break.
    leads_since: Option<Instant>,
    /// When it last looked whether read-only replicas are where they should be.
    learners_seen_to: Option<Instant>,
    /// What waits to be replaced.
    pub(crate) losses: Losses,
}

/// The read or the write of the catalogue that is under way. There is one at a time, and only the outcome of that one is
/// heard: the outcome of another, which was given up, says nothing of what is stored now.
#[derive(Debug, Default)]
enum Step {
    #[default]
    Idle,
    Reading(u64),
    /// The catalogue as it is once the write is applied.
    Writing(u64, Box<Catalogue>),
    /// The catalogue is written, and this node does not act on this version yet. Whoever is told of a change may ask this node for it.
    Adopting(u64),
    /// It came to nothing. What is stored is not known until it is read anew.
    Failed(Refusal),
}

impl Step {
    const fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    const fn ticket(&self) -> Option<u64> {
        match self {
            Self::Reading(ticket) | Self::Writing(ticket, _) => Some(*ticket),
            Self::Idle | Self::Adopting(_) | Self::Failed(_) => None,
        }
    }
}

impl Metadata {
    /// Makes a change that nobody waits for, with the next that is written.
    pub(crate) fn enqueue(&mut self, change: Change) {
        self.queue.push_back((change, Asker::Nobody));
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.step.is_idle() || !self.queue.is_empty()
    }

    /// The read or write with this ticket came to nothing: the next tick sees to it.
    pub(crate) fn handle_failed(&mut self, ticket: u64, refusal: &Refusal) {
        if self.step.ticket() == Some(ticket) {
            self.step = Step::Failed(refusal.clone());
        }
    }
}

impl Node {
    /// Whether this node leads the metadata group and has read the catalogue.
    pub(crate) fn leads_metadata(&self) -> bool {
        self.metadata.current.is_some()
    }

    /// Whether this node's copy of the catalogue lacks nothing that anybody was told of: nobody else can lead the metadata, and
    /// what this node has read or written of it is in its own copy too, which waits for the disk.
    pub(crate) fn has_newest_catalogue(&self, now: Now) -> bool {
        let Some(current) = &self.metadata.current else { return false };
        self.catalogue_version() == current.version && self.holds_metadata_lease(now)
    }

    /// Whether nobody has been told of a table called `name`: nobody else can lead the metadata, and what this node has read or written of it
    /// has none.
    pub(crate) fn has_no_table(&self, name: &str, now: Now) -> bool {
        let Some(current) = &self.metadata.current else { return false };
        current.table_by_name(name).is_none() && self.holds_metadata_lease(now)
    }

    /// Whether nobody else can lead the metadata.
    fn holds_metadata_lease(&self, now: Now) -> bool {
        match self.shards.hosted(GroupId::META) {
            Some(Hosted::Running(replica)) => replica.group.lease_holds(now.instant),
            Some(Hosted::Starting { .. } | Hosted::Lost { .. }) | None => false,
        }
    }

    pub(crate) fn handle_metadata_role(&mut self, change: RoleChange, now: Now) {
        self.abandon_change(&Refusal::Unresolved, now);
        self.metadata.repeatable.clear();
        for (_, asker, _) in std::mem::take(&mut self.metadata.creating) {
            self.answer_admin(asker, Err(Refusal::Unresolved));
        }
        self.metadata.losses = Losses::default();
        self.metadata.leads_since = None;
        if change.role == Role::Leader {
            self.metadata.leads_since = Some(now.instant);
            self.start_loading(now);
        }
    }

    /// Asks for a change; `asker` is answered when it is durable.
    pub(crate) fn change(&mut self, change: Change, asker: Asker, now: Now) {
        if self.metadata.queue.len() >= QUEUE_MAX {
            let text = format!("{QUEUE_MAX} changes of the catalogue wait to be written");
            return self.answer_admin(asker, Err(Refusal::Busy(text)));
        }
        self.metadata.queue.push_back((change, asker));
        self.write_changes(now);
    }

    pub(crate) fn tick_metadata(&mut self, now: Now) {
        if let Step::Failed(refusal) = &self.metadata.step {
            let refusal = refusal.clone();
            self.abandon_change(&refusal, now);
        }
        if self.adoption.is_late(now.instant) {
            self.give_held_answers();
            self.note_adopted(now);
        }
        let is_leader = self.shards.running(GroupId::META).is_some_and(|replica| replica.group.role() == Role::Leader);
        if is_leader && self.metadata.current.is_none() && self.metadata.step.is_idle() {
            self.start_loading(now);
        }
        self.reconcile_new_tables(now);
        self.reconcile_learners(now);
        self.reconcile_overdue(now);
        self.write_changes(now);
    }

    /// Read-only replicas follow their table's option, and the nodes that come and stay away.
    fn reconcile_learners(&mut self, now: Now) {
        let last = self.metadata.learners_seen_to;
        let is_busy = self.metadata.is_busy();
        let Some(current) = &self.metadata.current else { return };
        // It looks at every partition.
        if is_busy || last.is_some_and(|last| now.instant.since(last) < REPORT_INTERVAL) {
            return;
        }
        if current.wants_arranging(&self.presence(now)) {
            self.metadata.enqueue(Change::ArrangeLearners);
        }
        self.metadata.learners_seen_to = Some(now.instant);
    }

    /// Dropped tables go for good when their time is over, by the time on which a majority agreed (decision 012): one node's clock
    /// removes nothing, and without a time (0) nothing is overdue. Of a recall and a removal at the same moment the one that is
    /// written first counts, as both are changes of the same catalogue.
    fn reconcile_overdue(&mut self, now: Now) {
        let is_busy = self.metadata.is_busy();
        let Some(current) = &self.metadata.current else { return };
        if is_busy {
            return;
        }
        let unix_seconds = now.unix_micros / 1_000_000;
        let over: Vec<u32> = current.overdue(unix_seconds).map(|table| table.id.0).collect();
        if !over.is_empty() {
            tracing::info!(tables = ?over, "the time of dropped tables is over: they are removed");
            self.metadata.enqueue(Change::RemoveOverdue { unix_seconds });
        }
    }

    /// Who is there. Nobody is gone for good before this node has led the metadata for so long itself.
    fn presence(&self, now: Now) -> Presence {
        let is_gone = |node: &NodeId| {
            let heard = self.reports.told().nodes.get(node).map(|(_, heard)| *heard);
            let since = self.metadata.leads_since.max(heard);
            since.is_some_and(|since| now.instant.since(since) >= GONE_AFTER)
        };
        let others = self.config.peers.keys().copied().filter(|node| *node != self.config.node);
        let gone = others.filter(is_gone).collect();
        let said = self.reports.told().nodes.iter().map(|(node, (report, _))| (*node, report.replicas_max));
        // The metadata's own replica is not among those that are placed.
        let room = said.filter(|(_, most)| *most > 0).map(|(node, most)| (node, most - 1)).collect();
        Presence { alive: self.alive_nodes(now), gone, room }
    }

    /// The changes that wait or are being written come to nothing. Tables that are stored and wait for their leaders go on.
    fn abandon_change(&mut self, refusal: &Refusal, now: Now) {
        if matches!(self.metadata.step, Step::Adopting(_)) {
            // They are stored.
            self.answer_written(now);
        }
        let metadata = &mut self.metadata;
        let stored = metadata.current.take();
        metadata.repeatable.retain(|table, _| stored.as_ref().is_some_and(|it| it.tables.contains_key(table)));
        metadata.step = Step::Idle;
        let queued = std::mem::take(&mut metadata.queue).into_iter().map(|(_, asker)| asker);
        let written = std::mem::take(&mut metadata.written_for).into_iter().map(|(asker, _)| asker);
        let askers: Vec<Asker> = queued.chain(written).collect();
        askers.into_iter().for_each(|asker| self.answer_admin(asker, Err(refusal.clone())));
    }

    /// Reads the catalogue like any linearizable read, so that a deposed leader does not act on an old one.
    fn start_loading(&mut self, now: Now) {
        let replicas = &mut self.shards.of(GroupId::META).replicas;
        let ticket = replicas.ticket();
        self.metadata.step = Step::Reading(ticket);
        let read = Read::Get { key: Bytes::from_static(VERSION_ROW) };
        match replicas.begin_metadata_read(ticket, read, now) {
            Some(true) => self.load_catalogue(ticket, now),
            Some(false) => {}
            None => self.metadata.step = Step::Idle,
        }
    }

    /// The group's storage is now known to be as new as it must be: reads the catalogue out of it.
    pub(crate) fn load_catalogue(&mut self, ticket: u64, now: Now) {
        if self.metadata.step.ticket() != Some(ticket) {
            return;
        }
        self.metadata.step = Step::Idle;
        let rows = match self.catalogue_rows(now) {
            Ok(rows) => rows,
            Err(error) => {
                // It is read again, here or by whoever leads then.
                self.metadata.step =
                    Step::Failed(note_read(&mut self.shards.of(GroupId::META).replicas.damaged, GroupId::META, &error));
                return;
            }
        };
        if rows.is_empty() {
            return self.write_first_catalogue(now);
        }
        match Catalogue::from_rows(&rows) {
            Ok(catalogue) => {
                self.take_current(catalogue, now);
                self.note_adopted(now);
            }
            Err(error) => {
                self.shards.first().outbox.fail(format!("the catalogue cannot be understood: {}", chain(&error)))
            }
        }
    }

    fn catalogue_rows(&self, now: Now) -> Result<BTreeMap<Bytes, Bytes>, EngineError> {
        let mut rows = BTreeMap::new();
        let mut scan = Scan {
            start: Bytes::new(),
            start_inclusive: true,
            stop: Bytes::new(),
            stop_inclusive: false,
            is_hash_table: false,
            hash_key_filter: Filter::default(),
            sort_key_filter: Filter::default(),
            rows_max: 1_000,
            no_value: false,
            return_expire: false,
            only_count: false,
        };
        let failed = |what: &str| EngineError::Read { source: what.into() };
        let storage = self
            .shards
            .at(GroupId::META)
            .open_partition_of(GroupId::META)
            .ok_or_else(|| failed("its group is not open"))?;
        loop {
            let now = hedgerow_types::time::expiry_seconds(now.unix_micros);
            let page = storage.read(&Read::Scan(scan.clone()), now)?;
            let ReadReply::Page { rows: page, resume_after, .. } = page else { return Err(failed("not a page")) };
            rows.extend(page.into_iter().map(|row| (row.key, row.value)));
            let Some(last) = resume_after else { return Ok(rows) };
            scan = scan.after(last);
        }
    }

    fn write_first_catalogue(&mut self, now: Now) {
        let founders = &self.identity.founders;
        let nodes: Vec<(NodeId, NodeEntry)> = self
            .config
            .peers
            .iter()
            .map(|(node, address)| {
                let founder = founders.iter().find(|founder| founder.node == u32::from(node.0));
                let incarnation = founder.map_or(NodeEntry::UNREGISTERED.0, |founder| founder.incarnation);
                (*node, NodeEntry::new(address.clone(), hedgerow_types::Incarnation(incarnation)))
            })
            .collect();
        let meta_nodes: Vec<NodeId> = founders.iter().map(|founder| NodeId(founder.node as u16)).collect();
        match Catalogue::bootstrap(self.identity.cluster, &nodes, &meta_nodes) {
            Ok(first) => {
                let write = first.write_first();
                self.write_draft(first, write, now);
            }
            Err(error) => self.shards.first().outbox.fail(format!("the first catalogue cannot be made: {error}")),
        }
    }

    fn write_draft(&mut self, draft: Catalogue, write: Write, now: Now) {
        let replicas = &mut self.shards.of(GroupId::META).replicas;
        let ticket = replicas.ticket();
        self.metadata.step = Step::Writing(ticket, Box::new(draft));
        let (number, origin) = ((ClientId(0), 0), Origin::Metadata(ticket));
        if let Err(refusal) = replicas.propose(&self.view, GroupId::META, number, write, origin, now) {
            self.metadata.handle_failed(ticket, &refusal);
        }
    }

    /// Writes every change that waits, unless a write is under way.
    pub(crate) fn write_changes(&mut self, now: Now) {
        if !self.metadata.step.is_idle() || self.metadata.queue.is_empty() {
            return;
        }
        let Some(current) = self.metadata.current.clone() else { return };
        let mut draft = Catalogue::clone(&current);
        let presence = self.presence(now);
        for (change, asker) in std::mem::take(&mut self.metadata.queue) {
            if let Some(table) = self.repeated_creation(&draft, &change, &asker, now) {
                self.metadata.written_for.push((asker, Ok(json!({ "created": table.0 }))));
                continue;
            }
            if now.unix_micros == 0 && matches!(change, Change::DropTable { reserve_seconds: 1.., .. }) {
                let text = "the nodes do not agree on the time, by which a dropped table is kept; one that is not kept can be dropped";
                self.answer_admin(asker, Err(Refusal::NotReady(text.into())));
                continue;
            }
            let way = self.way_of(&asker);
            let may_repeat = matches!(change, Change::CreateTable { .. });
            let is_led = |group: GroupId| self.is_led(&current, group);
            let next = draft.next_table;
            let version = draft.version;
            let is_told = !matches!(asker, Asker::Nobody) && !matches!(change, Change::Find { .. });
            // Only of what changes something: a text of it may be long, and made in vain.
            let told = is_told.then(|| change.clone());
            let made = make(&mut draft, change, &presence, is_led, now.unix_micros / 1_000_000);
            if let Some(change) = told.filter(|_| draft.version > version) {
                tracing::info!(change = %shortened(change.to_string()), "the catalogue changes");
            }
            if made.is_ok() && may_repeat && draft.next_table > next {
                self.metadata.repeatable.insert(TableId(next), (BTreeSet::from([way]), now.instant));
            }
            self.metadata.written_for.push((asker, made.map_err(Refusal::from)));
        }
        if draft.arrange_learners(&presence) {
            tracing::info!(version = draft.version, "read-only replicas are added or removed");
        }
        if draft.version > current.version {
            let write = current.write_to(&draft);
            return self.write_draft(draft, write, now);
        }
        // That nothing is to be changed is true only as long as nobody else leads: what is written says nothing, and shows that.
        self.metadata.written_for.retain(|(asker, _)| !matches!(asker, Asker::Nobody));
        if !self.metadata.written_for.is_empty() {
            self.write_draft(draft, Write::Nothing, now);
        }
    }

    /// The table that `change` asks to create, if that is a creation under way, which it joins, or was until a moment ago, and
    /// comes again through another node: Pegasus' clients do that with a call that has not been answered for a second, and
    /// would take "exists already" for the outcome.
    fn repeated_creation(&mut self, draft: &Catalogue, change: &Change, asker: &Asker, now: Now) -> Option<TableId> {
        let Change::CreateTable { spec, may_repeat } = change else { return None };
        let table = draft.table_by_name(&spec.name).filter(|table| table.is_of(spec))?;
        let way = self.way_of(asker);
        let known = self.metadata.repeatable.get_mut(&table.id);
        let comes_again = known.is_some_and(|(ways, since)| {
            let is_recent = now.instant.since(*since) < CREATION_REPEATED_FOR;
            ways.insert(way) && is_recent && *may_repeat
        });
        (table.state == TableState::Creating || comes_again).then_some(table.id)
    }

    /// The node through which a call came.
    fn way_of(&self, asker: &Asker) -> NodeId {
        match asker {
            Asker::Peer { node, .. } => *node,
            Asker::Nobody | Asker::Client { .. } | Asker::Gather(_) => self.config.node,
        }
    }

    /// The write with this ticket was applied.
    pub(crate) fn handle_change_written(&mut self, ticket: u64, reply: &WriteReply, now: Now) {
        if self.metadata.step.ticket() != Some(ticket) {
            return;
        }
        if reply.status != Status::Ok {
            // Somebody else changed the catalogue: this node leads again since, and has to read it anew.
            return self.metadata.handle_failed(ticket, &Refusal::Unresolved);
        }
        let Step::Writing(_, draft) = std::mem::take(&mut self.metadata.step) else { return };
        if self.metadata.current.as_ref().is_none_or(|current| current.version < draft.version) {
            self.take_current(*draft, now);
        } else {
            self.metadata.step = Step::Adopting(draft.version);
        }
        self.note_adopted(now);
    }

    /// This node acts on another catalogue, or could not make one durable: what was written is told, and what waited goes on.
    pub(crate) fn note_adopted(&mut self, now: Now) {
        let Step::Adopting(version) = self.metadata.step else { return };
        // Where a disk does not answer, the others go by what is stored all the same.
        if self.catalogue_version() < version && self.adoption.is_busy() && !self.adoption.is_late(now.instant) {
            return;
        }
        self.metadata.step = Step::Idle;
        self.answer_written(now);
        self.reconcile_new_tables(now);
        self.write_changes(now);
    }

    /// A node tells of leaders: tables that waited for them are made available at once.
    pub(crate) fn handle_new_leaders(&mut self, now: Now) {
        let has_new = |current: &Catalogue| current.tables.values().any(|table| table.state == TableState::Creating);
        if self.metadata.current.as_deref().is_some_and(has_new) {
            self.reconcile_new_tables(now);
            self.write_changes(now);
        }
    }

    fn take_current(&mut self, catalogue: Catalogue, now: Now) {
        let push = Self::catalogue_push(&catalogue);
        self.shards.first().send_to_all(&push);
        for node in self.config.peers.keys() {
            self.metadata.offers.note(*node, catalogue.version, now.instant);
        }
        let catalogue = Arc::new(catalogue);
        self.metadata.step = Step::Adopting(catalogue.version);
        self.metadata.current = Some(Arc::clone(&catalogue));
        self.adopt_catalogue(Unsaved::Own(catalogue));
    }

    fn answer_written(&mut self, now: Now) {
        for (asker, answer) in std::mem::take(&mut self.metadata.written_for) {
            let created = answer.as_ref().ok().and_then(|it| it.get("created")?.as_u64());
            let table = created.map(|id| TableId(id as u32));
            match table.filter(|table| !self.is_available(*table)) {
                Some(table) => {
                    let count = self.known(table).map_or(0, |table| table.partitions.len() as u32);
                    self.metadata.creating.push((table, asker, now.instant + creation_wait(count)));
                }
                None => self.answer_admin(asker, answer),
            }
        }
    }

    fn is_available(&self, table: TableId) -> bool {
        self.known(table).is_some_and(|table| table.state == TableState::Available)
    }

    fn is_known(&self, table: TableId) -> bool {
        self.known(table).is_some()
    }

    fn known(&self, table: TableId) -> Option<&Table> {
        self.metadata.current.as_ref()?.tables.get(&table)
    }

    /// Whether the group has had a leader among its present replicas.
    fn is_led(&self, current: &Catalogue, group: GroupId) -> bool {
        let partition = current.group(group);
        self.leader_of(group).is_some_and(|(_, leader)| partition.is_some_and(|it| it.replica(leader).is_some()))
    }

    /// A table serves once each of its partitions has had a leader; whoever created it hears of it then.
    fn reconcile_new_tables(&mut self, now: Now) {
        let Some(current) = &self.metadata.current else { return };
        let mut changes = Vec::new();
        if self.metadata.step.is_idle() {
            let new = current.tables.values().filter(|table| table.state == TableState::Creating);
            for table in new {
                let groups = (0..table.partitions.len() as u32).map(|partition| GroupId { table: table.id, partition });
                let hopeless: Vec<GroupId> = groups.clone().filter(|group| current.must_begin_anew(*group)).collect();
                if hopeless.is_empty() && groups.clone().all(|group| self.is_led(current, group)) {
                    changes.push(Change::MarkCreated { table: table.id });
                }
                changes.extend(hopeless.into_iter().map(|group| Change::BeginAnew { group }));
            }
        }
        for change in changes {
            if matches!(change, Change::BeginAnew { .. }) {
                tracing::warn!(?change, "too few voters of a new partition are left");
            }
            self.metadata.enqueue(change);
        }
        let mut repeatable = std::mem::take(&mut self.metadata.repeatable);
        repeatable.retain(|table, (_, since)| {
            if !self.is_available(*table) && self.is_known(*table) {
                *since = now.instant;
            }
            now.instant.since(*since) < CREATION_REPEATED_FOR
        });
        self.metadata.repeatable = repeatable;
        for (table, asker, deadline) in std::mem::take(&mut self.metadata.creating) {
            if self.is_available(table) {
                self.answer_admin(asker, Ok(json!({ "created": table.0 })));
            } else if deadline <= now.instant {
                self.answer_admin(asker, Err(Refusal::Creating));
            } else {
                self.metadata.creating.push((table, asker, deadline));
            }
        }
    }
}

fn make(
    draft: &mut Catalogue,
    change: Change,
    presence: &Presence,
    is_led: impl Fn(GroupId) -> bool,
    unix_seconds: u64,
) -> Result<Value, CatalogueError> {
    Ok(match change {
        Change::Find { name } => {
            let table = draft.table_by_name(&name).ok_or(CatalogueError::NoTable(name))?;
            json!({ "id": table.id.0 })
        }
        Change::CreateTable { spec, may_repeat: _ } => {
            let id = draft.create_table_within(spec, presence, unix_seconds)?;
            json!({ "created": id.0 })
        }
        Change::DropTable { of, if_exists, reserve_seconds: 0 } => {
            let name = of.name_in(draft)?;
            let groups = draft.drop_table(&name, if_exists)?;
            json!({ "dropped_partitions": groups.len() })
        }
        Change::DropTable { of, if_exists, reserve_seconds } => {
            let name = of.name_in(draft)?;
            let until_unix_seconds = unix_seconds.saturating_add(reserve_seconds);
            let dropped = Dropped { at_unix_seconds: unix_seconds, until_unix_seconds };
            let id = draft.drop_and_keep(&name, if_exists, dropped)?;
            json!({ "kept": id.map(|id| id.0), "kept_until_unix_seconds": id.map(|_| until_unix_seconds) })
        }
        Change::RecallTable { id, name } => {
            draft.recall_table(id, name.as_deref())?;
            let table = draft.tables.get(&id).ok_or(CatalogueError::NotKept(id))?;
            crate::admin_client::recalled(table)
        }
        Change::RemoveOverdue { unix_seconds } => json!({ "removed": draft.remove_overdue(unix_seconds).len() }),
        Change::SetOptions { of, options } => {
            let name = of.name_in(draft)?;
            let options = options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            json!({ "changed": draft.set_options(&name, options)? })
        }
        Change::DeleteOptions { of, keys } => {
            let name = of.name_in(draft)?;
            json!({ "changed": draft.delete_options(&name, keys.iter().map(String::as_str))? })
        }
        Change::ClearOptions { of, prefix } => {
            let name = of.name_in(draft)?;
            json!({ "changed": draft.clear_options(&name, &prefix)? })
        }
        Change::PreferLeader { of, partition, node } => {
            let name = of.name_in(draft)?;
            json!({ "changed": draft.prefer_leader(&name, partition, node)? })
        }
        Change::Register { node, entry } => json!({ "changed": draft.register_node(node, entry)? }),
        Change::MarkCreated { table } => {
            json!({ "changed": draft.mark_created(table, |partition| is_led(GroupId { table, partition })) })
        }
        Change::BeginAnew { group } => json!({ "changed": draft.begin_anew(group) }),
        Change::Replace { group, lost } => json!({ "replica": draft.replace_lost(group, lost)?.0 }),
        Change::Finish { group, joined } => json!({ "changed": draft.finish_replacement(group, joined)? }),
        Change::Withdraw { group, back } => json!({ "changed": draft.withdraw_replacement(group, back)? }),
        // Done after every change.
        Change::ArrangeLearners => json!({}),
        Change::Grant { to, grants } => json!({ "changed": draft.grant(&to, &grants)? }),
        Change::Revoke { from, grants } => json!({ "changed": draft.revoke(&from, &grants)? }),
        Change::SetPassword { user, verifier, mask, is_new } => {
            draft.set_password(&user, verifier, mask, is_new)?;
            json!({ "changed": true })
        }
        Change::RemovePassword { user } => {
            draft.remove_password(&user)?;
            json!({ "changed": true })
        }
    })
}
