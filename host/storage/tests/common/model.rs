//! The naive model: a sorted map of all rows, and every rule of the data model written down once more in the plainest
//! way, with no engine, batch or limit on memory.

use bytes::Bytes;
use hedgerow_storage::ApplyOutcome;
use hedgerow_types::error::Status;
use hedgerow_types::key::{HASH_PREFIX_SIZE, split_full_key};
use hedgerow_types::limit::{SCAN_PAGE_ROWS_MAX, SESSION_IDLE_SECONDS, SESSION_WINDOW};
use hedgerow_types::op::{
    Filter, MultiGet, Mutation, Proposal, Read, ReadReply, Row, Scan, Selection, Write, WriteDetail, WriteReply,
};
use hedgerow_types::time::EXPIRY_EPOCH_UNIX_SECONDS;
use std::collections::BTreeMap;

type Key = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub value: Bytes,
    pub expire_at: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub rows: BTreeMap<Key, Record>,
    pub index: u64,
    now: u32,
    /// Per client: log time of its last applied write, and everything it ever wrote.
    clients: BTreeMap<u64, (u32, BTreeMap<u64, WriteReply>)>,
    /// The largest number that was forgotten.
    floor: u64,
}

fn join(prefix: &[u8], suffix: &[u8]) -> Key {
    [prefix, suffix].concat()
}

fn reply(status: Status, detail: WriteDetail) -> WriteReply {
    WriteReply { status, detail }
}

impl Model {
    pub fn apply(&mut self, proposal: Option<&Proposal>) -> ApplyOutcome {
        self.index += 1;
        let outcome = proposal.map_or(ApplyOutcome::Empty, |proposal| self.apply_proposal(proposal));
        if self.index.is_multiple_of(4_096) {
            let (now, floor) = (self.now, &mut self.floor);
            self.clients.retain(|_, (last, results)| {
                let stays = u64::from(*last) + u64::from(SESSION_IDLE_SECONDS) >= u64::from(now);
                if !stays {
                    *floor = results.keys().copied().chain([*floor]).max().expect("not empty");
                }
                stays
            });
        }
        outcome
    }

    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    fn apply_proposal(&mut self, proposal: &Proposal) -> ApplyOutcome {
        self.now = if proposal.is_agreed { self.judged_at(proposal.now) } else { self.now.max(proposal.now) };
        let sequence = proposal.sequence;
        let is_recorded = proposal.client.0 != 0 && sequence != 0;
        let nothing = Default::default();
        if is_recorded {
            let results = self.clients.get(&proposal.client.0).map_or(&nothing, |(_, results)| results);
            let shares_slot = |one: u64, other: u64| one % SESSION_WINDOW == other % SESSION_WINDOW;
            let is_kept = |one: u64| !results.keys().any(|other| shares_slot(one, *other) && one < *other);
            let present = ((EXPIRY_EPOCH_UNIX_SECONDS + u64::from(self.now)) * 1_000_000).max(self.floor);
            let ceiling = present + 3_600_000_000;
            let may_be_forgotten =
                sequence <= self.floor && !results.keys().any(|one| *one < sequence && is_kept(*one));
            match results.get(&sequence) {
                Some(result) if is_kept(sequence) => return ApplyOutcome::Repeated(result.clone()),
                None if is_kept(sequence) && !may_be_forgotten && sequence <= ceiling => {}
                _ => return ApplyOutcome::SessionWindow { sequence, floor: self.floor, ceiling },
            }
        }
        let result = self.write(&proposal.write);
        if is_recorded {
            let client = self.clients.entry(proposal.client.0).or_default();
            client.0 = self.now;
            client.1.insert(proposal.sequence, result.clone());
        }
        ApplyOutcome::Reply(result)
    }

    /// By which time something is judged that comes at `now`.
    const fn judged_at(&self, now: u32) -> u32 {
        if now != 0 && self.now > now + 300 || now > self.now { now } else { self.now }
    }

    fn live(&self, key: &[u8], now: u32) -> Option<&Record> {
        self.rows.get(key).filter(|record| record.expire_at == 0 || record.expire_at > now)
    }

    fn put(&mut self, key: Key, value: &Bytes, expire_at: u32) {
        self.rows.insert(key, Record { value: value.clone(), expire_at });
    }

