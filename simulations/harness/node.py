"""The shipped node, as a program of a simulated machine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from metaquorum.dataplane.log.recovery.checkpoints import decode_partition_metadata
from metaquorum.dataplane.log.segments.names import PARTITION_METADATA
from metaquorum.dataplane.node import Node
from metaquorum.dataplane.node_config import NodeConfig
from metaquorum.runtime import Runtime
from metaquorum.simulations.kernel.excuses import bug_in
from metaquorum.simulations.kernel.machine import Fate, Machine
from metaquorum.simulations.kernel.storage import Storage
from metaquorum.simulations.kernel.world import BUG, World

# Smaller than the shipped value: appends in worker threads are tested without a megabyte each.
INLINE_APPEND_BYTES: Final = 256 * 1024

DATA_DIR: Final = "/data"
# In worlds with several log directories: one shares the device of the metadata, two have their own.
LOG_DIRS: Final = (DATA_DIR, "/disk-1", "/disk-2")
START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 60.0


class NodeOnMachine:
    """The shipped node with one configuration, over all runs of its process."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        port: int,
        configs: Mapping[str, str],
        **others: Any,
    ) -> None:
        """Create the node. `others`: fields of NodeConfig, such as its id and the other nodes.

        Without `others` it is node 1 of a cluster with one node.
        """
        self.machine = machine
        self.node: Node | None = None
        self.serving = False
        self._world = world
        alone = NodeConfig(
            node_id=1,
            data_dir=DATA_DIR,
            listen=("0.0.0.0", port),  # noqa: S104 - a simulated interface
            advertise=(machine.name, None),
            host=machine.name,
            inline_append_bytes=INLINE_APPEND_BYTES,
            configs=configs,
        )
        self._config = replace(alone, **others)
        self._changed = trio.Event()

    async def _run(self, runtime: Runtime) -> None:
        def started(node: Node) -> None:
            self.serving = True
            self.machine.say(f"serves at {node.address}")
            self._changed.set()

        self.node = Node(self._config, runtime)
        try:
            await self.node.run(started)
        except Exception as error:
            if (bug := bug_in(error)) is not None:
                self._world.violate(BUG, f"{self.machine.name} ended by {bug!r}")
            raise
        finally:
            self.serving = False
            worker = self.node.worker
            if worker is not None and worker.log_dir_mover.continued_count:
                self._world.count("disk moves continued", worker.log_dir_mover.continued_count)

    def boot(self) -> Fate:
        self._changed = trio.Event()
        self.serving = False
        return self.machine.start(self._run)

    async def start(self) -> Fate:
        """Start the node, and wait until it serves or has ended."""
        fate = self.boot()
        with trio.move_on_after(START_LIMIT_S) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._await_end, fate)
                await self._changed.wait()
                nursery.cancel_scope.cancel()
        if limit.cancelled_caught:
            self._world.violate("liveness", f"the node does not start within {START_LIMIT_S:.0f} s")
        return fate

    async def _await_end(self, fate: Fate) -> None:
        await fate.done.wait()
        self._changed.set()

    async def stop(self) -> None:
        """Stop the node cleanly, or kill it after the limit."""
        if self.node is None or not self.machine.running:
            return
        self.machine.say("is asked to stop")
        self.node.stop()
        with trio.move_on_after(STOP_LIMIT_S) as limit:
            await self.machine.fate.done.wait()
        if limit.cancelled_caught:
            self._world.violate("liveness", f"the node does not stop within {STOP_LIMIT_S:.0f} s")
            self.machine.kill()


def topic_id_of(storage: Storage, folder: str) -> bytes | None:
    """Return the topic id of the log in `folder`; None without a valid partition.metadata."""
    try:
        data = storage.file(f"{folder}/{PARTITION_METADATA}").data
        return decode_partition_metadata(bytes(data))
    except (OSError, ValueError):
        return None


def log_folder(storage: Storage, topic: str, partition: int) -> str:
    """Return the folder of the partition's log in the log directory that has it, or a default."""
    for path in LOG_DIRS:
        folder = f"{path}/{topic}-{partition}"
        try:
            storage.folder(folder)
        except FileNotFoundError:
            continue
        return folder
    return f"{DATA_DIR}/{topic}-{partition}"
