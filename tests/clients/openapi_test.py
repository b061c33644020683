"""/openapi.json: what it says is true. schemathesis asks every path what its schema allows and forbids; and no path
is there that it does not name, nor named without being there."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from serving import KEY, ROOT, Server

# Requests for each path and phase: some seconds in all.
EXAMPLES = 12
# Not asked for: what schemas cannot say (a picture's bytes, a prompt that fits) is refused with reason, and fields that
# nobody knows are ignored, whatever they hold.
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "unsupported_method", "ignored_auth"]


class OpenApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", KEY)
        cls.description = json.loads(cls.server.get("/openapi.json"))

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_the_server_keeps_to_it(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [str(Path(sys.executable).with_name("schemathesis")), "run", self.server.url + "/openapi.json",
                 "--header", "Authorization: Bearer " + KEY, "--max-examples", str(EXAMPLES), "--seed", "71117",
                 # One worker: Python 3.11 cannot parse Python in two threads at once (its issue 106905).
                 "--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS), "--request-timeout", "60", "--workers", "1",
                 "--suppress-health-check", "all", "--no-shrink", "--warnings", "off"],
                cwd=folder, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
        self.assertEqual(json.loads(self.server.get("/ready"))["status"], "ready")

    def test_every_path_is_there(self):
        for path, operations in self.description["paths"].items():
            for method, operation in operations.items():
                also = operation.get("description", "").removeprefix("Also: ")
                for one in [path, *filter(None, also.split(", "))]:
                    status, allowed = self.ask("DELETE", one.replace("{name}", "tiny"))
                    self.assertEqual(status, 405, one)
                    self.assertIn(method.upper(), allowed, one)

    def test_no_path_is_there_that_it_does_not_name(self):
        text = json.dumps(self.description)
        for source in (ROOT / "src/server").glob("*_api.cpp"):
            for path in re.findall(r'"(/[a-z_/0-9.]+)"', source.read_text()):
                if path not in ("/v1/", "/"):
                    self.assertIn(path, text, source.name)

    def ask(self, method, path):
        request = urllib.request.Request(self.server.url + path, method=method, headers={"X-Moondream-Auth": KEY})
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, ""
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("Allow", "")


if __name__ == "__main__":
    unittest.main()
