//! What a replica starts with.

use super::*;

/// Pitfall D19: a write that is torn behind the first entries of a term loses the hard state behind them. Who has them was in that term,
/// or it would know a commit index of a term that it has never heard of.
#[test]
fn d19_a_replica_starts_in_the_term_of_its_last_entry() {
    let voted = Some(ReplicaId(7));
    let stored = HardState { term: 4, vote: voted, commit: 9 };
    let at = |term, index| LogPosition { term, index };
    let whole = restored(&stored, at(3, 8), 0, at(4, 12));
    assert_eq!(whole, stored);
    let torn = restored(&stored, at(3, 8), 11, at(5, 12));
    assert_eq!(torn, HardState { term: 5, vote: None, commit: 11 });
    let fresh = restored(&HardState::default(), at(5, 12), 0, at(5, 12));
    assert_eq!(fresh, HardState { term: 5, vote: None, commit: 12 });
}
