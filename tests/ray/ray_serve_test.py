"""deploy/ray_serve.py for real: two replicas of the shipped model on this machine, under Ray Serve.

    tests/ray/run build/cpu-release/apps/gapless      (`ctest --preset cpu-release -R ray`)
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import ray
from ray import serve

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy"), str(ROOT / "tests/clients")]

import ray_serve  # noqa: E402
from ports import free_ports  # noqa: E402

PICTURE = "data:image/png;base64," + base64.b64encode((ROOT / "models/tiny/examples/shapes.png").read_bytes()).decode()
GUARD_SECONDS = 240


class RayServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=4, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False,
                 runtime_env={"env_vars": {"PYTHONPATH": str(ROOT / "deploy")}})
        port, = free_ports(1)
        cls.url = f"http://127.0.0.1:{port}"
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        cls.arguments = {"binary": os.environ["GAPLESS_BINARY"], "min_replicas": "2", "max_replicas": "3", "waiting_per_replica": "2",
                         "upscale_delay_s": "0", "downscale_delay_s": "600"}
        serve.run(ray_serve.build(cls.arguments), name="gapless", route_prefix="/")

    @classmethod
    def tearDownClass(cls):
        before = cls.servers()
        serve.shutdown()
        ray.shutdown()
        deadline = time.monotonic() + GUARD_SECONDS
        while (left := set(cls.servers()) & set(before)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert before and not left, f"servers {left} of {before} outlive Ray"

    @staticmethod
    def servers():
        """Processes of this test's own servers: those below Ray's."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
                parent = int((path.parent / "stat").read_text().rsplit(")", 1)[1].split()[1])
                of_ray = b"ServeReplica" in Path(f"/proc/{parent}/cmdline").read_bytes()
            except OSError:
                continue
            if words[:2] == [os.environ["GAPLESS_BINARY"].encode(), b"serve"] and of_ray:
                found.append(int(path.parent.name))
        return found

    def wait_for(self, what, condition):
        deadline = time.monotonic() + GUARD_SECONDS
        while not (found := condition()):
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.1)
        return found

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD_SECONDS) as response:
            return response.read().decode()

    def query(self, **settings):
        return json.loads(self.ask("/v1/query", {"question": "How many shapes?", "image_url": PICTURE, "settings": settings}))

    def test_1_routes_streams_and_errors_come_through(self):
        self.assertEqual(len(self.wait_for("two replicas", lambda: len(self.servers()) == 2 and self.servers())), 2)
        answer = self.query(max_tokens=8)["answer"]
        message = {"role": "user", "content": [{"type": "text", "text": "How many shapes?"},
                                               {"type": "image_url", "image_url": {"url": PICTURE}}]}
        chat = {"messages": [message], "max_tokens": 8}
        self.assertEqual(json.loads(self.ask("/v1/chat/completions", chat))["choices"][0]["message"]["content"], answer)
        events = self.ask("/v1/chat/completions", {**chat, "stream": True}).split("\n\n")
        self.assertEqual(events[-2], "data: [DONE]")
        text = "".join(json.loads(event[6:])["choices"][0]["delta"].get("content") or "" for event in events[:-2])
        self.assertEqual(text, answer)
        self.assertTrue(json.loads(self.ask("/v1/detect", {"image_url": PICTURE, "object": "circle"}))["objects"])
        self.assertIn("device", json.loads(self.ask("/debug/timeline?device=cpu")))
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.ask("/v1/query", {"question": 7})
        self.assertEqual(caught.exception.code, 400)
        self.assertEqual(json.loads(caught.exception.read())["error"]["param"], "question")

    def test_2_a_stream_comes_as_it_is_made(self):
        body = json.dumps({"question": "Go on.", "stream": True, "settings": {"max_tokens": 1500, "ignore_eos": True}}).encode()
        # Several at once, so that the answers take their time.
        streams = [urllib.request.Request(self.url + "/v1/query", body, {"Content-Type": "application/json"}) for _ in range(12)]
        streams = [urllib.request.urlopen(request, timeout=GUARD_SECONDS) for request in streams]
        for stream in streams:
            self.assertTrue(stream.readline().startswith(b"data: "))
        for stream in streams:
            stream.close()
        # The first events were here while servers worked on the rest: they still had something to stop. Ray asks one of the
        # servers, and no other test leaves an answer before its end.
        self.wait_for("a server noticed that its client went away", lambda: self.num_aborted() > 0)

    def num_aborted(self):
        return float(re.search(r'^vllm:request_success_total{.*finished_reason="abort"} (\S+)$', self.ask("/metrics"), re.M)[1])

    def test_3_a_server_that_dies_is_replaced(self):
        before = self.servers()
        os.kill(before[0], signal.SIGKILL)
        after = self.wait_for("a new server", lambda: (now := self.servers()) and len(now) == 2 and before[0] not in now and now)
        self.assertIn(before[1], after)
        for _ in range(6):
            self.assertIn("answer", self.query(max_tokens=3))

    def test_4_a_queue_starts_another_replica(self):
        self.assertEqual(len(self.servers()), 2)
        stopping = threading.Event()

        def load():
            while not stopping.is_set():
                try:
                    self.query(max_tokens=100, ignore_eos=True)
                except OSError:
                    pass

        # More than the 16 seats of each, so that some wait.
        clients = [threading.Thread(target=load, daemon=True) for _ in range(40)]
        try:
            for client in clients:
                client.start()
            self.wait_for("a third replica", lambda: len(self.servers()) == 3)
        finally:
            stopping.set()
            for client in clients:
                client.join(GUARD_SECONDS)


