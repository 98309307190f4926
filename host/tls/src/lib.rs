//! Encrypted connections, and who is at their other end.
//!
//! - `names`: what certificates call nodes, clients and clusters.
//! - `files`: certificates and keys as they lie on a disk.
//! - `revoked`: lists of certificates that count no more.
//! - `node`, `client`: what each of the two needs to accept or make a connection.
//! - `disbelief`: why two ends do not agree, in words for people.
//! - `handshake`: a connection that is being agreed on. Its costly steps can run elsewhere than its waiting.
//! - `stream`: a connection, encrypted or not, that is read and written without waiting.
//! - `issue`: makes certificates, for clusters that have no other authority.
//!
//! TLS 1.3 alone, by rustls. Nothing is resumed: each connection shows its certificate, so that one that has expired or was issued by another
//! authority opens none.

mod client;
mod disbelief;
mod files;
mod handshake;
mod issue;
mod names;
mod node;
mod revoked;
mod stream;

pub use client::{ClientTls, ClientTlsFiles};
pub use files::FileError;
pub use handshake::Handshake;
pub use issue::{Authority, IssueError, Issued};
pub use names::{CLUSTER_NAME_MAX, ClusterName, NameError};
pub use node::{Mode, NodeTls, NodeTlsFiles};
pub use stream::{Detached, Stream, is_nothing_yet};

use rustls::crypto::{CryptoProvider, ring};
use std::sync::Arc;

/// What encrypts. AES with keys of 128 bits first: it is the cheapest that TLS 1.3 has, and no weaker here than a certificate on P-256.
fn provider() -> Arc<CryptoProvider> {
    use rustls::crypto::ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    // Where somebody asks for a larger one, it costs this end ten times as much.
    let kx_groups = vec![ring::kx_group::X25519, ring::kx_group::SECP256R1];
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, kx_groups, ..ring::default_provider() })
}

/// Whether an error says that one end does not believe the other, or that what came is no TLS.
pub fn is_disbelief(error: &std::io::Error) -> bool {
    disbelief_in(error).is_some()
}

/// Whether an error says that the other end does not believe this one: it wants another certificate than what was shown, if any was.
pub fn is_disbelief_of_this_end(error: &std::io::Error) -> bool {
    disbelief_in(error).is_some_and(disbelief::Disbelief::is_of_this_end)
}

fn disbelief_in(error: &std::io::Error) -> Option<&disbelief::Disbelief> {
    error.get_ref()?.downcast_ref()
}
