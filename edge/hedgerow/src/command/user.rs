//! `hedgerow user`: who proves by a password who they are.

use crate::cluster::ClusterArguments;
use crate::exit::Exit;
use crate::output::{print_result, say};
use crate::password::chosen;
use anyhow::Result;
use clap::{Args, Subcommand};
use hedgerow_client::{Client, Error, ErrorKind};
use serde_json::json;
use std::path::PathBuf;

/// The sub-commands of `user`.
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Give a user a password. What it may do, `hedgerow grant` says; it is the same as by a certificate of its name.
    Add(Named),
    /// Change a user's password, and close its connections.
    Password(Named),
    /// List the users that have a password.
    List,
    /// Take a user's password, and close its connections. It keeps its rights, and may show a certificate.
    Remove {
        /// The user.
        name: String,
    },
}

/// Who, and with which password.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The user: 1 to 56 of a-z, 0-9 and "-", which is neither first nor last.
    name: String,
    /// A file with the new password on its first line, of 12 characters or more; nobody but its owner may read it. Without it the password is asked
    /// for, or read from standard input. It does not leave this process.
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

/// Nobody is asked for a password that would be refused.
async fn check_rights_count(client: &Client) -> Result<()> {
    let is_off = client.identity().await?.mode == "off";
    let text = "passwords need rights, and security.rights is off at the node that was asked: set it to \"permissive\" or \"required\" at all nodes first";
    let refusal = is_off.then(|| Error::new(ErrorKind::FailedPrecondition, text));
    refusal.map_or(Ok(()), |error| Err(error.into()))
}

pub(crate) async fn run(command: UserCommand, cluster: &ClusterArguments) -> Result<Exit> {
    let client = cluster.connect().await?;
    match command {
        UserCommand::Add(Named { name, new_password_file }) => {
            check_rights_count(&client).await?;
            client.set_password(&name, &chosen(new_password_file.as_deref())?, true).await?;
            print_result(cluster.output, || format!("user {name} has a password"), || json!({ "user": name }))?;
            let rights = client.rights().await?;
            if !rights.iter().any(|it| it.name == name) {
                say(&format!("it may do nothing of its own yet: `hedgerow grant {name} RIGHT...`"));
            }
        }
        UserCommand::Password(Named { name, new_password_file }) => {
            check_rights_count(&client).await?;
            client.set_password(&name, &chosen(new_password_file.as_deref())?, false).await?;
            print_result(cluster.output, || format!("user {name} has another password"), || json!({ "user": name }))?;
        }
        UserCommand::List => {
            let users = client.users().await?;
            print_result(cluster.output, || users.join("\n"), || json!(users))?;
            if users.is_empty() {
                say("nobody has a password");
            }
        }
        UserCommand::Remove { name } => {
            client.remove_password(&name).await?;
            let text = || format!("user {name} has no password any more");
            print_result(cluster.output, text, || json!({ "user": name }))?;
            // It is done, whether or not more can be told: it may have been one's own.
            let holdings = client.rights().await.unwrap_or_default();
            if holdings.iter().any(|it| it.name == name && !it.grants.is_empty()) {
                say(&format!("its rights stay: `hedgerow revoke {name} --all` takes them"));
            }
        }
    }
    Ok(Exit::Done)
}
