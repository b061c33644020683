"""Routers in front of replicas, each as its users start it: Envoy and vllm-router."""

import http.client
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from ports import free_ports

# For what takes moments, on a machine that has other things to do.
GUARD_SECONDS = 240
# Then a router is asked again.
ASK_SECONDS = 10

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


class Router:
    """A process with its log in a folder of its own, told of the replicas' ports. `url` is where clients ask."""

    def __init__(self, ports):
        self.temporary = tempfile.TemporaryDirectory(prefix="gapless-router-")
        self.folder = Path(self.temporary.name)
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen([Path(sys.executable).parent / self.program, *self.arguments(ports)],
                                        stdout=self.log, stderr=subprocess.STDOUT)
        try:
            self.find_url()
            self.wait_for(lambda: self.num_ready() == len(ports) or None)
        except BaseException:
            self.close()
            raise

    def wait_for(self, what):
        deadline = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if found := what():
                    return found
            except (OSError, TypeError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        raise AssertionError(f"{self.program} is not where it should be:\n" + (self.folder / "log").read_text())

    def ask(self, url):
        with urllib.request.urlopen(url, timeout=ASK_SECONDS) as response:
            return response.read().decode()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.temporary.cleanup()


class Envoy(Router):
    program = "envoy"

    def arguments(self, ports):
        (self.folder / "envoy.yaml").write_text(ENVOY.format(endpoints="".join(ENDPOINT.format(port=port) for port in ports)))
        # --use-dynamic-base-id: beside other Envoys of this machine.
        return ["-c", self.folder / "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "1",
                "--admin-address-path", self.folder / "admin", "-l", "warning"]

    def find_url(self):
        self.admin = "http://" + self.wait_for(lambda: (self.folder / "admin").read_text().strip())
        self.url = "http://" + self.wait_for(lambda: re.search(r"front::(\S+)", self.ask(self.admin + "/listeners"))[1])

    def num_ready(self):
        return len(re.findall(r"health_flags::healthy", self.ask(self.admin + "/clusters")))


class VllmRouter(Router):
    program = "vllm-router"

    def arguments(self, ports):
        front, metrics = free_ports(2)
        self.url = f"http://127.0.0.1:{front}"
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"
        return ["--worker-urls", *(f"http://127.0.0.1:{port}" for port in ports), "--policy", "round_robin",
                "--port", str(front), "--prometheus-port", str(metrics),
                # Every second, at the path that says whether requests should come; its own values are 60 s and /health.
                "--health-check-endpoint", "/ready", "--health-check-interval-secs", "1",
                "--health-failure-threshold", "1", "--health-success-threshold", "1"]

    def find_url(self):
        self.wait_for(lambda: self.ask(self.url + "/v1/models"))

    def num_ready(self):
        return len(re.findall(r"^\w*worker_health\{.*\} 1$", self.ask(self.metrics), re.M))
