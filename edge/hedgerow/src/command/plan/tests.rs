//! Plans for latencies whose best second request can be worked out by hand.

use super::*;
use clap::Parser;

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    plan: PlanArguments,
}

fn arguments(words: &[&str]) -> Result<PlanArguments, String> {
    let words = Words::try_parse_from(["plan"].iter().chain(words));
    Ok(words.map_err(|error| error.to_string())?.plan)
}

/// The plan for plain text, as `run` makes it.
fn advice(text: &str, words: &[&str]) -> Result<(Advice, Samples)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latencies.txt");
    files::replace(&path, text.as_bytes()).unwrap();
    let arguments = arguments(&[&[path.to_str().unwrap()], words].concat()).unwrap();
    let samples = input::read(&path, &Choice { unit: arguments.unit, ..Choice::default() })?;
    let goal = Goal {
        max_extra_load: arguments.budget,
        correlation: arguments.correlation,
        percentile: arguments.target.percentile(),
    };
    Ok((Advice::of(&distribution(&samples)?, goal, arguments.target)?, samples))
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// One request in a hundred takes 100 ms, the others 1 ms. A second request sent when the fast ones are through goes to 1 % and
/// is itself slow once in a hundred: of 10,000 requests one is left that takes 100 ms, all others take at most 2 ms.
const STALLS: &str = "1ms 990000\n100ms 10000\n";

#[test]
fn one_slow_request_in_a_hundred_is_rescued_by_one_percent_more() {
    let (advice, samples) = advice(STALLS, &[]).unwrap();
    assert_eq!(samples.count(), 1_000_000);
    let best = &advice.best;
    assert!((0.95..=3.0).contains(&ms(best.delay)), "{best:?}");
    assert!((0.0095..=0.02).contains(&best.extra_load), "{best:?}");
    assert!((97.0..=100.0).contains(&ms(best.before.p999)), "{best:?}");
    assert!((1.9..=4.0).contains(&ms(best.after.p999)), "{best:?}");
    assert!(ms(best.after.p50) <= 1.0);
    // Whatever is recommended can be given to --hedge.
    best.policy.parse::<hedgerow_client::Policy>().unwrap();
    let text = text(&advice, &samples);
    assert!(text.contains(&format!("recommended: --hedge {}", best.policy)), "{text}");
    assert!(text.contains("1000000 samples") && text.contains("independently"), "{text}");
}

#[test]
fn half_the_needed_budget_rescues_half_and_the_plan_says_so() {
    let (advice, samples) = advice(STALLS, &["--budget", "0.5%"]).unwrap();
    // 0.5 % of the requests stay slow, so p99.9 does; no second request helps it.
    assert_eq!(advice.best.policy, "none");
    assert!(advice.hints[0].contains("the budget is too small"), "{:?}", advice.hints);
    let json = json(&advice, &samples);
    assert_eq!((&json["policy"], &json["delay_us"], &json["extra_load"]), (&json!("none"), &json!(0.0), &json!(0.0)));
    assert_eq!(json["notes"][0], advice.hints[0].as_str());
}

#[test]
fn what_is_slow_everywhere_is_not_helped() {
    let (advice, _) = advice(STALLS, &["--correlation", "1"]).unwrap();
    assert_eq!((advice.best.policy.as_str(), advice.best.extra_load), ("none", 0.0));
    assert!(advice.hints[0].contains("100% of the slow requests are slow at whichever server"), "{:?}", advice.hints);
}

#[test]
fn latencies_without_a_tail_need_no_hedging() {
    let (advice, _) = advice("1ms 500000\n1.01ms 500000\n", &["--budget", "2%"]).unwrap();
    assert_eq!(advice.best.policy, "none");
    assert!(advice.hints[0].contains("hedging will not help"), "{:?}", advice.hints);
}

#[test]
fn latencies_below_a_microsecond_are_doubted() {
    let (advice, _) = advice("600 10000\n", &["--unit", "ns", "--target", "p99"]).unwrap();
    assert!(advice.hints[0].contains("is the unit right"), "{:?}", advice.hints);
}

#[test]
fn too_few_samples_are_refused_or_not_available() {
    let few = "1ms 9900\n100ms 100\n";
    let error = advice(few, &[]).err().unwrap().to_string();
    assert_eq!(error, "p99.9 needs 100000 samples, and there are 10000: measure for longer, or take --target p99");
    let (advice, samples) = advice(few, &["--target", "p99", "--budget", "1%"]).unwrap();
    let json = json(&advice, &samples);
    assert!(json["before"]["p99_us"].is_number() && json["before"]["p999_us"].is_null());
    assert!(text(&advice, &samples).contains("n/a"));
    assert!(advice.hints.iter().any(|hint| hint.contains("p99.9 is n/a: it needs 100000")), "{:?}", advice.hints);
    assert_eq!(advice.lines(samples.count()).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["p50", "p99"]);
    assert!(super::tests::advice("1ms 5\n", &["--target", "p99"]).is_err());
}

#[test]
fn slow_second_servers_are_waited_for() {
    let samples = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latencies");
        files::replace(&path, text.as_bytes()).unwrap();
        distribution(&input::read(&path, &Choice::default()).unwrap()).unwrap()
    };
    let goal = Goal { max_extra_load: 0.02, correlation: 0.0, percentile: 99.9 };
    let first = samples(STALLS);
    let alike = Advice::of(&first, goal, Target::P999).unwrap();
    let far = Advice::of(&samples(STALLS).with_second(&samples("20ms 1000000\n")), goal, Target::P999).unwrap();
    assert!(ms(alike.best.after.p999) < 5.0, "{:?}", alike.best);
    assert!((19.0..=25.0).contains(&ms(far.best.after.p999)), "{:?}", far.best);
}

#[test]
fn the_trade_off_is_drawn() {
    let (advice, samples) = advice(STALLS, &[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = draw(&advice, &samples, &folder.path().join("new")).unwrap();
    let svg = files::read_text(&path).unwrap();
    assert!(svg.contains("What hedging costs and brings") && svg.contains("p99.99"));
    assert!(files::read_if_exists(&path.with_extension("png")).unwrap().is_some());
    let json = json(&advice, &samples);
    let curve = json["curve"].as_array().unwrap();
    assert!(curve.len() > 20);
    for point in curve {
        assert!(point["extra_load"].as_f64().unwrap() <= point["max_extra_load"].as_f64().unwrap() * 1.001, "{point}");
    }
}

#[test]
fn arguments_that_are_wrong_say_what_is_allowed() {
    for (words, expected) in [
        (&["x", "--budget", "0"][..], "above 0 and at most 100%"),
        (&["x", "--budget", "two"], "such as 2%"),
        (&["x", "--target", "p95"], "p99, p99.9, p99.99"),
        (&["x", "--correlation", "1.5"], "from 0 to 1"),
        (&["x", "--unit", "s"], "ns, us, ms"),
        (&[], "LATENCIES"),
    ] {
        let error = arguments(words).unwrap_err();
        assert!(error.contains(expected), "{words:?}: {error}");
    }
    assert_eq!(arguments(&["x", "--target", "99.9"]).unwrap().target, Target::P999);
    let missing = run(&arguments(&["/nowhere/at.all"]).unwrap()).unwrap_err();
    assert!(format!("{missing:#}").contains("/nowhere/at.all"), "{missing:#}");
}
