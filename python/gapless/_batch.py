"""Many requests with one engine, without a server: docs/batch.md."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from . import _binary
from ._images import image_file
from ._server import arguments, log_tail, status_text
from .errors import BatchError

Request = Mapping[str, Any]


def batch(requests: str | os.PathLike[str] | Iterable[Request], out: str | os.PathLike[str] | None = None, *,
          model: str | os.PathLike[str] | None = None, device: str | None = None, concurrency: int = 16,
          resume: bool = False, overwrite: bool = False, options: Sequence[str] = (),
          log: IO[Any] | int | None = None) -> list[dict[str, Any]]:
    """The answers to many requests, in their order.

    requests  lines of docs/batch.md as dictionaries, whose `image` and `images` may be anything that encode_image()
              takes; or the path of a file of such lines
    out       keeps the answers in this file, one a line, each written when it is there; `resume` goes on with one
              that is not complete, `overwrite` begins anew
    log       a file for what the run says, such as sys.stderr, which then shows how far it is

    A request that cannot be answered has an `error` in place of its answer. BatchError: the run could not go on.
    The other arguments are those of vl().
    """
    with tempfile.TemporaryDirectory(prefix="gapless-batch-") as folder:
        if isinstance(requests, (str, os.PathLike)):
            source = Path(requests)
        else:
            source = _write_requests(requests, Path(folder))
        answers = Path(folder) / "answers.jsonl" if out is None else Path(out)
        chosen = ["--in", str(source), "--out", str(answers), "--concurrency", str(concurrency)]
        chosen += ["--resume"] if resume else []
        chosen += ["--overwrite"] if overwrite else []
        before = _state(answers)
        status, tail = _run(chosen + arguments(model, device, options), log)
        # 1 is the status of a whole run in which lines have errors, and of one that could not go on.
        answered = [json.loads(line) for line in _lines(answers)] if status in (0, 1) else []
        wrote_nothing = not resume and _state(answers) == before
        if status != 0 and (wrote_nothing or len(answered) < len(_lines(source))):
            raise BatchError(f"the batch could not go on ({status_text(status)})" + tail)
        return answered


def _write_requests(requests: Iterable[Request], folder: Path) -> Path:
    path = folder / "requests.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for number, request in enumerate(requests):
            line = dict(request)
            if isinstance(line.get("image"), str) and line["image"].startswith("data:"):
                line["image_url"] = line.pop("image")
            if line.get("image") is not None:
                line["image"] = _path_of(line["image"], folder / f"{number}")
            if line.get("images") is not None:
                line["images"] = [_path_of(image, folder / f"{number}-{i}") for i, image in enumerate(line["images"])]
            file.write(json.dumps(line) + "\n")
    return path


def _path_of(image: Any, place: Path) -> str:
    if isinstance(image, (str, os.PathLike)):
        return os.path.abspath(image)
    place.write_bytes(image_file(image))
    return str(place)


def _run(chosen: Sequence[str], log: IO[Any] | int | None) -> tuple[int, str]:
    """Its exit status, and the end of its log."""
    with tempfile.TemporaryFile(prefix="gapless-") as kept:
        process = subprocess.Popen(
            [_binary.path(), "batch", "--parent", str(os.getpid()), *chosen], env=_binary.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=kept if log is None else log,
            start_new_session=True)
        try:
            status = process.wait()
        except BaseException:
            # As Ctrl-C on the command line does: what runs is finished and written.
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        return status, log_tail(kept)


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes when somebody writes to the file."""
    if not path.is_file():
        return None
    now = path.stat()
    return now.st_ino, now.st_size, now.st_mtime_ns


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with open(path, encoding="utf-8") as file:
        return [line for line in file if line.strip()]
