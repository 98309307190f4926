//! One partition's changes on their way to one other cluster.

use crate::course::{Course, Tally};
use crate::remote::Remote;
use bytes::Bytes;
use futures_util::future::join;
use hedgerow_client::Client;
use hedgerow_client::duplication::{Instant, Journals, pause, present};
use hedgerow_placement::duplication::Duplication;
use hedgerow_types::journal::{Phase, Position};
use hedgerow_wire::message::{JOURNAL_BEGIN, JOURNAL_REACHED, JournalReply, JournalWrite};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a page.
const PAGE_SIZE: u32 = 192 << 10;
/// How often it is said how far all is told, while there is more. What was told since is told again after a crash, and changes nothing.
const REACHED_INTERVAL: Duration = Duration::from_millis(250);
/// How long nothing is asked where there was nothing to tell: the first time, and at most.
const IDLE_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// The longest of these grows with the number of carriers of the node, so that all together ask so seldom.
const IDLE_PAUSE_OF_EACH: Duration = Duration::from_millis(2);
/// Carriers to one cluster that have pages in memory at the same time.
const PAGED_MAX: usize = 32;
/// The same of carriers that have failed before: they may wait long for a partition without a majority.
const RETRIED_MAX: usize = 8;
/// Pages after which another carrier has its turn.
const PAGES_OF_TURN: u32 = 16;
/// How long nothing is tried after an error: the first time, and at most.
const ERROR_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Bytes of a page that is only to tell how much is left: its first change is enough.
const LOOK_SIZE: u32 = 1;

/// Why nothing is carried of a partition whose journal became too long.
const OVERRUN: &str = "its journal reached the limit, and changes are missing from it";

/// What a carrier is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) table: String,
    pub(crate) cluster: String,
    pub(crate) duplication: Duplication,
    pub(crate) partition: u32,
}

/// What the carriers of a node to one cluster take turns by.
#[derive(Clone)]
pub(crate) struct Turns {
    first: Arc<Semaphore>,
    retries: Arc<Semaphore>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { first: Arc::new(Semaphore::new(PAGED_MAX)), retries: Arc::new(Semaphore::new(RETRIED_MAX)) }
    }
}

/// What a carrier has of others.
pub(crate) struct Means {
    /// By which it takes turns with those to the same cluster.
    pub(crate) turns: Turns,
    /// How many there are in the node, itself included.
    pub(crate) count: Arc<AtomicUsize>,
    /// Whether it is still to carry.
    pub(crate) is_wanted: Arc<AtomicBool>,
    /// Where it says how it goes.
    pub(crate) course: Arc<Course>,
    /// Where it counts what it has told.
    pub(crate) tally: Arc<Tally>,
}

/// Carries one partition's changes to one cluster, until it is not wanted any more.
pub(crate) struct Carrier {
    source: Client,
    remote: Remote,
    work: Work,
    means: Means,
    /// While it has a page in memory, and how many it had since.
    turn: Option<(OwnedSemaphorePermit, u32)>,
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
}

impl Carrier {
    pub(crate) fn new(source: Client, remote: Remote, work: Work, means: Means) -> Self {
        Self {
            source,
            remote,
            work,
            means,
            turn: None,
            journals: None,
            told: (0, Bytes::new()),
            reached: Bytes::new(),
            reached_at: present(),
            next: None,
            idle_pause: IDLE_PAUSES.0,
            error_pause: ERROR_PAUSES.0,
        }
    }

