"""Starts `gapless serve` with the shipped model on a free port, and stops it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "models/tiny/examples/shapes.png"
KEY = "clients-test-key"


class Server:
    def __init__(self, *options):
        self.log = tempfile.NamedTemporaryFile("w", prefix="gapless-serve-", suffix=".log")
        # No router stands in front of most tests, so nobody has to notice that a server leaves.
        # It ends with the tests, whose caller waits until nobody holds their output.
        defaults = {"--device": "cpu", "--port": "0", "--drain-lead": "0", "--parent": str(os.getpid())}
        usual = [word for name, value in defaults.items() if name not in options for word in (name, value)]
        self.process = subprocess.Popen(
            [os.environ["GAPLESS_BINARY"], "serve", *usual, *options],
            stdout=self.log, stderr=self.log,
        )
        try:
            self.url = self._wait_for(r"listening url=(\S+)")
            self._wait_for(r" ready model=(\S+)")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _wait_for(self, pattern):
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            found = re.search(pattern, self.text())
            if found:
                return found.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError("gapless serve did not start:\n" + self.text())

    def text(self):
        return Path(self.log.name).read_text()

    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path, key=KEY):
        request = urllib.request.Request(self.url + path, headers={"X-Moondream-Auth": key})
        with urllib.request.urlopen(request) as response:
            return response.read().decode()

    def stop(self):
        """Ends it with SIGTERM; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        if status != 0:
            sys.stderr.write(self.text())
        self.log.close()
        return status
