"""Prints the parity table: per stage, the largest relative error of parity_test's report over all cases.

    GAPLESS_TEST_DEVICE=cpu build/cpu-release/tests/golden/parity_test --gtest_output=json:parity.json
    python tools/parity_table.py parity.json

The error of a stage is |actual - oracle| / |oracle|, Euclidean norms over the rows that the goldens keep.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def natural(stage: str) -> list[object]:
    """Sorts block 10 behind block 9, and the stages in the order in which they run."""
    order = ("vision.patch", "vision.block", "vision.post", "vision.pooled", "vision.proj", "text", "prompt.text", "prompt")
    rank = next(i for i, prefix in enumerate(order) if stage.startswith(prefix))
    return [rank, *(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", stage))]


def main() -> None:
    report = json.loads(Path(sys.argv[1]).read_text())
    worst: dict[str, float] = {}
    failed = []
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            if "failures" in test:
                failed.append(test["name"])
            for key, value in test.items():
                if key.startswith(("vision.", "text.", "prompt.")):
                    worst[key] = max(worst.get(key, 0.0), float(value))
    print("| stage | largest relative error |\n|---|---|")
    for stage in sorted(worst, key=natural):
        print(f"| {stage} | {worst[stage]:.1e} |")
    print(f"\n{report['tests']} tests, failed: {', '.join(failed) or 'none'}")


if __name__ == "__main__":
    main()
