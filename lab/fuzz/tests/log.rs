//! Logs of which any bytes are damaged, opened by the code that opens them after a crash.
//!
//! What must hold, whatever was damaged: opening ends and takes a few times the log's size of memory; no entry comes back
//! that was not written; what a group's log holds before the first damage comes back; where the mark beside the log is sound,
//! a group that is not called damaged has all that was durable, and one that is missing is a loss that the log speaks of;
//! the log goes on, and forgets no damage. `host/wal/tests/suite/damage.rs` tells what single damages cost whom.
#![allow(clippy::unwrap_used, reason = "tests")]

mod counting;

use counting::peak_of;
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Disk, OpenMode, read_file};
use hedgerow_types::log::{Entry, EntryKind, HardState, LogPosition};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::format::LogPlace;
use hedgerow_wal::{Append, Event, Log, OpenError, Options, Recovered, inspect};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIR: &str = "/data/log";
const MARK: &str = "/data/log.mark";
const ITERATIONS: u64 = 600;

fn options() -> Options {
    Options { segment_size: 20 << 10, segments_max: 4, recycle_max: 2, ..Options::default() }
}

fn open(disk: &SimDisk) -> Result<(Log, Vec<Recovered>), OpenError> {
    Log::open(Arc::new(disk.clone()), Path::new(DIR), options())
}

fn group(number: u32) -> GroupId {
    GroupId::new(1, number)
}

fn segment(id: u64) -> PathBuf {
    Path::new(DIR).join(format!("{id:016x}.seg"))
}

/// Entries whose data say which they are.
fn append(number: u32, first: u64, count: u64, term: u64) -> Append {
    let entry = |index| Entry {
        index,
        term,
        kind: EntryKind::Normal,
        data: format!("{number}.{term}.{index}").repeat(1 + (index % 13) as usize * 2).into(),
    };
    let hard_state = index_is_even(first).then_some(HardState { term, vote: Some(ReplicaId(7)), commit: first - 1 });
    let entries = (first..first + count).map(entry).collect();
    Append { group: group(number), replica: ReplicaId(7), reset: None, entries, hard_state }
}

fn index_is_even(index: u64) -> bool {
    index.is_multiple_of(2)
}

/// A log as it was before any damage.
struct Original {
    files: BTreeMap<PathBuf, Vec<u8>>,
    groups: Vec<Recovered>,
    /// Every entry that was ever written, by group, index and term.
    written: BTreeSet<(GroupId, u64, u64, Vec<u8>)>,
    /// Where the heads of batches and records stand.
    heads: Vec<(LogPlace, Head)>,
    /// Whether entries come back from where they were first written to.
    is_plain: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Head {
    Batch,
    State(GroupId),
    Entry(GroupId, u64),
    Other,
}

impl Original {
    fn new(
        is_plain: bool,
        write: impl Fn(&mut dyn FnMut(&[Append]), &mut dyn FnMut(&mut dyn FnMut(&mut Log))),
    ) -> Self {
        let disk = SimDisk::new();
        let log = std::cell::RefCell::new(open(&disk).unwrap().0);
        let mut written = BTreeSet::new();
        let mut commit = |appends: &[Append]| {
            for append in appends {
                let entry = |it: &Entry| (append.group, it.index, it.term, it.data.to_vec());
                written.extend(append.entries.iter().map(entry));
            }
            let mut log = log.borrow_mut();
            log.write(appends).unwrap();
            log.sync().unwrap();
        };
        write(&mut commit, &mut |act| act(&mut log.borrow_mut()));
        log.into_inner().mark();
        let names = disk.list(Path::new(DIR)).unwrap();
        let paths = names.iter().filter(|name| name.ends_with(".seg")).map(|name| Path::new(DIR).join(name));
        let read = |path: PathBuf| (path.clone(), read_file(&disk, &path).unwrap());
        let files = paths.chain([PathBuf::from(MARK)]).map(read).collect();
        let mut heads = Vec::new();
        let found = inspect(&disk, Path::new(DIR), &mut |event| match event {
            Event::Batch(place, _) => heads.push((place, Head::Batch)),
            Event::Record(place, head, payload) => heads.push((
                place,
                match (head.entry_kind(), payload.len()) {
                    (_, 56) if head.kind == hedgerow_wal::format::RecordKind::State => Head::State(head.group),
                    (Some(_), _) if head.kind == hedgerow_wal::format::RecordKind::Entry => {
                        Head::Entry(head.group, head.index)
                    }
                    _ => Head::Other,
                },
            )),
            Event::BadPayload(..) | Event::BadHead(..) | Event::Unreadable(..) => panic!("{event:?}"),
        });
        Self { files, groups: found.unwrap().groups, written, heads, is_plain }
    }

