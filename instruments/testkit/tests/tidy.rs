//! The rules of the house that no lint can check: who may depend on whom, how a file opens, what must not be left behind.
//!
//! A rule is a function from text to complaints (`tidy/rules.rs`). The tests here run every rule over the repository;
//! `tidy/examples.rs` shows each rule a small bad example, so that none of them can fall asleep.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that reads the repository's own files")]

#[path = "tidy/examples.rs"]
mod examples;
#[path = "tidy/messages.rs"]
mod messages;
#[path = "tidy/rules.rs"]
mod rules;

use rules::{Complaint, Source};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no source: build results, fuzzing leftovers, version control.
const SKIPPED_FOLDERS: [&str; 6] = [".git", "target", "corpus", "artifacts", "__pycache__", "corpus-seed"];
/// Files that somebody reads; everything else is data.
const TEXT_EXTENSIONS: [&str; 10] = ["rs", "toml", "md", "sh", "py", "go", "mod", "txt", "yml", "proto"];
/// Texts whose names have no extension.
const TEXT_NAMES: [&str; 4] = ["x", "run", ".gitignore", "LICENSE"];

fn root() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..").canonicalize().unwrap()
}

fn is_text(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
    TEXT_NAMES.contains(&name.as_str()) || extension.is_some_and(|it| TEXT_EXTENSIONS.contains(&it.as_str()))
}

/// Every text of the repository, in the order of the paths.
fn sources() -> Vec<Source> {
    let root = root();
    let mut sources = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink() || SKIPPED_FOLDERS.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if is_text(&path) {
                let relative = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                sources.push(Source { text: fs::read_to_string(&path).unwrap(), path: relative });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 30, "found only {} texts below {}", sources.len(), root.display());
    sources
}

/// The manifests of the crates, without the workspace's own.
fn manifests() -> Vec<Source> {
    let is_crate = |source: &Source| rules::layer(&source.path).is_some() && source.path.ends_with("/Cargo.toml");
    let manifests: Vec<_> = sources().into_iter().filter(is_crate).collect();
    assert!(manifests.len() > 10, "found only {} crates", manifests.len());
    manifests
}

fn assert_none(complaints: impl IntoIterator<Item = Complaint>) {
    let complaints: Vec<_> = complaints.into_iter().map(|complaint| complaint.to_string()).collect();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn dependencies_point_down() {
    let manifests = manifests();
    let crates = rules::crate_layers(&manifests);
    assert_none(manifests.iter().flat_map(|manifest| rules::dependency_direction(manifest, &crates)));
}

#[test]
fn pure_crates_know_nothing_of_the_outside() {
    assert_none(manifests().iter().flat_map(rules::pure_dependencies));
}

#[test]
fn versions_stand_in_the_workspace_table() {
    assert_none(manifests().iter().flat_map(rules::inherited_versions));
}

#[test]
fn every_crate_inherits_the_lints() {
    assert_none(manifests().iter().flat_map(rules::inherited_lints));
}

#[test]
fn crates_without_std_say_so() {
    assert_none(sources().iter().flat_map(rules::no_std));
}

#[test]
fn every_rust_file_opens_with_its_idea() {
    assert_none(sources().iter().flat_map(rules::opening_line));
}

#[test]
fn no_rust_file_is_too_long() {
    assert_none(sources().iter().flat_map(rules::file_length));
}

#[test]
fn lines_end_cleanly() {
    assert_none(sources().iter().flat_map(rules::line_ends));
}

#[test]
fn nothing_unfinished_is_left_behind() {
    assert_none(sources().iter().flat_map(rules::leftovers));
}

/// A disk may not answer for seconds. Of a node, its starts and its jobs open files; the thread that serves does at three places only: for the node's
/// identity, twice in a life, and to see whether storage that has just failed is there at all.
#[test]
fn the_thread_that_serves_opens_no_file() {
    let blocks = [
        "adopt",
        "at_rest",
        "errands",
        "identity",
        "identity_tests",
        "inspect",
        "install",
        "job",
        "job_tests",
        "layout",
        "lives_tests",
        "log_id",
        "open",
        "received",
        "recover",
        "reserve",
    ];
    let may = [("founding", 1), ("node", 1), ("damage", 1)];
    let mut found = 0;
    for source in sources() {
        let Some(name) = source.path.strip_prefix("host/node/src/").and_then(|it| it.strip_suffix(".rs")) else {
            continue;
        };
        if name.starts_with("os") || blocks.contains(&name) {
            continue;
        }
        let count = ["self.disk", "engines.open", "engines.verify"]
            .iter()
            .map(|it| source.text.matches(it).count())
            .sum::<usize>();
        let allowed = may.iter().find(|(file, _)| *file == name).map_or(0, |(_, count)| *count);
        assert_eq!(count, allowed, "{} uses a disk: leave it to a job (`job.rs`, `errands.rs`)", source.path);
        found += count;
    }
    assert_eq!(found, 3);
}

/// Whoever changes what the programs say reads it once more in this list: `REWRITE=1 cargo test -p hedgerow-testkit --test tidy`
/// writes it anew.
#[test]
fn every_message_is_in_the_list() {
    let mut list = String::new();
    for source in sources() {
        let mut texts: Vec<String> = messages::of(&source).into_iter().map(|(_, text)| text).collect();
        texts.sort();
        texts.dedup();
        if !texts.is_empty() {
            list.push_str(&format!("{}\n", source.path));
            texts.iter().for_each(|text| list.push_str(&format!("    {}\n", text.trim_end())));
        }
    }
    let path = root().join("instruments/testkit/tests/tidy/messages.txt");
    if std::env::var_os("REWRITE").is_some() {
        fs::write(&path, &list).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    let differs = |(new, old): &(&str, &str)| new != old;
    let first = list.lines().zip(known.lines()).find(differs);
    assert!(
        list == known,
        "the list of messages is not that of the sources, first at {first:?}: read what is new, then REWRITE=1"
    );
    assert!(list.lines().count() > 500, "{}", list.lines().count());
}

#[test]
fn messages_are_plain() {
    assert_none(sources().iter().flat_map(messages::complaints));
}

#[test]
fn no_path_of_a_single_machine() {
    assert_none(sources().iter().flat_map(rules::machine_paths));
}

#[test]
fn the_documents_of_the_house_exist() {
    let root = root();
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "docs/decisions/000-template.md", "x"] {
        let size = fs::metadata(root.join(name)).map(|metadata| metadata.len()).unwrap_or(0);
        assert!(size > 0, "{name} is missing or empty");
    }
}

#[test]
fn every_path_in_the_architecture_exists() {
    let root = root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let paths = rules::mentioned_paths(&text);
    assert!(paths.len() > 10, "the code map names only {} paths", paths.len());
    let missing: Vec<_> = paths.into_iter().filter(|path| !root.join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md mentions what does not exist: {missing:?}");
}
