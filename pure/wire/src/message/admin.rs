//! Tables, nodes, authentication, and our own two calls.

use super::message;
use crate::error_name::ErrorName;
use crate::value::{Address, Binary, HostPort, Text};
use alloc::vec::Vec;
use bytes::Bytes;

/// `app_type` of every table.
pub const APP_TYPE: &str = "pegasus";

/// Wire numbers of a table's state.
pub mod app_status {
    /// In use.
    pub const AVAILABLE: i32 = 1;
    /// Being created.
    pub const CREATING: i32 = 2;
    /// Being dropped.
    pub const DROPPING: i32 = 4;
    /// Dropped.
    pub const DROPPED: i32 = 6;
}

/// Wire numbers of how a name matches a pattern.
pub mod match_type {
    /// Not said.
    pub const INVALID: i32 = 0;
    /// Every name does.
    pub const ALL: i32 = 1;
    /// It is the pattern.
    pub const EXACT: i32 = 2;
    /// It contains the pattern.
    pub const ANYWHERE: i32 = 3;
    /// It begins with the pattern.
    pub const PREFIX: i32 = 4;
    /// It ends with the pattern.
    pub const POSTFIX: i32 = 5;
    /// The pattern is a regular expression.
    pub const REGEX: i32 = 6;
}

/// Wire numbers of a node's state.
pub mod node_status {
    /// Reachable.
    pub const ALIVE: i32 = 1;
    /// Not reachable.
    pub const UNALIVE: i32 = 2;
}

/// Wire numbers of what [`UpdateEnvs`] does.
pub mod env_operation {
    /// Sets the given keys.
    pub const SET: i32 = 1;
    /// Removes the given keys.
    pub const DELETE: i32 = 2;
    /// Removes every key with the given prefix.
    pub const CLEAR: i32 = 3;
}

/// `status` of [`Negotiation`] and of [`NegotiationReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NegotiationStatus {
    /// Which mechanisms are there?
    ListMechanisms = 1,
    /// These.
    Mechanisms = 2,
    /// This one is to be used.
    Select = 3,
    /// It is.
    Selected = 4,
    /// The mechanism's first message.
    Initiate = 5,
    /// The server's answer to it, and to further ones.
    Challenge = 6,
    /// The client's answer to that.
    ChallengeResponse = 7,
    /// The client is who it says.
    Success = 8,
    /// Nobody is authenticated here: go on.
    AuthDisabled = 9,
    /// The client is not who it says, or does not say it as it should.
    AuthFailed = 10,
}

impl NegotiationStatus {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::ListMechanisms,
        Self::Mechanisms,
        Self::Select,
        Self::Selected,
        Self::Initiate,
        Self::Challenge,
        Self::ChallengeResponse,
        Self::Success,
        Self::AuthDisabled,
        Self::AuthFailed,
    ];

    /// As it is sent.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The one that is sent so.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }
}

