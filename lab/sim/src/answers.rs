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
//! A read that asks for the leader, by its words or by saying nothing, is served by no other replica. What its client takes back
//! need not be answered, and what others ask must be. Nothing is answered twice.
//!
//! A read's limit counts from its turn: what it waits for in the queue is other reads, and not what it needs. While it is queued
//! it is owed nothing, however slowly the process takes its turns.
//!
//! Times are those of the machine's own clock, by which its node judges how long a client waits.

use crate::reading::TableReads;
use bytes::Bytes;
use hedgerow_replication::Role;
use hedgerow_types::{GroupId, Instant, ReadLevel, ReplicaId, Term};
use hedgerow_wire::message::Cancel;
use hedgerow_wire::{Body, Class, Extension, Header, Reply};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Taken back by their clients, who may get an answer or none.
    cancelled: BTreeSet<Question>,
    /// Connections over which something was asked and that are open.
    lines: BTreeSet<u64>,
    /// Those that have ended: nothing may come over them any more.
    ended: BTreeSet<u64>,
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
    /// Whether its turn had not come when the process came to rest last.
    is_queued: bool,
    /// And for how long, if there is such a limit.
    limit: Option<Duration>,
    /// Whether it begins again with another leader.
    begins_again: bool,
    /// Whether the replica leads and the limit is not for leaders, who wait for their majority as long as the caller does.
    is_unlimited: bool,
    what: ReadLevel,
    /// Whether no answer but a refusal is right.
    is_misplaced: bool,
    /// What a cancel would name: client, request and attempt.
    name: Option<(u64, u64, i32)>,
}

impl Owed {
    fn due(&self) -> Instant {
        let limit = self.limit.filter(|_| !self.is_unlimited);
        limit.map_or(self.deadline, |limit| self.deadline.min(self.since + limit)) + LATE_MAX
    }
}

impl Answers {
    /// Nothing is owed. `refusal` is V.
    pub fn new(refusal: Duration, table: TableReads) -> Self {
        Self {
            refusal,
            table,
            owed: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            lines: BTreeSet::new(),
            ended: BTreeSet::new(),
            leaderships: BTreeMap::new(),
            wrong: None,
        }
    }

