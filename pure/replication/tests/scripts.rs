//! Scripts: situations that broke other systems, each as commands and the output they must give (`tests/scripts/*.txt`).
//!
//! A line of a script is a command, and below it stands, indented by `= `, what it prints. With `UPDATE=1` in the environment
//! the files are rewritten with what the commands print now; read the difference before keeping it.
//!
//! ```text
//! cluster 3            three voters; 1 campaigns at once        isolate 1 / cut 1 2 / cut-from 1 2 / heal
//! run 50               milliseconds pass                        crash 2 / restart 2 / pause 1 500
//! gather 1 20          what comes to 1 in the next 20 ms is one batch of events
//! write 1 / read 1     a client's operation at node 1           hold-apply 1 / release-apply 1
//! transfer 1 2         hand the leadership over                 add 1 4 / promote 1 4 / remove 1 3 / replace 1 3 4
//! transfer-at-once 1 2 without waiting until 2 has the log      reluctant 1   1 leaves elections to the others
//! refuse-apply 1 / take-apply 1                                 the storage of 1 takes nothing, then everything
//! campaign 2           campaign if it may                       status / lease 1 / progress 1 / membership 1
//! mutate skip_..       switch a safety rule off                 rate 2 5000   the clock of 2 is 5,000 ppm fast
//! fill 1 50            fifty writes at node 1                   truncate 1    drop what is in storage from the log
//! counts               fetches and snapshots so far
//! slow-reads 200       a read from storage takes this long, ms  slow-disk 50  a write to the log does
//! slow-network 40      a message takes this long, ms            slow-asking 10  from a wish to ask to the question
//! read 2 latest / index 7 / within 50 / anything                what the read needs; within milliseconds
//! hold-answers / pass-answers / answers / release-answer 2      answers to questions are kept, shown, and delivered by hand
//! lose-questions / pass-questions                               questions are lost
//! write-other 1        a write of a key that no read looks at   hurry  reads that have to wait ask the voters' logs, too
//! lose-tails           questions to voters' logs are lost
//! tails                what voters' logs answered, and how many reads were served by them
//! lag 2                how far 2 thinks it is behind            mail  questions and answers so far
//! ```
//!
//! The scripts' names begin with the pitfall that they are about. These do not apply here, or are covered elsewhere:
//! - C11 the lease's clock, at questions: the same check as for reads at the leader, `c11_pause_past_lease`.
//! - C12 a restarted voter: `c12_lease_restart`; questions have no part in it.
//! - C15, C16 caches of indices, apply state and results: there are none; a proof ends with its process (`c10_restart_between`).
//! - C17 malformed requests: `replica_reads.rs`, `message_tests.rs` and `forged_messages_do_not_panic`.
//! - C19 slow logging: this crate logs nothing. C20 hedges and readers everywhere: `simulation.rs`, all needs at all replicas.
//! - S2 long transactions, S3 and S4 timestamps of the future or without limit: there are neither transactions nor timestamps.
//! - S6 flags lost by a fallback, S12 the client's minimum over stores: a read's need is one value, and the client's business.
//! - S7 merged and split groups: there is neither. S13 rows removed under a reader: the storage's business.
//! - S9 closed timestamps switched off: a replica asks when somebody reads, nothing is sent otherwise (`s05_one_refresh_at_a_time`).
//! - S10 a watchdog on lag: `Group::lag`, in every refusal. R8, R20: `replica_reads.rs`, `c18_before_the_first_snapshot`.
#![allow(clippy::disallowed_methods, reason = "the scripts are files beside the test")]

#[allow(unreachable_pub, dead_code, reason = "shared by several test programs")]
mod sim;

use hedgerow_replication::{
    Group, Membership, MembershipChange, Mutations, ProposeError, ReadIndexReply, ReadNeed, ReadStart, Settings,
};
use hedgerow_types::{Instant, ReplicaId};
use sim::{MILLI, Weather, World};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

type Transfer = fn(&mut Group, ReplicaId, Instant) -> Result<(), ProposeError>;

fn settings() -> Settings {
    // The scripts are written for a refusal of a second.
    let (tick, election_ticks) = (Duration::from_millis(100), 10);
    Settings { tick, election_ticks, cache_size_max: 16_384, ..Settings::default() }
}

struct Script {
    world: World,
    /// Reads begun by the script and not yet reported.
    reads_before: (u64, u64, u64),
}

