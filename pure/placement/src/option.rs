//! The options of a table: every one that this version acts on, with what it means and which values it takes.
//!
//! The names and values of those that Apache Pegasus has too are Pegasus'.

use crate::duplication::{Duplication, Malformed, OPTION_PREFIX, check_cluster_name};
use crate::error::CatalogueError;
use crate::limit::{
    COMMENT_SIZE_MAX, READ_REPLICA_COUNT_MAX, SLOW_QUERY_THRESHOLD_MS_MIN, STORED_COUNT_MAX, STORED_KEY_SIZE_MAX,
    STORED_VALUE_SIZE_MAX,
};
use crate::throttling::Throttling;
use hedgerow_types::ReadLevel;
use hedgerow_types::journal::DUPLICATION_COUNT_MAX;
use std::collections::BTreeMap;
use std::time::Duration;

/// One option, or a family of them.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name; of a family, the common beginning of the names and, after its last dot, what follows there.
    pub key: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Which values it takes.
    pub values: &'static str,
    apply: Apply,
}

/// How an option changes the settings.
#[derive(Clone, Copy, Debug)]
enum Apply {
    /// By its value. Returns whether it takes that.
    Value(fn(&mut Settings, &str) -> bool),
    /// Each option of a family: by the rest of its name and its value. Returns what is wrong if it is not taken.
    Family(fn(&mut Settings, &str, &str) -> Result<(), String>),
}

use Apply::{Family, Value};

/// Every option there is, in the order of their names.
pub const KNOWN: [Known; 11] = [
    Known {
        key: "backup_read_level",
        meaning: "how fresh a backup read of a Pegasus client is (v1 requests that carry the backup flag); eventual is \
                  what Pegasus does",
        values: ReadLevel::FORMS,
        apply: Value(|settings, value| set(&mut settings.backup_read_level, value.parse().ok())),
    },
    Known {
        key: BACKUP_REQUEST_THROTTLING,
        meaning: "how many extra attempts per second the whole table takes: backup requests of Pegasus' clients, and hedges, \
                  ties and fallbacks of ours",
        values: Throttling::FORMS,
        apply: Value(|settings, value| set(&mut settings.throttling, Throttling::parse(value))),
    },
    Known {
        key: "comment",
        meaning: "what the table is for, in the operator's words; shown by describe",
        values: "text of at most 256 bytes without control characters",
        apply: Value(|settings, value| {
            let is_allowed = value.len() <= COMMENT_SIZE_MAX && !value.chars().any(char::is_control);
            settings.comment = value.to_owned();
            is_allowed
        }),
    },
    Known {
        key: "default_ttl",
        meaning: "seconds that a record lives when it was written without a time to live; 0 = for ever",
        values: "a whole number of seconds from 0 to 2147483647",
        apply: Value(|settings, value| set(&mut settings.default_ttl_seconds, decimal(value, 0, i32::MAX as u32))),
    },
    Known {
        key: "duplicate.CLUSTER",
        meaning: "that the table is duplicated to a table of the cluster that the nodes' configuration files call CLUSTER; \
                  made and changed by `hedgerow table duplicate`",
        values: Duplication::FORM,
        apply: Family(Settings::add_duplication),
    },
    Known {
        key: "follower_reads",
        meaning: "whether followers and learners serve reads of clients that do not say who may, at the table's \
                  read_level; otherwise they answer that they do not lead",
        values: "true or false",
        apply: Value(|settings, value| set(&mut settings.follower_reads, value.parse().ok())),
    },
    Known {
        key: "read_level",
        meaning: "how fresh reads are that do not say it",
        values: ReadLevel::FORMS,
        apply: Value(|settings, value| set(&mut settings.read_level, value.parse().ok())),
    },
    Known {
        key: READ_REPLICAS,
        meaning: "read-only replicas of each partition, beside those that vote",
        values: "a whole number from 0 to 7; each replica of a partition needs a node of its own",
        apply: Value(|settings, value| set(&mut settings.read_replicas, decimal(value, 0, READ_REPLICA_COUNT_MAX))),
    },
    Known {
        key: PEGASUS_BACKUP_REQUEST_THROTTLING,
        meaning: "the name that Pegasus has for backup_request_throttling: setting one of them replaces the other",
        values: Throttling::FORMS,
        apply: Value(|settings, value| set(&mut settings.throttling, Throttling::parse(value))),
    },
    Known {
        key: "replica.deny_client_request",
        meaning: "refuses client requests: with `timeout` they get no answer, with `reconfig` clients are told to look \
                  for another replica",
        values: "timeout*all, timeout*read, timeout*write, reconfig*all, reconfig*read or reconfig*write",
        apply: Value(|settings, value| {
            settings.deny = Deny::parse(value);
            settings.deny.is_some()
        }),
    },
    Known {
        key: "replica.slow_query_threshold",
        meaning: "milliseconds from which a request counts as slow and is logged",
        values: "a whole number of milliseconds from 20 to 2147483647",
        apply: Value(|settings, value| {
            settings.slow_query_threshold_ms = decimal(value, SLOW_QUERY_THRESHOLD_MS_MIN, i32::MAX as u32);
            settings.slow_query_threshold_ms.is_some()
        }),
    },
];

