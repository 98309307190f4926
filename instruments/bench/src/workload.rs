//! What a load asks for: operations, rows, keys and value sizes, as a TOML file.

use crate::operation::Operation;
use anyhow::{Context as _, Result, bail, ensure};
use hedgerow_types::limit::{
    BATCH_READ_COUNT_MAX, MULTI_WRITE_COUNT_MAX, PARTITION_COUNT_MAX, READ_ROWS_MAX, WRITE_SIZE_MAX,
};
use serde::{Deserialize, Serialize};

/// The constant of YCSB's zipfian distribution.
pub const ZIPFIAN_EXPONENT: f64 = 0.99;
/// The largest value: a write must also hold its keys.
pub const VALUE_SIZE_MAX: u32 = WRITE_SIZE_MAX as u32 - 4096;
/// Most rows of a table: the numbers in keys have twelve digits.
pub const ROWS_MAX: u64 = 1_000_000_000_000;

/// The largest share of an operation.
const SHARE_MAX: u32 = 1_000_000;

/// A workload. Its file says everything about what is asked; how fast and for how long is the load's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name, as results refer to it.
    pub name: String,
    /// What it stands for, in a sentence.
    #[serde(default)]
    pub description: String,
    /// Where the rows are.
    #[serde(default)]
    pub table: Table,
    /// Which rows are asked for.
    #[serde(default)]
    pub keys: Keys,
    /// How big values are.
    #[serde(default)]
    pub values: Values,
    /// How often each operation comes.
    pub operations: Shares,
    /// Rows of one `multi_get` or `batch_set`.
    #[serde(default = "default_batch_rows")]
    pub batch_rows: Spread,
    /// Rows of one `scan`.
    #[serde(default = "default_scan_rows")]
    pub scan_rows: Spread,
}

/// The table of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    /// How its keys are spread.
    pub kind: Kind,
    /// Partitions of a table that is created, 2 to 4,096; default 8. A table that exists keeps its own.
    pub partitions: u32,
    /// Rows before the load begins, 1 to 10^12; default 100,000.
    pub rows: u64,
    /// Rows that share a hash key, 1 to 1,000,000; default 1. They are of one partition, and rows of one request. In an
    /// ordered table it has no meaning and must be 1.
    pub rows_per_hash_key: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self { kind: Kind::Hash, partitions: 8, rows: 100_000, rows_per_hash_key: 1 }
    }
}

/// The kind of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// By the hash of the hash key.
    #[default]
    Hash,
    /// By ranges of keys.
    Ordered,
}

/// How rows are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "distribution", rename_all = "snake_case", deny_unknown_fields)]
pub enum Keys {
    /// Each row as often.
    Uniform {},
    /// The k-th most wanted row is asked for in proportion to 1 / k^exponent; wanted rows lie anywhere in the table.
    Zipfian {
        /// Above 0, up to 3; default 0.99, as in YCSB.
        #[serde(default = "default_exponent")]
        exponent: f64,
    },
    /// As zipfian, with the row that was inserted last as the most wanted one.
    Latest {
        /// As above.
        #[serde(default = "default_exponent")]
        exponent: f64,
    },
    /// Some requests go to few rows, the others to the rest; evenly inside each part.
    HotSet {
        /// Share of requests that go to hot rows, 0 to 100.
        requests_percent: f64,
        /// Share of rows that are hot, above 0 to 100.
        rows_percent: f64,
    },
}

impl Default for Keys {
    fn default() -> Self {
        Self::Uniform {}
    }
}

/// How big values are, in bytes: at most [`VALUE_SIZE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "distribution", rename_all = "snake_case", deny_unknown_fields)]
pub enum Values {
    /// All of one size.
    Fixed {
        /// The size.
        size: u32,
    },
    /// Each size as often.
    Uniform {
        /// The smallest.
        size_min: u32,
        /// The largest.
        size_max: u32,
    },
    /// Small ones often: the k-th smallest in proportion to 1 / k^exponent.
    Zipfian {
        /// The smallest.
        size_min: u32,
        /// The largest.
        size_max: u32,
        /// As for keys.
        #[serde(default = "default_exponent")]
        exponent: f64,
    },
    /// The logarithm of the size has a normal distribution; what is larger than `size_max` counts as that.
    Lognormal {
        /// Half are smaller.
        size_median: u32,
        /// Standard deviation of the natural logarithm, 0 to 5.
        sigma: f64,
        /// The largest.
        size_max: u32,
    },
}

impl Default for Values {
    fn default() -> Self {
        Self::Fixed { size: 1000 }
    }
}

impl Values {
    /// The largest size that can come.
    pub fn size_max(&self) -> u32 {
        match *self {
            Self::Fixed { size } => size,
            Self::Uniform { size_max, .. } | Self::Zipfian { size_max, .. } | Self::Lognormal { size_max, .. } => {
                size_max
            }
        }
    }
}

