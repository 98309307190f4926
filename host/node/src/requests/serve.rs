//! Serving clients: from a frame to an operation on a group, and from its result to a reply.
//!
//! **Where a read waits for its turn** is `queue.rs`, **where it is served** `reads.rs`. **Where a write is proposed** is [`Serving::serve_write`].

use crate::replica::{Origin, Replica};
use crate::requests::Serving;
use crate::requests::caller::{Caller, Page};
use crate::requests::callers::{RequestId, WaitsIn};
use crate::requests::reads::Reflected;
use bytes::Bytes;
use hedgerow_env::Now;
use hedgerow_placement::duplication::{Duplication, State};
use hedgerow_placement::option::DenyAnswer;
use hedgerow_types::journal::JournalWrite;
use hedgerow_types::op::{Mutation, Read, ReadReply, Write, WriteReply};
use hedgerow_types::{ClientId, GroupId, Index, Refusal, Sequence, TableId};
use hedgerow_wire::reply::Failure;
use hedgerow_wire::serve::{self, Denied, Ident, Operation};
use hedgerow_wire::{Body, Class, ErrorName, Extension, Header, Method, Reply, ReplyExtension, Text};
use std::time::Duration;

impl Serving<'_> {
    /// Takes a read or a write that was let through, here or at the node that sent it on.
    pub(crate) fn take_data(&mut self, caller: Caller, header: &Header, body: &Body, now: Now) {
        self.requests.forwards.note_taken(&caller);
        self.note_request(&caller);
        self.serve_data(caller, header, body, now);
    }

    /// A request came that will be answered here.
    pub(super) fn note_request(&mut self, caller: &Caller) {
        self.requests.load.take(caller.is_data());
    }

    /// Serves a read or a write, or whatever of it is left once the table's limit on extra attempts has let it pass.
    pub(super) fn serve_data(&mut self, mut caller: Caller, header: &Header, body: &Body, now: Now) {
        let group = caller.group();
        let replica = self.replicas.running(group).filter(|it| group.table.0 != 0 && !it.is_dropped);
        let Some(shape) = replica.and_then(|replica| replica.shape.as_ref()) else {
            let is_starting = self.replicas.hosted.contains_key(&group);
            let refusal = self.view.why_not_hosted(group, is_starting);
            return self.answer_refused(&caller, &refusal);
        };
        caller.kind = shape.kind;
        let operation = match serve::operation(body, caller.kind) {
            Ok(operation) => operation,
            Err(Denied::Refused(refusal)) => return self.answer_refused(&caller, &refusal),
            Err(Denied::Answered(status)) => return self.answer_status(&caller, status),
        };
        if self.is_denied(&caller, group.table) {
            return;
        }
        // Others are not moved through it: it costs a read a tenth.
        let caller = if caller.is_extra { self.throttle(group, header, body, caller, now) } else { Some(caller) };
        let Some(mut caller) = caller else { return };
        match operation {
            Operation::Read(read) => self.enqueue(read, header, caller, now),
            Operation::Write(write) => {
                let number = header.extension.as_ref().map_or((ClientId(0), 0), number_of);
                let Some(caller) = self.place_extra_write(group, number, header, body, caller, now) else { return };
                self.serve_write(group, number, write, caller, now);
            }
            Operation::OpenScan { scan, validate_hash: _ } => {
                caller.page = Some(Box::new(Page { scan: scan.clone(), number: None }));
                self.enqueue(Read::Scan(scan), header, caller, now);
            }
            Operation::ContinueScan { context } => match self.requests.scans.take(context, group, caller.connection) {
                Some(scan) => {
                    caller.page = Some(Box::new(Page { scan: scan.clone(), number: Some(context) }));
                    self.enqueue(Read::Scan(scan), header, caller, now);
                }
                None => self.answer_status(&caller, hedgerow_types::Status::NotFound),
            },
            Operation::ClearScan { context } => {
                drop(self.requests.scans.take(context, group, caller.connection));
                self.requests.load.forget();
            }
            Operation::Other => self.answer_refused(&caller, &Refusal::Unknown),
        }
    }

    fn serve_write(
        &mut self,
        group: GroupId,
        number: (ClientId, Sequence),
        mut write: Write,
        caller: Caller,
        now: Now,
    ) {
        if let Some(refusal) = self.replicas.running(group).and_then(|replica| misplaced_write(replica, &write)) {
            return self.answer_refused(&caller, &refusal);
        }
        if let Some(refusal) = self.why_not_duplicated(group.table, &write) {
            return self.answer_refused(&caller, &refusal);
        }
        let default_ttl = self.view.settings(group.table).map_or(0, |settings| settings.default_ttl_seconds);
        if default_ttl > 0 {
            set_default_expiry(
                &mut write,
                self.replicas.life_begins(self.view, group, now).saturating_add(default_ttl),
            );
        }
        let deadline = caller.deadline;
        let id = self.requests.callers.insert(caller, WaitsIn::Service);
        let origin = Origin::Client { id, deadline };
        match self.replicas.propose(self.view, group, number, write, origin, now) {
            Ok(position) => self.requests.callers.note(id, WaitsIn::Write(group, position.index)),
            Err(refusal) => self.refuse_waiting(id, &refusal, now),
        }
    }

    /// A refusal if a write takes this cluster for another one, or begins a duplication that nobody wants: what it says would stay in the
    /// partition for ever.
    fn why_not_duplicated(&self, table: TableId, write: &Write) -> Option<Refusal> {
        let meant = match write {
            Write::Duplicate(duplicate) => duplicate.here,
            Write::Journal(JournalWrite::Begin { cluster, id, round, bytes_max, .. }) => {
                let wanted = self.view.settings(table).into_iter().flat_map(|settings| settings.duplications.values());
                let is_it = |it: &Duplication| (it.id, it.round, it.journal_bytes) == (*id, *round, *bytes_max);
                if !wanted.into_iter().any(|it| it.state == State::Running && is_it(it)) {
                    let text = "the table's options want no such duplication to run, as far as this node knows by now";
                    return Some(Refusal::FailedPrecondition(text.into()));
                }
                *cluster
            }
            _ => return None,
        };
        let own = self.view.catalogue.as_ref().map_or(0, |catalogue| catalogue.cluster);
        let text = || format!("it is meant for the cluster {meant:016x}, and this is {own:016x}");
        (meant != own).then(|| Refusal::FailedPrecondition(text()))
    }

    /// Whether the table's options refuse the request; it has then got the answer that they want, if any.
    fn is_denied(&mut self, caller: &Caller, table: TableId) -> bool {
        let Some(deny) = self.view.settings(table).and_then(|settings| settings.deny) else { return false };
        let is_write = caller.method.class() == Class::Write;
        if !(if is_write { deny.denies_writes } else { deny.denies_reads }) {
            return false;
        }
        if deny.answer == DenyAnswer::InvalidState {
            let text = "the table's option replica.deny_client_request refuses it";
            self.answer_refused(caller, &Refusal::NotReady(text.into()));
        } else {
            self.requests.load.forget();
        }
        true
    }

    /// Answers a read that waited, or was being served.
    pub(crate) fn answer_read(&mut self, id: RequestId, reply: ReadReply, reflected: Reflected, now: Now) {
        let Some(mut caller) = self.requests.callers.remove(id) else { return };
        self.note_time(&caller, now);
        if let Some((level, role, basis)) = reflected.served.filter(|_| !is_of_duplication(caller.method)) {
            self.requests.read_counts.note_served(level, role, basis);
        }
        let reply = match caller.page.take() {
            Some(page) => {
                let scan = page.scan;
                let only_count = scan.only_count;
                let resume_after = match &reply {
                    ReadReply::Page { resume_after, .. } => resume_after.clone(),
                    _ => None,
                };
                let context = match resume_after {
                    Some(last) => {
                        self.requests.scans.keep(scan.after(last), caller.group(), caller.connection, now.instant)
                    }
                    None => hedgerow_wire::message::SCAN_DONE,
                };
                serve::scan_reply(reply, context, only_count, &self.ident(&caller))
            }
            None => serve::read_reply(caller.method, reply, &self.ident(&caller)),
        };
        self.answer(&caller, &reply, reflected);
    }

    /// Answers a write that is applied.
    pub(crate) fn answer_write(&mut self, id: RequestId, reply: WriteReply, index: Index, now: Now) {
        let Some(caller) = self.requests.callers.remove(id) else { return };
        self.note_time(&caller, now);
        let reply = serve::write_reply(caller.method, reply, index, &self.ident(&caller));
        self.answer(&caller, &reply, Reflected { index, ..Reflected::default() });
    }

    pub(crate) fn answer_status(&mut self, caller: &Caller, status: hedgerow_types::Status) {
        let reply = serve::status_reply(caller.method, status, &self.ident(caller));
        self.answer(caller, &reply, Reflected::default());
    }

    pub(crate) fn answer_refused(&mut self, caller: &Caller, refusal: &Refusal) {
        match caller.method.class() {
            Class::Read | Class::Scan => self.requests.read_counts.note_refused(refusal),
            Class::Write if !is_of_duplication(caller.method) => self.requests.write_refusals.note(refusal),
            Class::Write | Class::Admin | Class::Connection => {}
        }
        self.answer_failed(caller, refusal);
    }

    /// Answers a request with a refusal that is counted elsewhere.
    pub(crate) fn answer_failed(&mut self, caller: &Caller, refusal: &Refusal) {
        if is_better_unsaid(caller, refusal) {
            return self.requests.load.forget();
        }
        let leader = match refusal {
            Refusal::NotLeader { leader: Some(node) } => self.view.address_text(*node),
            _ => None,
        };
        let mut failure = Failure::new(refusal, leader.as_ref());
        if let (Refusal::NotLeader { leader: None }, Some(detail)) = (refusal, &mut failure.detail) {
            detail.message = Text::from(self.view.no_leader_text(caller.group()).as_str());
        }
        self.answer(caller, &Reply::Failed(failure), Reflected::default());
    }

    pub(crate) fn answer(&mut self, caller: &Caller, reply: &Reply, reflected: Reflected) {
        let is_refused = matches!(reply, Reply::Failed(_));
        if is_refused {
            self.requests.load.refuse(caller.is_data());
        } else {
            self.requests.load.answer(caller.is_data());
        }
        let extension = caller.is_extended.then(|| ReplyExtension {
            served_by: self.view.addresses.own().clone(),
            index: reflected.index,
            staleness_ms: reflected.staleness_ms(),
            queue_us: i32::try_from(reflected.waited.as_micros()).unwrap_or(i32::MAX),
            requests_in_flight: self.requests.load.in_flight(),
            service_us: self.requests.load.service_us(),
            read_level_code: reflected.level_code().filter(|_| caller.wants_level),
            attempt: caller.extra_attempt,
            mode: caller.wants_trace.then(|| Text::from(reflected.mode(caller))),
        });
        if caller.forwarded_for.is_some() {
            return self.answer_forwarded(caller, reply, extension.as_ref());
        }
        let out = self.outbox.client(caller.connection);
        let before = out.len();
        hedgerow_wire::encode_reply(out, caller.method, caller.sequence_id, reply, extension.as_ref());
        let size = out.len() - before;
        self.requests.reply_bytes += size;
        if caller.is_data() && !is_refused {
            self.requests.note_reply(caller, size);
        }
        if caller.has_passed {
            self.requests.throttles.note_bytes(caller.group(), size);
        }
    }

    fn ident(&self, caller: &Caller) -> Ident<'_> {
        let (app_id, partition_index) = (caller.app_id, caller.partition_index);
        Ident { app_id, partition_index, server: self.view.addresses.own(), table: caller.kind }
    }

    /// A request was served.
    fn note_time(&mut self, caller: &Caller, now: Now) {
        let took = now.instant.since(caller.received);
        if !is_of_duplication(caller.method) {
            self.requests.times.note(caller.method.class(), took);
        }
        let Some(threshold) = self.view.settings(caller.group().table).and_then(|it| it.slow_query_threshold_ms) else {
            return;
        };
        if took >= Duration::from_millis(u64::from(threshold))
            && let Some(left_out) = self.requests.slow_lines.poll(now.instant)
        {
            tracing::warn!(group = %caller.group(), method = caller.method.name(), ?took, left_out, "slow request");
        }
    }
}

