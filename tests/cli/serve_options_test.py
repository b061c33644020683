"""gapless serve: a slip in its options or its file starts no server, least of all an open one."""

import http.client
import unittest

from cli import FolderTest, Serving, environment, gapless


def status_of(port, host=None, path="/version", key=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{port}")
    if key:
        connection.putheader("Authorization", f"Bearer {key}")
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


class ServeOptionsTest(FolderTest):
    def refused(self, *options, env=None):
        """What it says. A server that starts instead is ended by the guard, and that is a failure."""
        done = gapless("serve", "--device", "cpu", "--port", "0", *options, env=env)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def serving(self, *options, env=None):
        return Serving(*options, env=env, log_path=self.folder / "log")

    def test_a_file_that_is_not_understood_is_refused_with_its_line(self):
        for text, line, word in (
            ('[serve]\nport = 1\napi_key = ["a"]\n', 3, "api_key"),
            ('[server]\napi-key = "a"\n', 1, "server"),
            ('[serve]\nport = 1\n[limits]\nx = 1\n', 3, "limits"),
            ('api-key = "a"\n', 1, "api-key"),
            ('[serve]\n[serve.more]\nx = 1\n', 2, "more"),
            ("[serve]\nconfig = 'x'\n", 2, "config"),
            ("[serve]\nhelp = true\n", 2, "help"),
            ("[serve]\napi-key = a\n", 2, ""),
            ("[serve]\napi-key\n", 2, ""),
            ("Options for the server:\n--api-key a\n", 1, ""),
            ("[serve]\napi-key = 'a'\napi-key = 'b'\n", 3, "api-key"),
            ("[serve]\napi-key = []\n", 2, "api-key"),
            ("[serve]\napi-key = ['a', '']\n", 2, "api-key"),
            ("[serve]\napi-key = [['a']]\n", 2, "api-key"),
            ("[serve]\nthreads = 'many'\n", 2, "threads"),
            ("[serve]\nthreads = [1, 2]\n", 2, "threads"),
            ("[serve]\ndrain-seconds = 999999\n", 2, "drain-seconds"),
            ("[serve]\ndebug = 'no'\n", 2, "debug"),
            ("serve = 1\n", 1, "serve"),
            ("[[serve]]\nport = 1\n", 1, "serve"),
        ):
            path = self.write("serve.toml", text)
            said = self.refused("--config", path)
            self.assertIn(f"{path}, line {line}: ", said, text)
            self.assertIn(word, said, text)
        self.assertIn("'api-key'", self.refused("--config", self.write("s.toml", "[serve]\napi_key = 'a'\n")))

    def test_a_file_that_is_not_there_is_refused(self):
        for path in (self.folder / "nothing.toml", "", self.folder):
            self.assertIn("config" if path == "" else str(path), self.refused("--config", path))

    def test_a_key_that_nobody_can_send_is_refused(self):
        self.assertIn("GAPLESS_API_KEY", self.refused(env=environment(GAPLESS_API_KEY="")))
        self.assertIn("GAPLESS_API_KEY", self.refused("--api-key", "a", env=environment(GAPLESS_API_KEY="")))
        for key in ("", " ", "two words", "k\u00e9y", "tab\t"):
            self.assertIn("key", self.refused("--api-key", key))
        self.assertIn("key", self.refused(env=environment(GAPLESS_API_KEY=" ")))
        self.assertIn("--allowed-host", self.refused("--allowed-host", "http://localhost"))

    def test_keys_come_from_the_file_the_environment_and_the_command_line(self):
        path = self.write("serve.toml", '[serve]\napi-key = ["first#1", "second"]  # two\nallowed-host = "box.test"\nquiet = false\n')
        with self.serving("--config", path) as server:
            port = server.port()
            self.assertEqual(status_of(port), 401)
            self.assertEqual(status_of(port, key="first"), 401)
            for key in ("first#1", "second"):
                self.assertEqual(status_of(port, key=key), 200)
            self.assertEqual(status_of(port, key="second", host="box.test"), 200)
            self.assertEqual(status_of(port, key="second", host="evil.test"), 403)
        with self.serving("--config", path, env=environment(GAPLESS_API_KEY="variable")) as server:
            port = server.port()
            self.assertEqual(status_of(port, key="second"), 401, "the environment wins over the file")
            self.assertEqual(status_of(port, key="variable"), 200)
        with self.serving("--config", path, "--api-key", "typed") as server:
            port = server.port()
            self.assertEqual(status_of(port, key="second"), 401, "the command line wins over the file")
            self.assertEqual(status_of(port, key="typed"), 200)

    def test_localhost_is_an_address(self):
        path = self.write("serve.toml", '[serve]\nhost = "localhost"\n')
        for options in (("--host", "localhost"), ("--config", path)):
            with self.serving(*options) as server:
                self.assertEqual(status_of(server.port()), 200)
                self.assertIn(status_of(server.port(), path="/debug/timeline"), (200, 503), "as on a loopback address")
                self.assertNotIn("may use this server", server.text())
        self.assertIn("not an address", self.refused("--host", "no.such.host.test"))

    def test_an_open_door_to_the_network_is_said_aloud(self):
        warning = r" warning everybody who reaches 0\.0\.0\.0 may use this server"
        with self.serving("--host", "0.0.0.0") as server:
            server.wait_for(warning)
            port = server.port()
            # Reached by the address that the client connected to, and by no name but localhost.
            self.assertEqual(status_of(port), 200)
            self.assertEqual(status_of(port, host="localhost"), 200)
            self.assertEqual(status_of(port, host="evil.test"), 403)
            self.assertEqual(status_of(port, path="/debug/timeline"), 404)
        for options in (("--host", "0.0.0.0", "--api-key", "a"), ("--host", "127.0.0.1")):
            with self.serving(*options) as server:
                server.port()
                self.assertNotIn("may use this server", server.text())


if __name__ == "__main__":
    unittest.main()