/// How often each operation comes, as parts of their sum; 0 = never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shares {
    /// Read a row.
    #[serde(skip_serializing_if = "is_zero")]
    pub get: u32,
    /// Replace a row.
    #[serde(skip_serializing_if = "is_zero")]
    pub set: u32,
    /// Set a row that did not exist.
    #[serde(skip_serializing_if = "is_zero")]
    pub insert: u32,
    /// Read a row, then replace it; the time of both counts.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_modify_write: u32,
    /// Read several rows of one hash key.
    #[serde(skip_serializing_if = "is_zero")]
    pub multi_get: u32,
    /// Replace several rows of one hash key in one request.
    #[serde(skip_serializing_if = "is_zero")]
    pub batch_set: u32,
    /// Read rows one after the other: of one hash key, or of a range of an ordered table.
    #[serde(skip_serializing_if = "is_zero")]
    pub scan: u32,
    /// Add one to a counter of the row.
    #[serde(skip_serializing_if = "is_zero")]
    pub incr: u32,
}

fn is_zero(share: &u32) -> bool {
    *share == 0
}

impl Shares {
    /// The share of one operation.
    pub fn of(&self, operation: Operation) -> u32 {
        match operation {
            Operation::Get => self.get,
            Operation::Set => self.set,
            Operation::Insert => self.insert,
            Operation::ReadModifyWrite => self.read_modify_write,
            Operation::MultiGet => self.multi_get,
            Operation::BatchSet => self.batch_set,
            Operation::Scan => self.scan,
            Operation::Incr => self.incr,
        }
    }

    /// Whether any operation needs rows that are there before the load begins.
    pub fn needs_rows(&self) -> bool {
        [self.get, self.read_modify_write, self.multi_get, self.scan].iter().any(|share| *share > 0)
    }

    fn check(&self) -> Result<()> {
        let shares = Operation::ALL.map(|operation| self.of(operation));
        ensure!(shares.iter().any(|share| *share > 0), "operations: at least one share must be above 0");
        ensure!(shares.iter().all(|share| *share <= SHARE_MAX), "operations: shares must be at most {SHARE_MAX}");
        Ok(())
    }
}

/// A number that is drawn evenly from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// The least, at least 1.
    pub min: u32,
    /// The most.
    pub max: u32,
}

fn default_exponent() -> f64 {
    ZIPFIAN_EXPONENT
}

fn default_batch_rows() -> Spread {
    Spread { min: 10, max: 10 }
}

fn default_scan_rows() -> Spread {
    Spread { min: 1, max: 100 }
}

impl Workload {
    /// Reads a workload and checks it.
    pub fn parse(text: &str) -> Result<Self> {
        let workload: Self = toml::from_str(text).context("the workload is not valid")?;
        workload.check().with_context(|| format!("workload {:?}", workload.name))?;
        Ok(workload)
    }

