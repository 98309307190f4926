//! Administrative calls: every node takes them; those that change the catalogue are passed on to the metadata leader.
//!
//! All of them have one inner form, a command and a JSON argument, whether they came as one of Pegasus' calls, as our own
//! `HedgerowAdmin`, or from another node.
//!
//! | command | argument | who runs it |
//! |---|---|---|
//! | `create_table` | `name`, `kind`, `partition_count`, `replica_count`, `options`, `if_not_exists`, `split_keys` (hex), `may_repeat` | metadata leader |
//! | `drop_table` | `name`, `if_exists`, `reserve_seconds` (absent = the setting, 0 = removed at once) | metadata leader |
//! | `recall_table` | `id`, `name` (absent = the one that it had) | metadata leader |
//! | `set_options`, `delete_options`, `clear_options` | `name` and `options`, `keys` or `prefix` | metadata leader |
//! | `prefer_leader` | `table`, `partition`, `node`: it leads whenever it can | metadata leader |
//! | `transfer` | `table`, `partition`, `to_node`: until the preferred leader takes it back | leader of the partition |
//! | `checksum_here` | `table` | every node that hosts it, for `checksum` |
//! | `status`, `describe`, `checksum` | `table` where one is meant | the node that was asked |
//! | `reads` | none: `{}` | the node that was asked: what reads it has served and refused, messages for them, its load |
//! | `throttle_here` | `table` | every node that hosts it, for `throttle_table` |
//! | `throttle_table` | `table` | the node that was asked: what the table's limit on extra attempts did at all nodes that are up |
//! | `throttle` | none: `{}` | the node that was asked: the tables' limits on extra attempts, what they did, and writes sent on |
//! | `grant`, `revoke` | `name` and `grants`; `revoke` without any takes all | metadata leader |
//! | `set_password` | `name`, `verifier`, `mask`, `is_new` | metadata leader |
//! | `remove_password` | `name` | metadata leader |
//! | `users` | none: `{}` | the node that was asked: who has a password |
//! | `tables` | none: `{}` | the node that was asked: those that the caller may know of |
//! | `rights` | none: `{}` | the node that was asked: who has been given what |
//! | `whoami` | none: `{}` | the node that was asked: who the caller is, and what it has been given |
//! | `fault` | [`hedgerow_env::fault::Command`] | the node that was asked, if it was started with faults allowed |

use crate::admin_client::{beginning, shortened};
use crate::catalogue_change::{Change, Meant};
use crate::comparing::Comparing;
use crate::config::{DROP_RESERVE_SECONDS_MAX, REPORT_INTERVAL, WAIT_MAX, creation_wait};
use crate::node::Node;
use crate::outbox::ConnectionId;
use crate::passed_on::{PassedOn, only_looks};
use crate::replica::Hosted;
use crate::requests::audit::Told;
use crate::requests::caller::Caller;
use crate::requests::reads::Reflected;
use crate::requests::throttle;
use crate::requests::users::Asking;
use crate::status::{Subject, Telling};
use hedgerow_env::Now;
use hedgerow_placement::{CatalogueError, Grant, Holder, Table, TableKind, TableSpec};
use hedgerow_scram::VerifierError;
use hedgerow_types::limit::PARTITION_COUNT_MAX;
use hedgerow_types::{GroupId, Instant, NodeId, Refusal, TableId};
use hedgerow_wire::message::{AdminCommandReply, CommandLineReply};
use hedgerow_wire::{ErrorName, Method, Reply};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use zeroize::Zeroizing;

