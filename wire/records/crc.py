"""CRC-32C (Castagnoli), from the C module of the `crc32c` distribution.

The C module is loaded without its package: `crc32c/__init__.py` imports importlib.metadata and
argparse to find its own version, which takes 25 ms at each start; the C module loads in 0.5 ms.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Protocol

from metaquorum.wire.primitives.types import Buffer


class Crc32c(Protocol):
    def __call__(self, data: Buffer, value: int = 0) -> int:
        """Return the checksum of `data`; `value` is the checksum of the bytes before it."""


def _load() -> Crc32c:
    package = PathFinder.find_spec("crc32c")
    locations = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("crc32c._crc32c", locations) if locations else None
    if spec is None or spec.loader is None:
        import crc32c as whole

        return whole.crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Crc32c = module.crc32c
    return function


crc32c = _load()
