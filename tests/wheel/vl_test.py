"""gapless.vl(): the answers of Moondream's own client, pictures of every kind, streams, threads, errors."""

import base64
import io
import json
import os
import re
import subprocess
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import moondream
import numpy
from PIL import Image

import gapless
from gapless._http import _has_ended
from support import (PICTURE, QUESTION, ROOT, FakeServer, answer_bytes, get, stream_bytes, wait_until)


@contextmanager
def tcp_server(*options):
    """Moondream's client speaks TCP only: a server of its own. Its address."""
    command = [os.environ["GAPLESS_TEST_BINARY"], "serve", "--device", "cpu", "--port", "0", "--drain-lead", "0", *map(str, options)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = next(found[1] for line in server.stderr if (found := re.search(r"listening url=(\S+)", line)))
            next(line for line in server.stderr if " ready model=" in line)
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield url
        finally:
            server.terminate()


class AnswersTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.model = gapless.vl(device="cpu", options=["--served-model-name", "answers"])
        cls.picture = Image.open(PICTURE)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_answers_are_those_of_moondreams_client(self):
        # Which names a model in every chat.
        with tcp_server("--served-model-name", "moondream3-preview") as url:
            theirs = moondream.vl(endpoint=url + "/v1")
            for ours in (self.model, gapless.vl(endpoint=url), gapless.vl(endpoint=url + "/v1")):
                for call in (lambda model: model.query(self.picture, QUESTION),
                             lambda model: model.query(question="Hello?", settings={"max_tokens": 4}),
                             lambda model: model.caption(self.picture, length="short"),
                             lambda model: model.caption(self.picture),
                             lambda model: model.caption(self.picture, "long"),
                             lambda model: model.detect(self.picture, "circle"),
                             lambda model: model.point(self.picture, "circle", settings={"max_objects": 1}),
                             lambda model: model.point(self.picture, "circle", spatial_refs=[[0.3, 0.2]]),
                             lambda model: model.query(self.picture, "What is here?", spatial_refs=[[0.3, 0.2]]),
                             lambda model: model.chat(self.conversation()),
                             lambda model: model.chat(self.conversation(), settings={"max_tokens": 3, "temperature": 0, "top_p": 0.5})):
                    expected = call(theirs)
                    self.assertEqual(expected, {name: call(ours)[name] for name in expected})
            for model in (self.model, theirs):
                whole = model.caption(self.picture)["caption"]
                self.assertEqual("".join(model.caption(self.picture, stream=True)["caption"]), whole)
                self.assertEqual("".join(model.query(self.picture, QUESTION, stream=True)["answer"]),
                                 model.query(self.picture, QUESTION)["answer"])
                self.assertEqual("".join(model.chat(self.conversation(), stream=True)["message"]),
                                 model.chat(self.conversation())["message"]["content"])

    def conversation(self):
        picture = {"type": "image_url", "image_url": {"url": self.model.encode_image(self.picture).image_url}}
        return [{"role": "user", "content": [picture, {"type": "text", "text": "What is here?"}]},
                {"role": "assistant", "content": "Shapes."},
                {"role": "user", "content": QUESTION}]

    def test_segments_and_reasoning_are_those_of_moondreams_client(self):
        """Of the shipped Moondream 3 in small, which has both."""
        tiny3 = ROOT / "models/tiny3"
        question = "How many triangles are there?"
        with tcp_server("--model", tiny3, "--served-model-name", "moondream3-preview") as url, gapless.vl(tiny3, device="cpu") as ours:
            theirs = moondream.vl(endpoint=url + "/v1")
            for call in (lambda model: model.segment(self.picture, "cross"),
                         lambda model: model.segment(self.picture, "cross", spatial_refs=[[0.5, 0.5]]),
                         lambda model: model.query(self.picture, question, reasoning=True),
                         lambda model: model.chat(self.conversation(), reasoning=True),
                         lambda model: model.chat(self.conversation(), reasoning=False)):
                expected = call(theirs)
                self.assertEqual(expected, {name: call(ours)[name] for name in expected})
            self.assertTrue(ours.query(self.picture, question, reasoning=True)["reasoning"]["text"])
            answer = ours.segment(self.picture, "cross")
            self.assertRegex(answer["path"], r"^[Mm]( -?[\d.]+){2}")
            self.assertIs(answer["coarse"], True)
            events = list(ours.segment(self.picture, "cross", stream=True))
            self.assertEqual(events, list(theirs.segment(self.picture, "cross", stream=True)))
            self.assertEqual(events[0], {"bbox": answer["bbox"]})
            self.assertEqual("".join(event["chunk"] for event in events[1:-1]), answer["path"])
            self.assertEqual(events[-1], {"path": answer["path"], "bbox": answer["bbox"], "completed": True})
            # A stream has the answer alone, as there.
            self.assertEqual("".join(ours.query(self.picture, question, stream=True, reasoning=True)["answer"]),
                             "".join(theirs.query(self.picture, question, stream=True, reasoning=True)["answer"]))

    def test_pictures_of_every_kind(self):
        file = PICTURE.read_bytes()
        pixels = numpy.asarray(self.picture)
        self.assertEqual(pixels.shape, (480, 720, 3))
        jpeg = io.BytesIO()
        self.picture.save(jpeg, "JPEG", quality=95)
        alpha = self.picture.convert("RGBA")
        grey = self.picture.convert("L")
        for picture in (self.picture, pixels, numpy.ascontiguousarray(pixels[::-1])[::-1], alpha, numpy.asarray(alpha),
                        file, bytearray(file), memoryview(file), PICTURE, str(PICTURE), jpeg.getvalue(),
                        "data:image/png;base64," + base64.b64encode(file).decode(), self.model.encode_image(file),
                        gapless.encode_image(self.picture), moondream.types.Base64EncodedImage("data:x," + base64.b64encode(file).decode())):
            self.assertEqual(self.model.query(picture, QUESTION)["answer"].strip(), "2", type(picture))
        for picture in (grey, numpy.asarray(grey), self.picture.convert("P"), Image.new("1", (40, 30)), Image.new("I;16", (40, 30))):
            self.assertTrue(self.model.caption(picture, length="short")["caption"].strip())

    def test_what_is_no_picture(self):
        for picture in (3, None, [1, 2], object()):
            with self.assertRaises(TypeError):
                self.model.encode_image(picture)
        for array in (numpy.zeros((4, 4, 3)), numpy.zeros((4, 4, 2), numpy.uint8), numpy.zeros((0, 4, 3), numpy.uint8),
                      numpy.zeros((4,), numpy.uint8), numpy.zeros((1, 4, 4, 3), numpy.uint8), numpy.zeros((4, 4), bool)):
            with self.assertRaisesRegex(ValueError, "an array must be of bytes"):
                self.model.caption(array)
        with self.assertRaises(FileNotFoundError):
            self.model.caption("nothing/there.png")
        with self.assertRaises(gapless.RequestError) as caught:
            self.model.caption(b"\xff\xd8\xff no picture")
        self.assertEqual((caught.exception.status, caught.exception.code), (400, "image_decode_failed"))

    def test_errors_are_the_servers(self):
        cases = [
            (lambda: self.model.query(question=" "), "invalid_request", "question"),
            (lambda: self.model.segment(PICTURE, "circle"), "skill_not_available", None),
            (lambda: self.model.segment(PICTURE, "circle", stream=True), "skill_not_available", None),
            (lambda: self.model.query(question="a", settings={"temperature": -1}), "invalid_request", "temperature"),
            # Of a stream too the call raises it, not its first piece.
            (lambda: self.model.query(question=" ", stream=True), "invalid_request", "question"),
        ]
        for call, code, param in cases:
            with self.assertRaises(gapless.RequestError) as caught:
                call()
            self.assertEqual((caught.exception.status, caught.exception.code), (400, code))
            if param:
                self.assertEqual(caught.exception.param, param)
            self.assertEqual(str(caught.exception), caught.exception.message)
        with self.assertRaises(ValueError):
            self.model.query(PICTURE)
        self.assertTrue(self.model.query(question="Hello?", settings={"max_tokens": 1})["metrics"]["output_tokens"])

    def test_many_threads(self):
        questions = [f"How many {name}s are there?" for name in ("circle", "square", "triangle", "heart", "cross", "star")] * 8
        fresh = Image.open(PICTURE)  # not read yet: all threads find it so
        alone = {question: self.model.query(PICTURE, question)["answer"] for question in set(questions)}
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda question: self.model.query(fresh, question)["answer"], questions))
            streamed = list(pool.map(
                lambda question: "".join(self.model.query(PICTURE, question, stream=True)["answer"]), questions))
        self.assertEqual(streamed, [alone[question] for question in questions])
        self.assertEqual(together, streamed)

    def test_a_stream_that_is_left_cancels_its_request(self):
        running = lambda: 'vllm:num_requests_running{model_name="answers"} 0\n' in get(self.model.endpoint, "/metrics")
        endless = {"ignore_eos": True, "max_tokens": 1500}
        with self.model.query(question="Tell me a story.", stream=True, settings=endless)["answer"] as stream:
            self.assertTrue(next(stream))
            self.assertFalse(running())
        wait_until("the request's end", running)
        text = next(iter(self.model.query(question="Go on.", stream=True, settings=endless)["answer"]))
        self.assertTrue(text)
        wait_until("the end of one that nobody holds", running)

    def test_a_stream_keeps_its_model(self):
        model = gapless.vl(device="cpu")
        endpoint = model.endpoint
        stream = model.caption(PICTURE, stream=True)["caption"]
        del model
        self.assertIn("version", get(endpoint, "/version"))
        self.assertEqual("".join(stream), self.model.caption(PICTURE)["caption"])
        del stream
        self.assertFalse(os.path.exists(endpoint.removeprefix("unix:")))

    def test_a_key(self):
        with gapless.vl(device="cpu", options=["--api-key", "secret"]) as model:
            with self.assertRaises(gapless.RequestError) as caught:
                model.query(question="a")
            self.assertEqual(caught.exception.status, 401)
            with gapless.vl(endpoint=model.endpoint, api_key="secret") as joined:
                self.assertTrue(joined.query(question="Hello?", settings={"max_tokens": 2}))


