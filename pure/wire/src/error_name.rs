//! Names of transport errors: exactly those that every Pegasus client knows. A name outside a client's table ends its
//! connection or its read loop, so that there is no way to send another.

use crate::thrift::{self, Malformed, Reader, tag};
use crate::value::Wire;
use bytes::BytesMut;
use hedgerow_types::Refusal;

macro_rules! error_names {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A transport error, or the `err` of a metadata reply.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are Pegasus' names and mean what they mean there")]
        pub enum ErrorName {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorName {
            /// Every name, `ERR_OK` first.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name as it travels.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

error_names! {
    #[default]
    Ok = "ERR_OK",
    Unknown = "ERR_UNKNOWN",
    ServiceNotActive = "ERR_SERVICE_NOT_ACTIVE",
    Busy = "ERR_BUSY",
    ForwardToOthers = "ERR_FORWARD_TO_OTHERS",
    ObjectNotFound = "ERR_OBJECT_NOT_FOUND",
    HandlerNotFound = "ERR_HANDLER_NOT_FOUND",
    InvalidVersion = "ERR_INVALID_VERSION",
    InvalidParameters = "ERR_INVALID_PARAMETERS",
    CapacityExceeded = "ERR_CAPACITY_EXCEEDED",
    InvalidState = "ERR_INVALID_STATE",
    InactiveState = "ERR_INACTIVE_STATE",
    NotEnoughMember = "ERR_NOT_ENOUGH_MEMBER",
    FileOperationFailed = "ERR_FILE_OPERATION_FAILED",
    InvalidData = "ERR_INVALID_DATA",
    VersionOutdated = "ERR_VERSION_OUTDATED",
    StateFreezed = "ERR_STATE_FREEZED",
    LocalAppFailure = "ERR_LOCAL_APP_FAILURE",
    NotImplemented = "ERR_NOT_IMPLEMENTED",
    Corruption = "ERR_CORRUPTION",
    TryAgain = "ERR_TRY_AGAIN",
    NoNeedOperate = "ERR_NO_NEED_OPERATE",
    ReplicationFailure = "ERR_REPLICATION_FAILURE",
    AppExist = "ERR_APP_EXIST",
    AppNotExist = "ERR_APP_NOT_EXIST",
    AppDropped = "ERR_APP_DROPPED",
    BusyCreating = "ERR_BUSY_CREATING",
    BusyDropping = "ERR_BUSY_DROPPING",
    NetworkFailure = "ERR_NETWORK_FAILURE",
    UnderRecovery = "ERR_UNDER_RECOVERY",
    OperationDisabled = "ERR_OPERATION_DISABLED",
    Expired = "ERR_EXPIRED",
    Timeout = "ERR_TIMEOUT",
    IngestionFailed = "ERR_INGESTION_FAILED",
    Unauthenticated = "ERR_UNAUTHENTICATED",
    AclDeny = "ERR_ACL_DENY",
    Splitting = "ERR_SPLITTING",
    ParentPartitionMisused = "ERR_PARENT_PARTITION_MISUSED",
    ChildNotReady = "ERR_CHILD_NOT_READY",
    DiskInsufficient = "ERR_DISK_INSUFFICIENT",
}

impl ErrorName {
    /// The error with this name; `None` for a name outside the safe set.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.iter().copied().find(|error| error.name().as_bytes() == name)
    }

    /// What a storage request is answered when it was refused. Chosen by what the clients do on each
    /// name: `ERR_INVALID_STATE` and `ERR_OBJECT_NOT_FOUND` make them ask for the map again.
    pub const fn of_refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NotLeader { .. } | Refusal::NotReady(_) | Refusal::Lagging(_) | Refusal::Stopping(_) => {
                Self::InvalidState
            }
            Refusal::NotHosted | Refusal::NoTable => Self::ObjectNotFound,
            Refusal::Busy(_) | Refusal::BusyFor { .. } | Refusal::Throttled | Refusal::Withdrawn => Self::Busy,
            Refusal::Unresolved | Refusal::Expired => Self::Timeout,
            Refusal::SessionWindow { .. } | Refusal::Invalid(_) | Refusal::FailedPrecondition(_) => {
                Self::InvalidParameters
            }
            Refusal::TooLarge(_) => Self::InvalidData,
            Refusal::DiskFull(_) => Self::DiskInsufficient,
            Refusal::NotAllowed(_) => Self::AclDeny,
            Refusal::Creating => Self::BusyCreating,
            Refusal::TableExists => Self::AppExist,
            Refusal::Unknown => Self::HandlerNotFound,
        }
    }

    /// What the `err` of a configuration query's reply says.
    pub const fn of_query_refusal(refusal: &Refusal) -> Self {
        match Self::of_admin_refusal(refusal) {
            Self::AppNotExist => Self::ObjectNotFound,
            name => name,
        }
    }

    /// What the `err` of any other metadata reply says.
    pub const fn of_admin_refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NoTable => Self::AppNotExist,
            Refusal::NotLeader { .. } => Self::ForwardToOthers,
            Refusal::NotReady(_) | Refusal::Lagging(_) | Refusal::Stopping(_) => Self::ServiceNotActive,
            Refusal::NotHosted
            | Refusal::Busy(_)
            | Refusal::BusyFor { .. }
            | Refusal::Throttled
            | Refusal::Withdrawn
            | Refusal::Unresolved
            | Refusal::Expired
            | Refusal::SessionWindow { .. }
            | Refusal::Invalid(_)
            | Refusal::FailedPrecondition(_)
            | Refusal::TooLarge(_)
            | Refusal::DiskFull(_)
            | Refusal::NotAllowed(_)
            | Refusal::Creating
            | Refusal::TableExists
            | Refusal::Unknown => Self::of_refusal(refusal),
        }
    }
}

/// Placeholder type `error_code`. A name that we do not know reads as `ERR_UNKNOWN`: it is an error all the same.
impl Wire for ErrorName {
    const TAG: u8 = tag::STRUCT;
    const SIZE_MIN: usize = 4;

    fn read(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(Self::from_name(&input.bytes()?).unwrap_or(Self::Unknown))
    }

    #[inline]
    fn write(&self, out: &mut BytesMut) {
        thrift::put_bytes(out, self.name().as_bytes());
    }
}
