"""Specification of a task, sent to a worker process through its pipe."""

import json

from metaquorum.client.security import Login, Security, Tls
from metaquorum.spark.loader.table.load_plan import TableSettings
from metaquorum.spark.loader.tasks.task_spec import (
    RangeTask,
    TaskContext,
    context_from_json,
    context_to_json,
    task_from_json,
    task_to_json,
)
from metaquorum.spark.offset_ranges import OffsetRange
from metaquorum.spark.options import Connecting, FetchOptions
from metaquorum.spark.value_schemas import RegistryAuth, ValueSchemaSpec

SECRETS = ("password of the cluster", "key of the store", "password of the registry")


def context() -> TaskContext:
    security = Security(
        Tls("ca.pem", "own.pem", "key.pem", False), Login("PLAIN", "alice", SECRETS[0])
    )
    settings = TableSettings(
        ("value", "offset"), False, "zstd", ValueSchemaSpec("json", "id BIGINT")
    )
    return TaskContext(
        "s3://bucket/table",
        "_loading/1",
        FetchOptions(
            Connecting("host:9092", security, "job", "rack", 7.5),
            True,
            False,
            True,
            settings.read_columns,
            4096,
            "--allow-data-loss",
        ),
        settings,
        {"secret": SECRETS[1], "client_kwargs": {"endpoint_url": "http://localhost"}},
        RegistryAuth("bob", SECRETS[2], "", "registry.pem"),
    )


def test_a_worker_is_told_all_that_a_task_needs() -> None:
    found = context_from_json(json.loads(json.dumps(context_to_json(context()))))
    assert found == context()
    task = RangeTask(3, OffsetRange("t", 1, 5, 9, bytes(range(16)), 7, 1000), None)
    assert task_from_json(json.loads(json.dumps(task_to_json(task)))) == task


def test_no_secret_is_in_what_a_context_looks_like() -> None:
    shown = repr(context())
    assert "alice" in shown
    assert not any(secret in shown for secret in SECRETS)
