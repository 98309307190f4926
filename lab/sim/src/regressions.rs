//! Seeds at which runs failed once. They are run again with every test.
//!
//! A seed stands for one history of one version of the code: whatever changes what nodes do or say shifts everything that is
//! drawn later. So each cause has a test of its own besides, which the comment names, and the seeds only keep the kinds of
//! runs in use that found it.

/// The seeds, by what they found.
pub const SEEDS: &[u64] = &[
    // Writes that were sent on to the leader and lost with a connection: `n8a_` in hedgerow-node.
    5_008_597,
    5_010_326,
    5_012_731,
    5_015_874,
    5_018_887,
    5_019_688,
    5_019_709,
    5_025_137,
    5_025_244,
    5_026_549,
    5_030_996,
    5_034_068,
    // Another checkpoint is offered while one is about to be installed: `n8b_` in hedgerow-node.
    5_001_037,
    // A slow node handed over what it led while everything was read for the last time: `n8c_` in `ending.rs`.
    5_000_012,
    5_003_057,
    5_009_640,
    5_021_772,
    // The simulation told a machine of a connection's end before it handed over what still came on it, so that a write of
    // before was answered into nothing and counted as answered twice: `nothing_comes_over_` in `answers.rs`.
    153,
    400,
    607,
    831,
    // A read that queued at a slow process was judged as if its turn had come: `a_read_is_owed_nothing_before_` there.
    3100001104,
    // The simulation went on with a log that had failed, and for ever where it was short of room: `a_log_fails_once_` in
    // `commit.rs`. Then two machines lost a directory each, which leaves no majority: `a_second_directory_` in `nemesis.rs`.
    3100000816,
    3100008848,
    3100009100,
    3100015007,
    3100015241,
    3100022531,
    3100022846,
    3200000185,
    3200001135,
    4176472174,
    // A replica that ran again after its directory had failed was removed for its successor while its group had no majority
    // without it: `m3_replicas_that_are_back_` in hedgerow-node.
    2_229_780_682,
    // A follower that became leader with a read was judged by what followers owe: `a_linearizable_read_begins_again_` in
    // `answers.rs`.
    4_000_009_975,
    // A slow node handed over what it led to one that it had not sent the whole log: the script `r15_what_is_not_sent_` of
    // hedgerow-replication.
    4_000_056_515,
    // Questions left a sixteenth of a round trip apart, and the round trip was that of a leader that had stood still:
    // `what_a_pause_took_` in `asking.rs` of hedgerow-replication.
    6_400_001_961,
    // A replica applied an entry, answered a read from it and was removed, all in one step, so that the judge knew of nobody who
    // had applied it: `an_answer_of_a_replica_that_left_` in `oracle_tests.rs`.
    9_900_017_240,
    // The outcome of one write of the catalogue was taken for that of the next one, so that a table was kept in memory and not
    // in its header row: `d10_tables_that_are_created_` in hedgerow-node.
    14_000_005_474,
    // The bad byte was in the last write of a log, 24 KB long, which after a power failure nobody can tell from one that was cut
    // short: `Machine::corrupt` leaves the last batch alone.
    16_000_012_065,
    // A turn that took long ended after a read was due, and before the process could be woken for it: `Answers::forgive`.
    23_000_013_571,
    // A long run of one counter with dozens of increments of unknown outcome, whose subsets the judge tried one by one until
    // it gave up: `hundreds_of_unknown_writes_` in `linear_tests.rs`.
    30_000_000_000,
    // A turn that took long ended after a client's patience, and the process was to be woken for it next: `Answers::note_turn`.
    31_000_064_537,
    // An option was set by a call of which the client said for sure that it had not run: `Cluster::ask` in hedgerow-client.
    43_000_000_625,
    // A call of unknown outcome created a table when its name was free again: `note_unknown` in `owner.rs`.
    43_000_001_233,
    // One node that was cut off said that a new table does not exist, another one the table that had the name before:
    // `d13_that_there_is_no_table_` in hedgerow-node.
    60_000_001_185,
    60_000_002_097,
    60_000_004_093,
    60_000_004_141,
    60_000_008_709,
    60_000_009_629,
    60_000_010_029,
    60_000_012_425,
    60_000_020_357,
    60_000_021_821,
    60_000_023_173,
    60_000_024_213,
    60_000_026_821,
    60_000_030_065,
    60_000_031_405,
    60_000_035_409,
    // The disk was full where the metadata was led, so that its own copy of the catalogue lacked the table: `metadata_leader`.
    61_000_004_625,
    // A copy from before anything was written to the log was put back: `d7_a_log_keeps_its_number_` in hedgerow-node.
    60_000_004_324,
    // A node that started with an older catalogue took a hash table for an ordered one: `d14_a_replica_of_a_table_` there.
    60_000_008_965,
    // The log of another directory still held what a former replica of the group had written: `Process::entries`.
    60_000_027_144,
    // Two replicas of a new group were never made, one because another one was replaced before: `d14_the_voters_that_` in
    // hedgerow-placement.
    60_000_032_473,
    // A leader that has begun to hand over has no lease, and never said that a table is gone: `Node::look_for_table`.
    62_000_004_369,
    62_000_018_621,
    62_000_019_501,
    62_000_023_461,
    // Who had the whole log was slow, and left the election to one that had not: `r15_a_reluctant_replica_waits` of
    // hedgerow-replication.
    62_000_010_676,
    // A copy was removed when the faults were over, and nobody started the node: `Event::StartAfterCopy`.
    62_000_020_369,
    // Who knew that a copy had forgotten something said only that the process before it seemed to be there:
    // `d7_what_was_forgotten_is_told_` in hedgerow-node. And the copy was put back though a node had been cut off all the while: `World::is_clear`.
    66_000_040_068,
    // A long run's last scan, of 440 records in pages of one row, took longer than it was waited for: `Survey::drawn`.
    68_000_049_000,
    // Two checkpoints of 800 KB at 16 KiB/s take longer than was waited: `CONVERGENCE_MAX_OF_SLOW`.
    68_000_065_000,
    // An administrative call that was long on its way reached a later table of the name: `d15_` in hedgerow-node.
    33_000_033_245,
    // A read that ran aside told its age by a clock that was slow: `n4f_a_bounded_read_` in hedgerow-node.
    34_000_007_000,
    34_000_012_019,
    // What a checkpoint had applied counted as entries that the thread of its receiver applied: 2.3 s of silence. `Machine::applied`.
    35_000_042_000,
    // A replica that was gone kept its successor's checkpoint from being made for a minute: `m2_` in hedgerow-node.
    50_000_009_464,
    // A node that had just started showed a row alive that others had shown as expired: `d6_a_node_that_has_just_started_` in hedgerow-node.
    50_000_013_574,
    // A turn's length by true time was taken for one by its machine's clock, which was fast by 2 percent: `Machine::end_turn`.
    54_000_085_214,
    // Short waits used up a read's attempts, of which each round takes several, before there was a leader: `a_read_at_any_replica_waits_` in
    // hedgerow-routing.
    60_000_022_223,
    60_000_022_631,
    // A read that asked other logs again and again waited for ever, as each question had a patience of its own: `Quorum::expire`.
    60_000_403_000,
    // A copy that its own data turned away was started again and again, on a machine whose disk had faults before: `World::start_machine`.
    60_001_045_743,
    // A directory that refused its node's start seemed to be a copy at the next: `m3_with_one_log_a_directory_that_refuses_` in hedgerow-node.
    1_900_026_345,
    // A table that a late call had created was dropped by another late one and kept, which the owner of the simulation's tables did not look for:
    // `Life::remove_kept`.
    4_167_738_713,
];
