"""What the tests of the wheel share."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import gapless
from gapless._http import Address

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "models/tiny/examples"
PICTURE = EXAMPLES / "shapes.png"
QUESTION = "How many circles are there?"
CLEAN = Path(os.environ["GAPLESS_CLEAN"])
# No test waits for time to pass; this ends one that hangs.
GUARD_SECONDS = 240


def wait_until(what, condition):
    deadline = time.monotonic() + GUARD_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("not in time: " + what)


def lives(pid):
    """Whether the process is there, and not only waits to be collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def server_pid(model):
    return model._shared.server._process.pid


def get(endpoint, path):
    connection = Address(endpoint).connect()
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def run_python(text, python=sys.executable, **options):
    options = {"capture_output": True, "text": True, "timeout": GUARD_SECONDS, **options}
    return subprocess.run([str(python), "-c", text], **options)


class StartedPython:
    """A Python process that prints JSON lines and then does as it was told."""

    def __init__(self, text):
        self.process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)

    def line(self):
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class FakeServer:
    """Answers on a Unix socket, by a function that is called with each connection's number and request."""

    def __init__(self, answer):
        self.path = os.path.join(tempfile.mkdtemp(prefix="gapless-fake-"), "socket")
        self.endpoint = "unix:" + self.path
        self.num_connections = 0
        self.requests = []
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            threading.Thread(target=self._serve, args=(connection, self.num_connections), daemon=True).start()

    def _serve(self, connection, number):
        with connection, connection.makefile("rb") as file:
            while line := file.readline():
                length = 0
                while (header := file.readline().strip()):
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                self.requests.append((line.split()[1].decode(), file.read(length)))
                if not self._answer(connection, number):
                    return

    def close(self):
        self._listener.close()
        os.unlink(self.path)
        os.rmdir(os.path.dirname(self.path))


def answer_bytes(value, status=200):
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


def stream_bytes(events):
    chunks = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
