"""The whole program when its device is lost or hangs: what clients, probes and a supervisor see.

GAPLESS_TEST_FAULT=lose@N or hang@N wraps the device (src/sim/faulty_device.h): the N-th step's wait fails, or does
not end; LABEL=lose@N is the fault of one device of several. The device is the CPU, or what GAPLESS_TEST_DEVICE names.
"""

import json
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

GUARD = 120  # seconds; everything takes far less
EXIT_DEVICE_ERROR = 74
# Behind the steps of the warm-up.
STEP = 400


class Server:
    def __init__(self, fault, *options, device=os.environ.get("GAPLESS_TEST_DEVICE", "cpu")):
        self.log = tempfile.NamedTemporaryFile("w", prefix="gapless-fault-", suffix=".log")
        self.process = subprocess.Popen(
            [os.environ["GAPLESS_BINARY"], "serve", "--device", device, "--port", "0", *options],
            stderr=self.log, env={**os.environ, "GAPLESS_TEST_FAULT": fault})

    def text(self):
        return Path(self.log.name).read_text()

    def wait_for(self, pattern):
        deadline = time.monotonic() + GUARD
        while time.monotonic() < deadline:
            found = re.search(pattern, self.text())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"{pattern!r} is not in the log:\n{self.text()}")

    def start(self):
        self.url = self.wait_for(r"listening url=(\S+)").group(1)
        self.wait_for(r" ready model=")

    def ask(self, path, body=None, on_begin=None):
        """Status and body; (0, reason) when the connection ends without an answer. on_begin is called with the first
        line of the body."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=GUARD) as response:
                begin = response.readline() if on_begin else b""
                if on_begin:
                    on_begin()
                return response.status, (begin + response.read()).decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


class DeviceLostTest(unittest.TestCase):
    def serve(self, fault, *options, **more):
        server = Server(fault, *options, **more)
        self.addCleanup(server.close)
        return server

    def run_into(self, fault, *options):
        """A stream and then long questions run into the fault. Their answers, the probe's, and the server."""
        server = self.serve(f"{fault}@{STEP}", *options)
        server.start()
        self.assertEqual(server.ask("/ready")[0], 200)
        question = {"question": "Go on.", "settings": {"max_tokens": 1500, "ignore_eos": True}}
        answers = [None] * 5
        probes = []

        streams = threading.Event()

        def stream():
            answers[4] = server.ask("/v1/query", {**question, "stream": True}, streams.set)

        def ask(i):
            answers[i] = server.ask("/v1/query", question)

        def probe():
            while server.process.poll() is None:
                probes.append(server.ask("/ready"))
                time.sleep(0.01)

        threads = [threading.Thread(target=stream)]
        threads[0].start()
        self.assertTrue(streams.wait(GUARD))
        threads += [threading.Thread(target=ask, args=(i,)) for i in range(4)] + [threading.Thread(target=probe)]
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(GUARD)
            self.assertFalse(thread.is_alive())
        self.assertEqual(server.process.wait(GUARD), EXIT_DEVICE_ERROR, server.text())
        return server, answers, probes

    def check(self, server, answers, probes, reason):
        for status, body in answers[:4]:
            self.assertEqual(status, 500, body)
            error = json.loads(body)["error"]
            self.assertEqual(error["code"], "device_error")
            self.assertRegex(error["message"], reason)
        # A stream that has begun ends with the error as its last event.
        status, body = answers[4]
        self.assertEqual(status, 200, body)
        last = json.loads(re.findall(r"^data: (.*)$", body, re.MULTILINE)[-1])
        self.assertEqual(last["finish_reason"], "error")
        self.assertRegex(last["error"]["message"], reason)
        # Once it is not ready it stays so, until nobody listens any more.
        statuses = [status for status, _ in probes]
        self.assertEqual(sorted(statuses, key=[200, 503, 0].index), statuses)
        self.assertRegex(server.text(), reason + ".*: leaving with exit status 74")

    def test_a_lost_device(self):
        server, answers, probes = self.run_into("lose")
        self.check(server, answers, probes,
                   r"the device is lost: decode step \d+ of \d rows: injected fault: Event::synchronize_within")

    def test_a_step_that_never_ends(self):
        server, answers, probes = self.run_into("hang", "--step-timeout", "10")
        self.check(server, answers, probes,
                   r"the device is lost: decode step \d+ of \d rows did not end within 10 s")

    def test_a_device_lost_while_the_model_warms_up(self):
        server = self.serve("lose@2")
        self.assertEqual(server.process.wait(GUARD), EXIT_DEVICE_ERROR, server.text())
        self.assertRegex(server.text(), "the device is lost: ")

    def test_ready_says_so_while_a_client_is_slow(self):
        """The drain waits a little for a client that sends its body slowly; the probe sees 503 meanwhile."""
        import socket
        server = self.serve(f"lose@{STEP}")
        server.start()
        host, port = server.url[7:].split(":")
        slow = socket.create_connection((host, int(port)))
        self.addCleanup(slow.close)
        slow.sendall(b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        probe = socket.create_connection((host, int(port)))
        self.addCleanup(probe.close)
        # A request on its way when the device is lost: the connection is in use, so the drain lets it end.
        probe.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n")
        time.sleep(0.1)
        status, body = server.ask("/v1/query", {"question": "Go on.",
                                                "settings": {"max_tokens": 1500, "ignore_eos": True}})
        self.assertEqual(status, 500, body)
        probe.sendall(b"\r\n")
        answer = probe.recv(65536).decode()
        self.assertIn("503", answer.split("\r\n")[0])
        self.assertIn("device_lost", answer)
        self.assertIn("injected fault", answer)
        self.assertEqual(server.process.wait(GUARD), EXIT_DEVICE_ERROR, server.text())

    def test_one_lost_device_of_two(self):
        """Only its own request is lost; probes and metrics name it, the other device serves on, SIGTERM ends cleanly."""
        server = self.serve(f"cpu:1=lose@{STEP}", "--drain-lead", "0", device="cpu,cpu")
        server.start()
        self.assertEqual(json.loads(server.ask("/ready")[1]), {"status": "ready"})
        question = {"question": "Go on.", "settings": {"max_tokens": 1500, "ignore_eos": True}}
        answers = [None, None]

        def ask(i):
            answers[i] = server.ask("/v1/query", question)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD)
            self.assertFalse(thread.is_alive())
        self.assertEqual(sorted(status for status, _ in answers), [200, 500], answers)
        lost = next(body for status, body in answers if status == 500)
        self.assertEqual(json.loads(lost)["error"]["code"], "device_error")
        for path in ("/health", "/ready"):
            status, body = server.ask(path)
            self.assertEqual((status, json.loads(body)["lost_devices"]), (200, ["cpu:1"]), path)
        metrics = server.ask("/metrics")[1]
        self.assertRegex(metrics, r'gapless_device_up\{[^}]*device="cpu:0"\} 1\n')
        self.assertRegex(metrics, r'gapless_device_up\{[^}]*device="cpu:1"\} 0\n')
        for _ in range(4):
            status, body = server.ask("/v1/query", {"question": "Go on.", "settings": {"max_tokens": 5}})
            self.assertEqual(status, 200, body)
        self.assertRegex(server.text(), r"cpu:1: the device is lost: .*: the other devices go on")
        self.assertIsNone(server.process.poll())
        server.process.terminate()
        self.assertEqual(server.process.wait(GUARD), 0, server.text())

    def test_when_both_are_lost_the_process_leaves(self):
        server = self.serve(f"lose@{STEP}", device="cpu,cpu")
        server.start()
        question = {"question": "Go on.", "settings": {"max_tokens": 1500, "ignore_eos": True}}
        threads = [threading.Thread(target=server.ask, args=("/v1/query", question)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD)
            self.assertFalse(thread.is_alive())
        self.assertEqual(server.process.wait(GUARD), EXIT_DEVICE_ERROR, server.text())
        self.assertRegex(server.text(), "leaving with exit status 74")

    def test_run_has_the_same_exit_status(self):
        device = os.environ.get("GAPLESS_TEST_DEVICE", "cpu")
        done = subprocess.run([os.environ["GAPLESS_BINARY"], "run", "query", "--device", device, "--question", "Go on.",
                               "--step-timeout", "5"], env={**os.environ, "GAPLESS_TEST_FAULT": "hang@2"},
                              capture_output=True, text=True, timeout=GUARD)
        self.assertEqual(done.returncode, EXIT_DEVICE_ERROR, done.stderr)
        self.assertRegex(done.stderr, r"the device is lost: decode step 1 of 1 rows did not end within 5 s")

    def test_batch_has_the_same_exit_status_and_resume_goes_on(self):
        device = os.environ.get("GAPLESS_TEST_DEVICE", "cpu")
        picture = str(Path(__file__).resolve().parents[2] / "models/tiny/examples/small.png")
        line = {"skill": "query", "settings": {"max_tokens": 30, "ignore_eos": True}}
        lines = [{**line, "question": "Go on."}, {**line, "question": "How many?", "image": picture}] * 6
        for fault in ["lose@25", "hang@25"]:
            with self.subTest(fault), tempfile.TemporaryDirectory() as folder:
                source, out = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
                source.write_text("".join(json.dumps(one) + "\n" for one in lines))
                command = [os.environ["GAPLESS_BINARY"], "batch", "--device", device, "--in", str(source), "--out",
                           str(out), "--concurrency", "3", "--step-timeout", "10"]
                done = subprocess.run(command, env={**os.environ, "GAPLESS_TEST_FAULT": fault}, capture_output=True,
                                      text=True, timeout=GUARD)
                self.assertEqual(done.returncode, EXIT_DEVICE_ERROR, done.stderr)
                self.assertRegex(done.stderr, r"\d+ left, --resume goes on")
                self.assertIn("the device is lost: ", done.stderr)
                answered = out.read_text().splitlines() if out.exists() else []
                self.assertLess(len(answered), len(lines))
                self.assertFalse([one for one in answered if "error" in json.loads(one)])
                done = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=GUARD)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual([json.loads(one)["line"] for one in out.read_text().splitlines()],
                                 list(range(1, len(lines) + 1)))


if __name__ == "__main__":
    unittest.main()
