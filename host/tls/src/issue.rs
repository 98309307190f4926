//! Makes certificates, for clusters that have no other authority: ECDSA on P-256, in PEM.

use crate::names::{ClusterName, NameError};
use crate::revoked;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, GeneralName, X509Certificate};

/// How long before it is made a certificate is valid: clocks differ.
const BEFORE: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Why no certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It would be another node's too.
    #[error("host {0:?}: names below hedgerow.internal say which node it is, and are in the certificate already")]
    Host(String),
    /// Only who has issued a certificate can revoke it.
    #[error("{0} was not issued by this authority")]
    Foreign(String),
    /// The list that is there is not one of this authority.
    #[error("the list of revoked certificates {0}")]
    List(&'static str),
    /// The authority's files are not an authority's.
    #[error("this is no authority of a cluster: {0}")]
    Authority(String),
    /// What is asked for cannot be made.
    #[error("the certificate cannot be made: {0}")]
    Made(#[from] rcgen::Error),
}

/// A certificate and its private key, both PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

/// Who issues the certificates of one cluster.
pub struct Authority {
    cluster: ClusterName,
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    certificate: CertificateDer<'static>,
    /// When it expires, and with it what it has issued.
    until: SystemTime,
}

impl Authority {
    /// A new one, whose certificate is valid for so many days from `now` on.
    pub fn create(cluster: &ClusterName, days: u32, now: SystemTime) -> Result<(Self, Issued), IssueError> {
        let key = KeyPair::generate()?;
        // Two authorities of one cluster are two to whoever has both.
        let number = key.public_key_raw().iter().skip(1).take(4).fold(0, |number, byte| number << 8 | u32::from(*byte));
        let mut params =
            params(Vec::new(), &format!("Hedgerow cluster {cluster} {number:08x}"), now, now + DAY * days)?;
        params.distinguished_name.push(DnType::OrganizationalUnitName, cluster.to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let own = params.self_signed(&key)?;
        let issued = Issued { certificate: own.pem(), key: key.serialize_pem() };
        let (certificate, until) = (own.der().clone(), now + DAY * days);
        Ok((Self { cluster: cluster.clone(), issuer: Issuer::new(params, key), certificate, until }, issued))
    }

    /// The one whose files these are.
    pub fn open(issued: &Issued) -> Result<Self, IssueError> {
        let wrong = |error: &dyn std::fmt::Display| IssueError::Authority(error.to_string());
        let key = KeyPair::from_pem(&issued.key).map_err(|error| wrong(&error))?;
        let der = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).map_err(|error| wrong(&error))?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| wrong(&error))?;
        let cluster = cluster_of(&der).ok_or_else(|| wrong(&"its certificate names no cluster"))?;
        if parsed.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(wrong(&"the key is another certificate's"));
        }
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|error| wrong(&error))?;
        Ok(Self { cluster, issuer, certificate: der.clone(), until })
    }

    /// A node's certificate, valid for so many days or as long as the authority. `hosts` are names and addresses by which programs that know nothing of Hedgerow's own names may ask for it.
    pub fn node(&self, number: u16, hosts: &[String], days: u32, now: SystemTime) -> Result<Issued, IssueError> {
        let mut names = vec![self.cluster.any_node(), self.cluster.node(number)];
        if let Some(host) = hosts.iter().find(|host| host.to_ascii_lowercase().ends_with("hedgerow.internal")) {
            return Err(IssueError::Host(host.clone()));
        }
        names.extend_from_slice(hosts);
        let uses = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(names, &format!("node {number} of {}", self.cluster), &uses, days, now)
    }

    /// A client's certificate.
    pub fn client(&self, name: &str, days: u32, now: SystemTime) -> Result<Issued, IssueError> {
        let names = vec![self.cluster.client(name)?];
        let text = format!("client {name} of {}", self.cluster);
        self.issue(names, &text, &[ExtendedKeyUsagePurpose::ClientAuth], days, now)
    }

    /// The serial numbers of the certificates in `text`, PEM, which all have to be of this authority.
    pub fn serials_of(&self, what: &str, text: &str) -> Result<Vec<Vec<u8>>, IssueError> {
        let foreign = || IssueError::Foreign(what.to_owned());
        let found: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let found = found.ok().filter(|found| !found.is_empty()).ok_or_else(foreign)?;
        let serial = |der: &CertificateDer<'_>| {
            let (issuer, serial) = revoked::number_of(der).ok_or_else(foreign)?;
            let is_own = subject(&self.certificate) == Some(issuer) && *der != self.certificate;
            if is_own { Ok(serial) } else { Err(foreign()) }
        };
        found.iter().map(serial).collect()
    }

    /// A list of certificates that count no more, PEM: those on the list `before`, and those with these serial numbers. Returns how many of
    /// these were not on it before, and how many there are together, too.
    pub fn revoke(
        &self,
        before: Option<&str>,
        serials: &[Vec<u8>],
        now: SystemTime,
    ) -> Result<(String, usize, usize), IssueError> {
        let mut revoked = before.map_or(Ok(BTreeMap::new()), |before| self.revoked_by(before))?;
        let known = revoked.len();
        for serial in serials {
            revoked.entry(significant(serial)).or_insert(now);
        }
        let count = revoked.len();
        let one = |(serial, at): (Vec<u8>, SystemTime)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial),
            revocation_time: at.into(),
            reason_code: None,
            invalidity_date: None,
        };
        let number = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let list = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: self.until.into(),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.into_iter().map(one).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok((list.signed_by(&self.issuer)?.pem()?, count - known, count))
    }

    /// The serial numbers on a list of this authority, each with when it came there.
    fn revoked_by(&self, list: &str) -> Result<BTreeMap<Vec<u8>, SystemTime>, IssueError> {
        let unread = IssueError::List("that is there cannot be read");
        let Ok(der) = CertificateRevocationListDer::from_pem_slice(list.as_bytes()) else { return Err(unread) };
        let Ok((_, parsed)) = CertificateRevocationList::from_der(&der) else { return Err(unread) };
        if Some(parsed.issuer().as_raw()) != subject(&self.certificate).as_deref() {
            return Err(IssueError::List("that is there is another authority's"));
        }
        let revoked = parsed.iter_revoked_certificates();
        Ok(revoked.map(|one| (significant(one.raw_serial()), one.revocation_date.to_datetime().into())).collect())
    }

    fn issue(
        &self,
        names: Vec<String>,
        text: &str,
        uses: &[ExtendedKeyUsagePurpose],
        days: u32,
        now: SystemTime,
    ) -> Result<Issued, IssueError> {
        if self.until <= now {
            return Err(IssueError::Authority("it has expired".to_owned()));
        }
        let mut params = params(names, text, now, self.until.min(now + DAY * days))?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = uses.to_vec();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn params(names: Vec<String>, text: &str, now: SystemTime, until: SystemTime) -> Result<CertificateParams, IssueError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, text);
    params.not_before = (now - BEFORE).into();
    params.not_after = until.into();
    Ok(params)
}

