//! Administrative calls that another node carries out: said again until they are answered, and carried out once.
//!
//! Frames are lost with their connection, in either direction, so the sender repeats what has no answer. The receiver knows calls by
//! the sender's process and number:
//!
//! - What only looks at something is not begun again while it is under way, and may be afterwards.
//! - The answer to a change is kept, and given again. Of changes whose answers are forgotten ([`ANSWERS_MAX`]) it is known that they
//!   were answered: numbers rise, and one that is not larger than a forgotten one is not carried out.
//! - A repetition names the process that was told first. Another process does not know what the first one made of it, and says
//!   so ([`Refusal::Unresolved`]); neither does it carry it out.
//!
//! So a change is carried out by one process at most, and there once.

use crate::admin::{Asker, CHANGES};
use crate::node::Node;
use crate::peer::{AdminReply, AdminRequest, Frame};
use crate::requests::users::Who;
use hedgerow_env::Now;
use hedgerow_types::{Instant, NodeId, Refusal};
use hedgerow_wire::reply::{Detail, Failure};
use hedgerow_wire::{ErrorName, Text};
use std::collections::BTreeMap;
use std::time::Duration;

/// What has no answer is said again after this.
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// Longer arguments, such as thousands of split keys, are said once: those that wait are many, and kept.
const REPEATED_SIZE_MAX: usize = 64 << 10;
/// Answers to changes that are kept of each sender.
const ANSWERS_MAX: usize = 64;

/// Calls that this node has passed on, and those of other nodes that it is at or has answered.
#[derive(Debug, Default)]
pub(crate) struct PassedOn {
    /// This node's, by number.
    own: BTreeMap<u64, Own>,
    others: BTreeMap<NodeId, Calls>,
    /// Answers to calls of this node's, and the version of the catalogue that it is to act on before.
    held: BTreeMap<u64, (u64, AdminReply)>,
}

/// A call that another node was asked to carry out.
#[derive(Debug)]
struct Own {
    asker: Asker,
    deadline: Instant,
    to: NodeId,
    /// What is said again until there is an answer.
    repetition: Option<AdminRequest>,
    /// When it was said last.
    said: Instant,
}

/// The calls of one sender.
#[derive(Debug, Default)]
struct Calls {
    /// The process of the sender that they are of.
    sender: u64,
    /// By number.
    known: BTreeMap<u64, Call>,
    /// Of changes with this number or a smaller one that are not known nothing is known but that they may have been answered.
    forgotten: u64,
}

#[derive(Debug)]
enum Call {
    Look,
    Change,
    Answered(AdminReply),
}

/// What to do with a call that comes.
#[derive(Debug, PartialEq)]
enum Met {
    New,
    UnderWay,
    Answered(AdminReply),
    Unknown,
}

impl PassedOn {
    pub(crate) fn len(&self) -> usize {
        self.own.len()
    }

    /// `request` came from `from` to the process `own` of this node.
    fn meet(&mut self, from: NodeId, request: &AdminRequest, own: u64) -> Met {
        let calls = self.others.entry(from).or_default();
        if calls.sender != request.sender {
            *calls = Calls { sender: request.sender, ..Calls::default() };
        }
        let only_looks = only_looks(&request.command);
        match calls.known.get(&request.id) {
            Some(Call::Look | Call::Change) => return Met::UnderWay,
            Some(Call::Answered(reply)) => return Met::Answered(reply.clone()),
            None => {}
        }
        let is_of_another = request.repeated_to != 0 && request.repeated_to != own;
        if !only_looks && (is_of_another || request.id <= calls.forgotten) {
            return Met::Unknown;
        }
        calls.known.insert(request.id, if only_looks { Call::Look } else { Call::Change });
        Met::New
    }

    /// A call of `from` has its answer.
    fn note_answered(&mut self, from: NodeId, reply: &AdminReply) {
        let Some(calls) = self.others.get_mut(&from) else { return };
        if let Some(Call::Change) = calls.known.remove(&reply.id) {
            calls.known.insert(reply.id, Call::Answered(reply.clone()));
        }
        let answered = |(id, call): (&u64, &Call)| matches!(call, Call::Answered(_)).then_some(*id);
        let answered: Vec<u64> = calls.known.iter().filter_map(answered).collect();
        for id in &answered[..answered.len().saturating_sub(ANSWERS_MAX)] {
            calls.known.remove(id);
            calls.forgotten = calls.forgotten.max(*id);
        }
    }
}

