//! A file system as a sequence of events leaves it, in the system's cache and on the medium.
//!
//! What is taken as permitted is what the journals of ext4 (`data=ordered`) and xfs permit, and a little more:
//!
//! - Changes of names (creations, links, renames, removals, of files and directories) reach the medium in their order: after
//!   a power failure those up to one of them are there, the later ones are not. A sync of a directory makes those up to the
//!   last one in that directory durable. A sync of a file is not counted as one of its names, though both systems do it.
//! - Writes that were not synced reach the medium in any combination and order, in sectors of 512 bytes. A file is as long
//!   as the last of them that did, or as if all had; sectors that did not hold what they held before, or zeros.
//! - A change of a file's size is lost together with all that was written to the file after it.
//! - A sync of a file makes all of its bytes and its size durable.
//!
//! A process that is killed loses nothing that it has written.

use crate::trace::Event;
use hedgerow_types::random::Random;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

/// What a power failure tears no further, bytes.
const SECTOR_SIZE: u64 = 512;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Dir,
    /// The number of a file in [`Disk::files`].
    File(usize),
}

/// Every name, by its path; directories come before what is in them.
pub(crate) type Names = BTreeMap<String, Node>;

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
enum NameChange {
    Add(String, Node),
    Remove(String),
    Rename(String, String),
}

/// A change of a file that is not durable yet.
#[derive(Clone, Debug)]
enum DataChange {
    Write { offset: u64, data: Rc<Vec<u8>> },
    SetSize(u64),
}

/// A file's bytes, with something like their name: equal bytes have equal hashes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) bytes: Rc<Vec<u8>>,
    pub(crate) hash: u64,
}

#[derive(Debug, Default)]
struct File {
    durable: Content,
    pending: Vec<DataChange>,
}

/// The disk after some events.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    files: Vec<File>,
    /// Files and directories by their inodes' numbers, which the system uses again.
    by_inode: BTreeMap<u64, usize>,
    dirs_by_inode: BTreeMap<u64, String>,
    cached: Names,
    durable: Names,
    pending: Vec<NameChange>,
}

/// What is on the medium: every name, and the bytes of every file that has one.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) names: Names,
    pub(crate) contents: BTreeMap<usize, Content>,
}

/// One of the ways in which a crash may happen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// How many of the changes of names that are not durable reach the medium.
    pub(crate) names: usize,
    pub(crate) data: DataChoice,
}

/// What becomes of writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataChoice {
    AllKept,
    AllLost,
    /// One file's changes are treated so, those of all other files are kept or lost.
    One {
        dirty: usize,
        treatment: Treatment,
        are_others_kept: bool,
    },
    /// Each sector of each file by itself.
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    Lost,
    FirstHalf,
    SecondHalf,
    Random,
    /// The size is there and the bytes are not: what is new reads as zeros.
    Zeros,
}

const TREATMENTS: [(Treatment, bool); 9] = [
    (Treatment::Lost, true),
    (Treatment::FirstHalf, true),
    (Treatment::SecondHalf, true),
    (Treatment::Random, true),
    (Treatment::FirstHalf, false),
    (Treatment::SecondHalf, false),
    (Treatment::Random, false),
    (Treatment::Zeros, true),
    (Treatment::Zeros, false),
];

