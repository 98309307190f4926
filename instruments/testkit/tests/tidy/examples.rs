//! A small bad example for each rule, beside a good one that must pass.

use super::messages;
use super::rules::{self, Complaint, Source};

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

fn manifest(home: &str, name: &str, rest: &str) -> Source {
    source(&format!("{home}/Cargo.toml"), &format!("[package]\nname = \"{name}\"\n{rest}"))
}

fn lines(complaints: &[Complaint]) -> Vec<usize> {
    complaints.iter().map(|complaint| complaint.line).collect()
}

#[test]
fn a_dependency_that_points_up_is_seen() {
    let below = manifest("pure/types", "a-types", "[dev-dependencies]\na-node.workspace = true\n");
    let platform = manifest("edge/a", "a", "[target.'cfg(unix)'.dependencies]\na-sim.workspace = true\n");
    let node = manifest("host/node", "a-node", "[dependencies]\na-types.workspace = true\n");
    let sim = manifest("lab/sim", "a-sim", "[dependencies]\na-node.workspace = true\na.workspace = true\n");
    let all = [below, platform, node, sim];
    let crates = rules::crate_layers(&all);
    let counts = all.each_ref().map(|manifest| rules::dependency_direction(manifest, &crates).len());
    assert_eq!(counts, [1, 1, 0, 0]);
}

#[test]
fn the_binary_may_contain_instruments_and_nothing_else_of_the_lab() {
    let bench = manifest(
        "instruments/bench",
        "a-bench",
        "[dependencies]\na-node.workspace = true\na-report.workspace = true\n",
    );
    let report = manifest("instruments/report", "a-report", "[dependencies]\na.workspace = true\n");
    let node = manifest("host/node", "a-node", "[dev-dependencies]\na-bench.workspace = true\n");
    let binary = manifest("edge/a", "a", "[dependencies]\na-bench.workspace = true\na-sim.workspace = true\n");
    let sim = manifest("lab/sim", "a-sim", "[dependencies]\na-bench.workspace = true\n");
    let all = [bench, report, node, binary, sim];
    let crates = rules::crate_layers(&all);
    let counts = all.each_ref().map(|manifest| rules::dependency_direction(manifest, &crates).len());
    assert_eq!(counts, [0, 1, 1, 1, 0]);
}

#[test]
fn a_door_to_the_outside_in_a_pure_crate_is_seen() {
    let runtime = "[dependencies]\nbytes.workspace = true\ntokio.workspace = true\n";
    assert_eq!(rules::pure_dependencies(&manifest("pure/wire", "a-wire", runtime)).len(), 1);
    assert_eq!(rules::pure_dependencies(&manifest("host/node", "a-node", runtime)), []);
}

#[test]
fn a_version_outside_the_workspace_table_is_seen() {
    let own =
        "[dependencies]\nbytes = \"1\"\nlibc = { version = \"0.2\" }\nserde = { workspace = true, features = [] }\n";
    assert_eq!(rules::inherited_versions(&manifest("host/node", "a-node", own)).len(), 2);
}

#[test]
fn a_crate_without_the_lints_is_seen() {
    assert_eq!(rules::inherited_lints(&manifest("host/node", "a-node", "")).len(), 1);
    assert_eq!(rules::inherited_lints(&manifest("host/node", "a-node", "[lints]\nworkspace = false\n")).len(), 1);
    assert_eq!(rules::inherited_lints(&manifest("host/node", "a-node", "[lints]\nworkspace = true\n")), []);
}

#[test]
fn a_listed_crate_with_std_is_seen() {
    assert!(rules::no_std(&source("pure/wire/src/lib.rs", "//! Bytes in.\n// #![no_std]\n")).is_some());
    assert!(rules::no_std(&source("pure/wire/src/lib.rs", "//! Bytes in.\n#![no_std]\n")).is_none());
    assert!(rules::no_std(&source("pure/wire/src/frame.rs", "//! Frames.\n")).is_none());
    assert!(rules::no_std(&source("pure/placement/src/lib.rs", "//! Placement.\n")).is_none());
}

