//! The options of a table: every one that this version acts on, with what it means and which values it takes.
//!
//! The names and values of those that Apache Pegasus has too are Pegasus'.

use crate::error::CatalogueError;
use crate::limit::{COMMENT_SIZE_MAX, SLOW_QUERY_THRESHOLD_MS_MIN};
use std::collections::BTreeMap;

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name.
    pub key: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Which values it takes.
    pub values: &'static str,
    apply: fn(&mut Settings, &str) -> bool,
}

/// Every option there is, in the order of their names.
pub const KNOWN: [Known; 4] = [
    Known {
        key: "comment",
        meaning: "what the table is for, in the operator's words; shown by describe",
        values: "text of at most 256 bytes without control characters",
        apply: |settings, value| {
            let is_allowed = value.len() <= COMMENT_SIZE_MAX && !value.chars().any(char::is_control);
            settings.comment = value.to_owned();
            is_allowed
        },
    },
    Known {
        key: "default_ttl",
        meaning: "seconds that a record lives when it was written without a time to live; 0 = for ever",
        values: "a whole number of seconds from 0 to 2147483647",
        apply: |settings, value| {
            let seconds = decimal(value, 0, i32::MAX as u32);
            settings.default_ttl_seconds = seconds.unwrap_or(0);
            seconds.is_some()
        },
    },
    Known {
        key: "replica.deny_client_request",
        meaning: "refuses client requests: with `timeout` they get no answer, with `reconfig` clients are told to look \
                  for another replica",
        values: "timeout*all, timeout*read, timeout*write, reconfig*all, reconfig*read or reconfig*write",
        apply: |settings, value| {
            settings.deny = Deny::parse(value);
            settings.deny.is_some()
        },
    },
    Known {
        key: "replica.slow_query_threshold",
        meaning: "milliseconds from which a request counts as slow and is logged",
        values: "a whole number of milliseconds from 20 to 2147483647",
        apply: |settings, value| {
            settings.slow_query_threshold_ms = decimal(value, SLOW_QUERY_THRESHOLD_MS_MIN, i32::MAX as u32);
            settings.slow_query_threshold_ms.is_some()
        },
    },
];

/// A table's options as a node acts on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `comment`.
    pub comment: String,
    /// `default_ttl`, seconds; 0 = records live for ever.
    pub default_ttl_seconds: u32,
    /// `replica.deny_client_request`.
    pub deny: Option<Deny>,
    /// `replica.slow_query_threshold`, milliseconds.
    pub slow_query_threshold_ms: Option<u32>,
}

impl Settings {
    /// What `options` say. Refuses unknown options and values, with an error that tells what there is.
    pub fn from_options(options: &BTreeMap<String, String>) -> Result<Self, CatalogueError> {
        let mut settings = Self::default();
        for (key, value) in options {
            let known = find(key)?;
            if !(known.apply)(&mut settings, value) {
                let (key, expected) = (known.key, known.values);
                return Err(CatalogueError::OptionValue { key, value: value.clone(), expected });
            }
        }
        Ok(settings)
    }
}

/// Which client requests are refused, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deny {
    /// How.
    pub answer: DenyAnswer,
    /// Whether reads are refused.
    pub denies_reads: bool,
    /// Whether writes are refused.
    pub denies_writes: bool,
}

/// How a denied request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenyAnswer {
    /// Not at all.
    Silence,
    /// As a node that does not serve the partition would.
    InvalidState,
}

impl Deny {
    fn parse(value: &str) -> Option<Self> {
        let (answer, scope) = value.split_once('*')?;
        let answer = match answer {
            "timeout" => DenyAnswer::Silence,
            "reconfig" => DenyAnswer::InvalidState,
            _ => return None,
        };
        let (denies_reads, denies_writes) = match scope {
            "all" => (true, true),
            "read" => (true, false),
            "write" => (false, true),
            _ => return None,
        };
        Some(Self { answer, denies_reads, denies_writes })
    }
}

/// The option called `key`.
pub fn find(key: &str) -> Result<&'static Known, CatalogueError> {
    KNOWN.iter().find(|known| known.key == key).ok_or_else(|| CatalogueError::UnknownOption {
        key: key.to_owned(),
        known: KNOWN.map(|known| known.key).join(", "),
    })
}

/// `text` as a number, if it is written with digits alone and lies in `min..=max`.
fn decimal(text: &str, min: u32, max: u32) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && (min..=max).contains(number))
}
