//! One partition's changes on their way to one other cluster.

use crate::remote::Remote;
use bytes::Bytes;
use futures_util::future::join;
use hedgerow_client::Client;
use hedgerow_client::duplication::{Instant, Journals, pause, present};
use hedgerow_placement::duplication::Duplication;
use hedgerow_types::journal::Phase;
use hedgerow_wire::message::{JOURNAL_BEGIN, JOURNAL_REACHED, JournalReply, JournalWrite};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a page.
const PAGE_SIZE: u32 = 512 << 10;
/// How often it is said how far all is told, while there is more. What was told since is told again after a crash, and changes nothing.
const REACHED_INTERVAL: Duration = Duration::from_millis(250);
/// How long nothing is asked where there was nothing to tell: the first time, and at most.
const IDLE_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How long nothing is tried after an error: the first time, and at most.
const ERROR_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a duplication is looked at that must begin anew.
const OVERRUN_PAUSE: Duration = Duration::from_secs(5);
/// How often it is logged what goes on to be wrong.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// What a carrier is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) table: String,
    pub(crate) cluster: String,
    pub(crate) duplication: Duplication,
    pub(crate) partition: u32,
}

/// Carries one partition's changes to one cluster, until it is not wanted any more.
pub(crate) struct Carrier {
    source: Client,
    remote: Remote,
    work: Work,
    is_wanted: Arc<AtomicBool>,
    journals: Option<Journals>,
    /// Up to where all is told in this round; empty = as far as the partition knows.
    told: (i32, Bytes),
    /// As far as the partition knows it for certain, and when it was said last.
    reached: Bytes,
    reached_at: Instant,
    /// The page behind `told`, which was asked for while the one before it was told.
    next: Option<JournalReply>,
    idle_pause: Duration,
    error_pause: Duration,
    logged_at: Option<Instant>,
}

impl Carrier {
    pub(crate) fn new(source: Client, remote: Remote, work: Work, is_wanted: Arc<AtomicBool>) -> Self {
        Self {
            source,
            remote,
            work,
            is_wanted,
            journals: None,
            told: (0, Bytes::new()),
            reached: Bytes::new(),
            reached_at: present(),
            next: None,
            idle_pause: IDLE_PAUSES.0,
            error_pause: ERROR_PAUSES.0,
            logged_at: None,
        }
    }

    pub(crate) async fn run(mut self) {
        while self.is_wanted.load(Ordering::Relaxed) {
            let rest = match self.step().await {
                Ok(rest) => {
                    self.error_pause = ERROR_PAUSES.0;
                    rest
                }
                Err(error) => {
                    self.log(&error);
                    (self.journals, self.next) = (None, None);
                    let rest = self.error_pause;
                    self.error_pause = (2 * rest).min(ERROR_PAUSES.1);
                    rest
                }
            };
            if !rest.is_zero() {
                pause(rest).await;
            }
        }
    }

    /// Tells a page. Returns how long there is nothing to do.
    async fn step(&mut self) -> Result<Duration, String> {
        let journals = match &self.journals {
            Some(journals) => journals.clone(),
            None => self.source.open_journals(&self.work.table).await.map_err(|error| error.to_string())?,
        };
        self.journals = Some(journals.clone());
        let page = match self.next.take() {
            Some(page) => page,
            None => self.read(&journals, self.told.clone()).await?,
        };
        let phase = u8::try_from(page.phase).ok().and_then(Phase::from_code);
        let phase = phase.ok_or_else(|| format!("the partition is in a phase that is not known, {}", page.phase))?;
        if phase == Phase::Absent || page.round < self.work.duplication.round as i32 {
            self.begin(&journals).await?;
            return Ok(Duration::ZERO);
        }
        if phase == Phase::Overrun {
            self.log(
                "its journal became too long and is not kept any more: `table duplicate start --copy` begins anew",
            );
            return Ok(OVERRUN_PAUSE);
        }
        self.tell(&journals, page).await
    }

    async fn read(&self, journals: &Journals, from: (i32, Bytes)) -> Result<JournalReply, String> {
        let Work { duplication, partition, .. } = &self.work;
        let page = journals.read_from(*partition, duplication.id, from, PAGE_SIZE).await;
        page.map_err(|error| error.to_string())
    }

    async fn begin(&mut self, journals: &Journals) -> Result<(), String> {
        let Work { table, cluster, duplication, partition } = &self.work;
        let number = self.source.cluster_number().await.map_err(|error| error.to_string())?;
        let begin = JournalWrite {
            action: JOURNAL_BEGIN,
            id: duplication.id,
            round: duplication.round as i32,
            cluster: number,
            bytes_max: duplication.journal_bytes,
            ..JournalWrite::default()
        };
        journals.write(*partition, begin).await.map_err(|error| error.to_string())?;
        self.told = (0, Bytes::new());
        tracing::info!(table, cluster, partition, "a duplication begins");
        Ok(())
    }

    async fn tell(&mut self, journals: &Journals, page: JournalReply) -> Result<Duration, String> {
        let JournalReply { round, changes, position, has_more, .. } = page;
        let has_changes = !changes.is_empty();
        let kind = journals.kind();
        if has_more {
            let (partition, id) = (self.work.partition, self.work.duplication.id);
            let next = journals.read_from(partition, id, (round, position.clone()), PAGE_SIZE);
            let (told, next) = join(self.remote.tell(kind, changes), next).await;
            told?;
            // Where it cannot be read now, it is the next step that says why.
            self.next = next.ok();
        } else {
            self.remote.tell(kind, changes).await?;
        }
        self.told = (round, position);
        if !has_more || present() - self.reached_at >= REACHED_INTERVAL {
            self.say_reached(journals).await?;
        }
        if has_more || has_changes {
            self.idle_pause = IDLE_PAUSES.0;
        }
        if has_more {
            return Ok(Duration::ZERO);
        }
        let rest = self.idle_pause;
        self.idle_pause = (2 * rest).min(IDLE_PAUSES.1);
        Ok(rest)
    }

    /// Has the partition know how far all is told.
    async fn say_reached(&mut self, journals: &Journals) -> Result<(), String> {
        let (round, position) = self.told.clone();
        if position == self.reached {
            return Ok(());
        }
        let Work { duplication, partition, .. } = &self.work;
        let reached = JournalWrite {
            action: JOURNAL_REACHED,
            id: duplication.id,
            round,
            position: position.clone(),
            ..JournalWrite::default()
        };
        journals.write(*partition, reached).await.map_err(|error| error.to_string())?;
        (self.reached, self.reached_at) = (position, present());
        Ok(())
    }

    fn log(&mut self, error: &str) {
        if self.logged_at.is_some_and(|at| present() - at < LOG_INTERVAL) {
            return;
        }
        self.logged_at = Some(present());
        let Work { table, cluster, partition, .. } = &self.work;
        tracing::warn!(table, cluster, partition, error, "a duplication does not go on; it is tried again");
    }
}
