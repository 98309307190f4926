//! Latencies from a file: an HdrHistogram log, one of our results folders, or plain text.

use crate::encoding::Encoding;
use crate::files;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hedgerow_report::{Outcome, Run, read_histogram};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

/// The longest latency that is believed: a day, in nanoseconds. Beyond it the unit is wrong.
const LONGEST_NS: f64 = 86_400e9;
/// Every compressed histogram begins so, as base64: its first two bytes never change.
const HISTOGRAM_BEGINS: &str = "HIST";
const RESULT_FILE: &str = "result.json";

/// What a bare number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
}

impl Unit {
    const fn nanoseconds(self) -> f64 {
        match self {
            Self::Ns => 1.0,
            Self::Us => 1e3,
            Self::Ms => 1e6,
        }
    }
}

/// Which part of the input counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) unit: Option<Unit>,
    /// In a log: the tag of the intervals.
    pub(crate) tag: Option<String>,
    /// In a results folder.
    pub(crate) operation: Option<String>,
    /// In a results folder.
    pub(crate) variant: Option<String>,
}

/// Latencies and how often each was seen, with what they are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Samples {
    /// By latency in nanoseconds.
    pub(crate) counts: BTreeMap<u64, u64>,
    pub(crate) source: String,
}

impl Samples {
    pub(crate) fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    fn add(&mut self, nanoseconds: f64, count: u64) -> Result<()> {
        ensure!(
            (0.0..=LONGEST_NS).contains(&nanoseconds),
            "a latency of {:.1e} s is not within 0 to a day: is the unit right (--unit)?",
            nanoseconds / 1e9
        );
        let sum = self.counts.entry(nanoseconds.round() as u64).or_default();
        *sum = sum.checked_add(count).context("more samples than can be counted")?;
        Ok(())
    }

    fn add_histogram(&mut self, histogram: &Histogram<u64>, unit: Unit) -> Result<()> {
        let mut recorded = histogram.iter_recorded();
        recorded.try_for_each(|it| self.add(it.value_iterated_to() as f64 * unit.nanoseconds(), it.count_at_value()))
    }

    fn checked(self) -> Result<Self> {
        let total = self.counts.values().try_fold(0_u64, |total, count| total.checked_add(*count));
        ensure!(total.context("more samples than can be counted")? > 0, "there is no latency in it");
        Ok(self)
    }
}

/// The latencies in `path`, which may be a folder.
pub(crate) fn read(path: &Path, choice: &Choice) -> Result<Samples> {
    let described = || format!("reading latencies from {}", path.display());
    if !files::is_standard(path) && files::is_directory(path).with_context(described)? {
        return read_folder(path, choice).with_context(described);
    }
    let mut bytes = Vec::new();
    files::open(path, 0)?.reader.read_to_end(&mut bytes).with_context(described)?;
    let mut samples = parse(&bytes, choice).with_context(described)?;
    samples.source = format!("{} ({})", path.display(), samples.source);
    Ok(samples)
}

fn parse(bytes: &[u8], choice: &Choice) -> Result<Samples> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| anyhow!("it is neither text nor an HdrHistogram log, nor is it a results folder"))?;
    let only = |name: &str, given: bool| {
        ensure!(!given, "--{name} is for results folders, and this is a file");
        Ok(())
    };
    only("operation", choice.operation.is_some())?;
    only("variant", choice.variant.is_some())?;
    if is_log(text) {
        return parse_log(text, choice);
    }
    ensure!(choice.tag.is_none(), "--tag is for HdrHistogram logs, and this is plain text");
    parse_text(text, choice.unit)
}

/// Whether this is an interval log, or bare compressed histograms, one a line.
fn is_log(text: &str) -> bool {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let has_histogram = |line: &str| line.rsplit(',').next().is_some_and(|last| last.starts_with(HISTOGRAM_BEGINS));
    line.is_some_and(|line| line.starts_with("\"StartTimestamp\"") || has_histogram(line)) || text.starts_with("#[")
}

/// An interval of a log: its tag, and the line's histogram.
fn interval(line: &str) -> Result<(Option<&str>, Histogram<u64>)> {
    let (tag, rest) = match line.strip_prefix("Tag=") {
        Some(rest) => {
            let (tag, rest) = rest.split_once(',').context("nothing follows the tag")?;
            (Some(tag), rest)
        }
        None => (None, line),
    };
    let fields: Vec<&str> = rest.split(',').map(str::trim).collect();
    let ([payload] | [_, _, _, payload]) = fields[..] else {
        bail!("an interval has a start, a length, a maximum and a histogram, and this has {} fields", fields.len());
    };
    let compressed = Encoding::Base64.decode(payload.as_bytes()).context("the histogram is not base64")?;
    let histogram = Deserializer::new().deserialize(&mut compressed.as_slice());
    let histogram = histogram
        .map_err(|error| anyhow!("the histogram is damaged or of a form before V2 or of floating point: {error}"))?;
    Ok((tag, histogram))
}

