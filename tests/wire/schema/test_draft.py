"""The tool that drafts tables from Kafka's message definitions."""

import json
import sys
from pathlib import Path

import pytest

from metaquorum.wire.schema import draft

DEFINITION = {
    "apiKey": 77,
    "type": "request",
    "name": "SampleRequest",
    "validVersions": "1-4",
    "latestVersionUnstable": True,
    "flexibleVersions": "2+",
    "fields": [
        {"name": "GroupId", "type": "string", "versions": "0+", "nullableVersions": "2+"},
        {"name": "IsrNodes", "type": "[]int32", "versions": "2+", "default": "null"},
        {"name": "TimeoutMs", "type": "int32", "versions": "0+", "default": "0x7f"},
        {"name": "Gone", "type": "int32", "versions": "0"},
        {"name": "Soon", "type": "int32", "versions": "4+"},
        {
            "name": "State",
            "type": "ReplicaState",
            "versions": "3+",
            "taggedVersions": "3+",
            "tag": 0,
            "ignorable": True,
            "fields": [{"name": "TopicId", "type": "uuid", "versions": "3+"}],
        },
    ],
}

TABLE = """\
class ReplicaState(Struct):
    topic_id: Uuid = uuid("3+")


class SampleRequest(Message, api=77, versions="1-3", flexible="2+"):
    group_id: str | None = string(nullable="2+")
    isr_nodes: list[int] | None = array(int32, "2+", default=None)
    timeout_ms: int = int32(default=127)
    state: ReplicaState | None = struct(ReplicaState, "3+", tag=0, ignorable=True)
"""


def test_a_definition_becomes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "SampleRequest.json"
    path.write_text(f"// A comment.\n{json.dumps(DEFINITION)}")
    monkeypatch.setattr(sys, "argv", ["draft", str(path)])
    draft.main()
    assert capsys.readouterr().out.strip() == TABLE.strip()


def test_shared_structs_come_before_what_refers_to_them() -> None:
    part = {"name": "Id", "type": "int32", "versions": "0+"}
    group = {"name": "Parts", "type": "[]Part", "versions": "0+"}
    table = draft.draft(
        {
            "apiKey": 78,
            "name": "SampleResponse",
            "validVersions": "0",
            "flexibleVersions": "0+",
            "fields": [
                {"name": "Groups", "type": "[]Group", "versions": "0+"},
                {"name": "Loose", "type": "[]Part", "versions": "0+"},
            ],
            "commonStructs": [
                {"name": "Group", "versions": "0+", "fields": [group]},
                {"name": "Part", "versions": "0+", "fields": [part]},
            ],
        }
    )
    classes = [line.split("(")[0] for line in table.splitlines() if line.startswith("class")]
    assert classes == ["class Part", "class Group", "class SampleResponse"]
