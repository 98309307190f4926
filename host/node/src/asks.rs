//! Questions and answers between nodes: replicas that do not lead ask what is committed, on behalf of the reads that wait
//! there, and one frame between two nodes carries what all their groups ask or answer.
//!
//! ```text
//! node A                                                       node B
//!   reads wait in groups 1, 2, 5, led from B
//!   drive: Asking says that a message may leave
//!          Group::ask each  ── Questions(id, 1 2 5) ────────>  Group::handle_question each
//!                                                              drive: Ready::answers of all groups
//!   Group::handle_answer each  <────────────── Answers ──────
//!   drive: reads whose index is applied are served
//! ```
//!
//! Nothing is repeated here: what is lost is asked again, under another id, by groups that run out of patience.

use crate::ids::ReplicaKey;
use crate::node::Node;
use crate::peer::Frame;
use crate::question::{GroupAnswer, GroupQuestion, QUESTIONS_MAX, Questions};
use hedgerow_env::Now;
use hedgerow_replication::{Answer, Asking};
use hedgerow_types::{GroupId, Instant, NodeId, ReplicaId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What leaves with the next messages of questions and answers.
#[derive(Debug)]
pub(crate) struct Asks {
    /// When questions leave, by the node that they go to.
    pub(crate) asking: BTreeMap<NodeId, Asking>,
    /// Answers that leave with the current batch of events, by the node that they go to.
    answers: BTreeMap<NodeId, Vec<GroupAnswer>>,
    /// The id of the next message with questions.
    next_id: u64,
    pub(crate) counts: AskCounts,
}

/// Counts since the node started.
#[derive(Debug, Default)]
pub(crate) struct AskCounts {
    /// Frames with questions or answers.
    messages_sent: u64,
    messages_received: u64,
    questions_sent: u64,
    questions_received: u64,
    answers_sent: u64,
    answers_received: u64,
}

impl AskCounts {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "messages_sent": self.messages_sent,
            "messages_received": self.messages_received,
            "questions_sent": self.questions_sent,
            "questions_received": self.questions_received,
            "answers_sent": self.answers_sent,
            "answers_received": self.answers_received,
        })
    }
}

impl Asks {
    /// Ids begin at a random place, so that no life of the node uses another's.
    pub(crate) fn new(random: u64) -> Self {
        Self { asking: BTreeMap::new(), answers: BTreeMap::new(), next_id: random, counts: AskCounts::default() }
    }

    /// The messages that may leave now: to which node, under which id, with the questions of which groups. Costs next to
    /// nothing if there are none, as after most events.
    fn poll(&mut self, now: Instant) -> Vec<(NodeId, u64, Vec<GroupId>)> {
        let mut due = Vec::new();
        for (node, asking) in &mut self.asking {
            if let Some(groups) = asking.poll(self.next_id, now) {
                due.push((*node, self.next_id, groups));
                self.next_id = self.next_id.wrapping_add(1);
            }
        }
        due
    }
}

impl Node {
    /// Notes that `group` has a question, if it has one.
    pub(crate) fn gather_question(&mut self, group: GroupId, now: Now) {
        let Some(replica) = self.running(group) else { return };
        if let Some(leader) = replica.group.wants_to_ask(now.instant) {
            self.asks.asking.entry(leader.node()).or_default().handle_wanted(group);
        }
    }

    /// Sends the questions whose time has come. Each is made at this moment, so that it covers every read that has arrived.
    pub(crate) fn send_questions(&mut self, now: Now) {
        let mut gathered: BTreeMap<(NodeId, u64), Vec<GroupQuestion>> = BTreeMap::new();
        for (node, id, groups) in self.asks.poll(now.instant) {
            for group in groups {
                let Some(replica) = self.running(group) else { continue };
                let from = replica.id();
                let asked = replica.group.ask(id, now.instant);
                self.update_wake(group);
                if let Some((to, question)) = asked {
                    // The leader may have changed since the group was noted: the question goes where the leader is.
                    let one = GroupQuestion { group, from, to, term: question.term };
                    gathered.entry((to.node(), id)).or_default().push(one);
                }
            }
            if !gathered.contains_key(&(node, id))
                && let Some(asking) = self.asks.asking.get_mut(&node)
            {
                asking.handle_unsent(id);
            }
        }
        for ((node, id), questions) in gathered {
            self.asks.counts.questions_sent += questions.len() as u64;
            for part in questions.chunks(QUESTIONS_MAX) {
                self.asks.counts.messages_sent += 1;
                self.send(node, &Frame::Questions(Questions { id, questions: part.to_vec() }));
            }
        }
    }

    pub(crate) fn handle_questions(&mut self, node: NodeId, questions: &Questions, now: Now) {
        self.asks.counts.messages_received += 1;
        self.asks.counts.questions_received += questions.questions.len() as u64;
        for one in &questions.questions {
            let owner = ReplicaKey { group: one.group, replica: one.to };
            let question = one.question(questions.id);
            match self.running_as(owner) {
                // An answer goes to the node of the replica that asks, which is the one that sent the question.
                _ if one.from.node() != node => {}
                Some(replica) => {
                    replica.group.handle_question(one.from, question, now.instant);
                    self.mark_dirty(one.group);
                }
                // It does not lead, whatever it was. The other one need not wait to find that out.
                None => {
                    let answer = Answer { term: question.term, id: question.id, commit: None };
                    self.gather_answers(owner, [(one.from, answer)]);
                }
            }
        }
    }

    /// Notes what `owner` answers.
    pub(crate) fn gather_answers(&mut self, owner: ReplicaKey, answers: impl IntoIterator<Item = (ReplicaId, Answer)>) {
        for (to, answer) in answers {
            let one = GroupAnswer { group: owner.group, from: owner.replica, to, answer };
            self.asks.answers.entry(to.node()).or_default().push(one);
        }
    }

    /// Sends the answers of all groups, one frame to each node.
    pub(crate) fn send_answers(&mut self) {
        while let Some((node, answers)) = self.asks.answers.pop_first() {
            self.asks.counts.answers_sent += answers.len() as u64;
            for part in answers.chunks(QUESTIONS_MAX) {
                self.asks.counts.messages_sent += 1;
                self.send(node, &Frame::Answers(part.to_vec()));
            }
        }
    }

    pub(crate) fn handle_answers(&mut self, node: NodeId, answers: &[GroupAnswer], now: Now) {
        self.asks.counts.messages_received += 1;
        self.asks.counts.answers_received += answers.len() as u64;
        let mut last = None;
        for one in answers.iter().filter(|one| one.from.node() == node) {
            // Answers to one message come together, as a rule, and only the first says anything of the message.
            if last.replace(one.answer.id) != Some(one.answer.id)
                && let Some(asking) = self.asks.asking.get_mut(&node)
            {
                asking.handle_answered(one.answer.id, now.instant);
            }
            if let Some(replica) = self.running_as(ReplicaKey { group: one.group, replica: one.to }) {
                replica.group.handle_answer(one.from, one.answer, now.instant);
                self.mark_dirty(one.group);
            }
        }
    }
}
