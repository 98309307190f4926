//! A data directory that is put back from a copy, and a clone beside its original: neither takes part, both stop and say why,
//! and the others go on serving.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::{Cluster, Node, binary, reserve_port};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What `hedgerow serve` documents for a node that cannot go on.
const EXIT_CODE: i32 = 6;
/// Far more than a refused node needs.
const LIMIT: Duration = Duration::from_secs(60);
const VICTIM: usize = 2;
const FORGOT: &str = "holds less than node 2 has told the cluster";
const LACKS: &str = "lacks what start 2 of node 2 has added to it";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The folder with all data directories of the victim.
fn data_of(cluster: &Cluster) -> PathBuf {
    cluster.data_directories(VICTIM)[0].parent().unwrap().to_path_buf()
}

fn put_back(cluster: &Cluster, from: &Path) {
    fs::remove_dir_all(data_of(cluster)).unwrap();
    copy(from, &data_of(cluster));
}

/// Starts the victim, which must end by itself for the reason that is told by `text`, while the others serve.
fn assert_refused(cluster: &mut Cluster, text: &str) {
    cluster.spawn(VICTIM).unwrap();
    let status = cluster.wait_exit(VICTIM).unwrap();
    let output = cluster.node(VICTIM).unwrap().output();
    assert_eq!(status.code(), Some(EXIT_CODE), "{output}");
    assert!(output.contains(text), "it does not say {text:?}:\n{output}");
    assert!(output.contains("let the node learn again"), "{output}");
    count(cluster);
}

/// Three nodes and a table with a row that has been counted once.
fn start(partitions: &str) -> Cluster {
    let cluster = Cluster::start(3).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", partitions]).unwrap();
    assert_eq!(count(&cluster), 1);
    cluster
}

/// The second data directory of the victim.
fn second_directory(cluster: &Cluster) -> PathBuf {
    let [_, one] = &cluster.data_directories(VICTIM)[..] else { panic!("it should have two directories") };
    one.clone()
}

fn empty(directory: &Path) {
    fs::remove_dir_all(directory).unwrap();
    fs::create_dir_all(directory).unwrap();
}

fn count(cluster: &Cluster) -> u64 {
    cluster.run(&["incr", "t", "key", "count"]).unwrap().trim().parse().unwrap()
}

#[test]
fn d7_a_data_directory_put_back_from_a_copy_is_refused() {
    let mut cluster = start("4");
    let kept = tempfile::tempdir().unwrap();
    cluster.terminate(VICTIM).unwrap();
    copy(&data_of(&cluster), kept.path());

    cluster.restart(VICTIM).unwrap();
    count(&cluster);
    cluster.kill(VICTIM).unwrap();
    let newest = tempfile::tempdir().unwrap();
    copy(&data_of(&cluster), newest.path());
    put_back(&cluster, kept.path());
    assert_refused(&mut cluster, "in another process");

    // The node's own data goes on, and makes the copy one that is older by more.
    put_back(&cluster, newest.path());
    cluster.restart(VICTIM).unwrap();
    count(&cluster);
    cluster.kill(VICTIM).unwrap();
    put_back(&cluster, kept.path());
    assert_refused(&mut cluster, "is older than what the cluster has seen of node 2 (start 2, known 3)");

    // What the message says to do helps, and the copy does not come back after that either, whoever remembers it.
    cluster.data_directories(VICTIM).iter().for_each(|directory| empty(directory));
    cluster.restart(VICTIM).unwrap();
    let last = count(&cluster);
    cluster.stop().unwrap();
    put_back(&cluster, kept.path());
    cluster.restart_all(&[1, 3]).unwrap();
    assert_refused(&mut cluster, "from before node 2 lost data and began anew");
    assert_eq!(count(&cluster), last + 2, "every write before is there, and that of the refused start");
}

