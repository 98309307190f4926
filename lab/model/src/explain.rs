//! A path through a model in words: what happens in each step, and how the replicas stand after it.

use crate::group::Group;
use crate::group::action::Action as GroupAction;
use crate::group::course::Set;
use crate::group::state::{Stage, State as GroupState};
use crate::index::Index;
use crate::index::action::Action as IndexAction;
use crate::index::state::{Message, State as IndexState};
use crate::lease::Lease;
use crate::lease::action::Action as LeaseAction;
use crate::lease::state::State as LeaseState;
use crate::quorum::Quorum;
use crate::quorum::action::Action as QuorumAction;
use crate::quorum::state::State as QuorumState;
use stateright::Model;

/// A model whose paths can be told.
pub trait Explain: Model {
    /// Two lines for each step from each of `states` to the next.
    fn explain(&self, states: &[Self::State]) -> Vec<String>;
}

impl Explain for Lease {
    fn explain(&self, states: &[LeaseState]) -> Vec<String> {
        let steps = self.retrace(states);
        let told = |(action, state)| (tell_lease(self, action), sum_up_lease(self, &state));
        lines_of(steps.into_iter().map(told))
    }
}

impl Explain for Index {
    fn explain(&self, states: &[IndexState]) -> Vec<String> {
        let told = |step: &[IndexState]| {
            let leads_there = |(_, next): &(IndexAction, IndexState)| *next == step[1];
            let (action, state) = self.next_steps(&step[0]).into_iter().find(leads_there)?;
            Some((tell_index(self, action), sum_up_index(self, &state)))
        };
        lines_of(states.windows(2).filter_map(told))
    }
}

impl Explain for Group {
    fn explain(&self, states: &[GroupState]) -> Vec<String> {
        let steps = self.retrace(states);
        let told = |(action, state)| (tell_group(action), sum_up_group(self, &state));
        lines_of(steps.into_iter().map(told))
    }
}

impl Explain for Quorum {
    fn explain(&self, states: &[QuorumState]) -> Vec<String> {
        let steps = self.retrace(states);
        let told = |(action, state)| (tell_quorum(action), sum_up_quorum(self, &state));
        lines_of(steps.into_iter().map(told))
    }
}

/// Steps with what happened and what is so after it, numbered.
fn lines_of(steps: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let lines = |(number, (happened, is_so))| [format!("{number:>3}. {happened}"), format!("       {is_so}")];
    (1..).zip(steps).flat_map(lines).collect()
}

/// The names of the voters.
fn voter(at: usize) -> char {
    char::from(b'A' + at as u8)
}

fn tell_lease(model: &Lease, action: LeaseAction) -> String {
    match action {
        LeaseAction::Tick { units } => {
            let units: Vec<_> = (0..model.voters).map(|at| format!("{}'s by {}", voter(at), units[at])).collect();
            format!("time passes, and the clocks go on: {}", units.join(", "))
        }
        LeaseAction::Write { at } => format!("{} takes a write", voter(at)),
        LeaseAction::Send { from, to } => format!("{} sends its log and a stamp to {}", voter(from), voter(to)),
        LeaseAction::Hear { from, at } => format!("{} hears {}, and its echo leaves", voter(at), voter(from)),
        LeaseAction::Echo { at, from } => format!("{} takes {}'s echo", voter(at), voter(from)),
        LeaseAction::Elect { leader, voter: other } => {
            format!("{} campaigns, {} votes for it, {} leads", voter(leader), voter(other), voter(leader))
        }
        LeaseAction::HandOver { from, to } => {
            format!("{} orders {} to take over the leadership", voter(from), voter(to))
        }
        LeaseAction::Succeed { voter: other } => {
            format!("the order arrives: the successor campaigns, {} votes for it, it leads", voter(other))
        }
        LeaseAction::Restart { at } => format!("{} restarts", voter(at)),
        LeaseAction::ReadByLease { at } => format!("a read arrives at {}, which serves it by its lease", voter(at)),
        LeaseAction::ReadWaits { at } => format!("a read arrives at {} and waits", voter(at)),
        LeaseAction::Serve => "the waiting read is served".to_owned(),
    }
}