# A child that a thread starts and leaves, watched for a second.
PARENT = """
import subprocess, sys, threading, ray_serve
children = []
thread = threading.Thread(target=lambda: children.append(ray_serve.start(["sleep", "1000"], None)))
thread.start()
thread.join()
print(children[0].pid, flush=True)
try:
    print("ended with", children[0].wait(1), flush=True)
except subprocess.TimeoutExpired:
    print("it goes on", flush=True)
sys.stdin.read()
"""


class StartTest(unittest.TestCase):
    def test_a_child_ends_with_its_process_and_not_with_a_thread(self):
        parent = subprocess.Popen([sys.executable, "-c", PARENT], env={**os.environ, "PYTHONPATH": str(ROOT / "deploy")},
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child = int(parent.stdout.readline())
        self.assertEqual(parent.stdout.readline(), "it goes on\n")
        parent.kill()
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()
        deadline = time.monotonic() + GUARD_SECONDS
        while self.state(child) not in ("", "Z"):
            self.assertLess(time.monotonic(), deadline, "the child outlives its process")
            time.sleep(0.05)

    def state(self, process):
        try:
            return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return ""

    def test_a_binary_that_is_not_there_is_an_error(self):
        with self.assertRaises(FileNotFoundError):
            ray_serve.start(["/nowhere/gapless"], None)


class PolicyTest(unittest.TestCase):
    def test_replicas_follow_the_queue(self):
        wanted = lambda current, waiting, running: ray_serve.wanted_replicas(current, waiting, running, 8, 32)
        self.assertEqual(wanted(2, 16, 60), 2)
        self.assertEqual(wanted(2, 17, 64), 3)
        self.assertEqual(wanted(2, 100, 64), 13)
        self.assertEqual(wanted(3, 0, 64), 2)
        self.assertEqual(wanted(3, 0, 65), 3)
        self.assertEqual(wanted(3, 1, 0), 3)
        self.assertEqual(wanted(1, 0, 0), 1)

    def test_a_slip_in_an_argument_is_refused(self):
        with self.assertRaisesRegex(ValueError, "replicas"):
            ray_serve.build({"replicas": "3"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
