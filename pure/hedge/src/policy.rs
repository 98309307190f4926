//! Whether, when and how many further attempts a request gets.

use crate::race::ATTEMPTS_MAX;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

/// What one request may do to be fast, fixed when it starts. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// When the second attempt is sent if there is no reply by then, from the start of the request; `None` and zero = never.
    pub delay: Option<Duration>,
    /// The gap between two further attempts. Each gap is longer than the one before by `step`.
    pub gap: Duration,
    /// By how much the gaps grow.
    pub step: Duration,
    /// Gaps that are named one by one: they come before those of `gap` and `step`. [`Plan::after`] names all.
    pub gaps: Gaps,
    /// Most attempts, the first included, of those that `delay` and failures cause. 0 and 1 mean the first only.
    pub max_executions: u8,
    /// Send the second attempt, tied to the first, after this time instead of after `delay`.
    pub tie: Option<Duration>,
    /// When an attempt is sent that asks for less (for example for less fresh data), beside the others; `None` = never.
    pub fallback: Option<Duration>,
}

impl Plan {
    /// Further attempts after these waits without a reply: the first counts from the start of the request, each other one from the
    /// attempt before it. There are as many attempts as waits and one more, [`ATTEMPTS_MAX`] at most; what is listed beyond is left
    /// out. Waits count in whole microseconds, rounded up: one at least, and 71 minutes at most.
    pub fn after(waits: &[Duration]) -> Self {
        let Some((delay, gaps)) = waits.split_first() else { return Self::default() };
        let (first, mut listed) = (Gaps::micros(*delay), Gaps::default());
        listed.0.iter_mut().zip(gaps).for_each(|(listed, gap)| *listed = Gaps::micros(*gap));
        let max_executions = waits.len().saturating_add(1).min(usize::from(ATTEMPTS_MAX)) as u8;
        Self { delay: Some(Duration::from_micros(first.into())), gaps: listed, max_executions, ..Self::default() }
    }

    /// The gap behind further attempt number `index`, from 0.
    pub(crate) fn gap(&self, index: u8) -> Duration {
        self.gaps.get(index).unwrap_or_else(|| {
            let grown = index.saturating_sub(self.gaps.count());
            self.gap.saturating_add(self.step.saturating_mul(grown.into()))
        })
    }
}

/// Gaps between further attempts, listed one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps(
    /// Microseconds; the first zero ends the list.
    [u32; ATTEMPTS_MAX as usize - 2],
);

impl Gaps {
    /// None is listed.
    pub const NONE: Self = Self([0; ATTEMPTS_MAX as usize - 2]);

    fn get(&self, index: u8) -> Option<Duration> {
        let micros = self.0.get(usize::from(index)).copied().filter(|micros| *micros > 0);
        micros.map(|micros| Duration::from_micros(micros.into()))
    }

    fn count(&self) -> u8 {
        self.0.iter().take_while(|micros| **micros > 0).count() as u8
    }

    fn micros(wait: Duration) -> u32 {
        u32::try_from(wait.as_nanos().div_ceil(1_000)).unwrap_or(u32::MAX).max(1)
    }
}

/// Which request a policy decides about, in the words of whoever makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// What it is to do; empty = not told. Hedgerow's client says `GET`, `MULTI_GET`, `BATCH_GET`, `TTL`, `SORTKEY_COUNT`, `GET_SCANNER` and `SCAN` of
    /// reads; `PUT`, `MULTI_PUT`, `REMOVE`, `MULTI_REMOVE`, `INCR`, `CHECK_AND_SET` and `CHECK_AND_MUTATE` of writes.
    pub operation: &'a str,
    /// In which table; empty = not told.
    pub table: &'a str,
    /// In which partition of it.
    pub partition: u32,
    /// The number of the attempt that is decided about, from 1; 0 = not told. It is 1 when a request starts, and greater where it
    /// starts over because all of its attempts have failed.
    pub attempt: u32,
}

