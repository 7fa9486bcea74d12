"""Client quotas of one worker: byte rates of producers and consumers, and event loop time.

Clients with the same allowance (`metaquorum.metadata.quota_lookup`) are counted together in one
window (`metaquorum.dataplane.quotas.rate_window`). The rule that applies to a client is looked up
once and cached until a quota changes. The counted use stays when the value of a quota changes: a
new value applies at once to earlier use, too, and shortens mutes that are longer than that value
requires.

Use counts also while no quota applies to a client, as in Kafka, for KEPT_S after the last quota of
the kind was removed: a quota that is removed and set again finds it. It is counted for each set of
clients that could share a quota, of the shapes that quotas have had (user, client id, or both).

An allowance without use for a whole window is forgotten when other clients arrive, or within a
minute. `MAX_CLIENTS` bounds the memory that clients with invented names can take, of which each has
a share (`metaquorum.dataplane.quotas.allowance_table`).

Counting a request takes about 2 microseconds, a tenth of a small request. A client that sends many
requests and is within its quotas therefore gets *credit* for some requests: they are added up and
counted with the first request after them. The credit covers at most the requests of CREDIT_S, and
the bytes that the client may produce in that time, which is negligible in a window of seconds. It
ends with each change of a quota: a client without a quota has credit for more bytes.

Quotas delay responses. A produce is appended and answered, then the connection is muted. A fetch is
checked before it reads, and the bytes of its response count afterwards, so that a batch larger than
the whole quota is still delivered, and counted. If several quotas are violated, the longest
throttle time applies.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from math import inf
from random import Random
from typing import Final, NamedTuple, TypeAlias

import trio

from metaquorum.config.resolution import Configs
from metaquorum.dataplane.quotas.allowance_table import Allowance, AllowanceTable, ThrottleStats
from metaquorum.dataplane.quotas.client_state import ClientShare, QuotaClient, name_of, share_of
from metaquorum.dataplane.quotas.connection_rates import ConnectionRates
from metaquorum.dataplane.quotas.cpu_meter import PERCENT, CpuMeter
from metaquorum.dataplane.quotas.muting import ClientName, Mute, throttle_ms
from metaquorum.dataplane.quotas.producer_admission import ProducerAdmission
from metaquorum.dataplane.quotas.rate_window import RateWindow
from metaquorum.metadata.image import MetadataDelta, MetadataImage
from metaquorum.metadata.quota_lookup import (
    NO_CLIENT_ID,
    OBSERVED,
    QuotaEntity,
    Rule,
    Sharers,
    SpecialName,
    applying,
    rules_for,
)
from metaquorum.quorum.controller.quota_changes import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from metaquorum.runtime import Clock

MAX_CLIENTS: Final = 100_000
SLICE_ALLOWANCES: Final = 1000  # allowances checked before other tasks run
# How long use without a quota counts after the last quota of its kind was removed, in seconds.
# Kafka counts it until the broker stops, and forgets the counts of a client after an hour.
KEPT_S: Final = 3600.0
UNLIMITED: Final = 2**63 - 1  # value of the configs of defaults for "no limit"
# Requests of this time, in seconds, may be counted together: up to MAX_CREDIT requests.
CREDIT_S: Final = 0.02
MAX_CREDIT: Final = 64
MAX_CREDIT_BYTES: Final = 1 << 20
# The configs that limit a client id if no rule applies to the client.
DEFAULT_CONFIGS: Final[Mapping[str, str]] = {
    PRODUCER_BYTE_RATE: "quota.producer.default",
    CONSUMER_BYTE_RATE: "quota.consumer.default",
}

Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]


class Shape(NamedTuple):
    """Whether the clients that share a quota have the same user, and the same client id."""

    by_user: bool
    by_client_id: bool

    def sharers(self, name: ClientName) -> Sharers:
        """Return the clients that would share a quota of this shape with a client."""
        return Sharers(
            name.user if self.by_user else None,
            (name.client_id or NO_CLIENT_ID) if self.by_client_id else None,
        )


def _shape(entity: QuotaEntity) -> Shape:
    return Shape(entity.user is not SpecialName.ABSENT, entity.client_id is not SpecialName.ABSENT)


class RateQuotas:
    """One kind of quota, and its use by all clients."""

    def __init__(
        self,
        key: str,
        quotas: Quotas,
        clock: Clock,
        samples: int,
        sample_s: float,
        *,
        shapes: Collection[Shape] = (),
        default: float | None = None,
        most_s: float | None = None,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        """Create the counts of quota `key`.

        `shapes` are those that its quotas have had; `default` is the quota of clients without a
        rule, in units per second; `most_s` is the longest throttle time, in seconds.
        """
        self.key = key
        self._quotas = quotas
        self.now = clock.monotonic
        self._samples = samples
        self._sample_s = sample_s
        self._shapes = shapes
        self._default = default
        self._most_s = most_s
        self._max_clients = max_clients
        self._allowances = AllowanceTable(max_clients)
        self._by_name: dict[ClientName, Allowance] = {}
        # Clients without a quota, and where their use is counted; empty: nothing is counted yet.
        self._unlimited: dict[ClientName, tuple[Allowance, ...]] = {}

    def __len__(self) -> int:
        """Return the number of allowances in memory."""
        return len(self._allowances)

    def use(self, name: ClientName, amount: float, now: float, client: QuotaClient) -> float:
        """Count `amount` units of the client. Return its throttle time in seconds, 0 if none.

        Only this creates allowances in memory; they are of the share of `client`.
        """
        allowance = self._by_name.get(name)
        if allowance is None or allowance.is_forgotten:
            allowance = self._allowance(name, client)
            if allowance is None:
                self._use_without_quota(name, amount, now, client)
                return 0.0
        allowance.used += amount
        delay_s = allowance.window.use(amount, allowance.quota, now)
        return self._capped(delay_s) if delay_s else 0.0

    def _use_without_quota(
        self, name: ClientName, amount: float, now: float, client: QuotaClient
    ) -> None:
        counted = self._unlimited.get(name)
        if not counted or any(allowance.is_forgotten for allowance in counted):
            self._unlimited[name] = tuple(
                self._recorded(shape.sharers(name), name, amount, now, client)
                for shape in self._shapes
            )
        else:
            for allowance in counted:
                allowance.record(amount, now)

    def _recorded(
        self,
        sharers: Sharers,
        name: ClientName,
        amount: float,
        now: float,
        client: QuotaClient,
    ) -> Allowance:
        allowance = self._allowance_of(sharers, name, client)
        allowance.record(amount, now)  # at once: an unused one may be forgotten
        return allowance

    def delay_s(self, name: ClientName) -> float:
        """Return the throttle time in seconds of the client now, without counting any use."""
        allowance = self.seen(name)
        if allowance is None or allowance.quota >= allowance.window.within:
            return 0.0
        return self._capped(allowance.window.delay_s(allowance.quota, self.now()))

    def delay_after_s(self, name: ClientName, amount: float) -> float:
        """Return the throttle time in seconds after `amount` more units, without counting them."""
        allowance = self.seen(name)
        if allowance is None:
            return 0.0
        return self._capped(allowance.window.delay_after_s(amount, allowance.quota, self.now()))

    def _capped(self, seconds: float) -> float:
        return seconds if self._most_s is None else min(seconds, self._most_s)

    def window_units(self, name: ClientName) -> float | None:
        """Return the units that an idle client may use at once; None: not limited."""
        allowance = self.seen(name)
        return None if allowance is None else allowance.quota * allowance.window.least_s

    def seen(self, name: ClientName) -> Allowance | None:
        """Return the allowance of the client, to look at it; None if it is not limited.

        One that is not in memory is new, and is not kept: it would be in no client's share.
        """
        allowance = self._by_name.get(name)
        if allowance is not None and not allowance.is_forgotten:
            return allowance
        rule = self._limiting(name)
        if rule is None:
            return None
        allowance = self._allowances.get(rule.sharers)
        if allowance is None:
            window = RateWindow(self._samples, self._sample_s)
            allowance = Allowance(name, rule.sharers, ClientShare(name.principal, ""), window)
        self._apply(rule, allowance)
        return allowance

    def throttled(self, name: ClientName, seconds: float) -> None:
        """Record that the client is delayed by `seconds`."""
        allowance = self.seen(name)
        if allowance is not None:
            if allowance.throttles is None:
                allowance.throttles = ThrottleStats(self._samples, self._sample_s)
            allowance.throttles.add(seconds, self.now())

    def rule(self, name: ClientName) -> Rule | None:
        """Return the rule that applies to the client; None if it is not limited."""
        return applying(self._quotas, self.key, name.user, name.client_id, default=self._default)

    def in_use(self) -> Iterator[Allowance]:
        """Yield the allowances of a quota with use within the window."""
        now = self.now()
        for one in self._allowances:
            # Another quota, or none, may apply to that client by now.
            if not one.is_unused(now) and self.seen(one.name) is one:
                yield one

    def throttled_ever(self) -> Iterator[Allowance]:
        """Yield the allowances in memory that have delayed a client."""
        for one in self._allowances:
            if one.throttles is not None:
                yield one

    def change(self, quotas: Quotas) -> None:
        """Replace the quotas; the counted use stays. There may be new shapes."""
        self._quotas = quotas
        self._forget_names()

    async def forget_unused(self) -> None:
        """Forget allowances without use for a whole window."""
        count = len(self._allowances)
        for number, allowance in enumerate(self._allowances):
            if number % SLICE_ALLOWANCES == SLICE_ALLOWANCES - 1:
                await trio.lowlevel.checkpoint()
            if not allowance.is_forgotten and allowance.is_unused(self.now()):
                self._allowances.forget(allowance)
        if len(self._allowances) < count:
            self._forget_names()

    def _forget_names(self) -> None:
        self._by_name.clear()
        self._unlimited.clear()

    def _allowance(self, name: ClientName, client: QuotaClient) -> Allowance | None:
        """Return the allowance of the client, for use; None if it is not limited."""
        rule = self._limiting(name)
        if rule is None:
            return None
        allowance = self._allowance_of(rule.sharers, name, client)
        self._apply(rule, allowance)
        self._by_name[name] = allowance
        return allowance

    def _limiting(self, name: ClientName) -> Rule | None:
        """Return the same as `rule`, and remember clients that are not limited."""
        if name in self._unlimited:
            return None
        if len(self._by_name) + len(self._unlimited) >= self._max_clients:
            self._forget_names()
        rule = self.rule(name)
        if rule is None:
            self._unlimited[name] = ()
        return rule

    def _apply(self, rule: Rule, allowance: Allowance) -> None:
        assert rule.value is not None
        allowance.limit(rule.value, self.now())

    def _allowance_of(self, sharers: Sharers, name: ClientName, client: QuotaClient) -> Allowance:
        allowance = self._allowances.get(sharers)
        if allowance is None:
            window = RateWindow(self._samples, self._sample_s)
            allowance = Allowance(name, sharers, share_of(client), window)
            self._allowances.add(allowance, self.now())
        return allowance


class ClientQuotas:
    """The client quotas of one worker; a metadata publisher that follows quota changes.

    A kind is None until an entity has such a quota, and again KEPT_S after none has. `mutes` holds
    the muted connections; `is_on` is whether any response may be delayed or must be counted.
    """

    def __init__(
        self,
        image: MetadataImage,
        clock: Clock,
        random: Random,
        configs: Configs,
        *,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        """Create them with the quotas of the image; `max_clients`: allowances of each kind."""
        self._clock = clock
        self._random = random
        self._samples = configs.integer("quota.window.num")
        self._sample_s = float(configs.integer("quota.window.size.seconds"))
        self._defaults: dict[str, float] = {}
        for key, config in DEFAULT_CONFIGS.items():
            if (value := configs.integer(config)) < UNLIMITED:
                self._defaults[key] = float(value)
        self.mutes: dict[Mute, None] = {}
        self._quotas = MetadataImage.empty(image.cluster_id).client_quotas
        self._counts: Counter[str] = Counter()  # entities with a quota, by its key
        # By the key of a quota: the shapes of its entities, and since when no entity has one.
        self._shapes: defaultdict[str, set[Shape]] = defaultdict(set)
        self._unset_at: dict[str, float] = {}
        self._max_clients = max_clients
        self._change_count = 0  # changes of the quotas since the start
        self.produce: RateQuotas | None = None
        self.fetch: RateQuotas | None = None
        self.request: RateQuotas | None = None
        # Quotas that only count the delays that they would cause, by the key of the real quota.
        self.observed: dict[str, RateQuotas] = {}
        self.connections = ConnectionRates(self._quotas, clock, configs)
        self.producers = ProducerAdmission(image.next_producer_id, clock.monotonic, configs)
        self.meter = CpuMeter(clock.cpu_s, self._ended)
        self.is_on = self.is_on_for_fetches = False
        self._follow(image)

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.producers.next_producer_id = image.next_producer_id
        if delta.quota_entities:
            self._follow(image)
            for mute in list(self.mutes):
                mute.shorten(self._delay_s(mute.key, mute.name))

    @property
    def kinds(self) -> list[RateQuotas]:
        """Kinds of quota that any entity has."""
        limiting = [kind for kind in (self.produce, self.fetch, self.request) if kind is not None]
        return [*limiting, *self.observed.values()]

    def rules(self, key: str, name: ClientName) -> list[Rule]:
        """Return all rules that match the client, with or without a value, in precedence order."""
        default = self._defaults.get(key)
        return list(rules_for(self._quotas, key, name.user, name.client_id, default=default))

    async def forget_unused(self) -> None:
        """Forget use that counts no longer, and kinds of which there was no quota for KEPT_S."""
        for kind in self.kinds:
            await kind.forget_unused()
        self._set_kinds()

    def _follow(self, image: MetadataImage) -> None:
        before, self._quotas = self._quotas, image.client_quotas
        for items in self._quotas.without(before):
            for entity, values in items:
                self._counts.update(values.keys())
                for key in values:
                    self._shapes[key].add(_shape(entity))
        for items in before.without(self._quotas):
            for _, values in items:
                self._counts.subtract(values.keys())
        self._change_count += 1
        self.connections.change(self._quotas)
        for kind in self.kinds:
            kind.change(self._quotas)
        self._set_kinds()

    def _set_kinds(self) -> None:
        """Create the kinds of which there is a quota; remove those that are not needed."""
        self.produce = self._kind(PRODUCER_BYTE_RATE, self.produce)
        self.fetch = self._kind(CONSUMER_BYTE_RATE, self.fetch)
        self.request = self._kind(REQUEST_PERCENTAGE, self.request)
        for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE):
            observed = self._kind(OBSERVED + key, self.observed.pop(key, None))
            if observed is not None:
                self.observed[key] = observed
        self.meter.is_on = self.request is not None or REQUEST_PERCENTAGE in self.observed
        self.is_on = (
            self.produce is not None or self.meter.is_on or PRODUCER_BYTE_RATE in self.observed
        )
        self.is_on_for_fetches = self.fetch is not None or CONSUMER_BYTE_RATE in self.observed

    def _kind(self, key: str, kind: RateQuotas | None) -> RateQuotas | None:
        if self._counts[key] or key in self._defaults:
            self._unset_at.pop(key, None)
            return kind or self._new(key)
        if kind is None:
            return None
        now = self._clock.monotonic()
        if now - self._unset_at.setdefault(key, now) <= KEPT_S:
            return kind
        del self._unset_at[key], self._shapes[key]
        return None

    def _new(self, key: str) -> RateQuotas:
        return RateQuotas(
            key,
            self._quotas,
            self._clock,
            self._samples,
            self._sample_s,
            shapes=self._shapes[key],
            default=self._defaults.get(key),
            max_clients=self._max_clients,
            most_s=self._sample_s if key.endswith(REQUEST_PERCENTAGE) else None,
        )

    def answering(self, client: QuotaClient, client_id: str | None, produced_bytes: int) -> int:
        """Count a request before its response is sent. Return its throttle time in milliseconds.

        If the throttle time is not 0, the connection is muted after the response.
        """
        if client.quota.credit and client.quota.mute is None:
            asked_as = client.quota.name
            uncounted_bytes = client.quota.uncounted_bytes + produced_bytes
            if (
                uncounted_bytes <= client.quota.granted_bytes
                and client.quota.granted_in == self._change_count
                and asked_as is not None
                and asked_as.client_id == client_id
            ):
                client.quota.credit -= 1
                client.quota.uncounted_bytes = uncounted_bytes
                return 0
        return self._count(client, client_id, produced_bytes)

    def _count(self, client: QuotaClient, client_id: str | None, produced_bytes: int) -> int:
        """Count a request as `answering` does, with the requests of the credit before it."""
        now = self._clock.monotonic()
        if client.quota.uncounted_bytes:
            if client.quota.name == (client.principal, client_id):
                produced_bytes += client.quota.uncounted_bytes
            else:
                self._count_bytes(client, client.quota.uncounted_bytes, now)
            client.quota.uncounted_bytes = 0
        requests = client.quota.granted - client.quota.credit + 1
        name = name_of(client, client_id)
        self._count_bytes(client, produced_bytes, now)
        if self.meter.is_on and not client.is_follower:
            percent_s = self.meter.charge(client)
            if (request := self.request) is not None:
                delay_s = request.use(name, percent_s, now, client)
                if delay_s:
                    self._throttle(client, request, name, delay_s)
            if self.observed:
                self._observe(REQUEST_PERCENTAGE, client, percent_s, now)
        client.quota.granted = client.quota.credit = 0
        if client.quota.mute is not None:
            return throttle_ms(client.quota.mute.seconds)
        since_s, client.quota.counted_at = now - client.quota.counted_at, now
        if 0.0 < since_s < CREDIT_S * requests:
            self._grant(client, name, requests / since_s)
        return 0

    def _grant(self, client: QuotaClient, name: ClientName, requests_per_s: float) -> None:
        """Grant credit to a busy client: a random number of its next requests is counted later.

        The mean is the number of requests in CREDIT_S.
        """
        most = min(2 * int(requests_per_s * CREDIT_S), MAX_CREDIT)
        client.quota.granted = client.quota.credit = int(self._random.random() * (most + 1))
        may_bytes = MAX_CREDIT_BYTES
        for kind in (self.produce, self.observed.get(PRODUCER_BYTE_RATE)):
            if kind is not None and (allowance := kind.seen(name)) is not None:
                may_bytes = min(may_bytes, int(allowance.quota * CREDIT_S))
        client.quota.granted_bytes = may_bytes
        client.quota.granted_in = self._change_count

    def _count_bytes(self, client: QuotaClient, produced_bytes: int, now: float) -> None:
        """Count produced bytes under the name of the client's last request."""
        name = client.quota.name
        if not produced_bytes or name is None:
            return
        if (produce := self.produce) is not None:
            delay_s = produce.use(name, produced_bytes, now, client)
            if delay_s:
                self._throttle(client, produce, name, delay_s)
        if self.observed:
            self._observe(PRODUCER_BYTE_RATE, client, produced_bytes, now)

    def may_fetch(self, client: QuotaClient, client_id: str | None) -> int:
        """Return 0 if a fetch may return records now, otherwise its throttle time in milliseconds.

        A throttled client is muted after the response.
        """
        if self.fetch is None:
            return 0
        name = name_of(client, client_id)
        if delay_s := self.fetch.delay_s(name):
            self._throttle(client, self.fetch, name, delay_s)
        return 0 if client.quota.mute is None else throttle_ms(client.quota.mute.seconds)

    def fetched(self, client: QuotaClient, client_id: str | None, size_bytes: int) -> None:
        """Count the bytes of a fetch response; use above the quota delays the next fetch."""
        name, now = name_of(client, client_id), self._clock.monotonic()
        if self.fetch is not None:
            self.fetch.use(name, size_bytes, now, client)
        if self.observed:
            self._observe(CONSUMER_BYTE_RATE, client, size_bytes, now)

    def fetch_bytes(self, client: QuotaClient, client_id: str | None) -> int | None:
        """Return the limit of one fetch response in bytes; None: no limit.

        A first batch above the limit is still returned.
        """
        if self.fetch is None:
            return None
        most = self.fetch.window_units(name_of(client, client_id))
        return None if most is None else max(1, int(most))

    def limits_mutations(self, name: ClientName) -> bool:
        """Return whether a controller_mutation_rate quota applies to the client."""
        key = CONTROLLER_MUTATION_RATE
        return bool(self._counts[key]) and (
            applying(self._quotas, key, name.user, name.client_id) is not None
        )

    @property
    def limits_any_mutations(self) -> bool:
        return bool(self._counts[CONTROLLER_MUTATION_RATE])

    def mute_for_mutations(self, client: QuotaClient, name: ClientName, seconds: float) -> None:
        self._mute(client, CONTROLLER_MUTATION_RATE, name, seconds)

    def _observe(self, key: str, client: QuotaClient, amount: float, now: float) -> None:
        """Count use under an observed quota, and the delay that it would have caused.

        It counts for the name of the client's last request.
        """
        kind, name = self.observed.get(key), client.quota.name
        if kind is None or name is None:
            return
        if delay_s := kind.use(name, amount, now, client):
            kind.throttled(name, delay_s)

    def _throttle(
        self, client: QuotaClient, kind: RateQuotas, name: ClientName, seconds: float
    ) -> None:
        kind.throttled(name, seconds)
        self._mute(client, kind.key, name, seconds)

    def _mute(self, client: QuotaClient, key: str, name: ClientName, seconds: float) -> None:
        if client.quota.mute is not None:
            if client.quota.mute.left_s >= seconds:
                return
            client.quota.mute.end()
        client.quota.mute = Mute(seconds, key, name, client.address, self.mutes)

    def _ended(self, client: QuotaClient) -> None:
        """Count the uncounted use of a connection that has ended; no response is delayed for it."""
        name, now = client.quota.name, self._clock.monotonic()
        if name is None:
            return
        bytes_left, client.quota.uncounted_bytes = client.quota.uncounted_bytes, 0
        percent_s, client.quota.cpu_owed_s = client.quota.cpu_owed_s * PERCENT, 0.0
        for key, kind, amount in (
            (PRODUCER_BYTE_RATE, self.produce, bytes_left),
            (REQUEST_PERCENTAGE, self.request, percent_s),
        ):
            if amount and kind is not None:
                kind.use(name, amount, now, client)
            if amount and (observed := self.observed.get(key)) is not None:
                observed.use(name, amount, now, client)

    def _delay_s(self, key: str, name: ClientName) -> float:
        for kind in self.kinds:
            if kind.key == key:
                return kind.delay_s(name)
        # Only the controller counts mutations: a client that is still limited keeps its mute.
        return inf if key == CONTROLLER_MUTATION_RATE and self.limits_mutations(name) else 0.0
