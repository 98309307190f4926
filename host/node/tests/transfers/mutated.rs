//! Checkpoints whose stream is not what was sent: mutated, repeated, reordered, cut.
//!
//! Whatever comes, the receiver goes on, writes nowhere but below `incoming`, keeps no more than one checkpoint for each
//! replica there, and installs only what is what its sender has.

use crate::world::{Ask, Meddler, running};
use crate::{SECOND, Stage};
use bytes::{Bytes, BytesMut};
use hedgerow_env::Disk;
use hedgerow_node::peer::{Frame, SnapshotBegin, SnapshotFile, put, take};
use hedgerow_node::{Event, Job};
use hedgerow_storage::{Direction, KeyRange};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, NodeId, ReadLevel, ReplicaId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const NUMBERS: [u64; 10] = [0, 1, 2, 100, 1 << 20, (1 << 20) + 1, 1 << 32, 1 << 62, u64::MAX - 1, u64::MAX];
/// Names that leave their directory, or mean something else than a file in it.
const NAMES: [&str; 12] = [
    "../evil",
    "..",
    ".",
    "/evil",
    "a/../../../evil",
    "sub/evil",
    "evil\0",
    "..\\evil",
    "",
    ".evil",
    "rows.part",
    "harmless",
];

fn is_of_snapshot(frame: &Frame) -> bool {
    matches!(frame, Frame::SnapshotBegin(_) | Frame::SnapshotChunk(_) | Frame::SnapshotProgress(_))
}

fn number(random: &mut Random) -> u64 {
    NUMBERS[random.below(NUMBERS.len() as u64) as usize]
}

/// A number nearby, or far away.
fn moved_from(value: u64, random: &mut Random) -> u64 {
    if random.below(2) == 0 { value.wrapping_add(random.below(3)).wrapping_sub(1) } else { number(random) }
}

fn flip(bytes: &mut Bytes, random: &mut Random) {
    let mut changed = bytes.to_vec();
    if changed.is_empty() {
        return;
    }
    let at = random.below(changed.len() as u64) as usize;
    changed[at] ^= 1 << random.below(8);
    *bytes = changed.into();
}

fn mutate(frame: &mut Frame, random: &mut Random) {
    match frame {
        Frame::SnapshotBegin(begin) => mutate_begin(begin, random),
        Frame::SnapshotChunk(chunk) => match random.below(12) {
            0 => chunk.file = moved_from(chunk.file.into(), random) as u32,
            1 => chunk.offset = moved_from(chunk.offset, random),
            2 => chunk.id = moved_from(chunk.id, random),
            3 => chunk.to = moved_from(chunk.to, random),
            4 => flip(&mut chunk.data, random),
            5..=10 => {
                // What is written then is what nobody sent.
                match random.below(6) {
                    0 => chunk.data.truncate(random.below(chunk.data.len() as u64 + 1) as usize),
                    1 => chunk.data = [&chunk.data[..], b"more"].concat().into(),
                    _ => flip(&mut chunk.data, random),
                }
                chunk.crc = crc32c::crc32c(&chunk.data);
            }
            _ => chunk.crc = chunk.crc.wrapping_add(1),
        },
        Frame::SnapshotProgress(progress) => match random.below(8) {
            0 => progress.file = moved_from(progress.file.into(), random) as u32,
            1 => progress.offset = moved_from(progress.offset, random),
            2 => progress.id = moved_from(progress.id, random),
            3 => progress.from = moved_from(progress.from, random),
            4 => progress.again = !progress.again,
            5 => progress.is_busy = !progress.is_busy,
            6 => progress.former = moved_from(progress.former, random),
            _ => progress.is_refused = true,
        },
        other => panic!("{other:?}"),
    }
}

fn mutate_begin(begin: &mut SnapshotBegin, random: &mut Random) {
    let count = begin.files.len() as u64;
    let name = NAMES[random.below(NAMES.len() as u64) as usize];
    match random.below(10) {
        0 => begin.from = moved_from(begin.from, random),
        1 => begin.to = moved_from(begin.to, random),
        2 => begin.id = moved_from(begin.id, random),
        3 => flip(&mut begin.message, random),
        4 => begin.message.truncate(random.below(begin.message.len() as u64 + 1) as usize),
        5 => begin
            .files
            .insert(random.below(count + 1) as usize, SnapshotFile { name: name.into(), size: number(random) }),
        6 => begin.files.push(SnapshotFile { name: "x".repeat(random.below(400) as usize), size: random.below(3) }),
        _ if count == 0 => {}
        7 => begin.files[random.below(count) as usize].name = name.into(),
        8 => {
            let file = &mut begin.files[random.below(count) as usize];
            file.size = moved_from(file.size, random);
        }
        _ => {
            let file = begin.files[random.below(count) as usize].clone();
            begin.files.insert(random.below(count) as usize, file);
        }
    }
}

