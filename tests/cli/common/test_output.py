"""Names and values of a cluster in the output: no terminal interprets them, programs get them."""

import json
import os
import pty
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.cli.admin.common.session import COMPLETED
from metaquorum.cli.admin.records.text import formatter, to_json
from metaquorum.cli.common.lazy_group import LazyGroup
from metaquorum.cli.common.output import (
    Column,
    echo_exact,
    json_line,
    json_text,
    printable,
    show_pairs,
    show_table,
    yaml_text,
)
from metaquorum.client.consumer import ConsumedRecord
from metaquorum.runtime.one_line import UNSAFE, one_line
from metaquorum.spark.loader.html_report import escape

HOSTILE = [
    *("\x00", "\x07", "\x1b[2J", "\x1b]0;title\x07", "\r", "\n", "\t", "\x7f", "\x85", "\x9b31m"),
    *("\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069"),
    *("\u206a", "\ufeff", "\ufff9", "\U000e0041"),
]
NAMES = st.text(
    st.sampled_from([*"".join(HOSTILE), *"ab ü\u4e2d\U0001f600'\"\\:#-{}[]&*!|>%@`,?~=\u200d"]),
    max_size=8,
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def shown(text: str) -> str:
    """Return the text without the line ends of the output itself."""
    return text.replace("\n", "")


@pytest.mark.parametrize("mark", HOSTILE)
def test_no_form_of_the_output_has_an_unsafe_character(mark: str) -> None:
    name = f"a{mark}b"
    data: Any = {name: [name, {name: name}], "plain": name}
    assert json.loads(json_text(data)) == json.loads(json_line(data)) == data
    assert yaml.safe_load(yaml_text(data)) == data
    for text in (json_text(data), yaml_text(data), printable(name), escape(name), one_line(name)):
        assert not UNSAFE.search(shown(text)), text
    assert "\n" not in json_line(data) + printable(name) + one_line(name)


@given(DATA)
def test_any_data_is_the_same_for_programs(data: Any) -> None:
    assert json.loads(json_text(data)) == data
    assert json.loads(json_line(data)) == data
    assert yaml.safe_load(yaml_text(data)) == data
    assert not UNSAFE.search(shown(json_text(data)) + json_line(data) + shown(yaml_text(data)))


def test_text_of_other_scripts_is_not_escaped() -> None:
    name = "Zürich \u4e2d\u6587 \u0645\u06cc\u200c\u062e\u0648\u0627 \U0001f469\u200d\U0001f680"
    assert printable(name) == name
    assert json_line(name) == f'"{name}"'
    assert yaml.safe_load(yaml_text([name])) == [name]


def test_escapes_of_wide_characters_cannot_be_read_as_others() -> None:
    assert printable("\u202e2e\U000e0041") == r"\u202e2e\U000e0041"


def test_tables_and_pairs_show_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"group": f"a{mark}b", "members": [f"c{mark}"]} for mark in HOSTILE]
    show_table(rows, [Column("group"), Column("members"), Column("group", text=str)])
    show_pairs([("group", row["group"]) for row in rows])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(rows) + 1
    assert not any(UNSAFE.search(line) for line in lines)


def test_text_for_programs_is_exact_but_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a\x1b[31m\u202e\nb"
    echo_exact(text)
    assert capsys.readouterr().out == text + "\n"
    leader, follower = pty.openpty()
    with open(follower, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        echo_exact(text)
        terminal.flush()
        seen = os.read(leader, 1000).decode()
    os.close(leader)
    assert seen.splitlines() == [r"a\x1b[31m\u202e", "b"]


def test_records_are_escaped_in_json_and_exact_in_formats() -> None:
    value = "v\x1b[31m\u202e\x9b\U000e0041".encode()
    record = ConsumedRecord("t", 0, 7, 1, value, value, (("h\u202e", value),))
    line = json_line(to_json(record))
    assert not UNSAFE.search(line)
    assert json.loads(line)["value"].encode() == value
    assert json.loads(line)["headers"][0]["key"] == "h\u202e"
    assert formatter("{key}|{value}\\n")(record) == value + b"|" + value + b"\n"
    assert formatter("{headers}")(record) == "h\u202e=".encode() + value
    as_json = formatter("{value:json}")(record).decode()
    assert json.loads(as_json).encode() == value
    assert not UNSAFE.search(as_json)


def test_errors_of_commands_show_escapes() -> None:
    @click.command()
    def fail() -> None:
        raise click.UsageError("no topic a\x1b[2J\u202e")

    group = LazyGroup("tool", late={})
    group.add_command(fail, "fail")
    done = CliRunner().invoke(group, ["fail"])
    assert r"no topic a\x1b[2J\u202e" in done.stderr
    assert not UNSAFE.search(shown(done.stderr))


@pytest.mark.parametrize(
    "name",
    [
        *(f"a{mark}b" for mark in HOSTILE),
        *("$(reboot)", "`x`", "a;b", "a b", "a|b", "a&b", "a>b", "a*", "a?", "[a]", "~", "a\\b"),
        *("'", '"', "#a", "!1", "{a,b}", "-rf", "--yes", "(a)", ""),
    ],
)
def test_names_that_a_shell_would_interpret_are_not_completed(name: str) -> None:
    """The shell inserts completions of unprivileged names into the command, without quotes."""
    assert not COMPLETED.fullmatch(name)


@pytest.mark.parametrize("name", ["orders", "orders.dlq-1_a", "app@eu:7", "Zürich", "a=b", "x/y,z"])
def test_common_names_are_completed(name: str) -> None:
    assert COMPLETED.fullmatch(name)