/// What carriers ask, as often as they like: it says nothing of the clients.
const fn is_of_duplication(method: Method) -> bool {
    matches!(method, Method::HedgerowDuplicate | Method::HedgerowJournalRead | Method::HedgerowJournalWrite)
}

/// Whether a refusal would do harm: a client of Pegasus takes the first reply to either attempt for the answer, and gives up on
/// this one. The first attempt decides, as if this one had been lost.
fn is_better_unsaid(caller: &Caller, refusal: &Refusal) -> bool {
    let is_backup = caller.is_extra && !caller.is_extended && caller.method.class() != Class::Write;
    is_backup && ErrorName::of_refusal(refusal) == ErrorName::Busy
}

fn number_of(extension: &Extension) -> (ClientId, Sequence) {
    match (extension.client_id, extension.sequence) {
        (Some(client), Some(sequence)) => (ClientId(client), sequence),
        _ => (ClientId(0), 0),
    }
}

/// A refusal if a key lies outside the replica's partition: the caller's map is wrong, or its hash. Rows that share a prefix lie
/// where it does; without one, as in ordered tables, each lies where its own key does.
pub(crate) fn misplaced<'a>(
    replica: &Replica,
    prefix: &[u8],
    suffixes: impl IntoIterator<Item = &'a Bytes>,
) -> Option<Refusal> {
    let Some(shape) = &replica.shape else { return Some(Refusal::NotHosted) };
    let is_here = match prefix {
        [] => suffixes.into_iter().all(|key| shape.contains(key)),
        _ => shape.contains(prefix),
    };
    (!is_here).then(|| Refusal::Invalid("the key does not belong to this partition".into()))
}

