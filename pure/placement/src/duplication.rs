//! What a table's options `duplicate.CLUSTER` say: that it is duplicated to a table of another cluster.
//!
//! ```text
//! duplicate.west = table=users id=1234567890 round=1 state=running journal_bytes=268435456
//!           '-- as the configuration files of the nodes call the other cluster
//! ```

use crate::change::check_name;
use crate::error::CatalogueError;
use crate::limit::{CLUSTER_NAME_SIZE_MAX, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What the names of these options begin with. The other cluster's name follows.
pub const OPTION_PREFIX: &str = "duplicate.";
/// The name of the option that says how a table is duplicated to the cluster called so.
pub fn option_name(cluster: &str) -> String {
    format!("{OPTION_PREFIX}{cluster}")
}

/// [`Duplication::journal_bytes`] unless somebody says it: 256 MiB.
pub const JOURNAL_BYTES_DEFAULT: u64 = 256 << 20;

/// Where a table is duplicated to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplication {
    /// Name of the table in the other cluster.
    pub table: String,
    /// Number that no other duplication has or had. Never 0.
    pub id: u64,
    /// How often all rows were to be copied, this time included: from 1 on.
    pub round: u32,
    /// What is to be done.
    pub state: State,
    /// Bytes of its journal that each partition keeps for it.
    pub journal_bytes: u64,
}

/// What is to be done with a duplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Changes are carried.
    Running,
    /// They are kept, and not carried.
    Paused,
    /// The partitions are told that there is none any more. Then the option goes.
    Removing,
}

impl State {
    const ALL: [Self; 3] = [Self::Running, Self::Paused, Self::Removing];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Removing => "removing",
        }
    }
}

impl Duplication {
    /// The form of the option's value.
    pub const FORM: &str =
        "table=NAME id=NUMBER round=NUMBER state=running|paused|removing journal_bytes=NUMBER, each once";

    /// A new one to the table called so there, of which all rows are to be copied. `id` comes from a random source, and is not 0.
    pub fn new(table: &str, id: u64) -> Self {
        assert_ne!(id, 0, "the number of a duplication is not 0");
        let journal_bytes = JOURNAL_BYTES_DEFAULT;
        Self { table: table.to_owned(), id, round: 1, state: State::Running, journal_bytes }
    }
}

/// The option's value.
impl fmt::Display for Duplication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, id, round, state, journal_bytes } = self;
        write!(f, "table={table} id={id} round={round} state={} journal_bytes={journal_bytes}", state.name())
    }
}

/// Refuses a change of a table's options that would have a duplication go, or another one take its place, before its partitions were told so:
/// they would keep their journals for it.
pub(crate) fn check_change(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Result<(), CatalogueError> {
    for (key, value) in before.iter().filter(|(key, _)| key.starts_with(OPTION_PREFIX)) {
        let Ok(known) = value.parse::<Duplication>() else { continue };
        let stays = after.get(key).and_then(|value| value.parse().ok()).filter(|it: &Duplication| it.id == known.id);
        let reason = match (known.state, stays.map(|it| it.state)) {
            // Partitions may have ended it by now, and begin none of its number again.
            (State::Removing, Some(State::Running | State::Paused)) => "it is being removed",
            (State::Running | State::Paused, None) => {
                "`hedgerow table duplicate remove` ends a duplication, and takes its option away"
            }
            _ => continue,
        };
        return Err(CatalogueError::Duplication { key: key.clone(), reason: reason.to_owned() });
    }
    Ok(())
}

/// What is wrong with the value of an option, or with its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// The inverse of [`Display`](fmt::Display). Its fields may have any order.
impl FromStr for Duplication {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut fields = Fields::default();
        for field in text.split(' ') {
            let (name, value) = field.split_once('=').ok_or_else(|| malformed(format!("{field:?} is no field")))?;
            fields.take(name, value)?;
        }
        let missing = |name| move || malformed(format!("{name} is missing"));
        Ok(Self {
            table: fields.table.ok_or_else(missing("table"))?,
            id: fields.id.ok_or_else(missing("id"))?,
            round: fields.round.ok_or_else(missing("round"))?,
            state: fields.state.ok_or_else(missing("state"))?,
            journal_bytes: fields.journal_bytes.ok_or_else(missing("journal_bytes"))?,
        })
    }
}

/// Those that were read.
#[derive(Default)]
struct Fields {
    table: Option<String>,
    id: Option<u64>,
    round: Option<u32>,
    state: Option<State>,
    journal_bytes: Option<u64>,
}

impl Fields {
    fn take(&mut self, name: &str, value: &str) -> Result<(), Malformed> {
        let is_new = match name {
            "table" => {
                check_name(value).map_err(|error| malformed(error.to_string()))?;
                self.table.replace(value.to_owned()).is_none()
            }
            "id" => {
                let id = number(name, value, 1, u64::MAX)?;
                self.id.replace(id).is_none()
            }
            "round" => {
                let round = number(name, value, 1, u64::from(u32::MAX))?;
                self.round.replace(round as u32).is_none()
            }
            "state" => {
                let state = State::ALL.into_iter().find(|state| state.name() == value);
                let state = state.ok_or_else(|| malformed(format!("there is no state {value:?}")))?;
                self.state.replace(state).is_none()
            }
            "journal_bytes" => {
                let bytes = number(name, value, JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX)?;
                self.journal_bytes.replace(bytes).is_none()
            }
            _ => return Err(malformed(format!("there is no field {name:?}"))),
        };
        if is_new { Ok(()) } else { Err(malformed(format!("{name} is there twice"))) }
    }
}

