//! The crates that are linked into the binary, as Cargo tells: normal dependencies of `hedgerow` on Linux, without what only runs
//! while it is compiled.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the binary is built for.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// A crate that is not ours.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As its manifest says it.
    pub(crate) licence: String,
    pub(crate) authors: Vec<String>,
    pub(crate) repository: String,
    pub(crate) folder: PathBuf,
    /// Whether it links a library that is not Rust.
    pub(crate) is_native: bool,
}

/// All of them, by name and version.
pub(crate) fn crates(root: &Path) -> Vec<Crate> {
    let names = names(root);
    let mut arguments = vec!["metadata", "--format-version", "1"];
    arguments.extend(TARGETS.iter().flat_map(|target| ["--filter-platform", target]));
    let metadata: Value = serde_json::from_str(&cargo(root, &arguments)).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let foreign = packages.iter().filter(|package| !package["source"].is_null()).map(crate_of);
    let foreign: BTreeMap<_, _> =
        foreign.map(|linked| ((linked.name.clone(), linked.version.clone()), linked)).collect();
    foreign.into_iter().filter(|(name, _)| names.contains(name)).map(|(_, linked)| linked).collect()
}

/// Name and version of what is linked for any of the targets, our own crates included.
fn names(root: &Path) -> BTreeSet<(String, String)> {
    let mut names = BTreeSet::new();
    for target in TARGETS {
        let tree = "tree --package hedgerow --edges normal,no-proc-macro --prefix none --format {p} --target";
        let arguments: Vec<&str> = tree.split(' ').chain([target]).collect();
        for line in cargo(root, &arguments).lines() {
            let mut words = line.split(' ');
            let (name, version) = (words.next().unwrap(), words.next().unwrap());
            names.insert((name.to_owned(), version.trim_start_matches('v').to_owned()));
        }
    }
    names
}

fn crate_of(package: &Value) -> Crate {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let authors = package["authors"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Crate {
        name: text("name"),
        version: text("version"),
        licence: text("license"),
        authors: authors.map(str::to_owned).collect(),
        repository: text("repository"),
        folder: Path::new(&text("manifest_path")).parent().unwrap().to_owned(),
        is_native: !package["links"].is_null(),
    }
}

/// What cargo answers. It needs no network where the sources have been fetched.
fn cargo(root: &Path, arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).arg("--locked").current_dir(root).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
