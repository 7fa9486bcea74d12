"""Items of a background loop that fail: when each is tried again, and when its error is reported.

One item that cannot be handled (a folder, a partition, a group) must neither stop the loop for the
others nor fill the log. Plain state: `now` is monotonic seconds.

    failure                                     reported
    the first of an item                        yes
    a later one with the same text              once in REPORT_AGAIN_S
    a later one with another text               yes
    after a success                             as the first

Each failure doubles the time to the next attempt, from FIRST_RETRY_S to MOST_RETRY_S.
"""

from collections.abc import Collection, Hashable
from typing import Final, Generic, TypeVar

FIRST_RETRY_S: Final = 1.0
MOST_RETRY_S: Final = 300.0
REPORT_AGAIN_S: Final = 3600.0

K = TypeVar("K", bound=Hashable)


class _Failing:
    __slots__ = ("failures", "reported_at", "retry_at", "text")

    def __init__(self) -> None:
        self.failures = 0
        self.retry_at = 0.0
        self.reported_at = float("-inf")
        self.text = ""


class FailingItems(Generic[K]):
    """The items of one loop that have failed since their last success."""

    def __init__(
        self, *, first_retry_s: float = FIRST_RETRY_S, most_retry_s: float = MOST_RETRY_S
    ) -> None:
        self._first_retry_s = first_retry_s
        self._most_retry_s = most_retry_s
        self._items: dict[K, _Failing] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: K) -> bool:
        return item in self._items

    def is_due(self, item: K, now: float) -> bool:
        """Return whether the item may be tried: it has not failed, or its back-off has passed."""
        failing = self._items.get(item)
        return failing is None or now >= failing.retry_at

    def due(self, now: float) -> list[K]:
        """Return the failed items whose back-off has passed, the oldest failure first."""
        return [item for item, failing in self._items.items() if now >= failing.retry_at]

    def failed(self, item: K, text: str, now: float) -> bool:
        """Note a failure of the item, with its error's text; return whether to report it."""
        failing = self._items.setdefault(item, _Failing())
        delay_s = min(self._first_retry_s * 2.0 ** min(failing.failures, 60), self._most_retry_s)
        failing.failures += 1
        failing.retry_at = now + delay_s
        if text == failing.text and now - failing.reported_at < REPORT_AGAIN_S:
            return False
        failing.text, failing.reported_at = text, now
        return True

    def succeeded(self, item: K) -> None:
        """Forget the failures of an item that was handled or deleted."""
        self._items.pop(item, None)

    def keep(self, items: Collection[K]) -> None:
        """Forget all other items."""
        for item in self._items.keys() - set(items):
            del self._items[item]
