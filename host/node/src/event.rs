//! What a node hears of: everything that a host hands to it between two turns.

use crate::ids::LogId;
use crate::inbox::Handed;
use crate::job::JobDone;
use crate::node::Node;
use crate::outbox::ConnectionId;
use crate::peer::Frame;
use crate::requests::login::Bound;
use crate::requests::users::Who;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_types::NodeId;
use hedgerow_wal::Round;
use std::net::IpAddr;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// Time has passed. Every 50 ms or more often; irregular ones are harmless.
    Tick,
    /// The time has come that [`Node::wakes_at`] named, or a later one.
    Wake,
    /// A client's connection begins, and it is known who is at its other end and where. Needed only where connections are
    /// encrypted ([`crate::Config::tls`]), an audit log is kept ([`crate::Config::audit`]) or users have limits
    /// ([`crate::Config::user_limits`]); before the connection's first frame.
    ///
    /// With what binds a login to the connection, where its client may log in by a password.
    ClientOpened(ConnectionId, Who, IpAddr, Option<Bound>),
    /// A client's frame, without its length.
    Client(ConnectionId, Bytes),
    /// A client's connection is gone; its reads are dropped, its writes answered into nothing.
    ClientClosed(ConnectionId),
    /// A frame of another node, which was listened to (`greeting.rs`).
    Peer(NodeId, Frame),
    /// Log writes are durable, or the log failed.
    Round(LogId, Round),
    /// A job has ended.
    Job(JobDone),
}

impl Node {
    /// Takes notice of `event`. What follows from it is in the outbox after [`Node::drive`].
    pub fn handle(&mut self, event: Event, now: Now) {
        match event {
            Event::Tick => self.handle_tick(now),
            Event::Wake => self.shards.hand_to_all(|| Handed::Wake, now),
            Event::ClientOpened(connection, who, from, bound) => {
                self.front.note_opened(connection, who, from, bound, now.instant)
            }
            Event::Client(connection, frame) => self.handle_client(connection, frame, now),
            Event::ClientClosed(connection) => self.handle_client_closed(connection, now),
            Event::Peer(from, frame) => self.handle_peer(from, frame, now),
            Event::Round(log, round) => self.handle_round(log, round, now),
            Event::Job(done) => self.handle_job(done, now),
        }
        self.take_notices(self.view.agreed(now));
    }
}
