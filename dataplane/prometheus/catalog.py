"""Every metric there is, in one table.

Where Kafka has a metric, its name is what Kafka's MBean becomes by the rules that come with
Prometheus' JMX exporter, in lower case, so that dashboards and alerts that were made for Kafka read
it; its meaning is Kafka's. What Kafka does not have begins with `metaquorum_`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"  # quantiles of the last minutes; _sum and _count of all time


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
_RAFT: Final = "kafka_server_raft_metrics_"

_WITHOUT_TOPIC: Final = " Without a topic: of the worker, deleted topics included."

_ROWS: Final = (
    # Traffic
    Metric(
        _BROKER_TOPIC + "messagesin_total",
        _COUNTER,
        _TOPIC,
        "Records that producers have sent." + _WITHOUT_TOPIC,
    ),
    Metric(
        _BROKER_TOPIC + "bytesin_total",
        _COUNTER,
        _TOPIC,
        "Bytes of record batches that producers have sent." + _WITHOUT_TOPIC,
    ),
    Metric(
        _BROKER_TOPIC + "bytesout_total",
        _COUNTER,
        _TOPIC,
        "Bytes of record batches that consumers were sent." + _WITHOUT_TOPIC,
    ),
    Metric(
        _BROKER_TOPIC + "replicationbytesin_total",
        _COUNTER,
        (),
        "Bytes of record batches that were fetched from leaders.",
    ),
    Metric(
        _BROKER_TOPIC + "replicationbytesout_total",
        _COUNTER,
        (),
        "Bytes of record batches that followers were sent.",
    ),
    Metric(_BROKER_TOPIC + "totalproducerequests_total", _COUNTER, (), "Produce requests."),
    Metric(
        _BROKER_TOPIC + "totalfetchrequests_total",
        _COUNTER,
        (),
        "Fetch requests, those of followers included.",
    ),
    # Requests and connections
    Metric(
        "kafka_network_requestmetrics_requests_total",
        _COUNTER,
        ("request", "version"),
        "Requests that were answered; version -1: of one that is not served.",
    ),
    Metric(
        "kafka_network_requestmetrics_totaltimems",
        _SUMMARY,
        ("request", "quantile"),
        "Milliseconds from a whole request to its answer, waits included.",
    ),
    Metric(
        "kafka_network_requestmetrics_localtimems",
        _SUMMARY,
        ("request", "quantile"),
        "Milliseconds of it until the answer was ready, or waited for something.",
    ),
    Metric(
        "kafka_network_requestmetrics_remotetimems",
        _SUMMARY,
        ("request", "quantile"),
        "Milliseconds that answers waited: for followers, records, the controller, the disk.",
    ),
    Metric(
        "kafka_network_requestmetrics_errors_total",
        _COUNTER,
        ("request", "error"),
        "Error codes in answers, each of a request, a topic or a partition; NONE is not counted.",
    ),
    Metric(
        _BROKER_TOPIC + "failedproducerequests_total",
        _COUNTER,
        (),
        "Error codes in answers to Produce, each of a partition as a rule.",
    ),
    Metric(
        _BROKER_TOPIC + "failedfetchrequests_total",
        _COUNTER,
        (),
        "Error codes in answers to Fetch, each of a partition as a rule.",
    ),
    *(
        Metric(
            f"kafka_server_socket_server_metrics_{name}",
            _COUNTER if name.endswith("_total") else _GAUGE,
            _LISTENER,
            text,
        )
        for name, text in (
            ("successful_authentication_total", "Clients that have shown who they are."),
            ("failed_authentication_total", "Clients that have failed to, or to agree on TLS."),
            ("successful_reauthentication_total", "Clients that have shown it again in time."),
            ("failed_reauthentication_total", "Clients that have failed to show it again."),
            ("expired_connections_killed_count", "Connections closed, as they did not in time."),
        )
    ),
    Metric(
        "kafka_server_socket_server_metrics_connection_count",
        _GAUGE,
        ("listener", "networkProcessor"),
        "Connections of clients that are open.",
    ),
    Metric(
        "kafka_server_socket_server_metrics_connection_creation_total",
        _COUNTER,
        ("listener", "networkProcessor"),
        "Connections of clients that were taken.",
    ),
    # Logs
    Metric("kafka_log_log_size", _GAUGE, _PARTITION, "Bytes of the partition's segments here."),
    Metric(
        "kafka_log_log_logstartoffset", _GAUGE, _PARTITION, "The first offset that can be read."
    ),
    Metric("kafka_log_log_logendoffset", _GAUGE, _PARTITION, "The offset of the next record."),
    Metric("kafka_log_log_numlogsegments", _GAUGE, _PARTITION, "Segments of the partition here."),
    Metric(
        "kafka_log_logflushstats_logflushrateandtimems",
        _SUMMARY,
        ("quantile",),
        "Milliseconds that flushes of a partition's log took.",
    ),
    Metric(
        "kafka_log_logmanager_offlinelogdirectorycount",
        _GAUGE,
        (),
        "Log directories that have failed, or are absent.",
    ),
    Metric(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        _GAUGE,
        (),
        "Partitions that cannot be compacted, for something in them cannot be opened.",
    ),
    Metric(
        "kafka_log_logcleaner_max_clean_time_secs",
        _GAUGE,
        (),
        "Seconds that the last cleaning of a log took, of all threads the longest.",
    ),
    Metric(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        _GAUGE,
        (),
        "Seconds beyond max.compaction.lag.ms that a record has waited to be compacted.",
    ),
    # Replication
    Metric(_REPLICAS + "partitioncount", _GAUGE, (), "Partitions of which a replica is here."),
    Metric(_REPLICAS + "leadercount", _GAUGE, (), "Partitions that this worker leads."),
    Metric(
        _REPLICAS + "offlinereplicacount",
        _GAUGE,
        (),
        "Replicas of this worker whose log cannot be used.",
    ),
    Metric(
        _REPLICAS + "underreplicatedpartitions",
        _GAUGE,
        (),
        "Partitions led here that have replicas not in sync.",
    ),
    Metric(
        _REPLICAS + "underminisrpartitioncount",
        _GAUGE,
        (),
        "Partitions led here with fewer replicas in sync than min.insync.replicas.",
    ),
    Metric(
        _REPLICAS + "atminisrpartitioncount",
        _GAUGE,
        (),
        "Partitions led here with just min.insync.replicas in sync.",
    ),
    Metric(_REPLICAS + "isrshrinks_total", _COUNTER, (), "Times that a replica fell out of sync."),
    Metric(_REPLICAS + "isrexpands_total", _COUNTER, (), "Times that a replica came in sync."),
    Metric(
        "kafka_server_replicafetchermanager_maxlag",
        _GAUGE,
        ("clientId",),
        "Records committed that a replica here has not yet fetched, of the one that has most.",
    ),
    Metric(
        "kafka_cluster_partition_replicascount", _GAUGE, _PARTITION, "Replicas; 0 if not led here."
    ),
    Metric(
        "kafka_cluster_partition_insyncreplicascount",
        _GAUGE,
        _PARTITION,
        "Replicas in sync; 0 if not led here.",
    ),
    Metric(
        "kafka_cluster_partition_underreplicated",
        _GAUGE,
        _PARTITION,
        "1: led here, and a replica is not in sync.",
    ),
    # Quotas of users and client ids, of which something was used within the window
    Metric(
        "kafka_server_quota_byte_rate",
        _GAUGE,
        _QUOTA,
        "Bytes a second that all who share a quota have sent (Produce) or were sent (Fetch).",
    ),
    Metric(
        "kafka_server_quota_request_time",
        _GAUGE,
        _QUOTA,
        "Percent of the loop's time that all who share a quota have taken (Request).",
    ),
    Metric(
        "kafka_server_quota_throttle_time",
        _GAUGE,
        _QUOTA,
        "Milliseconds that their answers were delayed within the window, on the average.",
    ),
    Metric("metaquorum_quota_value", _GAUGE, _QUOTA, "The quota: bytes a second, or percent."),
    Metric(
        "metaquorum_quota_utilization",
        _GAUGE,
        _QUOTA,
        "The rate as a part of the quota; above 1: too much.",
    ),
    Metric("metaquorum_quota_throttles_total", _COUNTER, _QUOTA, "Answers that were delayed."),
    Metric(
        "metaquorum_muted_connections",
        _GAUGE,
        ("resource",),
        "Connections that are not read at present, by the quota that they are muted for.",
    ),
    Metric(
        "kafka_server_quota_tokens",
        _GAUGE,
        _QUOTA,
        "Partitions that may be created and deleted at once, below 0 a debt; as the active"
        " controller counts them.",
    ),
    Metric(
        "metaquorum_connections_throttled_total",
        _COUNTER,
        (),
        "Connections that were refused, or taken later, as too many were made in a second.",
    ),
    # The worker
    Metric(
        "kafka_server_kafkaserver_brokerstate",
        _GAUGE,
        (),
        "3: running; 6: leaving the cluster.",
    ),
    Metric(
        "kafka_server_broker_metadata_metrics_last_applied_record_offset",
        _GAUGE,
        (),
        "The last record of metadata that this node has taken in.",
    ),
    # The controller, where the node is one
    Metric(
        _CONTROLLER + "activecontrollercount",
        _GAUGE,
        (),
        "1: this controller is the active one.",
    ),
    Metric(_CONTROLLER + "activebrokercount", _GAUGE, (), "Workers that are not fenced."),
    Metric(_CONTROLLER + "fencedbrokercount", _GAUGE, (), "Workers that are fenced."),
    Metric(_CONTROLLER + "globaltopiccount", _GAUGE, (), "Topics of the cluster."),
    Metric(_CONTROLLER + "globalpartitioncount", _GAUGE, (), "Partitions of the cluster."),
    Metric(
        _CONTROLLER + "offlinepartitionscount",
        _GAUGE,
        (),
        "Partitions of the cluster that have no leader.",
    ),
    Metric(
        _CONTROLLER + "preferredreplicaimbalancecount",
        _GAUGE,
        (),
        "Partitions that are led by another replica than the first.",
    ),
    Metric(
        "kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total",
        _COUNTER,
        (),
        "Partitions that an eligible leader replica came to lead, as nobody was in sync (KIP-966).",
    ),
    Metric(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        _COUNTER,
        (),
        "Partitions led by a replica that may lack what was committed, each time.",
    ),
    Metric(_RAFT + "current_leader", _GAUGE, (), "The quorum's leader; -1: none is known."),
    Metric(_RAFT + "current_epoch", _GAUGE, (), "The term of the quorum."),
    Metric(
        _RAFT + "high_watermark",
        _GAUGE,
        (),
        "Entries of the quorum's log that are committed, as known here.",
    ),
    Metric(
        _RAFT + "current_state_info", _GAUGE, ("state",), "1 for the state that the voter is in."
    ),
    # The process, as Prometheus' own clients tell it
    Metric(
        "process_cpu_seconds_total", _COUNTER, (), "Processor time, user and system, in seconds."
    ),
    Metric("process_resident_memory_bytes", _GAUGE, (), "Memory that the process has."),
    Metric("process_open_fds", _GAUGE, (), "File descriptors that are open."),
    Metric("process_start_time_seconds", _GAUGE, (), "When it started, in seconds since 1970."),
    # Of our own
    Metric(
        "metaquorum_build_info", _GAUGE, ("version", "cluster_id", "node_id"), "1, for its labels."
    ),
    Metric(
        "metaquorum_metrics_left_out",
        _GAUGE,
        ("what",),
        "Partitions, topics and quotas that are too many to be told one by one.",
    ),
    Metric(
        "metaquorum_metrics_collect_seconds",
        _GAUGE,
        (),
        "What the collection before this one took of the loop, all slices together.",
    ),
)

METRICS: Final[Mapping[str, Metric]] = {row.name: row for row in _ROWS}
