"""The printed pages of the reference say what the code says."""

import pytest

from tests.documents.reference.messages import has_words, messages
from tests.documents.reference.pages import PAGES, printed
from tests.nodes import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_prints(name: str) -> None:
    written = (ROOT / "docs/reference" / name).read_text()
    assert written == printed(name), "run `python -m tests.documents.reference` and read the change"


def test_log_lines_are_found_at_every_level() -> None:
    found = {one.kind for one in messages()}
    assert {"WARNING", "ERROR", "CRITICAL", "StorageError", "UNKNOWN_TOPIC_OR_PARTITION"} <= found


def test_a_log_line_says_something_besides_what_it_quotes() -> None:
    levels = {"WARNING", "ERROR", "CRITICAL"}
    empty = [one for one in messages() if one.kind in levels and not has_words(one.text)]
    assert [(one.module, one.text) for one in empty] == []