/// Bytes that the argument of a creation may have: enough for 4,095 split keys of 250 bytes, in hexadecimal, and far below what fits
/// into a frame between nodes.
const CREATION_SIZE_MAX: usize = 2 << 20;
/// The same of any other change: enough for every option of a table, and read in some milliseconds however many they are.
const CHANGE_SIZE_MAX: usize = 256 << 10;
/// The same of a call that only looks: it names a table, and is said again and again.
const LOOK_SIZE_MAX: usize = 4 << 10;
/// The commands that change something, which the audit log tells of.
pub(crate) const CHANGES: [&str; 13] = [
    "create_table",
    "drop_table",
    "recall_table",
    "set_options",
    "delete_options",
    "clear_options",
    "prefer_leader",
    "transfer",
    "grant",
    "revoke",
    SET_PASSWORD,
    "remove_password",
    "fault",
];
/// The command whose argument holds what nobody else is to know.
pub(crate) const SET_PASSWORD: &str = "set_password";
/// Calls that may wait for other nodes, and how many of them may be such as only look: what changes something is not to wait for
/// whoever compares replicas all the time.
const CALLS_MAX: usize = 1_024;
const LOOKS_MAX: usize = CALLS_MAX / 2;

/// Who is to be told how an administrative call went.
#[derive(Debug)]
pub(crate) enum Asker {
    /// Nobody: the node asked itself.
    Nobody,
    /// A client of this node.
    Client {
        /// Its request.
        caller: Box<Caller>,
        /// What the audit log calls the command, if it tells of it.
        audited: Option<Told>,
    },
    /// Another node.
    Peer { node: NodeId, id: u64 },
    /// A call of this node that waits for several answers.
    Gather(u64),
}

impl Asker {
    /// A client of this node.
    pub(crate) fn client(caller: Caller) -> Self {
        Self::Client { caller: Box::new(caller), audited: None }
    }

    /// A client's connection; none of a client's for others.
    fn connection(&self) -> ConnectionId {
        self.client_connection().unwrap_or_default()
    }

    /// A client's connection.
    pub(crate) fn client_connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Client { caller, .. } => Some(caller.connection),
            Self::Nobody | Self::Peer { .. } | Self::Gather(_) => None,
        }
    }
}

/// Administrative calls that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct AdminCalls {
    last: u64,
    pub(crate) passed_on: PassedOn,
    gathering: BTreeMap<u64, Gathering>,
    pub(crate) comparing: Comparing,
    /// Callers who wait for the state to be written down.
    pub(crate) telling: Telling,
}

impl AdminCalls {
    /// Numbers begin at a random place, so that no answer to another life of the node is taken for one to this.
    pub(crate) fn new(random: u64) -> Self {
        Self { last: random >> 1, ..Self::default() }
    }

    /// Whether another call may wait for other nodes, where `most` do at most.
    fn room_for(&self, most: usize) -> Result<(), Refusal> {
        let waiting = self.passed_on.len() + self.gathering.len();
        if waiting < most {
            return Ok(());
        }
        Err(Refusal::Busy(format!("{waiting} administrative calls wait for other nodes")))
    }

    /// Whether a call still waits for answers.
    pub(crate) fn is_gathering(&self, call: u64) -> bool {
        self.gathering.contains_key(&call)
    }

    /// Numbers rise.
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// A call that waits for several answers; each appends to `parts`.
#[derive(Debug)]
struct Gathering {
    asker: Asker,
    waiting: usize,
    parts: Vec<Value>,
    errors: Vec<String>,
    deadline: Instant,
    /// Makes the answer of the parts.
    finish: fn(Vec<Value>) -> Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateTable {
    name: String,
    #[serde(default = "default_kind")]
    kind: TableKind,
    #[serde(default = "default_partition_count")]
    partition_count: u32,
    #[serde(default)]
    replica_count: Option<u32>,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default)]
    if_not_exists: bool,
    #[serde(default)]
    split_keys: Vec<String>,
    /// The caller sends the same creation to another node when it has not been answered for a while.
    #[serde(default)]
    may_repeat: bool,
}

fn default_kind() -> TableKind {
    TableKind::Hash
}