impl Script {
    fn new() -> Self {
        let world = World::new(7, settings(), Weather::fair(), Mutations::default());
        Self { world, reads_before: (0, 0, 0) }
    }

    fn execute(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse::<u64>().ok()).expect("a number");
        let world = &mut self.world;
        let mut out = String::new();
        match words[0] {
            "cluster" => {
                let voters: Vec<u64> = (1..=number(1)).collect();
                voters.iter().for_each(|&id| world.add_node(id, &voters, 0, id == 1));
                world.run(300 * MILLI);
            }
            "rate" => {
                world.nodes.get_mut(&number(1)).expect("a node").set_rate(words[2].parse().expect("ppm"), world.time)
            }
            "run" => world.run(number(1) * MILLI),
            "isolate" => {
                let id = number(1);
                let others: Vec<u64> = world.nodes.keys().copied().filter(|&other| other != id).collect();
                others.into_iter().for_each(|other| world.blocked.extend([(id, other), (other, id)]));
            }
            "cut" => world.blocked.extend([(number(1), number(2)), (number(2), number(1))]),
            "cut-from" => world.blocked.extend([(number(1), number(2))]),
            "heal" => world.blocked.clear(),
            "crash" => world.crash(number(1)),
            "restart" => world.restart(number(1)),
            "tear" => world.tear(number(1)),
            "gather" => world.gather(number(1), number(2) * MILLI),
            "pause" => world.pause(number(1), number(2) * MILLI),
            "campaign" => self.campaign(number(1)),
            "write" => out = self.write(number(1)),
            "write-other" => assert!(world.write_to(number(1), false), "{} takes the write", number(1)),
            "hurry" => world.hurry = 100,
            "lose-tails" => world.post.loses_tail_questions = true,
            "tails" => {
                let [nowhere, touched, again] = world.post.tail_answers;
                let served = world.post.served_by_quorum;
                out = format!("{nowhere} nowhere, {touched} touched, {again} to be asked again; {served} served");
            }
            "propose" => assert!(world.write(number(1)), "{} takes the write", number(1)),
            "read" => out = self.read(number(1), need(&words[2..])),
            "hold-answers" => world.post.holds_answers = true,
            "pass-answers" => world.post.holds_answers = false,
            "answers" => out = self.held(),
            "release-answer" => out = world.release_answer(number(1) as usize - 1),
            "lose-questions" => world.post.loses_questions = true,
            "pass-questions" => world.post.loses_questions = false,
            "slow-asking" => world.post.ask_us = (number(1) * 1_000, 0),
            "slow-network" => world.weather.delay_us = (number(1) * 1_000, 0),
            "mail" => out = format!("{} questions, {} answers", world.post.questions, world.post.answers),
            "lag" => {
                let now = world.local(number(1));
                out = world.nodes[&number(1)].group.as_ref().expect("a running node").lag(now).to_string();
            }
            "hold-apply" => world.nodes.get_mut(&number(1)).expect("a node").is_apply_stopped = true,
            "release-apply" => world.release_apply(number(1)),
            "refuse-apply" => world.nodes.get_mut(&number(1)).expect("a node").refuses_apply = true,
            "take-apply" => world.nodes.get_mut(&number(1)).expect("a node").refuses_apply = false,
            "slow-disk" => world.weather.persist_us = (number(1) * 1_000, 0),
            "slow-reads" => world.read_us = (number(1) * 1_000, 0),
            "fill" => {
                for _ in 0..number(2) {
                    let _ = world.write(number(1));
                    world.run(MILLI);
                }
            }
            "truncate" => world.truncate(number(1)),
            "transfer" => out = self.transfer(number(1), number(2), Group::transfer_leader),
            "transfer-at-once" => out = self.transfer(number(1), number(2), Group::transfer_leader_at_once),
            "reluctant" => world
                .nodes
                .get_mut(&number(1))
                .and_then(|node| node.group.as_mut())
                .expect("a running node")
                .set_reluctant(true),
            "add" => {
                let new = number(2);
                if !world.nodes.contains_key(&new) {
                    world.add_node(new, &[], 0, false);
                }
                out = self.change(number(1), &[new], &[], &[]);
            }
            "promote" => out = self.change(number(1), &[], &[number(2)], &[]),
            "remove" => out = self.change(number(1), &[], &[], &[number(2)]),
            "replace" => out = self.change(number(1), &[], &[number(3)], &[number(2)]),
            "status" => out = self.status(),
            "lease" => {
                let now = world.local(number(1));
                let group = world.nodes[&number(1)].group.as_ref().expect("a running node");
                out = format!("lease {}", group.lease_holds(now));
            }
            "fence" => {
                let now = world.local(number(1));
                let group = world.nodes[&number(1)].group.as_ref().expect("a running node");
                out = format!("fenced {}", group.is_fenced(now));
            }
            "progress" => out = self.progress(number(1)),
            "membership" => {
                let group = world.nodes[&number(1)].group.as_ref().expect("a running node");
                out = describe(group.membership());
            }
            "counts" => {
                let counts = world.counts;
                out = format!("{} fetches, {} snapshots sent", counts.fetches, counts.snapshots);
            }
            "mutate" => world.mutate(mutation(words[1])),
            other => panic!("unknown command {other}"),
        }
        let done = self.reads_done();
        if !done.is_empty() {
            let _ = write!(out, "{}{done}", if out.is_empty() { "" } else { "; " });
        }
        if let Some(violation) = &self.world.check.violation {
            let _ = write!(out, "{}VIOLATION: {violation}", if out.is_empty() { "" } else { "; " });
        }
        out
    }

    fn reads_done(&mut self) -> String {
        let check = &self.world.check;
        let (now, before) = ((check.reads, check.refused, check.lagging), self.reads_before);
        let (served, refused, lagging) = (now.0 - before.0, now.1 - before.1, now.2 - before.2);
        self.reads_before = now;
        let mut parts = Vec::new();
        if served > 0 {
            let age = check.staleness_last.filter(|age| !age.is_zero());
            let age = age.map_or(String::new(), |age| format!(", at most {:.1} ms old", age.as_secs_f64() * 1e3));
            parts.push(format!("{served} read(s) served, the last with {}{age}", check.read_last));
        }
        if refused > 0 {
            parts.push(format!("{refused} read(s) refused"));
        }
        if lagging > 0 {
            parts.push(format!("{lagging} read(s) lagging: {}", check.lag_last));
        }
        parts.join("; ")
    }

    fn write(&mut self, id: u64) -> String {
        let before = self.world.check.writes;
        let is_taken = self.world.write(id);
        self.world.run(5 * MILLI);
        match (is_taken, self.world.check.writes > before) {
            (false, _) => "refused".into(),
            (true, false) => "unknown".into(),
            (true, true) => format!("acknowledged at {}", self.world.check.floor),
        }
    }

    /// The answers that are held, numbered from 1.
    fn held(&self) -> String {
        let line = |(i, (from, to, answer)): (usize, &(u64, u64, ReadIndexReply))| match answer.commit {
            Some(commit) => format!("{}: {from} to {to}, index {} of term {}", i + 1, commit.index, commit.term),
            None => format!("{}: {from} to {to}, not the leader", i + 1),
        };
        self.world.post.held.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
    }

    fn read(&mut self, id: u64, need: ReadNeed) -> String {
        let start = self.world.read(id, need);
        self.world.run(0);
        match start {
            None => "waits for the node".into(),
            Some(ReadStart::Serve(_)) => "at once".into(),
            Some(ReadStart::Wait) => "waits".into(),
            Some(ReadStart::NotLeader { leader }) => format!("not the leader, that is {:?}", leader.map(|id| id.0)),
            Some(ReadStart::NotReady(why)) => why.into(),
            Some(ReadStart::Lagging(_)) => "not served".into(),
        }
    }

    fn campaign(&mut self, id: u64) {
        let now = self.world.local(id);
        if let Some(group) = self.world.nodes.get_mut(&id).and_then(|node| node.group.as_mut()) {
            group.campaign(now);
        }
        self.world.poll(id);
    }

    fn transfer(&mut self, from: u64, to: u64, transfer: Transfer) -> String {
        let now = self.world.local(from);
        let group = self.world.nodes.get_mut(&from).and_then(|node| node.group.as_mut()).expect("a running node");
        let result = transfer(group, ReplicaId(to), now);
        self.world.poll(from);
        result.map_or_else(|error| error.to_string(), |()| "begun".into())
    }

    fn change(&mut self, at: u64, add: &[u64], promote: &[u64], remove: &[u64]) -> String {
        let ids = |list: &[u64]| list.iter().map(|&id| ReplicaId(id)).collect();
        let change = MembershipChange { add_learners: ids(add), promote: ids(promote), remove: ids(remove) };
        let now = self.world.local(at);
        let group = self.world.nodes.get_mut(&at).and_then(|node| node.group.as_mut()).expect("a running node");
        let result = group.propose_membership(&change, now);
        self.world.poll(at);
        result.map_or_else(|error| error.to_string(), |position| format!("at {}", position.index))
    }

    fn status(&self) -> String {
        let mut lines = Vec::new();
        for node in self.world.nodes.values() {
            let Some(group) = node.group.as_ref() else {
                lines.push(format!("{}: down", node.id));
                continue;
            };
            let leader = group.leader().map_or(0, |leader| leader.0);
            lines.push(format!(
                "{}: {:?} of {leader} in term {}, log {}..={}, commit {}, applied {}, register {}",
                node.id,
                group.role(),
                group.term(),
                group.first_index(),
                group.last_index(),
                group.commit(),
                group.applied(),
                node.machine.last_write,
            ));
        }
        lines.join("\n")
    }

    fn progress(&self, id: u64) -> String {
        let group = self.world.nodes[&id].group.as_ref().expect("a running node");
        let lines = group.progress().into_iter().map(|peer| {
            format!(
                "{}: matched {}, active {}, learner {}, snapshot {}",
                peer.replica.0, peer.matched, peer.is_active, peer.is_learner, peer.is_snapshotting
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// `latest` (if nothing is said), `index 7`, `within 50` (milliseconds) or `anything`.
fn need(words: &[&str]) -> ReadNeed {
    let number = || words[1].parse().expect("a number");
    match words.first() {
        None | Some(&"latest") => ReadNeed::Latest,
        Some(&"index") => ReadNeed::AtLeast(number()),
        Some(&"within") => ReadNeed::Within(Duration::from_millis(number())),
        Some(&"anything") => ReadNeed::Anything,
        Some(other) => panic!("unknown need {other}"),
    }
}

fn describe(membership: &Membership) -> String {
    let list = |ids: &[ReplicaId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
    format!(
        "voters {:?}, learners {:?}, outgoing {:?}, next learners {:?}",
        list(&membership.voters),
        list(&membership.learners),
        list(&membership.voters_outgoing),
        list(&membership.learners_next)
    )
}

fn mutation(name: &str) -> Mutations {
    let mut mutations = Mutations::default();
    *match name {
        "skip_restart_fence" => &mut mutations.skip_restart_fence,
        "skip_vote_fence" => &mut mutations.skip_vote_fence,
        "skip_apply_wait" => &mut mutations.skip_apply_wait,
        "lease_ignores_transfer" => &mut mutations.lease_ignores_transfer,
        "lease_never_ends" => &mut mutations.lease_never_ends,
        "skip_quorum_check" => &mut mutations.skip_quorum_check,
        "skip_own_term_commit" => &mut mutations.skip_own_term_commit,
        "keep_reads_across_terms" => &mut mutations.keep_reads_across_terms,
        "follower_skip_apply_wait" => &mut mutations.follower_skip_apply_wait,
        "join_sent_question" => &mut mutations.join_sent_question,
        "take_any_answer" => &mut mutations.take_any_answer,
        "answer_unconfirmed" => &mut mutations.answer_unconfirmed,
        "answer_before_own_commit" => &mut mutations.answer_before_own_commit,
        "prove_from_receipt" => &mut mutations.prove_from_receipt,
        "prove_before_apply" => &mut mutations.prove_before_apply,
        "prove_without_quorum" => &mut mutations.prove_without_quorum,
        "ignore_session_floor" => &mut mutations.ignore_session_floor,
        "ignore_clock_rate" => &mut mutations.ignore_clock_rate,
        "ignore_changes_in_tail" => &mut mutations.ignore_changes_in_tail,
        other => panic!("unknown mutation {other}"),
    } = true;
    mutations
}

/// Runs a script's commands and returns the text as it should be.
fn replay(text: &str) -> String {
    let mut script = Script::new();
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("= ")) {
        out.push_str(line);
        out.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        for result in script.execute(line).lines() {
            let _ = writeln!(out, "= {result}");
        }
    }
    out
}

fn check(name: &str) {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says it"))
        .join("tests/scripts")
        .join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).expect("the script");
    let now = replay(&text);
    if std::env::var("UPDATE").is_ok() {
        return std::fs::write(&path, &now).expect("the script can be written");
    }
    assert_eq!(text, now, "{name}: run with UPDATE=1 to rewrite it");
}

/// Runs the script with a safety rule switched off: the world must notice.
fn check_mutated(name: &str, field: &str) {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says it"))
        .join("tests/scripts")
        .join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).expect("the script");
    let (cluster, rest) = text.split_once("run 250\n").expect("a script that begins with a cluster and `run 250`");
    let now = replay(&format!("{cluster}mutate {field}\nrun 250\n{rest}"));
    assert!(now.contains("VIOLATION"), "{name} does not notice {field}:\n{now}");
}

macro_rules! mutated_scripts {
    ($($test:ident: $name:ident without $field:ident,)*) => {
        $(
            #[test]
            fn $test() {
                check_mutated(stringify!($name), stringify!($field));
            }
        )*
    };
}

mutated_scripts! {
    c01_notices: c01_apply_skew without skip_apply_wait,
    c02_notices: c02_fresh_leader without skip_own_term_commit,
    c01_follower_notices: c01_follower_apply without follower_skip_apply_wait,
    c02_question_notices: c02_question_to_fresh_leader without answer_before_own_commit,
    c06_notices: c06_fresh_question_per_attempt without take_any_answer,
    c08_notices: c08_no_joining_of_sent_questions without join_sent_question,
    c13_question_notices: c13_question_to_minority_leader without answer_unconfirmed,
    s01_notices: s01_proof_waits_for_apply without prove_before_apply,
    s01_question_notices: s01_proof_counts_from_the_question without prove_from_receipt,
    s11_notices: s11_bounded_read_at_the_leader without prove_without_quorum,
    s14_notices: s14_monotonic_session without ignore_session_floor,
    clock_rate_notices: clock_rate_at_the_bound without ignore_clock_rate,
    c05_notices: c05_no_sharing_across_roles without keep_reads_across_terms,
    c09_notices: c09_suspect_lease without lease_ignores_transfer,
    c11_notices: c11_pause_past_lease without lease_never_ends,
    c12_notices: c12_lease_restart without skip_restart_fence,
    c13_notices: c13_minority_leader without skip_quorum_check,
    quorum_change_notices: quorum_asks_anew_after_a_change without ignore_changes_in_tail,
}

macro_rules! scripts {
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
    };
}

scripts! {
    c01_apply_skew,
    c01_follower_apply,
    c02_fresh_leader,
    c02_question_to_fresh_leader,
    c03_question_after_transfer,
    c03_transfer_commit_index,
    c04_answers_out_of_order,
    c04_no_folding,
    c05_no_sharing_across_roles,
    c05_replica_reads_across_roles,
    c06_fresh_question_per_attempt,
    c07_answer_and_leader_change,
    c07_leader_change_first,
    c08_no_joining_of_sent_questions,
    c09_question_during_transfer,
    c09_suspect_lease,
    c10_check_around_read,
    c10_restart_between,
    c11_pause_past_lease,
    c12_lease_restart,
    c13_minority_leader,
    c13_question_to_minority_leader,
    c14_question_to_deposed_leader,
    c18_before_the_first_snapshot,
    quorum_asks_anew_after_a_change,
    quorum_for_a_hurried_read,
    quorum_waits_for_what_is_touched,
    quorum_without_the_leader,
    r15_a_late_leader_hands_over,
    r15_a_reluctant_replica_waits,
    r15_what_is_not_sent_is_waited_for,
    clock_rate_at_the_bound,
    d19_a_torn_write,
    commit_by_heartbeat,
    commit_carried_forward,
    first_commit_between_reads,
    d16_the_end_of_a_joint_membership_overtakes_no_proposal,
    lease_life,
    membership,
    n4_a_change_of_membership_that_waits_for_storage_is_made_once,
    n4_what_storage_refuses_waits_at_the_leader,
    s01_proof_counts_from_the_question,
    s01_proof_waits_for_apply,
    s05_one_refresh_at_a_time,
    s08_cut_off_follower,
    s08_unanswered_questions,
    s11_bounded_read_at_the_leader,
    s14_monotonic_session,
    snapshot_and_fetch,
    single_voter,
}
