//! Connections between machines, and the greetings that they begin with.
//!
//! What a greeting means, who is listened to, who closes what and who stops is the node's own code
//! (`hedgerow_node::greeting`); here connections come about and end, as sockets would make them:
//!
//! - A process that starts dials every other machine. What it sends to one that it is not connected with is lost.
//! - A dial takes a machine on which a process runs, and wires that are neither cut nor down both ways; otherwise it is repeated.
//! - A process that dies closes its connections behind what it has sent. A machine that loses its power does not, one time in four:
//!   the others see nothing but silence. (Most of the time somebody does, since no machine is back as soon as these are.)
//! - A wire that breaks ends its connection at both ends.
//! - An answer goes back to the dialler and ends the connection; the dialler waits for a second then, as nodes do.

use crate::clock::{MILLISECOND, SECOND};
use crate::history::Time;
use crate::machine::Input;
use crate::network::{Packet, RECONNECT_MAX};
use crate::world::{Event, World};
use bytes::Bytes;
use hedgerow_node::peer::Refused;
use std::collections::BTreeMap;

/// Of so many losses of power one is not seen by the other machines.
const SILENT_LOSS_INTERVAL: u64 = 4;
/// Time until a process that was refused dials again.
const REFUSED_PAUSE: Time = SECOND;
/// Time after which it is looked again whether an answer gets through.
const ANSWER_PAUSE: Time = 30 * MILLISECOND;

/// The connections that diallers believe to have, by dialler and dialled machine.
#[derive(Debug, Default)]
pub(crate) struct Links {
    open: BTreeMap<(usize, usize), Link>,
    last: u64,
}

#[derive(Debug)]
struct Link {
    connection: u64,
    /// Since when nothing has kept what the dialler says from arriving.
    clear_since: Time,
}

impl Links {
    /// Something may have kept from arriving what `from` says.
    pub(crate) fn disturb(&mut self, from: usize, now: Time) {
        self.open.range_mut((from, 0)..=(from, usize::MAX)).for_each(|(_, link)| link.clear_since = now);
    }

    /// Since when `to` has heard everything that `from` says; `None` = it does not.
    pub(crate) fn clear_since(&self, from: usize, to: usize) -> Option<Time> {
        self.open.get(&(from, to)).map(|link| link.clear_since)
    }
}

impl World {
    /// The machines of the other nodes.
    fn others(&self, machine: usize) -> Vec<usize> {
        let id = self.machines[machine].id;
        (0..self.plan.machine_count).filter(|other| self.machines[*other].id != id).collect()
    }

    /// A process that has just started dials.
    pub(crate) fn dial_all(&mut self, from: usize) {
        let life = self.machines[from].life;
        for to in self.others(from) {
            let delay = self.delay();
            self.after(delay, Event::Dial { from, to, life });
        }
    }

    fn dial_again(&mut self, from: usize, to: usize, pause: Time) {
        let life = self.machines[from].life;
        let delay = pause + self.random.below(RECONNECT_MAX);
        self.after(delay, Event::Dial { from, to, life });
    }

    /// Begins a connection, or tries again later.
    pub(crate) fn dial(&mut self, from: usize, to: usize, life: u64) {
        let now = self.queue.now();
        let dialler = &self.machines[from];
        let Some(process) = dialler.process.as_ref().filter(|_| dialler.life == life) else { return };
        if self.links.open.contains_key(&(from, to)) {
            return;
        }
        let greeting: Bytes = process.node.greeting(self.machines[to].id).encode().into();
        let is_there = self.machines[to].process.is_some();
        if !is_there || !self.wire(from, to).is_up(now) || !self.wire(to, from).is_up(now) {
            return self.dial_again(from, to, 0);
        }
        self.links.last += 1;
        let connection = self.links.last;
        self.links.open.insert((from, to), Link { connection, clear_since: now });
        self.send_packet(from, to, Packet::Greeting(connection, greeting));
    }

    /// Frames of a process for another machine.
    pub(crate) fn send_to_peer(&mut self, from: usize, to: usize, frames: Bytes) {
        if let Some(link) = self.links.open.get(&(from, to)) {
            let packet = Packet::Frames(link.connection, frames);
            self.send_packet(from, to, packet);
        }
    }

    pub(crate) fn send_packet(&mut self, from: usize, to: usize, packet: Packet) {
        let (now, delay) = (self.queue.now(), self.delay());
        let wire = self.wire(from, to);
        let epoch = wire.epoch();
        match wire.send(now, delay, &packet) {
            Some(arrival) => {
                self.queue.push(arrival.at, Event::FromPeer { from, to, epoch: arrival.epoch, packet });
            }
            None if self.wire(from, to).delivers(epoch) => {}
            None => self.lose_connection(from, to),
        }
    }

    pub(crate) fn break_wire(&mut self, from: usize, to: usize) {
        let now = self.queue.now();
        let index = self.wire_index(from, to);
        self.wires[index].break_now(now, &mut self.random);
        self.lose_connection(from, to);
    }

    /// The wire has broken, and everything that was on it with it.
    pub(crate) fn lose_connection(&mut self, from: usize, to: usize) {
        let (connection, delay) = (self.links.last, self.delay());
        self.after(delay, Event::PeerGone { from, to, connection });
        if self.links.open.remove(&(from, to)).is_some() {
            self.dial_again(from, to, 0);
        }
    }

    /// The process of `machine` has ended.
    pub(crate) fn end_connections_of(&mut self, machine: usize, is_power_loss: bool) {
        let is_seen = !is_power_loss || !self.random.chance(1, SILENT_LOSS_INTERVAL);
        for other in self.others(machine) {
            self.break_wire(other, machine);
            if let Some(link) = self.links.open.remove(&(machine, other))
                && is_seen
            {
                self.send_packet(machine, other, Packet::End(link.connection));
            }
        }
    }

    /// `machine` closes connections, and says why.
    pub(crate) fn send_farewells(&mut self, machine: usize, farewells: Vec<(usize, u64, Refused)>) {
        for (from, connection, refused) in farewells {
            self.trace(|| format!("m{} does not listen to m{}: {refused:?}", machine + 1, from + 1));
            let delay = self.delay();
            self.after(delay, Event::Answered { from, to: machine, connection, refused });
        }
    }

    /// What `to` has answered arrives at `from`, which has dialled it.
    pub(crate) fn answered(&mut self, from: usize, to: usize, connection: u64, refused: Refused) {
        let now = self.queue.now();
        if self.links.open.get(&(from, to)).is_none_or(|link| link.connection != connection) {
            return;
        }
        if !self.wire(to, from).is_up(now) {
            return self.after(ANSWER_PAUSE, Event::Answered { from, to, connection, refused });
        }
        self.links.open.remove(&(from, to));
        self.dial_again(from, to, REFUSED_PAUSE);
        let by = self.machines[to].id;
        self.deliver(from, Input::Refused(by, refused));
    }
}
