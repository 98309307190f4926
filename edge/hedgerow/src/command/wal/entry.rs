//! An entry of a log as a line for people, or as JSON for programs.

use super::hex;
use crate::encoding::Encoding;
use crate::rows::insert_field;
use bytes::Bytes;
use hedgerow_node::at_rest::{Meaning, MembershipChange, meaning};
use hedgerow_types::GroupId;
use hedgerow_types::key::{hash_key_of_prefix, split_storage_key};
use hedgerow_types::log::EntryKind;
use hedgerow_types::op::{Mutation, Proposal, Write};
use hedgerow_types::time::EXPIRY_EPOCH_UNIX_SECONDS;
use hedgerow_wal::format::{LogPlace, RecordHead, RecordKind};
use serde_json::{Map, Value, json};

/// How entries are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) encoding: Encoding,
    pub(super) with_values: bool,
}

/// An entry that stands in a log.
#[derive(Debug)]
pub(super) struct Shown {
    place: LogPlace,
    head: RecordHead,
    kind: EntryKind,
    meaning: Meaning,
    operation: Option<Operation>,
}

/// A write, in the words of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Operation {
    name: &'static str,
    /// `None` in an ordered table.
    hash_key: Option<Bytes>,
    rows: Vec<Change>,
    /// What is added to a number.
    by: Option<i64>,
    /// The record that is checked first.
    checked: Option<Bytes>,
}

/// What becomes of one record.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    name: &'static str,
    /// The sort key, or an ordered table's key.
    key: Bytes,
    value: Option<Bytes>,
    /// In seconds of the expiry epoch; 0 = never.
    expire_at: u32,
}

impl Operation {
    fn of(write: &Write) -> Self {
        let change = |name, key: &Bytes, value: Option<&Bytes>, expire_at| Change {
            name,
            key: key.clone(),
            value: value.cloned(),
            expire_at,
        };
        let mutated = |mutation: &Mutation| match mutation {
            Mutation::Put { suffix, value, expire_at } => change("put", suffix, Some(value), *expire_at),
            Mutation::Remove { suffix } => change("remove", suffix, None, 0),
        };
        match write {
            Write::Nothing => Self { name: "nothing", ..Self::default() },
            Write::Put { key, value, expire_at } => {
                Self::single("put", key, |key| change("put", key, Some(value), *expire_at))
            }
            Write::Remove { key } => Self::single("remove", key, |key| change("remove", key, None, 0)),
            Write::Incr { key, by, .. } => {
                let incr = Self::single("incr", key, |key| change("incr", key, None, 0));
                Self { by: Some(*by), ..incr }
            }
            Write::MultiPut { prefix, rows, expire_at } => {
                let rows = rows.iter().map(|(suffix, value)| change("put", suffix, Some(value), *expire_at)).collect();
                Self::below("multi-put", prefix, rows)
            }
            Write::MultiRemove { prefix, suffixes } => {
                let rows = suffixes.iter().map(|suffix| change("remove", suffix, None, 0)).collect();
                Self::below("multi-remove", prefix, rows)
            }
            Write::CheckAndMutate { prefix, check, mutations, .. } => {
                let rows = Self::below("check-and-mutate", prefix, mutations.iter().map(mutated).collect());
                Self { checked: Some(check.suffix.clone()), ..rows }
            }
            Write::Duplicate(duplicate) => {
                let rows = duplicate.changes.iter().map(|it| mutated(&it.mutation)).collect();
                Self { name: "duplicate", rows, ..Self::default() }
            }
            Write::Journal(_) => Self { name: "journal", ..Self::default() },
        }
    }

    /// The same of the catalogue: what passwords are checked by is not shown.
    fn without_secrets(mut self) -> Self {
        let secret = self.rows.iter_mut().filter(|row| row.key.starts_with(b"password"));
        secret.filter(|row| row.value.is_some()).for_each(|row| row.value = Some(Bytes::from_static(b"(secret)")));
        self
    }

