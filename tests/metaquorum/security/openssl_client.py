"""A TLS client that updates its keys, which the ssl module of Python does not support."""

import ctypes
from ctypes import c_char_p, c_int, c_void_p, create_string_buffer
from typing import Final

import pytest

_BUFFER_BYTES: Final = 1 << 17
_UPDATE_REQUESTED: Final = 1


class OpensslClient:
    """Client without I/O: bytes in, bytes out."""

    def __init__(self) -> None:
        try:
            self._ssl_library = ctypes.CDLL("libssl.so.3")
            self._crypto = ctypes.CDLL("libcrypto.so.3")
        except OSError:
            pytest.skip("OpenSSL's own library is not to be found here")
        self._buffer = create_string_buffer(_BUFFER_BYTES)
        context = self._pointer("SSL_CTX_new", self._pointer("TLS_client_method"))
        self._ssl = self._pointer("SSL_new", context)
        memory = self._crypto.BIO_s_mem
        memory.restype = c_void_p
        new = self._crypto.BIO_new
        new.restype, new.argtypes = c_void_p, [c_void_p]
        self._incoming, self._outgoing = c_void_p(new(memory())), c_void_p(new(memory()))
        self._ssl_library.SSL_set_bio(self._ssl, self._incoming, self._outgoing)
        self._ssl_library.SSL_set_connect_state(self._ssl)

    def _pointer(self, name: str, *arguments: c_void_p) -> c_void_p:
        function = getattr(self._ssl_library, name)
        function.restype = c_void_p
        return c_void_p(function(*arguments))

    def shake(self, came: bytes) -> bytes:
        """Return the next flight; empty when the handshake is complete."""
        self._crypto.BIO_write(self._incoming, c_char_p(came), c_int(len(came)))
        self._ssl_library.SSL_do_handshake(self._ssl)
        return self._sent()

    def new_keys(self, count: int) -> bytes:
        """Return `count` key updates, each of which requests a key update of the peer."""
        for _ in range(count):
            assert self._ssl_library.SSL_key_update(self._ssl, _UPDATE_REQUESTED) == 1
            self._ssl_library.SSL_do_handshake(self._ssl)
        return self._sent()

    def _sent(self) -> bytes:
        count = self._crypto.BIO_read(self._outgoing, self._buffer, _BUFFER_BYTES)
        return self._buffer.raw[: max(count, 0)]