fn sum_up_lease(model: &Lease, state: &LeaseState) -> String {
    let sum_up = |at: usize| {
        let replica = &state.replicas[at];
        let mut text =
            format!("{}: term {}, log {}, commit {}", voter(at), replica.term, replica.log.last(), replica.commit);
        let marks = [
            (replica.leads, "leads".to_owned()),
            (state.has_lease(model, at), "has a lease".to_owned()),
            (replica.refusal > 0, format!("refuses for {}", replica.refusal)),
        ];
        for (_, mark) in marks.into_iter().filter(|(is_so, _)| *is_so) {
            text.push_str(", ");
            text.push_str(&mark);
        }
        text
    };
    let mut parts: Vec<_> = (0..model.voters).map(sum_up).collect();
    parts.extend(state.stale.map(|stale| told(stale.served, stale.floor)));
    parts.join(" | ")
}

/// The names of those in `set`.
fn voters(set: Set) -> String {
    let names: Vec<_> = (0..8).filter(|at| set >> at & 1 == 1).map(|at| voter(at).to_string()).collect();
    if names.is_empty() { "nobody else".to_owned() } else { names.join(" and ") }
}

fn tell_group(action: GroupAction) -> String {
    match action {
        GroupAction::Expire { leader, of } => {
            format!("what {} sent to {} is too old to give it a lease", voter(leader), voter(of))
        }
        GroupAction::Send { from, to } => format!("{} sends its log and a stamp to {}", voter(from), voter(to)),
        GroupAction::Hear { from, at } => format!("{} hears {}, and its echo leaves", voter(at), voter(from)),
        GroupAction::Echo { at, from } => format!("{} takes {}'s echo", voter(at), voter(from)),
        GroupAction::Elect { leader, voters: set } => {
            format!("{} campaigns with the vote of {}, and leads", voter(leader), voters(set))
        }
        GroupAction::HandOver { from, to } => {
            format!("{} orders {} to take over the leadership", voter(from), voter(to))
        }
        GroupAction::Succeed { voters: set } => {
            format!("the order arrives: the successor campaigns with the vote of {}, and leads", voters(set))
        }
        GroupAction::Write { at } => format!("{} takes a write", voter(at)),
        GroupAction::Propose { at } => format!("{} appends the next change of the membership", voter(at)),
        GroupAction::Apply { at } => format!("{} applies a change of the membership", voter(at)),
        GroupAction::Restart { at, is_flushed: true } => format!("{} restarts, with what it had applied", voter(at)),
        GroupAction::Restart { at, is_flushed: false } => format!("{} restarts, and has what it began with", voter(at)),
        GroupAction::ComeBackEmpty { at } => format!("{} comes back empty under its old id", voter(at)),
        GroupAction::ReadWaits { at } => format!("a read arrives at {} and waits", voter(at)),
        GroupAction::Arrive { at } => format!("a read arrives at {}", voter(at)),
        GroupAction::Join => "another read joins the question that has left".to_owned(),
        GroupAction::Ask => "its question leaves".to_owned(),
        GroupAction::Question { at } => format!("the question arrives at {}", voter(at)),
        GroupAction::Answer => "the answer arrives, and the read is served".to_owned(),
    }
}

