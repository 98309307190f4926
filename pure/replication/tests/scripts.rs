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
//! campaign 2           campaign if it may                       status / lease 1 / progress 1 / membership 1
//! mutate skip_..       switch a safety rule off                 rate 2 5000   the clock of 2 is 5,000 ppm fast
//! fill 1 50            fifty writes at node 1                   truncate 1    drop what is in storage from the log
//! counts               fetches and snapshots so far
//! slow-reads 200       a read from storage takes this long, ms  slow-disk 50  a write to the log does
//! ```
//!
//! Of the known pitfalls of linearizable reads these do not apply here, or have no script:
//! - C6 fresh context per attempt: no read travels; a leader's clock confirms reads, and tickets are never reused.
//! - C8 batching against a write: a read never joins another one's index, `c04_no_folding` covers it.
//! - C14, C15, C16 locks and caches: there are none in this crate.
//! - C17 malformed requests: `message_tests.rs` and `forged_messages_do_not_panic`.
//! - C18 reads before the replica is ready: only a leader takes reads, and `c02_fresh_leader` shows that it waits.
//! - C19 slow logging: this crate logs nothing. C20 reads at followers: not part of this crate yet.
#![allow(clippy::disallowed_methods, reason = "the scripts are files beside the test")]

#[allow(unreachable_pub, dead_code, reason = "shared by several test programs")]
mod sim;

use hedgerow_replication::{Membership, MembershipChange, Mutations, ReadStart, Settings};
use hedgerow_types::ReplicaId;
use sim::{MILLI, Weather, World};
use std::fmt::Write as _;
use std::path::Path;

fn settings() -> Settings {
    Settings { cache_size_max: 16_384, ..Settings::default() }
}

struct Script {
    world: World,
    /// Reads begun by the script and not yet reported.
    reads_before: (u64, u64),
}

impl Script {
    fn new() -> Self {
        let world = World::new(7, settings(), Weather::fair(), Mutations::default());
        Self { world, reads_before: (0, 0) }
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
            "rate" => world.nodes.get_mut(&number(1)).expect("a node").set_rate(number(2) as i64, world.time),
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
            "gather" => world.gather(number(1), number(2) * MILLI),
            "pause" => world.pause(number(1), number(2) * MILLI),
            "campaign" => self.campaign(number(1)),
            "write" => out = self.write(number(1)),
            "read" => out = self.read(number(1)),
            "hold-apply" => world.nodes.get_mut(&number(1)).expect("a node").is_apply_stopped = true,
            "release-apply" => world.release_apply(number(1)),
            "slow-disk" => world.weather.persist_us = (number(1) * 1_000, 0),
            "slow-reads" => world.read_us = (number(1) * 1_000, 0),
            "fill" => {
                for _ in 0..number(2) {
                    let _ = world.write(number(1));
                    world.run(MILLI);
                }
            }
            "truncate" => world.truncate(number(1)),
            "transfer" => out = self.transfer(number(1), number(2)),
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
        let now = (check.reads, check.refused);
        let (served, refused) = (now.0 - self.reads_before.0, now.1 - self.reads_before.1);
        self.reads_before = now;
        let mut out = String::new();
        if served > 0 {
            let _ = write!(out, "{served} read(s) served, the last with {}", check.read_last);
        }
        if refused > 0 {
            let _ = write!(out, "{}{refused} read(s) refused", if out.is_empty() { "" } else { "; " });
        }
        out
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

    fn read(&mut self, id: u64) -> String {
        let start = self.world.read(id);
        self.world.run(0);
        match start {
            None => "waits for the node".into(),
            Some(ReadStart::Serve(_)) => "at once".into(),
            Some(ReadStart::Wait) => "waits".into(),
            Some(ReadStart::NotLeader { leader }) => format!("not the leader, that is {:?}", leader.map(|id| id.0)),
            Some(ReadStart::NotReady(why)) => why.into(),
            Some(ReadStart::Lagging(lag)) => lag.to_string(),
        }
    }

    fn campaign(&mut self, id: u64) {
        let now = self.world.local(id);
        if let Some(group) = self.world.nodes.get_mut(&id).and_then(|node| node.group.as_mut()) {
            group.campaign(now);
        }
        self.world.poll(id);
    }

    fn transfer(&mut self, from: u64, to: u64) -> String {
        let now = self.world.local(from);
        let group = self.world.nodes.get_mut(&from).and_then(|node| node.group.as_mut()).expect("a running node");
        let result = group.transfer_leader(ReplicaId(to), now);
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).expect("the script");
    let now = replay(&text);
    if std::env::var("UPDATE").is_ok() {
        return std::fs::write(&path, &now).expect("the script can be written");
    }
    assert_eq!(text, now, "{name}: run with UPDATE=1 to rewrite it");
}

/// Runs the script with a safety rule switched off: the world must notice.
fn check_mutated(name: &str, field: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(format!("{name}.txt"));
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
    c05_notices: c05_no_sharing_across_roles without keep_reads_across_terms,
    c09_notices: c09_suspect_lease without lease_ignores_transfer,
    c11_notices: c11_pause_past_lease without lease_never_ends,
    c12_notices: c12_lease_restart without skip_restart_fence,
    c13_notices: c13_minority_leader without skip_quorum_check,
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
    c02_fresh_leader,
    c03_transfer_commit_index,
    c04_no_folding,
    c05_no_sharing_across_roles,
    c07_leader_change_first,
    c09_suspect_lease,
    c10_check_around_read,
    c11_pause_past_lease,
    c12_lease_restart,
    c13_minority_leader,
    first_commit_between_reads,
    lease_life,
    membership,
    snapshot_and_fetch,
    single_voter,
}
