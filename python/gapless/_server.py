"""Servers that this process has started."""

from __future__ import annotations

import http.client
import os
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from . import _binary
from ._http import Address, Client
from .errors import ServerError

_LOG_LINES = 20
_MAX_SOCKET_PATH = 107  # of sockaddr_un, without its zero
# The server gives requests 30 s to finish when it is told to end.
_STOP_SECONDS = 40


def log_tail(log: IO[bytes] | None) -> str:
    """The last lines, for an error's message."""
    if log is None:
        return ""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - (64 << 10)))
    lines = log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n" + "\n".join(lines) if lines else ""


def arguments(model: str | os.PathLike[str] | None, device: str | None, options: Sequence[str]) -> list[str]:
    """Of `serve` and `batch`."""
    if isinstance(options, str):
        raise TypeError("options: a list of arguments, such as ['--depth', '1']")
    chosen: list[str] = []
    if model is not None:
        chosen += ["--model", os.fspath(model)]
    if device is not None:
        chosen += ["--device", device]
    return chosen + [str(option) for option in options]


def status_text(status: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _socket_path() -> str:
    name = f"gapless-{os.getpid()}-{secrets.token_hex(8)}.sock"
    path = os.path.join(tempfile.gettempdir(), name)
    return path if len(os.fsencode(path)) <= _MAX_SOCKET_PATH else os.path.join("/tmp", name)


class Server:
    """`gapless serve` on a Unix socket that only this user may connect to. It ends with this process, however that
    one ends."""

    def __init__(self, serve_arguments: Sequence[str], log: IO[Any] | int | None) -> None:
        path = _socket_path()
        self.address = Address("unix:" + path)
        self._path = path
        self._owner = os.getpid()
        self._lock = threading.Lock()
        # No name: nothing is left of it.
        self._log: IO[bytes] | None = tempfile.TemporaryFile(prefix="gapless-") if log is None else None
        quiet = ["--quiet"] if log is None else []
        self._process = subprocess.Popen(
            [_binary.path(), "serve", "--unix-socket", path, "--parent", str(self._owner), "--drain-lead", "0", *quiet,
             *serve_arguments],
            env=_binary.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=self._log if log is None else log,
            start_new_session=True,  # Ctrl-C is for this process
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._tidy()
            raise

    def is_running(self) -> bool:
        # Of a process that was forked from the owner it is no child.
        return self._owner != os.getpid() or self._process.poll() is None

    def ended(self) -> ServerError | None:
        """Why it does not answer, if it has ended. Waits a moment: connections end before their process."""
        if self._owner != os.getpid():
            return None
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return None
        return ServerError(f"the server has ended ({status_text(status)})" + self._tail())

    def stop(self) -> None:
        """Lets running requests finish. Nothing in a process that did not start it."""
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._process.poll() is None:
                self._process.terminate()
            try:
                self._process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._tidy()

    def _wait_until_ready(self) -> None:
        pause = 0.005
        while not self._is_ready():
            if (status := self._process.poll()) is not None:
                raise ServerError(f"the server did not start ({status_text(status)})" + self._tail())
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def _is_ready(self) -> bool:
        client = Client(self.address)
        try:
            return client.status("/ready") == 200
        except (OSError, http.client.HTTPException):
            return False  # it does not listen yet
        finally:
            client.close()

    def _tail(self) -> str:
        with self._lock:
            return log_tail(self._log)

    def _tidy(self) -> None:
        try:
            os.unlink(self._path)  # which the server has done unless it was killed
        except FileNotFoundError:
            pass
        if self._log is not None:
            self._log.close()
            self._log = None


class Shared:
    """A server with users, or the place where one of them is starting it."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self.key = key
        self.users = 0  # guarded by the lock of SharedServers
        self._lock = threading.Lock()
        self._server: Server | None = None

    def start(self, serve_arguments: Sequence[str], log: IO[Any] | int | None) -> None:
        """The first one does; others wait for it."""
        with self._lock:
            if self._server is None:
                self._server = Server(serve_arguments, log)

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def has_ended(self) -> bool:
        return self._server is not None and not self._server.is_running()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


class SharedServers:
    """One server for all of a process that ask for the same one. The last one who leaves ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[tuple[str, ...], Shared] = {}

    def join(self, serve_arguments: Sequence[str], log: IO[Any] | int | None) -> Shared:
        key = (_binary.path(), *serve_arguments)
        with self._lock:
            found = self._shared.get(key)
            if found is None or found.has_ended():
                found = self._shared[key] = Shared(key)
            found.users += 1
        try:
            found.start(serve_arguments, log)
        except BaseException:
            self.leave(found)
            raise
        return found

    def leave(self, shared: Shared) -> None:
        with self._lock:
            shared.users -= 1
            last = shared.users == 0
            if last and self._shared.get(shared.key) is shared:
                del self._shared[shared.key]
        if last:
            shared.stop()

    def renew_locks(self) -> None:
        """After a fork: whoever held them is not in this process."""
        self._lock = threading.Lock()
        for shared in self._shared.values():
            shared.renew_lock()


servers = SharedServers()
os.register_at_fork(after_in_child=servers.renew_locks)
