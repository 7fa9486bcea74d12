"""The printed pages of the reference say what the code says."""

import re

import pytest
from click.testing import CliRunner

from tests.documents.reference.__main__ import main
from tests.documents.reference.messages import has_words, messages
from tests.documents.reference.pages import PAGES, SOURCES, printed
from tests.nodes import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_prints(name: str) -> None:
    written = (ROOT / "docs/reference" / name).read_text()
    assert written == printed(name), "run `python -m tests.documents.reference` and read the change"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_its_source_and_its_printer(name: str) -> None:
    footer = printed(name).splitlines()[-2:]
    assert (ROOT / SOURCES[name].printer).is_file()
    assert SOURCES[name].printer in footer[0]
    assert SOURCES[name].table in footer[0]
    files = re.findall(r"`([\w/]+\.py)`", SOURCES[name].table)
    assert [one for one in files if not (ROOT / one).is_file()] == []


def test_the_help_lists_all_pages() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert [name for name in PAGES if f"  {name} " not in shown.output] == []


def test_log_lines_are_found_at_every_level() -> None:
    found = {one.kind for one in messages()}
    assert {"WARNING", "ERROR", "CRITICAL", "StorageError", "UNKNOWN_TOPIC_OR_PARTITION"} <= found


def test_a_log_line_says_something_besides_what_it_quotes() -> None:
    levels = {"WARNING", "ERROR", "CRITICAL"}
    empty = [one for one in messages() if one.kind in levels and not has_words(one.text)]
    assert [(one.module, one.text) for one in empty] == []
