//! Races as scripts: what happens to a request, line by line, and what is done about it.
//!
//! Each file of `scripts` begins with what it shows. `plan` begins a request. A line `TIME poll`, `TIME end NUMBER OUTCOME`,
//! `TIME token KIND`, `TIME late HELD (heard|unheard)`, `replicas COUNT` or `tokens COUNT` is a command; the indented line after it is the answer.
//! `REWRITE=1 cargo test -p hedgerow-hedge --test script` writes the answers as they are now.
#![allow(clippy::disallowed_methods, reason = "reads and rewrites its scripts")]

use hedgerow_hedge::{Action, Kind, Outcome, Plan, Race, Time};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

struct Script {
    race: Race,
    /// How many replicas may be asked, and how many extra attempts sent.
    replicas: usize,
    tokens: usize,
}

fn millis(text: &str) -> Duration {
    let number = text.strip_suffix("ms").unwrap_or_else(|| panic!("{text}: not a time"));
    Duration::from_secs_f64(number.parse::<f64>().expect("a number") / 1_000.0)
}

fn shown(time: Time) -> String {
    format!("{}ms", time.0 as f64 / 1e6)
}

fn plan(words: &[&str]) -> Plan {
    let mut plan = Plan::default();
    for word in words {
        let (name, value) = word.split_once('=').expect("name=value");
        match name {
            "delay" => plan.delay = Some(millis(value)),
            "gap" => plan.gap = millis(value),
            "step" => plan.step = millis(value),
            "tie" => plan.tie = Some(millis(value)),
            "fallback" => plan.fallback = Some(millis(value)),
            "after" => plan = Plan::after(&value.split(',').map(millis).collect::<Vec<_>>()),
            "max" => plan.max_executions = value.parse().expect("a count"),
            _ => panic!("{name}: not of a plan"),
        }
    }
    plan
}

impl Script {
    fn poll(&mut self, now: Time) -> String {
        let mut steps = Vec::new();
        loop {
            let mut asked = String::new();
            let (replicas, tokens) = (&mut self.replicas, &mut self.tokens);
            let action = self.race.poll(now, |kind| {
                let may = *replicas > 0 && *tokens > 0;
                if may {
                    *replicas -= 1;
                    *tokens -= 1;
                } else {
                    write!(asked, "no {kind:?}; ").expect("a string grows");
                }
                may
            });
            if let Action::Send { kind: Kind::First, .. } = action {
                self.replicas -= 1;
            }
            steps.push(asked.to_lowercase() + &describe(action));
            if !matches!(action, Action::Send { .. }) {
                return steps.join("; ");
            }
        }
    }

    fn run(&mut self, words: &[&str]) -> Option<String> {
        match words {
            ["plan", rest @ ..] => *self = Self { race: Race::new(plan(rest), Time(0)), ..Script::default() },
            ["replicas", count] => self.replicas = count.parse().expect("a count"),
            ["tokens", count] => self.tokens = count.parse().expect("a count"),
            [at, "token", kind] => {
                let kind = match *kind {
                    "hedge" => Kind::Hedge,
                    "retry" => Kind::Retry,
                    "fallback" => Kind::Fallback,
                    _ => panic!("{kind}: not a kind that waits"),
                };
                self.race.handle_token(kind, Time(0) + millis(at));
            }
            [at, "late", held, heard] => {
                let has_heard = *heard == "heard";
                let is_put_off = self.race.handle_late(Time(0) + millis(at), millis(held), || has_heard);
                return Some(if is_put_off { "put off" } else { "as it was" }.to_owned());
            }
            [at, "poll"] => return Some(self.poll(Time(0) + millis(at))),
            [_, "end", number, outcome] => {
                let outcome = match *outcome {
                    "success" => Outcome::Success,
                    "fatal" => Outcome::Fatal,
                    "nonfatal" => Outcome::NonFatal,
                    "dropped" => Outcome::Dropped,
                    _ => panic!("{outcome}: not an outcome"),
                };
                let counted = self.race.handle_end(number.parse().expect("a number"), outcome);
                return Some(if counted { "counts" } else { "passed over" }.to_owned());
            }
            _ => panic!("{words:?}: not a command"),
        }
        None
    }
}

impl Default for Script {
    fn default() -> Self {
        Self { race: Race::new(Plan::default(), Time(0)), replicas: 3, tokens: 20 }
    }
}

fn describe(action: Action) -> String {
    match action {
        Action::Send { number, kind } => format!("send {number} {}", format!("{kind:?}").to_lowercase()),
        Action::Wait { until: None } => "wait".to_owned(),
        Action::Wait { until: Some(until) } => format!("wait until {}", shown(until)),
        Action::Finish { number, is_success, losers } => {
            let end = if is_success { "answered" } else { "failed" };
            let losers: String = losers.iter().map(|number| format!(", cancel {number}")).collect();
            format!("{end} by {number}{losers}")
        }
    }
}

fn answered(text: &str) -> String {
    let mut script = Script::default();
    let mut answer = String::new();
    for line in text.lines().filter(|line| !line.starts_with(' ')) {
        writeln!(answer, "{line}").expect("a string grows");
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(step) = script.run(&words) {
            writeln!(answer, "    {step}").expect("a string grows");
        }
    }
    answer
}

#[test]
fn scripts() {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/scripts");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let answer = answered(&text);
        if std::env::var_os("REWRITE").is_some() {
            std::fs::write(&path, &answer).expect("it can be written");
        } else {
            assert_eq!(text, answer, "{}", path.display());
        }
        count += 1;
    }
    assert!(count >= 10, "only {count} scripts were found");
}