fn parse_log(text: &str, choice: &Choice) -> Result<Samples> {
    let mut tags: BTreeMap<Option<&str>, Vec<Histogram<u64>>> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with('"') {
            continue;
        }
        let (tag, histogram) = interval(line).with_context(|| format!("line {number}"))?;
        tags.entry(tag).or_default().push(histogram);
    }
    ensure!(!tags.is_empty(), "the log has no interval");
    let names = || tags.keys().map(|tag| tag.unwrap_or("(none)")).collect::<Vec<_>>().join(", ");
    let chosen = match (&choice.tag, tags.len()) {
        (Some(wanted), _) => {
            let wanted = Some(wanted.as_str()).filter(|tag| *tag != "(none)");
            tags.get_key_value(&wanted).with_context(|| format!("no interval has that tag: there are {}", names()))?
        }
        (None, 1) => tags.first_key_value().context("the log has no interval")?,
        (None, _) => bail!("its intervals have several tags: choose one of {} with --tag", names()),
    };
    let unit = choice.unit.unwrap_or(Unit::Ns);
    let of_tag = chosen.0.map(|tag| format!("tag {tag}, ")).unwrap_or_default();
    let unit_name = unit.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let source = format!("HdrHistogram log, {of_tag}values in {unit_name}");
    let mut samples = Samples { source, ..Samples::default() };
    chosen.1.iter().try_for_each(|histogram| samples.add_histogram(histogram, unit))?;
    samples.checked()
}

/// One latency a line, or a latency and how often it was seen.
fn parse_text(text: &str, unit: Option<Unit>) -> Result<Samples> {
    let mut samples = Samples { source: "plain text".to_owned(), ..Samples::default() };
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        add_line(&mut samples, line, unit).with_context(|| format!("line {number}"))?;
    }
    samples.checked()
}

fn add_line(samples: &mut Samples, line: &str, unit: Option<Unit>) -> Result<()> {
    let separator = |letter: char| letter.is_whitespace() || letter == ',' || letter == ';';
    let mut words = line.split(separator).filter(|word| !word.is_empty());
    let (latency, count) = (words.next().unwrap_or_default(), words.next());
    ensure!(words.next().is_none(), "{line:?} is more than a latency and how often it was seen");
    let count = count.map_or(Ok(1), |count| {
        count.parse::<u64>().map_err(|_| anyhow!("{count:?} is not how often a latency was seen"))
    });
    samples.add(nanoseconds(latency, unit)?, count?)
}

/// A latency with a unit of its own, or in `unit`.
fn nanoseconds(word: &str, unit: Option<Unit>) -> Result<f64> {
    let (number, own) = word.split_at(word.find(char::is_alphabetic).unwrap_or(word.len()));
    // "1e3" is a number as a whole.
    let (number, own) = if word.parse::<f64>().is_ok() { (word, "") } else { (number, own) };
    let factor = match own {
        "" => unit
            .with_context(|| format!("{word:?} has no unit: write for example {word}ms, or give --unit"))?
            .nanoseconds(),
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => bail!("{word:?} is no latency: a number is, with ns, us, ms or s behind it or with --unit"),
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value * factor),
        Ok(_) => bail!("{word:?} is no latency: it must be 0 or more"),
        Err(_) => bail!("{word:?} is no latency: a number is, with ns, us, ms or s behind it or with --unit"),
    }
}

/// All sound runs of one variant of a results folder.
fn read_folder(path: &Path, choice: &Choice) -> Result<Samples> {
    ensure!(choice.tag.is_none(), "--tag is for HdrHistogram logs, and this is a folder");
    ensure!(choice.unit.is_none_or(|unit| unit == Unit::Ns), "the values of a results folder are in ns");
    let outcome =
        Outcome::read(path).with_context(|| format!("a folder must be a results folder, with a {RESULT_FILE}"))?;
    let runs: Vec<&Run> = outcome.runs.iter().filter(|run| run.void.is_none()).collect();
    ensure!(!runs.is_empty(), "it has no run, or only VOID ones: their latencies are partly the generator's");
    let variant = one("variant", choice.variant.as_deref(), runs.iter().map(|run| run.variant.as_str()))?;
    let runs: Vec<&Run> = runs.into_iter().filter(|run| run.variant == variant).collect();
    one("workload", None, runs.iter().map(|run| run.workload.as_str()))?;
    let names = runs.iter().flat_map(|run| &run.operations).map(|operation| operation.name.as_str());
    let wanted = choice.operation.as_deref().or_else(|| names.clone().any(|name| name == "get").then_some("get"));
    let name = one("operation", wanted, names)?;
    let mut samples = Samples {
        source: format!("{}: {name} of {variant}, runs: {}", path.display(), runs.len()),
        ..Samples::default()
    };
    for operation in runs.iter().flat_map(|run| &run.operations).filter(|operation| operation.name == name) {
        let relative = Path::new(&operation.histogram);
        let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(is_below && !operation.histogram.is_empty(), "it keeps no histogram of {name}");
        samples.add_histogram(&read_histogram(&path.join(relative))?, Unit::Ns)?;
    }
    samples.checked()
}

