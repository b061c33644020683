"""The examples of docs/http_api.md, run as they stand (on another port)."""

import json
import re
import subprocess
import unittest

from serving import ROOT, Server


class DocsTest(unittest.TestCase):
    def test_curl_examples(self):
        text = (ROOT / "docs/http_api.md").read_text()
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        self.assertGreaterEqual(len(blocks), 4)
        server = Server()
        self.addCleanup(server.stop)
        script = "set -e\n" + "\necho ---\n".join(blocks).replace("localhost:2020", server.url[7:])
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn('"error"', done.stdout)
        for field in ("answer", "caption", "objects", "points", "choices", "tokens", "data"):
            self.assertIn(f'"{field}":', done.stdout)
        last_event = re.findall(r"^data: (.*)$", done.stdout, re.MULTILINE)[-1]
        self.assertTrue(json.loads(last_event)["completed"])


if __name__ == "__main__":
    unittest.main()
