//! Files written from front to back, by the operating system's means, hold what was written.
#![allow(clippy::disallowed_methods, reason = "a test")]

use hedgerow_env::os::OsDisk;
use hedgerow_env::{Disk, OpenMode, read_file};
use hedgerow_types::random::Random;

/// Block sizes in the implementation end at 4,096: sizes around it, and far from it.
fn sizes(random: &mut Random) -> usize {
    match random.below(5) {
        0 => 4_096,
        1 => random.below(10) as usize,
        2 => 4_090 + random.below(12) as usize,
        3 => random.below(3_000_000) as usize,
        _ => random.below(9_000) as usize,
    }
}

fn bytes(size: usize, random: &mut Random) -> Vec<u8> {
    (0..size).map(|_| random.below(255) as u8 + 1).collect()
}

#[repr(align(4096))]
struct Block([u8; 8_192]);

#[test]
fn what_was_written_can_be_read_by_any_handle() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("log");
    let mut random = Random::new(3);
    let mut file = OsDisk.open_sequential(&path, OpenMode::Create).expect("opens");
    let mut model: Vec<u8> = Vec::new();
    for round in 0..200 {
        // Records begin at multiples of eight, as those of a log do. Whole blocks that lie well are written from where they are.
        let is_block = random.below(4) == 0;
        let mut data = if is_block { vec![round as u8 + 1; 8_192] } else { bytes(sizes(&mut random), &mut random) };
        let at = model.len().next_multiple_of(if is_block { 4_096 } else { 8 });
        let block = Block([round as u8 + 1; 8_192]);
        file.write_at(at as u64, if is_block { &block.0 } else { &data }).expect("writes");
        model.resize(at, 0);
        model.append(&mut data);
        if round % 10 == 0 {
            file.sync_data().expect("syncs");
            let mut last = vec![0; model.len().min(5_000)];
            let from = model.len() - last.len();
            assert_eq!(file.read_at(from as u64, &mut last).expect("reads"), last.len());
            assert_eq!(last, model[from..]);
        }
        if round % 50 == 49 {
            // A handle that does not know what the last block holds.
            file = OsDisk.open_sequential(&path, OpenMode::Write).expect("opens");
        }
    }
    file.sync_all().expect("syncs");
    let stored = read_file(&OsDisk, &path).expect("reads");
    assert_eq!(stored[..model.len()], model);
    assert!(stored.len() - model.len() < 4_096 && stored[model.len()..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_write_elsewhere_keeps_what_stands_before_it() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("log");
    let mut random = Random::new(4);
    let first = bytes(20_000, &mut random);
    let file = OsDisk.open_sequential(&path, OpenMode::Create).expect("opens");
    file.write_at(0, &first).expect("writes");
    let second = bytes(100, &mut random);
    file.write_at(9_000, &second).expect("writes");
    let stored = read_file(&OsDisk, &path).expect("reads");
    assert_eq!((&stored[..9_000], &stored[9_000..9_100]), (&first[..9_000], &second[..]));
    assert_eq!(stored[12_288..20_000], first[12_288..]);
    // In the block that was written last, by another way.
    file.write_at(8_192, &Block([7; 8_192]).0).expect("writes");
    file.write_at(9_100, &second).expect("writes");
    let stored = read_file(&OsDisk, &path).expect("reads");
    assert!(stored[8_192..9_100].iter().chain(&stored[12_288..16_384]).all(|byte| *byte == 7));
    assert_eq!(stored[9_100..9_200], second);
}

#[test]
fn a_write_that_goes_on_where_the_last_one_ended_reads_nothing() {
    // System calls of this thread that read; looking at them is some as well.
    let reads = || {
        let counts = std::fs::read_to_string("/proc/thread-self/io").expect("Linux counts them");
        let line = counts.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("reads are counted");
        line.parse::<u64>().expect("a number")
    };
    let root = tempfile::tempdir().expect("a directory");
    let file = OsDisk.open_sequential(&root.path().join("log"), OpenMode::Create).expect("opens");
    let (before, looking) = (reads(), reads());
    let mut at: usize = 0;
    for size in 1..300 {
        let data = vec![7; size * 31];
        file.write_at(at as u64, &data).expect("writes");
        at = (at + data.len()).next_multiple_of(8);
    }
    assert_eq!(
        reads() - looking,
        looking - before,
        "records begin at multiples of eight: the gap is known to hold zeros"
    );
}
