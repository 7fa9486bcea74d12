"""Drivers that die, or pause, at each operation on the output: the table has each offset once."""

import threading
from itertools import count
from pathlib import Path

import pytest

from metaquorum.spark.loader.errors import LoaderError
from metaquorum.spark.loader.storage.interface import Storage
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.committed_table import Table
from tests.metaquorum.spark.loader.dying import Death, Pause, Watched, When, dies_at
from tests.metaquorum.spark.loader.numbers import (
    Log,
    assert_nothing_twice,
    drive,
    expected,
    leftovers,
    load,
    request,
    seen_by_readers_of_the_folder,
    seen_through_manifests,
)

pytestmark = pytest.mark.slow


def small_log() -> Log:
    """Return ranges of up to 7 offsets: without a gap, with only a gap, of another partition."""
    return Log({0: 8, 1: 4}, range_offsets=7)


def storage_in(folder: Path) -> LocalStorage:
    return LocalStorage(str(folder))


def dies(storage: Storage, log: Log, folder: Path) -> bool:
    try:
        drive(storage, log, request(folder))
    except Death:
        return True
    return False


@pytest.mark.parametrize("when", When)
def test_a_load_that_dies_anywhere_is_finished_by_its_next_run(tmp_path: Path, when: When) -> None:
    for number in count():
        folder = tmp_path / f"{number}"
        log = small_log()
        if not dies(Watched(storage_in(folder), dies_at(number, when)), log, folder):
            break
        # Meanwhile readers see committed files only, and no incomplete file.
        visible = seen_by_readers_of_the_folder(folder)
        committed = seen_through_manifests(folder) if Table(storage_in(folder)).is_there() else {}
        assert committed in ({}, expected(log))
        assert {(p, o) for p in visible for o in visible[p]} <= {
            (p, o) for p in committed for o in committed[p]
        }
        load(folder, log)
        assert seen_by_readers_of_the_folder(folder) == expected(log)
        assert seen_through_manifests(folder) == expected(log)
        assert leftovers(folder) == []
    assert number > 30  # the number of operations of the whole load


@pytest.mark.parametrize("when", When)
def test_the_second_load_may_die_anywhere_too(tmp_path: Path, when: When) -> None:
    for number in count():
        folder = tmp_path / f"{number}"
        log = small_log()
        load(folder, log)
        before = seen_by_readers_of_the_folder(folder)
        log.ends = {0: 12, 1: 4, 2: 3}
        if not dies(Watched(storage_in(folder), dies_at(number, when)), log, folder):
            break
        visible = seen_by_readers_of_the_folder(folder)
        assert_nothing_twice(visible)
        assert all(set(before[p]) <= set(visible[p]) for p in before)
        committed = seen_through_manifests(folder)
        assert committed in (before, expected(log))
        load(folder, log)
        assert seen_by_readers_of_the_folder(folder) == expected(log)
        assert leftovers(folder) == []
    assert number > 30


def test_deaths_one_after_the_other_are_no_different(tmp_path: Path) -> None:
    """Each run gets one operation further than the one before it."""
    log = small_log()
    for number in count():
        storage = Watched(storage_in(tmp_path), dies_at(number, When.AFTER))
        if not dies(storage, log, tmp_path):
            break
    assert seen_by_readers_of_the_folder(tmp_path) == expected(log)
    assert leftovers(tmp_path) == []


class PausedDriver(threading.Thread):
    """A driver that pauses at its k-th operation, if it has that many."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__()
        self._folder = folder
        self.pause = Pause(number)
        self.outcome: object = None

    def run(self) -> None:
        try:
            storage = Watched(storage_in(self._folder), self.pause)
            self.outcome = drive(storage, small_log(), request(self._folder))
        except LoaderError as error:
            self.outcome = error
        finally:
            self.pause.reached.set()

    def go_on(self) -> object:
        self.pause.go_on.set()
        self.join()
        assert self.outcome is not None
        return self.outcome


def test_a_driver_that_stands_still_while_another_one_works_does_no_harm(tmp_path: Path) -> None:
    """Simulate a driver whose lock became stale during a long pause of its machine."""
    refused = 0
    for number in count():
        folder = tmp_path / f"{number}"
        log = small_log()
        paused = PausedDriver(folder, number)
        paused.start()
        paused.pause.reached.wait()
        if paused.outcome is not None:
            paused.join()
            break
        load(folder, log)
        assert seen_by_readers_of_the_folder(folder) == expected(log)
        refused += isinstance(paused.go_on(), LoaderError)
        assert seen_by_readers_of_the_folder(folder) == expected(log)
        assert seen_through_manifests(folder) == expected(log)
        load(folder, log)
        assert leftovers(folder) == []
    assert number > 30
    assert 0 < refused < number
