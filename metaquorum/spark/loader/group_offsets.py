"""Offsets of a load, committed for a consumer group, so that its lag can be watched.

The manifest alone decides where the next load begins; the group only shows it to tools that know
groups. If the commit fails, the load is not affected, and the next run commits again.
"""

from __future__ import annotations

from metaquorum.client.cluster import Cluster, TopicPartition
from metaquorum.client.errors import AdminError
from metaquorum.client.groups.blocking import BlockingGroupAdmin
from metaquorum.spark.loader.table.manifest import Manifest
from metaquorum.wire.primitives.errors import KafkaError


def commit_for_group(cluster: Cluster, group: str, manifest: Manifest) -> str | None:
    """Commit the end of each partition in the manifest; return the reason if that fails.

    The group must not have members: a consumer that shares its offsets would skip records.
    """
    ends = {TopicPartition(each.topic, each.partition): each.end for each in manifest.loaded}
    try:
        answers = BlockingGroupAdmin(cluster).commit_offsets(group, ends)
    except (AdminError, KafkaError) as error:
        return str(error)
    return next((str(error) for error in answers.values() if error is not None), None)
