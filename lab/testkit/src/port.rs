//! Ports that stay free while a node is down.

use anyhow::{Result, bail};
use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which Linux takes the source ports of outgoing connections. A port from that range could be taken
/// by any client, the restarting node's own included, while its node is down.
const PORTS: std::ops::Range<u32> = 10_000..32_000;
/// How far apart test processes with neighbouring ids begin to search.
const STRIDE: u32 = 37;

/// A TCP port on the loopback interface that nobody listens on. Never gives the same one twice in a process before all
/// have had their turn.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    for _ in 0..count {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + process::id().wrapping_mul(STRIDE).wrapping_add(turn) % count;
        let port = u16::try_from(port).expect("the range ends below 65,536");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("every port from {} to {} is taken", PORTS.start, PORTS.end)
}