fn malformed(what: String) -> Malformed {
    Malformed(format!("{what}: its form is {}", Duplication::FORM))
}

fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64, Malformed> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_plain && (min..=max).contains(number));
    number.ok_or_else(|| Malformed(format!("{name} is {text:?}: allowed are {min} to {max}")))
}

/// Whether another cluster can be called so.
pub fn check_cluster_name(name: &str) -> Result<(), Malformed> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if (1..=CLUSTER_NAME_SIZE_MAX).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    let name: String = name.chars().take(CLUSTER_NAME_SIZE_MAX + 1).collect();
    Err(Malformed(format!(
        "cluster name {name:?} is not allowed: 1 to {CLUSTER_NAME_SIZE_MAX} characters of A-Z a-z 0-9 _ -"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = "table=users id=1234567890 round=1 state=running journal_bytes=268435456";

    #[test]
    fn what_is_written_is_read() {
        let duplication = Duplication::new("users", 1_234_567_890);
        assert_eq!(duplication.to_string(), VALUE);
        assert_eq!(VALUE.parse(), Ok(duplication));
        for state in State::ALL {
            let other = Duplication {
                table: "a.b:c-d_E".to_owned(),
                id: u64::MAX,
                round: u32::MAX,
                state,
                journal_bytes: 1 << 40,
            };
            assert_eq!(other.to_string().parse(), Ok(other));
        }
        let order = "state=paused journal_bytes=1048576 round=2 table=t id=1";
        let read: Duplication = order.parse().unwrap();
        assert_eq!((read.state, read.journal_bytes, read.round, read.id), (State::Paused, 1 << 20, 2, 1));
    }

    #[test]
    fn nothing_else_is() {
        let refused = |from: &str, to: &str| {
            assert!(VALUE.contains(from), "{from}");
            VALUE.replace(from, to).parse::<Duplication>().unwrap_err().to_string()
        };
        for (from, to, reason) in [
            ("table=users ", "", "table is missing: its form is table=NAME id=NUMBER"),
            ("id=1234567890 ", "", "id is missing"),
            ("round=1 ", "", "round is missing"),
            ("state=running ", "", "state is missing"),
            (" journal_bytes=268435456", "", "journal_bytes is missing"),
            ("round=1", "round=1 round=1", "round is there twice"),
            ("round=1", "Round=1", "there is no field \"Round\""),
            ("round=1", "round", "\"round\" is no field"),
            ("round=1 ", "round=1  ", "\"\" is no field"),
            ("round=1 ", "round=1\t", "round is \"1\\tstate=running\""),
            ("round=1", "round=0", "round is \"0\": allowed are 1 to 4294967295"),
            ("round=1", "round=4294967296", "allowed are 1 to"),
            ("round=1", "round=+1", "allowed are 1 to"),
            ("id=1234567890", "id=0", "id is \"0\": allowed are 1 to 18446744073709551615"),
            ("id=1234567890", "id=18446744073709551616", "allowed are 1 to"),
            ("id=1234567890", "id=", "allowed are 1 to"),
            ("running", "Running", "there is no state \"Running\": its form is"),
            ("268435456", "1048575", "allowed are 1048576 to 1099511627776"),
            ("268435456", "1099511627777", "allowed are 1048576 to 1099511627776"),
            ("users", "", "table name \"\" is not allowed"),
            ("users", "a/b", "1 to 128 characters"),
            ("table=users ", " ", "\"\" is no field"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(reason), "{from} -> {to}: {error}");
        }
        assert!("".parse::<Duplication>().unwrap_err().to_string().contains("is no field"));
    }

    #[test]
    fn what_partitions_keep_a_journal_for_does_not_go_by_itself() {
        let one = |value: &str| BTreeMap::from([("duplicate.west".to_owned(), value.to_owned())]);
        let (none, running) = (BTreeMap::new(), one(VALUE));
        let removing = one(&VALUE.replace("running", "removing"));
        let other = one(&VALUE.replace("id=1234567890", "id=7"));
        for (before, after) in [(&none, &running), (&running, &removing), (&removing, &none), (&removing, &other)] {
            assert_eq!(check_change(before, after), Ok(()), "{before:?} {after:?}");
        }
        for (before, after) in [(&running, &none), (&running, &other)] {
            let error = check_change(before, after).unwrap_err().to_string();
            assert!(error.contains("\"duplicate.west\" is not allowed: `hedgerow table duplicate remove`"), "{error}");
        }
        let error = check_change(&removing, &running).unwrap_err().to_string();
        assert!(error.ends_with("it is being removed"), "{error}");
    }

    #[test]
    fn clusters_have_plain_names() {
        let long = "c".repeat(CLUSTER_NAME_SIZE_MAX);
        for name in ["west", "eu-west_1", "0", "-", &long] {
            assert_eq!(check_cluster_name(name), Ok(()), "{name}");
        }
        let longer = format!("{long}c");
        for name in ["", "a.b", "a b", "ä", "a=b", &longer] {
            let error = check_cluster_name(name).unwrap_err().to_string();
            assert!(error.contains("1 to 64 characters of A-Z a-z 0-9 _ -"), "{error}");
        }
    }
}
