//! A node of another version of the protocol between nodes, as during an upgrade.

use crate::unread::Log;
use crate::world::World;
use hedgerow_node::peer::VERSION;
use hedgerow_types::NodeId;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// It cannot be listened to, and the log says so, at its usual level and not each time that the node dials.
#[test]
fn n6a_a_node_of_another_version_is_named_in_the_log() {
    let mut world = World::new(3);
    let lines = Arc::new(Mutex::new(Vec::new()));
    // A second one: with one alone, `tracing` asks the threads of other tests whether anybody listens.
    let _second = tracing::Dispatch::new(Log(Arc::default()));
    let greeting = |version: u8, node: u8| [&b"HGRW"[..], &[version, node, 0], &[0; 36]].concat();
    tracing::subscriber::with_default(Log(Arc::clone(&lines)), || {
        for second in 0..90_u8 {
            let node = &mut world.machines.get_mut(&NodeId(1)).unwrap().node;
            for (number, version) in [(2, VERSION - 1), (9, VERSION + 1), (3, VERSION)] {
                node.handle_unread_greeting(&greeting(version, number), IpAddr::from([10, 0, 0, number]));
            }
            node.handle_unread_greeting(&[second; 43], IpAddr::from([10, 0, 0, 4]));
            world.run(Duration::from_secs(1));
        }
    });
    let lines = lines.lock().unwrap();
    let of = |address: &str| lines.iter().filter(|line| line.contains(address)).collect::<Vec<_>>();
    let (old, unknown) = (of("10.0.0.2"), of("10.0.0.9"));
    assert_eq!((old.len(), unknown.len()), (2, 2), "one in a minute: {lines:?}");
    assert!(old[0].contains("another version") && old[0].contains(&format!("theirs={} ours={VERSION}", VERSION - 1)));
    assert!(old[0].contains("node=2") && !unknown[0].contains("node="), "{old:?} {unknown:?}");
    assert!(of("10.0.0.3").is_empty() && of("10.0.0.4").is_empty(), "{lines:?}");
}
