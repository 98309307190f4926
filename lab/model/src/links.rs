//! What the leaders of a group know of its replicas.

use crate::group::course::REPLICAS_MAX;
use core::hash::{Hash, Hasher};
use core::ops::{Index, IndexMut};

/// What every leader (first index) knows of every replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Links<L>(pub [[L; REPLICAS_MAX]; REPLICAS_MAX]);

impl<L: Default + Hash + PartialEq> Hash for Links<L> {
    /// Most links are those of replicas that do not lead, with nothing on its way.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let all = self.0.iter().flatten().enumerate();
        for named in all.filter(|(_, link)| **link != L::default()) {
            named.hash(state);
        }
    }
}

impl<L> Index<usize> for Links<L> {
    type Output = [L; REPLICAS_MAX];

    fn index(&self, leader: usize) -> &Self::Output {
        &self.0[leader]
    }
}

impl<L> IndexMut<usize> for Links<L> {
    fn index_mut(&mut self, leader: usize) -> &mut Self::Output {
        &mut self.0[leader]
    }
}
