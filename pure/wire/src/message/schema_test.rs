//! The ids and types of every field, written down a second time: the round trips cannot see two fields change places.

use super::*;
use crate::header::ReplyExtension;
use crate::reply::Detail;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// `id:name` of every field, followed by its type tag: 2 bool, 8 i32, 10 i64, 11 string, 12 struct or placeholder,
/// 13 map, 15 list.
const SCHEMA: &str = "\
Put: 1:key 12, 2:value 12, 3:expire_ts_seconds 8
UpdateReply: 1:error 8, 2:app_id 8, 3:partition_index 8, 4:decree 10, 5:server 11
GetReply: 1:error 8, 2:value 12, 3:app_id 8, 4:partition_index 8, 6:server 11
TtlReply: 1:error 8, 2:ttl_seconds 8, 3:app_id 8, 4:partition_index 8, 6:server 11
CountReply: 1:error 8, 2:count 10, 3:app_id 8, 4:partition_index 8, 6:server 11
KeyValue: 1:key 12, 2:value 12, 3:expire_ts_seconds 8
MultiPut: 1:hash_key 12, 2:kvs 15, 3:expire_ts_seconds 8
MultiRemove: 1:hash_key 12, 2:sort_keys 15, 3:max_count 10
MultiRemoveReply: 1:error 8, 2:count 10, 3:app_id 8, 4:partition_index 8, 5:decree 10, 6:server 11
MultiGet: 1:hash_key 12, 2:sort_keys 15, 3:max_kv_count 8, 4:max_kv_size 8, 5:no_value 2, 6:start_sortkey 12, \
7:stop_sortkey 12, 8:start_inclusive 2, 9:stop_inclusive 2, 10:sort_key_filter_type 8, 11:sort_key_filter_pattern 12, \
12:reverse 2
MultiGetReply: 1:error 8, 2:kvs 15, 3:app_id 8, 4:partition_index 8, 6:server 11
FullKey: 1:hash_key 12, 2:sort_key 12
BatchGet: 1:keys 15
FullData: 1:hash_key 12, 2:sort_key 12, 3:value 12
BatchGetReply: 1:error 8, 2:data 15, 3:app_id 8, 4:partition_index 8, 6:server 11
Incr: 1:key 12, 2:increment 10, 3:expire_ts_seconds 8
IncrReply: 1:error 8, 2:new_value 10, 3:app_id 8, 4:partition_index 8, 5:decree 10, 6:server 11
CheckAndSet: 1:hash_key 12, 2:check_sort_key 12, 3:check_type 8, 4:check_operand 12, 5:set_diff_sort_key 2, \
6:set_sort_key 12, 7:set_value 12, 8:set_expire_ts_seconds 8, 9:return_check_value 2
Mutate: 1:operation 8, 2:sort_key 12, 3:value 12, 4:set_expire_ts_seconds 8
CheckAndMutate: 1:hash_key 12, 2:check_sort_key 12, 3:check_type 8, 4:check_operand 12, 5:mutate_list 15, \
6:return_check_value 2
CheckReply: 1:error 8, 2:check_value_returned 2, 3:check_value_exist 2, 4:check_value 12, 5:app_id 8, \
6:partition_index 8, 7:decree 10, 8:server 11
GetScanner: 1:start_key 12, 2:stop_key 12, 3:start_inclusive 2, 4:stop_inclusive 2, 5:batch_size 8, 6:no_value 2, \
7:hash_key_filter_type 8, 8:hash_key_filter_pattern 12, 9:sort_key_filter_type 8, 10:sort_key_filter_pattern 12, \
11:validate_partition_hash 2, 12:return_expire_ts 2, 13:full_scan 2, 14:only_return_count 2
Scan: 1:context_id 10
ScanReply: 1:error 8, 2:kvs 15, 3:context_id 10, 4:app_id 8, 5:partition_index 8, 6:server 11, 7:kv_count 8
QueryConfig: 1:app_name 11, 2:partition_indices 15
QueryConfigReply: 1:err 12, 2:app_id 8, 3:partition_count 8, 4:is_stateful 2, 5:partitions 15, 110:table_kind 8, \
111:start_keys 15, 112:nodes 15
PartitionConfig: 1:pid 12, 2:ballot 10, 3:max_replica_count 8, 4:primary 12, 5:secondaries 15, 6:last_drops 15, \
7:last_committed_decree 10, 8:partition_flags 8, 9:hp_primary 12, 10:hp_secondaries 15, 11:hp_last_drops 15, \
110:learners 15
NodePlace: 1:address 10, 2:labels 15
CreateTable: 1:app_name 11, 2:options 12
CreateOptions: 1:partition_count 8, 2:replica_count 8, 3:success_if_exist 2, 4:app_type 11, 5:is_stateful 2, \
6:envs 13, 7:atomic_idempotent 2
CreateTableReply: 1:err 12, 2:appid 8
DropTable: 1:app_name 11, 2:options 12
DropOptions: 1:success_if_not_exist 2, 2:reserve_seconds 10
DropTableReply: 1:err 12
RecallTable: 1:app_id 8, 2:new_app_name 11
RecallTableReply: 1:err 12, 2:info 12
ListTables: 1:status 8, 2:pattern 11, 3:match_type 8
ListTablesReply: 1:err 12, 2:infos 15, 3:hint 11
TableInfo: 1:status 8, 2:app_type 11, 3:app_name 11, 4:app_id 8, 5:partition_count 8, 6:envs 13, 7:is_stateful 2, \
8:max_replica_count 8, 9:expire_second 10, 10:create_second 10, 11:drop_second 10, 12:duplicating 2, \
13:init_partition_count 8, 14:is_bulk_loading 2, 15:atomic_idempotent 2
ListNodes: 1:status 8
ListNodesReply: 1:err 12, 2:infos 15
NodeInfo: 1:status 8, 2:node 12, 3:hp_node 12
ClusterInfo: \n\
ClusterInfoReply: 1:err 12, 2:keys 15, 3:values 15
UpdateEnvs: 1:app_name 11, 2:op 8, 3:keys 15, 4:values 15, 5:clear_prefix 11
UpdateEnvsReply: 1:err 12, 2:hint_message 11
Negotiation: 1:status 8, 2:msg 12
NegotiationReply: 1:status 8, 2:msg 12
AdminCommand: 1:command 11, 2:argument 11
AdminCommandReply: 1:err 12, 2:text 11
Cancel: 1:client_id 10, 2:request_id 10, 3:attempt 8, 4:tie 11, 5:sequence_id 8
ReplyExtension: 100:served_by 11, 101:index 10, 102:staleness_ms 10, 103:queue_us 8, \
104:requests_in_flight 8, 105:service_us 8, 106:read_level_code 8, 107:attempt 8, 108:mode 11
Detail: 100:kind 8, 101:leader 11, 102:message 11
";

