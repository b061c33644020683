"""What type checkers know about the package's answers: read by mypy --strict, never run."""

from pathlib import Path

import gapless
import numpy
from gapless.types import ChatMessage, Point, Region
from PIL import Image
from typing_extensions import assert_type


def use(model: gapless.Model, array: "numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.uint8]]") -> None:
    assert_type(model.query(Image.new("RGB", (1, 1)), "a")["answer"], str)
    assert_type(model.query(question="a", stream=True)["answer"], gapless.TextStream)
    assert_type(model.caption(array, "short")["caption"], str)
    assert_type(model.caption(b"", stream=True)["caption"], gapless.TextStream)
    assert_type(model.detect(Path("a.png"), "a")["objects"], list[Region])
    assert_type(model.point("a.png", "a", settings={"max_objects": 1})["points"], list[Point])
    assert_type(model.segment(model.encode_image(b""), "a")["path"], str)
    assert_type(model.segment(b"", "a", stream=True), gapless.SegmentStream)
    turns: list[ChatMessage] = [{"role": "user", "content": "a"}]
    assert_type(model.chat(turns)["message"]["content"], str | None)
    assert_type(model.chat(turns, stream=True, reasoning=False)["message"], gapless.ChatStream)
    model.query("a.png", 3)  # type: ignore[call-overload]
    model.detect(3, "a")  # type: ignore[arg-type]


with gapless.vl(model="random:moondream-0.5b", device="cpu") as opened:
    assert_type(opened, gapless.Model)
