//! `hedgerow-model`: checks the models, takes away one rule at a time, and shows how each absence breaks a promise.
//!
//! Exit code 1 if a promise is broken, or if the absence of a rule goes unnoticed.

use clap::Parser;
use hedgerow_model::check::{Verdict, check};
use hedgerow_model::plan::{self, Subject};
use hedgerow_model::rule::Rule;
use std::io::{Write, stdout};
use std::process::ExitCode;

/// Checks the rules of leases and reads as small models, in every state that they can reach.
#[derive(Debug, Parser)]
#[command(name = "hedgerow-model", version)]
struct Arguments {
    /// Only show the shortest way to a broken promise without this rule; `clocks` shows it with all rules and clocks outside
    /// their bounds.
    #[arg(long, value_name = "RULE", value_parser = parse_missing)]
    show: Option<Missing>,
    /// Only the smaller models of the tests.
    #[arg(long)]
    quick: bool,
    /// Larger models of the group besides; they need gigabytes of memory.
    #[arg(long, conflicts_with = "quick")]
    deep: bool,
    /// Only the models of this kind.
    #[arg(long, value_name = "MODEL", value_parser = ["lease", "read-index", "group", "quorum"])]
    only: Option<String>,
}

/// What is to be taken away.
#[derive(Clone, Copy, Debug)]
enum Missing {
    Rule(Rule),
    ClockBounds,
}

fn parse_missing(name: &str) -> Result<Missing, String> {
    match name {
        "clocks" => Ok(Missing::ClockBounds),
        _ => name.parse().map(Missing::Rule).map_err(|error: String| format!("{error}; or clocks")),
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let is_good = match arguments.show {
        Some(Missing::ClockBounds) => {
            plan::beyond().into_iter().all(|subject| show("The bounds of the clocks' rates.", subject))
        }
        Some(Missing::Rule(rule)) => show(rule.text(), plan::without(rule)),
        None => {
            let mut subjects = if arguments.quick { plan::quick() } else { plan::full() };
            subjects.extend(if arguments.deep { plan::deep() } else { Vec::new() });
            let is_wanted = |subject: &Subject| match &arguments.only {
                Some(only) => subject.name().replace(' ', "-") == *only,
                None => true,
            };
            subjects.retain(is_wanted);
            let models = check_models(subjects)?;
            println!();
            let rules = check_rules(&is_wanted)?;
            models && rules
        }
    };
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a row for each model as it is done. Whether all of them hold.
fn check_models(subjects: Vec<Subject>) -> anyhow::Result<bool> {
    let title = "parameters";
    println!("{:<10}  {title:<74} {:>11} {:>11} {:>5} {:>7}  result", "model", "states", "unique", "depth", "seconds");
    let mut all_hold = true;
    for subject in subjects {
        print!("{:<10}  {:<74} ", subject.name(), subject.to_string());
        stdout().flush()?;
        let it = check(subject);
        println!("{:>11} {:>11} {:>5} {:>7.1}  {}", it.states, it.unique, it.depth, it.seconds, it.verdict);
        it.path.iter().for_each(|line| println!("{line}"));
        all_hold &= it.verdict == Verdict::Holds;
    }
    Ok(all_hold)
}

/// Prints for each wanted rule, and for clocks outside their bounds, how long the shortest way to a broken promise is. Whether
/// there is one for each.
fn check_rules(is_wanted: &dyn Fn(&Subject) -> bool) -> anyhow::Result<bool> {
    println!("{:<26} {:<10} {:>11} {:>7}  result", "without", "model", "states", "seconds");
    let rules = Rule::ALL.iter().map(|&rule| (rule.name(), plan::without(rule)));
    let again = plan::again().into_iter().map(|(rule, subject)| (rule.name(), subject));
    let clocks = plan::beyond().into_iter().map(|subject| ("(clocks within bounds)", subject));
    let mut all_are_caught = true;
    for (name, subject) in rules.chain(again).chain(clocks).filter(|(_, subject)| is_wanted(subject)) {
        print!("{name:<26} {:<10} ", subject.name());
        stdout().flush()?;
        let it = check(subject);
        let is_caught = matches!(it.verdict, Verdict::Broken(_));
        let result = match is_caught {
            true => format!("caught, {} steps", it.path.len() / 2),
            false => "NOT CAUGHT".to_owned(),
        };
        println!("{:>11} {:>7.1}  {result}", it.states, it.seconds);
        all_are_caught &= is_caught;
    }
    Ok(all_are_caught)
}

/// Prints the way to a broken promise. Whether there is one.
fn show(what: &str, subject: Subject) -> bool {
    let (name, bounds) = (subject.name(), subject.to_string());
    println!("Model: {name}, {bounds}\nMissing: {what}");
    match plan::hunt(subject) {
        Some(outcome) => {
            outcome.path.iter().for_each(|line| println!("{line}"));
            true
        }
        None => {
            println!("no promise is broken");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_documents_are_understood() {
        for call in hedgerow_testkit::calls_of_x("model").expect("documents") {
            // To ask for help is an "error" that ends well.
            if let Err(error) = Arguments::try_parse_from(&call).map_err(|it| (it.exit_code(), it)) {
                assert_eq!(error.0, 0, "{call:?}: {}", error.1);
            }
        }
    }
}
