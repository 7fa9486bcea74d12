"""Layout of a table: the relative paths of all files in the output.

    topic=T/partition=P/T-P-START-END.parquet   committed data files, Hive-style
    _rejected/topic=T/partition=P/...parquet    records whose value does not match the value schema
    _metaquorum/format.json                     marks the folder as a table of this loader
    _metaquorum/driver                          the driver lock
    _metaquorum/plans/VERSION.json              ranges of a load, written once
    _metaquorum/manifests/VERSION.json          commit of a load, with the files it added
    _metaquorum/reports/VERSION-PLAN.jsonl      report of a load, one line for each range
    _loading/VERSION-PLAN/INDEX.json            result of a range, written once
    _loading/VERSION-PLAN/INDEX-ATTEMPT.staged  data that an attempt at the range wrote

Partition columns are topic and partition, which are constant in a range, so that a range is one
file. A partition by date is deliberately absent: timestamps are not in the order of offsets, and a
range would be split into one file for each day. The statistics of the row groups allow queries to
skip by time.

Spark, Hive and pyarrow skip names that begin with `_`. DuckDB and others do not skip them, but only
committed and rejected data have names of the form `*.parquet`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from metaquorum.spark.offset_ranges import OffsetRange

META_FOLDER: Final = "_metaquorum"
LOADING_FOLDER: Final = "_loading"
REJECTED_FOLDER: Final = "_rejected"
FORMAT_FILE: Final = f"{META_FOLDER}/format.json"
LOCK_FILE: Final = f"{META_FOLDER}/driver"
PLANS_FOLDER: Final = f"{META_FOLDER}/plans"
MANIFESTS_FOLDER: Final = f"{META_FOLDER}/manifests"
REPORTS_FOLDER: Final = f"{META_FOLDER}/reports"

# Most file systems limit file names to 255 bytes; a topic name may have 249.
_MAX_TOPIC_CHARS: Final = 120
_VERSION_FILE: Final = re.compile(r"([0-9]{20})\.json")
_STAGING_FOLDER: Final = re.compile(r"([0-9]{20})-([0-9a-f]{16})")
_RESULT_FILE: Final = re.compile(r"([0-9]{8})\.json")
_STAGED_FILE: Final = re.compile(r"([0-9]{8})-[0-9a-f]+(?:-rejected)?\.staged")


def plan_path(version: int) -> str:
    return f"{PLANS_FOLDER}/{version:020}.json"


def manifest_path(version: int) -> str:
    return f"{MANIFESTS_FOLDER}/{version:020}.json"


def report_path(version: int, plan_id: str) -> str:
    return f"{REPORTS_FOLDER}/{version:020}-{plan_id}.jsonl"


def staging_folder(version: int, plan_id: str) -> str:
    return f"{LOADING_FOLDER}/{version:020}-{plan_id}"


def result_path(staging: str, index: int) -> str:
    return f"{staging}/{index:08}.json"


def staged_path(staging: str, index: int, attempt: str) -> str:
    return f"{staging}/{index:08}-{attempt}.staged"


def rejected_staged_path(staging: str, index: int, attempt: str) -> str:
    return f"{staging}/{index:08}-{attempt}-rejected.staged"


def data_path(range_: OffsetRange) -> str:
    folder = f"topic={range_.topic}/partition={range_.partition}"
    return f"{folder}/{file_stem(range_)}.parquet"


def rejected_path(range_: OffsetRange) -> str:
    return f"{REJECTED_FOLDER}/{data_path(range_)}"


def file_stem(range_: OffsetRange) -> str:
    """Return the range's name; a long topic is shortened and a digest of it appended."""
    topic = range_.topic
    if len(topic) > _MAX_TOPIC_CHARS:
        digest = hashlib.sha256(topic.encode()).hexdigest()[:16]
        topic = f"{topic[:_MAX_TOPIC_CHARS]}~{digest}"
    return f"{topic}-{range_.partition}-{range_.start:020}-{range_.end:020}"


def version_of(path: str) -> int | None:
    """Return the version of a plan or manifest path; None: the path is neither."""
    found = _VERSION_FILE.fullmatch(path.rpartition("/")[2])
    return int(found[1]) if found else None


def staging_of(path: str) -> tuple[int, str] | None:
    """Return version and plan id of a path in a staging folder; None: it is not in one."""
    parts = path.split("/")
    if len(parts) < 2 or parts[0] != LOADING_FOLDER:
        return None
    found = _STAGING_FOLDER.fullmatch(parts[1])
    return (int(found[1]), found[2]) if found else None


def result_index(path: str) -> int | None:
    found = _RESULT_FILE.fullmatch(path.rpartition("/")[2])
    return int(found[1]) if found else None


def staged_index(path: str) -> int | None:
    """Return the index of the range of a staged file; None: the path is not of one."""
    folder, _, name = path.rpartition("/")
    found = _STAGED_FILE.fullmatch(name)
    is_staged = found is not None and staging_of(path) is not None and folder.count("/") == 1
    return int(found[1]) if found is not None and is_staged else None
