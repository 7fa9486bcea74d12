"""The limit of open files on kernels that refuse their own hard limit as soft limit."""

import logging
import resource

import pytest

from metaquorum.cli.server.open_files import raise_open_files_limit

UNLIMITED = resource.RLIM_INFINITY


class Kernel:
    """Limits of a process, with the kernel's own limit on the soft, and perhaps the hard one."""

    def __init__(self, soft: int, hard: int, most: int, *, limits_hard: bool) -> None:
        self.limits = (soft, hard)
        self._most = most
        self._limits_hard = limits_hard

    def getrlimit(self, kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_NOFILE
        return self.limits

    def setrlimit(self, kind: int, limits: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        for limit in limits if self._limits_hard else limits[:1]:
            if limit == UNLIMITED or limit > self._most:
                raise ValueError("not allowed to raise maximum limit")
        self.limits = limits


@pytest.mark.parametrize(
    ("kernel", "limits"),
    [
        (Kernel(256, UNLIMITED, 245_760, limits_hard=False), (65_536, UNLIMITED)),  # macOS
        (Kernel(256, UNLIMITED, 10_240, limits_hard=False), (10_240, UNLIMITED)),  # older macOS
        (Kernel(1024, 524_288, 100_000, limits_hard=True), (65_536, 65_536)),  # fs.nr_open
        (Kernel(1024, 524_288, 1 << 20, limits_hard=True), (524_288, 524_288)),
    ],
)
def test_the_largest_limit_that_the_kernel_accepts_is_taken(
    kernel: Kernel,
    limits: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", kernel.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", kernel.setrlimit)
    with caplog.at_level(logging.WARNING):
        assert raise_open_files_limit() == limits[0]
    assert kernel.limits == limits
    assert not caplog.records


def test_a_limit_that_cannot_be_raised_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel(256, UNLIMITED, 256, limits_hard=False)
    monkeypatch.setattr(resource, "getrlimit", kernel.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", kernel.setrlimit)
    with caplog.at_level(logging.WARNING):
        assert raise_open_files_limit() == 256
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("cannot raise the limit of open files from 256 to unlimited: ")
