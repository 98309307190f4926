//! Both engines below the thin layer against a sorted map, and what is told of lsm-tree in decision 030.

use crate::Settings;
use crate::bare::Bare;
use crate::layer::Layered;
use crate::lsm::Lsm;
use crate::rows::{Numbers, key};
use crate::store::{Store, settle};
use anyhow::Result;
use hedgerow_storage::Batch;
use std::collections::BTreeMap;
use std::path::Path;

const SETTINGS: Settings = Settings { cache_size: 1 << 20, flush_size: 1 << 16, reads_ahead: false };
const KEYS: u64 = 500;

type Opener = fn(&Path) -> Result<Box<dyn Store>>;
type Model = BTreeMap<u64, Vec<u8>>;

const BOTH: [Opener; 2] = [
    |directory| Ok(Box::new(Layered::new(Bare::open(directory, &SETTINGS)?))),
    |directory| Ok(Box::new(Layered::new(Lsm::open(directory, &SETTINGS)?))),
];

fn is_same(store: &dyn Store, model: &Model) {
    for index in 0..KEYS {
        let row = store.get(&key(index)).expect("reads");
        assert_eq!(row.as_deref(), model.get(&index).map(Vec::as_slice), "row {index}");
    }
}

fn change(store: &dyn Store, model: &mut Model, numbers: &mut Numbers) {
    let mut batch = Batch::new();
    for _ in 0..40 {
        let index = numbers.below(KEYS);
        if numbers.below(5) == 0 {
            batch.remove(&[&key(index)]);
            model.remove(&index);
        } else {
            let mut value = vec![7; 300];
            numbers.fill_half(&mut value);
            batch.put(&[&key(index)], &[&value]);
            model.insert(index, value);
        }
    }
    store.write(&batch).expect("writes");
}

#[test]
fn rows_are_those_of_a_sorted_map_through_flushes_compactions_copies_and_opens() {
    for open in BOTH {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("rows");
        let (mut model, mut numbers) = (Model::new(), Numbers::new(3));
        for round in 0..6 {
            let store = open(&directory).expect("opens");
            is_same(&*store, &model);
            for _ in 0..30 {
                change(&*store, &mut model, &mut numbers);
                is_same(&*store, &model);
                store.flush().expect("flushes");
            }
            let copy = folder.path().join(format!("copy-{round}"));
            store.checkpoint(&copy).expect("copies");
            let copied = model.clone();
            change(&*store, &mut model, &mut numbers);
            if round % 2 == 0 {
                store.compact().expect("compacts");
            }
            settle(&*store).expect("settles");
            is_same(&*store, &model);
            drop(store);
            is_same(&*open(&copy).expect("opens"), &copied);
        }
    }
}

/// RocksDB locks its directory. lsm-tree leaves that to its user, who may see his tables removed by the second handle as useless.
#[test]
fn only_one_of_both_refuses_a_directory_that_is_open() {
    let [rocks, lsm] = BOTH.map(|open| {
        let folder = tempfile::tempdir().expect("a directory");
        let _first = open(folder.path()).expect("opens");
        open(folder.path()).is_ok()
    });
    assert_eq!((rocks, lsm), (false, true));
}
