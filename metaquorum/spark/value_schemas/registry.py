"""HTTP client of a schema registry: schemas by id, with the schemas they refer to. Blocking.

Source: the REST API of Confluent's Schema Registry (`GET /schemas/ids/{id}`, `GET
/subjects/{subject}/versions/{version}`, error codes 40401, 40402 and 40403). Redirects are not
followed, because they would carry the credentials. The schema of an id never changes, so callers
may cache it.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import field
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, urlsplit

from metaquorum.spark.errors import LoadError
from metaquorum.spark.value_schemas.decoded import SchemaError
from metaquorum.wire.primitives.frozen import frozen

TIMEOUT_S: Final = 10.0
MAX_RESPONSE_BYTES: Final = 4 << 20
MAX_REFERENCES: Final = 64
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.5
_PIECE_BYTES: Final = 1 << 16
_NOT_FOUND: Final = (40401, 40402, 40403)  # subject, version, schema


class RegistryError(LoadError):
    """The registry does not answer, or answers with an error; the task can be repeated."""


class UnknownSchemaError(LookupError):
    """The registry does not have the schema, or it is too large or refers to too many others."""


@frozen
class RegistryAuth:
    """Credentials and certificate authorities for a registry; never part of a plan."""

    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)  # a bearer token, instead of the two
    ca_file: str = ""  # PEM file of the authorities to trust, instead of the system's

    def __post_init__(self) -> None:
        if self.token and (self.username or self.password):
            raise SchemaError("give either a username and a password, or a token, for the registry")
        if any(ord(char) < 32 for char in f"{self.username}{self.password}{self.token}"):
            raise SchemaError("the credentials for the registry have control characters")

    def header(self) -> str | None:
        """Return the value of the header `Authorization`, or None without credentials."""
        if self.token:
            return f"Bearer {self.token}"
        if not self.username:
            return None
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


@frozen
class RegisteredSchema:
    """The text of a schema, preceded by the texts of the schemas that it refers to."""

    kind: str  # "AVRO", "JSON", "PROTOBUF"
    texts: tuple[str, ...]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        return None


class RegistryClient:
    """Client of the registry at `url`, without a cache."""

    def __init__(
        self, url: str, auth: RegistryAuth | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        auth = auth or RegistryAuth()
        if header := auth.header():
            self._headers["Authorization"] = header
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if urlsplit(url).scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=_context(auth.ca_file)))
        self._opener = urllib.request.build_opener(*handlers)

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of the id. Blocking.

        Raises UnknownSchemaError if the registry does not have the schema, RegistryError if the
        registry fails.
        """
        answer = self._get(f"/schemas/ids/{schema_id}")
        texts: list[str] = []
        self._collect(answer, texts, set(), 0)
        kind = answer.get("schemaType", "AVRO")
        return RegisteredSchema(kind if isinstance(kind, str) else "", tuple(texts))

    def _collect(
        self, answer: dict[str, Any], texts: list[str], seen: set[tuple[str, int]], depth: int
    ) -> None:
        references = answer.get("references") or []
        text = answer.get("schema")
        if not isinstance(text, str) or not isinstance(references, list):
            raise RegistryError(f"the schema registry {self._url} sent a response without a schema")
        for reference in references:
            match reference:
                case {"subject": str(subject), "version": int(version)}:
                    pass
                case _:
                    raise RegistryError(f"the schema registry {self._url} has a broken reference")
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            if len(seen) > MAX_REFERENCES or depth >= MAX_REFERENCES:
                raise UnknownSchemaError(f"refers to more than {MAX_REFERENCES} schemas")
            path = f"/subjects/{quote(subject, safe='', errors='replace')}/versions/{version}"
            self._collect(self._get(path), texts, seen, depth + 1)
        texts.append(text)
        if sum(map(len, texts)) > MAX_RESPONSE_BYTES:
            raise UnknownSchemaError(
                f"has, with its references, more than {MAX_RESPONSE_BYTES} bytes"
            )

    def _get(self, path: str) -> dict[str, Any]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                status, body = self._ask(path)
            except (OSError, HTTPException) as error:
                if attempt == _ATTEMPTS:
                    cause = getattr(error, "reason", None) or error or type(error).__name__
                    raise RegistryError(
                        f"the schema registry {self._url} cannot be reached: {str(cause)[:200]};"
                        " check the URL, the certificate and the firewall"
                    ) from None
            else:
                if status < 500 and status != 429:
                    return self._judge(status, body)
                if attempt == _ATTEMPTS:
                    raise RegistryError(
                        f"the schema registry {self._url} answered with HTTP status {status}"
                        f" {_ATTEMPTS} times"
                    )
            time.sleep(_PAUSE_S * attempt)
        raise AssertionError("unreachable")

    def _ask(self, path: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self._url + path, headers=self._headers)  # noqa: S310
        deadline = time.monotonic() + self._timeout_s
        try:
            response = self._opener.open(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return int(response.status), self._read(response.read1, deadline)

    def _read(self, read: Callable[[int], bytes], deadline: float) -> bytes:
        body = bytearray()
        while piece := read(_PIECE_BYTES):
            body += piece
            if len(body) > MAX_RESPONSE_BYTES:
                if body.lstrip().startswith(b"{"):  # a schema, which a producer can have registered
                    raise UnknownSchemaError(f"has more than {MAX_RESPONSE_BYTES} bytes")
                raise RegistryError(
                    f"the schema registry {self._url} answered with more than"
                    f" {MAX_RESPONSE_BYTES} bytes"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"no complete response in {self._timeout_s:g} s")
        return bytes(body)

    def _judge(self, status: int, body: bytes) -> dict[str, Any]:
        if status in (401, 403):
            raise RegistryError(
                f"the schema registry {self._url} refuses the credentials (HTTP status {status}):"
                " give a username and password that may read its schemas"
            )
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if status == 404 and isinstance(answer, dict) and answer.get("error_code") in _NOT_FOUND:
            raise UnknownSchemaError("is not in the schema registry")
        if status != 200 or not isinstance(answer, dict):
            raise RegistryError(
                f"{self._url} answered with HTTP status {status} and is not a schema registry:"
                " check the URL"
            )
        return answer


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise SchemaError(
            f"the file of authorities for the registry {ca_file} cannot be used: {error}"
        ) from None