class ConnectionsTest(unittest.TestCase):
    """Servers that do what ours does seldom."""

    def fake(self, answer):
        server = FakeServer(answer)
        self.addCleanup(server.close)
        model = gapless.vl(endpoint=server.endpoint)
        self.addCleanup(model.close)
        return server, model

    def test_connections_are_kept(self):
        server, model = self.fake(lambda connection, number: connection.sendall(answer_bytes({"answer": "yes"})) or True)
        for _ in range(5):
            self.assertEqual(model.query(question="a")["answer"], "yes")
        self.assertEqual(server.num_connections, 1)

    def test_a_connection_that_the_server_has_closed_is_made_anew(self):
        server, model = self.fake(lambda connection, number: connection.sendall(answer_bytes({"answer": "yes"})))
        for _ in range(3):
            self.assertEqual(model.query(question="a")["answer"], "yes")
            wait_until("the server's end of it", lambda: all(_has_ended(one) for one in model._client._idle))
        self.assertEqual(server.num_connections, 3)

    def test_a_connection_that_is_closed_instead_of_an_answer_is_made_anew_once(self):
        count = []

        def answer(connection, number):
            count.append(number)
            # The first one on each connection is answered; the second finds its end.
            if count.count(number) == 1 and number < 3:
                connection.sendall(answer_bytes({"answer": str(number)}))
                return True
            return False

        server, model = self.fake(answer)
        self.assertEqual(model.query(question="a")["answer"], "1")
        self.assertEqual(model.query(question="b")["answer"], "2")
        with self.assertRaises(gapless.ServerError):
            model.query(question="c")
        self.assertEqual(server.num_connections, 3)

    def test_a_server_that_is_not_there(self):
        model = gapless.vl(endpoint="unix:/nothing/there")
        with self.assertRaisesRegex(gapless.ServerError, "no answer from unix:/nothing/there"):
            model.query(question="a")
        for endpoint in ("", "unix:", "localhost:2020", "ftp://localhost", "http://"):
            with self.assertRaisesRegex(ValueError, "endpoint"):
                gapless.vl(endpoint=endpoint)
        with self.assertRaisesRegex(ValueError, "endpoint"):
            gapless.vl(model="a", endpoint="http://localhost:1")
        with self.assertRaisesRegex(ValueError, "api_key"):
            gapless.vl(api_key="a")

    def test_answers_that_make_no_sense(self):
        for bytes_, message in ((answer_bytes({"error": {"message": "no", "code": "c", "param": "p"}}, 429), "no"),
                                (answer_bytes({"error": "no"}, 500), "the server answered 500"),
                                (answer_bytes([1]), "the server answered 200"),
                                (b"HTTP/1.1 502 x\r\nContent-Length: 4\r\n\r\n<ht>", "the server answered 502")):
            _, model = self.fake(lambda connection, number: connection.sendall(bytes_))
            with self.assertRaisesRegex(gapless.RequestError, message):
                model.query(question="a")
            with self.assertRaises(gapless.Error):
                list(model.query(question="a", stream=True)["answer"])

    def test_a_stream_that_fails_in_the_middle(self):
        failure = {"chunk": "", "completed": True, "finish_reason": "error",
                   "error": {"message": "lost", "code": "device_error", "param": None}}
        _, model = self.fake(lambda connection, number: connection.sendall(stream_bytes([{"chunk": "a", "completed": False}, failure])))
        stream = model.query(question="a", stream=True)["answer"]
        self.assertEqual(next(stream), "a")
        with self.assertRaises(gapless.RequestError) as caught:
            next(stream)
        self.assertEqual((caught.exception.status, caught.exception.code), (None, "device_error"))
        self.assertEqual(list(stream), [])
        _, model = self.fake(lambda connection, number: connection.sendall(stream_bytes([{"chunk": "a", "completed": False}])))
        with self.assertRaises(gapless.ServerError):
            list(model.query(question="a", stream=True)["answer"])

    def test_a_chats_stream(self):
        chunk = lambda **delta: b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
        framed = lambda pieces: (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                                 + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
        whole = [chunk(role="assistant"), chunk(reasoning="because"), chunk(content="a"), chunk(content=None),
                 b'data: {"choices": [], "usage": {}}\n\n', chunk(content="b"), b"data: [DONE]\n\n"]
        server, model = self.fake(lambda connection, number: connection.sendall(framed(whole)) or True)
        turns = [{"role": "user", "content": "a"}]
        for _ in range(2):
            self.assertEqual(list(model.chat(turns, stream=True, settings={"seed": 3})["message"]), ["a", "b"])
        self.assertEqual(server.num_connections, 1, "a stream that was read to its end keeps its connection")
        path, body = server.requests[0]
        self.assertEqual((path, json.loads(body)), ("/v1/chat/completions", {"messages": turns, "seed": 3, "stream": True}))
        failed = [chunk(content="a"), b'data: {"error": {"message": "lost", "code": "device_error", "param": null}}\n\n']
        for pieces, error in ((failed, gapless.RequestError), (whole[:-1], gapless.ServerError)):
            _, model = self.fake(lambda connection, number: connection.sendall(framed(pieces)))
            stream = model.chat(turns, stream=True)["message"]
            self.assertEqual(next(stream), "a")
            with self.assertRaises(error):
                list(stream)

    def test_segments_as_moondreams_servers_stream_them(self):
        box = {"x_min": 0.25, "y_min": 0.5, "x_max": 0.75, "y_max": 0.75}
        events = [{"type": "bbox", "bbox": box}, {"type": "path_delta", "chunk": "M 0 0", "completed": False, "token_index": 0},
                  {"type": "final", "chunk": "", "completed": True, "path": "M 0 0 Z", "bbox": box}]
        whole = {"path": "M 0 0 Z", "bbox": box}

        def answer(connection, number):
            connection.sendall(stream_bytes(events) if b'"stream": true' in server.requests[-1][1] else answer_bytes(whole))
            return True

        server, model = self.fake(answer)
        self.assertEqual(model.segment(PICTURE, "circle", spatial_refs=[[0.5, 0.5]]), whole)
        self.assertEqual(list(model.segment(PICTURE, "circle", stream=True)),
                         [{"bbox": box}, {"chunk": "M 0 0"}, {"path": "M 0 0 Z", "bbox": box, "completed": True}])
        path, body = server.requests[0]
        self.assertEqual(path, "/v1/segment")
        sent = json.loads(body)
        self.assertEqual((sent["object"], sent["spatial_refs"]), ("circle", [[0.5, 0.5]]))
        self.assertEqual(server.num_connections, 1, "a stream that was read to its end keeps its connection")

    def test_reasoning_is_asked_for_and_handed_on(self):
        reasoning = {"text": "because", "grounding": []}
        server, model = self.fake(lambda connection, number: connection.sendall(answer_bytes({"answer": "a", "reasoning": reasoning})) or True)
        self.assertEqual(model.query(question="a", reasoning=True)["reasoning"], reasoning)
        self.assertIs(json.loads(server.requests[0][1])["reasoning"], True)
        model.query(question="a")
        self.assertNotIn("reasoning", json.loads(server.requests[1][1]))


if __name__ == "__main__":
    unittest.main()
