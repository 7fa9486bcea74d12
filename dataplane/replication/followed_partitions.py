"""Partitions that one fetcher follows, and their next fetch parameters. Plain state.

    add ----> fetching --response: records, diverging epoch, nothing----> fetching
    remove <-'    |---- an error of the partition --> delayed --backoff--> fetching
                  |---- throttled, quota exceeded --> left out --quota---> fetching
                  '---- the connection ends, or the leader has restarted: all start again

Few of thousands of partitions change between two requests: those whose fetch parameters may have
changed are marked, and the next request examines only the marked ones.

Throttled partitions (KIP-73) are left out together, and fetched again in a random order: a request
may bring less than one batch of each, and the leader reads the first ones first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Final

from metaquorum.dataplane.fetch.session_client import FetchSessionClient, Key, RequestedPartition
from metaquorum.dataplane.partition.partition import Partition
from metaquorum.dataplane.replication import follower_state
from metaquorum.dataplane.replication.throttle import FollowerThrottle, may_throttle
from metaquorum.wire.primitives.errors import ErrorCode

# Seconds between examinations of all partitions: the log start offset of an idle one may move.
LOOK_AT_ALL_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Followed:
    partition: Partition
    leader_epoch: int
    want: RequestedPartition | None = None  # last fetch parameters; None while not fetched
    resume_at: float = 0.0
    failures: int = 0
    logged_error: ErrorCode | None = None  # last logged error
    lag: int = 0  # committed records that this replica has not fetched
    is_caught_up: bool = False  # whether it has fetched all, as of the last response
    # The leader has compared the last record here with its own log, or there was none to compare.
    is_matched: bool = False


class FollowedPartitions:
    """Partitions of one fetcher; `look` updates the fetch session from them."""

    def __init__(
        self,
        session: FetchSessionClient,
        partition_max_bytes: int,
        throttle: FollowerThrottle | None = None,
        draws: Random | None = None,
    ) -> None:
        """Create the set; `draws` gives the order after a throttle, and None keeps it."""
        self._throttle = throttle
        self._draws = draws
        self._throttled: dict[Key, None] = {}  # fetched ones that the quota may leave out
        self._left_out: dict[Key, None] = {}
        self._left_out_until = 0.0
        self._session = session
        self._partition_max_bytes = partition_max_bytes
        self._followed: dict[Key, Followed] = {}
        self._changed: dict[Key, None] = {}
        self._delayed: dict[Key, None] = {}
        self._awaited: dict[Key, None] = {}  # with consumers that wait for the high watermark
        self._look_at_all_at = 0.0

    def __len__(self) -> int:
        return len(self._followed)

    def __iter__(self) -> Iterator[Followed]:
        return iter(self._followed.values())

    @property
    def are_awaited(self) -> bool:
        """Whether a consumer waited for a partition's high watermark at the last `look`."""
        return bool(self._awaited)

    def get(self, key: Key) -> Followed | None:
        return self._followed.get(key)

    def add(self, partition: Partition, leader_epoch: int) -> bool:
        """Follow the partition in that leader epoch; return False if it was followed already."""
        key = partition.topic_id, partition.index
        known = self._followed.get(key)
        if (
            known is not None
            and known.partition is partition
            and known.leader_epoch == leader_epoch
        ):
            return False
        self._followed[key] = Followed(partition, leader_epoch)
        self._changed[key] = None
        self._delayed.pop(key, None)
        self._stop_throttling(key)
        return True

    def remove(self, key: Key) -> bool:
        """Stop following the partition; return False if it was not followed."""
        if self._followed.pop(key, None) is None:
            return False
        self._session.drop(key)
        self._changed.pop(key, None)
        self._delayed.pop(key, None)
        self._stop_throttling(key)
        return True

    def mark_changed(self, key: Key) -> None:
        self._changed[key] = None

    def mark_all_changed(self) -> None:
        self._changed.update(dict.fromkeys(self._followed))

    def delay(self, followed: Followed, resume_at: float) -> None:
        """Stop fetching the partition until `resume_at`, if it is still followed."""
        followed.resume_at = resume_at
        key = followed.partition.topic_id, followed.partition.index
        if self._followed.get(key) is followed:
            followed.want = None
            self._session.drop(key)
            self._changed.pop(key, None)
            self._stop_throttling(key)
            self._delayed[key] = None

    def next_resume_at(self) -> float:
        """Return when the first delayed or left out partition is fetched again; inf if none is."""
        next_at = self._left_out_until if self._left_out else inf
        if not self._delayed:
            return next_at
        return min(next_at, *(self._followed[key].resume_at for key in self._delayed))

    def look(self, now: float) -> None:
        """Update the fetch session with the changed and the due delayed partitions."""
        if self._left_out and self._left_out_until <= now:
            self._fetch_left_out()
        if now >= self._look_at_all_at:
            self._look_at_all_at = now + LOOK_AT_ALL_S
            self.mark_all_changed()
        for key in [key for key in self._delayed if self._followed[key].resume_at <= now]:
            del self._delayed[key]
            self._changed[key] = None
        if self._awaited:
            self._awaited = {
                key: None
                for key in self._awaited
                if key in self._followed and self._followed[key].partition.is_awaited
            }
        for key in self._changed:
            if key in self._delayed:
                continue
            followed = self._followed[key]
            if followed.partition.is_awaited:
                self._awaited[key] = None
            if (may_throttle(followed.partition) or key in self._throttled) and self._leaves_out(
                key, followed, now
            ):
                continue
            most_bytes = self._partition_max_bytes
            if key in self._throttled and self._throttle is not None:
                most_bytes = min(most_bytes, self._throttle.room_bytes(now))
            followed.want = follower_state.wanted(
                followed.partition, followed.leader_epoch, most_bytes
            )
            self._session.want(followed.want)
        self._changed.clear()
        if self._throttled and self._throttle is not None and self._throttle.is_exceeded(now):
            for key in list(self._throttled):
                self._leave_out(key, self._followed[key], now)

    def _leaves_out(self, key: Key, followed: Followed, now: float) -> bool:
        """Note whether the quota limits the partition; leave it out if the quota is exceeded."""
        throttle = self._throttle
        if throttle is None or not throttle.limits(
            followed.partition, is_caught_up=followed.is_caught_up
        ):
            self._stop_throttling(key)
            return False
        if throttle.is_exceeded(now):
            self._leave_out(key, followed, now)
            return True
        self._left_out.pop(key, None)
        self._throttled[key] = None
        return False

    def _leave_out(self, key: Key, followed: Followed, now: float) -> None:
        assert self._throttle is not None
        self._throttled.pop(key, None)
        followed.want = None
        self._session.drop(key)
        if not self._left_out:
            self._left_out_until = now + self._throttle.pause_s(now)
        self._left_out[key] = None

    def _fetch_left_out(self) -> None:
        keys = list(self._left_out)
        if self._draws is not None:
            self._draws.shuffle(keys)
        self._left_out.clear()
        self._changed.update(dict.fromkeys(keys))

    def _stop_throttling(self, key: Key) -> None:
        self._throttled.pop(key, None)
        self._left_out.pop(key, None)
