//! An outcome's beginning, and its way back from a folder.
#![allow(clippy::disallowed_methods, reason = "result.json is a file of the results folder")]

use crate::schema::{Hedging, Machine, Outcome, SCHEMA, VERSION, VERSION_MIN};
use crate::time::utc_now;
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use std::fs;
use std::path::Path;

/// The file of a results folder that holds the outcome.
pub(crate) const RESULT_FILE: &str = "result.json";

/// The part of `result.json` that no version changes.
#[derive(Deserialize)]
struct Heading {
    #[serde(default)]
    schema: String,
    version: Option<u32>,
}

impl Outcome {
    /// An outcome without runs that begins now, on this machine. `command` is what gives it again, word by word.
    pub fn new(title: &str, command: Vec<String>, seed: u64) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            title: title.to_owned(),
            command,
            started: utc_now(),
            machine: Machine::read(),
            seed,
            ..Self::default()
        }
    }

    /// The outcome in the results folder `directory`.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(RESULT_FILE);
        let bytes = fs::read(&path)
            .with_context(|| format!("{} is no results folder: reading {RESULT_FILE}", directory.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} cannot be used", path.display()))
    }

    /// The outcome in the bytes of a `result.json`.
    fn parse(bytes: &[u8]) -> Result<Self> {
        let heading: Heading = serde_json::from_slice(bytes).context("this is no result of Hedgerow")?;
        ensure!(heading.schema == SCHEMA, "its schema is {:?}; it must be {SCHEMA:?}", heading.schema);
        let version = heading.version.context("it has no version")?;
        ensure!(
            (VERSION_MIN..=VERSION).contains(&version),
            "it is of version {version}; this program reads versions {VERSION_MIN} to {VERSION}"
        );
        let outcome: Self =
            serde_json::from_slice(bytes).with_context(|| format!("it does not have the form of version {version}"))?;
        let mut hedging = outcome.runs.iter().filter_map(|run| run.hedging.as_ref()).peekable();
        ensure!(
            version > 1 || hedging.peek().is_none(),
            "it does not have the form of version 1: there is a field `hedging`"
        );
        let is_of_3 = |it: &Hedging| it.held_up.is_some() || it.kinds.values().any(|kind| kind.sent_late > 0);
        ensure!(
            version > 2 || !hedging.any(is_of_3),
            "it does not have the form of version {version}: there is `held_up` or `sent_late`"
        );
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        format!("{:#}", Outcome::parse(json.as_bytes()).unwrap_err())
    }

    #[test]
    fn what_is_written_is_read() {
        let outcome = Outcome::new("a title", vec!["hedgerow".to_owned(), "bench".to_owned()], 7);
        let bytes = serde_json::to_vec(&outcome).unwrap();
        assert_eq!(Outcome::parse(&bytes).unwrap(), outcome);
    }

    #[test]
    fn other_versions_and_schemas_are_refused_by_name() {
        assert_eq!(
            refusal(r#"{"schema": "hedgerow-result", "version": 4, "news": []}"#),
            "it is of version 4; this program reads versions 1 to 3"
        );
        assert_eq!(
            refusal(r#"{"schema": "other", "version": 1}"#),
            r#"its schema is "other"; it must be "hedgerow-result""#
        );
        assert_eq!(refusal(r#"{"schema": "hedgerow-result"}"#), "it has no version");
        assert!(refusal("[]").starts_with("this is no result of Hedgerow: "));
        assert!(refusal(r#"{"schema": "hedgerow-result", "version": 1}"#).contains("missing field `title`"));
    }

    #[test]
    fn unknown_fields_are_refused() {
        let mut json = serde_json::to_value(Outcome::new("t", Vec::new(), 1)).unwrap();
        json["typo"] = 1.into();
        assert!(refusal(&json.to_string()).contains("unknown field `typo`"));
    }

    #[test]
    fn a_folder_without_a_result_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", Outcome::read(folder.path()).unwrap_err());
        assert!(error.contains("is no results folder: reading result.json: No such file"), "{error}");
    }
}
