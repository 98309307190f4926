//! The experiments by name, one file each.

mod backup_request;
mod duplicate;
mod follower_read;
mod hedging_cost;
mod hot_partition;
mod log_layout;
mod noisy_neighbour;
mod repair;
mod scale;
mod secure;
mod slow_node;
mod throughput;
mod tied_requests;
mod workers;

use crate::experiment::{Description, Experiment, Size};
use crate::frame::{Finished, conduct};
use crate::options::Options;
use crate::progress::Event;
use anyhow::{Result, bail};
use backup_request::BackupRequest;
use duplicate::Duplicate;
use follower_read::FollowerRead;
use hedging_cost::HedgingCost;
use hot_partition::HotPartition;
use log_layout::LogLayout;
use noisy_neighbour::NoisyNeighbour;
use repair::Repair;
use scale::Scale;
use secure::Secure;
use slow_node::SlowNode;
use std::time::Duration;
use throughput::Throughput;
use tied_requests::TiedRequests;
use workers::Workers;

/// Short names, for those that put a published result beside ours. X8 (other stores on the same machine) is not built.
const IDENTIFIERS: [(&str, &str); 7] = [
    ("X1", backup_request::NAME),
    ("X2", backup_request::NAME_BATCH),
    ("X3", follower_read::NAME),
    ("X4", slow_node::NAME),
    ("X5", tied_requests::NAME),
    ("X6", log_layout::NAME),
    ("X7", hot_partition::NAME),
];

/// What can be run, and how long it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What a person wants to know.
    pub description: Description,
    /// A short name that it has besides.
    pub identifier: Option<&'static str>,
    /// The groups that `--only` can choose.
    pub groups: Vec<String>,
    /// How long all of it should take with these options.
    pub expected: Duration,
    /// How long a quick run should take.
    pub expected_quick: Duration,
}

/// All experiments. Of the options, only the numbers of repetitions and of rows matter.
#[must_use]
pub fn list(options: &Options) -> Vec<Entry> {
    vec![
        entry(Throughput::new, options),
        entry(FollowerRead::new, options),
        entry(HotPartition::new, options),
        entry(BackupRequest::set, options),
        entry(BackupRequest::batch, options),
        entry(TiedRequests::new, options),
        entry(HedgingCost::new, options),
        entry(SlowNode::new, options),
        entry(NoisyNeighbour::new, options),
        entry(Repair::new, options),
        entry(Secure::new, options),
        entry(Duplicate::new, options),
        entry(Workers::new, options),
        entry(Workers::shards, options),
        entry(Workers::io_threads, options),
        entry(LogLayout::new, options),
        entry(Scale::new, options),
    ]
}

fn entry<E: Experiment>(make: impl Fn(&Options) -> E, options: &Options) -> Entry {
    let of = |size| Options { size, ..options.clone() };
    let expected = |options: &Options| {
        make(options).groups().iter().map(|group| group.expected(options.repetitions())).sum::<Duration>()
    };
    let full = make(&of(Size::Full));
    let description = full.description();
    let identifier = IDENTIFIERS.iter().find(|(_, name)| *name == description.name).map(|(identifier, _)| *identifier);
    Entry {
        description,
        identifier,
        groups: full.groups().into_iter().map(|group| group.name).collect(),
        expected: expected(&of(Size::Full)),
        expected_quick: expected(&of(Size::Quick)),
    }
}

/// Runs the experiment that `name` or a short name calls; see [`conduct`].
pub async fn run(
    name: &str,
    options: &Options,
    interrupted: impl Future<Output = ()>,
    listener: impl FnMut(Event),
) -> Result<Finished> {
    let meant = IDENTIFIERS.iter().find(|(identifier, _)| identifier.eq_ignore_ascii_case(name));
    match meant.map_or(name, |(_, meant)| *meant) {
        throughput::NAME => conduct(Throughput::new(options), options, interrupted, listener).await,
        follower_read::NAME => conduct(FollowerRead::new(options), options, interrupted, listener).await,
        hot_partition::NAME => conduct(HotPartition::new(options), options, interrupted, listener).await,
        backup_request::NAME => conduct(BackupRequest::set(options), options, interrupted, listener).await,
        backup_request::NAME_BATCH => conduct(BackupRequest::batch(options), options, interrupted, listener).await,
        tied_requests::NAME => conduct(TiedRequests::new(options), options, interrupted, listener).await,
        hedging_cost::NAME => conduct(HedgingCost::new(options), options, interrupted, listener).await,
        slow_node::NAME => conduct(SlowNode::new(options), options, interrupted, listener).await,
        noisy_neighbour::NAME => conduct(NoisyNeighbour::new(options), options, interrupted, listener).await,
        repair::NAME => conduct(Repair::new(options), options, interrupted, listener).await,
        duplicate::NAME => conduct(Duplicate::new(options), options, interrupted, listener).await,
        secure::NAME => conduct(Secure::new(options), options, interrupted, listener).await,
        workers::NAME => conduct(Workers::new(options), options, interrupted, listener).await,
        workers::NAME_SHARDS => conduct(Workers::shards(options), options, interrupted, listener).await,
        workers::NAME_IO_THREADS => conduct(Workers::io_threads(options), options, interrupted, listener).await,
        log_layout::NAME => conduct(LogLayout::new(options), options, interrupted, listener).await,
        scale::NAME => conduct(Scale::new(options), options, interrupted, listener).await,
        _ => {
            let with_short = |entry: Entry| match entry.identifier {
                Some(identifier) => format!("{} ({identifier})", entry.description.name),
                None => entry.description.name.to_owned(),
            };
            let names: Vec<_> = list(options).into_iter().map(with_short).collect();
            bail!("there is no experiment {name:?}; there are: {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::of_size(Size::Quick)
    }

    #[test]
    fn every_quick_run_is_shorter_than_a_minute() {
        for entry in list(&options()) {
            assert!(entry.expected_quick < Duration::from_secs(50), "{entry:?}");
            assert!(entry.expected > entry.expected_quick, "{entry:?}");
        }
    }

    #[tokio::test]
    async fn an_unknown_experiment_is_answered_with_the_known_ones() {
        let error = run("scael", &options(), std::future::pending(), |_| ()).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no experiment \"scael\"; there are: throughput, follower-read (X3), hot-partition (X7), backup-request (X1), \
             backup-request-batch (X2), tied-requests (X5), hedging-cost, slow-node (X4), noisy-neighbour, repair, secure, duplicate, \
             workers, shards, io-threads, log-layout (X6), scale"
        );
    }

    #[tokio::test]
    async fn a_short_name_calls_the_same_experiment() {
        for (identifier, name) in IDENTIFIERS {
            let options = Options { only: vec!["nothing".to_owned()], ..options() };
            let error =
                async |name: &str| run(name, &options, std::future::pending(), |_| ()).await.unwrap_err().to_string();
            assert_eq!(error(&identifier.to_lowercase()).await, error(name).await);
            assert_ne!(error(name).await, error("scale").await);
        }
    }
}
