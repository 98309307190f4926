//! Requests that nodes have taken and not answered. Each must be answered or refused, or its connection closed, while its
//! client still waits: silence costs a client its whole patience.
//!
//! Times are those of the machine's own clock, by which its node judges how long a client waits.

use bytes::Bytes;
use hedgerow_types::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// How late the word that there will be no answer may come: nodes look for it once a tick.
const LATE_MAX: Duration = Duration::from_millis(500);

/// One request: the connection it came over, and its number.
type Question = (u64, i32);

/// What the node of one machine has still to answer.
#[derive(Debug, Default)]
pub struct Answers {
    due: BTreeMap<Question, Instant>,
}

impl Answers {
    /// The node is handed a client's frame at `now`. A request that does not say how long its client waits is not noted.
    pub fn note_request(&mut self, line: u64, frame: &Bytes, now: Instant) {
        let Ok(request) = hedgerow_wire::decode_request(frame.clone()) else { return };
        let Some(patience) = request.header.extension.and_then(|extension| extension.deadline_ms) else { return };
        let patience = Duration::from_millis(patience.max(0) as u64);
        self.due.insert((line, request.sequence_id), now + patience + LATE_MAX);
    }

    /// The node answers over the connection `line`, with whole frames.
    pub fn note_replies(&mut self, line: u64, chunk: Bytes) {
        for frame in crate::protocol::split_replies(chunk) {
            if let Ok(reply) = hedgerow_wire::call::decode_reply(frame) {
                self.due.remove(&(line, reply.sequence_id));
            }
        }
    }

    /// The connection is gone at the machine: nobody hears its answers.
    pub fn forget_line(&mut self, line: u64) {
        self.due.retain(|(other, _), _| *other != line);
    }

    /// The process is gone, and its connections with it.
    pub fn clear(&mut self) {
        self.due.clear();
    }

    /// The error names a request that should have been answered by now.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        match self.due.iter().find(|(_, due)| **due < now) {
            Some(((line, number), _)) => {
                Err(format!("request {number} of connection {line} was neither answered nor refused in time"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Call;
    use crate::protocol::{Attempt, Table, request};
    use bytes::BytesMut;
    use hedgerow_wire::{Method, Reply};

    fn question(sequence_id: i32) -> Bytes {
        let attempt =
            Attempt { call: Call::Get, key: 1, sequence_id, client_id: 1, sequence: 1, number: 1, deadline_ms: 100 };
        request(&attempt, Table { id: 2, partition_count: 1 })
    }

    #[test]
    fn only_what_is_neither_answered_nor_forgotten_is_missed() {
        let second = Instant(1_000_000_000);
        let mut answers = Answers::default();
        (1..=2).for_each(|number| answers.note_request(7, &question(number), Instant::ZERO));
        answers.note_request(8, &question(1), Instant::ZERO);
        assert_eq!(answers.check(Instant(600_000_000)), Ok(()), "there is still time");
        let mut reply = BytesMut::new();
        let refused = Reply::refused(&hedgerow_types::Refusal::Expired, None);
        hedgerow_wire::encode_reply(&mut reply, Method::Get, 1, &refused, None);
        answers.note_replies(7, reply.freeze());
        assert!(answers.check(second).is_err_and(|why| why.contains("request 2 of connection 7")));
        answers.forget_line(7);
        assert!(answers.check(second).is_err_and(|why| why.contains("request 1 of connection 8")));
        answers.clear();
        assert_eq!(answers.check(second), Ok(()));
    }
}
