//! `hedgerow wal` reads the log of a real node, while it runs and afterwards, and changes nothing.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that runs processes")]

use hedgerow_testkit::{Cluster, DataPlace, Node, Settings, binary};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Far more than any step needs; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(60);

/// What a command printed, and its exit code.
struct Ran {
    out: String,
    err: String,
    code: i32,
}

fn wal(arguments: &[&str]) -> Ran {
    let output = Command::new(binary().unwrap()).arg("wal").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { out: text(&output.stdout), err: text(&output.stderr), code: output.status.code().unwrap() }
}

/// As [`wal`], of what must go well.
fn done(arguments: &[&str]) -> String {
    let ran = wal(arguments);
    assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
    ran.out
}

/// A node with one data directory, and a table of two partitions with a few rows.
fn start() -> (Cluster, String) {
    let settings = Settings::under_test(&[DataPlace::Folder]).unwrap();
    let cluster = Cluster::start_with(Settings { data_directories: 1, ..settings }).unwrap();
    cluster.run(&["table", "create", "users", "--partitions", "2", "--replicas", "1"]).unwrap();
    for row in 0..5 {
        cluster.run(&["set", "users", &format!("user-{row}"), "name", "Ada"]).unwrap();
    }
    let data = cluster.data_directories(1)[0].display().to_string();
    (cluster, data)
}

/// Every file below `directory`: its bytes, and when it was changed last.
fn files(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let changed = fs::metadata(&path).unwrap().modified().unwrap();
            found.insert(path.clone(), (fs::read(path).unwrap(), changed));
        }
    }
    found
}

/// Where the first line of a dump stands: segment and byte.
fn place_of(line: &str) -> (String, u64) {
    let (segment, offset) = line.split('\t').next().unwrap().split_once(':').unwrap();
    (segment.to_owned(), offset.parse().unwrap())
}

fn lines_with<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.split('\t').any(|column| column == word)).collect()
}

#[test]
fn a_log_is_read_while_its_node_runs_and_after_it_has_stopped() {
    let (mut cluster, data) = start();
    let running = wal(&["inspect", &data]);
    assert_eq!(running.code, 0, "{}", running.err);
    assert!(running.err.contains("its end may move"), "{}", running.err);
    for word in ["users", "metadata", "clean end", "the oldest segment, 0000000000000001, is held by "] {
        assert!(running.out.contains(word), "{word}: {}", running.out);
    }
    assert!(done(&["verify", &data]).contains(": sound ("));
    let config = Path::new(&data).parent().unwrap().parent().unwrap().join("serve.toml");
    assert!(done(&["verify", "--config", &config.display().to_string()]).contains(": sound ("));

    cluster.terminate(1).unwrap();
    let before = files(Path::new(&data));
    let dump = done(&["dump", &data]);
    for kind in ["write", "empty", "catalogue"] {
        assert!(!lines_with(&dump, kind).is_empty(), "{kind}: {dump}");
    }
    let [put] = lines_with(&dump, "user-3")[..] else { panic!("{dump}") };
    assert!(put.ends_with("put\tuser-3\tname (3 bytes)"), "{put}");
    let one = done(&["dump", &data, "--hash-key", "user-3", "--values", "--output", "json"]);
    assert_eq!(one.lines().count(), 1, "{one}");
    for field in [r#""hash_key":"user-3""#, r#""sort_key":"name""#, r#""value":"Ada""#, r#""table":"users""#] {
        assert!(one.contains(field), "{one}");
    }
    // Groups by the name of their table or by its number, and a range of indices.
    let by_name = done(&["dump", &data, "--group", "users.0"]);
    assert_eq!(by_name, done(&["dump", &format!("{data}/log"), "--group", "1.0"]));
    let third = done(&["dump", &data, "--group", "users.0", "--from", "3", "--to", "3"]);
    // New groups begin behind entry 1.
    assert_eq!(third.lines().collect::<Vec<_>>(), [by_name.lines().nth(1).unwrap()]);
    let inspected = done(&["inspect", &data, "--group", "users.0", "--output", "json"]);
    assert!(inspected.contains(r#""is_in_use":false"#) && inspected.contains(r#""is_sound":true"#), "{inspected}");
    assert!(before == files(Path::new(&data)), "a file was changed");
}

#[test]
fn a_reader_that_went_away_ends_a_dump_quietly() {
    let (mut cluster, data) = start();
    cluster.terminate(1).unwrap();
    let mut dump = Command::new(binary().unwrap());
    let mut dump = dump.args(["wal", "dump", &data]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(dump.stdout.take());
    let ended = dump.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}

#[test]
fn damage_is_named_with_its_victim_and_what_follows() {
    let (mut cluster, data) = start();
    cluster.terminate(1).unwrap();
    let dump = done(&["dump", &data]);
    let put = lines_with(&dump, "user-3")[0];
    let (segment, offset) = place_of(put);
    let group = put.split('\t').nth(1).unwrap();
    let path = Path::new(&data).join("log").join(format!("{segment}.seg"));
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let at = offset + 50;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let verified = wal(&["verify", &data]);
    assert_eq!(verified.code, 4, "{}", verified.err);
    for word in
        ["DAMAGED", &format!("segment {segment}, byte {offset}: entry "), &format!("({group})"), "a start gives"]
    {
        assert!(verified.out.contains(word), "{word}: {}", verified.out);
    }
    let dumped = wal(&["dump", &data, "--group", group]);
    assert_eq!(dumped.code, 4);
    assert!(dumped.err.contains("cannot be read") && lines_with(&dumped.out, "user-3").is_empty(), "{}", dumped.err);

    // A format that this program does not know: version 4 and its complement.
    file.write_all_at(&[4, 0, 0xfb, 0xff], 8).unwrap();
    for command in ["inspect", "verify", "dump"] {
        let refused = wal(&[command, &data]);
        assert_eq!(refused.code, 2);
        assert!(refused.err.contains("has version 4 of the log's format"), "{}", refused.err);
    }
    let nothing = wal(&["inspect", cluster.data_directories(1)[0].parent().unwrap().to_str().unwrap()]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.err.contains("is neither a data directory nor a log"), "{}", nothing.err);
    assert_eq!(wal(&["inspect", "/nowhere/at-all"]).code, 2);
}

#[test]
fn a_tail_shows_what_comes_until_it_is_interrupted() {
    let (cluster, data) = start();
    let mut command = Command::new(binary().unwrap());
    command.args(["wal", "tail", &data, "-n", "1000"]);
    let mut tail = Node::spawn(command).unwrap();
    let wait_for = |tail: &Node, word: &str| {
        let end = Instant::now() + LIMIT;
        while lines_with(&tail.output(), word).is_empty() {
            assert!(Instant::now() < end, "{word}: {}", tail.output());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for(&tail, "user-4");
    for row in 5..8 {
        cluster.run(&["set", "users", &format!("user-{row}"), "name", "Grace"]).unwrap();
        wait_for(&tail, &format!("user-{row}"));
    }
    assert_eq!(lines_with(&tail.output(), "user-5").len(), 1);
    let killed = Command::new("kill").args(["-INT", &tail.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(tail.wait_exit(LIMIT).unwrap().code(), Some(0));
}
