#!/usr/bin/env python3
"""Adds your GPU's decode steps to the table of docs/gpus.md.

    gapless bench decode --model random:moondream2 --device cuda --json RESULT.json
    python3 tools/add_gpu_run.py RESULT.json

Looks whether the file is such a run (a GPU, a commit, Moondream 2 in 16 bits, figures that agree with each other), stores it as
bench/results/decode-GPU.json and makes the table anew. --replace: also where there is one of this GPU. Commit both files.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import bench_tables
import gpu_table

ROOT = Path(__file__).resolve().parents[1]
PREDICTED = "bench/results/gpus-predicted.json"
CONTEXTS = range(800, 901)  # the table compares steps of about 850 cached tokens a row


class WrongRun(Exception):
    pass


def expect(holds, sentence):
    if not holds:
        raise WrongRun(sentence)


def text(result, key):
    value = result.get(key)
    expect(isinstance(value, str) and value, f"`{key}` is missing")
    return value


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def check_point(point, rows, bandwidth):
    where = f"the point of {rows} rows"
    step = point.get("step_ms")
    expect(isinstance(step, dict) and all(is_number(step.get(key)) for key in ("median", "p10", "p90")),
           f"{where} has no `step_ms` with median, p10 and p90")
    expect(step["p10"] <= step["median"] <= step["p90"], f"{where}: its median is not between p10 and p90")
    expect(all(is_number(point.get(key)) for key in ("bytes_per_step", "gb_per_s", "mean_context", "steps")),
           f"{where} lacks `bytes_per_step`, `gb_per_s`, `mean_context` or `steps`")
    rate = point["bytes_per_step"] / step["median"] / 1e6
    expect(abs(rate / point["gb_per_s"] - 1) < 0.01, f"{where}: {point['gb_per_s']} GB/s is not its bytes by its time, {rate:.1f}")
    expect(round(point["mean_context"]) in CONTEXTS,
           f"{where} has {point['mean_context']} cached tokens a row; the table is of about 850, what --context is unsaid")
    expect(bandwidth is None or rate <= bandwidth, f"{where}: {rate:.0f} GB/s is more than the GPU's memory has, {bandwidth}")


def check(result, gpus):
    """Raises WrongRun with a sentence. `gpus`: those of gpus-predicted.json."""
    expect(isinstance(result, dict) and result.get("benchmark") == "decode", "this is not a result of `gapless bench decode`")
    device = text(result, "device")
    expect(device.startswith("NVIDIA ") and gpu_table.words_of(device), f"the device '{device}' is not an NVIDIA GPU")
    expect(re.fullmatch(r"[\w ./()+-]{1,80}", device), "the device's name has characters that none has")
    commit = text(result, "commit")
    expect(re.fullmatch(r"[0-9a-f]{7,40}", commit),
           f"the commit '{commit}' is not one: build from a commit without changes, or name it with --commit")
    expect(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text(result, "date")), "`date` is not one")
    expect(text(result, "model").removeprefix("random:").split("/")[-1] == "moondream2",
           f"the model is {result['model']}; the table is of Moondream 2 (--model random:moondream2)")
    for option, value in re.findall(r"--(weights|kv-cache)[ =](\S+)", text(result, "command")):
        expect(value == "native", f"it was made with --{option} {value}; the table is of 16 bits")
    expect(result.get("depth") == 2, "its depth is not 2")
    expect(not result.get("shared_image"), "its rows are about one picture (--shared-image)")
    points = result.get("points")
    expect(isinstance(points, list) and all(isinstance(point, dict) for point in points), "`points` is not a list of points")
    bandwidth = next((gpu["gb_per_s"] for gpu in gpus if gpu_table.is_gpu(device, gpu["gpu"])), None)
    for rows in gpu_table.ROWS:
        point = next((one for one in points if one.get("rows") == rows), None)
        expect(point is not None, f"there is no point of {rows} rows; run it with --rows 1,8,32")
        check_point(point, rows, bandwidth)


def add(result, root, replace):
    """The new file's path in the repository."""
    predicted = json.loads((root / PREDICTED).read_text(encoding="utf-8"))
    check(result, predicted["gpus"])
    path = root / "bench/results" / gpu_table.file_name(result["device"])
    expect(replace or not path.exists(), f"{path.relative_to(root)} is there already; --replace takes its place")
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.chdir(root)  # marks name their files from there
    bench_tables.update("docs/gpus.md")
    return path.relative_to(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--replace", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args()
    try:
        result = json.loads(options.result.read_text(encoding="utf-8"))
        print(f"{add(result, options.root.resolve(), options.replace)} and docs/gpus.md: commit both")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        sys.exit(f"{options.result}: cannot be read as JSON: {error}")
    except WrongRun as wrong:
        sys.exit(f"{options.result}: {wrong}")


if __name__ == "__main__":
    main()
