//! What the audit log is told: who came in, what was refused, and who changed what. Each record is made where that is decided, and gathered
//! until the node's host takes them.
//!
//! Nobody can fill the log with one thing that they do again and again: the first record of a kind is told at once, those that
//! repeat it within a minute are counted, and told once the minute is over. What finds no room is counted as well.

use crate::admin::SET_PASSWORD;
use crate::requests::users::Who;
use hedgerow_types::{Instant, NodeId, Refusal};
use serde::Serialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long repetitions are counted before they are told.
const REPEATED_FOR: Duration = Duration::from_secs(60);
/// Different records of one user and one kind within that time, and users that have some; what is beyond it is told as lost. So nobody hides
/// what others do behind what they do themselves.
const RECORDS_MAX: usize = 64;
const USERS_MAX: usize = 1_024;
/// Records of commands and of the node itself that may wait for the host.
const GATHERED_MAX: usize = 4_096;
/// Commands of one user within that time, each of which is told by itself. More are refused: what nobody is told of is not done.
const COMMANDS_MAX: u64 = 1_024;
/// Bytes of a text in a record, at most; the rest is left out.
const TEXT_MAX: usize = 4 << 10;

/// One line of the audit log, without its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct AuditRecord {
    /// What happened.
    #[serde(flatten)]
    pub(crate) event: AuditEvent,
    /// Whose certificate was shown, or password proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// A node's certificate was shown.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) is_node: bool,
    /// From where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<IpAddr>,
    /// How often it has happened again since the record that told of it first.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) repeated: u64,
}

/// What an [`AuditRecord`] tells.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum AuditEvent {
    /// The node has started.
    Start,
    /// The node has been told to stop, and stops.
    Stop,
    /// A connection was agreed on with the certificate of a user or a node, or its user has logged in by a password.
    Login,
    /// A connection was refused before anything was asked on it, or a login by password.
    LoginRefused {
        /// Why.
        reason: String,
    },
    /// A request was refused, or would be with `security.rights = "required"`, for what its user has not been given.
    Refused {
        /// What is lacking.
        reason: String,
        /// Whether it was only counted.
        #[serde(skip_serializing_if = "is_false")]
        is_permitted: bool,
    },
    /// A request was refused, or a connection closed, because its user asks for more than it may.
    Limited {
        /// Which limit that is.
        reason: String,
    },
    /// A command that changes something is carried out.
    Command {
        /// What its outcome calls it.
        number: u64,
        /// Its name.
        command: String,
        /// Its argument, JSON.
        argument: String,
    },
    /// A command was answered.
    Outcome {
        /// Which one.
        number: u64,
        /// Why it was not carried out, or is not known to have been; none if it was.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A command that changes something is carried out here for another node, which was asked for it.
    PassedOn {
        /// The node.
        by_node: u16,
        /// Its name.
        command: String,
        /// Its argument, JSON.
        argument: String,
    },
    /// The cluster has another node, or one that has begun anew or has another address.
    Member {
        /// Which one.
        member: u16,
        /// Where it is.
        address: String,
    },
    /// So many records before this one found no room.
    Lost {
        /// How many.
        records: u64,
    },
}

/// A command that the log has told of.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    number: u64,
    who: Who,
    from: Option<IpAddr>,
}

/// What anybody can do as often as they like, and whose records have a bound together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Login(Who),
    /// By address, of IPv6 the network.
    LoginRefused(IpAddr),
    Refused(Who),
    /// By address where there is no name.
    Limited(Who, Option<IpAddr>),
}

impl Kind {
    fn is_of_stranger(&self) -> bool {
        match self {
            Self::LoginRefused(_) => true,
            Self::Login(who) | Self::Refused(who) | Self::Limited(who, _) => *who == Who::Anybody,
        }
    }
}

/// How a record that was told has been repeated since.
#[derive(Debug)]
struct Repeated {
    since: Instant,
    count: u64,
}

