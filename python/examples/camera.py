"""A camera, what it shows, and how long each answer took.

    pip install gapless opencv-python
    python camera.py                        the first camera, in a window; q ends it
    python camera.py street.mp4 --headless  a file, on standard output

The camera is read by a thread of its own that keeps the newest frame, so that answers are never about old ones.
"""

import argparse
import threading
import time
from collections.abc import Iterator

import cv2
import gapless
import numpy


class NewestFrame:
    """Reads a camera as fast as it comes. Of a file every frame is read, none is left out."""

    def __init__(self, source: str) -> None:
        self._is_camera = source.isdigit()
        self._capture = cv2.VideoCapture(int(source) if self._is_camera else source)
        if not self._capture.isOpened():
            raise SystemExit(f"cannot open {source}")
        self._changed = threading.Condition()
        self._frame: numpy.ndarray | None = None
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            there, frame = self._capture.read()
            with self._changed:
                while not self._is_camera and self._frame is not None:
                    self._changed.wait()
                self._frame, self._ended = frame if there else None, not there
                self._changed.notify_all()
            if not there:
                return

    def __iter__(self) -> Iterator[numpy.ndarray]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frame is not None or self._ended)
                frame, self._frame = self._frame, None
                self._changed.notify_all()
            if frame is None:
                return
            yield frame


def watch(model: gapless.Model, frames: Iterator[numpy.ndarray], question: str) -> Iterator[tuple[numpy.ndarray, str, float]]:
    """Each frame with its answer and the milliseconds it took from here to there."""
    for frame in frames:
        began = time.perf_counter()
        # OpenCV has blue first.
        answer = model.query(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), question, settings={"max_tokens": 32})
        yield frame, answer["answer"].strip(), (time.perf_counter() - began) * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", nargs="?", default="0", help="a camera's number or a file")
    parser.add_argument("--question", default="What is in the picture?")
    parser.add_argument("--headless", action="store_true", help="print, open no window")
    options = parser.parse_args()
    with gapless.vl() as model:
        for frame, answer, ms in watch(model, iter(NewestFrame(options.source)), options.question):
            line = f"{ms:6.1f} ms  {answer}"
            if options.headless:
                print(line, flush=True)
                continue
            cv2.putText(frame, line, (10, 30), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (255, 255, 255), 2)
            cv2.imshow("gapless", frame)
            if cv2.waitKey(1) == ord("q"):
                return


if __name__ == "__main__":
    main()
