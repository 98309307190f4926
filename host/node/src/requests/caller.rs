//! What is known of a client's request beside what it asks for.

use crate::config::WAIT_MAX;
use crate::outbox::ConnectionId;
use crate::requests::cancel::AttemptName;
use hedgerow_env::Now;
use hedgerow_types::op::Scan;
use hedgerow_types::{GroupId, Instant, NodeId};
use hedgerow_wire::serve::TableKind;
use hedgerow_wire::{Class, Extension, Header, Method};
use std::time::Duration;

/// A client's request that has no answer yet.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) connection: ConnectionId,
    pub(crate) sequence_id: i32,
    /// Size of the frame that it came in.
    pub(crate) frame_bytes: usize,
    pub(crate) method: Method,
    pub(crate) app_id: i32,
    pub(crate) partition_index: i32,
    /// Whether the caller speaks our extension and may be sent our fields.
    pub(crate) is_extended: bool,
    /// Number of this attempt within its request, if it is an extra one.
    pub(crate) extra_attempt: Option<i32>,
    /// Whether other attempts of the request are under way, by our extension or by Pegasus' backup flag.
    pub(crate) is_extra: bool,
    /// What cancels call it, if it can be cancelled.
    pub(crate) name: Option<AttemptName>,
    /// Whether it knows of read levels and is told at which its read was served.
    pub(crate) wants_level: bool,
    pub(crate) wants_trace: bool,
    pub(crate) received: Instant,
    /// How long it waited for its turn.
    pub(crate) queued: Duration,
    pub(crate) deadline: Instant,
    /// How the table's keys are made.
    pub(crate) kind: TableKind,
    /// The page that is being read, for a scan.
    pub(crate) page: Option<Box<Page>>,
    /// It is an extra attempt, and the table's limit on these has let it pass (`throttle.rs`).
    pub(crate) has_passed: bool,
    /// The node that took it from its client, and that node's number for it (`forward.rs`).
    pub(crate) forwarded_for: Option<(NodeId, u64)>,
}

/// A page of a scan.
#[derive(Debug)]
pub(crate) struct Page {
    /// The page and what comes after it.
    pub(crate) scan: Scan,
    /// The number under which the scan was kept; none for its first page.
    pub(crate) number: Option<i64>,
}

impl Caller {
    /// Who sent the request that `header` stands before.
    pub(crate) fn of(connection: ConnectionId, header: &Header, sequence_id: i32, method: Method, now: Now) -> Self {
        let extension = header.extension.as_ref();
        Self {
            connection,
            sequence_id,
            frame_bytes: 0,
            method,
            app_id: header.app_id,
            partition_index: header.partition_index,
            is_extended: extension.is_some(),
            extra_attempt: extension.filter(|it| it.is_extra()).map(|it| it.attempt.unwrap_or(0)),
            is_extra: header.is_backup || extension.is_some_and(Extension::is_extra),
            name: extension.and_then(AttemptName::of),
            wants_level: extension.is_some_and(knows_levels),
            wants_trace: extension.is_some_and(|extension| extension.wants_trace),
            received: now.instant,
            queued: Duration::ZERO,
            deadline: now.instant + patience(extension),
            kind: TableKind::Hash,
            page: None,
            has_passed: false,
            forwarded_for: None,
        }
    }

    /// Whether it reads or writes data.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.method.class(), Class::Read | Class::Scan | Class::Write)
    }

    pub(crate) fn group(&self) -> GroupId {
        GroupId::new(self.app_id as u32, self.partition_index as u32)
    }

    /// Gives what it keeps bytes of its own, as [`Read::detach`] does. Returns how many.
    pub(crate) fn detach(&mut self) -> usize {
        self.page.as_mut().map_or(0, |page| page.scan.detach())
    }
}

/// Whether the caller looks at the level in its reply. Callers that say nothing of levels get the replies that they always
/// got, byte for byte.
fn knows_levels(extension: &Extension) -> bool {
    extension.any_replica || extension.attempt.is_some() || extension.read_level_code.is_some()
}

/// How long the caller waits, by its own word where that can be trusted.
fn patience(extension: Option<&Extension>) -> Duration {
    let deadline = extension.and_then(|extension| extension.deadline_ms);
    deadline.map_or(WAIT_MAX, |ms| Duration::from_millis(ms.clamp(0, 600_000) as u64))
}
