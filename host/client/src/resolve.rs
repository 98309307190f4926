//! Looks up the addresses of nodes that were given by name.

use crate::error::{Error, ErrorKind, Result};
use crate::runtime::timeout;
use hedgerow_routing::Address;
use std::time::Duration;

/// What `addresses` stand for, each once.
pub(crate) async fn resolve<A: AsRef<str>>(addresses: &[A], limit: Duration) -> Result<Vec<Address>> {
    let mut seeds: Vec<Address> = Vec::new();
    let mut failure = Error::invalid("no address was given");
    for address in addresses {
        let address = address.as_ref().trim();
        match timeout(limit, tokio::net::lookup_host(address)).await {
            Ok(Ok(found)) => seeds.extend(found),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(Error::invalid(format!("{address:?} is not an address of the form host:port")));
            }
            Ok(Err(error)) => failure = Error::new(ErrorKind::Unreachable, format!("looking up {address}: {error}")),
            Err(_) => failure = Error::new(ErrorKind::Unreachable, format!("looking up {address} took too long")),
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    seeds.retain(|seed| seen.insert(*seed));
    if seeds.is_empty() { Err(failure) } else { Ok(seeds) }
}
