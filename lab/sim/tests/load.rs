//! Pitfalls of hedging that show only under load: real nodes in virtual time, a cost for each read, an open loop of arrivals. Every
//! number here is exact: the same seed gives the same one.
//!
//! Lines of the list that are elsewhere: H1, H3, H6, H9 to H14, H22 and H25 are those of `hedgerow-hedge`, its `tower` layer and
//! `hedgerow-client`; the server's H15 to H21, R16 and R17 those of `hedgerow-node`; H2, H15 to H17 and H19 run in every history
//! of the scenario `tied` too (`pitfalls.rs`). R11 and R12 are the client's selection, in `hedgerow-routing`.

use hedgerow_hedge::{BudgetOptions, Policy};
use hedgerow_sim::clock::{MILLISECOND, SECOND};
use hedgerow_sim::history::Time;
use hedgerow_sim::load::{Choice, Fault, Measured, Setting, run};
use hedgerow_sim::machine::Cost;
use std::time::Duration;

const BUDGET: BudgetOptions = BudgetOptions { ratio: 0.05, burst: Some(5.0) };
/// The stall of the test of metastability, and when it ends.
const STALL: Time = 2 * SECOND;
const RELEASE: Time = 4 * SECOND;
const END: Time = 9 * SECOND;

fn constant(ms: u64) -> Policy {
    Policy::Constant { delay: Duration::from_millis(ms), max_executions: 2 }
}

/// The budget holds, to the last attempt.
fn assert_budget(setting: &Setting, result: &Measured) {
    let budget = setting.budget.expect("there is one");
    let allowed = result.extra_allowed(budget, setting.client_count);
    assert!(result.extra as f64 <= allowed, "{} extra attempts, {allowed} allowed", result.extra);
}

/// 90 % load of so many clients, retries after 200 ms, and one of three nodes that stands still for two seconds. The requests of one client
/// are served as they came; several clients have their turns.
fn stalled(budget: Option<BudgetOptions>, are_extras_marked: bool, client_count: usize) -> (Setting, Measured) {
    let setting = Setting {
        budget,
        are_extras_marked,
        attempt_timeout: 200 * MILLISECOND,
        attempts_max: 16,
        client_count,
        fault: Some((RELEASE - STALL, Fault::Stall { machine: 1, duration: STALL })),
        duration: END,
        ..Setting::new(1, 0.9)
    };
    let result = run(&setting);
    (setting, result)
}

/// The time after the release from which on at least 99 % of the load is answered in time, in every quarter of a second.
fn recovery(result: &Measured) -> Option<Time> {
    let step = SECOND / 4;
    // The very last requests have the machines to themselves.
    let mut windows = (RELEASE / step..(END - SECOND) / step).map(|window| window * step);
    let last_bad = windows.rfind(|from| result.goodput(*from, *from + step) < 0.99);
    match last_bad {
        None => Some(0),
        Some(from) => (from + 2 * step < END - SECOND).then(|| from + step - RELEASE),
    }
}

#[test]
fn a_stall_is_over_when_it_is_over_while_there_is_a_budget() {
    for (are_extras_marked, client_count) in [(true, 1), (false, 1), (true, 8), (false, 8)] {
        let (setting, result) = stalled(Some(BUDGET), are_extras_marked, client_count);
        assert_budget(&setting, &result);
        assert!(result.goodput(RELEASE - SECOND, RELEASE) < 0.9, "the stall can be seen");
        let recovered = recovery(&result);
        let which = format!("marked {are_extras_marked}, {client_count} clients");
        assert!(recovered.is_some_and(|after| after <= STALL), "{which}: {recovered:?}");
    }
}

/// The same without the budget, as clients do that retry at will, and where one has all the load: what retries add keeps every attempt
/// waiting until it is given up, long after the stall.
#[test]
fn without_a_budget_the_same_stall_never_ends() {
    let (_, result) = stalled(None, false, 1);
    assert_eq!(recovery(&result), None);
    assert!(result.goodput(RELEASE + STALL, END - SECOND) < 0.1, "{}", result.goodput(RELEASE + STALL, END - SECOND));
    assert!(result.extra > 2 * result.first, "{} extra attempts", result.extra);
}

/// Nodes that let extra attempts wait behind first ones end it as well, if clients say what is extra: two independent reasons.
#[test]
fn without_a_budget_the_order_of_the_queue_ends_it_too() {
    let (_, result) = stalled(None, true, 1);
    assert!(recovery(&result).is_some_and(|after| after <= STALL));
}

/// So do nodes that let connections have their turns, where there are several: a third one. It does so less well: there is no marking to
/// go by, and every client retries at will.
#[test]
fn without_a_budget_turns_of_connections_end_it_too() {
    let (_, result) = stalled(None, false, 8);
    assert!(recovery(&result).is_some_and(|after| after <= STALL));
}

