"""Packages that loads need besides the dependencies of metaquorum, and the extras with them."""

from typing import Final

_INSTALL: Final = {
    "pyarrow": "pip install 'metaquorum[parquet]' to load with --local, or 'metaquorum[spark]' to "
    "load with Spark",
    "pyspark": "pip install 'metaquorum[spark]', or load with --local, which does not need it",
}


def missing_text(error: ImportError) -> str | None:
    """Return what is not installed and how to install it; None: the package is not in an extra."""
    package = (error.name or "").partition(".")[0]
    found = _INSTALL.get(package)
    return None if found is None else f"{package} is not installed; run: {found}"
