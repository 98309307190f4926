//! What sessions have seen. A session belongs to no client: one takes it up, another goes on with it, and two may share it
//! for a while, as processes do that hand each other a token.

use bytes::Bytes;
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Index, SessionToken};

/// One operation in so many is done in another session than the client's last one.
const MOVE_INTERVAL: u64 = 8;
/// One session in so many that is moved to takes over what the one before saw.
const MERGE_INTERVAL: u64 = 3;

/// The sessions of a run.
#[derive(Debug)]
pub struct Sessions {
    tokens: Vec<SessionToken>,
}

impl Sessions {
    /// So many (at least 1), which have seen nothing.
    pub fn new(count: usize) -> Self {
        Self { tokens: vec![SessionToken::default(); count] }
    }

    /// The session in which a client goes on that was in `session`.
    pub fn next(&mut self, session: usize, random: &mut Random) -> usize {
        if !random.chance(1, MOVE_INTERVAL) {
            return session % self.tokens.len();
        }
        let next = random.below(self.tokens.len() as u64) as usize;
        if random.chance(1, MERGE_INTERVAL) {
            let before = self.tokens[session % self.tokens.len()].clone();
            self.tokens[next].merge(&before);
        }
        next
    }

    /// What `session` has seen of `group`.
    pub fn floor(&self, session: usize, group: GroupId) -> Index {
        self.tokens[session].floor(group)
    }

    /// The token of `session` as a request carries it: whole, or what matters for `group`.
    pub fn token(&self, session: usize, group: GroupId, is_whole: bool) -> Bytes {
        let token = &self.tokens[session];
        if is_whole {
            return token.encode().into();
        }
        SessionToken::of(group, token.floor(group)).encode().into()
    }

    /// `session` was shown `index` of `group`.
    pub fn observe(&mut self, session: usize, group: GroupId, index: Index) {
        self.tokens[session].observe(group, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_what_any_of_its_clients_saw() {
        let (mut sessions, group) = (Sessions::new(2), GroupId::new(1, 0));
        sessions.observe(0, group, 5);
        sessions.observe(0, group, 4);
        assert_eq!((sessions.floor(0, group), sessions.floor(1, group)), (5, 0));
        sessions.observe(0, GroupId::new(1, 1), 9);
        let cut = SessionToken::decode(&sessions.token(0, group, false)).expect("a token");
        assert_eq!(cut, SessionToken::of(group, 5));
        let whole = SessionToken::decode(&sessions.token(0, group, true)).expect("a token");
        assert_eq!(whole.floors().count(), 2);
    }

    #[test]
    fn clients_move_between_sessions_and_may_take_along_what_they_saw() {
        let (mut sessions, group, mut random) = (Sessions::new(3), GroupId::new(1, 0), Random::new(1));
        sessions.observe(0, group, 5);
        let moves = (0..100).filter(|_| sessions.next(0, &mut random) != 0).count();
        assert!((1..50).contains(&moves), "{moves}");
        assert!((1..3).any(|session| sessions.floor(session, group) == 5));
    }
}
