"""Short modules stay whole, long ones are split, and what failed before comes first."""

from pathlib import Path

import pytest

from tests.suite.inner_run import InnerRun
from tests.suite.scheduling import Modules, known_seconds, module_of
from tests.suite.test_failures import MARKERS

SECONDS = {"tests/long.py": 100.0, "tests/short.py": 2.0}


@pytest.fixture
def modules(pytestconfig: pytest.Config) -> Modules:
    class Config:
        """The part of pytest's configuration that the scheduler reads."""

        option = type("Option", (), {"loadscopereorder": True, "tx": ["popen"]})()

        def getvalue(self, name: str) -> object:
            return getattr(self.option, name)

    return Modules(Config(), None, SECONDS, {"tests/short.py::test_failed"})


def test_a_short_module_is_one_unit_and_a_long_one_a_unit_for_each_test(modules: Modules) -> None:
    unit = modules._split_scope
    assert unit("tests/short.py::test_a[1]") == unit("tests/short.py::test_b") == "tests/short.py"
    assert unit("tests/unknown.py::test_a") == "tests/unknown.py"
    assert unit("tests/long.py::test_a[1]") != unit("tests/long.py::test_a[2]")
    assert unit("tests/short.py::test_failed") == "tests/short.py::test_failed"


def test_the_table_of_long_modules_names_modules_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    seconds = known_seconds()
    assert [name for name in seconds if not (root / name).exists()] == []
    assert module_of("tests/a.py::test_b[x::y]") == "tests/a.py"


@pytest.mark.slow
def test_all_tests_run_once_in_two_processes(tmp_path: Path) -> None:
    inner = InnerRun(tmp_path / "inner")
    inner.write("conftest.py", MARKERS)
    for name in ("a", "b", "c"):
        inner.write(
            f"test_{name}.py",
            "import pytest\n"
            "@pytest.mark.parametrize('number', range(20))\n"
            "def test_passes(number): pass\n",
        )
    printed = inner.output()
    assert "60 passed" in printed
    assert "costs: 60 tests" in printed
