//! `hedgerow wal inspect`: segments and groups of a log, and which group holds the oldest segment.

use super::place::{self, Place};
use super::{InspectArguments, full_name, hex, look};
use crate::exit::Exit;
use crate::output::{columns, counted, print_result, say};
use anyhow::{Result, bail};
use hedgerow_env::os::OsDisk;
use hedgerow_types::GroupId;
use hedgerow_wal::{End, Inspection, Recovered, SegmentView};
use serde_json::{Value, json};
use std::cmp::Reverse;

/// Groups that are named where many hold a segment.
const HOLDERS_SHOWN: usize = 3;

/// A log that was looked at.
struct View<'a> {
    place: &'a Place,
    inspection: &'a Inspection,
    /// Nothing else is shown.
    group: Option<GroupId>,
}

/// `hedgerow wal inspect`.
pub(super) fn run(arguments: &InspectArguments) -> Result<Exit> {
    let (places, durability) = place::find(&OsDisk, &arguments.logs)?;
    let group = arguments.group.as_deref().map(|name| place::group(&places, name)).transpose()?;
    let mut is_known = group.is_none();
    for (number, place) in places.iter().enumerate() {
        let inspection = &look(&OsDisk, place, durability, &mut |_| {})?;
        let view = View { place, inspection, group };
        is_known |= view.groups().next().is_some() || view.segments().next().is_some();
        let gap = if number == 0 { "" } else { "\n" };
        print_result(arguments.logs.output, || format!("{gap}{}", view.text()), || view.json())?;
        if !inspection.is_sound() {
            say(&format!("{} is damaged: `hedgerow wal verify` tells what that means", place.log.display()));
        }
    }
    if !is_known && let Some(name) = &arguments.group {
        bail!("the log has nothing of group {name}");
    }
    Ok(Exit::Done)
}

