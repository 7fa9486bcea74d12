"""Effective configs of this worker, updated from the metadata."""

import logging
from collections.abc import Callable, Mapping

from metaquorum.config.registry import base_name
from metaquorum.config.resolution import Configs, WorkerLayers
from metaquorum.config.running_bounds import CONNECTION_LIMITS
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.records import ELIGIBLE_LEADERS
from metaquorum.quorum.controller.leaders.eligible_leaders import MIN_ISR

log = logging.getLogger(__name__)


class WorkerConfigs:
    """Effective configs of this worker; the first metadata publisher, as later ones read `layers`.

    `layers` and `own` are replaced, never modified, when a dynamic config of this worker or of all
    workers changes: a holder of one can test with `is` whether it is current.
    """

    def __init__(
        self,
        worker_id: int,
        static: Mapping[str, str],
        image: MetadataImage,
        *,
        ignores_connection_limits: bool = False,
    ) -> None:
        self._worker_id = worker_id
        self._ignores_connection_limits = ignores_connection_limits
        self._static = static
        self._listeners: list[Callable[[Configs], None]] = []
        self._resolve(image)
        wanted, in_force = static.get(MIN_ISR), image.worker_configs(None).get(MIN_ISR)
        if ELIGIBLE_LEADERS in image.features and wanted not in (None, in_force):
            log.warning(
                "ignoring %s=%s of this node's own configs: the cluster-wide value %s applies;"
                " change that instead",
                MIN_ISR,
                wanted,
                in_force,
            )

    def _resolve(self, image: MetadataImage) -> None:
        self._known = image.worker_configs(self._worker_id), image.worker_configs(None)
        own, of_all = map(self._heeded, self._known)
        self.layers = WorkerLayers(self._static, dynamic=own, dynamic_default=of_all)
        self.own: Configs = self.layers.worker_configs()

    def _heeded(self, dynamic: Mapping[str, str]) -> Mapping[str, str]:
        """Return the dynamic configs without those that this worker was started to ignore."""
        if not self._ignores_connection_limits:
            return dynamic
        ignored = {name for name in dynamic if base_name(name) in CONNECTION_LIMITS}
        if ignored:
            log.warning(
                "ignoring %s of the cluster's dynamic configs"
                " (--ignore-dynamic-connection-limits): correct them with 'mq-admin configs', then"
                " restart without this option",
                ", ".join(f"{name}={dynamic[name]}" for name in sorted(ignored)),
            )
        return {name: text for name, text in dynamic.items() if name not in ignored}

    def call(self, listener: Callable[[Configs], None]) -> None:
        """Call `listener` with the effective configs now, and after every change."""
        self._listeners.append(listener)
        listener(self.own)

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._known != (image.worker_configs(self._worker_id), image.worker_configs(None)):
            self._resolve(image)
            for listener in self._listeners:
                listener(self.own)
