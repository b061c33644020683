#!/usr/bin/env python3
"""Whether a model runs within the memory of a small card: servers held to a bound, and what the driver says they took.

    bench/small_cards.py --binary build/cuda-release/apps/gapless --device cuda --json bench/results/small-cards-h200.json

For each bound a server with one row and the full context is asked about new pictures of one and of 13 crops, with an
answer that fills the context. Meanwhile the GPU's used memory is read from nvidia-smi, twenty times a second; what other
processes used before is taken off. A server without a bound gets the same requests: the answers must be the same, and the
first tokens tell what it costs to keep the matrices once. On the CPU (to try the script) the process's resident memory is
read in place of a GPU's. The exit status is 1 where a bound is broken, an answer differs or a server does not start.
"""

import argparse
import base64
import json
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GIB = 1 << 30
# Gigabytes of 10^9 bytes, as cards are sold.
BOUNDS = [
    {"name": "16 bits", "gigabytes": 5.5, "options": []},
    {"name": "8 bits", "gigabytes": 3.6, "options": ["--weights", "fp8", "--kv-cache", "fp8"]},
]
START_SECONDS = 300


def query_memory(device, *more):
    """The command that prints what is used of a GPU in MiB, by everybody, as its driver says."""
    index = device.partition(":")[2] or "0"
    return ["nvidia-smi", "-i", index, "--query-gpu=memory.used", "--format=csv,noheader,nounits", *more]


def is_cpu(device):
    return device.startswith("cpu")


class PeakMemory(threading.Thread):
    """The most memory in use between start and stop(): of a GPU beyond what was used before, on a CPU of the process."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self.device, self.peak, self.done = device, 0, threading.Event()
        if not is_cpu(device):
            before = subprocess.run(query_memory(device), capture_output=True, text=True, check=True).stdout
            self.before = int(before) << 20

    def watch(self, process):
        self.process = process
        self.start()

    def run(self):
        if is_cpu(self.device):
            return self.watch_process()
        with subprocess.Popen(query_memory(self.device, "-lms", "50"), stdout=subprocess.PIPE, text=True) as told:
            for line in told.stdout:
                self.peak = max(self.peak, (int(line) << 20) - self.before)
                if self.done.is_set():
                    told.kill()

    def watch_process(self):
        while not self.done.wait(0.05):
            try:
                status = Path(f"/proc/{self.process.pid}/status").read_text()
            except OSError:  # it has ended
                return
            if found := re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE):
                self.peak = max(self.peak, int(found[1]) * 1024)

    def stop(self):
        self.done.set()
        self.join()
        return self.peak


class Server:
    def __init__(self, options, more):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="gapless-small-cards-", suffix=".log")
        command = [options.binary, "serve", "--port", "0", "--device", options.device, "--max-rows", "1", *more]
        if options.model:
            command += ["--model", options.model]
        self.command = " ".join(command)
        self.memory = PeakMemory(options.device)
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL)
        self.memory.watch(self.process)
        self.url = self.wait_ready()

    def text(self):
        return Path(self.log.name).read_text()

    def wait_ready(self):
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            if found := re.search(r"http://[\d.]+:\d+", self.text()):
                try:
                    with urllib.request.urlopen(found[0] + "/ready", timeout=5) as answer:
                        if answer.status == 200:
                            return found[0]
                except (urllib.error.URLError, OSError):
                    pass
            time.sleep(0.1)
        self.process.kill()
        raise RuntimeError(f"{self.command}\n{self.text()[-2000:]}")

    def ask(self, picture, max_tokens):
        body = {"question": "What is there?", "image_url": picture,
                "settings": {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}}
        request = urllib.request.Request(self.url + "/v1/query", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def stop(self):
        """The most memory that was used."""
        self.process.terminate()
        self.process.wait(60)
        return self.memory.stop()


def data_uri(width, height, number):
    """A PNG of stripes, no two numbers alike."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = bytes((x * 7 + number * 31 + channel * 85) % 256 for x in range(width) for channel in range(3))
    pixels = zlib.compress((b"\0" + row) * height)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + \
        chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def questions(options):
    """(name, picture, tokens of the answer): pictures of 13 and of 2 crops, the first with a full context."""
    asked = [("13 crops, full context", data_uri(1400, 1050, 0), 100_000)]
    asked += [(f"new picture {i}", data_uri(378, 378, i), 8) for i in range(1, 1 + options.pictures)]
    return asked


def bound_option(device, limit):
    # A CPU has no bound of everything: its cache is bounded, so that the script has two servers to compare.
    return ["--kv-cache-gb", "0.05"] if is_cpu(device) else ["--gpu-memory", f"{limit / GIB:.4f}"]


def measure(options, more):
    server = Server(options, more)
    try:
        answers = {name: server.ask(picture, tokens) for name, picture, tokens in questions(options)}
    finally:
        peak = server.stop()
    planned = re.search(r"([\d.]+) GiB in all", server.text())
    first_tokens = [answer["metrics"]["ttft_ms"] for name, answer in answers.items() if name.startswith("new")]
    return {
        "command": server.command,
        "peak_bytes": peak,
        # What the log does not know: the driver's share (kDriverBytes of engine/memory_plan.h is the estimate) and 64 MiB of kernels'
        # workspaces.
        "beside_the_plan_gib": round(peak / GIB - float(planned[1]), 2) if planned else None,
        "first_token_ms": {"median": round(statistics.median(first_tokens), 2), "least": min(first_tokens),
                           "most": max(first_tokens)},
        "memory_log": [line.strip() for line in server.text().splitlines() if "memory" in line],
    }, {name: answer["answer"] for name, answer in answers.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cuda-release/apps/gapless")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="random:moondream2", help="'': the one that ships")
    parser.add_argument("--bounds", help="gigabytes of each case in place of 5.5,3.6, for other models")
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    bounds = [dict(one) for one in BOUNDS]
    for one, gigabytes in zip(bounds, (options.bounds or "").split(",")):
        one["gigabytes"] = float(gigabytes or one["gigabytes"])
    commit = options.commit or subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True,
                                              text=True, check=False).stdout.strip()
    cases, problems = [], []
    for bound in bounds:
        limit = int(bound["gigabytes"] * 1e9)
        try:
            free, wanted = measure(options, bound["options"])
            held, got = measure(options, [*bound["options"], *bound_option(options.device, limit)])
        except (RuntimeError, OSError) as error:
            problems.append(f"{bound['name']}: {error}")
            continue
        if held["peak_bytes"] > limit:
            problems.append(f"{bound['name']}: {held['peak_bytes'] / 1e9:.2f} GB, the bound is {bound['gigabytes']}")
        problems += [f"{bound['name']}: another answer about {name}" for name in wanted if got[name] != wanted[name]]
        cases.append({"name": bound["name"], "bound_bytes": limit, "held": held, "without_a_bound": free})
        print(f"{bound['name']:8} bound {limit / 1e9:.2f} GB, peak {held['peak_bytes'] / 1e9:.2f} GB (without {free['peak_bytes'] / 1e9:.2f}), "
              f"first token {held['first_token_ms']['median']} ms (without {free['first_token_ms']['median']})", flush=True)
    result = {
        "benchmark": "small cards",
        "command": " ".join(["bench/small_cards.py", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit,
        "device": options.device,
        "model": options.model or "the one that ships",
        "ceiling": "the bound of each case",
        "spread": f"first tokens of {options.pictures} new pictures: median, least, most",
        "memory_read_from": "resident memory of the process" if is_cpu(options.device) else "nvidia-smi, memory.used",
        "missed": problems,
        "cases": cases,
    }
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
