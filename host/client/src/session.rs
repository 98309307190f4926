//! Sessions: what a caller has seen, so that no later read shows less, whichever replica answers.

use crate::lock::lock;
use hedgerow_types::{GroupId, Index, SessionToken};
use std::sync::{Arc, Mutex};

/// A session: reads made in it are not older than anything that was read or written in it before. Cheap to clone;
/// clones are the same session, for use by several tasks.
///
/// [`Session::token`] carries it to another process, and [`Session::merge`] takes up what another one saw, for example
/// whoever sent a message that this process acts upon.
///
/// ```no_run
/// # async fn example(client: hedgerow_client::Client) -> hedgerow_client::Result<()> {
/// use hedgerow_client::{ReadLevel, ReadOptions, ReplicaRead};
///
/// let session = client.session();
/// let near = ReadOptions {
///     level: Some(ReadLevel::Session),
///     mode: ReplicaRead::ClosestReplicas,
///     ..ReadOptions::default()
/// };
/// let users = client.open_table("users").await?.reading(near).in_session(&session);
/// users.set("user-17", "name", "Ada").await?;
/// // Served nearby, and never by a replica that has not heard of Ada.
/// assert!(users.get("user-17", "name").await?.is_some());
/// println!("go on with --session {}", session.token());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Session(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    token: SessionToken,
    /// Whether something was seen that the token had no room for.
    is_overfull: bool,
}

/// What a session demands of one partition's replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    /// The log index that the replica must have applied; 0 = none.
    pub(crate) index: Index,
    /// Whether the session may have seen more than it could remember, so that only the latest value is surely not
    /// older.
    pub(crate) is_uncertain: bool,
}

impl Session {
    /// A session that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A session that goes on where the one of `token` was.
    pub fn from_token(token: SessionToken) -> Self {
        Self(Arc::new(Mutex::new(Seen { token, is_overfull: false })))
    }

    /// What the session has seen so far.
    pub fn token(&self) -> SessionToken {
        lock(&self.0).token.clone()
    }

    /// The session has also seen what `token` says.
    pub fn merge(&self, token: &SessionToken) {
        let mut seen = lock(&self.0);
        seen.is_overfull |= !seen.token.merge(token);
    }

    pub(crate) fn observe(&self, group: GroupId, index: Index) {
        if index > 0 {
            let mut seen = lock(&self.0);
            seen.is_overfull |= !seen.token.observe(group, index);
        }
    }

    pub(crate) fn floor(&self, group: GroupId) -> Floor {
        let seen = lock(&self.0);
        let index = seen.token.floor(group);
        Floor { index, is_uncertain: index == 0 && seen.is_overfull }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::session::SESSION_GROUPS_MAX;

    #[test]
    fn a_session_that_saw_too_many_partitions_says_so_about_the_others() {
        let session = Session::new();
        for partition in 0..SESSION_GROUPS_MAX as u32 {
            session.observe(GroupId::new(1, partition), 5);
        }
        let floor = |partition| session.floor(GroupId::new(2, partition));
        assert_eq!(floor(0), Floor { index: 0, is_uncertain: false });
        session.observe(GroupId::new(2, 0), 5);
        assert_eq!(floor(0), Floor { index: 0, is_uncertain: true });
        assert_eq!(session.floor(GroupId::new(1, 7)), Floor { index: 5, is_uncertain: false });
    }

    #[test]
    fn clones_are_one_session_and_tokens_merge() {
        let ours = Session::from_token(SessionToken::of(GroupId::new(1, 0), 3));
        ours.clone().observe(GroupId::new(1, 0), 7);
        ours.merge(&SessionToken::of(GroupId::new(1, 1), 2));
        ours.observe(GroupId::new(1, 2), 0);
        let floors: Vec<_> = ours.token().floors().collect();
        assert_eq!(floors, [(GroupId::new(1, 0), 7), (GroupId::new(1, 1), 2)]);
    }
}
