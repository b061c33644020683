"""Which tokens may come next in the path of a segment, so that it is SVG path data wherever it ends behind a whole command.

A token counts by its text without the blanks around it: a command, a minus, or an integer from 0 to 960.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from tokenizers import Tokenizer

from .outlines import FLAGS, NUMBERS_OF, PATH_NUMBERS, PATH_UNITS, RADII


def tokens_of_kinds(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Ids by what they are: a command's upper letter, "-", "bit" (0 and 1) or "number" (2 to 960)."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token]).strip(" \t\n\v\f\r")
        if text.isascii() and text.isdigit() and str(int(text)) == text and int(text) <= PATH_UNITS:
            kinds["bit" if int(text) < 2 else "number"].append(token)
        elif text == "-" or text.upper() in NUMBERS_OF:
            kinds[text.upper()].append(token)
    return kinds


def path_numbers(tokenizer: Tokenizer, vocab_size: int) -> torch.Tensor:
    """[vocab_size]: the number that a token says in the paths of scenes, NaN where it says none.

    Other tokens that the grammar takes for numbers (" 2", "7") are in no such path.
    """
    numbers = torch.full((vocab_size,), float("nan"))
    for number in PATH_NUMBERS:
        token = tokenizer.token_to_id(str(number))
        if token is not None:
            numbers[token] = number
    return numbers


class PathGrammar:
    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self.tokens, self.eos = tokens_of_kinds(tokenizer), eos
        self.kind_of = {token: kind for kind, tokens in self.tokens.items() for token in tokens}
        self.command, self.count, self.signed = "", 0, False

    def allowed(self) -> list[int]:
        if not self.command:
            return self.tokens["M"]
        wanted = NUMBERS_OF[self.command]
        kinds, ids = [], []
        if wanted > 0:
            place = self.count % wanted if self.command == "A" else -1
            kinds += ["bit"] if place in FLAGS else ["bit", "number"]
            if not self.signed and place not in (*RADII, *FLAGS):
                kinds.append("-")
        if not self.signed and (wanted == 0 or self.count > 0 and self.count % wanted == 0):
            kinds += NUMBERS_OF
            ids.append(self.eos)
        return ids + [token for kind in kinds for token in self.tokens[kind]]

    def advance(self, token: int) -> None:
        kind = self.kind_of[token]
        if kind in NUMBERS_OF:
            self.command, self.count = kind, 0
        self.signed = kind == "-"
        self.count += kind in ("bit", "number")
