//! Which of the processes that call themselves one node is listened to.
//!
//! A process is known by its life: the incarnation of its data, how often that data has been started, and a number that it
//! drew when it started. A data directory that was put back from a copy begins with a count that has been used before, and
//! so does a clone: its process has an older life than the one that is known, or another one with the same count.
//!
//! A copy can be started until its count is the larger one, and with an empty directory beside it, it begins another incarnation. So the data
//! also remembers which processes it comes from. Data that does not come from the process that is known, and has a log that
//! this one used, is a copy from before it, whatever its count and its incarnation.
//!
//! Data that has lost what it remembered counts on from far above what is known of it: its list begins with that count, and of processes
//! with smaller ones it says nothing.

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
    /// Its data lacks what the process with this count has added to a log of it.
    Copy {
        /// That count.
        known: u64,
    },
}

/// What is known of the processes of a node.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The newest one.
    pub life: Life,
    /// The numbers of the logs that it uses.
    pub logs: &'a [u64],
    /// The incarnations that have ended.
    pub retired: &'a [Incarnation],
}

/// What a process says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// Which one it is.
    pub life: Life,
    /// The numbers of its logs.
    pub logs: &'a [u64],
    /// The newest of the processes that its data comes from, in their order: from the first one on, all of them. Empty where the data does
    /// not say it: it is new, or its identity is lost.
    pub ancestors: &'a [Ancestor],
}

/// A process that some data comes from: a part of its [`Life`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Its count.
    pub boot: u64,
    /// Its random number.
    pub start: u64,
}

/// Judges a process by what it has `said`, and what is `known` of its node.
pub fn judge(known: Known<'_>, said: Said<'_>) -> Verdict {
    let Known { life, retired, .. } = known;
    if retired.contains(&said.life.incarnation) {
        return Verdict::Retired;
    }
    if said.life == life {
        return Verdict::Accept;
    }
    if said.life.incarnation == life.incarnation && said.life.boot <= life.boot {
        return if said.life.boot < life.boot { Verdict::Older { known: life.boot } } else { Verdict::Second };
    }
    if is_copy(known, said.logs, said.ancestors) { Verdict::Copy { known: life.boot } } else { Verdict::Accept }
}

/// Whether data with these logs, which comes from these processes, lacks what the known process has added to one of the logs.
pub fn is_copy(known: Known<'_>, said_logs: &[u64], ancestors: &[Ancestor]) -> bool {
    let Known { life, logs, .. } = known;
    // Of what is older than all that it remembers nothing can be said, nor of what has the oldest one's count: of directories that were
    // away in turn two have the same, and the limit may fall between them.
    let remembers = ancestors.first().is_some_and(|oldest| oldest.boot < life.boot);
    let comes_from_it = !remembers || ancestors.contains(&Ancestor { boot: life.boot, start: life.start });
    !comes_from_it && said_logs.iter().any(|log| logs.contains(log))
}

impl Node {
    /// The life that was registered last.
    pub fn life(&self) -> Life {
        Life { incarnation: self.incarnation, boot: self.boot, start: self.start }
    }

    /// What is known of its processes.
    pub fn known(&self) -> Known<'_> {
        Known { life: self.life(), logs: &self.logs, retired: &self.retired }
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
            self.logs.clone_from(&known.logs);
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

    fn alone(life: Life) -> Said<'static> {
        Said { life, logs: &[], ancestors: &[] }
    }

    #[test]
    fn d7_only_the_known_process_and_those_after_it_are_accepted() {
        let known = life(3, 7, 70);
        let judge = |life| judge(Known { life: known, logs: &[], retired: &RETIRED }, alone(life));
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
        let judge = |known, said| judge(Known { life: known, logs: &[], retired: &[] }, alone(said));
        assert_eq!(judge(life(0, 0, 0), life(3, 1, 10)), Verdict::Accept);
        // Registered before nodes counted their starts.
        assert_eq!(judge(life(3, 0, 0), life(3, 1, 10)), Verdict::Accept);
    }

    #[test]
    fn d7_a_copy_is_none_better_for_being_started_again_or_in_another_incarnation() {
        let known = Known { life: life(3, 7, 70), logs: &[100, 200], retired: &RETIRED };
        let said = |life, logs: &[u64], ancestors: &[u64]| {
            let ancestors: Vec<Ancestor> =
                ancestors.iter().map(|start| Ancestor { boot: start / 10, start: *start }).collect();
            judge(known, Said { life, logs, ancestors: &ancestors })
        };
        let copy = Verdict::Copy { known: 7 };
        for boot in [8, 9, 99] {
            assert_eq!(said(life(3, boot, 1), &[100, 200], &[50, 60]), copy);
            assert_eq!(said(life(3, boot, 1), &[100, 200], &[60, 70]), Verdict::Accept, "what comes from it");
            assert_eq!(said(life(3, boot, 1), &[100, 200], &[70, 80, 90]), Verdict::Accept, "nobody saw those between");
            assert_eq!(said(life(3, boot, 1), &[100, 200], &[80, 90]), Verdict::Accept, "it does not remember so much");
            assert_eq!(said(life(3, boot, 1), &[100, 200], &[60, 71, 80]), copy);
            assert_eq!(
                said(life(3, boot, 1), &[100, 200], &[71, 80]),
                Verdict::Accept,
                "it may have forgotten that one"
            );
        }
        // With an empty directory beside it, or without one of its own.
        assert_eq!(said(life(4, 2, 1), &[100, 300], &[50]), copy);
        assert_eq!(said(life(4, 2, 1), &[200], &[50]), copy);
        assert_eq!(said(life(4, 8, 1), &[100, 300], &[60, 70]), Verdict::Accept);
        // A directory that was away while the node ran without it, and is all that is left.
        assert_eq!(said(life(4, 5, 1), &[900], &[50]), Verdict::Accept);
        // An identity that was lost, and a node that lost everything.
        assert_eq!(said(life(4, 1, 1), &[100, 200], &[]), Verdict::Accept);
        assert_eq!(said(life(4, 1, 1), &[1], &[]), Verdict::Accept);
        // The next start after an identity was lost.
        assert_eq!(said(life(4, 100_001, 1), &[100, 200], &[1_000_000]), Verdict::Accept);
        let counted_on = Known { life: life(4, 100_001, 1), logs: &[100, 200], retired: &[Incarnation(3)] };
        let before = [Ancestor { boot: 6, start: 60 }, Ancestor { boot: 7, start: 70 }];
        let copy = Said { life: life(5, 8, 80), logs: &[100], ancestors: &before };
        assert_eq!(super::judge(counted_on, copy), Verdict::Copy { known: 100_001 }, "from before the loss");
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
            assert_eq!(judge(known.known(), alone(life(incarnation - 1, 9, 90))), Verdict::Retired);
        }
        assert_eq!(known.retired.len(), RETIRED_MAX);
    }
}
