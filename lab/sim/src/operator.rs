//! The operator of the simulated cluster: creates the table at the beginning, moves leaders and changes the number of
//! learners when told.

use crate::protocol::{self, OperatorReply, Table};
use bytes::Bytes;

/// What the operator has asked and learned.
#[derive(Debug, Default)]
pub struct Operator {
    last_sequence_id: i32,
    /// The table, once it is there and led.
    pub table: Option<Table>,
}

impl Operator {
    /// A number for the next request.
    pub fn next_sequence_id(&mut self) -> i32 {
        self.last_sequence_id += 1;
        self.last_sequence_id
    }

    /// Takes a reply. Refusals need no answer: what matters is asked again.
    pub fn handle_reply(&mut self, frame: Bytes) {
        if let (_, OperatorReply::Table(table)) = protocol::operator_reply(frame) {
            self.table = Some(table);
        }
    }
}
