//! What crates bring along that is no Rust of theirs: libraries in C and C++, and a typeface.

use crate::licence;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Something in the sources of a crate.
pub(crate) struct Bundled {
    pub(crate) name: &'static str,
    /// The crate.
    pub(crate) inside: &'static str,
    /// The licence that it is used under.
    pub(crate) licence: &'static str,
    /// Its files of licences that count, below the crate.
    files: &'static [&'static str],
    /// Folders of its sources, which say more, below the crate.
    sources: &'static [&'static str],
    /// How many sources there are at least: fewer mean that they are elsewhere by now.
    sources_min: usize,
    /// Whose work it is where no text says so, and the file that does.
    owner: Option<(&'static str, &'static str)>,
}

const ROCKSDB_SOURCES: &[&str] = &[
    "rocksdb/cache",
    "rocksdb/db",
    "rocksdb/env",
    "rocksdb/file",
    "rocksdb/include",
    "rocksdb/logging",
    "rocksdb/memory",
    "rocksdb/memtable",
    "rocksdb/monitoring",
    "rocksdb/options",
    "rocksdb/port",
    "rocksdb/table",
    "rocksdb/trace_replay",
    "rocksdb/util",
    "rocksdb/utilities",
];

/// All of them.
pub(crate) const ALL: [Bundled; 5] = [
    Bundled {
        name: "RocksDB, with LevelDB and PerconaFT",
        inside: "librocksdb-sys",
        licence: "Apache-2.0",
        files: &["rocksdb/LICENSE.leveldb"],
        sources: ROCKSDB_SOURCES,
        sources_min: 301,
        owner: None,
    },
    Bundled {
        name: "LZ4",
        inside: "lz4-sys",
        licence: "BSD-2-Clause",
        files: &["liblz4/lib/LICENSE"],
        sources: &[],
        sources_min: 0,
        owner: None,
    },
    Bundled {
        name: "mimalloc",
        inside: "libmimalloc-sys",
        licence: "MIT",
        files: &["c_src/mimalloc/v2/LICENSE"],
        sources: &[],
        sources_min: 0,
        owner: None,
    },
    Bundled {
        name: "BoringSSL and fiat-crypto",
        inside: "ring",
        licence: "Apache-2.0",
        files: &["third_party/fiat/LICENSE"],
        sources: &["crypto", "include", "pregenerated"],
        sources_min: 50,
        owner: None,
    },
    Bundled {
        name: "Noto Sans",
        inside: "ttf-noto-sans",
        licence: "Apache-2.0",
        files: &[],
        sources: &[],
        sources_min: 0,
        owner: Some(("Copyright 2012 Google Inc. All Rights Reserved.", "assets/NotoSans-Regular.ttf")),
    },
];

/// Whose work it is, and the texts of licences in it other than the one of the whole.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) owners: BTreeSet<String>,
    /// By their words, so that each is there once.
    pub(crate) texts: BTreeMap<String, String>,
}

impl Bundled {
    /// Reads it in the sources of its crate.
    pub(crate) fn find(&self, folder: &Path) -> Found {
        let mut found = Found::default();
        for file in self.files {
            let text = fs::read_to_string(folder.join(file)).unwrap();
            found.note_owners(&text);
            found.texts.insert(licence::one_line(&text), text.trim().to_owned());
        }
        let mut sources = Vec::new();
        self.sources.iter().for_each(|source| collect(&folder.join(source), &mut sources));
        assert!(sources.len() >= self.sources_min, "{}: {} sources", self.name, sources.len());
        for source in sources {
            let text = String::from_utf8_lossy(&fs::read(source).unwrap()).into_owned();
            found.note_owners(&text);
            for comment in comments(&text).filter(|comment| licence::of(comment).is_some()) {
                found.texts.entry(licence::one_line(&comment)).or_insert(comment);
            }
        }
        if let Some((owner, file)) = self.owner {
            // A typeface says it in UTF-16.
            let said: Vec<u8> = owner.encode_utf16().flat_map(u16::to_be_bytes).collect();
            let bytes = fs::read(folder.join(file)).unwrap();
            assert!(bytes.windows(said.len()).any(|window| window == said), "{file} does not say {owner:?}");
            found.owners.insert(owner.to_owned());
        }
        assert!(!found.owners.is_empty(), "{} names nobody", self.name);
        found
    }
}

impl Found {
    fn note_owners(&mut self, text: &str) {
        let owners = text.lines().filter_map(licence::copyright);
        self.owners.extend(owners.map(|owner| owner.split("  ").collect::<Vec<_>>().join(" ")));
    }
}

/// Files in C, C++ and assembler at and below `folder`, without tests.
fn collect(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_source = [".cc", ".h", ".c", ".S", ".inl"].iter().any(|end| name.ends_with(end));
        if path.is_dir() {
            collect(&path, sources);
        } else if is_source && !name.contains("test") {
            sources.push(path);
        }
    }
    sources.sort();
}

/// The texts of `/* ... */`, without the asterisks at the beginnings of their lines.
fn comments(text: &str) -> impl Iterator<Item = String> {
    let inner = text.split("/*").skip(1).filter_map(|rest| rest.split_once("*/")).map(|(comment, _)| comment);
    inner.map(|comment| {
        let lines = comment.lines().map(|line| line.trim_start().trim_start_matches('*').trim());
        lines.collect::<Vec<_>>().join("\n").trim().to_owned()
    })
}

#[test]
fn comments_are_read_without_their_frames() {
    let text = "int a; /* one */ int b;\n/*\n * two\n * lines\n */\n";
    assert_eq!(comments(text).collect::<Vec<_>>(), ["one", "two\nlines"]);
}
