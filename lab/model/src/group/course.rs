//! Memberships as sets of replicas, and the courses that they take in the model.

/// Replicas that there is room for.
pub const REPLICAS_MAX: usize = 5;

/// Replicas, each a bit.
pub type Set = u8;

/// What `hedgerow_replication::Membership` is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The replicas with a vote.
    pub voters: Set,
    /// The voters before the joint change under way; empty otherwise.
    pub outgoing: Set,
    /// The replicas without a vote.
    pub learners: Set,
}

impl Config {
    const fn of(voters: Set) -> Self {
        Self { voters, outgoing: 0, learners: 0 }
    }

    const fn leaving(self, outgoing: Set) -> Self {
        Self { outgoing, ..self }
    }

    const fn with_learners(self, learners: Set) -> Self {
        Self { learners, ..self }
    }

    /// Whether `replica` has a vote, in either half: `Membership::is_voter`.
    pub fn is_voter(self, replica: usize) -> bool {
        (self.voters | self.outgoing) >> replica & 1 == 1
    }

    /// Whether `replica` belongs to the group: `Membership::contains`.
    pub fn contains(self, replica: usize) -> bool {
        self.is_voter(replica) || self.learners >> replica & 1 == 1
    }

    /// Whether `set` holds a majority, of both halves during a joint change: `Membership::is_majority`.
    pub fn is_majority(self, set: Set) -> bool {
        is_half(self.voters, set) && (self.outgoing == 0 || is_half(self.outgoing, set))
    }
}

/// Whether `set` holds a majority of `voters`.
pub fn is_half(voters: Set, set: Set) -> bool {
    (voters & set).count_ones() > voters.count_ones() / 2
}

/// The memberships that a group has one after the other, each but the first by one entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    /// What it is about.
    pub name: &'static str,
    /// The memberships.
    pub configs: &'static [Config],
    /// How many replicas there are.
    pub replicas: usize,
}

const A: Set = 1;
const B: Set = 2;
const C: Set = 4;
const D: Set = 8;
const E: Set = 16;

impl Course {
    /// Three voters, no change.
    pub const THREE: Self = Self { name: "3 voters", configs: &[Config::of(A | B | C)], replicas: 3 };
    /// Two voters, no change.
    pub const TWO: Self = Self { name: "2 voters", configs: &[Config::of(A | B)], replicas: 2 };
    /// Three voters and a learner, no change.
    pub const LEARNER: Self =
        Self { name: "3 voters, a learner", configs: &[Config::of(A | B | C).with_learners(D)], replicas: 4 };
    /// Five voters, no change.
    pub const FIVE: Self = Self { name: "5 voters", configs: &[Config::of(A | B | C | D | E)], replicas: 5 };
    /// The only voter is replaced: the two memberships have no replica in common.
    pub const MOVED: Self = Self {
        name: "A replaced by B",
        configs: &[Config::of(A), Config::of(A).with_learners(B), Config::of(B).leaving(A), Config::of(B)],
        replicas: 2,
    };
    /// A voter alone gets two more: the majority of before says nothing in the one after.
    pub const GROWN: Self = Self {
        name: "A becomes A, B, C",
        configs: &[Config::of(A).with_learners(B | C), Config::of(A | B | C).leaving(A), Config::of(A | B | C)],
        replicas: 3,
    };
    /// Two of three voters leave: the majority of after says nothing in the one before.
    pub const SHRUNK: Self = Self {
        name: "A, B, C become A",
        configs: &[Config::of(A | B | C), Config::of(A).leaving(A | B | C), Config::of(A)],
        replicas: 3,
    };
    /// One voter of two is replaced.
    pub const PAIR: Self = Self {
        name: "A, B become B, C",
        configs: &[
            Config::of(A | B),
            Config::of(A | B).with_learners(C),
            Config::of(B | C).leaving(A | B),
            Config::of(B | C),
        ],
        replicas: 3,
    };
    /// A lost voter is replaced: what `repair` of the product does.
    pub const REPLACED: Self = Self {
        name: "C of 3 replaced by D",
        configs: &[
            Config::of(A | B | C).with_learners(D),
            Config::of(A | B | D).leaving(A | B | C),
            Config::of(A | B | D),
        ],
        replicas: 4,
    };
    /// The same from before the new replica is a learner.
    pub const REPLACED_WHOLE: Self = Self {
        name: "D learns and replaces C of 3",
        configs: &[
            Config::of(A | B | C),
            Config::of(A | B | C).with_learners(D),
            Config::of(A | B | D).leaving(A | B | C),
            Config::of(A | B | D),
        ],
        replicas: 4,
    };
    /// Two of three voters are replaced at once: neither majority needs a replica of the other.
    pub const TWO_REPLACED: Self = Self {
        name: "B, C of 3 replaced by D, E",
        configs: &[
            Config::of(A | B | C).with_learners(D | E),
            Config::of(A | D | E).leaving(A | B | C),
            Config::of(A | D | E),
        ],
        replicas: 5,
    };
    /// A group grows by one voter and loses another, without joint memberships.
    pub const SIMPLE: Self = Self {
        name: "A, B, C, then D too, then not C",
        configs: &[Config::of(A | B | C).with_learners(D), Config::of(A | B | C | D), Config::of(A | B | D)],
        replicas: 4,
    };

