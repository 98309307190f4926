//! A run is a function of its seed: twice the same seed is twice the same history, to the last event.

use hedgerow_sim::engine::EngineKind;
use hedgerow_sim::run::{Request, run};
use hedgerow_sim::scenario::Scenario;

#[test]
fn the_same_seed_gives_the_same_history() {
    let of_memory = (1..=6).map(|seed| Request { seed, engine: Some(EngineKind::Memory), ..Request::default() });
    // Transfers of checkpoints, repair, full disks and deaths: whatever RocksDB's threads do, the node sees the same. 3,028 has many
    // tables, 4,038 and 4,078 read under snapshots what is removed meanwhile.
    let rocksdb = [3_021, 3_028, 3_030, 3_033, 4_038, 4_078];
    let of_rocksdb = rocksdb.map(|seed| Request { seed, engine: Some(EngineKind::RocksDb), ..Request::default() });
    for request in of_memory.chain(of_rocksdb) {
        let seed = request.seed;
        let (first, second) = (run(request), run(request));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.history.operations(), second.history.operations(), "seed {seed}");
        assert_eq!(first.stats, second.stats, "seed {seed}");
        assert_eq!(first.failure, None, "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history_of_two_clusters() {
    // Both ways, and one way.
    let (mut ways, seeds) = (Vec::new(), [11, 27]);
    for (seed, engine) in seeds.into_iter().flat_map(|seed| EngineKind::ALL.map(|engine| (seed, Some(engine)))) {
        let request = Request { seed, engine, ..Request::default() };
        let (first, second) = (run(request), run(request));
        assert!(first.plan.has_second, "seed {seed} has two clusters");
        assert_eq!((first.hash, &first.stats), (second.hash, &second.stats), "seed {seed}");
        assert_eq!(first.failure, None, "seed {seed}");
        ways.extend(first.stats.duplicated.into_keys());
    }
    ways.sort_unstable();
    ways.dedup();
    assert_eq!(ways, ["to a second cluster", "with a second cluster, both ways"]);
}

#[test]
fn different_seeds_give_different_histories() {
    let hashes: Vec<u64> = (1..=4)
        .map(|seed| {
            run(Request { seed, scenario: Some(Scenario::Calm), machine_count: Some(3), ..Request::default() }).hash
        })
        .collect();
    assert!((1..4).all(|index| !hashes[..index].contains(&hashes[index])), "{hashes:x?}");
}
