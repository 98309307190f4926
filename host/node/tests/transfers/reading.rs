//! Reads that other threads run while the storage that they read is replaced, or goes.

use crate::world::Ask;
use crate::{SECOND, Stage};
use hedgerow_node::Job;
use hedgerow_types::{NodeId, ReadLevel};
use hedgerow_wire::Reply;
use serde_json::json;

/// A read at a node, whose job does not run.
fn read_that_runs(stage: &mut Stage, node: NodeId) -> i32 {
    stage.world.machines.get_mut(&node).unwrap().holds = |job| matches!(job, Job::Read { .. });
    let number = stage.world.send_get(&stage.key, node, &Ask::anywhere(ReadLevel::Eventual));
    stage.world.run(SECOND / 10);
    assert!(stage.world.machines[&node].held.len() == 1 && !stage.world.has_answer(number));
    number
}

/// The client is told, and the read is of no use to anybody: it ends without reading on.
fn assert_ended(stage: &mut Stage, node: NodeId, number: i32) {
    let reply = stage.world.wait(number).1.reply;
    assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
    let done = stage.world.run_held(node);
    assert!(done.len() == 1 && done[0].result.is_err(), "{done:?}");
    stage.world.take_done(node, done);
}

#[test]
fn n4f_a_checkpoint_is_not_kept_waiting_by_a_read_that_runs() {
    let mut stage = Stage::new(|config| {
        config.reads_at_once.rows = 0;
        config.log_retained_bytes = 128 << 10;
    });
    stage.write(1);
    stage.world.run(SECOND);
    let lagging = stage.followers[0];
    let number = read_that_runs(&mut stage, lagging);
    stage.world.cut_off(lagging);
    stage.write(640);
    stage.world.run(3 * SECOND);
    stage.world.cut.clear();
    assert_ended(&mut stage, lagging, number);
    stage.run_until_whole(stage.leader, 30);
}

#[test]
fn n4f_a_read_of_a_replica_that_goes_ends() {
    let mut stage = Stage::new(|config| config.reads_at_once.rows = 0);
    stage.write(1);
    let node = stage.followers[0];
    let number = read_that_runs(&mut stage, node);
    stage.world.admin(stage.leader, "drop_table", &json!({ "name": "t", "reserve_seconds": 0 })).unwrap();
    assert_ended(&mut stage, node, number);
}