/// Pegasus' options for things that are done in another way here, or not at all: they are stored and shown, and nothing
/// follows from them. A name that ends with a dot stands for all that begin with it. Those that protect something, such
/// as limits on writes or access lists, are not among them: taking them without acting on them would deceive.
pub const WITHOUT_EFFECT: [&str; 6] = [
    "business.info",
    "manual_compact.",
    "replica.split.validate_partition_hash",
    "rocksdb.",
    "split.validate_partition_hash",
    "user_specified_compaction",
];

const BACKUP_REQUEST_THROTTLING: &str = "backup_request_throttling";
const PEGASUS_BACKUP_REQUEST_THROTTLING: &str = "replica.backup_request_throttling";
/// The name of the option that says how many learners a partition has.
pub(crate) const READ_REPLICAS: &str = "read_replicas";
/// [`Settings::backup_read_level`] of a table that does not say it. Pegasus promises nothing.
pub const BACKUP_READ_LEVEL_DEFAULT: ReadLevel = ReadLevel::Bounded(Duration::from_secs(1));

/// A table's options as a node acts on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `backup_read_level`: that of a request with Pegasus' backup flag.
    pub backup_read_level: ReadLevel,
    /// `comment`.
    pub comment: String,
    /// `default_ttl`, seconds; 0 = records live for ever.
    pub default_ttl_seconds: u32,
    /// `duplicate.CLUSTER`, by CLUSTER.
    pub duplications: BTreeMap<String, Duplication>,
    /// `follower_reads`: whether replicas that do not lead serve requests that neither allow any replica nor carry the
    /// backup flag.
    pub follower_reads: bool,
    /// `read_level`: that of a request that does not say one.
    pub read_level: ReadLevel,
    /// `read_replicas`: learners that each partition should have.
    pub read_replicas: u32,
    /// `replica.deny_client_request`.
    pub deny: Option<Deny>,
    /// `replica.slow_query_threshold`, milliseconds.
    pub slow_query_threshold_ms: Option<u32>,
    /// `backup_request_throttling`.
    pub throttling: Throttling,
}

/// Those of a table without options.
impl Default for Settings {
    fn default() -> Self {
        Self {
            backup_read_level: BACKUP_READ_LEVEL_DEFAULT,
            comment: String::new(),
            default_ttl_seconds: 0,
            duplications: BTreeMap::new(),
            follower_reads: false,
            read_level: ReadLevel::default(),
            read_replicas: 0,
            deny: None,
            slow_query_threshold_ms: None,
            throttling: Throttling::default(),
        }
    }
}

impl Settings {
    /// What `options` say. Refuses unknown options and values, with an error that tells what there is.
    pub fn from_options(options: &BTreeMap<String, String>) -> Result<Self, CatalogueError> {
        let mut settings = Self::default();
        let stored_only = options.keys().filter(|key| is_without_effect(key)).count();
        if stored_only > STORED_COUNT_MAX {
            let expected = "a table has at most 64 of these";
            return Err(CatalogueError::OptionValue {
                key: "without effect here",
                value: stored_only.to_string(),
                expected,
            });
        }
        for (key, value) in options {
            if is_without_effect(key) {
                check_stored_only(key, value)?;
                continue;
            }
            let known = find(key)?;
            settings.apply(known, key, value)?;
            if let Some(other) = other_name(key).filter(|other| options.contains_key(*other)) {
                return Err(CatalogueError::SameOption { key: known.key, other });
            }
        }
        Ok(settings)
    }

