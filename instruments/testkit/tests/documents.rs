//! Every command line that README.md and docs/*.md show is run as it stands there, or is on a list that says why not.
//!
//! Those of `hedgerow` that are not run are parsed by the program (`edge/hedgerow/src/documents.rs`), and so are the arguments of
//! `./x` by the programs that get them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that runs processes")]

use hedgerow_testkit::{Cluster, DataPlace, Line, Settings, binary, command_lines};
use hedgerow_types::limit;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Far more than any step needs; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(60);

/// How lines begin that are only parsed, and why.
const ONLY_PARSED: [(&str, &str); 18] = [
    ("./x ", "builds, installs, or runs for minutes; `./x test` runs what there is to run"),
    ("hedgerow dev", "listens at fixed ports and runs until it is stopped"),
    ("hedgerow status --watch", "runs until it is stopped"),
    ("hedgerow grant ", "wants nodes that go by rights; `rights_are_given_and_taken_at_the_command_line` has some"),
    ("hedgerow revoke ", "the same"),
    ("hedgerow user ", "the same; `users_log_in_by_password_at_the_command_line`"),
    (
        "hedgerow table duplicate ",
        "wants nodes that know another cluster; `instruments/testkit/tests/duplication.rs` has two",
    ),
    ("hedgerow wal tail", "runs until it is stopped"),
    ("hedgerow proxy", "listens at fixed ports and runs until it is stopped"),
    ("hedgerow sidecar", "listens at fixed ports and runs until it is stopped"),
    ("hedgerow exporter", "listens at a fixed port and runs until it is stopped"),
    ("hedgerow bench get", "measures: on a busy machine the run is VOID, which is an error"),
    ("hedgerow bench put", "measures"),
    ("hedgerow bench run", "measures"),
    ("hedgerow bench self-test", "measures"),
    ("hedgerow experiment ", "minutes to hours on clusters of its own; `./x test` runs each quickly"),
    ("hedgerow report ", "needs the results of an experiment; `./x test` renders some"),
    ("dpkg-query ", "loads what is installed on this machine"),
];
/// The same for lines whose beginnings others share.
const ONLY_PARSED_WHOLE: [(&str, &str); 3] = [
    ("hedgerow get orders k s --tls-ca ca.pem --user app --password-file FILE", "the same"),
    ("hedgerow plan results/bench-get-20261122T101500Z", "needs the results of a measurement"),
    ("hedgerow plan service.hlog --tag GET --unit us --budget 1% --target p99", "needs somebody's histogram"),
];
/// What is run although it begins like what is only parsed.
const RUN_ANYWAY: [&str; 1] = ["hedgerow experiment list"];
/// Commands of `./x` whose arguments are parsed by a test of the program that gets them.
const PARSED_ELSEWHERE: [&str; 8] = ["demo", "bench", "experiment", "sim", "crash", "soak", "model", "profile"];

/// A line without its comment.
fn bare(line: &Line) -> &str {
    line.text.split(" #").next().unwrap().trim()
}

fn is_run(line: &Line) -> bool {
    let text = bare(line);
    RUN_ANYWAY.contains(&text)
        || !(ONLY_PARSED.iter().any(|(start, _)| text.starts_with(start))
            || ONLY_PARSED_WHOLE.iter().any(|(whole, _)| text == *whole))
}

/// A file of the repository.
fn text_of(path: &str) -> String {
    let home = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    fs::read_to_string(Path::new(&home).join("../..").join(path)).unwrap()
}

/// The configuration that docs/configuration.md begins with.
fn configuration() -> String {
    let page = text_of("docs/configuration.md");
    let begun = page.split_once("```toml\n").unwrap().1;
    begun.split_once("```").unwrap().0.to_owned()
}