impl Disk {
    /// Goes on by one event.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Create { path, inode } => {
                let file = self.files.len();
                self.files.push(File::default());
                self.by_inode.insert(*inode, file);
                self.change_names(NameChange::Add(path.clone(), Node::File(file)));
            }
            Event::CreateDir { path, inode } => {
                self.dirs_by_inode.insert(*inode, path.clone());
                self.by_inode.remove(inode);
                // The root is there before anything else.
                if !path.is_empty() {
                    self.change_names(NameChange::Add(path.clone(), Node::Dir));
                }
            }
            Event::Write { inode, offset, data } => {
                self.change_data(*inode, DataChange::Write { offset: *offset, data: Rc::new(data.clone()) });
            }
            Event::SetSize { inode, size } => self.change_data(*inode, DataChange::SetSize(*size)),
            Event::Sync { inode } => self.sync(*inode),
            Event::Link { from, to } => {
                if let Some(node) = self.cached.get(from).copied() {
                    self.change_names(NameChange::Add(to.clone(), node));
                }
            }
            Event::Rename { from, to } => {
                for path in self.dirs_by_inode.values_mut() {
                    if let Some(moved) = moved(path, from, to) {
                        *path = moved;
                    }
                }
                self.change_names(NameChange::Rename(from.clone(), to.clone()));
            }
            Event::Unlink { path } | Event::RemoveDir { path } => self.change_names(NameChange::Remove(path.clone())),
            Event::Marker { .. } => {}
        }
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.cached);
        self.pending.push(change);
    }

    fn change_data(&mut self, inode: u64, change: DataChange) {
        if let Some(file) = self.by_inode.get(&inode).and_then(|file| self.files.get_mut(*file)) {
            file.pending.push(change);
        }
    }

    fn sync(&mut self, inode: u64) {
        if let Some(file) = self.by_inode.get(&inode).and_then(|file| self.files.get_mut(*file)) {
            file.durable = file.content(&mut |_, _| true);
            file.pending.clear();
        } else if let Some(dir) = self.dirs_by_inode.get(&inode) {
            let count = self.pending.iter().rposition(|change| change.is_in(dir)).map_or(0, |last| last + 1);
            for change in self.pending.drain(..count) {
                change.apply(&mut self.durable);
            }
        }
    }

    /// Files with changes that are not durable and that a name can lead to.
    fn dirty(&self) -> Vec<usize> {
        let has_name = |file| self.cached.values().chain(self.durable.values()).any(|node| *node == Node::File(file));
        (0..self.files.len()).filter(|file| !self.files[*file].pending.is_empty() && has_name(*file)).collect()
    }

    /// The ways in which a crash may happen now that are looked at; the first is the death of the process.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        let mut data = vec![DataChoice::AllKept];
        let dirty = self.dirty();
        if !dirty.is_empty() {
            data.push(DataChoice::AllLost);
            // Without others there is no difference between kept and lost ones.
            let treatments = || TREATMENTS.iter().filter(|(_, kept)| *kept || dirty.len() > 1);
            for file in &dirty {
                data.extend(treatments().map(|(treatment, kept)| DataChoice::One {
                    dirty: *file,
                    treatment: *treatment,
                    are_others_kept: *kept,
                }));
            }
            data.push(DataChoice::Random);
        }
        let with_names = |names| data.iter().map(move |data| Choice { names, data: *data });
        (0..=self.pending.len()).rev().flat_map(with_names).collect()
    }

    /// What a crash leaves on the medium.
    pub(crate) fn crash(&self, choice: Choice, random: &mut Random) -> Image {
        let mut names = self.durable.clone();
        self.pending.iter().take(choice.names).for_each(|change| change.apply(&mut names));
        let mut contents = BTreeMap::new();
        for node in names.values() {
            let Node::File(file) = *node else { continue };
            contents.entry(file).or_insert_with(|| self.files[file].after(file, choice.data, random));
        }
        Image { names, contents }
    }

    /// What an undisturbed end leaves.
    pub(crate) fn image(&self) -> Image {
        self.crash(Choice { names: self.pending.len(), data: DataChoice::AllKept }, &mut Random::new(0))
    }

    /// What `choice` means here, in words.
    pub(crate) fn describe(&self, choice: Choice) -> String {
        let lost: Vec<String> = self.pending.iter().skip(choice.names).map(NameChange::to_string).collect();
        let name = |file: usize| {
            let of_file = self.cached.iter().find(|(_, node)| **node == Node::File(file));
            of_file.map_or("a file without a name", |(path, _)| path.as_str())
        };
        let data = match choice.data {
            DataChoice::AllKept => "writes: all kept".to_owned(),
            DataChoice::AllLost => "writes: what was not synced is lost".to_owned(),
            DataChoice::Random => "writes: torn at random".to_owned(),
            DataChoice::One { dirty, treatment, are_others_kept } => {
                let others = if are_others_kept { "kept" } else { "lost" };
                format!("writes: those of {} {treatment:?}, others {others}", name(dirty))
            }
        };
        if lost.is_empty() {
            format!("names: all kept; {data}")
        } else {
            format!("names lost: {}; {data}", lost.join(", "))
        }
    }
}

/// Where `path` is once `from` is called `to`, if that concerns it.
fn moved(path: &str, from: &str, to: &str) -> Option<String> {
    match path.strip_prefix(from)? {
        "" => Some(to.to_owned()),
        rest if rest.starts_with('/') => Some(format!("{to}{rest}")),
        _ => None,
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Add(path, node) => {
                names.insert(path.clone(), *node);
            }
            Self::Remove(path) => {
                names.remove(path);
            }
            Self::Rename(from, to) => {
                let concerned: Vec<String> =
                    names.keys().filter(|path| moved(path, from, to).is_some()).cloned().collect();
                for path in concerned {
                    if let (Some(node), Some(to)) = (names.remove(&path), moved(&path, from, to)) {
                        names.insert(to, node);
                    }
                }
            }
        }
    }

    fn is_in(&self, dir: &str) -> bool {
        match self {
            Self::Add(path, _) | Self::Remove(path) => parent(path) == dir,
            Self::Rename(from, to) => parent(from) == dir || parent(to) == dir,
        }
    }
}

