//! `hedgerow table duplicate list`: how far duplications are, by the word of the partitions, and why they do not go on, by that of the nodes.

use super::{Options, option, options_of};
use crate::cluster::ClusterArguments;
use crate::command::carrying::{self, Stopped};
use crate::exit::Exit;
use crate::output::{columns, print_result, say};
use anyhow::Result;
use hedgerow_client::Client;
use hedgerow_placement::duplication::{Duplication, State};
use hedgerow_types::journal::Phase;
use hedgerow_wire::message::JournalReply;
use serde_json::{Value, json};

/// Bytes of a page that is asked for to see how far a partition is: its first change is enough.
const PAGE_SIZE: u32 = 1;
/// Partitions that are asked at the same time.
const ASKED_MAX: usize = 64;

/// What one partition says, or why nothing is known of it.
pub(super) type Page = Result<JournalReply, String>;

/// How far the table's partitions are.
pub(super) async fn pages(client: &Client, name: &str, id: u64) -> Vec<Page> {
    let journals = match client.open_journals(name).await {
        Ok(journals) => journals,
        Err(error) => return vec![Err(error.to_string())],
    };
    let partitions: Vec<u32> = (0..journals.partition_count()).collect();
    let mut pages = Vec::new();
    for some in partitions.chunks(ASKED_MAX) {
        let asked = some.iter().map(|partition| {
            let (journals, partition) = (journals.clone(), *partition);
            crate::runtime::spawn(async move { journals.read(partition, id, PAGE_SIZE).await })
        });
        let asked: Vec<_> = asked.collect();
        for page in asked {
            pages.push(match page.await {
                Ok(page) => page.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            });
        }
    }
    pages
}

/// Where a partition is in the round that the duplication is in.
pub(super) fn phase_of(page: &JournalReply, duplication: &Duplication) -> Phase {
    if i64::from(page.round) < i64::from(duplication.round) {
        return Phase::Absent;
    }
    page.known_phase().unwrap_or_default()
}

/// How far a duplication is.
struct Progress {
    table: String,
    cluster: String,
    table_there: String,
    state: String,
    /// Somebody has to do something, or to look at something.
    is_amiss: bool,
    /// Of the partition that is behind most; `None` = not known.
    lag_seconds: Option<u64>,
    /// Changes that the other cluster was not told; `None` = not known, or of no use, since all is to be copied anew.
    left: Option<Left>,
    stopped: Vec<Stopped>,
    /// Why nothing is known of a partition.
    unknown: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    entries: u64,
    bytes: u64,
}

impl Progress {
    fn of((table, cluster): (&str, &str), duplication: &Duplication, pages: &[Page], stopped: Vec<Stopped>) -> Self {
        let known: Vec<&JournalReply> = pages.iter().flatten().collect();
        let count = |phase| known.iter().filter(|page| phase_of(page, duplication) == phase).count();
        let is_whole = known.len() == pages.len();
        let lag = |page: &JournalReply| page.lag_seconds().filter(|_| phase_of(page, duplication) == Phase::Following);
        let lags: Option<Vec<u64>> = known.iter().map(|page| lag(page)).collect();
        let left = Left {
            entries: known.iter().map(|page| page.entries_left).sum(),
            bytes: known.iter().map(|page| page.bytes_left).sum(),
        };
        let counts = Counts {
            partitions: pages.len(),
            known: known.len(),
            stopped: stopped.iter().map(|it| it.partitions as usize).sum(),
            overrun: count(Phase::Overrun),
            starting: count(Phase::Absent),
            copying: count(Phase::Copying),
        };
        Self {
            table: table.to_owned(),
            cluster: cluster.to_owned(),
            table_there: duplication.table.clone(),
            state: counts.state(duplication.state),
            is_amiss: counts.overrun + counts.stopped > 0 || !is_whole,
            lag_seconds: lags.filter(|_| is_whole).and_then(|lags| lags.into_iter().max()),
            left: (is_whole && counts.overrun == 0).then_some(left),
            stopped,
            unknown: pages.iter().find_map(|page| page.as_ref().err().cloned()),
        }
    }

    fn row(&self) -> Vec<String> {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        vec![
            self.table.clone(),
            self.cluster.clone(),
            self.table_there.clone(),
            self.state.clone(),
            number(self.lag_seconds),
            number(self.left.map(|left| left.entries)),
            number(self.left.map(|left| left.bytes)),
        ]
    }

    /// Why it is as it is, a line for each reason.
    fn reasons(&self) -> Vec<String> {
        let Self { table, cluster, unknown, .. } = self;
        let unknown =
            unknown.iter().map(|why| format!("{table} to {cluster}: a partition does not say how far it is: {why}"));
        unknown.chain(self.stopped.iter().map(|it| it.line(table, cluster))).collect()
    }

    fn json(&self, silent: &[String]) -> Value {
        json!({
            "table": self.table,
            "cluster": self.cluster,
            "table_there": self.table_there,
            "state": self.state,
            "lag_seconds": self.lag_seconds,
            "entries_left": self.left.map(|left| left.entries),
            "bytes_left": self.left.map(|left| left.bytes),
            "stopped": self.stopped,
            "unknown": self.unknown,
            "silent_nodes": silent,
        })
    }
}

/// How many partitions of a table are how.
struct Counts {
    partitions: usize,
    known: usize,
    stopped: usize,
    overrun: usize,
    starting: usize,
    copying: usize,
}

