"""Configs: what was acknowledged is in force, at once and after every start."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simulations.harness.environment import Checker, Environment

TOPIC: Final = 2
WORKER: Final = 4
ALL_WORKERS: Final = ""
# Works when given, and is shown nowhere.
_HIDDEN: Final = "internal."


class Resource(NamedTuple):
    kind: int
    name: str


@dataclass(slots=True)
class Known:
    """What a config may be: what was acknowledged last, or what somebody still waits for."""

    value: str | None = None
    # Asked for and not answered, each in which run of the node. It may be carried out as long as
    # that run lasts, even after a later one was answered: it may be on its way.
    unanswered: list[tuple[int, str | None]] = field(default_factory=list)

    def may_be(self) -> set[str | None]:
        return {self.value, *(value for _, value in self.unanswered)}


class ConfigsStay(Checker):
    """DescribeConfigs shows what was acknowledged, and nothing that nobody asked for."""

    invariant = "M3"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        # A new cluster is given the one on which eligible leader replicas hang.
        self._known: dict[Resource, dict[str, Known]] = {
            Resource(WORKER, ALL_WORKERS): {"min.insync.replicas": Known("1")}
        }

    # What is done

    def created(self, name: str, configs: dict[str, str]) -> None:
        """A new topic: only what is still on its way to an older one of its name counts."""
        known = self._known.setdefault(Resource(TOPIC, name), {})
        for one in known.values():
            one.value = None
        for key, value in configs.items():
            known.setdefault(key, Known()).value = value

    def asked(self, resource: Resource, key: str, value: str | None) -> None:
        one = self._known.setdefault(resource, {}).setdefault(key, Known())
        one.unanswered.append((self.environment.node.runs, value))

    def answered(self, resource: Resource, key: str, value: str | None, *, done: bool) -> None:
        """To the newest wish for this config; a refusal leaves all as it was."""
        one = self._known[resource][key]
        one.unanswered.pop()
        if done:
            one.value = value

    # What is known

    def may_be(self, resource: Resource, key: str) -> set[str | None]:
        return self._known.get(resource, {}).get(key, Known()).may_be()

    def own(self, resource: Resource) -> dict[str, str] | None:
        """All that the resource has of its own; None while that is not certain."""
        known = self._known.get(resource, {})
        if any(one.unanswered for one in known.values()):
            return None
        return {key: one.value for key, one in known.items() if one.value is not None}

    # What is seen

    def seen(self, resource: Resource, shown: dict[str, str | None], asked_run: int) -> None:
        """The resource's own configs, as DescribeConfigs shows them; it was asked in that run."""
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
    """The largest batch that is taken is as the topic, this worker or all workers have it."""

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
