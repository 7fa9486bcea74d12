"""A schema registry on a port of its own, by Confluent's documented REST API."""

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class Registry:
    def __init__(self) -> None:
        self.url = ""
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.answers: list[
            tuple[int, bytes, dict[str, str]]
        ] = []  # responses to send first, instead of its own

    def register(self, subject: str, body: dict[str, Any]) -> int:
        kept = {key: body[key] for key in ("schema", "schemaType", "references") if key in body}
        schema_id = next((i for i, each in self.schemas.items() if each == kept), 0)
        schema_id = schema_id or len(self.schemas) + 1
        self.schemas[schema_id] = kept
        version = 1 + sum(1 for name, _ in self.versions if name == subject)
        self.versions[subject, version] = schema_id
        return schema_id

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if found := re.fullmatch(r"/subjects/([^/]+)/versions(?:/(\d+))?", path):
            subject = unquote(found[1])
            if body is not None:
                return 200, {"id": self.register(subject, body)}
            version = int(found[2])
            if (subject, version) not in self.versions:
                return 404, {"error_code": 40402, "message": "Version not found."}
            schema_id = self.versions[subject, version]
            where = {"subject": subject, "version": version, "id": schema_id}
            return 200, {**where, **self.schemas[schema_id]}
        found = re.fullmatch(r"/schemas/ids/(\d+)", path)
        if found and int(found[1]) < 1 << 31:  # a path with any other number does not exist
            if int(found[1]) not in self.schemas:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.schemas[int(found[1])]
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def running_registry(tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: dict[str, Any] | None) -> None:
            path = self.path.partition("?")[0]
            registry.asked.append(path)
            registry.authorizations.append(self.headers["Authorization"])
            headers: dict[str, str] = {}
            if registry.answers:
                status, content, headers = registry.answers.pop(0)
            else:
                status, answer = registry.answer(path, body)
                content = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"Content-Type": CONTENT_TYPE, **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                self.wfile.write(content)
            except OSError:  # the client closed the connection
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    registry.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
