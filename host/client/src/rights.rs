//! Who may do what: giving rights to users and roles, and taking them.

use crate::admin::read_json;
use crate::client::Client;
use crate::cluster::Sort;
use crate::error::Result;
use serde::Deserialize;
use serde_json::{Value, json};

/// What a user or a role has been given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Holding {
    /// Its name; a role's begins with `@`.
    pub name: String,
    /// Each right, as [`Client::grant`] takes it.
    pub grants: Vec<String>,
}

/// Who this client is to the node that it asked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Identity {
    /// Its user: by its certificate, or the one that it logged in as. `None` where it did neither, and where nodes have no rights and do not ask.
    pub user: Option<String>,
    /// Whether it shows a node's certificate.
    pub is_node: bool,
    /// Whether it may do everything whatever it has been given: the node's configuration names it, or it is a node.
    pub is_administrator: bool,
    /// What it has been given, by itself, by its roles and as one of everybody.
    pub rights: Vec<String>,
    /// Whether the node goes by rights: `off`, `permissive` or `required`.
    pub mode: String,
}

#[derive(Deserialize)]
struct Listed {
    rights: Vec<Holding>,
}

impl Client {
    /// Gives rights to a user or to a role (`@name`): `read:TABLES`, `write:TABLES`, `admin:TABLES`, where `TABLES` is a table's name, the
    /// beginning of names with `*` after it, or `*`; `monitor`; `cluster-admin`; `@ROLE`. Returns whether it lacked any of them. Where the outcome is
    /// unknown ([`crate::Error::is_outcome_unknown`]) it is not asked for again by itself: somebody else may have taken it since.
    pub async fn grant(&self, name: &str, grants: &[&str]) -> Result<bool> {
        let argument = json!({ "name": name, "grants": grants });
        Ok(is_changed(&self.command("grant", &argument, Sort::Once).await?))
    }

    /// Takes rights from a user or a role; an empty list takes all. If it lacks one of them, nothing is taken, and that is an error. What it has as
    /// one of everybody it keeps, and what it has by a role unless the role is taken, too. Where the outcome is unknown it is not asked for again by itself.
    pub async fn revoke(&self, name: &str, grants: &[&str]) -> Result<bool> {
        let argument = json!({ "name": name, "grants": grants });
        Ok(is_changed(&self.command("revoke", &argument, Sort::Once).await?))
    }

    /// Who has been given what, by name.
    pub async fn rights(&self) -> Result<Vec<Holding>> {
        let text = self.run_command("rights", "{}".into(), self.admin_timeout(), Sort::Look).await?;
        read_json::<Listed>("rights", &text).map(|listed| listed.rights)
    }

    /// Who this client is to the node that answers.
    pub async fn identity(&self) -> Result<Identity> {
        let text = self.run_command("whoami", "{}".into(), self.admin_timeout(), Sort::Look).await?;
        read_json("whoami", &text)
    }
}

fn is_changed(answer: &Value) -> bool {
    answer["changed"] == true
}
