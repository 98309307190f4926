//! Reads of all kinds at all replicas, and the questions and answers that travel for them.

use super::check::Done;
use super::{Event, World};
use bytes::{Bytes, BytesMut};
use hedgerow_replication::{
    Proof, ReadIndexReply, ReadIndexRequest, ReadNeed, ReadOutcome, ReadStart, Role, Served, Touches,
};
use hedgerow_types::op::{Proposal, Write};
use hedgerow_types::{ClientId, Index, ReplicaId, Span, codec};

/// The key that is read.
const REGISTER: Bytes = Bytes::from_static(b"register");

/// The entry of write `ticket`, which is one of the register or of another key, which reads do not see.
pub fn data_of(ticket: u64, is_of_register: bool) -> Bytes {
    let key = if is_of_register { REGISTER } else { Bytes::from_static(b"other") };
    let write = Write::Remove { key };
    let mut data = BytesMut::new();
    codec::encode_proposal(
        &Proposal { client: ClientId(0), sequence: ticket, now: 0, is_agreed: false, write },
        &mut data,
    );
    data.freeze()
}

/// Whether an entry with this data is one of the register: what cannot be read is.
pub fn is_of_register(data: &Bytes) -> bool {
    codec::decode_proposal(data.clone()).map_or(true, |proposal| proposal.write == Write::Remove { key: REGISTER })
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub need: ReadNeed,
    /// What was known when it arrived.
    pub floor: Index,
    /// When that was, in the world's time.
    pub since: u64,
}

/// What travels for the reads of one replica.
#[derive(Clone, Debug)]
pub enum Mail {
    ReadIndexRequest(ReadIndexRequest),
    ReadIndexReply(ReadIndexReply),
    TailRequest { id: u64, after: Index, count: usize },
    TailReply { id: u64, touches: Option<Touches> },
}

/// What the world does with questions and answers beside the weather.
#[derive(Default)]
pub struct Post {
    /// Least and additional time from the wish to ask to the question, microseconds.
    pub ask_us: (u64, u64),
    pub loses_questions: bool,
    pub loses_tail_questions: bool,
    /// Answers are kept until they are released by hand.
    pub holds_answers: bool,
    pub held: Vec<(u64, u64, ReadIndexReply)>,
    id_last: u64,
    pub questions: u64,
    pub answers: u64,
    pub tail_questions: u64,
    /// What voters said of reads: nowhere, touched, ask again.
    pub tail_answers: [u64; 3],
    pub served_by_quorum: u64,
}

impl World {
    /// A client reads at `id`. Returns how it started; `None` if the node does not run, or is paused and will find the read
    /// first thing when it goes on.
    pub fn read(&mut self, id: u64, need: ReadNeed) -> Option<ReadStart> {
        let read = Read { need, floor: self.check.floor, since: self.time };
        let node = self.nodes.get_mut(&id)?;
        if node.is_paused {
            node.backlog.insert(0, (node.life, Event::ReadArrives { read }));
            return None;
        }
        let start = self.start_read(id, read);
        self.poll(id);
        start
    }

    pub fn start_read(&mut self, id: u64, read: Read) -> Option<ReadStart> {
        let ticket = self.next_ticket;
        let read_us = self.draw(self.read_us);
        let is_hurried = self.hurry > 0 && self.random.chance(self.hurry, 100);
        let node = self.nodes.get_mut(&id)?;
        let now = node.now(self.time);
        let start = node.group.as_mut()?.read(ticket, read.need, now);
        match start {
            ReadStart::Serve(served) => {
                let done = node.done(read, served);
                let is_checked = read.need == ReadNeed::Latest;
                let is_good = !is_checked || node.group.as_ref().is_some_and(|group| group.lease_holds(now));
                if read_us > 0 && is_checked {
                    self.schedule(id, read_us, Event::ReadDone { done });
                } else if is_good {
                    self.check.read_done(self.time, done);
                }
            }
            ReadStart::Wait => {
                self.next_ticket += 1;
                node.reads.insert(ticket, read);
                if is_hurried
                    && read.need == ReadNeed::Latest
                    && let Some(group) = &mut node.group
                {
                    group.hasten_read(ticket, now);
                }
            }
            ReadStart::Lagging(lag) => self.check.lagging(lag),
            ReadStart::NotLeader { .. } | ReadStart::NotReady(_) => {}
        }
        Some(start)
    }

