//! A replica's log: of each entry its term, and whether it changes the membership.

/// Entries that a log has room for.
pub const ENTRIES_MAX: usize = 6;
/// Marks an entry that changes the membership.
const CHANGE: u8 = 0x80;

/// The terms of a log's entries; zero where there is none. An entry is a write of the register: its value is its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Log([u8; ENTRIES_MAX]);

impl Log {
    /// How many entries there are, which is also the last index.
    pub fn last(self) -> u8 {
        self.0.iter().take_while(|&&entry| entry != 0).count() as u8
    }

    /// The term of the entry at `index`, which counts from 1; 0 if it is not there.
    pub fn term(self, index: u8) -> u8 {
        match index {
            0 => 0,
            _ => self.0[usize::from(index) - 1] & !CHANGE,
        }
    }

    /// Adds an entry. There must be room.
    pub fn push(&mut self, term: u8) {
        self.0[usize::from(self.last())] = term;
    }

    /// Adds an entry that changes the membership. There must be room.
    pub fn push_change(&mut self, term: u8) {
        self.push(term | CHANGE);
    }

    /// How many entries change the membership.
    pub fn changes(self) -> u8 {
        self.0.iter().filter(|&&entry| entry & CHANGE != 0).count() as u8
    }

    /// The index of the change with this number, which counts from 1; 0 if it is not there, or for number 0.
    pub fn index_of_change(self, number: u8) -> u8 {
        let indices = (1..=self.last()).filter(|&index| self.0[usize::from(index) - 1] & CHANGE != 0);
        usize::from(number).checked_sub(1).and_then(|skipped| { indices }.nth(skipped)).unwrap_or_default()
    }

    /// The first `count` entries.
    pub fn prefix(self, count: u8) -> Self {
        let mut entries = self.0;
        entries[usize::from(count)..].fill(0);
        Self(entries)
    }

    /// Whether `other` begins with this log.
    pub fn is_prefix_of(self, other: Self) -> bool {
        other.prefix(self.last()) == self
    }

    /// Whether whoever has this log may be elected by whoever has `other`.
    pub fn is_up_to_date_with(self, other: Self) -> bool {
        let position = |log: Self| (log.term(log.last()), log.last());
        position(self) >= position(other)
    }

    /// A follower takes the leader's log: what contradicts it goes, what the leader did not send yet stays.
    pub fn follow(&mut self, leader: Self) {
        if !leader.is_prefix_of(*self) {
            *self = leader;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_by_their_number() {
        let mut log = Log::default();
        log.push(1);
        log.push_change(1);
        log.push(2);
        log.push_change(2);
        assert_eq!((log.last(), log.changes(), log.prefix(3).changes()), (4, 2, 1));
        assert_eq!([0, 1, 2, 3].map(|number| log.index_of_change(number)), [0, 2, 4, 0]);
        assert_eq!([1, 2, 3, 4].map(|index| log.term(index)), [1, 1, 2, 2]);
    }
}
