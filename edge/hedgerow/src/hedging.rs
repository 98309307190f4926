//! How commands hedge: the arguments that say it, as options of the client.

use clap::Args;
use hedgerow_client::{BudgetOptions, Fallback, HedgeOptions, Policy, ReadLevel, TieMode};
use hedgerow_faults::units;
use std::time::Duration;

/// How the requests of a command that reads and writes are hedged.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct HedgeArguments {
    #[command(flatten)]
    reads: ReadHedgeArguments,
    /// As --hedge, for writes, which are applied once whatever is sent [default: none]
    #[arg(long = "hedge-writes", value_name = "POLICY")]
    writes: Option<Policy>,
}

/// How reads are hedged.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ReadHedgeArguments {
    /// When a read without a reply is sent to another replica as well: none, 10ms, 10ms+50ms (gaps that grow), 99.9p
    /// (percentile of recent latency), min(99p,10ms), adaptive=2% (share of extra requests) [default: none]
    #[arg(long = "hedge", value_name = "POLICY")]
    policy: Option<Policy>,
    /// Pegasus' word for --hedge with a number of milliseconds; 0 or less is off.
    #[arg(long, value_name = "MILLISECONDS", conflicts_with = "policy")]
    backup_delay_ms: Option<i64>,
    /// Send reads to two replicas that know of each other: never, auto (when a queue makes it worth it), always; --tie alone
    /// is auto [default: never]
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "auto", value_parser = tie_mode)]
    tie: Option<TieMode>,
    /// After how long a linearizable read also accepts older data, and how old it may be, for example 20ms:1s
    #[arg(long, value_name = "DELAY:BOUND", value_parser = fallback)]
    fallback: Option<Fallback>,
    /// A replica at which a read would wait for longer is to say so at once, and another is asked, for example 5ms
    #[arg(long, value_name = "DURATION", value_parser = above_zero)]
    busy_threshold: Option<Duration>,
    /// What extra requests may cost, as a share of the first ones, for example 2%; and with 2%:50 how many may be sent at
    /// once before the share counts; without that 20, or what the first ones of about ten seconds add [default: 5%]
    #[arg(long, value_name = "SHARE[:BURST]")]
    hedge_budget: Option<BudgetOptions>,
}

/// How the requests of a command that only writes are hedged.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct WriteHedgeArguments {
    /// When a write without a reply is sent through another node as well, for example 10ms; it is applied once, whatever is
    /// sent [default: none]
    #[arg(long = "hedge", visible_alias = "hedge-writes", value_name = "POLICY")]
    writes: Option<Policy>,
}

impl HedgeArguments {
    /// What the client is told. `wants_trace`: nodes say how they came to their answers.
    pub(crate) fn options(&self, wants_trace: bool) -> HedgeOptions {
        HedgeOptions { writes: self.writes.clone().unwrap_or_default(), ..self.reads.options(wants_trace) }
    }
}

impl HedgeArguments {
    /// What of it can do nothing for the many reads of a process at `level`.
    pub(crate) fn remarks(&self, level: Option<ReadLevel>) -> Vec<String> {
        self.reads.remarks(level)
    }
}

impl ReadHedgeArguments {
    /// What of it can do nothing for reads at `level`; `None` = the table's.
    pub(crate) fn remarks(&self, level: Option<ReadLevel>) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(level) = level.filter(|level| self.fallback.is_some() && *level != ReadLevel::Linearizable) {
            remarks.push(format!("--fallback does nothing here: it is for linearizable reads, and these are {level}"));
        }
        let has_policy = self.policy.as_ref().is_some_and(|policy| !policy.is_off());
        let has_backup = self.backup_delay_ms.is_some_and(|delay| delay > 0);
        let has_tie = self.tie.is_some_and(|tie| tie != TieMode::Never);
        let has_extra = has_policy || has_backup || has_tie || self.fallback.is_some() || self.busy_threshold.is_some();
        if self.hedge_budget.is_some() && !has_extra {
            remarks.push(
                "--hedge-budget does nothing here: without --hedge, --tie or --fallback there are no extra requests"
                    .to_owned(),
            );
        }
        remarks
    }

    /// The same for the one read of a command, before which nothing was learned.
    pub(crate) fn remarks_on_one(&self, level: Option<ReadLevel>) -> Vec<String> {
        let mut remarks = self.remarks(level);
        if matches!(self.policy, Some(Policy::Percentile { .. } | Policy::Adaptive { .. })) {
            remarks.push(
                "--hedge: this policy learns from earlier reads of the process, and here are none: a delay such as 10ms has an effect".to_owned(),
            );
        }
        if self.tie == Some(TieMode::Auto) {
            remarks.push(
                "--tie does nothing here: it goes by the queues that earlier reads of the process saw; --tie=always sends both".to_owned(),
            );
        }
        remarks
    }

    /// What the client is told. `wants_trace`: nodes say how they came to their answers.
    pub(crate) fn options(&self, wants_trace: bool) -> HedgeOptions {
        let backup = self.backup_delay_ms.map(|delay| {
            let delay = Duration::from_millis(u64::try_from(delay).unwrap_or(0));
            HedgeOptions::backup_request(delay).reads
        });
        HedgeOptions {
            reads: self.policy.clone().or(backup).unwrap_or_default(),
            tie: self.tie.unwrap_or_default(),
            fallback: self.fallback,
            busy_threshold: self.busy_threshold,
            budget: self.hedge_budget,
            wants_trace,
            ..HedgeOptions::default()
        }
    }
}

impl WriteHedgeArguments {
    /// What the client is told.
    pub(crate) fn options(&self) -> HedgeOptions {
        HedgeOptions { writes: self.writes.clone().unwrap_or_default(), ..HedgeOptions::default() }
    }
}