    /// The node is handed a client's frame at `now`; `role_of` tells its role in a group.
    pub fn note_request(
        &mut self,
        line: u64,
        frame: &Bytes,
        now: Instant,
        role_of: impl FnOnce(GroupId) -> Option<Role>,
    ) {
        if self.ended.contains(&line) {
            self.wrong = Some(format!("the simulation hands over a frame of connection {line} after its end"));
        }
        let Ok(request) = hedgerow_wire::decode_request(frame.clone()) else { return };
        if let Body::HedgerowCancel(cancel) = &request.body {
            return self.note_cancel(line, cancel);
        }
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
            _ if class == Class::Write => None,
            ReadLevel::Linearizable => Some(wait * 3),
            ReadLevel::Session | ReadLevel::Eventual => Some(wait),
            ReadLevel::Bounded(bound) if has_token => Some(wait + bound.min(wait)),
            ReadLevel::Bounded(bound) => Some(bound.min(wait)),
        };
        let begins_again = what == ReadLevel::Linearizable;
        let is_unlimited = begins_again && leads;
        let is_misplaced = !leads && class == Class::Read && !self.may_follow(header);
        let name = header.extension.as_ref().and_then(|it| Some((it.client_id?, it.request_id?, it.attempt?)));
        let deadline = now + patience;
        let owed = Owed {
            group,
            deadline,
            since: now,
            is_queued: false,
            limit,
            begins_again,
            is_unlimited,
            what,
            is_misplaced,
            name,
        };
        self.lines.insert(line);
        self.owed.insert((line, request.sequence_id), owed);
    }

    fn note_cancel(&mut self, line: u64, cancel: &Cancel) {
        let (client, request) = (cancel.client_id, cancel.request_id);
        let is_named = |name: (u64, u64, i32)| {
            (name.0, name.1) == (client, request) && cancel.attempt.is_none_or(|attempt| attempt == name.2)
        };
        let is_meant = |number: i32, owed: &Owed| match cancel.sequence_id {
            Some(sequence_id) => sequence_id == number,
            None => owed.name.is_some_and(is_named),
        };
        let own = self.owed.iter().filter(|((other, number), owed)| *other == line && is_meant(*number, owed));
        let own: Vec<Question> = own.map(|(question, _)| *question).collect();
        for question in own {
            self.owed.remove(&question);
            self.cancelled.insert(question);
        }
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

    /// The turn that the process took at `now` lasts for so long. What ends meanwhile, even by its client's own patience, it is woken
    /// for when the turn is over, and perhaps after another one.
    pub fn note_turn(&mut self, now: Instant, turn: Duration) {
        self.forgive(turn);
        self.owed.values_mut().for_each(|owed| owed.deadline = owed.deadline.max(now + turn));
    }

    /// The process could do nothing for so long, after it wanted to be woken or because its turn took so long: what has come
    /// meanwhile is looked at first, so that a read may go on to its next stage instead of ending.
    pub fn forgive(&mut self, late: Duration) {
        self.owed.values_mut().for_each(|owed| owed.since = owed.since + late);
    }

    /// The process takes its next turn at `now`: what is queued may have its turn at last.
    pub fn begin_turn(&mut self, now: Instant) {
        for owed in self.owed.values_mut().filter(|owed| owed.is_queued) {
            (owed.since, owed.is_queued) = (now, false);
        }
    }

    /// The process comes to rest, and these requests still wait for their turn: connections and numbers.
    pub fn note_queued(&mut self, queued: impl Iterator<Item = (u64, i32)>) {
        for question in queued {
            self.owed.entry(question).and_modify(|owed| owed.is_queued = true);
        }
    }

    /// The node answers over the connection `line`, with whole frames.
    /// `served` is told the group of each read that was. `leads` says which groups the node may have begun to lead by what it had not looked at when
    /// the request came.
    pub fn note_replies(
        &mut self,
        line: u64,
        chunk: Bytes,
        mut served: impl FnMut(GroupId),
        leads: impl Fn(GroupId) -> bool,
    ) {
        for frame in crate::protocol::split_replies(chunk) {
            let Ok(reply) = hedgerow_wire::call::decode_reply(frame) else { continue };
            let is_cancelled = self.cancelled.remove(&(line, reply.sequence_id));
            let Some(owed) = self.owed.remove(&(line, reply.sequence_id)) else {
                let is_data =
                    matches!(reply.reply, Reply::Get(_) | Reply::Update(_) | Reply::Incr(_) | Reply::Check(_));
                if is_data && !is_cancelled && self.lines.contains(&line) {
                    let number = reply.sequence_id;
                    self.wrong =
                        Some(format!("request {number} of connection {line} was answered twice, or never asked"));
                }
                continue;
            };
            if matches!(reply.reply, Reply::Get(_)) {
                served(owed.group);
            }
            if owed.is_misplaced && !leads(owed.group) && !matches!(reply.reply, Reply::Failed(_)) {
                let (number, group) = (reply.sequence_id, owed.group);
                self.wrong = Some(format!("request {number} of connection {line} was served by no leader of {group}"));
            }
        }
    }

    /// The connection is gone at the machine: nobody hears its answers.
    pub fn forget_line(&mut self, line: u64) {
        self.owed.retain(|(other, _), _| *other != line);
        self.cancelled.retain(|(other, _)| *other != line);
        self.lines.remove(&line);
        self.ended.insert(line);
    }

    /// The process is gone, and its connections with it.
    pub fn clear(&mut self) {
        self.owed.clear();
        self.cancelled.clear();
        self.lines.clear();
        self.ended.clear();
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
                again.for_each(|owed| (owed.since, owed.is_unlimited) = (now, leadership.1 == Role::Leader));
            }
        }
    }

    /// The error names a request that should have been answered by now, or not so.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        match self.owed.iter().find(|(_, owed)| !owed.is_queued && owed.due() < now) {
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
    use crate::protocol::{self, Table};
    use crate::reading::Manner;
    use bytes::BytesMut;
    use hedgerow_wire::Method;
    use hedgerow_wire::message::GetReply;

    const REFUSAL: Duration = Duration::from_millis(400);

    fn question(sequence_id: i32, level: ReadLevel, deadline_ms: i64) -> Bytes {
        asked(Manner::AnyReplica, sequence_id, level, deadline_ms)
    }

    fn asked(manner: Manner, sequence_id: i32, level: ReadLevel, deadline_ms: i64) -> Bytes {
        let extension = manner.is_extended().then(|| {
            let any_replica = matches!(manner, Manner::AnyReplica | Manner::TableLevel);
            let mut extension = Extension { deadline_ms: Some(deadline_ms), any_replica, ..Extension::default() };
            if manner != Manner::TableLevel {
                extension.set_read_level(level);
            }
            extension
        });
        protocol::read(1, sequence_id, manner == Manner::Backup, extension, Table { id: 2, partition_count: 1 })
    }

    const fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn answers() -> Answers {
        Answers::new(REFUSAL, TableReads::DEFAULT)
    }

    fn refused(sequence_id: i32) -> Bytes {
        let (mut reply, refused) = (BytesMut::new(), Reply::refused(&hedgerow_types::Refusal::Expired, None));
        hedgerow_wire::encode_reply(&mut reply, Method::Get, sequence_id, &refused, None);
        reply.freeze()
    }

    #[test]
    fn what_ends_while_a_turn_lasts_is_refused_after_it() {
        let mut answers = answers();
        answers.note_request(7, &question(1, ReadLevel::Linearizable, 20), at(0), |_| Some(Role::Leader));
        answers.note_turn(at(0), Duration::from_millis(35));
        assert_eq!(answers.check(at(36)), Ok(()), "it is about to be woken");
        assert!(answers.check(at(38)).is_err());
    }

    #[test]
    fn only_what_is_neither_answered_nor_forgotten_is_missed() {
        let (mut answers, leads) = (answers(), |_| Some(Role::Leader));
        let level = ReadLevel::Linearizable;
        (1..=2).for_each(|number| answers.note_request(7, &question(number, level, 100), at(0), leads));
        answers.note_request(8, &question(1, level, 100), at(0), leads);
        assert_eq!(answers.check(at(102)), Ok(()), "there is still time");
        answers.note_replies(7, refused(1), |_| {}, |_| false);
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
    fn a_read_is_owed_nothing_before_its_turn_and_all_of_its_time_afterwards() {
        let (mut answers, bounded) = (answers(), ReadLevel::Bounded(Duration::from_millis(36)));
        (1..=2).for_each(|number| {
            answers.note_request(7, &question(number, bounded, 9_000), at(0), |_| Some(Role::Follower))
        });
        answers.note_queued([(7, 1)].into_iter());
        assert!(answers.check(at(39)).is_err_and(|why| why.contains("request 2 ")), "the other one has had its turn");
        answers.note_replies(7, refused(2), |_| {}, |_| false);
        answers.begin_turn(at(100));
        answers.note_queued([(7, 1)].into_iter());
        assert_eq!(answers.check(at(9_500)), Ok(()), "it is refused when its turn comes");
        answers.begin_turn(at(200));
        assert_eq!(answers.check(at(238)), Ok(()));
        assert!(answers.check(at(239)).is_err_and(|why| why.contains("request 1 ")));
    }

    #[test]
    fn nothing_comes_over_a_connection_after_its_end() {
        let (mut answers, leads) = (answers(), |_| Some(Role::Leader));
        answers.note_request(7, &question(1, ReadLevel::Linearizable, 100), at(0), leads);
        answers.forget_line(7);
        answers.note_request(8, &question(1, ReadLevel::Linearizable, 100), at(0), leads);
        assert_eq!(answers.check(at(1)), Ok(()));
        answers.note_request(7, &question(2, ReadLevel::Linearizable, 100), at(1), leads);
        assert!(answers.check(at(1)).is_err_and(|why| why.contains("connection 7 after its end")));
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
            answers.note_replies(1, reply.freeze(), |_| {}, |_| false);
            assert_eq!(answers.check(at(0)).is_ok(), is_right, "{manner:?} at {role:?}");
        }
    }

    fn raced(sequence_id: i32, client_id: u64, request_id: u64, number: i32) -> Bytes {
        let mut extension = Extension {
            any_replica: true,
            client_id: Some(client_id),
            request_id: Some(request_id),
            attempt: Some(number),
            deadline_ms: Some(100),
            ..Extension::default()
        };
        extension.set_read_level(ReadLevel::Linearizable);
        protocol::read(1, sequence_id, false, Some(extension), Table { id: 2, partition_count: 1 })
    }

    #[test]
    fn a_client_takes_back_what_it_asked_and_nothing_else() {
        let leads = |_| Some(Role::Leader);
        for (line, cancel, is_gone) in [
            (7, protocol::cancel(9, 5, 3, Some(2)), true),
            (7, protocol::cancel(9, 5, 3, None), true),
            (8, protocol::cancel(9, 5, 3, Some(2)), false),
            (7, protocol::cancel(9, 6, 3, Some(2)), false),
            (7, protocol::cancel(9, 5, 4, Some(2)), false),
            (7, protocol::cancel(9, 5, 3, Some(1)), false),
        ] {
            let mut answers = answers();
            answers.note_request(7, &raced(1, 5, 3, 2), at(0), leads);
            answers.note_request(line, &cancel, at(1), leads);
            assert_eq!(answers.check(at(103)).is_ok(), is_gone, "{cancel:?} over {line}");
        }
    }

    #[test]
    fn nothing_is_answered_twice_whether_or_not_it_was_taken_back() {
        let leads = |_| Some(Role::Leader);
        for is_cancelled in [true, false] {
            let mut answers = answers();
            answers.note_request(7, &raced(1, 5, 3, 2), at(0), leads);
            if is_cancelled {
                answers.note_request(7, &protocol::cancel(9, 5, 3, None), at(1), leads);
            }
            let mut reply = BytesMut::new();
            hedgerow_wire::encode_reply(&mut reply, Method::Get, 1, &Reply::Get(GetReply::default()), None);
            let reply = reply.freeze();
            answers.note_replies(7, reply.clone(), |_| {}, |_| false);
            assert_eq!(answers.check(at(2)), Ok(()));
            answers.note_replies(7, reply, |_| {}, |_| false);
            assert!(answers.check(at(2)).is_err_and(|why| why.contains("twice")));
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
        // A leader waits for its majority as long as the caller does.
        answers.note_leaderships(at(600), std::iter::once((group, (5, Role::Leader, None))));
        assert_eq!(answers.check(at(8_000)), Ok(()));
        answers.note_leaderships(at(8_000), follows(6));
        assert_eq!(answers.check(at(8_600)), Ok(()));
        assert!(answers.check(at(8_603)).is_err());
    }
}
