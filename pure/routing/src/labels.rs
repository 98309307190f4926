//! Where a node or a client stands, in the operator's words: `zone=a,region=eu`.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// Names and values that say where something is. How near two places are is how many labels they share, so any names
/// will do, as long as nodes and clients use the same ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// The same with `name` set to `value`.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// How many labels are equal in name and value. The larger, the nearer.
    pub fn equal_count(&self, other: &Self) -> usize {
        self.0.iter().filter(|(name, value)| other.0.get(*name) == Some(*value)).count()
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names with their values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Labels {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> Self {
        Self(labels.into_iter().collect())
    }
}

/// `name=value`, with commas between several; nothing for none.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, value)) in self.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

/// A text that is no labels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no label; labels have the form name=value, with commas between several, for example zone=a,region=eu"
)]
pub struct InvalidLabels(String);

/// The inverse of the display. Refuses empty names and values, and a name that stands there twice.
impl FromStr for Labels {
    type Err = InvalidLabels;

    fn from_str(text: &str) -> Result<Self, InvalidLabels> {
        let mut labels = BTreeMap::new();
        for label in text.split(',').filter(|_| !text.is_empty()) {
            let parts = label.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
            let Some((name, value)) = parts.filter(|(name, value)| !name.is_empty() && !value.is_empty()) else {
                return Err(InvalidLabels(label.to_owned()));
            };
            if labels.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(InvalidLabels(label.to_owned()));
            }
        }
        Ok(Self(labels))
    }
}
