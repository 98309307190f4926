//! `hedgerow wal verify`: reads every record of a log, and says what is sound, what is not, and what follows for the node.

use super::place::{self, Place};
use super::{VerifyArguments, full_name, hex, look};
use crate::exit::Exit;
use crate::output::{counted, print_result};
use anyhow::Result;
use hedgerow_env::os::OsDisk;
use hedgerow_types::{GroupId, NodeId};
use hedgerow_wal::{Damage, Damaged, Durability, End, Event, Inspection, segment_sizes};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Places of damage, and groups, that are shown to people.
const SHOWN_MAX: usize = 20;

/// What is known of one log.
struct Verdict<'a> {
    place: &'a Place,
    inspection: Inspection,
    records: u64,
}

/// `hedgerow wal verify`.
pub(super) fn run(arguments: &VerifyArguments) -> Result<Exit> {
    let (places, durability) = place::find(&OsDisk, &arguments.logs)?;
    let mut victims: BTreeMap<GroupId, Vec<NodeId>> = BTreeMap::new();
    let mut is_sound = true;
    for place in &places {
        let verdict = check(place, durability)?;
        for damaged in verdict.inspection.groups.iter().filter(|found| found.is_damaged) {
            victims.entry(damaged.group).or_default().push(damaged.replica.node());
        }
        is_sound &= verdict.inspection.is_sound();
        print_result(arguments.logs.output, || verdict.text(), || verdict.json())?;
    }
    for (group, nodes) in victims.iter().filter(|(_, nodes)| nodes.len() > 1) {
        let (name, count) = (full_name(&places[0], *group), nodes.len());
        crate::output::say(&format!(
            "group {name} is damaged in {count} of these logs: keep copies of them, see docs/operations.md"
        ));
    }
    Ok(if is_sound { Exit::Done } else { Exit::Refused })
}

fn check(place: &Place, durability: Durability) -> Result<Verdict<'_>> {
    let mut before: BTreeMap<u64, u64> = BTreeMap::new();
    let mut total = 0;
    for (id, size) in segment_sizes(&OsDisk, &place.log)? {
        before.insert(id, total);
        total += size;
    }
    let progress = ProgressBar::new(total);
    let style = "{bar:30} {percent:>3}%  {decimal_bytes}/{decimal_total_bytes}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        progress.set_style(style);
    }
    let mut records = 0;
    let inspection = look(&OsDisk, place, durability, &mut |event| {
        records += u64::from(matches!(event, Event::Record(..)));
        if let Event::Batch(at, _) = event {
            progress.set_position(before.get(&at.segment).map_or(total, |before| before + at.offset));
        }
    });
    progress.finish_and_clear();
    Ok(Verdict { place, inspection: inspection?, records })
}

