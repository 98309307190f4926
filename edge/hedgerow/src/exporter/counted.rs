//! What each counter counts: the names of `hedgerow counters`, what they say, and what the exporter calls them.

/// What is said of a counter that a newer node tells.
const UNKNOWN: &str = "A counter of a node that is newer than this exporter";

/// Counters by their names, without the parts that are labels, and what each counts. docs/status.md says the same.
const COUNTED: [(&str, &str); 76] = [
    ("served", "Reads that were served, by level and by what the replica was"),
    (
        "served_by_quorum",
        "Linearizable reads that were served without the leader's word, as the logs of a majority held nothing newer for their keys",
    ),
    ("refused", "Reads that were refused, by reason"),
    ("refused_writes", "Writes that were refused, by reason"),
    ("queue.first.queued", "First attempts of reads that wait for their turn"),
    ("queue.first.run", "First attempts of reads that were begun"),
    ("queue.first.shed", "First attempts of reads that were refused, as their lane was full"),
    ("queue.first.expired", "First attempts of reads that waited beyond their deadline"),
    (
        "queue.first.busy_for",
        "First attempts of reads that were refused, as they would have waited beyond their --busy-threshold",
    ),
    ("queue.extra.queued", "Extra attempts of reads that wait for their turn"),
    ("queue.extra.run", "Extra attempts of reads that were begun"),
    ("queue.extra.shed", "Extra attempts of reads that were refused, as their lane was full"),
    ("queue.extra.expired", "Extra attempts of reads that waited beyond their deadline"),
    (
        "queue.extra.busy_for",
        "Extra attempts of reads that were refused, as they would have waited beyond their --busy-threshold",
    ),
    ("queue.extra_run_us", "Microseconds that the node worked for extra attempts, about"),
    ("queue.bytes", "Bytes in memory of reads that wait for their turn"),
    ("queue.aside.short.run", "Reads of few rows that were run beside the node's own thread, as they need the disk"),
    ("queue.aside.short.running", "Reads of few rows that run beside the node's own thread"),
    ("queue.aside.short.waiting", "Reads of few rows that wait for a place beside the node's own thread"),
    ("queue.aside.long.run", "Reads of many rows that were run beside the node's own thread"),
    ("queue.aside.long.running", "Reads of many rows that run beside the node's own thread"),
    ("queue.aside.long.waiting", "Reads of many rows that wait for a place beside the node's own thread"),
    ("queue.aside.shared.run", "Reads of several rows that were given to the threads of the setting workers"),
    ("queue.aside.shared.running", "Reads of several rows that run on the threads of the setting workers"),
    ("queue.aside.shared.waiting", "Reads of several rows that wait for a thread of the setting workers"),
    (
        "queue.aside.shared.in_vain",
        "Reads that came back from the threads of the setting workers and were served once more",
    ),
    ("queue.aside.shed", "Reads beside the node's own thread that were refused, as too many waited"),
    ("queue.aside.expired", "Reads beside the node's own thread that were refused, as their deadline had passed"),
    ("queue.cancels.listed", "Attempts that their clients could take back now"),
    ("queue.cancels.queued", "Attempts that their clients took back while they waited for their turn"),
    (
        "queue.cancels.waiting_reads",
        "Reads that their clients took back while they waited for an index or a leader's word",
    ),
    ("queue.cancels.waiting_writes", "Writes that their clients took back while they waited for their result"),
    ("queue.cancels.delayed", "Attempts that their clients took back while a table's limit delayed them"),
    ("queue.cancels.unknown", "Attempts that their clients took back when nothing waited any more"),
    ("queue.cancels.connection_closed", "Requests that ended with their connection"),
    ("queue.ties.begun", "Tied reads that were begun here"),
    ("queue.ties.cancels_sent", "Cancels of tied reads that were sent to the other node"),
    ("queue.ties.cancels_in_time", "Cancels of tied reads from other nodes that came in time"),
    ("queue.ties.cancels_on_arrival", "Cancels of tied reads from other nodes that came before the read"),
    ("queue.ties.cancels_too_late", "Cancels of tied reads from other nodes that came too late"),
    ("read_index.messages_sent", "Messages to other nodes with read index requests or replies"),
    ("read_index.messages_received", "Messages from other nodes with read index requests or replies"),
    ("read_index.read_index_requests_sent", "Read index requests that were sent"),
    ("read_index.read_index_requests_received", "Read index requests that were received"),
    ("read_index.read_index_replies_sent", "Read index replies that were sent"),
    ("read_index.read_index_replies_received", "Read index replies that were received"),
    ("quorum.reads_asked", "Reads for which other voters' logs were asked"),
    ("quorum.messages_sent", "Messages to other nodes with questions to their logs, or answers"),
    ("quorum.messages_received", "Messages from other nodes with questions to the logs here, or answers"),
    ("quorum.nowhere", "Answers of other logs that they hold nothing newer for the keys of a read"),
    ("quorum.touched", "Answers of other logs that they hold something newer for the keys of a read"),
    ("quorum.ask_again", "Answers of other logs that they cannot tell at present"),
    ("waiting", "Reads that wait for an index to be applied or for a leader's word"),
    ("waiting_bytes.kept", "Bytes of keys in memory of reads that wait for an index or a leader's word"),
    ("waiting_bytes.refused", "Reads that were refused as busy, as the keys of others that wait took all the room"),
    ("rights.lacking", "Requests that needed a right which their user has not been given"),
    ("rights.lacking_by_user", "Requests that needed a right which their user has not been given, by user"),
    ("limits.requests", "Requests that were refused, as their user was over its limit of requests"),
    ("limits.bytes", "Requests that were refused, as their user was over its limit of bytes"),
    ("limits.connections", "Connections that were refused, as their user was over its limit of connections"),
    ("logins.succeeded", "Logins by password that got in"),
    ("logins.failed", "Logins by password that did not get in"),
    ("logins.refused", "Logins by password that were refused unseen, as too many had failed before"),
    ("logins.ended", "Connections that were closed, as their user's password was changed or removed"),
    ("duplication.partitions", "Partitions of a duplicated table that the node leads, by cluster and table"),
    ("duplication.copying", "Partitions of a duplicated table whose rows the node copies to the other cluster"),
    (
        "duplication.stopped",
        "Partitions of a duplicated table that the node leads and that are not carried to the other cluster",
    ),
    ("duplication.entries_left", "Writes whose changes the node has not carried to the other cluster yet"),
    (
        "duplication.bytes_left",
        "Bytes in the journals of changes that the node has not carried to the other cluster yet",
    ),
    (
        "duplication.lag_seconds",
        "Age in seconds of the oldest change that the node has not carried to the other cluster",
    ),
    ("duplication.changes_told", "Changes of rows that the node has carried to the other cluster"),
    ("duplication.bytes_told", "Bytes of keys and values that the node has carried to the other cluster"),
    ("audit.lost", "Records of the audit log that its disk did not take, or for which there was no room"),
    ("requests_waiting", "Requests of clients that wait here for anything"),
    ("requests_in_flight", "Requests of clients that are at the node"),
    ("service_us", "Microseconds that the node works on a request of a client, on average"),
];