impl Counts {
    /// One word for all partitions, of which the worst counts.
    fn state(&self, wanted: State) -> String {
        let some = |what: &str, some: usize| format!("{what} {some} of {}", self.partitions);
        if self.overrun > 0 {
            return some("overrun", self.overrun);
        }
        match wanted {
            State::Paused | State::Removing => return wanted.name().to_owned(),
            State::Running => {}
        }
        for (count, what) in [
            (self.stopped, "stopped"),
            (self.partitions - self.known, "not known of"),
            (self.starting, "starting"),
            (self.copying, "copying"),
        ] {
            if count > 0 {
                return some(what, count);
            }
        }
        "following".to_owned()
    }
}

/// `hedgerow table duplicate list`.
pub(super) async fn list(client: &Client, name: Option<&str>, cluster: &ClusterArguments) -> Result<Exit> {
    let tables: Vec<(String, Options)> = match name {
        Some(name) => vec![(name.to_owned(), options_of(client, name).await?)],
        None => client.list_tables().await?.into_iter().map(|table| (table.name, table.options)).collect(),
    };
    let is_duplicated = |(_, options): &(String, Options)| carrying::clusters_of(options).next().is_some();
    let told = match tables.iter().any(is_duplicated) {
        true => carrying::ask(client, &cluster.access()?).await?,
        false => carrying::Told::default(),
    };
    for silent in &told.silent {
        say(&format!("a node does not say how it carries: {silent}"));
    }
    let mut found = Vec::new();
    for (table, options) in tables {
        for to in carrying::clusters_of(&options) {
            let Some(duplication) = option(&options, to)? else { continue };
            let pages = pages(client, &table, duplication.id).await;
            found.push(Progress::of((&table, to), &duplication, &pages, told.stopped(&table, to)));
        }
    }
    let text = || {
        let rows: Vec<_> = found.iter().map(Progress::row).collect();
        let header = ["table", "cluster", "table there", "state", "lag (s)", "entries left", "bytes left"];
        let mut parts = vec![columns(&header, &rows)];
        let reasons: Vec<String> = found.iter().flat_map(Progress::reasons).collect();
        if !reasons.is_empty() {
            parts.push(reasons.join("\n"));
        }
        parts.join("\n\n")
    };
    print_result(cluster.output, text, || Value::Array(found.iter().map(|it| it.json(&told.silent)).collect()))?;
    Ok(if found.iter().any(|it| it.is_amiss) { Exit::Refused } else { Exit::Done })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(phase: Phase, entries_left: u64, (oldest_seconds, now_seconds): (u64, u64)) -> Page {
        let bytes_left = 10 * entries_left;
        Ok(JournalReply {
            phase: phase as i32,
            round: 1,
            entries_left,
            bytes_left,
            oldest_seconds,
            now_seconds,
            ..JournalReply::default()
        })
    }

    fn stopped(partitions: u32) -> Vec<Stopped> {
        vec![Stopped { node: 2, partitions, partition: 0, reason: "away".to_owned(), seconds: 0 }]
    }

    fn of(state: State, pages: &[Page], stopped: Vec<Stopped>) -> Progress {
        let duplication = Duplication { state, ..Duplication::new("there", 1) };
        Progress::of(("t", "west"), &duplication, pages, stopped)
    }

    #[test]
    fn the_partition_that_is_worst_counts() {
        let (quiet, late) = (page(Phase::Following, 0, (0, 100)), page(Phase::Following, 3, (95, 100)));
        let pages = [quiet.clone(), late.clone()];
        let told = of(State::Running, &pages, Vec::new());
        let left = |entries, bytes| Some(Left { entries, bytes });
        assert_eq!((&told.state[..], told.lag_seconds, told.left), ("following", Some(5), left(3, 30)));
        assert!(!told.is_amiss && told.reasons().is_empty());
        assert_eq!(of(State::Paused, &pages, Vec::new()).state, "paused");
        let copying = page(Phase::Copying, 4, (0, 100));
        let pages = [quiet.clone(), copying.clone(), late.clone()];
        let told = of(State::Running, &pages, Vec::new());
        assert_eq!((&told.state[..], told.lag_seconds, told.left), ("copying 1 of 3", None, left(7, 70)));
        let starting = page(Phase::Absent, 0, (0, 100));
        assert_eq!(of(State::Running, &[starting, copying], Vec::new()).state, "starting 1 of 2");
    }

    #[test]
    fn what_does_not_go_on_says_why() {
        let quiet = page(Phase::Following, 0, (0, 100));
        let told = of(State::Running, &[quiet.clone(), Err("no leader".to_owned())], Vec::new());
        assert_eq!((&told.state[..], told.left, told.is_amiss), ("not known of 1 of 2", None, true));
        assert_eq!(told.reasons(), ["t to west: a partition does not say how far it is: no leader"]);
        let told = of(State::Running, &[quiet.clone(), quiet.clone()], stopped(2));
        assert_eq!((&told.state[..], told.is_amiss), ("stopped 2 of 2", true));
        assert_eq!(told.reasons(), ["t to west, node 2, 2 partitions, 0 among them: away"]);
        assert_eq!(told.json(&[])["stopped"][0]["reason"], "away");
        let overrun = page(Phase::Overrun, 9, (0, 100));
        let told = of(State::Paused, &[quiet, overrun], Vec::new());
        assert_eq!((&told.state[..], told.left, told.is_amiss), ("overrun 1 of 2", None, true));
    }
}
