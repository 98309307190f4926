//! Tokens of a budget, each of which is spent on one extra attempt or goes back.

use hedgerow_hedge::Budget;

/// A token for an extra attempt. It goes back when it is dropped, unless the attempt was sent.
#[derive(Debug)]
pub(crate) struct Token<'a> {
    budget: &'a Budget,
}

impl<'a> Token<'a> {
    /// `None` if the budget has none.
    pub(crate) fn take(budget: &'a Budget) -> Option<Self> {
        // Made only where there is one: it gives a token back when it is dropped.
        budget.try_take().then(|| Self { budget })
    }

    /// The attempt is sent.
    pub(crate) fn spend(self) {
        std::mem::forget(self);
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.budget.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_hedge::BudgetOptions;

    /// Pitfall H14: whatever becomes of an attempt that was admitted, it costs a token only if it was sent.
    #[test]
    fn h14_a_token_that_is_not_spent_goes_back() {
        let budget = Budget::new(BudgetOptions { ratio: 0.0, burst: Some(1.0) });
        drop(Token::take(&budget).expect("there is one"));
        assert_eq!(budget.tokens(), 1.0);
        Token::take(&budget).expect("it has come back").spend();
        assert!(Token::take(&budget).is_none() && budget.tokens() == 0.0);
    }
}
