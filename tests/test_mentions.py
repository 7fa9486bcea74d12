"""Paths and modules that the documents and the code name exist."""

import re
from pathlib import Path

from tests.nodes import ROOT
from tests.test_house import project_files

TOPS = "wire|metaquorum|dataplane|cli|simulations|tests|docs"
# Top-level packages by the names under which they are imported.
PACKAGES = "metaquorum|tests|docs"


def test_every_path_that_the_documents_name_exists() -> None:
    named = set()
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        named |= set(re.findall(rf"`((?:{TOPS})/[\w./-]*)`", document.read_text()))
    assert len(named) > 100
    named.discard("metaquorum/mq-admin.toml")  # a file in the user's config folder
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def is_there(dotted: str) -> bool:
    """Return whether this is a module, or a name in a module."""
    names = dotted.split(".")
    for count in range(len(names), 0, -1):
        path = ROOT.joinpath(*names[:count])
        for file in (path.with_suffix(".py"), path.with_suffix(".pxd"), path / "__init__.py"):
            if file.is_file():
                text = file.read_text()
                return all(re.search(rf"\b{name}\b", text) for name in names[count:])
    return False


def test_every_module_that_code_or_documents_name_exists() -> None:
    """Names are searched in code quotes, and after `python -m`."""
    quoted = re.compile(rf"`(?:python -m )?((?:{PACKAGES})(?:\.\w+)+)[` ]")
    started = re.compile(rf"python3? -m ((?:{PACKAGES})(?:\.\w+)*)")
    named: dict[str, Path] = {}
    for path in project_files():
        if path.suffix in (".py", ".md", ".toml") or path.name in ("Makefile", "run"):
            text = path.read_text()
            named |= dict.fromkeys(quoted.findall(text) + started.findall(text), path)
    assert len(named) > 50
    files = {"py", "toml", "md", "json"}  # `docs.md` is a file
    wrong = {
        name: str(path.relative_to(ROOT))
        for name, path in named.items()
        if not is_there(name) and name.rpartition(".")[2] not in files
    }
    assert wrong == {}


def test_what_is_not_there_is_noticed() -> None:
    assert is_there("metaquorum.dataplane.network.pipeline")
    assert is_there("metaquorum.dataplane.network.pipeline.RequestPipeline")
    assert is_there("metaquorum.client")
    assert not is_there("metaquorum.dataplane.connection")
    assert not is_there("metaquorum.dataplane.network.pipeline.Absent")
