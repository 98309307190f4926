//! The table's limit on extra attempts: its option `backup_request_throttling`.
//!
//! The option's rates are for the whole table. Each node lets through the share of the replicas that it has (learners
//! included), so that no node has to ask another one. First attempts are neither limited nor counted (H20); nor are
//! retries, which nothing else stands in for. What is beyond the limit is dropped without a reply: a refusal would end the
//! race in which the first attempt may still win, and Pegasus' clients take the first reply for the answer. Callers with our
//! extension are told by a note that ends nothing ([`Refusal::Throttled`]); see [`Serving::answer_refused`].

use crate::config::{DELAYED_FRAME_MAX, DELAYED_MAX};
use crate::ids::ShardId;
use crate::requests::bucket::Bucket;
use crate::requests::caller::Caller;
use crate::requests::callers::{RequestId, WaitsIn};
use crate::requests::waiting::Waiting;
use crate::requests::{Requests, Serving, sum_of};
use crate::shards::shard_of;
use crate::view::View;
use hedgerow_env::Now;
use hedgerow_placement::{Catalogue, Delay, Table, Throttling};
use hedgerow_types::{GroupId, Instant, NodeId, Refusal, TableId};
use hedgerow_wire::{Body, Cause, Class, Extension, Header};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The limits of all tables on this node, and what they did.
#[derive(Debug)]
pub(crate) struct Throttles {
    /// Whose replicas count, and of how many shards that is one.
    shard: (ShardId, usize),
    tables: BTreeMap<TableId, Limit>,
    counts: BTreeMap<GroupId, Counts>,
    /// The catalogue that the shares are from.
    version: u64,
    delayed: Waiting<Delayed>,
    last_number: u64,
}

/// The limit of a table.
#[derive(Debug, Default)]
struct Limit {
    share: Share,
    delay: Bucket,
    reject: Bucket,
}

/// How much of a table is here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    here: u64,
    all: u64,
}

/// Counts since the node started, under Pegasus' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    backup_requests: u64,
    backup_request_bytes: u64,
    throttling_delayed_backup_requests: u64,
    throttling_rejected_backup_requests: u64,
}

/// A request that is to be served later.
#[derive(Debug)]
struct Delayed {
    id: RequestId,
    /// The catalogue that says that its user may.
    version: u64,
    header: Header,
    body: Body,
}

/// What becomes of an extra attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Serve,
    Delay(Duration),
    Reject,
}

impl Share {
    /// What is in one of so many shards of a node.
    fn of(table: &Table, node: NodeId, (shard, count): (ShardId, usize)) -> Self {
        let replicas = || {
            let partitions = (0..).zip(&table.partitions);
            partitions.flat_map(|(index, it)| it.replicas.iter().map(move |replica| (index, replica.id.node())))
        };
        let is_here = |(index, at): &(u32, NodeId)| {
            *at == node && shard_of(GroupId { table: table.id, partition: *index }, count) == shard
        };
        let here = replicas().filter(is_here).count() as u64;
        // What is asked here is about to come or go.
        Self { here: here.max(1), all: (replicas().count() as u64).max(1) }
    }

