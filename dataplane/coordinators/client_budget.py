"""Memory of the state that clients make a coordinator keep, with a share for each client.

State is groups and members, committed offsets, or transactional ids: each kind has one budget on a
worker. A client is a principal, or an address where clients do not authenticate
(`metaquorum.dataplane.network.client.Client.account`).

    admitted    memory of what the client has created: a member, an offset, an id
    grown       by how much that has grown since: assignments, open transactions

The larger of the two counts, for each client. Known state may therefore always grow by as much as
its client was admitted with, in any budget, and all memory is at most twice the limit.

    counted by all clients      a client may create state
    up to half of the limit     without a limit of its own
    above                       while that client counts at most a SHARE of what is left free

So one client gets half of a budget, the next one a fifth of the rest, and so on: a part is always
left, and a client without state finds room after any number of others. (The dynamic
thresholds of switches with a shared buffer, Choudhury and Hahne 1998.) State that exists is not
evicted; a client's own deletions, retention and operators free it.

State that was loaded from a log counts for UNKNOWN, because records do not name the client, and is
never refused. It becomes that of the next client which uses it, if that client has room for it. So
do members that join from another address: otherwise two clients could hand state to each other, and
none would ever have much.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

# The free part of the limit is divided by this: a client may have as much above half of the limit.
SHARE: Final = 4
# Part of the limit up to which a client that is refused has others to thank for it.
LITTLE: Final = 64
# Client of what was loaded from a log.
UNKNOWN: Final = ""
# Client of records that no request has caused: markers, completions, expiry. No other has spaces.
COORDINATOR: Final = "the coordinator"
# Longest id, in bytes of UTF-8, that creates state: Kafka's own limit is that of a string, 32,767.
# Kafka Streams adds 40 characters to an application.id of 200; Java's consumer refuses instance ids
# of more than 249. The longest that are known are those of Flink before 1.14: 1000 characters of a
# task's name, and 50 more.
MAX_NEW_ID_BYTES: Final = 4096


class Refusal(Enum):
    """Reason for which a client may not create state."""

    SHARE = "the client has its share"
    FULL = "others have nearly all"


class ClientUse(NamedTuple):
    """Memory of one client's state, in bytes, estimated."""

    client: str
    admitted_bytes: int
    grown_bytes: int

    @property
    def counted_bytes(self) -> int:
        return max(self.admitted_bytes, self.grown_bytes)


class ClientBudget:
    """The budget of one kind of state. Plain state."""

    def __init__(
        self,
        name: str,
        limit_bytes: Callable[[], int],
        on_refused: Callable[[str, str, str, Refusal], object] | None = None,
    ) -> None:
        """Create a budget without use; `name` is that of its config.

        `on_refused` is called with the client, what it asked for, the name of that, and the reason.
        """
        self.name = name
        self._on_refused = on_refused
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # memory, estimated
        self.counted_bytes = 0  # sum of all clients
        self.refused_counts = dict.fromkeys(Refusal, 0)
        self._uses: dict[str, tuple[int, int]] = {}  # admitted and grown bytes of each client
        # Numbers from 0 to the length of both together.
        self._numbers = {UNKNOWN: 0}
        self._names = {0: UNKNOWN}
        self._free_numbers: list[int] = []

    def clients(self) -> list[str]:
        """Return the clients that have state."""
        return list(self._uses)

    def use_of(self, client: str) -> ClientUse:
        return ClientUse(client, *self._uses.get(client, (0, 0)))

    @property
    def client_count(self) -> int:
        return len(self._uses)

    def refusal(self, client: str, admitted: int, grown: int = 0) -> Refusal | None:
        """Return why a client may not use these bytes in addition; None if it may."""
        return self._refusal(client, admitted, grown, self.counted_bytes)

    def _refusal(self, client: str, admitted: int, grown: int, counted: int) -> Refusal | None:
        before = self._uses.get(client, (0, 0))
        own = max(before[0] + admitted, before[1] + grown)
        added = own - max(before)
        if added <= 0:
            return None
        limit = self.limit_bytes()
        total = counted + added
        if 2 * total <= limit or own * SHARE <= limit - total:
            return None
        return Refusal.FULL if own <= limit // LITTLE else Refusal.SHARE

    def refused(
        self, client: str, what: str, name: str, admitted: int, grown: int = 0
    ) -> Refusal | None:
        """Return what `refusal` does, and count and report that it was refused.

        `what` and `name` say for what the client needs memory, as "a transactional id" and "x".
        """
        refusal = self.refusal(client, admitted, grown)
        if refusal is not None:
            self.refused_counts[refusal] += 1
            if self._on_refused is not None:
                self._on_refused(client, what, name, refusal)
        return refusal

    def use(self, client: str, admitted: int, grown: int = 0) -> None:
        """Count memory of a client's state; negative if it is freed. Refuses nothing."""
        before = self._uses.get(client, (0, 0))
        after = before[0] + admitted, before[1] + grown
        self.used_bytes += admitted + grown
        self.counted_bytes += max(after) - max(before)
        if any(after):
            self._uses[client] = after
        elif self._uses.pop(client, None) is not None:
            self._forget_number(client)

    # Numbers, with which many small values can name their clients

    def number_of(self, client: str) -> int:
        """Return the number of a client that has state, for as long as it has; 0 for UNKNOWN."""
        number = self._numbers.get(client)
        if number is None:
            assert client in self._uses
            number = self._free_numbers.pop() if self._free_numbers else len(self._numbers)
            self._numbers[client], self._names[number] = number, client
        return number

    def client_of(self, number: int) -> str:
        return self._names[number]

    def _forget_number(self, client: str) -> None:
        if client != UNKNOWN and (number := self._numbers.pop(client, None)) is not None:
            del self._names[number]
            self._free_numbers.append(number)

    def take_over(self, owner: str, client: str, admitted: int, grown: int = 0) -> str:
        """Count state of `owner` for the client that uses it, if that has room; return its client.

        Also for UNKNOWN; never for an unknown client.
        """
        if client in (owner, UNKNOWN):
            return owner
        before = self._uses.get(owner, (0, 0))
        freed = max(before) - max(before[0] - admitted, before[1] - grown)
        if self._refusal(client, admitted, grown, self.counted_bytes - freed) is not None:
            return owner
        self.use(owner, -admitted, -grown)
        self.use(client, admitted, grown)
        return client

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests and the simulator."""
        assert self.used_bytes == sum(map(sum, self._uses.values()))
        assert self.counted_bytes == sum(map(max, self._uses.values()))
        # Growth is negative if state was admitted at its size when loaded, and has shrunk since.
        assert all(admitted >= max(0, -grown) for admitted, grown in self._uses.values())
        assert all(map(any, self._uses.values()))
        assert {number: name for name, number in self._numbers.items()} == self._names
        assert self._numbers[UNKNOWN] == 0
        assert self._numbers.keys() - {UNKNOWN} <= self._uses.keys()
        numbers = sorted([*self._names, *self._free_numbers])
        assert numbers == list(range(len(numbers))), numbers


def text_bytes(text: str) -> int:
    """Return the memory of the characters of a text, at most: a single one widens all others."""
    return len(text) if text.isascii() else 4 * len(text)


def is_longer(text: str, size_bytes: int) -> bool:
    """Return whether the text has more than `size_bytes` bytes of UTF-8."""
    return len(text) * 4 > size_bytes and len(text.encode()) > size_bytes