/// A copy from before the last start, where nobody remembers but the catalogue: it is started again and again, with an empty directory
/// beside it. Started in the place of the node's own data it would vote without what that one acknowledged.
#[test]
fn d7_a_copy_is_refused_however_often_it_is_started_and_whatever_lies_beside_it() {
    let mut cluster = start("4");
    let (kept, newest) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    cluster.terminate(VICTIM).unwrap();
    copy(&data_of(&cluster), kept.path());
    cluster.restart(VICTIM).unwrap();
    count(&cluster);
    // Until the catalogue knows this start.
    std::thread::sleep(Duration::from_secs(3));
    cluster.stop().unwrap();
    copy(&data_of(&cluster), newest.path());
    put_back(&cluster, kept.path());
    cluster.restart_all(&[1, 3]).unwrap();
    assert_refused(&mut cluster, "in another process");
    for _ in 0..2 {
        assert_refused(&mut cluster, LACKS);
    }
    // One of its directories is emptied: another incarnation, and the other one's log.
    empty(&second_directory(&cluster));
    assert_refused(&mut cluster, LACKS);

    put_back(&cluster, newest.path());
    cluster.restart(VICTIM).unwrap();
    assert_eq!(count(&cluster), 7, "every write before is there, and those of the refused starts");
}

/// Its identity is lost, as the message about a damaged one says to do. One node was down meanwhile, and goes by what it knew before: the
/// process that it knows is not in the new list.
#[test]
fn d7g_a_node_that_has_lost_its_identity_goes_on_beside_one_with_an_old_catalogue() {
    let mut cluster = start("4");
    cluster.terminate(VICTIM).unwrap();
    cluster.restart(VICTIM).unwrap();
    count(&cluster);
    // Until the catalogue knows this start.
    std::thread::sleep(Duration::from_secs(3));
    cluster.terminate(3).unwrap();
    cluster.terminate(VICTIM).unwrap();
    for directory in cluster.data_directories(VICTIM) {
        fs::remove_file(directory.join("identity.json")).unwrap();
    }
    for _ in 0..2 {
        cluster.restart(VICTIM).unwrap();
        count(&cluster);
        cluster.terminate(VICTIM).unwrap();
    }
    cluster.terminate(1).unwrap();
    // Nobody else is there to tell it what is newer.
    cluster.restart_all(&[VICTIM, 3]).unwrap();
    assert_eq!(count(&cluster), 5);
}

/// Two disks that were not mounted in turn, the node started without each and well every time. With both it is the same node, and what is there once
/// is still there: nobody made a copy.
#[test]
fn d7b_directories_that_were_away_in_turn_serve_again() {
    let mut cluster = start("4");
    let (first, second) = (cluster.data_directories(VICTIM)[0].clone(), second_directory(&cluster));
    cluster.terminate(VICTIM).unwrap();
    run_without(&mut cluster, &second, 2);
    run_without(&mut cluster, &first, 1);
    cluster.restart(VICTIM).unwrap();
    assert_eq!(count(&cluster), 5, "every write is there");
}

/// Starts and stops the victim while one of its directories is away.
fn run_without(cluster: &mut Cluster, directory: &Path, starts: usize) {
    let away = directory.with_extension("away");
    fs::rename(directory, &away).unwrap();
    for _ in 0..starts {
        cluster.restart(VICTIM).unwrap();
        count(cluster);
        // Until the catalogue knows this start.
        std::thread::sleep(Duration::from_secs(3));
        cluster.terminate(VICTIM).unwrap();
    }
    fs::rename(&away, directory).unwrap();
}

/// The copy has the count of starts with which the node's own data goes on after a crash; its log tells the two apart.
#[test]
fn d7_a_data_directory_copied_while_its_node_ran_is_refused() {
    let mut cluster = start("4");
    let (kept, newest) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(&data_of(&cluster), kept.path());
    assert_eq!(count(&cluster), 2);
    // Many times what lies between two pulses, by which the others learn how far its logs are.
    std::thread::sleep(Duration::from_secs(3));
    cluster.kill(VICTIM).unwrap();
    copy(&data_of(&cluster), newest.path());
    put_back(&cluster, kept.path());
    assert_refused(&mut cluster, FORGOT);

    put_back(&cluster, newest.path());
    cluster.restart(VICTIM).unwrap();
    assert_eq!(count(&cluster), 4, "every write before is there, and that of the refused start");

    // One directory of several that is put back from just before the last start.
    let one = &second_directory(&cluster);
    cluster.terminate(VICTIM).unwrap();
    let before = tempfile::tempdir().unwrap();
    copy(one, before.path());
    cluster.restart(VICTIM).unwrap();
    (0..40).for_each(|row| drop(cluster.run(&["incr", "t", &format!("row{row}"), "count"]).unwrap()));
    cluster.terminate(VICTIM).unwrap();
    fs::remove_dir_all(one).unwrap();
    copy(before.path(), one);
    assert_refused(&mut cluster, "is older than the node's other directories");
}

