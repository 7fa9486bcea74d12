"""Manifests, plans and results: through JSON, damaged, and the rules that chain loads."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.gaps import Gap, GapReason
from metaquorum.spark.loader.errors import LoaderError, OutputError, RefusedError
from metaquorum.spark.loader.starting_points import (
    AtOffset,
    AtTime,
    Earliest,
    check_log_end,
    next_start,
)
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table.committed_table import Table
from metaquorum.spark.loader.table.layout import (
    data_path,
    file_stem,
    manifest_path,
    plan_path,
)
from metaquorum.spark.loader.table.load_plan import LoadPlan
from metaquorum.spark.loader.table.manifest import (
    Loaded,
    Manifest,
    check_chain,
    check_continues,
    safe_path,
)
from metaquorum.spark.loader.table.range_result import RangeResult
from metaquorum.spark.loader.table.recovery import (
    MakePlan,
    Publish,
    RunPlan,
    garbage,
    listing_of,
    next_step,
)
from metaquorum.spark.offset_ranges import OffsetRange, ReadPlan
from tests.metaquorum.spark.loader.dying import Death, Watched, When, dies_at
from tests.metaquorum.spark.loader.numbers import (
    TOPIC,
    Log,
    drive,
    load,
    request,
    seen_by_readers_of_the_folder,
)

PLAN = "0123456789abcdef"
OTHER = "fedcba9876543210"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a table with one load, of ranges 0 to 10 and 10 to 20 of one partition."""
    load(tmp_path, Log({0: 20}))
    return tmp_path


def table_in(folder: Path) -> Table:
    return Table(LocalStorage(str(folder)))


def unfinished(folder: Path, log: Log) -> LoadPlan:
    """Return a load whose driver died after it created its plan."""
    for number in range(100):
        storage = Watched(LocalStorage(str(folder)), dies_at(number, When.AFTER))
        with pytest.raises(Death):
            drive(storage, log, request(folder))
        table = table_in(folder)
        newest = table.listing().newest
        if newest + 1 in table.listing().plans:
            return table.plan(newest + 1)
    raise AssertionError("no plan was made")


# JSON


def test_values_go_through_json(folder: Path) -> None:
    table = table_in(folder)
    manifest, plan = table.manifest(1), table.plan(1)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert LoadPlan.from_bytes(plan.to_bytes()) == plan
    for result in table.report(manifest):
        again = RangeResult.from_bytes(result.to_bytes())
        assert again.to_bytes() == result.to_bytes()
        assert again.report.missing == result.report.missing
        assert list(again.report.gaps) == [
            Gap(o, o + 1, GapReason.COMPACTED)
            for o in range(max(1, result.start), result.end)
            if o % 7 == 0
        ]


