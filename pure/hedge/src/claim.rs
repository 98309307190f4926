//! A request that several threads work on: who sends which attempt, and whose end is the request's.
//!
//! [`crate::Race`] decides for one thread. Where timer, replies and the caller's giving up come on different threads, they
//! agree through this word: numbers are given out once, exactly one thread decides, and every attempt that was given a
//! number before the decision is told to exactly one thread, as its own end or among the losers it must cancel.

use crate::race::{ATTEMPTS_MAX, Attempts};
use crate::sync::{AtomicU64, Ordering};

/// Bit 0 to 15: open attempts. Then the number of attempts given out, and whether the request is decided.
const SENT_SHIFT: u32 = 16;
const SENT_MASK: u64 = 0x1f;
const DECIDED: u64 = 1 << 32;

/// What the end of an attempt means for the thread that tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It decides the request: answer the caller, and cancel these.
    Won {
        /// Attempts without an end.
        losers: Attempts,
    },
    /// Others are open and may still answer.
    Open,
    /// Nothing is open and nothing has succeeded: send another ([`Claim::open`]), or end the request
    /// ([`Claim::close_if_idle`]).
    Idle,
    /// The request is decided, or this attempt was told before: nothing is to be done.
    Late,
}

/// One request's attempts as one atomic word.
#[derive(Debug)]
pub struct Claim {
    word: AtomicU64,
    attempts_max: u8,
}

impl Claim {
    /// A request of at most `attempts_max` attempts, the first included; 1 to [`ATTEMPTS_MAX`].
    pub fn new(attempts_max: u8) -> Self {
        Self { word: AtomicU64::new(0), attempts_max: attempts_max.clamp(1, ATTEMPTS_MAX) }
    }

    /// The number of a further attempt, which the caller then sends; `None` if the request is decided or has had as many
    /// as it may. Ask the budget first, and give the token back on `None`.
    pub fn open(&self) -> Option<u8> {
        let open = |word: u64| {
            let sent = sent(word);
            let may_open = word & DECIDED == 0 && sent < u64::from(self.attempts_max);
            may_open.then_some((word | 1 << sent) + (1 << SENT_SHIFT))
        };
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).ok()?;
        Some(sent(before) as u8 + 1)
    }

    /// Attempt `number` has ended. `is_final` = its end is the request's (a success, or an error that every attempt would
    /// end with).
    pub fn end(&self, number: u8, is_final: bool) -> Claimed {
        let Some(bit) = number.checked_sub(1).filter(|index| *index < ATTEMPTS_MAX).map(|index| 1_u64 << index) else {
            return Claimed::Late;
        };
        let end = |word: u64| {
            let is_open = word & bit != 0 && word & DECIDED == 0;
            is_open.then_some(if is_final { word & !bit | DECIDED } else { word & !bit })
        };
        match self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, end) {
            Err(_) => Claimed::Late,
            Ok(before) if is_final => Claimed::Won { losers: open(before & !bit) },
            Ok(before) if open(before & !bit).is_empty() => Claimed::Idle,
            Ok(_) => Claimed::Open,
        }
    }

    /// The caller no longer wants an answer, or its time is over. Returns what is to be cancelled; `None` if the request
    /// was decided before, by another thread.
    pub fn close(&self) -> Option<Attempts> {
        let before = self.word.fetch_or(DECIDED, Ordering::AcqRel);
        (before & DECIDED == 0).then(|| open(before))
    }

    /// Ends the request as failed, unless an attempt is open or it was decided before; whether it did.
    pub fn close_if_idle(&self) -> bool {
        let close = |word: u64| (word & DECIDED == 0 && open(word).is_empty()).then_some(word | DECIDED);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, close).is_ok()
    }

    /// Whether the request is decided.
    pub fn is_decided(&self) -> bool {
        self.word.load(Ordering::Acquire) & DECIDED != 0
    }
}

fn sent(word: u64) -> u64 {
    word >> SENT_SHIFT & SENT_MASK
}

fn open(word: u64) -> Attempts {
    Attempts::from_bits(word as u16)
}