    /// The workload as a file, with every default written out.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("plain data with string keys can be written as TOML")
    }

    /// Refuses what cannot be run, with what is allowed. Whoever changes a field calls this again.
    pub fn check(&self) -> Result<()> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        ensure!(
            !self.name.is_empty() && self.name.chars().all(is_name),
            "name may have letters, digits, '-', '_' and '.'"
        );
        let table = &self.table;
        ensure!(
            (2..=PARTITION_COUNT_MAX).contains(&table.partitions) && table.partitions.is_power_of_two(),
            "table.partitions is {}, and must be a power of two from 2 to {PARTITION_COUNT_MAX}",
            table.partitions
        );
        in_range("table.rows", table.rows, 1, ROWS_MAX)?;
        in_range("table.rows_per_hash_key", table.rows_per_hash_key, 1, 1_000_000)?;
        ensure!(
            table.rows.is_multiple_of(table.rows_per_hash_key),
            "table.rows is {}, and must be a multiple of table.rows_per_hash_key {}",
            table.rows,
            table.rows_per_hash_key
        );
        self.check_keys()?;
        self.check_values()?;
        self.operations.check()?;
        self.check_rows_of_requests()
    }

    fn check_keys(&self) -> Result<()> {
        match self.keys {
            Keys::Uniform {} => Ok(()),
            Keys::Zipfian { exponent } | Keys::Latest { exponent } => check_exponent("keys", exponent),
            Keys::HotSet { requests_percent, rows_percent } => {
                ensure!((0.0..=100.0).contains(&requests_percent), "keys.requests_percent must be 0 to 100");
                ensure!(rows_percent > 0.0 && rows_percent <= 100.0, "keys.rows_percent must be above 0, up to 100");
                Ok(())
            }
        }
    }

    fn check_values(&self) -> Result<()> {
        let size_max = self.values.size_max();
        ensure!(size_max <= VALUE_SIZE_MAX, "values of {size_max} bytes are more than {VALUE_SIZE_MAX}");
        match self.values {
            Values::Fixed { .. } => {}
            Values::Uniform { size_min, size_max } => {
                ensure!(size_min <= size_max, "values: size_min is above size_max")
            }
            Values::Zipfian { size_min, size_max, exponent } => {
                ensure!(size_min <= size_max, "values: size_min is above size_max");
                check_exponent("values", exponent)?;
            }
            Values::Lognormal { size_median, sigma, size_max } => {
                ensure!(size_median >= 1 && size_median <= size_max, "values: size_median must be 1 to size_max");
                ensure!((0.0..=5.0).contains(&sigma), "values.sigma must be 0 to 5");
            }
        }
        Ok(())
    }

    fn check_rows_of_requests(&self) -> Result<()> {
        for (name, spread) in [("batch_rows", self.batch_rows), ("scan_rows", self.scan_rows)] {
            ensure!(spread.min >= 1 && spread.min <= spread.max, "{name}: min must be 1 to max");
        }
        let batches = self.operations.multi_get > 0 || self.operations.batch_set > 0;
        let per_hash_key = self.table.rows_per_hash_key;
        let is_hash = self.table.kind == Kind::Hash;
        if !is_hash {
            ensure!(per_hash_key == 1, "table.rows_per_hash_key must be 1 in an ordered table");
            ensure!(!batches, "multi_get and batch_set need a hash table");
            return Ok(());
        }
        let scans = self.operations.scan > 0;
        for (name, is_used, spread) in [("batch_rows", batches, self.batch_rows), ("scan_rows", scans, self.scan_rows)]
        {
            let fits = u64::from(spread.max) <= per_hash_key;
            ensure!(!is_used || fits, "{name}.max is {}, more than table.rows_per_hash_key {per_hash_key}", spread.max);
        }
        let rows_max = BATCH_READ_COUNT_MAX.min(MULTI_WRITE_COUNT_MAX);
        ensure!(!batches || self.batch_rows.max as usize <= rows_max, "batch_rows.max must be at most {rows_max}");
        ensure!(
            !scans || self.scan_rows.max as usize <= READ_ROWS_MAX,
            "scan_rows.max must be at most {READ_ROWS_MAX}"
        );
        if self.operations.batch_set > 0 {
            let bytes = u64::from(self.batch_rows.max) * u64::from(self.values.size_max());
            ensure!(bytes <= u64::from(VALUE_SIZE_MAX), "a batch_set of {bytes} bytes is more than {VALUE_SIZE_MAX}");
        }
        Ok(())
    }
}

fn check_exponent(what: &str, exponent: f64) -> Result<()> {
    ensure!(exponent > 0.0 && exponent <= 3.0, "{what}.exponent must be above 0, up to 3");
    Ok(())
}

fn in_range(name: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if !(min..=max).contains(&value) {
        bail!("{name} is {value}, and must be {min} to {max}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        format!("{:#}", Workload::parse(text).unwrap_err())
    }

    #[test]
    fn a_short_file_means_the_defaults() {
        let workload = Workload::parse("name = 'g'\n[operations]\nget = 1").unwrap();
        assert_eq!(workload.table, Table::default());
        assert_eq!(workload.keys, Keys::Uniform {});
        assert_eq!(workload.values, Values::Fixed { size: 1000 });
    }

    #[test]
    fn the_text_of_a_workload_reads_as_the_same_workload() {
        for (_, text) in crate::builtin::ALL {
            let workload = Workload::parse(text).unwrap();
            assert_eq!(Workload::parse(&workload.text()).unwrap(), workload);
        }
    }

    #[test]
    fn unknown_fields_are_refused_wherever_they_stand() {
        for text in [
            "name = 'g'\nspeed = 1\n[operations]\nget = 1",
            "name = 'g'\n[operations]\ngot = 1",
            "name = 'g'\n[operations]\nget = 1\n[keys]\ndistribution = 'uniform'\nexponent = 1.0",
            "name = 'g'\n[operations]\nget = 1\n[values]\ndistribution = 'fixed'\nsize = 1\nsizes = 2",
        ] {
            assert!(complaint(text).contains("unknown field"), "{}", complaint(text));
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_what_is_allowed() {
        let get = "\n[operations]\nget = 1";
        assert!(complaint("name = 'a b'\n[operations]\nget = 1").contains("letters"));
        assert!(complaint("name = 'g'\n[operations]").contains("above 0"));
        assert!(complaint(&format!("name = 'g'\n[table]\npartitions = 3{get}")).contains("power of two"));
        assert!(complaint(&format!("name = 'g'\n[table]\nrows = 0{get}")).contains("1 to"));
        assert!(complaint("name = 'g'\n[operations]\nmulti_get = 1").contains("rows_per_hash_key"));
        assert!(complaint("name = 'g'\n[operations]\nmulti_get = 1\n[table]\nkind = 'ordered'").contains("hash table"));
        let huge = format!("name = 'g'\n[values]\ndistribution = 'fixed'\nsize = 2000000{get}");
        assert!(complaint(&huge).contains("more than"));
        let zipf = format!("name = 'g'\n[keys]\ndistribution = 'zipfian'\nexponent = 9.0{get}");
        assert!(complaint(&zipf).contains("up to 3"));
    }
}
