"""Mutants of the enforcement of quotas."""

from contextlib import AbstractContextManager
from typing import Any, Final

from metaquorum.dataplane.handlers.produce_outcome import Outcome
from metaquorum.dataplane.network.connection import ClientConnection
from metaquorum.dataplane.network.server import Server
from metaquorum.dataplane.quotas import client_quota_manager
from metaquorum.dataplane.quotas.allowance_table import AllowanceTable
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas
from metaquorum.dataplane.quotas.client_state import name_of
from metaquorum.dataplane.quotas.cpu_meter import CpuMeter
from metaquorum.dataplane.quotas.muting import Mute
from metaquorum.metadata.quota_lookup import rules_for
from metaquorum.quorum.controller.mutation_quotas import TokenBucket
from metaquorum.simulations.kernel.mutation import Mutant, swapped

LARGE_BYTES: Final = 60_000


def _mute_ignored() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def stay_muted(self: Any, mute: Mute) -> None:
            self.client.quota.mute = None
            mute.end()

        return stay_muted

    return swapped(ClientConnection, "_stay_muted", wrong)


def _mute_too_long() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def init(self: Any, seconds: float, *rest: Any) -> None:
            right(self, 2 * seconds + 1, *rest)
            self.seconds = seconds

        return init

    return swapped(Mute, "__init__", wrong)


def _mute_outlives_its_quota() -> AbstractContextManager[None]:
    return swapped(Mute, "shorten", lambda right: lambda self, seconds: None)


def _fetched_for_nothing() -> AbstractContextManager[None]:
    return swapped(ClientQuotas, "fetched", lambda right: lambda self, *used: None)


def _large_batches_kept_back() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def may_fetch(self: Any, client: Any, client_id: str | None) -> int:
            most = self.fetch_bytes(client, client_id)
            if most is not None and most < LARGE_BYTES:
                self._throttle(client, self.fetch, name_of(client, client_id), 1.0)
                return 1000
            throttle_ms: int = right(self, client, client_id)
            return throttle_ms

        return may_fetch

    return swapped(ClientQuotas, "may_fetch", wrong)


def _last_rule_applies() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def applying(*client: Any, **default: Any) -> Any:
            rules = [rule for rule in rules_for(*client, **default) if rule.value is not None]
            return rules[-1] if rules else None

        return applying

    return swapped(client_quota_manager, "applying", wrong)


def _mutations_not_counted() -> AbstractContextManager[None]:
    return swapped(TokenBucket, "take", lambda right: lambda self, amount, quota, now: None)


def _waited_for_nothing() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def answer(self: Any) -> Any:
            quotas = self._worker.quotas
            is_on, quotas.is_on = quotas.is_on, False
            try:
                return right(self)
            finally:
                quotas.is_on = is_on

        return answer

    return swapped(Outcome, "answer", wrong)


def _threads_for_nothing() -> AbstractContextManager[None]:
    return swapped(CpuMeter, "add", lambda right: lambda self, client, used_s: None)


def _ended_connections_count() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        async def serve_one(self: Any, served: Any) -> None:
            try:
                await right(self, served)
            finally:
                self._limiter.add(served)

        return serve_one

    return swapped(Server, "_serve_one", wrong)


def _dropped_allowances_used() -> AbstractContextManager[None]:
    def wrong(right: Any) -> Any:
        def forget(self: Any, allowance: Any) -> None:
            right(self, allowance)
            allowance.is_forgotten = False

        return forget

    return swapped(AllowanceTable, "forget", wrong)


QUOTA_MUTANTS: Final = tuple(
    Mutant(name, about, "quotas", found_as, apply)
    for name, about, found_as, apply in (
        ("mute-ignored", "a throttled client is not muted", ("Q1", "Q2"), _mute_ignored),
        ("mute-too-long", "a client stays muted after its throttle time", ("Q2",), _mute_too_long),
        (
            "mute-outlives-its-quota",
            "clients stay muted when their quota is removed, as in Kafka",
            ("Q8",),
            _mute_outlives_its_quota,
        ),
        (
            "fetched-for-nothing",
            "fetched bytes are not counted",
            ("Q1",),
            _fetched_for_nothing,
        ),
        (
            "large-batches-kept-back",
            "a batch larger than a quota window is never returned, as in Kafka (KAFKA-9677)",
            ("Q3",),
            _large_batches_kept_back,
        ),
        (
            "last-rule-applies",
            "the least specific quota applies first",
            ("Q4",),
            _last_rule_applies,
        ),
        (
            "mutations-not-counted",
            "creations of partitions are not counted",
            ("Q7",),
            _mutations_not_counted,
        ),
        (
            "ended-connections-count",
            "connections that have ended count against max.connections",
            ("Q9",),
            _ended_connections_count,
        ),
        (
            "waited-for-nothing",
            "a produce request with a delayed response is not charged to its quota",
            ("Q1",),
            _waited_for_nothing,
        ),
        (
            "threads-for-nothing",
            "the CPU time of worker threads is not charged to the client's request quota",
            ("Q1",),
            _threads_for_nothing,
        ),
        (
            "dropped-allowances-used",
            "an allowance that was dropped as unused stays in the cache of client names",
            ("Q1",),
            _dropped_allowances_used,
        ),
    )
)
