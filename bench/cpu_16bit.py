#!/usr/bin/env python3
"""What 16 and 8 bits on the CPU bring: the shipped model, and the shapes of Moondream 2 and 0.5B, in float32, in bfloat16 and with
--weights int8.

    bench/cpu_16bit.py --binary build/cpu-release/apps/gapless --json bench/results/cpu-8bit.json

Runs every measurement in each, in turn, --repeats times, and keeps the least disturbed run of each (the smallest
median): on a machine that does other work too the smallest is the nearest to what an idle one would show. All runs are in
the file. --computes leaves some out, --models too (Moondream 2's float32 weights take 8 GB); --cores limits the processor cores.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from gapless_tools.running_server import running_server  # noqa: E402

# What --models names: the checkpoint; whether a new picture over HTTP is asked about; repeats of a forward pass.
MODELS = {
    "tiny": (str(ROOT / "models/tiny"), True, 8),
    "moondream-0.5b": ("random:moondream-0.5b", True, 4),
    "moondream2": ("random:moondream2", False, 2),
}
COMPUTES = {
    "float32": ["--compute", "float32"],
    "bfloat16": ["--compute", "bfloat16"],
    "int8": ["--compute", "bfloat16", "--weights", "int8"],
}


def run(arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        errors = Path(folder, "errors")
        with errors.open("w") as log:
            process = subprocess.Popen([*arguments, "--json", str(path)], stdout=subprocess.DEVNULL, stderr=log)
            _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"{' '.join(arguments)}:\n{errors.read_text()}")
        return {**json.loads(path.read_text()), "peak_mib": usage.ru_maxrss // 1024}


def serve_new_picture(binary, compute, model, seconds):
    """Milliseconds to the first token of a lone client's picture that the server has not seen."""
    with running_server([binary, "serve", "--device", "cpu", *COMPUTES[compute], "--model", model, "--port", "0"]) as url:
        result = run([binary, "bench", "serve", "--url", url, "--concurrency", "1", "--max-tokens", "3",
                      "--distinct-images", "400", "--duration", str(seconds), "--warm-up", "1"])
    point = result["points"][0]
    if point["answers"] == 0:
        sys.exit(f"no answer within {seconds} s: --seconds must be longer")
    return {"first_token_ms": point["ttft_ms"]["p50"], "p90": point["ttft_ms"]["p90"], "answers": point["answers"]}


def forward(binary, compute, model, repeats):
    result = run([binary, "bench", "forward", "--device", "cpu", *COMPUTES[compute], "--model", model, "--crops", "1,9",
                  "--sequences", "1", "--repeats", str(repeats)])
    points = [("one crop", result["encodes"][0]["ms"]), ("the 9 crops of 800x600", result["encodes"][1]["ms"]),
              ("prefill of 770", result["prefills"][0]["ms"])]
    return [{"kind": kind, "ms": ms["median"], "p10": ms["p10"], "p90": ms["p90"]} for kind, ms in points]


def decode(binary, compute, model, seconds):
    result = run([binary, "bench", "decode", "--device", "cpu", *COMPUTES[compute], "--model", model, "--rows", "1",
                 "--context", "850", "--seconds", str(seconds)])
    point = result["points"][0]
    return {"ms": point["step_ms"]["median"], "p10": point["step_ms"]["p10"], "p90": point["step_ms"]["p90"],
            "gb_per_s": point["gb_per_s"], "peak_mib": result["peak_mib"]}


def write(runs, options, cores):
    least = {}
    for one in runs:
        key = (one["what"], one["compute"])
        if key not in least or one["ms"] < least[key]["ms"]:
            least[key] = one
    commit = options.commit or subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    result = {
        "command": " ".join(["bench/cpu_16bit.py", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit,
        "device": f"{processor[1] if processor else 'CPU'}, {cores} cores",
        "model": "; ".join(MODELS[name][0].removeprefix(f"{ROOT}/") for name in options.models),
        "ceiling": "none",
        "benchmark": "cpu_16bit",
        "spread": "the least disturbed of the repeats; every run is in `runs`, with the machine's load beside it",
        "note": options.note,
        "least_disturbed": [{"what": what, **{compute: least[(what, compute)]["ms"] for compute in options.computes}}
                            for what in dict.fromkeys(one["what"] for one in runs)
                            if all((what, compute) in least for compute in options.computes)],
        "runs": runs,
    }
    Path(options.json).write_text(json.dumps(result, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cpu-release/apps/gapless")
    parser.add_argument("--json", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--computes", type=lambda names: names.split(","), default=list(COMPUTES))
    parser.add_argument("--cores", type=int, default=0)
    parser.add_argument("--commit", default="")
    parser.add_argument("--note", default="")
    parser.add_argument("--models", type=lambda names: names.split(","), default=["tiny", "moondream2"])
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        os.environ["GAPLESS_CPU_THREADS"] = str(options.cores)
    cores = len(os.sched_getaffinity(0))
    runs = []

    def note(what, compute, **values):
        runs.append({"what": what, "compute": compute, "load_1min": round(os.getloadavg()[0], 2), **values})
        print(json.dumps(runs[-1]), flush=True)
        write(runs, options, cores)  # what there is so far: a run of the large model takes minutes

    for name in options.models:
        model, serves, forward_repeats = MODELS[name]
        for _ in range(options.repeats):
            for compute in options.computes:
                if serves:
                    new = serve_new_picture(options.binary, compute, model, options.seconds)
                    note(f"{name}, new 800x600 picture over HTTP", compute, ms=new["first_token_ms"], p90=new["p90"], answers=new["answers"])
                note(f"{name}, decode step", compute, **decode(options.binary, compute, model, options.seconds))
                for point in forward(options.binary, compute, model, forward_repeats):
                    note(f"{name}, {point.pop('kind')}", compute, **point)


if __name__ == "__main__":
    main()