/// The records of a node, if it keeps an audit log.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    is_on: bool,
    gathered: Vec<AuditRecord>,
    /// What users do.
    told: BTreeMap<Kind, BTreeMap<AuditRecord, Repeated>>,
    /// The same of those who have shown nothing: they come from as many addresses as they like, and must not leave users without room.
    told_of_strangers: BTreeMap<Kind, BTreeMap<AuditRecord, Repeated>>,
    /// Commands since the last minute began, by user.
    commands: BTreeMap<Who, u64>,
    /// The same of those who have shown nothing, by address.
    commands_of_strangers: BTreeMap<IpAddr, u64>,
    commands_since: Instant,
    /// Records that found no room here, or with whoever writes them.
    lost: Arc<AtomicU64>,
    last_number: u64,
}

impl Audit {
    /// Gathers nothing unless the log `is_on`.
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    /// How many records were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whoever writes the records counts there too which are lost.
    pub(crate) fn count_losses_in(&mut self, lost: Arc<AtomicU64>) {
        self.lost = lost;
    }

    /// Somebody was agreed on a connection with.
    pub(crate) fn note_login(&mut self, who: &Who, from: IpAddr, now: Instant) {
        self.note(Kind::Login(who.clone()), (who, Some(from)), AuditEvent::Login, now);
    }

    /// A connection was refused before anything was asked on it.
    pub(crate) fn note_login_refused(&mut self, from: IpAddr, reason: &str, now: Instant) {
        // What differs from one second to the next, or is made up, would be another record each time.
        let reason = reason.split(|it: char| it.is_ascii_digit()).filter(|part| !part.is_empty());
        let reason = reason.collect::<Vec<_>>().join("N");
        self.note(
            Kind::LoginRefused(network(from)),
            (&Who::Anybody, Some(from)),
            AuditEvent::LoginRefused { reason },
            now,
        );
    }

    /// A login by password was refused. Of names that are made up, those beyond a bound are counted only.
    pub(crate) fn note_login_failed(&mut self, from: IpAddr, reason: String, now: Instant) {
        let (kind, whose) = (Kind::LoginRefused(network(from)), (&Who::Anybody, Some(from)));
        self.note(kind, whose, AuditEvent::LoginRefused { reason }, now);
    }

    /// A request was refused, or would be.
    pub(crate) fn note_refused(
        &mut self,
        whose: (&Who, Option<IpAddr>),
        reason: &str,
        is_permitted: bool,
        now: Instant,
    ) {
        let event = AuditEvent::Refused { reason: shortened(reason), is_permitted };
        self.note(Kind::Refused(whose.0.clone()), whose, event, now);
    }

    /// A request was refused, since its user asks for more than it may.
    pub(crate) fn note_limited(&mut self, whose: (&Who, Option<IpAddr>), reason: &str, now: Instant) {
        let (who, from) = whose;
        let address = from.filter(|_| *who == Who::Anybody).map(network);
        self.note(Kind::Limited(who.clone(), address), whose, AuditEvent::Limited { reason: shortened(reason) }, now);
    }