/// Decides about requests of one class by what is known of their latency.
///
/// It only says when further attempts are *due*. Each of them is sent if the budget has a token and a replica is left that was not
/// asked; at the request's own level, before its deadline, [`ATTEMPTS_MAX`] at most at a time; and never as a second copy of a
/// request that must not run twice. No plan changes any of this.
///
/// ```
/// use hedgerow_hedge::{Latencies, Plan, RequestInfo, SpeculativeExecutionPolicy};
/// use std::time::Duration;
///
/// /// Pages are to be fast, and reports can wait.
/// #[derive(Debug)]
/// struct ByTable;
///
/// impl SpeculativeExecutionPolicy for ByTable {
///     fn plan(&self, request: RequestInfo<'_>, latencies: &dyn Latencies, _draw: f64) -> Plan {
///         match request.table {
///             "pages" => Plan::after(&[Duration::from_millis(5), Duration::from_millis(20)]),
///             "reports" => Plan::default(),
///             _ => latencies.percentile(99.0).map_or_else(Plan::default, |slow| Plan::after(&[slow])),
///         }
///     }
/// }
/// ```
pub trait SpeculativeExecutionPolicy: fmt::Debug + Send + Sync {
    /// The plan for a request that starts. `draw` is uniform in 0..1, drawn for this request. It is called with what is known of
    /// latencies locked: it should be quick, and must not call whoever asks it. A panic is that request's alone.
    fn plan(&self, request: RequestInfo<'_>, latencies: &dyn Latencies, draw: f64) -> Plan;
}

/// What is known of the latency of one class of requests: of its first attempts, cancelled ones counted as at least as long
/// as they were waited for.
pub trait Latencies {
    /// The latency that a share of `percentile` / 100 of the attempts stay below; `None` while too few are known. It is at
    /// most 1.5 times the percentile of the attempts that completed, so that attempts at a dead replica, of which nothing is
    /// known but that they took too long, do not move it out of reach.
    fn percentile(&self, percentile: f64) -> Option<Duration>;

    /// The delay and the probability of a second attempt with which the latency is best at most at `max_extra_load` (a
    /// share of the first attempts, for example 0.02) extra ones; `None` while too little is known, and when no second
    /// attempt would help.
    fn best_within(&self, max_extra_load: f64) -> Option<(Duration, f64)>;
}

/// The policies that there are by name.
///
/// | form | meaning |
/// |---|---|
/// | `none` | never |
/// | `10ms` | a further attempt every 10 ms; `0ms` is `none` |
/// | `10ms+50ms` | after 10 ms, then each gap 50 ms longer than the one before |
/// | `99p` | after the 99th percentile of recent latency, and after at most [`Policy::MAX_DELAY`] |
/// | `min(99p,10ms)` | after the shorter of the two |
/// | `adaptive` or `adaptive=2%` | solved for the given share of extra attempts; [`Policy::MAX_EXTRA_LOAD`] unless given |
///
/// Behind any of them, in any order: `x3` for at most 3 attempts, the first included (2 unless given, at most 16), and behind
/// the last three `>=50us` for a delay of at least 50 us ([`Policy::MIN_DELAY`] unless given). Durations have a unit: `ns`,
/// `us`, `ms` or `s`. [`fmt::Display`] gives the same forms.
#[derive(Clone, Debug, Default)]
pub enum Policy {
    /// Never.
    #[default]
    None,
    /// A further attempt each time that `delay` has passed without a reply. A delay of zero is the same as [`Policy::None`].
    Constant {
        /// From the start, and between further attempts.
        delay: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// As [`Policy::Constant`], with gaps that grow.
    Increasing {
        /// From the start.
        delay: Duration,
        /// By how much each gap is longer than the one before.
        step: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// After a percentile of the recent latency of the request's class.
    Percentile {
        /// 0 to 100, for example 99.9.
        percentile: f64,
        /// The delay is not shorter than this.
        min_delay: Duration,
        /// The delay is not longer than this, also while too little is known.
        max_delay: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// Delay and probability are solved from the recent latency of the request's class, so that the latency is best at nine
    /// tenths of this share of extra attempts. The last tenth is for what that leaves alone: an attempt after the percentile
    /// that so much pays for, 99.8 of a share of 2 %.
    Adaptive {
        /// Extra attempts per first attempt, for example 0.02.
        max_extra_load: f64,
        /// The delay is not shorter than this.
        min_delay: Duration,
        /// Most attempts, the first included.
        max_executions: u8,
    },
    /// The caller's own.
    Custom(Arc<dyn SpeculativeExecutionPolicy>),
}

/// The part of the adaptive policy's share that is kept for requests which the solution leaves alone: because it was drawn so,
/// or because hedges did not help lately. A replica that stands still for the first time today is of no recent latency, and
/// the percentile that this part pays for finds it all the same.
const GUARD_SHARE: f64 = 0.1;

/// A text that is no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPolicy(pub String);

impl Policy {
    /// The shortest delay of the policies that measure, unless told otherwise. Shorter than the resolution of common timers,
    /// a delay would make nearly every request two.
    pub const MIN_DELAY: Duration = Duration::from_micros(100);
    /// The longest delay of [`Policy::Percentile`], unless told otherwise.
    pub const MAX_DELAY: Duration = Duration::from_secs(1);
    /// The share of extra attempts of [`Policy::Adaptive`], unless told otherwise.
    pub const MAX_EXTRA_LOAD: f64 = 0.02;
    /// Most attempts, the first included, unless told otherwise.
    pub const MAX_EXECUTIONS: u8 = 2;

    /// [`Policy::Constant`] with one further attempt, as `backup_request_delay_ms` in Pegasus: zero and less is off.
    pub fn constant_ms(delay_ms: i64) -> Self {
        let delay = Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0));
        Self::Constant { delay, max_executions: Self::MAX_EXECUTIONS }
    }

    /// Whether it never causes a further attempt, whatever is measured.
    pub fn is_off(&self) -> bool {
        match self {
            Self::None => true,
            Self::Constant { delay, max_executions } | Self::Increasing { delay, max_executions, .. } => {
                delay.is_zero() || *max_executions < 2
            }
            Self::Percentile { max_delay, max_executions, .. } => max_delay.is_zero() || *max_executions < 2,
            Self::Adaptive { max_extra_load, max_executions, .. } => {
                *max_extra_load <= 0.0 || max_extra_load.is_nan() || *max_executions < 2
            }
            Self::Custom(_) => false,
        }
    }
}

impl SpeculativeExecutionPolicy for Policy {
    fn plan(&self, request: RequestInfo<'_>, latencies: &dyn Latencies, draw: f64) -> Plan {
        if self.is_off() {
            return Plan::default();
        }
        let every = |delay: Duration, max_executions| Plan {
            delay: Some(delay),
            gap: delay,
            max_executions,
            ..Plan::default()
        };
        match self {
            Self::None => Plan::default(),
            Self::Constant { delay, max_executions } => every(*delay, *max_executions),
            Self::Increasing { delay, step, max_executions } => {
                Plan { gap: delay.saturating_add(*step), step: *step, ..every(*delay, *max_executions) }
            }
            Self::Percentile { percentile, min_delay, max_delay, max_executions } => {
                let measured = latencies.percentile(*percentile).unwrap_or(*max_delay);
                every(measured.max(*min_delay).min(*max_delay), *max_executions)
            }
            Self::Adaptive { max_extra_load, min_delay, max_executions } => {
                let guarding = max_extra_load * GUARD_SHARE;
                let solved = latencies.best_within(max_extra_load - guarding);
                let delay = solved.filter(|(_, probability)| draw < *probability).map(|(delay, _)| delay);
                let guard = || latencies.percentile(100.0 * (1.0 - guarding));
                match delay.or_else(guard) {
                    Some(delay) => every(delay.max(*min_delay), *max_executions),
                    None => Plan::default(),
                }
            }
            Self::Custom(policy) => policy.plan(request, latencies, draw),
        }
    }
}

impl core::str::FromStr for Policy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        parse(text).ok_or_else(|| InvalidPolicy(text.into()))
    }
}

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a policy; give none, a delay (10ms), a delay that grows (10ms+50ms), a percentile from 50 to \
             below 100 (99p), the shorter of the two (min(99p,10ms)), or a share of extra requests up to 100% (adaptive, \
             adaptive=2%); behind it x3 for at most 3 attempts (2 to 16), and behind the last three >=50us for the \
             shortest delay; durations end in ns, us, ms or s",
            self.0
        )
    }
}

