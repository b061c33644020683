#!/usr/bin/env python3
"""Several devices in one `gapless serve` against one of them: answers a second about new pictures, and the same tokens.

    bench/replicas.py --binary build/cuda-release/apps/gapless --model random:moondream2 --devices all --goal 1.9 \\
                      --json bench/results/serve-2gpu.json

Servers of the first device alone and of all take turns, --repeats times. `gapless bench serve` loads each in a closed
loop, --clients for each device, with direct answers (three tokens) about pictures that no request before had. The ratio
is that of the medians. Then both kinds of server are asked the same --questions, all of them at once, and every answer
has to be the same. The exit status is 1 where one is not, or where the ratio is below --goal.

Needs nothing but Python 3.
"""

import argparse
import base64
import concurrent.futures
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from gapless_tools import bench_result  # noqa: E402
from gapless_tools.plain_png import plain_png  # noqa: E402
from gapless_tools.running_server import running_server  # noqa: E402

GUARD_SECONDS = 300


def make_png(seed, side=256, block=32):
    """Blocks of random colours."""
    colours = random.Random(seed)
    rows = []
    for _ in range(side // block):
        row = b"".join(bytes(colours.randrange(256) for _ in range(3)) * block for _ in range(side // block))
        rows.append((b"\0" + row) * block)
    return plain_png(side, side, zlib.compress(b"".join(rows)))


def answers_of(options, devices, questions):
    """The answer to each, asked all at once."""
    command = [options.binary, "serve", *options.model_words, "--device", devices, "--port", "0", "--drain-lead", "0"]
    with running_server(command, GUARD_SECONDS) as url:

        def ask(question):
            request = urllib.request.Request(url + "/v1/query", json.dumps(question).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=GUARD_SECONDS) as response:
                return json.load(response)["answer"]

        with concurrent.futures.ThreadPoolExecutor(32) as clients:
            return list(clients.map(ask, questions))


def measure(options, devices, num_devices):
    """Answers a second, and the name of the devices."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        subprocess.run([options.binary, "bench", "serve", *options.model_words, "--device", devices, "--max-tokens", "3",
                        "--concurrency", str(options.clients * num_devices), "--max-requests", "1024",
                        "--duration", str(options.seconds), "--warm-up", str(options.warm_up),
                        "--distinct-images", str(options.pictures), "--image-size", options.image_size, "--json", str(path)],
                       check=True, stdout=sys.stderr, timeout=600)
        result = json.loads(path.read_text())
    [point] = result["points"]
    if point["errors"]:
        raise SystemExit(f"bench/replicas.py: {point['errors']}")
    return point, result["device"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cuda-release/apps/gapless"))
    parser.add_argument("--model", default="", help="default: the model that ships")
    parser.add_argument("--devices", default="all", help="as gapless serve has them")
    parser.add_argument("--first", default="cuda:0", help="the one device to compare with")
    parser.add_argument("--clients", type=int, default=32, help="for each device")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=6000)
    parser.add_argument("--image-size", default="800x600")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--goal", type=float, default=0)
    parser.add_argument("--json")
    parser.add_argument("--commit")
    options = parser.parse_args()
    options.model_words = ["--model", options.model] if options.model else []

    questions = [{"question": f"How many? {i % 3}", "settings": {"max_tokens": 20, "temperature": 0},
                  "image_url": base64.b64encode(make_png(i // 2)).decode()} for i in range(options.questions)]
    told = [answers_of(options, devices, questions) for devices in (options.first, options.devices)]
    different = [i for i, (one, several) in enumerate(zip(*told)) if one != several]
    print(f"{len(questions)} questions, {len(different)} answers differ")

    # "2 x NVIDIA H200"; "NVIDIA H200, NVIDIA H100"
    _, name = measure(argparse.Namespace(**{**vars(options), "seconds": 0.5, "warm_up": 0.5, "pictures": 64}), options.devices, 1)
    counted = re.match(r"(\d+) x ", name)
    num_devices = int(counted[1]) if counted else name.count(", ") + 1
    runs = {"one": [], "all": []}
    for repeat in range(options.repeats):
        for kind, devices, count in (("one", options.first, 1), ("all", options.devices, num_devices)):
            point, _ = measure(options, devices, count)
            runs[kind].append(point)
            print(f"{repeat}: {devices}: {point['requests_per_s']:.1f} answers/s", flush=True)
    rates = {kind: statistics.median(point["requests_per_s"] for point in points) for kind, points in runs.items()}
    ratio = rates["all"] / rates["one"]
    print(f"{name}: {rates['all']:.1f} answers/s against {rates['one']:.1f}: {ratio:.3f} (goal {options.goal:g})")
    if options.json:
        kept = ("requests_per_s", "ttft_ms", "latency_ms", "device_busy_share", "device_preparing_share", "device_bubble_share",
                "server_rss_peak_mb")
        bench_result.write(options.json, {
            **bench_result.header(options.model or "models/tiny", "none", name, options.commit),
            "benchmark": "replicas", "spread": f"{options.repeats} runs of each, by turns; the ratio is of the medians",
            "devices": num_devices, "clients_per_device": options.clients, "max_tokens": 3, "distinct_images": options.pictures,
            "image_size": options.image_size, "one_per_s": rates["one"], "all_per_s": rates["all"], "ratio": round(ratio, 3),
            "goal": options.goal, "questions": len(questions), "answers_that_differ": len(different),
            "runs": {kind: [{key: point[key] for key in kept if key in point} for point in points] for kind, points in runs.items()}})
    sys.exit(1 if different or ratio < options.goal else 0)


if __name__ == "__main__":
    main()