/// The DNS names in a certificate.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(alternative)) = parsed.subject_alternative_name() else { return Vec::new() };
    let dns = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    };
    alternative.value.general_names.iter().filter_map(dns).collect()
}

/// The cluster that an authority's certificate names.
pub(crate) fn cluster_of(certificate: &CertificateDer<'_>) -> Option<ClusterName> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let unit = parsed.subject().iter_organizational_unit().next()?;
    ClusterName::new(unit.as_str().ok()?).ok()
}

/// A number without the zeros that its form may begin with.
fn significant(serial: &[u8]) -> Vec<u8> {
    serial.iter().copied().skip_while(|byte| *byte == 0).collect()
}

/// What a certificate is for, DER.
pub(crate) fn subject(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.subject().as_raw().to_vec())
}

/// When a certificate expires, seconds since 1970.
pub(crate) fn expires_at(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_listed_once_however_its_number_is_written_and_by_its_own_authority_alone() {
        let (cluster, now) = (ClusterName::new("test").unwrap(), SystemTime::UNIX_EPOCH + DAY * 20_000);
        let (own, _) = Authority::create(&cluster, 10, now).unwrap();
        let (other, of_other) = Authority::create(&cluster, 10, now).unwrap();
        let issued = own.client("app", 1, now).unwrap().certificate;
        let serial = own.serials_of("app.pem", &issued).unwrap().remove(0);
        let (list, added, count) = own.revoke(None, &[serial.clone(), vec![0xff, 1], vec![0, 0xff, 1]], now).unwrap();
        assert_eq!((added, count), (2, 2));
        let (again, added_again, count_again) =
            own.revoke(Some(&list), &[vec![0xff, 1], [&[0], &serial[..]].concat()], now + DAY).unwrap();
        assert_eq!((added_again, count_again), (0, 2));
        assert_eq!(own.revoked_by(&again).unwrap(), own.revoked_by(&list).unwrap());
        for (what, certificate) in [("app.pem", &issued), ("ca.pem", &of_other.certificate), ("no.pem", &list)] {
            assert!(matches!(other.serials_of(what, certificate), Err(IssueError::Foreign(_))), "{what}");
        }
        assert!(matches!(other.revoke(Some(&list), &[], now), Err(IssueError::List(_))));
        assert!(matches!(own.revoke(Some("no list"), &[], now), Err(IssueError::List(_))));
    }
}