/// Gives `frames` on as they should not be, and has some of before.
fn disturb(frames: Vec<Frame>, before: &mut Vec<Frame>, random: &mut Random) -> Vec<Frame> {
    let mut out = Vec::new();
    for frame in frames {
        if !is_of_snapshot(&frame) {
            out.push(frame);
            continue;
        }
        if before.len() >= 40 {
            before.swap_remove(random.below(40) as usize);
        }
        before.push(frame.clone());
        match random.below(16) {
            0 => {}
            1 => out.extend([frame.clone(), frame]),
            2 => {
                let again = before[random.below(before.len() as u64) as usize].clone();
                out.extend([again, frame]);
            }
            3 => out.insert(random.below(out.len() as u64 + 1) as usize, frame),
            4..=8 => {
                let mut changed = frame.clone();
                mutate(&mut changed, random);
                out.push(changed);
                // The original comes too, or it does not.
                out.extend((random.below(2) == 0).then_some(frame));
            }
            _ => out.push(frame),
        }
    }
    out
}

fn frames_of(mut bytes: BytesMut) -> Vec<Frame> {
    std::iter::from_fn(|| take(&mut bytes).unwrap()).collect()
}

/// Notes what belongs to checkpoints, and lets it pass.
struct Listener(Rc<RefCell<Vec<(NodeId, NodeId, Frame)>>>);

impl Meddler for Listener {
    fn meddle(&mut self, (from, to): (NodeId, NodeId), frames: BytesMut) -> BytesMut {
        let found = frames_of(frames.clone()).into_iter().filter(is_of_snapshot);
        self.0.borrow_mut().extend(found.map(|frame| (from, to, frame)));
        frames
    }
}

/// Disturbs what belongs to checkpoints.
struct Disturber {
    random: Random,
    before: Vec<Frame>,
}

impl Meddler for Disturber {
    fn meddle(&mut self, _: (NodeId, NodeId), frames: BytesMut) -> BytesMut {
        let mut out = BytesMut::new();
        let frames = disturb(frames_of(frames), &mut self.before, &mut self.random);
        frames.iter().for_each(|frame| put(&mut out, frame));
        out
    }
}

/// Every path of a node outside of its logs.
fn paths(stage: &Stage, node: NodeId) -> BTreeSet<PathBuf> {
    let disk = &stage.world.machines[&node].disk;
    let (mut paths, mut directories) = (BTreeSet::new(), vec![PathBuf::from("/")]);
    while let Some(directory) = directories.pop() {
        for path in disk.list(&directory).unwrap().into_iter().map(|name| directory.join(name)) {
            if !disk.is_dir(&path) {
                paths.insert(path);
            } else if path != Path::new("/data/log") {
                directories.push(path);
            }
        }
    }
    paths
}

/// Directories below `incoming` of a node.
fn incoming(stage: &Stage, node: NodeId) -> BTreeSet<PathBuf> {
    let below = paths(stage, node).into_iter().filter(|path| path.starts_with("/data/incoming"));
    below.map(|path| path.parent().unwrap().to_owned()).collect()
}

