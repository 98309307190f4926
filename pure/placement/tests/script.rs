//! Runs the scripts in `tests/scripts`: commands on a catalogue and what they answer, as data.
//!
//! A line that starts with `>` is a command; the lines below it, up to the next command, empty line or comment (`#`), are
//! its answer. `REWRITE=1 cargo test -p hedgerow-placement --test script` writes the answers as they are now.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "the scripts are files, and rewriting them is asked for by a variable")]

use hedgerow_placement::{Catalogue, Dropped, Node, Partition, Presence, ReplicaRole, TableKind, TableSpec};
use hedgerow_types::{GroupId, Incarnation, NodeId, ReplicaId};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

#[test]
fn scripts_answer_as_written() {
    let dir = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/scripts");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).expect("the scripts are there") {
        let path = entry.expect("readable").path();
        let written = std::fs::read_to_string(&path).expect("readable");
        let now = run(&written);
        if std::env::var_os("REWRITE").is_some() {
            std::fs::write(&path, &now).expect("writable");
        } else {
            assert_eq!(now, written, "{}", path.display());
        }
        count += 1;
    }
    assert!(count > 0);
}

fn run(script: &str) -> String {
    let mut state = State { catalogue: None, alive: BTreeSet::new() };
    let mut out = String::new();
    let mut is_answer = false;
    for line in script.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            writeln!(out, "{line}").unwrap();
            let words: Vec<&str> = command.split_whitespace().collect();
            let answer = state.run(&words).unwrap_or_else(|error| format!("error: {error}"));
            answer.lines().for_each(|line| writeln!(out, "{line}").unwrap());
            is_answer = true;
            if let Some(catalogue) = &state.catalogue {
                assert_eq!(catalogue.check(), Ok(()), "after {command}");
                assert_eq!(Catalogue::from_rows(&catalogue.rows()).as_ref(), Ok(catalogue), "after {command}");
            }
        } else if line.is_empty() || line.starts_with('#') {
            writeln!(out, "{line}").unwrap();
            is_answer = false;
        } else {
            assert!(is_answer, "not a command: {line}");
        }
    }
    out
}

struct State {
    catalogue: Option<Catalogue>,
    alive: BTreeSet<NodeId>,
}

