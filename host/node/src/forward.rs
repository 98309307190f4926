//! Writes for a leader elsewhere.

use crate::node::Node;
use crate::peer::{Forward, Forwarded};
use hedgerow_env::Now;
use hedgerow_types::NodeId;

impl Node {
    pub(crate) fn handle_forward(&mut self, _from: NodeId, _forward: Forward, _now: Now) {}

    pub(crate) fn handle_forwarded(&mut self, _from: NodeId, _forwarded: Forwarded, _now: Now) {}
}
