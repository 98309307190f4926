//! What a shard tells the rest of the node, and what follows from it there.
//!
//! A notice is kept until the node takes it, after the event in whose course it was said, or after a group was driven. Nothing may depend on its
//! being taken at once: whatever a group must not do meanwhile, the shard has seen to when it says so.

use crate::node::Node;
use hedgerow_types::Refusal;

/// Something that the rest of the node has to know.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The read or write of the metadata leader with this ticket came to nothing.
    MetadataFailed(u64, Refusal),
}

impl Node {
    /// Takes what the shard has said, in that order, until nothing is left.
    pub(crate) fn take_notices(&mut self) {
        while !self.shard.notices.is_empty() {
            for notice in std::mem::take(&mut self.shard.notices) {
                self.handle_notice(notice);
            }
        }
    }

    fn handle_notice(&mut self, notice: Notice) {
        match notice {
            Notice::MetadataFailed(ticket, refusal) => self.metadata.handle_failed(ticket, &refusal),
        }
    }
}
