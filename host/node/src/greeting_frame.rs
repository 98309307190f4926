//! The form of what opens a connection between nodes: who dials whom, and which process it is.

use crate::peer::{LogAt, MAGIC, Malformed, VERSION};
use bytes::{Buf, BufMut};
use hedgerow_placement::{Ancestor, Life};
use hedgerow_types::{Incarnation, NodeId};

/// What opens a connection between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The node that dialled.
    pub node: u16,
    /// The node that it wants to reach: addresses change.
    pub to: u16,
    /// The cluster it belongs to; 0 = none yet.
    pub cluster: u64,
    /// Which of its processes it is.
    pub life: Life,
    /// How far its logs were when it started, at most 255.
    pub logs: Vec<LogAt>,
    /// The newest of the processes that its data comes from, in their order, at most 255.
    pub ancestors: Vec<Ancestor>,
}

/// Bytes of a [`Greeting`] without its logs and ancestors.
pub const GREETING_HEAD_SIZE: usize = 43;
const LOG_AT_SIZE: usize = 16;
const ANCESTOR_SIZE: usize = 16;

impl Greeting {
    /// `magic | u8 version | u16 LE node | u16 LE to | u64 LE cluster | u64 LE incarnation | u64 LE boot | u64 LE start |
    /// u8 number of logs | u8 number of ancestors | (u64 LE log | u64 LE batch) each |
    /// (u64 LE boot | u64 LE start) each`.
    pub fn encode(&self) -> Vec<u8> {
        let logs = &self.logs[..self.logs.len().min(u8::MAX.into())];
        let ancestors = &self.ancestors[self.ancestors.len().saturating_sub(u8::MAX.into())..];
        let size = GREETING_HEAD_SIZE + LOG_AT_SIZE * logs.len() + ANCESTOR_SIZE * ancestors.len();
        let mut out = Vec::with_capacity(size);
        out.put_slice(&MAGIC);
        out.put_u8(VERSION);
        out.put_u16_le(self.node);
        out.put_u16_le(self.to);
        for number in [self.cluster, self.life.incarnation.0, self.life.boot, self.life.start] {
            out.put_u64_le(number);
        }
        out.put_u8(logs.len() as u8);
        out.put_u8(ancestors.len() as u8);
        for log in logs {
            out.put_u64_le(log.log);
            out.put_u64_le(log.batch);
        }
        for ancestor in ancestors {
            out.put_u64_le(ancestor.boot);
            out.put_u64_le(ancestor.start);
        }
        out
    }

    /// Bytes of the greeting that begins with `bytes`, which are a head at least.
    pub fn size(bytes: &[u8]) -> usize {
        let count = |at: usize| usize::from(bytes.get(at).copied().unwrap_or(0));
        let (logs, ancestors) = (count(GREETING_HEAD_SIZE - 2), count(GREETING_HEAD_SIZE - 1));
        GREETING_HEAD_SIZE + LOG_AT_SIZE * logs + ANCESTOR_SIZE * ancestors
    }

    /// The version of a greeting that is not this node's, and who sent it by its word: that has its place in every version.
    pub(crate) fn other_version(bytes: &[u8]) -> Option<(u8, NodeId)> {
        let [version, low, high] = *bytes.strip_prefix(&MAGIC)?.first_chunk()?;
        (version != VERSION).then_some((version, NodeId(u16::from_le_bytes([low, high]))))
    }

    /// Reads what [`Greeting::encode`] made.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < GREETING_HEAD_SIZE || bytes[..4] != MAGIC || bytes[4] != VERSION {
            let begin = &bytes[..bytes.len().min(5)];
            return Err(Malformed(format!("greeting {begin:02x?}; expected version {VERSION}")));
        }
        if bytes.len() != Self::size(bytes) {
            return Err(Malformed(format!("a greeting of {} bytes", bytes.len())));
        }
        let mut rest = &bytes[5..];
        let (node, to, cluster) = (rest.get_u16_le(), rest.get_u16_le(), rest.get_u64_le());
        let (incarnation, boot, start) = (Incarnation(rest.get_u64_le()), rest.get_u64_le(), rest.get_u64_le());
        let (log_count, ancestor_count) = (rest.get_u8(), rest.get_u8());
        let logs = (0..log_count).map(|_| LogAt { log: rest.get_u64_le(), batch: rest.get_u64_le() }).collect();
        let ancestors = (0..ancestor_count).map(|_| Ancestor { boot: rest.get_u64_le(), start: rest.get_u64_le() });
        let ancestors = ancestors.collect();
        Ok(Self { node, to, cluster, life: Life { incarnation, boot, start }, logs, ancestors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_names_node_cluster_and_process() {
        let life = Life { incarnation: Incarnation(3), boot: 4, start: u64::MAX };
        let logs = vec![LogAt { log: 10, batch: 11 }, LogAt { log: u64::MAX, batch: 12 }];
        let greeting = Greeting {
            node: 7,
            to: 8,
            cluster: 9,
            life,
            logs,
            ancestors: vec![Ancestor { boot: 1, start: 2 }, Ancestor { boot: 3, start: u64::MAX }],
        };
        let encoded = greeting.encode();
        assert_eq!((Greeting::size(&encoded), Greeting::decode(&encoded)), (encoded.len(), Ok(greeting)));
        for cut in 0..encoded.len() {
            assert!(Greeting::decode(&encoded[..cut]).is_err(), "{cut}");
        }
        assert_eq!(Greeting::other_version(&encoded), None);
        let mut other = encoded;
        other[4] = 1;
        assert!(Greeting::decode(&other).is_err());
        assert_eq!(Greeting::other_version(&other), Some((1, NodeId(7))));
    }
}
