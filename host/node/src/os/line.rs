//! Whose turn it is to hand requests over, where the node does not take those of all connections before it is driven: who had to wait comes
//! before who has had a turn, and has a share of the next one. Tasks are run in the same order again and again, so that without it the first ones alone would be served.

use crate::ConnectionId;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// The connections that wait for their turn, who has waited longest first. Empty unless the node is busy.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: RefCell<VecDeque<ConnectionId>>,
}

/// Whether a connection stands in the line.
#[derive(Debug, Default)]
pub(super) struct InLine(Cell<bool>);

impl InLine {
    pub(super) const fn is_waiting(&self) -> bool {
        self.0.get()
    }
}

impl Line {
    /// Whether `connection` may hand requests over; `takes` says whether the node takes any at present. Who may not stands in the line
    /// from now on, and has to ask again.
    pub(super) fn may_go(&self, connection: ConnectionId, in_line: &InLine, takes: bool) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let is_first = waiting.front().is_none_or(|first| *first == connection);
        if takes && is_first {
            if in_line.0.replace(false) {
                waiting.pop_front();
            }
            return true;
        }
        if !in_line.0.replace(true) {
            waiting.push_back(connection);
        }
        false
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// `connection` has nothing to hand over, or is gone: nobody waits for it.
    pub(super) fn leave(&self, connection: ConnectionId, in_line: &InLine) {
        if in_line.0.replace(false) {
            self.waiting.borrow_mut().retain(|other| *other != connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tasks that ask in the same order each time, of which the node takes two each turn.
    #[test]
    fn n15_connections_have_their_turns_one_after_the_other() {
        const CONNECTIONS: u64 = 301;
        let line = Line::default();
        let connections: Vec<(ConnectionId, InLine)> =
            (0..CONNECTIONS).map(|number| (ConnectionId(number), InLine::default())).collect();
        let mut taken = vec![0; connections.len()];
        for _ in 0..10 * CONNECTIONS {
            let mut left = 2;
            for ((connection, in_line), taken) in connections.iter().zip(&mut taken) {
                if line.may_go(*connection, in_line, left > 0) {
                    (left, *taken) = (left - 1, *taken + 1);
                }
            }
        }
        let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
        assert!(*least >= 10 && most - least <= 2, "{least} to {most}");
    }

    #[test]
    fn who_leaves_holds_nobody_up() {
        let (line, [one, other, third]) = (Line::default(), [(); 3].map(|()| InLine::default()));
        let ids = [ConnectionId(1), ConnectionId(2), ConnectionId(3)];
        assert!(line.may_go(ids[0], &one, true) && line.may_go(ids[0], &one, true), "nobody else is there");
        assert!(!line.may_go(ids[0], &one, false) && !line.may_go(ids[1], &other, false));
        assert!(!line.may_go(ids[2], &third, true), "others were there before");
        line.leave(ids[0], &one);
        assert!(!line.may_go(ids[2], &third, true) && line.may_go(ids[1], &other, true));
        assert!(line.may_go(ids[2], &third, true));
        assert!(line.waiting.borrow().is_empty());
    }
}
