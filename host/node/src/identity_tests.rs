//! Tests of identities: which directories a node uses, and which it leaves alone.

use super::*;
use crate::config::Config;
use crate::node::Node;
use crate::open::write_catalogue;
use hedgerow_env::sim::SimDisk;
use hedgerow_env::{Now, read_file};
use hedgerow_placement::{Catalogue, Known, Life, is_copy};
use hedgerow_storage::MemoryEngines;
use hedgerow_types::Instant;
use std::sync::Arc;

fn directories() -> Vec<PathBuf> {
    vec![PathBuf::from("/a"), PathBuf::from("/b")]
}

/// Opens, and counts the start.
fn open_and_save(disk: &SimDisk, random: u64) -> Result<Found, IdentityError> {
    let mut found = open(disk, &directories(), NodeId(1), random)?;
    found.save(disk, &mut Random::new(random))?;
    Ok(found)
}

/// Opens, uses no log, and closes again; the identity and what is missing.
fn start(disk: &SimDisk, random: u64) -> (Identity, Vec<PathBuf>) {
    let mut found = open_and_save(disk, random).expect("it can start");
    found.identity.begin(random, std::iter::empty());
    found.identity.use_logs(std::iter::empty());
    found.identity.save_to_each(disk, &found.present).expect("writable");
    (found.identity, found.missing.into_iter().map(|(directory, _)| directory).collect())
}

fn ancestors_and(identity: &Identity, random: u64) -> Vec<(u64, u64)> {
    let mut ancestors = identity.ancestors.clone();
    ancestors.push((identity.boot + 1, random));
    ancestors
}

/// The same at the next start.
fn next((identity, missing): &(Identity, Vec<PathBuf>), random: u64) -> (Identity, Vec<PathBuf>) {
    let next = Identity { boot: identity.boot + 1, used: identity.used + 1, ..identity.clone() };
    (Identity { ancestors: ancestors_and(identity, random), ..next }, missing.clone())
}

#[test]
fn an_identity_is_drawn_once_and_kept() {
    let disk = SimDisk::new();
    let first = start(&disk, 10);
    assert_eq!(start(&disk, 20), next(&first, 20));
    assert_eq!(first.0.incarnation(), Incarnation(11));
}

#[test]
fn an_emptied_directory_means_a_new_incarnation_of_the_same_cluster() {
    let disk = SimDisk::new();
    let mut first = start(&disk, 10).0;
    first.cluster = 7;
    first.save(&disk, &directories()).expect("writable");
    disk.remove_file(Path::new("/b/identity.json")).expect("there");
    let second = start(&disk, 20);
    assert_eq!((second.0.incarnation(), second.0.cluster), (Incarnation(21), 7));
    assert_eq!(start(&disk, 30), next(&second, 30));
}

#[test]
fn fewer_directories_than_before_mean_a_new_incarnation() {
    let disk = SimDisk::new();
    start(&disk, 10);
    let one = open(&disk, &directories()[..1], NodeId(1), 20).expect("fewer");
    assert_eq!(one.identity.incarnation(), Incarnation(21));
}

#[test]
fn another_nodes_directory_is_refused() {
    let disk = SimDisk::new();
    start(&disk, 10);
    let error = open(&disk, &directories(), NodeId(2), 10).expect_err("not ours");
    assert_eq!(
        error.to_string(),
        "/a belongs to node 1, this is node 2: correct `node` or `data`, or name an empty directory"
    );
}

#[test]
fn n6_a_directory_is_open_once_at_a_time() {
    let disk = SimDisk::new();
    let found = open_and_save(&disk, 10).expect("fresh");
    let before = read_file(&disk, Path::new("/a/identity.json")).expect("there");
    let error = open(&disk, &directories(), NodeId(1), 20).expect_err("in use");
    assert!(error.to_string().starts_with("data directory /a is in use by another process"), "{error}");
    assert_eq!(read_file(&disk, Path::new("/a/identity.json")).expect("there"), before);
    drop(found);
    start(&disk, 30);
}

