//! Which process of each node is listened to. See `docs/decisions/014-a-copy-is-not-the-node.md`.
//!
//! A connection between nodes begins with the life of the process that dialled. One that is older than what this node has
//! seen since it started, or than what the catalogue says, or that is a second one beside a process that is there, is told
//! so and closed: what it says counts nowhere. Whoever is refused by enough nodes stops.
//!
//! The greeting also tells how far each log was when the process started, and pulses how far it is since. A process with a
//! log that begins before what another one has told of it has forgotten something, however often its data was started and whatever
//! its incarnation; one that remembers is enough.
//!
//! What each end of a connection does with this is in `greeting.rs`. Where a node has no connections, as in some tests, no life is ever told.

use crate::config::Config;
use crate::identity::Found;
use crate::ids::LogId;
use crate::node::Node;
use crate::open::OpenError;
use crate::peer::{Greeting, LogAt, Refused};
use hedgerow_placement::{Ancestor, Catalogue, Known, Life, RETIRED_MAX, Said, Verdict, is_copy, judge};
use hedgerow_types::{Incarnation, Instant, NodeId};
use hedgerow_wal::Log;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// A process that has said nothing for so long, though it sends pulses all the time, gives way to the next one. That is how
/// a node gets in again whose machine lost power; the connections of one that ended are closed by its system.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// A refusal that was not repeated for so long is over.
const REFUSAL_FRESH: Duration = Duration::from_secs(3);
/// For so long a node tries to get in while another process seems to be there.
const PATIENCE: Duration = Duration::from_secs(6);

/// Logs that are remembered of a node, those that it has now not counted: more were replaced one by one.
const LOGS_MAX: usize = 1_024;
/// How far a log is that is told because groups came out of it: nothing is compared.
const NOT_KNOWN: u64 = u64::MAX;

/// Why a process is not listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RefusedFor {
    /// One that was started later has been seen.
    Older = 1,
    /// Another one has used its count.
    Second = 2,
    /// Its data is from before the node began anew.
    Retired = 3,
    /// Another one is there.
    Beside = 4,
    /// It is another cluster's.
    Stranger = 5,
    /// Its logs hold less than was durable there.
    Forgot = 6,
    /// It wants to reach another node.
    Misdirected = 7,
    /// The node that it dialled has no node of its number in its configuration yet.
    Unknown = 8,
    /// Its data lacks what another process has added to it.
    Copy = 9,
}

/// The processes of all nodes, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    /// This process, once it is to be told to others.
    own: Option<Life>,
    /// The logs of this node, by data directory.
    logs: Vec<OwnLog>,
    /// The newest process of each other node.
    others: BTreeMap<NodeId, Seen>,
    /// The nodes that refuse this process.
    refusals: BTreeMap<NodeId, Refusal>,
    /// Processes that were refused, the last one of each node: one line in the log is enough.
    told: BTreeMap<NodeId, Life>,
}

/// A log of this node.
#[derive(Clone, Copy, Debug)]
struct OwnLog {
    /// Which one.
    id: u64,
    /// How far it was when this process started: the number of the batch after the last durable one.
    begun: u64,
    /// How far it is now.
    synced: u64,
}

/// What a process tells of itself when a connection begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) life: Life,
    /// How far its logs were when it started.
    pub(crate) logs: &'a [LogAt],
    /// The newest of the processes that its data comes from.
    pub(crate) ancestors: &'a [Ancestor],
}

#[derive(Debug)]
struct Seen {
    life: Life,
    /// The logs that it uses.
    own_logs: Vec<u64>,
    /// How far its logs were when that was told last, also of those that are left out now.
    logs: BTreeMap<u64, u64>,
    connections: usize,
    /// By this node's ticks, so that a pause of its own is no silence of others.
    heard: Instant,
    retired: Vec<Incarnation>,
}

#[derive(Debug)]
struct Refusal {
    refused: Refused,
    first: Instant,
    last: Instant,
}

