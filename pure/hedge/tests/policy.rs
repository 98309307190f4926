//! Policies as text, and the plans that they make.

use hedgerow_hedge::{Latencies, Plan, Policy, RequestInfo, SpeculativeExecutionPolicy};
use std::time::Duration;

struct Known;

impl Latencies for Known {
    fn percentile(&self, percentile: f64) -> Option<Duration> {
        Some(Duration::from_micros((percentile * 100.0) as u64))
    }

    fn best_within(&self, max_extra_load: f64) -> Option<(Duration, f64)> {
        Some((Duration::from_millis(3), max_extra_load * 10.0))
    }
}

struct Unknown;

impl Latencies for Unknown {
    fn percentile(&self, _: f64) -> Option<Duration> {
        None
    }

    fn best_within(&self, _: f64) -> Option<(Duration, f64)> {
        None
    }
}

fn parsed(text: &str) -> Policy {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_form_is_understood_and_shown_again() {
    // (given, shown)
    let table = [
        ("none", "none"),
        ("10ms", "10ms"),
        ("10 ms", "10ms"),
        ("0ms", "0ms"),
        ("0", "0ms"),
        ("-1ms", "0ms"),
        ("1500us", "1.5ms"),
        ("1.5ms", "1.5ms"),
        ("0.25us", "250ns"),
        ("2s x3", "2s x3"),
        ("10ms  x16 ", "10ms x16"),
        ("10ms+50ms", "10ms+50ms"),
        (" 10ms + 50ms x4", "10ms+50ms x4"),
        ("99p", "99p"),
        ("99.9p", "99.9p"),
        ("min(99p,10ms)", "min(99p,10ms)"),
        ("min( 10ms , 99p ) x3", "min(99p,10ms) x3"),
        ("99p >=50us", "99p >=50us"),
        ("99p >=50us x3", "99p x3 >=50us"),
        ("adaptive", "adaptive=2%"),
        ("adaptive=0.5%", "adaptive=0.5%"),
        ("adaptive=7% x3 >=1ms", "adaptive=7% x3 >=1ms"),
    ];
    for (given, shown) in table {
        let policy = parsed(given);
        assert_eq!(policy.to_string(), shown, "{given}");
        assert_eq!(format!("{:?}", parsed(shown)), format!("{policy:?}"), "{shown} is the same policy");
    }
}

#[test]
fn what_is_no_policy_is_refused_with_all_forms() {
    let texts = [
        "",
        " ",
        "ten",
        "10",
        "10m",
        "ms",
        ".5ms",
        "1.ms",
        "1.2.3ms",
        "0.5ns",
        "1e3ms",
        "+5ms",
        "5ms+",
        "10ms x1",
        "10ms x17",
        "10ms x",
        "10ms x2 x3",
        "10ms >=5us",
        "none x2",
        "99",
        "p",
        "100p",
        "101p",
        "49p",
        "-99p",
        "nanp",
        "infp",
        "min(99p)",
        "min(99p,98p)",
        "min(10ms,20ms)",
        "min(99p,10ms",
        "max(99p,10ms)",
        "adaptive=",
        "adaptive=2",
        "adaptive=0%",
        "adaptive=-2%",
        "adaptive=101%",
        "adaptive 2%",
        "99999999999999999999s",
        "18446744074s",
        "\u{661}ms",
    ];
    for text in texts {
        let error = text.parse::<Policy>().expect_err(text);
        let message = error.to_string();
        for form in ["none", "10ms", "10ms+50ms", "99p", "min(99p,10ms)", "adaptive=2%", "x3", ">=50us"] {
            assert!(message.contains(form), "{message}: lacks {form}");
        }
        assert!(message.starts_with(&format!("{text:?} is not a policy")), "{message}");
    }
}

fn shown(plan: Plan) -> String {
    let Some(delay) = plan.delay else { return "off".to_owned() };
    format!("{delay:?} {:?} {:?} x{}", plan.gap, plan.step, plan.max_executions)
}

#[test]
fn plans() {
    // (policy, draw, with what is known, with nothing known)
    let table = [
        ("none", 0.0, "off", "off"),
        ("0ms", 0.0, "off", "off"),
        ("10ms x3", 0.9, "10ms 10ms 0ns x3", "10ms 10ms 0ns x3"),
        ("10ms+50ms x4", 0.0, "10ms 60ms 50ms x4", "10ms 60ms 50ms x4"),
        ("99p", 0.0, "9.9ms 9.9ms 0ns x2", "1s 1s 0ns x2"),
        ("min(99p,5ms)", 0.0, "5ms 5ms 0ns x2", "5ms 5ms 0ns x2"),
        ("50p >=7ms", 0.0, "7ms 7ms 0ns x2", "1s 1s 0ns x2"),
        ("min(99p,50us)", 0.0, "50µs 50µs 0ns x2", "50µs 50µs 0ns x2"),
        ("adaptive=2%", 0.17, "3ms 3ms 0ns x2", "off"),
        // A tenth of the share is for what the solution leaves alone.
        ("adaptive=2%", 0.19, "9.98ms 9.98ms 0ns x2", "off"),
        ("adaptive=2% >=4ms", 0.0, "4ms 4ms 0ns x2", "off"),
    ];
    for (text, draw, known, unknown) in table {
        let policy = parsed(text);
        assert_eq!(shown(policy.plan(RequestInfo::default(), &Known, draw)), known, "{text}");
        assert_eq!(shown(policy.plan(RequestInfo::default(), &Unknown, draw)), unknown, "{text}");
    }
}

#[test]
fn waits_that_are_listed() {
    let ms = Duration::from_millis;
    let shown = |waits: &[Duration]| {
        let plan = Plan::after(waits);
        (plan.delay, plan.max_executions)
    };
    assert_eq!(Plan::after(&[]), Plan::default());
    assert_eq!(shown(&[ms(10)]), (Some(ms(10)), 2));
    assert_eq!(shown(&[ms(10), ms(5)]), (Some(ms(10)), 3));
    // Whole microseconds, one at least; and 16 attempts at most.
    assert_eq!(shown(&[Duration::from_nanos(1)]), shown(&[Duration::from_micros(1)]));
    assert_eq!(shown(&[Duration::ZERO]), (Some(Duration::from_micros(1)), 2));
    assert_eq!(shown(&[Duration::MAX]).0, Some(Duration::from_micros(u32::MAX.into())));
    assert_eq!(shown(&[ms(1); 400]).1, 16);
    assert_eq!(Plan::after(&[ms(1); 15]), Plan::after(&[ms(1); 400]));
    assert_ne!(Plan::after(&[ms(1); 14]), Plan::after(&[ms(1); 15]));
}

#[test]
fn a_pegasus_delay_of_zero_or_less_is_off() {
    for delay in [i64::MIN, -1, 0] {
        assert!(Policy::constant_ms(delay).is_off());
        assert_eq!(Policy::constant_ms(delay).plan(RequestInfo::default(), &Known, 0.0), Plan::default());
    }
    assert_eq!(Policy::constant_ms(10).to_string(), "10ms");
}
