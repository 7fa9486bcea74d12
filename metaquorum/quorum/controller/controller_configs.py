"""Configs that apply to the active controller's decisions, for any image."""

from collections.abc import Mapping
from typing import Final

from metaquorum.config.resolution import Configs, WorkerLayers
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.internal_topics import is_internal
from metaquorum.quorum.controller.config_changes import UNCLEAN_ELECTIONS
from metaquorum.quorum.controller.topics import TopicDefaults


class ControllerConfigs:
    """Configs of the controller. Caches answers as long as the configs of the image are equal."""

    def __init__(self, node_id: int, static: Mapping[str, str]) -> None:
        self._node_id = node_id
        self.static: Final = static
        self._defaults_of: object = None
        self._topic_defaults = TopicDefaults()
        self._unclean_of: object = None
        self._is_unclean_default = False

    def of(self, image: MetadataImage) -> Configs:
        """Return the configs that all workers share."""
        return WorkerLayers(
            self.static, dynamic_default=image.worker_configs(None)
        ).worker_configs()

    def may_be_unclean(self, image: MetadataImage, topic: str) -> bool:
        """Return whether the topic allows unclean leader election; internal topics never do."""
        if is_internal(topic):
            return False
        own = image.topic_configs(topic)
        if not own and image.configs is self._unclean_of:
            return self._is_unclean_default
        configs = WorkerLayers(
            self.static,
            dynamic=image.worker_configs(self._node_id),
            dynamic_default=image.worker_configs(None),
        ).topic_configs(own)
        answer = configs.boolean(UNCLEAN_ELECTIONS)
        if not own:  # most topics have none, and a restart asks for all topics
            self._unclean_of, self._is_unclean_default = image.configs, answer
        return answer

    def topic_defaults(self, image: MetadataImage) -> TopicDefaults:
        """Return the default partition count and replication factor of new topics."""
        if image.configs is not self._defaults_of:
            configs = self.of(image)
            self._topic_defaults = TopicDefaults(
                configs.integer("num.partitions"), configs.integer("default.replication.factor")
            )
            self._defaults_of = image.configs
        return self._topic_defaults
