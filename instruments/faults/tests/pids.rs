//! Killing a process by its id and starting it again, with a shell in the place of a node.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that starts real processes and reads what they write"
)]

use hedgerow_faults::{Pids, Processes};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Appends a line about itself to a file, then waits to be killed, for a minute at most and without a child of its own.
const SCRIPT: &str = r#"mkfifo pipe 2>/dev/null; exec 3<>pipe; echo "$MARK $PWD $1" >> "$2"; read -r -t 60 -u 3"#;

fn lines(path: &Path, count: usize) -> Vec<String> {
    for _ in 0..2_000 {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.ends_with('\n') && text.lines().count() == count {
            return text.lines().map(str::to_owned).collect();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{} has not {count} lines", path.display())
}

#[test]
fn a_killed_process_is_started_again_with_the_same_command() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().canonicalize().unwrap();
    let notes = home.join("notes");
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "bash", "serve"]).arg(&notes).env("MARK", "a mark").current_dir(&home);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let first = lines(&notes, 1);
    let pids = Pids::new(&BTreeMap::from([(2, child.id())])).unwrap();
    assert!(pids.has(2) && !pids.has(1));
    pids.kill(2).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    pids.start(2).unwrap();
    let both = lines(&notes, 2);
    assert_eq!(both[0], first[0]);
    assert_eq!(both[0], both[1]);
    assert!(both[0].starts_with("a mark ") && both[0].ends_with(" serve"), "{both:?}");
    pids.kill(2).unwrap();
    assert!(pids.kill(1).unwrap_err().to_string().contains("node 1 is not known"));
}

#[test]
fn only_nodes_are_killed() {
    let refused = Pids::new(&BTreeMap::from([(1, std::process::id())])).unwrap_err();
    assert!(refused.to_string().contains("no `hedgerow serve`"), "{refused}");
    let nobody = Pids::new(&BTreeMap::from([(1, u32::MAX)])).unwrap_err();
    assert!(nobody.to_string().contains("there is no process"), "{nobody}");
}
