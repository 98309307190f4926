//! Certificates of a cluster of processes.

use anyhow::{Context as _, Result};
use hedgerow_tls::{Authority, ClientTlsFiles, ClusterName, Issued};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

/// What the certificates call the cluster.
const CLUSTER: &str = "testkit";
const DAYS: u32 = 1;

/// The user of [`crate::Cluster::run`] and of [`crate::Cluster::client_tls`].
pub const USER: &str = "test";
/// The user that may do everything where there are rights.
pub const ROOT: &str = "root";

/// Those of the authority, of every node, and of two users.
pub(crate) struct Certificates {
    folder: PathBuf,
    cluster: ClusterName,
}

impl Certificates {
    /// Makes them for nodes 1 to `nodes`, in `folder`.
    pub(crate) fn make(folder: PathBuf, nodes: u16) -> Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let (cluster, now) = (ClusterName::new(CLUSTER)?, SystemTime::now());
        let (authority, issued) = Authority::create(&cluster, DAYS, now)?;
        let own = Self { folder, cluster };
        own.write("ca", &issued)?;
        for user in [USER, ROOT] {
            own.write(user, &authority.client(user, DAYS, now)?)?;
        }
        for node in 1..=nodes {
            own.write(&format!("node-{node}"), &authority.node(node, &[], DAYS, now)?)?;
        }
        Ok(own)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pem"))
    }

    fn write(&self, name: &str, issued: &Issued) -> Result<()> {
        for (name, text) in [(name.to_owned(), &issued.certificate), (format!("{name}-key"), &issued.key)] {
            let path = self.path(&name);
            let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    /// What stands in node `number`'s file.
    pub(crate) fn config(&self, number: usize) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        let (certificate, key) = (path(&format!("node-{number}")), path(&format!("node-{number}-key")));
        format!("\n[tls]\nca = {:?}\ncertificate = {certificate:?}\nkey = {key:?}\n", path("ca"))
    }

    /// What a client reads.
    pub(crate) fn client(&self) -> ClientTlsFiles {
        let identity = Some((self.path(USER), self.path(&format!("{USER}-key"))));
        ClientTlsFiles { cluster: self.cluster.clone(), ca: self.path("ca"), identity, revoked: None }
    }

    /// The same for a command of `user`.
    pub(crate) fn environment(&self, user: &str) -> [(&'static str, PathBuf); 3] {
        [
            ("HEDGEROW_TLS_CA", self.path("ca")),
            ("HEDGEROW_TLS_CERTIFICATE", self.path(user)),
            ("HEDGEROW_TLS_KEY", self.path(&format!("{user}-key"))),
        ]
    }
}
