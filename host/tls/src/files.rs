//! Certificates and keys as they lie on a disk: PEM, as all tools write it.
#![allow(clippy::disallowed_methods, reason = "these files are an operator's, not the store's")]

use crate::revoked::{Revoked, Unrevoked};
use crate::{issue, provider};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::{PemObject, SliceIter};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::VerifierBuilderError;
use rustls::{CertificateError, RootCertStore};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest file that is read, bytes: chains of certificates have thousands, and lists some fifty for each that is revoked.
const SIZE_MAX: u64 = 16 << 20;

/// Why TLS cannot be used with the files that there are.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others than its owner may read a key.
    #[error("{} holds a private key, and others than its owner may read it (mode {mode:o}): allowed are no rights for group and others, as with 600", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It does not hold what it should.
    #[error("{} holds no {expected} in PEM form (\"-----BEGIN ...\")", path.display())]
    Holds {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// The authority, the certificate and the key do not go together, or not with who uses them.
    #[error("{} {reason}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { path: path.to_path_buf(), source };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > SIZE_MAX {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 16 MiB")));
    }
    std::fs::read(path).map_err(failed)
}

/// The certificates in a file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    holding(path, "certificate", CertificateDer::pem_slice_iter)
}

/// What `iter` finds in a file: at least one, and nothing that is `expected` and cannot be read.
pub(crate) fn holding<T: PemObject>(
    path: &Path,
    expected: &'static str,
    iter: fn(&[u8]) -> SliceIter<'_, T>,
) -> Result<Vec<T>, FileError> {
    let found: Result<Vec<_>, _> = iter(&read(path)?).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| FileError::Holds { path: path.to_path_buf(), expected })
}

/// The private key in a file that only its owner may read.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let failed = |source| FileError::Read { path: path.to_path_buf(), source };
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(FileError::Open { path: path.to_path_buf(), mode });
    }
    let text = read(path)?;
    let is_locked = text.windows(9).any(|word| word == b"ENCRYPTED");
    let expected = if is_locked { "private key without a passphrase" } else { "private key" };
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| FileError::Holds { path: path.to_path_buf(), expected })
}

/// The authorities in a file that have not expired.
pub(crate) struct Authorities {
    pub(crate) roots: Arc<RootCertStore>,
    /// The same with those that have expired.
    pub(crate) all: Vec<CertificateDer<'static>>,
    /// When the first of them expires, seconds since 1970; `None` if none says it.
    pub(crate) expire_at: Option<i64>,
}

/// Reads the authorities in a file.
pub(crate) fn authorities(path: &Path) -> Result<Authorities, FileError> {
    let mut roots = RootCertStore::empty();
    let mut expire_at: Option<i64> = None;
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
    let all = certificates(path)?;
    for certificate in &all {
        let at = issue::expires_at(certificate);
        // Nobody looks at an authority's dates later.
        if at.is_none_or(|at| at >= now) {
            roots.add(certificate.clone()).map_err(|error| unfit(path, &error))?;
            expire_at = expire_at.into_iter().chain(at).min();
        }
    }
    if roots.is_empty() {
        return Err(unfit(path, &rustls::Error::InvalidCertificate(CertificateError::Expired)));
    }
    Ok(Authorities { roots: Arc::new(roots), all, expire_at })
}

/// What checks nodes' certificates.
pub(crate) type NodesVerifier = Unrevoked<WebPkiServerVerifier>;

/// What checks nodes' certificates, by the authorities in `ca` and the lists in `revoked`.
pub(crate) fn nodes(
    ca: &Path,
    authorities: &Authorities,
    revoked: Option<&Path>,
) -> Result<Arc<NodesVerifier>, FileError> {
    let revoked = Arc::new(revoked.map(|path| Revoked::read(path, authorities)).transpose()?.unwrap_or_default());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(&authorities.roots), provider())
        .build()
        .map_err(|error| not_built(ca, &error))?;
    Ok(Arc::new(Unrevoked { revoked, verifier }))
}

/// Nothing can be checked by these authorities.
pub(crate) fn not_built(ca: &Path, error: &VerifierBuilderError) -> FileError {
    FileError::Unfit { path: ca.to_path_buf(), reason: format!("cannot be used: {error}") }
}

/// Why a file does not fit, in words for who keeps it.
pub(crate) fn unfit(path: &Path, error: &rustls::Error) -> FileError {
    let reason = match error {
        rustls::Error::InvalidCertificate(error) => wrong(error),
        rustls::Error::InconsistentKeys(_) => "belongs to another key than the one that is given".to_owned(),
        other => format!("cannot be used: {other}"),
    };
    FileError::Unfit { path: path.to_path_buf(), reason }
}

fn wrong(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet, or the clock of this machine is behind".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "was not issued by the authority that is given".to_owned()
        }
        CertificateError::Revoked => "has been revoked".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!("is for {}, not for {}", names.join(", "), expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not a node's, which is good for a server and for a client: is it a client's?".to_owned()
        }
        other => format!("is not right: {other}"),
    }
}

/// A name as it stands in a certificate, of which the library says the kind too: `DnsName("a")`.
fn bare(name: &str) -> &str {
    name.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map_or(name, |(name, _)| name)
}
