//! The frame with an experiment that measures nothing: who gets a turn when, and what an interruption or an error leaves.

use super::*;
use crate::experiment::Description;
use hedgerow_report::{Operation, Table};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{pending, ready};
use std::rc::Rc;

/// Takes a turn in ten seconds and writes down that it did.
#[derive(Default)]
struct Fake {
    log: Rc<RefCell<Vec<String>>>,
    /// The turns, by their number in the log of turns, that are void.
    void: Vec<usize>,
    /// The turn that fails.
    failing: Option<usize>,
    turns: usize,
}

const TURN: Duration = Duration::from_secs(10);

impl Fake {
    fn log(&self, line: String) {
        self.log.borrow_mut().push(line);
    }
}

impl Experiment for Fake {
    type Case = char;

    fn description(&self) -> Description {
        Description { name: "fake", question: "does the frame work", needs: "nothing" }
    }

    fn groups(&self) -> Vec<Group<char>> {
        let variant =
            |case: char| Variant { name: case.to_string(), prepare_expected: TURN, measure_expected: TURN, case };
        let group =
            |name: &str, cases: &str| Group { name: name.to_owned(), variants: cases.chars().map(variant).collect() };
        vec![group("letters", "AB"), group("digits", "1")]
    }

    fn workloads(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("w".to_owned(), "name = \"w\"\n".to_owned())])
    }

    async fn prepare(&mut self, _: &Context<'_>, case: &char) -> Result<()> {
        tokio::time::sleep(TURN).await;
        self.log(format!("+{case}"));
        Ok(())
    }

    async fn measure(&mut self, context: &Context<'_>, case: &char) -> Result<Vec<Run>> {
        tokio::time::sleep(TURN).await;
        let turn = self.turns;
        self.turns += 1;
        ensure!(self.failing != Some(turn), "no more disk");
        self.log(format!("{case}{} seed {}", context.repetition, context.seed));
        let operation = Operation { name: "get".to_owned(), count: 1, ..Operation::default() };
        let sound = Run { variant: case.to_string(), workload: "sound".to_owned(), ..Run::default() };
        let run = Run {
            variant: case.to_string(),
            workload: "w".to_owned(),
            repetition: context.repetition,
            void: self.void.contains(&turn).then(|| "too slow".to_owned()),
            operations: vec![operation],
            ..Run::default()
        };
        Ok([sound, run].into_iter().filter(|run| context.is_wanted(&run.variant, &run.workload)).collect())
    }

    fn tables(&self, runs: &[Run]) -> Vec<Table> {
        vec![Table { title: format!("{} runs", runs.len()), ..Table::default() }]
    }
}

fn options(results: &tempfile::TempDir) -> Options {
    Options {
        size: Size::Full,
        repetitions: Some(2),
        rows: None,
        seed: 10,
        only: Vec::new(),
        results: results.path().to_owned(),
        data: None,
        binary: "unused".into(),
        command: vec!["hedgerow".to_owned()],
    }
}

async fn finish(fake: Fake, options: &Options, interrupted: impl Future<Output = ()>) -> (Finished, Vec<Event>) {
    let mut events = Vec::new();
    let finished = conduct(fake, options, interrupted, |event| events.push(event)).await.unwrap();
    assert_eq!(Outcome::read(finished.folder.path()).unwrap(), finished.outcome);
    (finished, events)
}

#[tokio::test(start_paused = true)]
async fn variants_take_turns_and_repetitions_share_a_seed() {
    let results = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let log = fake.log.clone();
    let (finished, events) = finish(fake, &options(&results), pending()).await;
    let expected =
        ["+A", "+B", "A1 seed 11", "B1 seed 11", "A2 seed 12", "B2 seed 12", "+1", "11 seed 11", "12 seed 12"];
    assert_eq!(*log.borrow(), expected);
    assert_eq!(finished.ending, Ending::Complete);
    assert!(finished.outcome.checks.iter().all(|check| check.has_passed));
    assert_eq!(finished.outcome.tables[0].title, "12 runs");
    let Event::Step { what, done, total, left } = &events[5] else { panic!("{events:?}") };
    assert_eq!((what.as_str(), *done, *total, *left), ("letters: B, repetition 2 of 2", 5, 9, 4 * TURN));
}

