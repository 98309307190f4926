//! Wires: between two machines there is one each way, for one connection at a time (`greeting.rs`), which delivers in order or
//! breaks.
//!
//! A broken wire loses what was on its way and needs a while to come back. A cut connection loses nothing by
//! itself: bytes wait, as TCP's do while it retransmits, and when the cut heals they arrive late or the connection turns
//! out to be broken. So old messages surface after a partition, which is what a protocol must survive.

use crate::clock::{MICROSECOND, MILLISECOND};
use crate::history::Time;
use bytes::Bytes;
use hedgerow_types::random::Random;

/// Bytes that a cut wire holds; it counts as broken beyond them.
const HELD_SIZE_MAX: usize = 256 << 10;
/// Time that a broken wire needs to come back, at most.
pub(crate) const RECONNECT_MAX: Time = 30 * MILLISECOND;

/// How long a message takes.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// Least.
    pub min: Time,
    /// Most, except for the slow ones.
    pub max: Time,
    /// One message in so many is slow; 0 = none.
    pub slow_one_in: u64,
    /// Most for a slow one.
    pub slow_max: Time,
}

impl Delay {
    /// A machine room.
    pub const NEAR: Self =
        Self { min: 50 * MICROSECOND, max: 400 * MICROSECOND, slow_one_in: 200, slow_max: 8 * MILLISECOND };
    /// A bad day in it.
    pub const JITTERY: Self =
        Self { min: 100 * MICROSECOND, max: 5 * MILLISECOND, slow_one_in: 20, slow_max: 60 * MILLISECOND };

    /// Draws one.
    pub fn draw(&self, random: &mut Random) -> Time {
        let max = if self.slow_one_in > 0 && random.chance(1, self.slow_one_in) { self.slow_max } else { self.max };
        self.min + random.below(max.saturating_sub(self.min) + 1)
    }
}

/// What goes over a wire, with the number of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The connection begins.
    Greeting(u64, Bytes),
    /// Whole frames.
    Frames(u64, Bytes),
    /// The process that had the connection has ended.
    End(u64),
}

impl Packet {
    fn size(&self) -> usize {
        match self {
            Self::Greeting(_, bytes) | Self::Frames(_, bytes) => bytes.len(),
            Self::End(_) => 0,
        }
    }
}

/// One direction between two machines.
#[derive(Debug, Default)]
pub struct Wire {
    epoch: u64,
    last_arrival: Time,
    down_until: Time,
    is_cut: bool,
    held: Vec<Packet>,
    /// What every message takes longer than it would.
    extra_delay: Time,
}

impl Wire {
    /// Sends a packet: when it arrives, or `None` if it is lost or held. If too much is held the wire has broken.
    pub fn send(&mut self, now: Time, delay: Time, packet: &Packet) -> Option<Arrival> {
        if now < self.down_until {
            return None;
        }
        if self.is_cut {
            self.held.push(packet.clone());
            if self.held.iter().map(Packet::size).sum::<usize>() > HELD_SIZE_MAX {
                self.held.clear();
                self.epoch += 1;
            }
            return None;
        }
        self.last_arrival = self.last_arrival.max(now + delay + self.extra_delay);
        Some(Arrival { at: self.last_arrival, epoch: self.epoch })
    }

    /// Counts how often it has broken.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether something that is sent goes on its way.
    pub const fn is_up(&self, now: Time) -> bool {
        !self.is_cut && now >= self.down_until
    }

    /// Whether what was sent in `epoch` still arrives.
    pub const fn delivers(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// Loses everything on its way.
    pub fn break_now(&mut self, now: Time, random: &mut Random) {
        self.epoch += 1;
        self.held.clear();
        self.last_arrival = now;
        self.down_until = now + random.below(RECONNECT_MAX);
    }

    /// Makes everything sent from now on take so much longer.
    pub fn slow_down(&mut self, extra_delay: Time) {
        self.extra_delay = extra_delay;
    }

    /// Lets nothing through from now on. What is on its way still arrives.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Ends a cut: returns what was held, to be sent now, or breaks the connection.
    pub fn heal(&mut self, now: Time, random: &mut Random) -> Vec<Packet> {
        if !self.is_cut {
            return Vec::new();
        }
        self.is_cut = false;
        if random.chance(1, 2) {
            self.break_now(now, random);
        }
        std::mem::take(&mut self.held)
    }

    /// Whether it is cut.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// When a packet arrives, if the wire does not break before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Then.
    pub at: Time,
    /// For [`Wire::delivers`].
    pub epoch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Packet = Packet::Frames(1, Bytes::from_static(b"x"));

    #[test]
    fn a_wire_keeps_the_order() {
        let mut wire = Wire::default();
        assert_eq!(wire.send(0, 10, &BYTES), Some(Arrival { at: 10, epoch: 0 }));
        assert_eq!(wire.send(1, 2, &BYTES), Some(Arrival { at: 10, epoch: 0 }));
        assert_eq!(wire.send(2, 20, &BYTES), Some(Arrival { at: 22, epoch: 0 }));
    }

    #[test]
    fn a_break_loses_what_is_on_its_way() {
        let (mut wire, mut random) = (Wire::default(), Random::new(1));
        let sent = wire.send(0, 10, &BYTES).expect("sent");
        wire.break_now(5, &mut random);
        assert!(!wire.delivers(sent.epoch));
        let later = wire.send(5 + RECONNECT_MAX, 10, &BYTES).expect("back");
        assert!(wire.delivers(later.epoch));
    }

    #[test]
    fn a_cut_holds_and_then_delivers_late_or_breaks() {
        let (mut late, mut lost) = (0, 0);
        for seed in 0..20 {
            let (mut wire, mut random) = (Wire::default(), Random::new(seed));
            let before = wire.send(0, 10, &BYTES).expect("sent");
            wire.cut();
            assert_eq!(wire.send(1, 10, &BYTES), None);
            assert!(wire.delivers(before.epoch));
            match wire.heal(50, &mut random).len() {
                0 => lost += 1,
                _ => late += 1,
            }
            assert!(!wire.is_cut());
        }
        assert!(late > 0 && lost > 0);
    }
}