    pub(crate) async fn run(mut self) {
        while self.is_wanted() {
            let done = self.step().await;
            self.end_turn();
            let rest = match done {
                Ok(rest) => {
                    self.error_pause = ERROR_PAUSES.0;
                    self.means.course.note_well();
                    rest
                }
                Err(error) => {
                    self.means.course.note_trouble(&error);
                    (self.next, self.turn) = (None, None);
                    self.look().await;
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

    fn is_wanted(&self) -> bool {
        self.means.is_wanted.load(Ordering::Relaxed)
    }

    /// Has it known how much is left while nothing is told.
    async fn look(&mut self) {
        // The next step opens it anew.
        let Some(journals) = self.journals.take() else { return };
        let Work { duplication, partition, .. } = &self.work;
        let Ok(page) = journals.read(*partition, duplication.id, LOOK_SIZE).await else { return };
        self.means.course.note_page(&page);
        if page.known_phase() != Some(Phase::Overrun) || page.round < duplication.round as i32 {
            return;
        }
        // Whatever else is wrong: this does not end by itself.
        self.means.course.note_trouble(&self.to_copy_anew(OVERRUN));
        if page.unneeded > 0 {
            // On a quiet table nothing else would remove what is kept for nobody. Where it is not done, the next look does it.
            let _ = self.write_reached(&journals, page.round, Position::START.encoded()).await;
        }
    }

    /// Lets another carrier have a turn, unless this one has a page more and has not had many.
    fn end_turn(&mut self) {
        match &mut self.turn {
            Some((_, pages)) if self.next.is_some() && *pages < PAGES_OF_TURN => *pages += 1,
            _ => (self.next, self.turn) = (None, None),
        }
    }

    /// Tells a page. Returns how long there is nothing to do.
    async fn step(&mut self) -> Result<Duration, String> {
        if self.turn.is_none() {
            let Turns { first, retries } = &self.means.turns;
            let has_failed = self.error_pause > ERROR_PAUSES.0;
            let turn = Arc::clone(if has_failed { retries } else { first }).acquire_owned().await;
            self.turn = Some((turn.map_err(|error| error.to_string())?, 1));
        }
        let journals = match &self.journals {
            Some(journals) => journals.clone(),
            None => self.source.open_journals(&self.work.table).await.map_err(here)?,
        };
        self.journals = Some(journals.clone());
        // First, so that nothing begins that cannot be told, and no page is read for nobody.
        let target = self.remote.target(journals.kind()).await?;
        if !self.is_wanted() {
            return Ok(Duration::ZERO);
        }
        let page = match self.next.take() {
            Some(page) => page,
            None => self.read(&journals, self.told.clone()).await?,
        };
        self.means.course.note_page(&page);
        let phase = page.known_phase();
        let phase = phase.ok_or_else(|| format!("the partition is in a phase that is not known, {}", page.phase))?;
        let is_moved = phase == Phase::Copying && page.target != target;
        if phase == Phase::Absent || page.round < self.work.duplication.round as i32 || is_moved {
            self.begin(&journals, target).await?;
            return Ok(Duration::ZERO);
        }
        if phase == Phase::Overrun {
            return Err(self.to_copy_anew(OVERRUN));
        }
        if page.target != target {
            return Err(self.to_copy_anew("the table there is another one than before, or in another cluster"));
        }
        self.tell(&journals, page).await
    }

    async fn read(&self, journals: &Journals, from: (i32, Bytes)) -> Result<JournalReply, String> {
        let Work { duplication, partition, .. } = &self.work;
        let page = journals.read_from(*partition, duplication.id, from, PAGE_SIZE).await;
        page.map_err(here)
    }

    /// What does not go on before somebody says so.
    fn to_copy_anew(&self, why: &str) -> String {
        let Work { table, cluster, .. } = &self.work;
        format!("{why}: `hedgerow table duplicate start {table} {cluster} --copy` copies it anew")
    }

    async fn begin(&mut self, journals: &Journals, target: u64) -> Result<(), String> {
        let Work { table, cluster, duplication, partition } = &self.work;
        let number = self.source.cluster_number().await.map_err(here)?;
        if journals.target(number) == target {
            return Err(format!("{cluster} is this cluster itself, and table {table} the one that is to be told"));
        }
        let begin = JournalWrite {
            action: JOURNAL_BEGIN,
            id: duplication.id,
            round: duplication.round as i32,
            cluster: number,
            bytes_max: duplication.journal_bytes,
            target,
            ..JournalWrite::default()
        };
        journals.write(*partition, begin).await.map_err(here)?;
        (self.told, self.reached) = ((0, Bytes::new()), Bytes::new());
        Ok(())
    }

    async fn tell(&mut self, journals: &Journals, page: JournalReply) -> Result<Duration, String> {
        let JournalReply { round, changes, position, has_more, unneeded, .. } = page;
        let has_changes = !changes.is_empty();
        let bytes: usize = changes.iter().map(|change| change.key.len() + change.value.len()).sum();
        let count = changes.len();
        if has_more {
            let (partition, id) = (self.work.partition, self.work.duplication.id);
            let next = journals.read_from(partition, id, (round, position.clone()), PAGE_SIZE);
            let (told, next) = join(self.remote.tell(changes), next).await;
            told?;
            // Where it cannot be read now, it is the next step that says why.
            self.next = next.ok();
        } else {
            self.remote.tell(changes).await?;
        }
        self.means.tally.add(count as u64, bytes as u64);
        self.told = (round, position);
        if !has_more || present() - self.reached_at >= REACHED_INTERVAL {
            self.say_reached(journals, unneeded > 0 && !has_more).await?;
        }
        if has_more || has_changes {
            self.idle_pause = IDLE_PAUSES.0;
        } else {
            self.remote.check().await?;
        }
        if has_more {
            return Ok(Duration::ZERO);
        }
        self.means.course.note_end();
        let rest = self.idle_pause;
        let count = u32::try_from(self.means.count.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        self.idle_pause = (2 * rest).min(IDLE_PAUSES.1.max(IDLE_PAUSE_OF_EACH.saturating_mul(count)));
        Ok(rest)
    }

    /// Has the partition know how far all is told. Once more `again`, so that it removes more of what it does not need.
    async fn say_reached(&mut self, journals: &Journals, again: bool) -> Result<(), String> {
        if self.told.1 == self.reached && !again {
            return Ok(());
        }
        let (round, position) = self.told.clone();
        self.write_reached(journals, round, position.clone()).await?;
        (self.reached, self.reached_at) = (position, present());
        Ok(())
    }

    async fn write_reached(&self, journals: &Journals, round: i32, position: Bytes) -> Result<(), String> {
        let Work { duplication, partition, .. } = &self.work;
        let reached =
            JournalWrite { action: JOURNAL_REACHED, id: duplication.id, round, position, ..JournalWrite::default() };
        journals.write(*partition, reached).await.map_err(here)
    }
}

/// What is wrong on this side.
fn here(error: hedgerow_client::Error) -> String {
    format!("here: {error}")
}