    /// The membership after so many changes.
    pub fn config(&self, changes: u8) -> Config {
        self.configs[usize::from(changes)]
    }

    /// After how many changes `replica` belongs to the group: it holds nothing before.
    pub fn joins(&self, replica: usize) -> u8 {
        self.configs.iter().take_while(|config| !config.contains(replica)).count() as u8
    }

    /// All ways to rename replicas that have the same part.
    pub fn orders(&self) -> Vec<[usize; REPLICAS_MAX]> {
        let mut orders = vec![core::array::from_fn(|at| at)];
        for at in 0..self.replicas {
            let with = |order: &[usize; REPLICAS_MAX]| {
                let mut order = *order;
                (at..self.replicas)
                    .filter(|&other| self.is_alike(at, other))
                    .map(|other| {
                        order.swap(at, other);
                        let swapped = order;
                        order.swap(at, other);
                        swapped
                    })
                    .collect::<Vec<_>>()
            };
            orders = orders.iter().flat_map(with).collect();
        }
        orders
    }

    /// The replicas with those of each part in the order of what they are: `is_less` says which of two comes first.
    pub fn sorted(&self, is_less: impl Fn(usize, usize) -> bool) -> [usize; REPLICAS_MAX] {
        let mut order: [usize; REPLICAS_MAX] = core::array::from_fn(|at| at);
        // Few enough to be sorted by hand.
        for at in 1..self.replicas {
            let mut place = at;
            while let Some(before) = (0..place).rev().find(|&before| self.is_alike(order[before], order[place]))
                && is_less(order[place], order[before])
            {
                order.swap(before, place);
                place = before;
            }
        }
        order
    }

    /// Whether two replicas have the same part in every membership, so that only their names differ.
    pub fn is_alike(&self, one: usize, other: usize) -> bool {
        let part =
            |config: &Config, at: usize| [config.voters, config.outgoing, config.learners].map(|set| set >> at & 1);
        self.configs.iter().all(|config| part(config, one) == part(config, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_replication::Membership;
    use hedgerow_types::ReplicaId;

    const COURSES: [Course; 12] = [
        Course::THREE,
        Course::TWO,
        Course::LEARNER,
        Course::FIVE,
        Course::MOVED,
        Course::GROWN,
        Course::SHRUNK,
        Course::PAIR,
        Course::REPLACED,
        Course::REPLACED_WHOLE,
        Course::TWO_REPLACED,
        Course::SIMPLE,
    ];

    fn product(config: Config) -> Membership {
        let ids = |set: Set| (0..8).filter(|at| set >> at & 1 == 1).map(|at| ReplicaId(at + 1)).collect::<Vec<_>>();
        Membership {
            voters: ids(config.voters),
            learners: ids(config.learners),
            voters_outgoing: ids(config.outgoing),
            ..Membership::default()
        }
    }

    /// The model's memberships are such as the product has, and mean the same.
    #[test]
    fn h25_a_majority_is_what_the_product_takes_for_one() {
        for config in COURSES.iter().flat_map(|course| course.configs) {
            let membership = product(*config);
            assert_eq!(membership.check(), Ok(()));
            for set in 0..1 << REPLICAS_MAX {
                let counts = |replica: ReplicaId| set >> (replica.0 - 1) & 1 == 1;
                assert_eq!(config.is_majority(set), membership.is_majority(counts), "{config:?}: {set:b}");
            }
            for at in 0..REPLICAS_MAX {
                let id = ReplicaId(at as u64 + 1);
                let of_model = (config.is_voter(at), config.contains(at));
                assert_eq!(of_model, (membership.is_voter(id), membership.contains(id)));
            }
        }
    }

    /// A change of one replica is made directly, a larger one jointly, and a joint one is left before the next.
    #[test]
    fn memberships_follow_each_other_as_in_the_product() {
        for pair in COURSES.iter().flat_map(|course| course.configs.windows(2)) {
            let (old, new) = (pair[0], pair[1]);
            if old.outgoing != 0 {
                assert_eq!((new.voters, new.outgoing), (old.voters, 0));
            } else if new.outgoing != 0 {
                assert_eq!(new.outgoing, old.voters);
            } else {
                let changed = (old.voters ^ new.voters) | (old.learners ^ new.learners);
                assert_eq!(changed.count_ones(), 1, "{old:?} {new:?}");
            }
        }
    }
}
