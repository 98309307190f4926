//! The models hold as they are, and break as soon as a rule is missing: their smaller forms, for every test run.

use hedgerow_model::check::{Verdict, check};
use hedgerow_model::plan;
use hedgerow_model::rule::{Part, Rule};

fn assert_all_hold(subjects: Vec<plan::Subject>) {
    for subject in subjects {
        let outcome = check(subject);
        assert_eq!(outcome.verdict, Verdict::Holds, "{subject}:\n{}", outcome.path.join("\n"));
        assert!(outcome.unique > 100, "{subject} has only {} states", outcome.unique);
    }
}

/// The shortest way must end in the broken promise, and be told step by step.
fn assert_caught(subject: plan::Subject, what: &str) {
    let outcome = plan::hunt(subject).unwrap_or_else(|| panic!("{what}: nothing is broken in {subject}"));
    let last = outcome.path.last().map(String::as_str).unwrap_or_default();
    assert!(last.contains("BROKEN"), "{what}: {last}");
    let earlier = &outcome.path[..outcome.path.len() - 1];
    assert!(earlier.iter().all(|line| !line.contains("BROKEN")), "{what}: {earlier:?}");
}

fn assert_rules_caught(part: Part) {
    for &rule in Rule::ALL.iter().filter(|rule| rule.part() == part) {
        assert_caught(plan::without(rule), rule.name());
    }
}

#[test]
fn every_promise_is_kept_with_all_rules() {
    assert_all_hold(plan::quick());
}

#[test]
fn the_absence_of_each_rule_of_the_lease_is_caught() {
    assert_rules_caught(Part::Lease);
}

#[test]
fn the_absence_of_each_rule_of_the_read_index_is_caught() {
    assert_rules_caught(Part::Index);
}

#[test]
fn the_absence_of_each_rule_of_the_group_is_caught() {
    assert_rules_caught(Part::Group);
}

#[test]
fn the_absence_of_each_rule_of_quorum_reads_is_caught() {
    assert_rules_caught(Part::Quorum);
}

/// The argument that puts the models together is a model too: what either needs is needed there.
#[test]
fn the_absence_of_a_rule_of_the_other_models_is_caught_in_that_of_the_group() {
    plan::again().into_iter().for_each(|(rule, subject)| assert_caught(subject, rule.name()));
}

#[test]
fn clocks_beyond_their_bounds_are_caught_with_all_rules() {
    plan::beyond().into_iter().for_each(|subject| assert_caught(subject, "clocks beyond their bounds"));
}

#[test]
fn without_the_allowance_for_rates_it_is_the_rates_that_break_the_promise() {
    assert_all_hold(plan::without_drift());
}