/// Tables, rows and files that the documents take for granted.
struct Stage {
    cluster: Cluster,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        // One more than a partition has voters, for read-only replicas.
        let mut settings = Settings::under_test(&[DataPlace::Folder; 4]).unwrap();
        settings.further_config = "[faults]\nallowed = true".to_owned();
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        file("users.tsv", "alice\tname\tAlice\nuser-17\tname\tAda\nuser-17\tcity\tParis\n");
        let plan = "name = \"short\"\nseed = 1\n[[fault]]\nkind = \"slow\"\ndelay = \"1ms\"\n";
        file("plan.toml", plan);
        file("my.toml", plan);
        let etc = format!("{}/", folder.path().join("etc").display());
        file("hedgerow.toml", &configuration().replace("/etc/hedgerow/", &etc));
        for words in ["authority --cluster prod", "node 1"] {
            let mut command = Command::new(binary().unwrap());
            let made = command.arg("certificate").args(words.split(' ')).args(["--directory", &etc]).output().unwrap();
            assert!(made.status.success(), "{made:?}");
        }
        let latencies: Vec<String> = (0..120_000_u32).map(|number| (1 + number % 97).to_string()).collect();
        file("latencies.txt", &latencies.join("\n"));
        fs::create_dir(folder.path().join("bin")).unwrap();
        std::os::unix::fs::symlink(binary().unwrap(), folder.path().join("bin/hedgerow")).unwrap();
        Self { cluster: Cluster::start_with(settings).unwrap(), folder }
    }

    fn has_table(&self, name: &str) -> bool {
        self.cluster.run(&["table", "describe", name]).is_ok()
    }

    /// Makes what `line` talks of: a table that it creates is not there, every other one is, with a few rows.
    fn prepare(&self, line: &str) {
        for (table, kind) in [("users", "hash"), ("events", "ordered")] {
            let is_created = line.starts_with(&format!("hedgerow table create {table} "))
                || line == format!("hedgerow table create {table}");
            match (is_created, self.has_table(table)) {
                (true, true) => drop(self.cluster.run(&["table", "drop", table, "--now"]).unwrap()),
                (false, false) => {
                    drop(self.cluster.run(&["table", "create", table, "--kind", kind, "--partitions", "4"]).unwrap());
                }
                _ => {}
            }
        }
        if !line.starts_with("hedgerow table ") {
            let rows = self.folder.path().join("users.tsv").display().to_string();
            drop(self.cluster.run(&["load", "users", &rows]).unwrap());
        }
        if line.contains("--read bounded") {
            // Such a read may miss what was written less than its bound ago, and a follower's proof is 200 ms old.
            std::thread::sleep(Duration::from_millis(400));
        }
    }

    /// A line that reads the files of a node, with those of node 1, which knows by then which tables there are.
    fn about_node_1(&self, line: &str) -> String {
        let data = self.cluster.data_directories(1);
        let knows_users = |directory: &PathBuf| {
            fs::read_to_string(directory.join("catalogue.json")).is_ok_and(|text| text.contains("users"))
        };
        let end = Instant::now() + LIMIT;
        while !data.iter().any(knows_users) {
            assert!(Instant::now() < end, "node 1 keeps no catalogue with the table users");
            std::thread::sleep(Duration::from_millis(20));
        }
        let config = data[0].parent().unwrap().with_file_name("serve.toml").display().to_string();
        line.replace("/etc/hedgerow.toml", &config).replace("/var/lib/hedgerow", &data[0].display().to_string())
    }

    /// What stands in `line` for something that differs from cluster to cluster, put in.
    fn filled_in(&mut self, line: &str) -> String {
        if line.starts_with("hedgerow wal ") {
            return self.about_node_1(line);
        }
        let line = line.replace("HOST:PORT,...", &self.cluster.addresses().join(","));
        let line = line.replace("/etc/hedgerow.toml", "hedgerow.toml");
        let line = line.replace("2=4711", &format!("2={}", self.cluster.node(2).unwrap().id()));
        if line.starts_with("hedgerow fault run ") && !line.contains("--seconds") {
            return line + " --seconds 1";
        }
        if line == "hedgerow table transfer users 0 2" {
            // A reader has three nodes, which all have a replica. Of these four one has none: the second that is listed does.
            let described = self.cluster.run(&["table", "describe", "users"]).unwrap();
            let mut nodes = described.split("@n").skip(1).filter_map(|rest| rest.split_whitespace().next());
            return format!("hedgerow table transfer users 0 {}", nodes.nth(1).unwrap());
        }
        if line == "hedgerow table recall 1" {
            drop(self.cluster.run(&["table", "drop", "users"]).unwrap());
            let listed = self.cluster.run(&["table", "list", "--dropped"]).unwrap();
            let mut of_users = listed.lines().filter(|line| line.split_whitespace().any(|word| word == "users"));
            let number =
                of_users.next_back().and_then(|line| line.split_whitespace().find(|word| word.parse::<u32>().is_ok()));
            return line.replace('1', number.unwrap());
        }
        line
    }

    /// As a reader would type it, in a folder of this test. An error has all that was printed.
    fn run(&mut self, line: &str) -> Result<(), String> {
        self.prepare(line);
        let line = self.filled_in(line);
        let path = format!("{}:{}", self.folder.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.args(["-ec", &line]).current_dir(&self.folder).env("PATH", path).env("HOME", self.folder.path());
        let output = command.env("HEDGEROW_CLUSTER", self.cluster.addresses().join(",")).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(format!("{line}: {}\n{out}{err}", output.status)) }
    }
}