    fn single(name: &'static str, key: &Bytes, change: impl FnOnce(&Bytes) -> Change) -> Self {
        match split_storage_key(key) {
            Some((hash_key, sort_key)) => {
                let rows = vec![change(&key.slice_ref(sort_key))];
                Self { name, hash_key: Some(key.slice_ref(hash_key)), rows, ..Self::default() }
            }
            None => Self { name, rows: vec![change(key)], ..Self::default() },
        }
    }

    fn below(name: &'static str, prefix: &Bytes, rows: Vec<Change>) -> Self {
        let hash_key = hash_key_of_prefix(prefix).map(|hash_key| prefix.slice_ref(hash_key));
        Self { name, hash_key, rows, ..Self::default() }
    }
}

impl Shown {
    /// The entry in the record with this head; `None` if another record is there.
    pub(super) fn of(place: LogPlace, head: RecordHead, payload: &[u8]) -> Option<Self> {
        match head.kind {
            RecordKind::Entry | RecordKind::Moved => {}
            RecordKind::State | RecordKind::Removed | RecordKind::Freed => return None,
        }
        let kind = head.entry_kind()?;
        let meaning = meaning(head.group, kind, Bytes::copy_from_slice(payload));
        let operation = match &meaning {
            Meaning::Write(proposal) => Some(Operation::of(&proposal.write)),
            Meaning::Catalogue(proposal) => Some(Operation::of(&proposal.write).without_secrets()),
            Meaning::Empty | Meaning::Membership(_) | Meaning::Unknown(_) => None,
        };
        Some(Self { place, head, kind, meaning, operation })
    }

    pub(super) fn group(&self) -> GroupId {
        self.head.group
    }

    /// Whether it writes records of this hash key, or of this key in an ordered table.
    pub(super) fn is_about(&self, key: &[u8]) -> bool {
        self.operation.as_ref().is_some_and(|operation| match &operation.hash_key {
            Some(hash_key) => hash_key == key,
            None => operation.rows.iter().any(|row| row.key == key),
        })
    }

    fn kind(&self) -> &'static str {
        match (&self.meaning, self.kind) {
            (Meaning::Empty, _) => "empty",
            (Meaning::Write(_), _) => "write",
            (Meaning::Catalogue(_), _) => "catalogue",
            (Meaning::Membership(_), _) => "membership",
            (Meaning::Unknown(_), _) => "unknown",
        }
    }

    fn proposal(&self) -> Option<&Proposal> {
        match &self.meaning {
            Meaning::Write(proposal) | Meaning::Catalogue(proposal) => Some(proposal),
            Meaning::Empty | Meaning::Membership(_) | Meaning::Unknown(_) => None,
        }
    }

    /// Columns with tabs between: place, group, index, term, kind, client, sequence, and what it does.
    pub(super) fn text(&self, style: Style) -> String {
        let RecordHead { group, index, term, .. } = self.head;
        let moved = if self.head.kind == RecordKind::Moved { "*" } else { "" };
        let (client, sequence) = match self.proposal() {
            Some(proposal) if proposal.client.0 != 0 => (hex(proposal.client.0), proposal.sequence.to_string()),
            Some(_) | None => ("-".to_owned(), "-".to_owned()),
        };
        let place = format!("{}:{}", hex(self.place.segment), self.place.offset);
        let mut line = format!("{place}{moved}\t{group}\t{index}\t{term}\t{}\t{client}\t{sequence}", self.kind());
        let mut add = |text: &str| {
            line.push('\t');
            line.push_str(text);
        };
        match &self.meaning {
            Meaning::Empty => {}
            Meaning::Unknown(reason) => add(reason),
            Meaning::Membership(change) => add(&membership_text(change)),
            Meaning::Write(_) | Meaning::Catalogue(_) => {
                self.operation.iter().flat_map(|operation| operation.texts(style)).for_each(|text| add(&text));
            }
        }
        line
    }

    /// One object.
    pub(super) fn json(&self, style: Style) -> Map<String, Value> {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
        put("segment", hex(self.place.segment).into());
        put("offset", self.place.offset.into());
        put("group", self.head.group.to_string().into());
        put("index", self.head.index.into());
        put("term", self.head.term.into());
        put("kind", self.kind().into());
        if self.head.kind == RecordKind::Moved {
            put("is_moved", true.into());
        }
        if let Some(proposal) = self.proposal() {
            put("client", hex(proposal.client.0).into());
            put("sequence", proposal.sequence.into());
            if proposal.now != 0 {
                put("unix_seconds", unix_seconds(proposal.now).into());
            }
        }
        match &self.meaning {
            Meaning::Membership(change) => put("change", membership_json(change)),
            Meaning::Unknown(reason) => put("reason", reason.as_str().into()),
            Meaning::Empty | Meaning::Write(_) | Meaning::Catalogue(_) => {}
        }
        if let Some(operation) = &self.operation {
            operation.put_into(&mut object, style);
        }
        object
    }
}

