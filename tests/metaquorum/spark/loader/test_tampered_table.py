"""Changed files of a table: each is refused, with its name and what to do."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.spark.loader.errors import LoaderError, OutputError, RefusedError
from metaquorum.spark.loader.load_job import committed_files, read_report
from metaquorum.spark.loader.storage.local_storage import LocalStorage
from metaquorum.spark.loader.table import committed_table, json_fields
from metaquorum.spark.loader.table.layout import (
    FORMAT_FILE,
    manifest_path,
    plan_path,
    report_path,
    staging_folder,
)
from metaquorum.spark.loader.table.recovery import listing_of
from tests.metaquorum.spark.loader.dying import Death, Watched, When
from tests.metaquorum.spark.loader.numbers import (
    TOPIC,
    Log,
    drive,
    expected,
    load,
    request,
    seen_by_readers_of_the_folder,
)
from tests.metaquorum.spark.loader.test_committed_table import paths_of, table_in

Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    load(folder, Log({0: 20, 1: 5}))
    load(folder, Log({0: 45, 1: 5}))
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """Return a table of two loads: 0 to 20 and 20 to 45 of partition 0, 0 to 5 of partition 1."""
    shutil.copytree(template, tmp_path / "table")
    return tmp_path / "table"


def change(path: Path, how: Change) -> None:
    content = json.loads(path.read_bytes())
    how(content)
    path.write_text(json.dumps(content))


def first(content: Any) -> Any:
    return content["ranges"][0]


def double(content: Any) -> None:
    content["ranges"].append(content["ranges"][-1])


def double_file(content: Any) -> None:
    content["ranges"][1]["file"] = content["ranges"][0]["file"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda m: first(m).update(records=1), "there are 1 records, but its files have 8 rows"),
        (lambda m: first(m).update(records=11), "more than its offsets"),
        (lambda m: first(m)["file"].update(rows=0), "its files have 0 rows"),
        (lambda m: first(m).update(first_offset=0), "has records from offset 0"),
        (lambda m: first(m).update(last_offset=30), "has records from offset 20 to 30"),
        (lambda m: first(m).update(first_offset=28), "8 records from offset 28"),
        (lambda m: first(m).update(missing={"deleted": 11}), "misses more records"),
        (lambda m: first(m).update(missing={"lost": 1}), "'lost' is not a reason"),
        (lambda m: first(m).update(start=19), "is not the path of the range"),
        (lambda m: first(m).update(end=31), "is not the path of the range"),
        (lambda m: first(m)["file"].update(path="../../x.parquet"), "not a path in the output"),
        (lambda m: first(m)["file"].update(path="/etc/passwd"), "not a path in the output"),
        (lambda m: first(m)["file"].update(path="_metaquorum/x"), "not the path of the range"),
        (lambda m: first(m)["file"].update(staged="topic=a/x"), "is not a staged file of range 0"),
        (lambda m: first(m)["file"].update(crc32c="0"), "crc32c is not eight"),
        (lambda m: first(m).update(topic="../x"), "not a valid topic name"),
        (lambda m: first(m).update(partition=2**31), "has no partition"),
        (lambda m: first(m).update(extra=1), "a range has an unknown field 'extra'"),
        (lambda m: first(m)["file"].update(extra=1), "a file has an unknown field"),
        (lambda m: m["loaded"][0].update(extra=1), "loaded has an unknown field"),
        (lambda m: m["settings"].update(extra=1), "settings has an unknown field"),
        (lambda m: m.update({"\x1b[31m": 1}), r"unknown field '\\x1b\[31m'"),
        (lambda m: m.pop("driver_id"), "it has no field 'driver_id'"),
        (double, "does not begin where the range before it ends"),
        (double_file, "its files have 8 rows"),
        (lambda m: m.update(ranges=[]), "it has no ranges"),
        (lambda m: m["ranges"].pop(), "not loaded up to the end of its ranges"),
        (lambda m: m["ranges"].pop(0), "is not a staged file of range 0"),
        (lambda m: m["loaded"][0].update(end=46), "not loaded up to the end of its ranges"),
        (lambda m: m["loaded"][0].update(start=1), "it does not continue numbers-0"),
        (lambda m: m["loaded"][1].update(end=4), "it does not continue numbers-1"),
        (lambda m: m["loaded"].pop(), "it does not have numbers-1"),
        (lambda m: m["loaded"].append(m["loaded"][0]), "it has a partition twice"),
        (lambda m: m["loaded"].append({**m["loaded"][0], "partition": 7}), "numbers-7"),
        (lambda m: m.update(cluster_id="other"), "its cluster id is other"),
        (lambda m: m["topics"].update({TOPIC: "00" * 15 + "01"}), "its id of topic numbers"),
        (lambda m: m["topics"].clear(), "it has no id of topic numbers"),
        (lambda m: m.update(report="_metaquorum/reports/x"), "not the path of its report"),
        (lambda m: m.update(plan_id="../../../../../x"), "not 16 hexadecimal digits"),
        (lambda m: m.update(plan_id="0" * 16), "not the path of its report"),
        (lambda m: m.update(version=3), "not the path of its report"),
        (lambda m: m["settings"].update(compression="zstd"), "not those of its plan"),
    ],
)
def test_a_changed_manifest_is_refused_and_named(folder: Path, how: Change, said: str) -> None:
    change(folder / manifest_path(2), how)
    name = rf"{manifest_path(2)} cannot be used: .*{said}.*; nothing was changed\. Restore the file"
    with pytest.raises(OutputError, match=name):
        load(folder, Log({0: 60, 1: 5}))
    assert not (folder / "_loading").exists()
    assert len(list((folder / "_metaquorum").rglob("*.json"))) == 5


@pytest.mark.parametrize(
    "how",
    [
        lambda m: m["loaded"][0].update(start=1),
        lambda m: m.update(cluster_id="other"),
        lambda m: m["topics"].update({TOPIC: "00" * 15 + "01"}),
    ],
)
def test_lists_of_files_and_reports_check_manifests_too(folder: Path, how: Change) -> None:
    change(folder / manifest_path(2), how)
    with pytest.raises(OutputError, match=rf"{manifest_path(2)} cannot be used"):
        committed_files(str(folder))


def test_a_report_of_other_counts_is_refused(folder: Path) -> None:
    plan_id = table_in(folder).manifest(2).plan_id
    path = folder / report_path(2, plan_id)
    lines = path.read_bytes().splitlines()
    assert read_report(str(folder)).records == 21
    for wrong in ([lines[0]], lines + lines, [lines[1], lines[0], *lines[2:]]):
        path.write_bytes(b"\n".join(wrong))
        with pytest.raises(OutputError, match=r"\.jsonl cannot be used: its ranges are not those"):
            read_report(str(folder))
    path.write_bytes(lines[0].replace(b'"records":8', b'"records":7'))
    with pytest.raises(OutputError, match="there are 7 records, but its files have 8 rows"):
        read_report(str(folder))


def test_a_report_is_shown_without_the_plan_of_its_load(folder: Path) -> None:
    (folder / plan_path(2)).unlink()
    assert read_report(str(folder)).client_id == "unknown"
    assert load(folder, Log({0: 50, 1: 5})).manifest is not None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda p: p.update(extra=1), "unknown field 'extra'"),
        (lambda p: p.update(plan_id="../x"), "not 16 hexadecimal digits"),
        (lambda p: p["read_plan"]["ranges"][0].update(start=46), "a gap of 1 offsets"),
        (lambda p: p["read_plan"]["ranges"].pop(0), "gap of 10 offsets"),
        (lambda p: p["read_plan"]["ranges"].pop(1), "does not begin where"),
        (lambda p: p["read_plan"]["topics"][TOPIC].update(topic_id="x"), "topic"),
    ],
)
def test_a_changed_plan_is_refused(folder: Path, how: Change, said: str) -> None:
    log = Log({0: 70, 1: 5})
    unfinished(folder, log, lambda folder: (folder / plan_path(3)).exists())
    change(folder / plan_path(3), how)
    with pytest.raises(LoaderError, match=said):
        load(folder, log)


def unfinished(folder: Path, log: Log, is_there: Callable[[Path], bool]) -> None:
    """Let a driver die in a load, at its first operation after which the condition holds."""

    def check(_operation: int, _at: When) -> None:
        if is_there(folder):
            raise Death

    with pytest.raises(Death):
        drive(Watched(LocalStorage(str(folder)), check), log, request(folder))


def results_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("_loading/*/*[0-9].json"))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda r: r.update(extra=1), "unknown field 'extra'"),
        (lambda r: r["report"].update(extra=1), "unknown field 'extra'"),
        (lambda r: r["report"].update(records=1), "there are 1 records, but its files have"),
        (lambda r: r["report"].update(last_offset=99), "has records from offset"),
        (lambda r: r["file"].update(path="../../x"), "is not a staged file of the range"),
        (lambda r: r["file"].update(path="/etc/passwd"), "is not a staged file of the range"),
        (lambda r: r["file"].update(bytes=1), "is missing, or has another size"),
        (lambda r: r.update(index=1), "is not a staged file of the range"),
        (lambda r: r.update(end=56), "belongs to another range"),
    ],
)
def test_a_changed_result_is_refused(folder: Path, how: Change, said: str) -> None:
    log = Log({0: 75, 1: 5})
    unfinished(folder, log, lambda folder: len(results_of(folder)) == 2)
    change(results_of(folder)[0], how)
    with pytest.raises(OutputError, match=said):
        load(folder, log)


def test_a_staged_file_of_another_size_is_not_published(folder: Path) -> None:
    log = Log({0: 75, 1: 5})
    unfinished(folder, log, lambda folder: (folder / manifest_path(3)).exists())
    staged = table_in(folder).manifest(3).files[-1].staged
    with open(folder / staged, "ab") as file:
        file.write(b"x")
    with pytest.raises(OutputError, match=r"\.staged cannot be used: it has \d+ bytes, not \d+"):
        load(folder, log)


@given(data=st.data())
def test_any_change_is_refused_or_has_no_effect_on_the_records(
    template: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The next load continues exactly where the table ends, or says why it does not."""
    folder = tmp_path_factory.mktemp("changed") / "table"
    shutil.copytree(template, folder)
    path = folder / manifest_path(2)
    content = json.loads(path.read_bytes())
    where = data.draw(st.sampled_from(paths_of(content)))
    target = content
    for key in where[:-1]:
        target = target[key]
    old = target[where[-1]]
    new = st.sampled_from([None, 0, 1, 45, 2**63 - 1, "", "x", [], {}, True])
    if isinstance(old, int):
        new |= st.sampled_from([old - 1, old + 1, old * 2])
    target[where[-1]] = data.draw(new)
    path.write_text(json.dumps(content))
    log = Log({0: 60, 1: 9})
    refusal = None
    try:
        load(folder, log)
    except LoaderError as error:
        refusal = str(error)
    if refusal is None:
        assert seen_by_readers_of_the_folder(folder) == expected(log)
    else:
        assert manifest_path(2) in refusal
    shutil.rmtree(folder.parent)


