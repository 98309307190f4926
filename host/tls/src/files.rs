//! Certificates and keys as they lie on a disk: PEM, as all tools write it.
#![allow(clippy::disallowed_methods, reason = "these files are an operator's, not the store's")]

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, RootCertStore};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest file that is read, bytes: chains of certificates have thousands.
const SIZE_MAX: u64 = 1 << 20;

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
    #[error("{} holds a private key, and others than its owner may read it (mode {mode:o}): allowed is 600", path.display())]
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
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than a mebibyte")));
    }
    std::fs::read(path).map_err(failed)
}

/// The certificates in a file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| FileError::Holds { path: path.to_path_buf(), expected: "certificate" })
}

/// The private key in a file that only its owner may read.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let failed = |source| FileError::Read { path: path.to_path_buf(), source };
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(FileError::Open { path: path.to_path_buf(), mode });
    }
    let found = PrivateKeyDer::from_pem_slice(&read(path)?);
    found.map_err(|_| FileError::Holds { path: path.to_path_buf(), expected: "private key" })
}

/// The authorities in a file.
pub(crate) fn authorities(path: &Path) -> Result<Arc<RootCertStore>, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unfit(path, &error))?;
    }
    Ok(Arc::new(roots))
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
        CertificateError::NotValidForNameContext { expected, presented } => {
            format!("is for {}, not for {}", presented.join(", "), expected.to_str())
        }
        other => format!("is not right: {other}"),
    }
}