fn default_partition_count() -> u32 {
    8
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfTable {
    #[serde(alias = "table")]
    name: String,
    /// Which table of the name is meant. The node adds it that passes a change on.
    #[serde(default)]
    id: Option<u32>,
    #[serde(default)]
    if_exists: bool,
    #[serde(default)]
    reserve_seconds: Option<u64>,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default)]
    keys: Vec<String>,
    #[serde(default)]
    prefix: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecallTable {
    id: u32,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    table: String,
    partition: u32,
    to_node: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PreferLeader {
    table: String,
    /// As in [`OfTable`].
    #[serde(default)]
    id: Option<u32>,
    partition: u32,
    node: u16,
}

/// What is given to somebody, or taken.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Granted {
    name: String,
    #[serde(default)]
    grants: Vec<String>,
}

impl Granted {
    fn parsed(self) -> Result<(Holder, Vec<Grant>), Refusal> {
        let grants = self.grants.iter().map(|grant| grant.parse()).collect::<Result<_, CatalogueError>>()?;
        Ok((self.name.parse()?, grants))
    }

    fn grant(self) -> Result<Change, Refusal> {
        if self.grants.is_empty() {
            return Err(Refusal::Invalid("grant needs at least one right".into()));
        }
        self.parsed().map(|(to, grants)| Change::Grant { to, grants })
    }

    fn revoke(self) -> Result<Change, Refusal> {
        self.parsed().map(|(from, grants)| Change::Revoke { from, grants })
    }
}

/// Who is given a password. Only what it is checked by comes here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetPassword {
    name: String,
    verifier: Zeroizing<String>,
    mask: Zeroizing<String>,
    is_new: bool,
}