fn tie_mode(text: &str) -> Result<TieMode, String> {
    match text {
        "never" => Ok(TieMode::Never),
        "auto" => Ok(TieMode::Auto),
        "always" => Ok(TieMode::Always),
        _ => Err(format!("{text:?} is none of never, auto, always")),
    }
}

fn fallback(text: &str) -> Result<Fallback, String> {
    let (after, bound) =
        text.split_once(':').ok_or_else(|| format!("{text:?} is not of the form DELAY:BOUND, for example 20ms:1s"))?;
    let (after, bound) = (above_zero(after)?, units::duration(bound)?);
    let allowed = ReadLevel::BOUND_MIN..=ReadLevel::BOUND_MAX;
    if allowed.contains(&bound) {
        Ok(Fallback { after, bound })
    } else {
        Err(format!("the bound {text:?} is not within 1ms to 24h"))
    }
}

fn above_zero(text: &str) -> Result<Duration, String> {
    let duration = units::duration(text)?;
    if duration.is_zero() { Err("the duration must be above 0".to_owned()) } else { Ok(duration) }
}

/// A share as people write it: `2%` or `0.02`; above 0, at most 100%.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let form = || format!("{text:?} is not a share: a percentage such as 2% or a number such as 0.02 is");
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.trim().parse::<f64>().map_err(|_| form())? / unit;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(format!("the share {text:?} is not above 0 and at most 100%"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::takes_negative_numbers;
    use clap::{CommandFactory as _, FromArgMatches as _, Parser};

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        hedging: HedgeArguments,
        key: Option<String>,
    }

    fn parse(words: &str) -> Result<Words, String> {
        let words = std::iter::once("x").chain(words.split_whitespace());
        let found = takes_negative_numbers(Words::command()).try_get_matches_from(words);
        found.and_then(|found| Words::from_arg_matches(&found)).map_err(|error| error.to_string())
    }

    fn options(words: &str) -> HedgeOptions {
        parse(words).unwrap().hedging.options(false)
    }

    #[test]
    fn nothing_said_is_no_hedging() {
        let options = options("");
        assert!(matches!((&options.reads, &options.writes), (Policy::None, Policy::None)));
        assert_eq!((options.tie, options.fallback, options.busy_threshold), (TieMode::Never, None, None));
        assert!(options.budget.is_none() && !options.wants_trace);
    }

    #[test]
    fn pegasus_delay_is_a_constant_one_and_zero_or_less_is_off() {
        let delay = |words: &str| match options(words).reads {
            Policy::Constant { delay, max_executions: 2 } => delay,
            other => panic!("{other:?}"),
        };
        assert_eq!(delay("--backup-delay-ms 7"), Duration::from_millis(7));
        assert_eq!(delay("--backup-delay-ms 0"), Duration::ZERO);
        assert_eq!(delay("--backup-delay-ms -3"), Duration::ZERO);
        assert!(parse("--backup-delay-ms 7 --hedge none").is_err());
    }

    #[test]
    fn ties_fallback_threshold_and_budget_are_read() {
        let words = parse("--tie key --fallback 20ms:1s --busy-threshold 500us --hedge-budget 0.2%:50").unwrap();
        assert_eq!(words.key.as_deref(), Some("key"));
        let options = words.hedging.options(true);
        assert_eq!(options.tie, TieMode::Auto);
        let (after, bound) = (Duration::from_millis(20), Duration::from_secs(1));
        assert_eq!(options.fallback, Some(Fallback { after, bound }));
        assert_eq!(options.busy_threshold, Some(Duration::from_micros(500)));
        assert_eq!(options.budget, Some(BudgetOptions { ratio: 0.002, burst: Some(50.0) }));
        assert!(options.wants_trace);
        assert_eq!(self::options("--tie=always").tie, TieMode::Always);
        assert_eq!(self::options("--hedge-budget 3%").budget.unwrap().burst, BudgetOptions::default().burst);
    }

    #[test]
    fn what_can_do_nothing_is_said() {
        let bounded = "bounded=1s".parse().ok();
        for (words, level, expected) in [
            ("--fallback 20ms:1s", bounded, "--fallback does nothing here: it is for linearizable reads"),
            ("--hedge-budget 2%", None, "--hedge-budget does nothing here"),
            ("--hedge-budget 2% --hedge none", None, "--hedge-budget does nothing here"),
            ("--tie", None, "--tie does nothing here"),
            ("--hedge adaptive=2%", None, "--hedge: this policy learns"),
            ("--hedge 99p", None, "--hedge: this policy learns"),
        ] {
            let remarks = parse(words).unwrap().hedging.reads.remarks_on_one(level);
            assert!(remarks.len() == 1 && remarks[0].contains(expected), "{words}: {remarks:?}");
        }
        for words in ["", "--fallback 20ms:1s", "--hedge 10ms --hedge-budget 2%", "--tie=always", "--tie=never"] {
            assert!(parse(words).unwrap().hedging.reads.remarks_on_one(None).is_empty(), "{words}");
        }
        let many = parse("--tie --hedge adaptive=2%").unwrap().hedging;
        assert!(many.remarks(bounded).is_empty(), "where reads are many, there is something to learn from");
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_allowed() {
        for (words, expected) in [
            ("--hedge soon", "soon"),
            ("--tie=sometimes", "never, auto, always"),
            ("--fallback 20ms", "20ms:1s"),
            ("--fallback 20ms:0", "1ms to 24h"),
            ("--fallback 0:1s", "above 0"),
            ("--busy-threshold 5", "for example 20ms"),
            ("--hedge-budget 0%", "above 0 and at most 100%"),
            ("--hedge-budget many", "(2% or 0.02)"),
            ("--hedge-budget 2%:0", "from 1 to 1000000"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words}: {error}");
        }
    }
}
