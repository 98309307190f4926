//! The names of a simulated file system: what programs see, what is on the medium, and the changes in between.
//!
//! A directory's unsynced changes reach the medium in their order, as with a journal, but each directory on its own:
//! after a crash each has lost some suffix of them. A rename between two directories happens in both or in neither.

use super::file::Content;
use hedgerow_types::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file or directory, whatever its names.
#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Arc<FileNode>),
    Dir(Arc<DirNode>),
}

#[derive(Debug)]
pub(super) struct FileNode {
    id: u64,
    content: Mutex<Content>,
}

#[derive(Debug)]
pub(super) struct DirNode {
    id: u64,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    current: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    pending: Vec<Change>,
}

/// One step that a directory takes as a whole: new meanings of some names, `None` for a name that goes.
#[derive(Debug)]
struct Change {
    id: u64,
    /// Whether it is one side of a rename between two directories; the other side has the same id.
    is_half: bool,
    names: Vec<(String, Option<Node>)>,
}

#[derive(Debug)]
pub(super) struct Tree {
    root: Arc<DirNode>,
    next_id: u64,
}

impl FileNode {
    pub(super) fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirNode {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    fn change(&mut self, change: Change) {
        apply(&mut self.current, &change);
        self.pending.push(change);
    }

    /// Makes the first `count` changes durable.
    fn settle(&mut self, count: usize) {
        self.pending.drain(..count).for_each(|change| apply(&mut self.durable, &change));
    }
}

fn apply(names: &mut BTreeMap<String, Node>, change: &Change) {
    for (name, node) in &change.names {
        match node {
            Some(node) => names.insert(name.clone(), node.clone()),
            None => names.remove(name),
        };
    }
}

/// `files` are those that were copied: one with two names stays one.
fn copy_of_dir(dir: &DirNode, files: &mut BTreeMap<u64, Arc<FileNode>>) -> Arc<DirNode> {
    let mut copy_of = |node: &Node| match node {
        Node::Dir(dir) => Node::Dir(copy_of_dir(dir, files)),
        Node::File(file) => {
            let copy = || Arc::new(FileNode { id: file.id, content: Mutex::new(file.content().copy()) });
            Node::File(Arc::clone(files.entry(file.id).or_insert_with(copy)))
        }
    };
    let current: BTreeMap<String, Node> =
        dir.names().current.iter().map(|(name, node)| (name.clone(), copy_of(node))).collect();
    let names = Names { durable: current.clone(), current, pending: Vec::new() };
    Arc::new(DirNode { id: dir.id, names: Mutex::new(names) })
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { root: Arc::new(DirNode { id: 0, names: Mutex::default() }), next_id: 1 }
    }

    /// What programs see at this moment, as another file system that has written all of it back. Ids stay.
    pub(super) fn copy(&self) -> Self {
        Self { root: copy_of_dir(&self.root, &mut BTreeMap::new()), next_id: self.next_id }
    }

    pub(super) fn find(&self, path: &Path) -> io::Result<Node> {
        let mut node = Node::Dir(Arc::clone(&self.root));
        for name in names_of(path)? {
            node = match node {
                Node::Dir(dir) => dir.names().current.get(&name).cloned().ok_or(io::ErrorKind::NotFound)?,
                Node::File(_) => return Err(io::ErrorKind::NotADirectory.into()),
            };
        }
        Ok(node)
    }

    pub(super) fn find_dir(&self, path: &Path) -> io::Result<Arc<DirNode>> {
        match self.find(path)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn find_file(&self, path: &Path) -> io::Result<Arc<FileNode>> {
        match self.find(path)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        Ok(self.find_dir(path)?.names().current.keys().cloned().collect())
    }

    pub(super) fn create_file(&mut self, path: &Path) -> io::Result<Arc<FileNode>> {
        let (dir, name) = self.find_parent(path)?;
        let file = Arc::new(FileNode { id: self.new_id(), content: Mutex::default() });
        self.set(&dir, vec![(name, Some(Node::File(Arc::clone(&file))))]);
        Ok(file)
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut dir = Arc::clone(&self.root);
        for name in names_of(path)? {
            let found = dir.names().current.get(&name).cloned();
            dir = match found {
                Some(Node::Dir(dir)) => dir,
                Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => {
                    let new = Arc::new(DirNode { id: self.new_id(), names: Mutex::default() });
                    self.set(&dir, vec![(name, Some(Node::Dir(Arc::clone(&new))))]);
                    new
                }
            };
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.find(from)?;
        if let Ok(Node::Dir(target)) = self.find(to)
            && !target.names().current.is_empty()
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let ((from_dir, from_name), (to_dir, to_name)) = (self.find_parent(from)?, self.find_parent(to)?);
        if from_dir.id == to_dir.id {
            if from_name != to_name {
                self.set(&to_dir, vec![(from_name, None), (to_name, Some(node))]);
            }
            return Ok(());
        }
        let id = self.new_id();
        from_dir.names().change(Change { id, is_half: true, names: vec![(from_name, None)] });
        to_dir.names().change(Change { id, is_half: true, names: vec![(to_name, Some(node))] });
        Ok(())
    }

    pub(super) fn hard_link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.find_file(from)?;
        let (dir, name) = self.find_parent(to)?;
        if dir.names().current.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.set(&dir, vec![(name, Some(Node::File(file)))]);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.find_parent(path)?;
        self.set(&dir, vec![(name, None)]);
        Ok(())
    }

    pub(super) fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let dir = self.find_dir(path)?;
        let count = dir.names().pending.len();
        if dir.names().pending.iter().all(|change| !change.is_half) {
            dir.names().settle(count);
        } else {
            self.settle(&self.dirs(), BTreeMap::from([(dir.id, count)]));
        }
        Ok(())
    }

