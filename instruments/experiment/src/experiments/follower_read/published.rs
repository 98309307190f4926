//! What was published of scans at followers, and what others gave.

use super::cases::Scenario;

/// Where the figures come from.
pub(super) const SOURCE: &str = "Theirs: \"Follower Read\" of TiDB 3.1 Beta (Ed Huang, PingCAP): raw scans of 10,000,000 rows by YCSB, whose number of clients is \
     not told, with 28 ms and 297 Mbit/s between two data centres, on several machines. Ours: all nodes and the load on one.";

/// The figures of one scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) per_s: f64,
    pub(super) server_p99_ms: f64,
    pub(super) client_p99_ms: f64,
}

const fn figures(per_s: f64, server_p99_ms: f64, client_p99_ms: f64) -> Figures {
    Figures { per_s, server_p99_ms, client_p99_ms }
}

/// Rows of a scan, and the figures of scenarios 1 to 4.
const TIKV: [(u32, [Figures; 4]); 6] = [
    (
        10,
        [
            figures(3110.0, 43.0, 115.0),
            figures(3836.0, 88.0, 126.0),
            figures(18865.0, 31.0, 33.0),
            figures(15021.0, 31.0, 34.0),
        ],
    ),
    (
        100,
        [
            figures(314.0, 450.0, 7888.0),
            figures(3087.0, 127.0, 140.0),
            figures(4233.0, 58.0, 267.0),
            figures(3859.0, 62.0, 272.0),
        ],
    ),
    (
        200,
        [
            figures(158.0, 480.0, 13180.0),
            figures(1966.0, 130.0, 323.0),
            figures(2321.0, 94.0, 550.0),
            figures(2186.0, 120.0, 560.0),
        ],
    ),
    (
        500,
        [
            figures(63.0, 500.0, 23630.0),
            figures(920.0, 256.0, 1026.0),
            figures(1008.0, 130.0, 1455.0),
            figures(947.0, 243.0, 1305.0),
        ],
    ),
    (
        1000,
        [
            figures(31.0, 504.0, 34693.0),
            figures(446.0, 504.0, 2651.0),
            figures(480.0, 330.0, 3228.0),
            figures(450.0, 480.0, 3189.0),
        ],
    ),
    (
        1500,
        [
            figures(8.0, 507.0, 50220.0),
            figures(285.0, 980.0, 4525.0),
            figures(298.0, 450.0, 6438.0),
            figures(277.0, 763.0, 5058.0),
        ],
    ),
];

/// What TiKV gave for scans of `rows` rows.
pub(super) fn tikv(rows: u32, scenario: Scenario) -> Option<Figures> {
    let (_, figures) = TIKV.iter().find(|(known, _)| *known == rows)?;
    let index = Scenario::ALL.iter().position(|known| *known == scenario)?;
    Some(figures[index])
}

/// Linearizable reads at a follower 28 ms away from its leader, with 16 clients: milliseconds.
pub(super) const ETCD_FAR_X16_MS: f64 = 114.0;
/// Where that comes from.
pub(super) const ETCD_SOURCE: &str = "etcd 3.7: a reference measurement on a machine of the same kind, three nodes, the follower and 16 clients 28 ms away from \
     the leader.";
