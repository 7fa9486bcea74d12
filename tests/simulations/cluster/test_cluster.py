"""Worlds of several machines: single faults, durable logs, mutants, and shrinking."""

import random
from contextlib import AbstractContextManager

import pytest

from metaquorum.quorum.storage.journal import Journal
from metaquorum.quorum.storage.journal_ops import Entry
from metaquorum.runtime.interfaces import Runtime
from metaquorum.simulations.cluster import cluster_scenario, quorum_scenario
from metaquorum.simulations.cluster.fault_plan import PlannedFault, draw_faults, without
from metaquorum.simulations.cluster.voter_disks import METADATA_DIR, DurableLogs
from metaquorum.simulations.cluster.voter_group import CLUSTER_ID
from metaquorum.simulations.kernel.world import World
from metaquorum.simulations.mutants.quorum_mutants import prefers_snapshots, sends_again
from metaquorum.simulations.runner.runs import run_seed
from metaquorum.simulations.runner.shrinking import shrink_seed
from tests.simulations.mutant_tests import assert_found

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", quorum_scenario.KINDS)
def test_a_quorum_survives_each_trouble_alone(kind: str) -> None:
    world = World(7)

    async def play(world: World) -> None:
        settings = quorum_scenario.draw_settings(world.stream("settings"))
        settings.voters, settings.weak, settings.has_stranger = 3, (2,), False
        settings.snapshot_interval_bytes, settings.acts, settings.think_s = 500, 60, 0.08
        settings.disk_delay_s = 0.0005
        settings.faults = (PlannedFault(0, kind, 1.0, 0.5),)
        await quorum_scenario.play_settings(world, settings)

    world.run(play)
    assert not world.violations
    assert world.counts["commits"] > 0
    if kind not in ("full disk", "failing sync"):  # these count only if a write met the fault
        assert world.counts[f"fault: {kind}"] > 0


def test_troubles_that_are_left_out_leave_the_others_as_they_were() -> None:
    faults = draw_faults(random.Random(1), quorum_scenario.KINDS, over_s=5.0, most=10)
    faults = faults or draw_faults(random.Random(2), quorum_scenario.KINDS, over_s=5.0, most=10)
    assert without(faults, {0, 2}) == (faults[1], *faults[3:])
    draws = {t.number: World(1).stream(f"trouble {t.number}").random() for t in faults}
    assert len(set(draws.values())) == len(faults)


def test_what_is_durable_is_what_a_loss_of_power_leaves() -> None:
    world = World(3)
    logs = DurableLogs()

    async def check(world: World) -> None:
        machine = world.machine("one")

        async def write(runtime: Runtime) -> None:
            runtime.disk.make_dirs("/data")
            runtime.disk.sync_dir("/")
            journal = Journal(runtime.disk, METADATA_DIR, CLUSTER_ID, 300)
            await runtime.disk.run(journal.open)
            for index in range(1, 30):
                term = 2 + index // 10
                journal.append(Entry(index, term, b"%d" % index * 10))
                if index % 10 == 0:
                    journal.truncate(index - 2)
                    for other in range(index - 2, index + 1):
                        journal.append(Entry(other, term, b"again"))
                journal.set_hard_state(term, index % 3)
                await journal.sync()
            journal.append(Entry(30, 4, b"never synced"))

        await machine.start(write).done.wait()
        assert machine.fate.error is None
        before = logs.of("one", machine.storage)
        machine.power_cut()
        replica: list[Entry] = []

        async def read(runtime: Runtime) -> None:
            journal = Journal(runtime.disk, METADATA_DIR, CLUSTER_ID, 300)
            await runtime.disk.run(journal.open)
            replica.extend(journal.read(1, journal.last.index))
            assert journal.hard_state == before.hard_state

        await machine.start(read).done.wait()
        assert machine.fate.error is None
        assert replica == [before.entries[index] for index in sorted(before.entries)]
        assert before.holds(b"again", 10**9)
        assert not before.holds(b"never synced", 10**9)

    world.run(check)
    assert not world.violations


@pytest.mark.parametrize("habit", [sends_again, prefers_snapshots])
def test_a_leader_may_repeat_entries_and_send_snapshots_without_need(habit: object) -> None:
    assert callable(habit)
    for seed in range(3):
        world = World(seed)
        mutated: AbstractContextManager[None] = habit()
        with mutated:
            world.run(quorum_scenario.play)
        assert not world.violations, seed


@pytest.mark.parametrize(
    ("name", "soonest"),
    [
        ("vote-not-synced", 0),
        ("ack-before-quorum", 0),
        ("another-replay", 1),
        ("answered-before-visible", 0),
    ],
)
def test_a_defect_of_several_machines_is_found_and_named(name: str, soonest: int) -> None:
    assert_found(name, soonest)


def test_shrinking_leaves_the_faults_that_a_violation_needs() -> None:
    scenario, mutant = "single-node-power", "metadata-ack-before-fsync"
    assert shrink_seed(scenario, 0) is None
    for seed in range(30):
        shrunk = shrink_seed(scenario, seed, mutant=mutant)
        if shrunk is not None and len(shrunk.faults) > 2:
            break
    assert shrunk is not None
    assert sorted(shrunk.needed + shrunk.left_out) == list(shrunk.faults)
    assert 0 < len(shrunk.needed) < len(shrunk.faults)
    again, world = run_seed(scenario, seed, mutant=mutant, leave_out=shrunk.left_out)
    assert ": ".join(again.violations[0]) == shrunk.violated
    assert shrunk.events(5)[-1].who == "VIOLATION"
    assert world.trace.digest() == shrunk.world.trace.digest()


def test_a_cluster_has_workers_of_their_own_or_in_the_processes_of_controllers() -> None:
    shapes = {
        (settings.controllers, settings.is_combined)
        for settings in (cluster_scenario.draw_settings(random.Random(seed)) for seed in range(50))
    }
    assert shapes == {(3, True), (3, False), (5, True), (5, False)}
