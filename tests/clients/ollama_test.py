"""Ollama's own Python client, unmodified, and the calls that Frigate, Home Assistant and Open WebUI make."""

import asyncio
import base64
import json
import unittest
import urllib.error
import urllib.request

import jsonschema
import ollama

from serving import KEY, PICTURE, Server

MODEL = "tiny:latest"
QUESTION = "How many circles are there?"


class OllamaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", KEY, "--ollama-port", "0")
        cls.url = cls.server._wait_for(r"listening ollama_url=(\S+)")
        cls.headers = {"Authorization": "Bearer " + KEY}
        cls.client = ollama.Client(host=cls.url, headers=cls.headers)
        cls.picture = PICTURE.read_bytes()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, **more):
        return self.client.chat(MODEL, [{"role": "user", "content": QUESTION, "images": [self.picture]}], **more)

    def generate(self, **more):
        return self.client.generate(MODEL, QUESTION, images=[self.picture], **more)

    def read_json(self, path, body=None):
        request = urllib.request.Request(self.url + path, headers=self.headers,
                                         data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())

    def test_chat_and_generate_agree_with_the_other_apis(self):
        answer = self.ask()
        self.assertTrue(answer.message.content.strip())
        self.assertEqual(answer.message.role, "assistant")
        self.assertEqual(self.generate().response, answer.message.content)
        query = self.read_json("/v1/query", {"question": QUESTION,
                                             "image_url": base64.b64encode(self.picture).decode()})
        self.assertEqual(query["answer"], answer.message.content)

    def test_streams_add_up(self):
        whole = self.ask()
        parts = list(self.ask(stream=True))
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        lines = list(self.generate(stream=True))
        self.assertEqual("".join(line.response for line in lines), whole.message.content)
        self.assertEqual(lines[-1].done_reason, "stop")

    def test_counts_and_durations(self):
        answer = self.ask(options={"num_predict": 6})
        self.assertEqual(answer.load_duration, 0)
        self.assertGreater(answer.prompt_eval_count, 729)
        self.assertGreater(answer.prompt_eval_duration, 0)
        self.assertGreater(answer.eval_count, 0)
        parts = answer.prompt_eval_duration + answer.eval_duration
        self.assertGreaterEqual(answer.total_duration, parts)
        short = self.client.generate(MODEL, "Say anything.", options={"num_predict": 3, "temperature": 1.5, "seed": 1})
        self.assertEqual((short.done_reason, short.eval_count), ("length", 3))

    def test_options_change_the_answer_and_seeds_repeat_it(self):
        wild = {"temperature": 5.0, "num_predict": 12, "top_k": 500}
        first = self.client.generate(MODEL, "Say anything.", options={**wild, "seed": 1}).response
        self.assertEqual(self.client.generate(MODEL, "Say anything.", options={**wild, "seed": 1}).response, first)
        others = {self.client.generate(MODEL, "Say anything.", options={**wild, "seed": seed}).response for seed in range(2, 6)}
        self.assertTrue(others - {first})
        typed = ollama.Options(num_predict=2, num_ctx=2048, temperature=0.0, stop=["zzz"])
        self.assertEqual(self.client.generate(MODEL, "Say anything.", options=typed).eval_count, 2)

    def test_format_is_kept(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
        options = {"temperature": 1.5, "num_predict": 120}
        for seed in range(3):
            answer = self.generate(format=schema, options={**options, "seed": seed})
            self.assertEqual(answer.done_reason, "stop")
            self.assertIn(json.loads(answer.response)["n"], range(10))
        answer = self.generate(format="json", options={**options, "seed": 1})
        self.assertTrue(answer.response.lstrip().startswith("{"))

    # Its grammars' schemas without bounds of numbers, the options that it sets for local models.
    def test_frigates_review(self):
        schema = {"type": "object", "properties": {
            "observations": {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 60}, "minItems": 3, "maxItems": 4},
            "title": {"type": "string", "maxLength": 80}, "confidence": {"type": "number"}, "threat": {"type": "integer"},
            "time": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}},
            "required": ["observations", "title", "confidence", "threat"], "additionalProperties": False}
        answer = self.ask(format=schema, options={"temperature": 0.5, "repeat_penalty": 1.05, "presence_penalty": 0.3, "seed": 3})
        self.assertEqual(answer.done_reason, "stop", answer.message.content)
        jsonschema.validate(json.loads(answer.message.content), schema)

    # A task's fields, streamed, with what its settings send along.
    def test_home_assistants_task(self):
        schema = {"type": "object", "properties": {"circles": {"type": "integer", "description": "How many"},
                                                   "colour": {"type": "string", "enum": ["red", "green", "blue"]},
                                                   "certain": {"type": "boolean"}}, "required": ["circles", "colour"]}
        for closed in (False, True):
            options = {"num_ctx": 8192, "seed": 1, "temperature": 1.5}
            wanted = {**schema, "additionalProperties": False} if closed else schema
            parts = list(self.ask(format=wanted, stream=True, keep_alive="-1s", think=False, options=options))
            text = "".join(part.message.content for part in parts)
            self.assertTrue(text.lstrip().startswith("{"))
            # Names that the schema does not forbid may go on without an end.
            if closed or parts[-1].done_reason != "length":
                self.assertEqual(parts[-1].done_reason, "stop", text)
                jsonschema.validate(json.loads(text), wanted)

    def test_logprobs(self):
        answer = self.ask(logprobs=True, top_logprobs=2, options={"num_predict": 6})
        self.assertEqual("".join(token.token for token in answer.logprobs), answer.message.content)
        self.assertEqual(len(answer.logprobs[0].top_logprobs), 2)

    def test_the_model_is_listed_shown_and_loaded(self):
        listed = self.client.list().models
        self.assertEqual([model.model for model in listed], [MODEL])
        self.assertGreater(listed[0].size, 0)
        self.assertEqual(len(listed[0].digest), 64)
        running = self.client.ps().models
        self.assertEqual(running[0].digest, listed[0].digest)
        self.assertEqual(running[0].context_length, 2048)
        self.assertGreater(running[0].expires_at, listed[0].modified_at)
        shown = self.client.show(MODEL)
        self.assertEqual(shown.capabilities, ["completion", "vision"])
        self.assertEqual(shown.modelinfo["moondream.context_length"], 2048)
        self.assertIn(shown.details.quantization_level, ("F32", "BF16"), "what the processor computes in")
        self.assertEqual(self.client.generate(MODEL).done_reason, "load")
        self.assertEqual(self.client.chat(MODEL).done_reason, "load")

    def test_errors_are_texts_with_a_status(self):
        cases = [
            (404, "not served", lambda: self.client.chat("llama3", [{"role": "user", "content": "a"}])),
            (400, "#/items: uniqueItems", lambda: self.generate(format={"items": {"uniqueItems": True}})),
            (400, "think", lambda: self.ask(think=True)),
            (400, "tools", lambda: self.ask(tools=[{"type": "function", "function": {"name": "f"}}])),
            (400, "temperature", lambda: self.ask(options={"temperature": -1})),
            (400, "repeat_penalty", lambda: self.ask(options={"repeat_penalty": 50})),
            (400, "JPEG", lambda: self.client.generate(MODEL, "a", images=["/9j/4AAQ"])),
            (404, "nothing at this path", lambda: self.client.embed(MODEL, "a")),
        ]
        for status, text, call in cases:
            with self.assertRaises(ollama.ResponseError, msg=text) as caught:
                call()
            self.assertEqual(caught.exception.status_code, status, caught.exception)
            self.assertIn(text, caught.exception.error)
        with self.assertRaises(ollama.ResponseError) as caught:
            list(self.client.generate(MODEL, "a", images=["/9j/4AAQ"], stream=True))
        self.assertEqual(caught.exception.status_code, 400)
        with self.assertRaises(ollama.ResponseError) as caught:
            ollama.Client(host=self.url).list()
        self.assertEqual(caught.exception.status_code, 401)
        self.assertIn("API key", caught.exception.error)

    # What others send, in their words.

    def test_frigate_describes_an_object(self):
        """frigate/genai/plugins/ollama.py: show, then generate with these options and the crops as bytes."""
        client = ollama.Client(host=self.url, timeout=60, headers=self.headers)
        self.assertIsNone(client.show(MODEL).get("error"))
        options = {"temperature": 0.5, "repeat_penalty": 1.05, "presence_penalty": 0.3}
        result = client.generate(MODEL, QUESTION, images=[self.picture], options=options, keep_alive="1h")
        self.assertTrue(str(result["response"]).strip())
        self.assertEqual((result.get("done"), result.get("done_reason")), (True, "stop"))
        self.assertEqual(sorted(m.get("name", m.get("model", "")) for m in client.list().get("models", [])), [MODEL])

    def test_home_assistant_talks(self):
        """homeassistant/components/ollama: list, pull of a name that the list has not, then a streamed chat."""

        async def talk():
            client = ollama.AsyncClient(host=self.url, headers=self.headers)
            names = {model["model"] for model in (await client.list()).get("models", [])}
            self.assertIn(MODEL, names)
            self.assertEqual((await client.pull("tiny")).status, "success")
            messages = [
                ollama.Message(role="system", content="You are a voice assistant."),
                ollama.Message(role="user", content="Hello?"),
                ollama.Message(role="assistant", content="Yes.", thinking=None, tool_calls=None),
                ollama.Message(role="user", content=QUESTION, images=[ollama.Image(value=PICTURE)]),
            ]
            stream = await client.chat(model=MODEL, messages=messages, tools=None, stream=True, keep_alive=-1,
                                       options={"num_ctx": 8192.0}, think=False, format=None)
            text, roles = "", set()
            async for part in stream:
                message = part["message"]
                self.assertIsNone(message.get("tool_calls"))
                roles.add(message["role"])
                text += message.get("content") or ""
            self.assertEqual(roles, {"assistant"})
            self.assertTrue(text.strip())

        asyncio.run(talk())

    def test_open_webui_lists_and_streams(self):
        """Its backend reads bare JSON: version, tags merged with ps, a chat whose options hold what the user set."""
        self.assertRegex(self.read_json("/api/version")["version"], r"^\d+\.\d+\.\d+")
        tags = {model["model"]: model for model in self.read_json("/api/tags")["models"]}
        loaded = {model["name"]: model["expires_at"] for model in self.read_json("/api/ps")["models"]}
        self.assertEqual(set(tags), set(loaded))
        body = {"model": MODEL, "stream": True, "options": {"temperature": 0, "num_ctx": 2048, "seed": 3},
                "messages": [{"role": "user", "content": QUESTION,
                              "images": [base64.b64encode(self.picture).decode()]}]}
        request = urllib.request.Request(self.url + "/api/chat", data=json.dumps(body).encode(), headers=self.headers)
        with urllib.request.urlopen(request) as response:
            self.assertEqual(response.headers["Content-Type"], "application/x-ndjson")
            lines = [json.loads(line) for line in response]
        self.assertTrue(lines[-1]["done"])
        self.assertGreater(lines[-1]["eval_count"], 0)

    def test_openai_clients_find_the_name_with_its_tag(self):
        """Agents take Ollama's port for an OpenAI server, and its list for the names."""
        self.assertEqual(self.read_json("/v1/models/" + MODEL)["id"], "tiny")


if __name__ == "__main__":
    unittest.main()
