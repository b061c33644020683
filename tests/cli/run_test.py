"""gapless run: where pictures come from, what settings do, and what a slip is answered with."""

import http.server
import json
import re
import subprocess
import threading
import unittest

from cli import BINARY, PICTURE, ROOT, FolderTest, environment, gapless

QUESTION = ("query", "--device", "cpu", "--question", "How many circles are there?")
SMALL = PICTURE.parent / "small.png"


class Pictures(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, directory=str(PICTURE.parent), **options)

    def do_GET(self):
        if self.path == "/away.png":
            self.send_response(302)
            self.send_header("Location", "/shapes.png")
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_):
        pass


class RunTest(FolderTest):
    def run_gapless(self, *options, **more):
        return gapless("run", *options, **more)

    def good(self, *options, **more):
        done = self.run_gapless(*options, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def bad(self, status, *options, says="", **more):
        done = self.run_gapless(*options, **more)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn(says, done.stderr)
        return done.stderr

    # ---- pictures

    def test_a_picture_from_standard_input(self):
        expected = self.good(*QUESTION, "--image", PICTURE)
        with open(PICTURE, "rb") as picture:
            self.assertEqual(self.good(*QUESTION, "--image", "-", stdin=picture), expected)
        self.bad(1, *QUESTION, "--image", "-", stdin=subprocess.DEVNULL, says="standard input: is empty")
        with open("/dev/zero", "rb") as endless:
            self.bad(1, *QUESTION, "--image", "-", stdin=endless, says="standard input: more than")
        with open(PICTURE, "rb") as picture:
            self.bad(1, *QUESTION, "--image", "-", "--image", "-", stdin=picture, says="one picture")
        with open(BINARY, "rb") as program:
            self.bad(1, *QUESTION, "--image", "-", stdin=program)

    def test_a_gif_is_told_by_its_bytes(self):
        """Which is told by the bytes, not by the name."""
        animated = ROOT / "src/image/testdata/animated.gif"
        (self.folder / "no.ending").write_bytes(animated.read_bytes())
        told = [json.loads(self.good("detect", "--device", "cpu", "--json", "--object", "circle", "--image", path))
                for path in (animated, self.folder / "no.ending")]
        self.assertEqual(told[0]["objects"], told[1]["objects"])
        self.bad(1, *QUESTION, "--image", self.write("cut.gif", "GIF89a"), says="GIF")

    def test_a_picture_by_its_address(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        expected = self.good(*QUESTION, "--image", PICTURE)
        self.assertEqual(self.good(*QUESTION, "--image", url + "/shapes.png"), expected)
        self.assertEqual(self.good(*QUESTION, "--image", url + "/away.png"), expected)
        self.bad(1, *QUESTION, "--image", url + "/lost.png", says=url + "/lost.png: status 404")
        self.bad(1, *QUESTION, "--image", "http://127.0.0.1:1/x.png", says="http://127.0.0.1:1/x.png: connecting")
        self.bad(1, *QUESTION, "--image", "http://no.such.host.invalid/x.png", says="resolving")
        self.bad(1, *QUESTION, "--image", "http://u:p@127.0.0.1/x.png", says="user name")

    def test_patterns(self):
        for name in ("b.png", "a.png", "c[1].png"):
            (self.folder / name).write_bytes(PICTURE.read_bytes())
        (self.folder / "small.png").write_bytes(SMALL.read_bytes())
        detect = ("detect", "--device", "cpu", "--object", "circle")
        one = self.good(*detect, "--image", PICTURE).splitlines()
        self.assertGreater(len(one), 0)
        several = self.good(*detect, "--image", "?.png", cwd=self.folder).splitlines()
        self.assertEqual(several, [f"{name}: {line}" for name in ("a.png", "b.png") for line in one])
        self.assertEqual(self.good(*detect, "--image", "c[1].png", cwd=self.folder).splitlines(), one, "a name, not a pattern")
        lines = self.good(*detect, "--json", "--image", "?.png", "--image", "small.png", cwd=self.folder).splitlines()
        self.assertEqual([json.loads(line)["image"] for line in lines], ["a.png", "b.png", "small.png"])
        self.assertNotIn("image", json.loads(self.good(*detect, "--json", "--image", PICTURE)))
        plain = self.good("caption", "--device", "cpu", "--image", "?.png", cwd=self.folder)
        self.assertEqual(self.good("caption", "--device", "cpu", "--stream", "--image", "?.png", cwd=self.folder), plain)
        self.bad(1, *detect, "--image", "*.gif", cwd=self.folder, says="*.gif: no file matches")
        self.bad(1, *detect, "--image", "?.png", "--annotate", "out.png", cwd=self.folder, says="--annotate takes one")
        # A question is about all of them.
        answer = json.loads(self.good(*QUESTION, "--json", "--image", "?.png", cwd=self.folder))
        alone = json.loads(self.good(*QUESTION, "--json", "--image", PICTURE))
        self.assertGreater(answer["metrics"]["input_tokens"], alone["metrics"]["input_tokens"] + 700)
        for number in range(9):
            (self.folder / f"many{number}.png").write_bytes(SMALL.read_bytes())
        self.bad(1, *QUESTION, "--image", "many*.png", cwd=self.folder, says="8 at most")

    def test_several_objects_are_answered_by_name(self):
        arguments = ("--device", "cpu", "--image", PICTURE)
        for skill, field in (("detect", "objects"), ("point", "points")):
            alone = [json.loads(self.good(skill, *arguments, "--json", "--object", name)) for name in ("circle", "square")]
            both = (skill, *arguments, "--object", "circle", "--object", "square")
            answers = json.loads(self.good(*both, "--json"))["answers"]
            self.assertEqual([answer["object"] for answer in answers], ["circle", "square"])
            self.assertEqual([answer[field] for answer in answers], [answer[field] for answer in alone])
            lines = self.good(*both).splitlines()
            self.assertEqual(len(lines), sum(max(1, len(answer[field])) for answer in alone))
            self.assertTrue(all(line.startswith(("circle: ", "square: ")) for line in lines), lines)

    def test_how_sure_it_is(self):
        arguments = ("--device", "cpu", "--image", PICTURE, "--object", "circle")
        for skill, field, num_bins in (("detect", "objects", 4), ("point", "points", 2)):
            plain = json.loads(self.good(skill, *arguments, "--json"))[field]
            self.assertGreater(len(plain), 0)
            for mode in ((), ("--host-masks",)):
                told = json.loads(self.good(skill, *arguments, "--json", "--confidence", *mode))[field]
                for one in told:
                    self.assertGreater(one.pop("confidence"), 0.5, "it was the likelier way")
                    bins = one.pop("bin_confidences")
                    self.assertEqual(len(bins), num_bins)
                    self.assertTrue(all(0 < share <= 1 for share in bins), bins)
                self.assertEqual(told, plain)
            lines = self.good(skill, *arguments, "--confidence").splitlines()
            self.assertTrue(all(re.search(r"  [01]\.\d{4}$", line) for line in lines), lines)
        self.bad(1, "caption", "--device", "cpu", "--image", PICTURE, "--confidence", says="confidence is told by point")

    def test_one_broken_picture_of_several_costs_its_own_answer(self):
        (self.folder / "a.png").write_bytes(PICTURE.read_bytes())
        (self.folder / "b.png").write_bytes(b"no picture")
        (self.folder / "c.png").write_bytes(PICTURE.read_bytes())
        done = self.run_gapless("caption", "--device", "cpu", "--image", "*.png", cwd=self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([line.split(":")[0] for line in done.stdout.splitlines()], ["a.png", "c.png"])
        self.assertIn("b.png", done.stderr)

    # ---- settings

    def test_settings_do_what_those_of_the_api_do(self):
        def answer(*options):
            return json.loads(self.good(*QUESTION, "--image", PICTURE, "--json", *options))

        usual = answer()
        tokens = usual["metrics"]["output_tokens"]
        longer = answer("--min-tokens", tokens + 5, "--max-tokens", tokens + 5)
        self.assertEqual(longer["metrics"]["output_tokens"], tokens + 5)
        self.assertNotEqual(answer("--logit-bias", "0=100", "--max-tokens", 4), usual)
        first = answer("--temperature", 1, "--seed", 7)["answer"]
        self.assertEqual(answer("--temperature", 1, "--seed", 7)["answer"], first)
        repeated = answer("--min-tokens", 40, "--max-tokens", 40)["answer"]
        for penalty in (("--repetition-penalty", 5), ("--frequency-penalty", 2), ("--presence-penalty", 2)):
            self.assertNotEqual(answer("--min-tokens", 40, "--max-tokens", 40, *penalty)["answer"], repeated, penalty)
        # Ends before the token that the answer would go on with.
        text = subprocess.run([BINARY, "run", *map(str, QUESTION), "--image", PICTURE, "--json"], capture_output=True, text=True,
                              env=environment()).stdout
        self.assertEqual(json.loads(text)["answer"], usual["answer"])
        stopped = [answer("--stop-token-id", token)["metrics"]["output_tokens"] for token in self.first_tokens(usual["answer"])]
        self.assertLess(min(stopped), tokens)

    def first_tokens(self, text):
        tokenizer = json.loads((PICTURE.parents[1] / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        words = text.split()
        return [vocabulary[word] for word in ("\u0120" + words[0], words[0], words[-1].strip("."), "\u0120" + words[-1].strip("."), ".")
                if word in vocabulary][:4]

    def test_settings_that_are_none(self):
        for options, word in (
            (("--logit-bias", "5"), "TOKEN=BIAS"), (("--logit-bias", "x=1"), "TOKEN=BIAS"), (("--logit-bias", "-1=1"), "TOKEN=BIAS"),
            (("--logit-bias", "5=1x"), "TOKEN=BIAS"), (("--stop-token-id", "-1"), "--stop-token-id"), (("--min-tokens", "x"), "--min-tokens"),
        ):
            self.assertIn(word, self.bad(2, *QUESTION, *options))
        for options, word in (
            (("--logit-bias", "5=1000"), "logit_bias"), (("--logit-bias", "5=nan"), "logit_bias"),
            (("--logit-bias", "5=1", "--logit-bias", "5=2"), "twice"), (("--logit-bias", "1000000=1"), "logit_bias"),
            (("--presence-penalty", "9"), "presence_penalty"), (("--repetition-penalty", "0"), "repetition_penalty"),
            (("--min-tokens", "9", "--max-tokens", "8"), "min_tokens"), (("--stop-token-id", "1000000"), "stop_token_ids"),
        ):
            self.assertIn(word, self.bad(1, *QUESTION, *options))

    # ---- slips, and how it ends

    def test_an_option_of_another_skill_is_a_slip(self):
        for skill, options, says in (
            ("caption", ("--question", "Where?"), "--question is for query, not for caption"),
            ("caption", ("--object", "circle"), "--object is for point and detect and segment, not for caption"),
            ("query", ("--question", "Where?", "--length", "normal"), "--length is for caption, not for query"),
            ("query", ("--question", "Where?", "--prompt", "x"), "--prompt is for chat and complete, not for query"),
            ("query", ("--question", "Where?", "--annotate", "out.png"), "--annotate is for point"),
            ("chat", ("--prompt", "x", "--question", "Where?"), "--question is for query, not for chat"),
            ("complete", ("--prompt", "x", "--system", "y"), "--system is for chat, not for complete"),
        ):
            images = () if skill in ("chat", "complete") else ("--image", PICTURE)
            self.bad(1, skill, "--device", "cpu", *images, *options, says=says, cwd=self.folder)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_values_that_are_none(self):
        for option, value in (("--model", ""), ("--kv-cache-gb", "nan"), ("--step-timeout", "nan"), ("--gpu-memory", "nan"),
                              ("--compute", "3"), ("--weights", "1"), ("--kv-cache", "x"), ("--json-schema", "")):
            self.bad(2, *QUESTION, option, value, says=option)
        self.assertNotIn("->", self.run_gapless("--help").stdout, "names are what is taken")
        self.bad(1, *QUESTION, "--model", "models/mistyped", "--offline", says="models/mistyped is no file or folder here; on the hub: ")
        self.bad(1, *QUESTION, "--image", "", says="--image names no file")
        empty = self.write("empty.png", "")
        self.bad(1, *QUESTION, "--image", empty, says=f"{empty}: is empty")

    def test_a_context_of_any_length_is_served_or_too_short_for_the_prompt(self):
        for length in (1, 2, 7):
            self.bad(1, *QUESTION, "--max-context", length, says=f"of the {length} positions of the context")
        self.good(*QUESTION, "--max-context", 40, "--max-tokens", 2)

    def test_slips_are_answered_with_what_was_meant(self):
        for arguments, meant in (
            (("sreve",), "serve"), (("server",), "serve"), (("benhc",), "bench"), (("bench", "decod"), "decode"),
            (("run", "query", "--temprature", "1"), "--temperature"), (("run", "query", "--max_tokens", "1"), "--max-tokens"),
            (("serve", "--drainlead", "1"), "--drain-lead"), (("run", "query", "--question=a", "--imgae=x"), "--image"),
        ):
            done = gapless(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"Did you mean '{meant}'?", done.stderr)
            self.assertEqual(done.stdout, "")
        self.bad(1, "ask", says="unknown skill 'ask'; there are query, caption, point, detect and segment; of text models chat and complete")
        for arguments in (("chat",), ("run", "query", "--xyzzy"), ()):
            done = gapless(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertNotIn("Did you mean", done.stderr)

    def test_exit_statuses_are_those_that_the_help_lists(self):
        text = gapless("--help")
        self.assertEqual(text.returncode, 0)
        for word in ("Exit status", "0 done", "1 it failed", "2 the command line", "74", "128 + N"):
            self.assertIn(word, text.stdout)
        self.assertEqual(gapless("--version").returncode, 0)
        self.assertEqual(gapless("info").returncode, 0)
        self.assertEqual(gapless("info", "--model", "/nowhere").returncode, 1)
        self.assertEqual(gapless("serve", "--config", "/nowhere").returncode, 2)


if __name__ == "__main__":
    unittest.main()
