"""Outlines: as drawn, as tokens, as path data, and how they are compared."""

import random
import sys
import unittest
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.outlines import PATH_NUMBERS, mask_iou, path_of, path_text, polygons_of, true_outlines  # noqa: E402
from gapless_tools.packing import said_path  # noqa: E402
from gapless_tools.path_grammar import PathGrammar, path_numbers  # noqa: E402
from gapless_tools.scenes import CROP, HOLE, Item, Scene, draw_polygon, make_scene, shape_polygon  # noqa: E402
from gapless_tools.skills import prompt_ids  # noqa: E402
from gapless_tools.vocabulary import KINDS  # noqa: E402
from PIL import Image  # noqa: E402

TINY3 = Path(__file__).parents[2] / "models" / "tiny3"
UNIT = (0.0, 0.0, 1.0, 1.0)


def shapes(count: int) -> list[Item]:
    found = [item for index in range(count) for item in make_scene(8, index)[1].items if item.outline]
    assert {item.kind for item in found} >= set(KINDS) and any(item.hollow for item in found)
    return found


class Paths(unittest.TestCase):
    def test_they_cover_what_was_drawn(self) -> None:
        for item in shapes(80):
            path = path_text([str(part) for part in path_of(item)])
            self.assertGreater(mask_iou(path, UNIT, true_outlines(item), UNIT), 0.9, item)

    def test_the_outline_is_what_is_in_the_picture(self) -> None:
        for seed, kind in enumerate(KINDS):
            points, _ = shape_polygon(random.Random(seed), kind, 200)
            width, height = max(x for x, _ in points), max(y for _, y in points)
            image = Image.new("RGB", (CROP, CROP))
            draw_polygon(image, points, 50, 50, (255, 255, 255), hollow=True)
            item = Item(kind, "white", UNIT, outline=[(x / width, y / height) for x, y in points], hollow=True)
            box = (50 / CROP, 50 / CROP, (50 + width) / CROP, (50 + height) / CROP)
            drawn = np.asarray(image)[..., 0] > 127
            rows, columns = np.indices(drawn.shape)
            x, y = (columns + 0.5) / CROP, (rows + 0.5) / CROP
            inside = np.zeros_like(drawn)
            for outline in true_outlines(item):
                vertices = [(box[0] + a * (box[2] - box[0]), box[1] + b * (box[3] - box[1])) for a, b in outline]
                for (ax, ay), (bx, by) in zip(vertices, vertices[1:] + vertices[:1]):
                    crosses = (ay > y) != (by > y)
                    inside ^= crosses & (x < ax + (y - ay) * (bx - ax) / (by - ay if by != ay else 1))
            self.assertGreater((drawn & inside).sum() / (drawn | inside).sum(), 0.95, kind)

    def test_a_path_in_another_place_covers_less(self) -> None:
        square = [[(0, 0), (1, 0), (1, 1), (0, 1)]]
        path = "M 0 0 L 1 0 1 1 0 1 Z"
        self.assertGreater(mask_iou(path, UNIT, square, UNIT), 0.99)
        self.assertAlmostEqual(mask_iou(path, (0.5, 0, 1.5, 1), square, UNIT), 1 / 3, delta=0.01)
        self.assertAlmostEqual(mask_iou("M 0 0 L 1 0 1 1 Z", UNIT, square, UNIT), 1 / 2, delta=0.01)
        ring = path + " M 0.25 0.25 L 0.25 0.75 0.75 0.75 0.75 0.25 Z"
        self.assertAlmostEqual(mask_iou(ring, UNIT, square, UNIT), 3 / 4, delta=0.01)
        self.assertEqual(mask_iou("", UNIT, square, UNIT), 0)

    def test_a_hole_is_no_part_of_a_shape(self) -> None:
        square = Item("square", "red", UNIT, outline=[(0, 0), (1, 0), (1, 1), (0, 1)], hollow=True)
        outlined = path_text([str(part) for part in path_of(square)])
        self.assertGreater(mask_iou(outlined, UNIT, true_outlines(square), UNIT), 0.98)
        filled = path_text([str(part) for part in path_of(replace(square, hollow=False))])
        self.assertAlmostEqual(mask_iou(filled, UNIT, true_outlines(square), UNIT), 1 - HOLE**2, delta=0.01)

    def test_curves_and_relative_commands(self) -> None:
        circle = [polygons_of("M 0 0.5 A 0.5 0.5 0 1 1 1 0.5 A 0.5 0.5 0 1 1 0 0.5 Z")[0]]
        curved = "m 0 0.5 c 0 -0.276 0.224 -0.5 0.5 -0.5 s 0.5 0.224 0.5 0.5 C 1 0.776 0.776 1 0.5 1 S 0 0.776 0 0.5 z"
        self.assertGreater(mask_iou(curved, UNIT, circle, UNIT), 0.99)
        corners = "M 0 0 H 1 V 1 h -1 z"
        self.assertGreater(mask_iou(corners, UNIT, [[(0, 0), (1, 0), (1, 1), (0, 1)]], UNIT), 0.99)
        for parabola in ("M 0 0 Q 0.5 1 1 0 Z", "M 0 0 q 0.25 0.5 0.5 0.5 t 0.5 -0.5 Z"):
            below = max(y for _, y in polygons_of(parabola)[0])
            self.assertAlmostEqual(below, 0.5, delta=0.01)


