//! What was published of backup requests.

/// Where the figures come from.
pub(super) const SOURCE: &str = "Theirs: the backup requests of Apache Pegasus, 1000-byte values, three clients with so many threads each, closed loops, \
     delay = p99.9 of reads without backup requests, on several machines and by what slowed these down. Ours: all nodes and the \
     load on one machine, slowed down on purpose as said below.";

/// One line of the published tables, latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) per_s: f64,
    pub(super) read: Latencies,
    /// All 0 where nothing was written.
    pub(super) write: Latencies,
}

/// A read's or a write's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latencies {
    pub(super) mean: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) p9999: f64,
}

/// A row: without backup requests and with them, and after how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Published {
    pub(super) delay_ms: f64,
    pub(super) off: Figures,
    pub(super) on: Figures,
    /// How many times lower the p99.99 of reads became, as it was published.
    pub(super) factor: f64,
}

const fn figures(per_s: f64, read: [f64; 5], write: [f64; 5]) -> Figures {
    Figures { per_s, read: latencies(read), write: latencies(write) }
}

const fn latencies([mean, p95, p99, p999, p9999]: [f64; 5]) -> Latencies {
    Latencies { mean, p95, p99, p999, p9999 }
}

const NONE: [f64; 5] = [0.0; 5];

pub(super) const SET_1_3: Published = Published {
    delay_ms: 138.0,
    off: figures(
        7_076.0,
        [880.7, 428.0, 727.0, 138_495.0, 988_671.0],
        [2_495.0, 6_319.0, 9_023.0, 36_319.0, 531_455.0],
    ),
    on: figures(
        6_987.0,
        [1_010.1, 403.0, 7_747.0, 138_751.0, 153_599.0],
        [2_476.0, 6_859.0, 9_119.0, 13_759.0, 185_855.0],
    ),
    factor: 6.4,
};

pub(super) const SET_1_0: Published = Published {
    delay_ms: 5.0,
    off: figures(140_607.0, [708.0, 1_474.0, 2_731.0, 5_511.0, 167_551.0], NONE),
    on: figures(77_429.0, [1_288.0, 2_935.0, 3_487.0, 6_323.0, 71_743.0], NONE),
    factor: 2.3,
};

pub(super) const SET_30_1: Published = Published {
    delay_ms: 5.0,
    off: figures(87_198.0, [307.0, 513.0, 805.0, 4_863.0, 28_271.0], [1_369.0, 2_661.0, 5_795.0, 22_319.0, 51_359.0]),
    on: figures(88_541.0, [298.2, 493.0, 711.0, 4_483.0, 18_479.0], [1_468.0, 3_263.0, 6_411.0, 17_439.0, 50_975.0]),
    factor: 1.5,
};

pub(super) const BATCH_X7: Published = Published {
    delay_ms: 2.0,
    off: figures(24_113.0, [200.4, 277.0, 410.0, 2_317.0, 21_647.0], [2_034.0, 4_283.0, 6_427.0, 18_271.0, 62_687.0]),
    on: figures(23_756.0, [197.5, 268.0, 351.0, 2_173.0, 5_759.0], [2_187.0, 4_531.0, 6_551.0, 21_551.0, 63_999.0]),
    factor: 3.8,
};

pub(super) const BATCH_X15: Published = Published {
    delay_ms: 3.0,
    off: figures(30_980.0, [236.7, 348.0, 526.0, 3_535.0, 25_695.0], [5_362.0, 14_087.0, 20_223.0, 40_639.0, 90_815.0]),
    on: figures(30_483.0, [244.1, 386.0, 540.0, 3_105.0, 13_287.0], [5_378.0, 14_119.0, 19_535.0, 31_311.0, 103_103.0]),
    factor: 1.9,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_factors_are_those_of_the_published_figures() {
        for row in [SET_1_3, SET_1_0, SET_30_1, BATCH_X7, BATCH_X15] {
            let factor = row.off.read.p9999 / row.on.read.p9999;
            assert!((factor - row.factor).abs() < 0.06, "{factor} {row:?}");
            assert!(row.on.read.p999 <= row.off.read.p999 * 1.15 && row.delay_ms * 1e3 < row.off.read.p999 * 1.1);
        }
    }
}
