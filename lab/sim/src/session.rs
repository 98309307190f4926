//! What sessions have seen. A session belongs to no client: one takes it up, another goes on with it, and two may share it
//! for a while, as processes do that hand each other a token.

use hedgerow_client::Session;
use hedgerow_types::random::Random;

/// One operation in so many is done in another session than the client's last one.
const MOVE_INTERVAL: u64 = 8;
/// One session in so many that is moved to takes over what the one before saw.
const MERGE_INTERVAL: u64 = 3;

/// The sessions of a run.
#[derive(Debug)]
pub struct Sessions {
    sessions: Vec<Session>,
}

impl Sessions {
    /// So many (at least 1), which have seen nothing.
    pub fn new(count: usize) -> Self {
        Self { sessions: std::iter::repeat_with(Session::new).take(count).collect() }
    }

    /// The session in which a client goes on that was in `session`.
    pub fn next(&mut self, session: usize, random: &mut Random) -> usize {
        if !random.chance(1, MOVE_INTERVAL) {
            return session % self.sessions.len();
        }
        let next = random.below(self.sessions.len() as u64) as usize;
        if random.chance(1, MERGE_INTERVAL) {
            let before = self.at(session).token();
            self.sessions[next].merge(&before);
        }
        next
    }

    /// The session of this number, whatever it is.
    pub fn at(&self, session: usize) -> &Session {
        &self.sessions[session % self.sessions.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::{GroupId, SessionToken};

    #[test]
    fn clients_move_between_sessions_and_may_take_along_what_they_saw() {
        let (mut sessions, group, mut random) = (Sessions::new(3), GroupId::new(1, 0), Random::new(1));
        sessions.at(0).merge(&SessionToken::of(group, 5));
        let moves = (0..100).filter(|_| sessions.next(0, &mut random) != 0).count();
        assert!((1..50).contains(&moves), "{moves}");
        assert!((1..3).any(|session| sessions.at(session).token().floor(group) == 5));
    }
}