    /// How many entries of a group stand before `damage`, with the state that says whose they are.
    fn before(&self, group: GroupId, damage: LogPlace) -> u64 {
        let of = |wanted: Head| self.heads.iter().find(|(_, head)| *head == wanted).map(|(place, _)| *place);
        // An entry that ends where the damage begins: its successor's head is the next thing.
        let ends_before = |place: LogPlace| {
            let next = self.heads.iter().map(|(place, _)| *place).filter(|next| *next > place).min();
            next.is_some_and(|next| next <= damage)
        };
        if !of(Head::State(group)).is_some_and(ends_before) {
            return 0;
        }
        (1..).take_while(|index| of(Head::Entry(group, *index)).is_some_and(ends_before)).count() as u64
    }
}

/// Five groups in several segments, each of which only appends.
fn appended() -> Original {
    Original::new(true, |commit, _| {
        let mut lasts = [0_u64; 5];
        for round in 0..60_u64 {
            let chosen: Vec<usize> = (0..5).filter(|number| (round + *number as u64).is_multiple_of(3)).collect();
            let appends: Vec<Append> = chosen
                .into_iter()
                .map(|number| {
                    let (first, count) = (lasts[number] + 1, 1 + round % 4);
                    lasts[number] += count;
                    append(number as u32, first, count, 1 + round / 20)
                })
                .collect();
            commit(&appends);
        }
    })
}

/// Records of every kind: cut and overwritten logs, a group that goes, one that begins elsewhere, segments that went.
fn changed() -> Original {
    Original::new(false, |commit, with| {
        commit(&[append(1, 1, 40, 1), append(2, 1, 10, 1), append(4, 1, 5, 1)]);
        commit(&[append(2, 8, 5, 2), append(5, 1, 100, 1)]);
        with(&mut |log| {
            log.truncate_prefix(group(1), 38);
            log.remove_group(group(4));
            log.truncate_prefix(group(5), 90);
        });
        commit(&[append(3, 1, 30, 2), append(5, 101, 60, 2)]);
        with(&mut |log| log.truncate_prefix(group(5), 150));
        with(&mut |log| assert!(log.collect().is_ok()));
        let reset = Some(LogPosition { term: 3, index: 500 });
        commit(&[Append { reset, ..append(6, 501, 7, 3) }, append(1, 41, 3, 3)]);
        commit(&[append(3, 25, 20, 4), append(2, 13, 30, 4)]);
        with(&mut |log| assert!(log.collect().is_ok()));
        commit(&[append(5, 161, 10, 4), append(1, 44, 40, 4)]);
    })
}

/// A log that was damaged, and what of it was.
struct Damaged {
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// The first place that is not as it was.
    first: Option<LogPlace>,
    is_mark_sound: bool,
    /// A number was changed together with its checksum: anything may be believed.
    is_lie: bool,
}

impl Damaged {
    fn note(&mut self, path: &Path, offset: usize) {
        let Some(id) = path.file_stem().filter(|_| path != Path::new(MARK)) else {
            self.is_mark_sound = false;
            return;
        };
        let segment = u64::from_str_radix(id.to_str().unwrap(), 16).unwrap();
        let place = LogPlace { segment, offset: offset as u64 };
        self.first = Some(self.first.map_or(place, |first| first.min(place)));
    }

    /// Damages it in one place.
    fn damage(&mut self, original: &Original, random: &mut Random) {
        let paths: Vec<PathBuf> = original.files.keys().cloned().collect();
        let path = &paths[random.below(paths.len() as u64) as usize];
        let other = original.files[&paths[random.below(paths.len() as u64) as usize]].clone();
        let Some(bytes) = self.files.get_mut(path) else { return };
        if bytes.is_empty() {
            return;
        }
        // Most of a segment that is not full is zeros.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
        let at = random.below(used as u64) as usize;
        let end = (at + 1 + random.below(600) as usize).min(bytes.len());
        let mut first = at;
        match random.below(10) {
            0..=2 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at..end].fill(0),
            4 => bytes[at..end].fill_with(|| random.next_u64() as u8),
            5 => bytes.truncate(at),
            6 => bytes[at..].fill(0),
            7 => {
                // A sector that was written elsewhere.
                first = at / 512 * 512;
                let end = (first + 512).min(bytes.len());
                let from = random.below(other.len() as u64 / 512 + 1) as usize * 512;
                let sector: Vec<u8> = other[from.min(other.len())..].iter().copied().take(end - first).collect();
                bytes[first..first + sector.len()].copy_from_slice(&sector);
            }
            8 => {
                first = 0;
                *bytes = other;
            }
            _ => {
                first = 0;
                drop(self.files.remove(path));
            }
        }
        self.note(path, first);
    }