#[test]
fn n6_another_clusters_directory_is_refused_before_anything_is_changed() {
    let disk = SimDisk::new();
    let mut first = start(&disk, 10).0;
    first.cluster = 7;
    first.save(&disk, &directories()[..1]).expect("writable");
    first.cluster = 8;
    first.save(&disk, &directories()[1..]).expect("writable");
    let syncs = disk.sync_count();
    let error = open(&disk, &directories(), NodeId(1), 10).expect_err("two clusters");
    assert!(error.to_string().starts_with("/b belongs to another cluster"), "{error}");
    assert_eq!(disk.sync_count(), syncs, "nothing is changed");
}

#[test]
fn m3_a_directory_that_is_not_there_is_left_out_and_not_made() {
    let disk = SimDisk::new();
    let first = start(&disk, 10).0;
    disk.remove_dir_all(Path::new("/b")).expect("there");
    let (second, missing) = start(&disk, 20);
    assert_eq!(missing, [PathBuf::from("/b")]);
    assert!(!disk.exists(Path::new("/b")));
    assert_ne!(second.incarnation(), first.incarnation());
    // An operator who has replaced the disk says so by making the directory.
    disk.create_dir_all(Path::new("/b")).expect("free");
    assert_eq!(start(&disk, 30).1, Vec::<PathBuf>::new());
}

#[test]
fn m3_a_directory_that_is_not_mounted_is_left_out() {
    let disk = SimDisk::new();
    disk.set_mounted(Path::new("/b"), true);
    start(&disk, 10);
    for file in disk.list(Path::new("/b")).expect("there") {
        disk.remove_file(&Path::new("/b").join(file)).expect("there");
    }
    disk.set_mounted(Path::new("/b"), false);
    for _ in 0..2 {
        assert_eq!(start(&disk, 20).1, [PathBuf::from("/b")]);
    }
    assert!(disk.list(Path::new("/b")).expect("there").is_empty());
    disk.set_mounted(Path::new("/b"), true);
    assert!(start(&disk, 30).1.is_empty());
}

#[test]
fn d7_every_start_counts_and_the_count_is_durable_before_it_is_used() {
    let disk = SimDisk::new();
    for boot in 1..4 {
        let found = open_and_save(&disk, 10).expect("it can start");
        assert_eq!(found.identity.boot(), boot);
        drop(found);
        disk.crash(&mut hedgerow_types::random::Random::new(boot));
    }
}

