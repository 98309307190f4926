//! Somebody who writes at one of two clusters that duplicate a table to each other: rows of its own, and some that somebody at the other
//! cluster writes too. No client looks at them; in the end they are the same at both.

use crate::clock::MILLISECOND;
use crate::progress::Progress;
use crate::protocol::TABLE_NAME;
use hedgerow_client::simulation;
use hedgerow_client::{Client, Error, Expiry, Table};
use hedgerow_types::random::Random;
use std::time::Duration;

/// Rows of each kind.
const ROWS: u64 = 3;
/// Longest time between two writes.
const PAUSE_MAX: u64 = 300 * MILLISECOND;
/// Longest life of a row that has an end, seconds.
const LIFE_MAX: u64 = 3;

/// Writes through `client`, of the cluster of this number, until it is told to stop.
pub(crate) async fn write(client: &Client, cluster: u8, mut random: Random, progress: &Progress) {
    let mut number = 0;
    while !progress.is_stopped() {
        simulation::sleep(Duration::from_nanos(random.below(PAUSE_MAX))).await;
        number += 1;
        // What fails, or may have happened, is the same at both clusters too.
        if let Ok(table) = client.open_table(TABLE_NAME).await {
            drop(write_once(&table, cluster, number, &mut random).await);
        }
    }
}

async fn write_once(table: &Table, cluster: u8, number: u64, random: &mut Random) -> Result<(), Error> {
    let owner = if random.chance(1, 2) { "both".to_owned() } else { format!("of-{cluster}") };
    let (hash_key, value) = (format!("{owner}-{}", random.below(ROWS)), format!("{cluster}{number:05}"));
    match random.below(5) {
        0 => table.del(hash_key, "s").await,
        1 => table.incr(hash_key, "s", 1, Expiry::Keep).await.map(drop),
        2 => {
            let life = Duration::from_secs(1 + random.below(LIFE_MAX));
            table.set_with_ttl(hash_key, "s", value, life).await
        }
        _ => table.set(hash_key, "s", value).await,
    }
}
