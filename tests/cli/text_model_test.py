"""Text models through the command line and the HTTP APIs: the small random Llama and Qwen3 of tests/golden/llama, whose
answers transformers has given (tools/llama_goldens.py)."""

import json
import shutil
import struct
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from cli import PICTURE, FolderTest, Serving, gapless

MODELS = Path(__file__).resolve().parents[1] / "golden/llama"
QWEN, LLAMA, BASE = MODELS / "qwen3", MODELS / "llama-grouped-scaled-tied", MODELS / "llama"


def chats(model):
    return json.loads((model / "chat.json").read_text())


class ServedModels(unittest.TestCase):
    @classmethod
    def models(cls, folder):
        return (QWEN, LLAMA, BASE)

    @classmethod
    def setUpClass(cls):
        cls.urls = {}
        folder = Path(tempfile.mkdtemp(prefix="gapless-cli-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        for model in cls.models(folder):
            # In float32, as the goldens are.
            server = Serving("--model", model, "--compute", "float32", log_path=folder / (model.name + ".log"))
            cls.addClassCleanup(server.__exit__)
            server.wait_for(r" ready model=")
            cls.urls[model] = f"http://127.0.0.1:{server.port()}"

    def send(self, model, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.urls[model] + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def good(self, model, path, **body):
        status, text = self.send(model, path, body)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def bad(self, model, path, says, param=None, **body):
        status, text = self.send(model, path, body)
        self.assertEqual(status, 400, text)
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else error
        self.assertIn(says, message)
        if param:
            self.assertEqual(error["param"], param)

    def chat(self, model, messages, **more):
        return self.good(model, "/v1/chat/completions", messages=messages, **more)


class ToolsTest(ServedModels):
    """Prompts with tools are long, in tokens that are little more than letters: the same models with a longer context."""

    @classmethod
    def models(cls, folder):
        cls.qwen, cls.llama, cls.base = copies = [folder / model.name for model in (QWEN, LLAMA, BASE)]
        for model, copy in zip((QWEN, LLAMA, BASE), copies):
            shutil.copytree(model, copy)
            config = json.loads((copy / "config.json").read_text())
            (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
        # The small tokenizer has the tokens of thoughts, and not those of calls.
        tokenizer = (cls.qwen / "tokenizer.json").read_text()
        (cls.qwen / "tokenizer.json").write_text(tokenizer.replace("think>", "tool_call>"))
        return copies

    TOOLS = [
        {"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
            "additionalProperties": False}}} for name in ("weather", "time")]
    ASK = [{"role": "user", "content": "What is it like in Rome?"}]

    def expect_call(self, call, names):
        self.assertTrue(call["id"].startswith("call_"))
        self.assertEqual(call["type"], "function")
        self.assertIn(call["function"]["name"], names)
        arguments = json.loads(call["function"]["arguments"])
        self.assertEqual(list(arguments), ["city"])
        self.assertIn(arguments["city"], ("Paris", "Rome"))

    def test_a_required_call_is_one_of_the_tools(self):
        named = {"type": "function", "function": {"name": "time"}}
        for model in (self.qwen, self.llama):
            for choice, names in (("required", ("weather", "time")), (named, ("time",))):
                for seed in range(3):
                    answer = self.chat(model, self.ASK, tools=self.TOOLS, tool_choice=choice, temperature=1.0,
                                       seed=seed, max_tokens=200, complete=True)
                    chosen = answer["choices"][0]
                    self.assertEqual(chosen["finish_reason"], "tool_calls", chosen)
                    self.assertIsNone(chosen["message"]["content"])
                    self.assertEqual(len(chosen["message"]["tool_calls"]), 1)
                    self.expect_call(chosen["message"]["tool_calls"][0], names)

    def test_a_required_call_streams(self):
        for model in (self.qwen, self.llama):
            status, text = self.send(model, "/v1/chat/completions", {
                "messages": self.ASK, "tools": self.TOOLS, "tool_choice": "required", "stream": True, "max_tokens": 200,
                "complete": True})
            self.assertEqual(status, 200, text)
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            choices = [event["choices"][0] for event in events]
            calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
            self.assertEqual([call["index"] for call in calls], [0])
            self.expect_call(calls[0], ("weather", "time"))
            self.assertEqual("".join(choice["delta"].get("content") or "" for choice in choices), "")
            self.assertEqual(choices[-1]["finish_reason"], "tool_calls")

    def biased_to_call(self):
        """A bias under which random weights write Qwen's marker wherever text may come."""
        tokens = json.loads((self.qwen / "tokenizer.json").read_text())["added_tokens"]
        marker = next((token["id"] for token in tokens if token["content"] == "<tool_call>"), None)
        self.assertIsNotNone(marker)
        return {str(marker): 100}

    def test_a_call_that_the_model_begins_is_held(self):
        for seed in range(4):
            answer = self.chat(self.qwen, self.ASK, tools=self.TOOLS, temperature=1.0, seed=seed, max_tokens=600,
                               logit_bias=self.biased_to_call(), chat_template_kwargs={"enable_thinking": False})
            calls = answer["choices"][0]["message"].get("tool_calls", [])
            self.assertGreaterEqual(len(calls), 1, answer)
            for call in calls:
                self.expect_call(call, ("weather", "time"))

    def test_what_cannot_be_held_is_refused_where_it_must_be(self):
        unique = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
        for strict in (False, True):
            tools = [{"type": "function", "function": {"name": "a", "strict": strict, "parameters": unique}}]
            if strict:
                self.bad(self.qwen, "/v1/chat/completions", "uniqueItems", "tools", messages=self.ASK, tools=tools)
            else:
                self.chat(self.qwen, self.ASK, tools=tools, max_tokens=4)

    def test_ollamas_chats_have_tools(self):
        call = {"function": {"name": "time", "arguments": {"city": "Rome"}}}
        talk = [*self.ASK, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": "time", "content": "Noon."}]

        def ask(messages, **more):
            return self.good(self.qwen, "/api/chat", messages=messages, stream=False, tools=self.TOOLS, **more)

        longer = ask(talk, options={"num_predict": 4})["prompt_eval_count"]
        self.assertGreater(longer, ask(self.ASK, options={"num_predict": 4})["prompt_eval_count"] + 10)
        # As a chat with the same history has it.
        told = {"id": "1", "type": "function", "function": {"name": "time", "arguments": '{"city": "Rome"}'}}
        same = self.chat(self.qwen, [*self.ASK, {"role": "assistant", "content": "", "tool_calls": [told]},
                                     {"role": "tool", "tool_call_id": "1", "content": "Noon."}],
                         tools=self.TOOLS, max_tokens=4)
        self.assertEqual(longer, same["usage"]["prompt_tokens"])
        self.bad(self.base, "/api/chat", "tools", messages=self.ASK, tools=self.TOOLS)
        self.bad(self.qwen, "/api/chat", "function", messages=[
            *self.ASK, {"role": "assistant", "tool_calls": [5]}, *self.ASK], tools=self.TOOLS)

    def test_tools_are_shown_unless_none_is_wanted(self):
        for model in (self.qwen, self.llama):
            def prompt_tokens(**more):
                return self.chat(model, self.ASK, max_tokens=4, **more)["usage"]["prompt_tokens"]

            plain = prompt_tokens()
            self.assertEqual(prompt_tokens(tools=self.TOOLS, tool_choice="none"), plain)
            self.assertEqual(prompt_tokens(tools=[]), plain)
            self.assertGreater(prompt_tokens(tools=self.TOOLS), plain + 50)
            self.assertEqual(prompt_tokens(tools=self.TOOLS), prompt_tokens(tools=self.TOOLS, tool_choice="auto"))
            # Random weights call nothing by themselves.
            message = self.chat(model, self.ASK, tools=self.TOOLS, max_tokens=8)["choices"][0]["message"]
            self.assertNotIn("tool_calls", message)
            self.assertIsInstance(message["content"], str)

    def test_calls_and_their_answers_are_read(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"city": "Rome"}'}}
        talk = [*self.ASK, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "Noon."}]
        for model in (self.qwen, self.llama):
            with_answer = self.chat(model, talk, tools=self.TOOLS, max_tokens=4)["usage"]["prompt_tokens"]
            without = self.chat(model, self.ASK, tools=self.TOOLS, max_tokens=4)["usage"]["prompt_tokens"]
            self.assertGreater(with_answer, without + 10)
        two = [*self.ASK, {"role": "assistant", "tool_calls": [call, call]}, talk[-1]]
        self.chat(self.qwen, two, tools=self.TOOLS, max_tokens=4)
        self.bad(self.llama, "/v1/chat/completions", "takes one call at a time", messages=two, tools=self.TOOLS)

    def test_tools_that_cannot_be_are_refused(self):
        def bad(says, param, model=self.qwen, **body):
            self.bad(model, "/v1/chat/completions", says, param, messages=body.pop("messages", self.ASK), **body)

        bad("there are no tools", "tool_choice", tool_choice="required")
        bad("is none of tools", "tool_choice", tools=self.TOOLS,
            tool_choice={"type": "function", "function": {"name": "x"}})
        bad("may be none, auto, required", "tool_choice", tools=self.TOOLS, tool_choice="any")
        bad("must be a list", "tools", tools=5)
        bad("must be objects of type function", "tools", tools=[{"type": "function"}])
        bad("must be objects of type function", "tools", tools=[{"type": "function", "function": {"name": 'a"b'}}])
        bad("names 'time' twice", "tools", tools=[self.TOOLS[1]] * 2)
        bad("no JSON Schema", "tools", tools=[{"type": "function", "function": {"name": "a", "parameters": 5}}])
        bad("for another form of the answer", "tool_choice", tools=self.TOOLS, tool_choice="required",
            response_format={"type": "json_object"})
        bad("pattern", "tools", tools=[{"type": "function", "function": {"name": "a", "parameters": {
            "type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}}}],
            tool_choice="required")
        bad("no JSON object", "messages", messages=[*self.ASK, {"role": "assistant", "tool_calls": [
            {"type": "function", "function": {"name": "a", "arguments": "5"}}]}, *self.ASK], tools=self.TOOLS)
        bad("was not trained to call any", "tools", self.base, tools=self.TOOLS)


class ServedTest(ServedModels):
    def test_answers_are_those_of_transformers(self):
        for model in (QWEN, LLAMA):
            for case in chats(model):
                with self.subTest(model=model.name, messages=case["messages"]):
                    answer = self.chat(model, case["messages"], max_tokens=len(case["answer"]))
                    self.assertEqual(answer["usage"]["prompt_tokens"], len(case["ids"]))
                    self.assertEqual(answer["usage"]["completion_tokens"], len(case["answer"]))
                    choice = answer["choices"][0]
                    self.assertEqual(choice["message"]["content"], case["text"])
                    self.assertEqual(choice["finish_reason"], "length")

    def test_a_stream_is_the_same_text(self):
        case = chats(QWEN)[2]
        status, text = self.send(
            QWEN,
            "/v1/chat/completions",
            {"messages": case["messages"], "max_tokens": len(case["answer"]), "stream": True},
        )
        self.assertEqual(status, 200)
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        pieces = [event["choices"][0]["delta"].get("content", "") for event in events if event["choices"]]
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(pieces), case["text"])

    def test_logprobs(self):
        case = chats(QWEN)[0]
        answer = self.chat(QWEN, case["messages"], max_tokens=6, logprobs=True, top_logprobs=3)
        tokens = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(tokens), 6)
        for token in tokens:
            self.assertLessEqual(token["logprob"], 0)
            self.assertEqual(len(token["top_logprobs"]), 3)
            self.assertEqual(token["top_logprobs"][0]["logprob"], token["logprob"])  # greedy

    def test_choices_and_stop_ids(self):
        case = chats(QWEN)[0]
        both = self.chat(QWEN, case["messages"], max_tokens=4, n=2)
        self.assertEqual(both["choices"][0]["message"], both["choices"][1]["message"])
        ended = self.chat(QWEN, case["messages"], max_tokens=12, stop_token_ids=[case["answer"][3]])
        self.assertEqual(ended["choices"][0]["finish_reason"], "stop")
        self.assertEqual(ended["usage"]["completion_tokens"], 3)

    def test_a_model_may_be_told_not_to_think(self):
        messages = chats(QWEN)[0]["messages"]
        usual = self.chat(QWEN, messages, max_tokens=1)["usage"]["prompt_tokens"]
        told = self.chat(QWEN, messages, max_tokens=1, chat_template_kwargs={"enable_thinking": False})
        # <think>, two newlines, </think>, two newlines, of which byte-level BPE makes one token each here.
        self.assertEqual(told["usage"]["prompt_tokens"], usual + 6)
        self.chat(QWEN, messages, max_tokens=1, chat_template_kwargs={"enable_thinking": True})
        chat = "/v1/chat/completions"
        self.bad(LLAMA, chat, "does not", messages=messages, chat_template_kwargs={"enable_thinking": True})
        self.bad(QWEN, chat, "chat_template_kwargs", messages=messages, chat_template_kwargs={"tools_in_user_message": 1})
        self.bad(QWEN, chat, "enable_thinking", messages=messages, chat_template_kwargs={"enable_thinking": 1})

    def test_completions_go_on_with_the_text_as_it_is(self):
        for model, special in ((LLAMA, 1), (QWEN, 0)):
            prompt = " The  circle\n"
            tokens = self.good(model, "/tokenize", prompt=prompt)
            answer = self.good(model, "/v1/completions", prompt=prompt, max_tokens=3)
            self.assertEqual(answer["usage"]["prompt_tokens"], tokens["count"])
            bare = self.good(model, "/tokenize", prompt=prompt, add_special_tokens=False)
            self.assertEqual(tokens["count"] - bare["count"], special)
            self.assertEqual(answer["object"], "text_completion")

    def test_completions_tell_the_chats_log_probabilities_in_their_own_form(self):
        told = self.good(QWEN, "/v1/completions", prompt="The circle", max_tokens=4, logprobs=3)["choices"][0]["logprobs"]
        self.assertEqual(sorted(map(len, told.values())), [4, 4, 4, 4])
        for token, logprob, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"]):
            self.assertEqual(top[token], logprob)
            self.assertIn(len(top), (3, 4))
            self.assertEqual(logprob, max(top.values()))  # greedy
        self.assertEqual(told["text_offset"][0], 0)
        self.assertEqual(told["text_offset"], sorted(told["text_offset"]))
        self.assertIsNone(self.good(QWEN, "/v1/completions", prompt="The circle", max_tokens=4)["choices"][0]["logprobs"])

    def test_a_model_without_a_template_completes_but_does_not_chat(self):
        self.assertEqual(self.good(BASE, "/v1/completions", prompt="The", max_tokens=2)["usage"]["completion_tokens"], 2)
        self.bad(BASE, "/v1/chat/completions", "no chat template: neither", messages=[{"role": "user", "content": "x"}])

    def test_skills_of_moondream_are_refused(self):
        picture = "data:image/png;base64,iVBORw0KGgo="
        for skill, more in (("query", {"question": "x"}), ("caption", {}), ("point", {"object": "x"}), ("detect", {"object": "x"})):
            self.bad(QWEN, "/v1/" + skill, "text model", image_url=picture, **more)
        self.bad(QWEN, "/v1/query", "no query skill: it is a text model; Moondream's have it", question="x")
        content = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": picture}}]
        self.bad(QWEN, "/v1/chat/completions", "picture", "messages", messages=[{"role": "user", "content": content}])

    def test_bad_requests(self):
        chat = "/v1/chat/completions"
        user = {"role": "user", "content": "x"}
        self.bad(QWEN, chat, "last one must be the user's", messages=[user, {"role": "assistant", "content": "y"}])
        self.bad(QWEN, chat, "role", messages=[{"role": "oracle", "content": "x"}])
        self.bad(QWEN, chat, "no room", messages=[{"role": "user", "content": "x " * 300}])
        self.bad(QWEN, chat, "max_tokens", messages=[user], max_tokens=1000)
        self.bad(QWEN, chat, "vocabulary of 277", messages=[user], stop_token_ids=[277])

    def test_what_it_says_of_itself(self):
        with urllib.request.urlopen(self.urls[QWEN] + "/v1/models") as response:
            model = json.load(response)["data"][0]
        self.assertEqual((model["id"], model["max_model_len"]), ("qwen3", 256))

    def test_ollama(self):
        case = chats(LLAMA)[0]
        answer = self.good(LLAMA, "/api/chat", messages=case["messages"], stream=False, options={"num_predict": 12})
        self.assertEqual(answer["message"]["content"], case["text"])
        self.assertEqual(answer["prompt_eval_count"], len(case["ids"]))


class RunTest(FolderTest):
    def good(self, *options):
        done = gapless("run", *options, "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def bad(self, says, *options):
        done = gapless("run", *options, "--device", "cpu")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(says, done.stderr)

    def test_chat_and_complete(self):
        case = chats(QWEN)[0]
        prompt = case["messages"][0]["content"]
        tokens = str(len(case["answer"]))
        chat = ("chat", "--model", QWEN, "--prompt", prompt, "--max-tokens", tokens)
        self.assertEqual(self.good(*chat), case["text"] + "\n")
        self.assertEqual(self.good(*chat, "--stream"), case["text"] + "\n")
        system = json.loads(self.good(*chat, "--json", "--system", "Be brief.", "--no-thinking"))
        self.assertGreater(system["metrics"]["input_tokens"], len(case["ids"]))
        complete = json.loads(self.good("complete", "--model", QWEN, "--prompt", "The circle", "--json", "--max-tokens", "2"))
        self.assertEqual(complete["metrics"]["output_tokens"], 2)

    def test_what_is_missing_or_too_much(self):
        self.bad("chat needs --prompt", "chat", "--model", QWEN)
        self.bad("takes no --image", "chat", "--model", QWEN, "--prompt", "x", "--image", PICTURE)
        self.bad("no chat template", "chat", "--model", BASE, "--prompt", "x")
        self.bad("text model", "query", "--model", QWEN, "--question", "x")
        self.bad("text model", "caption", "--model", QWEN, "--image", PICTURE)
        self.bad("trained for 256", "chat", "--model", QWEN, "--prompt", "x", "--max-context", "257")
        self.bad("of the 64 positions", "chat", "--model", QWEN, "--prompt", "x " * 40, "--max-context", "64")

    def test_formats(self):
        chat = ("chat", "--model", QWEN, "--prompt", "x", "--max-tokens", "4")
        for options in (("--weights", "fp8"), ("--weights", "w8a8"), ("--weights", "int8"), ("--kv-cache", "fp8")):
            self.good(*chat, *options)


class AdapterTest(FolderTest):
    """What it computes is llama_parity_test's to tell."""

    MODEL = MODELS / "qwen3-adapter"

    def info(self, model, adapter):
        return gapless("info", "--model", model, "--adapter", adapter)

    def test_info_names_it(self):
        done = self.info(self.MODEL, self.MODEL / "adapter")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{self.MODEL}/adapter: low-rank terms beside 14 products, of rank 4 at most", done.stdout)

    def test_it_changes_the_answer(self):
        def answer(*adapter):
            done = gapless("run", "complete", "--model", self.MODEL, "--prompt", "The circle", "--max-tokens", 8, "--device", "cpu",
                           *adapter)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        self.assertNotEqual(answer(), answer("--adapter", self.MODEL / "adapter"))

    def test_what_it_does_not_fit_is_refused(self):
        for model, adapter, says in (("random:llama3-1b", self.MODEL / "adapter", "an adapter was not trained for"),
                                     (LLAMA, self.MODEL / "adapter", "has shape"),
                                     (LLAMA, MODELS / "llama-adapter/adapter", "is no product of this model"),
                                     (MODELS.parents[2] / "models/tiny", self.MODEL / "adapter", "is no product of this model"),
                                     (QWEN, self.folder, "adapter_config.json")):
            done = self.info(model, adapter)
            self.assertEqual(done.returncode, 1, (model, done.stdout))
            self.assertIn(says, done.stderr)


class BadModelTest(FolderTest):
    """Folders that are not what they should be: what was found, and what would do."""

    def model(self, source=QWEN):
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        return folder

    def refused(self, folder, *says):
        done = gapless("run", "chat", "--model", folder, "--prompt", "x", "--device", "cpu")
        self.assertEqual(done.returncode, 1, done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)

    def edit(self, file, change):
        document = json.loads(file.read_text())
        change(document)
        file.write_text(json.dumps(document))

    def rename_tensor(self, folder, name, to):
        file = folder / "model.safetensors"
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        header[to] = header.pop(name)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    def test_an_unknown_architecture(self):
        folder = self.model()
        self.edit(folder / "config.json", lambda config: config.update(architectures=["Qwen9ForCausalLM"], model_type="qwen9"))
        self.refused(folder, "'Qwen9ForCausalLM'", "It runs HfMoondream (moondream1), HfMoondream (moondream3), LlamaForCausalLM (llama), Qwen3ForCausalLM")

    def test_tensors(self):
        folder = self.model()
        self.rename_tensor(folder, "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.upward.weight")
        self.refused(folder, "model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight' is missing")
        folder = self.model()
        self.edit(folder / "config.json", lambda config: config.update(num_hidden_layers=1))
        self.refused(folder, "is not one of this model's", "such")
        folder = self.model()
        self.edit(folder / "config.json", lambda config: config.update(intermediate_size=48))
        self.refused(folder, "has shape [40, 32]; the configuration says [48, 32]")
        folder = self.model(LLAMA)
        (folder / "model-00003-of-00005.safetensors").unlink()
        self.refused(folder, "model-00003-of-00005.safetensors")

    def test_tokenizers(self):
        folder = self.model()
        (folder / "tokenizer.json").unlink()
        self.refused(folder, "tokenizer.json: is not there")
        folder = self.model()
        self.edit(folder / "tokenizer.json", lambda document: document.update(
            added_tokens=[token for token in document["added_tokens"] if token["content"] != "<|im_end|>"]))
        self.refused(folder, "has no token '<|im_end|>', which the chat template of Qwen3 needs")
        folder = self.model()
        shutil.copy(MODELS.parents[2] / "models/tiny/tokenizer.json", folder)
        self.refused(folder, "not the tokenizer of these weights")

    def test_other_templates_leave_completion(self):
        folder = self.model()
        (folder / "chat_template.jinja").write_text("[INST] {{ messages }} [/INST]")
        self.refused(folder, "no chat template that gapless knows")
        done = gapless("run", "complete", "--model", folder, "--prompt", "x", "--device", "cpu", "--max-tokens", "1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_info(self):
        for model, says in ((LLAMA, "5 shards"), (QWEN, "Qwen3ForCausalLM")):
            done = gapless("info", "--model", model)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("composed of single ops, because its blocks are sequential", done.stdout)
        done = gapless("info", "--model", "random:llama3-8b", "--rows", "32", "--context", "850")
        self.assertIn("8,030,261,248", done.stdout)
        self.assertIn("decode steps on a GPU: one launch each", done.stdout)
        # 2 bytes of each matrix but the embeddings' (7,504,658,432 numbers), and 131,072 bytes a cached token.
        self.assertIn("32 rows, 850 cached tokens", done.stdout)

