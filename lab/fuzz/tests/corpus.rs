//! Every seed and many mutations of each through every decoder; the same ones on every run.
//!
//! `corpus-seed` holds the seeds as files, for a fuzzer to start from, and as a record of what earlier versions sent:
//! files that no seed writes any more stay and must still be read or refused. After a change of the protocol,
//! `REWRITE=1 cargo test -p hedgerow-fuzz` writes today's.

#![allow(clippy::disallowed_methods, reason = "the corpus is made of files")]

use hedgerow_fuzz::{File, as_file, decode_anything, mutate, mutate_json, seeds};
use hedgerow_types::random::Random;
use hedgerow_wire::call::decode_reply;
use hedgerow_wire::decode_request;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Mutated inputs per run: a few seconds' worth.
const ITERATIONS: usize = 200_000;
/// The same of rows of the catalogue whose JSON is changed, and of files that a node starts with.
const ROW_ITERATIONS: usize = 20_000;
const FILE_ITERATIONS: usize = 2_000;

fn corpus_dir() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("corpus-seed")
}

/// Writes today's seeds before anything reads them, if the environment asks for it.
fn rewrite_if_asked() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        if std::env::var_os("REWRITE").is_some() {
            for (name, bytes) in seeds() {
                fs::write(corpus_dir().join(name), bytes).expect("the corpus can be written");
            }
        }
    });
}

/// How many times as many inputs as usual, by the environment.
fn times() -> usize {
    std::env::var("FUZZ_TIMES").map_or(1, |text| text.parse().expect("FUZZ_TIMES is a number"))
}

fn corpus() -> Vec<Vec<u8>> {
    rewrite_if_asked();
    let mut paths: Vec<_> =
        fs::read_dir(corpus_dir()).expect("the corpus").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).expect("a file of the corpus")).collect()
}

#[test]
fn the_corpus_holds_todays_seeds() {
    rewrite_if_asked();
    for (name, bytes) in seeds() {
        let stored = fs::read(corpus_dir().join(&name)).unwrap_or_default();
        assert!(stored == bytes, "{name} differs: if that is meant, run this test with REWRITE=1");
    }
}

#[test]
fn every_seed_is_what_its_name_says() {
    for (name, bytes) in seeds() {
        if name.starts_with("request") {
            assert!(decode_request(bytes.into()).is_ok(), "{name}");
        } else if name.starts_with("reply") || name.starts_with("failed") {
            assert!(decode_reply(bytes.into()).is_ok(), "{name}");
        }
    }
}

#[test]
fn mutated_seeds_are_read_or_refused() {
    let corpus = corpus();
    assert!(corpus.len() > 50, "the corpus is there");
    corpus.iter().for_each(|input| decode_anything(input));
    let mut random = Random::new(1);
    for _ in 0..ITERATIONS * times() {
        let mut input = corpus[random.below(corpus.len() as u64) as usize].clone();
        let other = &corpus[random.below(corpus.len() as u64) as usize];
        mutate(&mut input, other, &mut random);
        decode_anything(&input);
    }
}

/// Numbers, strings and lists in a row are changed, so that it is JSON as before.
#[test]
fn rows_with_other_values_are_read_or_refused() {
    let rows: Vec<_> = seeds().into_iter().filter(|(name, _)| name.starts_with("catalogue-row-")).collect();
    let mut random = Random::new(2);
    for _ in 0..ROW_ITERATIONS * times() {
        let (_, row) = &rows[random.below(rows.len() as u64) as usize];
        let value = row.iter().position(|byte| *byte == b' ').expect("a key and a value") + 1;
        let mut text = row[value..].to_vec();
        mutate_json(&mut text, &mut random);
        decode_anything(&[&row[..value], &text].concat());
    }
}

/// Every other input is JSON as before, with other values.
#[test]
fn a_node_starts_with_mutated_files_or_says_what_is_wrong() {
    let files: Vec<_> = seeds().into_iter().filter(|(name, _)| name.starts_with("file-")).collect();
    assert_eq!(files.len(), 4);
    let mut random = Random::new(3);
    for number in 0..FILE_ITERATIONS * times() {
        let (name, seed) = &files[number / 2 % files.len()];
        let file = if name.contains("identity") { File::Identity } else { File::Catalogue };
        let mut input = seed.clone();
        match number % 2 {
            0 => mutate_json(&mut input, &mut random),
            _ => mutate(&mut input, &files[random.below(files.len() as u64) as usize].1, &mut random),
        }
        as_file(file, &input);
    }
    for (name, seed) in &files {
        as_file(if name.contains("identity") { File::Identity } else { File::Catalogue }, seed);
    }
}
