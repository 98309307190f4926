//! `hedgerow grant`, `revoke` and `rights`: who may do what.

use crate::cluster::ClusterArguments;
use crate::exit::Exit;
use crate::output::{columns, print_result, say};
use anyhow::{Result, ensure};
use clap::Args;
use hedgerow_client::{Client, Holding, Identity};
use serde_json::json;

/// What rights there are, for `--help`.
const THERE_ARE: &str = "\
Rights:
  read:TABLES      read rows
  write:TABLES     write rows; what tells a former or a new value needs read as well
  admin:TABLES     create, drop, recall, change and check tables, and move their leaders
  monitor          see the state of the cluster, and no rows
  cluster-admin    do everything
  @ROLE            do what the role lets its members; everybody is a member of @everyone

TABLES is the name of a table, whether there is one or not, the beginning of names with * after it, or * for all.";

/// Give rights to a user or a role.
#[derive(Args, Debug)]
#[command(after_help = THERE_ARE)]
pub(crate) struct GrantArguments {
    /// The user, as its certificate calls it (`hedgerow certificate client NAME`), or a role: @NAME.
    name: String,
    /// What it is to have.
    #[arg(required = true, value_name = "RIGHT")]
    rights: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Take rights from a user or a role.
#[derive(Args, Debug)]
#[command(after_help = THERE_ARE)]
pub(crate) struct RevokeArguments {
    /// The user, or a role: @NAME.
    name: String,
    /// What is taken. Nothing is, if it has not been given one of them.
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "RIGHT")]
    rights: Vec<String>,
    /// Take all that it has been given.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Show who has been given what.
#[derive(Args, Debug)]
pub(crate) struct RightsArguments {
    /// Show who you are to the cluster, and what you have been given; everybody may.
    #[arg(long)]
    mine: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

pub(crate) async fn grant(arguments: GrantArguments) -> Result<Exit> {
    let GrantArguments { name, rights, cluster } = arguments;
    let client = cluster.connect().await?;
    let is_changed = client.grant(&name, &texts(&rights)).await?;
    let text = || match is_changed {
        true => format!("{name} has been given {}", rights.join(", ")),
        false => format!("{name} had {} already", rights.join(", ")),
    };
    print_result(cluster.output, text, || json!({ "name": name, "changed": is_changed }))?;
    Ok(Exit::Done)
}

pub(crate) async fn revoke(arguments: RevokeArguments) -> Result<Exit> {
    let RevokeArguments { name, rights, all, cluster } = arguments;
    ensure!(all || !rights.is_empty(), "nothing is to be taken: name rights, or say --all");
    let client = cluster.connect().await?;
    let is_changed = client.revoke(&name, &texts(&rights)).await?;
    let what = if all { "all rights".to_owned() } else { rights.join(", ") };
    print_result(
        cluster.output,
        || format!("{what} taken from {name}; `hedgerow rights` shows who has what"),
        || json!({ "name": name, "changed": is_changed }),
    )?;
    Ok(Exit::Done)
}

pub(crate) async fn rights(arguments: RightsArguments) -> Result<Exit> {
    let RightsArguments { mine, cluster } = arguments;
    let client = cluster.connect().await?;
    if mine {
        let Identity { user, is_node, is_administrator, rights, mode } = client.identity().await?;
        let text = || {
            let who = match &user {
                Some(user) => user.as_str(),
                None if is_node => "none (the certificate is a node's)",
                None => "nobody (no certificate of a client was asked for or shown)",
            };
            let administrator = if is_administrator { "yes: may do everything" } else { "no" };
            let given = if rights.is_empty() { "none".to_owned() } else { rights.join(", ") };
            format!(
                "user           {who}\nadministrator  {administrator}\nrights         {given}\nmode           {mode}"
            )
        };
        let as_json = || json!({ "user": user, "is_node": is_node, "is_administrator": is_administrator, "rights": rights, "mode": mode });
        print_result(cluster.output, text, as_json)?;
        return Ok(Exit::Done);
    }
    let listed = client.rights().await?;
    let text = || {
        let row = |Holding { name, grants }: &Holding| vec![name.clone(), grants.join(", ")];
        columns(&["name", "rights"], &listed.iter().map(row).collect::<Vec<_>>())
    };
    let as_json = || {
        let of_holder = |it: &Holding| json!({ "name": it.name, "grants": it.grants });
        json!(listed.iter().map(of_holder).collect::<Vec<_>>())
    };
    print_result(cluster.output, text, as_json)?;
    if listed.is_empty() {
        say("nobody has been given any rights");
    }
    warn_of_off(&client).await;
    Ok(Exit::Done)
}

fn texts(rights: &[String]) -> Vec<&str> {
    rights.iter().map(String::as_str).collect()
}

/// Rights that nobody goes by protect nothing.
async fn warn_of_off(client: &Client) {
    let Ok(identity) = client.identity().await else { return };
    match identity.mode.as_str() {
        "required" => {}
        "permissive" => {
            say("what would be refused is only counted: security.rights = \"permissive\" at the node that was asked")
        }
        _ => say("nothing is refused: security.rights is off at the node that was asked"),
    }
}
