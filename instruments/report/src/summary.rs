//! The figures of runs as tables: one for each workload, the median of the repetitions with their spread.

use crate::schema::{ExtraAttempts, Hedging, Latency, Outcome, Run, Table};
use crate::units::{NONE, count, figure};
use crate::variants::{Comparison, Spread, Variant, comparisons};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

impl Outcome {
    /// For each workload its variants by operation, and what extra attempts they sent, if any.
    pub fn figures(&self) -> Vec<Table> {
        let comparisons = comparisons(&[(Path::new(""), self)]);
        let tables = comparisons.iter().map(|comparison| [Some(figures(comparison)), hedging(comparison)]);
        tables.flatten().flatten().collect()
    }

    /// Its runs as tables: for each workload its variants by operation, then whatever else was measured.
    pub fn summary(&self) -> Vec<Table> {
        let comparisons = comparisons(&[(Path::new(""), self)]);
        let tables =
            comparisons.iter().map(|comparison| [Some(figures(comparison)), hedging(comparison), further(comparison)]);
        tables.flatten().flatten().collect()
    }
}

/// A column that an operation of a variant has a figure in.
type Column = (&'static str, fn(&Variant<'_>, &str) -> String);

const COLUMNS: [Column; 15] = [
    ("runs", |variant, _| runs(variant)),
    ("offered/s", |variant, _| median(variant.spread(|run| run.offered_per_s))),
    ("successes/s", |variant, _| with_range(variant.spread(|run| Some(run.achieved_per_s)))),
    ("p50 (µs)", |variant, operation| median(latency(variant, operation, |it| Some(it.p50)))),
    ("p95 (µs)", |variant, operation| median(latency(variant, operation, |it| Some(it.p95)))),
    ("p99 (µs)", |variant, operation| with_range(latency(variant, operation, |it| Some(it.p99)))),
    ("p99.9 (µs)", |variant, operation| with_range(latency(variant, operation, |it| it.p999))),
    ("p99.99 (µs)", |variant, operation| with_range(latency(variant, operation, |it| it.p9999))),
    ("max (µs)", |variant, operation| median(latency(variant, operation, |it| Some(it.max)))),
    ("requests", |variant, operation| total(variant, operation, |it| it.count)),
    ("errors", |variant, operation| total(variant, operation, |it| it.errors)),
    ("timeouts", |variant, operation| total(variant, operation, |it| it.timeouts)),
    ("send lag p99 (µs)", |variant, _| median(variant.spread(|run| run.send_lag_us.as_ref().map(|it| it.p99)))),
    ("CPU s per million, servers", |variant, _| median(variant.spread(Run::server_cpu_us_per_request))),
    ("CPU s per million, generator", |variant, _| median(variant.spread(Run::generator_cpu_us_per_request))),
];

/// The variants of a comparison by operation.
pub(crate) fn figures(comparison: &Comparison<'_>) -> Table {
    let mut table = Table { title: comparison.workload.clone(), ..Table::default() };
    table.columns =
        ["variant", "operation"].into_iter().chain(COLUMNS.map(|(title, _)| title)).map(str::to_owned).collect();
    for variant in &comparison.variants {
        for operation in comparison.operations() {
            if variant.runs.iter().all(|run| run.operation(&operation).is_none()) {
                continue;
            }
            let cells = COLUMNS.map(|(_, cell)| cell(variant, &operation));
            table.rows.push([variant.label(), operation].into_iter().chain(cells).collect());
        }
    }
    if comparison.variants.iter().any(|variant| variant.runs.len() > 1) {
        table.notes.push("Medians of the repetitions, with the lowest and the highest in brackets.".to_owned());
    }
    if comparison.variants.iter().any(|variant| variant.void_count() > 0) {
        table.notes.push("VOID runs do not count; a variant that has no others is marked.".to_owned());
    }
    table
}

/// Extra attempts by variant, all repetitions that count together; `None` if no load could send any.
pub(crate) fn hedging(comparison: &Comparison<'_>) -> Option<Table> {
    let rows: Vec<_> = comparison.variants.iter().filter_map(hedging_row).collect();
    let columns = [
        "variant",
        "extra requests (%)",
        "extra work of servers (%)",
        "by kind",
        "cancelled",
        "cancelled in time",
        "waited in vain (ms)",
        "clients held up",
        "read at level",
        "attempts by node",
        "servers' own counts",
    ];
    (!rows.is_empty()).then(|| Table {
        title: format!("{}: extra attempts", comparison.workload),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
        notes: vec![
            "All repetitions together. Extra work: reads that servers executed beyond those that were asked for. Cancelled: given \
             up, as another attempt had decided; in time: its server had not begun it, or dropped it. Suppressed: due without a \
             token of the budget. Held up: how often the clients themselves were late with what was due."
                .to_owned(),
        ],
    })
}

