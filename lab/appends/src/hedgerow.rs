//! The write-ahead log as a node uses it: a committer's thread for the log, and whoever waits is told by ticket.

use crate::figures::{Figures, histogram, repeat};
use crate::{Durability, ENTRY_SIZE, KEPT, Shape, WARM_UP};
use anyhow::{Result, anyhow};
use bytes::Bytes;
use hedgerow_env::os::{OsDisk, random_u64};
use hedgerow_types::log::{Entry, EntryKind};
use hedgerow_types::{GroupId, ReplicaId};
use hedgerow_wal::{Append, Committer, Log, Options, Round, Submission};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

pub(crate) fn run(shape: Shape, directory: &Path, durability: Durability, measured: Duration) -> Result<Figures> {
    let durability = match durability {
        Durability::Fsync => hedgerow_wal::Durability::Fsync,
        Durability::Os => hedgerow_wal::Durability::Os,
    };
    let options = Options { durability, ..Options::default() };
    let (log, _) = Log::open(Arc::new(OsDisk), &directory.join("log"), options)?;
    let count = match shape {
        Shape::Writers(count) => count,
        Shape::Rounds(_) => 1,
    };
    // A ticket is the number of whoever waits.
    let (tell, told): (Vec<Sender<()>>, Vec<Receiver<()>>) = (0..count).map(|_| channel()).unzip();
    let on_round = move |round| match round {
        // Whoever has gone away waits for nothing.
        Round::Done { tickets, .. } => tickets.into_iter().for_each(|ticket| _ = tell[ticket as usize].send(())),
        Round::Stalled { .. } | Round::Room { .. } => {}
        Round::Failed { reason } => panic!("{reason:?}"),
    };
    let committer = Committer::start(BTreeMap::from([(0, log)]), Box::new(move |_, round| on_round(round)))?;
    let data = incompressible();
    let mut waits = histogram();
    thread::scope(|scope| {
        let committer = &committer;
        let writers: Vec<_> = told
            .into_iter()
            .enumerate()
            .map(|(ticket, told)| {
                let groups = match shape {
                    Shape::Writers(_) => vec![GroupId::new(1, ticket as u32)],
                    Shape::Rounds(count) => (0..count).map(|group| GroupId::new(1, u32::from(group))).collect(),
                };
                let mut writer = Writer { committer, told, ticket: ticket as u64, groups, next: 1, data: data.clone() };
                scope.spawn(move || repeat(WARM_UP, measured, || writer.append()))
            })
            .collect();
        for writer in writers {
            waits.add(writer.join().map_err(|_| anyhow!("a writer panicked"))??)?;
        }
        anyhow::Ok(())
    })?;
    let entries = match shape {
        Shape::Writers(_) => 1,
        Shape::Rounds(count) => u64::from(count),
    };
    Ok(Figures::of(&waits, entries, measured))
}

/// What nobody can make smaller.
pub(crate) fn incompressible() -> Bytes {
    (0..ENTRY_SIZE / 8).flat_map(|_| random_u64().to_le_bytes()).collect()
}

struct Writer<'a> {
    committer: &'a Committer,
    told: Receiver<()>,
    ticket: u64,
    groups: Vec<GroupId>,
    /// Index of the next entry of each group.
    next: u64,
    data: Bytes,
}

impl Writer<'_> {
    /// One entry for each group, and a cut from time to time.
    fn append(&mut self) -> Result<()> {
        let entry = Entry { index: self.next, term: 1, kind: EntryKind::Normal, data: self.data.clone() };
        let append = |group: &GroupId| Append {
            group: *group,
            replica: ReplicaId(1),
            reset: None,
            entries: vec![entry.clone()],
            hard_state: None,
        };
        let cut = self.next.checked_sub(KEPT).filter(|cut| cut % KEPT == 0 && *cut > 0);
        let submission = Submission {
            removals: Vec::new(),
            appends: self.groups.iter().map(append).collect(),
            truncations: cut.map_or(Vec::new(), |cut| self.groups.iter().map(|group| (*group, cut)).collect()),
            ticket: self.ticket,
        };
        self.next += 1;
        self.committer.submit(0, submission)?;
        Ok(self.told.recv()?)
    }
}