impl Operation {
    fn texts(&self, style: Style) -> Vec<String> {
        let shown = |bytes: &Bytes| style.encoding.encode(bytes).into_owned();
        let mut texts = vec![self.name.to_owned()];
        texts.extend(self.hash_key.as_ref().map(shown));
        texts.extend(self.checked.as_ref().map(|key| format!("if {}", shown(key))));
        let is_mixed = self.name == "check-and-mutate";
        for row in &self.rows {
            let name = if is_mixed { format!("{} ", row.name) } else { String::new() };
            let size =
                row.value.as_ref().map(|value| format!(" ({})", crate::output::counted(value.len() as u64, "byte")));
            texts.push(format!("{name}{}{}", shown(&row.key), size.unwrap_or_default()));
            texts.extend(row.value.as_ref().filter(|_| style.with_values).map(shown));
        }
        texts.extend(self.by.map(|by| format!("{by:+}")));
        texts
    }

    fn put_into(&self, object: &mut Map<String, Value>, style: Style) {
        object.insert("operation".to_owned(), self.name.into());
        if let Some(hash_key) = &self.hash_key {
            insert_field(object, "hash_key", hash_key, style.encoding);
        }
        let key_name = if self.hash_key.is_some() { "sort_key" } else { "key" };
        if let Some(checked) = &self.checked {
            insert_field(object, &format!("checked_{key_name}"), checked, style.encoding);
        }
        if let Some(by) = self.by {
            object.insert("by".to_owned(), by.into());
        }
        let row = |row: &Change| {
            let mut object = Map::new();
            object.insert("change".to_owned(), row.name.into());
            insert_field(&mut object, key_name, &row.key, style.encoding);
            if let Some(value) = &row.value {
                object.insert("value_size".to_owned(), value.len().into());
                if style.with_values {
                    insert_field(&mut object, "value", value, style.encoding);
                }
            }
            if row.expire_at != 0 {
                object.insert("expires_at_unix_seconds".to_owned(), unix_seconds(row.expire_at).into());
            }
            Value::Object(object)
        };
        object.insert("rows".to_owned(), self.rows.iter().map(row).collect());
    }
}

fn unix_seconds(expiry_seconds: u32) -> u64 {
    EXPIRY_EPOCH_UNIX_SECONDS + u64::from(expiry_seconds)
}

