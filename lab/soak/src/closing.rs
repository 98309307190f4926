//! The end of an episode: a last read of all its records, the judges' verdict, and what is to be there at the end of the run.

use crate::book::Episode;
use crate::fresh::Record;
use crate::judge;
use crate::worker::{Shared, TABLE, forget, read_surely};
use crate::workload::is_large;
use anyhow::{Context as _, Result};
use hedgerow_client::Table;
use hedgerow_env::os::spawn_thread;
use hedgerow_sim::history::{Answer, Content, Outcome, Time};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of the client that reads everything last.
pub(crate) const LAST_READER: u32 = 10_000;
/// How long a record may be unreadable, faults included.
const READABLE_WITHIN: Duration = Duration::from_secs(120);
/// Before it is looked again whether an episode is complete.
const PAUSE: Duration = Duration::from_millis(50);
/// Records that are remembered until the end of the run; of longer runs the last ones.
const REMEMBERED_MAX: usize = 100_000;
/// Last reads that are under way at once.
const READERS: usize = 16;

/// What is known of a record whose episode is over.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    content: Content,
    /// All that happened to it, if something may still happen: a write of unknown outcome.
    open: Vec<Record>,
}

/// Records by episode and key.
pub(crate) type Ledger = BTreeMap<(u64, u32), Remembered>;

/// The judges, on a thread of their own.
pub(crate) struct Judges {
    episodes: Sender<Judged>,
    thread: JoinHandle<()>,
    ledger: Receiver<Ledger>,
}

type Judged = (u64, Vec<Record>);

impl Judges {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let ((episodes, inbox), (result, ledger)) = (channel(), channel());
        let shared = Arc::clone(shared);
        let body = move || {
            let ledger = judge_all(&shared, &inbox);
            // Nobody asks for it after a failure.
            let _ = result.send(ledger);
        };
        let thread = spawn_thread("judges", body).context("starting the judges' thread")?;
        Ok(Self { episodes, thread, ledger })
    }

    /// Where complete episodes go, with their last reads.
    pub(crate) fn inbox(&self) -> Sender<Judged> {
        self.episodes.clone()
    }

    /// The verdict on everything is given: what is to be there now.
    pub(crate) fn finish(self) -> Result<Ledger> {
        drop(self.episodes);
        let ledger = self.ledger.recv().context("the judges' thread ended")?;
        drop(self.thread.join());
        Ok(ledger)
    }
}

fn judge_all(shared: &Shared, inbox: &Receiver<Judged>) -> Ledger {
    let mut ledger = Ledger::new();
    for (episode, records) in inbox {
        match judge::check(&records, LAST_READER) {
            Ok(()) => shared.book().counts.judged += 1,
            Err(why) => shared.book().fail(format!("episode {episode}: {why}\n\n{}", history(&records))),
        }
        remember(&mut ledger, episode, &records);
    }
    ledger
}

/// All that happened in an episode, key by key.
fn history(records: &[Record]) -> String {
    let mut sorted: Vec<&Record> = records.iter().collect();
    sorted.sort_by_key(|record| (record.operation.key, record.operation.start));
    let line = |record: &&Record| {
        let Record { operation, partition, is_in_session } = record;
        let session = if *is_in_session { "" } else { ", in no session" };
        format!("{operation}, partition {partition}{session}\n")
    };
    sorted.iter().map(line).collect()
}

fn remember(ledger: &mut Ledger, episode: u64, records: &[Record]) {
    let mut keys: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| !is_large(record.operation.key)) {
        keys.entry(record.operation.key).or_default().push(*record);
    }
    for (key, records) in keys {
        let is_open = records.iter().any(|record| record.operation.outcome == Outcome::Unknown);
        let content = match records.last().map(|record| record.operation.outcome) {
            Some(Outcome::Ok(Answer::Content(content))) => content,
            _ => continue,
        };
        ledger.insert((episode, key), Remembered { content, open: if is_open { records } else { Vec::new() } });
    }
    while ledger.len() > REMEMBERED_MAX {
        ledger.pop_first();
    }
}