    fn write(&mut self, write: &Write) -> WriteReply {
        match write {
            Write::Nothing => reply(Status::Ok, WriteDetail::None),
            Write::Duplicate(_) | Write::Journal(_) => unreachable!("the model knows one cluster"),
            Write::Put { key, value, expire_at } => {
                self.put(key.to_vec(), value, *expire_at);
                reply(Status::Ok, WriteDetail::None)
            }
            Write::Remove { key } => {
                self.rows.remove(&key[..]);
                reply(Status::Ok, WriteDetail::None)
            }
            Write::MultiPut { rows, .. } if rows.is_empty() => reply(Status::InvalidArgument, WriteDetail::None),
            Write::MultiPut { prefix, rows, expire_at } => {
                for (suffix, value) in rows {
                    self.put(join(prefix, suffix), value, *expire_at);
                }
                reply(Status::Ok, WriteDetail::None)
            }
            Write::MultiRemove { prefix, suffixes } => {
                for suffix in suffixes {
                    self.rows.remove(&join(prefix, suffix));
                }
                let status = if suffixes.is_empty() { Status::InvalidArgument } else { Status::Ok };
                reply(status, WriteDetail::Removed(suffixes.len() as i64))
            }
            Write::Incr { key, by, expire_at } => self.incr(key, *by, *expire_at),
            Write::CheckAndMutate { prefix, check, mutations, return_check_value } => {
                if mutations.is_empty() || check.kind < 0 || check.kind > 17 {
                    return reply(Status::InvalidArgument, WriteDetail::Checked(None));
                }
                let value = self.live(&join(prefix, &check.suffix), self.now).map(|record| record.value.clone());
                let detail = WriteDetail::Checked(return_check_value.then(|| value.clone()));
                let status = passes(check.kind, value.as_ref(), &check.operand);
                if status == Status::Ok {
                    self.mutate(prefix, mutations);
                }
                reply(status, detail)
            }
        }
    }

    fn mutate(&mut self, prefix: &[u8], mutations: &[Mutation]) {
        for mutation in mutations {
            match mutation {
                Mutation::Put { suffix, value, expire_at } => self.put(join(prefix, suffix), value, *expire_at),
                Mutation::Remove { suffix } => {
                    self.rows.remove(&join(prefix, suffix));
                }
            }
        }
    }

    fn incr(&mut self, key: &[u8], by: i64, expire_at: i32) -> WriteReply {
        let record = self.live(key, self.now).cloned();
        let (old, old_expiry) = match record {
            None => (0, 0),
            Some(record) if record.value.is_empty() => (0, record.expire_at),
            Some(record) => match number(&record.value) {
                Some(number) => (number, record.expire_at),
                None => return reply(Status::InvalidArgument, WriteDetail::Value(0)),
            },
        };
        let new = i128::from(old) + i128::from(by);
        let Ok(new) = i64::try_from(new) else { return reply(Status::InvalidArgument, WriteDetail::Value(old)) };
        let expiry = match expire_at.signum() {
            0 => old_expiry,
            1 => expire_at as u32,
            _ => 0,
        };
        self.put(key.to_vec(), &Bytes::from(format!("{new}")), expiry);
        reply(Status::Ok, WriteDetail::Value(new))
    }

    pub fn read(&self, read: &Read, now: u32) -> ReadReply {
        let now = self.judged_at(now);
        let seconds_left = |record: &Record| match record.expire_at {
            0 => -1,
            expire_at => i32::try_from(expire_at - now).unwrap_or(i32::MAX),
        };
        match read {
            Read::Get { key } => {
                ReadReply::Value(self.live(key, now).map(|record| record.value.clone()).ok_or(Status::NotFound))
            }
            Read::Ttl { key } => ReadReply::Ttl(self.live(key, now).map(seconds_left).ok_or(Status::NotFound)),
            Read::MultiGet(multi_get) => self.multi_get(multi_get, now),
            Read::BatchGet { keys } => {
                let found = keys.iter().filter_map(|key| {
                    let record = self.live(key, now)?;
                    Some(Row { key: key.clone(), value: record.value.clone(), expire_at: None })
                });
                let status = if keys.is_empty() { Status::InvalidArgument } else { Status::Ok };
                ReadReply::Rows { status, rows: found.collect() }
            }
            Read::SortKeyCount { prefix } => {
                let live = self.rows.keys().filter(|key| key.starts_with(prefix) && self.live(key, now).is_some());
                ReadReply::Count(Ok(live.count() as i64))
            }
            Read::Scan(scan) => self.scan(scan, now),
            Read::Journal(_) => unreachable!("the model knows one cluster"),
            Read::Checksum => {
                let rows = self.rows.keys().filter(|key| self.live(key, now).is_some()).count() as u64;
                ReadReply::Checksum { checksum: 0, rows, index: self.index }
            }
        }
    }