/// Everything is ten times as slow, so that every read would be hedged, and the machines are busy for 40 % of the time. (At 60 %
/// the 5 % of extra reads cost the median 5.6 %.)
#[test]
fn h04_uniform_slowdown() {
    let slow = |policy| Setting {
        policy,
        budget: Some(BUDGET),
        duration: 20 * SECOND,
        fault: Some((5 * SECOND, Fault::SlowDown { factor: 10 })),
        ..Setting::new(4, 0.04)
    };
    let hedging = slow(constant(10));
    let (unhedged, hedged) = (run(&slow(Policy::None)), run(&hedging));
    assert_budget(&hedging, &hedged);
    assert_eq!(unhedged.extra, 0);
    assert!(hedged.suppressed > 5 * hedged.extra, "the budget binds: {} of {}", hedged.suppressed, hedged.extra);
    let p50 = |result: &Measured| result.latency(50.0, 6 * SECOND, 20 * SECOND);
    assert!(p50(&hedged) * 100 <= p50(&unhedged) * 105, "{} to {}", p50(&unhedged), p50(&hedged));
}

#[test]
fn h05_slow_but_successful() {
    let cost = Cost { read: 30 * MILLISECOND, hot: None };
    let setting = Setting {
        policy: constant(5),
        budget: Some(BUDGET),
        cost,
        duration: 20 * SECOND,
        deadline: 2 * SECOND,
        attempt_timeout: 2 * SECOND,
        ..Setting::new(5, 0.03)
    };
    let result = run(&setting);
    assert_budget(&setting, &result);
    assert!((result.goodput(0, 20 * SECOND) - 1.0).abs() < f64::EPSILON, "every reply is a success");
    assert!(result.suppressed > 2 * result.extra, "and the budget binds all the same");
}

#[test]
fn h07_percentile_feedback() {
    let kill = 5 * SECOND;
    let policy = Policy::Percentile {
        percentile: 95.0,
        min_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(200),
        max_executions: 2,
    };
    let setting = Setting {
        policy,
        budget: Some(BudgetOptions { ratio: 0.1, burst: Some(20.0) }),
        attempts_max: 3,
        duration: 12 * SECOND,
        fault: Some((kill, Fault::Kill { machine: 2 })),
        ..Setting::new(7, 0.3)
    };
    let result = run(&setting);
    assert_budget(&setting, &result);
    let before = result.latency(95.0, 2 * SECOND, kill);
    let delays = result.delays.iter().filter(|(at, _)| *at > kill);
    let longest = delays.map(|(_, delay)| delay.as_nanos() as Time).max().expect("hedges were planned");
    assert!(longest <= 2 * before, "{before} ns before, {longest} ns after");
    for window in (kill + 5 * SECOND) / SECOND..setting.duration / SECOND {
        assert!(result.goodput(window * SECOND, (window + 1) * SECOND) >= 0.99, "second {window}");
    }
}

/// One partition is slower than the 90th percentile wherever it is read. Its hedges go where it is slow too, and must not
/// bring those machines down. Which machines lead is chance, so that it is looked at more than once.
#[test]
fn h08_domino() {
    const SEEDS: u64 = 8;
    let hedge_skews: f64 = (1..=SEEDS).map(hedge_skew_of_a_hot_partition).sum();
    assert!(hedge_skews / SEEDS as f64 <= 1.4, "{hedge_skews} over {SEEDS} seeds");
}

fn hedge_skew_of_a_hot_partition(seed: u64) -> f64 {
    let hot = |policy| Setting {
        partition_count: 4,
        cost: Cost { read: 2 * MILLISECOND, hot: Some((0, 4)) },
        policy,
        budget: Some(BUDGET),
        ..Setting::new(seed, 0.6)
    };
    let percentile = Policy::Percentile {
        percentile: 90.0,
        min_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(200),
        max_executions: 2,
    };
    let hedging = hot(percentile);
    let (unhedged, hedged) = (run(&hot(Policy::None)), run(&hedging));
    assert_budget(&hedging, &hedged);
    assert!(hedged.extra > 50, "{}", hedged.extra);
    assert!(hedged.skew() <= 1.05 * unhedged.skew(), "{} to {}", unhedged.skew(), hedged.skew());
    hedged.hedge_skew()
}

/// Many clients, each of which knows only its own requests, all hedging.
#[test]
fn r13_herd() {
    let setting = Setting {
        client_count: 16,
        choice: Choice::LessInFlight,
        policy: constant(10),
        budget: Some(BUDGET),
        ..Setting::new(13, 0.8)
    };
    let result = run(&setting);
    assert_budget(&setting, &result);
    assert!(result.extra > 50 && result.skew() <= 1.3, "{:?}", result.served);
}

/// Three times as much as all machines can serve, and clients that would try sixteen times.
#[test]
fn r02_everybody_is_busy() {
    let setting = Setting {
        budget: Some(BUDGET),
        attempt_timeout: 100 * MILLISECOND,
        attempts_max: 16,
        duration: 3 * SECOND,
        ..Setting::new(2, 3.0)
    };
    let result = run(&setting);
    assert_budget(&setting, &result);
    assert!(result.suppressed > result.extra, "the budget binds");
    let all: u64 = result.served.iter().sum();
    let possible = setting.machine_count as u64 * (setting.duration + SECOND) / setting.cost.read;
    assert!(all <= possible, "{all} of {possible}");
}
