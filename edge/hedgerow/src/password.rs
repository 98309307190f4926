//! Passwords on their way in: from a file that nobody else may read, from standard input, or from a terminal that does not show them. Never from the
//! command line, which everybody on a machine can read.

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use hedgerow_client::{Credentials, password_file};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use zeroize::Zeroizing;

/// Who logs in.
#[derive(Args, Clone, Debug)]
pub(crate) struct CredentialArguments {
    /// Log in as this user, whose password is in --password-file, or is asked for. Needs --tls-ca, and no certificate.
    #[arg(long, global = true, env = "HEDGEROW_USER", value_name = "NAME", hide_env_values = true)]
    user: Option<String>,
    /// A file with the password of --user, on one line; nobody but its owner may read it.
    #[arg(long, global = true, env = "HEDGEROW_PASSWORD_FILE", value_name = "FILE", hide_env_values = true)]
    password_file: Option<PathBuf>,
    /// What was read, or asked for, once.
    #[arg(skip)]
    known: Arc<OnceLock<Credentials>>,
}

impl CredentialArguments {
    /// Whether somebody is to log in.
    pub(crate) const fn have_user(&self) -> bool {
        self.user.is_some()
    }

    /// Who logs in, if somebody does, and where the password is.
    pub(crate) fn files(&self) -> Result<Option<(String, PathBuf)>> {
        match (&self.user, &self.password_file) {
            (None, None) => Ok(None),
            (Some(user), Some(path)) => Ok(Some((user.clone(), path.clone()))),
            (Some(_), None) => bail!("--user needs --password-file here: other processes log in as well"),
            (None, Some(_)) => bail!("--password-file goes with --user"),
        }
    }

    /// The same with what is in the file now. What was asked for is not asked for again.
    pub(crate) fn read_anew(&self) -> Self {
        let known = if self.password_file.is_some() { Arc::default() } else { Arc::clone(&self.known) };
        Self { known, ..self.clone() }
    }

    /// Who logs in, if somebody does. May ask for the password.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>> {
        let Some(user) = &self.user else {
            ensure!(self.password_file.is_none(), "--password-file goes with --user");
            return Ok(None);
        };
        if let Some(known) = self.known.get() {
            return Ok(Some(known.clone()));
        }
        let credentials = match &self.password_file {
            Some(path) => Credentials::from_file(user, path)?,
            None if io::stdin().is_terminal() => Credentials::new(user, &asked(&format!("Password of {user}: "))?)?,
            None => bail!("--user needs --password-file, or a terminal to ask for the password"),
        };
        Ok(Some(self.known.get_or_init(|| credentials).clone()))
    }
}

/// A new password: from a file, or asked for twice, or the first line of standard input.
pub(crate) fn chosen(file: Option<&Path>) -> Result<Zeroizing<String>> {
    if let Some(path) = file {
        return Ok(password_file::read(path)?);
    }
    if !io::stdin().is_terminal() {
        return password_file::first_line(io::stdin().lock()).context("reading the password from standard input");
    }
    let (first, second) = (asked("New password: ")?, asked("Again: ")?);
    ensure!(first == second, "the two are not the same: nothing was changed");
    Ok(first)
}

fn asked(what: &str) -> Result<Zeroizing<String>> {
    rpassword::prompt_password(what).map(Zeroizing::new).context("asking for the password")
}
