//! `hedgerow certificate`: makes certificates, for clusters that have no other authority.

use crate::encoding::Encoding;
use crate::exit::Exit;
use crate::files;
use crate::output::{counted, print, say};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use hedgerow_env::Clock as _;
use hedgerow_env::os::OsClock;
use hedgerow_tls::{Authority, ClusterName, Issued};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The list of the certificates that were taken back.
const LIST: &str = "revoked.pem";

/// What is made. Private keys are written so that only their owner may read them.
#[derive(Debug, Subcommand)]
pub(crate) enum CertificateCommand {
    /// Make the authority of a cluster: `ca.pem`, which every node and client needs, and `ca-key.pem`, which nobody needs but who makes
    /// certificates. Keep that one away from the nodes.
    Authority {
        /// What certificates call the cluster: 1 to 56 of a-z, 0-9 and `-`.
        #[arg(long, value_name = "NAME")]
        cluster: String,
        #[command(flatten)]
        place: Place,
        /// For how many days it is valid.
        #[arg(long, default_value_t = 3_650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
    },
    /// Make certificates of nodes: `node-N.pem` and `node-N-key.pem`.
    Node {
        /// The nodes' numbers.
        #[arg(required = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        nodes: Vec<u16>,
        /// Names and addresses that the certificates are for as well. Hedgerow's own programs do not need them: they ask for a node of the
        /// cluster, wherever it is.
        #[arg(long = "host", value_name = "HOST,...", value_delimiter = ',')]
        hosts: Vec<String>,
        #[command(flatten)]
        made: Made,
    },
    /// Revoke certificates: `revoked.pem` lists those that count no more. Nodes read it where `tls.revoked` names it, at a start and at SIGHUP, and end
    /// the connections of whoever is on it.
    Revoke {
        #[command(flatten)]
        revoked: RevokedArguments,
        #[command(flatten)]
        place: Place,
    },
    /// Make certificates of clients: `client-NAME.pem` and `client-NAME-key.pem`.
    Client {
        /// What the clients are called, each 1 to 56 of a-z, 0-9 and `-`.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        made: Made,
    },
}

/// What counts no more.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct RevokedArguments {
    /// Certificates, PEM.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Serial numbers of certificates whose files are gone, in hexadecimal, as `openssl x509 -serial` shows them.
    #[arg(long = "serial", value_name = "HEX,...", value_delimiter = ',', value_parser = serial)]
    serials: Vec<Serial>,
}

/// The serial number of a certificate.
#[derive(Clone, Debug)]
struct Serial(Vec<u8>);

fn serial(text: &str) -> Result<Serial, String> {
    let digits = text.replace(':', "");
    let padded = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits };
    let bytes = Encoding::Hex.decode(padded.as_bytes()).ok().filter(|bytes| (1..=20).contains(&bytes.len()));
    bytes.map(Serial).ok_or_else(|| format!("{text:?} is no serial number: 1 to 40 hexadecimal digits are"))
}

/// Where the files are.
#[derive(Args, Clone, Debug)]
pub(crate) struct Place {
    /// The folder of the authority and of what it makes. It is made if it is not there.
    #[arg(long, default_value = ".", value_name = "DIR")]
    directory: PathBuf,
}

/// How certificates are made.
#[derive(Args, Clone, Debug)]
pub(crate) struct Made {
    #[command(flatten)]
    place: Place,
    /// For how many days they are valid.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Replace certificates and keys that are there. Nodes and the sidecar take new ones over at SIGHUP.
    #[arg(long)]
    replace: bool,
}