    fn note(&mut self, kind: Kind, (who, from): (&Who, Option<IpAddr>), event: AuditEvent, now: Instant) {
        if !self.is_on {
            return;
        }
        let record = AuditRecord::new(who, from, event);
        let all = if kind.is_of_stranger() { &mut self.told_of_strangers } else { &mut self.told };
        let has_room = all.len() < USERS_MAX || all.contains_key(&kind);
        let told = has_room.then(|| all.entry(kind).or_default());
        match told {
            Some(told) if told.contains_key(&record) => {
                told.entry(record).and_modify(|repeated| repeated.count += 1);
            }
            Some(told) if told.len() < RECORDS_MAX => {
                told.insert(record.clone(), Repeated { since: now, count: 0 });
                self.gathered.push(record);
            }
            Some(_) | None => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Tells of something that is not counted: only who may do it can make more of it.
    fn note_each(&mut self, who: &Who, from: Option<IpAddr>, event: AuditEvent) {
        if !self.is_on {
            return;
        }
        if self.gathered.len() < GATHERED_MAX {
            self.gathered.push(AuditRecord::new(who, from, event));
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A command is to be carried out: what its outcome is to call it, if anybody is told. An error if nobody would be, though the log is
    /// kept: it is not carried out then.
    pub(crate) fn note_command(
        &mut self,
        (who, from): (Who, Option<IpAddr>),
        (command, argument): (&str, &str),
        now: Instant,
    ) -> Result<Option<Told>, Refusal> {
        if !self.is_on {
            return Ok(None);
        }
        if !self.may_tell_command(&who, from) {
            let reason = format!("{COMMANDS_MAX} commands in a minute, of which this log tells");
            self.note_limited((&who, from), &reason, now);
            return Err(Refusal::Busy(format!(
                "the audit log tells of {COMMANDS_MAX} commands of a user in a minute, and what it does not tell of is not done"
            )));
        }
        self.last_number += 1;
        let number = self.last_number;
        let argument = told_of(command, argument);
        let (command, argument) = (shortened(command), shortened(&argument));
        self.note_each(&who, from, AuditEvent::Command { number, command, argument });
        Ok(Some(Told { number, who, from }))
    }

    /// The same for another node, which tells of the command and of its outcome, and has seen to it that they are not too many.
    pub(crate) fn note_passed_on(&mut self, by_node: NodeId, who: &Who, (command, argument): (&str, &str)) {
        if self.is_on {
            let argument = told_of(command, argument);
            let (command, argument) = (shortened(command), shortened(&argument));
            self.note_each(who, None, AuditEvent::PassedOn { by_node: by_node.0, command, argument });
        }
    }

    fn may_tell_command(&mut self, who: &Who, from: Option<IpAddr>) -> bool {
        fn count<T: Ord>(counts: &mut BTreeMap<T, u64>, of: T) -> bool {
            let has_room = counts.len() < USERS_MAX || counts.contains_key(&of);
            let count = has_room.then(|| counts.entry(of).or_default());
            count.is_some_and(|count| {
                *count += 1;
                *count <= COMMANDS_MAX
            })
        }
        let may_tell = match (who, from) {
            (Who::Anybody, Some(from)) => count(&mut self.commands_of_strangers, network(from)),
            (who, _) => count(&mut self.commands, who.clone()),
        };
        may_tell && self.gathered.len() < GATHERED_MAX
    }

    /// A command was answered.
    pub(crate) fn note_outcome(&mut self, Told { number, who, from }: &Told, error: Option<String>) {
        let error = error.map(|error| shortened(&error));
        self.note_each(who, *from, AuditEvent::Outcome { number: *number, error });
    }

    /// The node has started.
    pub(crate) fn note_start(&mut self) {
        self.note_each(&Who::Anybody, None, AuditEvent::Start);
    }

    /// The catalogue that is acted on has another node, or another one in its place.
    pub(crate) fn note_member(&mut self, node: NodeId, address: &str) {
        self.note_each(&Who::Anybody, None, AuditEvent::Member { member: node.0, address: shortened(address) });
    }

    /// Time has passed: what was repeated is told.
    pub(crate) fn tick(&mut self, now: Instant) {
        if now.since(self.commands_since) >= REPEATED_FOR {
            self.commands.clear();
            self.commands_of_strangers.clear();
            self.commands_since = now;
        }
        self.tell_repeated(|repeated| now.since(repeated.since) >= REPEATED_FOR);
    }

    /// The node ends: what was repeated is told, however long ago, and at last that it was told to, if it was.
    pub(crate) fn end(&mut self, is_told_to: bool) {
        self.tell_repeated(|_| true);
        if is_told_to {
            self.note_each(&Who::Anybody, None, AuditEvent::Stop);
        }
    }

    fn tell_repeated(&mut self, is_over: impl Fn(&Repeated) -> bool) {
        for all in [&mut self.told, &mut self.told_of_strangers] {
            for told in all.values_mut() {
                told.retain(|record, repeated| {
                    if is_over(repeated) && repeated.count > 0 {
                        self.gathered.push(AuditRecord { repeated: repeated.count, ..record.clone() });
                    }
                    !is_over(repeated)
                });
            }
            all.retain(|_, told| !told.is_empty());
        }
    }

    /// What was gathered since the last time.
    pub(crate) fn take(&mut self) -> Vec<AuditRecord> {
        std::mem::take(&mut self.gathered)
    }
}

impl AuditRecord {
    /// What somebody has done from there.
    pub(crate) fn new(who: &Who, from: Option<IpAddr>, event: AuditEvent) -> Self {
        let user = match who {
            Who::User(name) => Some(name.to_string()),
            Who::Anybody | Who::Node => None,
        };
        Self { event, user, is_node: *who == Who::Node, from, repeated: 0 }
    }
}

/// The first [`TEXT_MAX`] bytes of `text`. Never more is copied: what waits to be written would keep it.
fn shortened(text: &str) -> String {
    if text.len() <= TEXT_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    [&text[..end], " ..."].concat()
}

/// What the log tells of a command's argument: all of it, but what a password is checked by.
fn told_of<'a>(command: &str, argument: &'a str) -> Cow<'a, str> {
    if command != SET_PASSWORD {
        return Cow::Borrowed(argument);
    }
    let name = serde_json::from_str::<Value>(argument).ok().and_then(|it| it["name"].as_str().map(str::to_owned));
    Cow::Owned(json!({ "name": name }).to_string())
}

/// Where an address is: for IPv6 the first 64 bits, since whoever has one of these has all. IPv4 is that also where a socket of IPv6 takes it.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
    }
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

const fn is_false(is: &bool) -> bool {
    !*is
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use serde_json::json;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn at(seconds: u64) -> Instant {
        Instant(0) + Duration::from_secs(seconds)
    }

    fn lines(audit: &mut Audit) -> Vec<serde_json::Value> {
        audit.take().iter().map(|record| serde_json::to_value(record).unwrap()).collect()
    }

    #[test]
    fn what_is_done_again_and_again_is_told_twice_a_minute() {
        let mut audit = Audit::new(true);
        let eve = Who::User("eve".into());
        let eve = (&eve, Some(HERE));
        (0..1_000).for_each(|_| audit.note_refused(eve, "read:t", false, at(0)));
        audit.note_refused(eve, "write:t", false, at(1));
        let first = |reason| json!({ "event": "refused", "reason": reason, "user": "eve", "from": "127.0.0.1" });
        assert_eq!(lines(&mut audit), [first("read:t"), first("write:t")]);
        audit.tick(at(59));
        assert_eq!(lines(&mut audit), Vec::<serde_json::Value>::new());
        audit.tick(at(60));
        let mut again = first("read:t");
        again["repeated"] = json!(999);
        assert_eq!(lines(&mut audit), [again]);
        audit.tick(at(61));
        assert!(audit.told.is_empty() && audit.take().is_empty());
        audit.note_refused(eve, "read:t", false, at(62));
        assert_eq!(lines(&mut audit), [first("read:t")]);
    }

    #[test]
    fn n4d_what_is_kept_has_a_bound_and_what_is_lost_is_counted() {
        let mut audit = Audit::new(true);
        let (eve, app) = (Who::User("eve".into()), Who::User("app".into()));
        for number in 0..10 * RECORDS_MAX {
            audit.note_refused((&eve, Some(HERE)), &format!("{number}"), false, at(0));
        }
        assert_eq!((audit.gathered.len(), audit.lost()), (RECORDS_MAX, 9 * RECORDS_MAX as u64));
        // Whatever else happens still finds room.
        audit.note_login(&eve, HERE, at(0));
        (0..9)
            .for_each(|second| audit.note_login_refused(HERE, &format!("it expired {second} seconds ago"), at(second)));
        audit.note_refused((&app, Some(HERE)), "read:t", true, at(0));
        assert_eq!(audit.gathered.len(), RECORDS_MAX + 3);
        for number in 0..2 * USERS_MAX {
            audit.note_login(&Who::User(format!("{number}").into()), HERE, at(0));
        }
        assert_eq!(audit.told.len(), USERS_MAX);
        let long = "x".repeat(1 << 20);
        assert!(audit.note_command((Who::Node, None), ("drop_table", &long), at(0)).unwrap().is_some());
        // What would not be told of is not done, and counts for none but its user.
        let lost = audit.lost();
        let mut told_of = |who: &Who| audit.note_command((who.clone(), None), ("x", ""), at(0)).is_ok();
        assert_eq!((0..2_000).filter(|_| told_of(&eve)).count(), 1_024);
        assert!(told_of(&app));
        assert_eq!(audit.lost() - lost, 976, "that it was tried is counted");
        audit.tick(at(60));
        assert!(audit.note_command((eve, None), ("x", ""), at(60)).is_ok(), "a minute later");
        let is_command =
            |record: &&AuditRecord| matches!(&record.event, AuditEvent::Command { argument, .. } if argument.len() > 1);
        let AuditEvent::Command { argument, .. } = &audit.gathered.iter().find(is_command).unwrap().event else {
            panic!()
        };
        assert!(argument.capacity() < 2 * TEXT_MAX, "what waits keeps no more than it says");
        let last = lines(&mut audit)
            .into_iter()
            .find(|record| record["is_node"] == true && record["event"] == "command")
            .unwrap();
        assert_eq!((&last["event"], &last["is_node"]), (&json!("command"), &json!(true)));
        assert_eq!(last["argument"].as_str().unwrap().len(), TEXT_MAX + " ...".len());
    }

    #[test]
    fn n4d_commands_that_are_not_done_for_being_too_many_are_told_of() {
        let (mut audit, eve) = (Audit::new(true), Who::User("eve".into()));
        let done =
            (0..2_000).filter(|_| audit.note_command((eve.clone(), Some(HERE)), ("x", ""), at(0)).is_ok()).count();
        let limited = lines(&mut audit).into_iter().filter(|line| line["event"] == "limited").count();
        assert_eq!((done, limited, audit.lost()), (1_024, 1, 0));
    }

    #[test]
    fn n4d_those_who_show_nothing_leave_users_their_room() {
        let (mut audit, eve) = (Audit::new(true), Who::User("eve".into()));
        for number in 0..2 * USERS_MAX as u128 {
            let from = IpAddr::V6((number << 64).into());
            audit.note_login_refused(from, "no certificate", at(0));
            audit.note_limited((&Who::Anybody, Some(from)), "connections", at(0));
            drop(audit.note_command((Who::Anybody, Some(from)), ("drop_table", ""), at(0)));
        }
        assert!(audit.lost() > 0);
        audit.take();
        audit.note_login(&eve, HERE, at(1));
        audit.note_refused((&eve, Some(HERE)), "read:t", false, at(1));
        assert!(audit.note_command((eve, Some(HERE)), ("drop_table", ""), at(1)).is_ok());
        assert_eq!(audit.take().len(), 3);
    }

    #[test]
    fn addresses_of_ipv4_are_themselves_however_they_come() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_ne!(of("::ffff:10.0.0.4"), of("::ffff:10.0.0.5"));
        assert_eq!(of("::ffff:10.0.0.4"), of("10.0.0.4"));
        assert_eq!(of("2001:db8::4"), of("2001:db8::5"));
    }

    #[test]
    fn without_an_audit_log_nothing_is_gathered() {
        let mut audit = Audit::new(false);
        audit.note_login(&Who::Node, HERE, at(0));
        assert!(audit.note_command((Who::Node, None), ("drop_table", "{}"), at(0)).unwrap().is_none());
        audit.note_member(NodeId(3), "a:1");
        assert!(audit.take().is_empty() && audit.told.is_empty());
    }
}