/// Node 1 knows nothing of what was acknowledged while it was down, and would elect the copy. Node 3 has gone on all the time.
#[test]
fn d7_one_node_that_remembers_is_enough() {
    let mut cluster = start("8");
    let kept = tempfile::tempdir().unwrap();
    copy(&data_of(&cluster), kept.path());
    cluster.kill(1).unwrap();
    (0..40).for_each(|row| drop(cluster.run(&["incr", "t", &format!("row{row}"), "count"]).unwrap()));
    std::thread::sleep(Duration::from_secs(1));
    cluster.kill(VICTIM).unwrap();
    put_back(&cluster, kept.path());
    cluster.spawn(1).unwrap();
    assert_refused(&mut cluster, FORGOT);
    for row in 0..40 {
        assert_eq!(cluster.run(&["incr", "t", &format!("row{row}"), "count"]).unwrap().trim(), "2");
    }

    // That one of its directories is empty makes the copy another incarnation, but no other log. Node 1 has listened to the copy before
    // it stopped, and knows it by what that process has added; node 3 by what the copy has forgotten.
    put_back(&cluster, kept.path());
    empty(&second_directory(&cluster));
    assert_refused(&mut cluster, "put back from a copy or cloned");
}

#[test]
fn d7_a_clone_beside_its_original_is_refused() {
    let mut cluster = start("4");
    cluster.terminate(VICTIM).unwrap();
    let cloned = tempfile::tempdir().unwrap();
    let data = data_of(&cluster);
    copy(&data, cloned.path());
    cluster.restart(VICTIM).unwrap();
    count(&cluster);

    // The clone has been started more often than the original.
    let identities: Vec<PathBuf> =
        cluster.data_directories(VICTIM).iter().map(|it| cloned.path().join(it.file_name().unwrap())).collect();
    for directory in identities {
        let path = directory.join("identity.json");
        let text = fs::read_to_string(&path).unwrap().replace(r#""boot":1"#, r#""boot":7"#);
        assert!(text.contains(r#""boot":7"#), "{text}");
        // Files without a checksum, the last there is in one, are of versions before.
        let (text, _) = text.split_once(r#","crc32c""#).unwrap();
        fs::write(path, format!("{text}}}")).unwrap();
    }
    let config = fs::read_to_string(data.parent().unwrap().join("serve.toml")).unwrap();
    let listen = format!("{:?}", cluster.addresses()[VICTIM - 1]);
    let port = reserve_port().unwrap();
    let own = format!("listen = \"127.0.0.1:{}\"", port.number);
    let config = config.replacen(&format!("listen = {listen}"), &own, 1);
    let config = config.replace(&data.display().to_string(), &cloned.path().display().to_string());
    let path = cloned.path().join("serve.toml");
    fs::write(&path, config).unwrap();
    let mut command = Command::new(binary().unwrap());
    command.arg("serve").arg("--config").arg(path);
    let mut clone = Node::spawn(command).unwrap();

    let status = clone.wait_exit(LIMIT).unwrap();
    assert_eq!(status.code(), Some(EXIT_CODE), "{}", clone.output());
    assert!(clone.output().contains(LACKS), "it does not say {LACKS:?}:\n{}", clone.output());
    // The original is still needed, and still there.
    cluster.kill(3).unwrap();
    assert_eq!(count(&cluster), 3);
    assert!(cluster.node(VICTIM).unwrap().is_running().unwrap());
}
