"""gapless batch: no answer is lost, none is asked twice, and no error looks like success."""

import base64
import json
import os
import pty
import resource
import signal
import subprocess
import time
import unittest

from cli import BINARY, GUARD_SECONDS, PICTURE, FolderTest, environment, gapless


def question(number, **fields):
    return {"id": f"q{number}", "skill": "query", "question": f"How many shapes? {number}",
            "settings": {"max_tokens": 4}, **fields}


class BatchTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "answers.jsonl"

    def batch(self, requests, *options, out=None, **more):
        return gapless("batch", "--device", "cpu", "--in", requests, "--out", out or self.out, *options, **more)

    def answers(self):
        text = self.out.read_text()
        self.assertTrue(text == "" or text.endswith("\n"), "whole lines only")
        return [json.loads(line) for line in text.splitlines()]

    def test_two_devices_give_the_answers_of_one_in_the_order_of_the_lines(self):
        requests = self.write_lines("requests.jsonl", [question(i, image=str(PICTURE)) if i % 3 else question(i) for i in range(24)])
        told = []
        for devices in ("cpu", "cpu,cpu"):
            out = self.folder / f"{devices}.jsonl"
            trace = self.folder / f"{devices}.json"
            done = gapless("batch", "--device", devices, "--in", requests, "--out", out, "--concurrency", 4, "--trace", trace)
            self.assertEqual(done.returncode, 0, done.stderr)
            told.append([{key: line[key] for key in ("id", "line", "answer")} for line in map(json.loads, out.read_text().splitlines())])
            processes = [event["args"]["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "process_name"]
            self.assertEqual(processes, ["cpu"] if devices == "cpu" else ["cpu:0", "cpu:1"])
        self.assertEqual(told[0], told[1])

    def test_every_way_to_name_a_picture(self):
        (self.folder / "shapes.png").write_bytes(PICTURE.read_bytes())
        encoded = base64.b64encode(PICTURE.read_bytes()).decode()
        ask = {"skill": "caption", "settings": {"max_tokens": 8}}
        requests = self.write_lines("requests.jsonl", [
            {"id": "path", "image": "shapes.png", **ask},
            {"id": "list", "images": ["shapes.png"], **ask},
            {"id": "data", "image_url": "data:image/png;base64," + encoded, **ask},
            "",
            {"image_url": encoded, **ask},
        ])
        done = self.batch(requests)
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = self.answers()
        self.assertEqual([(line["id"], line["line"]) for line in answers],
                         [("path", 1), ("list", 2), ("data", 3), (5, 5)])
        self.assertEqual(len({line["caption"] for line in answers}), 1)

    def test_errors_name_their_lines(self):
        requests = self.write_lines("requests.jsonl", [
            question(1),
            "no JSON",
            {"id": "nothing", "skill": "query"},
            {"id": "far", "skill": "caption", "image_url": "https://example.org/a.png"},
            {"id": "lost", "skill": "caption", "image": "lost.png"},
            {"id": [1], "skill": "query", "question": "a"},
            "[1]",
        ])
        done = self.batch(requests)
        self.assertEqual(done.returncode, 1)
        answers = self.answers()
        self.assertEqual([line["line"] for line in answers], [1, 2, 3, 4, 5, 6, 7])
        self.assertEqual([line["id"] for line in answers], ["q1", 2, "nothing", "far", "lost", 6, 7])
        self.assertIn("answer", answers[0])
        for line in answers[1:]:
            self.assertTrue(line["error"]["message"])
            self.assertIn(f"requests.jsonl, line {line['line']}: {line['error']['message']}", done.stderr)
        self.assertIn("7 answered, 6 failed", done.stderr)

    def test_the_input_is_not_the_output(self):
        text = json.dumps(question(1)) + "\n"
        requests = self.write("requests.jsonl", text)
        (self.folder / "link").symlink_to(requests)
        os.link(requests, self.folder / "other_name")
        for out in (requests, self.folder / "link", self.folder / "other_name"):
            for mode in ((), ("--overwrite",), ("--resume",)):
                done = self.batch(requests, *mode, out=out)
                self.assertNotEqual(done.returncode, 0, out)
                self.assertIn("the same file", done.stderr)
                self.assertEqual(requests.read_text(), text)

    def test_an_output_that_is_there_is_refused_or_replaced_when_asked_for(self):
        requests = self.write_lines("requests.jsonl", [question(1)])
        self.out.write_text("precious\n")
        done = self.batch(requests)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--resume", done.stderr)
        self.assertEqual(self.out.read_text(), "precious\n")
        # Also when it can only fail later: nothing is lost before there is something to write.
        done = self.batch(requests, "--overwrite", "--model", self.folder / "no_model")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(self.out.read_text(), "precious\n")
        done = self.batch(requests, "--overwrite")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line["id"] for line in self.answers()], ["q1"])
        self.assertNotEqual(self.batch(requests, "--overwrite", "--resume").returncode, 0)

    def test_a_run_that_cannot_start_leaves_no_output(self):
        requests = self.write_lines("requests.jsonl", [question(1)])
        done = self.batch(requests, "--model", self.folder / "no_model")
        self.assertNotEqual(done.returncode, 0)
        self.assertFalse(self.out.exists())
        done = self.batch(self.write("empty.jsonl", "\n"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.answers(), [])

    def test_two_lines_of_one_id_are_refused(self):
        for lines in ([question(1), question(2), question(1)], [question(1, id=2), question(1, id=None)]):
            done = self.batch(self.write_lines("requests.jsonl", lines))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"line {len(lines)}", done.stderr)
            self.assertFalse(self.out.exists())

    def test_resume_asks_what_has_no_answer(self):
        requests = self.write_lines("requests.jsonl", [question(1), question(2, id=None), "broken", question(4), question(5)])
        # Kept as they are, though no model would say so; the last one was cut off by a kill.
        kept = ['{"id": "q4", "line": 4, "answer": "kept"}', '{"id": 3, "line": 3, "error": {"code": "x", "message": "y"}}']
        self.out.write_text("\n".join(kept) + '\n{"id": "q5", "answ')
        done = self.batch(requests, "--resume")
        self.assertEqual(done.returncode, 1, "line 3 has an error")
        self.assertEqual(self.out.read_text().splitlines()[:2], kept)
        self.assertEqual([line["id"] for line in self.answers()], ["q4", 3, "q1", 2, "q5"])
        self.assertIn("5 answered, 1 failed", done.stderr)
        before = self.out.read_bytes()
        done = self.batch(requests, "--resume")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.out.read_bytes(), before)

    def test_resume_may_be_the_first_run(self):
        done = self.batch(self.write_lines("requests.jsonl", [question(1)]), "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line["id"] for line in self.answers()], ["q1"])

    def test_resume_refuses_what_it_cannot_continue(self):
        requests = self.write_lines("requests.jsonl", [question(1)])
        for text, reason in (("precious\n", "line 1"), ('{"id": "q1"}\n{"id": "other"}\n', "line 2")):
            self.out.write_text(text)
            done = self.batch(requests, "--resume")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(reason, done.stderr)
            self.assertEqual(self.out.read_text(), text)
        done = self.batch(requests, "--resume", out="/dev/null")
        self.assertNotEqual(done.returncode, 0)

    def test_a_full_disk_is_an_error(self):
        requests = self.write_lines("requests.jsonl", [question(number) for number in range(30)])
        done = self.batch(requests, out="/dev/full")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("No space left on device", done.stderr)

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))

        done = self.batch(requests, preexec_fn=small_files)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("answers.jsonl: File too large", done.stderr)
        self.assertIn("--resume goes on", done.stderr)
        some = self.answers()
        self.assertGreater(len(some), 0)
        self.assertLess(len(some), 30)
        # With room again, the rest follows.
        done = self.batch(requests, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.answers()[:len(some)], some)
        self.assertEqual([line["id"] for line in self.answers()], [f"q{number}" for number in range(30)])

    def start_long_run(self, requests, *options):
        """A run that has answered something and has more to do."""
        process = subprocess.Popen(
            [BINARY, "batch", "--device", "cpu", "--in", requests, "--out", self.out, "--concurrency", "4", *options],
            stderr=subprocess.PIPE, text=True, env=environment())
        deadline = time.monotonic() + GUARD_SECONDS
        while not (self.out.exists() and self.out.stat().st_size) and time.monotonic() < deadline:
            self.assertIsNone(process.poll(), "it ended too early")
            time.sleep(0.005)
        return process

    def test_an_interrupted_run_is_resumed_without_a_loss(self):
        ids = [f"q{number}" for number in range(400)]
        requests = self.write_lines("requests.jsonl", [
            question(number, settings={"max_tokens": 24, "ignore_eos": True}) for number in range(400)])
        # Once with everything in flight written, once at once, once without a chance to do anything.
        process = self.start_long_run(requests)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=GUARD_SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, errors)
        first = self.answers()
        self.assertLess(len(first), 400)
        self.assertIn(f"{len(first)} answered, 0 failed; {400 - len(first)} left", errors)
        size = self.out.stat().st_size
        process = subprocess.Popen([BINARY, "batch", "--device", "cpu", "--in", requests, "--out", self.out, "--resume"],
                                   stderr=subprocess.DEVNULL, env=environment())
        while self.out.stat().st_size == size:
            self.assertIsNone(process.poll())
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = self.batch(requests, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = self.answers()
        self.assertEqual([line["id"] for line in answers], ids, "each once, in order")
        self.assertEqual(answers[:len(first)], first)

    def test_two_runs_do_not_write_to_one_file(self):
        requests = self.write_lines("requests.jsonl", [
            question(number, settings={"max_tokens": 24, "ignore_eos": True}) for number in range(400)])
        process = self.start_long_run(requests)
        try:
            done = self.batch(requests, "--resume")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("another process writes to it", done.stderr)
        finally:
            process.kill()
            process.communicate()

    def test_a_pipe_is_not_flooded_and_a_terminal_sees_progress(self):
        requests = self.write_lines("requests.jsonl", [question(number) for number in range(200)])
        done = self.batch(requests)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\r", done.stderr)
        self.assertIn("200 answered, 0 failed", done.stderr)
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [BINARY, "batch", "--device", "cpu", "--in", requests, "--out", self.out, "--overwrite"],
            stderr=slave, env=environment())
        os.close(slave)
        shown = b""
        try:
            while piece := os.read(master, 4096):
                shown += piece
        except OSError:  # how the end of a terminal is told
            pass
        os.close(master)
        self.assertEqual(process.wait(), 0)
        self.assertRegex(shown.decode(), r"\r\d+ of 200 answered(, [\d:]+( s)? left)?")

    def test_help_has_the_format_of_a_line(self):
        text = gapless("batch", "--help").stdout
        for word in ("skill", "image_url", "question", "object", "docs/batch.md", "--resume"):
            self.assertIn(word, text)

    def test_the_examples_of_the_page_are_taken(self):
        page = (PICTURE.parents[3] / "docs/batch.md").read_text()
        lines = [line for block in page.split("```jsonl\n")[1:] for line in block.split("```")[0].splitlines()]
        requests = [line for line in lines if '"skill"' in line]
        self.assertGreaterEqual(len(requests), 4)
        for name in ("shapes.png", "small.png"):
            (self.folder / name).write_bytes((PICTURE.parent / name).read_bytes())
        done = self.batch(self.write_lines("requests.jsonl", requests))
        self.assertEqual(done.returncode, 0, done.stderr)
        fields = {field for line in self.answers() for field in line}
        shown = {field for line in lines if '"skill"' not in line for field in json.loads(line)} - {"error"}
        self.assertLessEqual(shown, fields)


if __name__ == "__main__":
    unittest.main()