#[test]
fn d7_a_file_from_before_the_count_opens() {
    let disk = SimDisk::new();
    start(&disk, 10);
    for directory in directories() {
        let path = directory.join(FILE_NAME);
        let text = String::from_utf8(read_file(&disk, &path).expect("there")).expect("text");
        let old = text.replace(r#","boot":1,"used":1,"ancestors":[[1,10]]"#, "");
        assert_ne!(old, text);
        let (old, _) = old.split_once(r#","crc32c""#).expect("it is the last");
        let old = format!("{old}}}");
        write_file_durably(&disk, &path, old.as_bytes()).expect("writable");
    }
    let identity = start(&disk, 20).0;
    assert_eq!((identity.incarnation(), identity.boot()), (Incarnation(11), 1));
}

#[test]
fn d7_the_largest_count_counts_and_the_smaller_is_raised_first() {
    let disk = SimDisk::new();
    let first = start(&disk, 10).0;
    // A start that was interrupted between the directories.
    Identity { boot: 2, ..first.clone() }.save(&disk, &directories()[..1]).expect("writable");
    assert_eq!(start(&disk, 20).0.boot(), 3);
}

#[test]
fn d7_one_directory_that_was_put_back_from_a_copy_is_refused() {
    let disk = SimDisk::new();
    let first = start(&disk, 10).0;
    for starts in 1..3 {
        start(&disk, 20);
        first.save(&disk, &directories()[1..]).expect("writable");
        let error = open(&disk, &directories(), NodeId(1), 30).expect_err("a copy");
        let expected = format!(
            "/b is older than the node's other directories (start 1; its log was used at start {})",
            starts + 1
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        let newest = read(&disk, Path::new("/a")).expect("readable").expect("there");
        newest.save(&disk, &directories()[1..]).expect("writable");
    }
}

#[test]
fn d3g_the_logs_are_those_that_were_used_last_and_what_was_written_to_is_there() {
    let mut identity = start(&SimDisk::new(), 10).0;
    let of = |logs: &[(u64, bool)]| {
        let own = |&(id, is_begun): &(u64, bool)| FoundLog { id: Some(id), is_begun };
        logs.iter().map(own).collect::<Vec<_>>()
    };
    assert!(identity.has_logs(&of(&[(1, true), (2, false)])), "nothing is known yet");
    identity.use_logs([(1, true), (2, false)].into_iter());
    let same: [&[_]; 4] =
        [&[(1, true), (2, false)], &[(2, false), (1, true)], &[(1, true), (2, true)], &[(2, true), (1, true)]];
    assert!(same.iter().all(|logs| identity.has_logs(&of(logs))));
    let others: [&[_]; 6] = [
        &[],
        &[(1, true)],
        &[(1, false), (2, false)],
        &[(1, true), (3, false)],
        &[(1, true), (1, true)],
        &[(1, true), (2, false), (3, false)],
    ];
    assert!(others.iter().all(|logs| !identity.has_logs(&of(logs))));
    assert!(!identity.has_logs(&[FoundLog { id: None, is_begun: true }, FoundLog { id: Some(2), is_begun: false }]));
    assert!(identity.note_log_begun(2) && !identity.note_log_begun(2));
    assert!(!identity.has_logs(&of(&[(1, true), (2, false)])), "what was written to it is gone");
}

/// A start with the directories that are there; log 1 is in `a`, log 2 in `b`.
fn both(disk: &SimDisk, random: u64) -> Result<Identity, IdentityError> {
    let mut found = open_and_save(disk, random)?;
    let mut logs = Vec::new();
    for directory in &found.present {
        let id = log_id::read(disk, directory).expect("readable").unwrap_or(u64::from(directory.ends_with("b")) + 1);
        hedgerow_env::create_dir_durably(disk, &directory.join("log")).expect("writable");
        log_id::write(disk, directory, id).expect("writable");
        logs.push((id, true));
    }
    found.identity.begin(random, std::iter::empty());
    found.identity.save_to_each(disk, &found.present)?;
    found.identity.use_logs(logs.into_iter());
    found.identity.save_to_each(disk, &found.present)?;
    Ok(found.identity)
}

fn move_directory(disk: &SimDisk, from: &str, to: &str) {
    disk.rename(Path::new(from), Path::new(to)).expect("there");
}

/// Each directory has been used without the other. Together they come from every process that used one of them.
#[test]
fn d7b_directories_that_were_away_in_turn_are_no_copies() {
    // Which of the two was used last, and more often, makes no difference.
    for (without_b, without_a) in [(1, 1), (3, 1), (1, 3)] {
        let disk = SimDisk::new();
        both(&disk, 1).expect("it can start");
        move_directory(&disk, "/b", "/away");
        for random in 0..without_b {
            both(&disk, 10 + random).expect("without b");
        }
        move_directory(&disk, "/a", "/away-too");
        move_directory(&disk, "/away", "/b");
        for random in 0..without_a {
            both(&disk, 20 + random).expect("without a");
        }
        move_directory(&disk, "/away-too", "/a");
        let identity = both(&disk, 30).expect("with both");
        let starts: BTreeSet<u64> = identity.ancestors().iter().map(|one| one.start).collect();
        let all = (0..without_b).map(|it| 10 + it).chain((0..without_a).map(|it| 20 + it)).chain([1]);
        assert_eq!(starts, all.collect(), "{without_b} starts without b, {without_a} without a");
        let boots: Vec<u64> = identity.ancestors().iter().map(|one| one.boot).collect();
        assert!(boots.is_sorted(), "{boots:?}");
        assert!(identity.log_ids.values().all(|log| log.used == identity.boot()));
    }
}

/// The limit of what is remembered falls between two processes with the same count, of which each used one directory.
#[test]
fn d7c_directories_that_were_away_in_turn_are_no_copies_where_the_limit_falls_between_them() {
    for start_without_a in [50, 500] {
        let disk = SimDisk::new();
        both(&disk, 1).expect("it can start");
        move_directory(&disk, "/b", "/away");
        for number in 0..ANCESTORS_MAX as u64 {
            both(&disk, 100 + number).expect("without b");
        }
        move_directory(&disk, "/a", "/away-too");
        move_directory(&disk, "/away", "/b");
        let known = both(&disk, start_without_a).expect("without a");
        move_directory(&disk, "/away-too", "/a");
        let found = open(&disk, &directories(), NodeId(1), 30).expect("with both");
        let ancestors = found.identity.ancestors();
        assert_eq!((ancestors.len(), ancestors[0].boot), (ANCESTORS_MAX, known.boot()));
        let life = Life { incarnation: known.incarnation(), boot: known.boot(), start: start_without_a };
        let known = Known { life, logs: &[2], retired: &[] };
        assert!(!is_copy(known, &found.logs, &ancestors), "what start {start_without_a} has used is there");
    }
}

/// The catalogue beside the data knows a process that its list lacks.
#[test]
fn d7c_data_that_is_refused_as_a_copy_is_not_changed() {
    let disk = SimDisk::new();
    open_node(&disk, 1).expect("a new node");
    write_known(&disk, Life { incarnation: Incarnation(9), boot: 2, start: 7 });
    let file = |data: &PathBuf| read_file(&disk, &data.join(FILE_NAME)).expect("there");
    let files = || directories().iter().map(file).collect::<Vec<_>>();
    let before = files();
    let error = open_node(&disk, 2).expect_err("a copy").to_string();
    assert!(error.starts_with("the data in /a and /b lacks what start 2 of node 1 has added to it"), "{error}");
    assert!(files() == before, "it is changed");
}

/// A copy of one directory is started alone until its count is the other one's, or a start of it ends before it has used anything. That the
/// other directory remembers the process that the copy lacks does not make up for it.
#[test]
fn d7d_a_copy_is_refused_beside_the_other_directory_whatever_its_count() {
    for (starts, ends_early) in [(1, false), (1, true), (2, false), (9, false)] {
        let disk = SimDisk::new();
        both(&disk, 1).expect("it can start");
        let copy = read_file(&disk, Path::new("/a/identity.json")).expect("there");
        both(&disk, 2).expect("it can start");
        write_file_durably(&disk, Path::new("/a/identity.json"), &copy).expect("writable");
        move_directory(&disk, "/b", "/away");
        for number in 0..starts {
            if ends_early {
                drop(open_and_save(&disk, 10).expect("alone"));
            } else {
                both(&disk, 10 + number).expect("alone");
            }
        }
        move_directory(&disk, "/away", "/b");
        let error = both(&disk, 30).expect_err("a copy").to_string();
        assert!(error.starts_with("/a lacks what start 2 of the node has added to its log"), "{error}");
    }
}

/// One directory was away while the other one was used, whose identity is gone since: what used it stands nowhere.
#[test]
fn d7f_a_directory_without_identity_is_not_judged_by_the_list_of_another_one() {
    let disk = SimDisk::new();
    both(&disk, 1).expect("it can start");
    move_directory(&disk, "/a", "/away");
    let known = both(&disk, 2).expect("without a");
    let life = Life { incarnation: known.incarnation(), boot: known.boot(), start: 2 };
    let known = Known { life, logs: &[2], retired: &[] };
    move_directory(&disk, "/away", "/a");
    disk.remove_file(Path::new("/b/identity.json")).expect("there");
    let found = open(&disk, &directories(), NodeId(1), 3).expect("with both");
    assert!(!is_copy(known, &found.logs, &found.identity.ancestors()), "by the catalogue beside it");
    drop(found);
    for start in 4..4 + 2 * ANCESTORS_MAX as u64 {
        let next = both(&disk, start).expect("with both");
        assert!(!is_copy(known, &[1, 2], &next.ancestors()), "by what it tells others");
    }
}

/// It has no list of its own to be judged by, and takes nothing away from the other one's.
#[test]
fn d7f_an_emptied_directory_leaves_the_list_of_the_other_one_as_it_is() {
    let disk = SimDisk::new();
    both(&disk, 1).expect("it can start");
    disk.remove_dir_all(Path::new("/b")).expect("there");
    disk.create_dir_all(Path::new("/b")).expect("free");
    both(&disk, 2).expect("with an empty one");
    let life = Life { incarnation: Incarnation(9), boot: 2, start: 20 };
    let next = both(&disk, 3).expect("with both");
    assert_eq!(next.ancestors(), [(1, 1), (2, 2)].map(|(boot, start)| Ancestor { boot, start }));
    assert!(is_copy(Known { life, logs: &[1], retired: &[] }, &[1, 2], &next.ancestors()));
}

fn lose_identities(disk: &SimDisk) {
    directories().iter().for_each(|data| disk.remove_file(&data.join(FILE_NAME)).expect("there"));
}

/// The list of what used the data is lost with the identity. Those processes are not held against it, at no start since; those since are.
#[test]
fn d7g_what_a_lost_identity_has_counted_is_not_held_against_the_data() {
    let disk = SimDisk::new();
    let lives: Vec<Identity> = (1..4).map(|start| both(&disk, start).expect("it can start")).collect();
    lose_identities(&disk);
    let is_copy_for = |known: &Identity, said: &Identity| {
        let life = Life { incarnation: known.incarnation(), boot: known.boot(), start: known.start() };
        is_copy(Known { life, logs: &[1, 2], retired: &[] }, &[1, 2], &said.ancestors())
    };
    let first = both(&disk, 10).expect("it begins anew");
    assert!(first.boot() > LOST_STARTS_MAX && first.ancestors().is_empty());
    // Made after the loss, it is started until its count is the larger one.
    let copy = disk.copy();
    copy.kill_process();
    let mut known = first;
    for start in 11..11 + 2 * ANCESTORS_MAX as u64 {
        let next = both(&disk, start).expect("it goes on");
        assert_eq!(next.boot(), known.boot() + 1);
        assert!(lives.iter().all(|life| !is_copy_for(life, &next)), "start {start}");
        assert!(!is_copy_for(&known, &next), "start {start}");
        if start == 12 {
            both(&copy, 1_000).expect("a copy");
            let copied = both(&copy, 1_001).expect("a copy");
            assert!(is_copy_for(&next, &both(&copy, 1_002).expect("a copy")), "it lacks start 12");
            assert!(!is_copy_for(&copied, &both(&copy, 1_003).expect("a copy")));
        }
        known = next;
    }
    // What comes from before the loss lacks all of them, in whatever incarnation.
    assert!(is_copy_for(&known, &lives[2]));
}

/// Starts a node with what is on `disk`, where it is killed again.
fn open_node(disk: &SimDisk, seed: u64) -> Result<(), crate::OpenError> {
    let peers = BTreeMap::from([(NodeId(1), "127.0.0.1:34601".to_owned())]);
    let config = Config::new(NodeId(1), peers, directories(), seed);
    let engines = MemoryEngines::new(Arc::new(disk.clone()));
    let now = Now { instant: Instant(1_000_000_000), unix_micros: 1_700_000_000_000_000 };
    let opened = Node::open(config, Arc::new(disk.clone()), Arc::new(engines), now).map(drop);
    disk.kill_process();
    opened
}

/// Lays a catalogue beside the data which knows the `life` of the node that uses its logs.
fn write_known(disk: &SimDisk, life: Life) {
    let logs = directories().iter().filter_map(|data| log_id::read(disk, data).expect("readable")).collect();
    let Life { incarnation, boot, start } = life;
    let entry = hedgerow_placement::Node { boot, start, logs, ..hedgerow_placement::Node::new("n:1", incarnation) };
    let catalogue = Catalogue::bootstrap(9, &[(NodeId(1), entry)], &[NodeId(1)]).expect("a catalogue");
    let text = write_catalogue(&catalogue).expect("text");
    write_file_durably(disk, Path::new("/a/catalogue.json"), &text).expect("writable");
}

/// The catalogue beside the data says how often the node was started, and nobody registers what begins anew: the others are down.
#[test]
fn d7g_a_node_that_begins_anew_is_not_locked_out_by_its_own_catalogue() {
    let disk = SimDisk::new();
    open_node(&disk, 1).expect("a new node");
    let mut seed = 1;
    // Also one that begins anew again, and one whose catalogue knows more starts than the data has counted.
    for boot in [3, LOST_STARTS_MAX + 9, 5 * LOST_STARTS_MAX] {
        write_known(&disk, Life { incarnation: Incarnation(boot), boot, start: 7 });
        lose_identities(&disk);
        for _ in 0..3 {
            seed += 1;
            open_node(&disk, seed).expect("it begins anew, and goes on");
        }
        let identity = read(&disk, Path::new("/a")).expect("readable").expect("there");
        assert_eq!(identity.boot(), boot + LOST_STARTS_MAX + 2);
    }
}

/// A node is started without a directory. What it knows of the log there still tells the directory from a copy of it.
#[test]
fn d3j_a_directory_that_is_away_is_told_from_a_copy_from_before() {
    let disk = SimDisk::new();
    both(&disk, 1).expect("it can start");
    let copy = read_file(&disk, Path::new("/a/identity.json")).expect("there");
    both(&disk, 2).expect("it can start");
    let own = read_file(&disk, Path::new("/a/identity.json")).expect("there");
    disk.rename(Path::new("/a"), Path::new("/away")).expect("there");
    both(&disk, 3).expect("without it");
    disk.rename(Path::new("/away"), Path::new("/a")).expect("there");
    write_file_durably(&disk, Path::new("/a/identity.json"), &copy).expect("writable");
    let error = both(&disk, 4).expect_err("a copy").to_string();
    let expected = "/a is older than the node's other directories (start 1; its log was used at start 2)";
    assert!(error.starts_with(expected), "{error}");
    write_file_durably(&disk, Path::new("/a/identity.json"), &own).expect("writable");
    both(&disk, 5).expect("itself");
}

#[test]
fn d7_what_is_remembered_is_bounded() {
    let mut identity = start(&SimDisk::new(), 10).0;
    for boot in 2..500 {
        identity.boot = boot;
        identity.begin(boot * 10, std::iter::empty());
        identity.use_logs([(boot, true), (boot + 1_000, false)].into_iter());
    }
    assert_eq!(identity.ancestors().len() + 1, ANCESTORS_MAX, "this process is none");
    assert_eq!(identity.ancestors().last(), Some(&Ancestor { boot: 498, start: 4_980 }));
    assert!((LOGS_MAX..LOGS_MAX + 4).contains(&identity.log_ids.len()), "{}", identity.log_ids.len());
    assert!(identity.has_logs(&[499, 1_499].map(|id| FoundLog { id: Some(id), is_begun: true })));
}

#[test]
fn d3g_a_file_from_before_the_numbers_of_logs_says_how_many_there_were() {
    let mut identity = start(&SimDisk::new(), 10).0;
    identity.logs = directories();
    let found = |is_begun| FoundLog { id: None, is_begun };
    assert!(identity.has_logs(&[found(true), found(true)]));
    assert!(!identity.has_logs(&[found(true), found(false)]));
    assert!(!identity.has_logs(&[found(true)]));
}

/// Whatever stands in the file, it is the identity that was written or an error that names the file and changes nothing.
#[test]
fn d7a_any_other_bytes_are_no_identity() {
    let disk = SimDisk::new();
    let (mut first, _) = start(&disk, 10);
    (first.cluster, first.founders) =
        (7, vec![Founder { node: 1, incarnation: 11 }, Founder { node: 2, incarnation: 12 }]);
    first.note_log_begun(9);
    first.save(&disk, &directories()).expect("writable");
    let path = Path::new("/a/identity.json");
    let whole = read_file(&disk, path).expect("there");
    let mut random = hedgerow_types::random::Random::new(5);
    let mut accepted = 0;
    for _ in 0..4_000 {
        let mut text = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(text.len() as u64) as usize;
            match random.below(5) {
                0 => text.truncate(at.max(1)),
                1 => text[at] ^= 1 << random.below(8),
                2 => text[at] = b"0129{}[],:\"ex-."[random.below(15) as usize],
                3 => drop(text.remove(at.min(text.len() - 1))),
                _ => text.insert(at, b'0' + random.below(10) as u8),
            }
            if text.is_empty() {
                text.push(b'{');
            }
        }
        let disk = SimDisk::new();
        for (directory, text) in [("/a", &text), ("/b", &whole)] {
            hedgerow_env::create_dir_durably(&disk, Path::new(directory)).expect("a fresh disk");
            write_file_durably(&disk, &Path::new(directory).join("identity.json"), text).expect("writable");
        }
        match open(&disk, &directories(), NodeId(1), 20) {
            Ok(found) => {
                accepted += 1;
                assert_eq!(found.identity, Identity { boot: first.boot + 1, ..first.clone() }, "{text:?}");
            }
            Err(error) => {
                assert!(error.to_string().starts_with("/a/identity.json is not an identity file"), "{error}");
                assert_eq!(read_file(&disk, path).expect("there"), text, "an error changes nothing");
            }
        }
    }
    assert!((1..200).contains(&accepted), "{accepted} of 4,000, whose changes took each other back");
}
