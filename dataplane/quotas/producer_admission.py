"""Admission of producers that a partition does not know: clients have a share of a worker's memory.

A partition keeps the state of each producer for `producer.id.expiration.ms`, because it protects
acknowledged records from duplicates. Every client that may produce can send batches with any number
of producer ids. So the leader, and only for a batch of a client, asks before it appends:

    producer id of the batch                      the batch
    known to the partition                        not asked about
    above all ids that the cluster has given out  refused: INVALID_PRODUCER_ID_MAPPING, which ends
                                                  Java's producer, and fails librdkafka's messages;
                                                  after other errors they send again and again
    new, and the clients' share is used up        refused: NOT_ENOUGH_REPLICAS, which every client
                                                  retries (librdkafka gives up a batch after
                                                  THROTTLING_QUOTA_EXCEEDED)
    new                                           appended; a use of the share

The clients of a principal at an address have a share of their own (`ClientShare`). Shares have no
limit together, so clients that use up one share never stop the new producers of others, and no
known producer is ever refused. Followers and recovery take all that a leader has appended.

A share is a leaky bucket. Half of `max.producer.ids.per.client` may come at once; the bucket is
empty again after `producer.id.expiration.ms`. So all clients of the share together bring at most
that number of ids within the expiry, and not more of them than that are in memory, if the worker
has led the partitions all the time: the shares begin unused when a worker starts. KIP-936, which is
not in any release of Kafka, proposes a quota on the rate in a window of hours, with the same error
for the batches above it.

An id above all that are given out may also be new: its block has been allocated, and this worker
does not know that yet. The batch waits until the worker has the metadata of now.

Plain state: `now` is monotonic seconds.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.quotas.client_state import ClientShare, QuotaClient, share_of
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

MAX_SHARES: Final = 100_000  # in memory; beyond it, the one not used for longest is forgotten
LOOKED_AT: Final = 4  # shares not used for longest that are checked for each use
MOST_NAMED: Final = 10  # shares in a log line


class UnknownProducerIdError(KafkaError):
    """Raised for an id above all that this worker knows to be given out. It may be a new one."""

    def __init__(self, producer_id: int, admission: "ProducerAdmission") -> None:
        super().__init__(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"this worker does not know yet whether producer id {producer_id} is given out",
        )
        self._producer_id = producer_id
        self._admission = admission

    def settled(self, *, is_caught_up: bool) -> KafkaError:
        """Return the error to report.

        `is_caught_up`: the worker has applied all metadata from before the batch.
        """
        if not is_caught_up or self._producer_id < self._admission.next_producer_id:
            return self
        self._admission.forged_count += 1
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"this cluster has not given out producer id {self._producer_id}: create the producer"
            " again if it was created for another cluster, or before this one lost its data",
        )


class _Share:
    __slots__ = ("at", "refused", "reported", "used")

    def __init__(self, now: float) -> None:
        self.used = 0.0
        self.at = now  # time of `used`
        self.refused = self.reported = 0  # batches


class ProducerAdmission:
    """The shares of one worker's clients."""

    def __init__(
        self, next_producer_id: int, monotonic: Callable[[], float], configs: Configs
    ) -> None:
        """Create it unused; `next_producer_id` is the first id not given out, as known now."""
        self.next_producer_id = next_producer_id
        self.refused_count = 0  # batches of clients that had used up their share
        self.forged_count = 0  # batches with an id that is not given out
        self._monotonic = monotonic
        # The one not used for longest first.
        self._shares: OrderedDict[ClientShare, _Share] = OrderedDict()
        self._most = 0  # ids
        self._period_s = 1.0
        self.update(configs)

    def __len__(self) -> int:
        """Return the number of shares in memory."""
        return len(self._shares)

    def update(self, configs: Configs) -> None:
        """Take the configs in force; what the clients have used stays."""
        now = self._monotonic()
        for share in self._shares.values():
            self._leak(share, now)
        self._most = configs.integer("max.producer.ids.per.client")
        self._period_s = configs.integer("producer.id.expiration.ms") / 1000

    @property
    def _at_once(self) -> float:
        return max(1.0, self._most / 2)

    def admit(self, client: QuotaClient, producer_id: int) -> None:
        """Count a producer that is new to a partition against the share of `client`.

        Raises KafkaError if it is refused; it is not counted then.
        """
        if producer_id >= self.next_producer_id:
            raise UnknownProducerIdError(producer_id, self)
        key, now = share_of(client), self._monotonic()
        share = self._shares.pop(key, None)
        if share is None:
            share = _Share(now)
            self._forget_some(now)
        self._shares[key] = share
        self._leak(share, now)
        if share.used + 1 <= self._at_once:
            share.used += 1
            return
        share.refused += 1
        self.refused_count += 1
        wait_s = (share.used + 1 - self._at_once) / self._at_once * self._period_s
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"producer {producer_id} is new to the partition, and the clients of {key} have brought"
            " as many producers as max.producer.ids.per.client permits within"
            f" producer.id.expiration.ms: the next may come in {wait_s:.1f} s; keep producers"
            " instead of creating new ones, or raise the config",
        )

    def _leak(self, share: _Share, now: float) -> None:
        leaked = (now - share.at) * self._at_once / self._period_s
        share.used = max(0.0, share.used - leaked)
        share.at = now

    def _forget_some(self, now: float) -> None:
        shares = self._shares
        for _ in range(min(LOOKED_AT, len(shares))):
            key = next(iter(shares))
            self._leak(shares[key], now)
            if shares[key].used and len(shares) < MAX_SHARES:
                return
            del shares[key]

    def newly_refused(self) -> str | None:
        """Return the clients refused since the last call, for a log line; None if there are none.

        Each with the number of its batches, those with the most first.
        """
        refused = [
            (share.refused - share.reported, key)
            for key, share in self._shares.items()
            if share.refused > share.reported
        ]
        for share in self._shares.values():
            share.reported = share.refused
        if not refused:
            return None
        refused.sort(key=lambda one: -one[0])
        parts = [f"{count} of {key}" for count, key in refused[:MOST_NAMED]]
        if len(refused) > MOST_NAMED:
            parts.append(f"and {len(refused) - MOST_NAMED} more")
        return "; ".join(parts)
