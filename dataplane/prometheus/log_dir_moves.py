"""Metrics of moves between the log directories of a worker."""

from metaquorum.dataplane.prometheus.exposition import Page
from metaquorum.dataplane.replication.log_dir_mover import LogDirMover


def add_log_dir_moves(page: Page, mover: LogDirMover) -> None:
    lag = max((move.lag for move in mover.moves.values()), default=0)
    rate = round(mover.quota.rate(mover.monotonic()), 3)
    page.add("kafka_server_alterlogdirsreplication_byte_rate", rate)
    page.add("kafka_server_replicaalterlogdirsmanager_maxlag", lag)
    page.add("kafka_server_replicaalterlogdirsmanager_failedpartitionscount", mover.failed_count)
    page.add("metaquorum_log_dir_moves", len(mover.moves))
    page.add("metaquorum_log_dir_moved_total", mover.moved_count)
    page.add("metaquorum_log_dir_moved_bytes_total", mover.quota.bytes)
