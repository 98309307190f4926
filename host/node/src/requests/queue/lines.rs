//! Who has the next turn of those whose reads wait, and who could give room to others.

use super::{Ends, NONE, Slot};
use crate::outbox::ConnectionId;
use rustc_hash::FxHashMap;

/// What a connection is served in one turn, by what it costs; one read at least.
const TURN: usize = 64 << 10;
/// How many connections are looked at for a heavy one. The next time it goes on where it ended.
const LOOKED_AT_MAX: usize = 64;
/// What a read costs beside the bytes of its reply.
const READ_COST: usize = 4 << 10;
const READS_OF_TURN: usize = TURN / READ_COST;

/// The connections with reads in a lane.
#[derive(Debug)]
pub(super) struct Lines {
    lines: Vec<Line>,
    /// Lines of nobody.
    free: Vec<u32>,
    /// Connections are numbered by us, so that nobody can have them collide (N9).
    of: FxHashMap<ConnectionId, u32>,
    /// Whose turn it is; the others follow by `next`, in a circle, in the order in which they came.
    turn: u32,
    /// What it has been served in its turn.
    served: usize,
    /// What all reads weigh.
    weight: usize,
    /// The line that was looked at last for a heavy one.
    looked_at: u32,
}

/// The reads of one connection.
#[derive(Debug)]
struct Line {
    connection: ConnectionId,
    ends: Ends,
    weight: usize,
    previous: u32,
    next: u32,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            free: Vec::new(),
            of: FxHashMap::default(),
            turn: NONE,
            served: 0,
            weight: 0,
            looked_at: NONE,
        }
    }
}

impl Lines {
    /// The line of a connection, to which a read of this weight is put: its number, and its ends. A new one is the last to have a turn.
    #[inline]
    pub(super) fn join(&mut self, connection: ConnectionId, weight: usize) -> (u32, &mut Ends) {
        self.weight += weight;
        let number = match self.of.get(&connection) {
            Some(number) => *number,
            None => self.begin(connection),
        };
        let line = &mut self.lines[number as usize];
        line.weight += weight;
        (number, &mut line.ends)
    }

    fn begin(&mut self, connection: ConnectionId) -> u32 {
        let number = self.free.pop().unwrap_or(self.lines.len() as u32);
        let (previous, next) = match self.turn {
            NONE => (number, number),
            turn => (self.lines[turn as usize].previous, turn),
        };
        let line = Line { connection, ends: Ends::default(), weight: 0, previous, next };
        match self.lines.get_mut(number as usize) {
            Some(free) => *free = line,
            None => self.lines.push(line),
        }
        self.lines[previous as usize].next = number;
        self.lines[next as usize].previous = number;
        if self.turn == NONE {
            (self.turn, self.served) = (number, 0);
        }
        self.of.insert(connection, number);
        number
    }

    /// The ends of line `number`, from which a read of this weight is taken. [`Lines::end_if_empty`] has to follow.
    #[inline]
    pub(super) fn leave(&mut self, number: u32, weight: usize) -> &mut Ends {
        self.weight -= weight;
        let line = &mut self.lines[number as usize];
        line.weight -= weight;
        &mut line.ends
    }

    /// Whoever has no reads any more has no turn.
    #[inline]
    pub(super) fn end_if_empty(&mut self, number: u32) {
        let Line { connection, ends, previous, next, .. } = self.lines[number as usize];
        if ends.count > 0 {
            return;
        }
        self.lines[previous as usize].next = next;
        self.lines[next as usize].previous = previous;
        if self.turn == number {
            self.served = 0;
            self.turn = if next == number { NONE } else { next };
        }
        if self.looked_at == number {
            self.looked_at = self.turn;
        }
        self.of.remove(&connection);
        self.free.push(number);
    }

    /// The oldest read of the connection whose turn it is.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Slot> {
        if self.turn == NONE {
            return None;
        }
        if self.served >= TURN {
            self.served = 0;
            self.turn = self.lines[self.turn as usize].next;
        }
        self.served += READ_COST;
        Some(Slot(self.lines[self.turn as usize].ends.oldest))
    }

    /// The connection whose turn it is was sent so many bytes, if it is `connection`.
    pub(super) fn note_served(&mut self, connection: ConnectionId, bytes: usize) {
        if self.lines.get(self.turn as usize).is_some_and(|line| line.connection == connection) {
            self.served += bytes;
        }
    }

    /// A connection that gives room to a read of `newcomer` of this weight: its reads weigh more than the average, and without as much
    /// still more than all of the newcomer. It is not asked for its only read.
    pub(super) fn find_heavy(&mut self, newcomer: ConnectionId, weight: usize) -> Option<ConnectionId> {
        let own = self.of.get(&newcomer).map(|number| self.lines[*number as usize].weight);
        let count = self.of.len() + usize::from(own.is_none());
        let average = (self.weight + weight).checked_div(count)?;
        let least = average.max(own.unwrap_or(0) + 2 * weight);
        for _ in 0..LOOKED_AT_MAX.min(self.of.len()) {
            if self.looked_at == NONE {
                self.looked_at = self.turn;
            }
            let line = self.lines.get(self.looked_at as usize)?;
            if line.weight > least && line.ends.count > 1 {
                return Some(line.connection);
            }
            self.looked_at = line.next;
        }
        None
    }

    /// The newest read of a connection.
    pub(super) fn newest_of(&self, connection: ConnectionId) -> Option<Slot> {
        self.of.get(&connection).map(|number| Slot(self.lines[*number as usize].ends.newest))
    }

    /// How many reads have their turn before another one of `connection`, if none of its own ends a turn by being long.
    pub(super) fn ahead_of(&self, connection: ConnectionId, total: usize) -> usize {
        let own = self.of.get(&connection).map(|number| self.lines[*number as usize].ends.count);
        let others = self.of.len() - usize::from(own.is_some());
        let own = own.unwrap_or(0);
        let of_each = (own / READS_OF_TURN + 1) * READS_OF_TURN;
        (others.saturating_mul(of_each) + own).min(total)
    }
}