    fn multi_get(&self, request: &MultiGet, now: u32) -> ReadReply {
        let count_max = if request.count_max > 0 { request.count_max as usize } else { usize::MAX };
        let size_max = if request.size_max > 0 { request.size_max as usize } else { 30 << 20 };
        let (suffixes, filter, reverse) = match &request.selection {
            Selection::Suffixes(suffixes) => {
                let present = suffixes.iter().filter(|suffix| self.live(&join(&request.prefix, suffix), now).is_some());
                (present.cloned().collect::<Vec<_>>(), Filter::default(), false)
            }
            Selection::Range { filter, reverse, .. } => {
                let mut suffixes: Vec<Bytes> = self.rows.keys().filter_map(|key| in_range(key, request)).collect();
                if *reverse {
                    suffixes.reverse();
                }
                (suffixes, filter.clone(), *reverse)
            }
        };
        let mut status = Status::Ok;
        let mut rows = Vec::new();
        let mut size = 0;
        for suffix in suffixes {
            let Some(record) = self.live(&join(&request.prefix, &suffix), now) else { continue };
            if !filter.matches(&suffix) {
                continue;
            }
            if rows.len() >= count_max || size >= size_max {
                status = Status::Incomplete;
                break;
            }
            let value = if request.no_value { Bytes::new() } else { record.value.clone() };
            size += suffix.len() + value.len();
            rows.push(Row { key: suffix, value, expire_at: None });
        }
        if reverse {
            rows.reverse();
        }
        ReadReply::Rows { status, rows }
    }

    fn scan(&self, scan: &Scan, now: u32) -> ReadReply {
        let rows_max = (scan.rows_max as usize).clamp(1, SCAN_PAGE_ROWS_MAX);
        let selected = self.rows.iter().filter(|(key, _)| {
            let above = scan.start.is_empty() || scan.start < key[..] || scan.start_inclusive && scan.start == key[..];
            let below = scan.stop.is_empty() || scan.stop > key[..] || scan.stop_inclusive && scan.stop == key[..];
            above && below
        });
        let (mut rows, mut count, mut last, mut resume_after) = (Vec::new(), 0, None, None);
        for (key, record) in selected {
            let (hash_key, sort_key) = if scan.is_hash_table {
                split_full_key(&key[HASH_PREFIX_SIZE..]).expect("a full key")
            } else {
                (&[][..], &key[..])
            };
            let hash_matches = !scan.is_hash_table || scan.hash_key_filter.matches(hash_key);
            if self.live(key, now).is_none() || !hash_matches || !scan.sort_key_filter.matches(sort_key) {
                continue;
            }
            if count as usize == rows_max {
                resume_after = last;
                break;
            }
            last = Some(Bytes::copy_from_slice(key));
            count += 1;
            if !scan.only_count {
                let value = if scan.no_value { Bytes::new() } else { record.value.clone() };
                let expire_at = scan.return_expire.then_some(record.expire_at);
                rows.push(Row { key: Bytes::copy_from_slice(key), value, expire_at });
            }
        }
        ReadReply::Page { status: Status::Ok, rows, count, resume_after }
    }
}

/// The suffix of `key`, if `key` is in the range that a multi get asks for.
fn in_range(key: &[u8], request: &MultiGet) -> Option<Bytes> {
    let Selection::Range { start, start_inclusive, stop, stop_inclusive, .. } = &request.selection else { return None };
    let suffix = key.strip_prefix(&request.prefix[..])?;
    let above = suffix > &start[..] || *start_inclusive && suffix == start;
    let below = stop.is_empty() || suffix < &stop[..] || *stop_inclusive && suffix == stop;
    (above && below).then(|| Bytes::copy_from_slice(suffix))
}

fn number(text: &[u8]) -> Option<i64> {
    String::from_utf8(text.to_vec()).ok()?.parse().ok()
}

fn passes(kind: i32, value: Option<&Bytes>, operand: &Bytes) -> Status {
    let verdict = |holds| if holds { Status::Ok } else { Status::TryAgain };
    match (kind, value) {
        (0, _) => Status::Ok,
        (1, value) => verdict(value.is_none()),
        (2, value) => verdict(value.is_none_or(|value| value.is_empty())),
        (_, None) => Status::TryAgain,
        (3, Some(_)) => Status::Ok,
        (4, Some(value)) => verdict(!value.is_empty()),
        (5, Some(value)) => verdict((0..=value.len()).any(|at| value[at..].starts_with(operand))),
        (6, Some(value)) => verdict(value.starts_with(operand)),
        (7, Some(value)) => verdict(value.ends_with(operand)),
        (8, Some(value)) => verdict(value < operand),
        (9, Some(value)) => verdict(value <= operand),
        (10, Some(value)) => verdict(value == operand),
        (11, Some(value)) => verdict(value >= operand),
        (12, Some(value)) => verdict(value > operand),
        (_, Some(value)) => match (number(value), number(operand)) {
            (Some(value), Some(operand)) => verdict(match kind {
                13 => value < operand,
                14 => value <= operand,
                15 => value == operand,
                16 => value >= operand,
                _ => value > operand,
            }),
            _ => Status::InvalidArgument,
        },
    }
}
