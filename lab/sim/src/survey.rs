//! Reads of many records at once: a scan of the whole table in small pages, or a batch. Neither is of one moment, but each record
//! is read at some moment while the whole goes on, and is judged as if it had been read alone.

use crate::client::GaveUp;
use crate::history::{Content, Time};
use crate::protocol;
use hedgerow_client::{ScanOptions, Table};
use hedgerow_types::random::Random;
use std::collections::BTreeMap;

/// Records after which a scan's pages grow by a row.
const RECORDS_PER_ROW_OF_PAGE: u64 = 40;
/// Most records of a batch.
const BATCH_MAX: u64 = 6;

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// These records.
    keys: Vec<u32>,
    /// By a scan with pages of so many rows; `None` = as a batch.
    page_rows: Option<u32>,
}

/// What a survey found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// What it was.
    pub kind: &'static str,
    /// When it began.
    pub start: Time,
    /// Each record and what it held.
    pub found: Result<Vec<(u32, Content)>, Failed>,
}

/// Why a survey found nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// There was no answer in time, or one that is final.
    GaveUp(GaveUp),
    /// What was answered cannot be: the run has failed.
    Nonsense(String),
}

impl Survey {
    /// A scan over all of `keys`, or a batch of some of them. There is at least one.
    pub fn drawn(mut keys: Vec<u32>, random: &mut Random) -> Self {
        if random.chance(1, 2) {
            // Small pages, and yet not so many that a long run's last scan keeps everybody waiting.
            let least = keys.len() as u64 / RECORDS_PER_ROW_OF_PAGE;
            return Self { keys, page_rows: Some((least + 1 + random.below(6)) as u32) };
        }
        let first = random.below(keys.len() as u64) as usize;
        keys.rotate_left(first);
        keys.truncate(1 + random.below(BATCH_MAX) as usize);
        Self { keys, page_rows: None }
    }

    /// Under this name the summary counts it.
    pub const fn kind(&self) -> &'static str {
        if self.page_rows.is_some() { "scan" } else { "batch" }
    }

    /// Reads.
    pub async fn run(self, table: Table) -> Result<Vec<(u32, Content)>, Failed> {
        match self.page_rows {
            Some(page_rows) => scan(&table, self.keys, page_rows).await,
            None => read_batch(&table, self.keys).await,
        }
    }
}

async fn scan(table: &Table, keys: Vec<u32>, page_rows: u32) -> Result<Vec<(u32, Content)>, Failed> {
    let mut scanner = table.scan_all(ScanOptions { page_rows, ..ScanOptions::default() });
    let mut rows = BTreeMap::new();
    while let Some(page) = scanner.next_page().await.map_err(gave_up)? {
        for row in page {
            let number = protocol::number(&row.value);
            if rows.insert((row.hash_key.clone(), row.sort_key.clone()), number).is_some() {
                return Err(Failed::Nonsense(format!("a scan shows a row twice: {row:?}")));
            }
        }
    }
    // Pages are of different moments, so that of a record with several rows one row says what it held.
    let held = |key: u32| rows.get(&(protocol::hash_key(key), protocol::first_row(key).into())).copied().flatten();
    Ok(keys.into_iter().map(|key| (key, held(key))).collect())
}

async fn read_batch(table: &Table, keys: Vec<u32>) -> Result<Vec<(u32, Content)>, Failed> {
    let rows = keys.iter().map(|key| (protocol::hash_key(*key), protocol::first_row(*key)));
    let values = table.batch_get(rows).await.map_err(gave_up)?;
    Ok(keys.into_iter().zip(values.iter().map(|value| value.as_deref().and_then(protocol::number))).collect())
}

fn gave_up(error: hedgerow_client::Error) -> Failed {
    Failed::GaveUp(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_reads_everything_and_a_batch_some_of_it() {
        let (mut random, mut scans) = (Random::new(1), 0);
        for _ in 0..100 {
            let survey = Survey::drawn((0..20).collect(), &mut random);
            scans += usize::from(survey.page_rows.is_some());
            match survey.page_rows {
                Some(rows) => assert_eq!((survey.keys.len(), (1..=6).contains(&rows)), (20, true)),
                None => assert!((1..=6).contains(&survey.keys.len())),
            }
        }
        assert!((30..70).contains(&scans), "{scans}");
    }
}
