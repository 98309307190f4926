//! What a node wants done after it has handled its events: bytes for peers and clients, log writes, slow work.

use crate::ids::LogId;
use crate::job::Job;
use crate::peer::Frame;
use bytes::BytesMut;
use hedgerow_env::fault;
use hedgerow_types::NodeId;
use hedgerow_wal::Submission;
use std::collections::BTreeMap;

/// A client's connection, numbered by whoever owns the socket; numbers are not reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Room for a reply with a value of about a kilobyte, so that most need no second allocation.
const REPLY_SIZE_HINT: usize = 1_536;

/// The outgoing side of a node. Whoever drives the node empties it after each [`crate::Node::drive`].
#[derive(Debug, Default)]
pub struct Outbox {
    /// Whole peer frames, in order, by destination.
    pub peers: BTreeMap<NodeId, BytesMut>,
    /// Whole peer frames that may take long, in order, by destination. They go over connections of their own.
    pub bulk: BTreeMap<NodeId, BytesMut>,
    /// Nodes that say they are at another address than before.
    pub moved: BTreeMap<NodeId, String>,
    /// Whole reply frames, in order, by connection.
    pub clients: BTreeMap<ConnectionId, BytesMut>,
    /// Connections to close, after what is buffered for them has been written.
    pub closed: Vec<ConnectionId>,
    /// Log writes, by the log they are for.
    pub submissions: Vec<(LogId, Submission)>,
    /// Work that may block.
    pub jobs: Vec<Job>,
    /// Faults to switch, and to stall.
    pub faults: Vec<fault::Action>,
    /// Set when the node must stop: its log failed, or its directory cannot be written.
    pub failure: Option<String>,
}

impl Outbox {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
            && self.bulk.is_empty()
            && self.moved.is_empty()
            && self.clients.is_empty()
            && self.closed.is_empty()
            && self.submissions.is_empty()
            && self.jobs.is_empty()
            && self.faults.is_empty()
            && self.failure.is_none()
    }

    /// The buffer of frames for `node`.
    pub(crate) fn peer(&mut self, node: NodeId) -> &mut BytesMut {
        self.peers.entry(node).or_default()
    }

    /// Has `frame` sent from node `own` to another one; to itself nothing is sent.
    pub(crate) fn send(&mut self, own: NodeId, to: NodeId, frame: &Frame) {
        if to != own {
            crate::peer::put(self.peer(to), frame);
        }
    }

    /// The buffer of replies for `connection`.
    pub(crate) fn client(&mut self, connection: ConnectionId) -> &mut BytesMut {
        self.clients.entry(connection).or_insert_with(|| BytesMut::with_capacity(REPLY_SIZE_HINT))
    }

    /// Adds what `other` wants done, and leaves nothing there.
    pub(crate) fn append(&mut self, other: &mut Self) {
        let Self { peers, bulk, moved, clients, closed, submissions, jobs, faults, failure } = std::mem::take(other);
        for (node, bytes) in peers {
            self.peer(node).extend_from_slice(&bytes);
        }
        for (node, bytes) in bulk {
            self.bulk.entry(node).or_default().extend_from_slice(&bytes);
        }
        for (connection, bytes) in clients {
            match self.clients.get_mut(&connection) {
                Some(before) => before.extend_from_slice(&bytes),
                None => drop(self.clients.insert(connection, bytes)),
            }
        }
        self.moved.extend(moved);
        self.closed.extend(closed);
        self.submissions.extend(submissions);
        self.jobs.extend(jobs);
        self.faults.extend(faults);
        failure.into_iter().for_each(|reason| self.fail(reason));
    }

    /// Notes that the node must stop; the first reason stays.
    pub(crate) fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
    }
}
