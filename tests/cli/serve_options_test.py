"""gapless serve: a slip in its options or its file starts no server, least of all an open one."""

import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.request
from pathlib import Path

from cli import BINARY, GUARD_SECONDS, FolderTest, Serving, environment, gapless


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


def unix_status_of(unix_socket, path):
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(unix_socket))
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def unix_server(path, log):
    return Serving("--unix-socket", path, "--drain-lead", "0", log_path=log, port=None)


def until(condition):
    deadline = time.monotonic() + GUARD_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not in time")
        time.sleep(0.02)


def ended(pid):
    """Gone, or waiting to be collected by whoever has taken it over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


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

    def test_a_file_may_be_a_pipe(self):
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        os.write(write, b"[serve]\nport = 0\ndrain-sconds = 1\n")
        os.close(write)
        done = gapless("serve", "--device", "cpu", "--config", f"/dev/fd/{read}", pass_fds=(read,))
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"/dev/fd/{read}, line 3: unknown key 'drain-sconds'", done.stderr)

    def test_a_key_that_nobody_can_send_is_refused(self):
        self.assertIn("GAPLESS_API_KEY", self.refused(env=environment(GAPLESS_API_KEY="")))
        self.assertIn("GAPLESS_API_KEY", self.refused("--api-key", "a", env=environment(GAPLESS_API_KEY="")))
        for key in ("", " ", "two words", "k\u00e9y", "tab\t"):
            self.assertIn("key", self.refused("--api-key", key))
        self.assertIn("key", self.refused(env=environment(GAPLESS_API_KEY=" ")))
        self.assertIn("--allowed-host", self.refused("--allowed-host", "http://localhost"))

    def test_devices_that_make_no_sense_are_refused(self):
        for devices, word in (("cpu,", "expected cpu"), ("cpu,cuda:0", "not the same to the bit"), ("cuda:1,cuda:1", "named twice"),
                              ("gpu", "expected cpu"), (",".join(["cpu"] * 65), "at most 64")):
            done = gapless("serve", "--device", devices, "--port", "0")
            self.assertEqual(done.returncode, 1, devices)
            self.assertIn(word, done.stderr)

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

    def test_the_log_names_an_address_that_clients_can_be_given(self):
        with self.serving("--host", "::1") as server:
            url = server.wait_for(r"listening url=(\S+)").group(1)
            self.assertRegex(url, r"^http://\[::1\]:\d+$")
            with urllib.request.urlopen(url + "/health", timeout=60) as response:
                self.assertEqual(response.status, 200)

    def test_strangers_who_take_every_descriptor_keep_nobody_out(self):
        few = 64
        log = self.folder / "log"
        with Serving(log_path=log, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))) as server:
            server.wait_for(" ready ")
            port = server.port()
            strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(few)]
            server.wait_for("cannot accept a connection")
            self.assertEqual(status_of(port), 200)
            for stranger in strangers:
                stranger.close()

    def test_a_port_that_is_none_is_refused(self):
        for option in ("--port", "--ollama-port"):
            for value in ("65536", "-1", "http"):
                done = gapless("serve", "--device", "cpu", option, value)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"{option}: Value {value} not in range 0 to 65535", done.stderr)

    def test_a_unix_socket_takes_the_place_of_the_port(self):
        path = self.folder / "socket"
        for more in (("--port", "0"), ("--host", "127.0.0.1"), ("--ollama-port", "0")):
            done = gapless("serve", "--device", "cpu", "--unix-socket", path, *more)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--unix-socket", done.stderr)
        with unix_server(path, self.folder / "log") as server:
            server.wait_for(re.escape(f"listening unix_socket={path}"))
            server.wait_for(" ready ")
            self.assertEqual(unix_status_of(path, "/ready"), 200)
            self.assertEqual(unix_status_of(path, "/debug/timeline"), 200, "as on a loopback address")
            done = gapless("serve", "--device", "cpu", "--unix-socket", path)
            self.assertEqual(done.returncode, 1)
            self.assertIn("a server listens there", done.stderr)
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.process.wait(GUARD_SECONDS), 0)
            self.assertNotIn("may use this server", server.text())
        self.assertFalse(path.exists())

    def test_routers_have_five_seconds_to_notice_that_it_leaves(self):
        """Unless told otherwise. A second signal ends it, so that nobody waits here."""
        with self.serving() as server:
            port = server.port()
            server.wait_for(" ready ")
            self.assertEqual(status_of(port, path="/ready"), 200)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(r"leaving: /ready is 503, requests are taken for 5 s more")
            until(lambda: status_of(port, path="/ready") == 503)
            self.assertEqual(status_of(port), 200, "new connections are taken")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(GUARD_SECONDS), 0)
            self.assertNotIn("draining", server.text())

    def test_a_terminal_that_closes_drains_it_unless_nohup_says_otherwise(self):
        with self.serving() as server:
            server.wait_for(" ready ")
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(server.process.wait(GUARD_SECONDS), 0)
            self.assertIn("draining", server.text())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with self.serving("--drain-lead", "1") as server:
                server.wait_for(" ready ")
                server.process.send_signal(signal.SIGHUP)
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(GUARD_SECONDS), 0)
                self.assertIn("leaving", server.text(), "this one ended it")
        finally:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def test_it_ends_with_its_parent(self):
        """Which is killed; the server is then a child of another process."""
        path = self.folder / "socket"
        log = self.folder / "log"
        starter = subprocess.Popen(
            [sys.executable, "-c", f"""
import os, subprocess, sys, time
server = subprocess.Popen([{BINARY!r}, "serve", "--device", "cpu", "--unix-socket", {str(path)!r}, "--parent", str(os.getpid()),
                           "--drain-lead", "0"], stderr=open({str(log)!r}, "wb"))
print(server.pid, flush=True)
time.sleep(1000)
"""], stdout=subprocess.PIPE, text=True)
        with starter:
            pid = int(starter.stdout.readline())
            until(lambda: log.exists() and " ready " in log.read_text())
            starter.kill()
        until(lambda: not path.exists() and ended(pid))
        self.assertIn(f"process {starter.pid} has ended: leaving", log.read_text())
        self.assertIn("draining", log.read_text())

    def test_a_parent_that_is_none_ends_it_at_once(self):
        done = gapless("serve", "--device", "cpu", "--unix-socket", self.folder / "socket", "--parent", "2147483647")
        self.assertEqual(done.returncode, 128 + signal.SIGTERM, done.stderr)
        self.assertFalse((self.folder / "socket").exists())
        for word in ("0", "-1", "me"):
            self.assertIn("--parent", self.refused("--parent", word))

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