    /// Time between two tokens if the whole table has `rate` of them per second; `None` if there are none.
    fn interval(self, rate: u64) -> Option<Duration> {
        let nanos = (1_000_000_000 * u128::from(self.all)).checked_div(u128::from(rate) * u128::from(self.here))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

impl Limit {
    /// A request that is dropped takes no token, as in Pegasus.
    fn judge(&mut self, throttling: &Throttling, now: Instant) -> Verdict {
        if let Some(above) = throttling.reject_above
            && !self.reject.take(self.share.interval(above), now)
        {
            return Verdict::Reject;
        }
        match throttling.delay {
            Some(Delay { above, by }) if !self.delay.take(self.share.interval(above), now) => Verdict::Delay(by),
            _ => Verdict::Serve,
        }
    }
}

impl Throttles {
    /// Nothing was limited so far.
    pub(crate) fn new(shard: (ShardId, usize)) -> Self {
        let (tables, counts) = (BTreeMap::new(), BTreeMap::new());
        Self { shard, tables, counts, version: 0, delayed: Waiting::default(), last_number: 0 }
    }

    /// When the first request that was delayed is to be served.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.delayed.first()
    }

    /// Takes a delayed request back.
    pub(crate) fn remove(&mut self, number: u64) {
        drop(self.delayed.remove(number));
    }

    /// So many bytes were sent in reply to an extra attempt.
    pub(crate) fn note_bytes(&mut self, group: GroupId, bytes: usize) {
        self.counts.entry(group).or_default().backup_request_bytes += bytes as u64;
    }

    fn judge(
        &mut self,
        table: TableId,
        throttling: &Throttling,
        catalogue: &Catalogue,
        node: NodeId,
        now: Instant,
    ) -> Verdict {
        if self.version != catalogue.version {
            self.version = catalogue.version;
            self.counts.retain(|group, _| catalogue.tables.contains_key(&group.table));
            self.tables.retain(|id, limit| {
                let table = catalogue.tables.get(id);
                table.map(|table| limit.share = Share::of(table, node, self.shard)).is_some()
            });
        }
        let Some(table) = catalogue.tables.get(&table) else { return Verdict::Serve };
        let new = || Limit { share: Share::of(table, node, self.shard), ..Limit::default() };
        self.tables.entry(table.id).or_insert_with(new).judge(throttling, now)
    }
}

impl Serving<'_> {
    /// Lets a request pass, or drops it, or keeps it until later. Everything but extra attempts passes.
    pub(crate) fn throttle(
        &mut self,
        group: GroupId,
        header: &Header,
        body: &Body,
        mut caller: Caller,
        now: Now,
    ) -> Option<Caller> {
        if caller.has_passed || caller.forwarded_for.is_some() || !is_limited(header, &caller) {
            return Some(caller);
        }
        caller.has_passed = true;
        let throttling = self.view.settings.get(&group.table).map(|settings| settings.throttling).unwrap_or_default();
        let verdict = match &self.view.catalogue {
            Some(catalogue) if throttling.is_limit() => {
                self.requests.throttles.judge(group.table, &throttling, catalogue, self.config.node, now.instant)
            }
            Some(_) | None => Verdict::Serve,
        };
        let may_wait = self.requests.throttles.delayed.len() < DELAYED_MAX && caller.frame_bytes <= DELAYED_FRAME_MAX;
        let counts = self.requests.throttles.counts.entry(group).or_default();
        match verdict {
            Verdict::Serve => {
                counts.backup_requests += 1;
                Some(caller)
            }
            Verdict::Delay(by) if may_wait => {
                counts.backup_requests += 1;
                counts.throttling_delayed_backup_requests += 1;
                self.delay(header, body, caller, now.instant + by);
                None
            }
            Verdict::Delay(_) | Verdict::Reject => {
                counts.throttling_rejected_backup_requests += 1;
                self.answer_refused(&caller, &Refusal::Throttled);
                None
            }
        }
    }

    fn delay(&mut self, header: &Header, body: &Body, caller: Caller, until: Instant) {
        let throttles = &mut self.requests.throttles;
        throttles.last_number += 1;
        let (number, bytes, until) = (throttles.last_number, caller.frame_bytes, until.min(caller.deadline));
        let version = self.view.catalogue_version();
        let id = self.requests.callers.insert(caller, WaitsIn::Delayed(number));
        throttles.delayed.insert(
            number,
            until,
            bytes,
            Delayed { id, version, header: header.clone(), body: body.clone() },
        );
    }

