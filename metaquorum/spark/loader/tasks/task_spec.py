"""Specification of a task, and its JSON form for worker processes.

The JSON has the password: it is only sent through a pipe to a worker process. Spark gets the values
themselves, in the closure of its task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from metaquorum.client.security import Login, Security, Tls
from metaquorum.spark.loader.table.load_plan import TableSettings
from metaquorum.spark.offset_ranges import OffsetRange
from metaquorum.spark.options import Connecting, FetchOptions
from metaquorum.spark.value_schemas import RegistryAuth
from metaquorum.wire.primitives.frozen import frozen


@frozen
class TaskContext:
    """Settings that are the same for all ranges of a load."""

    output: str
    staging: str
    fetch: FetchOptions
    settings: TableSettings
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry_auth: RegistryAuth | None = field(default=None, repr=False)


@frozen
class RangeTask:
    index: int
    range: OffsetRange
    is_compacted: bool | None = None


def context_to_json(context: TaskContext) -> dict[str, Any]:
    fetch = context.fetch
    connecting, registry = fetch.connecting, context.registry_auth
    tls, login = connecting.security.tls, connecting.security.login
    return {
        "output": context.output,
        "staging": context.staging,
        "storage_options": dict(context.storage_options),
        "settings": context.settings.to_json(),
        "bootstrap": connecting.bootstrap,
        "client_id": connecting.client_id,
        "rack": connecting.rack,
        "timeout_s": connecting.timeout_s,
        "tls": None
        if tls is None
        else [tls.authorities, tls.certificate, tls.key, tls.verify_hostname],
        "login": None if login is None else [login.mechanism, login.username, login.password],
        "registry": None
        if registry is None
        else [registry.username, registry.password, registry.token, registry.ca_file],
        "read_committed": fetch.read_committed,
        "fail_on_data_loss": fetch.fail_on_data_loss,
        "include_headers": fetch.include_headers,
        "columns": None if fetch.columns is None else list(fetch.columns),
        "fetch_max_bytes": fetch.fetch_max_bytes,
        "data_loss_option": fetch.data_loss_option,
    }


def context_from_json(data: Mapping[str, Any]) -> TaskContext:
    tls, login, registry = data["tls"], data["login"], data["registry"]
    security = Security(
        None if tls is None else Tls(*tls), None if login is None else Login(*login)
    )
    connecting = Connecting(
        data["bootstrap"], security, data["client_id"], data["rack"], data["timeout_s"]
    )
    fetch = FetchOptions(
        connecting,
        data["read_committed"],
        data["fail_on_data_loss"],
        data["include_headers"],
        None if data["columns"] is None else tuple(data["columns"]),
        data["fetch_max_bytes"],
        data["data_loss_option"],
    )
    return TaskContext(
        data["output"],
        data["staging"],
        fetch,
        TableSettings.from_json(data["settings"]),
        data["storage_options"],
        None if registry is None else RegistryAuth(*registry),
    )


def task_to_json(task: RangeTask) -> dict[str, Any]:
    range_ = task.range
    return {
        "index": task.index,
        "topic": range_.topic,
        "partition": range_.partition,
        "start": range_.start,
        "end": range_.end,
        "topic_id": range_.topic_id.hex(),
        "leader_epoch": range_.leader_epoch,
        "bytes_estimate": range_.bytes_estimate,
        "is_compacted": task.is_compacted,
    }


def task_from_json(data: Mapping[str, Any]) -> RangeTask:
    range_ = OffsetRange(
        data["topic"],
        data["partition"],
        data["start"],
        data["end"],
        bytes.fromhex(data["topic_id"]),
        data["leader_epoch"],
        data["bytes_estimate"],
    )
    return RangeTask(data["index"], range_, data["is_compacted"])
