//! Certificates that count no more although they have not expired: lists of an authority (CRL, RFC 5280), as they lie on a disk.

use crate::files::{Authorities, FileError, holding};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use std::collections::BTreeSet;
use std::path::Path;
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};

/// A certificate, by who has issued it and its serial number.
type Number = (Vec<u8>, Vec<u8>);

/// The lists, one of each authority at most.
#[derive(Default)]
pub(crate) struct Revoked {
    pub(crate) lists: Vec<CertificateRevocationListDer<'static>>,
    numbers: BTreeSet<Number>,
}

impl Revoked {
    /// Reads the lists in a file, which may be empty, but has to have one. Each has to be of one of `authorities`: another one would forbid nothing.
    pub(crate) fn read(path: &Path, authorities: &Authorities) -> Result<Self, FileError> {
        let unfit = |reason: &str| FileError::Unfit { path: path.to_path_buf(), reason: reason.to_owned() };
        let lists: Vec<CertificateRevocationListDer<'static>> =
            holding(path, "list of revoked certificates", CertificateRevocationListDer::pem_slice_iter)?;
        let (mut issuers, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        for list in &lists {
            let parsed = CertificateRevocationList::from_der(list);
            let (_, parsed) = parsed.map_err(|_| unfit("holds a list of revoked certificates that cannot be read"))?;
            let issuer = parsed.issuer().as_raw().to_vec();
            if !authorities.subjects.contains(&issuer) {
                return Err(unfit("holds a list of an authority that is not among those that are given: take it out"));
            }
            numbers.extend(parsed.iter_revoked_certificates().map(|one| (issuer.clone(), one.raw_serial().to_vec())));
            if !issuers.insert(issuer) {
                return Err(unfit(
                    "holds two lists of one authority, of which only one would count: keep the newer one",
                ));
            }
        }
        Ok(Self { lists, numbers })
    }

    /// How many certificates are revoked.
    pub(crate) fn count(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        // Most of the time none is, and whoever connects need not be parsed once more.
        !self.numbers.is_empty() && number_of(certificate).is_some_and(|number| self.numbers.contains(&number))
    }
}

pub(crate) fn number_of(certificate: &CertificateDer<'_>) -> Option<Number> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some((parsed.issuer().as_raw().to_vec(), parsed.raw_serial().to_vec()))
}
