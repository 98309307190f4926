//! Who is at the other end of each client's connection, and what they may do.
//!
//! A connection is its user's from its first request to its end: by the certificate that it was agreed on with, or by the password that was proven
//! on it before that request (`login.rs`). What the user may do is looked
//! up in the catalogue that this node acts on: for each table once, and again when the catalogue changes, so that what was taken
//! away is refused as soon as the node has heard of it. Writes that another node sends on have been looked at there.

use crate::config::{Config, RightsMode};
use crate::outbox::ConnectionId;
use crate::peer::Principal;
use crate::requests::audit::Audit;
use crate::requests::read_counts::Lines;
use crate::view::View;
use bytes::Bytes;
use hedgerow_placement::{Catalogue, Grant, Rights, TableRights};
use hedgerow_scram::Verifier;
use hedgerow_types::limit::TABLE_NAME_SIZE_MAX;
use hedgerow_types::{Instant, Refusal, TableId};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Users whose refusals are counted one by one; those of others are counted together.
const COUNTED_MAX: usize = 64;
/// Tables of which a connection's rights are kept. More are looked up again.
const KEPT_MAX: usize = 64;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Somebody who has shown no certificate of a client or of a node, and proven no password.
    #[default]
    Anybody,
    /// The user of this name.
    User(Arc<str>),
    /// One of the cluster's nodes, which as a node could do everything anyway.
    Node,
}

impl Who {
    fn name(&self) -> Option<&str> {
        match self {
            Self::User(name) => Some(name),
            Self::Anybody | Self::Node => None,
        }
    }

    /// Whom another node names.
    pub(crate) fn named(principal: &Principal) -> Self {
        match principal {
            Principal { user, .. } if !user.is_empty() => Self::User(user.as_str().into()),
            Principal { is_administrator: true, .. } => Self::Node,
            Principal { .. } => Self::Anybody,
        }
    }

    fn may_see(&self, rights: &Rights, table: &str) -> bool {
        rights.include(self.name(), &Grant::Monitor) || rights.on_table(self.name(), table) != TableRights::NONE
    }

    fn may_everything(&self, administrators: &BTreeSet<String>) -> bool {
        match self {
            Self::Anybody => false,
            Self::User(name) => administrators.contains(&**name),
            Self::Node => true,
        }
    }
}

/// As who does something, at the beginning of a sentence.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anybody => f.write_str("who shows no certificate"),
            Self::User(name) => write!(f, "user {name:?}"),
            Self::Node => f.write_str("a node"),
        }
    }
}

/// One connection, and what was last found that its user may do.
#[derive(Debug, Default)]
struct Session {
    who: Who,
    from: Option<IpAddr>,
    /// Of this version of the catalogue,
    version: u64,
    /// by table.
    tables: Vec<(TableId, TableRights)>,
    /// What its user's password was checked by, where it was by one.
    verifier: Option<Box<Verifier>>,
}

impl Session {
    /// What its user lacks of `need`, in words, if that is anything.
    fn lacking(&mut self, catalogue: &Catalogue, need: &Need<'_>) -> Option<String> {
        let rights = &catalogue.rights;
        match need {
            Need::Rows(table, needed) => {
                let name = catalogue.tables.get(table).map_or("", |table| &table.name);
                match self.on_table(catalogue, *table, name).lacking(*needed) {
                    TableRights::NONE => None,
                    // Who may not know of a table does not learn its name by trying numbers.
                    _ if !self.who.may_see(rights, name) => Some(format!("any right on table number {}", table.0)),
                    lacking => Some(in_words(lacking, name)),
                }
            }
            Need::Table(name, needed) => {
                let lacking = rights.on_table(self.who.name(), name).lacking(*needed);
                (lacking != TableRights::NONE).then(|| in_words(lacking, name))
            }
            Need::Seen(name) if self.who.may_see(rights, name) => None,
            Need::Seen(name) => Some(format!("any right on table {}", shown(name))),
            Need::Monitor if rights.include(self.who.name(), &Grant::Monitor) => None,
            Need::Monitor => Some(Grant::Monitor.to_string()),
            Need::Everything | Need::Grants if rights.include(self.who.name(), &Grant::ClusterAdmin) => None,
            Need::Everything | Need::Grants => Some(Grant::ClusterAdmin.to_string()),
        }
    }

