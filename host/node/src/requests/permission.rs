//! What each request needs its user to have been given ([`hedgerow_placement::Rights`]).

use crate::admin::parse;
use crate::config::RightsMode;
use crate::outbox::ConnectionId;
use crate::peer::Principal;
use crate::requests::caller::Caller;
use crate::requests::front::Front;
use crate::requests::users::{Asking, Need, Who};
use crate::view::View;
use hedgerow_env::Now;
use hedgerow_placement::duplication::OPTION_PREFIX;
use hedgerow_placement::{Catalogue, TableRights};
use hedgerow_types::{Refusal, TableId};
use hedgerow_wire::{Body, Method};
use serde::Deserialize;
use std::sync::Arc;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Nothing.
    Nothing,
    /// To do this with the rows of its table.
    Rows(TableRights),
    /// To see the state of the cluster.
    Monitor,
    /// Anything that may be done with the table that it names.
    Seen,
    /// It is answered with those tables that its user may see.
    Listing,
    /// What the command needs that it comes to: [`Serving::why_not_command`].
    Command,
}

/// What `method` needs. A call of the protocol for which nothing stands here does not compile.
const fn rule(method: Method) -> Rule {
    match method {
        Method::Get
        | Method::MultiGet
        | Method::BatchGet
        | Method::SortKeyCount
        | Method::Ttl
        | Method::GetScanner
        | Method::Scan => Rule::Rows(TableRights::READ),
        Method::Put | Method::MultiPut | Method::Remove | Method::MultiRemove => Rule::Rows(TableRights::WRITE),
        // They see every row, say which of two changes stands, and what is kept for other clusters.
        Method::HedgerowDuplicate | Method::HedgerowJournalRead | Method::HedgerowJournalWrite => {
            Rule::Rows(TableRights::ALL)
        }
        // Their replies tell what was stored.
        Method::Incr | Method::CheckAndSet | Method::CheckAndMutate => Rule::Rows(TableRights::READ_AND_WRITE),
        // Scans are their connection's, and nobody waits for a reply. Clients ask for facts about the cluster to know a node by.
        Method::ClearScanner | Method::Negotiation | Method::HedgerowCancel | Method::ClusterInfo => Rule::Nothing,
        Method::QueryConfig => Rule::Seen,
        Method::ListTables => Rule::Listing,
        Method::ListNodes | Method::CommandLine => Rule::Monitor,
        Method::CreateTable | Method::DropTable | Method::RecallTable | Method::UpdateEnvs | Method::HedgerowAdmin => {
            Rule::Command
        }
    }
}

/// The tables that an administrative command names.
#[derive(Deserialize)]
struct Named {
    name: Option<String>,
    table: Option<String>,
}

/// What says which dropped table is to come back, and as what.
#[derive(Deserialize)]
struct Recalled {
    id: u32,
    name: Option<String>,
}

impl Recalled {
    /// The name that it had and is to have again. Under another one its rows would come under other rights.
    fn same_name(self, catalogue: Option<&Catalogue>) -> Option<String> {
        let had = &catalogue?.tables.get(&TableId(self.id))?.name;
        self.name.is_none_or(|name| name == *had).then(|| had.clone())
    }
}

impl Front {
    /// Why `caller` may not do this with the rows of its table, if that is so. Of a table that is not known somebody else says so.
    pub(super) fn why_not_rows(&mut self, view: &View, caller: &Caller, now: Now) -> Option<Refusal> {
        let Rule::Rows(needed) = rule(caller.method) else { return None };
        let table = caller.group().table;
        let is_there = |catalogue: &Arc<Catalogue>| catalogue.tables.get(&table).is_some_and(|it| it.dropped.is_none());
        if view.catalogue.as_ref().is_some_and(|catalogue| !is_there(catalogue)) {
            return None;
        }
        self.users.why_not(view, &Asking::Here(caller.connection), &Need::Rows(table, needed), now.instant)
    }

    /// Why an administrative call is refused, as far as that follows from what call it is.
    pub(crate) fn why_not_call(
        &mut self,
        view: &View,
        connection: ConnectionId,
        body: &Body,
        now: Now,
    ) -> Option<Refusal> {
        let need = match (rule(body.method()), body) {
            (Rule::Seen, Body::QueryConfig(query)) => Need::Seen(query.app_name.as_str()),
            (Rule::Nothing | Rule::Rows(_) | Rule::Listing | Rule::Command, _) => return None,
            (Rule::Monitor | Rule::Seen, _) => Need::Monitor,
        };
        self.users.why_not(view, &Asking::Here(connection), &need, now.instant)
    }

