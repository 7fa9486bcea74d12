"""The log line about throttled clients, once a minute: clients, rules and delays.

The line names the clients with the longest total delay. A minute without throttling has no line.
"""

from collections.abc import Iterator
from typing import Final

from metaquorum.dataplane.quotas.allowance_table import Allowance
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas, RateQuotas
from metaquorum.metadata.quota_lookup import BY_CONFIG, OBSERVED, Rule
from metaquorum.wire.primitives.frozen import frozen

MOST_NAMED: Final = 10


@frozen
class _Held:
    """One allowance with throttled responses since the last report."""

    key: str
    rule: Rule
    count: int
    total_s: float

    def __str__(self) -> str:
        delayed = "would have been delayed" if self.key.startswith(OBSERVED) else "delayed"
        by = (
            "the worker's default"
            if self.rule.precedence == BY_CONFIG
            else (f"rule {self.rule.precedence}, {self.rule.entity}")
        )
        return (
            f"{_name(self.rule)}: {self.count} responses {delayed} by"
            f" {self.total_s / self.count:.1f} s on average, as {self.key} is"
            f" {self.rule.value:g} ({by})"
        )


def _name(rule: Rule) -> str:
    user, client_id = rule.sharers
    parts = [
        f"{word} {_printable(name) or '(none)'}"
        for word, name in (("user", user), ("client-id", client_id))
        if name is not None
    ]
    return " ".join(parts)


def _printable(name: str) -> str:
    """Return `name`, escaped if it is not printable: clients choose it, and a line is one line."""
    return name if name.isprintable() else ascii(name)


class QuotaLog:
    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas
        self._refused = 0  # throttled connections at the last report

    def line(self) -> str | None:
        """Return the log line about throttling since the last call; None if there was none."""
        held = sorted(self._held(), key=lambda one: -one.total_s)
        parts = [str(one) for one in held[:MOST_NAMED]]
        if len(held) > MOST_NAMED:
            parts.append(f"and {len(held) - MOST_NAMED} more")
        refused = self._quotas.connections.throttled
        if refused > self._refused:
            parts.append(f"{refused - self._refused} connections refused or accepted late")
        self._refused = refused
        if not parts:
            return None
        muted = len(self._quotas.mutes)
        return f"quotas: {'; '.join(parts)}; {muted} connections are muted now"

    def _held(self) -> Iterator[_Held]:
        for kind in self._quotas.kinds:
            for allowance in kind.throttled_ever():
                if (held := _since_last(kind, allowance)) is not None:
                    yield held


def _since_last(kind: RateQuotas, allowance: Allowance) -> _Held | None:
    throttles = allowance.throttles
    assert throttles is not None
    count, total_s = (
        throttles.count - throttles.reported_count,
        throttles.total_s - throttles.reported_s,
    )
    throttles.reported_count, throttles.reported_s = throttles.count, throttles.total_s
    rule = kind.rule(allowance.name)
    if not count or rule is None or rule.value is None:
        return None
    return _Held(kind.key, rule, count, total_s)