impl State {
    fn run(&mut self, words: &[&str]) -> Result<String, String> {
        if let ["bootstrap", nodes, meta @ ..] = words {
            let unregistered = |id: u16| (NodeId(id), Node::new(format!("n{id}:34601"), Node::UNREGISTERED));
            let nodes: Vec<_> = (1..=nodes.parse().unwrap()).map(unregistered).collect();
            let meta: Vec<NodeId> = meta.iter().map(|word| node(word)).collect();
            self.catalogue = Some(Catalogue::bootstrap(7, &nodes, &meta).map_err(|error| error.to_string())?);
            return Ok(String::new());
        }
        let catalogue = self.catalogue.as_mut().expect("bootstrap comes first");
        let changed = |is_changed| if is_changed { "changed".to_owned() } else { "unchanged".to_owned() };
        let done = match words {
            ["register", id, incarnation, rest @ ..] => {
                let mut registered = Node::new(format!("{id}:34601"), Incarnation(incarnation.parse().unwrap()));
                for word in rest {
                    match word.split_once('=').expect("label=value or address=...") {
                        ("address", address) => registered.address = address.to_owned(),
                        (label, value) => _ = registered.labels.insert(label.to_owned(), value.to_owned()),
                    }
                }
                self.alive.insert(node(id));
                catalogue.register_node(node(id), registered).map(changed)
            }
            ["dead", id] => {
                self.alive.remove(&node(id));
                Ok(String::new())
            }
            ["create", name, kind, partitions, replicas, rest @ ..] => {
                let mut spec = TableSpec::hash(*name, partitions.parse().unwrap(), replicas.parse().unwrap());
                spec.kind = if *kind == "hash" { TableKind::Hash } else { TableKind::Ordered };
                for word in rest {
                    match word.split_once('=') {
                        None => spec.if_not_exists = *word == "if_not_exists",
                        Some(("split", key)) => spec.split_keys.push(key.as_bytes().to_vec()),
                        Some((key, value)) => _ = spec.options.insert(key.to_owned(), value.to_owned()),
                    }
                }
                catalogue.create_table(spec, &self.alive, 1_000).map(|id| format!("table {}", id.0))
            }
            ["created", table, led] => {
                let led: u32 = led.parse().unwrap();
                let table = hedgerow_types::TableId(table.parse().unwrap());
                Ok(changed(catalogue.mark_created(table, |partition| partition < led)))
            }
            ["drop", name, rest @ ..] => {
                catalogue.drop_table(name, !rest.is_empty()).map(|groups| format!("{groups:?}"))
            }
            ["keep", name, at, until, rest @ ..] => {
                let (at_unix_seconds, until_unix_seconds) = (at.parse().unwrap(), until.parse().unwrap());
                let dropped = Dropped { at_unix_seconds, until_unix_seconds };
                catalogue.drop_and_keep(name, !rest.is_empty(), dropped).map(|id| format!("{id:?}"))
            }
            ["recall", id, name @ ..] => {
                let id = hedgerow_types::TableId(id.parse().unwrap());
                catalogue.recall_table(id, name.first().copied()).map(|()| "recalled".to_owned())
            }
            ["remove_overdue", at] => Ok(format!("{:?}", catalogue.remove_overdue(at.parse().unwrap()))),
            ["kept", of] => Ok(catalogue.is_kept(group(of)).to_string()),
            ["set", name, options @ ..] => {
                catalogue.set_options(name, options.iter().map(|word| word.split_once('=').unwrap())).map(changed)
            }
            ["unset", name, keys @ ..] => catalogue.delete_options(name, keys.iter().copied()).map(changed),
            ["clear", name, prefix @ ..] => catalogue.clear_options(name, prefix.first().unwrap_or(&"")).map(changed),
            ["arrange", gone @ ..] => {
                let presence = Presence {
                    alive: self.alive.clone(),
                    gone: gone.iter().map(|word| node(word)).collect(),
                    ..Presence::default()
                };
                let is_wanted = catalogue.wants_arranging(&presence);
                let is_changed = catalogue.arrange_learners(&presence);
                assert_eq!(is_wanted, is_changed);
                assert!(!catalogue.wants_arranging(&presence));
                Ok(changed(is_changed))
            }
            ["lost"] => Ok(format!("{:?}", catalogue.lost_replicas())),
            ["replace", of, lost] => catalogue.replace_lost(group(of), replica(lost)).map(|id| id.to_string()),
            ["withdraw", of, back] => catalogue.withdraw_replacement(group(of), replica(back)).map(changed),
            ["finish", of, new] => catalogue.finish_replacement(group(of), replica(new)).map(changed),
            ["group", of] => Ok(show(catalogue.group(group(of)).expect("it exists"))),
            ["range", of] => Ok(catalogue.range(group(of)).map_or("none".to_owned(), |range| format!("{range:?}"))),
            ["hosted", id] => Ok(catalogue.hosted_by(node(id)).map(|(it, at)| format!("{it} {}\n", at.id)).collect()),
            ["dropped", of] => Ok(catalogue.was_dropped(group(of)).to_string()),
            ["table", name] => {
                let table = catalogue.table_by_name(name).expect("it exists");
                let mut out = format!("{:?} {:?} {:?}\n", table.id, table.state, table.options);
                table.partitions.iter().for_each(|it| writeln!(out, "{}", show(it)).unwrap());
                Ok(out)
            }
            ["version"] => Ok(catalogue.version.to_string()),
            _ => panic!("no such command: {words:?}"),
        };
        done.map_err(|error| error.to_string())
    }
}

fn show(partition: &Partition) -> String {
    let Partition { version, preferred_leader, replicas, .. } = partition;
    let show = |role| match role {
        ReplicaRole::Voter => String::new(),
        ReplicaRole::Joining { replaces } => format!(" joining for {replaces:?}"),
        ReplicaRole::Learner => " learner".to_owned(),
    };
    let replicas: Vec<_> =
        replicas.iter().map(|it| format!("{}/{}{}", it.id, it.incarnation.0, show(it.role))).collect();
    format!("v{version} leader {preferred_leader}: {}", replicas.join(", "))
}

fn node(word: &str) -> NodeId {
    NodeId(word.strip_prefix('n').expect("n1, n2, ...").parse().unwrap())
}

fn group(word: &str) -> GroupId {
    if word == "meta" {
        return GroupId::META;
    }
    let (table, partition) = word.split_once('.').expect("table.partition");
    GroupId::new(table.parse().unwrap(), partition.parse().unwrap())
}

fn replica(word: &str) -> ReplicaId {
    let (counter, at) = word.strip_prefix('r').and_then(|word| word.split_once('@')).expect("r1@n1");
    ReplicaId::new(counter.parse().unwrap(), node(at))
}
