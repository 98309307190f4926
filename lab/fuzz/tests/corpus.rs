//! Every seed and many mutations of each through every decoder; the same ones on every run.
//!
//! `corpus-seed` holds the seeds as files, for a fuzzer to start from, and as a record of what earlier versions sent:
//! files that no seed writes any more stay and must still be read or refused. After a change of the protocol,
//! `REWRITE=1 cargo test -p hedgerow-fuzz` writes today's.

#![allow(clippy::disallowed_methods, reason = "the corpus is made of files")]

use hedgerow_fuzz::{decode_anything, mutate, seeds};
use hedgerow_types::random::Random;
use hedgerow_wire::call::decode_reply;
use hedgerow_wire::decode_request;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Mutated inputs per run: a few seconds' worth.
const ITERATIONS: usize = 200_000;

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
    for _ in 0..ITERATIONS {
        let mut input = corpus[random.below(corpus.len() as u64) as usize].clone();
        let other = &corpus[random.below(corpus.len() as u64) as usize];
        mutate(&mut input, other, &mut random);
        decode_anything(&input);
    }
}
