//! The set of attempts, as the claim uses it.

pub(crate) use hedgerow_hedge::ATTEMPTS_MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts(u16);

impl Attempts {
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        (1..=16).filter(move |number| self.0 & (1 << (number - 1)) != 0)
    }
}
