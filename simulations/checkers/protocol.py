"""What clients may rely on, whatever they send. The clients themselves call these."""

from simulations.harness.environment import Checker


class GarbageEndsItsConnection(Checker):
    """Bytes that make no sense end their connection, within a bound, and nothing else."""

    invariant = "P2"

    def sent_garbage(self, kind: str, ended: bool) -> None:
        self.compare(ended, "after {} the connection stayed open", kind)


class LiesAreRefused(Checker):
    """A batch of which the records cannot be read is not acknowledged."""

    invariant = "L6"

    def answered(self, kind: str, topic: str, error_code: int) -> None:
        self.compare(error_code != 0, "{}: a batch with this lie was acknowledged: {}", topic, kind)


class AnnouncedIsServed(Checker):
    """Every version in ApiVersions is answered in a form that can be read."""

    invariant = "P3"

    def asked(self, api: str, version: int, problem: str | None) -> None:
        self.compare(problem is None, "{} v{}: {}", api, version, problem)
