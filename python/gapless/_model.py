"""A model that a server has."""

from __future__ import annotations

import http.client
import os
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, Any, Literal, TypeVar, cast, overload

from ._http import Address, Client, EventStream
from ._images import EncodedImage, encode_image
from ._server import Shared, arguments, servers
from .errors import Error, ServerError
from .types import (
    CaptionOutput,
    CaptionStream,
    ChatMessage,
    ChatOutput,
    ChatStreamOutput,
    DetectOutput,
    Picture,
    PointOutput,
    QueryOutput,
    QueryStream,
    SegmentOutput,
    SegmentUpdate,
    Settings,
    SpatialRef,
)

_T = TypeVar("_T")
_S = TypeVar("_S", bound="_Stream")


class _Stream:
    """Close one that is not read to its end: that cancels the request."""

    def __init__(self, model: Model, events: EventStream) -> None:
        self._model = model  # which must not end its server meanwhile
        self._events = events

    def close(self) -> None:
        self._events.close()

    def __enter__(self: _S) -> _S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_event(self) -> dict[str, Any]:
        try:
            event = self._events.next_event()
        except (OSError, http.client.HTTPException) as error:
            raise self._model._unreachable(error) from error
        if event is None:
            raise StopIteration
        return event


class TextStream(_Stream, Iterator[str]):
    """An answer's text, as it comes."""

    def __next__(self) -> str:
        while True:
            chunk = self._next_event().get("chunk")
            if chunk:
                return str(chunk)


class ChatStream(_Stream, Iterator[str]):
    """The text of a chat's answer, as it comes."""

    def __next__(self) -> str:
        while True:
            choices = self._next_event().get("choices")
            text = choices[0].get("delta", {}).get("content") if choices else None
            if text:
                return str(text)


class SegmentStream(_Stream, Iterator[SegmentUpdate]):
    """An outline, as it comes."""

    def __next__(self) -> SegmentUpdate:
        while True:
            event = self._next_event()
            kind = event.get("type")
            if kind == "bbox":
                return {"bbox": event["bbox"]}
            if kind == "path_delta" and event.get("chunk"):
                return {"chunk": event["chunk"]}
            if kind == "final":
                return {"path": event["path"], "bbox": event["bbox"], "completed": True}


