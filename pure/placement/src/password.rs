//! Who proves by a password who they are: for each user that has one, what it is checked by. Passwords themselves are nowhere.
//!
//! A user is the same by a password as by a certificate of its name: what it may do says [`crate::Rights`].

use crate::catalogue::Catalogue;
use crate::error::CatalogueError;
use crate::limit::PASSWORD_COUNT_MAX;
use crate::rights::Holder;
use hedgerow_scram::{Mask, Verifier};
use std::collections::BTreeMap;

/// The verifiers of all passwords. They are not printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passwords {
    pub(crate) by_user: BTreeMap<Holder, Verifier>,
    /// As long as there is any verifier: so that who asks does not learn which names have one.
    pub(crate) mask: Option<Mask>,
}

impl Passwords {
    /// Whether nobody has a password.
    pub fn is_empty(&self) -> bool {
        self.by_user.is_empty()
    }

    /// The users that have one, by name.
    pub fn users(&self) -> impl Iterator<Item = &Holder> {
        self.by_user.keys()
    }

    /// What the password of `user` is checked by, if it has one.
    pub fn verifier(&self, user: &str) -> Option<&Verifier> {
        self.by_user.get(user)
    }

    /// What is shown for a name that has none, as long as any has.
    pub const fn mask(&self) -> Option<&Mask> {
        self.mask.as_ref()
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(role) = self.by_user.keys().find(|user| user.is_role()) {
            return Err(format!("role {role} has a password"));
        }
        let count = self.by_user.len();
        if count > PASSWORD_COUNT_MAX {
            return Err(format!("the number of users with a password is {count}, allowed are {PASSWORD_COUNT_MAX}"));
        }
        if self.mask.is_some() == self.by_user.is_empty() {
            return Err(
                "the secret for names without a password is missing, or there is one without any password".to_owned()
            );
        }
        Ok(())
    }
}

impl Catalogue {
    /// Gives `user` a password: its first one, or another one, as `is_new` says. `mask` becomes the secret of the cluster for names without a
    /// password, if it has none.
    ///
    /// Fails for a role, if the user has one or has none as it should not be, and beyond [`PASSWORD_COUNT_MAX`].
    pub fn set_password(
        &mut self,
        user: &Holder,
        verifier: Verifier,
        mask: Mask,
        is_new: bool,
    ) -> Result<(), CatalogueError> {
        if user.is_role() {
            return Err(CatalogueError::PasswordOfRole(user.clone()));
        }
        let Passwords { by_user, mask: known } = &mut self.passwords;
        match (by_user.contains_key(user), is_new) {
            (true, true) => return Err(CatalogueError::HasPassword(user.clone())),
            (false, false) => return Err(CatalogueError::NoPassword(user.clone())),
            (false, true) if by_user.len() >= PASSWORD_COUNT_MAX => return Err(CatalogueError::TooManyPasswords),
            (false, true) | (true, false) => {}
        }
        by_user.insert(user.clone(), verifier);
        known.get_or_insert(mask);
        self.version += 1;
        Ok(())
    }

    /// Takes the password of `user`, which keeps its rights. Fails if it has none.
    pub fn remove_password(&mut self, user: &Holder) -> Result<(), CatalogueError> {
        let Passwords { by_user, mask } = &mut self.passwords;
        by_user.remove(user).ok_or_else(|| CatalogueError::NoPassword(user.clone()))?;
        if by_user.is_empty() {
            *mask = None;
        }
        self.version += 1;
        Ok(())
    }
}
