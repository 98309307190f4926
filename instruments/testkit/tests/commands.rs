//! What commands say of a cluster whose nodes have just gone or come, of records that are not what was expected, and of
//! themselves: the document of the status has every name that a running cluster gives.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::Cluster;
use std::collections::BTreeSet;
use std::path::Path;

/// Others take a node that was killed for alive for 5 s: a leader on it was said to lead.
#[test]
fn a_partition_is_not_given_to_a_node_that_was_killed_a_moment_ago() {
    let mut cluster = Cluster::start(3).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "2"]).unwrap();
    cluster.run(&["table", "transfer", "t", "0", "2"]).unwrap();
    cluster.kill(2).unwrap();
    let error = cluster.run(&["table", "transfer", "t", "0", "2"]).unwrap_err().to_string();
    assert!(error.contains("node 2 is not up, and nothing was changed"), "{error}");
    assert!(error.contains("exit status: 3"), "{error}");
    assert!(!error.contains("leads it"), "{error}");
    for (arguments, expected) in [
        (&["table", "transfer", "t", "99", "1"][..], "table t has partitions 0 to 1, and no 99"),
        (&["table", "transfer", "none", "0", "1"], "there is no table \"none\""),
        (&["table", "drop", "none"], "there is no table \"none\""),
        (&["table", "create", "t"], "there is a table \"t\" already"),
        (&["table", "set-option", "none", "comment", "x"], "there is no table \"none\""),
        (&["table", "set-option", "t", "read_replicas", "1"], "read_replicas=1 needs 4 nodes"),
        (&["verify", "none"], "there is no table \"none\""),
        (&["table", "recall", "1"], "table 1 is in use"),
        (&["table", "recall", "99"], "no dropped table has the number 99"),
        (&["table", "create", "u", "--replicas", "3", "--option", "read_replicas=9"], "read_replicas"),
    ] {
        let error = cluster.run(arguments).unwrap_err().to_string();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn a_sum_that_is_refused_and_keys_that_are_missing_are_told() {
    let cluster = Cluster::start(1).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "2"]).unwrap();
    cluster.run(&["set", "t", "k", "name", "Ada", "--ttl", "3600"]).unwrap();
    for (arguments, expected, code) in [
        (&["incr", "t", "k", "name"][..], "does not hold a whole number", 4),
        (&["multi-get", "t", "k"], "hedgerow scan t k", 2),
        (&["get", "t", "k"], "(which may be empty: \"\")", 2),
        (&["set", "t", "k", "Ada"], "with an empty sort key `hedgerow set t k \"\" Ada`", 2),
        (&["set", "t", "Ada"], "hedgerow set TABLE t \"\" Ada", 2),
        (&["expire", "t", "k", "name", "--seconds", "5"], "--ttl SECONDS", 2),
    ] {
        let error = cluster.run(arguments).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&format!("exit status: {code}")), "{arguments:?}: {error}");
    }
    assert_eq!(cluster.run(&["dump", "t"]).unwrap().trim(), "k\tname\tAda");
}

/// A name that was mistyped, or one in a command of somebody else, does not fill a table with rows of bench.
#[test]
fn bench_writes_only_into_tables_that_it_made() {
    let cluster = Cluster::start(1).unwrap();
    cluster.run(&["table", "create", "users", "--partitions", "2"]).unwrap();
    let bench = |table: &str, further: &[&str]| {
        let common = [
            "bench",
            "put",
            "--table",
            table,
            "--partitions",
            "2",
            "--rows",
            "10",
            "--operations",
            "5",
            "--no-results",
        ];
        cluster.run(&[&common, further].concat())
    };
    let error = bench("users", &[]).unwrap_err().to_string();
    assert!(error.contains("table users was not made by bench") && error.contains("--into-existing"), "{error}");
    assert_eq!(cluster.run(&["dump", "users"]).unwrap(), "");
    bench("users", &["--into-existing"]).unwrap();
    assert!(!cluster.run(&["dump", "users"]).unwrap().is_empty());
    (0..2).for_each(|_| drop(bench("mine", &[]).unwrap()));
}

/// The names of all fields of a JSON text.
fn fields(json: &str) -> BTreeSet<&str> {
    let words: Vec<&str> = json.split('"').collect();
    words.windows(2).filter(|pair| pair[1].starts_with(':')).map(|pair| pair[0]).collect()
}

/// A part of docs/status.md.
fn section<'a>(page: &'a str, command: &str) -> &'a str {
    page.split_once(&format!("## `hedgerow {command}")).unwrap().1.split("\n## ").next().unwrap()
}

#[test]
fn every_field_of_the_status_and_every_counter_is_documented() {
    let home = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let page = std::fs::read_to_string(Path::new(&home).join("../../docs/status.md")).unwrap();
    let cluster = Cluster::start(3).unwrap();
    for table in ["t", "dropped"] {
        cluster.run(&["table", "create", table, "--partitions", "2"]).unwrap();
    }
    cluster.run(&["table", "drop", "dropped"]).unwrap();
    let json = |arguments: &[&str]| cluster.run(&[arguments, &["--output", "json"]].concat()).unwrap();
    let told = json(&["status", "--wait", "60"]) + &json(&["table", "describe", "t"]);
    let names = fields(&told);
    assert!(names.len() > 50 && names.contains("free_bytes"), "{names:?}");
    for name in names {
        let words = section(&page, "status").split(|c: char| !c.is_alphanumeric() && c != '_');
        assert!(words.into_iter().any(|word| word == name), "{name} is not in docs/status.md");
    }
    let counters = json(&["counters", "--over", "1", "--all"]);
    let counters = fields(&counters);
    assert!(counters.len() > 40, "{counters:?}");
    let known = ["nodes", "node", "since_start", "per_minute"];
    for word in counters.iter().filter(|name| !known.contains(name)).flat_map(|name| name.split('.')) {
        assert!(section(&page, "counters").contains(word), "the counter {word} is not in docs/status.md");
    }
    let slow = json(&["slow"]);
    assert!(fields(&slow).iter().all(|name| section(&page, "slow").contains(name)), "{slow}");
}