/// Reads the records of complete episodes for the last time and hands them to the judges, until `is_last` says that there will be
/// no more.
pub(crate) async fn close_all(shared: Arc<Shared>, episodes: Sender<Judged>, is_last: Rc<Cell<bool>>) {
    let mut table = None;
    loop {
        let was_last = is_last.get();
        while let Some(episode) = take_complete(&shared) {
            let number = episode.number;
            match close(&shared, &mut table, episode).await {
                // The judges end before their inbox does only by a panic, which ends the process.
                Ok(records) => drop(episodes.send((number, records))),
                Err(error) => return shared.book().fail(format!("episode {number} cannot be read: {error:#}")),
            }
        }
        if was_last {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The books are closed again when this returns.
fn take_complete(shared: &Shared) -> Option<Episode> {
    shared.book().take_complete()
}

async fn close(shared: &Shared, table: &mut Option<Table>, episode: Episode) -> Result<Vec<Record>> {
    let until = shared.now() + READABLE_WITHIN.as_nanos() as Time;
    let table = open(shared, table, until).await?;
    let Episode { number, workload, mut records, .. } = episode;
    for key in workload.keys() {
        records.push(read_surely(shared, table, (LAST_READER, number), key, until).await?);
        if is_large(key) {
            forget(table, number, key).await;
        }
    }
    Ok(records)
}

async fn open<'a>(shared: &Shared, table: &'a mut Option<Table>, until: Time) -> Result<&'a Table> {
    loop {
        if table.is_none() {
            let opened = async { shared.connect().await?.open_table(TABLE).await };
            match opened.await {
                Ok(opened) => *table = Some(opened),
                Err(error) if shared.now() >= until => return Err(error.into()),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
        if let Some(table) = table {
            return Ok(table);
        }
    }
}

/// Reads everything in `ledger`: what was there when its episode ended, or what writes of unknown outcome have made of it since.
/// Gives how many records there were.
pub(crate) async fn check_ledger(shared: &Arc<Shared>, ledger: Ledger) -> Result<usize> {
    let (count, until) = (ledger.len(), shared.now() + READABLE_WITHIN.as_nanos() as Time);
    let table = shared.connect().await?.open_table(TABLE).await?;
    let mut parts: Vec<Vec<_>> = (0..READERS).map(|_| Vec::new()).collect();
    for (at, entry) in ledger.into_iter().enumerate() {
        parts[at % READERS].push(entry);
    }
    let mut readers = tokio::task::JoinSet::new();
    for part in parts {
        let (shared, table) = (Arc::clone(shared), table.clone());
        readers.spawn_local(async move {
            for ((episode, key), remembered) in part {
                let read = read_surely(&shared, &table, (LAST_READER, episode), key, until).await?;
                check_remembered(&remembered, read).with_context(|| format!("episode {episode}"))?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(reader) = readers.join_next().await {
        reader.context("a reader ended")??;
    }
    Ok(count)
}

fn check_remembered(remembered: &Remembered, read: Record) -> Result<()> {
    if remembered.open.is_empty() {
        let wanted = Outcome::Ok(Answer::Content(remembered.content));
        let operation = read.operation;
        anyhow::ensure!(operation.outcome == wanted, "it should hold {:?}: {operation}", remembered.content);
        return Ok(());
    }
    let records = [&remembered.open[..], &[read]].concat();
    judge::check(&records, LAST_READER).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_sim::history::{Call, Operation};

    fn record(at: Time, call: Call, outcome: Outcome) -> Record {
        let operation = Operation { client: LAST_READER, key: 0, call, start: at, end: at + 1, outcome, seen: None };
        Record { operation, partition: 0, is_in_session: false }
    }

    fn read(at: Time, content: Content) -> Record {
        record(at, Call::GET, Outcome::Ok(Answer::Content(content)))
    }

    #[test]
    fn what_is_remembered_may_only_change_by_writes_that_are_open() {
        let put = record(0, Call::Put(1), Outcome::Ok(Answer::Done));
        let mut ledger = Ledger::new();
        remember(&mut ledger, 1, &[put, read(10, Some(1))]);
        assert!(check_remembered(&ledger[&(1, 0)], read(20, Some(1))).is_ok());
        assert!(check_remembered(&ledger[&(1, 0)], read(20, None)).is_err());

        let open = record(5, Call::Put(2), Outcome::Unknown);
        remember(&mut ledger, 2, &[put, open, read(10, Some(1))]);
        for (content, is_right) in [(Some(1), true), (Some(2), true), (None, false), (Some(3), false)] {
            assert_eq!(check_remembered(&ledger[&(2, 0)], read(20, content)).is_ok(), is_right, "{content:?}");
        }
    }
}
