//! Writes on their way into a group's log: who may not be written to, and why.

use crate::clock::no_time;
use crate::config::PENDING_WRITES_MAX;
use crate::replica::{Hosted, Origin, PendingWrite};
use crate::replicas::Replicas;
use crate::view::View;
use bytes::BytesMut;
use hedgerow_env::Now;
use hedgerow_replication::{ProposeError, Role};
use hedgerow_types::log::LogPosition;
use hedgerow_types::op::{Proposal, Write};
use hedgerow_types::{ClientId, GroupId, Refusal, ReplicaId, Sequence, codec};

impl Replicas {
    /// Proposes `write` to a group that this node leads.
    pub(crate) fn propose(
        &mut self,
        view: &View,
        group: GroupId,
        (client, sequence): (ClientId, Sequence),
        write: Write,
        origin: Origin,
        now: Now,
    ) -> Result<LogPosition, Refusal> {
        // Why a group takes no write is its leader's to say: whoever asks another one is to go there.
        if let Some(Hosted::Running(replica)) = self.hosted.get(&group)
            && replica.group.role() != Role::Leader
        {
            return Err(not_leader(replica.group.leader()));
        }
        if view.is_storage_behind && group != GroupId::META {
            return Err(Refusal::Busy("the node's disk does not keep up with writes".to_owned()));
        }
        if group != GroupId::META
            && let Some(Hosted::Running(replica)) = self.hosted.get(&group)
            && let Some(refusal) = replica.why_no_room(&write)
        {
            return Err(refusal);
        }
        if group != GroupId::META && write.looks_up() && view.awaits_time(now) {
            return Err(no_time());
        }
        let stored = write.stored_size();
        if group != GroupId::META
            && let Some(refusal) = self.why_too_heavy(stored)
        {
            return Err(refusal);
        }
        let expiry_now = self.expiry_time(view, group, now);
        let is_agreed = view.is_agreed(now);
        let Some(replica) = self.running(group) else { return Err(Refusal::NotHosted) };
        if replica.is_outpaced && group != GroupId::META {
            return Err(Refusal::Busy("the disks of most replicas do not keep up with writes".to_owned()));
        }
        if group != GroupId::META && replica.push_back.refuses_next() {
            return Err(Refusal::Busy("compactions of the partition do not keep up with writes".to_owned()));
        }
        if replica.writes.len() >= PENDING_WRITES_MAX {
            let text = format!("{PENDING_WRITES_MAX} writes of the partition wait for their outcome");
            return Err(Refusal::Busy(text));
        }
        let mut data = BytesMut::with_capacity(write_size_hint(&write));
        let proposal = Proposal { client, sequence, now: expiry_now, is_agreed, write };
        codec::encode_proposal(&proposal, &mut data);
        match replica.group.propose(data.freeze(), now.instant) {
            Ok(position) => {
                if let Some(deadline) = origin.deadline() {
                    replica.note_deadline(deadline);
                }
                let number = (client, sequence);
                let write = PendingWrite { term: position.term, number, origin, others: Vec::new() };
                replica.writes.insert(position.index, write);
                replica.heavy.note_proposed(position.index, stored);
                self.mark_dirty(group);
                Ok(position)
            }
            Err(error) => Err(refusal_of(error)),
        }
    }
}

/// A fair guess of an encoded write's size, so that its buffer rarely grows.
fn write_size_hint(write: &Write) -> usize {
    64 + match write {
        Write::Put { key, value, .. } => key.len() + value.len(),
        Write::MultiPut { rows, .. } => rows.iter().map(|(key, value)| 8 + key.len() + value.len()).sum(),
        Write::Duplicate(duplicate) => duplicate.changes.iter().map(|change| 64 + change.mutation.stored_size()).sum(),
        Write::Nothing
        | Write::Journal(_)
        | Write::Remove { .. }
        | Write::MultiRemove { .. }
        | Write::Incr { .. }
        | Write::CheckAndMutate { .. } => 192,
    }
}

/// For whoever asks a replica for something that only its leader does.
pub(crate) fn not_leader(leader: Option<ReplicaId>) -> Refusal {
    Refusal::NotLeader { leader: leader.map(ReplicaId::node) }
}

fn refusal_of(error: ProposeError) -> Refusal {
    match error {
        ProposeError::NotLeader { leader } => not_leader(leader),
        ProposeError::Busy => Refusal::Busy("too many bytes wait for a majority".into()),
        ProposeError::Transferring => Refusal::NotReady("leadership is being handed over".into()),
        ProposeError::ChangeInProgress => Refusal::NotReady("a membership change is under way".into()),
        ProposeError::Invalid(reason) => Refusal::Invalid(reason.into()),
    }
}
