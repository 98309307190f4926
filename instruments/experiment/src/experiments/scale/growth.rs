//! The tables of `scale`: every figure beside its ratio to the smallest variant, and what one more of each costs.

use super::{Axis, Case, Loop, NODE_COUNT, Operation, figure, workload_name};
use crate::summary::{Spread, number, or_na, times};
use hedgerow_report::{Run, Table};

/// A column: its heading and its figure of a variant.
type Column = (&'static str, fn(&Figures<'_>) -> Option<Spread>);

const COLUMNS: [Column; 11] = [
    ("put per second", |it| it.of(Operation::Put, Loop::Closed, |run| Some(run.achieved_per_s))),
    ("get per second", |it| it.of(Operation::Get, Loop::Closed, |run| Some(run.achieved_per_s))),
    ("put p99 ms", |it| it.of(Operation::Put, Loop::Closed, p99_ms)),
    ("get p99 ms", |it| it.of(Operation::Get, Loop::Closed, p99_ms)),
    ("put p99 ms, fixed rate", |it| it.of(Operation::Put, Loop::Open, p99_ms)),
    ("get p99 ms, fixed rate", |it| it.of(Operation::Get, Loop::Open, p99_ms)),
    ("CPU us per put", |it| it.of(Operation::Put, Loop::Closed, Run::server_cpu_us_per_request)),
    ("CPU us per get", |it| it.of(Operation::Get, Loop::Closed, Run::server_cpu_us_per_request)),
    ("memory MiB", |it| it.resident()),
    ("start-up s", |it| it.start()),
    ("disk MiB", |it| it.disk()),
];

/// Connections come after the start, and all of their variants share what is on disk: the last two columns say nothing there.
fn columns(axis: Axis) -> &'static [Column] {
    match axis {
        Axis::Connections => &COLUMNS[..COLUMNS.len() - 2],
        Axis::Partitions | Axis::Rows => &COLUMNS,
    }
}

/// The runs of one variant.
struct Figures<'a> {
    case: &'a Case,
    runs: &'a [Run],
}

impl Figures<'_> {
    fn of(&self, operation: Operation, kind: Loop, figure: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        let (variant, workload) = (self.case.variant(kind), workload_name(self.case.axis, operation, kind));
        let all: Vec<_> = self.runs.iter().filter(|run| run.variant == variant && run.workload == workload).collect();
        Spread::of_runs(&all, figure)
    }

    /// After both loads for throughput, which are seldom VOID.
    fn resident(&self) -> Option<Spread> {
        self.of(Operation::Get, Loop::Closed, |run| run.extra.get(figure::RESIDENT).copied())
    }

    /// The same for all loads of a turn.
    fn start(&self) -> Option<Spread> {
        self.of(Operation::Put, Loop::Closed, |run| run.extra.get(figure::START).copied())
    }

    fn disk(&self) -> Option<Spread> {
        self.of(Operation::Get, Loop::Closed, |run| run.extra.get(figure::DISK).copied())
    }
}

fn p99_ms(run: &Run) -> Option<f64> {
    run.operations.first().map(|operation| operation.latency_us.p99 / 1e3)
}

/// The growth along one axis; `None` if nothing of it was measured.
pub(super) fn table(cases: &[Case], runs: &[Run]) -> Option<Table> {
    let measured = |case: &&Case| runs.iter().any(|run| run.variant == case.variant(Loop::Closed));
    let figures: Vec<_> = cases.iter().filter(measured).map(|case| Figures { case, runs }).collect();
    let base = figures.first()?;
    let axis = base.case.axis;
    let row = |it: &Figures<'_>| {
        let cells = columns(axis).iter().map(|(_, figure)| {
            let (own, first) = (figure(it), figure(base));
            let ratio = own.zip(first).and_then(|(own, first)| own.ratio(first));
            format!("{} ({})", or_na(own.map(|own| number(own.median))), times(ratio))
        });
        std::iter::once(it.case.to_string()).chain(cells).collect()
    };
    let headings = std::iter::once(axis.name()).chain(columns(axis).iter().map(|(heading, _)| *heading));
    Some(Table {
        title: format!("Growth with {}: median, and ratio to {}", axis.name(), base.case),
        columns: headings.map(str::to_owned).collect(),
        rows: figures.iter().map(row).collect(),
        notes: notes(axis, &figures),
    })
}