    /// Serves what was delayed until now.
    pub(crate) fn serve_delayed(&mut self, now: Now) {
        let current = self.view.catalogue_version();
        while let Some(Delayed { id, version, header, body }) = self.requests.throttles.delayed.pop_due(now.instant) {
            let Some(caller) = self.requests.callers.remove(id) else { continue };
            if caller.deadline <= now.instant {
                self.refuse_client(caller, &Refusal::Expired, now);
            } else if version != current {
                // Its user may have lost the right meanwhile. It is an extra attempt.
                self.answer_refused(&caller, &Refusal::Throttled);
            } else {
                self.serve_data(caller, &header, &body, now);
            }
        }
    }
}

/// The admin command `throttle`, of all shards of a node.
pub(crate) fn told(shards: &[&Requests], view: &View, node: NodeId) -> Value {
    let tables = view.catalogue.iter().flat_map(|catalogue| catalogue.tables.values());
    let sum = |of: &dyn Fn(&Requests) -> usize| shards.iter().map(|requests| of(requests)).sum::<usize>();
    json!({
        "node": node.0,
        "waiting": sum(&|it| it.throttles.delayed.len()),
        "waiting_bytes": sum(&|it| it.throttles.delayed.bytes()),
        "tables": tables.map(|table| told_of(shards, view, node, table)).collect::<Vec<Value>>(),
        "forwards": sum_of(shards.iter().map(|requests| requests.forwards.told())),
    })
}

/// What a table's limit is at a node, and what it did.
pub(crate) fn told_of(shards: &[&Requests], view: &View, node: NodeId, table: &Table) -> Value {
    let share = Share::of(table, node, (ShardId(0), 1));
    let group = |partition| GroupId { table: table.id, partition };
    let counted = || shards.iter().flat_map(|it| it.throttles.counts.range(group(0)..=group(u32::MAX)));
    let partition = |(group, counts): (&GroupId, &Counts)| counts.to_json(json!({ "partition": group.partition }));
    let in_order: BTreeMap<&GroupId, &Counts> = counted().collect();
    let partitions: Vec<Value> = in_order.into_iter().map(partition).collect();
    let total = counted().fold(Counts::default(), |total, (_, counts)| total.plus(counts));
    let throttling = view.settings(table.id).map(|settings| settings.throttling).unwrap_or_default();
    total.to_json(json!({
        "node": node.0,
        "table": table.name,
        "reject_above": throttling.reject_above,
        "delay_above": throttling.delay.map(|delay| delay.above),
        "delay_ms": throttling.delay.map(|delay| delay.by.as_millis() as u64),
        "replicas_here": share.here,
        "replicas": share.all,
        "partitions": partitions,
    }))
}

/// The answer of `throttle_table`: what each node says of the table, and the counts of all together.
pub(crate) fn of_all_nodes(nodes: Vec<Value>) -> Value {
    let total = nodes.iter().fold(Counts::default(), |total, node| total.plus(&Counts::of_json(node)));
    total.to_json(json!({ "nodes": nodes }))
}

impl Counts {
    fn plus(self, other: &Self) -> Self {
        Self {
            backup_requests: self.backup_requests + other.backup_requests,
            backup_request_bytes: self.backup_request_bytes + other.backup_request_bytes,
            throttling_delayed_backup_requests: self.throttling_delayed_backup_requests
                + other.throttling_delayed_backup_requests,
            throttling_rejected_backup_requests: self.throttling_rejected_backup_requests
                + other.throttling_rejected_backup_requests,
        }
    }

    fn of_json(told: &Value) -> Self {
        let count = |name: &str| told[name].as_u64().unwrap_or(0);
        Self {
            backup_requests: count("backup_requests"),
            backup_request_bytes: count("backup_request_bytes"),
            throttling_delayed_backup_requests: count("throttling_delayed_backup_requests"),
            throttling_rejected_backup_requests: count("throttling_rejected_backup_requests"),
        }
    }

