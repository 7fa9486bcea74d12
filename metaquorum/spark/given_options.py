"""Options by name, consumed one by one, and the errors for options left over.

No message repeats a value that may be a secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from metaquorum.runtime.whole_numbers import whole_number
from metaquorum.spark.offset_ranges import MAX_OFFSET


class OptionError(ValueError):
    """An option is missing, unknown or invalid; the message names it and says what to do."""


# Options that are refused, with the reason. First those that Spark's connector refuses, then those
# without a meaning for this client, which is in no consumer group and reads each range in a task.
_NO_GROUP: Final = "a load is in no consumer group and commits no offset; leave it out"
_INLINE_PEM: Final = "certificates and keys are read from files: give the path of a PEM file by "
REFUSED_OPTIONS: Final[Mapping[str, str]] = {
    "kafka.auto.offset.reset": "set startingOffsets instead",
    "kafka.key.deserializer": "keys are read as bytes; decode them in the DataFrame",
    "kafka.value.deserializer": "values are read as bytes; decode them in the DataFrame",
    "kafka.enable.auto.commit": _NO_GROUP,
    "kafka.interceptor.classes": "interceptors are Java classes, and may change records",
    "kafka.group.id": _NO_GROUP,
    "groupIdPrefix": _NO_GROUP,
    "fetchOffset.numRetries": "set kafka.default.api.timeout.ms instead, the time for all retries",
    "fetchOffset.retryIntervalMs": "set kafka.default.api.timeout.ms, the time for all retries",
    "kafka.ssl.key.password": "an encrypted key cannot be used; give a key without a password",
    "kafka.ssl.truststore.certificates": f"{_INLINE_PEM}kafka.ssl.truststore.location",
    "kafka.ssl.keystore.certificate.chain": f"{_INLINE_PEM}kafka.ssl.keystore.location",
    "kafka.ssl.keystore.key": f"{_INLINE_PEM}kafka.ssl.keystore.location",
    "path": "a topic is not named by a path: set subscribe, and call load() without a path",
    "topic": "this option is for writing; set subscribe to read a topic",
}
KNOWN_OPTIONS: Final = (
    *("assign", "subscribe", "subscribePattern"),
    *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"),
    *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeHeaders", "columns"),
    *("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition", "fetchMaxBytes"),
    *("kafkaConsumer.pollTimeoutMs", "kafka.default.api.timeout.ms", "kafka.request.timeout.ms"),
    *("kafka.bootstrap.servers", "kafka.client.id", "kafka.client.rack", "kafka.isolation.level"),
    *("kafka.fetch.max.bytes", "kafka.max.partition.fetch.bytes", "kafka.security.protocol"),
    *("kafka.sasl.mechanism", "kafka.sasl.jaas.config"),
    *("kafka.sasl.username", "kafka.sasl.password"),
    *("kafka.ssl.ca.location", "kafka.ssl.certificate.location", "kafka.ssl.key.location"),
    *("kafka.ssl.truststore.location", "kafka.ssl.truststore.type"),
    *("kafka.ssl.truststore.password", "kafka.ssl.keystore.location", "kafka.ssl.keystore.type"),
    *("kafka.ssl.keystore.password", "kafka.ssl.endpoint.identification.algorithm"),
)
STREAMING_OPTIONS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


class GivenOptions:
    """Options by name, without case. Each is taken once; an option left over is unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if lower in self._names:
                raise OptionError(f"option {name} is given twice, as {self._names[lower]} too")
            if not isinstance(value, str):
                raise OptionError(f"option {name} is a {type(value).__name__}, not a string")
            self._names[lower], self._values[lower] = name, value

    def take(self, name: str) -> str | None:
        return self._values.pop(name.lower(), None)

    def any_name(self, prefix: str) -> str | None:
        """Return the first name of an option left over that begins with `prefix`, or None."""
        found = [self._names[lower] for lower in self._values if lower.startswith(prefix)]
        return min(found, default=None)

    def check_refused(self) -> None:
        for name, why in REFUSED_OPTIONS.items():
            if name.lower() in self._values:
                raise OptionError(f"option {name} is not supported: {why}")

    def check_nothing_left(self, hint: str = "") -> None:
        if not self._values:
            return
        lower = min(self._values)
        name = self._names[lower][:200]
        known = {one.lower(): one for one in KNOWN_OPTIONS}
        if lower in known or lower in map(str.lower, STREAMING_OPTIONS):
            raise OptionError(f"option {name} is not accepted here{hint}")
        close = difflib.get_close_matches(lower, known, 1)
        hint = f"; is {known[close[0]]} meant?" if close else ""
        if lower.startswith("kafka."):
            raise OptionError(
                f"option {name} is not known to this client and would have no effect: leave it "
                f"out{hint}"
            )
        raise OptionError(f"option {name} does not exist: omit it{hint}")

    def boolean(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return the value in lower case. Raises OptionError if it is not one of `choices`."""
        text = self.take(name)
        if text is None:
            return default
        if text.lower() not in choices:
            shown = ", ".join(choice or "''" for choice in choices)
            raise OptionError(f"option {name} is {text[:100]!r}; it must be one of {shown}")
        return text.lower()

    def positive(self, name: str, most: int = MAX_OFFSET) -> int | None:
        text = self.take(name)
        if text is None:
            return None
        number = whole_number(text, most)
        if not number:
            upto = f" up to {most}" if most < MAX_OFFSET else ""
            raise OptionError(
                f"option {name} is {text[:100]!r}; it must be a positive whole number{upto}"
            )
        return number