fn notes(axis: Axis, figures: &[Figures<'_>]) -> Vec<String> {
    let mut notes: Vec<_> = figures.windows(2).filter_map(|pair| marginal(axis, &pair[0], &pair[1])).collect();
    notes.push(
        "Per second and p99: closed loop, one request in flight per connection. Fixed rate: open loop, the same rate for all \
         variants; VOID runs are left out where there are others. CPU, memory and disk (logs included): all nodes together. Start-up: from starting all nodes, with their data there, until \
         all of them serve."
            .to_owned(),
    );
    if axis == Axis::Rows {
        notes
            .push("Where the size of values changes from one line to the next, bytes change with the rows.".to_owned());
    }
    notes
}

/// What one more of what grows costs each node, between two neighbours of which the second is larger.
fn marginal(axis: Axis, from: &Figures<'_>, to: &Figures<'_>) -> Option<String> {
    let added = to.case.count().checked_sub(from.case.count()).filter(|added| *added > 0)? as f64;
    let per = |figure: fn(&Figures<'_>) -> Option<Spread>, unit: f64| {
        or_na(figure(to).zip(figure(from)).map(|(to, from)| number((to.median - from.median) * unit / added)))
    };
    let (one, noun) = match axis {
        Axis::Partitions => (1.0, "partition"),
        Axis::Rows => (1e3, "thousand rows"),
        Axis::Connections => (1.0, "connection"),
    };
    let kib = one * 1024.0 / NODE_COUNT as f64;
    let memory = format!("{} KiB of memory", per(|it| it.resident(), kib));
    let costs = match axis {
        // As in the columns.
        Axis::Connections => format!("{memory} per node"),
        Axis::Partitions | Axis::Rows => {
            let (disk, start) = (per(|it| it.disk(), kib), per(|it| it.start(), one * 1e3));
            format!("{memory} and {disk} KiB of disk per node, and {start} ms of start-up")
        }
    };
    Some(format!("From {} to {}: {costs} for each further {noun}.", from.case, to.case))
}

#[cfg(test)]
mod tests {
    use super::super::{FULL, Shape};
    use super::*;
    use hedgerow_report::{Latency, Operation as Measured};

    fn cases() -> [Case; 2] {
        [8, 64].map(|partitions| {
            let shape = Shape { partitions, ..FULL.base };
            Case { axis: Axis::Partitions, shape, connections: 64 }
        })
    }

    fn runs(case: &Case, scale: f64) -> Vec<Run> {
        let mut runs = Vec::new();
        for operation in [Operation::Put, Operation::Get] {
            for kind in [Loop::Closed, Loop::Open] {
                let latency_us = Latency { p99: 1_000.0 * scale, ..Latency::default() };
                let extra = [(figure::RESIDENT, 300.0 * scale), (figure::START, scale), (figure::DISK, 30.0)];
                runs.push(Run {
                    variant: case.variant(kind),
                    workload: workload_name(case.axis, operation, kind),
                    repetition: 1,
                    achieved_per_s: 10_000.0 / scale,
                    operations: vec![Measured { latency_us, count: 1, ..Measured::default() }],
                    extra: extra.map(|(name, value)| (name.to_owned(), value)).into(),
                    ..Run::default()
                });
            }
        }
        runs
    }

    #[test]
    fn growth_is_against_the_smallest_and_per_unit() {
        let cases = cases();
        let table = table(&cases, &[runs(&cases[0], 1.0), runs(&cases[1], 2.0)].concat()).unwrap();
        let row = |index: usize| table.rows[index].join(" | ");
        let first = "partitions=8 | 10,000 (x1.00) | 10,000 (x1.00) | 1.00 (x1.00) | 1.00 (x1.00) | 1.00 (x1.00) | 1.00 (x1.00) | n/a (n/a) | n/a (n/a) | \
                     300 (x1.00) | 1.00 (x1.00) | 30.0 (x1.00)";
        assert_eq!(row(0), first);
        let second = "partitions=64 | 5,000 (x0.50) | 5,000 (x0.50) | 2.00 (x2.00) | 2.00 (x2.00) | 2.00 (x2.00) | 2.00 (x2.00) | n/a (n/a) | n/a (n/a) | \
                      600 (x2.00) | 2.00 (x2.00) | 30.0 (x1.00)";
        assert_eq!(row(1), second);
        // 300 MiB on three nodes for 56 partitions.
        let note = "From partitions=8 to partitions=64: 1,829 KiB of memory and 0 KiB of disk per node, and 17.9 ms of \
                    start-up for each further partition.";
        assert_eq!(table.notes[0], note);
    }

    #[test]
    fn what_was_not_measured_has_no_table() {
        assert_eq!(table(&cases(), &[]), None);
        let cases = cases();
        assert_eq!(table(&cases, &runs(&cases[1], 1.0)).unwrap().rows.len(), 1);
    }
}