impl core::error::Error for InvalidPolicy {}

/// What may stand behind a policy.
#[derive(Default)]
struct Modifiers {
    max_executions: Option<u8>,
    min_delay: Option<Duration>,
}

fn parse(text: &str) -> Option<Policy> {
    let mut form = text.trim();
    let mut modifiers = Modifiers::default();
    while let Some((rest, last)) = form.rsplit_once(char::is_whitespace) {
        if let Some(count) = last.strip_prefix('x') {
            let count = count.parse().ok().filter(|count| (2..=ATTEMPTS_MAX).contains(count))?;
            if modifiers.max_executions.replace(count).is_some() {
                return None;
            }
        } else if let Some(delay) = last.strip_prefix(">=") {
            if modifiers.min_delay.replace(parse_duration(delay)?).is_some() {
                return None;
            }
        } else {
            break;
        }
        form = rest.trim_end();
    }
    let form: String = form.chars().filter(|letter| !letter.is_whitespace()).collect();
    let policy = parse_form(&form, &modifiers)?;
    let is_measured = matches!(policy, Policy::Percentile { .. } | Policy::Adaptive { .. });
    let has_modifier = modifiers.max_executions.is_some() || modifiers.min_delay.is_some();
    let is_fitting = match policy {
        Policy::None => !has_modifier,
        _ => is_measured || modifiers.min_delay.is_none(),
    };
    is_fitting.then_some(policy)
}

