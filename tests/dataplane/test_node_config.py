"""Shares of the limit of open files: logs, clients, and all others, for any number of disks."""

import pytest

from metaquorum.dataplane.log.segments.files import LEAST_OPEN_FILES
from metaquorum.dataplane.node_config import NodeConfig


def config(open_files: int | None, directories: int) -> NodeConfig:
    paths = tuple(f"/disk{number}" for number in range(directories))
    address = ("localhost", 0)
    return NodeConfig(1, "/data", address, address, log_dirs=paths, open_files=open_files)


@pytest.mark.parametrize("directories", [0, 1, 4, 20, 100])
@pytest.mark.parametrize("open_files", [256, 1024, 4096, 1 << 20])
def test_logs_and_clients_leave_descriptors_to_all_others(
    open_files: int, directories: int
) -> None:
    found = config(open_files, directories)
    assert found.max_connections is not None
    each = found.max_log_files // max(1, directories)
    assert each >= 1
    assert found.max_log_files + found.max_connections <= open_files - min(256, open_files // 4)


@pytest.mark.parametrize("open_files", [None, 1 << 20])
def test_each_of_many_directories_has_files_for_several_logs(open_files: int | None) -> None:
    assert config(open_files, 100).max_log_files == 100 * LEAST_OPEN_FILES
    assert config(open_files, 2).max_log_files == config(open_files, 0).max_log_files == 512
