"""Levels of metadata.version that a request needs: older nodes in the cluster limit them."""

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import METADATA_VERSION
from metaquorum.quorum.controller.features import check_level


def needs_level(image: MetadataImage, level: int, what: str = "this request") -> None:
    """Raise KafkaError (UNSUPPORTED_VERSION) if the cluster runs at a lower metadata.version.

    `what`: what needs the level. The message names both levels and the command that raises it.
    """
    check_level(image, METADATA_VERSION, level, what)


def has_level(image: MetadataImage, level: int) -> bool:
    """Return whether the cluster runs at this metadata.version or a higher one."""
    return image.features.get(METADATA_VERSION, 0) >= level
