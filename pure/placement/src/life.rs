//! Which of the processes that call themselves one node is listened to.
//!
//! A process is known by its life: the incarnation of its data, how often that data has been started, and a number that it
//! drew when it started. A data directory that was put back from a copy begins with a count that has been used before, and
//! so does a clone: its process has an older life than the one that is known, or another one with the same count.

use crate::model::Node;
use hedgerow_types::Incarnation;

/// Incarnations that the catalogue remembers of each node after they ended.
pub const RETIRED_MAX: usize = 16;

/// One process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Which data it has.
    pub incarnation: Incarnation,
    /// How often a process has been started with that data, this one included; 0 = not known.
    pub boot: u64,
    /// A random number of this process.
    pub start: u64,
}

/// What to do with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the known one, or comes after it.
    Accept,
    /// A process with a larger count has been known.
    Older {
        /// That count.
        known: u64,
    },
    /// Another process has used this count.
    Second,
    /// Its data is from before the node lost data and began anew.
    Retired,
}

/// Judges a process that says that it has the life `said`, by the newest life that is `known` of its node and the
/// incarnations that have ended.
pub fn judge(known: Life, retired: &[Incarnation], said: Life) -> Verdict {
    if retired.contains(&said.incarnation) {
        return Verdict::Retired;
    }
    if said.incarnation != known.incarnation || said.boot > known.boot || said == known {
        return Verdict::Accept;
    }
    if said.boot < known.boot { Verdict::Older { known: known.boot } } else { Verdict::Second }
}

impl Node {
    /// The life that was registered last.
    pub fn life(&self) -> Life {
        Life { incarnation: self.incarnation, boot: self.boot, start: self.start }
    }

    /// This entry as the successor of `known`: what the node does not say of itself is kept, and an incarnation that has
    /// ended is remembered.
    #[must_use]
    pub fn after(mut self, known: &Self) -> Self {
        self.retired.clone_from(&known.retired);
        if self.incarnation != known.incarnation {
            if known.is_registered() {
                self.retired.push(known.incarnation);
                let surplus = self.retired.len().saturating_sub(RETIRED_MAX);
                self.retired.drain(..surplus);
            }
        } else if self.boot < known.boot {
            (self.boot, self.start) = (known.boot, known.start);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETIRED: [Incarnation; 2] = [Incarnation(1), Incarnation(2)];

    fn life(incarnation: u64, boot: u64, start: u64) -> Life {
        Life { incarnation: Incarnation(incarnation), boot, start }
    }

    #[test]
    fn d7_only_the_known_process_and_those_after_it_are_accepted() {
        let known = life(3, 7, 70);
        let judge = |said| judge(known, &RETIRED, said);
        assert_eq!(judge(known), Verdict::Accept);
        assert_eq!(judge(life(3, 8, 80)), Verdict::Accept);
        assert_eq!(judge(life(3, 8, 70)), Verdict::Accept);
        assert_eq!(judge(life(3, 6, 60)), Verdict::Older { known: 7 });
        assert_eq!(judge(life(3, 6, 70)), Verdict::Older { known: 7 });
        assert_eq!(judge(life(3, 7, 71)), Verdict::Second);
        assert_eq!(judge(life(4, 1, 10)), Verdict::Accept);
        assert_eq!(judge(life(2, 9, 90)), Verdict::Retired);
    }

    #[test]
    fn d7_whoever_is_not_known_yet_is_accepted() {
        assert_eq!(judge(life(0, 0, 0), &[], life(3, 1, 10)), Verdict::Accept);
        // Registered before nodes counted their starts.
        assert_eq!(judge(life(3, 0, 0), &[], life(3, 1, 10)), Verdict::Accept);
    }

    #[test]
    fn d7_an_entry_remembers_what_ended() {
        let entry = |life: Life| Node { boot: life.boot, start: life.start, ..Node::new("n:1", life.incarnation) };
        let unregistered = Node::new("n:1", Node::UNREGISTERED);
        let mut known = entry(life(1, 5, 50)).after(&unregistered);
        assert_eq!((known.life(), known.retired.len()), (life(1, 5, 50), 0));
        known = entry(life(1, 0, 0)).after(&known);
        assert_eq!(known.life(), life(1, 5, 50), "a node that does not say it keeps what it said before");
        for incarnation in 2..40 {
            known = entry(life(incarnation, 1, 10)).after(&known);
            assert_eq!(known.life(), life(incarnation, 1, 10));
            assert_eq!(judge(known.life(), &known.retired, life(incarnation - 1, 9, 90)), Verdict::Retired);
        }
        assert_eq!(known.retired.len(), RETIRED_MAX);
    }
}