    /// Why an administrative command is refused that another node passes on for `principal`. That node has looked at it by a catalogue that
    /// may be older, or not at all where its configuration does not want that.
    pub(crate) fn why_not_passed_on(
        &mut self,
        view: &View,
        principal: &Principal,
        (command, argument): (&str, &str),
        now: Now,
    ) -> Option<Refusal> {
        // Whoever proved another password than the one that is acted on here has proved nothing.
        let known = view.catalogue.as_ref().and_then(|it| it.passwords.verifier(&principal.user));
        if !principal.password.is_empty() && known.is_none_or(|known| known.fingerprint() != principal.password[..]) {
            let text = format!("the password of user {:?} was changed or removed", principal.user);
            return Some(Refusal::NotAllowed(text));
        }
        if self.users.mode() != RightsMode::Required {
            return None;
        }
        let who = if principal.is_administrator { Who::Node } else { Who::named(principal) };
        self.why_not_command(view, &Asking::Elsewhere(who), (command, argument), now)
    }

    /// Why an administrative command is refused. One that is not known is nobody's but those who may do everything.
    pub(crate) fn why_not_command(
        &mut self,
        view: &View,
        asking: &Asking,
        (command, argument): (&str, &str),
        now: Now,
    ) -> Option<Refusal> {
        let mode = self.users.mode();
        let mut why_not = |need: Need<'_>| self.users.why_not(view, asking, &need, now.instant);
        match command {
            // They are answered with what their user may know.
            "whoami" | "tables" => return None,
            "grant" | "revoke" | "set_password" | "remove_password" | "users" => return why_not(Need::Grants),
            _ if mode == RightsMode::Off => return None,
            // Nodes then read it whole, and write elsewhere as the users that their configuration names.
            "create_table" | "set_options" | "delete_options" if is_about_duplication(argument) => {
                return why_not(Need::Everything);
            }
            "rights" => return why_not(Need::Grants),
            "status" | "reads" | "duplications" | "slow" | "throttle" => return why_not(Need::Monitor),
            _ => {}
        }
        let names = match named(command, argument, view.catalogue.as_deref()) {
            Ok(names) => names,
            Err(refusal) => return Some(refusal),
        };
        let only_looks = matches!(command, "describe" | "throttle_table" | "throttle_here");
        let needed = |name| if only_looks { Need::Seen(name) } else { Need::Table(name, TableRights::ADMIN) };
        // The metadata has no name, and is everybody's.
        match names.iter().any(String::is_empty) || names.is_empty() {
            true => why_not(Need::Everything),
            false => names.iter().find_map(|name| why_not(needed(name))),
        }
    }
}

/// Whether a command sets or deletes an option that says where a table is duplicated to.
fn is_about_duplication(argument: &str) -> bool {
    let Ok(argument) = serde_json::from_str::<serde_json::Value>(argument) else { return false };
    let set = argument["options"].as_object().into_iter().flat_map(|options| options.keys().map(String::as_str));
    let deleted = argument["keys"].as_array().into_iter().flatten().filter_map(|key| key.as_str());
    set.chain(deleted).any(|name| name.starts_with(OPTION_PREFIX))
}

/// The tables that a command is about; none where it is about more than tables, or it cannot be told.
fn named(command: &str, argument: &str, catalogue: Option<&Catalogue>) -> Result<Vec<String>, Refusal> {
    match command {
        "recall_table" => Ok(parse::<Recalled>(argument)?.same_name(catalogue).into_iter().collect()),
        "create_table" | "drop_table" | "set_options" | "delete_options" | "clear_options" | "prefer_leader"
        | "transfer" | "checksum" | "checksum_here" | "describe" | "throttle_table" | "throttle_here" => {
            // Whatever of them the command goes by, and none if it wants another form: then it says so itself.
            let Named { name, table } = parse(argument)?;
            Ok([name, table].into_iter().flatten().collect())
        }
        _ => Ok(Vec::new()),
    }
}
