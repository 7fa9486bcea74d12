"""The documentation builds as a site, without a warning, and loads nothing from other hosts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import ROOT

# Elements whose address a browser fetches by itself; a link is only followed by a reader.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|object|embed)\b[^>]*\b(?:src|data)=["']([^"']+)"""
)
LINKED = re.compile(r"""<link\b[^>]*\bhref=["']([^"']+)""")
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?([^"')#]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    target = tmp_path_factory.mktemp("site")
    options = ["-b", "html", "-W", "--keep-going", "-q", "-d", target / "doctrees"]
    build = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", target / "html"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target / "html"


@pytest.mark.conformance
def test_every_page_is_built(site: Path) -> None:
    pages = [one.relative_to(ROOT / "docs") for one in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 10
    assert [str(one) for one in pages if not (site / one.with_suffix(".html")).is_file()] == []
    assert "url=README.html" in (site / "index.html").read_text()


@pytest.mark.conformance
def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loaded: set[str] = set()
    for path in site.rglob("*.html"):
        text = path.read_text()
        loaded |= set(LOADED.findall(text)) | set(LINKED.findall(text))
    for path in site.rglob("*.css"):
        loaded |= set(IN_STYLES.findall(path.read_text()))
    assert any("furo" in one for one in loaded)
    foreign = {one for one in loaded if re.match(r"(?:https?:)?//", one)}
    assert foreign == set()


def test_pictures_load_nothing_either() -> None:
    for path in (ROOT / "docs").rglob("*.svg"):
        text = path.read_text()
        names = set(re.findall(r"""(?:href|src)=["']([^"'#]+)""", text)) | set(
            IN_STYLES.findall(text)
        )
        assert names == set(), path.name
        assert "<script" not in text, path.name