fn misplaced_write(replica: &Replica, write: &Write) -> Option<Refusal> {
    match write {
        Write::Nothing | Write::Journal(_) => None,
        Write::Put { key, .. } | Write::Remove { key } | Write::Incr { key, .. } => misplaced(replica, &[], [key]),
        Write::MultiPut { prefix, rows, .. } => misplaced(replica, prefix, rows.iter().map(|(suffix, _)| suffix)),
        Write::MultiRemove { prefix, suffixes } => misplaced(replica, prefix, suffixes),
        Write::CheckAndMutate { prefix, check, mutations, .. } => {
            let changed = mutations.iter().map(Mutation::suffix);
            misplaced(replica, prefix, changed.chain([&check.suffix]))
        }
        Write::Duplicate(duplicate) => {
            misplaced(replica, &[], duplicate.changes.iter().map(|change| change.mutation.suffix()))
        }
    }
}

/// Gives records that would live for ever the table's default life.
fn set_default_expiry(write: &mut Write, default: u32) {
    let set = |expire_at: &mut u32| {
        if *expire_at == 0 {
            *expire_at = default;
        }
    };
    match write {
        Write::Put { expire_at, .. } | Write::MultiPut { expire_at, .. } => set(expire_at),
        Write::CheckAndMutate { mutations, .. } => {
            for mutation in mutations {
                match mutation {
                    Mutation::Put { expire_at, .. } => set(expire_at),
                    Mutation::Remove { .. } => {}
                }
            }
        }
        // What was done elsewhere was given its life there.
        Write::Duplicate(_) => {}
        Write::Nothing | Write::Journal(_) | Write::Remove { .. } | Write::MultiRemove { .. } | Write::Incr { .. } => {}
    }
}
