//! Looks up the addresses of nodes that were given by name.

use crate::error::{Error, ErrorKind, Result};
use crate::runtime::timeout;
use hedgerow_routing::Address;
use std::time::Duration;

/// Fails if one of `addresses` cannot be looked up, whatever there is, or if there are none.
pub(crate) fn check_form<A: AsRef<str>>(addresses: &[A]) -> Result<()> {
    if addresses.is_empty() {
        return Err(none_given());
    }
    let has_form = |address: &str| {
        address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    let wrong = addresses.iter().map(|address| address.as_ref().trim()).find(|address| !has_form(address));
    wrong.map_or(Ok(()), |address| Err(not_of_the_form(address)))
}

fn none_given() -> Error {
    Error::invalid("no address was given")
}

fn not_of_the_form(address: &str) -> Error {
    Error::invalid(format!("{address:?} is not an address of the form host:port"))
}

/// What `addresses` stand for, each once.
pub(crate) async fn resolve<A: AsRef<str>>(addresses: &[A], limit: Duration) -> Result<Vec<Address>> {
    let mut seeds: Vec<Address> = Vec::new();
    let mut failure = none_given();
    for address in addresses {
        let address = address.as_ref().trim();
        match timeout(limit, tokio::net::lookup_host(address)).await {
            Ok(Ok(found)) => seeds.extend(found),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(not_of_the_form(address));
            }
            Ok(Err(error)) => failure = Error::new(ErrorKind::Unreachable, format!("looking up {address}: {error}")),
            Err(_) => failure = Error::new(ErrorKind::Unreachable, format!("looking up {address} took too long")),
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    seeds.retain(|seed| seen.insert(*seed));
    if seeds.is_empty() { Err(failure) } else { Ok(seeds) }
}