fn sum_up_group(model: &Group, state: &GroupState) -> String {
    let sum_up = |at: usize| {
        let replica = &state.replicas[at];
        let config = state.config(model, at);
        let mut text =
            format!("{}: term {}, log {}, commit {}", voter(at), replica.term, replica.log.last(), replica.commit);
        let members = match config.outgoing {
            0 => format!("voters {}", voters(config.voters)),
            outgoing => format!("voters {}, until now {}", voters(config.voters), voters(outgoing)),
        };
        let marks = [
            (model.course.configs.len() > 1 && replica.log.last() > 0, members),
            (replica.leads, "leads".to_owned()),
            (state.has_lease(model, at), "has a lease".to_owned()),
            (state.is_bound(model, at), "refuses".to_owned()),
        ];
        for (_, mark) in marks.into_iter().filter(|(is_so, _)| *is_so) {
            text.push_str(", ");
            text.push_str(&mark);
        }
        text
    };
    let mut parts: Vec<_> = (0..model.course.replicas).map(sum_up).collect();
    let waiting = state.read.map(|read| match read.stage {
        Stage::Answered { index } => format!("the read has the answer {index}, {} is due", read.floor),
        _ => format!("{} is due to the read", read.floor),
    });
    parts.extend(waiting);
    parts.extend(state.stale.map(|stale| told(stale.served, stale.floor)));
    parts.extend(state.is_forked.then(|| "BROKEN: different entries are committed".to_owned()));
    let holders: Vec<_> = (0..model.course.replicas).filter(|&at| state.has_lease(model, at)).collect();
    if holders.len() > 1 {
        parts.push("BROKEN: two leases at one time".to_owned());
    } else if let Some(holder) = holders.into_iter().find(|&at| state.replicas[at].commit < state.known()) {
        parts.push(told(state.replicas[holder].commit, state.known()));
    }
    parts.join(" | ")
}

fn tell_quorum(action: QuorumAction) -> String {
    match action {
        QuorumAction::Send { from, to, count } => {
            format!("{} sends its log up to {count} to {}", voter(from), voter(to))
        }
        QuorumAction::Hear { from, at } => format!("{} hears {}", voter(at), voter(from)),
        QuorumAction::Sync { at } => format!("the log of {} becomes durable", voter(at)),
        QuorumAction::Commit { at, index } => format!("{} learns that {index} is committed", voter(at)),
        QuorumAction::Elect { leader, voters: set } => {
            format!("{} campaigns with the vote of {}, and leads", voter(leader), voters(set))
        }
        QuorumAction::Write { at } => format!("{} takes a write of the key", voter(at)),
        QuorumAction::Propose { at } => format!("{} appends the next change of the membership", voter(at)),
        QuorumAction::Apply { at } => format!("{} applies a change of the membership", voter(at)),
        QuorumAction::Cut { at } => format!("{} cuts its log", voter(at)),
        QuorumAction::Restart { at, is_flushed: true } => format!("{} restarts, with what it had applied", voter(at)),
        QuorumAction::Restart { at, is_flushed: false } => {
            format!("{} restarts, and its storage has what it began with", voter(at))
        }
        QuorumAction::Arrive { at } => format!("a read arrives at {}, which asks", voter(at)),
        QuorumAction::Join => "another read takes over the question that has left".to_owned(),
        QuorumAction::Answer { at, is_by_disk: false } => format!("{} answers", voter(at)),
        QuorumAction::Answer { at, is_by_disk: true } => format!("{} answers by what is durable", voter(at)),
        QuorumAction::AnswerForOther { at } => {
            format!("{} is lost, and a new replica at its node answers for it", voter(at))
        }
    }
}

fn sum_up_quorum(model: &Quorum, state: &QuorumState) -> String {
    let sum_up = |at: usize| {
        let replica = &state.replicas[at];
        let config = state.config(model, at);
        let (name, last) = (voter(at), replica.log.last());
        let mut text = format!(
            "{name}: term {}, log {last}, commit {}, applied {}",
            replica.term,
            replica.commit,
            state.applied(at)
        );
        let members = match config.outgoing {
            0 => format!("voters {}", voters(config.voters)),
            outgoing => format!("voters {}, until now {}", voters(config.voters), voters(outgoing)),
        };
        let marks = [
            (replica.log.key() > 0, format!("key written at {}", replica.log.key())),
            (state.durable(at) < last, format!("durable {}", state.durable(at))),
            (replica.cut > 0, format!("cut {}", replica.cut)),
            (model.course.configs.len() > 1 && last > 0, members),
            (replica.leads, "leads".to_owned()),
        ];
        for (_, mark) in marks.into_iter().filter(|(is_so, _)| *is_so) {
            text.push_str(", ");
            text.push_str(&mark);
        }
        text
    };
    let mut parts: Vec<_> = (0..model.course.replicas).map(sum_up).collect();
    if let Some(read) = state.read {
        parts.push(format!("{} asked after {}, key of {} is due", voter(read.asker.into()), read.after, read.floor));
        let answers = read.answers.iter().enumerate().filter_map(|(at, answer)| Some((at, (*answer)?)));
        parts.extend(answers.map(|(at, touched)| match touched {
            0 => format!("{} says not touched", voter(at)),
            _ => format!("{} says touched at {touched}", voter(at)),
        }));
    }
    parts.extend(state.stale(model).map(|stale| told(stale.served, stale.floor)));
    parts.extend(state.is_forked.then(|| "BROKEN: different entries are committed".to_owned()));
    parts.extend(state.blind_leader(model).map(|at| told(state.replicas[at].commit, state.committed.last())));
    parts.join(" | ")
}

