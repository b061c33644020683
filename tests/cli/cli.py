"""Runs the gapless binary. Of Python this needs the standard library alone."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "models/tiny/examples/shapes.png"
BINARY = os.environ["GAPLESS_BINARY"]
# No test waits for time to pass; this ends one that hangs.
GUARD_SECONDS = 240


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_API")}
    return {**kept, **variables}


def gapless(*arguments, env=None, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([BINARY, *map(str, arguments)], text=True, timeout=GUARD_SECONDS,
                          env=env or environment(), **options)


class FolderTest(unittest.TestCase):
    """Each test has a folder of its own."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="gapless-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def write_lines(self, name, lines):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        return self.write(name, "".join(text + "\n" for text in texts))


class Serving:
    """`gapless serve` on a free port. Its log is read from a pipe or goes where `stderr` says."""

    def __init__(self, *options, env=None, log_path, port=0, preexec_fn=None):
        self.log_path = log_path
        self.log = open(log_path, "wb")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--device", "cpu", *([] if port is None else ["--port", str(port)]), *map(str, options)],
            stderr=self.log, env=env or environment(), preexec_fn=preexec_fn)

    def wait_for(self, pattern):
        """The match of `pattern` in the log."""
        deadline = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < deadline:
            found = re.search(pattern, self.text())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in the log:\n" + self.text())

    def text(self):
        return Path(self.log_path).read_text()

    def port(self):
        return int(self.wait_for(r"listening url=http://\S*:(\d+)").group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
