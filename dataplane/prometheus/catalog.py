"""The table of all metrics.

A metric that Kafka has keeps Kafka's meaning. Its name is the one that the example rules of
Prometheus' JMX exporter give to Kafka's MBean, in lower case, so that dashboards and alerts made
for Kafka work. The names of other metrics begin with `metaquorum_`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"  # quantiles of the last minutes; _sum and _count since the start


class Metric(NamedTuple):
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_COUNTER, _GAUGE, _SUMMARY = Kind.COUNTER, Kind.GAUGE, Kind.SUMMARY
_TOPIC: Final = ("topic",)
_PARTITION: Final = ("topic", "partition")
_LISTENER: Final = ("listener", "networkProcessor")
_QUOTA: Final = ("resource", "user", "clientId")
_BROKER_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager_"
_COORDINATOR: Final = "kafka_server_group_coordinator_metrics_"
_TRANSACTIONS: Final = "kafka_server_transaction_coordinator_metrics_"
_MARKERS: Final = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
_VERIFIER: Final = "kafka_server_addpartitionstotxnmanager_verification"
_GROUP_LAG: Final = ("group", "topic", "partition")
_RAFT: Final = "kafka_server_raft_metrics_"

_WITHOUT_TOPIC: Final = " Without a topic label: the worker's total, deleted topics included."

_ROWS: Final = (
    # Traffic
    Metric(
        _BROKER_TOPIC + "messagesin_total",
        _COUNTER,
        _TOPIC,
        "Records appended by producers." + _WITHOUT_TOPIC,
    ),
    Metric(
        _BROKER_TOPIC + "bytesin_total",
        _COUNTER,
        _TOPIC,
        "Bytes of record batches appended by producers." + _WITHOUT_TOPIC,
    ),
    Metric(
        _BROKER_TOPIC + "bytesout_total",
        _COUNTER,
        _TOPIC,
        "Bytes of record batches sent to consumers." + _WITHOUT_TOPIC,
    ),
    Metric(
        _BROKER_TOPIC + "replicationbytesin_total",
        _COUNTER,
        (),
        "Bytes of record batches fetched from partition leaders.",
    ),
    Metric(
        _BROKER_TOPIC + "replicationbytesout_total",
        _COUNTER,
        (),
        "Bytes of record batches sent to followers.",
    ),
    Metric(
        _BROKER_TOPIC + "reassignmentbytesin_total",
        _COUNTER,
        (),
        "Bytes of record batches fetched from partition leaders by replicas that a move adds.",
    ),
    Metric(
        _BROKER_TOPIC + "reassignmentbytesout_total",
        _COUNTER,
        (),
        "Bytes of record batches sent to followers that a move adds.",
    ),
    Metric(_BROKER_TOPIC + "totalproducerequests_total", _COUNTER, (), "Produce requests handled."),
    Metric(
        _BROKER_TOPIC + "totalfetchrequests_total",
        _COUNTER,
        (),
        "Fetch requests handled, those of followers included.",
    ),
    # Requests and connections
    Metric(
        "kafka_network_requestmetrics_requests_total",
        _COUNTER,
        ("request", "version"),
        "Requests handled; version -1 counts requests in unsupported versions.",
    ),
    Metric(
        "kafka_network_requestmetrics_totaltimems",
        _SUMMARY,
        ("request", "quantile"),
        "Milliseconds from a request's header to its response, waits included; of a busy API by"
        " a sample.",
    ),
    Metric(
        "kafka_network_requestmetrics_localtimems",
        _SUMMARY,
        ("request", "quantile"),
        "Milliseconds of the total until the response was ready or began to wait; of a busy API by"
        " a sample.",
    ),
    Metric(
        "kafka_network_requestmetrics_remotetimems",
        _SUMMARY,
        ("request", "quantile"),
        "Milliseconds that responses waited for followers, records, the controller or the disk; of"
        " a busy API by a sample.",
    ),
    Metric(
        "kafka_network_requestmetrics_errors_total",
        _COUNTER,
        ("request", "error"),
        "Error codes in responses, per request, topic or partition; NONE is not counted.",
    ),
    Metric(
        _BROKER_TOPIC + "failedproducerequests_total",
        _COUNTER,
        (),
        "Error codes in Produce responses, usually one for each failed partition.",
    ),
    Metric(
        _BROKER_TOPIC + "failedfetchrequests_total",
        _COUNTER,
        (),
        "Error codes in Fetch responses, usually one for each failed partition.",
    ),
    *(
        Metric(
            f"kafka_server_socket_server_metrics_{name}",
            _COUNTER if name.endswith("_total") else _GAUGE,
            _LISTENER,
            text,
        )
        for name, text in (
            ("successful_authentication_total", "Successful authentications."),
            ("failed_authentication_total", "Failed authentications and TLS handshakes."),
            ("successful_reauthentication_total", "Successful re-authentications (KIP-368)."),
            ("failed_reauthentication_total", "Failed re-authentications (KIP-368)."),
            (
                "expired_connections_killed_count",
                "Connections closed because re-authentication was overdue.",
            ),
        )
    ),
    Metric(
        "kafka_server_socket_server_metrics_connection_count",
        _GAUGE,
        ("listener", "networkProcessor"),
        "Open client connections.",
    ),
    Metric(
        "kafka_server_socket_server_metrics_connection_creation_total",
        _COUNTER,
        ("listener", "networkProcessor"),
        "Client connections accepted.",
    ),
    # Logs
    Metric("kafka_log_log_size", _GAUGE, _PARTITION, "Size of the replica's log in bytes."),
    Metric("kafka_log_log_logstartoffset", _GAUGE, _PARTITION, "Log start offset of the replica."),
    Metric("kafka_log_log_logendoffset", _GAUGE, _PARTITION, "Log end offset of the replica."),
    Metric("kafka_log_log_numlogsegments", _GAUGE, _PARTITION, "Segments of the replica's log."),
    Metric(
        "kafka_log_logflushstats_logflushrateandtimems",
        _SUMMARY,
        ("quantile",),
        "Milliseconds per flush of a partition log.",
    ),
    Metric(
        "kafka_log_logmanager_offlinelogdirectorycount",
        _GAUGE,
        (),
        "Log directories that have failed or are missing.",
    ),
    Metric(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        _GAUGE,
        (),
        "Partitions that the cleaner skips because it cannot read their logs.",
    ),
    Metric(
        "kafka_log_logcleaner_max_clean_time_secs",
        _GAUGE,
        (),
        "Seconds of the last cleaning of a log, maximum over the cleaner threads.",
    ),
    Metric(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        _GAUGE,
        (),
        "Seconds by which the oldest uncompacted record exceeds max.compaction.lag.ms.",
    ),
    # Replication
    Metric(
        _REPLICAS + "partitioncount", _GAUGE, (), "Replicas of this worker, offline ones included."
    ),
    Metric(_REPLICAS + "leadercount", _GAUGE, (), "Partitions led by this worker."),
    Metric(
        _REPLICAS + "offlinereplicacount",
        _GAUGE,
        (),
        "Offline replicas of this worker.",
    ),
    Metric(
        _REPLICAS + "underreplicatedpartitions",
        _GAUGE,
        (),
        "Partitions led by this worker with fewer in-sync replicas than replicas, without those"
        " that a move adds.",
    ),
    Metric(
        _REPLICAS + "reassigningpartitions",
        _GAUGE,
        (),
        "Partitions led by this worker that move to other replicas.",
    ),
    Metric(
        _REPLICAS + "underminisrpartitioncount",
        _GAUGE,
        (),
        "Partitions led by this worker with fewer in-sync replicas than min.insync.replicas, or"
        " than replicas if that is less.",
    ),
    Metric(
        _REPLICAS + "atminisrpartitioncount",
        _GAUGE,
        (),
        "Partitions led by this worker with exactly min.insync.replicas in-sync replicas, or with"
        " all in sync if they are fewer.",
    ),
    Metric(
        _REPLICAS + "isrshrinks_total",
        _COUNTER,
        (),
        "ISR shrinks of partitions led by this worker.",
    ),
    Metric(
        _REPLICAS + "isrexpands_total",
        _COUNTER,
        (),
        "ISR expansions of partitions led by this worker.",
    ),
    Metric(
        _REPLICAS + "produceridcount",
        _GAUGE,
        (),
        "Producer ids known to the online replicas of this worker, once for each replica.",
    ),
    Metric(
        _REPLICAS + "partitionswithlatetransactionscount",
        _GAUGE,
        (),
        "Partitions led by this worker whose oldest open transaction has had no batch for five"
        " minutes more than transaction.max.timeout.ms.",
    ),
    Metric(
        "kafka_server_replicafetchermanager_maxlag",
        _GAUGE,
        ("clientId",),
        "Committed records not fetched yet, maximum over the follower replicas of this worker.",
    ),
    Metric(
        "kafka_cluster_partition_replicascount",
        _GAUGE,
        _PARTITION,
        "Replicas, without those that a move adds; 0 on followers.",
    ),
    Metric(
        "kafka_cluster_partition_insyncreplicascount",
        _GAUGE,
        _PARTITION,
        "In-sync replicas; 0 on followers.",
    ),
    Metric(
        "kafka_cluster_partition_underreplicated",
        _GAUGE,
        _PARTITION,
        "1 on the leader if a replica is not in sync, without those that a move adds; otherwise 0.",
    ),
    Metric(
        "metaquorum_partition_bytesin_total",
        _COUNTER,
        _PARTITION,
        "Bytes of record batches appended to this replica, by producers or from the leader,"
        " throttled or not; its rate is the PartitionBytesInRate of KIP-73.",
    ),
    # Replication quotas (KIP-73)
    Metric(
        "kafka_server_leaderreplication_byte_rate",
        _GAUGE,
        (),
        "Bytes a second of throttled replicas that this worker sent to followers, over the window"
        " (LeaderReplicationThrottledRate).",
    ),
    Metric(
        "kafka_server_followerreplication_byte_rate",
        _GAUGE,
        (),
        "Bytes a second of throttled replicas that this worker fetched from leaders, over the"
        " window (FollowerReplicationThrottledRate).",
    ),
    Metric(
        "metaquorum_replication_throttled_bytes_total",
        _COUNTER,
        ("side",),
        "Bytes of throttled replicas, sent (leader) or fetched (follower), those of in-sync"
        " replicas included.",
    ),
    Metric(
        "metaquorum_replication_throttled_rate_limit",
        _GAUGE,
        ("side",),
        "Limit of throttled replication in bytes a second that is in force: the lowest of"
        " leader.replication.throttled.rate or follower.replication.throttled.rate, and of the"
        " plans that move replicas of this worker. Without a limit there is no row.",
    ),
    Metric(
        "metaquorum_replica_lag_sum",
        _GAUGE,
        (),
        "Committed records not fetched yet, sum over the follower replicas of this worker"
        " (SumReplicaLag). If it stops decreasing during a move, a throttle is too low.",
    ),
    Metric(
        "kafka_server_alterlogdirsreplication_byte_rate",
        _GAUGE,
        (),
        "Bytes a second that this worker copied between its log directories, over the window"
        " (AlterLogDirsReplication).",
    ),
    Metric(
        "kafka_server_replicaalterlogdirsmanager_maxlag",
        _GAUGE,
        (),
        "Largest number of records that a future replica is behind its log"
        " (ReplicaAlterLogDirsManager).",
    ),
    Metric(
        "kafka_server_replicaalterlogdirsmanager_failedpartitionscount",
        _GAUGE,
        (),
        "Moves of replicas between log directories that ended by an error.",
    ),
    Metric(
        "metaquorum_log_dir_free_bytes",
        _GAUGE,
        ("directory",),
        "Bytes that this process can still write on the file system of a log directory. Missing for"
        " a directory that has failed.",
    ),
    Metric(
        "metaquorum_log_dir_total_bytes",
        _GAUGE,
        ("directory",),
        "Size of the file system of a log directory.",
    ),
    Metric(
        "metaquorum_log_dir_moves",
        _GAUGE,
        (),
        "Replicas that move to another log directory of this worker.",
    ),
    Metric(
        "metaquorum_log_dir_moved_total",
        _COUNTER,
        (),
        "Replicas that were moved to another log directory of this worker.",
    ),
    Metric(
        "metaquorum_log_dir_moved_bytes_total",
        _COUNTER,
        (),
        "Bytes that this worker copied between its log directories.",
    ),
    # Quotas of users and client ids that were active within the quota window
    Metric(
        "kafka_server_quota_byte_rate",
        _GAUGE,
        _QUOTA,
        "Bytes a second produced (Produce) or fetched (Fetch) by all clients that share a quota.",
    ),
    Metric(
        "kafka_server_quota_request_time",
        _GAUGE,
        _QUOTA,
        "Percent of the event loop's time used by all clients that share a quota.",
    ),
    Metric(
        "kafka_server_quota_throttle_time",
        _GAUGE,
        _QUOTA,
        "Average throttle time in milliseconds within the quota window.",
    ),
    Metric(
        "metaquorum_quota_value",
        _GAUGE,
        _QUOTA,
        "Limit of the quota: bytes a second, or percent for Request.",
    ),
    Metric(
        "metaquorum_quota_utilization",
        _GAUGE,
        _QUOTA,
        "Rate divided by the limit of the quota; above 1 the quota is violated.",
    ),
    Metric("metaquorum_quota_throttles_total", _COUNTER, _QUOTA, "Throttled responses."),
    Metric(
        "metaquorum_muted_connections",
        _GAUGE,
        ("resource",),
        "Muted connections, by the violated quota.",
    ),
    Metric(
        "kafka_server_quota_tokens",
        _GAUGE,
        _QUOTA,
        "Partition creations and deletions left in the token bucket; below 0 clients are"
        " throttled; reported by the active controller only.",
    ),
    Metric(
        "metaquorum_connections_throttled_total",
        _COUNTER,
        (),
        "Connections refused or delayed by a limit of the connection creation rate.",
    ),
    Metric(
        "metaquorum_new_producers_refused_total",
        _COUNTER,
        ("reason",),
        "Batches of producers new to a partition that were refused: share, the client had used up"
        " max.producer.ids.per.client; forged, the cluster has not given out the producer id.",
    ),
    # Groups that this worker coordinates
    Metric(
        _GROUPS + "numgroups", _GAUGE, (), "Groups, those with committed offsets only included."
    ),
    *(
        Metric(f"{_GROUPS}numgroups{state.lower()}", _GAUGE, (), f"Groups in the state {state}.")
        for state in ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
    ),
    Metric(_GROUPS + "numoffsets", _GAUGE, (), "Committed offsets."),
    *(
        Metric(_COORDINATOR + name, _GAUGE, (), text + " since the start of the worker.")
        for name, text in (
            ("offset_commit_count", "Offsets in commits of clients"),
            ("offset_expiration_count", "Offsets removed by offsets.retention.minutes"),
            ("offset_deletion_count", "Offsets removed by requests or with their topics"),
            ("group_completed_rebalance_count", "Completed rebalances"),
        )
    ),
    Metric(
        "metaquorum_group_rebalance_ms",
        _SUMMARY,
        ("quantile",),
        "Milliseconds of completed rebalances, from their cause to the recorded assignment.",
    ),
    Metric(
        _COORDINATOR + "num_partitions",
        _GAUGE,
        ("state",),
        "Partitions of __consumer_offsets that this worker leads, by loading, active and failed.",
    ),
    Metric(
        _COORDINATOR + "partition_load_time_avg",
        _GAUGE,
        (),
        "Average milliseconds for loading the groups of a partition since the start of the worker.",
    ),
    Metric(
        _COORDINATOR + "partition_load_time_max",
        _GAUGE,
        (),
        "Longest milliseconds for loading the groups of a partition in the last minutes.",
    ),
    Metric(
        "metaquorum_group_partition_loads_total",
        _COUNTER,
        (),
        "Partitions whose groups were loaded.",
    ),
    Metric(
        "metaquorum_group_memory_bytes",
        _GAUGE,
        (),
        "Memory of groups, members, subscriptions and assignments, estimated.",
    ),
    Metric(
        "metaquorum_group_offset_memory_bytes",
        _GAUGE,
        (),
        "Memory of committed offsets, estimated.",
    ),
    Metric(
        "metaquorum_coordinator_budget_limit_bytes",
        _GAUGE,
        ("budget",),
        "Limit of the memory of groups, committed offsets or transactional ids: the config that"
        " the budget is named after.",
    ),
    Metric(
        "metaquorum_coordinator_budget_counted_bytes",
        _GAUGE,
        ("budget",),
        "Memory that counts against the limit. Above half of it, clients with the most are refused"
        " new state; `mq-admin cluster memory` names them.",
    ),
    Metric(
        "metaquorum_coordinator_budget_clients",
        _GAUGE,
        ("budget",),
        "Clients with state: principals, and addresses without authentication.",
    ),
    Metric(
        "metaquorum_coordinator_budget_refused_total",
        _COUNTER,
        ("budget", "reason"),
        "Requests that were refused state: the client had its share, or others had nearly all.",
    ),
    Metric(
        "metaquorum_group_lag_records",
        _GAUGE,
        _GROUP_LAG,
        "Committed records after the group's committed offset, at most ten seconds ago.",
    ),
    Metric(
        "metaquorum_group_lag_seconds",
        _GAUGE,
        _GROUP_LAG,
        "Age of the first unread record by the timestamp of its batch; 0 if all are read; no row"
        " if it is not known.",
    ),
    # Transactions that this worker coordinates, and verifications that it asks for
    Metric(
        "metaquorum_transactional_ids",
        _GAUGE,
        ("state",),
        "Transactional ids by the state of their last transaction.",
    ),
    Metric(
        "metaquorum_transactions_ended_total",
        _COUNTER,
        ("outcome",),
        "Transactions that this worker has decided as their coordinator: commit or abort.",
    ),
    Metric(
        "metaquorum_transactions_timed_out_total",
        _COUNTER,
        (),
        "Transactions aborted because they were open for longer than their timeouts.",
    ),
    Metric(
        "metaquorum_transaction_markers_ms",
        _SUMMARY,
        ("quantile",),
        "Milliseconds from the decision of a transaction until all its markers were written.",
    ),
    Metric(
        "metaquorum_transaction_marker_retries_total",
        _COUNTER,
        (),
        "Failed attempts to write markers of a transaction, and waits for leaders of partitions.",
    ),
    Metric(
        _MARKERS + "unknowndestinationqueuesize",
        _GAUGE,
        (),
        "Ended transactions whose markers wait for the leader of a partition.",
    ),
    Metric(
        _MARKERS + "logappendretryqueuesize",
        _GAUGE,
        (),
        "Ended transactions whose completion could not be appended to __transaction_state yet.",
    ),
    Metric(
        "metaquorum_transaction_partitions",
        _GAUGE,
        ("state",),
        "Partitions of __transaction_state that this worker leads, by loading, active and failed.",
    ),
    Metric(
        _TRANSACTIONS + "partition_load_time_avg",
        _GAUGE,
        (),
        "Average milliseconds for loading the transactions of a partition since the start of the"
        " worker.",
    ),
    Metric(
        _TRANSACTIONS + "partition_load_time_max",
        _GAUGE,
        (),
        "Longest milliseconds for loading the transactions of a partition in the last minutes.",
    ),
    Metric(
        "metaquorum_transaction_partition_loads_total",
        _COUNTER,
        (),
        "Partitions whose transactions were loaded.",
    ),
    Metric(
        "metaquorum_transaction_memory_bytes",
        _GAUGE,
        (),
        "Memory of transactional ids and the partitions of their transactions, estimated.",
    ),
    Metric(
        _VERIFIER + "failurerate_count",
        _GAUGE,
        (),
        "Partitions that coordinators did not confirm as part of a transaction, retries included.",
    ),
    Metric(
        _VERIFIER + "timems",
        _SUMMARY,
        ("quantile",),
        "Milliseconds until a coordinator confirmed or refused the partitions of a transaction.",
    ),
    # The worker
    Metric(
        "kafka_server_kafkaserver_brokerstate",
        _GAUGE,
        (),
        "State of the worker; 3: running, 6: controlled shutdown.",
    ),
    Metric(
        "kafka_server_broker_metadata_metrics_last_applied_record_offset",
        _GAUGE,
        (),
        "Offset of the last metadata record applied by this node.",
    ),
    # The controller role of the node
    Metric(
        _CONTROLLER + "activecontrollercount",
        _GAUGE,
        (),
        "1 on the active controller, otherwise 0.",
    ),
    Metric(
        _CONTROLLER + "activebrokercount", _GAUGE, (), "Registered workers that are not fenced."
    ),
    Metric(_CONTROLLER + "fencedbrokercount", _GAUGE, (), "Registered workers that are fenced."),
    Metric("metaquorum_draining_workers", _GAUGE, (), "Workers that an operator drains."),
    Metric(
        "metaquorum_draining_replicas",
        _GAUGE,
        (),
        "Replicas on draining workers, also those that a move adds or removes.",
    ),
    Metric(
        "metaquorum_move_plans",
        _GAUGE,
        ("state",),
        "Plans of moves that have not ended, by state: loading, running, paused or cancelling.",
    ),
    Metric(
        "metaquorum_move_plan_moves",
        _GAUGE,
        ("plan", "state"),
        "Moves of a plan that has not ended. Those that are waiting or moving are left; stopped"
        " ones were cancelled or given up.",
    ),
    Metric(
        "metaquorum_move_plan_bytes_left",
        _GAUGE,
        ("plan",),
        "Bytes of the moves of a plan that are waiting or moving, as estimated at its start. A move"
        " counts as a whole until it ends.",
    ),
    Metric(
        "metaquorum_move_plan_throttle_rate",
        _GAUGE,
        ("plan",),
        "Throttle of a plan in bytes a second of each worker on each side. Without one there is no"
        " row.",
    ),
    Metric(_CONTROLLER + "globaltopiccount", _GAUGE, (), "Topics in the cluster."),
    Metric(_CONTROLLER + "globalpartitioncount", _GAUGE, (), "Partitions in the cluster."),
    Metric(
        _CONTROLLER + "offlinepartitionscount",
        _GAUGE,
        (),
        "Partitions in the cluster without a leader.",
    ),
    Metric(
        _CONTROLLER + "preferredreplicaimbalancecount",
        _GAUGE,
        (),
        "Partitions whose leader is not the preferred replica, leaderless ones included.",
    ),
    Metric(
        "kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total",
        _COUNTER,
        (),
        "Leader elections from the eligible leader replicas (ELR, KIP-966).",
    ),
    Metric(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        _COUNTER,
        (),
        "Unclean leader elections; each may have lost committed records.",
    ),
    Metric(_RAFT + "current_leader", _GAUGE, (), "Node id of the quorum leader; -1 if unknown."),
    Metric(_RAFT + "current_epoch", _GAUGE, (), "Current Raft term."),
    Metric(
        _RAFT + "high_watermark",
        _GAUGE,
        (),
        "Raft commit index known to this node.",
    ),
    Metric(
        _RAFT + "current_state_info",
        _GAUGE,
        ("state",),
        "1 for the current Raft state of the voter.",
    ),
    # The process, as Prometheus' client libraries report it
    Metric("process_cpu_seconds_total", _COUNTER, (), "User and system CPU time in seconds."),
    Metric("process_resident_memory_bytes", _GAUGE, (), "Resident memory in bytes."),
    Metric("process_open_fds", _GAUGE, (), "Open file descriptors."),
    Metric(
        "process_start_time_seconds",
        _GAUGE,
        (),
        "Start time of the process in seconds since the Unix epoch.",
    ),
    # Metrics without a counterpart in Kafka
    Metric(
        "metaquorum_build_info",
        _GAUGE,
        ("version", "cluster_id", "node_id"),
        "Always 1; version, cluster id and node id are in the labels.",
    ),
    Metric(
        "metaquorum_metrics_left_out",
        _GAUGE,
        ("what",),
        "Partitions, topics, quotas and group lags beyond the limits of the page, without rows of"
        " their own; group lags also if the end of the log is not known.",
    ),
    Metric(
        "metaquorum_metrics_collect_seconds",
        _GAUGE,
        (),
        "Seconds of the event loop used by the previous collection, all slices together.",
    ),
)

METRICS: Final[Mapping[str, Metric]] = {row.name: row for row in _ROWS}
