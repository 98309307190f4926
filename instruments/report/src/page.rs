//! One self-contained HTML page about one outcome or several side by side.
//!
//! Whatever comes from outside is escaped, the pictures stand in the page as SVG, and nothing is fetched.

use crate::plot::{Picture, pictures};
use crate::schema::{Check, Outcome, Table};
use crate::summary;
use crate::variants::{comparisons, letter};
use anyhow::Result;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// From so many columns on a table scrolls sideways, and its first column keeps its width.
const BROAD_COLUMNS_MIN: usize = 12;
const CSS: &str = include_str!("page.css");

/// The page about `outcomes`, each with its results folder, from which the histogram logs are read.
pub fn page(outcomes: &[(PathBuf, Outcome)]) -> Result<String> {
    let shown: Vec<(&Path, &Outcome)> = outcomes.iter().map(|(folder, outcome)| (folder.as_path(), outcome)).collect();
    let pictures = pictures(&shown)?;
    let title = match outcomes {
        [(_, outcome)] => outcome.title.clone(),
        _ => format!("{} results side by side", outcomes.len()),
    };
    let mut html = Html::default();
    html.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.element("title", &title);
    html.raw(&format!("<style>\n{CSS}</style>\n</head>\n<body>\n"));
    html.element("h1", &title);
    html.overview(&shown);
    html.alarms(&shown);
    for (index, (_, outcome)) in shown.iter().enumerate() {
        if !outcome.tables.is_empty() {
            html.element("h2", &format!("{}Results", whose(index, &shown)));
            outcome.tables.iter().for_each(|table| html.table(table));
        }
    }
    html.comparisons(&shown, &pictures);
    shown.iter().enumerate().for_each(|(index, (_, outcome))| html.details(outcome, &whose(index, &shown)));
    html.raw("</body>\n</html>\n");
    Ok(html.text)
}

/// Which outcome a line is about, if there are several.
fn whose(index: usize, outcomes: &[(&Path, &Outcome)]) -> String {
    if outcomes.len() > 1 { format!("{}: ", letter(index)) } else { String::new() }
}

/// A page as it grows. Everything but [`Html::raw`] escapes.
#[derive(Default)]
struct Html {
    text: String,
}

impl Html {
    fn raw(&mut self, html: &str) {
        self.text.push_str(html);
    }

    fn element(&mut self, name: &str, text: &str) {
        self.classed(name, "", text);
    }

    fn classed(&mut self, name: &str, class: &str, text: &str) {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        writeln!(self.text, "<{name}{class}>{}</{name}>", escape(text)).expect("a string takes everything");
    }

    /// A list of names with what they stand for.
    fn pairs(&mut self, pairs: &[(&str, String)]) {
        self.raw("<dl>\n");
        for (name, text) in pairs {
            self.element("dt", name);
            self.element("dd", text);
        }
        self.raw("</dl>\n");
    }

    fn table(&mut self, table: &Table) {
        let is_broad = table.columns.len() >= BROAD_COLUMNS_MIN;
        self.raw(&format!("<div class=\"{}\"><table>\n", if is_broad { "wide figures" } else { "wide" }));
        if !table.title.is_empty() {
            self.element("caption", &table.title);
        }
        let class = |column: usize| if table.is_numeric(column) { "number" } else { "" };
        self.raw("<thead><tr>\n");
        table.columns.iter().enumerate().for_each(|(column, title)| self.classed("th", class(column), title));
        self.raw("</tr></thead>\n<tbody>\n");
        for row in &table.rows {
            self.raw("<tr>\n");
            row.iter().enumerate().for_each(|(column, cell)| self.classed("td", class(column), cell));
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
        table.notes.iter().for_each(|note| self.classed("p", "note", note));
    }

    /// A text as it stands, behind a heading that opens it.
    fn file(&mut self, name: &str, text: &str) {
        self.raw("<details>\n");
        self.element("summary", name);
        self.element("pre", text);
        self.raw("</details>\n");
    }

    fn overview(&mut self, outcomes: &[(&Path, &Outcome)]) {
        if let [(_, outcome)] = outcomes {
            return self.pairs(&[
                ("measured", format!("{}, seed {}", outcome.started, outcome.seed)),
                ("on", machine(outcome)),
                ("version", outcome.machine.hedgerow.clone()),
                ("runs", runs(outcome)),
            ]);
        }
        let columns = ["", "result", "measured", "machine", "version", "seed", "runs", "folder"];
        let row = |(index, (folder, outcome)): (usize, &(&Path, &Outcome))| {
            vec![
                letter(index),
                outcome.title.clone(),
                outcome.started.clone(),
                machine(outcome),
                outcome.machine.hedgerow.clone(),
                outcome.seed.to_string(),
                runs(outcome),
                folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned(),
            ]
        };
        self.table(&Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: outcomes.iter().enumerate().map(row).collect(),
            ..Table::default()
        });
    }