    fn apply(&mut self, known: &Known, key: &str, value: &str) -> Result<(), CatalogueError> {
        match known.apply {
            Value(apply) if apply(self, value) => Ok(()),
            Value(_) => {
                let (key, expected) = (known.key, known.values);
                Err(CatalogueError::OptionValue { key, value: value.to_owned(), expected })
            }
            Family(apply) => apply(self, known.rest_of(key).unwrap_or_default(), value)
                .map_err(|reason| CatalogueError::Duplication { key: key.to_owned(), reason }),
        }
    }

    fn add_duplication(&mut self, cluster: &str, value: &str) -> Result<(), String> {
        check_cluster_name(cluster).map_err(|error| error.to_string())?;
        let duplication: Duplication = value.parse().map_err(|error: Malformed| error.to_string())?;
        let other = self.duplications.iter().find(|(_, other)| other.id == duplication.id);
        if let Some((other, _)) = other {
            return Err(format!("{OPTION_PREFIX}{other} has id {} too: each has one of its own", duplication.id));
        }
        if self.duplications.len() >= DUPLICATION_COUNT_MAX {
            return Err(format!("a table is duplicated to at most {DUPLICATION_COUNT_MAX} clusters"));
        }
        self.duplications.insert(cluster.to_owned(), duplication);
        Ok(())
    }
}

impl Known {
    /// What follows the family's common beginning in `key`, if that is one of it.
    fn rest_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        let dot = self.key.rfind('.')?;
        key.strip_prefix(&self.key[..=dot])
    }

    fn is_called(&self, key: &str) -> bool {
        match self.apply {
            Value(_) => self.key == key,
            Family(_) => self.rest_of(key).is_some(),
        }
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

/// How many learners `options` ask for; 0 if they do not say it.
pub(crate) fn read_replicas(options: &BTreeMap<String, String>) -> u32 {
    options.get(READ_REPLICAS).and_then(|value| decimal(value, 0, READ_REPLICA_COUNT_MAX)).unwrap_or(0)
}

/// The other name of the option called `key`, if it has two. At most one of them is set.
pub(crate) fn other_name(key: &str) -> Option<&'static str> {
    match key {
        BACKUP_REQUEST_THROTTLING => Some(PEGASUS_BACKUP_REQUEST_THROTTLING),
        PEGASUS_BACKUP_REQUEST_THROTTLING => Some(BACKUP_REQUEST_THROTTLING),
        _ => None,
    }
}

/// Whether the option called `key` is stored and shown, and does nothing.
pub fn is_without_effect(key: &str) -> bool {
    let is_it = |name: &str| if name.ends_with('.') { key.starts_with(name) } else { key == name };
    WITHOUT_EFFECT.iter().any(|name| is_it(name))
}

fn check_stored_only(key: &str, value: &str) -> Result<(), CatalogueError> {
    let is_plain = |text: &str, max: usize| text.len() <= max && !text.chars().any(char::is_control);
    if is_plain(key, STORED_KEY_SIZE_MAX) && is_plain(value, STORED_VALUE_SIZE_MAX) {
        return Ok(());
    }
    let value = value.chars().take(64).collect();
    let expected = "name and value are text of at most 128 and 4096 bytes without control characters";
    Err(CatalogueError::OptionValue { key: "without effect here", value, expected })
}

/// The option called `key`, or the family of it.
pub fn find(key: &str) -> Result<&'static Known, CatalogueError> {
    KNOWN.iter().find(|known| known.is_called(key)).ok_or_else(|| CatalogueError::UnknownOption {
        key: key.to_owned(),
        known: KNOWN.map(|known| known.key).join(", "),
    })
}

/// Sets `field` if there is a value for it. Returns whether there is.
fn set<T>(field: &mut T, value: Option<T>) -> bool {
    value.map(|value| *field = value).is_some()
}

/// `text` as a number, if it is written with digits alone and lies in `min..=max`.
fn decimal(text: &str, min: u32, max: u32) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && (min..=max).contains(number))
}