fn steps(change: &MembershipChange) -> [(&'static str, Vec<String>); 3] {
    let names = |replicas: &[hedgerow_types::ReplicaId]| replicas.iter().map(ToString::to_string).collect();
    [("learner", names(&change.add_learners)), ("voter", names(&change.promote)), ("remove", names(&change.remove))]
}

fn membership_text(change: &MembershipChange) -> String {
    let steps: Vec<String> = steps(change)
        .into_iter()
        .filter(|(_, replicas)| !replicas.is_empty())
        .map(|(name, replicas)| format!("{name} {}", replicas.join(" ")))
        .collect();
    if steps.is_empty() { "the joint change ends".to_owned() } else { steps.join(", ") }
}

fn membership_json(change: &MembershipChange) -> Value {
    let [learners, voters, removed] = steps(change).map(|(_, replicas)| replicas);
    json!({ "learners": learners, "voters": voters, "removed": removed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_types::key::{full_key, hash_storage_key, hash_storage_prefix};
    use hedgerow_types::op::Check;

    const STYLE: Style = Style { encoding: Encoding::Text, with_values: true };

    fn texts(write: &Write, style: Style) -> String {
        Operation::of(write).texts(style).join("|")
    }

    #[test]
    fn writes_are_shown_by_the_keys_that_people_know() {
        let key = hash_storage_key(&full_key(b"user-17", b"na\tme")).unwrap();
        let value = Bytes::from_static(b"Ada");
        let put = Write::Put { key: key.clone(), value: value.clone(), expire_at: 9 };
        assert_eq!(texts(&put, STYLE), "put|user-17|na\\tme (3 bytes)|Ada");
        assert_eq!(texts(&put, Style { with_values: false, ..STYLE }), "put|user-17|na\\tme (3 bytes)");
        assert_eq!(texts(&Write::Remove { key: Bytes::from_static(b"2026-03") }, STYLE), "remove|2026-03");
        assert_eq!(texts(&Write::Incr { key, by: -2, expire_at: 0 }, STYLE), "incr|user-17|na\\tme|-2");
        let (prefix, city) = (hash_storage_prefix(b"user-17"), Bytes::from_static(b"city"));
        let many = Write::MultiPut { prefix: prefix.clone(), rows: vec![(city.clone(), value)], expire_at: 0 };
        assert_eq!(texts(&many, STYLE), "multi-put|user-17|city (3 bytes)|Ada");
        let check = Check { suffix: city.clone(), kind: 1, operand: Bytes::new() };
        let mutations = vec![Mutation::Remove { suffix: city }];
        let checked = Write::CheckAndMutate { prefix, check, mutations, return_check_value: false };
        assert_eq!(texts(&checked, STYLE), "check-and-mutate|user-17|if city|remove city");
    }

    #[test]
    fn what_passwords_are_checked_by_is_not_shown() {
        let put = |key, value| Mutation::Put {
            suffix: Bytes::from_static(key),
            value: Bytes::from_static(value),
            expire_at: 0,
        };
        let mutations = vec![
            put(b"password/app", b"SCRAM-SHA-256$"),
            put(b"passwords", b"mask"),
            put(b"version", b"7"),
            Mutation::Remove { suffix: Bytes::from_static(b"password/eve") },
        ];
        let check = Check { suffix: Bytes::from_static(b"version"), kind: 1, operand: Bytes::new() };
        let write = Write::CheckAndMutate { prefix: Bytes::new(), check, mutations, return_check_value: false };
        let shown = Operation::of(&write).without_secrets().texts(STYLE).join("|");
        assert!(shown.contains("password/app") && shown.contains("password/eve") && shown.contains('7'), "{shown}");
        assert!(!shown.contains("SCRAM") && !shown.contains("mask"), "{shown}");
    }

    #[test]
    fn json_has_the_same() {
        let key = hash_storage_key(&full_key(b"user-17", b"\xff")).unwrap();
        let put = Write::Put { key, value: Bytes::from_static(b"Ada"), expire_at: 9 };
        let mut object = Map::new();
        Operation::of(&put).put_into(&mut object, STYLE);
        let row = json!({
            "change": "put", "sort_key_base64": "/w==", "value_size": 3, "value": "Ada",
            "expires_at_unix_seconds": EXPIRY_EPOCH_UNIX_SECONDS + 9,
        });
        assert_eq!(Value::Object(object), json!({ "operation": "put", "hash_key": "user-17", "rows": [row] }));
    }
}