#[tokio::test(start_paused = true)]
async fn a_void_run_is_repeated_once_and_alone() {
    let results = tempfile::tempdir().unwrap();
    let fake = Fake { void: vec![0, 2, 3], ..Fake::default() };
    let (finished, events) = finish(fake, &options(&results), pending()).await;
    let runs = &finished.outcome.runs;
    assert_eq!((runs.len(), runs.iter().filter(|run| run.workload == "sound").count()), (12, 6));
    let voids: Vec<_> = runs.iter().filter(|run| run.workload == "w").map(|run| run.void.is_some()).collect();
    assert_eq!(voids, [false, true, false, false, false, false]);
    let remarks: Vec<_> = events.into_iter().filter(|event| matches!(event, Event::Remark(_))).collect();
    assert_eq!(remarks.len(), 3);
    assert_eq!(remarks[0], Event::Remark("A, w, was VOID and is repeated: too slow".to_owned()));
    assert_eq!(remarks[2], Event::Remark("B, w, was VOID: too slow".to_owned()));
    let failed: Vec<_> = finished.outcome.checks.iter().filter(|check| !check.has_passed).collect();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].detail.contains("B, w, repetition 1"), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quick_run_repeats_nothing() {
    let results = tempfile::tempdir().unwrap();
    let fake = Fake { void: vec![0], ..Fake::default() };
    let log = fake.log.clone();
    let options = Options { size: Size::Quick, repetitions: None, ..options(&results) };
    let (finished, _) = finish(fake, &options, pending()).await;
    assert_eq!(*log.borrow(), ["+A", "+B", "A1 seed 11", "B1 seed 11", "+1", "11 seed 11"]);
    assert!(finished.outcome.runs[1].void.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_interruption_leaves_what_there_is_and_says_so() {
    let results = tempfile::tempdir().unwrap();
    // In the middle of the second turn.
    let (finished, _) = finish(Fake::default(), &options(&results), tokio::time::sleep(TURN * 7 / 2)).await;
    assert_eq!((finished.ending, finished.outcome.runs.len()), (Ending::Interrupted, 2));
    assert_eq!(finished.outcome.title, "fake: does the frame work (partial)");
    assert_eq!(finished.outcome.checks[0].detail, "PARTIAL: interrupted after 3 of 9 steps");
    assert!(!finished.outcome.checks[0].has_passed);
}

#[tokio::test(start_paused = true)]
async fn an_error_leaves_what_there_is_and_says_so() {
    let results = tempfile::tempdir().unwrap();
    let fake = Fake { failing: Some(1), ..Fake::default() };
    let (finished, _) = finish(fake, &options(&results), pending()).await;
    assert_eq!((finished.ending, finished.outcome.runs.len()), (Ending::Failed("no more disk".to_owned()), 2));
    assert_eq!(finished.outcome.checks[0].detail, "PARTIAL: failed after 3 of 9 steps: no more disk");
}

#[tokio::test(start_paused = true)]
async fn groups_can_be_chosen_by_name() {
    let results = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let log = fake.log.clone();
    let chosen = Options { only: vec!["digits".to_owned()], ..options(&results) };
    finish(fake, &chosen, pending()).await;
    assert_eq!(*log.borrow(), ["+1", "11 seed 11", "12 seed 12"]);
    let unknown = Options { only: vec!["words".to_owned()], ..options(&results) };
    let error = conduct(Fake::default(), &unknown, ready(()), |_| ()).await.unwrap_err().to_string();
    assert_eq!(error, "--only words: the experiment has the groups letters, digits");
}