    fn on_table(&mut self, catalogue: &Catalogue, table: TableId, name: &str) -> TableRights {
        if self.version != catalogue.version {
            (self.version, self.tables) = (catalogue.version, Vec::new());
        }
        if let Some((_, rights)) = self.tables.iter().find(|(known, _)| *known == table) {
            return *rights;
        }
        let rights = catalogue.rights.on_table(self.who.name(), name);
        if self.tables.len() >= KEPT_MAX {
            self.tables.clear();
        }
        self.tables.push((table, rights));
        rights
    }
}

/// Who asks for something.
#[derive(Clone, Debug)]
pub(crate) enum Asking {
    /// The user of a connection with this node.
    Here(ConnectionId),
    /// Somebody whom another node speaks for. [`Who::Node`] may do everything.
    Elsewhere(Who),
}

/// What somebody has to have been given.
#[derive(Clone, Debug)]
pub(crate) enum Need<'a> {
    /// To do this with the rows of a table.
    Rows(TableId, TableRights),
    /// To do this with the table of that name, whether there is one or not.
    Table(&'a str, TableRights),
    /// To do anything with the table of that name, or to see the state of the cluster.
    Seen(&'a str),
    /// To see the state of the cluster.
    Monitor,
    /// To do everything.
    Everything,
    /// The same, for who gives rights or looks at them: also where others are only counted, since it counts from the first day on.
    Grants,
}

/// The users of all connections, where that matters.
#[derive(Debug, Default)]
pub(crate) struct Users {
    /// The node that they are connected with.
    node: u16,
    mode: RightsMode,
    administrators: BTreeSet<String>,
    sessions: FxHashMap<ConnectionId, Session>,
    /// How often something was lacking, by whose it was.
    counts: BTreeMap<Who, u64>,
    /// The same of those that have no place there.
    others: u64,
    lines: Lines,
    pub(super) audit: Audit,
}

impl Users {
    pub(crate) fn new(config: &Config) -> Self {
        let (administrators, audit) = (config.administrators.clone(), Audit::new(config.audit.is_some()));
        Self { node: config.node.0, mode: config.rights, administrators, audit, ..Self::default() }
    }

    /// A connection begins.
    pub(crate) fn note_opened(&mut self, connection: ConnectionId, who: Who, from: IpAddr, now: Instant) {
        if who != Who::Anybody {
            self.audit.note_login(&who, from, now);
        }
        self.sessions.insert(connection, Session { who, from: Some(from), ..Session::default() });
    }

    /// Somebody has proven to be `who` on a connection that was nobody's. Says from where.
    pub(super) fn note_logged_in(
        &mut self,
        connection: ConnectionId,
        who: &Who,
        verifier: Verifier,
        now: Instant,
    ) -> Option<IpAddr> {
        let session = self.sessions.get_mut(&connection).filter(|session| session.who == Who::Anybody)?;
        *session =
            Session { who: who.clone(), from: session.from, verifier: Some(Box::new(verifier)), ..Session::default() };
        let from = session.from?;
        self.audit.note_login(who, from, now);
        Some(from)
    }

    /// The connections whose user has logged in by a password that is not the user's any more. They are nobody's from now on.
    pub(super) fn take_outdated(&mut self, catalogue: &Catalogue) -> Vec<ConnectionId> {
        let is_outdated = |session: &Session| match (&session.verifier, session.who.name()) {
            (Some(verifier), Some(user)) => catalogue.passwords.verifier(user) != Some(&**verifier),
            (Some(_), None) | (None, _) => false,
        };
        let outdated = self.sessions.iter_mut().filter(|(_, session)| is_outdated(session));
        outdated
            .map(|(connection, session)| {
                *session = Session { from: session.from, ..Session::default() };
                *connection
            })
            .collect()
    }

    /// What rights are for here.
    pub(super) const fn mode(&self) -> RightsMode {
        self.mode
    }

    /// Whether somebody may do everything at this node, whatever they have been given.
    pub(crate) fn may_everything(&self, who: &Who) -> bool {
        who.may_everything(&self.administrators)
    }

    /// Who is at the other end of a connection, for another node.
    pub(crate) fn principal(&self, connection: ConnectionId) -> Principal {
        let (who, _) = self.at(connection);
        let user = who.name().unwrap_or_default().to_owned();
        let verifier = self.sessions.get(&connection).and_then(|session| session.verifier.as_ref());
        let password = verifier.map(|it| Bytes::copy_from_slice(&it.fingerprint())).unwrap_or_default();
        Principal { user, is_administrator: who.may_everything(&self.administrators), password }
    }

    /// Who is at the other end of a connection, and where.
    pub(crate) fn at(&self, connection: ConnectionId) -> (Who, Option<IpAddr>) {
        self.sessions.get(&connection).map_or_else(Default::default, |session| (session.who.clone(), session.from))
    }

    /// A connection has ended.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.sessions.remove(&connection);
    }

    /// Why somebody may not do what needs `need`, if that is so.
    pub(crate) fn why_not(&mut self, view: &View, asking: &Asking, need: &Need<'_>, now: Instant) -> Option<Refusal> {
        if self.mode == RightsMode::Off {
            let text = || {
                let node = self.node;
                format!(
                    "security.rights is off at node {node}, where rights and passwords count for nothing: set it to \"permissive\" or \"required\" \
                     at all nodes first"
                )
            };
            return matches!(need, Need::Grants).then(|| Refusal::FailedPrecondition(text()));
        }
        let mut elsewhere = Session::default();
        let session = match asking {
            Asking::Here(connection) => self.sessions.entry(*connection).or_default(),
            Asking::Elsewhere(who) => {
                elsewhere.who = who.clone();
                &mut elsewhere
            }
        };
        if session.who.may_everything(&self.administrators) {
            return None;
        }
        let is_refused = self.mode == RightsMode::Required || matches!(need, Need::Grants);
        let Some(catalogue) = &view.catalogue else {
            // Whoever asks before there is one asks again; where a table is, nobody is told yet.
            return (is_refused && !matches!(need, Need::Seen(_))).then(|| view.no_catalogue());
        };
        let lacking = session.lacking(catalogue, need)?;
        let text = format!("{} has not been given {lacking}", session.who);
        let (who, from) = (session.who.clone(), session.from);
        self.note_lacking(who, from, &text, is_refused, now);
        is_refused.then_some(Refusal::NotAllowed(text))
    }

    /// Whether the user of a connection may know of the table called `name`.
    pub(crate) fn may_see(&self, view: &View, connection: ConnectionId, name: &str) -> bool {
        if self.mode != RightsMode::Required {
            return true;
        }
        let anybody = Who::default();
        let who = self.sessions.get(&connection).map_or(&anybody, |session| &session.who);
        let Some(catalogue) = &view.catalogue else { return true };
        who.may_everything(&self.administrators) || who.may_see(&catalogue.rights, name)
    }

    /// Who is at the other end of a connection, for themselves.
    pub(crate) fn told_to(&self, view: &View, connection: ConnectionId) -> Value {
        let who = self.sessions.get(&connection).map(|session| session.who.clone()).unwrap_or_default();
        let given = view.catalogue.iter().flat_map(|catalogue| catalogue.rights.of(who.name()));
        json!({
            "user": who.name(),
            "is_node": who == Who::Node,
            "is_administrator": who.may_everything(&self.administrators),
            "rights": given.map(Grant::to_string).collect::<BTreeSet<_>>(),
            "mode": self.mode.name(),
        })
    }

    /// What the operator is told.
    pub(crate) fn told(&self) -> Value {
        // No user is called so: their names have letters, digits and dashes.
        let counted =
            self.counts.iter().map(|(who, count)| (who.name().unwrap_or("(no certificate)").to_owned(), json!(count)));
        json!({
            "mode": self.mode.name(),
            "lacking": self.counts.values().sum::<u64>() + self.others,
            "lacking_by_user": counted.collect::<serde_json::Map<_, _>>(),
        })
    }

    fn note_lacking(&mut self, who: Who, from: Option<IpAddr>, text: &str, is_refused: bool, now: Instant) {
        self.audit.note_refused((&who, from), text, !is_refused, now);
        if let Some(left_out) = self.lines.poll(now) {
            let from = from.map(tracing::field::display);
            let what = if is_refused { "a request is refused" } else { "a request would be refused" };
            tracing::warn!(from, left_out, "{what}: {text}");
        }
        let has_room = self.counts.len() < COUNTED_MAX;
        match self.counts.get_mut(&who) {
            Some(count) => *count += 1,
            None if has_room => drop(self.counts.insert(who, 1)),
            None => self.others += 1,
        }
    }
}

