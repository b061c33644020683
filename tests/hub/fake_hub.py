"""A hub on loopback: the paths, headers and redirects that the Hugging Face hub answers downloads with, and its faults on demand.

Small files come from the hub itself. Large ones are redirected to a second server, as the hub redirects to its CDN.
"""

import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE_BYTES = 1 << 20


class Zeros:
    """A file too large to have: some bytes, then zeros. Its SHA-256 is made up."""

    def __init__(self, head, size):
        self.head, self.size, self.sha256 = head, size, hashlib.sha256(head).hexdigest()

    def __len__(self):
        return self.size

    def __getitem__(self, part):
        start, stop = part.start or 0, min(part.stop or self.size, self.size)
        piece = self.head[start:stop]
        return piece + bytes(stop - start - len(piece))


def etag_of(content):
    if isinstance(content, Zeros):
        return content.sha256
    if len(content) >= LARGE_BYTES:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Fault:
    """What happens to the next requests of a method for a file, in place of the usual answer or to it."""

    def __init__(self, method, file, times=1, status=None, headers=None, cut_at=None, stall_at=None, content=None, no_ranges=False,
                 pause=None):
        self.method, self.file, self.times = method, file, times
        self.status, self.headers = status, headers or {}
        self.cut_at, self.stall_at, self.content, self.no_ranges = cut_at, stall_at, content, no_ranges
        self.pause, self.not_before = pause, None  # whoever comes back within `pause` seconds gets the same once more


class FakeHub:
    def __init__(self):
        self.repositories = {}  # name: {"revisions": {revision: commit}, "commits": {commit: {file: bytes}}}
        self.renamed = {}
        self.token = None  # asked for when set
        self.faults = []
        self.requests = []  # (server, method, path, headers)
        self.sent = {}  # file: bytes of bodies
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.servers = []
        self.endpoint = self.start("hub")
        self.cdn = self.start("cdn")

    def start(self, name):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(name, self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    def close(self):
        self.released.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, name, files, revision="main", commit=None):
        commit = commit or hashlib.sha1((name + revision).encode()).hexdigest()
        repository = self.repositories.setdefault(name, {"revisions": {}, "commits": {}})
        repository["revisions"][revision] = commit
        repository["commits"][commit] = dict(files)
        return commit

    def asked(self, method=None, file=None, server=None):
        """The requests so far, of one kind."""
        with self.lock:
            return [request for request in self.requests
                    if (method is None or request[1] == method) and (file is None or f"/{file}" in request[2])
                    and (server is None or request[0] == server)]

    def take_fault(self, server, method, file):
        with self.lock:
            for fault in self.faults:
                if fault.times <= 0 or fault.file != file or fault.method != method:
                    continue
                # A fault of bytes is one of the server that has them.
                if server == "hub" and fault.status is None and self.is_large(file):
                    continue
                fault.times -= 1
                return fault
        return None

    def is_large(self, file):
        return any(file in files and len(files[file]) >= LARGE_BYTES
                   for repository in self.repositories.values() for files in repository["commits"].values())

    def answer(self, server, request):
        path = unquote(urlsplit(request.path).path)
        with self.lock:
            self.requests.append((server, request.command, request.path, dict(request.headers)))
        file = path.rsplit("/", 1)[1]
        fault = self.take_fault(server, request.command, file)
        if fault and fault.status:
            if fault.pause is not None:
                now = time.monotonic()
                if fault.not_before is not None and now < fault.not_before:
                    fault.times += 1
                fault.not_before = now + fault.pause
            return self.reply(request, fault.status, fault.headers)
        if server == "cdn":
            return self.send_large(request, path, fault)
        self.answer_hub(request, path, fault)

    def answer_hub(self, request, path, fault):
        parts = path.strip("/").split("/")
        if len(parts) < 5 or parts[2] != "resolve":
            return self.reply(request, 404, {})
        name, revision, file = "/".join(parts[:2]), "/".join(parts[3:-1]), parts[-1]
        if name in self.renamed:
            return self.reply(request, 307, {"Location": request.path.replace(name, self.renamed[name], 1)})
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.reply(request, 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        if name not in self.repositories:
            return self.reply(request, 404 if self.token else 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        repository = self.repositories[name]
        commit = repository["revisions"].get(revision, revision)
        if commit not in repository["commits"]:
            return self.reply(request, 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
        headers = {"X-Repo-Commit": commit}
        if file not in repository["commits"][commit]:
            return self.reply(request, 404, {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        content = repository["commits"][commit][file]
        etag = etag_of(content)
        if len(content) >= LARGE_BYTES:
            return self.reply(request, 302, {**headers, "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content)),
                                             "Location": f"{self.cdn}/{etag}/{file}?Signature=abc&Expires=1"})
        self.send(request, file, content, {**headers, "ETag": f'"{etag}"'}, fault)

    def send_large(self, request, path, fault):
        etag, file = path.strip("/").split("/")
        for repository in self.repositories.values():
            for files in repository["commits"].values():
                if file in files and etag_of(files[file]) == etag:
                    return self.send(request, file, files[file], {"ETag": '"of-the-storage"'}, fault)
        self.reply(request, 404, {})

    def reply(self, request, status, headers):
        request.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            request.send_header(name, value)
        request.end_headers()

    def send(self, request, file, content, headers, fault):
        fault = fault or Fault(None, None)
        size = stop = len(content)
        start = 0
        if fault.content is not None:
            content = fault.content
        wanted = request.headers.get("Range")
        if wanted and not fault.no_ranges:
            first, last = wanted.removeprefix("bytes=").split("-")
            start, stop = int(first), min(size, int(last) + 1) if last else size
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        request.send_response(206 if "Content-Range" in headers else 200)
        for name, value in {**headers, "Content-Length": str(stop - start), "Accept-Ranges": "bytes", **fault.headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        end = stop if fault.cut_at is None else min(stop, fault.cut_at)
        try:
            for at in range(start, end, 1 << 16):
                if fault.stall_at is not None and at >= fault.stall_at:
                    self.released.wait(240)
                    break
                piece = content[at:min(end, at + (1 << 16))]
                request.wfile.write(piece)
                with self.lock:
                    self.sent[file] = self.sent.get(file, 0) + len(piece)
        except OSError:
            pass
        if end < stop or fault.stall_at is not None:
            request.close_connection = True
