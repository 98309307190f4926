//! Why two ends do not agree on a connection, in words for who has to mend it.

use rustls::{AlertDescription, CertificateError, Error};
use std::fmt;
use std::io;

/// One end does not believe the other, or what came is no TLS.
#[derive(Debug)]
pub(crate) struct Disbelief(pub(crate) Error);

impl Disbelief {
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }

    /// Whether the other end does not believe this one: it wants another certificate, or one at all.
    pub(crate) fn is_of_this_end(&self) -> bool {
        // Each alert that there are words for is about certificates.
        matches!(self.0, Error::AlertReceived(_)) && self.words().is_some()
    }

    fn words(&self) -> Option<&'static str> {
        let Self(error) = self;
        let words = match error {
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                "the other end wants a certificate, and this end has shown none"
            }
            Error::AlertReceived(AlertDescription::CertificateExpired) => {
                "the other end says that this end's certificate has expired, or is not valid yet"
            }
            Error::AlertReceived(AlertDescription::CertificateRevoked) => {
                "the other end says that this end's certificate has been revoked"
            }
            Error::AlertReceived(
                AlertDescription::DecryptError
                | AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::AccessDenied,
            ) => "the other end does not believe this end's certificate: is it of an authority that the other end has?",
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                "the other end's certificate is not of an authority that this end has"
            }
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                "the other end's certificate has expired"
            }
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => "the other end's certificate is for another node, or another cluster",
            Error::InvalidCertificate(CertificateError::Revoked) => "the other end's certificate has been revoked",
            Error::NoCertificatesPresented => "the other end has shown no certificate",
            Error::InvalidMessage(_) => "what the other end says is no TLS",
            _ => return None,
        };
        Some(words)
    }
}

impl fmt::Display for Disbelief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "{words} ({})", self.0),
            None => self.0.fmt(f),
        }
    }
}

impl std::error::Error for Disbelief {}
