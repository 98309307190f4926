//! What a failed reply means: the refusal that it tells, or else the one that its error's name stands for.

use hedgerow_types::Refusal;
use hedgerow_wire::ErrorName;
use hedgerow_wire::reply::Failure;

/// What a failed reply means, also if the server gave the error's name only.
pub(crate) fn refusal_of(failure: &Failure) -> Refusal {
    failure.refusal().unwrap_or_else(|| refusal_of_name(failure.name))
}

/// As [`refusal_of`], for a request to one partition: there "object not found" is about the partition.
pub(crate) fn partition_refusal_of(failure: &Failure) -> Refusal {
    match (failure.refusal(), failure.name) {
        (Some(refusal), _) => refusal,
        (None, ErrorName::ObjectNotFound) => Refusal::NotHosted,
        (None, name) => refusal_of_name(name),
    }
}

/// What an error name means by itself.
pub(crate) fn refusal_of_name(name: ErrorName) -> Refusal {
    match name {
        ErrorName::InvalidState | ErrorName::InactiveState => Refusal::NotLeader { leader: None },
        ErrorName::ObjectNotFound | ErrorName::AppNotExist | ErrorName::AppDropped => Refusal::NoTable,
        ErrorName::BusyCreating => Refusal::Creating,
        ErrorName::AppExist => Refusal::TableExists,
        ErrorName::Busy | ErrorName::CapacityExceeded | ErrorName::BusyDropping | ErrorName::Splitting => {
            Refusal::Busy(name.name().to_owned())
        }
        ErrorName::ServiceNotActive | ErrorName::NotEnoughMember | ErrorName::TryAgain | ErrorName::UnderRecovery => {
            Refusal::NotReady(format!("the node cannot do it yet ({})", name.name()))
        }
        ErrorName::ForwardToOthers | ErrorName::ParentPartitionMisused | ErrorName::ChildNotReady => Refusal::NotHosted,
        ErrorName::Timeout => Refusal::Unresolved,
        ErrorName::Expired => Refusal::Expired,
        ErrorName::InvalidData => Refusal::TooLarge("the server finds the request malformed or too large".to_owned()),
        ErrorName::DiskInsufficient => Refusal::DiskFull(name.name().to_owned()),
        ErrorName::AclDeny => Refusal::NotAllowed("the server does not allow it (ERR_ACL_DENY)".to_owned()),
        ErrorName::HandlerNotFound | ErrorName::NotImplemented => Refusal::Unknown,
        other => Refusal::Invalid(format!("the server answered {}", other.name())),
    }
}