impl Lives {
    /// What is wrong with a process of `node` that has the life `said` and begins with `logs`. That it has forgotten something is
    /// certain, whoever is there, and ends it at once: that another one is there passes.
    fn judge(&self, node: NodeId, told: Told<'_>, catalogue: Option<&Catalogue>, now: Instant) -> Result<(), Refused> {
        let Told { life, logs, ancestors } = told;
        let entry = catalogue.and_then(|catalogue| catalogue.nodes.get(&node));
        let seen = self.others.get(&node);
        let own_logs = ids_of(logs);
        let said = Said { life, logs: &own_logs, ancestors };
        let by_sight = seen.map(|seen| judge(seen.known(), said));
        let by_catalogue = entry.map(|entry| judge(entry.known(), said));
        [by_sight, by_catalogue].into_iter().flatten().try_for_each(refusal_of)?;
        let Some(other) = seen.filter(|seen| seen.life != life) else { return Ok(()) };
        if let Some(known) = other.forgotten(logs) {
            return Err(refused(RefusedFor::Forgot, known));
        }
        if other.is_there(now) { Err(refused(RefusedFor::Beside, other.life.boot)) } else { Ok(()) }
    }

    fn meet(
        &mut self,
        node: NodeId,
        told: Told<'_>,
        catalogue: Option<&Catalogue>,
        now: Instant,
    ) -> Result<(), Refused> {
        self.judge(node, told, catalogue, now)?;
        let Told { life: said, logs, .. } = told;
        let fresh = || Seen {
            life: said,
            own_logs: Vec::new(),
            logs: BTreeMap::new(),
            connections: 0,
            heard: now,
            retired: Vec::new(),
        };
        let seen = self.others.entry(node).or_insert_with(fresh);
        if seen.life != said {
            if seen.life.incarnation != said.incarnation {
                seen.retired.push(seen.life.incarnation);
                let surplus = seen.retired.len().saturating_sub(RETIRED_MAX);
                seen.retired.drain(..surplus);
            }
            (seen.life, seen.connections) = (said, 0);
        }
        seen.own_logs = ids_of(logs);
        seen.note(logs);
        seen.connections += 1;
        seen.heard = now;
        Ok(())
    }

    fn hear(&mut self, node: NodeId, said: Life, catalogue: Option<&Catalogue>, now: Instant) -> Result<(), Refused> {
        self.judge(node, Told { life: said, logs: &[], ancestors: &[] }, catalogue, now)?;
        match self.others.get_mut(&node) {
            Some(seen) if seen.life == said => {
                seen.heard = now;
                Ok(())
            }
            Some(_) | None => Err(refused(RefusedFor::Second, 0)),
        }
    }

    /// What `node`, which is listened to, says of its logs.
    pub(crate) fn note_logs(&mut self, node: NodeId, logs: &[LogAt]) {
        self.others.get_mut(&node).into_iter().for_each(|seen| seen.note(logs));
    }

    fn part(&mut self, node: NodeId, life: Life) {
        if let Some(seen) = self.others.get_mut(&node)
            && seen.life == life
        {
            seen.connections = seen.connections.saturating_sub(1);
        }
    }

    /// The numbers of this node's logs.
    fn own_logs(&self) -> Vec<u64> {
        self.logs.iter().map(|log| log.id).collect()
    }

    /// `by`, one of `count` nodes, refuses this process. Returns why it has to stop, if it has to: one node may be
    /// mistaken, a majority is not, nor is the node that leads the metadata, nor one that knows what the logs have forgotten.
    fn note_refused(&mut self, by: NodeId, refused: Refused, count: usize, now: Instant) -> Option<Refused> {
        self.refusals.retain(|_, refusal| now.since(refusal.last) < REFUSAL_FRESH);
        let known = self.refusals.get(&by);
        if known.is_none() && refused.reason == RefusedFor::Unknown as u32 {
            tracing::warn!(
                node = by.0,
                "a node's configuration does not have this node among its peers: add it there and restart that node"
            );
        } else if known.is_none() {
            tracing::error!(node = by.0, why = text_of(refused), "a node does not listen to this process");
        }
        let first = known.map_or(now, |refusal| refusal.first);
        self.refusals.insert(by, Refusal { refused, first, last: now });
        // What another process causes by being there passes once that one has ended, and a configuration may change.
        let is = |refusal: &Refusal, reason: RefusedFor| refusal.refused.reason == reason as u32;
        let is_final = |refusal: &&Refusal| {
            let may_pass = is(refusal, RefusedFor::Beside) && now.since(refusal.first) < PATIENCE;
            !may_pass && !is(refusal, RefusedFor::Unknown)
        };
        let finals: Vec<Refused> = self.refusals.values().filter(is_final).map(|refusal| refusal.refused).collect();
        let enough = (count / 2 + 1).min(count.saturating_sub(1));
        let proofs = [RefusedFor::Forgot as u32, RefusedFor::Copy as u32];
        let is_proof = |refused: &&Refused| refused.leads || proofs.contains(&refused.reason);
        finals.iter().find(is_proof).or(finals.last().filter(|_| finals.len() >= enough)).copied()
    }
}

