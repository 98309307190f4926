//! Histograms: their summary, and their logs on disk.
//!
//! A log is the interval log of the HdrHistogram projects (version 1.3, compressed), which their viewers read too. Values
//! are nanoseconds; the column with the maximum is in milliseconds.
#![allow(clippy::disallowed_methods, reason = "histogram logs are files of the results folder")]

use crate::schema::Latency;
use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, IntervalLogWriterBuilder, LogEntry};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// So many samples must lie above a high percentile for it to mean something.
pub(crate) const SAMPLES_ABOVE_MIN: u64 = 100;
const P999_SAMPLES_MIN: u64 = 1_000 * SAMPLES_ABOVE_MIN;
const P9999_SAMPLES_MIN: u64 = 10_000 * SAMPLES_ABOVE_MIN;
const NANOSECONDS_PER_MICROSECOND: f64 = 1e3;
const NANOSECONDS_PER_MILLISECOND: f64 = 1e6;
/// Of decimal digits, in what is read.
const DIGITS: u8 = 3;

impl Latency {
    /// The summary of a histogram of nanoseconds; all 0 if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / NANOSECONDS_PER_MICROSECOND;
        let of_at_least = |samples: u64, quantile: f64| (histogram.len() >= samples).then(|| at(quantile));
        Self {
            mean: histogram.mean() / NANOSECONDS_PER_MICROSECOND,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: of_at_least(P999_SAMPLES_MIN, 0.999),
            p9999: of_at_least(P9999_SAMPLES_MIN, 0.9999),
            max: histogram.max() as f64 / NANOSECONDS_PER_MICROSECOND,
        }
    }
}

/// Writes `histogram`, of nanoseconds measured over `duration`, as an interval log with one interval.
pub fn write_histogram(path: &Path, histogram: &Histogram<u64>, duration: Duration) -> Result<()> {
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("values in nanoseconds, maximum in milliseconds");
    let written =
        builder.with_max_value_divisor(NANOSECONDS_PER_MILLISECOND).begin_log_with(&mut bytes, &mut serializer);
    let mut log = written.context("a histogram log cannot begin")?;
    let written = log.write_histogram(histogram, Duration::ZERO, duration, None);
    written.map_err(|error| anyhow::anyhow!("a histogram cannot be serialized: {error:?}"))?;
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// All samples of an interval log, in nanoseconds.
pub fn read_histogram(path: &Path) -> Result<Histogram<u64>> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&bytes).with_context(|| format!("{} is no histogram log", path.display()))
}

/// The samples of several histograms together.
pub fn merge_histograms<'a>(histograms: impl IntoIterator<Item = &'a Histogram<u64>>) -> Histogram<u64> {
    let mut merged = empty();
    for histogram in histograms {
        merged.add(histogram).expect("a histogram that resizes takes every value");
    }
    merged
}

fn empty() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("the number of digits is within 0 to 5")
}

fn parse(bytes: &[u8]) -> Result<Histogram<u64>> {
    let mut merged = empty();
    let mut interval_count = 0;
    for entry in IntervalLogIterator::new(bytes) {
        let interval = match entry {
            Ok(LogEntry::Interval(interval)) => interval,
            Ok(LogEntry::StartTime(_) | LogEntry::BaseTime(_)) => continue,
            Err(error) => bail!("a line is not understood: {error:?}"),
        };
        let compressed = BASE64.decode(interval.encoded_histogram()).context("an interval is not base64")?;
        let histogram: Histogram<u64> = Deserializer::new()
            .deserialize(&mut compressed.as_slice())
            .map_err(|error| anyhow::anyhow!("an interval is damaged: {error}"))?;
        merged.add(&histogram).context("an interval holds values that are too large")?;
        interval_count += 1;
    }
    ensure!(interval_count > 0, "there is no interval in it");
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = empty();
        values.into_iter().for_each(|value| histogram.record(value).unwrap());
        histogram
    }

    #[test]
    fn percentiles_of_too_few_samples_are_left_out() {
        let few = Latency::of(&histogram((1..=99_999).map(|value| value * 1_000)));
        assert_eq!((few.p999, few.p9999), (None, None));
        assert!((few.p50 - 50_000.0).abs() < 50.0, "{few:?}");
        let enough = Latency::of(&histogram((1..=100_000).map(|value| value * 1_000)));
        assert!((enough.p999.unwrap() - 99_900.0).abs() < 100.0, "{enough:?}");
        assert_eq!(enough.p9999, None);
        let mut many = empty();
        many.record_n(7_000, 1_000_000).unwrap();
        assert!(Latency::of(&many).p9999.is_some_and(|p9999| (p9999 - 7.0).abs() < 0.01));
    }

    #[test]
    fn no_samples_give_zeros() {
        assert_eq!(Latency::of(&empty()), Latency::default());
    }

    #[test]
    fn a_log_gives_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hlog");
        let written = histogram([1, 1_000, 250_000, 2_500_000_000, 2_500_000_000]);
        write_histogram(&path, &written, Duration::from_secs(30)).unwrap();
        assert_eq!(read_histogram(&path).unwrap(), written);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().last().unwrap().starts_with("0.000,30.000,2501.9"), "{text}");
    }

    #[test]
    fn intervals_of_a_log_are_put_together() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a.hlog"), folder.path().join("b.hlog"));
        write_histogram(&a, &histogram([5, 6]), Duration::from_secs(1)).unwrap();
        write_histogram(&b, &histogram([7]), Duration::from_secs(1)).unwrap();
        fs::write(&a, [fs::read(&a).unwrap(), fs::read(&b).unwrap()].concat()).unwrap();
        let both = histogram([5, 6, 7]);
        assert_eq!(read_histogram(&a).unwrap(), both);
        assert_eq!(merge_histograms([&histogram([5, 6]), &histogram([7])]), both);
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hlog");
        for bytes in [&b""[..], b"#only a comment\n", b"text\n", b"0.0,1.0,2.0,AAAA\n", b"0.0,1.0,2.0,%\n"] {
            fs::write(&path, bytes).unwrap();
            let error = read_histogram(&path).unwrap_err();
            assert!(format!("{error:#}").contains("a.hlog is no histogram log: "), "{error:#}");
        }
    }
}
