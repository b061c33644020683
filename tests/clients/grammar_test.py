"""Answers of a given form: every whole one is valid by others' judgement, and what cannot be held is refused by name."""

import base64
import json
import random
import re
import unittest
import urllib.error
import urllib.request
from decimal import Decimal

import jsonschema
import moondream
import openai
from PIL import Image

from random_schemas import random_schema
from serving import KEY, PICTURE, Server

CHOICES = ["circle", "square", "triangle"]


def frigates_schema():
    """Of the shape that Frigate asks reviews in: bounds of lists, strings and numbers, members that may be null."""
    def text(**bounds):
        return {"type": "string", "title": "T", "description": "Some words.", **bounds}

    def or_null(schema):
        return {"anyOf": [schema, {"type": "null"}], "default": None, "title": "T"}

    return {
        "type": "object",
        "title": "ReviewMetadata",
        "properties": {
            "observations": {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 160},
                             "minItems": 3, "maxItems": 15, "title": "Observations"},
            "title": text(maxLength=80),
            "scene": text(minLength=150, maxLength=600),
            "shortSummary": text(minLength=70, maxLength=120),
            "confidence": {"type": "number", "minimum": 0.0, "maximum": 1.0},
            "potential_threat_level": {"type": "integer", "minimum": 0, "maximum": 2},
            "other_concerns": or_null({"type": "array", "items": {"type": "string"}}),
            "time": or_null({"type": "string"}),
        },
        "required": ["observations", "title", "scene", "shortSummary", "confidence", "potential_threat_level"],
        "additionalProperties": False,
    }


class GrammarTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", KEY)
        cls.openai = openai.OpenAI(base_url=cls.server.url + "/v1", api_key=KEY, max_retries=0)
        cls.moondream = moondream.vl(endpoint=cls.server.url + "/v1", api_key=KEY)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, **more):
        answer = self.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Describe a circle."}], **more
        )
        return answer.choices[0].message.content, answer.choices[0].finish_reason

    def test_every_whole_answer_is_valid(self):
        rng = random.Random(20)
        num_whole = 0
        for seed in range(24):
            schema = random_schema(rng)
            wanted = {"type": "json_schema", "json_schema": {"name": "random", "schema": schema, "strict": bool(seed % 2)}}
            try:
                text, reason = self.ask(response_format=wanted, temperature=rng.choice([0, 1, 1.8]), seed=seed, max_tokens=300)
            except openai.BadRequestError as error:
                self.assertEqual(error.param, "response_format")
                continue
            if reason == "length":
                continue
            self.assertEqual(reason, "stop")
            self.assert_valid(text, schema)
            num_whole += 1
        self.assertGreaterEqual(num_whole, 16)

    def test_any_json_object(self):
        for seed in range(3):
            text, reason = self.ask(response_format={"type": "json_object"}, temperature=1, seed=seed, max_tokens=200)
            self.assertEqual(text.lstrip()[0], "{")
            if reason == "stop":
                self.assertIsInstance(json.loads(text), dict)

    def test_vllms_spellings(self):
        for seed in range(3):
            options = dict(temperature=1.5, seed=seed, max_tokens=40)
            self.assertIn(self.ask(extra_body={"guided_choice": CHOICES}, **options)[0], CHOICES)
            self.assertIn(self.ask(extra_body={"structured_outputs": {"choice": CHOICES}}, **options)[0], CHOICES)
            text, _ = self.ask(extra_body={"guided_regex": r"[A-F]{3}-\d{4}"}, **options)
            self.assertRegex(text, r"\A[A-F]{3}-\d{4}\Z")
            text, _ = self.ask(extra_body={"structured_outputs": {"json": {"type": "integer", "minimum": 10, "maximum": 99}}}, **options)
            self.assertTrue(10 <= json.loads(text) <= 99)

    def test_a_cut_answer_says_so(self):
        schema = {"type": "string", "minLength": 500}
        text, reason = self.ask(extra_body={"guided_json": schema}, max_tokens=60)
        self.assertEqual(reason, "length")
        self.assertTrue(text.lstrip().startswith('"'))

    def test_moondreams_query(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
        answer = self.moondream.query(question="How many?", settings={"json_schema": schema, "max_tokens": 60})["answer"]
        self.assertIn(json.loads(answer)["n"], range(10))

    def test_a_stream_is_the_whole_answer_in_pieces(self):
        options = dict(extra_body={"guided_regex": "(é|ß|語){4}x"}, temperature=1, seed=4, max_tokens=40)
        text, _ = self.ask(**options)
        self.assertTrue(re.fullmatch("(é|ß|語){4}x", text), text)
        stream = self.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Describe a circle."}], stream=True, **options
        )
        self.assertEqual("".join(event.choices[0].delta.content or "" for event in stream if event.choices), text)

    def test_what_cannot_be_held_is_refused_with_its_place(self):
        cases = [
            ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, "#/properties/tags: uniqueItems is not supported"),
            ({"pattern": "a(?=b)"}, "lookahead"),
            ({"$ref": "#/nowhere"}, "$ref"),
            ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no value satisfies"),
        ]
        cases.append(("{", "not valid JSON"))
        for schema, says in cases:
            wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask(response_format=wanted)
            self.assertEqual(caught.exception.param, "response_format")
            self.assertIn(says, str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(extra_body={"guided_regex": "("})
        self.assertEqual(caught.exception.param, "guided_regex")

    def test_what_contradicts_itself_is_refused(self):
        cases = [
            ("structured_outputs", {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            ("guided_choice", {"guided_regex": "a", "guided_choice": ["a"]}),
            ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
            ("structured_outputs", {"structured_outputs": {"grammar": "root ::= a"}}),
            ("json_schema", {"json_schema": {}, "moondream": {"json_schema": {}}}),
            ("min_tokens", {"guided_regex": "a", "min_tokens": 5}),
            ("ignore_eos", {"guided_regex": "a", "ignore_eos": True}),
            ("complete", {"complete": True}),
            ("guided_regex", {"guided_regex": "a", "moondream": {"skill": "point", "object": "circle"}}),
            ("response_format", {"response_format": {"type": "json_object"}, "moondream": {"skill": "detect", "object": "circle"}}),
            ("json_schema", {"json_schema": {}, "moondream": {"skill": "caption"}}),
        ]
        for param, fields in cases:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat_with_picture("circle", extra_body=fields)
            self.assertEqual(caught.exception.param, param, fields)
        for skill in ("point", "detect"):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                getattr(self.moondream, skill)(Image.open(PICTURE), "circle", settings={"json_schema": {"type": "object"}})
            self.assertEqual(caught.exception.code, 400)
            self.assertEqual(json.loads(caught.exception.read())["error"]["param"], "json_schema")

    def test_a_schema_beside_json_object_is_kept(self):
        text, _ = self.ask(extra_body={"response_format": {"type": "json_object", "schema": {"const": {"a": [1]}}}}, temperature=1.5)
        self.assertEqual(json.loads(text), {"a": [1]})

    def assert_valid(self, text, schema):
        """In decimals: of binary fractions jsonschema says that 0.56 is no multiple of 0.01."""
        value, exact = (json.loads(one, parse_float=Decimal) for one in (text, json.dumps(schema)))
        jsonschema.validate(value, exact, cls=jsonschema.Draft202012Validator)

    def chat_with_picture(self, text, **more):
        url = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
        return self.openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": content}], **more)

    # Text before the picture, a strict schema as Pydantic writes it, the lengths of its strings. Nothing else is set.
    def test_frigates_review(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "review_metadata", "strict": True, "schema": frigates_schema()}}
        choice = self.chat_with_picture("Describe the activity.", response_format=wanted).choices[0]
        self.assertIn(choice.finish_reason, ("stop", "length"))
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), frigates_schema())
        # With what may be set beside it in its configuration, a model that never comes to an end gives one too.
        for options in ({}, {"temperature": 1.5, "seed": 1}):
            choice = self.chat_with_picture("Describe the activity.", response_format=wanted, max_tokens=500,
                                            extra_body={"complete": True}, **options).choices[0]
            self.assertEqual(choice.finish_reason, "stop", choice.message.content)
            jsonschema.validate(json.loads(choice.message.content), frigates_schema())

    def test_complete_answers_are_whole_within_any_limit(self):
        rng = random.Random(5)
        num_whole = 0
        for seed in range(40):
            schema = random_schema(rng)
            fields = {"guided_json": schema, "complete": True}
            try:
                text, reason = self.ask(extra_body=fields, temperature=1.5, seed=seed, max_tokens=rng.randint(5, 90))
            except openai.BadRequestError as error:
                self.assertIn(error.param, ("complete", "guided_json"))
                continue
            self.assertEqual(reason, "stop", (schema, text))
            self.assert_valid(text, schema)
            num_whole += 1
        self.assertGreaterEqual(num_whole, 20)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(extra_body={"guided_json": {"type": "string", "minLength": 500}, "complete": True}, max_tokens=5)
        self.assertEqual(caught.exception.param, "complete")
        text, reason = self.ask(extra_body={"guided_regex": "x+", "complete": True}, max_tokens=5, temperature=1.5)
        self.assertEqual((set(text), reason), ({"x"}, "stop"))
        answer = self.moondream.query(question="How many?", settings={"json_schema": {"type": "object"}, "complete": True, "max_tokens": 9})
        self.assertIsInstance(json.loads(answer["answer"]), dict)

    def test_what_is_streamed_is_utf_8_wherever_it_is_cut(self):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Say anything."}], "stream": True,
                "guided_regex": "(é|ß|語|🙂){30}", "temperature": 1.5}
        for max_tokens in range(1, 12):
            request = urllib.request.Request(self.server.url + "/v1/chat/completions", headers={"Authorization": "Bearer " + KEY},
                                             data=json.dumps({**body, "max_tokens": max_tokens, "seed": max_tokens}).encode())
            with urllib.request.urlopen(request) as response:
                events = response.read().decode("utf-8").strip().split("\n\n")
            self.assertEqual(events.pop(), "data: [DONE]")
            choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
            text = "".join(choice["delta"].get("content") or "" for choice in choices)
            # A character that was cut off is at the end, as the mark for what is none.
            self.assertRegex(text, "\\A[éß語🙂]*\ufffd?\\Z")
            self.assertEqual(choices[-1]["finish_reason"], "length")


if __name__ == "__main__":
    unittest.main()
