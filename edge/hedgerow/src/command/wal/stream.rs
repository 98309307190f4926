//! `hedgerow wal dump` and `tail`: entries in the order of the log, with one segment of it in memory at a time.

use super::entry::{Shown, Style};
use super::place::{self, Place};
use super::{LogArguments, hex};
use crate::encoding::Encoding;
use crate::exit::Exit;
use crate::output::{Lines, Output, counted, say};
use crate::runtime;
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_env::os::OsDisk;
use hedgerow_types::{GroupId, Index};
use hedgerow_wal::format::LogPlace;
use hedgerow_wal::{Damage, Event, Follower, Seen, segment_sizes};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How long `tail` waits before it looks again.
const PAUSE: Duration = Duration::from_millis(200);

/// Which entries are shown, and how.
#[derive(Args, Clone, Debug)]
struct EntryArguments {
    #[command(flatten)]
    logs: LogArguments,
    /// Only entries of this group: its table, by name or number, and its partition; 0.0 is the metadata.
    #[arg(long, value_name = "TABLE.PARTITION")]
    group: Option<String>,
    /// Only writes of records of this hash key; in an ordered table, of this key.
    #[arg(long, value_name = "KEY")]
    hash_key: Option<String>,
    /// Show values, not only their lengths.
    #[arg(long)]
    values: bool,
    /// How keys and values are written.
    #[arg(long, value_enum, default_value_t = Encoding::Text)]
    encoding: Encoding,
}

/// Arguments of `wal dump`.
#[derive(Args, Debug)]
pub(crate) struct DumpArguments {
    #[command(flatten)]
    entries: EntryArguments,
    /// Only entries with this index or a higher one.
    #[arg(long, value_name = "INDEX")]
    from: Option<Index>,
    /// Only entries with this index or a lower one.
    #[arg(long, value_name = "INDEX")]
    to: Option<Index>,
}

/// Arguments of `wal tail`.
#[derive(Args, Debug)]
pub(crate) struct TailArguments {
    #[command(flatten)]
    entries: EntryArguments,
    /// How many of the last entries are shown first.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    lines: usize,
    /// Show all entries that the log holds first.
    #[arg(long, conflicts_with = "lines")]
    from_start: bool,
}

/// What is to be shown.
struct Filter {
    group: Option<GroupId>,
    key: Option<Vec<u8>>,
    from: Index,
    to: Index,
    output: Output,
    style: Style,
    /// Whether lines say which log they are of.
    has_many: bool,
}

/// A log that is read.
struct Source<'a> {
    place: &'a Place,
    filter: &'a Filter,
    follower: Follower,
    /// Places that could not be read.
    bad_count: u64,
}

impl Filter {
    fn new(arguments: &EntryArguments, places: &[Place]) -> Result<Self> {
        let key = arguments.hash_key.as_deref().map(|key| arguments.encoding.decode(key.as_bytes())).transpose();
        Ok(Self {
            group: arguments.group.as_deref().map(|name| place::group(places, name)).transpose()?,
            key: key.context("--hash-key")?,
            from: 0,
            to: Index::MAX,
            output: arguments.logs.output,
            style: Style { encoding: arguments.encoding, with_values: arguments.values },
            has_many: places.len() > 1,
        })
    }

    /// The line of what is to be shown.
    fn line(&self, place: &Place, event: &Event<'_>) -> Option<String> {
        let Event::Record(at, head, payload) = event else { return None };
        let is_of_group = self.group.is_none_or(|group| head.group == group);
        if !is_of_group || !(self.from..=self.to).contains(&head.index) {
            return None;
        }
        let shown = Shown::of(*at, *head, payload)?;
        if self.key.as_ref().is_some_and(|key| !shown.is_about(key)) {
            return None;
        }
        let log = self.has_many.then(|| place.log.display().to_string());
        Some(match (self.output, log) {
            (Output::Text, None) => shown.text(self.style),
            (Output::Text, Some(log)) => format!("{log}\t{}", shown.text(self.style)),
            (Output::Json, log) => {
                let mut object = shown.json(self.style);
                let table = place.groups.table_name(shown.group());
                object.extend(table.map(|table| ("table".to_owned(), table.into())));
                object.extend(log.map(|log| ("log".to_owned(), log.into())));
                serde_json::Value::Object(object).to_string()
            }
        })
    }
}

impl<'a> Source<'a> {
    /// Begins at the segment `first`.
    fn new(place: &'a Place, filter: &'a Filter, first: u64) -> Self {
        let follower = Follower::new(Arc::new(OsDisk), &place.log, first);
        Self { place, filter, follower, bad_count: 0 }
    }

