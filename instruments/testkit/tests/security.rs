//! `SECURITY.md` proves its claims by files and tests: they are all there.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that reads the repository's own files")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the repository that the document points into.
const FOLDERS: [&str; 6] = ["pure/", "host/", "edge/", "instruments/", "lab/", "docs/"];

fn root() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..").canonicalize().unwrap()
}

/// What stands between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_path(span: &str) -> bool {
    FOLDERS.iter().any(|folder| span.starts_with(folder))
}

/// The name of a function, as those of tests are: words that are joined by underscores, two at least.
fn is_function(span: &str) -> bool {
    span.contains('_') && span.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Names of the functions in the Rust files at and below `folder`.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let begun = text.split("fn ").skip(1);
            names.extend(begun.map(|rest| rest.split(['(', '<']).next().unwrap().to_owned()));
        }
    }
}

#[test]
fn files_and_tests_that_the_document_names_exist() {
    let root = root();
    let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let mut known = BTreeSet::new();
    ["pure", "host", "edge", "lab"].iter().for_each(|folder| functions(&root.join(folder), &mut known));
    // A command and its argument.
    known.extend(["drop_table", "reserve_seconds"].map(str::to_owned));
    let (paths, others): (Vec<_>, Vec<_>) = spans(&text).partition(|span| is_path(span));
    let named: Vec<_> = others.into_iter().filter(|span| is_function(span)).collect();
    assert!(paths.len() > 30 && named.len() > 20, "{} files and {} functions", paths.len(), named.len());
    let missing: Vec<_> = paths.iter().filter(|path| !root.join(path).exists()).collect();
    assert!(missing.is_empty(), "SECURITY.md names files that do not exist: {missing:?}");
    let missing: Vec<_> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "SECURITY.md names tests and functions that do not exist: {missing:?}");
}
