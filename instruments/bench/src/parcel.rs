//! What one generator measured, as its process sends it to its parent: histograms in their own compressed form.

use crate::generator::PartResult;
use crate::hedging::Counts;
use crate::operation::Operation;
use crate::reading::{Reads, level_named, role_named};
use crate::record::{Counted, Record, SecondCounted};
use anyhow::{Context as _, Result, anyhow};
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parcel {
    duration: Duration,
    generator_cpu_s: f64,
    operations: Vec<PackedOperation>,
    seconds: Vec<PackedSecond>,
    lag: Vec<u8>,
    errors: BTreeMap<String, u64>,
    missing: u64,
    unsent: u64,
    held_back: u64,
    reads: PackedReads,
    hedging: Option<Counts>,
    reads_sent: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackedReads {
    by_node: BTreeMap<String, u64>,
    by_role: BTreeMap<String, u64>,
    by_level: BTreeMap<String, u64>,
    repeated: u64,
    staleness: Vec<u8>,
    at_server: Vec<u8>,
}

impl PackedReads {
    fn of(reads: &Reads) -> Result<Self> {
        Ok(Self {
            by_node: reads.by_node.iter().map(|(node, count)| (node.to_string(), *count)).collect(),
            by_role: reads.by_role.iter().map(|(role, count)| ((*role).to_owned(), *count)).collect(),
            by_level: reads.by_level.iter().map(|(level, count)| ((*level).to_owned(), *count)).collect(),
            repeated: reads.repeated,
            staleness: pack(&reads.staleness)?,
            at_server: pack(&reads.at_server)?,
        })
    }

    fn open(self) -> Result<Reads> {
        let mut reads = Reads { repeated: self.repeated, ..Reads::default() };
        for (node, count) in self.by_node {
            reads.by_node.insert(node.parse().map_err(|_| anyhow!("{node:?} is no address"))?, count);
        }
        reads.by_role = self.by_role.into_iter().map(|(role, count)| (role_named(&role), count)).collect();
        for (level, count) in self.by_level {
            reads.by_level.insert(level_named(&level).context("an unknown level")?, count);
        }
        add(&mut reads.staleness, &self.staleness)?;
        add(&mut reads.at_server, &self.at_server)?;
        Ok(reads)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackedOperation {
    name: String,
    latency: Vec<u8>,
    errors: u64,
    timeouts: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PackedSecond {
    latency: Vec<u8>,
    failures: u64,
}

impl Parcel {
    pub(crate) fn of(result: &PartResult) -> Result<Self> {
        let record = &result.record;
        let operation = |(operation, counted): (&Operation, &Counted)| {
            let latency = pack(&counted.latency)?;
            let name = operation.name().to_owned();
            Ok(PackedOperation { name, latency, errors: counted.errors, timeouts: counted.timeouts })
        };
        let second =
            |second: &SecondCounted| Ok(PackedSecond { latency: pack(&second.latency)?, failures: second.failures });
        Ok(Self {
            duration: result.duration,
            generator_cpu_s: result.generator_cpu_s,
            operations: record.operations.iter().map(operation).collect::<Result<_>>()?,
            seconds: record.seconds.iter().map(second).collect::<Result<_>>()?,
            lag: pack(&record.lag)?,
            errors: record.errors.clone(),
            missing: record.missing,
            unsent: record.unsent,
            held_back: record.held_back,
            reads: PackedReads::of(&record.reads)?,
            hedging: record.hedging.clone(),
            reads_sent: record.reads_sent,
        })
    }

    pub(crate) fn open(self) -> Result<PartResult> {
        let mut record = Record::new();
        for packed in self.operations {
            let operation = Operation::named(&packed.name).context("an unknown operation")?;
            let own = record.operations.entry(operation).or_default();
            add(&mut own.latency, &packed.latency)?;
            own.errors = packed.errors;
            own.timeouts = packed.timeouts;
        }
        for packed in self.seconds {
            let mut second = SecondCounted { failures: packed.failures, ..SecondCounted::default() };
            add(&mut second.latency, &packed.latency)?;
            record.seconds.push(second);
        }
        add(&mut record.lag, &self.lag)?;
        record.errors = self.errors;
        record.missing = self.missing;
        record.unsent = self.unsent;
        record.held_back = self.held_back;
        record.reads = self.reads.open()?;
        record.hedging = self.hedging;
        record.reads_sent = self.reads_sent;
        let (duration, generator_cpu_s) = (self.duration, self.generator_cpu_s);
        Ok(PartResult { record, duration, generator_cpu_s, server_cpu_s: BTreeMap::new() })
    }
}

fn pack<C: Counter>(histogram: &Histogram<C>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let packed = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
    packed.map_err(|error| anyhow!("a histogram cannot be packed: {error:?}"))?;
    Ok(bytes)
}

/// Adds packed samples to a histogram of the generator's own bounds.
fn add<C: Counter>(histogram: &mut Histogram<C>, packed: &[u8]) -> Result<()> {
    let read: Histogram<C> = Deserializer::new()
        .deserialize(&mut &packed[..])
        .map_err(|error| anyhow!("a histogram cannot be unpacked: {error:?}"))?;
    histogram.add(&read).map_err(|error| anyhow!("a histogram has other bounds: {error:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::{Failure, Found};

    #[test]
    fn a_parcel_holds_all_that_was_counted() {
        let mut record = Record::new();
        record.note_end(Operation::Get, 0, 123_456, Ok(Found::All));
        record.note_end(Operation::Scan, 2, 9_999_999_999, Err(Failure::Timeout));
        record.note_end(Operation::Scan, 2, 1, Err(Failure::Error("storage")));
        record.note_lag(77);
        record.held_back = 3;
        let node = "127.0.0.1:34601".parse().unwrap();
        record.reads.by_node.insert(node, 5);
        record.reads.by_role.insert("learner", 5);
        record.reads.repeated = 2;
        record.reads.by_level.insert("bounded", 4);
        record.hedging = Some(Counts { first: 6, ..Counts::default() });
        record.reads_sent = 7;
        record.reads.staleness.record(1_000).unwrap();
        let result = PartResult {
            record: record.clone(),
            duration: Duration::from_millis(1500),
            generator_cpu_s: 0.07,
            server_cpu_s: BTreeMap::new(),
        };
        let text = serde_json::to_string(&Parcel::of(&result).unwrap()).unwrap();
        let opened = serde_json::from_str::<Parcel>(&text).unwrap().open().unwrap();
        assert_eq!((opened.duration, opened.generator_cpu_s), (result.duration, result.generator_cpu_s));
        for (operation, counted) in &record.operations {
            let same = &opened.record.operations[operation];
            assert_eq!(
                (&same.latency, same.errors, same.timeouts),
                (&counted.latency, counted.errors, counted.timeouts)
            );
        }
        assert_eq!(opened.record.seconds.len(), 3);
        assert_eq!(opened.record.second(2), record.second(2));
        assert_eq!((opened.record.lag.len(), opened.record.held_back), (1, 3));
        assert_eq!(opened.record.errors, record.errors);
        let reads = &opened.record.reads;
        assert_eq!((reads.by_node[&node], reads.by_role["learner"], reads.repeated), (5, 5, 2));
        assert_eq!((reads.by_level["bounded"], opened.record.reads_sent), (4, 7));
        assert_eq!(opened.record.hedging, record.hedging);
        assert_eq!(reads.staleness, record.reads.staleness);
    }

    #[test]
    fn damaged_parcels_are_refused() {
        let result = PartResult {
            record: Record::new(),
            duration: Duration::ZERO,
            generator_cpu_s: 0.0,
            server_cpu_s: BTreeMap::new(),
        };
        let mut parcel = Parcel::of(&result).unwrap();
        parcel.lag.truncate(9);
        assert!(parcel.open().unwrap_err().to_string().contains("unpacked"));
    }
}