# Files that are not what the loader wrote


@pytest.mark.parametrize("path", [FORMAT_FILE, manifest_path(2)])
def test_a_pipe_or_folder_in_the_place_of_a_file_is_named(folder: Path, path: str) -> None:
    (folder / path).unlink()
    os.mkfifo(folder / path)
    with pytest.raises(OutputError, match=rf"{path} is not a file: restore it"):
        load(folder, Log({0: 60, 1: 5}))
    (folder / path).unlink()
    (folder / path).mkdir()
    with pytest.raises(OutputError):
        load(folder, Log({0: 60, 1: 5}))


def test_a_huge_manifest_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_table, "MAX_MANIFEST_BYTES", 10_000)
    (folder / manifest_path(2)).write_bytes(b" " * 20_000)
    with pytest.raises(OutputError, match=r"0002\.json has more than 10000 bytes: restore it"):
        load(folder, Log({0: 60, 1: 5}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 9_000_000, "has 9000000 parts, more than the"),
        (b'{"a": "%s"}' % ("\U0001f600" * 9).encode(), "not ASCII"),
        (b"[" * 100_000, "it is not JSON"),
    ],
)
def test_a_manifest_of_many_parts_is_not_parsed(folder: Path, content: bytes, said: str) -> None:
    (folder / manifest_path(2)).write_bytes(content)
    with pytest.raises(OutputError, match=rf"0002\.json cannot be used: .*{said}"):
        load(folder, Log({0: 60, 1: 5}))


