//! Which nodes are slow, and who should lead meanwhile.

use crate::node::Node;
use crate::peer::Pulse;
use hedgerow_env::Now;
use hedgerow_types::NodeId;

impl Node {
    pub(crate) fn handle_pulse(&mut self, _from: NodeId, _pulse: &Pulse, _now: Now) {}
}
