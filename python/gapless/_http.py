"""HTTP to one server, over TCP or a Unix socket. Connections are kept and used again; any thread may ask."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from .errors import RequestError

_MAX_IDLE_CONNECTIONS = 64
# What a server that closes an idle connection looks like to whoever uses it just then.
_CLOSED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        self.sock = connection


class Address:
    """`endpoint`: http://HOST:PORT, with or without /v1, or unix:PATH."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.unix_path: str | None = None
        self._host = ""
        self._tls = False
        if endpoint.startswith("unix:"):
            self.unix_path = endpoint.removeprefix("unix:")
            self.prefix = "/v1"
            valid = self.unix_path != ""
        else:
            url = urlsplit(endpoint)
            self._tls = url.scheme == "https"
            self._host = url.netloc
            self.prefix = url.path.rstrip("/") or "/v1"
            valid = url.scheme in ("http", "https") and url.netloc != "" and not url.query
        if not valid:
            raise ValueError(f"endpoint: '{endpoint}' is neither http://HOST:PORT nor unix:PATH")

    def connect(self) -> http.client.HTTPConnection:
        if self.unix_path is not None:
            return _UnixConnection(self.unix_path)
        return http.client.HTTPSConnection(self._host) if self._tls else http.client.HTTPConnection(self._host)


class Client:
    def __init__(self, address: Address, api_key: str | None = None) -> None:
        self.address = address
        self._headers = {"Content-Type": "application/json", "User-Agent": "gapless-python"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to `body`. OSError, HTTPException: there is no server, or it is gone."""
        connection, response = self._ask("POST", path, body)
        answer = self._read(connection, response)
        return _object(answer, response.status)

    def status(self, path: str) -> int:
        connection, response = self._ask("GET", path, None)
        self._read(connection, response)
        return response.status

    def stream(self, path: str, body: dict[str, Any]) -> EventStream:
        """The events of the answer. What is wrong with the request is raised here, not while they are read."""
        connection, response = self._ask("POST", path, body)
        if response.status != 200:
            _object(self._read(connection, response), response.status)
        return EventStream(self, connection, response)

    def close(self) -> None:
        """Of connections that nobody uses just now."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        with self._lock:
            keep = not response.will_close and self._is_ours() and len(self._idle) < _MAX_IDLE_CONNECTIONS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def _ask(self, method: str, path: str,
             body: dict[str, Any] | None) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        data = None if body is None else json.dumps(body).encode()
        kept = self._take_idle()
        if kept is not None:
            try:
                return kept, self._send(kept, method, path, data)
            except _CLOSED:
                pass  # it was closed just now: once more on a new one
        connection = self.address.connect()
        return connection, self._send(connection, method, path, data)

    def _send(self, connection: http.client.HTTPConnection, method: str, path: str,
              data: bytes | None) -> http.client.HTTPResponse:
        try:
            try:
                connection.request(method, path, data, self._headers)
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a body answers before it has read all of it.
                if connection.sock is None:
                    raise
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _take_idle(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._is_ours():
                    # After a fork the connections are the parent's.
                    self._idle, self._process = [], os.getpid()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _has_ended(connection):
                return connection
            connection.close()

    def _is_ours(self) -> bool:
        return self._process == os.getpid()

    def _read(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> bytes:
        try:
            answer = response.read()
        except BaseException:
            connection.close()
            raise
        self.give_back(connection, response)
        return answer


class EventStream:
    """The server-sent events of one answer. Closing it before its end cancels the request."""

    def __init__(self, client: Client, connection: http.client.HTTPConnection,
                 response: http.client.HTTPResponse) -> None:
        self._client = client
        self._connection = connection
        self._response: http.client.HTTPResponse | None = response

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (event := self.next_event()) is not None:
            yield event

    def next_event(self) -> dict[str, Any] | None:
        """None: the last one was the end."""
        response = self._response
        if response is None:
            return None
        try:
            while line := response.readline():
                if line == b"data: [DONE]\n":
                    self._end(response)
                    return None
                if line.startswith(b"data: "):
                    return self._take(response, json.loads(line[6:]))
        except BaseException:
            self.close()
            raise
        self.close()
        raise http.client.IncompleteRead(b"")

    def close(self) -> None:
        if self._response is not None:
            self._response = None
            self._connection.close()

    def __del__(self) -> None:
        self.close()

    def _take(self, response: http.client.HTTPResponse, event: dict[str, Any]) -> dict[str, Any]:
        if event.get("error"):
            raise _request_error(event, None)
        if event.get("completed"):
            self._end(response)
        return event

    def _end(self, response: http.client.HTTPResponse) -> None:
        """Its connection can be used again."""
        response.read()
        self._response = None
        self._client.give_back(self._connection, response)


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Of one that waits for nothing: what can be read is its end."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _object(answer: bytes, status: int) -> dict[str, Any]:
    try:
        value = json.loads(answer)
    except ValueError:
        value = None
    if status == 200 and isinstance(value, dict):
        return value
    raise _request_error(value, status)


def _request_error(answer: Any, status: int | None) -> RequestError:
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return RequestError(f"the server answered {status} and nothing that can be understood", status)
    return RequestError(error["message"], status, error.get("code"), error.get("param"))
