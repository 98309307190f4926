//! `NOTICES` says whose work the binary contains, and under which licences. It is made from the sources that Cargo.lock names, and
//! `./x notices` writes it anew; this test says when that is due.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that reads sources and calls cargo")]

#[path = "notices/bundled.rs"]
mod bundled;
#[path = "notices/licence.rs"]
mod licence;
#[path = "notices/linked.rs"]
mod linked;
#[path = "notices/text.rs"]
mod text;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..").canonicalize().unwrap()
}

#[test]
fn the_notices_are_those_of_the_crates_in_the_binary() {
    let crates = linked::crates(&root());
    assert!(crates.len() > 100, "cargo tree names only {} crates", crates.len());
    let notices = text::notices(&crates);
    let path = root().join("NOTICES");
    if std::env::var_os("REWRITE").is_some() {
        fs::write(&path, &notices).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    let first = notices.lines().zip(known.lines()).find(|(new, old)| new != old);
    assert!(notices == known, "NOTICES is not that of Cargo.lock, first at {first:?}: ./x notices writes it anew");
}

/// Crates that say they link to a library only so that there is one of them in a program. There is none.
const LINKS_NOTHING: [&str; 1] = ["rayon-core"];

#[test]
fn what_a_crate_brings_along_is_known() {
    for linked in linked::crates(&root()).into_iter().filter(|linked| !LINKS_NOTHING.contains(&linked.name.as_str())) {
        let is_known = bundled::ALL.iter().any(|bundled| bundled.inside == linked.name);
        assert!(!linked.is_native || is_known, "{} builds code that is not Rust: say in bundled.rs what", linked.name);
    }
}
