"""The cache of the Hugging Face hub, shared with Python's own library: either finds what the other one has downloaded."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/hub"))
from fake_hub import FakeHub  # noqa: E402

FILES = {name: (ROOT / "models/tiny" / name).read_bytes() for name in ("config.json", "model.safetensors", "tokenizer.json")}


class HubCacheTest(unittest.TestCase):
    def setUp(self):
        self.hub = FakeHub()
        self.addCleanup(self.hub.close)
        self.commit = self.hub.add("org/tiny", FILES)
        folder = tempfile.TemporaryDirectory(prefix="gapless-hub-")
        self.addCleanup(folder.cleanup)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "XDG_"))}
        self.env = {**kept, "HF_HOME": folder.name, "HF_ENDPOINT": self.hub.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def gapless(self, *options):
        return subprocess.run([os.environ["GAPLESS_BINARY"], "info", "--model", "org/tiny", *options], env=self.env, capture_output=True,
                              text=True, timeout=240)

    def python(self, code, **variables):
        """In a process of its own: the library reads its variables when it is imported."""
        done = subprocess.run([sys.executable, "-c", "import huggingface_hub as hub\n" + code], env={**self.env, **variables},
                              capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_python_finds_what_gapless_downloaded(self):
        done = self.gapless()
        self.assertEqual(done.returncode, 0, done.stderr)
        before = len(self.hub.requests)
        found = self.python("for name in %r: print(hub.hf_hub_download('org/tiny', name))" % list(FILES), HF_HUB_OFFLINE="1")
        for path, content in zip(found, FILES.values(), strict=True):
            self.assertEqual(Path(path).read_bytes(), content)
        scan = self.python("cache = hub.scan_cache_dir()\n"
                           "print(len(cache.warnings), *[(repo.repo_id, len(revision.files), sorted(revision.refs), revision.commit_hash)"
                           " for repo in cache.repos for revision in repo.revisions])")
        self.assertEqual(scan, [f"0 ('org/tiny', 3, ['main'], '{self.commit}')"])
        # That moondream.py is not part of it is known, too.
        absent = self.python("print(hub.try_to_load_from_cache('org/tiny', 'moondream.py') is hub._CACHED_NO_EXIST)")
        self.assertEqual(absent, ["True"])
        self.assertEqual(len(self.hub.requests), before)
        # Online it agrees that there is nothing to download.
        sent = dict(self.hub.sent)
        self.python("hub.hf_hub_download('org/tiny', 'model.safetensors')")
        self.assertEqual(self.hub.sent, sent)

    def test_gapless_finds_what_python_downloaded(self):
        self.python("for name in %r: hub.hf_hub_download('org/tiny', name)" % list(FILES))
        before = len(self.hub.requests)
        done = self.gapless("--offline")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[0], "org/tiny")
        self.assertEqual(self.gapless().returncode, 0)
        self.assertEqual(len(self.hub.requests), before)

    def test_each_goes_on_where_the_other_one_ended(self):
        self.python("hub.hf_hub_download('org/tiny', 'model.safetensors')")
        sent = self.hub.sent["model.safetensors"]
        done = self.gapless()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.hub.sent["model.safetensors"], sent)
        self.python("for name in %r: hub.hf_hub_download('org/tiny', name)" % list(FILES), HF_HUB_OFFLINE="1")


if __name__ == "__main__":
    unittest.main()
