//! A replica's log: of each entry its term, and whether it changes the membership or writes the key that is looked at.

/// Entries that a log has room for.
pub const ENTRIES_MAX: usize = 6;
/// Marks an entry that changes the membership.
const CHANGE: u8 = 0x80;
/// Marks an entry that writes the one key, where a model tells keys apart.
const KEY: u8 = 0x40;

/// The terms of a log's entries; zero where there is none. An entry is a write: its value is its index.
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
            _ => self.0[usize::from(index) - 1] & !(CHANGE | KEY),
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

    /// Adds an entry that writes the key. There must be room.
    pub fn push_key(&mut self, term: u8) {
        self.push(term | KEY);
    }

    /// The index of the last write of the key, which is the key's value; 0 if there is none.
    pub fn key(self) -> u8 {
        self.0.iter().rposition(|&entry| entry & KEY != 0).map_or(0, |place| place as u8 + 1)
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

    /// How many entries `other` begins with as this log does.
    pub fn common(self, other: Self) -> u8 {
        let differs = |index: &u8| self.0[usize::from(*index)] != other.0[usize::from(*index)];
        (0..ENTRIES_MAX as u8).find(differs).unwrap_or(ENTRIES_MAX as u8).min(self.last()).min(other.last())
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

    #[test]
    fn a_write_of_the_key_is_found_by_its_index() {
        let mut log = Log::default();
        log.push(1);
        assert_eq!(log.key(), 0);
        log.push_key(1);
        log.push_change(2);
        assert_eq!((log.key(), log.prefix(1).key(), log.term(2), log.last()), (2, 0, 1, 3));
        let mut other = log.prefix(2);
        other.push(2);
        assert_eq!((log.common(other), log.common(log.prefix(1)), log.common(log)), (2, 1, 3));
    }
}
