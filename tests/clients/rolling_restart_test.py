"""Two replicas behind Envoy, restarted one after the other while clients ask: no request is lost."""

import base64
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from serving import PICTURE, Server

# Envoy asks every half second; on a busy machine it may be late.
LEAD_SECONDS = 8
GUARD_SECONDS = 240

ENVOY = """
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: front
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: /}}
                route: {{cluster: gapless, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: gapless
    connect_timeout: 2s
    lb_policy: LEAST_REQUEST
    common_lb_config: {{healthy_panic_threshold: {{value: 0}}}}
    health_checks:
    - timeout: 60s
      interval: 0.5s
      no_traffic_interval: 0.5s
      unhealthy_threshold: 1
      healthy_threshold: 1
      http_health_check: {{path: /ready, host: localhost}}
    load_assignment:
      cluster_name: gapless
      endpoints:
      - lb_endpoints:
{endpoints}
"""
ENDPOINT = "        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}\n"


class Envoy:
    def __init__(self, ports):
        self.folder = tempfile.TemporaryDirectory(prefix="gapless-envoy-")
        folder = Path(self.folder.name)
        (folder / "envoy.yaml").write_text(ENVOY.format(endpoints="".join(ENDPOINT.format(port=port) for port in ports)))
        self.log = open(folder / "log", "wb")
        # --use-dynamic-base-id: beside other Envoys of this machine.
        self.process = subprocess.Popen(
            [Path(sys.executable).parent / "envoy", "-c", folder / "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "1",
             "--admin-address-path", folder / "admin", "-l", "warning"], stdout=self.log, stderr=subprocess.STDOUT)
        self.admin = "http://" + self.wait_for(lambda: (folder / "admin").read_text().strip())
        self.url = "http://" + self.wait_for(lambda: re.search(r"front::(\S+)", self.ask("/listeners"))[1])
        self.wait_for(lambda: self.num_healthy() == len(ports) or None)

    def wait_for(self, what):
        deadline = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if found := what():
                    return found
            except (OSError, TypeError):
                pass
            time.sleep(0.05)
        raise AssertionError("envoy did not start:\n" + (Path(self.folder.name) / "log").read_text())

    def ask(self, path):
        with urllib.request.urlopen(self.admin + path, timeout=GUARD_SECONDS) as response:
            return response.read().decode()

    def num_healthy(self):
        return len(re.findall(r"health_flags::healthy", self.ask("/clusters")))

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.folder.cleanup()


class Client(threading.Thread):
    """Asks one request after another, of each kind in turn."""

    def __init__(self, url, picture):
        super().__init__(daemon=True)
        self.url, self.picture = url, picture
        self.stopping = False
        self.good, self.lost = 0, []

    def run(self):
        while not self.stopping:
            for request in (self.query, self.chat, self.stream):
                try:
                    request()
                    self.good += 1
                except (OSError, AssertionError, ValueError) as error:
                    said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                    self.lost.append(f"{request.__name__}: {error!r} {said}")

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD_SECONDS) as response:
            return response.read().decode()

    def query(self):
        answer = json.loads(self.post("/v1/query", {"question": "How many shapes?", "image_url": self.picture,
                                                    "settings": {"max_tokens": 8}}))
        assert "answer" in answer, answer

    def chat(self, stream=False):
        message = {"role": "user", "content": [{"type": "text", "text": "How many shapes?"},
                                               {"type": "image_url", "image_url": {"url": self.picture}}]}
        answer = self.post("/v1/chat/completions", {"messages": [message], "max_tokens": 8, "stream": stream})
        assert stream or json.loads(answer)["choices"], answer
        return answer

    def stream(self):
        answer = self.chat(stream=True)
        assert answer.endswith("data: [DONE]\n\n"), answer


class RollingRestartTest(unittest.TestCase):
    def start(self, port="0"):
        return Server("--port", str(port), "--drain-lead", str(LEAD_SECONDS), "--drain-seconds", str(GUARD_SECONDS))

    def stop(self, replica):
        replica.process.terminate()
        self.assertEqual(replica.process.wait(GUARD_SECONDS), 0, replica.text())

    def wait_for_answers(self, clients):
        """Until each client has had an answer more, or lost one."""
        before = [client.good for client in clients]
        deadline = time.monotonic() + GUARD_SECONDS
        while any(client.good == count and not client.lost for client, count in zip(clients, before)):
            self.assertLess(time.monotonic(), deadline, "nobody answers")
            time.sleep(0.02)

    def test_no_request_is_lost(self):
        replicas = [self.start(), self.start()]
        envoy = Envoy([replica.port() for replica in replicas])
        picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        clients = [Client(envoy.url, picture) for _ in range(4)]
        try:
            for client in clients:
                client.start()
            for number in range(2):
                self.wait_for_answers(clients)
                port = replicas[number].port()
                self.stop(replicas[number])
                self.wait_for_answers(clients)
                replicas[number] = self.start(port)
                envoy.wait_for(lambda: envoy.num_healthy() == 2 or None)
            self.wait_for_answers(clients)
            for client in clients:
                client.stopping = True
            for client in clients:
                client.join(GUARD_SECONDS)
                self.assertFalse(client.is_alive())
            self.assertEqual([lost for client in clients for lost in client.lost], [])
            self.assertGreaterEqual(sum(client.good for client in clients), 5 * len(clients))
            print(f"{sum(client.good for client in clients)} requests, two restarts, none lost", file=sys.stderr)
        finally:
            for client in clients:
                client.stopping = True
            envoy.close()
            for replica in replicas:
                replica.process.kill()
                replica.process.wait()


if __name__ == "__main__":
    unittest.main()
