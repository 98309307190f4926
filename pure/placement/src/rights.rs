//! Who may do what: the rights that users and roles have been given, and what they come to.
//!
//! A *holder* is a user, by the name in its certificate, or a role, whose name begins with `@`. What a role has been given its members
//! have; roles have no roles. Everybody is a member of [`EVERYONE`], also who shows no certificate.
//!
//! | grant | lets its holder |
//! |---|---|
//! | `read:TABLES`, `write:TABLES` | read and write rows |
//! | `admin:TABLES` | create, drop, recall, change and check tables, and move their leaders |
//! | `monitor` | see the state of the cluster, of its nodes and of all tables, and no rows |
//! | `cluster-admin` | do everything, and give rights |
//! | `@ROLE` | do what the role lets its members |
//!
//! `TABLES` is the name of a table, whether there is one or not, the beginning of names with `*` after it, or `*` for all.

use crate::catalogue::Catalogue;
use crate::change::check_name;
use crate::error::CatalogueError;
use crate::limit::{GRANTS_PER_HOLDER_MAX, HOLDER_NAME_SIZE_MAX, RIGHTS_SIZE_MAX};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// The role that everybody has.
pub const EVERYONE: &str = "@everyone";

/// What a grant's text costs beside its characters, bytes: its quotes, its comma.
const GRANT_OVERHEAD: usize = 4;

/// A name that rights can be given to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder(String);

impl Holder {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether it is a role, and no user.
    pub fn is_role(&self) -> bool {
        self.0.starts_with('@')
    }
}

/// Compared and ordered as its name is.
impl Borrow<str> for Holder {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for Holder {
    type Err = CatalogueError;

    fn from_str(text: &str) -> Result<Self, CatalogueError> {
        let name = text.strip_prefix('@').unwrap_or(text);
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = (1..=HOLDER_NAME_SIZE_MAX).contains(&name.len())
            && name.bytes().all(is_allowed)
            && !name.starts_with('-')
            && !name.ends_with('-');
        if is_name { Ok(Self(text.to_owned())) } else { Err(CatalogueError::Holder(text.to_owned())) }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which tables a grant is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tables {
    /// The one of this name.
    Named(String),
    /// Those whose names begin so.
    Beginning(String),
}

impl Tables {
    fn include(&self, table: &str) -> bool {
        match self {
            Self::Named(name) => name == table,
            Self::Beginning(prefix) => table.starts_with(prefix.as_str()),
        }
    }
}

/// What may be done with a table: any of the three, or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableRights(u8);

impl TableRights {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Reading rows.
    pub const READ: Self = Self(1);
    /// Writing rows.
    pub const WRITE: Self = Self(2);
    /// What is written and told in one step.
    pub const READ_AND_WRITE: Self = Self(3);
    /// Changing the table itself.
    pub const ADMIN: Self = Self(4);
    /// All of it.
    pub const ALL: Self = Self(7);

    const WORDS: [(Self, &'static str); 3] = [(Self::READ, "read"), (Self::WRITE, "write"), (Self::ADMIN, "admin")];

    /// Whether it has everything that `needed` has.
    pub const fn cover(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// What `needed` has and it has not.
    pub const fn lacking(self, needed: Self) -> Self {
        Self(needed.0 & !self.0)
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The words of the rights in it, in the order of the table above.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS.into_iter().filter(move |(one, _)| self.cover(*one)).map(|(_, word)| word)
    }
}

/// One right that somebody has been given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grant {
    /// To do something with tables.
    Tables(TableRights, Tables),
    /// To see the state of the cluster.
    Monitor,
    /// To do everything.
    ClusterAdmin,
    /// What a role has.
    Role(Holder),
}

impl FromStr for Grant {
    type Err = CatalogueError;

    fn from_str(text: &str) -> Result<Self, CatalogueError> {
        let wrong = || CatalogueError::Grant(text.to_owned());
        match text {
            "monitor" => return Ok(Self::Monitor),
            "cluster-admin" => return Ok(Self::ClusterAdmin),
            EVERYONE => return Err(wrong()),
            _ if text.starts_with('@') => return text.parse().map(Self::Role),
            _ => {}
        }
        let (word, tables) = text.split_once(':').ok_or_else(wrong)?;
        let (rights, _) = TableRights::WORDS.into_iter().find(|(_, it)| *it == word).ok_or_else(wrong)?;
        let tables = match tables.strip_suffix('*') {
            Some("") => Tables::Beginning(String::new()),
            Some(prefix) => check_name(prefix).map(|()| Tables::Beginning(prefix.to_owned()))?,
            None => check_name(tables).map(|()| Tables::Named(tables.to_owned()))?,
        };
        Ok(Self::Tables(rights, tables))
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Monitor => f.write_str("monitor"),
            Self::ClusterAdmin => f.write_str("cluster-admin"),
            Self::Role(role) => write!(f, "{role}"),
            Self::Tables(rights, tables) => {
                rights.words().try_for_each(|word| f.write_str(word))?;
                match tables {
                    Tables::Named(name) => write!(f, ":{name}"),
                    Tables::Beginning(prefix) => write!(f, ":{prefix}*"),
                }
            }
        }
    }
}

/// All rights that have been given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// By holder; none has an empty set.
    pub(crate) granted: BTreeMap<Holder, BTreeSet<Grant>>,
}

impl Rights {
    /// Who has been given what, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Holder, &BTreeSet<Grant>)> {
        self.granted.iter()
    }

    /// Whether nobody has been given anything.
    pub fn is_empty(&self) -> bool {
        self.granted.is_empty()
    }

    /// What `user` may do with table `name`; `None` is somebody without a name.
    pub fn on_table(&self, user: Option<&str>, name: &str) -> TableRights {
        self.of(user).fold(TableRights::NONE, |all, grant| match grant {
            Grant::ClusterAdmin => TableRights::ALL,
            Grant::Tables(rights, tables) if tables.include(name) => all.and(*rights),
            Grant::Tables(..) | Grant::Monitor | Grant::Role(_) => all,
        })
    }

    /// Whether `user` has been given `wanted`, or may do everything.
    pub fn include(&self, user: Option<&str>, wanted: &Grant) -> bool {
        self.of(user).any(|grant| grant == wanted || *grant == Grant::ClusterAdmin)
    }

    /// What `user` has been given: itself, by its roles, and as one of everybody.
    pub fn of(&self, user: Option<&str>) -> impl Iterator<Item = &Grant> {
        let given = |name: &str| self.granted.get(name);
        let own = user.and_then(given);
        let roles = own.into_iter().flatten().filter_map(|grant| match grant {
            Grant::Role(role) => self.granted.get(role),
            Grant::Tables(..) | Grant::Monitor | Grant::ClusterAdmin => None,
        });
        own.into_iter().chain(given(EVERYONE)).chain(roles).flatten()
    }

    /// About the bytes that all of them take where they are stored.
    fn size(&self) -> usize {
        let of_grants = |grants: &BTreeSet<Grant>| -> usize {
            grants.iter().map(|grant| grant.to_string().len() + GRANT_OVERHEAD).sum()
        };
        self.granted.iter().map(|(holder, grants)| holder.0.len() + of_grants(grants)).sum()
    }

    /// Whether they could have been given one by one.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (holder, grants) in &self.granted {
            if grants.is_empty() || grants.len() > GRANTS_PER_HOLDER_MAX {
                return Err(format!("{holder} has {} rights", grants.len()));
            }
            if holder.is_role() && grants.iter().any(|grant| matches!(grant, Grant::Role(_))) {
                return Err(format!("role {holder} has a role"));
            }
        }
        Ok(())
    }
}