impl Seen {
    fn known(&self) -> Known<'_> {
        Known { life: self.life, logs: &self.own_logs, retired: &self.retired }
    }

    /// How far a log was told to be that `said` begins before that.
    fn forgotten(&self, said: &[LogAt]) -> Option<u64> {
        let known = |at: &LogAt| self.logs.get(&at.log).copied().filter(|known| at.batch < *known);
        said.iter().find_map(known)
    }

    /// `said` are the logs that its node has now; more than a greeting has room for are none that a node says.
    fn note(&mut self, said: &[LogAt]) {
        let said = &said[..said.len().min(u8::MAX.into())];
        for at in said.iter().filter(|at| at.batch != NOT_KNOWN) {
            let known = self.logs.entry(at.log).or_insert(at.batch);
            *known = at.batch.max(*known);
        }
        if self.logs.len() > LOGS_MAX {
            self.logs.retain(|log, _| said.iter().any(|at| at.log == *log));
        }
    }

    fn is_there(&self, now: Instant) -> bool {
        self.connections > 0 && now.since(self.heard) < SILENT_AFTER
    }
}

/// Why a process is not listened to, for people.
fn text_of(refused: Refused) -> String {
    let known = refused.known;
    let is = |reason: RefusedFor| refused.reason == reason as u32;
    if is(RefusedFor::Older) {
        format!("start {known} of its node has been seen, which came later")
    } else if is(RefusedFor::Second) {
        "another process has had its start number".into()
    } else if is(RefusedFor::Retired) {
        "its data is from before its node began anew".into()
    } else if is(RefusedFor::Beside) {
        format!("another process runs as its node (start {known})")
    } else if is(RefusedFor::Stranger) {
        "it belongs to another cluster".into()
    } else if is(RefusedFor::Forgot) {
        format!("a log of its node was durable to batch {known}, and holds less now")
    } else if is(RefusedFor::Copy) {
        format!("its data lacks what start {known} of its node has added to it")
    } else if is(RefusedFor::Misdirected) {
        "it looks for another node".into()
    } else if is(RefusedFor::Unknown) {
        "it is not among the peers in that node's configuration".into()
    } else {
        format!("reason {} of another version", refused.reason)
    }
}

fn ids_of(logs: &[LogAt]) -> Vec<u64> {
    logs.iter().map(|at| at.log).collect()
}

fn refused(reason: RefusedFor, known: u64) -> Refused {
    Refused { reason: reason as u32, known, leads: false, cluster: 0 }
}

fn refusal_of(verdict: Verdict) -> Result<(), Refused> {
    Err(match verdict {
        Verdict::Accept => return Ok(()),
        Verdict::Older { known } => refused(RefusedFor::Older, known),
        Verdict::Second => refused(RefusedFor::Second, 0),
        Verdict::Retired => refused(RefusedFor::Retired, 0),
        Verdict::Copy { known } => refused(RefusedFor::Copy, known),
    })
}

impl Node {
    /// From now on others are told which process this is.
    pub fn begin_life(&mut self) {
        let start = self.identity.start();
        let (incarnation, boot) = (self.identity.incarnation(), self.identity.boot());
        tracing::info!(incarnation = format_args!("{:016x}", incarnation.0), boot, "the node's data is started");
        self.lives.own = Some(Life { incarnation, boot, start });
        self.check_own_life();
    }

    /// The node's logs: their numbers, and how far each was when it was opened, before anything was written.
    pub(crate) fn begin_logs(&mut self, logs: &[Log], known: Vec<(u64, u64)>) {
        let own = |((id, begun), log): ((u64, u64), &Log)| OwnLog { id, begun, synced: log.synced() };
        self.lives.logs = known.into_iter().zip(logs).map(own).collect();
    }

