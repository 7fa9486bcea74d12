"""The pictures that are drawn by code are those that the code draws."""

import runpy

import pytest

from tests.nodes import ROOT

DRAWINGS = runpy.run_path(str(ROOT / "docs/images/draw.py"))["DRAWINGS"]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_what_is_drawn(name: str) -> None:
    written = (ROOT / "docs/images" / name).read_text()
    assert written == DRAWINGS[name](), "run `python docs/images/draw.py`"
