"""The state of quotas for the client of one connection. Plain state; its owners are named below."""

from typing import Protocol

from dataplane.quotas.muting import ClientName, Mute


class ClientQuotaState:
    """The state of the `CpuMeter` and of the `ClientQuotas` for one client."""

    __slots__ = (
        "counted_at",
        "cpu_from_s",
        "cpu_owed_s",
        "cpu_weight",
        "credit",
        "granted",
        "granted_bytes",
        "mute",
        "name",
        "uncounted_bytes",
        "unmetered",
    )

    def __init__(self) -> None:
        self.name: ClientName | None = None  # of the last request
        # Set with an answer: the connection handles no further request until the mute ends.
        self.mute: Mute | None = None
        # CpuMeter: charged up to `cpu_from_s`; `cpu_owed_s` was used in slices that have ended.
        self.cpu_from_s = self.cpu_owed_s = 0.0
        self.cpu_weight = 1  # slices that the running slice stands for; 0: it is not metered
        self.unmetered = 0  # slices since one was metered
        # ClientQuotas: the next `credit` requests, with `granted_bytes` of produced bytes, are
        # counted together with the request behind them.
        self.credit = self.granted = 0
        self.uncounted_bytes = self.granted_bytes = 0
        self.counted_at = 0.0


class QuotaClient(Protocol):
    """The client of a connection, as far as quotas see it."""

    address: tuple[str, int]
    principal: str
    quota: ClientQuotaState

    @property
    def is_follower(self) -> bool:
        """Replication has no quota (KIP-13)."""
        ...


def name_of(client: QuotaClient, client_id: str | None) -> ClientName:
    """The name by which quotas know the client; most requests of a connection have the same."""
    name = client.quota.name
    if name is None or name.client_id != client_id or name.principal != client.principal:
        name = client.quota.name = ClientName(client.principal, client_id)
    return name
