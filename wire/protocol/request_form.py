"""Choice of the form of the code for each small request: compiled by Cython, or interpreted.

An installation with a C compiler builds the three modules below; without one, their sources run
interpreted, with the same results. The form is that of the record walk
(`metaquorum.wire.records.walk_form`), so METAQUORUM_INTERPRETED=1 forces the interpreted one here,
too.

Callers read the functions from this module at each call: the simulator sets the interpreted ones
(`metaquorum.simulations.kernel.world`).
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from metaquorum.wire.protocol.produce_one import decode_one, encode_one
from metaquorum.wire.protocol.request_header import decode_request_header
from metaquorum.wire.records.plain_batch import plain_batch
from metaquorum.wire.records.walk_form import is_compiled

__all__ = [
    "decode_one",
    "decode_request_header",
    "encode_one",
    "plain_batch",
]

# The functions of the interpreted form, by name.
INTERPRETED: Final[Mapping[str, Callable[..., Any]]] = {
    "decode_one": decode_one,
    "decode_request_header": decode_request_header,
    "encode_one": encode_one,
    "plain_batch": plain_batch,
}
_MODULES: Final = (
    "metaquorum.wire.protocol._produce_one",
    "metaquorum.wire.protocol._request_header",
    "metaquorum.wire.records._plain_batch",
)


def compiled() -> Mapping[str, Callable[..., Any]] | None:
    """Return the functions of the compiled form; None if it was not built."""
    try:
        modules = [import_module(name) for name in _MODULES]
    except ImportError:
        return None
    return {
        name: function
        for name in INTERPRETED
        for module in modules
        if (function := getattr(module, name, None)) is not None
    }


if is_compiled():
    globals().update(compiled() or {})


def form_name() -> str:
    return "interpreted" if decode_one is INTERPRETED["decode_one"] else "compiled"