macro_rules! described {
    ($($message:ident)*) => {{
        let mut schema = String::new();
        $({
            let fields: Vec<String> =
                $message::FIELDS.iter().map(|(id, name, tag)| format!("{id}:{name} {tag}")).collect();
            schema += &format!("{}: {}\n", stringify!($message), fields.join(", "));
        })*
        schema
    }};
}

#[test]
fn every_field_has_the_id_and_the_type_that_clients_expect() {
    let schema = described!(
        Put UpdateReply GetReply TtlReply CountReply KeyValue MultiPut MultiRemove MultiRemoveReply MultiGet
        MultiGetReply FullKey BatchGet FullData BatchGetReply Incr IncrReply CheckAndSet Mutate CheckAndMutate
        CheckReply GetScanner Scan ScanReply QueryConfig QueryConfigReply PartitionConfig NodePlace CreateTable
        CreateOptions CreateTableReply DropTable DropOptions DropTableReply RecallTable RecallTableReply ListTables
        ListTablesReply TableInfo ListNodes
        ListNodesReply NodeInfo ClusterInfo ClusterInfoReply UpdateEnvs UpdateEnvsReply Negotiation NegotiationReply
        AdminCommand AdminCommandReply Cancel ReplyExtension Detail
    );
    assert_eq!(schema, SCHEMA);
}