    /// The number of log `log`.
    pub(crate) fn log_id(&self, log: LogId) -> Option<u64> {
        self.lives.logs.get(log.0).map(|log| log.id)
    }

    /// Log `log` is durable up to batch `synced`, exclusive.
    pub(crate) fn note_synced(&mut self, log: LogId, synced: u64) {
        if let Some(known) = self.lives.logs.get_mut(log.0) {
            known.synced = synced;
        }
    }

    /// How far the logs are now.
    pub(crate) fn logs_now(&self) -> Vec<LogAt> {
        self.logs_at(|log| log.synced)
    }

    fn logs_at(&self, batch: impl Fn(&OwnLog) -> u64) -> Vec<LogAt> {
        // Nothing is told of a life that is not.
        let logs = self.lives.logs.iter().filter(|_| self.lives.own.is_some());
        logs.map(|log| LogAt { log: log.id, batch: batch(log) }).collect()
    }

    /// The numbers of the node's logs, and of those that its groups came out of.
    fn all_logs(&self) -> Vec<u64> {
        self.lives.own_logs().into_iter().chain(self.identity.former_logs()).collect()
    }

    fn own_life(&self) -> Life {
        let unknown = Life { incarnation: self.identity.incarnation(), boot: 0, start: 0 };
        self.lives.own.unwrap_or(unknown)
    }

    /// What to greet node `to` with.
    pub fn greeting(&self, to: NodeId) -> Greeting {
        let (node, cluster) = (self.config.node.0, self.identity.cluster);
        let ancestors = self.identity.ancestors();
        let mut logs = self.logs_at(|log| log.begun);
        if self.lives.own.is_some() {
            logs.extend(self.identity.former_logs().map(|log| LogAt { log, batch: NOT_KNOWN }));
        }
        Greeting { node, to: to.0, cluster, life: self.own_life(), logs, ancestors }
    }

    /// The life of `node` and its logs as the catalogue is to have them; `None` if they were not told.
    pub(crate) fn life_of(&self, node: NodeId, incarnation: Incarnation) -> Option<(Life, Vec<u64>)> {
        let (life, logs) = if node == self.config.node {
            (self.lives.own?, self.all_logs())
        } else {
            let seen = self.lives.others.get(&node)?;
            (seen.life, seen.own_logs.clone())
        };
        (life.incarnation == incarnation).then_some((life, logs))
    }

    /// A connection of `from` has begun, whose `logs` were so far when it started. Each one that is accepted ends with
    /// [`Node::part`].
    pub(crate) fn meet(&mut self, from: NodeId, told: Told<'_>) -> Result<(), Refused> {
        let life = told.life;
        let before = self.lives.others.get(&from).map(|seen| seen.life);
        let met = self.lives.meet(from, told, self.view.catalogue.as_deref(), self.last_tick);
        if met.is_ok() && before != Some(life) {
            self.shards.iter_mut().for_each(|shard| shard.forget_put_off(from));
        }
        met.map_err(|refused| {
            if self.lives.told.insert(from, life) != Some(life) {
                let (start, why) = (life.boot, text_of(refused));
                tracing::error!(node = from.0, start, why, "a process of a node is not listened to");
            }
            Refused { leads: self.leads_metadata(), ..refused }
        })
    }

    /// Something came on an accepted connection. An error if its process has been replaced meanwhile.
    pub(crate) fn hear(&mut self, from: NodeId, life: Life) -> Result<(), Refused> {
        let heard = self.lives.hear(from, life, self.view.catalogue.as_deref(), self.last_tick);
        heard.map_err(|refused| Refused { leads: self.leads_metadata(), ..refused })
    }

    /// A connection that [`Node::meet`] accepted has ended.
    pub(crate) fn part(&mut self, from: NodeId, life: Life) {
        self.lives.part(from, life);
    }

    /// What a process is told that dialled this node and meant another one.
    pub(crate) fn refuse_misdirected() -> Refused {
        refused(RefusedFor::Misdirected, 0)
    }

    /// What a process is told whose node this one's configuration does not have.
    pub(crate) fn refuse_unknown() -> Refused {
        refused(RefusedFor::Unknown, 0)
    }

