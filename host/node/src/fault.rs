//! Faults on request: a node that was started with faults allowed takes the admin command `fault`. What it switches is made
//! where sockets and threads are (`os/fault.rs`); the simulation has its own.

use crate::admin::{Asker, parse};
use crate::node::Node;
use hedgerow_env::fault::Command;
use hedgerow_types::Refusal;
use serde_json::json;

impl Node {
    /// Takes a fault command that is meant for this node.
    pub(crate) fn fault(&mut self, argument: &str, asker: Asker) {
        let command = parse::<Command>(argument).and_then(|command| {
            let refused = |reason: String| Err(Refusal::Invalid(reason));
            let own = self.config.node.0;
            if !self.config.may_fault {
                return refused("this node makes no faults: it was started without [faults] allowed = true".to_owned());
            }
            if command.node != own {
                return refused(format!("this is node {own}, the command is meant for node {}", command.node));
            }
            command.check().map_or_else(refused, |()| Ok(command))
        });
        let answer = command.map(|command| {
            self.shards.first().outbox.faults.push(command.action);
            json!({ "node": self.config.node.0 })
        });
        self.answer_admin(asker, answer);
    }
}
