# cython: language_level=3, annotation_typing=False, boundscheck=True, wraparound=False
# cython: initializedcheck=False, show_performance_hints=False
"""Request headers: the decoder that each request needs.

This file has two forms with the same results, errors included: interpreted, and compiled by Cython
with the C types of `_request_header.pxd` as `metaquorum.wire.protocol._request_header`
(`metaquorum.wire.protocol.request_form` chooses).
"""

from struct import Struct
from struct import error as struct_error
from typing import Final

from metaquorum.wire.primitives.errors import WireError
from metaquorum.wire.protocol.apis import APIS, RequestHeader
from metaquorum.wire.schema.decoding import Malformed, skip_tags

if __name__.rpartition(".")[2].startswith("_"):  # compiled
    import cython
    from cython.cimports.metaquorum.wire.primitives._reading import (
        byte,
        bytes_of,
        new_tuple,
        number,
        text,
    )
else:
    from metaquorum.wire.records import interpreted as cython

_read_start = Struct(">hhih").unpack_from
_START_BYTES = 10
# First flexible version by API key; also needed for requests in unsupported versions.
_FLEXIBLE_FROM: Final = {key: api.flexible_from for key, api in APIS.items()}
_NEVER_FLEXIBLE = 1 << 15


_new_tuple: Final = tuple.__new__  # creates a NamedTuple without the call of its own __new__


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Return the header and the position of the body. Raises WireError if it is malformed.

    For an unsupported API the tagged fields are not parsed.
    """
    end = len(frame)
    try:
        if cython.compiled:
            data = bytes_of(frame, end)
            api_key, version = number(data, end, 0, 2), number(data, end, 2, 2)
            correlation_id, length = number(data, end, 4, 4), number(data, end, 8, 2)
        else:
            api_key, version, correlation_id, length = _read_start(frame, 0)
        position = _START_BYTES
        client_id = None
        if length >= 0:
            position += length
            if cython.compiled:
                client_id = text(data, end, _START_BYTES, length)
            else:
                client_id = str(frame[_START_BYTES:position], "utf-8", "replace")
        elif length != -1:
            raise WireError(f"request header: client_id has the length {length}")
        if version >= _FLEXIBLE_FROM.get(api_key, _NEVER_FLEXIBLE):
            tags = byte(data, end, position) if cython.compiled else frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags)
    except (struct_error, IndexError, Malformed) as error:
        raise WireError(f"request header: {_header_fault(error)}") from None
    if position > end:
        raise WireError("request header: the header is too short")
    values = api_key, version, correlation_id, client_id
    if cython.compiled:
        return new_tuple(RequestHeader, values), position
    return _new_tuple(RequestHeader, values), position


def _header_fault(error: Exception) -> str:
    return (
        "tagged fields are malformed" if isinstance(error, Malformed) else "the header is too short"
    )
