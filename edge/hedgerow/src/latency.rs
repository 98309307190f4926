//! How long a node took for requests, as it tells it: counts by ranges of time.

use serde_json::Value;

/// The name that a node tells it under.
pub(crate) const NAME: &str = "latency";

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    /// `read`, `scan` or `write`.
    pub(crate) kind: String,
    /// The upper end of each range in microseconds, the last one without an end, and how many requests were in it.
    pub(crate) ranges: Vec<(u64, u64)>,
    pub(crate) sum_us: u64,
}

impl Latency {
    /// All kinds that `counted`, a node's answer, tells.
    pub(crate) fn all(counted: &Value) -> Vec<Self> {
        let of_kind = |(kind, told): (&String, &Value)| {
            let range = |(name, count): (&String, &Value)| Some((name.parse().unwrap_or(u64::MAX), count.as_u64()?));
            let mut ranges: Vec<(u64, u64)> = told["up_to_us"].as_object()?.iter().filter_map(range).collect();
            ranges.sort_unstable();
            Some(Self { kind: kind.clone(), ranges, sum_us: told["sum_us"].as_u64()? })
        };
        counted[NAME].as_object().into_iter().flatten().filter_map(of_kind).collect()
    }

    pub(crate) fn count(&self) -> u64 {
        self.ranges.iter().map(|(_, count)| count).sum()
    }

    /// What came after `before`; all of it if the node was started in between.
    pub(crate) fn since(&self, before: Option<&Self>) -> Self {
        let same = before.filter(|it| it.ranges.len() == self.ranges.len() && it.count() <= self.count());
        let Some(before) = same else { return self.clone() };
        let ranges = self.ranges.iter().zip(&before.ranges);
        Self {
            kind: self.kind.clone(),
            ranges: ranges.map(|((end, count), (_, earlier))| (*end, count.saturating_sub(*earlier))).collect(),
            sum_us: self.sum_us.saturating_sub(before.sum_us),
        }
    }

    /// The end of the range, milliseconds, that this share of the requests did not go beyond, such as `<= 2.5`.
    pub(crate) fn percentile(&self, share: f64) -> String {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let last = self.ranges.iter().rev().nth(1).map_or(0, |(end, _)| *end);
        for (end, count) in &self.ranges {
            seen += count;
            if seen >= wanted.max(1) {
                return if *end == u64::MAX { format!("> {}", ms(last)) } else { format!("<= {}", ms(*end)) };
            }
        }
        "-".to_owned()
    }

    /// Milliseconds; `-` without requests.
    pub(crate) fn mean(&self) -> String {
        match self.count() {
            0 => "-".to_owned(),
            count => format!("{:.3}", self.sum_us as f64 / count as f64 / 1e3),
        }
    }
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(counts: [u64; 3]) -> Latency {
        let ranges = json!({ "100": counts[0], "2500": counts[1], "more": counts[2] });
        Latency::all(&json!({ "latency": { "read": { "sum_us": 1_000, "up_to_us": ranges } } })).remove(0)
    }

    #[test]
    fn percentiles_are_ends_of_ranges() {
        let latency = told([98, 1, 1]);
        assert_eq!((latency.count(), latency.mean()), (100, "0.010".to_owned()));
        let percentiles = [0.5, 0.98, 0.99, 0.999].map(|share| latency.percentile(share));
        assert_eq!(percentiles, ["<= 0.1", "<= 0.1", "<= 2.5", "> 2.5"]);
        assert_eq!((told([0; 3]).percentile(0.5), told([0; 3]).mean()), ("-".to_owned(), "-".to_owned()));
    }

    #[test]
    fn what_came_in_between_is_the_difference() {
        let (before, after) = (told([5, 1, 0]), told([7, 1, 0]));
        assert_eq!(after.since(Some(&before)).count(), 2);
        assert_eq!(before.since(Some(&after)).count(), 6, "the node was started anew");
        assert_eq!(after.since(None), after);
        assert!(Latency::all(&json!({ "node": 1 })).is_empty());
    }
}