    pub fn end_read(&mut self, id: u64, ticket: u64, outcome: ReadOutcome) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(read) = node.reads.remove(&ticket) else { return };
        match outcome {
            ReadOutcome::Serve(served) => {
                let done = node.done(read, served);
                self.post.served_by_quorum += u64::from(served.by != Proof::Leader);
                self.check.read_done(self.time, done);
            }
            ReadOutcome::Refused => self.check.refused += 1,
            ReadOutcome::Lagging(lag) => self.check.lagging(lag),
        }
    }

    /// Plans what the group of `id` wants of the host besides what a Ready says: to ask, and to be woken.
    pub fn plan(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let now = node.now(self.time);
        let Some(group) = node.group.as_ref() else { return };
        if group.role() != Role::Leader {
            let longest = 8 * self.settings.refusal().as_nanos() as u64;
            let oldest = node.reads.values().map(|read| read.since).min();
            self.check.nothing_waits_long(id, oldest.is_some_and(|since| self.time > since + longest));
        }
        let wakes_at = group.wakes_at();
        let asks = group.wants_to_ask(now).is_some() && !node.will_ask;
        node.will_ask |= asks;
        if let Some(at) = wakes_at
            && node.wakes_at.is_none_or(|planned| at < planned || planned <= now)
        {
            node.wakes_at = Some(at);
            let local = at.since(now).as_nanos() as u64;
            let delay = local * 1_000_000 / (1_000_000 + node.rate_ppm).unsigned_abs() + 1;
            self.schedule(id, delay, Event::Wake);
        }
        if asks {
            let delay = self.draw(self.post.ask_us);
            self.schedule(id, delay, Event::Ask);
        }
        self.plan_tails(id);
    }

    fn plan_tails(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let asks = node.group.as_ref().is_some_and(|group| group.wants_to_ask_tails());
        if asks && !std::mem::replace(&mut node.will_ask_tails, true) {
            let delay = self.draw(self.post.ask_us);
            self.schedule(id, delay, Event::AskTails);
        }
    }

    /// A question to the voters' logs leaves.
    pub fn ask_tails(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.will_ask_tails = false;
        let now = node.now(self.time);
        self.post.id_last += 1;
        let question_id = self.post.id_last;
        let Some(group) = node.group.as_mut() else { return };
        let Some(question) = group.ask_tails(question_id, now) else { return };
        let (after, count) = (question.after, question.tickets.len());
        let own = node.tail.look_up(group, after, &vec![vec![Span::Key(REGISTER)]; count]);
        group.handle_tail_reply(ReplicaId(id), question_id, own, now);
        self.post.tail_questions += 1;
        self.log(|_| format!("{id} asks about its tail: {question:?}"));
        let is_lost = self.post.loses_tail_questions;
        for to in question.voters.into_iter().filter(|_| !is_lost) {
            let mail = || Mail::TailRequest { id: question_id, after, count };
            self.deliver(id, to.0, || Event::Mail { from: id, mail: mail() });
        }
    }

    fn answer_tail(&mut self, id: u64, to: u64, question_id: u64, after: Index, count: usize) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(group) = &node.group else { return };
        let touches = node.tail.look_up(group, after, &vec![vec![Span::Key(REGISTER)]; count]);
        let kind = touches.as_ref().map_or(2, |touches| usize::from(touches.reads.iter().any(|index| *index > 0)));
        self.post.tail_answers[kind] += 1;
        self.log(|_| format!("{id} tells {to} of its tail after {after}: {touches:?}"));
        self.deliver(id, to, || Event::Mail {
            from: id,
            mail: Mail::TailReply { id: question_id, touches: touches.clone() },
        });
    }

    /// The question leaves.
    pub fn ask(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.will_ask = false;
        let now = node.now(self.time);
        self.post.id_last += 1;
        let asked = node.group.as_mut().and_then(|group| group.ask(self.post.id_last, now));
        let Some((leader, question)) = asked else { return };
        self.post.questions += 1;
        self.log(|_| format!("{id} asks {}: {question:?}", leader.0));
        if !self.post.loses_questions {
            self.deliver(id, leader.0, || Event::Mail { from: id, mail: Mail::ReadIndexRequest(question) });
        }
    }

    pub fn send_answer(&mut self, from: u64, to: ReplicaId, answer: ReadIndexReply) {
        self.post.answers += 1;
        self.log(|_| format!("{from} answers {}: {answer:?}", to.0));
        if self.post.holds_answers {
            return self.post.held.push((from, to.0, answer));
        }
        self.deliver(from, to.0, || Event::Mail { from, mail: Mail::ReadIndexReply(answer) });
    }

    /// Delivers an answer that was held, again if it was delivered before.
    pub fn release_answer(&mut self, number: usize) -> String {
        let Some(&(from, to, answer)) = self.post.held.get(number) else { return "there is no such answer".into() };
        self.deliver(from, to, || Event::Mail { from, mail: Mail::ReadIndexReply(answer) });
        String::new()
    }

    /// A question or an answer arrives.
    pub fn take_mail(&mut self, id: u64, from: u64, mail: Mail) {
        let is_forged = self.random.chance(self.weather.forged, 1000);
        let near = self.random.below(1 << 10);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let now = node.now(self.time);
        let Some(group) = node.group.as_mut() else { return };
        match mail {
            Mail::ReadIndexRequest(mut question) => {
                if is_forged {
                    question = ReadIndexRequest { term: near, id: u64::MAX - near };
                }
                group.handle_read_index_request(ReplicaId(from), question, now);
            }
            Mail::TailRequest { id: question_id, after, count } => {
                let after = if is_forged { near } else { after };
                self.answer_tail(id, from, question_id, after, count);
            }
            Mail::TailReply { id: question_id, mut touches } => {
                if is_forged && let Some(touches) = &mut touches {
                    touches.reads = vec![near; near as usize % 3];
                }
                group.handle_tail_reply(ReplicaId(from), question_id, touches, now);
            }
            Mail::ReadIndexReply(mut answer) => {
                if let (true, Some(commit)) = (is_forged, &mut answer.commit) {
                    (commit.term, commit.index) = match near % 4 {
                        0 => (commit.term, commit.index + near % 7),
                        1 => (near % 5, commit.index),
                        2 => (u64::MAX, u64::MAX),
                        _ => (commit.term, (1 << 62) - 1),
                    };
                }
                group.handle_read_index_reply(ReplicaId(from), answer, now);
            }
        }
    }
}

impl super::Node {
    /// What a read that is served now returns.
    pub fn done(&self, read: Read, served: Served) -> Done {
        Done {
            id: self.id,
            read,
            staleness: served.staleness,
            applied: self.machine.applied.index,
            value: self.machine.last_write,
        }
    }
}