fn parse_form(form: &str, modifiers: &Modifiers) -> Option<Policy> {
    let max_executions = modifiers.max_executions.unwrap_or(Policy::MAX_EXECUTIONS);
    let min_delay = modifiers.min_delay.unwrap_or(Policy::MIN_DELAY);
    let at_percentile = |percentile, max_delay| Policy::Percentile { percentile, min_delay, max_delay, max_executions };
    if form == "none" {
        return Some(Policy::None);
    }
    if let Some(rest) = form.strip_prefix("adaptive") {
        let max_extra_load = match rest.strip_prefix('=') {
            Some(share) => parse_percent(share.strip_suffix('%')?).filter(|share| *share <= 100.0)? / 100.0,
            None if rest.is_empty() => Policy::MAX_EXTRA_LOAD,
            None => return None,
        };
        return Some(Policy::Adaptive { max_extra_load, min_delay, max_executions });
    }
    if let Some(inside) = form.strip_prefix("min(").and_then(|rest| rest.strip_suffix(')')) {
        let (one, other) = inside.split_once(',')?;
        let (percentile, delay) = if one.ends_with('p') { (one, other) } else { (other, one) };
        return Some(at_percentile(parse_percentile(percentile)?, parse_duration(delay)?));
    }
    if form.ends_with('p') {
        return Some(at_percentile(parse_percentile(form)?, Policy::MAX_DELAY));
    }
    if let Some((delay, step)) = form.split_once('+') {
        let (delay, step) = (parse_duration(delay)?, parse_duration(step)?);
        return Some(Policy::Increasing { delay, step, max_executions });
    }
    // As in Pegasus, a delay below zero is one of zero, and that is off.
    let delay = match form.strip_prefix('-') {
        Some(positive) => parse_duration(positive).map(|_| Duration::ZERO)?,
        None => parse_duration(form)?,
    };
    Some(Policy::Constant { delay, max_executions })
}

fn parse_percentile(text: &str) -> Option<f64> {
    // Below the median a "slow" request would be an ordinary one.
    parse_percent(text.strip_suffix('p')?).filter(|percentile| (50.0..100.0).contains(percentile))
}

fn parse_percent(text: &str) -> Option<f64> {
    let is_plain = text.starts_with(|first: char| first.is_ascii_digit());
    text.parse::<f64>().ok().filter(|value| is_plain && value.is_finite() && *value > 0.0)
}

/// Exact: a whole number of nanoseconds, with a unit.
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let unit_at = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let digits = match unit {
        "ns" => 0,
        "us" | "µs" => 3,
        "ms" => 6,
        "s" => 9,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_number = !whole.is_empty() && part.is_empty() != number.contains('.') && !part.contains('.');
    if !is_number || part.len() > digits {
        return None;
    }
    let scale = |missing: usize| 10_u64.pow(missing as u32);
    let part = if part.is_empty() { 0 } else { part.parse::<u64>().ok()? * scale(digits - part.len()) };
    let nanos = whole.parse::<u64>().ok()?.checked_mul(scale(digits))?.checked_add(part)?;
    Some(Duration::from_nanos(nanos))
}

/// A duration as [`parse_duration`] takes it, exact.
pub(crate) struct Exact(pub(crate) Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = crate::histogram::nanos(self.0);
        let (unit, digits) = match nanos {
            0 => ("ms", 6),
            1..1_000 => ("ns", 0),
            1_000..1_000_000 => ("us", 3),
            1_000_000..1_000_000_000 => ("ms", 6),
            _ => ("s", 9),
        };
        let scale = 10_u64.pow(digits as u32);
        write!(f, "{}", nanos / scale)?;
        let part = nanos % scale;
        if part > 0 {
            let text = alloc::format!("{part:0digits$}");
            write!(f, ".{}", text.trim_end_matches('0'))?;
        }
        f.write_str(unit)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (max_executions, min_delay) = match self {
            Self::None => return f.write_str("none"),
            Self::Custom(policy) => return write!(f, "{policy:?}"),
            Self::Constant { delay, max_executions } => {
                write!(f, "{}", Exact(*delay))?;
                (max_executions, &Self::MIN_DELAY)
            }
            Self::Increasing { delay, step, max_executions } => {
                write!(f, "{}+{}", Exact(*delay), Exact(*step))?;
                (max_executions, &Self::MIN_DELAY)
            }
            Self::Percentile { percentile, min_delay, max_delay, max_executions } => {
                if *max_delay == Self::MAX_DELAY {
                    write!(f, "{percentile}p")?;
                } else {
                    write!(f, "min({percentile}p,{})", Exact(*max_delay))?;
                }
                (max_executions, min_delay)
            }
            Self::Adaptive { max_extra_load, min_delay, max_executions } => {
                // Percent to within a millionth, so that 0.07 is 7 % and not 7.000000000000001 %.
                let percent = (max_extra_load * 1e8 + 0.5) as u64 as f64 / 1e6;
                write!(f, "adaptive={percent}%")?;
                (max_executions, min_delay)
            }
        };
        if *max_executions != Self::MAX_EXECUTIONS {
            write!(f, " x{max_executions}")?;
        }
        if *min_delay != Self::MIN_DELAY {
            write!(f, " >={}", Exact(*min_delay))?;
        }
        Ok(())
    }
}