/// A name that somebody has said, as it is said again: not longer than a table's may be, and without what would be more than a name in a log.
fn shown(name: &str) -> String {
    let short: String = name.chars().take(TABLE_NAME_SIZE_MAX).collect();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    if short.bytes().all(is_plain) { short } else { format!("{short:?}") }
}

fn in_words(lacking: TableRights, name: &str) -> String {
    let name = shown(name);
    lacking.words().map(|word| format!("{word}:{name}")).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use hedgerow_placement::{Node, TableSpec};
    use hedgerow_types::{Incarnation, NodeId};
    use std::net::Ipv4Addr;
    use std::path::PathBuf;

    const NOW: Instant = Instant(0);
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn config(mode: RightsMode) -> Config {
        let peers = BTreeMap::from([(NodeId(1), "127.0.0.1:1".to_owned())]);
        let mut config = Config::new(NodeId(1), peers, vec![PathBuf::from("/data")], 1);
        config.rights = mode;
        config.administrators.insert("root".to_owned());
        config
    }

    /// A view of a cluster with one table, and what that is.
    fn view() -> (View, TableId) {
        let node = (NodeId(1), Node::new("127.0.0.1:1".to_owned(), Incarnation(1)));
        let mut catalogue = Catalogue::bootstrap(7, &[node], &[NodeId(1)]).unwrap();
        let table = catalogue.create_table(TableSpec::hash("t", 2, 1), &BTreeSet::from([NodeId(1)]), 0).unwrap();
        (View { catalogue: Some(Arc::new(catalogue)), ..View::new(&config(RightsMode::Off)) }, table)
    }

    fn changed(view: &mut View) -> &mut Catalogue {
        Arc::make_mut(view.catalogue.as_mut().unwrap())
    }

    #[test]
    fn what_is_kept_of_a_table_is_of_the_catalogue_that_is_acted_on() {
        let (mut view, table) = view();
        let mut users = Users::new(&config(RightsMode::Required));
        let (app, root) = (ConnectionId(1), ConnectionId(2));
        users.note_opened(app, Who::User("app".into()), HERE, NOW);
        users.note_opened(root, Who::User("root".into()), HERE, NOW);
        let read = Need::Rows(table, TableRights::READ);
        let told = |refusal: Option<Refusal>| refusal.map(|it| it.to_string());
        let lacks = Some(r#"user "app" has not been given any right on table number 1"#.to_owned());
        assert_eq!(told(users.why_not(&view, &Asking::Here(app), &read, NOW)), lacks);
        assert_eq!(users.why_not(&view, &Asking::Here(root), &read, NOW), None);
        let (holder, grants) = ("app".parse().unwrap(), ["read:t".parse().unwrap()]);
        assert!(changed(&mut view).grant(&holder, &grants).unwrap());
        assert_eq!(users.why_not(&view, &Asking::Here(app), &read, NOW), None);
        assert!(changed(&mut view).revoke(&holder, &grants).unwrap());
        assert_eq!(told(users.why_not(&view, &Asking::Here(app), &read, NOW)), lacks);
        // Another connection of that number is not its user's.
        users.forget(root);
        let both = Need::Table("t", TableRights::READ_AND_WRITE);
        let nobody = "who shows no certificate has not been given read:t and write:t".to_owned();
        assert_eq!(told(users.why_not(&view, &Asking::Here(root), &both, NOW)), Some(nobody));
        users.note_opened(root, Who::User("eve".into()), HERE, NOW);
        changed(&mut view).grant(&"eve".parse().unwrap(), &["write:t".parse().unwrap()]).unwrap();
        let part = r#"user "eve" has not been given read:t"#.to_owned();
        assert_eq!(
            told(users.why_not(&view, &Asking::Here(root), &Need::Rows(table, TableRights::READ_AND_WRITE), NOW)),
            Some(part)
        );
    }

    /// The first bytes of what somebody sends as a name, and no line of their own in the log.
    #[test]
    fn n4d_what_is_said_again_of_a_name_is_short_and_one_line() {
        let (view, _) = view();
        let mut users = Users::new(&config(RightsMode::Required));
        let name = "x\n2026-11-27 INFO all is well".to_owned() + &"\u{1}".repeat(1 << 20);
        for need in [Need::Seen(&name), Need::Table(&name, TableRights::ADMIN)] {
            let text = users.why_not(&view, &Asking::Here(ConnectionId(1)), &need, NOW).unwrap().to_string();
            assert!(text.len() < 2_000 && !text.contains('\n') && text.contains(r"x\n2026"), "{text}");
        }
    }

    #[test]
    fn who_gives_rights_has_to_have_them_before_anybody_else() {
        let (view, _) = view();
        let why_not = |mode, need| Users::new(&config(mode)).why_not(&view, &Asking::Here(ConnectionId(1)), &need, NOW);
        assert!(matches!(why_not(RightsMode::Off, Need::Grants), Some(Refusal::FailedPrecondition(_))));
        assert_eq!(why_not(RightsMode::Off, Need::Everything), None);
        assert!(matches!(why_not(RightsMode::Permissive, Need::Grants), Some(Refusal::NotAllowed(_))));
        assert_eq!(why_not(RightsMode::Permissive, Need::Everything), None);
    }

    #[test]
    fn without_a_catalogue_nobody_may_more_and_whoever_asks_asks_again() {
        let view = View::new(&config(RightsMode::Required));
        let monitor = Need::Monitor;
        let mut users = Users::new(&config(RightsMode::Required));
        assert!(matches!(
            users.why_not(&view, &Asking::Here(ConnectionId(1)), &monitor, NOW),
            Some(Refusal::NotReady(_))
        ));
        assert_eq!(users.why_not(&view, &Asking::Here(ConnectionId(1)), &Need::Seen("t"), NOW), None);
        for mode in [RightsMode::Off, RightsMode::Permissive] {
            assert_eq!(Users::new(&config(mode)).why_not(&view, &Asking::Here(ConnectionId(1)), &monitor, NOW), None);
        }
    }

    #[test]
    fn n4d_what_is_counted_has_a_bound() {
        let (view, table) = view();
        let mut users = Users::new(&config(RightsMode::Permissive));
        for number in 0..1_000 {
            let connection = ConnectionId(number);
            users.note_opened(connection, Who::User(format!("user-{number}").into()), HERE, NOW);
            assert_eq!(
                users.why_not(&view, &Asking::Here(connection), &Need::Rows(table, TableRights::WRITE), NOW),
                None
            );
            users.forget(connection);
        }
        let told = users.told();
        assert_eq!(
            (&told["lacking"], told["lacking_by_user"].as_object().unwrap().len()),
            (&json!(1_000), COUNTED_MAX)
        );
        assert!(users.sessions.is_empty());
    }
}
