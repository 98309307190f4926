//! The form of the questions and answers that let replicas serve reads which their leader could: one frame between two
//! nodes carries those of many groups.
//!
//! ```text
//! questions   u64 id | count x (u64 group | u64 asking replica | u64 asked replica | u64 term)
//! answers             count x (u64 group | u64 answering replica | u64 asking replica | u64 term | u64 id
//!                              | u64 index | u64 term of the index)
//! ```
//!
//! All numbers are little-endian and the count follows from the frame's length. The questions of one frame share its id.
//! An answer with index 0, which no entry has, says that the replica does not lead.

use crate::peer::Malformed;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hedgerow_replication::{Answer, Question};
use hedgerow_types::log::LogPosition;
use hedgerow_types::{GroupId, ReplicaId, Term};

/// Most questions, and most answers, in one frame.
pub const QUESTIONS_MAX: usize = 65_536;
const QUESTION_SIZE: usize = 32;
const ANSWER_SIZE: usize = 56;

/// What replicas of one node ask those of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    /// Names the frame, and in their groups all questions in it. Never used again by the node.
    pub id: u64,
    /// By group.
    pub questions: Vec<GroupQuestion>,
}

/// The question of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupQuestion {
    /// The group.
    pub group: GroupId,
    /// Who asks.
    pub from: ReplicaId,
    /// Who is asked.
    pub to: ReplicaId,
    /// The term that the asking replica is in.
    pub term: Term,
}

impl GroupQuestion {
    /// The question as its group knows it.
    pub const fn question(&self, id: u64) -> Question {
        Question { term: self.term, id }
    }
}

/// The answer for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAnswer {
    /// The group.
    pub group: GroupId,
    /// Who answers.
    pub from: ReplicaId,
    /// Who asked.
    pub to: ReplicaId,
    /// What it says.
    pub answer: Answer,
}

pub(crate) fn put_questions(out: &mut BytesMut, questions: &Questions) {
    out.reserve(8 + QUESTION_SIZE * questions.questions.len());
    out.put_u64_le(questions.id);
    for one in &questions.questions {
        [one.group.to_u64(), one.from.0, one.to.0, one.term].into_iter().for_each(|number| out.put_u64_le(number));
    }
}

pub(crate) fn take_questions(mut body: Bytes) -> Result<Questions, Malformed> {
    if body.len() < 8 {
        return Err(Malformed("questions without an id".into()));
    }
    let id = body.get_u64_le();
    let count = count_of(body.len(), QUESTION_SIZE)?;
    let one = |body: &mut Bytes| GroupQuestion {
        group: GroupId::from_u64(body.get_u64_le()),
        from: ReplicaId(body.get_u64_le()),
        to: ReplicaId(body.get_u64_le()),
        term: body.get_u64_le(),
    };
    Ok(Questions { id, questions: (0..count).map(|_| one(&mut body)).collect() })
}

pub(crate) fn put_answers(out: &mut BytesMut, answers: &[GroupAnswer]) {
    out.reserve(ANSWER_SIZE * answers.len());
    for GroupAnswer { group, from, to, answer } in answers {
        let commit = answer.commit.unwrap_or_default();
        let numbers = [group.to_u64(), from.0, to.0, answer.term, answer.id, commit.index, commit.term];
        numbers.into_iter().for_each(|number| out.put_u64_le(number));
    }
}

pub(crate) fn take_answers(mut body: Bytes) -> Result<Vec<GroupAnswer>, Malformed> {
    let count = count_of(body.len(), ANSWER_SIZE)?;
    let one = |body: &mut Bytes| {
        let group = GroupId::from_u64(body.get_u64_le());
        let (from, to) = (ReplicaId(body.get_u64_le()), ReplicaId(body.get_u64_le()));
        let (term, id) = (body.get_u64_le(), body.get_u64_le());
        let (index, index_term) = (body.get_u64_le(), body.get_u64_le());
        let commit = (index != 0).then_some(LogPosition { index, term: index_term });
        GroupAnswer { group, from, to, answer: Answer { term, id, commit } }
    };
    Ok((0..count).map(|_| one(&mut body)).collect())
}

fn count_of(size: usize, one: usize) -> Result<usize, Malformed> {
    let count = size / one;
    if !size.is_multiple_of(one) || count > QUESTIONS_MAX {
        return Err(Malformed(format!("{size} bytes of parts of {one} bytes, of which {QUESTIONS_MAX} are allowed")));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Frame, put, take};

    fn questions(count: u32) -> Questions {
        let one = |partition| GroupQuestion {
            group: GroupId::new(3, partition),
            from: ReplicaId(u64::MAX - 1),
            to: ReplicaId(7),
            term: 9,
        };
        Questions { id: u64::MAX, questions: (0..count).map(one).collect() }
    }

    fn answers() -> Vec<GroupAnswer> {
        let of = |partition, commit| GroupAnswer {
            group: GroupId::new(3, partition),
            from: ReplicaId(7),
            to: ReplicaId(8),
            answer: Answer { term: 4, id: 5, commit },
        };
        vec![of(1, Some(LogPosition { term: 2, index: 1 })), of(2, None)]
    }

    #[test]
    fn questions_and_answers_are_read_as_they_were_written() {
        for frame in [Frame::Questions(questions(0)), Frame::Questions(questions(3)), Frame::Answers(answers())] {
            let mut stream = BytesMut::new();
            put(&mut stream, &frame);
            assert_eq!(take(&mut stream), Ok(Some(frame)));
        }
    }

    /// C17: what has another form closes the connection that it came on, and takes no memory before.
    #[test]
    fn c17_malformed_questions_are_refused() {
        let mut body = BytesMut::new();
        put_questions(&mut body, &questions(2));
        for cut in (0..body.len()).filter(|cut| !(cut + QUESTION_SIZE - 8).is_multiple_of(QUESTION_SIZE)) {
            assert!(take_questions(Bytes::copy_from_slice(&body[..cut])).is_err(), "cut at {cut}");
        }
        let mut body = BytesMut::new();
        put_answers(&mut body, &answers());
        for cut in (1..body.len()).filter(|cut| !cut.is_multiple_of(ANSWER_SIZE)) {
            assert!(take_answers(Bytes::copy_from_slice(&body[..cut])).is_err(), "cut at {cut}");
        }
        let too_many = vec![0; QUESTION_SIZE * (QUESTIONS_MAX + 1) + 8];
        assert!(take_questions(too_many.into()).is_err());
    }
}
