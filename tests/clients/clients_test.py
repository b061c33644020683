"""The unmodified clients of Moondream and OpenAI."""

import base64
import json
import struct
import time
import unittest
import urllib.error
import urllib.request
import zlib

import moondream
import openai
from PIL import Image

from serving import KEY, PICTURE, ROOT, Server

QUESTION = "How many circles are there?"
GOLDENS = ROOT / "tests/golden/tiny"
MODEL = "tiny"  # the id of the model that ships


def data_uri(picture=PICTURE):
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()


class ClientsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", KEY)
        cls.moondream = moondream.vl(endpoint=cls.server.url + "/v1", api_key=KEY)
        cls.openai = openai.OpenAI(base_url=cls.server.url + "/v1", api_key=KEY, max_retries=0)
        cls.picture = Image.open(PICTURE)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def chat(self, *parts, **more):
        content = [{"type": "image_url", "image_url": {"url": data_uri()}}, *parts]
        return self.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], **more
        )

    # Moondream

    def test_moondream_query(self):
        answer = self.moondream.query(self.picture, QUESTION)["answer"]
        self.assertTrue(answer.strip())
        streamed = self.moondream.query(self.picture, QUESTION, stream=True)["answer"]
        self.assertEqual("".join(streamed), answer)

    def test_moondream_query_without_picture(self):
        self.assertIn("answer", self.moondream.query(question="Hello?", settings={"max_tokens": 4}))

    def test_moondream_caption(self):
        for length in ("short", "normal"):
            try:
                caption = self.moondream.caption(self.picture, length=length)["caption"]
            except urllib.error.HTTPError as error:  # a model may lack one of the lengths
                self.assertEqual(error.code, 400)
                continue
            streamed = self.moondream.caption(self.picture, length=length, stream=True)["caption"]
            self.assertEqual("".join(streamed), caption)
            self.assertTrue(caption.strip())

    def test_moondream_detect_and_point(self):
        boxes = self.moondream.detect(self.picture, "circle", settings={"max_objects": 20})["objects"]
        points = self.moondream.point(self.picture, "circle")["points"]
        self.assertTrue(boxes)
        self.assertTrue(points)
        for box in boxes:
            self.assertTrue(0 <= box["x_min"] < box["x_max"] <= 1, box)
            self.assertTrue(0 <= box["y_min"] < box["y_max"] <= 1, box)
        for point in points:
            self.assertTrue(0 <= point["x"] <= 1 and 0 <= point["y"] <= 1, point)

    def test_moondream_errors_are_statuses(self):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.moondream.segment(self.picture, "circle")
        self.assertEqual(caught.exception.code, 400)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            list(self.moondream.query(self.picture, "  ", stream=True)["answer"])
        self.assertEqual(caught.exception.code, 400)
        wrong = moondream.vl(endpoint=self.server.url + "/v1", api_key="wrong")
        with self.assertRaises(urllib.error.HTTPError) as caught:
            wrong.query(self.picture, QUESTION)
        self.assertEqual(caught.exception.code, 401)

    def test_pictures_that_are_bombs(self):
        """Headers that promise far more than there is are refused before anything is allocated."""
        def chunk(kind, data):
            body = kind + data
            return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

        for width, height in ((65535, 65535), (2**31 - 1, 2**31 - 1), (0, 10)):
            header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
            png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
            with self.assertRaises(urllib.error.HTTPError) as caught:
                self._post("/v1/caption", {"image_url": base64.b64encode(png).decode()})
            self.assertEqual(caught.exception.code, 400)
        self.assertEqual(json.loads(self.server.get("/ready"))["status"], "ready")

    # OpenAI

    def test_openai_logprobs(self):
        question = {"type": "text", "text": QUESTION}
        options = {"logprobs": True, "top_logprobs": 3, "max_tokens": 12}
        choice = self.chat(question, **options).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual(bytes(b for t in tokens for b in t.bytes or []).decode(), choice.message.content)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].logprob, max(t.logprob for t in token.top_logprobs))
            self.assertIn(token.token, [t.token for t in token.top_logprobs])  # greedy
        streamed = [
            token
            for chunk in self.chat(question, stream=True, **options)
            if chunk.choices[0].logprobs
            for token in chunk.choices[0].logprobs.content
        ]
        self.assertEqual(streamed, tokens)
        words = choice.message.content.split()
        cut = self.chat(question, stop=words[-1], **options).choices[0]
        self.assertEqual(cut.logprobs.content, tokens[: len(cut.logprobs.content)])
        self.assertLess(len(cut.logprobs.content), len(tokens))
        with self.assertRaises(openai.BadRequestError):
            self.chat(question, top_logprobs=3)

    def test_openai_models(self):
        models = list(self.openai.models.list())
        self.assertEqual(self.openai.models.retrieve(models[0].id).id, models[0].id)

    def test_openai_answers_as_moondream_does(self):
        whole = self.chat({"type": "text", "text": QUESTION})
        text = whole.choices[0].message.content
        self.assertTrue(text.strip())
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        same = json.loads(self._post("/v1/query", {"question": QUESTION, "image_url": data_uri()}))
        self.assertEqual(same["answer"], text)

        stream = self.chat(
            {"type": "text", "text": QUESTION}, stream=True, stream_options={"include_usage": True}
        )
        streamed, usage, reason = "", None, None
        for chunk in stream:
            for choice in chunk.choices:
                streamed += choice.delta.content or ""
                reason = choice.finish_reason or reason
            usage = chunk.usage or usage
        self.assertEqual(streamed, text)
        self.assertEqual(reason, "stop")
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_openai_limits_stop_seed_and_choices(self):
        caption = {"moondream": {"skill": "caption"}}
        short = self.chat(extra_body=caption, max_tokens=50, max_completion_tokens=2)
        self.assertEqual(short.choices[0].finish_reason, "length")
        self.assertEqual(short.usage.completion_tokens, 2)
        settings = dict(temperature=1.0, seed=3, n=3, max_tokens=12)
        first = self.chat(extra_body=caption, **settings)
        again = self.chat(extra_body=caption, **settings)
        self.assertEqual(len(first.choices), 3)
        self.assertEqual(
            [choice.message.content for choice in first.choices],
            [choice.message.content for choice in again.choices],
        )
        text = self.chat(extra_body=caption).choices[0].message.content
        stop = text.split()[2]
        stopped = self.chat(extra_body=caption, stop=[stop]).choices[0].message.content
        self.assertEqual(stopped, text[: text.index(stop)])

    def ask(self, text, **more):
        """A question without a picture."""
        return self.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], **more
        )

    def token_ids(self, text):
        body = {"prompt": text, "add_special_tokens": False}
        return json.loads(self._post("/tokenize", body))["tokens"]

    def test_openai_a_stop_string_is_a_stop(self):
        caption = {"moondream": {"skill": "caption"}}
        whole = self.chat(extra_body=caption, logprobs=True).choices[0]
        tokens = [token.token for token in whole.logprobs.content]
        stop = tokens[3]
        first = tokens.index(stop)
        # The limit falls on the stop string's token, on those in flight behind it, and far away.
        for limit in (first + 1, first + 2, first + 3, 200):
            for stream in (False, True):
                options = dict(extra_body=caption, stop=[stop], max_tokens=limit, stream=stream)
                if not stream:
                    answer = self.chat(**options)
                    reason = answer.choices[0].finish_reason
                    self.assertEqual(answer.choices[0].message.content, "".join(tokens[:first]))
                    self.assertEqual(answer.usage.completion_tokens, first + 1)
                else:
                    reason = [c.choices[0].finish_reason for c in self.chat(**options)][-1]
                self.assertEqual(reason, "stop", (limit, stream))

    def test_openai_without_a_seed_answers_differ(self):
        options = dict(temperature=5, max_tokens=24, extra_body={"ignore_eos": True})  # all but even
        answers = {self.ask("Say anything.", **options).choices[0].message.content for _ in range(10)}
        self.assertGreater(len(answers), 8)
        seeded = {self.ask("Say anything.", seed=5, **options).choices[0].message.content for _ in range(3)}
        self.assertEqual(len(seeded), 1)
        several = self.ask("Say anything.", n=6, **options).choices
        self.assertGreater(len({choice.message.content for choice in several}), 4)
        # Choice i takes seed + i.
        seeded_choices = self.ask("Say anything.", n=3, seed=4, **options).choices
        self.assertEqual({seeded_choices[1].message.content}, seeded)

    def test_openai_penalties_and_biases(self):
        (x,), (y,) = self.token_ids("x"), self.token_ids("y")
        limits = dict(max_tokens=20)
        both = {str(x): 100, str(y): 100}
        self.assertEqual(self.ask("Say anything.", logit_bias={str(x): 100}, **limits).choices[0].message.content, "x" * 20)
        for penalty in (dict(frequency_penalty=2), dict(extra_body={"repetition_penalty": 3})):
            text = self.ask("Go on.", logit_bias=both, **penalty, **limits).choices[0].message.content
            self.assertEqual(set(text), {"x", "y"}, penalty)
        greedy = self.ask("Say anything.", **limits, extra_body={"ignore_eos": True}).choices[0].message.content
        varied = self.ask("Say anything.", **limits, presence_penalty=2, frequency_penalty=2, extra_body={"ignore_eos": True})
        self.assertNotEqual(varied.choices[0].message.content, greedy)
        # 300 biases, as OpenAI allows; -100 is a ban.
        banned = {str(token): -100 for token in [*self.token_ids(greedy), *range(20, 300)][:300]}
        other = self.ask("Say anything.", logit_bias=banned, **limits).choices[0].message.content
        self.assertFalse(set(self.token_ids(greedy)) & set(self.token_ids(other)) - {0})

    def test_openai_min_tokens_and_stop_token_ids(self):
        whole = self.chat(extra_body={"moondream": {"skill": "caption"}}, logprobs=True).choices[0]
        tokens = whole.logprobs.content
        stop = self.token_ids(tokens[2].token)
        self.assertEqual(len(stop), 1)
        extra = {"moondream": {"skill": "caption"}, "stop_token_ids": stop}
        stopped = self.chat(extra_body=extra)
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertEqual(stopped.usage.completion_tokens, [t.token for t in tokens].index(tokens[2].token))
        longer = self.chat(extra_body={"moondream": {"skill": "caption"}, "min_tokens": len(tokens) + 10}, max_tokens=len(tokens) + 20)
        self.assertGreaterEqual(longer.usage.completion_tokens, len(tokens) + 10)

    def test_openai_top_k_of_minus_one_is_off(self):
        options = dict(temperature=1.2, seed=9, max_tokens=12)
        self.assertEqual(
            self.ask("Say anything.", **options, extra_body={"top_k": -1}).choices[0].message.content,
            self.ask("Say anything.", **options).choices[0].message.content,
        )

    def test_openai_what_is_not_there_is_refused_by_name(self):
        cases = [
            ("reasoning_effort", dict(reasoning_effort="high")),
            ("modalities", dict(modalities=["text", "audio"])),
            ("tools", dict(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])),
            ("response_format", dict(extra_body={"response_format": {"type": "grammar"}})),
            ("guided_grammar", dict(extra_body={"guided_grammar": "root ::= x"})),
            ("structured_outputs", dict(extra_body={"structured_outputs": {"grammar": "root ::= x"}})),
            ("reasoning", dict(extra_body={"reasoning": True})),  # this model cannot
            ("variant", dict(extra_body={"variant": "mine"})),
            ("presence_penalty", dict(presence_penalty=5)),
            ("max_tokens", dict(max_tokens=100_000)),
        ]
        for field, options in cases:
            with self.assertRaises(openai.BadRequestError, msg=field) as caught:
                self.ask("Say anything.", **options)
            self.assertEqual(caught.exception.param, field)
        self.ask("Say anything.", max_tokens=2, modalities=["text"], user="u", store=False, service_tier="auto", metadata={})

    def test_moondream_max_tokens_are_cut(self):
        answer = self.moondream.query(question="Hello?", settings={"max_tokens": 100_000})["answer"]
        self.assertEqual(answer, self.moondream.query(question="Hello?")["answer"])

    def test_model_names(self):
        self.moondream.query(question="Hello?", settings={"max_tokens": 2})  # names none
        for name in ("moondream2", "moondream3-preview", "other"):
            client = moondream.vl(endpoint=self.server.url + "/v1", api_key=KEY, model=name)
            with self.assertRaises(urllib.error.HTTPError, msg=name) as caught:
                client.query(question="Hello?", settings={"max_tokens": 2})
            self.assertEqual(caught.exception.code, 404)
            error = json.loads(caught.exception.read())["error"]
            self.assertEqual((error["code"], error["param"]), ("model_not_found", "model"))

    def test_numbers_are_plain_decimals(self):
        body = self._post("/v1/detect", {"object": "circle", "image_url": data_uri()})
        self.assertNotRegex(body, r'[:,\[]-?\d[\d.]*[eE]')
        self.assertRegex(body, r'"x_min":0\.\d+')

    def test_an_answer_without_tokens_has_a_first_token_time(self):
        body = {"question": "Hello?", "logit_bias": {"0": 100}}  # the end token comes first
        answer = json.loads(self._post("/v1/query", body))
        self.assertEqual(answer["answer"], "")
        self.assertEqual(answer["metrics"]["output_tokens"], 0)
        self.assertGreater(answer["metrics"]["ttft_ms"], 0)
        self.assertGreater(answer["metrics"]["prefill_time_ms"], 0)

    def test_openai_skills_extension(self):
        answer = self.chat(extra_body={"moondream": {"skill": "detect", "object": "circle"}})
        objects = json.loads(answer.choices[0].message.content)["objects"]
        self.assertTrue(objects)
        self.assertLess(objects[0]["x_min"], objects[0]["x_max"])

    def chat_about(self, *urls, question="Which picture has more circles?", **more):
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        content = [*parts, {"type": "text", "text": question}]
        return self.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], **more
        )

    def test_openai_several_images(self):
        other = data_uri(GOLDENS / "tall.png")
        options = {"max_tokens": 12, "logprobs": True}
        one = self.chat_about(data_uri(), **options)
        both = self.chat_about(data_uri(), other, **options)
        self.assertEqual(both.usage.prompt_tokens, one.usage.prompt_tokens + 729)
        self.assertTrue(both.choices[0].message.content.strip())
        # From the prefix cache: the same answer, token by token.
        again = self.chat_about(data_uri(), other, **options)
        self.assertEqual(again.choices[0].logprobs, both.choices[0].logprobs)
        streamed = self.chat_about(data_uri(), other, stream=True, **options)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        self.assertEqual(text, both.choices[0].message.content)
        # Which is first matters.
        swapped = self.chat_about(other, data_uri(), **options)
        self.assertNotEqual(swapped.choices[0].logprobs, both.choices[0].logprobs)

    def test_openai_several_images_that_cannot_be(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat_about(data_uri(), "data:image/jpeg;base64,/9j/4AAQ")
        self.assertIn("image 2 of 2", str(caught.exception))
        self.assertEqual(caught.exception.code, "image_decode_failed")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat_about(data_uri(), data_uri(), data_uri())
        self.assertIn("3 images of 729 positions each", str(caught.exception))
        self.assertEqual(caught.exception.code, "does_not_fit")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat_about(*[data_uri()] * 1000)
        self.assertIn("at most 8 images", str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat_about(data_uri(), data_uri(), extra_body={"moondream": {"skill": "detect", "object": "dog"}})
        self.assertIn("exactly one image", str(caught.exception))

    def test_openai_errors_have_their_types(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat({"type": "text", "text": "a"}, extra_body={"response_format": {"type": "xml"}})
        self.assertIn("response_format", str(caught.exception))
        with self.assertRaises(openai.NotFoundError):
            self.openai.chat.completions.create(model="other", messages=[{"role": "user", "content": "a"}])
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong").models.list()
        broken = [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4AAQ"}},
                  {"type": "text", "text": "a"}]
        with self.assertRaises(openai.BadRequestError):
            self.openai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": broken}], stream=True
            )

    def test_request_ids_go_from_end_to_end(self):
        raw = self.openai.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello?"}],
            max_tokens=2,
            extra_headers={"x-request-id": "trace-me-1"},
        )
        self.assertEqual(raw.headers["x-request-id"], "trace-me-1")
        self.assertEqual(raw.parse().id, "chatcmpl-trace-me-1")
        for _ in range(100):  # the line is written after the answer
            if "request_id=trace-me-1" in self.server.text():
                break
            time.sleep(0.02)
        self.assertIn("request_id=trace-me-1", self.server.text())

    def test_metrics_know_the_device(self):
        self.moondream.query(question="Hello?", settings={"max_tokens": 4})
        text = self.server.get("/metrics")
        for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket",
                     'gapless_steps_total{model_name="tiny",device="cpu",kind="decode"}'):
            self.assertIn(name, text)
        self.assertRegex(text, r'gapless_device_seconds_total\{[^}]*state="busy"\} \d')

    def _post(self, path, body):
        request = urllib.request.Request(
            self.server.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": "Bearer " + KEY},
        )
        with urllib.request.urlopen(request) as response:
            return response.read().decode()


if __name__ == "__main__":
    unittest.main()
