//! One budget for every kind of extra attempt: retries, hedges, ties, fallbacks.
//!
//! Each first attempt adds a share of a token, each extra attempt takes a whole one. So over any stretch of time there are
//! at most `saved + ratio * first attempts` extra ones, however slow the replies are and however many fail: what refills
//! the budget is offered load, not success (a budget that successes refill does not bind while replies are slow but
//! good, as in gRPC's retry throttling).
//!
//! What is saved is at most the burst. A measured burst follows the rate of first attempts, so that a stall of some seconds
//! finds enough at any rate. A higher burst is only more room: the tokens in it still come from first attempts. So from the
//! beginning on there are never more than `20 + ratio * first attempts` extra ones.
//!
//! ```text
//!   first attempt ── + ratio ──> tokens, at most the burst ── 1 ──> extra attempt
//!         └─ counted by the second ──> rate ──> burst = max(20, ratio x rate x 10 s)
//! ```

use crate::sync::{AtomicI64, AtomicU64, Ordering};
use crate::time::Time;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// A token, in the unit that the budget counts in.
const TOKEN: i64 = 1_000_000;
/// The most tokens that any budget holds.
const BURST_MAX: f64 = 1e6;
/// How long first attempts are counted before the measured burst follows them, in nanoseconds.
const WINDOW: u64 = 1_000_000_000;
/// How many windows' first attempts a measured burst has room for.
const WINDOWS_SAVED: i64 = 10;
/// How many windows it takes the measured burst to rise, and to fall, most of the way. It falls slowly because callers that
/// wait for a stall send fewer first attempts, and need what was saved just then.
const WINDOWS_TO_RISE: i64 = 3;
const WINDOWS_TO_FALL: i64 = 60;
/// Windows without a first attempt that count; all beyond them change nothing any more.
const WINDOWS_COUNTED_MAX: u64 = 100_000;

/// How large a [`Budget`] is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetOptions {
    /// Tokens that a first attempt adds: the share of extra attempts in the long run. 0 to 1; default 0.05.
    pub ratio: f64,
    /// Most tokens at once, and how many there are at first; 0 to 1,000,000. Below 1 no extra attempt is ever sent. `None`
    /// (default): 20 at first, and as many as the first attempts of about ten seconds add where that is more.
    pub burst: Option<f64>,
}

impl BudgetOptions {
    /// How many tokens a measured budget has at first, and the fewest that it has room for.
    pub const MEASURED_BURST_MIN: f64 = 20.0;

    /// How many tokens there are at first.
    pub fn initial_tokens(&self) -> f64 {
        self.burst.unwrap_or(Self::MEASURED_BURST_MIN)
    }
}

impl Default for BudgetOptions {
    fn default() -> Self {
        Self { ratio: 0.05, burst: None }
    }
}

/// A text that is no budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBudget(pub String);

/// The share of extra attempts (`2%` or `0.02`), and behind a colon how many there may be at once (`2%:50`); without that the
/// burst is measured.
impl FromStr for BudgetOptions {
    type Err = InvalidBudget;

    fn from_str(text: &str) -> Result<Self, InvalidBudget> {
        let invalid = || InvalidBudget(text.into());
        let (share, burst) = text.split_once(':').map_or((text, None), |(share, burst)| (share, Some(burst)));
        let (number, unit) = share.strip_suffix('%').map_or((share, 1.0), |number| (number, 100.0));
        let ratio = number.trim().parse::<f64>().map_err(|_| invalid())? / unit;
        let burst = burst.map(str::parse::<f64>).transpose().map_err(|_| invalid())?;
        let is_burst_allowed = burst.is_none_or(|burst| (1.0..=BURST_MAX).contains(&burst));
        let is_allowed = ratio > 0.0 && ratio <= 1.0 && is_burst_allowed;
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
    /// Most tokens at once.
    most: AtomicI64,
    /// `None` = the burst is fixed.
    measured: Option<Measured>,
}

/// The rate of first attempts, as the tokens that they add in [`WINDOWS_SAVED`].
#[derive(Debug)]
struct Measured {
    /// The present window in the upper half, and its first attempts in the lower.
    window: AtomicU64,
    smoothed: AtomicI64,
}

impl Budget {
    /// A budget with all that it may hold at first. Values out of their range count as the nearest allowed one.
    pub fn new(options: BudgetOptions) -> Self {
        let clamp = |value: f64, most: f64| if value.is_nan() { 0.0 } else { value.clamp(0.0, most) };
        let most = (clamp(options.initial_tokens(), BURST_MAX) * TOKEN as f64) as i64;
        let per_first = (clamp(options.ratio, 1.0) * TOKEN as f64) as i64;
        let measured =
            options.burst.is_none().then(|| Measured { window: AtomicU64::new(0), smoothed: AtomicI64::new(0) });
        Self { tokens: AtomicI64::new(most), per_first, most: AtomicI64::new(most), measured }
    }

    /// A first attempt is sent at `now`.
    pub fn note_first(&self, now: Time) {
        self.measure(now);
        let most = self.most.load(Ordering::Relaxed);
        let add = |tokens: i64| (tokens != most).then(|| (tokens + self.per_first).min(most));
        // It fails if the budget is full, which is the usual case and then costs no write to these words.
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes a token for an extra attempt; false if there is none.
    pub fn try_take(&self) -> bool {
        let take = |tokens: i64| (tokens >= TOKEN).then(|| tokens - TOKEN);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Gives back a token of an extra attempt that was not sent after all.
    pub fn give_back(&self) {
        let most = self.most.load(Ordering::Relaxed);
        let give = |tokens: i64| Some((tokens + TOKEN).min(most.max(tokens)));
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }

    /// How many extra attempts could be sent now.
    pub fn tokens(&self) -> f64 {
        self.tokens.load(Ordering::Relaxed) as f64 / TOKEN as f64
    }

    /// How many tokens there may be at once, as the rate of first attempts is now.
    pub fn burst(&self) -> f64 {
        self.most.load(Ordering::Relaxed) as f64 / TOKEN as f64
    }

    /// Counts a first attempt. The first one of a window has the burst follow the windows before.
    fn measure(&self, now: Time) {
        let Some(measured) = &self.measured else { return };
        let window = (now.0 / WINDOW) & u64::from(u32::MAX);
        // A thread that is a little behind counts in the window that the others have begun.
        let count = |word: u64| match (word >> 32).cmp(&window) {
            core::cmp::Ordering::Less => Some(window << 32 | 1),
            _ => (word as u32 != u32::MAX).then(|| word + 1),
        };
        let Ok(before) = measured.window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) else { return };
        let elapsed = window.saturating_sub(before >> 32).min(WINDOWS_COUNTED_MAX) as i64;
        if elapsed == 0 {
            return;
        }
        let saved = i64::from(before as u32) * self.per_first * WINDOWS_SAVED / elapsed;
        let smoothed = measured.smoothed.load(Ordering::Relaxed);
        let saved = saved.min(BURST_MAX as i64 * TOKEN);
        let inertia = if saved > smoothed { WINDOWS_TO_RISE } else { WINDOWS_TO_FALL };
        let smoothed = smoothed + (saved - smoothed) * elapsed / (elapsed + inertia);
        measured.smoothed.store(smoothed, Ordering::Relaxed);
        let least = BudgetOptions::MEASURED_BURST_MIN as i64 * TOKEN;
        self.most.store(smoothed.max(least), Ordering::Relaxed);
    }
}