KINDS: dict[str, Callable[[bytes], object]] = {
    "manifest": Manifest.from_bytes,
    "plan": LoadPlan.from_bytes,
    "result": RangeResult.from_bytes,
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("samples")
    load(folder, Log({0: 20}))
    table = table_in(folder)
    return {
        "manifest": table.manifest(1).to_bytes(),
        "plan": table.plan(1).to_bytes(),
        "result": table.report(table.manifest(1))[0].to_bytes(),
    }


def paths_of(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    items = data.items() if isinstance(data, dict) else ()
    items = enumerate(data) if isinstance(data, list) else items
    for key, value in items:
        found += paths_of(value, (*at, key))
    return found


VALUES = st.sampled_from([None, -1, 2**70, 1.5, "", "../x", "/etc/x", [], {}, [[]], True, "\ud800"])


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_whatever_a_field_holds_is_a_sentence_at_worst(
    samples: dict[str, bytes], kind: str, data: st.DataObject
) -> None:
    content = json.loads(samples[kind])
    path = data.draw(st.sampled_from(paths_of(content)))
    target = content
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = data.draw(VALUES)
    try:
        KINDS[kind](json.dumps(content).encode())
    except ValueError:
        pass


@pytest.mark.parametrize("kind", KINDS)
@given(at=st.integers(0, 10_000))
def test_a_file_that_is_cut_is_refused(samples: dict[str, bytes], kind: str, at: int) -> None:
    whole = samples[kind].rstrip()
    with pytest.raises(ValueError):
        KINDS[kind](whole[: at % len(whole)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_format_is_refused(samples: dict[str, bytes], kind: str) -> None:
    content = json.loads(samples[kind]) | {"format": 2}
    with pytest.raises(ValueError, match="use a newer metaquorum"):
        KINDS[kind](json.dumps(content).encode())


@pytest.mark.parametrize("path", ["/x", "../x", "a/../b", "a//b", "", "a/./b", "a\\b"])
def test_a_path_never_leaves_the_output(path: str) -> None:
    with pytest.raises(ValueError, match="not a path in the output"):
        safe_path(path)


# A damaged table


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\x00" * 100])
def test_a_damaged_manifest_stops_the_load_and_is_named(folder: Path, content: bytes) -> None:
    (folder / manifest_path(1)).write_bytes(content)
    with pytest.raises(OutputError, match=r"0001\.json cannot be used: .*nothing was changed"):
        load(folder, Log({0: 30}))


def test_a_manifest_that_is_missing_is_named(folder: Path) -> None:
    load(folder, Log({0: 30}))
    (folder / manifest_path(1)).unlink()
    with pytest.raises(OutputError, match="manifest 1 is missing"):
        load(folder, Log({0: 40}))


def test_all_manifests_missing_is_no_new_table(folder: Path) -> None:
    load(folder, Log({0: 30}))
    for version in (1, 2):
        (folder / manifest_path(version)).unlink()
    with pytest.raises(OutputError, match="only 0 loads are committed"):
        load(folder, Log({0: 40}))


def test_a_damaged_plan_stops_the_load(folder: Path) -> None:
    log = Log({0: 30})
    plan = unfinished(folder, log)
    (folder / plan_path(plan.version)).write_bytes(b"{}")
    with pytest.raises(OutputError, match="cannot be used"):
        load(folder, log)


# Loads that may follow a load


def test_the_plan_of_another_cluster_or_topic_is_not_gone_on_with(folder: Path) -> None:
    log = Log({0: 30})
    unfinished(folder, log)
    log.cluster_id = "another"
    with pytest.raises(RefusedError, match=r"from cluster a-cluster, .* are of cluster another"):
        load(folder, log)
    log.cluster_id, log.topic_id = "a-cluster", bytes(range(1, 17))
    with pytest.raises(RefusedError, match="was deleted and created again"):
        load(folder, log)


def test_the_next_load_of_another_cluster_or_topic_is_refused(folder: Path) -> None:
    log = Log({0: 30})
    log.cluster_id = "another"
    with pytest.raises(RefusedError, match="are of cluster another"):
        load(folder, log)
    log.cluster_id, log.topic_id = "a-cluster", bytes(range(1, 17))
    with pytest.raises(RefusedError, match="was deleted and created again"):
        load(folder, log)


def test_an_unfinished_load_wants_the_same_command_or_is_discarded(folder: Path) -> None:
    log = Log({0: 30})
    unfinished(folder, log)
    storage = LocalStorage(str(folder))
    with pytest.raises(RefusedError, match=r"was started with other arguments .* in topics"):
        drive(storage, log, request(folder, "others"))
    log.ends = {0: 35}
    outcome = drive(storage, log, request(folder, "others", discard_unfinished=True))
    assert not outcome.resumed
    assert seen_by_readers_of_the_folder(folder)[0][-1] == 34


def test_nothing_new_is_no_load(folder: Path) -> None:
    assert load(folder, Log({0: 20})).manifest is None
    assert table_in(folder).listing().newest == 1


def plan_of(*ranges: OffsetRange, like: LoadPlan) -> LoadPlan:
    read = ReadPlan(
        like.read_plan.cluster_id, False, ranges, like.read_plan.topics, like.read_plan.made_at_ms
    )
    return replace(like, version=2, read_plan=read)


@pytest.mark.parametrize(("start", "kind"), [(21, "a gap of 1"), (19, "an overlap of 1")])
def test_a_gap_and_an_overlap_are_refused(folder: Path, start: int, kind: str) -> None:
    table = table_in(folder)
    like = table.plan(1)
    topic_id = like.read_plan.topics[TOPIC].topic_id
    wrong = plan_of(OffsetRange(TOPIC, 0, start, 30, topic_id), like=like)
    with pytest.raises(RefusedError, match=kind):
        check_continues(table.manifest(1), wrong)
    check_continues(
        table.manifest(1),
        plan_of(
            OffsetRange(TOPIC, 0, 20, 30, topic_id),
            OffsetRange(TOPIC, 1, 500, 600, topic_id),
            like=like,
        ),
    )


def test_the_chain_of_manifests_can_be_checked(folder: Path) -> None:
    load(folder, Log({0: 30, 1: 2}))
    table = table_in(folder)
    manifests = [table.manifest(1), table.manifest(2)]
    check_chain(manifests)
    with pytest.raises(ValueError, match="manifest 1 is missing"):
        check_chain(manifests[1:])


def test_columns_stay_those_of_the_table(folder: Path) -> None:
    asked = request(folder)
    asked = replace(asked, settings=replace(asked.settings, columns=("value",)))
    with pytest.raises(RefusedError, match="have the columns value, offset"):
        drive(LocalStorage(str(folder)), Log({0: 30}), asked)


@pytest.mark.parametrize(
    ("starting", "found"),
    [(Earliest(), 0), (Earliest(), 90), (AtOffset(10), 10), (AtOffset(50), 50), (AtTime(1), 40)],
)
def test_a_partition_goes_on_where_it_ended(starting: Earliest, found: int) -> None:
    where = ("t", 0)
    assert next_start(where, Loaded("t", 0, 10, 50), starting, found) == 50  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("starting", "found"), [(AtOffset(20), 20), (AtOffset(51), 51), (AtTime(1), 51)]
)
def test_a_start_that_contradicts_is_refused(starting: AtOffset, found: int) -> None:
    with pytest.raises(RefusedError, match="into another folder"):
        next_start(("t", 0), Loaded("t", 0, 10, 50), starting, found)  # type: ignore[arg-type]


def test_a_log_that_is_shorter_than_what_was_loaded_is_refused() -> None:
    check_log_end(("t", 0), Loaded("t", 0, 10, 50), 50)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="was truncated"):
        check_log_end(("t", 0), Loaded("t", 0, 10, 50), 49)  # type: ignore[arg-type]


# The rules of recovery


def staged(version: int, plan: str) -> str:
    return f"_loading/{version:020}-{plan}/00000000.json"


def test_what_is_next_follows_from_what_is_there(folder: Path) -> None:
    newest = replace(table_in(folder).manifest(1), plan_id=PLAN)
    one = [manifest_path(1), plan_path(1)]
    assert next_step(listing_of([]), None) == MakePlan(1)
    assert next_step(listing_of([plan_path(1)]), None) == RunPlan(1)
    assert next_step(listing_of(one), newest) == MakePlan(2)
    assert next_step(listing_of([*one, staged(1, PLAN), plan_path(2)]), newest) == Publish(1)
    assert next_step(listing_of([*one, staged(1, OTHER), plan_path(2)]), newest) == RunPlan(2)


def test_only_what_nobody_goes_on_with_is_garbage(folder: Path) -> None:
    newest = replace(table_in(folder).manifest(1), plan_id=PLAN)
    there = listing_of(
        [
            *(manifest_path(1), plan_path(1), plan_path(2)),
            *(staged(version, plan) for version in (1, 2) for plan in (PLAN, OTHER)),
        ]
    )
    swept = [path.split("/")[1] for path in garbage(there, newest, OTHER)]
    assert swept == [f"{1:020}-{OTHER}", f"{2:020}-{PLAN}"]


def test_names_of_files_fit_for_the_longest_topic() -> None:
    topics = ["t" * 249, "t" * 248 + "u"]
    ranges = [OffsetRange(topic, 2**31 - 1, 0, 2**62) for topic in topics]
    assert len({file_stem(each) for each in ranges}) == 2
    for each in ranges:
        assert all(len(part) <= 255 for part in data_path(each).split("/"))


def test_errors_are_of_one_family() -> None:
    assert issubclass(RefusedError, LoaderError)
