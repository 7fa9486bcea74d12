"""Names of the printed pages, and the function that prints each."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from tests.documents.reference import (
    apis,
    commands,
    configs,
    error_codes,
    messages,
    metadata_records,
    metrics,
)

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
_NOTE: Final = (
    "\nThis page is printed from the code: change the table there, then run"
    " `python -m tests.documents.reference`.\n"
)


@cache
def printed(name: str) -> str:
    """Return the text of the page, as the code of today prints it."""
    return PAGES[name]().rstrip("\n") + "\n" + _NOTE
