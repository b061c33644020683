"""Greedy query that reasons first, over the reference model.

Reasoning is text with points in it, up to `answer_id`; then comes the answer. A sampled `coord_id` stands for a coordinate, in either: its bin
is read from the hidden state that it was sampled from, and the coordinate's encoding is fed in its place. Two are a point. A `size_id`, which
no reasoning needs and some templates deny, likewise stands for a width and a height.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer

from .reference_model import ReferenceModel, TextCache


@dataclass(frozen=True)
class ReasoningLimits:
    max_reasoning: int
    max_answer: int


@dataclass
class Reasoned:
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)  # as they were fed: reasoning, its ends, answer; without eos
    reasoning_text: str = ""
    grounding: list[dict[str, Any]] = field(default_factory=list)
    answer: str = ""
    finish_reason: str = "stop"


def prompt_ids(question: str, tokenizer: Tokenizer, model: ReferenceModel) -> list[int]:
    special = model.config.tokenizer
    template = special.templates["query"]
    text = " " + question if special.question_leading_space else question
    return template["prefix"] + tokenizer.encode(text).ids + template["reasoning"]


def answer_feeds(model: ReferenceModel) -> int:
    """How often the answer separator is fed between the two."""
    return 2 if model.config.numerics.answer_feed == "twice" else 1


def grounded(tokens: list[tuple[int, float | None]], tokenizer: Tokenizer, model: ReferenceModel) -> Reasoned:
    """Text and groundings of a reasoning: a part ends before each of the two ground tokens. Offsets are characters of the whole
    text; a coordinate without a partner is dropped, and so is a part without points."""
    special = model.config.tokenizer
    out = Reasoned([])
    ids: list[int] = []
    values: list[float] = []

    def end_part() -> None:
        begin = len(out.reasoning_text)
        out.reasoning_text += tokenizer.decode(ids)
        points = [list(point) for point in zip(values[::2], values[1::2], strict=False)]
        if points:
            out.grounding.append({"start_idx": begin, "end_idx": len(out.reasoning_text), "points": points})
        ids.clear()
        values.clear()

    for token, value in tokens:
        if token in (special.start_ground_points_id, special.end_ground_id):
            end_part()
        if value is not None:
            values.append(value)
        ids.append(token)
    end_part()
    return out


def generate_reasoning(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    cache: TextCache,
    question: str,
    limits: ReasoningLimits,
    bias: dict[int, float],
) -> Reasoned:
    """`cache` comes from encode_images and is left as it is. `bias` is added to the logits of both phases."""
    special = model.config.tokenizer
    denied = special.templates["query"].get("reasoning_denied", [])
    ids = prompt_ids(question, tokenizer, model)
    cache = cache.copy()
    hidden = model.decode(model.embed(ids), cache, prefix=0)[-1]
    fed: list[int] = []

    def feed(embedding: torch.Tensor) -> torch.Tensor:
        return model.decode(embedding, cache, prefix=0)[-1]

    def next_input(token: int) -> tuple[float | None, torch.Tensor]:
        """What is fed for a token that was sampled from `hidden`, and its coordinate."""
        if token == special.coord_id:
            value = model.coord_value(int(model.coord_logits(hidden).argmax()))
            return value, model.encode_coord(torch.tensor([[value]], dtype=model.dtype, device=model.device))
        if token == special.size_id:
            sizes = [model.size_value(int(i)) for i in model.size_logits(hidden).argmax(dim=-1)]
            return None, model.encode_size(torch.tensor([sizes], dtype=model.dtype, device=model.device))
        return None, model.embed([token])

    def choose(forbidden: list[int]) -> int:
        logits = model.logits(hidden)
        for token, value in bias.items():
            logits[token] += value
        logits[forbidden] = float("-inf")
        return int(logits.argmax())

    reasoning: list[tuple[int, float | None]] = []
    ended = False
    while len(reasoning) < limits.max_reasoning:
        token = choose(denied)
        if token == special.answer_id:
            break
        if token == special.eos_id:
            ended = True
            break
        value, embedding = next_input(token)
        fed.append(token)
        reasoning.append((token, value))
        hidden = feed(embedding)
    out = grounded(reasoning, tokenizer, model)
    answer: list[int] = []
    if not ended:
        for _ in range(answer_feeds(model)):
            fed.append(special.answer_id)
            hidden = feed(model.embed([special.answer_id]))
        while True:
            token = choose([special.answer_id])
            if token == special.eos_id:
                break
            answer.append(token)
            if len(answer) == limits.max_answer:
                out.finish_reason = "length"
                break
            hidden = feed(next_input(token)[1])
    out.prompt_ids, out.token_ids = ids, fed + answer
    out.answer = tokenizer.decode(answer)
    return out
