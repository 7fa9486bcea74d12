"""Batches: many seeds in several processes, their totals, and the comparison with the gates.

Each process has a PYTHONHASHSEED of its own. A sample of the seeds is run again by a process with
another one; a digest that differs is a failure.
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final

from metaquorum.runtime.own_processes import own_command, own_environment
from metaquorum.simulations.harness.scenario import Scenario
from metaquorum.simulations.runner.runs import Outcome
from metaquorum.simulations.scenarios.gates import CI, is_gated

# One seed of this many is run twice.
TWICE_EVERY: Final = 10


@dataclass(slots=True)
class Job:
    scenario: str
    seeds: list[int]
    hash_seed: int
    mutant: str | None = None
    enough: int | None = None  # the job ends once this number of seeds has found the defect


@dataclass(slots=True)
class Totals:
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    again: dict[int, Outcome] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    comparisons: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        if outcome.seed in self.outcomes:
            self.again[outcome.seed] = outcome
            return
        self.outcomes[outcome.seed] = outcome
        self.cpu_s += outcome.cpu_s
        for name, number in outcome.counts.items():
            self.counts[name] = self.counts.get(name, 0) + number
        for name, number in outcome.comparisons.items():
            self.comparisons[name] = self.comparisons.get(name, 0) + number

    @property
    def failures(self) -> list[Outcome]:
        return [self.outcomes[seed] for seed in sorted(self.outcomes) if self.failed(seed)]

    def failed(self, seed: int) -> bool:
        return bool(self.outcomes[seed].violations) or self.differs(seed)

    def differs(self, seed: int) -> bool:
        return seed in self.again and self.again[seed].digest != self.outcomes[seed].digest

    def missed_gates(self, scenario: Scenario) -> list[str]:
        """Return the gates that no seed met, if there are enough seeds (`judges_gates`)."""
        return self.open_gates(scenario) if self.judges_gates(scenario) else []

    def open_gates(self, scenario: Scenario) -> list[str]:
        """Return the gates that no seed has met yet: events and comparisons."""
        unmet = [f"never happened: {gate}" for gate in scenario.gates if not self.counts.get(gate)]
        for checker in scenario.checkers:
            name = f"{checker.invariant} {checker.__name__}"
            if is_gated(scenario.name, checker.__name__) and not self.comparisons.get(name):
                unmet.append(f"never compared: {name}")
        return unmet

    def judges_gates(self, scenario: Scenario) -> bool:
        return len(self.outcomes) >= CI[scenario.name].seeds

    def as_json(self, scenario: Scenario) -> dict[str, Any]:
        return {
            "scenario": scenario.name,
            "seeds": len(self.outcomes),
            "twice": len(self.again),
            "failures": [
                {**outcome.as_json(), "differs": self.differs(outcome.seed)}
                for outcome in self.failures
            ],
            "missed_gates": self.missed_gates(scenario),
            "counts": dict(sorted(self.counts.items())),
            "comparisons": dict(sorted(self.comparisons.items())),
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
        }


def run_jobs(
    jobs: Iterable[Job], heard: Callable[[Outcome], None], seconds: float | None = None
) -> None:
    """Run all jobs at once, each in its own process; call `heard` for each outcome.

    Blocking. Raises RuntimeError if a process fails.
    """
    lock = threading.Lock()
    processes = [_start(job, seconds) for job in jobs if job.seeds]

    def listen(stream: IO[str]) -> None:
        for line in stream:
            outcome = Outcome.from_json(json.loads(line))
            with lock:
                heard(outcome)

    threads = [
        threading.Thread(target=listen, args=(process.stdout,), daemon=True)
        for process in processes
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        for process in processes:
            process.kill()
        raise
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
        if process.wait() != 0:
            raise RuntimeError("a process that plays seeds has failed; its output is above")


def _start(job: Job, seconds: float | None) -> "subprocess.Popen[str]":
    command = [*own_command("metaquorum.simulations"), "work", "--scenario", job.scenario]
    if job.mutant is not None:
        command += ["--defect", job.mutant]
        command += [] if job.enough is None else ["--enough", str(job.enough)]
    if seconds is not None:
        command += ["--seconds", str(seconds)]
    process = subprocess.Popen(  # noqa: S603 - this very package
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**own_environment(), "PYTHONHASHSEED": str(job.hash_seed)},
    )
    assert process.stdin is not None
    process.stdin.write(" ".join(map(str, job.seeds)))
    process.stdin.close()
    return process


def run_batch(
    scenario: Scenario,
    start: int,
    count: int,
    *,
    jobs: int,
    twice: bool = False,
    seconds: float | None = None,
    heard: Callable[[Outcome], None] = lambda _: None,
) -> Totals:
    """Run seeds in `jobs` processes, and return their totals. Blocking.

    After `seconds`, processes start no further seed.
    """
    totals = Totals()
    every = 1 if twice else TWICE_EVERY
    work: list[Job] = []
    for number in range(jobs):
        mine = range(number, count, jobs)
        # The next process repeats a sample of this process's seeds.
        other = [n for n in range((number + 1) % jobs, count, jobs) if n % every == 0]
        parts = [(other, 77), (mine, 1)] if jobs == 1 else [({*mine, *other}, number + 1)]
        for part, hash_seed in parts:
            work.append(Job(scenario.name, [start + n for n in sorted(part)], hash_seed))

    def add(outcome: Outcome) -> None:
        totals.add(outcome)
        heard(outcome)

    began = time.monotonic()
    run_jobs(work, add, seconds)
    totals.wall_s += time.monotonic() - began
    return totals


class Player:
    """A process that plays one seed after another, of any scenario."""

    def __init__(self, hash_seed: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this very package
            [*own_command("metaquorum.simulations"), "play"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**own_environment(), "PYTHONHASHSEED": str(hash_seed)},
        )

    def play(self, scenario: str, seed: int) -> Outcome:
        """Play a seed; return its outcome. Blocking. Raises RuntimeError if the process fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{scenario} {seed}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that plays {scenario} {seed} has failed: see above")
        return Outcome.from_json(json.loads(line))

    def close(self) -> None:
        """End the process, also while it plays."""
        self._process.kill()
        with self._process:
            pass
