"""Segments as the unmodified clients of Moondream and OpenAI read them, of a small model of random weights."""

import json
import unittest
import urllib.error
import urllib.request

import moondream
import openai
from PIL import Image

from clients_test import data_uri
from serving import PICTURE, Server

SETTINGS = {"max_tokens": 60, "temperature": 3, "seed": 2}


class SegmentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--model", "random:moondream3-small:2", "--served-model-name", "small3")
        cls.moondream = moondream.vl(endpoint=cls.server.url + "/v1")
        cls.picture = Image.open(PICTURE)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def post(self, path, **body):
        request = urllib.request.Request(self.server.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def test_moondreams_client(self):
        answer = self.moondream.segment(self.picture, "circle", settings=SETTINGS)
        self.assertEqual(set(answer), {"path", "bbox"})
        self.assertRegex(answer["path"], r"^[Mm]( -?[\d.]+){2}")
        self.assertLessEqual(answer["bbox"]["x_min"], answer["bbox"]["x_max"])
        other = self.moondream.segment(self.picture, "circle", spatial_refs=[[0.2, 0.3], [0.1, 0.1, 0.4, 0.4]], settings=SETTINGS)
        self.assertNotEqual(other, answer)

    def test_moondreams_client_streams(self):
        answer = self.moondream.segment(self.picture, "circle", settings=SETTINGS)
        events = list(self.moondream.segment(self.picture, "circle", settings=SETTINGS, stream=True))
        self.assertEqual(events[0], {"bbox": answer["bbox"]})
        self.assertEqual(events[-1], {**answer, "completed": True})
        pieces = [event["chunk"] for event in events[1:-1]]
        self.assertGreater(len(pieces), 1)
        self.assertEqual("".join(pieces), answer["path"])
        for piece in pieces:
            self.assertRegex(piece, r"^ ?[A-Za-z]( -?[\d.]+)*$", "a whole command")

    def test_a_chat_reaches_it(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        ask = {"model": "small3", "extra_body": {"moondream": {"skill": "segment", "object": "circle", "settings": SETTINGS}},
               "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_uri()}}]}]}
        expected = self.post("/v1/segment", image_url=data_uri(), object="circle", settings=SETTINGS)
        whole = client.chat.completions.create(**ask).choices[0].message.content
        self.assertEqual(json.loads(whole), {name: expected[name] for name in ("path", "bbox", "coarse")})
        streamed = client.chat.completions.create(**ask, stream=True)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in streamed), whole)

    def test_several_objects_are_answered_each(self):
        answers = self.post("/v1/segment", image_url=data_uri(), objects=["circle", "square"], settings=SETTINGS)["answers"]
        self.assertEqual([answer["object"] for answer in answers], ["circle", "square"])
        alone = self.post("/v1/segment", image_url=data_uri(), object="circle", settings=SETTINGS)
        self.assertEqual(answers[0]["path"], alone["path"])

    def test_what_is_wrong_is_a_400(self):
        for wrong, says in (({"object": " "}, "object"), ({}, "object"), ({"object": "x", "spatial_refs": [[0, 2]]}, "spatial_refs"),
                            ({"object": "x", "settings": {"max_tokens": 0}}, "max_tokens")):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                self.post("/v1/segment", image_url=data_uri(), **wrong)
            self.assertEqual(caught.exception.code, 400)
            self.assertEqual(json.load(caught.exception)["error"]["param"], says)

    def test_the_skills_of_the_model(self):
        with urllib.request.urlopen(self.server.url + "/model_info") as response:
            self.assertIn("segment", json.load(response)["skills"])


if __name__ == "__main__":
    unittest.main()
