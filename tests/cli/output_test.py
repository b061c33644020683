"""What happens when standard output, the log or a disk takes no more."""

import http.client
import json
import os
import resource
import subprocess
import unittest

from cli import BINARY, GUARD_SECONDS, PICTURE, FolderTest, environment, gapless

QUERY = ("run", "query", "--device", "cpu", "--question", "How many shapes?", "--max-tokens", "4")


class OutputTest(FolderTest):
    def test_an_answer_that_cannot_be_written_is_no_success(self):
        for options in ((), ("--json",), ("--stream",)):
            with open("/dev/full", "w") as full:
                done = gapless(*QUERY, *options, stdout=full)
            self.assertEqual(done.returncode, 1, options)
            self.assertIn("standard output could not be written", done.stderr)
        with open("/dev/full", "w") as full:
            self.assertEqual(gapless("info", stdout=full).returncode, 1)
        self.assertEqual(gapless(*QUERY).returncode, 0)

    def test_an_annotated_picture_that_cannot_be_written_is_no_success(self):
        done = gapless("run", "detect", "--device", "cpu", "--image", PICTURE, "--object", "circle",
                       "--annotate", "/dev/full")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/dev/full", done.stderr)

    def test_a_model_that_does_not_fit_on_the_disk_is_an_error(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 20, resource.RLIM_INFINITY))

        folder = self.folder / "model"
        done = gapless("random-model", "--arch", "moondream-0.5b", "--out", folder, preexec_fn=small_files)
        self.assertEqual(done.returncode, 1)
        self.assertIn("could not be written", done.stderr)
        self.assertNotIn("\r", done.stderr, "standard error is a pipe here")
        self.assertFalse((folder / "model.safetensors").exists())
        self.assertEqual([path for path in folder.iterdir() if path.stat().st_size > 1 << 20], [])

    def test_a_reader_that_leaves_is_an_error_and_no_signal(self):
        reading, writing = os.pipe()
        os.close(reading)
        done = gapless(*QUERY, stdout=writing)
        os.close(writing)
        self.assertEqual(done.returncode, 1)
        self.assertIn("Broken pipe", done.stderr)

    def test_the_server_outlives_the_reader_of_its_log(self):
        process = subprocess.Popen([BINARY, "serve", "--device", "cpu", "--port", "0"], env=environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            port = None
            for line in process.stderr:
                if "listening url=" in line:
                    port = int(line.rsplit(":", 1)[1])
                if " ready model=" in line:
                    break
            process.stderr.close()
            process.stdout.close()
            for _ in range(3):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_SECONDS)
                connection.request("POST", "/v1/query", json.dumps({"question": "a", "settings": {"max_tokens": 2}}))
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
            self.assertIsNone(process.poll())
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    unittest.main()