    /// Adds them to `told`.
    fn to_json(self, mut told: Value) -> Value {
        told["backup_requests"] = json!(self.backup_requests);
        told["backup_request_bytes"] = json!(self.backup_request_bytes);
        told["throttling_delayed_backup_requests"] = json!(self.throttling_delayed_backup_requests);
        told["throttling_rejected_backup_requests"] = json!(self.throttling_rejected_backup_requests);
        told
    }
}

/// Whether the table's limit is for this request. Pegasus' flag means nothing on writes.
fn is_limited(header: &Header, caller: &Caller) -> bool {
    if caller.method.is_one_way() {
        return false;
    }
    match header.extension.as_ref().and_then(|extension: &Extension| extension.cause).map(Cause::from_code) {
        Some(Cause::Hedge | Cause::Tie | Cause::Fallback) => true,
        Some(Cause::Retry) => false,
        None => header.is_backup && caller.method.class() != Class::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// How many of `count` requests, evenly over the seconds from `from`, get a token.
    fn taken(bucket: &mut Bucket, interval: Option<Duration>, count: u64, from: u64, seconds: u64) -> u64 {
        let times = (0..count).map(|i| Instant(from * SECOND + i * seconds * SECOND / count));
        times.filter(|at| bucket.take(interval, *at)).count() as u64
    }

    #[test]
    fn a_full_bucket_holds_a_second_and_is_refilled_all_the_time() {
        let share = Share { here: 1, all: 3 };
        let mut bucket = Bucket::default();
        // A third of 300 per second, and a full bucket to begin with.
        assert_eq!(taken(&mut bucket, share.interval(300), 100_000, 10, 10), 1_099);
        // Nothing in the meantime fills it again, and no more.
        assert_eq!(taken(&mut bucket, share.interval(300), 500, 30, 1), 199);
        // Ten milliseconds are one token.
        let at = Instant(31 * SECOND);
        assert_eq!((bucket.take(share.interval(300), at), bucket.take(share.interval(300), at)), (true, false));
        assert!(bucket.take(share.interval(300), at + Duration::from_millis(10)));
    }

    #[test]
    fn a_share_below_one_per_second_still_holds_a_token() {
        let share = Share { here: 1, all: 12 };
        let mut bucket = Bucket::default();
        // One in twelve seconds.
        assert_eq!(taken(&mut bucket, share.interval(1), 1_000, 100, 60), 5);
    }

    #[test]
    fn no_rate_is_no_token() {
        let mut bucket = Bucket::default();
        assert_eq!(Share { here: 2, all: 2 }.interval(0), None);
        assert_eq!(taken(&mut bucket, None, 100, 10, 10), 0);
    }

    #[test]
    fn what_is_dropped_does_not_count() {
        let mut limit = Limit { share: Share { here: 1, all: 1 }, ..Limit::default() };
        let throttling =
            Throttling { delay: Some(Delay { above: 5, by: Duration::from_millis(20) }), reject_above: Some(10) };
        let verdicts: Vec<Verdict> = (0..40).map(|_| limit.judge(&throttling, Instant(SECOND))).collect();
        assert_eq!(verdicts.iter().filter(|it| **it == Verdict::Serve).count(), 5);
        assert_eq!(verdicts.iter().filter(|it| matches!(it, Verdict::Delay(_))).count(), 5);
        assert_eq!(verdicts.iter().filter(|it| **it == Verdict::Reject).count(), 30);
        // A second later the bucket is full, whatever was dropped.
        let later = (0..40).filter(|_| limit.judge(&throttling, Instant(2 * SECOND)) != Verdict::Reject).count();
        assert_eq!(later, 10);
    }

    #[test]
    fn shares_of_all_nodes_are_the_whole() {
        let per_second = |here| 1_000_000_000 / Share { here, all: 12 }.interval(1_200).map_or(1, |it| it.as_nanos());
        assert_eq!([3, 4, 5].map(per_second), [300, 400, 500]);
    }
}
