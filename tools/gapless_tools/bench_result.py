"""Result files of benchmarks in Python, with the fields that `gapless bench` writes (src/measure/result_file.h)."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path


def header(model: str, ceiling: str, device: str, commit: str | None) -> dict:
    """What made the numbers: this process's command line, now. commit: asked of git where it is not given."""
    return {
        "command": " ".join([f"{Path(sys.argv[0]).resolve().parent.name}/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or _current_commit(),
        "device": device,
        "model": model,
        "ceiling": ceiling,
    }


def write(path: str, result: dict) -> None:
    Path(path).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _current_commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
