#!/usr/bin/env python3
"""The paths of the CUDA backend beside each other, from the files that `scripts/gpu_suite cuda paths` left.

    bench/paths.py --results build/paths --paths 9.0a,9.0,8.0,8.6 --json bench/results/paths-h200.json

Reads decode-PATH.json and forward-PATH.json of --results (gapless bench decode, gapless bench forward), prints a table
and writes both into one file, each path's with what the goals ask of it. The exit status is 1 where a goal is missed.
"""

import argparse
import json
import sys
from pathlib import Path

# Of the lower paths on an H200: percent of the read bandwidth by rows, milliseconds of an encode of 13 crops and of a
# prefill of 770 tokens.
DECODE_GOALS = {1: 80, 8: 75, 32: 70}
ENCODE_GOAL_MS = 19.5
PREFILL_GOAL_MS = 5.2


def figures(decode, forward):
    """What is compared, of a path's two results."""

    def milliseconds(runs, size):
        return next((run["ms"]["median"] for run in forward[runs] if run["size"] == size), None)

    return {
        "decode_percent": {point["rows"]: point["percent_of_ceiling"] for point in decode["points"]},
        "encode_13_ms": milliseconds("encodes", "13"),
        "prefill_770_ms": milliseconds("prefills", "1x770"),
    }


def missed(path, got):
    """Sentences about the goals that a path's figures miss."""
    found = []
    for rows, goal in DECODE_GOALS.items():
        percent = got["decode_percent"].get(rows)
        if percent is None or percent < goal:
            found.append(f"{path}: decode of {rows} rows at {percent} % of the bandwidth, the goal is {goal}")
    for name, goal in (("encode_13_ms", ENCODE_GOAL_MS), ("prefill_770_ms", PREFILL_GOAL_MS)):
        if got[name] is None or got[name] > goal:
            found.append(f"{path}: {name} {got[name]}, the goal is {goal}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--paths", default="9.0a,9.0,8.0,8.6")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    rows, problems, header = {}, [], None
    for path in options.paths.split(","):
        files = [options.results / f"{kind}-{path}.json" for kind in ("decode", "forward")]
        if not all(file.exists() for file in files):
            problems.append(f"{path}: no results in {options.results}")
            continue
        decode, forward = (json.loads(file.read_text()) for file in files)
        header = header or {key: decode[key] for key in ("date", "commit", "device", "model", "ceiling")}
        got = figures(decode, forward)
        problems += missed(path, got)
        rows[path] = {"commands": [decode["command"], forward["command"]], **got, "decode": decode["points"], "encodes": forward["encodes"], "prefills": forward["prefills"]}
        percents = ", ".join(f"{n} rows {p} %" for n, p in got["decode_percent"].items())
        print(f"{path:>5} | {percents} | 13 crops {got['encode_13_ms']} ms | 1 x 770 {got['prefill_770_ms']} ms")
    result = {"command": " ".join(["bench/paths.py", *sys.argv[1:]]), **(header or {}), "benchmark": "paths",
              "spread": "p10 and p90 of the steps and runs", "missed": problems, "paths": rows}
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
