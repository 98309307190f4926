//! Certificates that count no more although they have not expired: lists of an authority (CRL, RFC 5280), as they lie on a disk. Their signatures
//! are checked when they are read. From then on a certificate is looked up by its number, in a handshake and on connections that had passed one.

use crate::files::{Authorities, FileError, holding};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};

/// A certificate, by who has issued it and its serial number.
type Number = (Vec<u8>, Vec<u8>);

/// What the lists have on them.
#[derive(Debug, Default)]
pub(crate) struct Revoked(BTreeSet<Number>);

impl Revoked {
    /// Reads the lists in a file. One that is in the name of one of `authorities` has to be signed by it, and there has to be such a list: others may
    /// forbid nothing. Those of authorities between are taken as they are, and so are those of authorities that nobody believes any more.
    pub(crate) fn read(path: &Path, authorities: &Authorities) -> Result<Self, FileError> {
        let unfit = |reason: &str| FileError::Unfit { path: path.to_path_buf(), reason: reason.to_owned() };
        let lists: Vec<CertificateRevocationListDer<'static>> =
            holding(path, "list of revoked certificates", CertificateRevocationListDer::pem_slice_iter)?;
        let (mut numbers, mut has_known) = (BTreeSet::new(), false);
        for list in &lists {
            let parsed = CertificateRevocationList::from_der(list);
            let (_, parsed) = parsed.map_err(|_| unfit("holds a list of revoked certificates that cannot be read"))?;
            let issuer = parsed.issuer().as_raw().to_vec();
            match is_signed(&parsed, authorities) {
                Some(true) => has_known = true,
                Some(false) => {
                    return Err(unfit("holds a list that its authority has not signed, or that was changed since"));
                }
                None => {}
            }
            numbers.extend(parsed.iter_revoked_certificates().map(|one| (issuer.clone(), one.raw_serial().to_vec())));
        }
        if !has_known {
            return Err(unfit("holds no list of an authority that is given, and would forbid nothing"));
        }
        Ok(Self(numbers))
    }

    /// How many certificates are revoked.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether one of `certificates` is, which are somebody's own and those between it and its authority.
    pub(crate) fn has_any(&self, certificates: &[CertificateDer<'_>]) -> bool {
        let has = |one: &CertificateDer<'_>| number_of(one).is_some_and(|number| self.0.contains(&number));
        // Most of the time none is, and nothing has to be parsed once more.
        !self.0.is_empty() && certificates.iter().any(has)
    }

    fn check(&self, first: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Result<(), Error> {
        let is_revoked = self.has_any(std::slice::from_ref(first)) || self.has_any(rest);
        if is_revoked { Err(Error::InvalidCertificate(CertificateError::Revoked)) } else { Ok(()) }
    }
}

/// Whether one of those in whose name a list is has signed it. `None`: it is in the name of none of them.
fn is_signed(list: &CertificateRevocationList<'_>, authorities: &Authorities) -> Option<bool> {
    let named = authorities.all.iter().filter_map(|one| X509Certificate::from_der(one).ok());
    let mut named = named.filter(|(_, one)| one.subject().as_raw() == list.issuer().as_raw()).peekable();
    named.peek()?;
    Some(named.any(|(_, one)| list.verify_signature(one.public_key()).is_ok()))
}

pub(crate) fn number_of(certificate: &CertificateDer<'_>) -> Option<Number> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some((parsed.issuer().as_raw().to_vec(), parsed.raw_serial().to_vec()))
}

/// The serial number of a certificate as it is given to `hedgerow certificate revoke`, hexadecimal.
pub(crate) fn serial_of(certificate: &CertificateDer<'_>) -> String {
    let (_, serial) = number_of(certificate).unwrap_or_default();
    serial.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Believes whom another verifier believes, unless a certificate of theirs is revoked.
#[derive(Debug)]
pub(crate) struct Unrevoked<V: ?Sized> {
    pub(crate) revoked: Arc<Revoked>,
    pub(crate) verifier: Arc<V>,
}

/// What both kinds of verifier do with signatures, which a list says nothing of.
macro_rules! signatures_by_the_verifier {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verifier.verify_tls12_signature(message, certificate, signed)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verifier.verify_tls13_signature(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.verifier.supported_verify_schemes()
        }
    };
}

impl<V: ServerCertVerifier + ?Sized> ServerCertVerifier for Unrevoked<V> {
    fn verify_server_cert(
        &self,
        first: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.verifier.verify_server_cert(first, rest, name, ocsp, now)?;
        self.revoked.check(first, rest).map(|()| verified)
    }

    signatures_by_the_verifier!();
}

impl<V: ClientCertVerifier + ?Sized> ClientCertVerifier for Unrevoked<V> {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        first: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(first, rest, now)?;
        self.revoked.check(first, rest).map(|()| verified)
    }

    signatures_by_the_verifier!();
}
