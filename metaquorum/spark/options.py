"""What a load is asked to read and how: the official connector's options, parsed and judged.

Names, defaults and refusals are those of Spark's Kafka connector (Structured Streaming + Kafka
Integration Guide); `columns`, `maxBytesPerPartition` and `fetchMaxBytes` are ours. Spark gives
option names in lower case: names are compared without case, values never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaquorum.client.security import PLAINTEXT, Security
from wire.primitives.frozen import frozen

DEFAULT_FETCH_BYTES: Final = 8 << 20
DEFAULT_CLIENT_ID: Final = "metaquorum-load"


class OptionError(ValueError):
    """An option is missing, unknown or wrong; the sentence says which, and what to do."""


@frozen
class Connecting:
    """How a cluster is reached. Secrets are in `security` only, which no plan and no log holds."""

    bootstrap: str
    security: Security = PLAINTEXT
    client_id: str = DEFAULT_CLIENT_ID  # one for the whole job, on which quotas are counted
    rack: str = ""  # "": no replica is nearer than the leader (KIP-392)
    timeout_s: float = 60.0  # for which a leader that moves or dies is waited for


@frozen
class FetchOptions:
    """How ranges are read, the same for each."""

    connecting: Connecting
    read_committed: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] | None = None  # None: all of the schema
    fetch_max_bytes: int = DEFAULT_FETCH_BYTES


def parse_fetch_options(options: Mapping[str, str]) -> FetchOptions:
    raise NotImplementedError  # being written