/// `hedgerow certificate`.
pub(crate) fn run(command: &CertificateCommand) -> Result<Exit> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_micros(OsClock.unix_micros());
    match command {
        CertificateCommand::Authority { cluster, place, days } => {
            check_absent(&place.directory.join(LIST))?;
            let (authority, issued) = Authority::create(&ClusterName::new(cluster)?, *days, now)?;
            write(&place.directory, "ca", &issued, false)?;
            // Nodes may have it in their configuration before anything is on it.
            revoke(&place.directory, &authority, &[], now)?;
        }
        CertificateCommand::Node { nodes, hosts, made } => {
            let authority = open(&made.place.directory)?;
            for node in nodes {
                let issued = authority.node(*node, hosts, made.days, now)?;
                write_anew(&authority, &format!("node-{node}"), &issued, made)?;
            }
        }
        CertificateCommand::Revoke { revoked: RevokedArguments { files, serials }, place } => {
            let authority = open(&place.directory)?;
            let mut revoked: Vec<Vec<u8>> = serials.iter().map(|Serial(number)| number.clone()).collect();
            for path in files {
                let text = files::read_text(path).with_context(|| format!("cannot read {}", path.display()))?;
                revoked.extend(authority.serials_of(&path.display().to_string(), &text)?);
            }
            revoke(&place.directory, &authority, &revoked, now)?;
        }
        CertificateCommand::Client { names, made } => {
            let authority = open(&made.place.directory)?;
            // Before anything is written: one wrong name makes none, and neither does one that has a certificate.
            for name in names.iter().filter(|_| !made.replace) {
                let (certificate, key) = paths(&made.place.directory, &format!("client-{name}"));
                check_absent(&certificate)?;
                check_absent(&key)?;
            }
            let issued: Result<Vec<_>, _> = names.iter().map(|name| authority.client(name, made.days, now)).collect();
            for (name, issued) in names.iter().zip(issued?) {
                write_anew(&authority, &format!("client-{name}"), &issued, made)?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Puts certificates on the authority's list, which is made if it is not there.
fn revoke(directory: &Path, authority: &Authority, serials: &[Vec<u8>], now: SystemTime) -> Result<()> {
    let path = directory.join(LIST);
    let before = files::read_if_exists(&path)?.map(String::from_utf8).transpose();
    let before = before.with_context(|| format!("{} is no list of revoked certificates", path.display()))?;
    let (list, added, count) =
        authority.revoke(before.as_deref(), serials, now).with_context(|| path.display().to_string())?;
    files::replace(&path, list.as_bytes())?;
    if before.is_none() && !serials.is_empty() {
        say(&format!("{} was not there: what an earlier list has is not on this one", path.display()));
    }
    print(&format!("made {} ({} revoked, {added} of them now)", path.display(), counted(count as u64, "certificate")))
}

fn check_absent(path: &Path) -> Result<()> {
    ensure!(files::read_if_exists(path)?.is_none(), "{} is there already, and nothing was made", path.display());
    Ok(())
}

fn paths(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    (directory.join(format!("{name}.pem")), directory.join(format!("{name}-key.pem")))
}

fn open(directory: &Path) -> Result<Authority> {
    let (certificate, key) = paths(directory, "ca");
    let read = |path: &Path| {
        let hint = "--directory names the folder that has it, and `hedgerow certificate authority` makes one";
        files::read_text(path).with_context(|| format!("cannot read the authority's {}: {hint}", path.display()))
    };
    let issued = Issued { certificate: read(&certificate)?, key: read(&key)? };
    Authority::open(&issued).with_context(|| format!("{} and {}", certificate.display(), key.display()))
}

/// Where another one is replaced, that counts until it expires, and has to be known to be revoked.
fn write_anew(authority: &Authority, name: &str, issued: &Issued, made: &Made) -> Result<()> {
    let (path, _) = paths(&made.place.directory, name);
    let before = files::read_if_exists(&path)?.and_then(|before| String::from_utf8(before).ok());
    let before = before.and_then(|before| authority.serials_of(name, &before).ok()?.pop());
    write(&made.place.directory, name, issued, made.replace)?;
    if let Some(serial) = before {
        let serial = Encoding::Hex.encode(&serial);
        let place = made.place.directory.display();
        say(&format!(
            "the one before counts until it expires, unless it is revoked: `hedgerow certificate revoke --serial {serial} --directory {place}`"
        ));
    }
    Ok(())
}

fn write(directory: &Path, name: &str, issued: &Issued, replace: bool) -> Result<()> {
    files::make_directory(directory)?;
    let (certificate, key) = paths(directory, name);
    for path in [&certificate, &key] {
        if !replace {
            check_absent(path)?;
        }
    }
    files::replace_private(&key, issued.key.as_bytes())?;
    files::replace(&certificate, issued.certificate.as_bytes())?;
    print(&format!("made {} and {}", certificate.display(), key.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: CertificateCommand,
    }

    fn said(line: &str, directory: &Path) -> Result<Exit> {
        let words = format!("certificate {line} --directory {}", directory.display());
        run(&Line::try_parse_from(words.split(' '))?.command)
    }

    #[test]
    fn certificates_are_made_once_and_keys_are_their_owners() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", said("node 1", folder.path()).unwrap_err());
        assert!(error.contains("`hedgerow certificate authority` makes one"), "{error}");
        for line in ["authority --cluster prod", "node 1 2 --host 10.0.0.1,db.example", "client app web"] {
            said(line, folder.path()).unwrap();
            let error = said(line, folder.path()).unwrap_err().to_string();
            assert!(error.contains("is there already"), "{error}");
        }
        said("node 1 --replace", folder.path()).unwrap();
        assert!(said("authority --cluster Prod", folder.path()).is_err());
        assert!(said("client good Bad", folder.path()).is_err());
        assert!(files::read_if_exists(&paths(folder.path(), "client-good").0).unwrap().is_none(), "one name was wrong");
        for name in ["ca", "node-1", "node-2", "client-app", "client-web"] {
            let (certificate, key) = paths(folder.path(), name);
            assert!(files::read_text(&certificate).unwrap().starts_with("-----BEGIN CERTIFICATE"));
            assert_eq!(files::mode(&key).unwrap() & 0o777, 0o600);
        }
    }

    #[test]
    fn certificates_are_revoked_by_their_files_or_numbers_and_stay_so() {
        let folder = tempfile::tempdir().unwrap();
        for line in ["authority --cluster prod", "node 1", "client app"] {
            said(line, folder.path()).unwrap();
        }
        let list = folder.path().join("revoked.pem");
        let empty = files::read_text(&list).unwrap();
        let of = |name: &str| folder.path().join(name).display().to_string();
        said(&format!("revoke {} {}", of("client-app.pem"), of("node-1.pem")), folder.path()).unwrap();
        said("revoke --serial 0a:BC,7", folder.path()).unwrap();
        let full = files::read_text(&list).unwrap();
        assert!(full.len() > empty.len() && full.starts_with("-----BEGIN X509 CRL"), "{full}");
        for (line, expected) in [
            ("revoke --serial xyz", "is no serial number: 1 to 40 hexadecimal digits are"),
            ("revoke --serial", "a value is required"),
            ("revoke", "required arguments were not provided"),
            (&format!("revoke {}", of("ca.pem")), "ca.pem was not issued by this authority"),
            (&format!("revoke {}", of("none.pem")), "cannot read"),
        ] {
            let error = format!("{:#}", said(line, folder.path()).unwrap_err());
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert_eq!(files::read_text(&list).unwrap(), full);
        files::replace(&list, b"another text").unwrap();
        let error = format!("{:#}", said("revoke --serial 1", folder.path()).unwrap_err());
        assert!(error.contains("revoked.pem") && error.contains("cannot be read"), "{error}");
    }

    #[test]
    fn an_authority_with_another_ones_key_makes_nothing() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&folder, &other] {
            said("authority --cluster prod", folder.path()).unwrap();
        }
        let key = files::read_text(&other.path().join("ca-key.pem")).unwrap();
        files::replace_private(&folder.path().join("ca-key.pem"), key.as_bytes()).unwrap();
        let error = format!("{:#}", said("node 1", folder.path()).unwrap_err());
        assert!(error.contains("the key is another certificate's"), "{error}");
    }
}