impl Node {
    /// Has `to` carry out a call; `asker` gets its answer.
    pub(crate) fn pass_on(
        &mut self,
        to: NodeId,
        (command, argument): (&str, &str),
        asker: Asker,
        now: Now,
        wait: Duration,
    ) {
        let id = self.admin.number();
        let sender = self.identity.start();
        let (command, argument) = (command.to_owned(), argument.to_owned());
        // It knows a newer catalogue than this node, perhaps.
        let principal = asker.client_connection().map(|connection| self.front.principal(connection));
        let request = AdminRequest { id, command, argument, sender, repeated_to: 0, principal };
        let receiver = self.reports.told().nodes.get(&to).map_or(0, |(report, _)| report.process);
        let may_repeat = request.argument.len() <= REPEATED_SIZE_MAX && (receiver != 0 || only_looks(&request.command));
        let repetition = may_repeat.then(|| AdminRequest { repeated_to: receiver, ..request.clone() });
        self.shards.first().send(to, &Frame::AdminRequest(request));
        let (deadline, said) = (now.instant + wait, now.instant);
        self.admin.passed_on.own.insert(id, Own { asker, deadline, to, repetition, said });
    }

    pub(crate) fn handle_admin_request(&mut self, from: NodeId, request: AdminRequest, now: Now) {
        let asker = Asker::Peer { node: from, id: request.id };
        match self.admin.passed_on.meet(from, &request, self.identity.start()) {
            Met::New => {}
            Met::UnderWay => return,
            Met::Answered(reply) => return self.shards.first().send(from, &Frame::AdminReply(reply)),
            Met::Unknown => {
                let reply = reply_of(request.id, Err(Refusal::Unresolved));
                return self.shards.first().send(from, &Frame::AdminReply(reply));
            }
        }
        let command = (request.command.as_str(), request.argument.as_str());
        if let Some(principal) = &request.principal
            && let Some(refusal) = self.front.why_not_passed_on(&self.view, principal, command, now)
        {
            return self.answer_admin(asker, Err(refusal));
        }
        if CHANGES.contains(&command.0) {
            let who = request.principal.as_ref().map_or(Who::Node, Who::named);
            self.front.audit().note_passed_on(from, &who, command);
        }
        // What was passed on once is not passed on again.
        let is_for_any = matches!(command.0, "checksum_here" | "throttle_here" | "transfer");
        if is_for_any || self.leads_metadata() {
            self.run_admin(command.0, command.1, asker, now);
        } else {
            let text = "the metadata has no leader at the moment";
            self.answer_admin(asker, Err(Refusal::NotReady(text.into())));
        }
    }

    /// A call of `node` has come to its end.
    pub(crate) fn answer_peer(&mut self, node: NodeId, id: u64, answer: Result<serde_json::Value, Refusal>) {
        self.send_answer(node, reply_of(id, answer));
    }

    /// The same with an answer that is written down.
    pub(crate) fn answer_peer_with(&mut self, node: NodeId, id: u64, text: &str) {
        self.send_answer(node, AdminReply { id, refusal_kind: 0, answer: text.to_owned() });
    }

    fn send_answer(&mut self, node: NodeId, reply: AdminReply) {
        self.admin.passed_on.note_answered(node, &reply);
        self.shards.first().send(node, &Frame::AdminReply(reply));
    }

    /// Another node has answered. What it has changed came before, and is told once this node acts on it too: whoever is told may ask here.
    pub(crate) fn handle_admin_reply(&mut self, reply: AdminReply) {
        match self.adoption.newest() {
            Some(version) if !self.adoption.is_late(self.last_tick) => {
                if self.admin.passed_on.own.contains_key(&reply.id) {
                    self.admin.passed_on.held.insert(reply.id, (version, reply));
                }
            }
            Some(_) | None => self.give_answer(reply),
        }
    }

    /// Gives the answers that waited for what this node acts on now, or all, where nothing more is to come or nobody should wait for it.
    pub(crate) fn give_held_answers(&mut self) {
        let known = if self.adoption.is_busy() && !self.adoption.is_late(self.last_tick) {
            self.catalogue_version()
        } else {
            u64::MAX
        };
        for (id, (version, reply)) in std::mem::take(&mut self.admin.passed_on.held) {
            if version <= known {
                self.give_answer(reply);
            } else {
                self.admin.passed_on.held.insert(id, (version, reply));
            }
        }
    }

    fn give_answer(&mut self, reply: AdminReply) {
        let Some(Own { asker, .. }) = self.admin.passed_on.own.remove(&reply.id) else { return };
        let answer = if reply.refusal_kind == 0 {
            serde_json::from_str(&reply.answer).map_err(|error| Refusal::NotReady(error.to_string()))
        } else {
            let detail = Detail {
                kind: reply.refusal_kind,
                leader: Text::default(),
                message: Text::from(reply.answer.as_str()),
            };
            let failure = Failure { name: ErrorName::Unknown, detail: Some(detail) };
            Err(failure.refusal().unwrap_or(Refusal::Unknown))
        };
        self.answer_admin(asker, answer);
    }

