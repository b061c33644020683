"""/metrics as routers and dashboards read it: by Prometheus' own parser, by name and by type."""

import json
import re
import time
import unittest
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from serving import PICTURE, ROOT, Server
import base64

# vLLM's names that are scraped by the Gateway API Inference Extension, llm-d, the production stack (which knows
# the older gpu_ names) and AIBrix. The parser takes `_total` off a counter's name.
ROUTERS_NEED = {
    "gauge": ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
              "vllm:cache_config_info", "vllm:lora_requests_info", "vllm:gpu_cache_usage_perc",
              "vllm:gpu_prefix_cache_hit_rate"],
    "counter": ["vllm:prompt_tokens", "vllm:generation_tokens", "vllm:request_success", "vllm:num_preemptions",
                "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_queries",
                "vllm:gpu_prefix_cache_hits"],
    "histogram": ["vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
                  "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
                  "vllm:request_inference_time_seconds", "vllm:request_prefill_time_seconds",
                  "vllm:request_decode_time_seconds", "vllm:request_time_per_output_token_seconds",
                  "vllm:request_prompt_tokens", "vllm:request_generation_tokens"],
}
PROCESS = {
    "gauge": ["process_resident_memory_bytes", "process_virtual_memory_bytes", "process_start_time_seconds",
              "process_open_fds", "process_max_fds"],
    "counter": ["process_cpu_seconds"],
}


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.fresh = cls.read()
        cls.answers = [cls.ask(), cls.ask()]
        cls.families = cls.wait_for(lambda families: cls.value(families, "vllm:request_success", finished_reason="stop") == 2)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    @classmethod
    def read(cls):
        families = list(text_string_to_metric_families(cls.server.get("/metrics")))
        assert len({family.name for family in families}) == len(families), "announced twice"
        return {family.name: family for family in families}

    @classmethod
    def wait_for(cls, condition):
        for _ in range(500):  # things are counted a moment after the answer
            families = cls.read()
            if condition(families):
                return families
            time.sleep(0.02)
        raise AssertionError("the metrics never came")

    @classmethod
    def ask(cls):
        picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "How many circles are there?"}]
        body = {"messages": [{"role": "user", "content": content}], "stop": ["\n"]}
        request = urllib.request.Request(cls.server.url + "/v1/chat/completions", data=json.dumps(body).encode())
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())

    @staticmethod
    def value(families, name, suffix=None, **labels):
        """The sum of the samples with these labels; of a histogram those with this suffix."""
        wanted = name + (suffix or ("_total" if families[name].type == "counter" else ""))
        return sum(sample.value for sample in families[name].samples
                   if sample.name == wanted and labels.items() <= sample.labels.items())

    def test_routers_find_their_names_and_types(self):
        for kind, names in ROUTERS_NEED.items():
            for name in names:
                self.assertIn(name, self.families)
                self.assertEqual(self.families[name].type, kind, name)
                for sample in self.families[name].samples:
                    self.assertEqual(sample.labels["model_name"], "tiny", name)

    def test_the_process_has_the_names_of_every_process(self):
        for kind, names in PROCESS.items():
            for name in names:
                self.assertEqual(self.families[name].type, kind, name)
                (sample,) = self.families[name].samples
                self.assertEqual(sample.labels, {}, name)
                self.assertGreater(sample.value, 0, name)
        self.assertLess(abs(time.time() - self.value(self.families, "process_start_time_seconds")), 3600)

    def test_several_devices_are_told_apart_and_routers_see_their_sum(self):
        server = Server("--device", "cpu,cpu")
        try:
            families = {family.name: family for family in text_string_to_metric_families(server.get("/metrics"))}
        finally:
            self.assertEqual(server.stop(), 0)
        blocks = lambda families: int(families["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"])
        self.assertEqual(blocks(families), 2 * blocks(self.families))
        for kind in ("gauge", "counter"):
            for name in ROUTERS_NEED[kind]:
                for sample in families[name].samples:
                    self.assertNotIn("device", sample.labels, name)
        self.assertEqual({sample.labels["device"] for sample in self.families["gapless_device_seconds"].samples}, {"cpu"})
        for name, family in families.items():
            devices = {sample.labels.get("device") for sample in family.samples}
            if devices != {None}:
                self.assertEqual(devices, {"cpu:0", "cpu:1"}, name)
        self.assertIn("gapless_steps", [name for name, family in families.items() if "device" in family.samples[0].labels])

    def test_histograms_are_whole(self):
        for family in self.families.values():
            if family.type != "histogram":
                continue
            buckets = [s.value for s in family.samples if s.name.endswith("_bucket")]
            self.assertEqual(buckets, sorted(buckets), family.name)
            self.assertEqual(buckets[-1], self.value(self.families, family.name, "_count"), family.name)

    def test_what_two_questions_leave(self):
        grown = lambda name, suffix=None: self.value(self.families, name, suffix) - self.value(self.fresh, name, suffix)
        usages = [answer["usage"] for answer in self.answers]
        first, second = (usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        self.assertEqual((first, second), (0, 730), "the second finds BOS and the picture's 729 positions")
        self.assertEqual(grown("vllm:prefix_cache_hits"), 730)
        self.assertEqual(grown("vllm:prefix_cache_queries"), sum(usage["prompt_tokens"] for usage in usages))
        self.assertEqual(grown("vllm:gpu_prefix_cache_hits"), 730)
        for name in ("request_queue_time", "request_inference_time", "e2e_request_latency", "time_to_first_token"):
            self.assertEqual(grown(f"vllm:{name}_seconds", "_count"), 2, name)
            self.assertGreater(grown(f"vllm:{name}_seconds", "_sum"), 0, name)
        self.assertGreaterEqual(grown("vllm:e2e_request_latency_seconds", "_sum"),
                                grown("vllm:request_inference_time_seconds", "_sum"))
        self.assertEqual(self.value(self.families, "vllm:num_preemptions"), 0)
        self.assertLess(abs(time.time() - self.value(self.families, "vllm:lora_requests_info")), 3600)

    def test_the_time_per_output_token_is_the_answers(self):
        """Of an answer of one token there is none."""
        name = "vllm:request_time_per_output_token_seconds"
        before = self.read()
        body = json.dumps({"prompt": "Hello?", "max_tokens": 21, "ignore_eos": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.server.url + "/v1/completions", data=body)) as response:
            self.assertEqual(json.loads(response.read())["usage"]["completion_tokens"], 21)
        after = self.wait_for(lambda families: self.value(families, name, "_count") == self.value(before, name, "_count") + 1)
        grown = lambda name: self.value(after, name, "_sum") - self.value(before, name, "_sum")
        self.assertAlmostEqual(20 * grown(name), grown("vllm:request_decode_time_seconds"), delta=1e-6)

    def test_an_idle_server_holds_nothing(self):
        """Its pages are full of pictures that were asked about, which give way to whoever comes."""
        idle = self.wait_for(lambda families: self.value(families, "vllm:kv_cache_usage_perc") == 0)
        self.assertEqual(self.value(idle, "vllm:gpu_cache_usage_perc"), 0)
        self.assertGreater(int(idle["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"]), 0)

    def test_the_dashboard_asks_for_what_there_is(self):
        dashboard = json.loads((ROOT / "deploy/grafana/gapless.json").read_text())
        panels = dashboard["panels"]
        samples = {sample.name for family in self.families.values() for sample in family.samples}
        queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
        self.assertGreater(len(queries), 10)
        for query in queries:
            names = re.findall(r"\b(?:vllm:|gapless_|process_)[a-z0-9_]+", query)
            self.assertTrue(names, query)
            for name in names:
                self.assertIn(name, samples, query)
        self.assertIn("gapless_device_seconds_total", next(p for p in panels if p.get("targets"))["targets"][0]["expr"],
                      "the bubble comes first")
        places = [(p["gridPos"]["y"], p["gridPos"]["x"]) for p in panels]
        self.assertEqual(len(set(places)), len(places), "panels on top of each other")


if __name__ == "__main__":
    unittest.main()
