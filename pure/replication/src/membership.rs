//! Who belongs to a group and how that changes, in the form in which it is stored, logged and sent.
//!
//! The consensus core keeps changes as protobuf. Nothing here is ever parsed by it: an entry's data is our own form, and a
//! change is handed to the core as a struct.
//!
//! Stored form of a membership: version (1 byte), auto_leave (1 byte), then voters, learners, outgoing voters and next
//! learners, each as a count (4 bytes) and ids (8 bytes each). Form of a change: version (1), kind (1: simple, joint or
//! leave), a count (4), and per step its kind (1) and replica (8). All numbers are little-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hedgerow_types::ReplicaId;
use hedgerow_types::log::{Entry, EntryKind};
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};

/// Version of both forms; the first byte of each.
const VERSION: u8 = 1;
/// Most replicas in one list of a membership, learners included; a bound for what is decoded.
const REPLICAS_MAX: usize = 256;

/// Bytes that do not have the form they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

/// The replicas of a group. While a joint change is under way, decisions need a majority of `voters` and one of
/// `voters_outgoing`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The replicas with a vote, sorted.
    pub voters: Vec<ReplicaId>,
    /// The replicas without one, sorted.
    pub learners: Vec<ReplicaId>,
    /// The voters before the joint change under way, sorted; empty otherwise.
    pub voters_outgoing: Vec<ReplicaId>,
    /// Outgoing voters that become learners when the change ends, sorted.
    pub learners_next: Vec<ReplicaId>,
    /// Whether the leader ends the joint change by itself.
    pub auto_leave: bool,
}

impl Membership {
    /// A membership of voters only.
    pub fn of_voters(voters: impl IntoIterator<Item = ReplicaId>) -> Self {
        let mut voters: Vec<_> = voters.into_iter().collect();
        voters.sort_unstable();
        Self { voters, ..Self::default() }
    }

