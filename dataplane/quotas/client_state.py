"""Quota state of the client of one connection. Plain state; the comments name its owners."""

from ipaddress import AddressValueError, IPv6Address
from math import inf
from typing import Final, NamedTuple, Protocol

import trio

from metaquorum.dataplane.quotas.muting import ClientName, Mute

_NETWORK_BITS: Final = 64  # part of an IPv6 address that a host cannot choose


class ClientShare(NamedTuple):
    """The clients that have one share of a worker's limits together: of a principal, at an address.

    A client can choose neither. (It can choose its client id.)
    """

    principal: str
    network: str  # an IPv4 address, or the network of an IPv6 address: a host has 2^64 of them

    def __str__(self) -> str:
        name = self.principal if self.principal.isprintable() else ascii(self.principal)
        return f"{name} at {self.network}"


class ClientQuotaState:
    """State that the `CpuMeter` and the `ClientQuotas` keep for one client."""

    __slots__ = (
        "counted_at",
        "cpu_from_s",
        "cpu_owed_s",
        "cpu_weight",
        "credit",
        "granted",
        "granted_bytes",
        "granted_in",
        "mute",
        "name",
        "uncounted_bytes",
        "unmetered",
        "unmuted_at",
    )

    def __init__(self) -> None:
        self.name: ClientName | None = None  # name in the last request
        # Set with a response: the connection handles no further request until the mute ends.
        self.mute: Mute | None = None
        self.unmuted_at = -inf  # time of trio at which the last mute ended
        # CpuMeter: CPU time is charged up to `cpu_from_s`; `cpu_owed_s` is uncharged time of slices
        # that have ended.
        self.cpu_from_s = self.cpu_owed_s = 0.0
        self.cpu_weight = 1  # slices that the running slice counts as; 0: it is not metered
        self.unmetered = 0  # slices since the last metered one
        # ClientQuotas: the next `credit` requests, with at most `granted_bytes` of produced bytes,
        # are counted together with the request after them.
        self.credit = self.granted = 0
        self.uncounted_bytes = self.granted_bytes = 0
        self.granted_in = 0  # number of changes of quotas before the credit; it ends with the next
        self.counted_at = 0.0

    def muted_until(self, now: float) -> float:
        """Return when the mute ends, or the last one ended, on the clock that shows `now`."""
        if self.mute is not None:
            return now + self.mute.left_s
        return now - trio.current_time() + self.unmuted_at

    def end_mute(self) -> None:
        """End the mute, if there is one: requests of the connection are handled again."""
        if self.mute is not None:
            self.mute.end()
            self.mute, self.unmuted_at = None, trio.current_time()


class QuotaClient(Protocol):
    """The client of a connection, as quotas see it."""

    address: tuple[str, int]
    principal: str
    quota: ClientQuotaState

    @property
    def is_follower(self) -> bool:
        """Whether the client is another worker: replication has no client quota (KIP-13)."""
        ...


def name_of(client: QuotaClient, client_id: str | None) -> ClientName:
    """Return the quota name of the client, cached: most requests of a connection have the same."""
    name = client.quota.name
    if name is None or name.client_id != client_id or name.principal != client.principal:
        name = client.quota.name = ClientName(client.principal, client_id)
    return name


def share_of(client: QuotaClient) -> ClientShare:
    """Return the share of a worker's limits that the client has with others."""
    host = client.address[0]
    if ":" not in host:
        return ClientShare(client.principal, host)
    try:
        address = IPv6Address(host)
    except AddressValueError:
        return ClientShare(client.principal, host)
    if address.ipv4_mapped is not None:
        return ClientShare(client.principal, str(address.ipv4_mapped))
    network = int(address) >> _NETWORK_BITS << _NETWORK_BITS
    return ClientShare(client.principal, f"{IPv6Address(network)}/{_NETWORK_BITS}")
