"""Administrator that sets client quotas in worlds with replicas (`throttling`)."""

from random import Random
from typing import Final

from metaquorum.metadata.quota_lookup import CLIENT_ID
from metaquorum.quorum.controller.quota_changes import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.simulations.replication.throttling import DEFAULT, ClientRatesHold
from metaquorum.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from metaquorum.wire.protocol.apis import ApiKey

RATES: Final = (500.0, 2000.0, 10_000.0)
PERCENTAGES: Final = (None, 0.02, 0.1)
UNLIMITED: Final = 1e12
INSPECTOR: Final = "inspector"  # client that reads all records at the end, without quotas


class QuotaAdministrator(ReplicaClient):
    """Administrator that sets quotas before other clients start.

    In half of the worlds it removes them once the faults are over.
    """

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._leaves = draw.random() < 0.5
        self.quotas: dict[str | None, dict[str, float]] = {DEFAULT: self._drawn()}
        for number in range(cluster_state.settings.producers):
            if draw.random() < 0.5:
                self.quotas[f"producer-{number}"] = self._drawn()
        self.quotas[INSPECTOR] = dict.fromkeys(self.quotas[DEFAULT], UNLIMITED)

    def _drawn(self) -> dict[str, float]:
        quotas = {
            PRODUCER_BYTE_RATE: self._draw.choice(RATES),
            CONSUMER_BYTE_RATE: self._draw.choice(RATES),
        }
        percentage = self._draw.choice(PERCENTAGES)
        return quotas if percentage is None else quotas | {REQUEST_PERCENTAGE: percentage}

    async def run(self, runtime: Runtime) -> None:
        rates = self.cluster_state.checker(ClientRatesHold)
        rates.quotas = self.quotas
        await self._change(runtime, is_removed=False)
        rates.is_in_force = True
        self.say(f"quotas: {self.quotas}")
        while not self.cluster_state.calm:
            await sleep(runtime.clock, RETRY_S)
        if not self._leaves:
            rates.is_in_force = False
            await self._change(runtime, is_removed=True)
        self.done = True

    async def _change(self, runtime: Runtime, *, is_removed: bool) -> None:
        """Set or remove all quotas, and wait until every running worker has applied the change."""
        todo = dict(self.quotas)
        while todo:
            try:
                async with self.connected(runtime) as connection:
                    for client_id in list(todo):
                        await self._set(connection, client_id, todo[client_id], is_removed)
                        del todo[client_id]
            except BROKEN as error:
                self.say(repr(error))
                await sleep(runtime.clock, RETRY_S)
        changed = self.cluster_state.cluster_history.image.end_offset
        for member in self.cluster_state.workers:
            while member.running is not None and (
                member.loader is None or member.image.end_offset < changed
            ):
                await sleep(runtime.clock, RETRY_S)

    async def _set(
        self,
        connection: ClientConnection,
        client_id: str | None,
        values: dict[str, float],
        is_removed: bool,
    ) -> None:
        entry = EntryData(
            entity=[EntityData(entity_type=CLIENT_ID, entity_name=client_id)],
            ops=[
                OpData(key=key, value=0.0 if is_removed else value, remove=is_removed)
                for key, value in values.items()
            ],
        )
        message = AlterClientQuotasRequest(entries=[entry], validate_only=False)
        answer = await connection.call(ApiKey.ALTER_CLIENT_QUOTAS, message)
        if code := answer.entries[0].error_code:
            raise EOFError(f"quotas of {client_id}: {code}")
