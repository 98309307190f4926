//! What a session has seen: for each partition the highest log index that it read or wrote.
//!
//! Indices of committed entries mean the same at every replica for ever, so a replica that has applied an index shows
//! everything that the session saw, and tokens of several processes merge by taking the larger index.
//!
//! ```text
//! token     version 1 | count | count x (group | index)
//! group     the difference to the group before, as one number (table in the high half, partition in the low half)
//! numbers   LEB128: seven bits a byte, the lowest first
//! ```

use crate::codec::Malformed;
use crate::id::{GroupId, Index};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use core::fmt;
use core::str::FromStr;

const VERSION: u8 = 1;
/// Most partitions that a token names.
pub const SESSION_GROUPS_MAX: usize = 65_536;
/// Most bytes of a LEB128 number of 64 bits.
const NUMBER_SIZE_MAX: u32 = 10;

/// The highest index that a session saw in each partition. The default has seen nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionToken {
    floors: BTreeMap<GroupId, Index>,
}

impl SessionToken {
    /// The token of a session that saw `index` of one partition.
    pub fn of(group: GroupId, index: Index) -> Self {
        Self { floors: BTreeMap::from([(group, index)]) }
    }

    /// The session saw `index` of `group`. Returns false, and the token stays as it is, if it would name more than
    /// [`SESSION_GROUPS_MAX`] partitions.
    pub fn observe(&mut self, group: GroupId, index: Index) -> bool {
        let has_room = self.floors.len() < SESSION_GROUPS_MAX;
        match self.floors.get_mut(&group) {
            Some(floor) => *floor = index.max(*floor),
            None if has_room => drop(self.floors.insert(group, index)),
            None => return false,
        }
        true
    }

    /// The session also saw what `other` saw. Returns false if there was no room for all of it.
    pub fn merge(&mut self, other: &Self) -> bool {
        other.floors.iter().fold(true, |all, (group, index)| self.observe(*group, *index) && all)
    }

    /// The index that a replica of `group` must have applied to serve the session; 0 if the session saw nothing of it.
    pub fn floor(&self, group: GroupId) -> Index {
        self.floors.get(&group).copied().unwrap_or(0)
    }

    /// Whether the session has seen nothing.
    pub fn is_empty(&self) -> bool {
        self.floors.is_empty()
    }

    /// What the session saw, in the order of the groups.
    pub fn floors(&self) -> impl Iterator<Item = (GroupId, Index)> + '_ {
        self.floors.iter().map(|(group, index)| (*group, *index))
    }

    /// The token as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + 8 * self.floors.len());
        out.push(VERSION);
        put_number(&mut out, self.floors.len() as u64);
        let mut before = 0;
        for (group, index) in &self.floors {
            put_number(&mut out, group.to_u64() - before);
            put_number(&mut out, *index);
            before = group.to_u64();
        }
        out
    }

    /// The inverse of [`SessionToken::encode`]. Refuses other versions, groups that do not ascend, too many of them,
    /// and trailing bytes.
    pub fn decode(input: &[u8]) -> Result<Self, Malformed> {
        let mut floors = BTreeMap::new();
        let note = |group, index| {
            floors.insert(group, index);
        };
        read_floors(input, note).ok_or(MALFORMED)?;
        Ok(Self { floors })
    }

    /// What `decode(input)?.floor(group)` is, found without building the token.
    pub fn floor_in(input: &[u8], group: GroupId) -> Result<Index, Malformed> {
        let mut floor = 0;
        let note = |named, index| {
            if named == group {
                floor = index;
            }
        };
        read_floors(input, note).ok_or(MALFORMED)?;
        Ok(floor)
    }
}

const MALFORMED: Malformed = Malformed("session token");

/// Gives `note` every pair of the token; `None` if it is malformed.
fn read_floors(mut input: &[u8], mut note: impl FnMut(GroupId, Index)) -> Option<()> {
    let (version, rest) = input.split_first()?;
    input = rest;
    let count = take_number(&mut input)?;
    if *version != VERSION || count > SESSION_GROUPS_MAX as u64 {
        return None;
    }
    let mut before = None::<u64>;
    for _ in 0..count {
        let step = take_number(&mut input)?;
        let index = take_number(&mut input)?;
        let group = before.unwrap_or(0).checked_add(step)?;
        if before.is_some() && step == 0 {
            return None;
        }
        before = Some(group);
        note(GroupId::from_u64(group), index);
    }
    input.is_empty().then_some(())
}

/// The token as text without spaces, to hand to another process.
impl fmt::Display for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.encode()))
    }
}

/// A text that is no session token. The text itself is not told: it may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a session token")]
pub struct InvalidToken;

impl FromStr for SessionToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidToken)?;
        Self::decode(&bytes).map_err(|_| InvalidToken)
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(input: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for position in 0..NUMBER_SIZE_MAX {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if bits.leading_zeros() < 7 * position {
            return None;
        }
        number |= bits << (7 * position);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn token(floors: &[(u32, u32, u64)]) -> SessionToken {
        let mut token = SessionToken::default();
        floors.iter().for_each(|(table, partition, index)| {
            assert!(token.observe(GroupId::new(*table, *partition), *index));
        });
        token
    }

    #[test]
    fn a_token_keeps_the_highest_index_of_each_partition_and_merges() {
        let mut ours = token(&[(1, 0, 5), (1, 0, 3), (2, 7, 1)]);
        assert_eq!(ours.floor(GroupId::new(1, 0)), 5);
        assert_eq!(ours.floor(GroupId::new(1, 1)), 0);
        assert!(ours.merge(&token(&[(1, 0, 9), (3, 3, 3)])));
        assert_eq!(ours, token(&[(1, 0, 9), (2, 7, 1), (3, 3, 3)]));
    }

    #[test]
    fn one_partition_takes_a_few_bytes() {
        let bytes = SessionToken::of(GroupId::new(2, 5), 100_000).encode();
        assert_eq!(bytes.len(), 10, "{bytes:?}");
    }

    #[test]
    fn damaged_tokens_are_refused() {
        let good = token(&[(1, 0, 5), (1, 1, 6)]).encode();
        assert!(SessionToken::decode(&[&good[..], &[0]].concat()).is_err());
        for cut in 0..good.len() {
            assert!(SessionToken::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        for text in ["", "!", "AQ", "Ag"] {
            assert!(text.parse::<SessionToken>().is_err(), "{text:?}");
        }
        // The same group twice, and a number of more than 64 bits.
        assert!(SessionToken::decode(&[1, 2, 1, 1, 0, 1]).is_err());
        assert!(SessionToken::decode(&[1, 1, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]).is_err());
    }

    proptest! {
        #[test]
        fn tokens_survive_bytes_and_text(floors in proptest::collection::vec(any::<(u32, u32, u64)>(), 0..20)) {
            let token = token(&floors);
            prop_assert_eq!(&SessionToken::decode(&token.encode()), &Ok(token.clone()));
            for (group, index) in token.floors() {
                prop_assert_eq!(SessionToken::floor_in(&token.encode(), group), Ok(index));
            }
            let other = GroupId::new(7, 7);
            prop_assert_eq!(SessionToken::floor_in(&token.encode(), other), Ok(token.floor(other)));
            prop_assert_eq!(token.to_string().parse(), Ok(token));
        }

        #[test]
        fn no_bytes_make_it_fail(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let floor = SessionToken::floor_in(&bytes, GroupId::new(0, 0));
            prop_assert_eq!(floor, SessionToken::decode(&bytes).map(|token| token.floor(GroupId::new(0, 0))));
        }
    }
}