/// What the counter of this name counts.
pub(super) fn what(name: &str) -> &'static str {
    COUNTED.iter().find(|(counter, _)| *counter == name).map_or(UNKNOWN, |(_, what)| what)
}

/// What the exporter calls the counter of this name. A part that begins with the one before it does not repeat that.
pub(super) fn metric(name: &str) -> String {
    let mut metric = String::new();
    let mut before = "";
    for part in name.split('.') {
        let rest = part.strip_prefix(before).and_then(|rest| rest.strip_prefix('_')).unwrap_or(part);
        if !metric.is_empty() {
            metric.push('_');
        }
        metric.push_str(&rest.replace('-', "_"));
        before = part;
    }
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::counters::is_momentary;

    /// The rows of the document: a counter without its parts that differ, whether its name is in italics, and what is said of it.
    fn documented() -> Vec<(&'static str, bool, &'static str)> {
        let page = include_str!("../../../../docs/status.md");
        let section = page.split_once("## `hedgerow counters`\n").unwrap().1.split_once("\n## ").unwrap().0;
        let row = |line: &'static str| {
            let (name, said) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
            let is_italic = name.starts_with('*');
            let name = name.trim_matches('*').strip_prefix('`')?.strip_suffix('`')?;
            let differs = name.find(|c: char| c.is_ascii_uppercase()).map_or(name.len(), |at| at - 1);
            Some((&name[..differs], is_italic, said))
        };
        section.lines().filter_map(row).collect()
    }

    #[test]
    fn the_document_says_the_same_of_every_counter() {
        let documented = documented();
        assert_eq!(documented.len(), COUNTED.len());
        for ((name, what), (documented, is_italic, said)) in COUNTED.iter().zip(documented) {
            assert_eq!(*name, documented);
            let rest = said.strip_prefix(what).unwrap_or_else(|| panic!("{name}: {said}"));
            assert!(rest.is_empty() || rest.starts_with(". "), "{name}: {said}");
            assert_eq!(is_italic, is_momentary(name), "{name}: what tells the present is in italics");
        }
    }

    #[test]
    fn a_metric_repeats_no_part_of_its_name() {
        assert_eq!(metric("read_index.read_index_requests_sent"), "read_index_requests_sent");
        assert_eq!(metric("read_index.messages_sent"), "read_index_messages_sent");
        assert_eq!(metric("queue.first.run"), "queue_first_run");
        let mut metrics: Vec<String> = COUNTED.iter().map(|(name, _)| metric(name)).collect();
        metrics.sort();
        metrics.dedup();
        assert_eq!(metrics.len(), COUNTED.len(), "two counters have one name");
    }
}
