//! The form of the questions to voters' logs and of what they say: one frame between two nodes carries those of many groups.

use crate::peer::Malformed;
use crate::sparse;
use bytes::Bytes;
use hedgerow_replication::{QUORUM_READS_MAX, Touches};
use hedgerow_types::Span;
use hedgerow_types::span::READ_KEYS_MAX;
use std::collections::BTreeSet;

/// Largest body of either frame, bytes: lists in lists take many times their length in memory.
pub const TAIL_FRAME_SIZE_MAX: usize = 4 << 20;
/// Reads in a frame of requests: a read of one short key takes 340 bytes in memory and ten on the wire.
pub const TAIL_READS_MAX: usize = 8_192;
/// Spans in a frame of requests.
pub const TAIL_SPANS_MAX: usize = 16_384;

/// What replicas of one node ask those of another.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TailRequests {
    /// Names the frame, and in their groups all requests in it. Never used again by the node.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// By group.
    #[prost(message, repeated, tag = "2")]
    pub requests: Vec<TailRequest>,
}

/// The request of one group: what touches the keys of these reads?
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TailRequest {
    /// The group.
    #[prost(uint64, tag = "1")]
    pub group: u64,
    /// Who asks.
    #[prost(uint64, tag = "2")]
    pub from: u64,
    /// Who is asked.
    #[prost(uint64, tag = "3")]
    pub to: u64,
    /// Only entries after this one are meant.
    #[prost(uint64, tag = "4")]
    pub after: u64,
    /// The reads.
    #[prost(message, repeated, tag = "5")]
    pub reads: Vec<TailRead>,
}

/// The keys of a read.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TailRead {
    /// Where they lie.
    #[prost(message, repeated, tag = "1")]
    pub spans: Vec<KeySpan>,
}

/// Keys that are next to each other.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KeySpan {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub start: Bytes,
    /// The first key behind them, if there is one.
    #[prost(bytes = "bytes", tag = "2")]
    pub end: Bytes,
    /// 0 = `start` alone, 1 = from `start` to `end`, 2 = from `start` to the last key.
    #[prost(uint32, tag = "3")]
    pub kind: u32,
}

/// What replicas of one node answer those of another.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TailReplies {
    /// The id of the requests.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// By group.
    #[prost(message, repeated, tag = "2")]
    pub replies: Vec<TailReply>,
}

/// The reply for one group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TailReply {
    /// The group.
    #[prost(uint64, tag = "1")]
    pub group: u64,
    /// Who replies.
    #[prost(uint64, tag = "2")]
    pub from: u64,
    /// Who asked.
    #[prost(uint64, tag = "3")]
    pub to: u64,
    /// False = it cannot be said, or the membership changes: it has to be asked again.
    #[prost(bool, tag = "4")]
    pub is_known: bool,
    /// For each read the last index that touches one of its keys; 0 = none does.
    #[prost(uint64, repeated, tag = "5")]
    pub touched: Vec<u64>,
    /// The smallest time of leaders in the entries that were looked at, in expiry-epoch seconds; 0 = they carry none.
    #[prost(uint32, tag = "6")]
    pub time_least: u32,
    /// The largest.
    #[prost(uint32, tag = "7")]
    pub time_most: u32,
}

impl KeySpan {
    /// The form of `span`.
    pub fn of(span: Span) -> Self {
        match span {
            Span::Key(start) => Self { start, end: Bytes::new(), kind: 0 },
            Span::Range { start, end: Some(end) } => Self { start, end, kind: 1 },
            Span::Range { start, end: None } => Self { start, end: Bytes::new(), kind: 2 },
        }
    }

    /// What it is the form of. A kind that is not known is every key.
    fn span(&self) -> Span {
        match self.kind {
            0 => Span::Key(self.start.clone()),
            1 => Span::Range { start: self.start.clone(), end: Some(self.end.clone()) },
            2 => Span::Range { start: self.start.clone(), end: None },
            _ => Span::ALL,
        }
    }
}

impl TailRead {
    /// The keys.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.spans.iter().map(KeySpan::span).collect()
    }
}

impl TailReply {
    /// Says `touches`.
    pub(crate) fn say(self, touches: Option<Touches>) -> Self {
        let Some(Touches { reads, times }) = touches else { return self };
        let (time_least, time_most) = times.unwrap_or_default();
        Self { is_known: true, touched: reads, time_least, time_most, ..self }
    }

    /// What it says.
    pub(crate) fn touches(&self) -> Option<Touches> {
        let times = (self.time_most != 0).then_some((self.time_least, self.time_most));
        self.is_known.then(|| Touches { reads: self.touched.clone(), times })
    }
}

/// Refuses a body that is longer than nodes send.
pub(crate) fn check_size(body: &Bytes) -> Result<(), Malformed> {
    if body.len() > TAIL_FRAME_SIZE_MAX {
        let text = format!("{} bytes of questions to logs, of which {TAIL_FRAME_SIZE_MAX} are allowed", body.len());
        return Err(Malformed(text));
    }
    Ok(())
}

/// What a frame of requests asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) reads: usize,
    pub(crate) spans: usize,
    pub(crate) size: usize,
}

impl Asked {
    /// That of one request.
    pub(crate) fn by(request: &TailRequest) -> Self {
        let spans = request.reads.iter().map(|read| read.spans.len()).sum();
        Self { reads: request.reads.len(), spans, size: prost::Message::encoded_len(request) }
    }

    /// That of both.
    pub(crate) const fn and(self, other: Self) -> Self {
        let (reads, spans) = (self.reads + other.reads, self.spans + other.spans);
        Self { reads, spans, size: self.size + other.size }
    }

