//! The form of the requests and replies that let replicas serve reads which their leader could: one frame between two
//! nodes carries those of many groups.
//!
//! ```text
//! requests   u64 id | count x (u64 group | u64 asking replica | u64 asked replica | u64 term)
//! replies             count x (u64 group | u64 answering replica | u64 asking replica | u64 term | u64 id
//!                              | u64 index | u64 term of the index)
//! ```
//!
//! All numbers are little-endian and the count follows from the frame's length. The requests of one frame share its id.
//! A reply with index 0, which no entry has, says that the replica does not lead.

use crate::peer::Malformed;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hedgerow_replication::{ReadIndexReply, ReadIndexRequest};
use hedgerow_types::log::LogPosition;
use hedgerow_types::{GroupId, ReplicaId, Term};

/// Most requests, and most replies, in one frame.
pub const REQUESTS_MAX: usize = 65_536;
const REQUEST_SIZE: usize = 32;
const REPLY_SIZE: usize = 56;

/// What replicas of one node ask those of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadIndexRequests {
    /// Names the frame, and in their groups all requests in it. Never used again by the node.
    pub id: u64,
    /// By group.
    pub requests: Vec<GroupRequest>,
}

/// The request of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRequest {
    /// The group.
    pub group: GroupId,
    /// Who asks.
    pub from: ReplicaId,
    /// Who is asked.
    pub to: ReplicaId,
    /// The term that the asking replica is in.
    pub term: Term,
}

impl GroupRequest {
    /// The request as its group knows it.
    pub const fn request(&self, id: u64) -> ReadIndexRequest {
        ReadIndexRequest { term: self.term, id }
    }
}

/// The reply for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupReply {
    /// The group.
    pub group: GroupId,
    /// Who replies.
    pub from: ReplicaId,
    /// Who asked.
    pub to: ReplicaId,
    /// What it says.
    pub reply: ReadIndexReply,
}

pub(crate) fn put_requests(out: &mut BytesMut, requests: &ReadIndexRequests) {
    out.reserve(8 + REQUEST_SIZE * requests.requests.len());
    out.put_u64_le(requests.id);
    for one in &requests.requests {
        [one.group.to_u64(), one.from.0, one.to.0, one.term].into_iter().for_each(|number| out.put_u64_le(number));
    }
}

pub(crate) fn take_requests(mut body: Bytes) -> Result<ReadIndexRequests, Malformed> {
    if body.len() < 8 {
        return Err(Malformed("requests without an id".into()));
    }
    let id = body.get_u64_le();
    let count = count_of(body.len(), REQUEST_SIZE)?;
    let one = |body: &mut Bytes| GroupRequest {
        group: GroupId::from_u64(body.get_u64_le()),
        from: ReplicaId(body.get_u64_le()),
        to: ReplicaId(body.get_u64_le()),
        term: body.get_u64_le(),
    };
    Ok(ReadIndexRequests { id, requests: (0..count).map(|_| one(&mut body)).collect() })
}

pub(crate) fn put_replies(out: &mut BytesMut, replies: &[GroupReply]) {
    out.reserve(REPLY_SIZE * replies.len());
    for GroupReply { group, from, to, reply } in replies {
        let commit = reply.commit.unwrap_or_default();
        let numbers = [group.to_u64(), from.0, to.0, reply.term, reply.id, commit.index, commit.term];
        numbers.into_iter().for_each(|number| out.put_u64_le(number));
    }
}

pub(crate) fn take_replies(mut body: Bytes) -> Result<Vec<GroupReply>, Malformed> {
    let count = count_of(body.len(), REPLY_SIZE)?;
    let one = |body: &mut Bytes| {
        let group = GroupId::from_u64(body.get_u64_le());
        let (from, to) = (ReplicaId(body.get_u64_le()), ReplicaId(body.get_u64_le()));
        let (term, id) = (body.get_u64_le(), body.get_u64_le());
        let (index, index_term) = (body.get_u64_le(), body.get_u64_le());
        let commit = (index != 0).then_some(LogPosition { index, term: index_term });
        GroupReply { group, from, to, reply: ReadIndexReply { term, id, commit } }
    };
    Ok((0..count).map(|_| one(&mut body)).collect())
}

fn count_of(size: usize, one: usize) -> Result<usize, Malformed> {
    let count = size / one;
    if !size.is_multiple_of(one) || count > REQUESTS_MAX {
        return Err(Malformed(format!("{size} bytes of parts of {one} bytes, of which {REQUESTS_MAX} are allowed")));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Frame, put, take};

    fn requests(count: u32) -> ReadIndexRequests {
        let one = |partition| GroupRequest {
            group: GroupId::new(3, partition),
            from: ReplicaId(u64::MAX - 1),
            to: ReplicaId(7),
            term: 9,
        };
        ReadIndexRequests { id: u64::MAX, requests: (0..count).map(one).collect() }
    }

    fn replies() -> Vec<GroupReply> {
        let of = |partition, commit| GroupReply {
            group: GroupId::new(3, partition),
            from: ReplicaId(7),
            to: ReplicaId(8),
            reply: ReadIndexReply { term: 4, id: 5, commit },
        };
        vec![of(1, Some(LogPosition { term: 2, index: 1 })), of(2, None)]
    }

    #[test]
    fn read_index_requests_and_replies_are_read_as_they_were_written() {
        for frame in [
            Frame::ReadIndexRequests(requests(0)),
            Frame::ReadIndexRequests(requests(3)),
            Frame::ReadIndexReplies(replies()),
        ] {
            let mut stream = BytesMut::new();
            put(&mut stream, &frame);
            assert_eq!(take(&mut stream), Ok(Some(frame)));
        }
    }

    /// C17: what has another form closes the connection that it came on, and takes no memory before.
    #[test]
    fn c17_malformed_read_index_requests_are_refused() {
        let mut body = BytesMut::new();
        put_requests(&mut body, &requests(2));
        for cut in (0..body.len()).filter(|cut| !(cut + REQUEST_SIZE - 8).is_multiple_of(REQUEST_SIZE)) {
            assert!(take_requests(Bytes::copy_from_slice(&body[..cut])).is_err(), "cut at {cut}");
        }
        let mut body = BytesMut::new();
        put_replies(&mut body, &replies());
        for cut in (1..body.len()).filter(|cut| !cut.is_multiple_of(REPLY_SIZE)) {
            assert!(take_replies(Bytes::copy_from_slice(&body[..cut])).is_err(), "cut at {cut}");
        }
        let too_many = vec![0; REQUEST_SIZE * (REQUESTS_MAX + 1) + 8];
        assert!(take_requests(too_many.into()).is_err());
    }
}