    /// Whether a joint change is under way.
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty()
    }

    /// Whether `replica` has a vote, in either half.
    pub fn is_voter(&self, replica: ReplicaId) -> bool {
        self.voters.binary_search(&replica).is_ok() || self.voters_outgoing.binary_search(&replica).is_ok()
    }

    /// Whether the voters that `counts` takes are a majority; of both halves during a joint change.
    pub fn is_majority(&self, counts: impl Fn(ReplicaId) -> bool) -> bool {
        let is_enough = |voters: &Vec<ReplicaId>| {
            voters.is_empty() || voters.iter().filter(|voter| counts(**voter)).count() > voters.len() / 2
        };
        is_enough(&self.voters) && is_enough(&self.voters_outgoing)
    }

    /// Whether `replica` belongs to the group.
    pub fn contains(&self, replica: ReplicaId) -> bool {
        self.is_voter(replica) || self.learners.binary_search(&replica).is_ok()
    }

    /// All replicas of the group, sorted, each once.
    pub fn replicas(&self) -> Vec<ReplicaId> {
        let mut all = [&self.voters[..], &self.voters_outgoing, &self.learners].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Says what contradicts itself, if anything does.
    pub fn check(&self) -> Result<(), &'static str> {
        for list in [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next] {
            if list.len() > REPLICAS_MAX || !list.is_sorted_by(|a, b| a < b) || list.first() == Some(&ReplicaId(0)) {
                return Err("a list of replicas must be sorted, without repetition, without 0 and not too long");
            }
        }
        if self.voters.is_empty() && self != &Self::default() {
            return Err("a membership needs voters");
        }
        if self.learners.iter().any(|&replica| self.is_voter(replica)) {
            return Err("a learner cannot have a vote");
        }
        let is_next = |replica: &ReplicaId| {
            self.voters_outgoing.binary_search(replica).is_ok() && self.voters.binary_search(replica).is_err()
        };
        if !self.learners_next.iter().all(is_next) {
            return Err("a next learner must be an outgoing voter that does not stay");
        }
        if self.auto_leave && !self.is_joint() {
            return Err("only a joint membership can be left");
        }
        Ok(())
    }

    /// The stored form.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode_to(&mut out);
        out.freeze()
    }

    /// Appends the stored form to `out`.
    pub(crate) fn encode_to(&self, out: &mut BytesMut) {
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.auto_leave));
        for list in [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next] {
            out.put_u32_le(list.len() as u32);
            list.iter().for_each(|replica| out.put_u64_le(replica.0));
        }
    }

    /// The inverse of [`Membership::encode`]; refuses other versions, trailing bytes and contradictions.
    pub fn decode(mut data: Bytes) -> Result<Self, Malformed> {
        let membership = Self::decode_from(&mut data)?;
        if data.is_empty() { Ok(membership) } else { Err(Malformed("membership")) }
    }

    /// Takes a membership from the front of `data`.
    pub(crate) fn decode_from(data: &mut Bytes) -> Result<Self, Malformed> {
        const MALFORMED: Malformed = Malformed("membership");
        if data.len() < 2 || data.get_u8() != VERSION {
            return Err(MALFORMED);
        }
        let auto_leave = match data.get_u8() {
            0 => false,
            1 => true,
            _ => return Err(MALFORMED),
        };
        let mut list = || {
            let count = if data.len() < 4 { return Err(MALFORMED) } else { data.get_u32_le() as usize };
            if count > REPLICAS_MAX || data.len() < count * 8 {
                return Err(MALFORMED);
            }
            Ok((0..count).map(|_| ReplicaId(data.get_u64_le())).collect::<Vec<_>>())
        };
        let (voters, learners, voters_outgoing, learners_next) = (list()?, list()?, list()?, list()?);
        let membership = Self { voters, learners, voters_outgoing, learners_next, auto_leave };
        membership.check().map_err(|_| MALFORMED)?;
        Ok(membership)
    }

    pub(crate) fn from_core(state: &ConfState) -> Self {
        let sorted = |ids: &[u64]| {
            let mut ids: Vec<_> = ids.iter().map(|&id| ReplicaId(id)).collect();
            ids.sort_unstable();
            ids
        };
        Self {
            voters: sorted(state.get_voters()),
            learners: sorted(state.get_learners()),
            voters_outgoing: sorted(state.get_voters_outgoing()),
            learners_next: sorted(state.get_learners_next()),
            auto_leave: state.auto_leave,
        }
    }

    pub(crate) fn to_core(&self) -> ConfState {
        let ids = |list: &[ReplicaId]| list.iter().map(|replica| replica.0).collect::<Vec<_>>();
        let mut state = ConfState::default();
        state.set_voters(ids(&self.voters));
        state.set_learners(ids(&self.learners));
        state.set_voters_outgoing(ids(&self.voters_outgoing));
        state.set_learners_next(ids(&self.learners_next));
        state.auto_leave = self.auto_leave;
        state
    }
}

/// A wish to change the membership. A change of one replica is made directly, a larger one by joint consensus, which ends
/// by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipChange {
    /// Replicas that shall be learners; a voter named here loses its vote.
    pub add_learners: Vec<ReplicaId>,
    /// Replicas that shall be voters, learners until now or new.
    pub promote: Vec<ReplicaId>,
    /// Replicas that shall go.
    pub remove: Vec<ReplicaId>,
}

impl MembershipChange {
    /// What the data of an entry of the kind [`EntryKind::Membership`] change. Names nobody where a joint change ends.
    ///
    /// # Errors
    /// [`Malformed`] if the change cannot be understood.
    pub fn decode(data: Bytes) -> Result<Self, Malformed> {
        let mut change = Self::default();
        for (step, replica) in Change::decode(data)?.steps {
            match step {
                Step::AddLearner => change.add_learners.push(replica),
                Step::Promote => change.promote.push(replica),
                Step::Remove => change.remove.push(replica),
            }
        }
        Ok(change)
    }
}

/// Whether `replica` votes from `entry` on, if that is a change of the membership and is committed.
///
/// # Errors
/// [`Malformed`] if the change cannot be understood.
pub fn makes_voter(entry: &Entry, replica: ReplicaId) -> Result<bool, Malformed> {
    match entry.kind {
        EntryKind::Membership => Ok(Change::decode(entry.data.clone())?.promotes(replica)),
        EntryKind::Normal => Ok(false),
    }
}