def test_a_manifest_of_a_huge_number_is_a_missing_one() -> None:
    with pytest.raises(OutputError, match=r"manifest 2 is missing, although there is .*99999"):
        listing_of([manifest_path(1), manifest_path(10**20 - 1)])
    with pytest.raises(OutputError, match="manifest 1 is missing"):
        listing_of([manifest_path(0), manifest_path(1)])


def test_a_name_with_other_digits_is_no_manifest() -> None:
    arabic = manifest_path(1).replace("1", "\u0661")
    assert listing_of([arabic, staging_folder(1, "0" * 16) + "x/y"]).newest == 0


def test_a_plan_that_no_manifest_could_hold_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_table, "MAX_RANGES", 2)
    with pytest.raises(RefusedError, match="3 ranges, more than 2: use a larger --max-records"):
        load(folder, Log({0: 75, 1: 5}))
    assert load(folder, Log({0: 65, 1: 5})).manifest is not None


def test_the_largest_load_is_within_the_limits_of_its_files(folder: Path) -> None:
    manifest = table_in(folder).manifest(1)
    topic = "t" * 249
    one = manifest.to_bytes()
    twice = replace(manifest, ranges=[*manifest.ranges, manifest.ranges[0]]).to_bytes()
    parts = sum(twice.count(mark) - one.count(mark) for mark in (b"{", b"[", b","))
    # A file of rejected records, and five times the longer topic.
    size = 2 * (len(twice) - len(one)) + 5 * len(topic)
    assert 2 * parts * committed_table.MAX_RANGES < json_fields.MAX_PARTS
    assert size * committed_table.MAX_RANGES < committed_table.MAX_MANIFEST_BYTES