    /// What a reader must know before any figure.
    fn alarms(&mut self, outcomes: &[(&Path, &Outcome)]) {
        let mut alarms = Vec::new();
        for (index, (_, outcome)) in outcomes.iter().enumerate() {
            let whose = whose(index, outcomes);
            let failed = outcome.checks.iter().filter(|check| !check.has_passed);
            alarms.extend(failed.map(|check| format!("{whose}Check failed: {}. {}", check.name, check.detail)));
            let void = outcome.runs.iter().filter_map(|run| Some((run, run.void.as_ref()?)));
            alarms.extend(void.map(|(run, why)| {
                format!("{whose}VOID: {}, {}, repetition {}: {why}", run.workload, run.variant, run.repetition)
            }));
        }
        let machine = |outcome: &Outcome| (outcome.machine.cpu.clone(), outcome.machine.cores);
        if outcomes.windows(2).any(|pair| machine(pair[0].1) != machine(pair[1].1)) {
            alarms.push("These were measured on different machines: compare ratios, not figures.".to_owned());
        }
        alarms.iter().for_each(|alarm| self.classed("div", "alarm", alarm));
    }

    fn comparisons(&mut self, outcomes: &[(&Path, &Outcome)], pictures: &[Picture]) {
        for comparison in comparisons(outcomes) {
            self.element("h2", &format!("Workload {}", comparison.workload));
            self.table(&Table { title: String::new(), ..summary::figures(&comparison) });
            summary::hedging(&comparison).iter().for_each(|table| self.table(table));
            summary::further(&comparison).iter().for_each(|table| self.table(table));
            let own = || pictures.iter().filter(|picture| picture.workload == comparison.workload);
            own().filter(|picture| !picture.is_further_repetition).for_each(|picture| self.raw(&picture.svg));
            let further: Vec<&Picture> = own().filter(|picture| picture.is_further_repetition).collect();
            if !further.is_empty() {
                self.raw("<details>\n");
                self.element("summary", "Further repetitions over time");
                further.iter().for_each(|picture| self.raw(&picture.svg));
                self.raw("</details>\n");
            }
            self.raw("<details>\n");
            self.element("summary", "Every run");
            self.table(&summary::single_runs(&comparison));
            self.raw("</details>\n");
        }
    }

    /// How the outcome came about.
    fn details(&mut self, outcome: &Outcome, whose: &str) {
        self.element("h2", &format!("{whose}How it was measured"));
        self.element("pre", &command_line(&outcome.command));
        self.checks(&outcome.checks);
        for (name, text) in &outcome.workloads {
            self.file(&format!("Workload {name}"), text);
        }
        if let Some(plan) = &outcome.fault_plan {
            self.file("Fault plan", plan);
        }
    }

    fn checks(&mut self, checks: &[Check]) {
        if checks.is_empty() {
            return;
        }
        self.raw(
            "<div class=\"wide\"><table>\n<thead><tr><th>check</th><th></th><th>because</th></tr></thead>\n<tbody>\n",
        );
        for check in checks {
            self.raw("<tr>\n");
            self.element("td", &check.name);
            let (class, word) = if check.has_passed { ("good", "passed") } else { ("bad", "FAILED") };
            self.classed("td", class, word);
            self.element("td", &check.detail);
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
    }
}

fn machine(outcome: &Outcome) -> String {
    let machine = &outcome.machine;
    let memory_gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    format!("{}, {} cores, {memory_gib:.1} GiB, {}", machine.cpu, machine.cores, machine.kernel)
}

fn runs(outcome: &Outcome) -> String {
    let void = outcome.runs.iter().filter(|run| run.void.is_some()).count();
    if void == 0 { outcome.runs.len().to_string() } else { format!("{}, {void} of them VOID", outcome.runs.len()) }
}

/// The words of a command as a shell understands them.
fn command_line(words: &[String]) -> String {
    let is_plain = |word: &str| {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:=,+@%".contains(char);
        !word.is_empty() && word.chars().all(is_plain)
    };
    let quoted =
        |word: &String| if is_plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Text for HTML and XML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(char),
            _ if char.is_control() => escaped.push(' '),
            _ => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<b a=\"1\" c='2'>&\u{1}"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp; ");
    }

    #[test]
    fn commands_can_be_pasted() {
        let words = ["hedgerow", "bench", "run", "it's mine.toml", "--rate", "1000,2000", ""].map(str::to_owned);
        assert_eq!(command_line(&words), "hedgerow bench run 'it'\\''s mine.toml' --rate 1000,2000 ''");
    }
}