/// Everything stays where it belongs.
fn assert_contained(stage: &Stage, node: NodeId, note: &str) {
    for path in paths(stage, node) {
        let folders = ["replicas", "incoming", "checkpoints", "trash"].map(|name| Path::new("/data").join(name));
        let is_below = folders.iter().any(|folder| path.strip_prefix(folder).is_ok_and(|it| it.iter().count() == 2));
        let is_known = path.parent() == Some(Path::new("/data"));
        assert!(is_below || is_known, "{note}: {path:?}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(!name.contains("evil"), "{note}: {path:?}");
    }
    let mut owners = BTreeMap::<String, usize>::new();
    for directory in incoming(stage, node) {
        let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
        *owners.entry(name.rsplitn(3, '-').last().unwrap().to_owned()).or_default() += 1;
    }
    assert!(owners.values().all(|count| *count == 1), "{note}: {owners:?}");
}

/// The rows of the stage's partition at each node.
fn rows(stage: &Stage) -> Vec<BTreeMap<Bytes, Bytes>> {
    let group = GroupId::new(stage.key.table as u32, stage.key.partition as u32);
    let of = |node: &NodeId| {
        let mut rows = BTreeMap::new();
        let machine = &stage.world.machines[node];
        let replica = machine.node.replicas_for_inspection().find(|replica| replica.id == group).unwrap();
        let range = KeyRange { start: b"", end: None, is_bulk: true };
        let engine = replica.storage.unwrap().engine();
        engine
            .scan(range, Direction::Ascending, &mut |key, value| {
                rows.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                ControlFlow::Continue(())
            })
            .unwrap();
        rows
    };
    stage.world.machines.keys().map(of).collect()
}

/// All replicas are there, have what was written, and the same.
fn assert_same(stage: &mut Stage, note: &str) {
    let leader = stage.world.replicas(stage.key.partition).leader;
    stage.run_until_whole(leader, 300);
    stage.world.run(2 * SECOND);
    let key = stage.key.clone();
    let read = stage.world.get(&key, leader, &Ask::anywhere(ReadLevel::Linearizable)).unwrap();
    assert_eq!(read.0, format!("{:01000}", stage.written), "{note}");
    let rows = rows(stage);
    assert!(rows.iter().all(|one| *one == rows[0] && one.len() > 10), "{note}: replicas differ");
}

/// A stage with a megabyte and a half in each partition, so that a checkpoint has several pieces.
fn stage() -> Stage {
    let mut stage = Stage::new(|_| {});
    for number in 0..48 {
        let key = crate::world::Key::new(stage.key.table, 2, &format!("key{number}"));
        let leader = stage.world.replicas(key.partition).leader;
        stage.world.write(&key, leader, &"v".repeat(64_000));
    }
    stage.write(20);
    stage
}

/// Streams of real checkpoints are given to their receiver once more, disturbed. It needs none of them.
#[test]
fn d4_a_stream_of_any_pieces_leaves_nothing_where_it_should_not_be() {
    let mut stage = stage();
    let heard = Rc::new(RefCell::new(Vec::new()));
    let wiped = stage.wipe();
    stage.world.meddler = Some(Box::new(Listener(Rc::clone(&heard))));
    stage.run_until_whole(stage.leader, 180);
    // The other partition's checkpoint has had to wait where two others were on their way.
    stage.world.run(10 * SECOND);
    stage.world.meddler = None;
    let own = running(&stage.world, wiped);
    let is_for_present = |frame: &Frame| match frame {
        Frame::SnapshotBegin(begin) => own.values().any(|replica| replica.0 == begin.to),
        Frame::SnapshotChunk(chunk) => own.values().any(|replica| replica.0 == chunk.to),
        _ => false,
    };
    let heard: Vec<(NodeId, Frame)> =
        heard.take().into_iter().filter(|it| it.1 == wiped && is_for_present(&it.2)).map(|it| (it.0, it.2)).collect();
    let begun: BTreeSet<u64> = heard.iter().filter_map(|it| begin_of(&it.1)).map(|begin| begin.group).collect();
    assert!(begun.len() >= 3 && heard.len() > 6, "the metadata and two partitions, in several pieces: {}", heard.len());
    let mut before = Vec::new();
    for seed in 0..200 {
        let random = &mut Random::new(seed);
        // A few of them in their order, from anywhere.
        let first = random.below(heard.len() as u64) as usize;
        let some = heard.iter().skip(first).take(1 + random.below(8) as usize).cloned();
        let (from, frames): (Vec<NodeId>, Vec<Frame>) = some.unzip();
        for frame in disturb(frames, &mut before, random) {
            stage.world.handle(wiped, Event::Peer(from[0], frame));
            stage.world.settle(wiped);
        }
        if random.below(4) == 0 {
            stage.world.run(Duration::from_millis(random.below(3_000)));
        }
        assert_contained(&stage, wiped, &format!("seed {seed}"));
    }
    stage.world.run(90 * SECOND);
    assert_eq!(incoming(&stage, wiped), BTreeSet::new(), "nobody goes on with it");
    assert_same(&mut stage, "afterwards");
    assert_eq!(running(&stage.world, wiped), own, "nothing was lost by it");
}

fn begin_of(frame: &Frame) -> Option<&SnapshotBegin> {
    if let Frame::SnapshotBegin(begin) = frame { Some(begin) } else { None }
}

/// A replica that needs its checkpoint gets it in the end, and nothing else.
#[test]
fn d4_a_disturbed_stream_installs_what_its_sender_has_or_nothing() {
    for seed in 0..3 {
        let mut stage = stage();
        let note = format!("seed {seed}");
        let wiped = stage.wipe();
        stage.world.meddler = Some(Box::new(Disturber { random: Random::new(seed), before: Vec::new() }));
        let mut replicas = BTreeSet::<(GroupId, ReplicaId)>::new();
        for _ in 0..60 {
            stage.world.run(Duration::from_millis(500));
            replicas.extend(running(&stage.world, wiped));
            [1, 2, 3].into_iter().for_each(|node| assert_contained(&stage, NodeId(node), &note));
        }
        stage.world.meddler = None;
        assert_same(&mut stage, &note);
        replicas.extend(running(&stage.world, wiped));
        assert_eq!(replicas.len(), 3, "{note}: what was installed was of no use, and cost a replica: {replicas:?}");
        stage.world.run(90 * SECOND);
        assert_eq!(incoming(&stage, wiped), BTreeSet::new(), "{note}");
    }
}

/// Says at first that files are shorter than they are.
struct Liar {
    has_lied: BTreeSet<u64>,
}

impl Meddler for Liar {
    fn meddle(&mut self, _: (NodeId, NodeId), frames: BytesMut) -> BytesMut {
        let mut out = BytesMut::new();
        for mut frame in frames_of(frames) {
            if let Frame::SnapshotBegin(begin) = &mut frame
                && self.has_lied.insert(begin.id)
            {
                begin.files.iter_mut().for_each(|file| file.size -= 1);
            }
            put(&mut out, &frame);
        }
        out
    }
}

/// No piece would ever fit, and the transfer would never end, since both sides hear of each other.
#[test]
fn m2_a_checkpoint_that_was_announced_wrongly_is_received_anew() {
    let mut stage = stage();
    stage.wipe();
    stage.world.meddler = Some(Box::new(Liar { has_lied: BTreeSet::new() }));
    assert_same(&mut stage, "announced again");
}

/// A beginning that is said again while the checkpoint is verified, or once it is, says something else than before.
#[test]
fn d4_what_was_verified_is_what_is_installed() {
    // The position, and a voter, in the message of the group.
    for at in [43, 43 + 24 + 2 + 4] {
        let mut stage = stage();
        let group = GroupId::new(stage.key.table as u32, stage.key.partition as u32);
        let heard = Rc::new(RefCell::new(Vec::new()));
        let wiped = stage.wipe();
        stage.world.meddler = Some(Box::new(Listener(Rc::clone(&heard))));
        stage.world.machines.get_mut(&wiped).unwrap().holds = is_verification_of_table;
        let is_it = |job: &Job| matches!(job, Job::Verify { owner, .. } if owner.group == group);
        stage.world.run_until(60 * SECOND, |world| world.machines[&wiped].held.iter().any(is_it));
        stage.world.meddler = None;
        let own = running(&stage.world, wiped)[&group];
        let begun = heard.take().into_iter().rev();
        let begun = begun.filter_map(|(from, _, frame)| Some((from, begin_of(&frame)?.clone())));
        let (from, mut begin) = begun.into_iter().find(|(_, begin)| begin.to == own.0).unwrap();
        let mut message = begin.message.to_vec();
        message[at] ^= 0x40;
        begin.message = message.into();
        let now = stage.world.clock();
        let machine = stage.world.machines.get_mut(&wiped).unwrap();
        machine.node.handle(Event::Peer(from, Frame::SnapshotBegin(begin)), now);
        stage.world.settle(wiped);
        stage.world.let_go(wiped);
        stage.world.run(5 * SECOND);
        assert_eq!(running(&stage.world, wiped).get(&group), Some(&own), "byte {at}: the replica is lost");
        assert_same(&mut stage, &format!("byte {at}"));
    }
}

fn is_verification_of_table(job: &Job) -> bool {
    matches!(job, Job::Verify { owner, .. } if owner.group != GroupId::META)
}