impl Verdict<'_> {
    fn word(&self) -> &'static str {
        match self.inspection.end {
            _ if !self.inspection.is_sound() => "DAMAGED",
            End::Torn(_) => "torn tail",
            End::Clean | End::CutShort(_) => "sound",
        }
    }

    fn text(&self) -> String {
        let segments = counted(self.inspection.segments.len() as u64, "segment");
        let (records, groups) =
            (counted(self.records, "sound record"), counted(self.inspection.groups.len() as u64, "group"));
        let log = self.place.log.display();
        let mut lines = vec![format!("{log}: {} ({segments}, {records}, {groups})", self.word())];
        match self.inspection.end {
            End::Clean => {}
            End::Torn(at) => {
                lines.push(format!("  a write was cut off in segment {}, byte {}", hex(at.segment), at.offset));
            }
            End::CutShort(at) => {
                lines.push(format!(
                    "  the file of segment {} was cut short: it ends behind byte {}",
                    hex(at.segment),
                    at.offset
                ));
            }
        }
        let damage = &self.inspection.damage;
        lines.extend(damage.iter().take(SHOWN_MAX).map(|damage| format!("  {}", self.damage_text(damage))));
        let hidden = self.inspection.damage_count.saturating_sub(damage.len().min(SHOWN_MAX) as u64);
        if hidden > 0 {
            lines.push(format!("  and {}", counted(hidden, "further place")));
        }
        let victims = self.inspection.groups.iter().filter(|found| found.is_damaged);
        let victims: Vec<String> = victims.map(|found| self.victim_text(found)).collect();
        lines.extend(victims.iter().take(SHOWN_MAX).cloned());
        if victims.len() > SHOWN_MAX {
            lines.push(format!("  and {}", counted((victims.len() - SHOWN_MAX) as u64, "further group")));
        }
        lines.extend(self.advice().iter().map(|line| format!("  {line}")));
        lines.join("\n")
    }

    fn damage_text(&self, damage: &Damage) -> String {
        let place = format!("segment {}, byte {}", hex(damage.place.segment), damage.place.offset);
        match damage.what {
            Damaged::Entry(group, index) => format!("{place}: entry {index} of {}", full_name(self.place, group)),
            Damaged::Record(group) => format!("{place}: a record of {}", full_name(self.place, group)),
            Damaged::Unknown(0) => format!("{place}: the segment is gone"),
            Damaged::Unknown(bytes) => format!("{place}: {}, nobody knows whose", counted(bytes, "byte")),
        }
    }

    fn victim_text(&self, found: &hedgerow_wal::Recovered) -> String {
        let name = full_name(self.place, found.group);
        let others = match self.place.groups.other_voters(found.group, found.replica) {
            Some(nodes) if nodes.is_empty() => "it has no other replica".to_owned(),
            Some(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
                format!("its other voters are on nodes {}", nodes.join(", "))
            }
            None => "where its other voters are is not noted here".to_owned(),
        };
        format!("  group {name} cannot use its log beyond entry {}; {others}", found.last.index)
    }

    /// What a start will do, and what there is to do.
    fn advice(&self) -> Vec<String> {
        let inspection = &self.inspection;
        let mut advice = Vec::new();
        let mut tell = |text: &str| advice.push(text.to_owned());
        if let End::Torn(_) = inspection.end {
            tell(
                "that is normal after a power failure: nobody was told that it was durable. A start goes on before it",
            );
        }
        if inspection.mark_problem.is_some() {
            tell(
                "the mark beside the log cannot be used: a lost end would look like a torn tail. A start makes another one",
            );
        }
        if inspection.is_sound() {
            return advice;
        }
        let has_victims = inspection.groups.iter().any(|found| found.is_damaged);
        if has_victims {
            tell(
                "a start gives these replicas up, and they are replaced from the others as long as most of their voters are sound",
            );
        }
        if inspection.has_unknown_loss {
            tell("what is lost may have been any group's: a start takes replicas that the log does not know as lost");
        }
        if has_victims || inspection.has_unknown_loss {
            tell("leave the directory as it is and start the node; `hedgerow status` shows the repair");
            tell(
                "where most voters of a group are lost: keep copies of their data directories, see docs/operations.md",
            );
        } else {
            tell("no group needs what stood there: a start loses nothing");
        }
        tell("damage that comes again points to a disk or memory that fails");
        advice
    }

    fn json(&self) -> Value {
        let inspection = &self.inspection;
        let damage = |damage: &Damage| {
            let (group, index, bytes) = match damage.what {
                Damaged::Entry(group, index) => (Some(group), Some(index), None),
                Damaged::Record(group) => (Some(group), None, None),
                Damaged::Unknown(bytes) => (None, None, Some(bytes)),
            };
            json!({
                "segment": hex(damage.place.segment),
                "offset": damage.place.offset,
                "group": group.map(|group| group.to_string()),
                "index": index,
                "bytes": bytes,
            })
        };
        let victim = |found: &hedgerow_wal::Recovered| {
            let others = self.place.groups.other_voters(found.group, found.replica);
            json!({
                "group": found.group.to_string(),
                "table": self.place.groups.table_name(found.group),
                "replica": found.replica.to_string(),
                "last_sound_index": found.last.index,
                "nodes_of_other_voters": others.map(|nodes| nodes.iter().map(|node| node.0).collect::<Vec<_>>()),
            })
        };
        let torn = match inspection.end {
            End::Torn(at) => Some(json!({ "segment": hex(at.segment), "offset": at.offset })),
            End::Clean | End::CutShort(_) => None,
        };
        json!({
            "log": self.place.log.display().to_string(),
            "is_in_use": self.place.is_in_use,
            "verdict": self.word().to_lowercase(),
            "segments": inspection.segments.len(),
            "records": self.records,
            "groups": inspection.groups.len(),
            "torn_tail": torn,
            "damage_count": inspection.damage_count,
            "damage": inspection.damage.iter().map(damage).collect::<Vec<_>>(),
            "damaged_groups": inspection.groups.iter().filter(|found| found.is_damaged).map(victim).collect::<Vec<_>>(),
            "may_concern_any_group": inspection.has_unknown_loss,
            "mark_problem": inspection.mark_problem,
            "advice": self.advice(),
        })
    }
}