    /// Changes a number in a head, and its checksum with it.
    fn lie(&mut self, original: &Original, random: &mut Random) {
        const NUMBERS: [u64; 9] = [0, 1, 7, 4095, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
        self.is_lie = true;
        let number = NUMBERS[random.below(NUMBERS.len() as u64) as usize].to_le_bytes();
        let (place, head) = original.heads[random.below(original.heads.len() as u64) as usize];
        let path = segment(place.segment);
        let seed = crc32c::crc32c(&place.segment.to_le_bytes());
        if random.below(8) == 0 {
            let Some(mark) = self.files.get_mut(Path::new(MARK)).filter(|mark| mark.len() == 36) else { return };
            let field = 16 + 8 * random.below(2) as usize;
            mark[field..field + 8].copy_from_slice(&number);
            let crc = crc32c::crc32c(&mark[..32]).to_le_bytes();
            mark[32..].copy_from_slice(&crc);
            return;
        }
        let Some(bytes) = self.files.get_mut(&path).filter(|bytes| bytes.len() >= 20 << 10) else { return };
        let mut change = |at: usize, crc_at: usize, covered: std::ops::Range<usize>| {
            bytes[at..at + 8].copy_from_slice(&number);
            let crc = crc32c::crc32c_append(seed, &bytes[covered]).to_le_bytes();
            bytes[crc_at..crc_at + 4].copy_from_slice(&crc);
        };
        let at = place.offset as usize;
        match (random.below(4), head) {
            (0, _) => {
                let others = u64::from_le_bytes(original.files[&path][40..48].try_into().unwrap()) as usize;
                let field = 16 + 8 * random.below(4 + 2 * others as u64) as usize;
                // The count of the list says what the checksum covers.
                if field != 40 {
                    change(field, 12, 16..48 + 16 * others);
                }
            }
            (kind, Head::Batch) => {
                let field = 8 + 8 * random.below(4) as usize;
                change(at + field, at + 4, at + 8..at + 40);
                // Where head and list say the same they are believed.
                let word =
                    |at: usize| u32::from_le_bytes(original.files[&path][at..at + 4].try_into().unwrap()) as usize;
                let list = (at + 40 + word(at + 32)).next_multiple_of(8);
                if kind != 1 {
                    change(list + field, list + 4, list + 8..list + 40 + 13 * word(at + 36));
                }
            }
            (1, Head::State(_)) => {
                change(at + 40 + 8 * random.below(7) as usize, at + 4, at + 40..at + 96);
                change(at + 32, at, at + 4..at + 40);
            }
            (_, Head::State(_) | Head::Entry(..) | Head::Other) => {
                change(at + 8 + 8 * random.below(4) as usize, at, at + 4..at + 40);
            }
        }
    }

    fn disk(&self) -> SimDisk {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new(DIR)).unwrap();
        for (path, bytes) in &self.files {
            let file = disk.open(path, OpenMode::Create).unwrap();
            file.write_at(0, bytes).unwrap();
            file.sync_all().unwrap();
        }
        ["/", "/data", DIR].iter().for_each(|dir| disk.sync_dir(Path::new(dir)).unwrap());
        disk
    }

    /// Opens it and holds it to what is promised.
    fn check(&self, original: &Original) {
        let disk = self.disk();
        let size: usize = self.files.values().map(Vec::len).sum();
        let peak = peak_of(|| drop(inspect(&disk, Path::new(DIR), &mut |_| {})));
        assert!(peak <= 4 * size + (64 << 10), "{peak} bytes for {size}");
        let (log, recovered) = match open(&disk) {
            Ok(opened) => opened,
            Err(error @ OpenError::Version { .. }) => return assert!(self.is_lie, "{error}"),
            Err(error) => panic!("{error:?}"),
        };
        for found in &recovered {
            let entries = read(&log, found);
            if self.is_lie {
                continue;
            }
            let is_written =
                |it: &Entry| original.written.contains(&(found.group, it.index, it.term, it.data.to_vec()));
            assert!(entries.is_ok_and(|entries| entries.iter().all(is_written)), "{found:?}");
        }
        if self.is_lie {
            drop(log);
            return self.go_on(&disk);
        }
        self.check_losses(original, &log, &recovered);
        drop(log);
        self.check_further(&disk, &recovered);
    }

