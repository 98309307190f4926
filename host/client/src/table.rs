//! A hash table: records with a hash key and a sort key.

mod multi;

use crate::error::Result;
use crate::handle::{Handle, table_handle};
use crate::record::{check_size, incr_body, read_get, read_incr, read_ttl, read_update};
use crate::routes::Destination;
use crate::served::Role;
use crate::time::expire_at;
use crate::types::{Expiry, Life};
use bytes::Bytes;
use hedgerow_routing::Address;
use hedgerow_types::key;
use hedgerow_types::limit::{HASH_KEY_SIZE_MAX, SORT_KEY_SIZE_MAX};
use hedgerow_wire::Body;
use hedgerow_wire::message::Put;
use std::time::Duration;

/// A handle on a hash table. Cheap to clone; all clones share the client's connections.
///
/// Unless the table's options, the client's or [`Table::reading`] say otherwise, every read is linearizable: it sees
/// every write that was acknowledged before it began. Every write is applied once, however often the client had to
/// send it. Each operation takes at most [`crate::ClientOptions::operation_timeout`].
///
/// A record with an empty hash key is placed by its sort key; operations on all rows of a hash key do not accept it.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) handle: Handle,
}

table_handle!(Table);

impl Table {
    /// The nodes that have a replica of a record, the leader first, as far as this client knows; for example to work near the data.
    /// What is older than some seconds is asked for again in the background.
    pub fn replicas_of(&self, hash_key: impl AsRef<[u8]>, sort_key: impl AsRef<[u8]>) -> Vec<(Address, Role)> {
        let hash = key::partition_hash(hash_key.as_ref(), sort_key.as_ref());
        self.handle.routes.replicas(Destination::Hash(hash))
    }

    /// The value of a record, if there is one.
    pub async fn get(&self, hash_key: impl AsRef<[u8]>, sort_key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let (place, key) = locate(hash_key.as_ref(), sort_key.as_ref())?;
        read_get(self.handle.call(place, &Body::Get(key)).await?)
    }

    /// Sets a record, which then never expires.
    pub async fn set(
        &self,
        hash_key: impl AsRef<[u8]>,
        sort_key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<()> {
        let (place, key) = locate(hash_key.as_ref(), sort_key.as_ref())?;
        let body = Body::Put(Put { key, value: value.into(), expire_ts_seconds: 0 });
        read_update(self.handle.call(place, &body).await?, "set")
    }

    /// Sets a record that expires after `time_to_live`, counted in whole seconds by the clock of this machine.
    pub async fn set_with_ttl(
        &self,
        hash_key: impl AsRef<[u8]>,
        sort_key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        time_to_live: Duration,
    ) -> Result<()> {
        let (place, key) = locate(hash_key.as_ref(), sort_key.as_ref())?;
        let expire_ts_seconds = expire_at(Some(time_to_live)) as i32;
        let body = Body::Put(Put { key, value: value.into(), expire_ts_seconds });
        read_update(self.handle.call(place, &body).await?, "set")
    }

    /// Deletes a record; that it did not exist is no error.
    pub async fn del(&self, hash_key: impl AsRef<[u8]>, sort_key: impl AsRef<[u8]>) -> Result<()> {
        let (place, key) = locate(hash_key.as_ref(), sort_key.as_ref())?;
        read_update(self.handle.call(place, &Body::Remove(key)).await?, "del")
    }

    /// Whether a record exists.
    pub async fn exist(&self, hash_key: impl AsRef<[u8]>, sort_key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.ttl(hash_key, sort_key).await?.is_some())
    }

    /// How long a record has to live; `None` if there is no such record.
    pub async fn ttl(&self, hash_key: impl AsRef<[u8]>, sort_key: impl AsRef<[u8]>) -> Result<Option<Life>> {
        let (place, key) = locate(hash_key.as_ref(), sort_key.as_ref())?;
        read_ttl(self.handle.call(place, &Body::Ttl(key)).await?)
    }

    /// Adds `by` to a record that holds a decimal number, and returns the sum. A missing or empty record counts as 0.
    /// Fails with [`crate::ErrorKind::FailedPrecondition`] if the record holds something else or the sum does not fit 64 bits.
    pub async fn incr(
        &self,
        hash_key: impl AsRef<[u8]>,
        sort_key: impl AsRef<[u8]>,
        by: i64,
        expiry: Expiry,
    ) -> Result<i64> {
        let (place, key) = locate(hash_key.as_ref(), sort_key.as_ref())?;
        read_incr(self.handle.call(place, &incr_body(key, by, expiry)).await?)
    }
}

/// Where a record lives, and its full key.
fn locate(hash_key: &[u8], sort_key: &[u8]) -> Result<(Destination<'static>, Bytes)> {
    check_size("hash key", hash_key, HASH_KEY_SIZE_MAX)?;
    check_size("sort key", sort_key, SORT_KEY_SIZE_MAX)?;
    Ok((Destination::Hash(key::partition_hash(hash_key, sort_key)), key::full_key(hash_key, sort_key)))
}