    /// Gives `take` the lines that have come since the last call, and says what could not be read.
    fn read(&mut self, take: &mut dyn FnMut(String) -> Result<()>) -> Result<()> {
        let Self { place, filter, follower, bad_count } = self;
        let mut result = Ok(());
        let seen = follower.poll(&mut |event| note(place, filter, &event, bad_count, &mut result, take))?;
        result?;
        self.tell(&seen);
        Ok(())
    }

    /// The rest of a log that nobody writes to.
    fn finish(&mut self, take: &mut dyn FnMut(String) -> Result<()>) -> Result<()> {
        let Self { place, filter, follower, bad_count } = self;
        let mut result = Ok(());
        let torn = follower.finish(&mut |event| note(place, filter, &event, bad_count, &mut result, take))?;
        if let Some(LogPlace { segment, offset }) = torn {
            say(&format!("{}: a write was cut off in segment {}, byte {offset}", place.log.display(), hex(segment)));
        }
        result
    }

    fn tell(&mut self, seen: &Seen) {
        let log = self.place.log.display();
        if seen.skipped_batches > 0 {
            let writes = counted(seen.skipped_batches, "write");
            say(&format!("{log}: {writes} of the log came and went unread: the segments were given back"));
        }
        for segment in &seen.missing_segments {
            say(&format!("{log}: segment {} is not there", hex(*segment)));
            self.bad_count += u64::from(!self.place.is_in_use);
        }
    }
}

fn note(
    place: &Place,
    filter: &Filter,
    event: &Event<'_>,
    bad_count: &mut u64,
    result: &mut Result<()>,
    take: &mut dyn FnMut(String) -> Result<()>,
) {
    if let Some(Damage { place: LogPlace { segment, offset }, .. }) = Damage::of(event) {
        *bad_count += 1;
        say(&format!("{}: segment {}, byte {offset} cannot be read", place.log.display(), hex(segment)));
    }
    if let Some(line) = filter.line(place, event)
        && result.is_ok()
    {
        *result = take(line);
    }
}

/// `hedgerow wal dump`.
pub(super) fn dump(arguments: &DumpArguments) -> Result<Exit> {
    let (places, _) = place::find(&OsDisk, &arguments.entries.logs)?;
    let filter = Filter::new(&arguments.entries, &places)?;
    let filter = Filter { from: arguments.from.unwrap_or(0), to: arguments.to.unwrap_or(Index::MAX), ..filter };
    let mut lines = Lines::new();
    let mut bad_count = 0;
    for place in &places {
        let mut source = Source::new(place, &filter, 0);
        source.read(&mut |line| lines.print(&line))?;
        if !place.is_in_use {
            source.finish(&mut |line| lines.print(&line))?;
        }
        bad_count += source.bad_count;
    }
    lines.flush()?;
    if bad_count == 0 {
        return Ok(Exit::Done);
    }
    say("part of it could not be read: `hedgerow wal verify` tells what that means");
    Ok(Exit::Refused)
}

/// `hedgerow wal tail`.
pub(super) fn tail(arguments: &TailArguments) -> Result<Exit> {
    let (places, _) = place::find(&OsDisk, &arguments.entries.logs)?;
    let filter = Filter::new(&arguments.entries, &places)?;
    let mut lines = Lines::new();
    let mut sources = Vec::new();
    for place in &places {
        if arguments.from_start {
            sources.push(Source::new(place, &filter, 0));
        } else {
            let (source, last) = last_entries(place, &filter, arguments.lines)?;
            last.iter().try_for_each(|line| lines.print(line))?;
            sources.push(source);
        }
    }
    runtime::block_on(follow(sources, lines))
}

async fn follow(mut sources: Vec<Source<'_>>, mut lines: Lines) -> Result<Exit> {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        for source in &mut sources {
            source.read(&mut |line| lines.print(&line))?;
        }
        lines.flush()?;
        tokio::select! {
            result = &mut interrupted => {
                result.context("waiting for Ctrl-C")?;
                return Ok(Exit::Done);
            }
            () = runtime::sleep(PAUSE) => {}
        }
    }
}

/// The last `count` lines, and what goes on behind them. Reads the newest segment, and twice as many each time that this is too little.
fn last_entries<'a>(place: &'a Place, filter: &'a Filter, count: usize) -> Result<(Source<'a>, VecDeque<String>)> {
    let segments = segment_sizes(&OsDisk, &place.log)?;
    let mut read = 1;
    loop {
        let first = segments.len().checked_sub(read).map_or(0, |first| segments[first].0);
        let mut source = Source::new(place, filter, first);
        let mut last = VecDeque::new();
        source.read(&mut |line| {
            last.push_back(line);
            if last.len() > count {
                last.pop_front();
            }
            Ok(())
        })?;
        if last.len() >= count || read >= segments.len() {
            return Ok((source, last));
        }
        read *= 2;
    }
}
