"""Two replicas behind a router: every route and stream comes through, and when they are restarted one after the other while
clients ask, no request is lost."""

import base64
import json
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

from ports import free_ports
from routers import GUARD_SECONDS, Envoy, VllmRouter
from serving import PICTURE, Server

# The routers ask every second or sooner; on a busy machine they may be late.
LEAD_SECONDS = 8


class Client(threading.Thread):
    """Asks one request after another, of each kind in turn."""

    def __init__(self, url, picture):
        super().__init__(daemon=True)
        self.url, self.picture = url, picture
        self.stopping = False
        self.good, self.lost = 0, []

    def run(self):
        while not self.stopping:
            for request in (self.query, self.chat, self.stream):
                try:
                    request()
                    self.good += 1
                except (OSError, AssertionError, ValueError) as error:
                    said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                    self.lost.append(f"{request.__name__}: {error!r} {said}")

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD_SECONDS) as response:
            return response.read().decode()

    def query(self):
        answer = json.loads(self.post("/v1/query", {"question": "How many shapes?", "image_url": self.picture,
                                                    "settings": {"max_tokens": 8}}))
        assert "answer" in answer, answer

    def chat(self, stream=False):
        message = {"role": "user", "content": [{"type": "text", "text": "How many shapes?"},
                                               {"type": "image_url", "image_url": {"url": self.picture}}]}
        answer = self.post("/v1/chat/completions", {"messages": [message], "max_tokens": 8, "stream": stream})
        assert stream or json.loads(answer)["choices"], answer
        return answer

    def stream(self):
        answer = self.chat(stream=True)
        assert answer.endswith("data: [DONE]\n\n"), answer


def post(url, path, **body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=GUARD_SECONDS) as response:
        return response.headers["Content-Type"], response.read().decode()


def said(answer):
    """Without what differs from call to call."""
    if isinstance(answer, dict):
        return {name: said(value) for name, value in answer.items()
                if name not in ("id", "created", "request_id", "metrics", "system_fingerprint", "prompt_tokens_details")}
    return [said(value) for value in answer] if isinstance(answer, list) else answer


def routes(picture):
    """Moondream's and OpenAI's, with a body for each, and of both a stream."""
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}},
                                           {"type": "text", "text": "How many circles are there?"}]}
    about = {"image_url": picture}
    chat = {"messages": [message], "max_tokens": 8}
    return [("/v1/query", {**about, "question": "How many circles are there?"}), ("/v1/caption", {**about, "length": "short"}),
            ("/v1/detect", {**about, "object": "circle"}), ("/v1/point", {**about, "object": "circle"}),
            ("/v1/caption", {**about, "stream": True}), ("/v1/chat/completions", chat),
            ("/v1/chat/completions", {**chat, "stream": True}), ("/v1/completions", {"prompt": "Hello?", "max_tokens": 4})]


def parsed(answer):
    """Of a stream its events."""
    kind, text = answer
    if not kind.startswith("text/event-stream"):
        return said(json.loads(text))
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [event if event == "[DONE]" else said(json.loads(event)) for event in events]


class RollingRestartTest(unittest.TestCase):
    def check_routes(self, url, replica, picture):
        """Each is answered as the replica itself answers it. (The first that is not ends the test: with the next ones it could wait
        for longer than a test may take.)"""
        for path, body in routes(picture):
            answer = parsed(post(url, path, **body))
            self.assertEqual(answer, parsed(post(replica.url, path, **body)), (path, body.get("stream", False)))
            if body.get("stream"):
                self.assertGreater(len(answer), 2, path)
        # A model whose name nobody knows is refused as there.
        with self.assertRaises(urllib.error.HTTPError) as caught:
            post(url, "/v1/query", question="a", model="other")
        self.assertEqual(caught.exception.code, 404)

    def start(self, port):
        return Server("--port", str(port), "--drain-lead", str(LEAD_SECONDS), "--drain-seconds", str(GUARD_SECONDS))

    def kill(self, replica):
        replica.process.kill()
        replica.process.wait()

    def stop(self, replica):
        replica.process.terminate()
        self.assertEqual(replica.process.wait(GUARD_SECONDS), 0, replica.text())

    def wait_for_answers(self, clients):
        """Until each client has had an answer more, or lost one."""
        before = [client.good for client in clients]
        deadline = time.monotonic() + GUARD_SECONDS
        while any(client.good == count and not client.lost for client, count in zip(clients, before)):
            self.assertLess(time.monotonic(), deadline, "nobody answers")
            time.sleep(0.02)

    def test_no_request_is_lost_behind_envoy(self):
        self.restart_both(Envoy)

    def test_no_request_is_lost_behind_vllm_router(self):
        self.restart_both(VllmRouter)

    def restart_both(self, kind):
        ports = free_ports(2)
        replicas = []
        self.addCleanup(lambda: [self.kill(replica) for replica in replicas])
        for port in ports:
            replicas.append(self.start(port))
        router = kind(ports)
        self.addCleanup(router.close)
        picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        clients = [Client(router.url, picture) for _ in range(4)]
        try:
            self.check_routes(router.url, replicas[0], picture)
            for client in clients:
                client.start()
            for number in range(2):
                self.wait_for_answers(clients)
                self.stop(replicas[number])
                self.wait_for_answers(clients)
                replicas[number] = self.start(ports[number])
                router.wait_for(lambda: router.num_ready() == 2 or None)
            self.wait_for_answers(clients)
            for client in clients:
                client.stopping = True
            for client in clients:
                client.join(GUARD_SECONDS)
                self.assertFalse(client.is_alive())
            self.assertEqual([lost for client in clients for lost in client.lost], [])
            self.assertGreaterEqual(sum(client.good for client in clients), 5 * len(clients))
            print(f"{sum(client.good for client in clients)} requests behind {kind.__name__}, two restarts, none lost", file=sys.stderr)
        finally:
            for client in clients:
                client.stopping = True


if __name__ == "__main__":
    unittest.main()
