"""Answers of a given form from the command line."""

import json
import os
import unittest

from cli import PICTURE, FolderTest, gapless

QUERY = ("run", "query", "--device", "cpu", "--image", PICTURE, "--question", "What is in the picture?")

SCHEMA = {
    "type": "object",
    "properties": {
        "shape": {"enum": ["circle", "square", "triangle"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 20},
        "colours": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 12}, "minItems": 1, "maxItems": 3},
    },
    "required": ["shape", "count", "colours"],
    "additionalProperties": False,
}


class GrammarTest(FolderTest):
    def answer(self, *options):
        done = gapless(*QUERY, "--json", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_the_answer_is_json_of_the_schema(self):
        for options in ((), ("--temperature", "1.5", "--seed", "7")):
            answer = self.answer("--json-schema", self.write("schema.json", json.dumps(SCHEMA)), *options)
            self.assertEqual(answer["finish_reason"], "stop")
            value = json.loads(answer["answer"])
            self.assertEqual(set(value), {"shape", "count", "colours"})
            self.assertIn(value["shape"], SCHEMA["properties"]["shape"]["enum"])
            self.assertIn(value["count"], range(21))
            self.assertTrue(1 <= len(value["colours"]) <= 3)
            for colour in value["colours"]:
                self.assertTrue(1 <= len(colour) <= 12)

    def test_complete_answers_are_whole_within_their_limit(self):
        path = self.write("any.json", '{"type": "object"}')
        self.assertEqual(self.answer("--json-schema", path, "--max-tokens", "12", "--no-complete")["finish_reason"], "length")
        for more in ((), ("--complete",)):
            answer = self.answer("--json-schema", path, "--max-tokens", "12", *more)
            self.assertEqual(answer["finish_reason"], "stop")
            self.assertIsInstance(json.loads(answer["answer"]), dict)
        # A number that the model would never end.
        number = self.write("number.json", '{"type": "integer"}')
        self.assertIsInstance(json.loads(self.answer("--json-schema", number)["answer"]), int)
        done = gapless(*QUERY, "--regex", "x{400}", "--max-tokens", "4")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("complete cannot be kept", done.stderr)

    def test_a_schema_from_a_pipe(self):
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        os.write(write, b'{"enum": [7]}')
        os.close(write)
        done = gapless(*QUERY, "--json-schema", f"/dev/fd/{read}", pass_fds=(read,))
        self.assertEqual(done.stdout.strip(), "7", done.stderr)

    def test_a_form_that_is_empty_is_a_form(self):
        """As of a shell's variable that is not set: the answer must not be free then."""
        self.assertEqual(self.answer("--regex", "")["answer"], "")
        done = gapless(*QUERY, "--json-schema", "")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--json-schema", done.stderr)

    def test_nothing_but_the_answer_is_printed(self):
        self.assertEqual(gapless(*QUERY, "--choice", "yes").stderr, "")
        self.assertIn("memory of cpu", gapless(*QUERY, "--choice", "yes", "--verbose").stderr)

    def test_patterns_and_choices(self):
        self.assertRegex(self.answer("--regex", "[a-f]{3}[0-9]")["answer"], r"\A[a-f]{3}[0-9]\Z")
        self.assertIn(self.answer("--choice", "rot", "--choice", "grün")["answer"], ("rot", "grün"))

    def test_what_cannot_be_held_is_refused_with_its_place(self):
        cases = [
            (("--json-schema", self.write("unique.json", '{"items": {"uniqueItems": true}}')), "--json-schema cannot be held: #/items: uniqueItems"),
            (("--json-schema", self.write("broken.json", "{")), "--json-schema cannot be held"),
            (("--json-schema", self.folder / "absent.json"), "absent.json"),
            (("--regex", "("), "--regex cannot be held"),
            (("--regex", "a", "--choice", "b"), "cannot be combined"),
        ]
        for options, says in cases:
            done = gapless(*QUERY, *options)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