#[test]
fn a_file_that_does_not_say_its_idea_is_seen() {
    for text in ["", "use std::fmt;\n", "//!\n//! Too late.\n", "//! Short\n", "\n//! After an empty line.\n"] {
        assert!(rules::opening_line(&source("host/node/tests/a.rs", text)).is_some(), "{text:?}");
    }
    assert!(rules::opening_line(&source("host/node/src/a.rs", "//! Serves reads.\n")).is_none());
    assert!(rules::opening_line(&source("README.md", "# Hello\n")).is_none());
}

#[test]
fn a_long_file_is_seen() {
    assert!(rules::file_length(&source("host/node/src/a.rs", &"//\n".repeat(801))).is_some());
    assert!(rules::file_length(&source("host/node/src/a.rs", &"//\n".repeat(800))).is_none());
    assert!(rules::file_length(&source("docs/a.md", &"-\n".repeat(2000))).is_none());
}

#[test]
fn blanks_at_the_end_of_a_line_are_seen() {
    assert_eq!(lines(&rules::line_ends(&source("a.md", "good\nbad \n\tgood\nbad\t\nno newline"))), [2, 4, 5]);
    assert_eq!(rules::line_ends(&source("a.md", "")), []);
}

#[test]
fn messages_are_found_and_judged() {
    let text = [
        r#"#[error("table {name:?} is not there")]"#,
        r#"bail!("the file\
              is read (\"once\")");"#,
        r#"x.with_context(|| match c { '"' => format!("quoted {c}"), _ => format!("plain {c}") })?;"#,
        r#"let other = "not a message";"#,
        "#[cfg(test)]\nmod tests { bail!(\"in a test\") }",
    ];
    let shipped = source("edge/a/src/a.rs", &text.join("\n"));
    let found: Vec<String> = messages::of(&shipped).into_iter().map(|(_, text)| text).collect();
    assert_eq!(found, ["table {name:?} is not there", "the fileis read (\\\"once\\\")", "quoted {c}", "plain {c}"]);
    assert_eq!(messages::of(&source("edge/a/tests/a.rs", &text.join("\n"))), []);
    assert_eq!(messages::complaints(&shipped), []);
    for bad in [
        "It is wrong.",
        "failed to open {path}",
        "cannot open  {path}",
        "the the file is gone",
        "{count} rows are there",
        "please wait a bit",
    ] {
        let bad = source("host/a/src/a.rs", &format!("\nErr(\"{bad}\")"));
        assert_eq!(lines(&messages::complaints(&bad)), [2], "{}", bad.text);
    }
    for good in ["waiting ...", "{count} is too much", "{bad_count}: rows", "it is it that is"] {
        assert_eq!(messages::complaints(&source("host/a/src/a.rs", &format!("Err(\"{good}\")"))), []);
    }
}

#[test]
fn leftovers_are_seen() {
    let text = [
        concat!("// TO", "DO later"),
        "fine(\"to do\")",
        concat!("db", "g!(x)"),
        concat!("#[ig", "nore]"),
        concat!("unimple", "mented!()"),
    ];
    assert_eq!(lines(&rules::leftovers(&source("host/a/src/a.rs", &text.join("\n")))), [1, 3, 4, 5]);
    assert_eq!(lines(&rules::leftovers(&source("lab/conformance/a.py", &text.join("\n")))), [1, 3, 4, 5]);
}

#[test]
fn paths_of_one_machine_are_seen() {
    let text = [
        concat!("cd /ro", "ot/code"),
        concat!("\"/ho", "me/me/x\""),
        concat!("network/wo", "rk/x is relative"),
        concat!("/wo", "rk/y"),
        "~/.cache/x",
    ];
    assert_eq!(lines(&rules::machine_paths(&source("docs/a.md", &text.join("\n")))), [1, 2, 4]);
}

#[test]
fn paths_in_a_document_are_found() {
    let text = "See `host/node/src/read.rs:12`, [why](docs/decisions/001-a.md#reasons), [site](https://a.b/c), `pure/*`,\n\
                plain host/words, `x` and (`lab/sim`).\n```\nedge/hedgerow  the binary\n  src/main.rs\n```\n    pure/types  ids\n";
    let expected = ["docs/decisions/001-a.md", "edge/hedgerow", "host/node/src/read.rs", "lab/sim", "pure/types"];
    assert_eq!(rules::mentioned_paths(text), expected);
}