/// The wanted one of `names`, or the only one.
fn one<'a>(what: &str, wanted: Option<&str>, names: impl Iterator<Item = &'a str>) -> Result<&'a str> {
    let names: BTreeSet<&str> = names.collect();
    let all = || names.iter().copied().collect::<Vec<_>>().join(", ");
    match wanted {
        Some(wanted) => {
            names.get(wanted).copied().with_context(|| format!("it has no {what} {wanted:?}: there are {}", all()))
        }
        None if names.len() == 1 => names.first().copied().context("no name"),
        None if what == "workload" => bail!("it has several workloads ({}): give one of their histogram logs", all()),
        None if names.is_empty() => bail!("it has no {what}"),
        None => bail!("it has several {what}s: choose one of {} with --{what}", all()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer, V2Serializer};
    use hedgerow_report::{Folder, Operation};
    use std::time::Duration;

    fn base64(values: &[u64]) -> String {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        values.iter().for_each(|value| histogram.record(*value).unwrap());
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&histogram, &mut bytes).unwrap();
        Encoding::Base64.encode(&bytes).into_owned()
    }

    fn of(text: &str, choice: &Choice) -> Result<Vec<(u64, u64)>> {
        Ok(parse(text.as_bytes(), choice)?.counts.into_iter().collect())
    }

    fn refusal(text: &str, choice: &Choice) -> String {
        format!("{:#}", parse(text.as_bytes(), choice).unwrap_err())
    }

    fn unit(unit: Unit) -> Choice {
        Choice { unit: Some(unit), ..Choice::default() }
    }

    fn tag(tag: &str) -> Choice {
        Choice { tag: Some(tag.to_owned()), ..Choice::default() }
    }

    #[test]
    fn plain_text_is_one_latency_a_line_or_a_latency_and_a_count() {
        let text = "# what\n\n10ms\n10ms 4\n2.5us,7\n1s;1\n100 us\n";
        assert!(refusal(text, &Choice::default()).contains("line 7: \"100\" has no unit"));
        let text = text.replace("100 us", "100µs");
        let expected = [(2_500, 7), (100_000, 1), (10_000_000, 5), (1_000_000_000, 1)];
        assert_eq!(of(&text, &Choice::default()).unwrap(), expected);
        assert_eq!(of("12.5\n1e3\t2\n", &unit(Unit::Us)).unwrap(), [(12_500, 1), (1_000_000, 2)]);
    }

    #[test]
    fn text_that_is_no_latency_is_told_by_line_with_what_is_allowed() {
        for (text, expected) in [
            ("1ms\n12.5\n", "line 2: \"12.5\" has no unit: write for example 12.5ms, or give --unit"),
            ("latency\n", "line 1: \"latency\" is no latency: a number is, with ns, us, ms or s"),
            ("5m\n", "with ns, us, ms or s"),
            ("-5ms\n", "must be 0 or more"),
            ("1ms 2 3\n", "more than a latency and how often"),
            ("1ms 2.5\n", "not how often"),
            ("90000s\n", "is the unit right"),
            ("\n# nothing\n", "no latency in it"),
            ("1ms 0\n", "no latency in it"),
            ("1ms 18446744073709551615\n1ms 1\n", "can be counted"),
        ] {
            let error = refusal(text, &Choice::default());
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert!(format!("{:#}", parse(b"\xff\xfe", &Choice::default()).unwrap_err()).contains("neither text nor"));
    }

    #[test]
    fn logs_as_java_and_we_write_them_are_read() {
        let (a, b) = (base64(&[100, 200]), base64(&[200]));
        let java = format!(
            "#[Histogram log format version 1.3]\n#[StartTime: 1441812279.474 (seconds since epoch)]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n\
             0.127,1.007,2.769,{a}\n1.134,0.999,0.442,{b}\n"
        );
        assert_eq!(of(&java, &Choice::default()).unwrap(), [(100, 1), (200, 2)]);
        assert_eq!(of(&java, &unit(Unit::Us)).unwrap(), [(100_000, 1), (200_000, 2)]);
        assert_eq!(of(&format!("{a}\n{b}\n"), &Choice::default()).unwrap(), [(100, 1), (200, 2)]);
        assert!(refusal(&java, &tag("get")).contains("there are (none)"));
    }

    #[test]
    fn uncompressed_histograms_are_read_too() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        histogram.record(70).unwrap();
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&histogram, &mut bytes).unwrap();
        let text = format!("0.0,1.0,1.0,{}\n", Encoding::Base64.encode(&bytes));
        assert_eq!(of(&text, &Choice::default()).unwrap(), [(70, 1)]);
    }

    #[test]
    fn a_log_with_several_tags_needs_a_choice() {
        let text = format!("Tag=get,0.0,1.0,1.0,{}\nTag=set,0.0,1.0,1.0,{}\n", base64(&[5]), base64(&[9]));
        assert!(refusal(&text, &Choice::default()).contains("choose one of get, set with --tag"));
        assert_eq!(of(&text, &tag("set")).unwrap(), [(9, 1)]);
        assert!(refusal(&text, &tag("scan")).contains("there are get, set"));
    }

    #[test]
    fn damaged_logs_are_told_by_line() {
        let good = base64(&[5]);
        for (line, expected) in [
            (format!("0.0,1.0,{good}"), "has 3 fields"),
            ("0.0,1.0,1.0,HIST%%%%".to_owned(), "not base64"),
            ("0.0,1.0,1.0,HISTAAAA".to_owned(), "damaged"),
            (format!("Tag={good}"), "nothing follows the tag"),
        ] {
            let error = refusal(&format!("0.0,1.0,1.0,{good}\n{line}\n"), &Choice::default());
            assert!(error.contains("line 2") && error.contains(expected), "{line}: {error}");
        }
        assert!(refusal("#[Histogram log format version 1.3]\n", &Choice::default()).contains("no interval"));
        let folder_only = Choice { operation: Some("get".to_owned()), ..Choice::default() };
        assert!(refusal("1ms\n", &folder_only).contains("--operation is for results folders"));
        assert!(refusal("1ms\n", &tag("get")).contains("--tag is for HdrHistogram logs"));
    }

    #[test]
    fn a_results_folder_gives_the_operation_of_a_variant() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create(base.path(), "bench").unwrap();
        let mut outcome = Outcome::new("bench", Vec::new(), 1);
        for (variant, value, void) in [
            ("rate=1", 100, None),
            ("rate=1", 200, None),
            ("rate=2", 300, None),
            ("rate=1", 400, Some("late".to_owned())),
        ] {
            let mut histogram = Histogram::<u64>::new(3).unwrap();
            histogram.record(value).unwrap();
            let run = format!("{variant}-{value}");
            let path = folder.keep_histogram(&run, "get", &histogram, Duration::from_secs(1)).unwrap();
            let get = Operation { name: "get".to_owned(), count: 1, histogram: path, ..Operation::default() };
            let set = Operation { name: "set".to_owned(), ..Operation::default() };
            outcome.runs.push(Run { variant: variant.to_owned(), void, operations: vec![get, set], ..Run::default() });
        }
        folder.write_result(&outcome).unwrap();
        let choice = Choice { variant: Some("rate=1".to_owned()), ..Choice::default() };
        let samples = read(folder.path(), &choice).unwrap();
        assert_eq!(samples.counts.into_iter().collect::<Vec<_>>(), [(100, 1), (200, 1)], "without the VOID run");
        assert!(samples.source.ends_with("get of rate=1, runs: 2"), "{}", samples.source);
        let refused = |choice: &Choice| format!("{:#}", read(folder.path(), choice).unwrap_err());
        assert!(refused(&Choice::default()).contains("choose one of rate=1, rate=2 with --variant"));
        let scan = Choice { operation: Some("scan".to_owned()), ..choice.clone() };
        assert!(refused(&scan).contains("there are get, set"));
        let set = Choice { operation: Some("set".to_owned()), ..choice.clone() };
        assert!(refused(&set).contains("keeps no histogram of set"));
        assert!(refused(&Choice { unit: Some(Unit::Ms), ..choice }).contains("are in ns"));
        assert!(format!("{:#}", read(base.path(), &Choice::default()).unwrap_err()).contains("results folder"));
        assert!(format!("{:#}", read(&base.path().join("none"), &Choice::default()).unwrap_err()).contains("none"));
    }
}
