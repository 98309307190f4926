//! Messages about one record, as both kinds of tables make and read them.

use crate::error::{Error, ErrorKind, Result};
use crate::time::expire_at;
use crate::types::{Before, Checked, Expiry, Life};
use bytes::Bytes;
use hedgerow_types::Status;
use hedgerow_wire::message::Incr;
use hedgerow_wire::{Body, Reply};
use std::time::Duration;

pub(crate) fn check_size(what: &str, bytes: &[u8], size_max: usize) -> Result<()> {
    if bytes.len() > size_max {
        let message = format!("the {what} has {} bytes, more than {size_max}", bytes.len());
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    Ok(())
}

pub(crate) fn incr_body(key: Bytes, by: i64, expiry: Expiry) -> Body {
    let expire_ts_seconds = match expiry {
        Expiry::Keep => 0,
        Expiry::After(time_to_live) => expire_at(Some(time_to_live)) as i32,
        Expiry::Never => -1,
    };
    Body::Incr(Incr { key, increment: by, expire_ts_seconds })
}

pub(crate) fn read_get(reply: Reply) -> Result<Option<Bytes>> {
    let Reply::Get(reply) = reply else { return Err(mismatch("get")) };
    match Status::from_code(reply.error) {
        Some(Status::Ok) => Ok(Some(reply.value)),
        Some(Status::NotFound) => Ok(None),
        status => Err(Error::from_status(status, "get")),
    }
}

pub(crate) fn read_update(reply: Reply, operation: &'static str) -> Result<()> {
    let Reply::Update(reply) = reply else { return Err(mismatch(operation)) };
    match Status::from_code(reply.error) {
        Some(Status::Ok) => Ok(()),
        status => Err(Error::from_status(status, operation)),
    }
}

pub(crate) fn read_ttl(reply: Reply) -> Result<Option<Life>> {
    let Reply::Ttl(reply) = reply else { return Err(mismatch("ttl")) };
    match Status::from_code(reply.error) {
        Some(Status::Ok) => Ok(Some(match u64::try_from(reply.ttl_seconds) {
            Ok(seconds) => Life::Left(Duration::from_secs(seconds)),
            Err(_) => Life::Forever,
        })),
        Some(Status::NotFound) => Ok(None),
        status => Err(Error::from_status(status, "ttl")),
    }
}

pub(crate) fn read_incr(reply: Reply) -> Result<i64> {
    let Reply::Incr(reply) = reply else { return Err(mismatch("incr")) };
    match Status::from_code(reply.error) {
        Some(Status::Ok) => Ok(reply.new_value),
        Some(Status::InvalidArgument) => {
            Err(Error::failed_precondition("incr: the record holds no decimal number, or the sum does not fit 64 bits"))
        }
        status => Err(Error::from_status(status, "incr")),
    }
}

pub(crate) fn read_checked(reply: Reply, operation: &'static str) -> Result<Checked> {
    let Reply::Check(reply) = reply else { return Err(mismatch(operation)) };
    let is_applied = match Status::from_code(reply.error) {
        Some(Status::Ok) => true,
        Some(Status::TryAgain) => false,
        Some(Status::InvalidArgument) => {
            let text = format!("{operation}: a number was compared with something that is none");
            return Err(Error::failed_precondition(text));
        }
        status => return Err(Error::from_status(status, operation)),
    };
    let before = match (reply.check_value_returned, reply.check_value_exist) {
        (false, _) => Before::NotAsked,
        (true, false) => Before::Absent,
        (true, true) => Before::Value(reply.check_value),
    };
    Ok(Checked { is_applied, before })
}

pub(crate) fn mismatch(operation: &str) -> Error {
    Error::protocol(format!("{operation}: the reply is of another kind than the request"))
}
