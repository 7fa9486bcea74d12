"""Checkers of the protocol for any bytes that clients send. The simulated clients call them."""

from metaquorum.simulations.harness.environment import Checker


class GarbageEndsItsConnection(Checker):
    """Malformed bytes end their connection, within a time limit, and nothing else."""

    invariant = "P2"

    def sent_garbage(self, kind: str, ended: bool) -> None:
        self.compare(ended, "after {} the connection stayed open", kind)


class LiesAreRefused(Checker):
    """A batch whose records cannot be read is not acknowledged."""

    invariant = "L6"

    def answered(self, kind: str, topic: str, error_code: int) -> None:
        self.compare(error_code != 0, "{}: an invalid batch was acknowledged: {}", topic, kind)


class AnnouncedIsServed(Checker):
    """Every version in ApiVersions is answered with a response that can be decoded."""

    invariant = "P3"

    def asked(self, api: str, version: int, problem: str | None) -> None:
        self.compare(problem is None, "{} v{}: {}", api, version, problem)
