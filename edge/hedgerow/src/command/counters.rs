//! `hedgerow counters` and `hedgerow slow`: what each node has counted, and which nodes they take for slow.

use crate::access::Access;
use crate::cluster::ClusterArguments;
use crate::duration::seconds;
use crate::exit::Exit;
use crate::latency::{self, Latency};
use crate::output::{columns, print_result, say};
use crate::runtime;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is told as it is at the moment, by the ends of its names. It has no rate.
const MOMENTARY: [&str; 12] = [
    // Of the lanes of reads. What was taken back while it was queued is a count.
    "first.queued",
    "extra.queued",
    "waiting",
    "running",
    "listed",
    "requests_waiting",
    "requests_in_flight",
    "service_us",
    "open",
    "queue.bytes",
    "waiting_bytes.kept",
    // It may fall: what seemed unknown to one part of a node may be known to another.
    "cancels.unknown",
];

/// The same by the beginnings of their names: a cluster and a table follow.
const MOMENTARY_FAMILIES: [&str; 6] = [
    "duplication.partitions",
    "duplication.copying",
    "duplication.stopped",
    "duplication.entries_left",
    "duplication.bytes_left",
    "duplication.lag_seconds",
];

/// Arguments of `counters`.
#[derive(Args, Debug)]
pub(crate) struct CountersArguments {
    /// Look twice, so many seconds apart, and show what came in between as a rate.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    over: Duration,
    /// Show counters that are 0 at every node, too.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Arguments of `slow`.
#[derive(Args, Debug)]
pub(crate) struct SlowArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// What one node has counted since it was started, by name.
pub(crate) type Counted = BTreeMap<String, u64>;

/// `hedgerow counters`.
pub(crate) async fn counters(arguments: CountersArguments) -> Result<Exit> {
    let addresses = addresses(&arguments.cluster).await?;
    let access = arguments.cluster.access()?;
    let before = ask_all(&addresses, "reads", &access, say).await?;
    let begun = runtime::now();
    say(&format!("measuring rates for {} s (--over)", arguments.over.as_secs_f64()));
    runtime::sleep(arguments.over).await;
    // Who did not answer was named already.
    let after = ask_all(&addresses, "reads", &access, |_| ()).await?;
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    let nodes: Vec<(u16, Counted, Counted)> = after
        .iter()
        .map(|(node, answer)| (*node, before.get(node).map(flat).unwrap_or_default(), flat(answer)))
        .collect();
    let text = || {
        let latencies = latency_text(&before, &after, minutes);
        [latencies, counters_text(&nodes, minutes, arguments.all)].join("\n\n")
    };
    print_result(arguments.cluster.output, text, || counters_json(&nodes, minutes))?;
    Ok(Exit::Done)
}

/// How long requests took between two looks, by node and kind.
fn latency_text(before: &BTreeMap<u16, Value>, after: &BTreeMap<u16, Value>, minutes: f64) -> String {
    let mut rows = Vec::new();
    for (node, answer) in after {
        let earlier = before.get(node).map(Latency::all).unwrap_or_default();
        for latency in Latency::all(answer) {
            let recent = latency.since(earlier.iter().find(|it| it.kind == latency.kind));
            let per_second = recent.count() as f64 / (minutes * 60.0).max(f64::MIN_POSITIVE);
            rows.push(vec![
                node.to_string(),
                recent.kind.clone(),
                format!("{per_second:.0}"),
                recent.mean(),
                recent.percentile(0.5),
                recent.percentile(0.99),
                recent.percentile(0.999),
            ]);
        }
    }
    columns(&["node", "served in between", "per second", "mean ms", "p50 ms", "p99 ms", "p99.9 ms"], &rows)
}

/// Where the cluster's nodes are.
async fn addresses(cluster: &ClusterArguments) -> Result<Vec<String>> {
    let nodes = cluster.connect().await?.list_nodes().await?;
    Ok(nodes.into_iter().map(|node| node.address.to_string()).collect())
}

/// Asks every node that answers, and tells which ones do not. An error if none does.
async fn ask_all(
    addresses: &[String],
    command: &str,
    access: &Access,
    tell: impl Fn(&str),
) -> Result<BTreeMap<u16, Value>> {
    let mut answers = BTreeMap::new();
    for address in addresses {
        match access.call(address, command, "{}").await {
            Ok(answer) => {
                let answer: Value = serde_json::from_str(&answer).with_context(|| format!("what {address} says"))?;
                let number = answer["node"].as_u64().and_then(|number| u16::try_from(number).ok());
                answers.insert(number.with_context(|| format!("{address} does not say which node it is"))?, answer);
            }
            Err(error) => tell(&format!("{error:#}")),
        }
    }
    ensure!(!answers.is_empty(), "no node answered");
    Ok(answers)
}

/// The numbers in `answer`, each with the names on the way to it.
pub(crate) fn flat(answer: &Value) -> Counted {
    fn walk(name: &str, value: &Value, into: &mut Counted) {
        match value {
            Value::Object(parts) => parts.iter().for_each(|(part, value)| {
                let name = if name.is_empty() { part.clone() } else { format!("{name}.{part}") };
                walk(&name, value, into);
            }),
            Value::Number(number) => {
                into.extend(number.as_u64().map(|number| (name.to_owned(), number)));
            }
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
        }
    }
    let mut counted = Counted::new();
    walk("", answer, &mut counted);
    counted.remove("node");
    counted
}

pub(crate) fn is_momentary(name: &str) -> bool {
    let is_end = |end: &&str| name.strip_suffix(*end).is_some_and(|begin| begin.is_empty() || begin.ends_with('.'));
    let is_of = |family: &&str| name.strip_prefix(*family).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    match name.starts_with("duplication.") {
        // A table may be called anything.
        true => MOMENTARY_FAMILIES.iter().any(is_of),
        false => MOMENTARY.iter().any(is_end),
    }
}

/// What came in a minute; `None` of what has no rate, and where the node was started in between.
fn per_minute(name: &str, before: &Counted, after: &Counted, minutes: f64) -> Option<f64> {
    let more = after.get(name)?.checked_sub(*before.get(name)?)?;
    (!is_momentary(name) && minutes > 0.0).then(|| more as f64 / minutes)
}

fn counters_text(nodes: &[(u16, Counted, Counted)], minutes: f64, shows_all: bool) -> String {
    let is_counter = |name: &&String| !name.starts_with(latency::NAME);
    let names: BTreeSet<&String> = nodes.iter().flat_map(|(_, _, after)| after.keys()).filter(is_counter).collect();
    let is_shown =
        |name: &&&String| shows_all || nodes.iter().any(|(_, _, after)| after.get(**name).is_some_and(|it| *it > 0));
    let mut header = vec!["since the start, and per minute".to_owned()];
    header.extend(nodes.iter().flat_map(|(node, ..)| [format!("node {node}"), "/min".to_owned()]));
    let row = |name: &String| {
        let mut row = vec![name.clone()];
        for (_, before, after) in nodes {
            let rate = per_minute(name, before, after, minutes);
            row.push(after.get(name).map_or_else(|| "-".to_owned(), u64::to_string));
            row.push(rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")));
        }
        row
    };
    let rows: Vec<Vec<String>> = names.iter().filter(is_shown).map(|name| row(name)).collect();
    if rows.is_empty() {
        return "nothing was counted yet".to_owned();
    }
    columns(&header.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

fn counters_json(nodes: &[(u16, Counted, Counted)], minutes: f64) -> Value {
    let of_node = |(node, before, after): &(u16, Counted, Counted)| {
        let rates: Map<String, Value> = after
            .keys()
            .filter_map(|name| Some((name.clone(), json!(per_minute(name, before, after, minutes)?))))
            .collect();
        json!({ "node": node, "since_start": after, "per_minute": rates })
    };
    json!({ "nodes": nodes.iter().map(of_node).collect::<Vec<_>>() })
}

/// What a node says of the speed of others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Speeds {
    nodes: Vec<Speed>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Speed {
    node: u16,
    /// From 1 to 100.
    score: u8,
    is_slow: bool,
    round_trip_us: Option<u64>,
    log_write_us: Option<u64>,
}

/// `hedgerow slow`.
pub(crate) async fn slow(arguments: SlowArguments) -> Result<Exit> {
    let access = arguments.cluster.access()?;
    let answers = ask_all(&addresses(&arguments.cluster).await?, "slow", &access, say).await?;
    let mut rows = Vec::new();
    for (by, answer) in &answers {
        let speeds = Speeds::deserialize(answer).context("reading what a node says of others")?;
        rows.extend(speeds.nodes.iter().map(|speed| speed_row(*by, speed)));
    }
    let header = ["by the word of", "node", "score", "slow", "round trip ms", "log write ms"];
    print_result(
        arguments.cluster.output,
        || columns(&header, &rows),
        || json!({ "nodes": answers.values().collect::<Vec<_>>() }),
    )?;
    Ok(Exit::Done)
}

fn speed_row(by: u16, speed: &Speed) -> Vec<String> {
    let ms = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), |us| format!("{:.2}", us as f64 / 1e3));
    let slow = if speed.is_slow { "slow" } else { "" };
    vec![
        by.to_string(),
        speed.node.to_string(),
        speed.score.to_string(),
        slow.to_owned(),
        ms(speed.round_trip_us),
        ms(speed.log_write_us),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_rates_and_what_is_momentary_has_none() {
        let answer = |served: u64| {
            flat(&json!({ "node": 2, "served": { "eventual": { "leader": served } }, "refused": { "busy": 0 },
                "queue": { "first": { "queued": 3 } }, "names": ["a"] }))
        };
        let nodes = [(2, answer(100), answer(160))];
        let text = counters_text(&nodes, 0.5, false);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["queue.first.queued", "3", "-"], "{text}");
        assert_eq!(words[2], ["served.eventual.leader", "160", "120"], "{text}");
        assert_eq!(words.len(), 3, "{text}");
        assert!(counters_text(&nodes, 0.5, true).contains("refused.busy"));
        let json = counters_json(&nodes, 0.5);
        assert_eq!(json["nodes"][0]["per_minute"]["served.eventual.leader"], 120.0);
        assert!(json["nodes"][0]["per_minute"].get("queue.first.queued").is_none());
    }

    #[test]
    fn latencies_are_those_between_two_looks() {
        let answer = |counts: [u64; 2]| {
            let ranges = json!({ "250": counts[0], "more": counts[1] });
            json!({ "node": 1, "latency": { "write": { "sum_us": 100 * counts[0], "up_to_us": ranges } }, "served": 1 })
        };
        let (before, after) = ([(1, answer([1_000, 5]))].into(), [(1, answer([1_600, 5]))].into());
        let text = latency_text(&before, &after, 0.1);
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words, ["1", "write", "100", "0.100", "<=", "0.25", "<=", "0.25", "<=", "0.25"], "{text}");
        let nodes = [(1, Counted::new(), flat(&after[&1]))];
        assert!(!counters_text(&nodes, 0.1, true).contains("latency"), "ranges are for machines");
    }

    #[test]
    fn of_duplication_what_is_left_has_no_rate() {
        assert!(
            is_momentary("duplication.entries_left.west.users") && !is_momentary("duplication.bytes_told.west.users")
        );
        assert!(!is_momentary("duplication.changes_told.west.my.queued"), "a table may be called so");
    }

    #[test]
    fn what_was_taken_back_is_counted_and_what_waits_is_not() {
        assert!(is_momentary("queue.first.queued") && is_momentary("queue.aside.long.waiting"));
        assert!(!is_momentary("queue.cancels.queued") && !is_momentary("queue.first.run"));
    }

    #[test]
    fn a_node_that_was_started_in_between_has_no_rates() {
        let counted = |count: u64| flat(&json!({ "served": count }));
        assert_eq!(per_minute("served", &counted(7), &counted(3), 1.0), None);
        assert_eq!(per_minute("served", &Counted::new(), &counted(3), 1.0), None);
    }
}
