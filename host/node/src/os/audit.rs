//! Writes the audit log, JSON, one record a line, on a thread of its own: nothing in a node waits for the log's disk. What that does not take is
//! counted, and the next record that it takes says how many were lost.

use crate::config::AuditFile;
use crate::requests::audit::{AuditEvent, AuditRecord};
use crate::requests::users::Who;
use hedgerow_env::os::{OsClock, spawn_thread};
use hedgerow_env::{Clock, Disk, File, OpenMode};
use hedgerow_types::{Instant, NodeId};
use serde::Serialize;
use std::io;
use std::num::NonZeroU8;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Iso8601;
use time::format_description::well_known::iso8601::{Config, EncodedConfig, TimePrecision};

/// Times as RFC 3339 has them, always to the millisecond.
const TIME: EncodedConfig =
    Config::DEFAULT.set_time_precision(TimePrecision::Second { decimal_digits: NonZeroU8::new(3) }).encode();
/// Records that may wait for the thread.
const WAITING_MAX: usize = 4_096;
/// What was written is made durable after so long.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// How long an ending node waits for its last records.
const END_MAX: Duration = Duration::from_secs(1);

/// A record, and the node's clock when it was made, microseconds since 1970.
type Timed = (u64, AuditRecord);

/// The audit log of a node.
pub(super) struct AuditLog {
    /// `None` only while it is dropped.
    records: Option<SyncSender<Timed>>,
    lost: Arc<AtomicU64>,
    ended: Receiver<()>,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    node: u16,
    #[serde(flatten)]
    record: &'a AuditRecord,
}

impl AuditLog {
    /// Opens `file`, to whose end is written, and starts the thread. `lost` counts records that found no room.
    pub(super) fn start(disk: Arc<dyn Disk>, file: AuditFile, node: NodeId, lost: Arc<AtomicU64>) -> io::Result<Self> {
        let mut writer = Writer { disk, file, node, open: None, lost: Arc::clone(&lost), told: 0, is_failing: false };
        drop(writer.open_end()?);
        let (records, inbox) = sync_channel(WAITING_MAX);
        let (at_end, ended) = sync_channel(1);
        spawn_thread("audit", move || {
            writer.run(&inbox);
            // Nobody waits any more, perhaps.
            let _ = at_end.send(());
        })?;
        Ok(Self { records: Some(records), lost, ended })
    }

