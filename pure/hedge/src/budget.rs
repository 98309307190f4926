//! One budget for every kind of extra attempt: retries, hedges, ties, fallbacks.
//!
//! Each first attempt adds a share of a token, each extra attempt takes a whole one. So over any stretch of time there are
//! at most `burst + ratio * first attempts` extra ones, however slow the replies are and however many fail: what refills
//! the budget is offered load, not success (a budget that successes refill does not bind while replies are slow but
//! good, as in gRPC's retry throttling).

use crate::sync::{AtomicI64, Ordering};
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// A token, in the unit that the budget counts in.
const TOKEN: i64 = 1_000_000;

/// How large a [`Budget`] is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetOptions {
    /// Tokens that a first attempt adds: the share of extra attempts in the long run. 0 to 1; default 0.05.
    pub ratio: f64,
    /// Most tokens at once, and how many there are at first; 0 to 1,000,000; default 20. Below 1 no extra attempt is ever
    /// sent.
    pub burst: f64,
}

impl Default for BudgetOptions {
    fn default() -> Self {
        Self { ratio: 0.05, burst: 20.0 }
    }
}

/// A text that is no budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBudget(pub String);

/// The share of extra attempts (`2%` or `0.02`), and behind a colon how many there may be at once (`2%:50`).
impl FromStr for BudgetOptions {
    type Err = InvalidBudget;

    fn from_str(text: &str) -> Result<Self, InvalidBudget> {
        let invalid = || InvalidBudget(text.into());
        let (share, burst) = text.split_once(':').map_or((text, None), |(share, burst)| (share, Some(burst)));
        let (number, unit) = share.strip_suffix('%').map_or((share, 1.0), |number| (number, 100.0));
        let ratio = number.trim().parse::<f64>().map_err(|_| invalid())? / unit;
        let burst = burst.map_or(Ok(Self::default().burst), str::parse).map_err(|_| invalid())?;
        let is_allowed = ratio > 0.0 && ratio <= 1.0 && (1.0..=1e6).contains(&burst);
        if is_allowed { Ok(Self { ratio, burst }) } else { Err(invalid()) }
    }
}

impl fmt::Display for InvalidBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a budget; give a share of the requests above 0 and at most 100% (2% or 0.02), and behind a colon how many \
             extra ones there may be at once, from 1 to 1000000 (2%:50)",
            self.0
        )
    }
}

impl core::error::Error for InvalidBudget {}

/// Tokens for extra attempts, shared by everything that sends them. Lock-free.
#[derive(Debug)]
pub struct Budget {
    tokens: AtomicI64,
    per_first: i64,
    most: i64,
}

impl Budget {
    /// A full budget. Values out of their range count as the nearest allowed one.
    pub fn new(options: BudgetOptions) -> Self {
        let clamp = |value: f64, most: f64| if value.is_nan() { 0.0 } else { value.clamp(0.0, most) };
        let most = (clamp(options.burst, 1e6) * TOKEN as f64) as i64;
        let per_first = (clamp(options.ratio, 1.0) * TOKEN as f64) as i64;
        Self { tokens: AtomicI64::new(most), per_first, most }
    }

    /// A first attempt is sent.
    pub fn note_first(&self) {
        let add = |tokens: i64| (tokens < self.most).then(|| (tokens + self.per_first).min(self.most));
        // It fails if the budget is full, which is the usual case and then costs no write to shared memory.
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes a token for an extra attempt; false if there is none.
    pub fn try_take(&self) -> bool {
        let take = |tokens: i64| (tokens >= TOKEN).then(|| tokens - TOKEN);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives back a token of an extra attempt that was not sent after all.
    pub fn give_back(&self) {
        let give = |tokens: i64| Some((tokens + TOKEN).min(self.most.max(tokens)));
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }

    /// How many extra attempts could be sent now.
    pub fn tokens(&self) -> f64 {
        self.tokens.load(Ordering::Relaxed) as f64 / TOKEN as f64
    }
}