fn told(served: u8, floor: u8) -> String {
    format!("BROKEN: index {served} was served, {floor} was due")
}

/// The names of the replicas by the places that they have in [`IndexState::applied`].
const REPLICAS: [&str; 3] = ["leader's place", "follower", "learner"];

fn tell_index(model: &Index, action: IndexAction) -> String {
    let asker = |asker: usize| REPLICAS[asker + 1];
    match action {
        IndexAction::Tick { units } => {
            let units: Vec<_> = (0..model.askers).map(|it| format!("the {}'s by {}", asker(it), units[it])).collect();
            format!("time passes, and the clocks go on: {}", units.join(", "))
        }
        IndexAction::Commit => "one more write is committed".to_owned(),
        IndexAction::Apply { at } => format!("the {} applies one more write, and may show it", REPLICAS[at]),
        IndexAction::Arrive { asker: at } => format!("a read for the latest arrives at the {}", asker(at)),
        IndexAction::Ask { asker: at } => format!("a question of the {} leaves", asker(at)),
        IndexAction::Answer { asker: at, question, index } => {
            format!("the {}'s question {} is answered with index {index}", asker(at), question + 1)
        }
        IndexAction::Take { asker: at, question } => {
            format!("the {} takes the answer to its question {}", asker(at), question + 1)
        }
        IndexAction::GiveUp { asker: at, question } => {
            format!("the {} gives its question {} up", asker(at), question + 1)
        }
        IndexAction::Serve { .. } => "a read for the latest is served where it waited".to_owned(),
        IndexAction::ReadAtLeader { index } => {
            format!("a read for the latest is served by the leader, where {index} is committed")
        }
        IndexAction::ReadWithin { asker: at } => format!("a bounded read is served by the {}", asker(at)),
        IndexAction::ReadInSession { at } => format!("the session reads at the {}", REPLICAS[at]),
    }
}

fn sum_up_index(model: &Index, state: &IndexState) -> String {
    let mut parts = vec![format!("committed {}", state.committed)];
    parts.extend((0..=model.askers).map(|at| format!("{} applied {}", REPLICAS[at], state.applied[at])));
    for asker in 0..model.askers {
        for (place, question) in state.questions(asker) {
            let message = match question.message {
                Message::Asked => "on its way".to_owned(),
                Message::Answered { index } => format!("answered with {index}"),
                Message::Gone => "answered".to_owned(),
            };
            let awaited =
                if question.is_open || question.message == Message::Gone { "" } else { ", no longer awaited" };
            parts.push(format!("{}'s question {}: {message}{awaited}", REPLICAS[asker + 1], place + 1));
        }
    }
    if let Some(bound) = model.bound {
        let known = &state.known_for[..usize::from(state.known())];
        parts.push(format!("writes known for {known:?} steps, bound {bound}"));
        let proof = state.askers[0].proof;
        if proof <= model.proof_max() {
            parts.push(format!("follower's proof is {proof} of {} old", model.proof_max()));
        }
    }
    if model.has_session {
        parts.push(format!("session saw {}", state.session));
    }
    parts.extend(state.stale.map(|stale| told(stale.served, stale.floor)));
    parts.join(" | ")
}
