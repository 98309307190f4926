//! What a node keeps of what it was told.

use crate::world::World;
use bytes::Bytes;
use hedgerow_env::read_file;
use hedgerow_node::Event;
use hedgerow_node::peer::{CataloguePush, CatalogueRow, Frame};
use hedgerow_types::NodeId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The frame says that it is of the node's cluster, and its rows say something else. Kept, it would end the next start.
#[test]
fn d3f_a_catalogue_with_rows_of_another_cluster_is_not_kept() {
    const ONE: NodeId = NodeId(1);
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let file = |world: &World| read_file(&world.machines[&ONE].disk, Path::new("/data/catalogue.json")).unwrap();
    let before = file(&world);
    let mut rows: BTreeMap<String, String> = serde_json::from_slice(&before).unwrap();
    rows.remove("checksum").unwrap();
    let mut header: Value = serde_json::from_str(&rows["header"]).unwrap();
    let cluster = header["cluster"].as_u64().unwrap();
    let version: u64 = rows["version"].parse().unwrap();
    header["cluster"] = json!(cluster ^ 1);
    for (key, value) in [("version", (version + 1).to_string()), ("header", header.to_string())] {
        rows.insert(key.to_owned(), value);
    }
    let row = |(key, value): (String, String)| CatalogueRow { key: Bytes::from(key), value: Bytes::from(value) };
    let rows = rows.into_iter().map(row).collect();
    let push = Frame::Catalogue(CataloguePush { cluster, version: version + 1, rows });
    world.handle(ONE, Event::Peer(NodeId(2), push));
    world.settle(ONE);
    assert!(file(&world) == before, "it is kept");
    world.restart(ONE);
}
