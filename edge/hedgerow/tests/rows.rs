//! Rows that are easily lost between a dump and a load: those with an empty hash key, and those of a table without a majority.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::{Cluster, Settings};

fn settings(nodes: usize) -> Settings {
    Settings::of_binary(env!("CARGO_BIN_EXE_hedgerow").into(), nodes)
}

/// The rows of a table, in order.
fn rows(cluster: &Cluster, table: &str, further: &[&str]) -> Vec<String> {
    let dump = cluster.run(&[&["dump", table], further].concat()).unwrap();
    let mut rows: Vec<String> = dump.lines().map(str::to_owned).collect();
    rows.sort();
    rows
}

/// A load refused the rows with an empty hash key that a dump had written.
#[test]
fn rows_with_an_empty_hash_key_come_back_from_a_dump() {
    let cluster = Cluster::start_with(settings(1)).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "4"]).unwrap();
    for key in ["", "a", "b", "c"] {
        cluster.run(&["set", "t", "", key, "of nobody"]).unwrap();
        cluster.run(&["set", "t", "somebody", key, "of somebody"]).unwrap();
    }
    let before = rows(&cluster, "t", &[]);
    assert_eq!(before.len(), 8, "{before:?}");
    let folder = tempfile::tempdir().unwrap();
    for format in ["tsv", "csv", "jsonl"] {
        let file = folder.path().join(format!("rows.{format}")).display().to_string();
        let copy = format!("of-{format}");
        cluster.run(&["dump", "t", &file]).unwrap();
        cluster.run(&["table", "create", &copy, "--partitions", "2"]).unwrap();
        cluster.run(&["load", &copy, &file]).unwrap();
        assert_eq!(rows(&cluster, &copy, &[]), before, "{format}");
    }
    assert_eq!(cluster.run(&["get", "of-csv", "", "b"]).unwrap().trim(), "of nobody");
    for (arguments, expected) in [
        (&["scan", "t", ""][..], "`hedgerow scan t` shows them"),
        (&["multi-get", "t", "", "a"], "hedgerow get t \"\" KEY"),
    ] {
        let error = cluster.run(arguments).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("exit status: 2"), "{arguments:?}: {error}");
    }
}

#[test]
fn what_is_left_of_a_table_without_a_majority_can_be_saved() {
    let mut cluster = Cluster::start_with(settings(3)).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "4"]).unwrap();
    for number in 0..20 {
        cluster.run(&["set", "t", &format!("key{number}"), "", "value"]).unwrap();
    }
    // All replicas have all rows.
    cluster.run(&["verify", "t"]).unwrap();
    let before = rows(&cluster, "t", &[]);
    cluster.kill(2).unwrap();
    let verify = cluster.run(&["verify", "t"]).unwrap_err().to_string();
    assert!(verify.contains("exit status: 3") && verify.contains("node 2 did not answer"), "{verify}");
    assert!(verify.contains("log index") && verify.contains("those that could are equal"), "{verify}");
    cluster.kill(3).unwrap();
    assert_eq!(rows(&cluster, "t", &["--read", "eventual"]), before);
    let error = cluster.run(&["dump", "t", "--timeout", "2"]).unwrap_err().to_string();
    assert!(error.contains("exit status: 3"), "{error}");
}
