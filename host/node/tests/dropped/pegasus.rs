//! The same as Pegasus' shells ask for it.

use crate::world::World;
use crate::{SECOND, filled};
use hedgerow_types::NodeId;
use hedgerow_wire::message::{DropOptions, DropTable, ListTables, RecallTable, TableInfo, app_status};
use hedgerow_wire::{Body, ErrorName, Header, Reply, Text};
use serde_json::json;

fn call(world: &mut World, body: &Body) -> Reply {
    let number = world.send(NodeId(2), &Header::default(), body);
    let reply = world.wait(number).1.reply;
    world.run(SECOND);
    reply
}

fn drop_table(world: &mut World, name: &str, reserve_seconds: Option<i64>) -> ErrorName {
    let options = DropOptions { success_if_not_exist: false, reserve_seconds };
    match call(world, &Body::DropTable(DropTable { app_name: Text::from(name), options })) {
        Reply::DropTable(reply) => reply.err,
        other => panic!("{other:?}"),
    }
}

fn recall(world: &mut World, app_id: i32, name: &str) -> (ErrorName, TableInfo) {
    match call(world, &Body::RecallTable(RecallTable { app_id, new_app_name: Text::from(name) })) {
        Reply::RecallTable(reply) => (reply.err, reply.info),
        other => panic!("{other:?}"),
    }
}

fn list(world: &mut World, status: i32) -> Vec<TableInfo> {
    match call(world, &Body::ListTables(ListTables { status, ..ListTables::default() })) {
        Reply::ListTables(reply) => reply.infos,
        other => panic!("{other:?}"),
    }
}

#[test]
fn p10_pegasus_shells_drop_list_and_recall() {
    let (mut world, keys) = filled();
    let table = keys[0].table;
    let before = (world.clock().unix_micros / 1_000_000) as i64;
    assert_eq!(drop_table(&mut world, "t", Some(3_600)), ErrorName::Ok);
    assert_eq!(drop_table(&mut world, "t", None), ErrorName::AppNotExist);
    let new = world.create_table(4, &json!({}));
    let ids = |infos: Vec<TableInfo>| infos.iter().map(|info| (info.app_id, info.status)).collect::<Vec<_>>();
    assert_eq!(ids(list(&mut world, 0)), [(table, app_status::DROPPED), (new, app_status::AVAILABLE)]);
    assert_eq!(ids(list(&mut world, app_status::AVAILABLE)), [(new, app_status::AVAILABLE)]);
    let dropped = list(&mut world, app_status::DROPPED);
    let [info] = &dropped[..] else { panic!("{dropped:?}") };
    assert_eq!((info.app_name.as_str(), info.partition_count), ("t", 2));
    assert_eq!(info.expire_second, info.drop_second + 3_600);
    assert!((before..before + 3).contains(&info.drop_second));

    assert_eq!(recall(&mut world, table, "").0, ErrorName::InvalidParameters, "the name is taken");
    assert_eq!(recall(&mut world, new, "").0, ErrorName::AppExist, "it is in use");
    assert_eq!(recall(&mut world, 99, "").0, ErrorName::AppNotExist);
    assert_eq!(recall(&mut world, -1, "").0, ErrorName::AppNotExist);
    let (err, info) = recall(&mut world, table, "old");
    assert_eq!((err, info.status, info.app_id), (ErrorName::Ok, app_status::AVAILABLE, table));
    assert_eq!((info.app_name.as_str(), info.partition_count, info.max_replica_count), ("old", 2, 3));
    assert_eq!((info.expire_second, info.drop_second), (0, 0));
    assert_eq!(ids(list(&mut world, app_status::AVAILABLE)).len(), 2);
}

#[test]
fn p10_a_reserve_of_nothing_is_the_clusters_own() {
    let (mut world, _) = filled();
    assert_eq!(drop_table(&mut world, "t", Some(0)), ErrorName::Ok);
    let [info] = &list(&mut world, app_status::DROPPED)[..] else { panic!("it is not kept") };
    assert_eq!(info.expire_second - info.drop_second, 7 * 24 * 3_600);
}
