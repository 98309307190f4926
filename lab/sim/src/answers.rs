//! Requests that nodes have taken and not answered. Each must be answered or refused, or its connection closed, while its
//! client still waits: silence costs a client its whole patience.
//!
//! A read that may be served elsewhere is owed its answer or refusal earlier, whatever the network does: a replica that is
//! cut off says so, instead of letting the caller wait. With V, the time for which voters refuse to vote:
//!
//! | read | is answered or refused within |
//! |---|---|
//! | session, eventual | V / 2 for the index that it needs |
//! | bounded(d) | the smaller of d and V / 2, after V / 2 for the index of its session, if it has one |
//! | linearizable, at a replica that does not lead | V / 2 each for its turn to ask, the answer and the index; anew after a change of the leader |
//! | linearizable, at the leader; writes | its deadline |
//!
//! What asks for the leader, by its words or by saying nothing, is served by no other replica.
//!
//! Times are those of the machine's own clock, by which its node judges how long a client waits.

use crate::reading::TableReads;
use bytes::Bytes;
use hedgerow_replication::Role;
use hedgerow_types::{GroupId, Instant, ReadLevel, ReplicaId, Term};
use hedgerow_wire::{Class, Extension, Header, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// How late an answer may be: the node wants to be woken at the very moment, or a millisecond later if it has just been.
const LATE_MAX: Duration = Duration::from_millis(2);

/// One request: the connection it came over, and its number.
type Question = (u64, i32);

/// What a replica knows of its group's leadership.
pub type Leadership = (Term, Role, Option<ReplicaId>);

/// What the node of one machine has still to answer.
#[derive(Debug)]
pub struct Answers {
    /// V.
    refusal: Duration,
    table: TableReads,
    owed: BTreeMap<Question, Owed>,
    leaderships: BTreeMap<GroupId, Leadership>,
    /// An answer that should not have been given.
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Owed {
    group: GroupId,
    /// By the caller's own patience.
    deadline: Instant,
    /// Since when the replica may think about it.
    since: Instant,
    /// And for how long, if there is such a limit.
    limit: Option<Duration>,
    /// Whether it begins again with another leader.
    begins_again: bool,
    what: ReadLevel,
    /// Whether no answer but a refusal is right.
    is_misplaced: bool,
}

impl Owed {
    fn due(&self) -> Instant {
        self.limit.map_or(self.deadline, |limit| self.deadline.min(self.since + limit)) + LATE_MAX
    }
}

impl Answers {
    /// Nothing is owed. `refusal` is V.
    pub const fn new(refusal: Duration, table: TableReads) -> Self {
        Self { refusal, table, owed: BTreeMap::new(), leaderships: BTreeMap::new(), wrong: None }
    }

    /// The node is handed a client's frame at `now`; `role_of` tells its role in a group.
    pub fn note_request(
        &mut self,
        line: u64,
        frame: &Bytes,
        now: Instant,
        role_of: impl FnOnce(GroupId) -> Option<Role>,
    ) {
        let Ok(request) = hedgerow_wire::decode_request(frame.clone()) else { return };
        let class = request.body.method().class();
        if !matches!(class, Class::Read | Class::Write) {
            return;
        }
        let header = &request.header;
        let group = GroupId::new(header.app_id as u32, header.partition_index as u32);
        let patience = header.extension.as_ref().and_then(|extension| extension.deadline_ms);
        let patience = patience.map_or(hedgerow_node::config::WAIT_MAX, |ms| Duration::from_millis(ms.max(0) as u64));
        let what = if class == Class::Read { self.level(header) } else { ReadLevel::Linearizable };
        let leads = role_of(group).is_none_or(|role| role == Role::Leader);
        let has_token = header.extension.as_ref().is_some_and(|extension| extension.session_token.is_some());
        let wait = self.refusal / 2;
        let limit = match what {
            ReadLevel::Linearizable => (!leads).then_some(wait * 3),
            ReadLevel::Session | ReadLevel::Eventual => Some(wait),
            ReadLevel::Bounded(bound) if has_token => Some(wait + bound.min(wait)),
            ReadLevel::Bounded(bound) => Some(bound.min(wait)),
        };
        let begins_again = what == ReadLevel::Linearizable;
        let is_misplaced = !leads && (class == Class::Write || !self.may_follow(header));
        let owed = Owed { group, deadline: now + patience, since: now, limit, begins_again, what, is_misplaced };
        self.owed.insert((line, request.sequence_id), owed);
    }

    fn level(&self, header: &Header) -> ReadLevel {
        let default = if header.is_backup { self.table.backup_read_level } else { self.table.read_level };
        header.extension.as_ref().and_then(Extension::read_level).unwrap_or(default)
    }

    /// Whether a read may be served by a replica that does not lead.
    fn may_follow(&self, header: &Header) -> bool {
        match &header.extension {
            Some(extension) => extension.any_replica || header.is_backup,
            None => header.is_backup || self.table.follower_reads,
        }
    }

    /// The process could do nothing for so long after it wanted to be woken: what has come meanwhile is looked at first, so
    /// that a read may go on to its next stage instead of ending.
    pub fn forgive(&mut self, late: Duration) {
        self.owed.values_mut().for_each(|owed| owed.since = owed.since + late);
    }

    /// The node answers over the connection `line`, with whole frames.
    pub fn note_replies(&mut self, line: u64, chunk: Bytes) {
        for frame in crate::protocol::split_replies(chunk) {
            let Ok(reply) = hedgerow_wire::call::decode_reply(frame) else { continue };
            let Some(owed) = self.owed.remove(&(line, reply.sequence_id)) else { continue };
            if owed.is_misplaced && !matches!(reply.reply, Reply::Failed(_)) {
                let (number, group) = (reply.sequence_id, owed.group);
                self.wrong = Some(format!("request {number} of connection {line} was served by no leader of {group}"));
            }
        }
    }

    /// The connection is gone at the machine: nobody hears its answers.
    pub fn forget_line(&mut self, line: u64) {
        self.owed.retain(|(other, _), _| *other != line);
    }

    /// The process is gone, and its connections with it.
    pub fn clear(&mut self) {
        self.owed.clear();
        self.leaderships.clear();
    }

    /// Takes note of who leads now, by the replicas' own view, where that matters.
    pub fn note_leaderships(&mut self, now: Instant, leaderships: impl Iterator<Item = (GroupId, Leadership)>) {
        if !self.owed.values().any(|owed| owed.begins_again && owed.limit.is_some()) {
            return;
        }
        for (group, leadership) in leaderships {
            if self.leaderships.insert(group, leadership) != Some(leadership) {
                let again = self.owed.values_mut().filter(|owed| owed.begins_again && owed.group == group);
                again.for_each(|owed| owed.since = now);
            }
        }
    }

    /// The error names a request that should have been answered by now, or not so.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        match self.owed.iter().find(|(_, owed)| owed.due() < now) {
            Some(((line, number), owed)) => {
                let (late, what, group) = (now.since(owed.due()), owed.what, owed.group);
                Err(format!(
                    "request {number} ({what}) of connection {line} to group {group} was neither answered nor refused in \
                     time, {late:?} ago"
                ))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Call;
    use crate::protocol::{Attempt, Table, request};
    use crate::reading::Manner;
    use bytes::BytesMut;
    use hedgerow_wire::Method;
    use hedgerow_wire::message::GetReply;

    const REFUSAL: Duration = Duration::from_millis(400);

    fn question(sequence_id: i32, level: ReadLevel, deadline_ms: i64) -> Bytes {
        asked(Manner::AnyReplica, sequence_id, level, deadline_ms)
    }

    fn asked(manner: Manner, sequence_id: i32, level: ReadLevel, deadline_ms: i64) -> Bytes {
        let attempt = Attempt {
            call: Call::Get(level),
            manner,
            token: None,
            key: 1,
            sequence_id,
            client_id: 1,
            sequence: 1,
            number: 1,
            deadline_ms,
        };
        request(&attempt, Table { id: 2, partition_count: 1 })
    }

    const fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn answers() -> Answers {
        Answers::new(REFUSAL, TableReads::DEFAULT)
    }

    #[test]
    fn only_what_is_neither_answered_nor_forgotten_is_missed() {
        let (mut answers, leads) = (answers(), |_| Some(Role::Leader));
        let level = ReadLevel::Linearizable;
        (1..=2).for_each(|number| answers.note_request(7, &question(number, level, 100), at(0), leads));
        answers.note_request(8, &question(1, level, 100), at(0), leads);
        assert_eq!(answers.check(at(102)), Ok(()), "there is still time");
        let mut reply = BytesMut::new();
        let refused = Reply::refused(&hedgerow_types::Refusal::Expired, None);
        hedgerow_wire::encode_reply(&mut reply, Method::Get, 1, &refused, None);
        answers.note_replies(7, reply.freeze());
        assert!(answers.check(at(103)).is_err_and(|why| why.contains("request 2 (linearizable) of connection 7")));
        answers.forget_line(7);
        assert!(answers.check(at(103)).is_err_and(|why| why.contains("request 1 (linearizable) of connection 8")));
        answers.clear();
        assert_eq!(answers.check(at(103)), Ok(()));
    }

    #[test]
    fn a_read_that_may_go_elsewhere_is_owed_an_early_answer() {
        let bounded = |ms| ReadLevel::Bounded(Duration::from_millis(ms));
        for (level, role, due) in [
            (bounded(50), Role::Follower, 50),
            (bounded(5_000), Role::Learner, 200),
            (ReadLevel::Session, Role::Leader, 200),
            (ReadLevel::Eventual, Role::Follower, 200),
            (ReadLevel::Linearizable, Role::Follower, 600),
            (ReadLevel::Linearizable, Role::Leader, 9_000),
        ] {
            let mut answers = answers();
            answers.note_request(1, &question(1, level, 9_000), at(1_000), |_| Some(role));
            assert_eq!(answers.check(at(1_000 + due + 2)), Ok(()), "{level} at {role:?}");
            assert!(answers.check(at(1_000 + due + 3)).is_err(), "{level} at {role:?}");
        }
    }

    #[test]
    fn only_the_leader_serves_what_asks_for_it() {
        for (manner, role, is_right) in [
            (Manner::Leader, Role::Leader, true),
            (Manner::Leader, Role::Follower, false),
            (Manner::Plain, Role::Learner, false),
            (Manner::Backup, Role::Follower, true),
            (Manner::TableLevel, Role::Learner, true),
        ] {
            let mut answers = answers();
            answers.note_request(1, &asked(manner, 1, ReadLevel::Eventual, 100), at(0), |_| Some(role));
            let mut reply = BytesMut::new();
            hedgerow_wire::encode_reply(&mut reply, Method::Get, 1, &Reply::Get(GetReply::default()), None);
            answers.note_replies(1, reply.freeze());
            assert_eq!(answers.check(at(0)).is_ok(), is_right, "{manner:?} at {role:?}");
        }
    }

    #[test]
    fn a_linearizable_read_begins_again_with_another_leader() {
        let (mut answers, group) = (answers(), GroupId::new(2, 0));
        let follows = |term| std::iter::once((group, (term, Role::Follower, None)));
        answers.note_request(1, &question(1, ReadLevel::Linearizable, 9_000), at(0), |_| Some(Role::Follower));
        answers.note_leaderships(at(1), follows(3));
        answers.note_leaderships(at(400), follows(3));
        assert!(answers.check(at(700)).is_err());
        answers.forgive(Duration::from_millis(100));
        assert_eq!(answers.check(at(700)), Ok(()));
        answers.note_leaderships(at(500), follows(4));
        assert_eq!(answers.check(at(1_100)), Ok(()));
        assert!(answers.check(at(1_103)).is_err());
    }
}
