//! Two attempts that know of each other: whoever begins tells the other.

use crate::node::Node;
use crate::peer::Began;
use hedgerow_env::Now;
use hedgerow_types::NodeId;

impl Node {
    pub(crate) fn handle_began(&mut self, _from: NodeId, _began: Began, _now: Now) {}
}
