"""gapless --model OWNER/NAME: from the cache of the hub or by download, never half, never with the token given away."""

import hashlib
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from cli import BINARY, GUARD_SECONDS, PICTURE, ROOT, FolderTest, Serving, environment, gapless  # noqa: E402
from fake_hub import FakeHub, Fault, Zeros, etag_of  # noqa: E402

TINY = {name: (ROOT / "models/tiny" / name).read_bytes() for name in ("config.json", "model.safetensors", "tokenizer.json")}
WEIGHTS = "model.safetensors"
SIZE = len(TINY[WEIGHTS])


def two_shards(weights):
    """A model.safetensors as an index and two files."""
    (length,) = struct.unpack("<Q", weights[:8])
    header, data = json.loads(weights[8:8 + length]), weights[8 + length:]
    names = sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    files, index = {}, {}
    for number, part in enumerate((names[:len(names) // 2], names[len(names) // 2:]), 1):
        entries, content = {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [len(content), len(content) + end - begin]}
            content += data[begin:end]
            index[name] = f"model-{number:05}-of-00002.safetensors"
        text = json.dumps(entries).encode()
        files[f"model-{number:05}-of-00002.safetensors"] = struct.pack("<Q", len(text)) + text + content
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": index}).encode()
    return files


def older_release():
    """Weights of Moondream 2 of January or March 2025, as far as their header goes."""
    shapes = {"text_model.transformer.embd.wte.weight": [51200, 2048],
              "vision_encoder.encoder.model.visual.patch_embed.linear.weight": [1152, 588],
              "region_model.coordinate_decoder.fc1.weight": [8192, 2048]}
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * shape[1]
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    head = struct.pack("<Q", len(text)) + text
    return Zeros(head, len(head) + end)


class HubTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.hub = FakeHub()
        self.addCleanup(self.hub.close)
        self.commit = self.hub.add("org/tiny", TINY)
        self.cache = self.folder / "home/hub"
        self.repository = self.cache / "models--org--tiny"

    def env(self, **variables):
        kept = {name: value for name, value in environment().items()
                if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "XDG_"))}
        return {**kept, "HF_HOME": str(self.folder / "home"), "HF_ENDPOINT": self.hub.endpoint, **variables}

    def info(self, *options, model="org/tiny", **variables):
        return gapless("info", "--model", model, *options, env=self.env(**variables))

    def good(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def bad(self, done, *words):
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn("gapless: ", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        return done

    def blobs(self):
        folder = self.repository / "blobs"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def assert_whole(self, files=None, commit=None):
        """What lies in the cache is what the hub has, under the names that the hub's own library uses."""
        files = files or TINY
        for name, content in files.items():
            path = self.repository / "snapshots" / (commit or self.commit) / name
            self.assertEqual(os.readlink(path), f"../../blobs/{etag_of(content)}")
            self.assertEqual(path.read_bytes(), content)
        self.assertEqual(self.blobs(), {etag_of(content) for content in files.values()})

    # ---- what is there, and what is fetched

    def test_a_name_is_downloaded_once_and_runs(self):
        shipped = gapless("info").stdout.splitlines()
        done = self.good(self.info())
        self.assertEqual(done.stdout.splitlines()[0], "org/tiny")
        self.assertEqual(done.stdout.splitlines()[-3:], shipped[-3:])
        self.assert_whole()
        self.assertEqual((self.repository / "refs/main").read_text(), self.commit)
        self.assertIn(f"downloading org/tiny/{WEIGHTS} (24.4 MB)", done.stderr)
        self.assertNotIn("\r", done.stderr)
        before = len(self.hub.requests)
        question = ("query", "--device", "cpu", "--question", "How many shapes are there?", "--image", PICTURE)
        answer = self.good(gapless("run", *question, "--model", "org/tiny", env=self.env())).stdout
        self.assertEqual(answer, self.good(gapless("run", *question)).stdout)
        self.assertEqual(len(self.hub.requests), before, "what is in the cache is not asked for")
        with Serving("--model", "org/tiny", env=self.env(), log_path=self.folder / "log") as server:
            server.wait_for(r" ready model=tiny ")

    def test_revisions_are_branches_tags_and_commits(self):
        other = {**TINY, "config.json": TINY["config.json"] + b"\n"}
        commit = self.hub.add("org/tiny", other, revision="refs/pr/1")
        self.good(self.info(model="org/tiny@refs/pr/1"))
        self.assertTrue(any("/resolve/refs%2Fpr%2F1/" in request[2] for request in self.hub.asked("HEAD")))
        self.assertEqual((self.repository / "refs/refs/pr/1").read_text(), commit)
        self.assert_whole(other, commit)
        self.good(self.info(model=f"org/tiny@{self.commit}"))
        self.assertFalse((self.repository / "refs/main").exists())
        self.assertLess(self.hub.sent[WEIGHTS], SIZE + (1 << 20), "both commits have the same weights: their headers are looked at, and no more")
        self.bad(self.info(model="org/tiny@v9"), "org/tiny", "v9")
        self.bad(self.info(model="org/../x"), "no such file or folder")
        for name in ("org/tiny@../x", "org/tiny@", "org/ti ny"):
            self.bad(self.info(model=name), "is not the name of")

    def test_all_files_are_of_one_commit(self):
        """The branch moves on between two files."""
        self.hub.faults.append(Fault("GET", WEIGHTS, status=500))
        for _ in range(10):
            self.hub.faults.append(Fault("GET", WEIGHTS, status=400))
        self.bad(self.info(), "status 400")
        self.hub.faults.clear()
        self.hub.add("org/tiny", {**TINY, "config.json": b"{}"}, commit="f" * 40)
        self.good(self.info())
        self.assert_whole()

    def test_a_folder_wins_over_the_name(self):
        (self.folder / "org").mkdir()
        (self.folder / "org/tiny").symlink_to(ROOT / "models/tiny")
        self.good(gapless("info", "--model", "org/tiny", env=self.env(), cwd=self.folder))
        self.assertEqual(self.hub.requests, [])

    def test_shards(self):
        shards = two_shards(TINY[WEIGHTS])
        files = {**shards, "config.json": TINY["config.json"], "tokenizer.json": TINY["tokenizer.json"]}
        self.commit = self.hub.add("org/tiny", files)
        self.good(self.info())
        self.assert_whole(files)
        before = len(self.hub.requests)
        self.good(self.info())
        self.assertEqual(len(self.hub.requests), before)
        # An index that leads elsewhere.
        for name in ("../../../../etc/passwd", "/etc/passwd", "..", "a\\b"):
            index = json.dumps({"weight_map": {"a": name}}).encode()
            self.hub.add("org/evil", {"config.json": TINY["config.json"], "model.safetensors.index.json": index}, revision=f"r{len(name)}")
            self.bad(self.info(model=f"org/evil@r{len(name)}"), "is not the name of a file beside it")

    def test_what_does_not_run_is_refused_before_it_is_downloaded(self):
        self.hub.add("org/old", {"config.json": b"{}", "tokenizer.json": b"{}", WEIGHTS: older_release(),
                                 "moondream.py": b'Tokenizer.from_pretrained("vikhyatk/moondream2")'})
        self.bad(self.info(model="org/old"), "org/old", "moondream.py: names the tokenizer vikhyatk/moondream2", "so the release cannot be told")
        self.assertLess(self.hub.sent[WEIGHTS], 1 << 20, "of 244 MB")
        self.hub.add("org/what", {"config.json": b"{}", WEIGHTS: Zeros(b"", 1 << 30)})
        self.bad(self.info(model="org/what"), "org/what", WEIGHTS)

    # ---- cuts, and what comes wrong

    def test_a_cut_download_goes_on_where_it_was(self):
        for part in (1, 2, 3):
            self.hub.faults.append(Fault("GET", WEIGHTS, times=1, cut_at=part * (SIZE // 4)))
        # The first two look at the header only.
        self.hub.faults[0].times += 2
        done = self.good(self.info())
        self.assert_whole()
        self.assertIn("trying again", done.stderr)
        starts = [int(headers["Range"].removeprefix("bytes=").removesuffix("-"))
                  for _, _, _, headers in self.hub.asked("GET", WEIGHTS, "cdn") if headers.get("Range", "").endswith("-")]
        self.assertEqual(starts, [SIZE // 4, 2 * (SIZE // 4), 3 * (SIZE // 4)])

    def test_a_killed_download_goes_on_where_it_was(self):
        self.good(self.info())
        (self.repository / "snapshots" / self.commit / WEIGHTS).unlink()
        (self.repository / "blobs" / etag_of(TINY[WEIGHTS])).unlink()
        self.hub.sent.clear()
        stall = Fault("GET", WEIGHTS, times=10, stall_at=SIZE // 2)
        self.hub.faults.append(stall)
        process = subprocess.Popen([BINARY, "info", "--model", "org/tiny"], env=self.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        incomplete = self.repository / "blobs" / (etag_of(TINY[WEIGHTS]) + ".incomplete")
        deadline = time.monotonic() + GUARD_SECONDS
        while not (incomplete.exists() and incomplete.stat().st_size > SIZE // 4) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        stall.times = 0
        kept = incomplete.stat().st_size
        self.assertGreater(kept, 0)
        self.hub.sent.clear()
        self.good(self.info())
        self.assert_whole()
        self.assertIn(f"bytes={kept}-", [headers.get("Range") for _, _, _, headers in self.hub.asked("GET", WEIGHTS, "cdn")])
        self.assertLessEqual(self.hub.sent[WEIGHTS], SIZE - kept + (1 << 20), "the header, and what was missing")

    def test_a_hub_that_knows_no_ranges_starts_anew(self):
        self.hub.faults.append(Fault("GET", WEIGHTS, times=3, cut_at=SIZE // 2))
        self.hub.faults.append(Fault("GET", WEIGHTS, times=9, no_ranges=True))
        self.good(self.info())
        self.assert_whole()

    def test_other_bytes_are_not_kept(self):
        for name in ("tokenizer.json", WEIGHTS):
            wrong = bytearray(TINY[name])
            wrong[len(wrong) // 2] ^= 1
            self.hub.faults = [Fault("GET", name, times=9, content=bytes(wrong))]
            self.bad(self.info(), name, "is not what the hub says")
            self.assertNotIn(etag_of(TINY[name]), self.blobs())
            self.assertEqual([blob for blob in self.blobs() if "incomplete" in blob], [])
            self.assertFalse((self.repository / "snapshots" / self.commit / name).exists())
            self.hub.faults = []
            self.good(self.info())
            self.assert_whole()
            for path in (self.repository / "snapshots" / self.commit).iterdir():
                path.unlink()
            for path in (self.repository / "blobs").iterdir():
                path.unlink()

    def test_a_damaged_beginning_is_thrown_away(self):
        self.good(self.info())
        (self.repository / "snapshots" / self.commit / WEIGHTS).unlink()
        blob = self.repository / "blobs" / etag_of(TINY[WEIGHTS])
        for beginning in (bytes(SIZE // 3), TINY[WEIGHTS] + b"more", bytes(SIZE)):
            blob.rename(str(blob) + ".incomplete")
            Path(str(blob) + ".incomplete").write_bytes(beginning)
            self.good(self.info())
            self.assert_whole()
            (self.repository / "snapshots" / self.commit / WEIGHTS).unlink()

    def test_answers_that_no_hub_gives(self):
        for headers, word in (
            ({"X-Repo-Commit": "../../../../tmp/x"}, "X-Repo-Commit"),
            ({"X-Repo-Commit": ""}, "X-Repo-Commit"),
            ({"ETag": '"../../../x"'}, "ETag"),
            ({"ETag": '"abc"'}, "ETag"),
            ({"X-Linked-Size": "-1"}, "size"),
            ({"X-Linked-Size": "999999999999999999999"}, "size"),
            ({"Content-Length": "x"}, ""),
        ):
            self.hub.faults = [Fault("HEAD", "config.json", headers=headers)]
            self.bad(self.info(), word)
        self.assertEqual(self.blobs(), set())
        self.hub.faults = [Fault("GET", WEIGHTS, times=3, cut_at=SIZE // 2),
                           Fault("GET", WEIGHTS, times=9, headers={"Content-Range": f"bytes 0-{SIZE - 1}/{SIZE}"})]
        self.bad(self.info(), "asked for 'bytes")

    # ---- refusals

    def test_who_may_not_is_told_why(self):
        self.bad(self.info(model="org/none"), "org/none", "HF_TOKEN", "401")
        for status, error, words in (
            (403, "GatedRepo", ("terms", "org/tiny")),
            (401, "RepoNotFound", ("not there, or not for everybody",)),
            (404, "RepoNotFound", ("config.json of org/tiny",)),
            (418, "", ("418",)),
        ):
            before = len(self.hub.requests)
            self.hub.faults = [Fault("HEAD", "config.json", status=status, headers={"X-Error-Code": error, "X-Error-Message": "because\tof this"})]
            self.bad(self.info(), "because of this", *words)
            self.assertEqual(len(self.hub.requests), before + 1, "asking again would not help")
        self.hub.repositories["org/tiny"]["commits"][self.commit].pop("tokenizer.json")
        self.bad(self.info(), "org/tiny has no tokenizer.json")
        self.hub.add("org/empty", {"config.json": TINY["config.json"]})
        self.bad(self.info(model="org/empty"), "neither model.safetensors nor model.safetensors.index.json")

    def test_a_busy_hub_is_asked_again_when_it_says(self):
        self.hub.faults = [Fault("HEAD", "config.json", times=2, status=429, headers={"Retry-After": "2"}, pause=1.9)]
        done = self.good(self.info())
        self.assertEqual(done.stderr.count("trying again in 2 s"), 2, "not sooner than it was told to")
        self.hub.faults = [Fault("HEAD", "tokenizer.json", status=429, headers={"Retry-After": "3600"})]
        (self.repository / "snapshots" / self.commit / "tokenizer.json").unlink()
        self.bad(self.info(), "429", "come back in 3600 s")
        self.hub.faults = [Fault("HEAD", "tokenizer.json", times=2, status=503, headers={"Retry-After": "0"})]
        done = self.good(self.info())
        self.assertEqual(done.stderr.count("trying again"), 2)
        self.hub.faults = [Fault("HEAD", "tokenizer.json", times=99, status=503, headers={"Retry-After": "0"})]
        (self.repository / "snapshots" / self.commit / "tokenizer.json").unlink()
        before = len(self.hub.requests)
        self.bad(self.info(), "503")
        self.assertEqual(len(self.hub.requests), before + 5)

    def test_a_hub_that_is_not_there_is_an_error_at_once(self):
        closed = FakeHub()
        closed.close()
        done = self.bad(self.info(HF_ENDPOINT=closed.endpoint), "connecting")
        self.assertNotIn("trying again", done.stderr)

    # ---- the token

    def test_the_token_goes_to_the_hub_alone(self):
        self.hub.token = "hf_secret"
        self.bad(self.info(), "401")
        done = self.bad(self.info(HF_TOKEN="hf_wrong"), "401")
        self.assertNotIn("hf_wrong", done.stderr)
        done = self.good(self.info(HF_TOKEN="hf_secret"))
        self.assertNotIn("hf_secret", done.stderr + done.stdout)
        self.assertGreater(len(self.hub.asked(server="cdn")), 0)
        for server, _, _, headers in self.hub.requests:
            if server == "cdn":
                self.assertNotIn("Authorization", headers)
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.assertNotIn(b"hf_secret", path.read_bytes())

    def test_redirects(self):
        self.hub.renamed["org/before"] = "org/tiny"
        self.good(self.info(model="org/before"))
        # To another host: without the token.
        self.hub.requests.clear()
        self.hub.faults = [Fault("HEAD", "config.json", status=302, headers={"Location": self.hub.cdn + "/elsewhere/config.json"})]
        self.bad(self.info(model="org/tiny", HF_TOKEN="hf_secret"), "404")
        self.assertEqual(["Authorization" in headers for server, _, _, headers in self.hub.requests], [True, False])
        for location, word in (("/org/tiny/resolve/main/config.json", "redirects"), ("ftp://x/y", "neither http nor https"), ("", "")):
            self.hub.faults = [Fault("HEAD", "config.json", times=99, status=302, headers={"Location": location})]
            self.bad(self.info(), word)

    # ---- without a network

    def test_offline_says_what_would_download_and_that_does(self):
        for options, variables in ((("--offline",), {}), ((), {"HF_HUB_OFFLINE": "1"}), ((), {"TRANSFORMERS_OFFLINE": "true"})):
            done = self.bad(self.info(*options, model="org/tiny@main", **variables), "config.json is not in", str(self.cache))
            self.assertEqual(self.hub.requests, [])
        command = re.search(r"this does: (.*)", done.stderr)[1]
        self.assertEqual(command, "env -u TRANSFORMERS_OFFLINE gapless info --model org/tiny")
        path = f"{Path(BINARY).parent}:{os.environ['PATH']}"
        subprocess.run(command, shell=True, check=True, env=self.env(PATH=path, TRANSFORMERS_OFFLINE="true"), stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=GUARD_SECONDS)
        before = len(self.hub.requests)
        self.good(self.info("--offline"))
        (self.repository / "snapshots" / self.commit / WEIGHTS).unlink()
        self.bad(self.info("--offline"), f"{WEIGHTS} is not in")
        self.bad(gapless("run", "query", "--question", "a", "--model", "org/tiny", "--offline", env=self.env()), f"{WEIGHTS} is not in")
        self.assertEqual(len(self.hub.requests), before)

    # ---- several at once, disks, terminals

    def test_two_processes_download_once(self):
        processes = [subprocess.Popen([BINARY, "info", "--model", "org/tiny"], env=self.env(), stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for _ in range(4)]
        for process in processes:
            _, errors = process.communicate(timeout=GUARD_SECONDS)
            self.assertEqual(process.returncode, 0, errors)
        self.assert_whole()
        whole = [request for request in self.hub.asked("GET", WEIGHTS, "cdn")]
        # Each looks at the header, with two requests.
        self.assertLessEqual(len(whole), 2 * 4 + 1)
        self.assertLess(self.hub.sent[WEIGHTS], SIZE + (1 << 20))

    def test_a_disk_that_is_full_is_an_error_and_nothing_is_half(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, resource.RLIM_INFINITY))

        done = gapless("info", "--model", "org/tiny", env=self.env(TMPDIR="/nowhere"), preexec_fn=small_files)
        self.bad(done, "File too large", WEIGHTS)
        self.assertFalse((self.repository / "snapshots" / self.commit / WEIGHTS).exists())
        self.good(self.info())
        self.assert_whole()

    def test_a_terminal_sees_a_bar(self):
        self.hub.faults = [Fault("GET", WEIGHTS, times=3, stall_at=SIZE // 2)]
        master, slave = pty.openpty()
        process = subprocess.Popen([BINARY, "info", "--model", "org/tiny"], env=self.env(), stderr=slave, stdout=subprocess.DEVNULL)
        os.close(slave)
        shown = b""
        try:
            while piece := os.read(master, 4096):
                shown += piece
                if b" of 24.4 MB" in shown:
                    self.hub.released.set()
        except OSError:  # how the end of a terminal is told
            pass
        os.close(master)
        self.assertEqual(process.wait(), 0, shown)
        self.assertRegex(shown.decode(), r"\rorg/tiny/model.safetensors \[#* *\] [\d.]+ MB of 24.4 MB")


if __name__ == "__main__":
    unittest.main()
