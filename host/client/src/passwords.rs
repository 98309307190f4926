//! Users that prove by a password who they are: who has one, and what the cluster keeps of it.

use crate::admin::read_json;
use crate::client::Client;
use crate::cluster::Sort;
use crate::error::{Error, Result};
use crate::runtime::{compute, random_bytes};
use hedgerow_scram::{ITERATIONS, Mask, Password, Verifier};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Listed {
    users: Vec<String>,
}

impl Client {
    /// Gives `user` its first password, or another one unless `is_new`. The cluster is told what the password is checked by, which is computed here, and
    /// not the password. Connections that were logged in on with the one before are closed.
    ///
    /// Fails with [`crate::ErrorKind::FailedPrecondition`] if the user has one already, or none as it should have, and where the nodes do not go by
    /// rights; with [`crate::ErrorKind::Invalid`] if `user` is no name, or if the password has fewer than 12 characters, more than 1,024 bytes, or
    /// characters that RFC 4013 does not allow. Where the outcome is unknown ([`crate::Error::is_outcome_unknown`]) it is not asked for again by itself.
    pub async fn set_password(&self, user: &str, password: &str, is_new: bool) -> Result<()> {
        let password = Password::chosen(password).map_err(|error| Error::invalid(error.to_string()))?;
        let salt = random_bytes();
        let verifier = compute(move || Verifier::new(&password, &salt, ITERATIONS)).await;
        let verifier = verifier.ok_or_else(|| Error::invalid("there is no thread to hash the password"))?;
        let mask = Mask::new(random_bytes());
        let argument = json!({
            "name": user,
            "verifier": *verifier.to_text(),
            "mask": *mask.to_text(),
            "is_new": is_new,
        });
        self.command("set_password", &argument, Sort::Once).await.map(drop)
    }

    /// Takes the password of `user`, whose connections that were logged in on are closed. It keeps its rights, and may show a certificate. Fails with
    /// [`crate::ErrorKind::FailedPrecondition`] if it has none.
    pub async fn remove_password(&self, user: &str) -> Result<()> {
        self.command("remove_password", &json!({ "name": user }), Sort::Once).await.map(drop)
    }

    /// The users that have a password, by name.
    pub async fn users(&self) -> Result<Vec<String>> {
        let text = self.run_command("users", "{}".into(), self.admin_timeout(), Sort::Look).await?;
        read_json::<Listed>("users", &text).map(|listed| listed.users)
    }
}
