"""The bytes that Moondream's Node client (0.2.0) sends, replayed on one kept connection.

It sends an empty X-Moondream-Auth without a key, keeps the connection, reads the status only of calls
that do not stream, and decodes each network read by itself, so that anything but ASCII in a stream may
be torn apart.
"""

import base64
import json
import socket
import unittest

from serving import PICTURE, Server


class NodeClient:
    def __init__(self, port):
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.rest = b""

    def send(self, path, body, chunked):
        body = json.dumps(body, separators=(",", ":")).encode()
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        head = (
            f"POST /v1/{path} HTTP/1.1\r\n"
            "Content-Type: application/json\r\n"
            "User-Agent: moondream-node/0.2.0\r\n"
            "X-Moondream-Auth: \r\n"
            f"Host: 127.0.0.1:{self.port}\r\n"
            "Connection: keep-alive\r\n"
            f"{framing}\r\n\r\n"
        ).encode()
        if chunked:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self.socket.sendall(head + body)

    def _fill(self):
        more = self.socket.recv(65536)
        if not more:
            raise ConnectionError("socket hang up")
        more.decode("ascii")  # each read by itself
        self.rest += more

    def _until(self, mark):
        while mark not in self.rest:
            self._fill()
        part, self.rest = self.rest.split(mark, 1)
        return part

    def _exactly(self, count):
        while len(self.rest) < count:
            self._fill()
        part, self.rest = self.rest[:count], self.rest[count:]
        return part

    def receive(self):
        head = self._until(b"\r\n\r\n").decode()
        status = int(head.split(" ", 2)[1])
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head.split("\r\n")[1:])}
        assert headers["connection"] == "keep-alive", head
        if headers.get("transfer-encoding") != "chunked":
            return status, self._exactly(int(headers["content-length"])).decode()
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self._exactly(size + 2)[:-2]
        self._exactly(2)
        return status, body.decode()

    def stream(self):
        """What the client's generator yields."""
        status, body = self.receive()
        assert status == 200, body
        chunks = []
        for line in body.split("\n"):
            if line.startswith("data: "):
                data = json.loads(line[6:])
                chunks.append(data.get("chunk", ""))
                if data.get("completed"):
                    return "".join(chunks), data
        raise AssertionError("the stream has no end")


class NodeReplayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.image = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_every_call_on_one_connection(self):
        client = NodeClient(self.server.port())
        self.addCleanup(client.socket.close)
        for chunked in (False, True):
            client.send("query", {"image_url": self.image, "question": "What is it?", "stream": False}, chunked)
            status, body = client.receive()
            self.assertEqual(status, 200)
            answer = json.loads(body)["answer"]
            client.send("query", {"image_url": self.image, "question": "What is it?", "stream": True}, chunked)
            text, last = client.stream()
            self.assertEqual(text, answer)
            self.assertEqual(last["answer"], answer)
            for path, field in (("detect", "objects"), ("point", "points")):
                client.send(path, {"image_url": self.image, "object": "circle"}, chunked)
                status, body = client.receive()
                self.assertEqual(status, 200)
                self.assertIsInstance(json.loads(body)[field], list)
            # The only call whose settings it sends, in camelCase.
            client.send("segment", {"image_url": self.image, "object": "circle",
                                    "settings": {"maxTokens": 10}, "stream": False}, chunked)
            self.assertEqual(client.receive()[0], 400)


if __name__ == "__main__":
    unittest.main()
