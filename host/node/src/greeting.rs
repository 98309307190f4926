//! A connection between nodes, as both of its ends treat it: what the dialler says first, what comes of that at the node that was
//! dialled, and what the one answer means that it may get. Whoever owns the connections passes on what comes over them, in
//! order, and when they end; the operating system's host (`os/peer.rs`) and the simulation do the same.
//!
//! ```text
//! dialler                                     the node that was dialled
//! Node::greeting            ── greeting ──>   Node::handle_greeting    a Caller, or why it is not listened to
//! what the outbox has       ── frames ────>   Node::handle_frames      again: the dialler may have been replaced
//! Node::handle_greeting_answer        <── Refused ──    what either of them said, before the connection is closed
//!                           ── end ───────>   Node::handle_hangup
//! ```

use crate::event::Event;
use crate::lives::{RefusedFor, Told};
use crate::node::Node;
use crate::peer::{Greeting, Malformed, Refused, take};
use bytes::BytesMut;
use hedgerow_env::Now;
use hedgerow_placement::Life;
use hedgerow_types::NodeId;
use std::net::IpAddr;

/// Whoever is at the other end of a connection that was accepted.
#[derive(Debug)]
pub struct Caller {
    from: NodeId,
    life: Life,
}

/// What the answer to a greeting means to the dialler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Another node was reached: this one is to be looked for elsewhere.
    Elsewhere,
    /// This process is not listened to. The node knows it, and stops if it must; another process may be about to end, so that
    /// it is tried again after a second.
    Refused,
}

impl Node {
    /// A connection from `address` has begun with `greeting`. Returns who that is, or why it is not listened to: the connection is
    /// to be closed with that. Each one that is accepted ends with [`Node::handle_hangup`].
    pub fn handle_greeting(&mut self, greeting: &Greeting, address: IpAddr) -> Result<Caller, Refused> {
        let from = NodeId(greeting.node);
        if !self.greet(from, greeting.cluster, address) {
            return Err(self.refuse_stranger());
        }
        if NodeId(greeting.to) != self.id() {
            return Err(Self::refuse_misdirected());
        }
        // Nothing that it says would count, and nothing of it is kept.
        if !self.config.peers.contains_key(&from) {
            return Err(Self::refuse_unknown());
        }
        let Greeting { life, logs, ancestors, .. } = greeting;
        let met = self.meet(from, Told { life: *life, logs, ancestors });
        #[cfg(feature = "mutations")]
        let met = crate::mutation::listened(met);
        met.map(|()| {
            self.note_report_outdated(from);
            Caller { from, life: greeting.life }
        })
    }

    /// Takes every whole frame off `buffer`. The clock is read after the bytes were, as acknowledgements need it. Returns whether
    /// there was one, or why the process at the other end is not listened to any more: the connection is to be closed with that.
    pub fn handle_frames(
        &mut self,
        caller: &Caller,
        buffer: &mut BytesMut,
        now: Now,
    ) -> Result<Result<bool, Refused>, Malformed> {
        let heard = self.hear(caller.from, caller.life);
        #[cfg(feature = "mutations")]
        let heard = crate::mutation::listened(heard);
        if let Err(refused) = heard {
            return Ok(Err(refused));
        }
        let mut has_frames = false;
        while let Some(frame) = take(buffer)? {
            self.handle(Event::Peer(caller.from, frame), now);
            has_frames = true;
        }
        Ok(Ok(has_frames))
    }

    /// A connection that was accepted has ended.
    pub fn handle_hangup(&mut self, caller: &Caller) {
        self.part(caller.from, caller.life);
        self.note_report_outdated(caller.from);
    }

    /// Where `to` was dialled, `refused` came back; `is_configured` if that is the configuration's address.
    pub fn handle_greeting_answer(&mut self, to: NodeId, refused: Refused, is_configured: bool) -> Answer {
        if refused.reason == RefusedFor::Misdirected as u32 {
            self.change_addresses(|addresses| addresses.forget_reached(to));
            return Answer::Elsewhere;
        }
        self.handle_refused(to, refused, is_configured);
        Answer::Refused
    }
}