impl std::fmt::Display for NameChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Add(path, _) => write!(f, "+{path}"),
            Self::Remove(path) => write!(f, "-{path}"),
            Self::Rename(from, to) => write!(f, "{from} -> {to}"),
        }
    }
}

impl File {
    fn after(&self, file: usize, choice: DataChoice, random: &mut Random) -> Content {
        let sectors: usize = self.pending.iter().map(DataChange::sector_count).sum();
        let mut by_treatment = |treatment| {
            let mut seen = 0;
            self.content(&mut |change, _| {
                seen += 1;
                let is_size = matches!(self.pending[change], DataChange::SetSize(_));
                match treatment {
                    Treatment::Lost => false,
                    Treatment::Zeros => is_size,
                    Treatment::FirstHalf => 2 * seen <= sectors,
                    Treatment::SecondHalf => is_size || 2 * seen > sectors,
                    Treatment::Random => random.chance(1, 2) || is_size && random.chance(3, 4),
                }
            })
        };
        match choice {
            _ if self.pending.is_empty() => self.durable.clone(),
            DataChoice::AllKept => self.content(&mut |_, _| true),
            DataChoice::AllLost => self.durable.clone(),
            DataChoice::Random => by_treatment(Treatment::Random),
            DataChoice::One { dirty, treatment: Treatment::Zeros, .. } if dirty == file => {
                let size = self.content(&mut |_, _| true).bytes.len();
                let mut bytes = (*by_treatment(Treatment::Zeros).bytes).clone();
                bytes.resize(size, 0);
                Content::new(bytes)
            }
            DataChoice::One { dirty, treatment, .. } if dirty == file => by_treatment(treatment),
            DataChoice::One { are_others_kept: true, .. } => self.content(&mut |_, _| true),
            DataChoice::One { .. } => self.durable.clone(),
        }
    }

    /// The bytes with those changes that `is_kept`: it is asked for each sector of each change, in order. With a change of
    /// size all that follows is lost.
    fn content(&self, is_kept: &mut dyn FnMut(usize, u64) -> bool) -> Content {
        if self.pending.is_empty() {
            return self.durable.clone();
        }
        let mut bytes = (*self.durable.bytes).clone();
        for (index, change) in self.pending.iter().enumerate() {
            match change {
                DataChange::SetSize(size) => {
                    if !is_kept(index, 0) {
                        break;
                    }
                    bytes.resize(*size as usize, 0);
                }
                DataChange::Write { offset, data } => {
                    let mut at = 0;
                    while at < data.len() {
                        let place = offset + at as u64;
                        let count = ((SECTOR_SIZE - place % SECTOR_SIZE) as usize).min(data.len() - at);
                        if is_kept(index, place / SECTOR_SIZE) {
                            let end = place as usize + count;
                            if bytes.len() < end {
                                bytes.resize(end, 0);
                            }
                            bytes[place as usize..end].copy_from_slice(&data[at..at + count]);
                        }
                        at += count;
                    }
                }
            }
        }
        Content::new(bytes)
    }
}

impl DataChange {
    fn sector_count(&self) -> usize {
        match self {
            Self::SetSize(_) => 1,
            Self::Write { offset, data } if !data.is_empty() => {
                ((offset + data.len() as u64 - 1) / SECTOR_SIZE - offset / SECTOR_SIZE + 1) as usize
            }
            Self::Write { .. } => 0,
        }
    }
}

impl Content {
    fn new(bytes: Vec<u8>) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        Self { hash: hasher.finish(), bytes: Rc::new(bytes) }
    }
}

impl Image {
    /// Drops names whose directories are not there.
    pub(crate) fn prune(&mut self) {
        let names = self.names.clone();
        self.names.retain(|path, _| {
            let mut above = parent(path);
            while !above.is_empty() {
                if names.get(above) != Some(&Node::Dir) {
                    return false;
                }
                above = parent(above);
            }
            true
        });
    }

    /// Equal images have equal hashes.
    pub(crate) fn hash(&self) -> u64 {
        let mut text = Vec::new();
        let mut numbers: BTreeMap<usize, u64> = BTreeMap::new();
        for (path, node) in &self.names {
            text.extend_from_slice(path.as_bytes());
            text.push(0);
            if let Node::File(file) = node {
                // Which names are one file counts, their numbers do not.
                let next = numbers.len() as u64;
                let number = *numbers.entry(*file).or_insert(next);
                let content = &self.contents[file];
                for part in [number, content.bytes.len() as u64, content.hash] {
                    text.extend_from_slice(&part.to_le_bytes());
                }
            }
        }
        Content::new(text).hash
    }
}