impl View<'_> {
    fn groups(&self) -> impl Iterator<Item = &Recovered> {
        self.inspection.groups.iter().filter(|found| self.group.is_none_or(|group| found.group == group))
    }

    fn segments(&self) -> impl Iterator<Item = &SegmentView> {
        let is_shown = |segment: &&SegmentView| self.group.is_none_or(|group| segment.records.contains_key(&group));
        self.inspection.segments.iter().filter(is_shown)
    }

    /// Bytes in use of what is shown.
    fn in_use(&self, segment: &SegmentView) -> u64 {
        match self.group {
            Some(group) => segment.in_use.get(&group).copied().unwrap_or(0),
            None => segment.in_use.values().sum(),
        }
    }

    /// Who holds the oldest segment, most bytes first.
    fn holders(&self) -> Option<(&SegmentView, Vec<(GroupId, u64)>)> {
        let oldest = self.inspection.segments.first()?;
        let mut holders: Vec<_> = oldest.in_use.iter().map(|(group, bytes)| (*group, *bytes)).collect();
        holders.sort_by_key(|(_, bytes)| Reverse(*bytes));
        Some((oldest, holders))
    }

    fn end_of(&self, segment: &SegmentView) -> String {
        let is_newest = self.inspection.segments.last().is_some_and(|newest| newest.id == segment.id);
        match (segment.size, self.inspection.end) {
            (None, _) => "gone".to_owned(),
            (Some(_), _) if !is_newest => "sealed".to_owned(),
            (Some(_), End::Clean) => "clean end".to_owned(),
            (Some(_), End::Torn(place)) => format!("torn tail at byte {}", place.offset),
            (Some(_), End::CutShort(place)) => format!("cut short at byte {}", place.offset),
        }
    }

    fn text(&self) -> String {
        let mut parts = vec![self.head_text()];
        let segment = |segment: &SegmentView| {
            vec![
                hex(segment.id),
                segment.size.map_or("-".to_owned(), |size| size.to_string()),
                segment.end.to_string(),
                self.in_use(segment).to_string(),
                segment.batches.map_or("-".to_owned(), |(first, last)| format!("{first}-{last}")),
                segment.rounds.to_string(),
                segment.records.len().to_string(),
                self.end_of(segment),
            ]
        };
        let header = ["segment", "bytes", "used", "in use", "batches", "rounds", "groups", "end"];
        parts.push(columns(&header, &self.segments().map(segment).collect::<Vec<_>>()));
        let header = [
            "group",
            "table",
            "replica",
            "first",
            "last",
            "term",
            "vote",
            "commit",
            "bytes",
            "oldest segment",
            "state",
        ];
        parts.push(columns(&header, &self.groups().map(|found| self.group_row(found)).collect::<Vec<_>>()));
        parts.extend(self.holders_text());
        parts.join("\n\n")
    }

    fn head_text(&self) -> String {
        let mark = match (self.inspection.mark, &self.inspection.mark_problem) {
            (Some((segment, batch)), _) => format!("batches below {batch} of {} are durable", hex(segment)),
            (None, Some(problem)) => format!("none that can be used: {problem}"),
            (None, None) => "none".to_owned(),
        };
        let id = self.place.id.map_or("none".to_owned(), hex);
        format!("log   {}\nid    {id}\nmark  {mark}", self.place.log.display())
    }

    fn group_row(&self, found: &Recovered) -> Vec<String> {
        let Recovered { group, replica, hard_state, start, last, is_damaged, is_pending, .. } = found;
        let state = match (is_damaged, is_pending) {
            (true, _) => "DAMAGED",
            // Another log may say the same: the next start decides.
            (false, true) => "a copy",
            (false, false) => "sound",
        };
        vec![
            group.to_string(),
            self.place.groups.table_name(*group).unwrap_or("-").to_owned(),
            replica.to_string(),
            if last.index > start.index { (start.index + 1).to_string() } else { "-".to_owned() },
            last.index.to_string(),
            hard_state.term.to_string(),
            hard_state.vote.map_or("-".to_owned(), |vote| vote.to_string()),
            hard_state.commit.to_string(),
            self.inspection.bytes_in_use(*group).to_string(),
            self.inspection.oldest_held(*group).map_or("-".to_owned(), hex),
            state.to_owned(),
        ]
    }

    fn holders_text(&self) -> Option<String> {
        let (oldest, holders) = self.holders()?;
        let oldest = hex(oldest.id);
        if holders.is_empty() {
            return Some(format!("nobody holds the oldest segment, {oldest}: it goes with the next collection"));
        }
        let shown: Vec<String> = holders
            .iter()
            .take(HOLDERS_SHOWN)
            .map(|(group, bytes)| format!("{} with {}", full_name(self.place, *group), counted(*bytes, "byte")))
            .collect();
        let others = holders.len().saturating_sub(HOLDERS_SHOWN) as u64;
        let others = if others > 0 { format!(", and {}", counted(others, "other group")) } else { String::new() };
        Some(format!("the oldest segment, {oldest}, is held by {}{others}", shown.join(", ")))
    }

    fn json(&self) -> Value {
        let held = |holders: Vec<(GroupId, u64)>| -> Vec<Value> {
            holders.iter().map(|(group, bytes)| json!({ "group": group.to_string(), "bytes": bytes })).collect()
        };
        let segment = |segment: &SegmentView| {
            json!({
                "segment": hex(segment.id),
                "bytes": segment.size,
                "used_bytes": segment.end,
                "in_use_bytes": self.in_use(segment),
                "first_batch": segment.batches.map(|(first, _)| first),
                "last_batch": segment.batches.map(|(_, last)| last),
                "rounds": segment.rounds,
                "groups": segment.records.keys().map(GroupId::to_string).collect::<Vec<_>>(),
                "end": self.end_of(segment),
            })
        };
        let mark = self.inspection.mark.map(|(segment, batch)| json!({ "segment": hex(segment), "batch": batch }));
        json!({
            "log": self.place.log.display().to_string(),
            "id": self.place.id.map(hex),
            "is_in_use": self.place.is_in_use,
            "is_sound": self.inspection.is_sound(),
            "mark": mark,
            "mark_problem": self.inspection.mark_problem,
            "segments": self.segments().map(segment).collect::<Vec<_>>(),
            "groups": self.groups().map(|found| self.group_json(found)).collect::<Vec<_>>(),
            "oldest_segment_held_by": self.holders().map(|(_, holders)| held(holders)),
        })
    }

    fn group_json(&self, found: &Recovered) -> Value {
        json!({
            "group": found.group.to_string(),
            "table": self.place.groups.table_name(found.group),
            "replica": found.replica.to_string(),
            "start_index": found.start.index,
            "last_index": found.last.index,
            "last_term": found.last.term,
            "term": found.hard_state.term,
            "vote": found.hard_state.vote.map(|vote| vote.to_string()),
            "commit": found.hard_state.commit,
            "bytes": self.inspection.bytes_in_use(found.group),
            "oldest_segment": self.inspection.oldest_held(found.group).map(hex),
            "is_damaged": found.is_damaged,
            "generation": found.generation,
            "is_pending": found.is_pending,
        })
    }
}
