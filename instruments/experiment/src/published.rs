//! Our figures beside those that somebody else published or that other stores gave.

use crate::summary::{Spread, number, or_na, times};
use hedgerow_report::Table;

/// One published figure and ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// What was measured, for example `put, 64 clients, per second`.
    pub what: String,
    /// Whose figure it is.
    pub theirs_from: String,
    /// The published figure.
    pub theirs: f64,
    /// Ours in the same unit, if it was measured.
    pub ours: Option<Spread>,
}

/// A table of figures side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Its heading.
    pub title: String,
    /// The figures.
    pub rows: Vec<Beside>,
    /// Where the published figures come from and how they were measured: never empty.
    pub sources: Vec<String>,
}

impl Comparison {
    /// The comparison for people. The ratio is ours by theirs.
    #[must_use]
    pub fn table(&self) -> Table {
        assert!(!self.sources.is_empty(), "published figures have a source");
        let columns = ["what", "from", "theirs", "ours: median (min-max)", "ours / theirs"];
        let row = |row: &Beside| {
            let ratio = row.ours.map(|ours| ours.median / row.theirs).filter(|ratio| ratio.is_finite());
            vec![row.what.clone(), row.theirs_from.clone(), number(row.theirs), or_na(row.ours), times(ratio)]
        };
        Table {
            title: self.title.clone(),
            columns: columns.map(str::to_owned).to_vec(),
            rows: self.rows.iter().map(row).collect(),
            notes: self.sources.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_stand_beside_theirs() {
        let beside = |ours| Beside { what: "put".to_owned(), theirs_from: "etcd".to_owned(), theirs: 5_000.0, ours };
        let rows = vec![beside(Spread::of([10_000.0, 12_000.0, 14_000.0])), beside(None)];
        let comparison = Comparison { title: "t".to_owned(), rows, sources: vec!["s".to_owned()] };
        let rows = comparison.table().rows;
        assert_eq!(rows[0][2..], ["5,000", "12,000 (10,000-14,000)", "x2.40"]);
        assert_eq!(rows[1][3..], ["n/a", "n/a"]);
    }
}