    /// Ends what has waited long enough, and repeats the rest.
    pub(crate) fn tick_passed_on(&mut self, now: Now) {
        // Of several answers the one that does not come is told by its node, and as soon as that is down.
        let is_over = |call: &Own| {
            call.deadline <= now.instant || (matches!(call.asker, Asker::Gather(_)) && !self.is_alive(call.to, now))
        };
        let own = self.admin.passed_on.own.iter();
        let over: Vec<u64> = own.filter(|(_, call)| is_over(call)).map(|(id, _)| *id).collect();
        for id in over {
            match self.admin.passed_on.own.remove(&id) {
                Some(Own { asker: Asker::Gather(call), to, .. }) => {
                    self.handle_part(call, Err(format!("node {} did not answer", to.0)));
                }
                Some(Own { asker, .. }) => self.answer_admin(asker, Err(Refusal::Expired)),
                None => {}
            }
        }
        let mut again = Vec::new();
        for call in self.admin.passed_on.own.values_mut() {
            if let Some(request) = &call.repetition
                && now.instant.since(call.said) >= REPEAT_AFTER
            {
                call.said = now.instant;
                again.push((call.to, Frame::AdminRequest(request.clone())));
            }
        }
        again.into_iter().for_each(|(to, request)| self.shards.first().send(to, &request));
    }
}

/// Whether a command for another node may come twice without harm.
pub(crate) fn only_looks(command: &str) -> bool {
    let looks = ["status", "describe", "checksum", "checksum_here", "throttle", "throttle_table", "throttle_here"];
    looks.contains(&command)
}

fn reply_of(id: u64, answer: Result<serde_json::Value, Refusal>) -> AdminReply {
    match answer {
        Ok(answer) => AdminReply { id, refusal_kind: 0, answer: answer.to_string() },
        Err(refusal) => {
            let detail = Failure::new(&refusal, None).detail.unwrap_or_default();
            AdminReply { id, refusal_kind: detail.kind, answer: detail.message.to_string() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: NodeId = NodeId(2);
    const OWN: u64 = 7;

    fn request(id: u64, command: &str) -> AdminRequest {
        AdminRequest { id, command: command.into(), argument: "{}".into(), sender: 5, repeated_to: 0, principal: None }
    }

    fn answer(calls: &mut PassedOn, id: u64) -> AdminReply {
        let reply = reply_of(id, Ok(serde_json::json!({ "changed": true })));
        calls.note_answered(FROM, &reply);
        reply
    }

    #[test]
    fn d21_a_change_is_carried_out_once_and_its_answer_given_again() {
        let mut calls = PassedOn::default();
        let change = request(10, "set_options");
        assert_eq!(calls.meet(FROM, &change, OWN), Met::New);
        assert_eq!(calls.meet(FROM, &change, OWN), Met::UnderWay);
        let reply = answer(&mut calls, 10);
        assert_eq!(calls.meet(FROM, &AdminRequest { repeated_to: OWN, ..change }, OWN), Met::Answered(reply));
    }

    #[test]
    fn what_only_looks_may_be_carried_out_again_but_not_twice_at_a_time() {
        let mut calls = PassedOn::default();
        let look = AdminRequest { repeated_to: OWN + 1, ..request(10, "checksum_here") };
        for _ in 0..2 {
            assert_eq!(calls.meet(FROM, &look, OWN), Met::New);
            assert_eq!(calls.meet(FROM, &look, OWN), Met::UnderWay);
            answer(&mut calls, 10);
        }
    }

    /// Whether its request was lost or its answer forgotten is not known any more.
    #[test]
    fn d21_a_change_from_before_the_forgotten_ones_is_not_carried_out() {
        let mut calls = PassedOn::default();
        let count = ANSWERS_MAX as u64 + 1;
        for id in 10..10 + count {
            assert_eq!(calls.meet(FROM, &request(id, "drop_table"), OWN), Met::New);
            answer(&mut calls, id);
        }
        for id in [9, 10] {
            assert_eq!(calls.meet(FROM, &request(id, "drop_table"), OWN), Met::Unknown);
        }
        assert!(matches!(calls.meet(FROM, &request(11, "drop_table"), OWN), Met::Answered(_)));
        // Numbers of another process of the sender begin elsewhere.
        let of_another = AdminRequest { sender: 6, ..request(9, "drop_table") };
        assert_eq!(calls.meet(FROM, &of_another, OWN), Met::New);
    }

    #[test]
    fn d21_a_repetition_of_what_another_process_was_told_is_not_carried_out() {
        let mut calls = PassedOn::default();
        let repeated = AdminRequest { repeated_to: OWN + 1, ..request(10, "drop_table") };
        assert_eq!(calls.meet(FROM, &repeated, OWN), Met::Unknown);
        assert_eq!(calls.meet(FROM, &AdminRequest { repeated_to: OWN, ..repeated }, OWN), Met::New);
    }
}
