"""gapless.batch(): files and dictionaries, errors by line, and what stops a run."""

import json
import os
import signal
import tempfile
import unittest
from pathlib import Path

import numpy
from PIL import Image

import gapless
from support import EXAMPLES, GUARD_SECONDS, PICTURE, QUESTION, StartedPython, lives, wait_until


class BatchTest(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)

    def test_pictures_of_every_kind_in_their_order(self):
        os.chdir(EXAMPLES)
        self.addCleanup(os.chdir, Path(__file__).parent)
        picture = Image.open(PICTURE)
        ask = {"skill": "query", "question": QUESTION}
        requests = [{"image": image, **ask} for image in
                    (PICTURE, "shapes.png", picture, numpy.asarray(picture), PICTURE.read_bytes(), gapless.encode_image(PICTURE).image_url)]
        requests.append({"images": ["shapes.png"], **ask})
        requests.append({"id": "none", "skill": "query", "question": "Hello?", "settings": {"max_tokens": 2}})
        answers = gapless.batch((request for request in requests), device="cpu")
        self.assertEqual([answer["answer"].strip() for answer in answers[:7]], ["2"] * 7)
        self.assertEqual([answer["id"] for answer in answers], [*range(1, 8), "none"])

    def test_lines_that_fail_have_their_error(self):
        answers = gapless.batch([{"skill": "caption", "image": "/nothing/there.png"},
                                 {"skill": "sing"},
                                 {"skill": "caption", "image": PICTURE, "length": "short"}], device="cpu")
        self.assertEqual(["error" in answer for answer in answers], [True, True, False])
        self.assertEqual(gapless.batch([{"skill": "sing"}], device="cpu")[0]["line"], 1)

    def test_files_and_going_on(self):
        source, out = self.folder / "requests.jsonl", self.folder / "answers.jsonl"
        lines = [{"id": str(i), "skill": "query", "question": f"How many? {i}", "settings": {"max_tokens": 2}} for i in range(4)]
        source.write_text("\n".join(map(json.dumps, lines[:2])) + "\n\n")
        first = gapless.batch(source, out, device="cpu")
        self.assertEqual([answer["id"] for answer in first], ["0", "1"])
        with self.assertRaisesRegex(gapless.BatchError, "--resume"):
            gapless.batch(source, out, device="cpu")
        with self.assertRaisesRegex(gapless.BatchError, "nothing/there"):
            gapless.batch(source, out, model="nothing/there/at-all", overwrite=True)
        self.assertEqual(len(out.read_text().splitlines()), 2, "nothing is lost")
        source.write_text("\n".join(map(json.dumps, lines)))
        both = gapless.batch(source, str(out), device="cpu", resume=True)
        self.assertEqual([answer["id"] for answer in both], ["0", "1", "2", "3"])
        self.assertEqual(both[:2], first)
        self.assertEqual([json.loads(line) for line in out.read_text().splitlines()], both)
        self.assertEqual(len(gapless.batch(lines[:1], out, device="cpu", overwrite=True)), 1)

    def test_what_stops_a_run(self):
        for requests, arguments, said in (([{"id": 1, "skill": "query"}, {"id": 1, "skill": "query"}], {}, "id"),
                                          (self.folder / "nothing.jsonl", {}, "nothing.jsonl"),
                                          ([{"skill": "query", "question": "a"}], {"model": "nothing/there/at-all"}, "nothing/there/at-all"),
                                          ([{"skill": "query", "question": "a"}], {"out": str(self.folder)}, str(self.folder)),
                                          ([{"skill": "query", "question": "a"}], {"options": ["--nonsense"]}, "--nonsense")):
            with self.assertRaises(gapless.BatchError) as caught:
                gapless.batch(requests, **{"device": "cpu", **arguments})
            self.assertIn(said, str(caught.exception))
        self.assertEqual(gapless.batch([], device="cpu"), [])

    def test_a_run_dies_with_its_process_and_keeps_what_it_has(self):
        out = self.folder / "answers.jsonl"
        with StartedPython(f"""
import gapless, gapless._batch, json, os, signal, subprocess, threading, time
started = subprocess.Popen
def popen(*arguments, **options):
    process = started(*arguments, **options)
    print(json.dumps(process.pid), flush=True)
    return process
gapless._batch.subprocess.Popen = popen
def kill():
    while not os.path.exists({str(out)!r}) or os.path.getsize({str(out)!r}) == 0:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill).start()
gapless.batch([{{"skill": "query", "question": "Tell me a story.", "settings": {{"max_tokens": 400, "ignore_eos": True}}}}] * 400,
              {str(out)!r}, device="cpu", concurrency=2)
""") as python:
            pid = python.line()
            python.process.wait(timeout=GUARD_SECONDS)
            wait_until("the run's end", lambda: not lives(pid))
        answers = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertTrue(0 < len(answers) < 400, len(answers))


if __name__ == "__main__":
    unittest.main()
