//! 100,000 requests to three replicas, of which one stands still for 50 ms in each second: latency without hedging, with a
//! constant delay and with the adaptive policy, both at a budget of 2 % extra attempts. Time is simulated.
//!
//! `cargo run --release -p hedgerow-hedge --example slow_replica`

use hedgerow_hedge::{Action, AttemptEnd, Budget, BudgetOptions, Class, Ended, Hedger, Outcome, Policy, Race, Time};
use std::time::Duration;

const REQUESTS: usize = 100_000;
const INTERVAL: Duration = Duration::from_micros(200);
const CLASS: Class = Class(0);

/// A seeded stream of numbers in 0..1 (xorshift64*).
struct Draws(u64);

impl Draws {
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How long an attempt at a replica takes that is sent at `now`.
fn serve(draws: &mut Draws, replica: usize, now: Time) -> Duration {
    let work = Duration::from_millis(1) + Duration::from_micros(300).mul_f64(-(1.0 - draws.share()).ln());
    let stall = if replica == 2 { 50_000_000_u64.saturating_sub(now.0 % 1_000_000_000) } else { 0 };
    work + Duration::from_nanos(stall)
}

/// One request after the other: its own events in order of time, as none waits for another here.
fn request(hedger: &mut Hedger, budget: &Budget, draws: &mut Draws, number: usize, start: Time) -> Duration {
    let mut race = Race::new(hedger.begin(CLASS, start), start);
    budget.note_first(start);
    // Of each attempt: what is told at its end, when it was sent, when it will end.
    let mut attempts: Vec<(AttemptEnd, Time, Time)> = Vec::new();
    let mut now = start;
    loop {
        let sent = attempts.len();
        let action = race.poll(now, |kind| {
            let is_sent = sent < 3 && budget.try_take();
            hedger.note_extra(kind, is_sent);
            is_sent
        });
        match action {
            Action::Send { kind, .. } => {
                let replica = (number + sent) % 3;
                let took = serve(draws, replica, now);
                let end = AttemptEnd { class: CLASS, replica: replica as u64, kind, ended: Ended::Won, took };
                attempts.push((end, now, now + took));
            }
            Action::Wait { until } => {
                let open = race.open().iter().map(|number| (attempts[usize::from(number) - 1].2, number));
                let (ends, next) = open.min().expect("an attempt is open");
                match until.filter(|until| *until < ends) {
                    Some(until) => now = until,
                    None => {
                        now = ends;
                        race.handle_end(next, Outcome::Success);
                        hedger.note_attempt(attempts[usize::from(next) - 1].0, now);
                    }
                }
            }
            Action::Finish { losers, .. } => {
                for number in losers.iter() {
                    let (end, sent_at, _) = attempts[usize::from(number) - 1];
                    hedger.note_attempt(AttemptEnd { ended: Ended::Cancelled, took: now - sent_at, ..end }, now);
                }
                return now - start;
            }
        }
    }
}

fn main() {
    println!("ms                  p50       p99     p99.9    p99.99   extra load");
    for policy in ["none", "10ms", "adaptive=2%"] {
        let mut hedger = Hedger::new(policy.parse::<Policy>().expect("a policy"), 1);
        let budget = Budget::new(BudgetOptions { ratio: 0.02, burst: Some(100.0) });
        let mut draws = Draws(42);
        // Between two stalls, so that what is learnt first is how things usually are.
        let mut start = Time(200_000_000);
        let mut latencies: Vec<Duration> = (0..REQUESTS)
            .map(|number| {
                start = start + INTERVAL;
                request(&mut hedger, &budget, &mut draws, number, start)
            })
            .collect();
        latencies.sort_unstable();
        let at = |share: f64| latencies[((REQUESTS - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        let extra: u64 = hedger.counters().sent.iter().sum();
        let extra = extra as f64 / REQUESTS as f64 * 100.0;
        let [p50, p99, p999, p9999] = [0.5, 0.99, 0.999, 0.9999].map(at);
        println!("{policy:<13} {p50:>9.2} {p99:>9.2} {p999:>9.2} {p9999:>9.2} {extra:>11.2} %");
    }
}