#[test]
fn command_lines_of_the_documents_work() {
    let lines = command_lines().unwrap();
    let mut stage = Stage::new();
    let (mut run, mut wrong) = (0, Vec::new());
    for line in lines.iter().filter(|line| is_run(line)) {
        run += 1;
        wrong.extend(stage.run(bare(line)).err().map(|error| format!("{}: {error}", line.place)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(run > 30, "only {run} lines of {}", lines.len());
}

#[test]
fn lines_that_are_only_parsed_are_still_there() {
    let lines = command_lines().unwrap();
    for (start, why) in ONLY_PARSED {
        assert!(lines.iter().any(|line| line.text.starts_with(start)), "no line begins with {start:?}, which {why}");
    }
    for (whole, why) in ONLY_PARSED_WHOLE {
        assert!(lines.iter().any(|line| bare(line) == whole), "no line is {whole:?}, which {why}");
    }
    for whole in RUN_ANYWAY {
        assert!(lines.iter().any(|line| bare(line) == whole), "no line is {whole:?}");
    }
}

#[test]
fn every_command_of_the_script_that_documents_show_is_one() {
    let script = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../x");
    let help = Command::new("bash").arg(script).arg("help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let known: BTreeSet<&str> = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    for line in command_lines().unwrap() {
        for call in line.calls().iter().filter(|call| call[0] == "./x") {
            let command = call[1].as_str();
            assert!(known.contains(command), "{}: ./x help does not tell of {command}", line.place);
            let has_arguments = call.len() > 2 && *call != ["./x", "test", "--long"];
            assert!(!has_arguments || PARSED_ELSEWHERE.contains(&command), "{}: who parses {call:?}?", line.place);
        }
    }
}

#[test]
fn limits_in_the_data_model_are_those_of_the_code() {
    let text = text_of("docs/data-model.md");
    let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
    let number = |count: usize| {
        if count < 1_000 { count.to_string() } else { format!("{},{:03}", count / 1_000, count % 1_000) }
    };
    for (row, figures) in [
        ("hash key", vec![number(limit::HASH_KEY_SIZE_MAX)]),
        ("sort key, key of an ordered table", vec![number(limit::SORT_KEY_SIZE_MAX)]),
        ("one write request, keys and values", vec![mib(limit::WRITE_SIZE_MAX), mib(limit::WRITE_STORED_SIZE_MAX)]),
        ("records of one multi-key write", vec![number(limit::MULTI_WRITE_COUNT_MAX)]),
        ("records that one read of a range looks at, expired ones included", vec![number(limit::READ_ROWS_MAX)]),
        ("bytes that one read returns", vec![mib(limit::READ_SIZE_MAX)]),
        ("keys of one `batch_get`", vec![number(limit::BATCH_READ_COUNT_MAX)]),
        ("sort keys of one `multi_get`", vec![number(limit::BATCH_READ_COUNT_MAX)]),
        ("partitions of a table", vec![number(limit::PARTITION_COUNT_MAX as usize)]),
        ("tables of a cluster", vec![number(limit::TABLE_COUNT_MAX)]),
        ("replicas of a partition", vec![number(limit::REPLICA_COUNT_MAX as usize)]),
        ("table name", vec![number(limit::TABLE_NAME_SIZE_MAX)]),
    ] {
        let line = text.lines().find(|line| line.starts_with(&format!("| {row} |")));
        let line = line.unwrap_or_else(|| panic!("no row {row:?}"));
        let words: Vec<&str> = line.split(['|', ':', ';']).map(str::trim).collect();
        let has = |figure: &String| words.iter().any(|word| word.strip_suffix(" bytes").unwrap_or(word) == figure);
        assert!(figures.iter().all(has), "{line}: {figures:?}");
    }
}

/// What docs/clients.md shows is what `lab/conformance/run` runs.
#[test]
fn programs_in_the_documents_are_those_that_run() {
    let page = text_of("docs/clients.md");
    for (language, program) in
        [("python", "lab/conformance/python/example.py"), ("go", "lab/conformance/go/example/main.go")]
    {
        let text = text_of(program);
        assert!(page.contains(&format!("```{language}\n{text}```\n")), "{program}");
    }
}