    pub(super) fn crash(&mut self, random: &mut Random) {
        let dirs = self.dirs();
        let mut kept = |dir: &DirNode| random.below(dir.names().pending.len() as u64 + 1) as usize;
        let kept = dirs.values().map(|dir| (dir.id, kept(dir))).collect();
        self.settle(&dirs, kept);
        for dir in dirs.values() {
            let names = &mut *dir.names();
            names.pending.clear();
            names.current = names.durable.clone();
        }
        let mut files = BTreeMap::new();
        for dir in self.dirs().values() {
            for node in dir.names().current.values() {
                if let Node::File(file) = node {
                    files.insert(file.id, Arc::clone(file));
                }
            }
        }
        files.values().for_each(|file| file.content().crash(random));
    }

    /// Bytes of all files that have a name.
    pub(super) fn size(&self) -> u64 {
        let mut files = BTreeMap::new();
        let mut left = vec![Arc::clone(&self.root)];
        while let Some(dir) = left.pop() {
            for node in dir.names().current.values() {
                match node {
                    Node::Dir(child) => left.push(Arc::clone(child)),
                    Node::File(file) => drop(files.insert(file.id, file.content().len() as u64)),
                }
            }
        }
        files.values().sum()
    }

    /// Makes the first `kept` changes of each directory durable, and whatever they drag along: where one half of a
    /// rename is kept, everything up to the other half is kept in the other directory.
    fn settle(&self, dirs: &BTreeMap<u64, Arc<DirNode>>, mut kept: BTreeMap<u64, usize>) {
        loop {
            let mut halves = BTreeSet::new();
            for (id, dir) in dirs {
                let count = kept.get(id).copied().unwrap_or(0);
                halves.extend(dir.names().pending[..count].iter().filter(|change| change.is_half).map(|half| half.id));
            }
            let mut is_stable = true;
            for (id, dir) in dirs {
                let count = kept.entry(*id).or_default();
                let needed = dir.names().pending.iter().rposition(|change| halves.contains(&change.id));
                if let Some(last) = needed
                    && last >= *count
                {
                    *count = last + 1;
                    is_stable = false;
                }
            }
            if is_stable {
                break;
            }
        }
        dirs.iter().for_each(|(id, dir)| dir.names().settle(kept.get(id).copied().unwrap_or(0)));
    }

    /// Every directory that has a name, or had one on the medium.
    fn dirs(&self) -> BTreeMap<u64, Arc<DirNode>> {
        let mut found = BTreeMap::new();
        let mut left = vec![Arc::clone(&self.root)];
        while let Some(dir) = left.pop() {
            let names = dir.names();
            let pending =
                names.pending.iter().flat_map(|change| change.names.iter().filter_map(|(_, node)| node.as_ref()));
            for node in names.current.values().chain(names.durable.values()).chain(pending) {
                if let Node::Dir(child) = node
                    && !found.contains_key(&child.id)
                {
                    left.push(Arc::clone(child));
                }
            }
            drop(names);
            found.insert(dir.id, dir);
        }
        found
    }

    fn find_parent(&self, path: &Path) -> io::Result<(Arc<DirNode>, String)> {
        let mut names = names_of(path)?;
        let name = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let parent: std::path::PathBuf = names.iter().collect();
        Ok((self.find_dir(&parent)?, name))
    }

    fn set(&mut self, dir: &DirNode, names: Vec<(String, Option<Node>)>) {
        let id = self.new_id();
        dir.names().change(Change { id, is_half: false, names });
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// The parts of a path from the root. Relative paths count from the root too.
fn names_of(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.to_string_lossy().into_owned()),
            Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(names)
}