message! {
    /// Creates a table.
    pub struct CreateTable {
        /// Its name.
        1 => app_name: Text,
        /// What it should be like.
        2 => options: CreateOptions,
    }

    /// What a new table should be like.
    pub struct CreateOptions {
        /// Number of partitions.
        1 => partition_count: i32,
        /// Replicas of each.
        2 => replica_count: i32,
        /// A table of the same name and shape is success.
        3 => success_if_exist: bool,
        /// [`APP_TYPE`].
        4 => app_type: Text,
        /// True.
        5 => is_stateful: bool,
        /// Options of the table.
        6 => envs: Vec<(Text, Text)>,
        /// Of no use here.
        7 => atomic_idempotent: Option<bool>,
    }

    /// Reply to a creation.
    pub struct CreateTableReply {
        /// How it went.
        1 => err: ErrorName,
        /// Id of the table.
        2 => appid: i32,
    }

    /// Drops a table.
    pub struct DropTable {
        /// Its name.
        1 => app_name: Text,
        /// How.
        2 => options: DropOptions,
    }

    /// How to drop a table.
    pub struct DropOptions {
        /// A missing table is success.
        1 => success_if_not_exist: bool,
        /// How long to keep the table so that it can be recalled; absent, 0 and less = as long as the cluster does.
        2 => reserve_seconds: Option<i64>,
    }

    /// Reply to a drop.
    pub struct DropTableReply {
        /// How it went.
        1 => err: ErrorName,
    }

    /// Puts a dropped table that is kept back into use.
    pub struct RecallTable {
        /// Its id.
        1 => app_id: i32,
        /// Its name from now on; empty = the one that it had.
        2 => new_app_name: Text,
    }

    /// Reply to a recall.
    pub struct RecallTableReply {
        /// How it went.
        1 => err: ErrorName,
        /// The table.
        2 => info: TableInfo,
    }

    /// Lists tables.
    pub struct ListTables {
        /// Only those in this [`app_status`]; 0 = all.
        1 => status: i32,
        /// Only names that match.
        2 => pattern: Option<Text>,
        /// How they must match.
        3 => match_type: Option<i32>,
    }

    /// Reply to a listing of tables.
    pub struct ListTablesReply {
        /// How it went.
        1 => err: ErrorName,
        /// The tables.
        2 => infos: Vec<TableInfo>,
        /// What went wrong.
        3 => hint: Option<Text>,
    }

    /// One table of a listing.
    pub struct TableInfo {
        /// An [`app_status`].
        1 => status: i32,
        /// [`APP_TYPE`].
        2 => app_type: Text,
        /// Name.
        3 => app_name: Text,
        /// Id.
        4 => app_id: i32,
        /// Number of partitions.
        5 => partition_count: i32,
        /// Options.
        6 => envs: Vec<(Text, Text)>,
        /// True.
        7 => is_stateful: bool,
        /// Replicas of each partition.
        8 => max_replica_count: i32,
        /// When a dropped table's data goes, unix seconds.
        9 => expire_second: i64,
        /// When it was created, unix seconds.
        10 => create_second: i64,
        /// When it was dropped, unix seconds.
        11 => drop_second: i64,
        /// Of no use here.
        12 => duplicating: Option<bool>,
        /// -1 unless the table is being split.
        13 => init_partition_count: i32,
        /// Of no use here.
        14 => is_bulk_loading: Option<bool>,
        /// Of no use here.
        15 => atomic_idempotent: Option<bool>,
    }

    /// Lists nodes.
    pub struct ListNodes {
        /// Only those in this [`node_status`]; 0 = all.
        1 => status: i32,
    }

    /// Reply to a listing of nodes.
    pub struct ListNodesReply {
        /// How it went.
        1 => err: ErrorName,
        /// The nodes.
        2 => infos: Vec<NodeInfo>,
    }

    /// One node of a listing.
    pub struct NodeInfo {
        /// A [`node_status`].
        1 => status: i32,
        /// Its address.
        2 => node: Address,
        /// Its address by name (Pegasus 2.6 only).
        3 => hp_node: Option<HostPort>,
    }

    /// Asks for facts about the cluster.
    pub struct ClusterInfo {}

    /// Facts about the cluster: as many keys as values.
    pub struct ClusterInfoReply {
        /// How it went.
        1 => err: ErrorName,
        /// What each fact is.
        2 => keys: Vec<Text>,
        /// What it says.
        3 => values: Vec<Text>,
    }

    /// A command for the node that it reaches.
    pub struct CommandLine {
        /// Its name.
        1 => command: Text,
        /// Its arguments.
        2 => arguments: Vec<Text>,
    }

    /// Reply to a command. It has no response struct: the text is the result itself.
    pub struct CommandLineReply {
        /// What the command prints.
        0 => output: Text,
    }

    /// Changes a table's options.
    pub struct UpdateEnvs {
        /// The table.
        1 => app_name: Text,
        /// An [`env_operation`].
        2 => op: i32,
        /// Keys to set or to remove.
        3 => keys: Option<Vec<Text>>,
        /// Values to set.
        4 => values: Option<Vec<Text>>,
        /// Prefix of the keys to clear.
        5 => clear_prefix: Option<Text>,
    }

    /// Reply to a change of options.
    pub struct UpdateEnvsReply {
        /// How it went.
        1 => err: ErrorName,
        /// What went wrong.
        2 => hint_message: Text,
    }

    /// One step of authentication.
    pub struct Negotiation {
        /// Which step: a [`NegotiationStatus`].
        1 => status: i32,
        /// Its data.
        2 => msg: Bytes,
    }

    /// Reply to a step of authentication.
    pub struct NegotiationReply {
        /// A [`NegotiationStatus`].
        1 => status: i32,
        /// Its data.
        2 => msg: Bytes,
    }

    /// Our own admin call.
    pub struct AdminCommand {
        /// What to do.
        1 => command: Text,
        /// Its argument, in a form that the command defines.
        2 => argument: Text,
    }

    /// Reply to our own admin call.
    pub struct AdminCommandReply {
        /// How it went.
        1 => err: ErrorName,
        /// The result, in a form that the command defines; or what went wrong.
        2 => text: Text,
    }

    /// Our own one-way message: the caller no longer wants a request's answer.
    pub struct Cancel {
        /// Whose request.
        1 => client_id: u64,
        /// Which of its requests.
        2 => request_id: u64,
        /// Which attempt of it; absent = all.
        3 => attempt: Option<i32>,
        /// Of a tied request: what its extension said.
        4 => tie: Option<Binary>,
        /// Instead of all that: the sequence id that the request had on this connection. Reads and scans only.
        5 => sequence_id: Option<i32>,
    }
}