fn hedging_row(variant: &Variant<'_>) -> Option<Vec<String>> {
    let all: Vec<&Hedging> = variant.counted().filter_map(|run| run.hedging.as_ref()).collect();
    let first: u64 = all.iter().map(|it| it.first).sum();
    if all.is_empty() {
        return None;
    }
    let mut kinds: BTreeMap<&str, ExtraAttempts> = BTreeMap::new();
    for (name, kind) in all.iter().flat_map(|it| &it.kinds) {
        let sum = kinds.entry(name).or_default();
        *sum = ExtraAttempts {
            sent: sum.sent + kind.sent,
            won: sum.won + kind.won,
            suppressed: sum.suppressed + kind.suppressed,
            sent_late: sum.sent_late + kind.sent_late,
        };
    }
    let extra: u64 = kinds.values().map(|kind| kind.sent).sum();
    let total = |pick: fn(&Hedging) -> u64| count(all.iter().map(|it| pick(it)).sum());
    let kind = |(name, kind): (&&str, &ExtraAttempts)| format!("{name}: {}", kind.told(count));
    let counts = |pick: &dyn Fn(&Hedging) -> Vec<(String, u64)>| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (name, value) in all.iter().flat_map(|it| pick(it)) {
            *sums.entry(name).or_default() += value;
        }
        let texts: Vec<_> = sums.iter().map(|(name, value)| format!("{name} {}", count(*value))).collect();
        if texts.is_empty() { NONE.to_owned() } else { texts.join(", ") }
    };
    let owned = |map: &BTreeMap<String, u64>| map.iter().map(|(name, value)| (name.clone(), *value)).collect();
    let share = extra as f64 * 100.0 / first.max(1) as f64;
    Some(vec![
        variant.label(),
        format!("{} %", figure(share)),
        with_range(variant.spread(|run| run.hedging.as_ref().and_then(|it| it.extra_work_percent))),
        if kinds.is_empty() { NONE.to_owned() } else { kinds.iter().map(kind).collect::<Vec<_>>().join("; ") },
        total(|it| it.cancelled),
        total(|it| it.dropped),
        figure(all.iter().map(|it| it.wasted_ms).sum()),
        total(|it| it.held_up.map_or(0, |it| it.count)),
        counts(&|it| owned(&it.served_levels)),
        counts(&|it| it.nodes.iter().map(|(node, of)| (node.clone(), of.attempts)).collect()),
        counts(&|it| owned(&it.servers)),
    ])
}

/// What was measured besides, by variant; `None` if nothing was.
pub(crate) fn further(comparison: &Comparison<'_>) -> Option<Table> {
    let runs = comparison.variants.iter().flat_map(|variant| &variant.runs);
    let names: BTreeSet<&String> = runs.flat_map(|run| run.extra.keys()).collect();
    if names.is_empty() {
        return None;
    }
    let row = |variant: &Variant<'_>| {
        let cells = names.iter().map(|name| with_range(variant.spread(|run| run.extra.get(*name).copied())));
        std::iter::once(variant.label()).chain(cells).collect()
    };
    Some(Table {
        title: format!("{}: further figures", comparison.workload),
        columns: std::iter::once("variant".to_owned()).chain(names.iter().map(|name| (*name).clone())).collect(),
        rows: comparison.variants.iter().map(row).collect(),
        notes: Vec::new(),
    })
}

/// Every run by itself.
pub(crate) fn single_runs(comparison: &Comparison<'_>) -> Table {
    let columns =
        ["variant", "repetition", "begin (s)", "measured (s)", "loop", "successes/s", "p99 (µs)", "errors", "void"];
    let row = |variant: &Variant<'_>, run: &Run| {
        let worst = run.operations.iter().map(|operation| operation.latency_us.p99).fold(f64::NAN, f64::max);
        vec![
            variant.name.clone(),
            run.repetition.to_string(),
            figure(run.begin_s),
            figure(run.duration_s),
            format!("{:?}", run.loop_kind).to_lowercase(),
            figure(run.achieved_per_s),
            figure(worst),
            count(run.operations.iter().map(|operation| operation.errors + operation.timeouts).sum()),
            run.void.clone().unwrap_or_default(),
        ]
    };
    Table {
        title: format!("{}: every run", comparison.workload),
        columns: columns.map(str::to_owned).to_vec(),
        rows: comparison.variants.iter().flat_map(|variant| variant.runs.iter().map(|run| row(variant, run))).collect(),
        notes: vec!["p99 is that of the slowest operation; errors include timeouts.".to_owned()],
    }
}

fn latency(variant: &Variant<'_>, operation: &str, pick: fn(&Latency) -> Option<f64>) -> Option<Spread> {
    variant.operation_spread(operation, |operation| pick(&operation.latency_us))
}

fn runs(variant: &Variant<'_>) -> String {
    match variant.void_count() {
        0 => variant.runs.len().to_string(),
        void => format!("{} ({void} VOID)", variant.runs.len()),
    }
}

fn total(variant: &Variant<'_>, operation: &str, pick: fn(&crate::Operation) -> u64) -> String {
    count(variant.counted().filter_map(|run| run.operation(operation)).map(pick).sum())
}

fn median(spread: Option<Spread>) -> String {
    spread.map_or_else(|| NONE.to_owned(), |spread| figure(spread.median))
}

fn with_range(spread: Option<Spread>) -> String {
    match spread {
        Some(spread) if spread.min < spread.max => {
            format!("{} [{}-{}]", figure(spread.median), figure(spread.min), figure(spread.max))
        }
        other => median(other),
    }
}