impl Catalogue {
    /// Gives `to` rights. Returns whether it lacked any of them.
    ///
    /// Fails if a role would have a role, if a role has been given nothing ([`CatalogueError::NothingGranted`]), or if there would be more than
    /// [`GRANTS_PER_HOLDER_MAX`] for one or [`RIGHTS_SIZE_MAX`] bytes for all.
    pub fn grant(&mut self, to: &Holder, grants: &[Grant]) -> Result<bool, CatalogueError> {
        let mut rights = self.rights.clone();
        for grant in grants {
            if let Grant::Role(role) = grant {
                if to.is_role() {
                    return Err(CatalogueError::RoleOfRole { to: to.clone(), role: role.clone() });
                }
                if !rights.granted.contains_key(role) {
                    return Err(CatalogueError::NothingGranted(role.clone()));
                }
            }
        }
        rights.granted.entry(to.clone()).or_default().extend(grants.iter().cloned());
        let count = rights.granted.get(to).map_or(0, BTreeSet::len);
        if count > GRANTS_PER_HOLDER_MAX {
            return Err(CatalogueError::TooManyGrants { to: to.clone(), count });
        }
        let size = rights.size();
        if size > RIGHTS_SIZE_MAX {
            return Err(CatalogueError::RightsFull { size });
        }
        rights.granted.retain(|_, grants| !grants.is_empty());
        Ok(self.replace_rights(rights))
    }

    /// Takes rights from `from`, or all where `grants` is empty. Nothing is taken if it lacks one of them ([`CatalogueError::NotGranted`]), or has
    /// none ([`CatalogueError::NothingGranted`]). A role that has nothing left is no role any more; its members keep its name, and have what it
    /// is given later.
    pub fn revoke(&mut self, from: &Holder, grants: &[Grant]) -> Result<bool, CatalogueError> {
        let mut rights = self.rights.clone();
        let held = rights.granted.get_mut(from).ok_or_else(|| CatalogueError::NothingGranted(from.clone()))?;
        for grant in grants {
            if !held.remove(grant) {
                return Err(CatalogueError::NotGranted { from: from.clone(), grant: grant.clone() });
            }
        }
        if grants.is_empty() || held.is_empty() {
            rights.granted.remove(from);
        }
        Ok(self.replace_rights(rights))
    }

    fn replace_rights(&mut self, rights: Rights) -> bool {
        let is_changed = rights != self.rights;
        self.rights = rights;
        self.version += u64::from(is_changed);
        is_changed
    }
}
