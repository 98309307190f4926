//! What the experiment shows.

use super::{Case, RATES, Way, figure};
use crate::pair::Figures;
use crate::summary::{Spread, or_na};
use hedgerow_report::{Run, Table};

/// Writes of a table that keeps a journal may be so much slower: decision 032 says that beyond it we would decide again.
const KEPT_WANTED: f64 = 0.9;

pub(super) fn all(runs: &[Run]) -> Vec<Table> {
    [writes(runs), delays(runs), copies(runs)].into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>, note: &str) -> Table {
    let columns = columns.iter().map(|&column| column.to_owned()).collect();
    Table { title: title.to_owned(), columns, rows, notes: vec![note.to_owned()] }
}

fn extra(runs: &[Run], case: Case, name: &str) -> Option<Spread> {
    let own: Vec<_> = runs.iter().filter(|run| run.variant == case.to_string()).collect();
    Spread::of_runs(&own, |run| run.extra.get(name).copied())
}

fn writes(runs: &[Run]) -> Table {
    let row = |way: Way| {
        let case = Case::Closed(way);
        let figures = Figures::of(runs, &case.to_string(), &Case::Closed(Way::Alone).to_string())?;
        let wanted = (way == Way::Kept).then_some(KEPT_WANTED);
        Some(vec![
            case.to_string(),
            figures.per_s.to_string(),
            or_na(figures.p50_ms),
            or_na(figures.p99_ms),
            or_na(figures.server_cpu_us),
            or_na(extra(runs, case, figure::CPU_THERE)),
            or_na(figures.ratio),
            or_na(extra(runs, case, figure::CAUGHT_UP)),
            figures.verdict(wanted),
        ])
    };
    let columns = [
        "variant",
        "per second",
        "p50 ms",
        "p99 ms",
        "servers' CPU us",
        "other cluster's CPU us",
        "/ not duplicated",
        "caught up after s",
        "target",
    ];
    table(
        "What duplication costs writes",
        &columns,
        Way::ALL.into_iter().filter_map(row).collect(),
        "Puts of 1000 bytes, durable on a majority, closed loop. Paused: partitions keep their journals, and nothing is carried. Carried: both \
         clusters and the generator share the machine's processor. Caught up: from the last write until the other cluster has everything. Median \
         (min-max); ratios are those of the same repetition.",
    )
}

fn delays(runs: &[Run]) -> Table {
    let row = |case: Case| {
        let figures = Figures::of(runs, &case.to_string(), "")?;
        let mut row = vec![case.to_string(), or_na(figures.p50_ms), or_na(figures.p99_ms)];
        row.extend(figure::VISIBLE.map(|name| or_na(extra(runs, case, name))));
        Some(row)
    };
    let cases = RATES.into_iter().flat_map(|rate| [Way::Alone, Way::Carried].map(|way| Case::Open(way, rate)));
    table(
        "How soon writes are in the other cluster",
        &["variant", "put p50 ms", "put p99 ms", "visible there p50 ms", "p99 ms", "most ms"],
        cases.filter_map(row).collect(),
        "Open loop. Visible there: from before a row beside the load is set until a linearizable read in the other cluster finds it, which is asked \
         again each millisecond.",
    )
}

fn copies(runs: &[Run]) -> Table {
    let row = |case: Case| {
        let own: Vec<_> = runs.iter().filter(|run| run.variant == case.to_string()).collect();
        let of = |run: &Run, name| run.extra.get(name).copied();
        let per_s =
            |name: &'static str| Spread::of_runs(&own, move |run| Some(of(run, name)? / of(run, figure::COPIED)?));
        Some(vec![
            case.to_string(),
            extra(runs, case, figure::ROWS)?.to_string(),
            or_na(extra(runs, case, figure::COPIED)),
            or_na(per_s(figure::ROWS)),
            or_na(per_s(figure::MIB)),
            or_na(extra(runs, case, figure::ADDED)),
            "equal".to_owned(),
        ])
    };
    table(
        "Copies of a table",
        &["variant", "rows", "there after s", "rows per second", "MiB per second", "additions", "compared"],
        [Case::Copy, Case::Killed].into_iter().filter_map(row).collect(),
        "From `table duplicate add` until nothing is left to be carried. Killed twice: four clients set, delete and add meanwhile, and all nodes of the \
         other cluster are killed with SIGKILL and started again, twice. Then both clusters' rows are compared, and each number with the \
         additions that were acknowledged; a difference ends the experiment with an error.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_same_repetition() {
        let run = |way, repetition, per_s| Run {
            variant: Case::Closed(way).to_string(),
            repetition,
            achieved_per_s: per_s,
            ..Run::default()
        };
        let runs = [
            run(Way::Alone, 1, 100.0),
            run(Way::Kept, 1, 95.0),
            run(Way::Carried, 1, 50.0),
            run(Way::Alone, 2, 200.0),
            run(Way::Kept, 2, 160.0),
        ];
        let rows = writes(&runs).rows;
        assert_eq!((&rows[1][6][..], &rows[1][8][..]), ("0.875 (0.800-0.950)", ">= x0.9: MISSED"));
        assert_eq!((&rows[2][6][..], &rows[2][8][..]), ("0.500", "none"));
        assert_eq!(rows[0][6], "n/a");
    }

    #[test]
    fn a_copy_has_a_rate() {
        let extra = [(figure::COPIED, 2.0), (figure::ROWS, 100.0), (figure::MIB, 1.0)];
        let extra = extra.map(|(name, value)| (name.to_owned(), value)).into();
        let rows = copies(&[Run { variant: Case::Copy.to_string(), extra, ..Run::default() }]).rows;
        assert_eq!((rows.len(), &rows[0][3][..], &rows[0][4][..]), (1, "50.0", "0.500"));
    }
}
