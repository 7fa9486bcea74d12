"""Names of the printed pages, the function that prints each, and its source."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.documents.reference import (
    apis,
    commands,
    configs,
    error_codes,
    messages,
    metadata_records,
    metrics,
)
from tests.nodes import ROOT

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "apis.md": apis.page,
    "configs.md": configs.page,
    "error-codes.md": error_codes.page,
    "messages.md": messages.page,
    "metadata-records.md": metadata_records.page,
    "metrics.md": metrics.page,
    "mq-admin.md": commands.mq_admin,
    "mq-load.md": commands.mq_load,
    "mq-server.md": commands.mq_server,
}
_SOURCES: Final[Mapping[str, str]] = {
    "apis.md": "`APIS` in `wire/protocol/apis.py`",
    "configs.md": "`TOPIC_KEYS` and `WORKER_KEYS` in `metaquorum/config/registry.py`",
    "error-codes.md": "`ErrorCode` and `RETRIABLE` in `wire/primitives/errors.py`",
    "messages.md": "log calls and `raise` statements in `wire`, `metaquorum`, `dataplane`, `cli`",
    "metadata-records.md": "`SCHEMAS` in `metaquorum/metadata/records.py`",
    "metrics.md": "`METRICS` in `dataplane/prometheus/catalog.py`",
    "mq-admin.md": "the commands of `cli/admin/main.py`",
    "mq-load.md": "the command of `cli/load/main.py`",
    "mq-server.md": "the commands of `cli/server/main.py`",
}


class Source(NamedTuple):
    """Source of a page: its table, in Markdown, and the file of the module that prints it."""

    table: str
    printer: str


SOURCES: Final[Mapping[str, Source]] = {
    name: Source(_SOURCES[name], f"{page.__module__.replace('.', '/')}.py")
    for name, page in PAGES.items()
}


def folder() -> Path:
    return ROOT / "docs/reference"


def _note(source: Source) -> str:
    return (
        f"\nThis page is printed by `{source.printer}` from {source.table}:\nchange it there, then"
        " run `python -m tests.documents.reference`.\n"
    )


@cache
def printed(name: str) -> str:
    """Return the text of the page, as the code of today prints it."""
    return PAGES[name]().rstrip("\n") + "\n" + _note(SOURCES[name])


def differs(name: str) -> bool:
    """Return whether the page is missing or is not what the code prints."""
    path = folder() / name
    return not path.exists() or path.read_text() != printed(name)
