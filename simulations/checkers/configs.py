"""Checkers of configs: an acknowledged value is in force, at once and after every start."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metaquorum.simulations.harness.environment import Checker, Environment

TOPIC: Final = 2
WORKER: Final = 4
ALL_WORKERS: Final = ""
# Prefix of configs that can be set but are not listed by DescribeConfigs.
_HIDDEN: Final = "internal."


class Resource(NamedTuple):
    kind: int
    name: str


@dataclass(slots=True)
class Known:
    """Possible values of a config: the last acknowledged one, and unanswered ones."""

    value: str | None = None
    # Values requested and not answered, each with the run of the node. Such a request may be
    # carried out as long as that run lasts, even after a later one was answered.
    unanswered: list[tuple[int, str | None]] = field(default_factory=list)

    def may_be(self) -> set[str | None]:
        return {self.value, *(value for _, value in self.unanswered)}


class ConfigsStay(Checker):
    """DescribeConfigs shows acknowledged values, and no value that was never requested."""

    invariant = "M3"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # A new cluster has this config, which eligible leader replicas depend on.
        self._known: dict[Resource, dict[str, Known]] = {
            Resource(WORKER, ALL_WORKERS): {"min.insync.replicas": Known("1")}
        }

    # Changes

    def created(self, name: str, configs: dict[str, str]) -> None:
        """Record a new topic; unanswered changes of an older topic of its name may still apply."""
        known = self._known.setdefault(Resource(TOPIC, name), {})
        for one in known.values():
            one.value = None
        for key, value in configs.items():
            known.setdefault(key, Known()).value = value

    def asked(self, resource: Resource, key: str, value: str | None) -> None:
        one = self._known.setdefault(resource, {}).setdefault(key, Known())
        one.unanswered.append((self.environment.node.runs, value))

    def answered(self, resource: Resource, key: str, value: str | None, *, done: bool) -> None:
        """Record the response to the newest change of this config; `done`: it was accepted."""
        one = self._known[resource][key]
        one.unanswered.pop()
        if done:
            one.value = value

    # Expected values

    def may_be(self, resource: Resource, key: str) -> set[str | None]:
        return self._known.get(resource, {}).get(key, Known()).may_be()

    def own(self, resource: Resource) -> dict[str, str] | None:
        """Return the configs set on the resource itself; None while they are uncertain."""
        known = self._known.get(resource, {})
        if any(one.unanswered for one in known.values()):
            return None
        return {key: one.value for key, one in known.items() if one.value is not None}

    # Observed values

    def seen(self, resource: Resource, shown: dict[str, str | None], asked_run: int) -> None:
        """Compare the configs set on the resource with `shown` by DescribeConfigs in that run."""
        known = self._known.setdefault(resource, {})
        for key in sorted({*known, *shown}):
            if key.startswith(_HIDDEN):
                continue
            one = known.setdefault(key, Known())
            value = shown.get(key)
            self.compare(
                value in one.may_be(),
                "{} of {!r} is {}, it was set to {} (unanswered: {})",
                key,
                resource.name,
                value,
                one.value,
                one.unanswered,
            )
            if asked_run == self.environment.node.runs:
                one.unanswered = [each for each in one.unanswered if each[0] == asked_run]
                one.value = value


class ConfigsInForce(Checker):
    """The limit for batches is the topic's config, else the worker's, else the cluster's."""

    invariant = "M3"

    def tried(self, size_bytes: int, limit: int, source: str, taken: bool) -> None:
        self.compare(
            taken == (size_bytes <= limit),
            "a batch of {} bytes was {}, with a limit of {} ({})",
            size_bytes,
            "taken" if taken else "refused",
            limit,
            source,
        )