    /// What a process of another cluster is told.
    pub(crate) fn refuse_stranger(&self) -> Refused {
        Refused { cluster: self.identity.cluster, ..refused(RefusedFor::Stranger, 0) }
    }

    /// `by` does not listen to this process; `is_configured` if it was dialled at the configuration's address.
    pub(crate) fn handle_refused(&mut self, by: NodeId, refused: Refused, is_configured: bool) {
        if refused.reason == RefusedFor::Stranger as u32 {
            return self.note_stranger(by, refused.cluster, is_configured);
        }
        if let Some(refused) = self.lives.note_refused(by, refused, self.config.peers.len(), self.last_tick) {
            self.stop_as_refused(refused);
        }
    }

    /// Stops if the catalogue says that this process is not the node's newest.
    pub(crate) fn check_own_life(&mut self) {
        #[cfg(feature = "mutations")]
        if crate::mutation::listens_to_copies() {
            return;
        }
        let Some(own) = self.lives.own else { return };
        let entry = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.nodes.get(&self.config.node));
        let logs = self.all_logs();
        let ancestors = self.identity.ancestors();
        let said = Said { life: own, logs: &logs, ancestors: &ancestors };
        let verdict = entry.map_or(Verdict::Accept, |entry| judge(entry.known(), said));
        if let Err(refused) = refusal_of(verdict) {
            self.stop_as_refused(refused);
        }
    }

    fn stop_as_refused(&mut self, refused: Refused) {
        let text = stop_text(self.config.node, &self.config.data, self.own_life().boot, refused);
        self.shards.first().outbox.fail(text);
    }
}

/// An error if the data lacks what a process has added to it that the `catalogue` here knows: it is another directory's, of a copy. Asked
/// before anything of it is changed.
pub(crate) fn check_copy(config: &Config, catalogue: Option<&Catalogue>, found: &Found) -> Result<(), OpenError> {
    #[cfg(feature = "mutations")]
    if crate::mutation::listens_to_copies() {
        return Ok(());
    }
    let Some(known) = catalogue.and_then(|catalogue| catalogue.nodes.get(&config.node)) else { return Ok(()) };
    let logs: Vec<u64> = found.logs.iter().copied().chain(found.identity.former_logs()).collect();
    if !is_copy(known.known(), &logs, &found.identity.ancestors()) {
        return Ok(());
    }
    let refused = refused(RefusedFor::Copy, known.life().boot);
    Err(OpenError::Refused(stop_text(config.node, &found.present, found.identity.boot(), refused)))
}

/// Why a process of `node` stops that is not listened to, and what to do.
fn stop_text(NodeId(node): NodeId, data: &[PathBuf], boot: u64, refused: Refused) -> String {
    let known = refused.known;
    let directories: Vec<String> = data.iter().map(|data| data.display().to_string()).collect();
    let data = directories.join(" and ");
    let remedy = "if no other process runs with this node's number, remove the data and let the node learn again";
    if refused.reason == RefusedFor::Older as u32 {
        format!(
            "the data in {data} is older than what the cluster has seen of node {node} (start {boot}, known {known}): it \
             was put back from a copy or cloned; {remedy}"
        )
    } else if refused.reason == RefusedFor::Second as u32 {
        format!(
            "the cluster has seen start {boot} of node {node} in another process: the data in {data} was put back from a \
             copy or cloned; {remedy}"
        )
    } else if refused.reason == RefusedFor::Retired as u32 {
        format!(
            "the data in {data} is from before node {node} lost data and began anew: its disk was away meanwhile, not mounted perhaps, or it \
             was put back from a copy; {remedy}"
        )
    } else if refused.reason == RefusedFor::Copy as u32 {
        format!(
            "the data in {data} lacks what start {known} of node {node} has added to it: it was put back from a copy or cloned; \
             {remedy}"
        )
    } else if refused.reason == RefusedFor::Forgot as u32 {
        format!(
            "a log in {data} holds less than node {node} has told the cluster (known to batch {known}): it was put back \
             from a copy or cloned, or has lost its end; {remedy}"
        )
    } else {
        format!(
            "another process runs as node {node} (start {known}, this one is start {boot}): stop one of them; a clone of a \
             node needs an empty data directory and a number of its own"
        )
    }
}

#[cfg(test)]
#[path = "lives_tests.rs"]
mod tests;