    /// Whether one frame may ask for so many reads and spans.
    pub(crate) const fn fits(self) -> bool {
        self.reads <= TAIL_READS_MAX && self.spans <= TAIL_SPANS_MAX
    }
}

/// Refuses the body of a frame of requests that asks for more than nodes ask for, before it takes memory.
pub(crate) fn check_requests(body: &Bytes) -> Result<(), Malformed> {
    check_size(body)?;
    let mut all = Asked::default();
    for request in sparse::elements(body, 2) {
        let mut reads = 0;
        for read in sparse::elements(request, 5) {
            let spans = sparse::elements(read, 1).count();
            if spans > READ_KEYS_MAX {
                return Err(Malformed(format!("a question of {spans} spans, of which {READ_KEYS_MAX} are allowed")));
            }
            (reads, all.spans) = (reads + 1, all.spans + spans);
        }
        if reads > QUORUM_READS_MAX {
            return Err(Malformed(format!("questions of {reads} reads, of which {QUORUM_READS_MAX} are allowed")));
        }
        all.reads += reads;
    }
    if !all.fits() {
        return Err(Malformed(format!("questions of {} reads and {} spans in a frame", all.reads, all.spans)));
    }
    Ok(())
}

/// Refuses requests of which two are for one replica: a node asks it once in a frame, and each may cost much.
pub(crate) fn check_distinct(requests: &TailRequests) -> Result<(), Malformed> {
    let mut seen = BTreeSet::new();
    match requests.requests.iter().find(|request| !seen.insert((request.group, request.to))) {
        Some(twice) => Err(Malformed(format!("two questions for one replica of group {:x}", twice.group))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Frame, put, take};
    use bytes::{BufMut, BytesMut};

    #[test]
    fn spans_and_touches_are_read_as_they_were_written() {
        let key = |text: &'static str| Bytes::from_static(text.as_bytes());
        for span in [
            Span::Key(key("k")),
            Span::Key(Bytes::new()),
            Span::Range { start: key("a"), end: Some(key("b")) },
            Span::Range { start: key("a"), end: None },
            Span::ALL,
        ] {
            assert_eq!(KeySpan::of(span.clone()).span(), span);
        }
        assert_eq!(KeySpan { kind: 7, ..KeySpan::default() }.span(), Span::ALL);
        for touches in [
            None,
            Some(Touches::default()),
            Some(Touches { reads: vec![0, 7], times: None }),
            Some(Touches { reads: vec![1], times: Some((5, 6)) }),
        ] {
            assert_eq!(TailReply::default().say(touches.clone()).touches(), touches);
        }
    }

    fn of_spans(spans: usize) -> TailRead {
        TailRead { spans: vec![KeySpan::default(); spans] }
    }

    fn of_reads(group: u64, reads: Vec<TailRead>) -> TailRequest {
        TailRequest { group, from: 1, to: 2, after: 3, reads }
    }

    fn taken(requests: Vec<TailRequest>) -> Result<Option<Frame>, Malformed> {
        let mut stream = BytesMut::new();
        put(&mut stream, &Frame::TailRequests(TailRequests { id: 7, requests }));
        take(&mut stream)
    }

    /// C17: a frame whose lists would take far more memory than it is long closes its connection.
    #[test]
    fn c17_long_questions_are_refused() {
        let frame = |kind: u8, size: usize| {
            let mut frame = BytesMut::new();
            frame.put_u32_le(size as u32 + 1);
            frame.put_u8(kind);
            frame.extend_from_slice(&[1 << 3, 0].repeat(size / 2));
            frame
        };
        for kind in [17, 18] {
            assert!(take(&mut frame(kind, TAIL_FRAME_SIZE_MAX)).is_ok_and(|taken| taken.is_some()));
            assert!(take(&mut frame(kind, TAIL_FRAME_SIZE_MAX + 2)).is_err());
        }
        let sent = Frame::TailReplies(TailReplies { id: 7, replies: vec![TailReply::default(); 3] });
        let mut stream = BytesMut::new();
        put(&mut stream, &sent);
        assert_eq!(take(&mut stream), Ok(Some(sent)));
    }

    /// N4m: what no node asks for closes the connection.
    #[test]
    fn n4m_questions_that_no_node_asks_are_refused() {
        let many =
            |groups: u64, reads, spans| (0..groups).map(move |group| of_reads(group, vec![of_spans(spans); reads]));
        assert!(taken(many(2, QUORUM_READS_MAX, 1).collect()).is_ok_and(|it| it.is_some()));
        assert!(taken(many(1, QUORUM_READS_MAX + 1, 1).collect()).is_err(), "reads of one group");
        assert!(taken(many(8, QUORUM_READS_MAX, 1).collect()).is_ok_and(|it| it.is_some()));
        assert!(taken(many(9, QUORUM_READS_MAX, 1).collect()).is_err(), "reads of all groups");
        assert!(taken(many(1, 256, READ_KEYS_MAX).collect()).is_ok_and(|it| it.is_some()));
        assert!(taken(many(1, 257, READ_KEYS_MAX).collect()).is_err(), "spans");
        assert!(taken(many(1, 1, READ_KEYS_MAX + 1).collect()).is_err(), "spans of one read");
        assert!(taken(many(2, 1, 1).chain(many(1, 1, 1)).collect()).is_err(), "one replica twice");
        let other = TailRequest { to: 4, ..of_reads(1, Vec::new()) };
        assert!(taken(vec![of_reads(1, Vec::new()), other]).is_ok(), "two replicas of a group");
    }
}
