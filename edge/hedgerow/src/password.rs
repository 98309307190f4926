//! Passwords on their way in: from a file that nobody else may read, from standard input, or from a terminal that does not show them. Never from the
//! command line, which everybody on a machine can read.
#![allow(clippy::disallowed_methods, reason = "a person's own files, not the store's")]

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use hedgerow_client::Credentials;
use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use zeroize::Zeroizing;

/// The most that is read of a file, bytes.
const SIZE_MAX: u64 = 4_096;

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
    pub(crate) const fn are_given(&self) -> bool {
        self.user.is_some() || self.password_file.is_some()
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
        let password = match &self.password_file {
            Some(path) => from_file(path)?,
            None if io::stdin().is_terminal() => asked(&format!("Password of {user}: "))?,
            None => bail!("--user needs --password-file, or a terminal to ask for the password"),
        };
        let credentials = Credentials::new(user, &password)?;
        Ok(Some(self.known.get_or_init(|| credentials).clone()))
    }
}

/// A new password: from a file, or asked for twice, or the first line of standard input.
pub(crate) fn chosen(file: Option<&Path>) -> Result<Zeroizing<String>> {
    if let Some(path) = file {
        return from_file(path);
    }
    if !io::stdin().is_terminal() {
        return first_line(io::stdin().lock()).context("reading the password from standard input");
    }
    let (first, second) = (asked("New password: ")?, asked("Again: ")?);
    ensure!(first == second, "the two are not the same: nothing was changed");
    Ok(first)
}

fn asked(what: &str) -> Result<Zeroizing<String>> {
    rpassword::prompt_password(what).map(Zeroizing::new).context("asking for the password")
}

fn from_file(path: &Path) -> Result<Zeroizing<String>> {
    let context = || format!("reading the password in {}", path.display());
    let file = File::open(path).with_context(context)?;
    let mode = file.metadata().with_context(context)?.permissions().mode() & 0o777;
    ensure!(
        mode & 0o077 == 0,
        "{} holds a password, and others than its owner may read it (mode {mode:o}): allowed are no rights for group and others, as with 600",
        path.display()
    );
    first_line(file).with_context(context)
}

/// The first line, without its end.
fn first_line(from: impl Read) -> Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(String::with_capacity(SIZE_MAX as usize));
    io::BufReader::new(from.take(SIZE_MAX)).read_line(&mut line)?;
    ensure!(line.ends_with('\n') || (line.len() as u64) < SIZE_MAX, "it has more than {SIZE_MAX} bytes");
    let text = line.trim_end_matches(['\n', '\r']);
    ensure!(!text.is_empty(), "there is none");
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_one_line_of_a_file_that_nobody_else_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let of = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            from_file(&path).map(|it| it.to_string()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(of("with a space \r\nand more\n", 0o600), Ok("with a space ".to_owned()));
        assert_eq!(of("no end", 0o400), Ok("no end".to_owned()));
        for mode in [0o640, 0o604, 0o660] {
            assert!(of("secret", mode).unwrap_err().contains("others than its owner may read it"));
        }
        assert!(of("\n", 0o600).unwrap_err().ends_with("there is none"));
        assert!(of(&"a".repeat(5_000), 0o600).unwrap_err().contains("more than"));
    }
}
