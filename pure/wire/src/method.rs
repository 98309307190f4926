//! The calls of the protocol: one table of name, kind, argument.

use crate::message::{
    AdminCommand, BatchGet, Cancel, CheckAndMutate, CheckAndSet, ClusterInfo, CommandLine, CreateTable, DropTable,
    Duplicate, GetScanner, Incr, JournalRead, JournalWrite, ListNodes, ListTables, MultiGet, MultiPut, MultiRemove,
    Negotiation, Put, QueryConfig, RecallTable, Scan, UpdateEnvs,
};
use crate::thrift::{Malformed, Reader, put_field, tag};
use crate::value::Wire;
use bytes::{BufMut, Bytes, BytesMut};

/// What a call needs from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads one partition.
    Read,
    /// Reads one partition and may leave a scan open there.
    Scan,
    /// Writes one partition.
    Write,
    /// Asks or changes the cluster's metadata.
    Admin,
    /// Concerns the connection: authentication, cancellation.
    Connection,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident($argument:ty) = $name:literal, $class:ident;)*) => {
        /// A call, without its argument.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method {
            $($(#[$doc])* $variant,)*
        }

        /// A call with its argument.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Body {
            $($(#[$doc])* $variant($argument),)*
        }

        impl Method {
            /// Every call.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name that a request carries.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The same without what all names of calls on records begin with.
            pub fn short_name(self) -> &'static str {
                self.name().trim_start_matches("RPC_RRDB_RRDB_")
            }

            /// The name that its reply carries.
            pub const fn reply_name(self) -> &'static str {
                match self { $(Self::$variant => concat!($name, "_ACK"),)* }
            }

            /// The call with this name.
            pub fn from_name(name: &[u8]) -> Option<Self> {
                match core::str::from_utf8(name).ok()? {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// What it needs from the server.
            pub const fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class,)* }
            }
        }

        impl Body {
            /// The call.
            pub const fn method(&self) -> Method {
                match self { $(Self::$variant(_) => Method::$variant,)* }
            }

            /// Takes the arguments of `method` off the front of `input`.
            pub(crate) fn read(method: Method, input: &mut Reader) -> Result<Self, Malformed> {
                Ok(match method { $(Method::$variant => Self::$variant(read_argument(input)?),)* })
            }

            /// Appends the arguments.
            pub(crate) fn write(&self, out: &mut BytesMut) {
                match self { $(Self::$variant(argument) => put_field(out, 1, argument),)* }
                out.put_u8(tag::STOP);
            }

            #[cfg(test)]
            pub(crate) fn sample(method: Method, random: &mut hedgerow_types::random::Random) -> Self {
                match method { $(Method::$variant => Self::$variant(crate::tests::Sample::sample(random)),)* }
            }
        }
    };
}

methods! {
    /// Reads a record, by full key.
    Get(Bytes) = "RPC_RRDB_RRDB_GET", Read;
    /// Sets a record.
    Put(Put) = "RPC_RRDB_RRDB_PUT", Write;
    /// Sets rows of one hash key.
    MultiPut(MultiPut) = "RPC_RRDB_RRDB_MULTI_PUT", Write;
    /// Deletes a record, by full key.
    Remove(Bytes) = "RPC_RRDB_RRDB_REMOVE", Write;
    /// Deletes rows of one hash key.
    MultiRemove(MultiRemove) = "RPC_RRDB_RRDB_MULTI_REMOVE", Write;
    /// Adds to a number.
    Incr(Incr) = "RPC_RRDB_RRDB_INCR", Write;
    /// Sets a row if a check holds.
    CheckAndSet(CheckAndSet) = "RPC_RRDB_RRDB_CHECK_AND_SET", Write;
    /// Changes rows if a check holds.
    CheckAndMutate(CheckAndMutate) = "RPC_RRDB_RRDB_CHECK_AND_MUTATE", Write;
    /// Reads rows of one hash key.
    MultiGet(MultiGet) = "RPC_RRDB_RRDB_MULTI_GET", Read;
    /// Reads records by key.
    BatchGet(BatchGet) = "RPC_RRDB_RRDB_BATCH_GET", Read;
    /// Counts the rows of a hash key.
    SortKeyCount(Bytes) = "RPC_RRDB_RRDB_SORTKEY_COUNT", Read;
    /// Asks how long a record, by full key, has to live.
    Ttl(Bytes) = "RPC_RRDB_RRDB_TTL", Read;
    /// Opens a scan.
    GetScanner(GetScanner) = "RPC_RRDB_RRDB_GET_SCANNER", Scan;
    /// Continues a scan.
    Scan(Scan) = "RPC_RRDB_RRDB_SCAN", Scan;
    /// Forgets a scan, by context id. One-way: a reply would end Go's and Python's connections.
    ClearScanner(i64) = "RPC_RRDB_RRDB_CLEAR_SCANNER", Scan;
    /// Asks where a table's partitions are. Named after an index, it goes by the table's name.
    QueryConfig(QueryConfig) = "RPC_CM_QUERY_PARTITION_CONFIG_BY_INDEX", Admin;
    /// Creates a table.
    CreateTable(CreateTable) = "RPC_CM_CREATE_APP", Admin;
    /// Drops a table.
    DropTable(DropTable) = "RPC_CM_DROP_APP", Admin;
    /// Puts a dropped table back into use.
    RecallTable(RecallTable) = "RPC_CM_RECALL_APP", Admin;
    /// Lists tables.
    ListTables(ListTables) = "RPC_CM_LIST_APPS", Admin;
    /// Lists nodes.
    ListNodes(ListNodes) = "RPC_CM_LIST_NODES", Admin;
    /// Asks for facts about the cluster.
    ClusterInfo(ClusterInfo) = "RPC_CM_CLUSTER_INFO", Admin;
    /// Changes a table's options.
    UpdateEnvs(UpdateEnvs) = "RPC_CM_UPDATE_APP_ENV", Admin;
    /// A command for the node that it reaches, as an operator types it.
    CommandLine(CommandLine) = "RPC_CLI_CLI_CALL", Admin;
    /// Authenticates.
    Negotiation(Negotiation) = "RPC_NEGOTIATION", Connection;
    /// Our own admin call.
    HedgerowAdmin(AdminCommand) = "RPC_HEDGEROW_ADMIN", Admin;
    /// Takes a request back. One-way.
    HedgerowCancel(Cancel) = "RPC_HEDGEROW_CANCEL", Connection;
    /// Does what was done in another cluster.
    HedgerowDuplicate(Duplicate) = "RPC_HEDGEROW_DUPLICATE", Write;
    /// Asks what another cluster is to be told.
    HedgerowJournalRead(JournalRead) = "RPC_HEDGEROW_JOURNAL_READ", Read;
    /// Changes what is kept for other clusters.
    HedgerowJournalWrite(JournalWrite) = "RPC_HEDGEROW_JOURNAL_WRITE", Write;
}

impl Method {
    /// Whether nobody waits for a reply, so that none may be sent.
    pub const fn is_one_way(self) -> bool {
        matches!(self, Self::ClearScanner | Self::HedgerowCancel)
    }
}

/// Takes an argument struct: field 1 is the argument, and a caller that leaves it out means its default.
fn read_argument<T: Wire + Default>(input: &mut Reader) -> Result<T, Malformed> {
    let mut argument = T::default();
    while let Some((tag, id)) = input.field()? {
        if id == 1 && tag == T::TAG {
            argument = T::read(input)?;
        } else {
            input.skip(tag)?;
        }
    }
    Ok(argument)
}
