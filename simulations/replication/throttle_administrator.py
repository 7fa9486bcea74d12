"""Administrator that throttles replication (`replication_throttles`)."""

from random import Random
from typing import Final

from metaquorum.runtime.interfaces import Runtime, sleep
from metaquorum.simulations.cluster.cluster_clients import RETRY_S
from metaquorum.simulations.harness.client import BROKEN, ClientConnection
from metaquorum.simulations.replication.replica_clients import ReplicaClient
from metaquorum.simulations.replication.replicated_cluster import ReplicatedClusterState
from metaquorum.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from metaquorum.wire.primitives.errors import ErrorCode
from metaquorum.wire.protocol.apis import ApiKey

SIDES: Final = (("leader",), ("follower",), ("leader", "follower"))
RATES: Final = (50, 300, 2000)
LOOK_S: Final = 0.2  # time between two looks for topics without a throttle
_TOPIC, _WORKER, _SET, _DELETE = 2, 4, 0, 1
_ALL_WORKERS: Final = ""


class ThrottleAdministrator(ReplicaClient):
    """Administrator that throttles all topics, and removes the throttles after the faults."""

    def __init__(self, cluster_state: ReplicatedClusterState, name: str, draw: Random) -> None:
        super().__init__(cluster_state, name, draw)
        self._sides = draw.choice(SIDES)
        self._rate = draw.choice(RATES)

    async def run(self, runtime: Runtime) -> None:
        self.say(f"{' and '.join(self._sides)}: {self._rate} bytes/s")
        throttled: set[tuple[str, bytes]] = set()
        has_rate = False
        while not self.cluster_state.calm:
            lasting = self.cluster_state.topic_outcomes.lasting
            new = [(name, topic[0]) for name, topic in sorted(lasting.items())]
            try:
                async with self.connected(runtime) as connection:
                    if not has_rate:
                        has_rate = await self._set(connection, _WORKER, _ALL_WORKERS, "rate")
                    for each in new:
                        if each not in throttled and await self._set(
                            connection, _TOPIC, each[0], "replicas"
                        ):
                            throttled.add(each)
            except BROKEN as error:
                self.say(repr(error))
                await sleep(runtime.clock, RETRY_S)
            await sleep(runtime.clock, LOOK_S)
        while has_rate:
            try:
                async with self.connected(runtime) as connection:
                    gone = await self._set(connection, _WORKER, _ALL_WORKERS, "rate", _DELETE)
                    has_rate = not gone
            except BROKEN as error:
                self.say(repr(error))
            await sleep(runtime.clock, RETRY_S)
        self.done = True

    async def _set(
        self, connection: ClientConnection, kind: int, name: str, config: str, op: int = _SET
    ) -> bool:
        """Set or delete the config on all sides; return whether it is done."""
        value = "*" if config == "replicas" else str(self._rate)
        resource = AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                AlterableConfig(
                    name=f"{side}.replication.throttled.{config}",
                    config_operation=op,
                    value=None if op == _DELETE else value,
                )
                for side in self._sides
            ],
        )
        message = IncrementalAlterConfigsRequest(resources=[resource])
        response = await connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, message)
        code = ErrorCode(response.responses[0].error_code)
        is_done = code is ErrorCode.NONE
        self.cluster_state.world.count("throttles set", is_done and op == _SET)
        return is_done


class RateAdministrator(ThrottleAdministrator):
    """Administrator that sets rates, but no lists: only the replicas of plans are throttled."""

    async def _set(
        self, connection: ClientConnection, kind: int, name: str, config: str, op: int = _SET
    ) -> bool:
        return config == "replicas" or await super()._set(connection, kind, name, config, op)