class Tokens(unittest.TestCase):
    def setUp(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(TINY3 / "tokenizer.json"))
        self.config = load_config(TINY3)

    def test_every_path_is_of_tokens_that_the_grammar_allows(self) -> None:
        eos = self.config.tokenizer.eos_id
        numbers = path_numbers(self.tokenizer, self.config.text.vocab_size)
        self.assertEqual(sorted(numbers[~numbers.isnan()].tolist()), list(PATH_NUMBERS), "each number is one token")
        for item in shapes(60):
            grammar = PathGrammar(self.tokenizer, eos)
            said = said_path(path_of(item), self.tokenizer)
            for one in said:
                self.assertIn(one.token, grammar.allowed())
                self.assertNotEqual(one.token, eos)
                if one.number >= 0:
                    self.assertEqual(int(numbers[one.token]), one.number)
                grammar.advance(one.token)
            self.assertIn(eos, grammar.allowed())
            texts = [self.tokenizer.decode([one.token]) for one in said]
            self.assertEqual(texts, [str(part) for part in path_of(item)])

    def test_the_grammar_knows_arcs_and_signs(self) -> None:
        token = {text: self.tokenizer.token_to_id(text) for text in ("M", "A", "z", "-", "0", "1", "480", "960")}
        grammar = PathGrammar(self.tokenizer, self.config.tokenizer.eos_id)

        def read(*texts: str) -> None:
            for text in texts:
                self.assertIn(token[text], grammar.allowed(), text)
                grammar.advance(token[text])

        self.assertNotIn(token["A"], grammar.allowed(), "a path begins with a move")
        read("M", "-", "480")
        for text in ("A", "z"):
            self.assertNotIn(token[text], grammar.allowed(), "a number is missing")
        read("0", "A")
        self.assertNotIn(token["-"], grammar.allowed(), "radii have no sign")
        read("480", "960", "-", "0")
        self.assertNotIn(token["480"], grammar.allowed(), "flags are 0 or 1")
        read("1", "0", "480")
        self.assertNotIn(self.config.tokenizer.eos_id, grammar.allowed())
        read("480", "z", "A")

    def test_words_have_the_ids_that_they_have_in_tiny(self) -> None:
        tiny = Tokenizer.from_file(str(TINY3.parent / "tiny" / "tokenizer.json"))
        for text in ("How many red circles are there?", "The number is 42.", " segment", "960 480 12", "segment"):
            self.assertEqual(self.tokenizer.encode(text).ids, tiny.encode(text).ids, text)
        self.assertEqual(self.tokenizer.get_vocab_size(), self.config.text.vocab_size)

    def test_prompts(self) -> None:
        word = self.tokenizer.token_to_id("\u0120segment")
        name = self.tokenizer.encode("red star").ids
        self.assertEqual(prompt_ids("segment", "red star", self.tokenizer, self.config), [1, word, 2, *name, 3])
        question = self.tokenizer.encode("How many?").ids
        query = self.config.tokenizer.templates["query"]["prefix"]
        self.assertEqual(prompt_ids("query", "How many?", self.tokenizer, self.config), [*query, *question, 3])
        self.assertEqual(prompt_ids("query", "How many?", self.tokenizer, self.config, True), [*query, *question, 4])


class WhatQuestionsAreAbout(unittest.TestCase):
    def test_counted_things_are_pointed_at(self) -> None:
        from gapless_tools.prompts import count_task

        box = (0.0, 0.0, 10.0, 10.0)
        scene = Scene(100, 100, "plain", items=[Item("star", "red", box), Item("star", "blue", box)])
        for seed in range(20):
            task = count_task(random.Random(seed), scene)
            self.assertEqual(str(len(task.about[1])), task.answer)


if __name__ == "__main__":
    unittest.main()