    /// Has `records` written soon, or counts them as lost.
    pub(super) fn put(&self, records: Vec<AuditRecord>, unix_micros: u64) {
        for record in records {
            if self.records.as_ref().is_none_or(|it| it.try_send((unix_micros, record)).is_err()) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        drop(self.records.take());
        // A disk that does not answer holds up no end of a node.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

struct Writer {
    disk: Arc<dyn Disk>,
    file: AuditFile,
    node: NodeId,
    /// What was written last, until it is durable.
    open: Option<Box<dyn File>>,
    lost: Arc<AtomicU64>,
    /// How many losses the log tells of.
    told: u64,
    is_failing: bool,
}

impl Writer {
    fn run(&mut self, inbox: &Receiver<Timed>) {
        // When what was written last has to be durable.
        let mut due: Option<Instant> = None;
        loop {
            let now = OsClock.now();
            if due.is_some_and(|due| due <= now) {
                self.sync();
                due = None;
            }
            match inbox.recv_timeout(due.map_or(SYNC_AFTER, |due| due.since(now))) {
                Ok((unix_micros, record)) => {
                    self.take(unix_micros, &record);
                    due = due.or(Some(now + SYNC_AFTER));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.sync(),
            }
        }
    }

    fn take(&mut self, unix_micros: u64, record: &AuditRecord) {
        let lost = self.lost.load(Ordering::Relaxed);
        let loss = AuditRecord::new(&Who::Anybody, None, AuditEvent::Lost { records: lost - self.told });
        let told = if lost > self.told { self.write(&line(self.node, unix_micros, &loss)) } else { Ok(()) };
        if told.is_ok() {
            self.told = lost;
        }
        match told.and_then(|()| self.write(&line(self.node, unix_micros, record))) {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                tracing::warn!(file = %self.file.path.display(), "the audit log is written again");
            }
            Ok(()) => {}
            Err(error) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                self.note_failure(&error);
            }
        }
    }

    fn sync(&mut self) {
        if let Some(Err(error)) = self.open.take().map(|file| file.sync_data()) {
            self.note_failure(&error);
        }
    }

    /// The node's log says so once, until a record is written again.
    fn note_failure(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(file = %self.file.path.display(), %error, "the audit log cannot be written: its records are lost");
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        // By its name each time: somebody may have moved the file away, and made another one. Nor where it ended before: somebody else may
        // write it too.
        let (mut file, mut end) = self.open_end()?;
        if end > 0 && end + line.len() as u64 > self.file.size_max {
            self.sync();
            self.make_room()?;
            (file, end) = self.open_end()?;
        }
        file.write_at(end, line)?;
        self.open = Some(file);
        Ok(())
    }

    /// Gives each file the next number. The last one goes.
    fn make_room(&self) -> io::Result<()> {
        for number in (0..self.file.files - 1).rev() {
            if self.disk.exists(&self.numbered(number)) {
                self.disk.rename(&self.numbered(number), &self.numbered(number + 1))?;
            }
        }
        Ok(())
    }

    /// The file before the present one has number 1.
    fn numbered(&self, number: u32) -> PathBuf {
        let mut path = self.file.path.clone().into_os_string();
        if number > 0 {
            path.push(format!(".{number}"));
        }
        path.into()
    }

    /// The file, made if it is not there, and where its last whole line ends. What was written of a line is ended.
    fn open_end(&self) -> io::Result<(Box<dyn File>, u64)> {
        let path = &self.file.path;
        let file = match self.disk.open(path, OpenMode::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = self.disk.open(path, OpenMode::Create)?;
                path.parent().map_or(Ok(()), |folder| self.disk.sync_dir(folder))?;
                file
            }
            opened => opened?,
        };
        let end = file.len()?;
        let mut last = [b'\n'];
        if end > 0 {
            file.read_at(end - 1, &mut last)?;
        }
        if last == [b'\n'] {
            return Ok((file, end));
        }
        file.write_at(end, b"\n")?;
        Ok((file, end + 1))
    }
}

fn line(node: NodeId, unix_micros: u64, record: &AuditRecord) -> Vec<u8> {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_micros / 1_000) * 1_000_000);
    let at = time.ok().and_then(|time| time.format(&Iso8601::<TIME>).ok()).unwrap_or_default();
    let mut line = serde_json::to_vec(&Line { at, node: node.0, record }).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use hedgerow_env::read_file;
    use hedgerow_env::sim::SimDisk;
    use std::path::Path;

    fn record(number: u16) -> AuditRecord {
        let event = AuditEvent::Member { member: number, address: String::new() };
        AuditRecord::new(&Who::Anybody, None, event)
    }

    fn start(disk: &SimDisk, size_max: u64) -> AuditLog {
        let file = AuditFile { path: "/audit/log".into(), size_max, files: 3 };
        disk.create_dir_all(Path::new("/audit")).unwrap();
        AuditLog::start(Arc::new(disk.clone()), file, NodeId(7), Arc::default()).unwrap()
    }

    fn text(disk: &SimDisk, path: &str) -> String {
        String::from_utf8(read_file(disk, Path::new(path)).unwrap()).unwrap()
    }

    fn wait_for(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn records_are_lines_at_the_end_of_what_is_there() {
        let disk = SimDisk::new();
        for number in [1, 2] {
            start(&disk, 1 << 20).put(vec![record(number)], 1_764_309_600_123_456);
        }
        let line = |number| {
            format!(r#"{{"at":"2025-11-28T06:00:00.123Z","node":7,"event":"member","member":{number},"address":""}}"#)
        };
        assert_eq!(text(&disk, "/audit/log"), format!("{}\n{}\n", line(1), line(2)));
    }

    #[test]
    fn a_full_file_gets_a_number_and_the_last_one_goes() {
        let disk = SimDisk::new();
        let log = start(&disk, 200);
        (0..9).for_each(|number| log.put(vec![record(number)], 0));
        drop(log);
        let numbers = |path| {
            let text = text(&disk, path);
            text.lines().map(|line| line.split(':').nth(6).unwrap()[..1].parse::<u16>().unwrap()).collect::<Vec<_>>()
        };
        let all = [numbers("/audit/log.2"), numbers("/audit/log.1"), numbers("/audit/log")].concat();
        assert!(all.len() < 9 && all.iter().copied().eq(9 - all.len() as u16..9), "{all:?}");
        assert_eq!(disk.list(Path::new("/audit")).unwrap(), ["log", "log.1", "log.2"]);
    }

    #[test]
    fn n1_a_full_disk_loses_records_and_the_log_says_how_many() {
        let disk = SimDisk::new();
        let log = start(&disk, 1 << 20);
        disk.set_full(true);
        (0..3).for_each(|number| log.put(vec![record(number)], 0));
        wait_for(|| log.lost.load(Ordering::Relaxed) == 3);
        disk.set_full(false);
        log.put(vec![record(8)], 0);
        drop(log);
        let text = text(&disk, "/audit/log");
        let kinds: Vec<bool> = text.lines().map(|line| line.contains(r#""event":"lost","records":3"#)).collect();
        assert_eq!(kinds, [true, false], "{text}");
    }

    #[test]
    fn a_file_that_was_moved_away_is_made_again_and_half_a_line_is_ended() {
        let disk = SimDisk::new();
        let log = start(&disk, 1 << 20);
        log.put(vec![record(1)], 0);
        wait_for(|| text(&disk, "/audit/log").ends_with('\n'));
        disk.rename(Path::new("/audit/log"), Path::new("/audit/old")).unwrap();
        log.put(vec![record(2)], 0);
        drop(log);
        assert_eq!(text(&disk, "/audit/log").lines().count(), 1);
        let end = text(&disk, "/audit/log").len() as u64;
        disk.open(Path::new("/audit/log"), OpenMode::Write).unwrap().write_at(end, b"{\"at\":").unwrap();
        start(&disk, 1 << 20).put(vec![record(3)], 0);
        let text = text(&disk, "/audit/log");
        assert_eq!(text.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count(), 2);
        assert_eq!(text.lines().count(), 3);
    }
}
