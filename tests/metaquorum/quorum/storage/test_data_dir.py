"""Identity and lock of a data directory."""

import errno
from random import Random

import pytest

from metaquorum.quorum.storage.data_dir import (
    MetaProperties,
    Storage,
    StorageIdentityError,
    new_id,
    open_storage,
    parse_properties,
)
from metaquorum.quorum.storage.journal import Journal
from metaquorum.runtime.interfaces import Runtime, StorageError
from metaquorum.runtime.system import RealDisk
from metaquorum.simulations.kernel.machine import Program
from metaquorum.simulations.kernel.world import World
from tests.metaquorum.quorum.storage.crash_disk import Crash, CrashDisk

PATH = "/data/meta.properties"


def opened(disk: CrashDisk, node_id: int = 1, cluster_id: str | None = None) -> Storage:
    return open_storage(disk, "/data", node_id, Random(1), owner="process 7", cluster_id=cluster_id)


def test_an_empty_directory_is_formatted_once() -> None:
    disk = CrashDisk()
    first = opened(disk)
    assert first.is_new
    again = opened(disk)
    assert not again.is_new
    assert again.properties == first.properties
    assert len(first.properties.cluster_id) == 22
    assert first.metadata_dir == "/data/metadata"
    text = disk.read_file(PATH).decode()
    assert f"cluster.id={first.properties.cluster_id}\n" in text
    assert "node.id=1\n" in text
    assert "version=1\n" in text


def test_a_given_cluster_id_is_taken() -> None:
    assert opened(CrashDisk(), cluster_id="mine").properties.cluster_id == "mine"


@pytest.mark.parametrize(
    ("node_id", "cluster_id", "message"),
    [
        (2, None, r"belongs to node 1, not to node 2; start it with node\.id=1 or choose"),
        (1, "other", r"belongs to cluster \S+, not to other; choose another data directory"),
    ],
)
def test_another_nodes_or_clusters_directory_is_refused(
    node_id: int, cluster_id: str | None, message: str
) -> None:
    disk = CrashDisk()
    opened(disk)
    with pytest.raises(StorageIdentityError, match=message):
        opened(disk, node_id, cluster_id)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metaquorum.format=2\nversion=1\ncluster.id=c\nnode.id=1", "format 2 of a newer version"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d", "written by Apache Kafka"),
        ("metaquorum.format=1\nversion=1\nnode.id=1\ndirectory.id=d", "it contains no cluster.id"),
        (
            "metaquorum.format=1\nversion=1\ncluster.id=c\nnode.id=x",
            "it contains no number for node",
        ),
        ("", "it contains no number for metaquorum.format"),
        ("\x00\xff", "damaged"),
    ],
)
def test_a_file_that_says_something_else_is_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(StorageIdentityError, match=message) as caught:
        parse_properties(PATH, text.encode())
    assert "\n" not in str(caught.value)


def test_the_file_is_read_as_it_is_written() -> None:
    properties = MetaProperties(new_id(Random(1)), 5, new_id(Random(2)))
    assert parse_properties(PATH, properties.text().encode()) == properties


def test_a_directory_with_data_of_nobody_is_refused() -> None:
    disk = CrashDisk()
    disk.make_dirs("/data/topic-0")
    with pytest.raises(StorageIdentityError, match=r"contains topic-0 but no meta\.properties"):
        opened(disk)


def test_two_processes_never_share_a_directory(tmp_path: object) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    storage = open_storage(disk, data_dir, 1, Random(1), owner="process 7")
    with pytest.raises(StorageIdentityError, match="in use by process 7; stop that process"):
        open_storage(disk, data_dir, 1, Random(1), owner="process 8")
    storage.close()
    open_storage(disk, data_dir, 1, Random(1), owner="process 8").close()


def test_a_path_that_is_no_directory_gives_a_sentence(tmp_path: object) -> None:
    path = f"{tmp_path}/file"
    with open(path, "w"):
        pass
    with pytest.raises(StorageError, match="is a file"):
        open_storage(RealDisk(), path, 1, Random(1), owner="process 7")


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_while_formatting_leaves_a_directory_that_can_be_used(power: bool) -> None:
    fail_at = 0
    while True:
        disk = CrashDisk(fail_at=fail_at)
        try:
            opened(disk)
        except Crash:
            pass
        if not disk.crashed:
            return
        survivor = disk.survivor(Random(fail_at) if power else None)
        assert opened(survivor).properties == opened(survivor).properties
        fail_at += 1


@pytest.mark.parametrize(("number", "is_opened"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_directory_on_a_full_disk_is_opened(number: int, is_opened: bool) -> None:
    """The owner in the lock file is information only."""

    async def check(world: World) -> None:
        machine = world.machine("one")

        def opens(runtime: Runtime) -> Storage:
            return open_storage(runtime.disk, "/data", 1, runtime.random, owner="process 7")

        async def main(runtime: Runtime) -> None:
            formatted = opens(runtime)
            formatted.close()
            machine.faults.refusing = lambda path: number
            if is_opened:
                again = opens(runtime)
                assert again.properties == formatted.properties
                with pytest.raises(StorageIdentityError, match="in use by"):
                    opens(runtime)
                again.close()
            else:
                with pytest.raises(StorageError, match="cannot use"):
                    opens(runtime)
                machine.faults.refusing = None
                opens(runtime).close()  # the lock was released

        await machine.start(main).done.wait()
        assert machine.fate.error is None, machine.fate.error

    world = World(1)
    world.run(check)
    assert not world.violations


@pytest.mark.parametrize("seed", range(10))
def test_what_a_killed_process_formatted_survives_a_loss_of_power(seed: int) -> None:
    """The next process relies on the formatted directory and on its parent directories."""
    made: list[MetaProperties] = []

    async def check(world: World) -> None:
        machine = world.machine("one")

        def opens(runtime: Runtime) -> Storage:
            return open_storage(runtime.disk, "/a/b/data", 1, runtime.random, owner="process 7")

        async def formats(runtime: Runtime) -> None:
            opens(runtime)

        async def writes(runtime: Runtime) -> None:
            storage = opens(runtime)
            journal = Journal(runtime.disk, storage.metadata_dir, storage.properties.cluster_id)
            journal.open()
            journal.set_hard_state(5)
            await journal.sync()
            made.append(storage.properties)

        async def reads(runtime: Runtime) -> None:
            storage = opens(runtime)
            assert storage.properties == made[-1]
            journal = Journal(runtime.disk, storage.metadata_dir, storage.properties.cluster_id)
            journal.open()
            assert journal.hard_state.term == 5

        async def live(*programs: Program) -> None:
            for program in programs:
                await machine.start(program).done.wait()
                assert machine.fate.error is None, machine.fate.error

        for number in range(1, 20):
            machine.stop_at_disk_change(number, "kill")
            await live(formats)
            was_killed = machine.faults.stop_in is None
            machine.faults.stop_in = None
            await live(writes)
            machine.power_cut()
            await live(reads)
            if not was_killed:
                return
            machine.lose_disk()
        raise AssertionError("it is formatted in fewer steps")

    world = World(seed)
    world.run(check)
    assert not world.violations
