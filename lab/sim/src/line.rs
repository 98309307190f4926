//! Client connections: each carries frames both ways, in order, until either end or the nemesis closes it.

use crate::history::Time;
use hedgerow_types::random::Random;
use std::collections::{BTreeMap, BTreeSet};

/// Who is at the other end of a machine's client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// Client number so.
    Client(usize),
    /// Client number so of an experiment with load.
    Load(usize),
    /// The operator, who creates the table and moves leaders.
    Operator,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The caller's end.
    pub caller: Caller,
    /// The machine's end.
    pub machine: usize,
    last_at_machine: Time,
    last_at_caller: Time,
    /// Whether what the caller sent before the end still arrives, and nothing else.
    is_closing: bool,
}

/// All connections. Their numbers are never used again.
#[derive(Debug, Default)]
pub struct Lines {
    lines: BTreeMap<u64, Line>,
    open: BTreeSet<(Caller, usize, u64)>,
    last_number: u64,
}

impl Lines {
    /// An open connection between `caller` and `machine`, made if there is none.
    pub fn connect(&mut self, caller: Caller, machine: usize) -> u64 {
        let open = self.open.range((caller, machine, 0)..=(caller, machine, u64::MAX)).next();
        open.map(|open| open.2).unwrap_or_else(|| self.add(caller, machine))
    }

    /// Another connection between `caller` and `machine`.
    pub fn add(&mut self, caller: Caller, machine: usize) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        self.open.insert((caller, machine, number));
        let line = Line { caller, machine, last_at_machine: 0, last_at_caller: 0, is_closing: false };
        self.lines.insert(number, line);
        number
    }

    /// Whether frames of the caller still go anywhere. It may not know yet that they do not.
    pub fn is_open(&self, number: u64) -> bool {
        self.lines.get(&number).is_some_and(|line| !line.is_closing)
    }

    /// The caller closes a connection. What it sent before still arrives. Returns the machine, if the connection was open.
    pub fn hang_up(&mut self, number: u64) -> Option<usize> {
        let line = self.lines.get_mut(&number)?;
        line.is_closing = true;
        self.open.remove(&(line.caller, line.machine, number)).then_some(line.machine)
    }

    /// When a frame that the caller sends with this delay arrives, or the end of the connection.
    pub fn send_to_machine(&mut self, number: u64, at: Time) -> Time {
        let Some(line) = self.lines.get_mut(&number) else { return at };
        line.last_at_machine = line.last_at_machine.max(at);
        line.last_at_machine
    }

    /// When bytes that the machine sends with this delay arrive; `None` if the connection is gone.
    pub fn send_to_caller(&mut self, number: u64, at: Time) -> Option<Time> {
        let line = self.lines.get_mut(&number).filter(|line| !line.is_closing)?;
        line.last_at_caller = line.last_at_caller.max(at);
        Some(line.last_at_caller)
    }

    /// Whom a frame on its way to the machine reaches; `None` if it was lost with its connection.
    pub fn machine_of(&self, number: u64) -> Option<usize> {
        self.lines.get(&number).map(|line| line.machine)
    }

    /// Whom bytes on their way to the caller reach; `None` if they were lost with their connection.
    pub fn caller_of(&self, number: u64) -> Option<Caller> {
        self.lines.get(&number).filter(|line| !line.is_closing).map(|line| line.caller)
    }

    /// Breaks every connection of `machine`. Replies on their way are lost; of the requests on their way, those of some
    /// connections still arrive, unless the machine is dead. Returns the connections and their callers.
    pub fn break_all(&mut self, machine: usize, is_dead: bool, random: &mut Random) -> Vec<(u64, Caller)> {
        let broken: Vec<(u64, Caller)> = self
            .open
            .iter()
            .filter(|(_, other, _)| *other == machine)
            .map(|(caller, _, number)| (*number, *caller))
            .collect();
        for (number, caller) in &broken {
            self.open.remove(&(*caller, machine, *number));
            if is_dead || random.chance(1, 2) {
                self.lines.remove(number);
            } else if let Some(line) = self.lines.get_mut(number) {
                line.is_closing = true;
            }
        }
        if is_dead {
            self.lines.retain(|_, line| line.machine != machine);
        }
        broken
    }

    /// The machine closed a connection itself. Returns whose it was.
    pub fn close(&mut self, number: u64) -> Option<Caller> {
        let line = self.lines.remove(&number)?;
        self.open.remove(&(line.caller, line.machine, number));
        Some(line.caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_replaced_by_another() {
        let (mut lines, mut random) = (Lines::default(), Random::new(3));
        let first = lines.connect(Caller::Client(1), 2);
        assert_eq!(lines.connect(Caller::Client(1), 2), first);
        assert_eq!(lines.send_to_machine(first, 50), 50);
        assert_eq!(lines.send_to_machine(first, 40), 50, "in order");
        assert_eq!(lines.break_all(2, true, &mut random), [(first, Caller::Client(1))]);
        assert_eq!((lines.machine_of(first), lines.caller_of(first)), (None, None));
        assert_ne!(lines.connect(Caller::Client(1), 2), first);
    }

    #[test]
    fn a_break_may_let_requests_through_but_no_replies() {
        let (mut delivered, mut lost) = (0, 0);
        for seed in 0..20 {
            let (mut lines, mut random) = (Lines::default(), Random::new(seed));
            let number = lines.connect(Caller::Operator, 0);
            lines.break_all(0, false, &mut random);
            assert_eq!(lines.caller_of(number), None);
            assert_eq!(lines.send_to_caller(number, 1), None);
            match lines.machine_of(number) {
                Some(_) => delivered += 1,
                None => lost += 1,
            }
        }
        assert!(delivered > 0 && lost > 0);
    }
}
