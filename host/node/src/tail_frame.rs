//! The form of the questions to voters' logs and of what they say: one frame between two nodes carries those of many groups.

use crate::peer::Malformed;
use bytes::Bytes;
use hedgerow_replication::Touches;
use hedgerow_types::Span;

/// Largest body of either frame, bytes: lists in lists take many times their length in memory.
pub const TAIL_FRAME_SIZE_MAX: usize = 4 << 20;

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
}
