//! The rules as functions from text to complaints. They read no files, so that small bad examples can be shown to them.

use std::collections::BTreeMap;
use std::fmt;
use toml::{Table, Value};

/// No Rust file is longer, in lines.
const FILE_LINES_MAX: usize = 800;
/// Crates that build without the standard library, so that purity is checked by the compiler.
const NO_STD: [&str; 4] = ["pure/hedge/", "pure/routing/", "pure/types/", "pure/wire/"];
/// What a pure crate may not depend on: doors to the clock, disk, sockets, threads and randomness of the machine.
const IMPURE: [&str; 9] =
    ["getrandom", "indicatif", "libc", "rocksdb", "socket2", "tempfile", "tokio", "tracing-subscriber", "turmoil"];
/// What nobody may leave behind. Spelt in two halves, so that this file does not accuse itself.
const LEFTOVERS: [&str; 7] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("db", "g!("),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("#[ig", "nore"),
];
/// Beginnings of paths that exist on somebody's machine only.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// A text of the repository, by its path below the root.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// What is wrong, and where.
#[derive(Debug, PartialEq)]
pub(crate) struct Complaint {
    pub(crate) path: String,
    /// From 1; 0 means the whole file.
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn complain(&self, line: usize, what: impl Into<String>) -> Complaint {
        Complaint { path: self.path.clone(), line, what: what.into() }
    }

    /// Complaints about single lines.
    fn check_lines(&self, check: impl Fn(&str) -> Option<String>) -> Vec<Complaint> {
        let lines = self.text.lines().enumerate();
        lines.filter_map(|(index, line)| check(line).map(|what| self.complain(index + 1, what))).collect()
    }
}

/// The layers from the bottom up. A crate depends on its own layer and those below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    Pure,
    Host,
    Instruments,
    Edge,
    Lab,
}

/// The layer of a path of the form `layer/crate/...`. `None` for everything that belongs to no crate of the workspace.
pub(crate) fn layer(path: &str) -> Option<Layer> {
    let mut parts = path.split('/');
    let layer = match parts.next()? {
        "pure" => Layer::Pure,
        "host" => Layer::Host,
        // What measures, and what makes faults: the binary may contain it (decision 005).
        "instruments" => Layer::Instruments,
        "edge" => Layer::Edge,
        "lab" => Layer::Lab,
        _ => return None,
    };
    // Deeper manifests, such as the fuzzing targets', are workspaces of their own.
    let is_member = parts.clone().count() == 2 || !path.ends_with("Cargo.toml");
    is_member.then_some(layer)
}

fn parse(manifest: &Source) -> Table {
    manifest.text.parse().unwrap_or_else(|error| panic!("{}: {error}", manifest.path))
}

/// Every dependency of a manifest by name, those for tests, build scripts and single platforms included.
fn dependencies(manifest: &Table) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        if key.ends_with("dependencies") {
            found.extend(table.iter().map(|(name, value)| (name.clone(), value.clone())));
        } else if key == "target" {
            found.extend(table.values().filter_map(Value::as_table).flat_map(dependencies));
        }
    }
    found
}

/// The layer of each crate by the crate's name.
pub(crate) fn crate_layers(manifests: &[Source]) -> BTreeMap<String, Layer> {
    let name = |manifest: &Source| parse(manifest)["package"]["name"].as_str().map(str::to_owned);
    manifests.iter().filter_map(|manifest| Some((name(manifest)?, layer(&manifest.path)?))).collect()
}

/// Dependencies point down: pure < host < instruments < edge < lab.
pub(crate) fn dependency_direction(manifest: &Source, crates: &BTreeMap<String, Layer>) -> Vec<Complaint> {
    let Some(own) = layer(&manifest.path) else { return Vec::new() };
    let above = |name: &str| crates.get(name).copied().filter(|layer| *layer > own);
    let complain = |(name, _): (String, Value)| {
        above(&name).map(|layer| manifest.complain(0, format!("{own:?} may not depend on {name}, which is {layer:?}")))
    };
    dependencies(&parse(manifest)).into_iter().filter_map(complain).collect()
}

/// Pure crates have no door to the outside among their dependencies.
pub(crate) fn pure_dependencies(manifest: &Source) -> Vec<Complaint> {
    if layer(&manifest.path) != Some(Layer::Pure) {
        return Vec::new();
    }
    let names = dependencies(&parse(manifest)).into_iter().map(|(name, _)| name);
    let impure = names.filter(|name| IMPURE.contains(&name.as_str()));
    impure.map(|name| manifest.complain(0, format!("{name} is a door to the outside"))).collect()
}

