"""What answers hold. Coordinates are shares of the picture's sides, in [0, 1], from the left and the top."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Union, runtime_checkable

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

    from ._model import ChatStream, SegmentStream, TextStream


@runtime_checkable
class SupportsArray(Protocol):
    """A NumPy array, and whatever else offers its memory as one."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


@runtime_checkable
class SupportsImageUrl(Protocol):
    """An encoded picture: EncodedImage, or the one of Moondream's client."""

    @property
    def image_url(self) -> str: ...


Picture = Union["PillowImage", SupportsArray, SupportsImageUrl, bytes, bytearray, memoryview, str, "os.PathLike[str]"]

# temperature, top_p, max_tokens, max_objects, ...: those of docs/http_api.md.
Settings = Mapping[str, Any]

# [x, y] or [x_min, y_min, x_max, y_max]
SpatialRef = Sequence[float]


class Metrics(TypedDict):
    input_tokens: int
    output_tokens: int
    prefill_time_ms: float
    decode_time_ms: float
    ttft_ms: float


class Answered(TypedDict):
    request_id: str
    finish_reason: str
    metrics: Metrics


class _MaybeSure(TypedDict, total=False):
    """With `confidence: True` in the settings."""

    confidence: float
    bin_confidences: list[float]


class Region(_MaybeSure):
    x_min: float
    y_min: float
    x_max: float
    y_max: float


class Point(_MaybeSure):
    x: float
    y: float


class Grounding(TypedDict):
    start_idx: int
    end_idx: int
    points: list[list[float]]


class Reasoning(TypedDict):
    text: str
    grounding: list[Grounding]


class _MaybeReasoning(TypedDict, total=False):
    reasoning: Reasoning


class QueryOutput(Answered, _MaybeReasoning):
    answer: str


class QueryStream(TypedDict):
    answer: TextStream


class CaptionOutput(Answered):
    caption: str


class CaptionStream(TypedDict):
    caption: TextStream


class ChatMessage(TypedDict):
    """A turn. `content` is a text, or parts of OpenAI's kinds `text` and `image_url`."""

    role: str
    content: object


class _MaybeMore(TypedDict, total=False):
    reasoning: str  # these two with `reasoning=True`
    reasoning_details: dict[str, Any]
    tool_calls: list[dict[str, Any]]  # of a text model that was given `tools` in the settings


class ChatAnswer(_MaybeMore):
    role: str
    content: str | None  # None: only tool_calls


class ChatOutput(TypedDict):
    message: ChatAnswer
    finish_reason: str
    usage: dict[str, Any]


class ChatStreamOutput(TypedDict):
    message: ChatStream


class DetectOutput(Answered):
    objects: list[Region]


class PointOutput(Answered):
    points: list[Point]


class _MaybeBox(TypedDict, total=False):
    bbox: Region
    coarse: bool  # nothing refined the path


class SegmentOutput(Answered, _MaybeBox):
    path: str


class SegmentUpdate(TypedDict, total=False):
    """First `bbox`, then `chunk` by `chunk` of a coarse path, at last `path`, `bbox` (refined, where the server refines) and `completed`."""

    bbox: Region
    chunk: str
    path: str
    completed: bool


__all__ = [
    "Answered", "CaptionOutput", "CaptionStream", "ChatAnswer", "ChatMessage", "ChatOutput", "ChatStream",
    "ChatStreamOutput", "DetectOutput", "Grounding", "Metrics", "Picture", "Point",
    "PointOutput", "QueryOutput", "QueryStream", "Reasoning", "Region", "SegmentOutput", "SegmentStream", "SegmentUpdate",
    "Settings", "SpatialRef", "SupportsArray", "SupportsImageUrl",
]