impl SetPassword {
    fn change(self) -> Result<Change, Refusal> {
        let Self { name, verifier, mask, is_new } = self;
        let (verifier, mask) = (verifier.parse(), mask.parse());
        let wrong = |what: &str, error: VerifierError| Refusal::Invalid(format!("the {what} is not allowed: {error}"));
        let verifier = verifier.map_err(|error| wrong("verifier", error))?;
        let mask = mask.map_err(|error| wrong("mask", error))?;
        Ok(Change::SetPassword { user: name.parse()?, verifier, mask, is_new })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemovePassword {
    name: String,
}

impl OfTable {
    fn meant(&self) -> Meant {
        Meant { name: self.name.clone(), id: self.id.map(TableId) }
    }
}

impl Node {
    /// Runs `command`, here or where it belongs, and answers `asker`.
    pub(crate) fn run_admin(&mut self, command: &str, argument: &str, mut asker: Asker, now: Now) {
        let most = match command {
            "create_table" => CREATION_SIZE_MAX,
            _ if only_looks(command) => LOOK_SIZE_MAX,
            _ => CHANGE_SIZE_MAX,
        };
        if argument.len() > most {
            let text = format!("the argument has {} bytes, {most} are allowed", argument.len());
            return self.answer_admin(asker, Err(Refusal::TooLarge(text)));
        }
        if let Asker::Client { caller, audited } = &mut asker {
            let connection = caller.connection;
            if let Some(refusal) =
                self.front.why_not_command(&self.view, &Asking::Here(connection), (command, argument), now)
            {
                return self.answer_admin(asker, Err(refusal));
            }
            if CHANGES.contains(&command) {
                match self.front.note_command(connection, (command, argument), now.instant) {
                    Ok(told) => *audited = told,
                    Err(refusal) => return self.answer_admin(asker, Err(refusal)),
                }
            }
        }
        let most = match command {
            // This node answers them itself.
            "status" | "describe" | "reads" | "duplications" | "slow" | "throttle" | "throttle_here" | "fault"
            | "tables" | "rights" | "users" | "whoami" => usize::MAX,
            _ if only_looks(command) => LOOKS_MAX,
            _ => CALLS_MAX,
        };
        if let Err(refusal) = self.admin.room_for(most) {
            return self.answer_admin(asker, Err(refusal));
        }
        let parsed = || parse::<OfTable>(argument);
        let change = match command {
            "create_table" => self.creation(argument),
            "drop_table" => parsed().and_then(|it| self.drop_of(it)),
            "recall_table" => {
                parse::<RecallTable>(argument).map(|it| Change::RecallTable { id: TableId(it.id), name: it.name })
            }
            "set_options" => parsed().map(|it| Change::SetOptions { of: it.meant(), options: it.options }),
            "delete_options" => parsed().map(|it| Change::DeleteOptions { of: it.meant(), keys: it.keys }),
            "clear_options" => parsed().map(|it| Change::ClearOptions { of: it.meant(), prefix: it.prefix }),
            "prefer_leader" => parse::<PreferLeader>(argument).map(|it| Change::PreferLeader {
                of: Meant { name: it.table, id: it.id.map(TableId) },
                partition: it.partition,
                node: NodeId(it.node),
            }),
            "grant" => parse::<Granted>(argument).and_then(Granted::grant),
            "revoke" => parse::<Granted>(argument).and_then(Granted::revoke),
            // What is malformed is not said again: it may be in another's place.
            SET_PASSWORD => parse::<SetPassword>(argument)
                .map_err(|_| {
                    Refusal::Invalid("the argument is not allowed: `name`, `verifier`, `mask` and `is_new` are".into())
                })
                .and_then(SetPassword::change),
            "remove_password" => parse::<RemovePassword>(argument)
                .and_then(|it| Ok(Change::RemovePassword { user: it.name.parse().map_err(Refusal::from)? })),
            "transfer" => return self.transfer(argument, asker, now),
            "checksum_here" => return self.checksum_here(argument, asker, now),
            "checksum" => return self.checksum(argument, asker, now),
            "fault" => return self.fault(argument, asker),
            "reads" => {
                let answer = parse::<Nothing>(argument).map(|Nothing {}| self.reads_told());
                return self.answer_admin(asker, answer);
            }
            "duplications" => {
                let answer = parse::<Nothing>(argument).map(|Nothing {}| self.duplications_told());
                return self.answer_admin(asker, answer);
            }
            "rights" => {
                let answer = parse::<Nothing>(argument).and_then(|Nothing {}| self.rights_told());
                return self.answer_admin(asker, answer);
            }
            "users" => {
                let answer = parse::<Nothing>(argument).and_then(|Nothing {}| self.users_told());
                return self.answer_admin(asker, answer);
            }
            "tables" => {
                let answer = parse::<Nothing>(argument).and_then(|Nothing {}| self.tables_told(asker.connection()));
                return self.answer_admin(asker, answer);
            }
            "whoami" => {
                let answer = parse::<Nothing>(argument);
                let answer = answer.map(|Nothing {}| self.front.who_told(&self.view, asker.connection()));
                return self.answer_admin(asker, answer);
            }
            "slow" => {
                let answer = parse::<Nothing>(argument).map(|Nothing {}| self.slow_status());
                return self.answer_admin(asker, answer);
            }
            "throttle_table" => return self.throttle_table(argument, asker, now),
            "throttle_here" => {
                let answer = self
                    .table_named(argument)
                    .map(|table| throttle::told_of(&self.shards.requests(), &self.view, self.config.node, table));
                return self.answer_admin(asker, answer);
            }
            "throttle" => {
                let answer = parse::<Nothing>(argument)
                    .map(|Nothing {}| throttle::told(&self.shards.requests(), &self.view, self.config.node));
                return self.answer_admin(asker, answer);
            }
            "status" | "describe" => {
                return match self.subject_of(command, argument) {
                    Err(Refusal::NoTable) => self.answer_unknown_table((command, argument), asker, now, WAIT_MAX),
                    Err(refusal) => self.answer_admin(asker, Err(refusal)),
                    Ok(subject) => self.tell_state(subject, asker, now),
                };
            }
            _ => Err(Refusal::Invalid(format!(
                "there is no command {:?}; there are create_table, drop_table, recall_table, set_options, \
                 delete_options, clear_options, prefer_leader, transfer, status, tables, describe, checksum, reads, duplications, slow, throttle, \
                 throttle_table, grant, revoke, rights, set_password, remove_password, users, whoami and fault",
                crate::admin_client::beginning(command)
            ))),
        };
        match change {
            Err(refusal) => self.answer_admin(asker, Err(refusal)),
            Ok(change) if self.leads_metadata() => self.change(change, asker, now),
            Ok(change) => match self.leader_of(GroupId::META) {
                Some((_, leader)) if leader.node() != self.config.node => {
                    let wait = match &change {
                        Change::CreateTable { spec, .. } => {
                            creation_wait(spec.partition_count.min(PARTITION_COUNT_MAX))
                        }
                        _ => WAIT_MAX,
                    };
                    let argument = self.naming_the_table(&change, argument);
                    self.pass_on(leader.node(), (command, &argument), asker, now, wait);
                }
                Some(_) | None => {
                    let text = "the metadata has no leader at the moment";
                    self.answer_admin(asker, Err(Refusal::NotReady(text.into())));
                }
            },
        }
    }

    /// The argument of a call that is passed on, with the number of the table that it is meant for, as far as this node knows.
    fn naming_the_table<'a>(&self, change: &Change, argument: &'a str) -> Cow<'a, str> {
        let of = match change {
            Change::DropTable { of, .. }
            | Change::SetOptions { of, .. }
            | Change::DeleteOptions { of, .. }
            | Change::ClearOptions { of, .. }
            | Change::PreferLeader { of, .. } => of,
            _ => return argument.into(),
        };
        let table = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.table_by_name(&of.name));
        let named = table.filter(|_| of.id.is_none()).and_then(|table| {
            let mut named: Map<String, Value> = serde_json::from_str(argument).ok()?;
            named.insert("id".to_owned(), json!(table.id.0));
            serde_json::to_string(&named).ok()
        });
        named.map_or(argument.into(), Cow::Owned)
    }

    /// What is to be told to whoever asks for `status` or `describe`.
    fn subject_of(&self, command: &str, argument: &str) -> Result<Subject, Refusal> {
        let catalogue = self.view.catalogue.as_ref().ok_or_else(|| self.view.no_catalogue())?;
        let argument: Value = serde_json::from_str(argument).unwrap_or(Value::Null);
        let name = argument.get("table").or(argument.get("name")).and_then(Value::as_str);
        let table = name.map(|name| catalogue.table_by_name(name).ok_or(Refusal::NoTable)).transpose()?;
        match (command, table.map(|table| table.id)) {
            ("describe", None) => Err(Refusal::Invalid("describe needs the name of a table".into())),
            ("describe", Some(table)) => Ok(Subject::Table(table)),
            (_, table) => Ok(Subject::Cluster(table)),
        }
    }

    fn reads_told(&self) -> Value {
        let waiting = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) => replica.reads.len(),
            Hosted::Starting { .. } | Hosted::Lost { .. } => 0,
        };
        let mut told = self.shards.told();
        self.front.add_told(&mut told);
        told["node"] = json!(self.config.node.0);
        told["duplication"] = self.duplication_counters();
        told["waiting"] = json!(self.shards.each_hosted().map(waiting).sum::<usize>());
        told
    }

    /// Who has been given what, by the catalogue that this node acts on.
    fn rights_told(&self) -> Result<Value, Refusal> {
        let catalogue = self.view.catalogue.as_ref().ok_or_else(|| self.view.no_catalogue())?;
        let of_holder = |(holder, grants): (&Holder, &BTreeSet<Grant>)| {
            let grants: Vec<String> = grants.iter().map(Grant::to_string).collect();
            json!({ "name": holder.name(), "is_role": holder.is_role(), "grants": grants })
        };
        Ok(json!({ "rights": catalogue.rights.iter().map(of_holder).collect::<Vec<_>>() }))
    }

    /// Who has a password, by the catalogue that this node acts on.
    fn users_told(&self) -> Result<Value, Refusal> {
        let catalogue = self.view.catalogue.as_ref().ok_or_else(|| self.view.no_catalogue())?;
        Ok(json!({ "users": catalogue.passwords.users().map(Holder::name).collect::<Vec<_>>() }))
    }

    fn creation(&self, argument: &str) -> Result<Change, Refusal> {
        let create: CreateTable = parse(argument)?;
        let node_count = self.config.peers.len() as u32;
        let spec = TableSpec {
            name: create.name,
            kind: create.kind,
            partition_count: create.partition_count,
            replica_count: create.replica_count.unwrap_or(node_count.min(3)),
            options: create.options,
            if_not_exists: create.if_not_exists,
            split_keys: create.split_keys.iter().map(|key| from_hex(key)).collect::<Result<_, _>>()?,
        };
        Ok(Change::CreateTable { spec, may_repeat: create.may_repeat })
    }

    fn drop_of(&self, argument: OfTable) -> Result<Change, Refusal> {
        let (of, if_exists) = (argument.meant(), argument.if_exists);
        let reserve_seconds = argument.reserve_seconds.unwrap_or(self.config.drop_reserve_seconds);
        if reserve_seconds > DROP_RESERVE_SECONDS_MAX {
            let text = format!("a dropped table is kept for at most {DROP_RESERVE_SECONDS_MAX} seconds (ten years)");
            return Err(Refusal::Invalid(text));
        }
        Ok(Change::DropTable { of, if_exists, reserve_seconds })
    }

    fn transfer(&mut self, argument: &str, asker: Asker, now: Now) {
        let answer = parse::<Transfer>(argument).and_then(|it| {
            let group = if it.table.is_empty() {
                GroupId::META
            } else {
                let catalogue = self.view.catalogue.as_ref().ok_or(Refusal::NoTable)?;
                let table = catalogue.table_by_name(&it.table).ok_or(Refusal::NoTable)?;
                GroupId { table: table.id, partition: it.partition }
            };
            let partition = self.view.catalogue.as_ref().and_then(|catalogue| catalogue.group(group));
            let partition = partition.ok_or_else(|| Refusal::Invalid("there is no such partition".into()))?;
            let to = partition.voters().find(|replica| replica.node().0 == it.to_node);
            let to = to.ok_or_else(|| Refusal::Invalid(format!("node {} has no voting replica of it", it.to_node)))?;
            let (_, leader) =
                self.leader_of(group).ok_or_else(|| Refusal::NotReady("the partition has no leader".into()))?;
            Ok((group, to, leader.node()))
        });
        let (group, to, leader) = match answer {
            Ok(parts) => parts,
            Err(refusal) => return self.answer_admin(asker, Err(refusal)),
        };
        if leader != self.config.node {
            return match asker {
                // Two nodes that each take the other for the leader would play ping-pong with it.
                Asker::Peer { .. } => self.answer_admin(asker, Err(Refusal::NotLeader { leader: Some(leader) })),
                Asker::Nobody | Asker::Client { .. } | Asker::Gather(_) => {
                    self.pass_on(leader, ("transfer", argument), asker, now, WAIT_MAX);
                }
            };
        }
        let Some(replica) = self.shards.running(group) else {
            return self.answer_admin(asker, Err(Refusal::NotHosted));
        };
        let result = replica.group.transfer_leader(to, now.instant);
        self.shards.mark_dirty(group);
        let answer = result.map(|()| json!({ "to": to.to_string() }));
        self.answer_admin(asker, answer.map_err(|error| Refusal::NotReady(error.to_string())));
    }

    pub(crate) fn table_named(&self, argument: &str) -> Result<&Table, Refusal> {
        let name = parse::<OfTable>(argument)?.name;
        self.view.catalogue.as_ref().and_then(|catalogue| catalogue.table_by_name(&name)).ok_or(Refusal::NoTable)
    }

    /// Answers a call about a table that this node does not know. That there is none only the metadata's leader can tell; others may
    /// be late, or have lost their data.
    pub(crate) fn answer_unknown_table(&mut self, call: (&str, &str), asker: Asker, now: Now, wait: Duration) {
        if self.has_newest_catalogue(now) {
            return self.answer_admin(asker, Err(Refusal::NoTable));
        }
        let leader = self.leader_of(GroupId::META).map(|(_, leader)| leader.node());
        let leader = leader.filter(|leader| *leader != self.config.node && self.is_alive(*leader, now));
        match (leader, &asker) {
            (Some(leader), Asker::Nobody | Asker::Client { .. }) => match self.admin.room_for(LOOKS_MAX) {
                Ok(()) => self.pass_on(leader, call, asker, now, wait),
                Err(refusal) => self.answer_admin(asker, Err(refusal)),
            },
            (_, _) => {
                let text = format!("node {} does not know of the table yet", self.config.node.0);
                self.answer_admin(asker, Err(Refusal::NotReady(text)));
            }
        }
    }

    /// Asks every node that hosts the table, and is up, what the limit on extra attempts did there.
    fn throttle_table(&mut self, argument: &str, asker: Asker, now: Now) {
        let wait = REPORT_INTERVAL;
        let mut hosts = match self.table_named(argument).map(Table::hosts) {
            Ok(hosts) => hosts,
            Err(Refusal::NoTable) => {
                return self.answer_unknown_table(("throttle_table", argument), asker, now, wait);
            }
            Err(refusal) => return self.answer_admin(asker, Err(refusal)),
        };
        hosts.retain(|host| self.is_alive(*host, now));
        let call = self.gather(asker, hosts.len(), now.instant + wait, throttle::of_all_nodes);
        for host in hosts {
            if host == self.config.node {
                self.run_admin("throttle_here", argument, Asker::Gather(call), now);
            } else {
                self.pass_on(host, ("throttle_here", argument), Asker::Gather(call), now, wait);
            }
        }
    }

    pub(crate) fn gather(
        &mut self,
        asker: Asker,
        waiting: usize,
        deadline: Instant,
        finish: fn(Vec<Value>) -> Value,
    ) -> u64 {
        let call = self.admin.number();
        let gathering = Gathering { asker, waiting, parts: Vec::new(), errors: Vec::new(), deadline, finish };
        self.admin.gathering.insert(call, gathering);
        if waiting == 0 {
            self.finish_gathering(call);
        }
        call
    }

    pub(crate) fn handle_part(&mut self, call: u64, part: Result<Value, String>) {
        let Some(gathering) = self.admin.gathering.get_mut(&call) else { return };
        match part {
            Ok(Value::Array(parts)) => gathering.parts.extend(parts),
            Ok(part) => gathering.parts.push(part),
            Err(reason) => gathering.errors.push(reason),
        }
        gathering.waiting = gathering.waiting.saturating_sub(1);
        if gathering.waiting == 0 {
            self.finish_gathering(call);
        }
    }

    fn finish_gathering(&mut self, call: u64) {
        let Some(gathering) = self.admin.gathering.remove(&call) else { return };
        self.admin.comparing.end_reads_for(call);
        let answer = if gathering.errors.is_empty() {
            Ok((gathering.finish)(gathering.parts))
        } else {
            Err(Refusal::NotReady(gathering.errors.join("; ")))
        };
        self.answer_admin(gathering.asker, answer);
    }

    pub(crate) fn tick_admin(&mut self, now: Now) {
        self.tick_passed_on(now);
        let calls: Vec<u64> =
            self.admin.gathering.iter().filter(|(_, it)| it.deadline <= now.instant).map(|(call, _)| *call).collect();
        for call in calls {
            self.handle_part(call, Err("not every node answered in time".into()));
            self.finish_gathering(call);
        }
    }

    /// Tells `asker` how its call went.
    pub(crate) fn answer_admin(&mut self, asker: Asker, answer: Result<Value, Refusal>) {
        let answer = answer.map_err(brief);
        match asker {
            Asker::Nobody => {}
            Asker::Gather(call) => self.handle_part(call, answer.map_err(|refusal| refusal.to_string())),
            Asker::Peer { node, id } => self.answer_peer(node, id, answer),
            Asker::Client { caller, audited } => {
                if let Some(told) = audited {
                    self.front.audit().note_outcome(&told, answer.as_ref().err().map(ToString::to_string));
                }
                match answer {
                    Err(refusal) => self.answer_admin_refused(&caller, &refusal),
                    Ok(answer) => {
                        let reply = crate::admin_client::reply_of(caller.method, &answer);
                        self.shards.first().serving().answer(&caller, &reply, Reflected::default());
                    }
                }
            }
        }
    }

    /// The same with an answer that a job has written down.
    pub(crate) fn answer_admin_with(&mut self, asker: Asker, text: &str) {
        match asker {
            Asker::Nobody | Asker::Gather(_) => {}
            Asker::Peer { node, id } => self.answer_peer_with(node, id, text),
            Asker::Client { caller, .. } => {
                let reply = match caller.method {
                    Method::CommandLine => Reply::CommandLine(CommandLineReply { output: text.into() }),
                    _ => Reply::HedgerowAdmin(AdminCommandReply { err: ErrorName::Ok, text: text.into() }),
                };
                self.shards.first().serving().answer(&caller, &reply, Reflected::default());
            }
        }
    }

    /// Pegasus' admin calls carry their error inside the reply; ours, and callers that can read it, get it in full.
    pub(crate) fn answer_admin_refused(&mut self, caller: &Caller, refusal: &Refusal) {
        if caller.is_extended {
            return self.shards.first().serving().answer_refused(caller, refusal);
        }
        // Most of Pegasus' replies have no room for a reason.
        tracing::info!(method = caller.method.name(), %refusal, "an administrative call of a Pegasus client is refused");
        let reply = Reply::admin_refused(caller.method, refusal);
        self.shards.first().serving().answer(caller, &reply, Reflected::default());
    }
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(argument: &'a str) -> Result<T, Refusal> {
    // An array would be read as well, each field by its place.
    if !argument.trim_start().starts_with('{') {
        return Err(Refusal::Invalid("the argument is not allowed: it has to be a JSON object".into()));
    }
    serde_json::from_str(argument)
        .map_err(|error| Refusal::Invalid(format!("the argument is not allowed: {}", shortened(error.to_string()))))
}

/// A refusal that quotes no more than the beginning of what was asked for: it is kept, and sent on.
fn brief(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::NotReady(why) => Refusal::NotReady(shortened(why)),
        Refusal::Busy(why) => Refusal::Busy(shortened(why)),
        Refusal::Invalid(why) => Refusal::Invalid(shortened(why)),
        Refusal::FailedPrecondition(why) => Refusal::FailedPrecondition(shortened(why)),
        Refusal::TooLarge(why) => Refusal::TooLarge(shortened(why)),
        Refusal::Stopping(why) => Refusal::Stopping(shortened(why)),
        Refusal::DiskFull(why) => Refusal::DiskFull(shortened(why)),
        Refusal::NotAllowed(why) => Refusal::NotAllowed(shortened(why)),
        short => short,
    }
}

fn from_hex(text: &str) -> Result<Vec<u8>, Refusal> {
    let malformed = || Refusal::Invalid(format!("split key {:?} is not hexadecimal", beginning(text)));
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return Err(malformed());
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| malformed())).collect()
}
