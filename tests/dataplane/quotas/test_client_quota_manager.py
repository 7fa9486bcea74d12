"""Quotas set, removed and described by clients of a node, compared with Kafka's responses."""

from typing import Any

from metaquorum.dataplane.handlers.quotas.client_quotas import SLICE_ENTITIES
from metaquorum.metadata.quota_lookup import EntityPart
from metaquorum.quorum.controller.quota_changes import QuotaChange, QuotaOp
from metaquorum.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from metaquorum.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from metaquorum.wire.protocol.apis import ApiKey
from tests.dataplane.changes import change_quotas
from tests.dataplane.serving import Simulated, run_simulated
from tests.wire.messages.golden import exchanges


def in_any_order(entries: Any) -> Any:
    if entries is None:
        return None
    return sorted(
        (
            getattr(entry, "error_code", 0),
            sorted((part.entity_type, part.entity_name or "") for part in entry.entity),
            sorted((value.key, value.value) for value in getattr(entry, "values", ())),
            (getattr(entry, "error_message", None) or ""),
        )
        for entry in entries
    )


def test_quotas_are_altered_and_described_as_a_real_kafka_does_it() -> None:
    altering = exchanges(ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest)
    describing = exchanges(ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest)
    # For each version: all is set, described, removed, described.
    rounds, per_alter, per_describe = 4, len(altering) // 4, len(describing) // 4

    async def scenario(node: Simulated) -> None:
        client = await node.connect()
        for number in range(rounds):
            for version, asked, golden in altering[number * per_alter :][:per_alter]:
                answer = await client.call(ApiKey.ALTER_CLIENT_QUOTAS, asked, version)
                assert in_any_order(answer.entries) == in_any_order(golden.entries), asked
            for version, asked, golden in describing[number * per_describe :][:per_describe]:
                answer = await client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, asked, version)
                assert answer.error_code == golden.error_code, asked
                assert answer.error_message == golden.error_message, asked
                assert in_any_order(answer.entries) == in_any_order(golden.entries), asked

    run_simulated(scenario)


def test_quotas_survive_a_restart_and_many_are_described_in_slices() -> None:
    changes = [
        QuotaChange((EntityPart("user", f"user-{i}"),), [QuotaOp("producer_byte_rate", 1.0 + i)])
        for i in range(2 * SLICE_ENTITIES + 1)
    ]

    async def scenario(node: Simulated) -> None:
        await change_quotas(node.worker.controller_client, *changes)
        await node.on_machine.stop()
        await node.on_machine.start()
        client = await node.connect()
        wanted = [ComponentData(entity_type="user", match_type=2, match=None)]
        asked = DescribeClientQuotasRequest(components=wanted, strict=True)
        answer = await client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, asked)
        found = {entry.entity[0].entity_name: entry.values[0].value for entry in answer.entries}
        assert found == {f"user-{i}": 1.0 + i for i in range(len(changes))}

    run_simulated(scenario)
