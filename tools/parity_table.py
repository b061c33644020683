"""The parity table: for each stage and set of goldens the largest relative error of a parity_test's report over the set's cases.

    GAPLESS_TEST_DEVICE=cpu build/cpu-release/tests/golden/parity_test --gtest_output=json:parity.json
    python3 tools/parity_table.py parity.json                                          prints it
    python3 tools/parity_table.py parity.json --json bench/results/parity-cpu.json     keeps it; docs/parity.md shows that file

The error of a stage is |actual - oracle| / |oracle|, Euclidean norms over the rows that the goldens keep.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import bench_tables
from gapless_tools import bench_result


def natural(stage: str) -> list[object]:
    """Sorts block 10 behind block 9, and the stages in the order in which they run."""
    order = ("vision.patch", "vision.block", "vision.post", "vision.pooled", "vision.proj", "text", "prompt.text", "prompt")
    rank = next(i for i, prefix in enumerate(order) if stage.startswith(prefix))
    return [rank, *(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", stage))]


def table_of(report: dict) -> dict:
    """The sets, and of each stage the sets' errors. Fails where a test has failed or nothing was compared."""
    worst: dict[str, dict[str, float]] = {}
    sets: list[str] = []
    failed = []
    for test in (test for suite in report["testsuites"] for test in suite["testsuite"]):
        if "failures" in test:
            failed.append(test["name"])
        goldens = test.get("value_param", "").rpartition("/")[0] or "goldens"
        for key, value in test.items():
            if key.startswith(("vision.", "text.", "prompt.")):
                sets += [goldens] if goldens not in sets else []
                errors = worst.setdefault(key, {})
                errors[goldens] = max(errors.get(goldens, 0.0), float(value))
    if failed or not sets:
        sys.exit(f"parity_table: {', '.join(failed) or 'every test'} {'failed' if failed else 'was left out'}")
    return {"tests": report["tests"], "sets": sets,
            "stages": [{"stage": stage, **worst[stage]} for stage in sorted(worst, key=natural)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("--json", default="", help="file to write the table to")
    parser.add_argument("--device", default="CPU, float32")
    parser.add_argument("--ceiling", default="bound of a stage 1e-4")
    parser.add_argument("--commit", default=None, help="where git cannot be asked")
    options = parser.parse_args()
    result = table_of(json.loads(Path(options.report).read_text(encoding="utf-8")))
    if options.json:
        head = bench_result.header("the goldens of each set", options.ceiling, options.device, options.commit)
        head["command"] = f"parity_test --gtest_output=json:{options.report}; {head['command']}"
        bench_result.write(options.json, head | {"benchmark": "parity", "spread": "none: a stage's largest error"} | result)
    print("".join(bench_tables.parity(result)))


if __name__ == "__main__":
    main()
