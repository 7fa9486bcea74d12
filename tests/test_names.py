"""The code uses the terms of its field: names that were replaced do not return."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("wire", "metaquorum", "dataplane", "cli", "simulations", "tests")

# No identifier, and no module, has one of these among its words (joined by _ or by capitals).
_WORDS = """
    later_reply wish wishes reign roll_call asker entrance entrances await_who_it_is handle_one
    start_marks sync_mark known_dirs opening_dirs folder_contents
    fleet nation council keeper chronicle planting befall befalls
"""
# No identifier is one of these.
_NAMES = """
    Later Places Trial Effects Changed Told Kept Hand Eyes Room Stage Scene Act Crossing Crossings
    Defect Came Spokesman Turns Wakes Tardy Upkeep Gateway Membership Removals SaslGate
    AskingSession TopicRows QuorumCheck IsrNews QuotaReports LineLimit
    tend foresee give_way stand_back
"""
# Only for the simulator; elsewhere these words have their usual meaning.
_NAMES_OF_SIMULATOR = """
    eyes stage story stories trouble troubles defects hand room told tell
"""
WORDS = tuple(_WORDS.split())
NAMES = frozenset(_NAMES.split())
NAMES_OF_SIMULATOR = frozenset(_NAMES_OF_SIMULATOR.split())
# Click names a command after its function: `python -m metaquorum.simulations defects`.
COMMANDS = {("simulations/__main__.py", "defects")}


def sources() -> list[Path]:
    return sorted(
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != Path(__file__).name
    )


def identifiers(tree: ast.Module) -> set[str]:
    """Return each name that is bound or used, without the module paths of imports."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("test_"):  # a sentence, not a name
                    found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found


@functools.cache  # most names are in many files
def has_word(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return any(f"_{word}_" in f"_{words}_" for word in WORDS)


@pytest.fixture(scope="module", params=PACKAGES)
def names(request: pytest.FixtureRequest) -> set[tuple[str, str]]:
    """Return each identifier of one package with the path of its file."""
    return {
        (path.relative_to(ROOT).as_posix(), name)
        for path in sources()
        if path.relative_to(ROOT).parts[0] == request.param
        for name in identifiers(ast.parse(path.read_text()))
    }


def test_no_identifier_is_a_private_name(names: set[tuple[str, str]]) -> None:
    assert not {(path, name) for path, name in names if name in NAMES or has_word(name)}


def test_no_identifier_of_the_simulator_is_a_private_name(names: set[tuple[str, str]]) -> None:
    found = {
        (path, name)
        for path, name in names
        if path.startswith(("simulations/", "tests/simulations/"))
        and name.strip("_") in NAMES_OF_SIMULATOR
    }
    assert found <= COMMANDS


def test_no_module_has_a_private_name() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in sources()]
    assert not [path for path in paths if any(has_word(part) for part in path.parts)]


def test_a_private_name_is_found_wherever_it_stands() -> None:
    tree = ast.parse(
        "class FleetNation:\n    def f(self, asker):\n        self.reign = g(wish=1)\n"
    )
    found = {name for name in identifiers(tree) if has_word(name)}
    assert found == {"FleetNation", "asker", "reign", "wish"}
    assert not has_word("recombination")
