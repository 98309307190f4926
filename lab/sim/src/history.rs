//! What the clients of one run did and saw: one operation per logical request, however many attempts it took.

use hedgerow_types::{Index, ReadLevel};
use std::fmt;

/// A record's content. All values of the simulation are decimal numbers, so that every operation works on every key.
pub type Content = Option<i64>;

/// Nanoseconds of true (virtual) time since the run began.
pub type Time = u64;

/// What a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Read the record, this fresh. Other levels than linearizable are judged by `oracle.rs` alone.
    Get(ReadLevel),
    /// Set the record.
    Put(i64),
    /// Delete the record.
    Remove,
    /// Add to the record; an absent one counts as 0.
    Incr(i64),
    /// Set the record to `new` if it holds `expected` now.
    Swap {
        /// What must be there.
        expected: Content,
        /// What replaces it.
        new: i64,
    },
}

impl Call {
    /// The strongest read.
    pub const GET: Self = Self::Get(ReadLevel::Linearizable);

    /// Whether the operation can change the record.
    pub const fn is_write(&self) -> bool {
        !matches!(self, Self::Get(_))
    }
}

/// What a successful operation answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// To `Put` and `Remove`.
    Done,
    /// To `Get`.
    Content(Content),
    /// To `Incr`: the new number.
    Sum(i64),
    /// To `Swap`.
    Swapped {
        /// Whether the record was changed.
        is_applied: bool,
        /// What it held before.
        previous: Content,
    },
}

/// How an operation ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It took effect exactly once, between start and end.
    Ok(Answer),
    /// It never took effect and never will.
    Failed,
    /// The client gave up; it may take effect at any time after its start, or never.
    Unknown,
}

/// Where a successful operation was answered, and what the answer said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The machine.
    pub machine: usize,
    /// The log position that a read reflects or that a write has; `None` if the answer does not say it.
    pub index: Option<Index>,
    /// How old the answer says that a read's data is at most.
    pub staleness: Option<Time>,
    /// When the attempt that was answered was sent.
    pub asked: Time,
    /// When the machine answered.
    pub served: Time,
    /// What the client's session had seen of the partition when it asked.
    pub floor: Index,
}

/// One logical operation of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Who asked. One client has one operation at a time.
    pub client: u32,
    /// Which record.
    pub key: u32,
    /// What was asked.
    pub call: Call,
    /// When the first attempt was sent.
    pub start: Time,
    /// When the client learned the outcome, or gave up.
    pub end: Time,
    /// How it ended.
    pub outcome: Outcome,
    /// By whom it was answered, if it was.
    pub seen: Option<Seen>,
}

/// All operations of a run, in the order of their ends.
#[derive(Clone, Debug, Default)]
pub struct History {
    operations: Vec<Operation>,
}

impl FromIterator<Operation> for History {
    fn from_iter<T: IntoIterator<Item = Operation>>(operations: T) -> Self {
        Self { operations: operations.into_iter().collect() }
    }
}

impl History {
    /// Records an operation that ended.
    pub fn push(&mut self, operation: Operation) {
        debug_assert!(operation.start <= operation.end, "time runs forward: {operation:?}");
        self.operations.push(operation);
    }

    /// The operations in the order of their ends.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The operations on each key, keys ascending.
    pub fn by_key(&self) -> std::collections::BTreeMap<u32, Vec<Operation>> {
        let mut keys = std::collections::BTreeMap::<u32, Vec<Operation>>::new();
        for operation in &self.operations {
            keys.entry(operation.key).or_default().push(*operation);
        }
        keys
    }

    /// A number that two histories share only if they are, for all practical purposes, the same (FNV-1a, 64 bit).
    pub fn hash(&self) -> u64 {
        let mut hash = Fnv::default();
        for operation in &self.operations {
            hash.text(&format!("{operation:?}"));
        }
        hash.0
    }
}

/// FNV-1a over text; stable across builds, unlike the standard library's hashers.
#[derive(Clone, Copy, Debug)]
pub struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Adds text.
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }
}

/// A time in seconds, for people.
pub fn seconds(time: Time) -> f64 {
    time as f64 / 1e9
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by m{}", self.machine + 1)?;
        match self.index {
            Some(index) => write!(f, " at index {index}")?,
            None => write!(f, " at an index that it did not say")?,
        }
        if let Some(staleness) = self.staleness {
            write!(f, ", at most {:.3} s old", seconds(staleness))?;
        }
        write!(f, ", asked at {:.6} and served at {:.6}", seconds(self.asked), seconds(self.served))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:>10.6} .. ", seconds(self.start))?;
        match self.outcome {
            Outcome::Ok(_) | Outcome::Failed => write!(f, "{:>10.6}]", seconds(self.end))?,
            Outcome::Unknown => write!(f, "{:>10}]", "open")?,
        }
        write!(f, " client {:<2} key {:<3} {:?}", self.client, self.key, self.call)?;
        match self.outcome {
            Outcome::Ok(answer) => write!(f, " -> {answer:?}")?,
            Outcome::Failed => write!(f, " -> failed")?,
            Outcome::Unknown => write!(f, " -> unknown")?,
        }
        self.seen.map_or(Ok(()), |seen| write!(f, " {seen}"))
    }
}