/// Versions and features are chosen once, in the workspace's table. A crate may name itself, to test with other features.
pub(crate) fn inherited_versions(manifest: &Source) -> Vec<Complaint> {
    let is_itself = |value: &Value| value.get("path").and_then(Value::as_str) == Some(".");
    let is_inherited =
        |value: &Value| value.get("workspace").and_then(Value::as_bool) == Some(true) || is_itself(value);
    let own = dependencies(&parse(manifest)).into_iter().filter(|(_, value)| !is_inherited(value));
    own.map(|(name, _)| manifest.complain(0, format!("the version of {name} belongs into the workspace's table")))
        .collect()
}

/// Every crate is held to the workspace's lints.
pub(crate) fn inherited_lints(manifest: &Source) -> Vec<Complaint> {
    let manifest_table = parse(manifest);
    let inherits = manifest_table.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool);
    if inherits == Some(true) { Vec::new() } else { vec![manifest.complain(0, "lacks [lints] workspace = true")] }
}

/// The crates of the list carry `#![no_std]`.
pub(crate) fn no_std(source: &Source) -> Option<Complaint> {
    let is_listed = NO_STD.iter().any(|home| source.path == format!("{home}src/lib.rs"));
    let says_so = source.text.lines().any(|line| line == "#![no_std]");
    (is_listed && !says_so).then(|| source.complain(0, "lacks #![no_std]"))
}

/// A Rust file opens with a `//!` sentence that says its one idea.
pub(crate) fn opening_line(source: &Source) -> Option<Complaint> {
    let first = source.text.lines().next().unwrap_or_default();
    let says_something = first.strip_prefix("//! ").is_some_and(|idea| idea.trim().len() >= 10);
    (source.is_rust() && !says_something).then(|| source.complain(1, "does not open with a //! sentence"))
}

/// A Rust file stays below a screenful of screens.
pub(crate) fn file_length(source: &Source) -> Option<Complaint> {
    let count = source.text.lines().count();
    let what = || format!("{count} lines, more than {FILE_LINES_MAX}: it holds more than one idea");
    (source.is_rust() && count > FILE_LINES_MAX).then(|| source.complain(0, what()))
}

/// No blanks at the ends of lines, and a newline at the end of the file.
pub(crate) fn line_ends(source: &Source) -> Vec<Complaint> {
    let mut complaints =
        source.check_lines(|line| line.ends_with([' ', '\t', '\r']).then(|| "trailing blanks".to_owned()));
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        complaints.push(source.complain(source.text.lines().count(), "no newline at the end of the file"));
    }
    complaints
}

/// Nothing unfinished, and no test that is switched off.
pub(crate) fn leftovers(source: &Source) -> Vec<Complaint> {
    if !source.is_rust() && !source.path.ends_with(".py") && !source.path.ends_with(".go") {
        return Vec::new();
    }
    let found = |line: &str| LEFTOVERS.into_iter().find(|leftover| line.contains(leftover));
    source.check_lines(|line| found(line).map(|leftover| format!("left behind: {leftover}")))
}

/// No path that exists on one machine only.
pub(crate) fn machine_paths(source: &Source) -> Vec<Complaint> {
    source.check_lines(|line| {
        let is_start = |at: usize| at == 0 || !is_path_byte(line.as_bytes()[at - 1]);
        let found = |prefix: &&str| line.match_indices(*prefix).any(|(at, _)| is_start(at));
        MACHINE_PATHS.iter().find(|prefix| found(prefix)).map(|prefix| format!("a path of one machine: {prefix}"))
    })
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'~' | b'}' | b'*')
}

/// The paths of the repository that a Markdown text mentions: targets of its links, and everything in code that begins
/// with a folder of the repository. Patterns (with `*`, `<` or `{`) are no paths.
pub(crate) fn mentioned_paths(markdown: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut is_fenced = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            paths.extend(line.split_whitespace().filter_map(repository_path));
        } else {
            let code = line.split('`').skip(1).step_by(2);
            paths.extend(code.flat_map(str::split_whitespace).filter_map(repository_path));
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            paths.extend(targets.filter(|target| !target.contains("://")).filter_map(plain_path));
        }
    }
    paths.sort();
    paths.dedup();
    paths
}

fn repository_path(word: &str) -> Option<String> {
    let word = word.trim_matches(['(', ')', ',', ';', '"', '\'', '.']);
    let folders = ["pure/", "host/", "edge/", "lab/", "docs/", "ci/"];
    folders.iter().any(|folder| word.starts_with(folder)).then(|| plain_path(word)).flatten()
}

/// Without a line number or an anchor; `None` for a pattern and for an anchor alone.
fn plain_path(word: &str) -> Option<String> {
    let path = word.split(['#', ':']).next().unwrap_or_default();
    let is_pattern = path.contains(['*', '<', '{', '$']) || path.contains("...");
    (!path.is_empty() && !is_pattern).then(|| path.to_owned())
}
