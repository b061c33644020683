"""The server that vl() starts: it is shared, ends with its process however that ends, and says what went wrong."""

import os
import signal
import stat
import tempfile
import threading
import unittest

import gapless
from support import GUARD_SECONDS, StartedPython, get, lives, run_python, server_pid, wait_until

SHORT = {"max_tokens": 2}
START = """
import gapless, json, os, signal, sys, time
model = gapless.vl(device="cpu")
print(json.dumps([model._shared.server._process.pid, model.endpoint]), flush=True)
"""


class ServerTest(unittest.TestCase):
    def assert_gone(self, pid, endpoint):
        wait_until(f"the end of {pid}", lambda: not lives(pid))
        self.assertFalse(os.path.exists(endpoint.removeprefix("unix:")), "its socket")

    def test_it_dies_with_its_process_however_that_ends(self):
        for how in ("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)", "sys.exit(3)", "raise KeyError", "pass",
                    "os.kill(os.getpid(), signal.SIGTERM)", "os.abort()"):
            with self.subTest(how), StartedPython(START + how) as python:
                pid, endpoint = python.line()
                python.process.wait(timeout=GUARD_SECONDS)
                self.assert_gone(pid, endpoint)

    def test_it_dies_with_its_process_while_it_loads(self):
        with StartedPython("""
import gapless._server, json, os, signal
def kill(self):
    print(json.dumps([self._process.pid, self.address.endpoint]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
gapless._server.Server._wait_until_ready = kill
gapless.vl(device="cpu")
""") as python:
            pid, endpoint = python.line()
            python.process.wait(timeout=GUARD_SECONDS)
            self.assert_gone(pid, endpoint)

    def test_it_outlives_the_thread_that_started_it(self):
        models = []
        thread = threading.Thread(target=lambda: models.append(gapless.vl(device="cpu", options=["--depth", "1"])))
        thread.start()
        thread.join()
        with models[0] as model:
            for _ in range(3):
                self.assertTrue(model.query(question="Hello?", settings=SHORT)["answer"])

    def test_ctrl_c_is_not_for_it(self):
        done = run_python(START + """
signal.signal(signal.SIGINT, lambda *_: None)
os.killpg(os.getpgid(0), signal.SIGINT)
time.sleep(0.5)
print(model.query(question="Hello?", settings={"max_tokens": 2})["finish_reason"])
""", start_new_session=True)
        self.assertEqual(done.stdout.splitlines()[-1], "length", done.stderr)

    def test_a_process_has_one_server_for_the_same_arguments(self):
        models = []
        threads = [threading.Thread(target=lambda: models.append(gapless.vl(device="cpu"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pid, endpoint = server_pid(models[0]), models[0].endpoint
        self.assertEqual({server_pid(model) for model in models}, {pid})
        with gapless.vl(device="cpu", options=["--depth", "1"]) as other:
            self.assertNotEqual(server_pid(other), pid)
        for model in models[:3]:
            model.close()
            model.close()  # once more does no harm
        self.assertTrue(models[3].query(question="Hello?", settings=SHORT))
        with self.assertRaisesRegex(gapless.Error, "closed"):
            models[0].query(question="Hello?")
        models[3].close()
        self.assert_gone(pid, endpoint)

    def test_a_model_that_nobody_holds_is_closed(self):
        model = gapless.vl(device="cpu")
        pid, endpoint = server_pid(model), model.endpoint
        del model
        self.assert_gone(pid, endpoint)

    def test_a_fork_uses_it_and_does_not_end_it(self):
        with gapless.vl(device="cpu") as model:
            alone = model.query(question="Hello?", settings=SHORT)["answer"]
            children = []
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        same = model.query(question="Hello?", settings=SHORT)["answer"] == alone
                        with gapless.vl(device="cpu") as again:
                            same = same and again.endpoint == model.endpoint
                            same = same and again.query(question="Hello?", settings=SHORT)["answer"] == alone
                        model.close()
                        status = 0 if same else 2
                    finally:
                        os._exit(status)
                children.append(child)
            self.assertEqual([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], [0, 0, 0])
            self.assertEqual(model.query(question="Hello?", settings=SHORT)["answer"], alone)

    def test_other_processes_join_by_the_endpoint(self):
        with gapless.vl(device="cpu") as model:
            done = run_python(f"""
import gapless
with gapless.vl(endpoint={model.endpoint!r}) as model:
    print(model.query(question="Hello?", settings={SHORT!r})["answer"])
""")
            self.assertEqual(done.stdout, model.query(question="Hello?", settings=SHORT)["answer"] + "\n", done.stderr)

    def test_nobody_else_may_connect(self):
        with gapless.vl(device="cpu") as model:
            self.assertEqual(stat.S_IMODE(os.stat(model.endpoint.removeprefix("unix:")).st_mode), 0o600)

    def test_one_that_was_killed_says_so_and_a_new_one_takes_its_place(self):
        model = gapless.vl(device="cpu")
        pid = server_pid(model)
        os.kill(pid, signal.SIGKILL)
        with self.assertRaisesRegex(gapless.ServerError, "the server has ended .ended by SIGKILL"):
            model.query(question="Hello?")
        with gapless.vl(device="cpu") as again:
            self.assertNotEqual(server_pid(again), pid)
            self.assertTrue(again.query(question="Hello?", settings=SHORT))
            model.close()
            self.assertTrue(again.query(question="Hello?", settings=SHORT))

    def test_why_it_did_not_start(self):
        folder = tempfile.TemporaryDirectory(prefix="g-")
        self.addCleanup(folder.cleanup)
        usual, tempfile.tempdir = tempfile.tempdir, folder.name
        self.addCleanup(setattr, tempfile, "tempdir", usual)
        for arguments, status, said in (
                (dict(model="nothing/there/at-all"), 1, "nothing/there/at-all"),
                (dict(device="abacus"), 1, "abacus"),
                (dict(device="cpu", options=["--nonsense"]), 2, "--nonsense"),
                (dict(device="cpu", options=["--port", "0"]), 2, "--port")):
            with self.assertRaises(gapless.ServerError) as caught:
                gapless.vl(**arguments)
            self.assertIn(f"the server did not start (exit status {status})\n", str(caught.exception))
            self.assertIn(said, str(caught.exception))
        with self.assertRaises(TypeError):
            gapless.vl(options="--depth 1")
        self.assertEqual(os.listdir(folder.name), [], "nothing is left")

    def test_its_log_goes_where_it_is_told_to(self):
        with tempfile.TemporaryFile("w+") as log:
            with gapless.vl(device="cpu", options=["--depth", "1"], log=log) as model:
                model.query(question="Hello?", settings=SHORT)
            log.seek(0)
            text = log.read()
        self.assertIn("ready model=tiny", text)
        self.assertIn('path="/v1/query" status=200', text)
        self.assertIn("client=unix", text)

    def test_a_long_folder_for_temporary_files(self):
        with tempfile.TemporaryDirectory() as folder:
            long = os.path.join(folder, "x" * 100)
            os.mkdir(long)
            done = run_python(START, env={**os.environ, "TMPDIR": long})
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
