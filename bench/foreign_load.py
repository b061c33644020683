#!/usr/bin/env python3
"""A load generator that others wrote beside `gapless bench serve`: both measure the same server, one after the other.

    python3 -m venv build/load-venv && build/load-venv/bin/pip install 'guidellm[vision]==0.8.1'
    build/load-venv/bin/python bench/foreign_load.py --json bench/results/guidellm-cpu.json

guidellm takes 6 GB once installed (it brings PyTorch), so no test runs it. One `gapless serve` for all runs. Both ask
OpenAI's chat route for streams of --tokens tokens about the shipped pictures, --clients at once, each client again when its
answer has ended. The server knows the pictures from loads that are not measured. The generators take turns, --repeats
times. Server and generators share the machine's cores.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/clients")]

PICTURES = [ROOT / "models/tiny/examples" / name for name in ("shapes.png", "small.png")]
QUESTION = "What is in the picture?"
# More than are asked in a run: guidellm ends where its data does.
NUM_ROWS = 20_000


def three(values):
    return {key: values[key] for key in ("p50", "p90", "p99")}


def own(binary, url, clients, options, folder):
    """What `gapless bench serve` says, by the names of its result files."""
    path = folder / "own.json"
    pictures = [word for picture in PICTURES for word in ("--image", str(picture))]
    subprocess.run([binary, "bench", "serve", "--url", url, "--api", "openai", "--text", QUESTION, "--max-tokens", str(options.tokens),
                    "--concurrency", str(clients), "--duration", str(options.seconds), "--warm-up", "1", *pictures, "--json", str(path)],
                   check=True, stdout=sys.stderr, timeout=600)
    [point] = json.loads(path.read_text())["points"]
    return {"requests": point["answers"], "errors": sum(point["errors"].values()) if isinstance(point["errors"], dict) else point["errors"],
            "requests_per_s": point["requests_per_s"], "tokens_per_s": point["output_tokens_per_s"], "ttft_ms": three(point["ttft_ms"]),
            "latency_ms": three(point["latency_ms"])}


def foreign(url, clients, options, folder):
    """The same of guidellm. Its requests per second: answers by the time from the first request to the last answer."""
    data, path = folder / "data.jsonl", folder / "foreign.json"
    with data.open("w") as file:
        for row in range(NUM_ROWS):
            file.write(json.dumps({"prompt": QUESTION, "image": str(PICTURES[row % len(PICTURES)]), "output_tokens_count": options.tokens}) + "\n")
    subprocess.run([Path(sys.executable).with_name("guidellm"), "run", "--backend", f"kind=openai_http,target={url},model=tiny",
                    "--profile", f"kind=concurrent,streams={clients}", "--constraint", f"kind=max_duration,seconds={options.seconds:g}",
                    "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={path}", "--disable-console"],
                   check=True, stdout=sys.stderr, cwd=folder, timeout=600)
    [run] = json.loads(path.read_text())["benchmarks"]
    figures = {name: values["successful"] for name, values in run["metrics"].items() if isinstance(values, dict) and "successful" in values
               and isinstance(values["successful"], dict)}
    milliseconds = {key: 1000 * value for key, value in figures["request_latency"]["percentiles"].items()}
    totals = run["metrics"]["request_totals"]
    state = run["scheduler_state"]
    seconds = state["end_requests_time"] - state["start_requests_time"]
    return {"requests": totals["successful"], "errors": totals["errored"], "requests_per_s": totals["successful"] / seconds,
            "tokens_per_s": totals["successful"] * figures["output_token_count"]["mean"] / seconds,
            "ttft_ms": three(figures["time_to_first_token_ms"]["percentiles"]), "latency_ms": three(milliseconds)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu-release/apps/gapless"))
    parser.add_argument("--clients", default="1,4")
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--commit")
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    os.environ["GAPLESS_BINARY"] = options.binary

    from gapless_tools import bench_result
    from serving import Server

    server = Server()
    rows = []
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # Not measured: guidellm sends pictures in bytes of its own, which the server has to know as well.
            short = argparse.Namespace(tokens=options.tokens, seconds=1)
            own(options.binary, server.url, 1, short, folder)
            foreign(server.url, 1, short, folder)
            for clients in map(int, options.clients.split(",")):
                for repeat in range(options.repeats):
                    for generator, figures in (("gapless bench serve", own(options.binary, server.url, clients, options, folder)),
                                               ("guidellm", foreign(server.url, clients, options, folder))):
                        rows.append({"generator": generator, "clients": clients, "repeat": repeat, **figures})
                        print(json.dumps(rows[-1]), flush=True)
    finally:
        server.stop()
    if options.json:
        cores = len(os.sched_getaffinity(0))
        bench_result.write(options.json, {
            **bench_result.header("models/tiny", "none", f"CPU, {cores} cores, {platform.machine()}", options.commit),
            "benchmark": "foreign_load", "spread": "p50, p90 and p99 of the requests", "guidellm": importlib.metadata.version("guidellm"),
            "tokens": options.tokens, "seconds": options.seconds, "note": options.note, "rows": rows})


if __name__ == "__main__":
    main()