class Model:
    """Asks a server; made by vl(). Any thread may use it, and several at a time, which the server then answers
    together. A context manager; close() does the same."""

    def __init__(self, client: Client, shared: Shared | None) -> None:
        self._client = client
        self._shared = shared
        self._end = weakref.finalize(self, _end, client, shared)

    @property
    def endpoint(self) -> str:
        """For vl(endpoint=...) of other processes."""
        return self._client.address.endpoint

    def close(self) -> None:
        """Leaves the server. One that vl() has started ends when nobody in this process uses it any more."""
        self._end()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def encode_image(self, image: Picture) -> EncodedImage:
        """A picture that is asked about several times has to be encoded once only."""
        return encode_image(image)

    @overload
    def query(self, image: Picture | None = None, question: str | None = None, stream: Literal[False] = False,
              settings: Settings | None = None, reasoning: bool = False,
              spatial_refs: Sequence[SpatialRef] | None = None) -> QueryOutput: ...
    @overload
    def query(self, image: Picture | None = None, question: str | None = None, *, stream: Literal[True],
              settings: Settings | None = None, reasoning: bool = False,
              spatial_refs: Sequence[SpatialRef] | None = None) -> QueryStream: ...

    def query(self, image: Picture | None = None, question: str | None = None, stream: bool = False,
              settings: Settings | None = None, reasoning: bool = False,
              spatial_refs: Sequence[SpatialRef] | None = None) -> QueryOutput | QueryStream:
        """`{"answer": ...}` to a question, about a picture if there is one."""
        if question is None:
            raise ValueError("question: there is none")
        body = _body(image, settings, question=question, spatial_refs=spatial_refs, reasoning=reasoning or None)
        if stream:
            return {"answer": TextStream(self, self._stream("query", body))}
        return cast(QueryOutput, self._ask("query", body))

    @overload
    def caption(self, image: Picture, length: Literal["short", "normal", "long"] = "normal",
                stream: Literal[False] = False, settings: Settings | None = None) -> CaptionOutput: ...
    @overload
    def caption(self, image: Picture, length: Literal["short", "normal", "long"] = "normal", *,
                stream: Literal[True], settings: Settings | None = None) -> CaptionStream: ...

    def caption(self, image: Picture, length: Literal["short", "normal", "long"] = "normal", stream: bool = False,
                settings: Settings | None = None) -> CaptionOutput | CaptionStream:
        """`{"caption": ...}`"""
        body = _body(image, settings, length=length)
        if stream:
            return {"caption": TextStream(self, self._stream("caption", body))}
        return cast(CaptionOutput, self._ask("caption", body))

    def detect(self, image: Picture, object: str, settings: Settings | None = None) -> DetectOutput:
        """`{"objects": [{"x_min", "y_min", "x_max", "y_max"}]}`"""
        return cast(DetectOutput, self._ask("detect", _body(image, settings, object=object)))

    def point(self, image: Picture, object: str, settings: Settings | None = None,
              spatial_refs: Sequence[SpatialRef] | None = None) -> PointOutput:
        """`{"points": [{"x", "y"}]}`"""
        return cast(PointOutput, self._ask("point", _body(image, settings, object=object, spatial_refs=spatial_refs)))

    @overload
    def segment(self, image: Picture, object: str, spatial_refs: Sequence[SpatialRef] | None = None,
                stream: Literal[False] = False, settings: Settings | None = None) -> SegmentOutput: ...
    @overload
    def segment(self, image: Picture, object: str, spatial_refs: Sequence[SpatialRef] | None = None, *,
                stream: Literal[True], settings: Settings | None = None) -> SegmentStream: ...

    def segment(self, image: Picture, object: str, spatial_refs: Sequence[SpatialRef] | None = None,
                stream: bool = False, settings: Settings | None = None) -> SegmentOutput | SegmentStream:
        """`{"path", "bbox"}`: an outline in SVG's words, in shares of its box. RequestError with the code
        skill_not_available: the model has no such skill."""
        body = _body(image, settings, object=object, spatial_refs=spatial_refs)
        if stream:
            return SegmentStream(self, self._stream("segment", body))
        return cast(SegmentOutput, self._ask("segment", body))

    @overload
    def chat(self, messages: Sequence[ChatMessage], stream: Literal[False] = False, settings: Settings | None = None,
             reasoning: bool | None = None) -> ChatOutput: ...
    @overload
    def chat(self, messages: Sequence[ChatMessage], *, stream: Literal[True], settings: Settings | None = None,
             reasoning: bool | None = None) -> ChatStreamOutput: ...

    def chat(self, messages: Sequence[ChatMessage], stream: bool = False, settings: Settings | None = None,
             reasoning: bool | None = None) -> ChatOutput | ChatStreamOutput:
        """`{"message": {"role", "content"}, "finish_reason"}`: the next turn of a conversation in OpenAI's words. The
        address of a picture in it is encode_image(picture).image_url."""
        body: dict[str, Any] = {**(settings or {}), "messages": list(messages)}
        if reasoning is not None:
            body["reasoning"] = reasoning
        if stream:
            return {"message": ChatStream(self, self._stream("chat/completions", body))}
        answer = self._ask("chat/completions", body)
        choice = answer["choices"][0]
        return {"message": choice["message"], "finish_reason": choice["finish_reason"], "usage": answer["usage"]}

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._check_open()
        try:
            return self._client.post(f"{self._client.address.prefix}/{path}", body)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _stream(self, path: str, body: dict[str, Any]) -> EventStream:
        self._check_open()
        try:
            return self._client.stream(f"{self._client.address.prefix}/{path}", {**body, "stream": True})
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _check_open(self) -> None:
        if not self._end.alive:
            raise Error("this model was closed")

    def _unreachable(self, error: Exception) -> ServerError:
        ended = self._shared.server.ended() if self._shared is not None else None
        return ended or ServerError(f"no answer from {self.endpoint}: {error or type(error).__name__}")


def vl(model: str | os.PathLike[str] | None = None, device: str | None = None, *, endpoint: str | None = None,
       api_key: str | None = None, options: Sequence[str] = (), log: IO[Any] | int | None = None) -> Model:
    """A model to ask, as `moondream.vl()` makes one.

    model     what `gapless serve --model` takes: a folder, a file, OWNER/NAME of the Hugging Face hub; None: the
              small model that ships
    device    "cpu", "cuda", "cuda:N" or "auto" (also None): the first GPU where there is one
    options   more arguments of `gapless serve`, such as ["--depth", "1"]
    log       a file for what the server says, such as sys.stderr, where a download shows its progress

    Starts a server for it, or joins the one that this process has started with the same arguments; returns when it is
    ready. It ends with this process, even if this one is killed.

    endpoint  http://HOST:PORT or unix:PATH: a server that runs already, which is joined and left as it is; `api_key`
              is for its --api-key.
    """
    if endpoint is not None:
        if model is not None or device is not None or options or log is not None:
            raise ValueError("endpoint: that server has its model, device, options and log already")
        return Model(Client(Address(endpoint), api_key), None)
    if api_key is not None:
        raise ValueError("api_key: only for an endpoint; nobody else can reach a server that is started here")
    shared = servers.join(arguments(model, device, options), log)
    return Model(Client(shared.server.address), shared)


def _end(client: Client, shared: Shared | None) -> None:
    client.close()
    if shared is not None:
        servers.leave(shared)


def _body(image: Picture | None, settings: Settings | None, **fields: Any) -> dict[str, Any]:
    body = {name: value for name, value in fields.items() if value is not None}
    if image is not None:
        body["image_url"] = encode_image(image).image_url
    if settings is not None:
        body["settings"] = dict(settings)
    return body