/// A change as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    kind: ChangeKind,
    steps: Vec<(Step, ReplicaId)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum ChangeKind {
    Simple = 0,
    Joint = 1,
    Leave = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Promote = 0,
    Remove = 1,
    AddLearner = 2,
}

impl Change {
    /// Leaves a joint membership.
    pub(crate) const LEAVE: Self = Self { kind: ChangeKind::Leave, steps: Vec::new() };

    /// What has to be logged to make `wish` true of `membership`; says what is wrong with the wish, if anything is.
    pub(crate) fn new(wish: &MembershipChange, membership: &Membership) -> Result<Self, &'static str> {
        let mut steps = Vec::new();
        let wishes =
            [(Step::AddLearner, &wish.add_learners), (Step::Promote, &wish.promote), (Step::Remove, &wish.remove)];
        for (step, replicas) in wishes {
            steps.extend(replicas.iter().map(|&replica| (step, replica)));
        }
        let mut named: Vec<_> = steps.iter().map(|&(_, replica)| replica).collect();
        named.sort_unstable();
        if !named.is_sorted_by(|a, b| a < b) || named.first() == Some(&ReplicaId(0)) {
            return Err("a replica is named twice, or is 0");
        }
        steps.retain(|&(step, replica)| match step {
            Step::Promote => membership.voters.binary_search(&replica).is_err(),
            Step::Remove => membership.contains(replica),
            Step::AddLearner => membership.learners.binary_search(&replica).is_err(),
        });
        if steps.is_empty() {
            return Err("the membership is already as wished");
        }
        let stays = |replica: &&ReplicaId| !wish.remove.contains(replica) && !wish.add_learners.contains(replica);
        if wish.promote.is_empty() && !membership.voters.iter().any(|replica| stays(&replica)) {
            return Err("no voter would be left");
        }
        if membership.replicas().len() + steps.len() > REPLICAS_MAX {
            return Err("too many replicas");
        }
        let kind = if steps.len() == 1 { ChangeKind::Simple } else { ChangeKind::Joint };
        Ok(Self { kind, steps })
    }

    /// Whether `replica` votes from the entry on that holds this.
    fn promotes(&self, replica: ReplicaId) -> bool {
        self.steps.contains(&(Step::Promote, replica))
    }

    /// The form in which an entry holds it.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(6 + self.steps.len() * 9);
        out.put_u8(VERSION);
        out.put_u8(self.kind as u8);
        out.put_u32_le(self.steps.len() as u32);
        for &(step, replica) in &self.steps {
            out.put_u8(step as u8);
            out.put_u64_le(replica.0);
        }
        out.freeze()
    }

    /// The inverse of [`Change::encode`].
    pub(crate) fn decode(mut data: Bytes) -> Result<Self, Malformed> {
        const MALFORMED: Malformed = Malformed("membership change");
        if data.len() < 6 || data.get_u8() != VERSION {
            return Err(MALFORMED);
        }
        let kind = match data.get_u8() {
            0 => ChangeKind::Simple,
            1 => ChangeKind::Joint,
            2 => ChangeKind::Leave,
            _ => return Err(MALFORMED),
        };
        let count = data.get_u32_le() as usize;
        let is_count_right = match kind {
            ChangeKind::Simple => count == 1,
            ChangeKind::Joint => count > 1 && count <= REPLICAS_MAX,
            ChangeKind::Leave => count == 0,
        };
        if !is_count_right || data.len() != count * 9 {
            return Err(MALFORMED);
        }
        let mut steps = Vec::with_capacity(count);
        for _ in 0..count {
            let step = match data.get_u8() {
                0 => Step::Promote,
                1 => Step::Remove,
                2 => Step::AddLearner,
                _ => return Err(MALFORMED),
            };
            steps.push((step, ReplicaId(data.get_u64_le())));
        }
        Ok(Self { kind, steps })
    }

    pub(crate) fn to_core(&self) -> ConfChangeV2 {
        let mut change = ConfChangeV2::default();
        let transition = match self.kind {
            ChangeKind::Simple | ChangeKind::Leave => ConfChangeTransition::Auto,
            ChangeKind::Joint => ConfChangeTransition::Implicit,
        };
        change.set_transition(transition);
        for &(step, replica) in &self.steps {
            let mut single = ConfChangeSingle { node_id: replica.0, ..ConfChangeSingle::default() };
            single.set_change_type(match step {
                Step::Promote => ConfChangeType::AddNode,
                Step::Remove => ConfChangeType::RemoveNode,
                Step::AddLearner => ConfChangeType::AddLearnerNode,
            });
            change.mut_changes().push(single);
        }
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(numbers: &[u64]) -> Vec<ReplicaId> {
        numbers.iter().map(|&number| ReplicaId(number)).collect()
    }

    fn joint() -> Membership {
        Membership {
            voters: ids(&[1, 2]),
            learners: ids(&[7]),
            voters_outgoing: ids(&[1, 3]),
            learners_next: ids(&[3]),
            auto_leave: true,
        }
    }

    #[test]
    fn a_membership_survives_the_round_trip_and_every_cut_is_refused() {
        for membership in [Membership::default(), Membership::of_voters(ids(&[3, 1])), joint()] {
            let data = membership.encode();
            assert_eq!(Membership::decode(data.clone()), Ok(membership.clone()));
            assert_eq!(Membership::from_core(&membership.to_core()), membership);
            for cut in 0..data.len() {
                assert!(Membership::decode(data.slice(..cut)).is_err());
            }
        }
    }

    #[test]
    fn the_stored_forms_are_fixed() {
        let expected: Vec<u8> = [
            &[1, 1][..],
            &[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(joint().encode(), expected);
        let wish = MembershipChange { remove: ids(&[2]), ..MembershipChange::default() };
        let change = Change::new(&wish, &Membership::of_voters(ids(&[1, 2]))).unwrap();
        assert_eq!(&change.encode()[..], [1, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&Change::LEAVE.encode()[..], [1, 2, 0, 0, 0, 0]);
        assert_eq!(MembershipChange::decode(change.encode()), Ok(wish));
        assert_eq!(MembershipChange::decode(Change::LEAVE.encode()), Ok(MembershipChange::default()));
    }

    #[test]
    fn contradictions_are_refused() {
        for bad in [
            Membership { voters: ids(&[2, 1]), ..Membership::default() },
            Membership { voters: ids(&[0]), ..Membership::default() },
            Membership { learners: ids(&[1]), ..Membership::default() },
            Membership { voters: ids(&[1]), learners: ids(&[1]), ..Membership::default() },
            Membership { voters: ids(&[1]), auto_leave: true, ..Membership::default() },
            Membership { voters: ids(&[1]), learners_next: ids(&[2]), ..Membership::default() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
            assert!(Membership::decode(bad.encode()).is_err());
        }
    }

    #[test]
    fn a_wish_becomes_a_simple_or_a_joint_change_or_is_refused() {
        let membership = Membership::of_voters(ids(&[1, 2, 3]));
        let wish = |add: &[u64], promote: &[u64], remove: &[u64]| {
            let wish = MembershipChange { add_learners: ids(add), promote: ids(promote), remove: ids(remove) };
            Change::new(&wish, &membership).map(|change| change.kind)
        };
        assert_eq!(wish(&[4], &[], &[]), Ok(ChangeKind::Simple));
        assert_eq!(wish(&[], &[4], &[3]), Ok(ChangeKind::Joint));
        assert!(wish(&[], &[], &[9]).is_err());
        assert!(wish(&[], &[1], &[]).is_err());
        assert!(wish(&[4], &[4], &[]).is_err());
        assert!(wish(&[1], &[], &[2, 3]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(data: Vec<u8>) {
            if let Ok(membership) = Membership::decode(Bytes::from(data.clone())) {
                prop_assert_eq!(membership.encode(), data.clone());
            }
            if let Ok(change) = Change::decode(Bytes::from(data.clone())) {
                prop_assert_eq!(change.encode(), data);
            }
        }
    }
}