    fn check_losses(&self, original: &Original, log: &Log, recovered: &[Recovered]) {
        for was in &original.groups {
            let is = recovered.iter().find(|is| is.group == was.group);
            assert!(is.is_some() || log.has_unknown_loss() || !self.is_mark_sound, "nobody misses {was:?}");
            let last = is.map_or(0, |is| is.last.index);
            let first = self.first.unwrap_or(LogPlace { segment: u64::MAX, offset: 0 });
            if original.is_plain {
                let before = original.before(was.group, first);
                assert!(last >= before, "{before} entries stand before {first:?}: {is:?}");
            }
        }
        let whole = recovered.iter().filter(|is| !is.is_damaged && self.is_mark_sound);
        whole.for_each(|is| assert!(original.groups.contains(is), "not called damaged: {is:?}"));
    }

    /// Whatever was believed can be built on.
    fn go_on(&self, disk: &SimDisk) {
        let (mut log, found) = open(disk).unwrap();
        let after = |found: &Recovered| Append {
            group: found.group,
            replica: found.replica,
            reset: None,
            entries: vec![Entry {
                index: found.last.index + 1,
                term: found.last.term,
                kind: EntryKind::Normal,
                data: vec![1; 3_000].into(),
            }],
            hard_state: Some(found.hard_state),
        };
        let appends: Vec<Append> = found.iter().map(after).collect();
        for _ in 0..8 {
            log.write(&[append(98, 1, 40, 9)]).unwrap();
        }
        log.write(&appends).unwrap();
        log.sync().unwrap();
        found.iter().for_each(|found| log.truncate_prefix(found.group, found.last.index));
        assert!(log.collect().is_ok());
        log.mark();
        drop(log);
        let found = open(disk).unwrap().1;
        assert!(found.iter().any(|found| found.group == group(98) && !found.is_damaged));
    }

    /// The log goes on, and who was damaged still is.
    fn check_further(&self, disk: &SimDisk, recovered: &[Recovered]) {
        let (mut log, again) = open(disk).unwrap();
        let groups = |some: &[Recovered]| some.iter().map(|it| (it.group, it.is_damaged)).collect::<Vec<_>>();
        assert_eq!(groups(&again), groups(recovered), "a second look");
        log.write(&[append(99, 1, 3, 9)]).unwrap();
        log.sync().unwrap();
        log.mark();
        drop(log);
        disk.crash(&mut Random::new(1));
        let (log, after) = open(disk).unwrap();
        for was in recovered.iter().filter(|was| was.group != group(99)) {
            let is = after.iter().find(|is| is.group == was.group);
            assert_eq!(is.map(|is| is.is_damaged), Some(was.is_damaged), "{was:?} {is:?}");
            assert!(was.is_damaged || is == Some(was), "{was:?} {is:?}");
        }
        let new = after.iter().find(|is| is.group == group(99)).unwrap();
        assert!(!new.is_damaged && read(&log, new).unwrap().len() == 3, "{new:?}");
    }
}

fn read(log: &Log, found: &Recovered) -> std::io::Result<Vec<Entry>> {
    log.reader().entries(
        found.group,
        found.start.index.saturating_add(1),
        found.last.index.saturating_add(1),
        usize::MAX,
    )
}

fn run(original: &Original, seeds: std::ops::Range<u64>, is_lie: bool) {
    assert!(original.files.len() > 3, "several segments and a mark");
    assert!(original.groups.iter().all(|group| !group.is_damaged));
    for seed in seeds {
        let random = &mut Random::new(seed);
        let files = original.files.clone();
        let mut damaged = Damaged { files, first: None, is_mark_sound: true, is_lie: false };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..=random.below(3) {
                if is_lie {
                    damaged.lie(original, random);
                } else {
                    damaged.damage(original, random);
                }
            }
            damaged.check(original);
        }));
        assert!(outcome.is_ok(), "seed {seed}: FUZZ_SEED={seed} FUZZ_SEEDS=1 replays it");
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("FUZZ_SEED").unwrap_or(0);
    first..first + number("FUZZ_SEEDS").unwrap_or(ITERATIONS)
}

#[test]
fn m3_a_log_that_was_appended_to_survives_damage_anywhere() {
    run(&appended(), seeds(), false);
}

#[test]
fn m3_a_log_with_records_of_every_kind_survives_damage_anywhere() {
    run(&changed(), seeds(), false);
}

/// Checksums keep these away. What gets past them must not end the process either.
#[test]
fn m3_numbers_that_no_log_holds_are_read_or_refused() {
    run(&appended(), seeds(), true);
    run(&changed(), seeds(), true);
}
